/* Instances of placement whose least peak, or one that can be reached, is known: for
 * tests/programs/test_place.c and bench/place.c. */
#ifndef TENON_PLACE_MAKE_H
#define TENON_PLACE_MAKE_H

#include "../../src/place/place.h"

typedef struct Instance {
    PlaceBuf *b;
    int n;
    int64_t capacity; /* can be reached; 0: not known */
} Instance;

typedef enum {
    GUILLOTINE, /* cut through again and again, anywhere */
    UNEVEN,     /* cut near an edge: long and narrow pieces */
    PINWHEEL,   /* four pieces around a fifth: no cut goes through */
    MIXED,      /* any of these, some pieces taken out, as minimalloc's challenging instances are */
    NPACKING
} Packing;

/* n rectangles, or a few less, that fill a square, in random order. */
Instance make_packing(Arena *a, Packing kind, int n, uint64_t seed);

/* A packing with sizes 0 to 3 % smaller and ends 0 to 5 % earlier. */
Instance make_loose(Arena *a, Packing kind, int n, uint64_t seed);

/* What training steps hold, of `layers` layers of all sorts of sizes: n buffers. */
Instance make_plan(Arena *a, int n, uint64_t seed);

/* One training step of equal layers: saved by each from forward to backward, of large sizes and
 * small ones, scratch, and logits between them, where the peak is. */
Instance make_layers(Arena *a, int layers, uint64_t seed);

/* A step of equal layers on ranks, each of which gathers its inputs, reduces its gradients and
 * keeps a part of them: what a layer's backward needs, in large sizes, reaches into the next two,
 * and about as much is alive in each, as gradients grow while saved values go. */
Instance make_ranks(Arena *a, int layers, uint64_t seed);

/* Long lives: about `pairs` pairs of buffers alive at once. */
Instance make_crowd(Arena *a, int n, int64_t pairs, uint64_t seed);

/* Another instance of the same capacity from placed buffers: time, addresses mirrored, cropped,
 * some buffers cut in two or taken out. */
Instance make_like(Arena *a, const PlaceBuf *b, int n, int64_t capacity, uint64_t seed);

/* The fixture NAME, one letter, of ../shared/fixtures/placement; n = 0 where it is not there. */
Instance read_fixture(Arena *a, char name);

void shuffle(PlaceBuf *b, int n, uint64_t seed);

#endif
