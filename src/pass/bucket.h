/* bucket: calls that are to be one. bucket.c finds them, bucket_emit.c joins them. */
#ifndef TENON_BUCKET_H
#define TENON_BUCKET_H

#include "../machine/machine.h"
#include "pass.h"

enum { BUCKET_OFF = -1, BUCKET_BLOCK = 0 };

/* Reads --bucket: one of these, or bytes. NULL, auto: block. Fails where it says neither. */
int64_t bucket_bytes(Ctx *ctx, const char *text);

/* Collectives of one value each, in the graph's order. */
typedef struct Bucket {
    Node **node;
    int count, cap;
    int64_t nbytes;
    bool left; /* alone, as they are */
} Bucket;

typedef struct Buckets {
    Arena *tmp;
    Bucket **at;
    int count, cap;
} Buckets;

/* Units of n calls in a graph that names no blocks, by what each call is. */
const char **repeated_units(Arena *tmp, int n, const char *const *text);

/* Makes one node of each bucket and brings g into an order for that; buckets that would wait for
 * each other are left alone. param: by value id, whether it is made of parameters alone. Returns
 * how many calls there are less. */
int buckets_emit(Buckets *list, Graph *g, const bool *param);

#endif
