/* Random perfect packings and instances made from them, see place_make.h. */
#include "place_make.h"

#include <stdlib.h>
#include <string.h>

enum { SIDE = 1 << 20 };

static uint64_t next(uint64_t *seed)
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int64_t below(uint64_t *seed, int64_t n)
{
    return (int64_t)((next(seed) >> 11) % (uint64_t)n);
}

void shuffle(PlaceBuf *b, int n, uint64_t seed)
{
    for (int i = n - 1; i > 0; i--) {
        int j = (int)below(&seed, i + 1);
        PlaceBuf x = b[i];
        b[i] = b[j];
        b[j] = x;
    }
}

/* ---- perfect packings: offsets are where the pieces lie ---- */

static double area(const PlaceBuf *x)
{
    return (double)x->nbytes * (double)(x->end - x->start);
}

/* One of a few drawn pieces, the largest of them. */
static int pick(const PlaceBuf *b, int n, uint64_t *seed)
{
    int best = (int)below(seed, n);
    for (int k = 0; k < 3; k++) {
        int i = (int)below(seed, n);
        if (area(&b[i]) > area(&b[best]))
            best = i;
    }
    return best;
}

/* Where to cut a length: anywhere, or near an end. */
static int64_t cut_at(int64_t length, bool uneven, uint64_t *seed)
{
    int64_t at = 1 + below(seed, length - 1);
    if (uneven)
        at = 1 + below(seed, MAX(1, length / 8));
    return uneven && below(seed, 2) ? length - at : at;
}

/* Cuts piece *x; the rest is appended. Returns how many pieces came to be. */
static int cut_through(PlaceBuf *x, PlaceBuf *rest, bool uneven, uint64_t *seed)
{
    int64_t life = x->end - x->start;
    bool in_time = below(seed, 2);
    if ((in_time ? life : x->nbytes) < 2)
        return 0;
    *rest = *x;
    if (in_time) {
        x->end = rest->start = x->start + cut_at(life, uneven, seed);
    } else {
        x->nbytes = cut_at(x->nbytes, uneven, seed);
        rest->offset += x->nbytes;
        rest->nbytes -= x->nbytes;
    }
    return 1;
}

static int cut_pinwheel(PlaceBuf *x, PlaceBuf *rest, uint64_t *seed)
{
    int64_t life = x->end - x->start, size = x->nbytes, t = x->start, at = x->offset;
    if (life < 3 || size < 3)
        return 0;
    int64_t t1 = 1 + below(seed, life - 2), t2 = t1 + 1 + below(seed, life - t1 - 1);
    int64_t y1 = 1 + below(seed, size - 2), y2 = y1 + 1 + below(seed, size - y1 - 1);
    if (below(seed, 2)) {
        *x = (PlaceBuf){t, t + t2, y1, at};
        rest[0] = (PlaceBuf){t + t2, t + life, y2, at};
        rest[1] = (PlaceBuf){t + t1, t + life, size - y2, at + y2};
        rest[2] = (PlaceBuf){t, t + t1, size - y1, at + y1};
    } else {
        *x = (PlaceBuf){t + t1, t + life, y1, at};
        rest[0] = (PlaceBuf){t, t + t1, y2, at};
        rest[1] = (PlaceBuf){t, t + t2, size - y2, at + y2};
        rest[2] = (PlaceBuf){t + t2, t + life, size - y1, at + y1};
    }
    rest[3] = (PlaceBuf){t + t1, t + t2, y2 - y1, at + y1};
    return 4;
}

/* Takes out pieces as long as the load of some time stays the whole. */
static int take_out(PlaceBuf *b, int n, uint64_t *seed)
{
    int64_t keep = below(seed, SIDE), kept = 0, part = below(seed, 4);
    for (int i = 0; i < n; i++)
        if ((b[i].start <= keep && keep < b[i].end) || below(seed, 10) >= part)
            b[kept++] = b[i];
    return (int)kept;
}

Instance make_packing(Arena *a, Packing kind, int n, uint64_t seed)
{
    Instance x = {NEWN(a, PlaceBuf, n + 5), 1, SIDE};
    uint64_t s = seed * 977 + (uint64_t)kind;
    x.b[0] = (PlaceBuf){0, SIDE, SIDE, 0};
    while (x.n < n) {
        int i = pick(x.b, x.n, &s);
        Packing how = kind == MIXED ? (Packing)below(&s, MIXED) : kind;
        x.n += how == PINWHEEL && x.n + 4 <= n ? cut_pinwheel(&x.b[i], x.b + x.n, &s)
                                               : cut_through(&x.b[i], x.b + x.n, how == UNEVEN, &s);
    }
    if (kind == MIXED)
        x.n = take_out(x.b, x.n, &s);
    shuffle(x.b, x.n, s);
    return x;
}

