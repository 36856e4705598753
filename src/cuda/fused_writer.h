/* Shared by the files that write the text of a body of `fused` (fused_text.c has the method):
 * reads, values and writes with their places, which fused_segment.c finds, and expressions of
 * fused_node.c. */
#ifndef TENON_FUSED_WRITER_H
#define TENON_FUSED_WRITER_H

#include "../op/fused.h"
#include "fused_text.h"
#include "team.cuh"

/* A value has one element for each element of all (counted by the variable p of the text), for each
 * row (r), for each of a row's elements (i), or one alone. */
typedef enum { EACH, EACH_ROW, EACH_COLUMN, ONE } Count;

/* A tensor in memory that is read or written at positions of one shape. */
typedef struct Access {
    int index; /* of the operand or result */
    DType dtype;
    Count per;
    Walk walk;      /* of the shape, then the tensor */
    uint64_t loops; /* segments by whose loops it must have been read */
    bool statement; /* one reads it */
} Access;

/* A value that a node of the body makes. */
typedef struct Made {
    int segment;    /* EACH: in whose loop */
    uint64_t loops; /* as of an Access */
    bool statement;
} Made;

/* Nodes whose elements one loop computes, and nodes along rows whose statements follow it. */
typedef struct Segment {
    const Node *loop[FUSED_MOST], *after[FUSED_MOST];
    int nloop, nafter;
} Segment;

typedef struct TextWriter {
    Arena *a;
    const Call *c;
    FusedShape shape;
    Access *load, *store;
    int nload, capload, nstore, capstore;
    Made *made; /* by value id */
    Segment *segment;
    int nsegment;
    int together; /* V */
    int steps;    /* packs of a thread; 0: too many to be held */
    bool wide;    /* positions and offsets need 64 bits */
    FusedText text;
} TextWriter;
/* ---- fused_segment.c ---- */

/* Fills all but the text for the body of w->c. */
void text_plan(TextWriter *w);
Count text_count(const TextWriter *w, const Value *v); /* of values in the body and results */
const RowKernel *text_rows(const Node *n);             /* what n does along rows, or NULL */
/* The place in w->load of operand i of n, of which the body has no more than a view. */
int text_load(TextWriter *w, const Node *n, int i);
/* Whether a thread's elements are one access, if the data begin as they would alone; and whether
 * they are access_stride() apart. */
bool access_whole(const TextWriter *w, const Access *x);
bool access_even(const TextWriter *w, const Access *x);
int64_t access_stride(const Access *x);
bool access_held(const TextWriter *w, uint64_t loops,
                 bool statement); /* in registers, by a thread */

/* ---- fused_node.c ---- */

extern const char *const text_types[];     /* by dtype */
extern const char *const text_positions[]; /* by Count: variables */
const char *text_number(const TextWriter *w, int64_t x);
/* The offset of position p. */
const char *text_offset(const TextWriter *w, const Walk *y, const char *p);
const char *access_offset(const TextWriter *w, const Access *x);
/* One element of a node: by its lane, or of an op along rows once its statement has run. */
const char *text_lane(TextWriter *w, const Node *n);
const char *text_element(TextWriter *w, const Node *n);
/* Writes the statement of n, an op along rows, that goes over all elements of a row. */
void text_statement(TextWriter *w, Buf *b, const Node *n);
bool text_has_row(const Node *n);
/* Write the source of a dropout's words, and the words of a thread's elements. */
void text_stream(TextWriter *w, Buf *b, const Node *n);
void text_words(TextWriter *w, Buf *b, const Node *n);

#endif
