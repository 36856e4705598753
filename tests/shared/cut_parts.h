/* cut_parts: one node in parts, run by the interpreter and put together again. */
#ifndef TENON_TEST_CUT_PARTS_H
#define TENON_TEST_CUT_PARTS_H

#include "../../src/cut/cut.h"

enum { MAX_PARTS = 16, FEW_PARTS = 4 };

/* One loop or mesh axis: `count` units in parts that begin at at[j], at[nparts] being count. */
typedef struct Splitter {
    int64_t count, at[MAX_PARTS + 1];
    int nparts;
} Splitter;

/* What a tensor is to part j[c] of each of ncut splitters, by its cuts: from the whole one, cut up
 * at random where it is partial; and put together again. `random` in [0, 1) is asked for. */
typedef double Random(void *arg);

/* By part, row-major: the parts of `whole`, which has the cuts cut[c]. */
Tensor *cut_up(Arena *a, const Tensor *whole, int ncut, const Splitter *s, const Cut *cut,
               Random *random, void *arg);
/* NULL, and *whole of type t; or why the parts do not go together. */
const char *cut_join(Arena *a, const Type *t, int ncut, const Splitter *s, const Cut *cut,
                     const Tensor *part, Tensor *whole);

/* NULL, or why got is not want, within 1e-12 (f32: 2e-7) of the greatest and of `scale`. */
const char *cut_differ(Arena *a, const Tensor *got, const Tensor *want, double scale);

/* Whether n, cut so, adds squares of parts of rows, each rounded: the limbs of sum_squares are then
 * others, of the same norm. */
bool cut_rounds(const Node *n, const NodeCut *how);

int cut_nparts(int ncut, const Splitter *s);
/* The part-th one, of the splitters: what cut_part() takes. */
void cut_parts(int ncut, const Splitter *s, int part, PartCut *cuts);

/* n, cut as how[] says, from its whole operands: NULL, or why its results are not want[], within
 * 1e-12 of the greatest. how[] must be legal. in_cut[c * nin + i], out_cut[c * nout + k]. */
const char *cut_try(Arena *a, const Node *n, const Tensor *in, const Tensor *want, int ncut,
                    const Splitter *s, const NodeCut *how, const Cut *in_cut, const Cut *out_cut,
                    Random *random, void *arg);

#endif
