/* pick: one strategy for each node of a graph, so that the costs of nodes and edges are the least
 * while what the strategies use fits a limit at every time (sharding by optimisation). Needs base
 * only. Sections name the file that implements them. */
#ifndef TENON_PICK_H
#define TENON_PICK_H

#include "../base/base.h"

#include <math.h>

/* The most that a limit and the sum of all nodes' largest usages may be. */
#define PICK_MOST ((int64_t)1 << 62)

/* A pair of nodes, and what each pair of their strategies costs. */
typedef struct PickEdge {
    int u, v;
    int64_t
        at; /* of strategies i of u and j of v the cost is matrix[at + i * (strategies of v) + j]
             */
} PickEdge;

/* A cost is finite, or INFINITY, which forbids the strategy or the pair. */
typedef struct PickProblem {
    Arena *a;
    const char *title; /* of the file, for messages */
    bool contest;      /* the form in which it was read: the contest's, or Tenon's own */
    int n;
    int *first; /* n + 1: node i's strategies are first[i] to first[i + 1] of cost and usage */
    double *cost;
    int64_t *usage;       /* not negative */
    int64_t *start, *end; /* when a node's strategy uses it, half-open */
    int *same; /* a node before it, whose strategy it always has, while its own cost nothing and no
                  edge ends at it; -1: none. NULL: none has */
    int nedge;
    const PickEdge *edge;
    const double *matrix;
    int64_t limit; /* PICK_MOST: there is none */
} PickProblem;

static inline int pick_strategies(const PickProblem *p, int i)
{
    return p->first[i + 1] - p->first[i];
}

/* ---- scan.c: JSON as a stream ---- */

typedef struct JsonScan {
    Ctx *ctx;
    const char *title;
    FILE *file; /* NULL: all of the text is there */
    const char *text;
    size_t at, len;
    int line;
    int64_t column; /* of the next byte, both from 1 */
} JsonScan;

enum { SCAN_WORD = 64 }; /* bytes of a key, with its NUL */

/* Fails with the place of the next byte. */
_Noreturn void scan_fail(const JsonScan *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
int scan_peek(JsonScan *s);                /* the next byte that is no space, or EOF */
void scan_open(JsonScan *s, char bracket); /* reads `[` or `{`, or fails */
/* Before each element: false where the bracket closes, which is then read. *count is 0 at first. */
bool scan_more(JsonScan *s, char close, int64_t *count);
void scan_key(JsonScan *s, char word[SCAN_WORD]); /* a string, cut to SCAN_WORD, and the colon */
double scan_number(JsonScan *s);
int64_t scan_integer(JsonScan *s, int64_t low, int64_t high);
bool scan_null(JsonScan *s); /* reads null where it stands next */
void scan_skip(JsonScan *s); /* any value */
void scan_end(JsonScan *s);  /* fails where anything follows */

/* ---- read.c ---- */

/* Reads a problem in either form, "-" being standard input; fails with the place, what was expected
 * and found. */
PickProblem *pick_read(Arena *a, const char *path);
/* The same of a text, borrowed. */
PickProblem *pick_parse(Arena *a, const char *text, size_t len, const char *title);

/* ---- check.c: shares nothing with the solver ---- */

typedef struct PickCheck {
    double cost;        /* of what is not forbidden */
    int forbidden;      /* strategies and pairs that are */
    int64_t peak, time; /* the most that is used at a time, and the first such time */
} PickCheck;

PickCheck pick_check(Arena *tmp, const PickProblem *p, const int *strategy);
bool pick_fits(const PickProblem *p, const PickCheck *c); /* nothing is forbidden, nor too much */

/* ---- pick.c: the driver ---- */

enum { PICK_EFFORT = 10 }; /* the default: some ten seconds at worst */

typedef struct PickResult {
    double cost;    /* of the strategies */
    double bound;   /* no choice within the limit costs less */
    bool feasible;  /* nothing is forbidden, and the limit holds */
    bool proved;    /* feasible: nothing costs less; else: there is none */
    bool forbidden; /* not even without a limit was anything found */
    int64_t found;  /* the most that the strategies use at a time */
    double found_cost,
        found_bound; /* not feasible: of these strategies, which are those of the fewest
                        bytes found, and below what no choice within `found` costs */
    int64_t least;   /* proved: every choice uses at least as much at some time */
    int64_t steps;   /* of search */
} PickResult;

/* Called now and then with the best so far; a bound or a cost that is not known is not finite. */
typedef void PickProgress(void *arg, double cost, double bound);

/* Chooses strategies (p->n) of the least cost that `effort` units of search find. The same input
 * gives the same strategies. */
PickResult pick(Arena *a, const PickProblem *p, int effort, PickProgress *progress, void *arg,
                int *strategy);

/* ---- print.c ---- */

/* The problem in Tenon's own form; the nodes' names, which readers pass over, or NULL: none. They
 * have nothing that JSON escapes. */
void pick_print_problem(Buf *b, const PickProblem *p, const char *const *name);
/* The strategies as the contest wants them, or in Tenon's own form. */
void pick_print(Buf *b, const PickProblem *p, const PickResult *r, const int *strategy);

#endif
