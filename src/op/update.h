/* update: what optimizers share on the processor (update.c): how a new parameter is rounded. */
#ifndef TENON_UPDATE_H
#define TENON_UPDATE_H

#include "draw.h"
#include "rows.h"

enum { MOST_RUNS = 8 }; /* loops and mesh axes that cut one parameter */

/* The last attributes of an optimizer's op, from `rounding` on: see update.c. */
#define ROUNDING_FIELDS                                                                      \
    {.name = "rounding", .kind = ATTR_INT, .i = -1}, {.name = "extents", .kind = ATTR_INTS}, \
        {.name = "axes", .kind = ATTR_INTS}, {.name = "runs", .kind = ATTR_INTS},            \
    {                                                                                        \
        .name = "spans", .kind = ATTR_INTS                                                   \
    }

/* How many operands, the last ones, say how the new parameter is rounded; 0: to nearest. `first`
 * here and below: the attribute `rounding`. */
int rounding_operands(const Node *n, int first);
/* Checks attributes and these operands. */
void rounding_infer(const Graph *g, const Node *n, int first);
/* The factors of an elementwise update: `in` has an x for each operand of the parameter's shape. */
void rounding_factors(const Node *n, Factors *f, int first, const char *in);
void rounding_part(Part *p, int first);

/* The place of a part's elements in the whole parameter, and what their numbers are drawn from. */
typedef struct Rounding {
    bool stochastic;
    DrawKey key;
    int rank, nrun;
    int64_t
        neighbours; /* so many elements of the part, from each multiple on, are so in the whole */
    int64_t dim[TN_RANK], stride[TN_RANK]; /* the part's; the whole's */
    int64_t axis[MOST_RUNS], run[MOST_RUNS], span[MOST_RUNS], start[MOST_RUNS];
} Rounding;

Rounding rounding_of(const Call *c, int first);
/* x rounded as the part's element i, of dtype d. */
double rounding_ref(const Rounding *r, int64_t i, double x, DType d);
/* Computes elements [i, i + n) of an update; word: for each what it is rounded by, NULL: to
 * nearest. */
typedef void UpdateRun(const void *arg, int64_t i, int64_t n, const uint32_t *word);
/* Walks elements [lo, hi): at once, or by as many as words are drawn for. */
void update_walk(const Rounding *r, int64_t lo, int64_t hi, UpdateRun *run, const void *arg);

/* Stores x in bf16, a word saying to which neighbour: what bf16 has no bits for and as many bits of
 * the word are added. */
INLINE void store_rounded(void *y, int64_t i, float x, uint32_t word)
{
    uint32_t bits = f32_to_bits(x);
    uint32_t more = (bits & 0x7f800000) == 0x7f800000 ? 0 : word >> 16;
    ((uint16_t *)y)[i] = (uint16_t)((bits + more) >> 16);
}

#endif
