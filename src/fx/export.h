/* export: a graph as a Python module of ATen calls. export.c writes the module, export_node.c the
 * statements of a function, export_expr.c the expression of a node by op/export.def, export.py has
 * the functions that expressions may call. */
#ifndef TENON_FX_EXPORT_H
#define TENON_FX_EXPORT_H

#include "../op/op.h"

typedef struct Exporter {
    Arena *a;
    const Graph *g; /* the outermost */
    Buf bodies;     /* a function for each body of a region */
    int nbody;      /* functions so far */
} Exporter;

/* One function of Python: the graph whose values it names. */
typedef struct Scope {
    Exporter *x;
    const Graph *g;
    const char **name; /* by value id: the variable */
    Map taken;         /* variables */
} Scope;

/* ---- export.c ---- */

/* The module; version: of Tenon, for its first line. Fails naming the node that cannot
 * be exported. */
const char *fx_export(Arena *a, const Graph *g, const char *version);

/* ---- export_node.c ---- */

/* Writes the function `name` of g's inputs, which returns its outputs. */
void export_function(Exporter *x, Buf *b, const char *name, const Graph *g);
/* A variable for v that no other value of the function has. */
const char *export_name(Scope *s, const Value *v);

/* ---- export_expr.c ---- */

/* The expression of n, which is no region; fails where there is none. */
const char *export_expression(const Scope *s, const Node *n);
const char *export_dtype(DType d);                 /* "torch.float32" */
const char *export_shape(Arena *a, const Type *t); /* "[2, 8]" */
void export_string(Buf *b, const char *text);      /* a literal of Python */

#endif
