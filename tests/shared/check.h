/* check: what is asked of each op and each line of its case file. One file for each section. */
#ifndef TENON_TEST_CHECK_H
#define TENON_TEST_CHECK_H

#include "case.h"

enum { MAX_KERNELS = 32, SUM_OPERANDS = 8 };

/* Whose kernels are asked, and how they are run. */
typedef struct Harness {
    KernelSet kernels; /* of KERNELS_CPU also ref, and the rules that are no kernels */
    void *stream;      /* Call.stream */
    /* Before a run; `again`: it is to give the same bits although other things come first. */
    void (*before)(bool again);
    int (*wait)(Call *c); /* until the run is done; as run(). NULL: it is when run() returns */
    const char *without;  /* file that names the ops that have kernels for some lines at most */
    bool tell;            /* print each line that no kernel takes */
    int every;            /* only each so-manieth line of a file; 0: all */
    bool brief;           /* all results in place at once, parts along one axis */
    bool one_axis;        /* parts along one axis */
} Harness;

/* Over all cases of an op, by place in its kernel list; ref comes last. */
typedef struct Coverage {
    bool ran[MAX_KERNELS];        /* some case was accepted */
    bool parts[MAX_KERNELS];      /* some result was a part of a larger tensor */
    bool narrowed[MAX_KERNELS];   /* some result lay over a wider operand */
    bool by_threads[MAX_KERNELS]; /* 1 and 2 threads gave different bits, within tolerance */
    uint8_t inplace[4];           /* the bits that some case tried */
    int nwithout, without;        /* lines that no kernel takes: how many, the first */
    bool differs, nograd;         /* float to float; some case says why it has no gradient */
    struct {
        bool tried;                         /* as one that the op is linear in */
        bool met;                           /* as one that it is not linear in, ... */
        bool shown;                         /* ... which is so */
    } sums[SUM_OPERANDS + 1][SUM_OPERANDS]; /* check_linear.c: of operands i and j; last row: all */
} Coverage;

/* A case made real: its node in the stated dtypes and in double, operands and the oracle's results.
 */
typedef struct Problem {
    const Harness *h;
    const Case *c;
    Arena *a;
    Graph *g;
    Node *n;       /* in the stated dtypes */
    Node *wide;    /* in f64 */
    Tensor *in;    /* contiguous, in n's types */
    Tensor *in64;  /* the same values in wide's types */
    Tensor *out64; /* the oracle: ref in f64 */
    int nmiss;     /* what did not hold so far */
    Coverage *cover;
} Problem;

/* Prints "FILE:LINE: message" for the first few misses of a case. */
void miss(Problem *p, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Runs fn(p) and calls miss with `what` where it fails. */
void guard(Problem *p, const char *what, void (*fn)(Problem *p));

/* ---- check_op.c: every op against every line of its case file ---- */

typedef struct Total {
    int passed, failed;
} Total;

/* The named ops up to a NULL, or all where there is none. Prints what fails. */
void check_ops(const Harness *h, char *const *names, Total *t);

/* ---- check_kernel.c: kernels and ref in the stated dtypes against the oracle ---- */

int count_kernels(const Problem *p); /* of the harness's set, without ref */
/* Runs k, waits and reads what it noted; returns as run(). c->work and data are set. */
int kernel_run(const Problem *p, const Kernel *k, Call *c);
void check_kernels(Problem *p);
void check_runerror(Problem *p); /* ref and every kernel refuse, with the message of the line */
void check_view(Problem *p);     /* the layout that a view op gives reads what ref computes */

/* Why got is not close to want (contiguous f64 or integers), or NULL. */
const char *tensor_differs(Arena *a, const Tensor *got, const Tensor *want, double tol);

/* ---- check_grad.c: diff against finite differences in double ---- */

void check_grad(Problem *p);

/* ---- check_factor.c: every split of a factor against the whole ---- */

void check_factors(Problem *p);

/* ---- check_linear.c: the sets of operands in which the op is linear, and all others ---- */

void check_linear(Problem *p);
/* What was not tried or not shown in all cases of the op; returns how many. */
int check_linear_coverage(const Op *op, const Coverage *cover);

#endif
