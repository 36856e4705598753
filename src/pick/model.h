/* The core as flat arrays for the solvers: variables with two labels or more, edges, and rows,
 * which are the limits at those times at which some solution has gone beyond them. */
#ifndef TENON_PICK_MODEL_H
#define TENON_PICK_MODEL_H

#include "core.h"

/* Labels of one kind cost the same with every label of the other end. */
typedef struct EdgeKinds {
    int u, v;         /* kinds of labels of each end */
    int *of_u, *of_v; /* of each label */
    double *m, *t;    /* by kinds, as those of the edge by labels; NULL: too many differ */
} EdgeKinds;

typedef struct ModelEdge {
    int u, v;
    const double *m; /* of labels i and j: m[i * (labels of v) + j] */
    double *t;       /* the same at t[j * (labels of u) + i] */
    EdgeKinds kinds;
} ModelEdge;

/* The limit at one time. What a variable uses there is counted from the least of its labels on. */
typedef struct Row {
    int time;    /* of PickModel.load */
    double room; /* negative: nothing fits */
    struct Uses {
        int n, cap;
        struct Use *use;
    } uses; /* of the variables whose labels differ */
} Row;

typedef struct Uses Uses;

/* What the labels of a variable use in a row. */
typedef struct Use {
    int u, row;
    double most;
    const double *of;
} Use;

enum { MOST_ROWS = 1024 };

/* Changes over time of what a variable uses: with label j by step[j * n + i] at time[i]. */
typedef struct UseSteps {
    int n, *time;
    double *step;
} UseSteps;

typedef struct PickModel {
    Arena *a;
    Core *core;
    int n, nedge, nlabel;
    int *var;   /* of the core */
    int *first; /* n + 1: variable u has labels first[u] to first[u + 1] */
    double *cost;
    double fixed;        /* the cost of all that is decided */
    int64_t sweep_steps; /* of once through all edges, and once through all times */
    ModelEdge *edge;
    int *edge_first, *edge_of; /* n + 1: a variable's edges, in ascending order */
    int ntime;
    int *from, *to;  /* of a node: the times at which it uses something */
    UseSteps *steps; /* of each variable */
    double *base;    /* of a time: the use of all that is decided */
    double *load;    /* room for one use of all times */
    bool *is_row;
    double limit;
    int nrow;
    Row row[MOST_ROWS];
    Uses *uses; /* of each variable */
} PickModel;

static inline int model_labels(const PickModel *m, int u)
{
    return m->first[u + 1] - m->first[u];
}

PickModel *model_new(Arena *a, Core *c);
/* Takes labels out of the core and the model, which has no rows yet; dead: by label of the model.
 * Variables stay, with one label or more. */
void model_drop(PickModel *m, const bool *dead);
double model_cost(const PickModel *m, const int *x); /* INFINITY if a pair is forbidden */
/* The strategies that labels stand for, and back; labels that are not there stay as they are, and
 * false is returned. */
void model_strategies(const PickModel *m, const int *x, int *strategy);
bool model_labels_of(const PickModel *m, const int *strategy, int *x);
/* The time of the largest use, *over being how far it is above the limit (or below). */
int model_peak(const PickModel *m, const int *x, double *over);
void model_set_limit(PickModel *m, double limit);
/* Whether x is within the limit at all times; if not, the worst times become rows. */
bool model_fits(PickModel *m, const int *x);
/* What x uses of each row's room. */
void model_fill_used(const PickModel *m, const int *x, double *used);
void model_read_used(const PickModel *m, double *used); /* by the x that model_fits saw last */

/* What label j of u costs together with label k of the edge's other end. */
static inline double model_pair(const PickModel *m, const ModelEdge *e, int u, int j, int k)
{
    return e->u == u ? e->m[j * model_labels(m, e->v) + k] : e->m[k * model_labels(m, e->v) + j];
}

static inline int model_other(const ModelEdge *e, int u)
{
    return e->u == u ? e->v : e->u;
}

/* What the edge costs with label j of the other end, for each label of u. */
static inline const double *model_edge_row(const PickModel *m, const ModelEdge *e, int u, int j)
{
    return (e->u == u ? e->t : e->m) + (int64_t)j * model_labels(m, u);
}

/* The place of the least of n costs. */
int model_least(const double *x, int n);
/* Behind the last; NULL where there are none. */
static inline const Use *uses_end(const Uses *x)
{
    return x->n ? x->use + x->n : x->use;
}

/* ---- message.c ---- */

/* Finds the labels of each end, ku and kv, that are alike. */
void edge_find_alike(Arena *a, ModelEdge *e, int ku, int kv);
/* Fills least[i], for each label i of u, with the least that the edge costs with a label of the
 * other end and sign times what with[] has for that. */
void model_message(const PickModel *m, const ModelEdge *e, int u, double sign, const double *with,
                   double *least);

#endif
