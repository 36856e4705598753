/* api: the public interface of include/tenon.h over the layers below. */
#ifndef TENON_API_H
#define TENON_API_H

#include "../../include/tenon.h"

#include "../exec/exec.h"
#include "../model/model.h"

struct tn_context {
    Ctx ctx;
    Arena *a; /* what belongs to the context is freed by its deferred calls */
    struct Handle *live;
};

/* What every object begins with: its context and its own memory. */
typedef struct Handle {
    tn_context *owner;
    Arena *a;
    struct Handle *prev, *next; /* in the context's list */
} Handle;

struct tn_graph {
    Handle h;
    Graph *g;
};

struct tn_model {
    Handle h;
    ModelConfig config;
    TensorFile *file; /* NULL: a preset, initialised by its seed */
    const char *folder;
    const ModelParam *param;
    int nparam;
};

struct tn_data {
    Handle h;
    DataSet *set;
};

struct tn_plan {
    Handle h;
    tn_graph *graph;
    Plan *p;
};

struct tn_program {
    Handle h;
    tn_plan *plan;
    Program *x;
    char fault[400];
};

/* A new object of `size` bytes that begins with a Handle; unwinds without memory. */
void *handle_new(tn_context *ctx, size_t size);
void handle_free(Handle *h);

/* ctx_try with an arena of the call's own in *a, freed when fn has returned or unwound. */
int try_aside(tn_context *ctx, Arena **a, void (*fn)(void *arg), void *arg);

/* ---- table.c: aligned columns ---- */

typedef struct Table {
    Arena *a;
    int ncol;
    const char **cell; /* row by row */
    int count, cap;
} Table;

void table_row(Table *t, ...); /* ncol texts, borrowed */
void table_print(Buf *b, const Table *t);

/* ---- show.c ---- */

/* What the rule ("infer", "diff", "cost", "factors") of op says of the op's example. */
void show_rule(Buf *b, const Op *op, const char *rule);

#endif
