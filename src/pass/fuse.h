/* What fuse.c, which makes groups of nodes, and fuse_peak.c, which says what memory they need,
 * share. */
#ifndef TENON_FUSE_H
#define TENON_FUSE_H

#include "../flow/flow.h"
#include "pass.h"

typedef struct Group {
    int parent; /* the group that it was bound into, or itself */
    Node **member;
    int nmember, capmember, nlane;
    int last;         /* position of its last node */
    FusedShape shape; /* of the body */
    int handed;       /* bytes for an element of a row, of what members read of each other */
    Phase phase;
    bool closed;
} Group;

typedef struct Fuse {
    Graph *g;
    Arena *tmp;
    Flow *flow;
    Group *group;
    int ngroup, capgroup;
    int *of;       /* by node id: its group, -1: none; views between members: of their operand */
    int *reader;   /* by value id: the last group that reads it, or -1 */
    int *uses;     /* by value id, outputs included */
    int *early;    /* by value id: the position of its last reader in a phase before the backward */
    int *position; /* by node id */
    bool *edge;    /* by node id: an order edge begins or ends there */
    bool *fixed;   /* by value id: it takes the place of an input */
    bool *member;  /* by node id */
    int *stamp;    /* by value id: seen in walk `walks` */
    int walks;
    Node **at;    /* by position */
    int nnode;    /* as the graph was */
    Node **equal; /* graph_equals, of the first `nequal` ids, once asked for */
    int nequal;   /* operands whose copies are read instead */
} Fuse;

INLINE Group *find_group(const Fuse *f, int i)
{
    while (f->group[i].parent != i)
        i = f->group[i].parent;
    return &f->group[i];
}

INLINE Group *group_of(const Fuse *f, const Node *n)
{
    return n && n->id < f->nnode && f->of[n->id] >= 0 ? find_group(f, f->of[n->id]) : NULL;
}

INLINE int64_t nelem(const Value *v)
{
    return type_nelem(&v->type);
}

INLINE bool is_constant(const Node *n)
{
    return n && !n->nin && nelem(n->out[0]) == 1 && node_fusible(n, &(FusedShape){1, 0});
}

/* Whether v is met for the first time in this walk. */
INLINE bool first_time(Fuse *f, const Value *v)
{
    bool first = f->stamp[v->id] != f->walks;
    f->stamp[v->id] = f->walks;
    return first;
}

INLINE bool read_within(const Fuse *f, const Group *x, const Value *v)
{
    int count = 0;
    for (int j = 0; j < x->nmember; j++)
        for (int i = 0; i < x->member[j]->nin; i++)
            count += x->member[j]->in[i] == v;
    return count == f->uses[v->id];
}

/* Whether others than the members read v, or only the whole body has it. */
INLINE bool is_result(const Fuse *f, const Group *x, const Value *v)
{
    FusedShape own;
    const RowKernel *rows = node_rows(v->def, &own);
    return !v->def->op->view &&
           (!read_within(f, x, v) || (rows && rows->out[v->index] == ROW_FINISH));
}

/* The tables of g. No node is in a group. */
Fuse fuse_tables(Graph *g, Arena *tmp, Flow *flow);

const Value *fuse_stored(const Fuse *f, const Value *v); /* the value whose storage v shares */
/* Whether nothing reads v's storage behind the node at `position`. */
bool fuse_last_read(const Fuse *f, const Value *v, int position);

/* Whether node n, in place of the group's last, needs more memory at once than its members, which
 * are in order, do. result[k] is the member's value in whose place n's result k is. If not, the
 * flow has n instead of them from then on. */
bool fuse_grows(Fuse *f, const Group *x, const Node *n, Value *const *result);

#endif
