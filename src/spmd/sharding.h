/* sharding: shared by sharding.c and sharding_rule.c: the rules of --shard. */
#ifndef TENON_SHARDING_H
#define TENON_SHARDING_H

#include "spmd.h"

typedef struct ShardRule {
    const char *text, *pattern;
    Cut cut[MAX_MESH];      /* whole on mesh axes that it does not name */
    int64_t whole[TN_RANK]; /* by tensor axis: the product of the numbers in its list; 0: no list */
    bool params;            /* it matches parameters, else other inputs and outputs */
    bool holds;             /* for at least one port */
} ShardRule;

typedef struct Sharder {
    const char *option; /* whose rules are read */
    const Graph *g;
    Arena *tmp;
    const Mesh *m;
    ShardRule *rule;
    int nrule;
    bool used[MAX_MESH]; /* by a rule, a recipe or the axis' name */
    bool linear;         /* a GPT-2 with Linear in the place of Conv1D */
} Sharder;

/* ---- sharding_rule.c ---- */

/* Whether a rule may name the port, no parameter, by its value's name. */
bool port_has_rules(const Port *p);
/* A rule from its text: "PATTERN=AXIS:LIST;AXIS:LIST", or "PATTERN=". */
ShardRule rule_parse(const Sharder *x, const char *text);
/* Sets how mesh axis c cuts a port; an axis of one rank cuts nothing. */
void sharding_set(const Sharder *x, Sharding *s, int c, Cut cut);
void rules_parse(Sharder *x, const Globs *texts);
/* The last rule that matches; NULL: none does. */
ShardRule *rule_find(const Sharder *x, bool param, const char *name);
/* Cuts a port as r says; fails where the port's type cannot be cut so. */
void rule_apply(Sharder *x, ShardRule *r, const char *name, const Type *t, Sharding *s);
/* Refuses a rule that holds nowhere, unless the later rule that holds instead cuts alike. */
void rules_check(const Sharder *x);

#endif