Instance make_loose(Arena *a, Packing kind, int n, uint64_t seed)
{
    Instance x = make_packing(a, kind, n, seed);
    for (int i = 0; i < x.n; i++) {
        PlaceBuf *b = &x.b[i];
        int64_t life = b->end - b->start;
        b->nbytes -= below(&seed, b->nbytes * 3 / 100 + 1);
        b->end -= below(&seed, life * 5 / 100 + 1);
    }
    return x;
}

/* ---- plans ---- */

Instance make_plan(Arena *a, int n, uint64_t seed)
{
    Instance x = {NEWN(a, PlaceBuf, n), 0, 0};
    int per = 24, layers = MAX(1, n / per), steps = 2 * layers * per;
    for (int v = 0; v < layers; v++) {
        int kinds = 1 + v % 3;
        for (int k = 0; k < per && x.n < n; k++) {
            int64_t t = (int64_t)v * per + k, u = steps - t;
            uint64_t key = seed * 1000003 + (uint64_t)(k * 7 + kinds);
            int64_t size = 64 * (1 + below(&key, 1 << (4 + 2 * below(&key, 5))));
            switch (below(&key, 5)) {
            case 0: x.b[x.n++] = (PlaceBuf){t, u, size, 0}; break;
            case 1: x.b[x.n++] = (PlaceBuf){t, u - below(&seed, per), size, 0}; break;
            case 2: x.b[x.n++] = (PlaceBuf){t, t + 1 + below(&seed, 6), size * 2, 0}; break;
            case 3: x.b[x.n++] = (PlaceBuf){u - 1 - below(&seed, 6), u, size * 2, 0}; break;
            default: x.b[x.n++] = (PlaceBuf){u, steps + 1 - below(&seed, 3), size / 4 + 1, 0};
            }
        }
    }
    shuffle(x.b, x.n, seed);
    return x;
}

Instance make_layers(Arena *a, int layers, uint64_t seed)
{
    static const int64_t saved[] = {16777216, 8192,     16777216, 67108864, 4194304,
                                    262144,   67108864, 16384,    16777216, 67108864};
    static const int64_t scratch[] = {525568, 1344896, 263424, 74880, 205568, 969536};
    enum { PER = 2 * LEN(saved) };
    Instance x = {NEWN(a, PlaceBuf, layers * PER * 2 + 3), 0, 0};
    int64_t half = (int64_t)layers * PER, steps = 2 * half + 2;
    for (int64_t t = 0; t < half; t++) {
        int k = (int)(t % PER), late = (int)below(&seed, 4);
        if (k % 2) {
            x.b[x.n++] = (PlaceBuf){t, t + 1, scratch[below(&seed, LEN(scratch))], 0};
            x.b[x.n++] = (PlaceBuf){steps - t, steps - t + 1 + late, saved[below(&seed, 6)], 0};
        } else {
            x.b[x.n++] = (PlaceBuf){t, steps - t - late, saved[k / 2], 0};
            x.b[x.n++] = (PlaceBuf){t, t + 2 + late, saved[below(&seed, LEN(saved))], 0};
        }
    }
    x.b[x.n++] = (PlaceBuf){half, half + 1, 1050673152, 0};
    x.b[x.n++] = (PlaceBuf){half, half + 2, 1050673152, 0};
    x.b[x.n++] = (PlaceBuf){half - 1, half + 1, 64, 0};
    shuffle(x.b, x.n, seed);
    return x;
}

