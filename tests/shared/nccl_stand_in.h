/* A stand-in for NCCL in tests; and the failures that it can be told to have. */
#ifndef TENON_NCCL_STAND_IN_H
#define TENON_NCCL_STAND_IN_H

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    NCCL_FAULT_NONE,
    NCCL_FAULT_MISSING, /* the library is not there */
    NCCL_FAULT_ID,      /* no id is made */
    NCCL_FAULT_INIT,    /* the rank's communicator is not */
    NCCL_FAULT_CALL,    /* from the call on a group of calls fails when it is given */
    NCCL_FAULT_ASYNC,   /* from the call on the communicator has an error, and goes on */
    NCCL_FAULT_HANG     /* from the call on nothing ends until it is aborted */
} NcclFaultKind;

typedef struct NcclFault {
    NcclFaultKind kind;
    int rank; /* in its group */
    int64_t call;
} NcclFault;

void nccl_fault(NcclFault f);

typedef struct NcclSeen {
    int64_t comms, destroyed, aborted; /* communicators */
    int64_t groups, gathers, reductions;
} NcclSeen;
NcclSeen nccl_seen(void); /* since the program began, of all ranks */

#endif
