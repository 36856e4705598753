/* gen: seeded random graphs made of the problems in tests/op, all floating point in f64. Values are
 * computed while the graph grows, so that operands keep within the ranges that lines ask for. */
#ifndef TENON_TEST_GEN_H
#define TENON_TEST_GEN_H

#include "case.h"

/* ---- random numbers of the test: Philox by a running count ---- */

typedef struct Rng {
    uint64_t seed, count;
} Rng;

double rng_uniform(Rng *r);
int64_t rng_below(Rng *r, int64_t n);
bool rng_chance(Rng *r, double p);

/* ---- the problems that graphs are made of ---- */

typedef struct OpCases {
    const Op *op;
    const Case **c; /* small ones without expected errors; none of regions */
    int count;
    int64_t used; /* nodes in graphs so far */
} OpCases;

typedef struct Library {
    OpCases *op;
    int count;
    bool apart; /* no ties: where sums of other orders must not decide what is greater */
} Library;

/* Reads tests/op/NAME.case for every op that has one; fails where a file is malformed. */
Library library_read(Arena *a);
/* The same in a protected call; false where it fails, with the reason in ctx->message. */
bool library_try(Ctx *ctx, Arena *a, Library *lib);

/* ---- graphs ---- */

/* A value and what it is for the inputs at hand. Pointers to one stay readable: the arena keeps the
 * old copy where the list grows. */
typedef struct Known {
    Value *v;
    Tensor t; /* contiguous */
    double lo, hi;
    bool finite;
} Known;

typedef struct Gen {
    Arena *a;
    Rng *rng;
    Library *lib;
    Build b;
    Known *known;
    int nknown, capknown;
    Tensor *in; /* data of the graph's inputs, by index */
    int nin, capin;
    bool smooth;          /* only what has a gradient */
    bool tied;            /* some input has few values */
    struct LoopGen *loop; /* of a body: the loop being made; NULL at the top */
    bool tail;            /* of a body: the tail's */
    int depth;
} Gen;

/* A graph of about `nodes` nodes with outputs; inputs' data in in[]. smooth: it has a scalar loss
 * and named parameters, and every op on the way has a gradient. */
Gen *gen_graph(Arena *a, Library *lib, Rng *rng, int nodes, bool smooth);

/* A graph over *rows rows of batch inputs, with a loss that is a sum over them. */
Gen *gen_rows(Arena *a, Library *lib, Rng *rng, int nodes, int64_t *rows);
/* The same, with weights that are formed of parameters alone, and tables of odd vocabularies. */
Gen *gen_formed(Arena *a, Library *lib, Rng *rng, int nodes, int64_t *rows);

/* ---- gen_offload.c ---- */

/* Sends each value with that chance to the host's memory and back before some of its readers, in
 * bodies too; views only if so asked. Returns how many. */
int gen_offload(Arena *a, Graph *g, Rng *rng, double chance, bool views);
/* Gives g a mesh of two ranks, and has each value with that chance reduced by them. */
int gen_collectives(Arena *a, Graph *g, Rng *rng, double chance);

/* ---- between gen.c and gen_loop.c. A range with lo > hi is that of floats which must only be
 * tame. ---- */

void gen_node(Gen *x); /* one more node, or a few */
void gen_loop(Gen *x); /* a loop over a body of a few nodes */
Known *gen_learn(Gen *x, Value *v, const Tensor *t);
Known *gen_emit(Gen *x, const char *op, int nin, Known *const *in, const AttrArg *attrs);
void gen_run(Gen *x, Node *n, const Tensor *in); /* evaluates a new node and learns its results */

/* A value of type t whose elements lie in the range: an earlier one, one made to fit, or an input.
 */
Known *gen_operand(Gen *x, const Type *t, double lo, double hi);
bool gen_within(const Known *k, double lo, double hi);
Known *gen_adapt(Gen *x, Known *k, const Type *t); /* of k's elements; NULL where it has none */
Known *gen_squash(Gen *x, Known *k, double lo, double hi); /* of k's type, in the range, by tanh */
Known *gen_any_float(Gen *x); /* a finite one with elements, not large; or NULL */

/* A new input; in a body a new port. */
Known *gen_input(Gen *x, const Type *t, double lo, double hi);
Known *gen_loop_input(Gen *x, const Type *t, double lo, double hi);

#endif
