/* inject: makes the n-th allocation or the n-th system call of a process fail. A process that is to
 * be tested is forked from one that has no threads; what is seen there is in memory that both
 * share. */
#ifndef TENON_INJECT_H
#define TENON_INJECT_H

#include "../../src/base/base.h"

typedef enum {
    INJECT_ALLOC, /* an allocation gives NULL */
    INJECT_CALL,  /* a system call on files fails */
    INJECT_SHORT, /* a system call that moves bytes moves half of them */
} InjectKind;

enum { INJECT_FRAMES = 40, INJECT_SITES = 1 << 14 };

/* A place that allocates or calls, told from others by the inner part of its call stack. */
typedef struct InjectSite {
    uint64_t hash;
    int64_t first;  /* the number of the first of its events, from 1 */
    int call;       /* the system call's number; allocations: -1 */
    int fd;         /* its first argument */
    char owner[48]; /* file of the innermost frame outside of the C and C++ libraries */
    int nframe;
    void *frame[INJECT_FRAMES];
} InjectSite;

typedef struct Inject {
    InjectKind kind;
    int64_t at;    /* the event that fails; 0: none, sites are recorded */
    int64_t count; /* events so far */
    bool on, fired;
    InjectSite failed; /* what failed: numbers of a run with threads need not be those of another */
    InjectSite death;  /* where a signal ended the process; nframe 0: none did */
    int nsite;
    int slot[2 * INJECT_SITES]; /* hash table: site + 1 */
    InjectSite site[INJECT_SITES];
} Inject;

/* Shared memory for the processes that this one will fork. */
Inject *inject_new(void);

/* In the process to be tested: from now on. false where the system has no way to do so. */
bool inject_start(Inject *x, InjectKind kind, int64_t at);

/* Whether this allocation is to fail; errno is then set. Called by those of test_fault.c. */
bool inject_allocation(void);

#endif
