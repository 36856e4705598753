/* decide_made: small steps for which sets of forward values to compute again are planned, and the
 * decider's own choice. */
#ifndef TENON_TEST_DECIDE_MADE_H
#define TENON_TEST_DECIDE_MADE_H

#include "../../src/decide/decide.h"

enum { MOST_FORWARD = 64 };

/* Forward nodes that define memory, by number. */
typedef struct Made {
    const char *text;
    Arena *tmp;
    PassOptions o;
    PassWalk w; /* stands before the policies */
    PlanFor to;
    const Node *node[MOST_FORWARD];
    double sec[MOST_FORWARD];
    uint64_t operand[MOST_FORWARD], read, out;
    int n;
    bool fused;
    int nplan, nbound, ntried; /* that were made */
} Made;

/* A choice that was planned, or is listed. */
typedef struct Choice {
    uint64_t again;
    int64_t bound, need; /* at least; 0: not known */
    double sec;
    int64_t peak;  /* the bytes without the library's reserve */
    double clones; /* seconds of nodes that only compute again */
    int64_t above; /* no order that needs so many bytes was found; 0: not known */
} Choice;

/* Reads a forward with a loss, whose step is planned for one thread of a processor that is always
 * the same. False: it has more than `most` nodes. */
bool made_read(Made *m, Arena *a, const char *text, int most);
/* Fuses nodes in all plans to come. */
void made_fuse(Made *m);
/* The bit of the node that defines v's memory; 0: it is none of these. */
uint64_t made_bit(const Made *m, const Value *v);
/* Bytes below which no plan of the set is, whatever its order. */
int64_t made_bound(Made *m, uint64_t again);
/* The plan of a set, as it would be in the end, by policies of that name. */
Choice made_plan(Made *m, uint64_t again, Policy policy);
/* Whether an order of the set is found that needs at most so many bytes, which takes less time. */
bool made_fits(Made *m, uint64_t again, int64_t memory);
/* Seconds that no plan with so low a peak adds fewer of, in any order; with fused nodes that none
 * computes again in fewer. */
double made_least_sec(Made *m, int64_t peak);
/* The plan of what is chosen for so many bytes. */
Choice made_decide(Made *m, int64_t memory);
void made_print(const Made *m, const char *what, const Choice *c);

#endif
