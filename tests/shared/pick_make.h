/* pick_make: random sharding problems, for test_pick.c and test_pick_cbc.c. */
#ifndef TENON_TEST_PICK_MAKE_H
#define TENON_TEST_PICK_MAKE_H

#include "../../src/pick/pick.h"

typedef struct PickShape {
    int n, labels; /* nodes; strategies at most */
    double degree; /* edges for each node */
    int forbidden; /* of 100 strategies and pairs; at least one strategy of a node is allowed */
    int copied;    /* of 100 edges: those in which one strategy allows one other alone */
    int64_t most_usage; /* 0: no limit */
    double tightness;   /* the limit, between what the least and the most strategies use: 0 to 1 */
} PickShape;

/* The text of a problem in Tenon's own form. */
const char *pick_make(Arena *a, uint32_t seed, const PickShape *s);

#endif
