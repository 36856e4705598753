/* step_table: what steps between forms of one type take, found once. A problem asks for the
 * cheapest steps between all pairs of forms; their searches come through the same steps again and
 * again.
 *
 * A step's key has the numbers of each mesh axis' cut before and after it. Open addressing, at most
 * half full; a slot is the product's highest bits, the only ones that all bits of a key reach. A
 * table numbers MOST_CUTS cuts. */
#include "rewrite.h"

#include <string.h>

enum { MOST_CUTS = 127, CUT_BITS = 7, FIRST_SHIFT = 56 };

typedef struct StepSlot {
    uint64_t key; /* 0: free */
    StepSec step;
} StepSlot;

struct StepTable {
    Arena *a;
    Cut cut[MOST_CUTS];
    int ncut, nslot, nused;
    int shift; /* of 64 bits to a slot: nslot is 1 << (64 - shift) */
    StepSlot *slot;
};

StepTable *step_table(Arena *a)
{
    StepTable *y = NEW(a, StepTable);
    y->a = a;
    y->shift = FIRST_SHIFT;
    y->slot = NEWN(a, StepSlot, y->nslot = 1 << (64 - FIRST_SHIFT));
    return y;
}

int64_t step_cut(StepTable *y, Cut c, int axis)
{
    int i = 0;
    while (i < y->ncut && !cut_equal(y->cut[i], c))
        i++;
    if (i == MOST_CUTS)
        return -1;
    if (i == y->ncut)
        y->cut[y->ncut++] = c;
    return (int64_t)i << CUT_BITS * axis;
}

static StepSlot *find_slot(const StepTable *y, uint64_t key)
{
    const uint64_t golden = UINT64_C(0x9E3779B97F4A7C15);
    uint64_t at = key * golden >> y->shift;
    while (y->slot[at].key && y->slot[at].key != key)
        at = (at + 1) & (uint64_t)(y->nslot - 1);
    return &y->slot[at];
}

static void widen(StepTable *y)
{
    StepTable old = *y;
    y->slot = NEWN(y->a, StepSlot, y->nslot *= 2);
    y->shift--;
    for (int i = 0; i < old.nslot; i++)
        if (old.slot[i].key)
            *find_slot(y, old.slot[i].key) = old.slot[i];
}

StepSec *step_find(StepTable *y, int64_t from, int64_t to, bool strided)
{
    if (2 * y->nused >= y->nslot)
        widen(y);
    uint64_t key = (uint64_t)from << (MAX_MESH * CUT_BITS + 1) | (uint64_t)to << 1 | strided;
    StepSlot *s = find_slot(y, key + 1);
    y->nused += !s->key;
    s->key = key + 1;
    return &s->step;
}
