/* parts: the plans of one setting of a task, which tn_compile makes (compile.c), and the shardings
 * among which the step takes one (shard_ways.c).
 */
#ifndef TENON_PARTS_H
#define TENON_PARTS_H

#include "api.h"

/* Plans that are made of a task with options, and what all of them need. */
typedef struct Parts {
    tn_context *ctx;
    const tn_task *task;
    tn_options o; /* memory 0; accumulate not 0 */
    int64_t batch;
    tn_compiled *to;
    Arena *tmp;
    const char *
        *rules; /* of shardings that the step has chosen, for what is beside it; NULL: none */
    int nrules;
    /* of all plans; shared: of the reserve, what programs have in common */
    int64_t arena, shared, handles, persistent;
} Parts;

/* Plans the step with options, which are those of one sharding. */
int parts_step(Parts *x, const tn_options *o);

/* Plans the step with forms that are chosen, and tells of the choice what is asked. */
int parts_sharded(Parts *x, const tn_options *asked);

#endif
