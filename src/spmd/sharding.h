/* sharding: what sharding.c and sharding_rule.c share: rules of --shard. */
#ifndef TENON_SHARDING_H
#define TENON_SHARDING_H

#include "spmd.h"

typedef struct ShardRule {
    const char *text, *pattern;
    Cut cut[MAX_MESH];      /* axes of the mesh that it does not name: whole */
    int64_t whole[TN_RANK]; /* by tensor axis: the product of the numbers in its list; 0: no list */
    bool params;            /* it matches parameters, else other inputs and outputs */
    bool holds;             /* for one of them */
} ShardRule;

typedef struct Sharder {
    const Graph *g;
    Arena *tmp;
    const Mesh *m;
    ShardRule *rule;
    int nrule;
    bool used[MAX_MESH]; /* by a rule, a recipe or the axis' name */
    bool linear;         /* a GPT-2 with Linear in the place of Conv1D */
} Sharder;

/* ---- sharding_rule.c ---- */

/* Whether a port that is no parameter may have a rule of its own, by its value's name. */
bool port_has_rules(const Port *p);
/* Sets how axis c of the mesh cuts a port: not at all if it has one rank. */
void sharding_set(const Sharder *x, Sharding *s, int c, Cut cut);
void rules_parse(Sharder *x, const Globs *texts);
/* The last rule that matches; NULL: none does. */
ShardRule *rule_find(const Sharder *x, bool param, const char *name);
/* Cuts a port so; fails where its type cannot be. */
void rule_apply(Sharder *x, ShardRule *r, const char *name, const Type *t, Sharding *s);
/* Refuses rules that nowhere hold and that a later one does not say again. */
void rules_check(const Sharder *x);

#endif