Instance make_ranks(Arena *a, int layers, uint64_t seed)
{
    enum { FORWARD = 46, PERIOD = 88, UNIT = 1 << 19 };
    static const struct {
        int16_t start, life, size;
    } backward[] = {
        {0, 136, 28},   {0, 152, 28}, {0, 153, 28},  {0, 181, 8},   {0, 188, 8},   {6, 50, 16},
        {10, 105, 256}, {17, 42, 16}, {23, 30, 56},  {29, 31, 195}, {33, 62, 32},  {35, 60, 8},
        {37, 25, 256},  {38, 57, 8},  {39, 1, 17},   {39, 73, 32},  {40, 4, 256},  {41, 3, 224},
        {41, 37, 32},   {44, 5, 32},  {45, 59, 256}, {47, 1, 6},    {47, 57, 112}, {49, 1, 6},
        {49, 14, 112},  {50, 1, 6},   {50, 18, 112}, {60, 2, 112},  {60, 3, 112},  {61, 79, 56},
        {63, 14, 256},  {64, 2, 256}, {66, 11, 224}, {66, 13, 32},  {67, 75, 56},  {79, 33, 256}};
    Instance x = {NEWN(a, PlaceBuf, layers * (LEN(backward) + 3)), 0, 0};
    const int64_t turn = (int64_t)layers * FORWARD, end = turn + (int64_t)(layers + 3) * PERIOD;
    const int64_t kept = 12 + below(&seed, 8);
    for (int v = 0; v < layers; v++) {
        const int64_t back = turn + (int64_t)(layers - 1 - v) * PERIOD;
        x.b[x.n++] = (PlaceBuf){(int64_t)v * FORWARD, back + 70, (int64_t)32 * UNIT, 0};
        x.b[x.n++] = (PlaceBuf){(int64_t)v * FORWARD, (int64_t)v * FORWARD + 50, 300 * UNIT, 0};
        x.b[x.n++] = (PlaceBuf){back + 75, end, kept * UNIT, 0};
        for (int k = 0; k < LEN(backward); k++) {
            const int64_t start = back + backward[k].start + below(&seed, 2);
            x.b[x.n++] =
                (PlaceBuf){start, start + backward[k].life, (int64_t)backward[k].size * UNIT, 0};
        }
    }
    return x;
}

Instance make_crowd(Arena *a, int n, int64_t pairs, uint64_t seed)
{
    Instance x = {NEWN(a, PlaceBuf, n), n, 0};
    int64_t span = 10 * (int64_t)n, life = MAX(2, 10 * pairs / n);
    for (int i = 0; i < n; i++) {
        int64_t start = below(&seed, span), long_life = below(&seed, 10) ? 1 : 6;
        int64_t size = 1 + below(&seed, 1 << (4 + below(&seed, 10)));
        x.b[i] =
            (PlaceBuf){start, start + 1 + below(&seed, life * long_life * 4 / 3), 512 * size, 0};
    }
    return x;
}

/* ---- like the fixtures ---- */

/* Keeps of x what lies between two times; false if nothing does. */
static bool crop(PlaceBuf *x, int64_t from, int64_t to)
{
    x->start = MAX(x->start, from);
    x->end = MIN(x->end, to);
    return x->start < x->end;
}

static void mirror(PlaceBuf *x, bool in_time, bool in_space, int64_t span, int64_t capacity)
{
    PlaceBuf y = *x;
    if (in_time) {
        x->start = span - y.end;
        x->end = span - y.start;
    }
    if (in_space)
        x->offset = capacity - y.offset - y.nbytes;
}

Instance make_like(Arena *a, const PlaceBuf *b, int n, int64_t capacity, uint64_t seed)
{
    Instance x = {NEWN(a, PlaceBuf, 2 * n), 0, capacity};
    uint64_t s = seed;
    int64_t span = 0;
    for (int i = 0; i < n; i++)
        span = MAX(span, b[i].end);
    int64_t from = below(&s, 2) ? below(&s, span / 4) : 0;
    int64_t to = below(&s, 2) ? span - below(&s, span / 4) : span;
    bool in_time = below(&s, 2), in_space = below(&s, 2);
    for (int i = 0; i < n; i++) {
        PlaceBuf y = b[i];
        mirror(&y, in_time, in_space, span, capacity);
        if (!crop(&y, from, to) || below(&s, 100) == 0)
            continue;
        x.b[x.n++] = y;
        if (below(&s, 12) == 0)
            x.n += cut_through(&x.b[x.n - 1], &x.b[x.n], false, &s);
    }
    shuffle(x.b, x.n, s);
    return x;
}

Instance read_fixture(Arena *a, char name)
{
    Instance x = {NULL, 0, 1048576};
    int cap = 0;
    char path[100];
    snprintf(path, sizeof path, "../shared/fixtures/placement/%c.1048576.csv", name);
    FILE *f = fopen(path, "r");
    long long id, start, end, nbytes;
    if (!f)
        return x;
    fscanf(f, "%*[^\n]");
    while (fscanf(f, "%lld,%lld,%lld,%lld", &id, &start, &end, &nbytes) == 4) {
        PlaceBuf b = {start, end, nbytes, 0};
        PUSH(a, x.b, x.n, cap, b);
    }
    fclose(f);
    return x;
}
