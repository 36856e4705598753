/* fuse: shared by fuse.c, which groups nodes, and fuse_peak.c, which finds a group's memory. */
#ifndef TENON_FUSE_H
#define TENON_FUSE_H

#include "../flow/flow.h"
#include "pass.h"

typedef struct FuseGroup {
    int parent; /* the group that it was bound into, or itself */
    Node **member;
    int nmember, capmember, nlane;
    int last;         /* position of its last node */
    FusedShape shape; /* of the body */
    int handed;       /* bytes for an element of a row, of what members read of each other */
    Phase phase;
    bool closed;
    bool early, clone; /* a member is of a phase before the backward and no clone; is a clone */
    const char *why;   /* it is not made; NULL: not known */
} FuseGroup;

/* The group of a node alone. */
#define FUSE_ALONE "no op beside it could join it"

/* A node that would be fused alone: the shape of its body, its work along rows (NULL: none), and
 * whether an order edge begins or ends there. */
typedef struct Alone {
    FusedShape shape;
    const RowKernel *rows;
    int position; /* in the graph's order */
    bool edge;
} Alone;

/* Tables of a graph before any node is joined; they do not change. */
typedef struct FuseTables {
    Graph *g;
    Node **at;    /* by position */
    Alone *alone; /* by node id */
    int *uses;    /* by value id, outputs included */
    int *early;   /* by value id: the position of its last reader in a phase before the backward */
    bool *fixed;  /* by value id: it takes the place of an input */
    bool texts;   /* the device compiles a text of each body: members have one */
} FuseTables;

/* The groups of nodes that are to be fused. */
typedef struct Groups {
    Arena *tmp;
    FuseGroup *list;
    int count, cap;
    int *of;          /* by node id: its group, -1: none; views between members: of their operand */
    bool *member;     /* by node id */
    int *reader;      /* by value id: the last group that reads it, or -1 */
    const char **why; /* by node id: it joined no group, or not all; NULL: not known */
    int nnode;        /* what is newer is in no group */
} Groups;

INLINE FuseGroup *find_group(const Groups *s, int i)
{
    while (s->list[i].parent != i)
        i = s->list[i].parent;
    return &s->list[i];
}

INLINE FuseGroup *group_of(const Groups *s, const Node *n)
{
    return n && n->id < s->nnode && s->of[n->id] >= 0 ? find_group(s, s->of[n->id]) : NULL;
}

INLINE int64_t nelem(const Value *v)
{
    return type_nelem(&v->type);
}

INLINE bool is_constant(const Node *n)
{
    return n && !n->nin && nelem(n->out[0]) == 1 && node_fusible(n, &(FusedShape){1, 0});
}

/* The tables of g, which runs on the device, and groups of none of its nodes. */
FuseTables fuse_tables(Graph *g, const Device *d, Arena *tmp);
Groups fuse_groups(const Graph *g, Arena *tmp);

/* ---- fuse_note.c ---- */

/* Adds the nodes of a graph that stay apart though their kind is fused, each with the reason. */
void fuse_note(const FuseTables *t, const Groups *s, Decisions *to);

/* ---- fuse_peak.c ---- */

/* Whether an operand's elements are read in another order than they lie; of an op along rows also
 * where they are more or fewer. */
bool fuse_permuted(const Value *v, bool rows);

const Value *fuse_stored(const Flow *w, const Value *v); /* the value whose storage v shares */
/* Whether nothing reads v's storage after node n. */
bool fuse_last_read(const Flow *w, const Value *v, const Node *n);

/* Whether something is computed between x and `position`, other than by groups that n touches. */
bool fuse_gap(const FuseTables *t, const Groups *s, const FuseGroup *x, int position,
              FuseGroup *const *touched, int count);

/* Whether node n, in place of the group's last, needs more memory at once than its members, which
 * are in order, do. result[k] is the member's value in whose place n's result k is. If not, the
 * flow has n instead of them from then on. */
bool fuse_grows(Flow *w, const FuseTables *t, const Groups *s, const FuseGroup *x, const Node *n,
                Value *const *result);

#endif
