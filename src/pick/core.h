/* The reduced problem: variables, each of which stands for nodes whose strategies determine each
 * other, and the edges between them. */
#ifndef TENON_PICK_CORE_H
#define TENON_PICK_CORE_H

#include "pick.h"

/* A node of the problem that a variable decides. */
typedef struct Member {
    int node;
    const int *strategy; /* of each label */
} Member;

typedef struct Var {
    int k;        /* labels; 0: it is part of another variable */
    double *cost; /* of each label */
    int nmember, member_cap;
    Member *member;
    int nedge, edge_cap;
    int *edge; /* those that hold are between this variable and another one */
} Var;

typedef struct CoreEdge {
    int u, v;   /* u < 0: the edge is gone */
    double *m;  /* of labels i and j: m[i * (labels of v) + j] */
    bool stays; /* known: these costs can neither be dropped nor contract the edge */
} CoreEdge;

typedef struct Core {
    Arena *a;
    const PickProblem *problem;
    int nvar, nedge;
    Var *var;
    CoreEdge *edge;
    bool empty;      /* proved: every choice has a forbidden strategy or pair */
    const int *kept; /* strategies, by node, that are not dropped for others; NULL: all may be */
} Core;

static inline int edge_other(const CoreEdge *e, int u)
{
    return e->u == u ? e->v : e->u;
}

/* ---- core.c ---- */

/* One variable a node, with the strategies that are not forbidden. */
Core *core_new(Arena *a, const PickProblem *p);
/* The edge between two variables, or -1. */
int core_find_edge(const Core *c, int u, int v);
void core_drop_edge(Core *c, int e);
/* Keeps the labels that are not marked dead, dead[u] being those of u, or NULL. */
void core_drop_labels(Core *c, bool *const *dead);
/* A core of its own, of the labels that are not marked dead. */
Core *core_without(Arena *a, const Core *c, bool *const *dead);

/* ---- reduce.c ---- */

/* Reduces exactly: the least cost stays, and every solution that is left stands for one of the
 * problem with the same usage. */
/* Takes labels out that another label is never worse than. */
bool core_drop_dominated(Core *c);

void core_reduce(Core *c);

#endif
