/* parts: the plans of one setting of a task, which tn_compile makes (compile.c), the shardings
 * among which the step takes one (shard_ways.c), and whether its collectives are joined
 * (bucket_ways.c).
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
    const char *bucket; /* as the step has it, for what is beside it */
    bool unpriced;      /* what other forms cost is told by a plan before */
    bool asks;          /* the last pin is asked about: it holds instead of others */
    ShardKnown *known;  /* of the task's steps in several forms */
    bool quick;         /* the setting is one of many: what changes little is not tried */
    /* of all plans; shared: of the reserve, what programs have in common */
    int64_t arena, shared, handles, persistent, persistent_host;
} Parts;

/* Makes the step's graph with options, which are those of one sharding; plans it; does both. */
int parts_graph(Parts *x, const tn_options *o);
int parts_plan(Parts *x, const tn_options *o);
int parts_step(Parts *x, const tn_options *o);

/* Keeps in *best the step that was planned now, or that before, if there is one: what fits the
 * goal; of two that do the faster, of two that do not the one that needs less. The other stays in
 * *now. Whether it is the new one. */
bool parts_better(tn_compiled *now, tn_compiled *best, int64_t goal);
void parts_free_step(tn_compiled *c);

/* Plans the step with forms that are chosen, and tells of the choice what is asked. */
int parts_sharded(Parts *x, const tn_options *asked);

/* The options of a step that was tried, to plan it again. */
tn_options shard_again(Arena *a, const tn_options *asked, const ShardTry *t);
/* Tells of `to` what is told of the choice of `from`. */
void parts_take_report(const tn_graph *from, tn_graph *to);

/* ---- bucket_ways.c ---- */

/* Options of joining collectives. */
typedef struct BucketAsked {
    const char *word;    /* of --bucket */
    const char *decided; /* "block" or "off", by options.decided; NULL: nothing */
    bool open;           /* it is to be chosen */
} BucketAsked;

/* Whether options leave it to choose. */
bool bucket_open(const tn_options *o);
/* Makes o, by which a step is planned first, say one of the words that bucket has, and takes from
 * o->decided what is of this. */
BucketAsked bucket_begin(tn_options *o);
/* Keeps the step that x has planned with o, or that with all calls alone. */
int bucket_choose(Parts *x, const BucketAsked *asked, const tn_options *o);

#endif
