/* Placement on families of instances (tests/shared/place_make.h): of each, how many were solved,
 * the waste over the bound, CPU seconds of one core, steps. Solved: within the capacity that is
 * known to do; where none is known, at the bound. Usage: build/bench/place [EFFORT [FAMILY
 * [COUNT]]] */
#include "../tests/shared/place_make.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct Family {
    const char *name;
    int n, count;
    Packing kind;
    enum { PACKED, LOOSE, PLAN, LAYERS, RANKS, CROWD, LIKE, FIXTURE } make;
} Family;

static const Family families[] = {
    {"fixtures, rows in ten orders", 0, 60, 0, FIXTURE},
    {"like the fixtures", 0, 120, 0, LIKE},
    {"mixed, some taken out", 150, 20, MIXED, PACKED},
    {"mixed, some taken out", 300, 20, MIXED, PACKED},
    {"mixed, some taken out", 500, 20, MIXED, PACKED},
    {"guillotine", 100, 20, GUILLOTINE, PACKED},
    {"guillotine", 300, 20, GUILLOTINE, PACKED},
    {"guillotine", 1000, 20, GUILLOTINE, PACKED},
    {"uneven", 100, 20, UNEVEN, PACKED},
    {"uneven", 300, 20, UNEVEN, PACKED},
    {"uneven", 1000, 20, UNEVEN, PACKED},
    {"pinwheel", 100, 20, PINWHEEL, PACKED},
    {"pinwheel", 300, 20, PINWHEEL, PACKED},
    {"pinwheel", 1000, 20, PINWHEEL, PACKED},
    {"loose guillotine", 100, 10, GUILLOTINE, LOOSE},
    {"loose guillotine", 200, 10, GUILLOTINE, LOOSE},
    {"loose pinwheel", 200, 10, PINWHEEL, LOOSE},
    {"loose uneven", 200, 10, UNEVEN, LOOSE},
    {"loose guillotine", 500, 5, GUILLOTINE, LOOSE},
    {"loose pinwheel", 500, 5, PINWHEEL, LOOSE},
    {"loose uneven", 500, 5, UNEVEN, LOOSE},
    {"plan", 1000, 10, 0, PLAN},
    {"plan", 20000, 3, 0, PLAN},
    {"plan", 100000, 2, 0, PLAN},
    {"layers", 64, 5, 0, LAYERS},
    {"layers", 126, 5, 0, LAYERS},
    {"layers", 252, 5, 0, LAYERS},
    {"layers on ranks", 64, 5, 0, RANKS},
    {"layers on ranks", 128, 5, 0, RANKS},
    {"crowd, 12 million pairs", 18692, 2, 0, CROWD},
};

static Instance make(Arena *a, const Family *f, int k)
{
    uint64_t seed = (uint64_t)k + 1;
    switch (f->make) {
    case PACKED: return make_packing(a, f->kind, f->n, seed);
    case LOOSE: return make_loose(a, f->kind, f->n, seed);
    case PLAN: return make_plan(a, f->n, seed);
    case LAYERS: return make_layers(a, f->n, seed);
    case RANKS: return make_ranks(a, f->n, seed);
    case CROWD: return make_crowd(a, f->n, 12000000, seed);
    default: break;
    }
    Instance x = read_fixture(a, (char)('A' + k % 6));
    if (f->make == FIXTURE) {
        shuffle(x.b, x.n, seed);
        return x;
    }
    PlaceResult r = place(a, x.b, x.n, x.capacity, PLACE_EFFORT);
    return make_like(a, x.b, x.n, r.peak, seed);
}

static void measure(Arena *a, const Family *f, int count, int effort)
{
    double sum = 0, most = 0, waste = 0, worst = 0;
    int solved = 0;
    int64_t steps = 0;
    for (int k = 0; k < count; k++) {
        Instance x = make(a, f, k);
        clock_t start = clock();
        PlaceResult r = place(a, x.b, x.n, x.capacity, effort);
        double sec = (double)(clock() - start) / CLOCKS_PER_SEC;
        sum += sec;
        most = MAX(most, sec);
        double w = 100 * (double)(r.peak - r.bound) / (double)MAX(1, r.bound);
        waste += w / count;
        worst = MAX(worst, w);
        solved += r.peak <= MAX(r.bound, x.capacity);
        steps = MAX(steps, r.steps);
        arena_reset(a);
    }
    printf("%-30s %6d buffers: solved %3d of %3d, waste %6.2f %% (most %6.2f %%)", f->name, f->n,
           solved, count, waste, worst);
    printf(", %7.3f s (most %7.3f s, %lld steps)\n", sum / count, most, (long long)steps);
    fflush(stdout);
}

typedef struct Args {
    Arena *a;
    int n;
    char **v;
} Args;

static void run(void *arg)
{
    Args *x = arg;
    int effort = x->n > 1 ? atoi(x->v[1]) : PLACE_EFFORT;
    for (int k = 0; k < LEN(families); k++)
        if (x->n < 3 || strstr(families[k].name, x->v[2]))
            measure(x->a, &families[k], x->n > 3 ? atoi(x->v[3]) : families[k].count, effort);
}

int main(int n, char **v)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Args args = {a, n, v};
    int code = a ? ctx_try(&ctx, run, &args) : 1;
    arena_free(a);
    return code;
}
