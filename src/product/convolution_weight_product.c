/* The kernel of convolution_backward_weight where the convolution is a product
 * (convolution_product.c): an image's share of the weight's gradient, [out, in], is the map,
 * [out, pixels], times the transposed image, [pixels, in], both as they lie. Shares are added by
 * the product itself, so that they need no memory of their own.
 *
 * The work is cut into tasks, one at a time on a thread: rows of the gradient, and blocks of images
 * where these have many pixels, whose sums lie in the workspace and are added in the order of
 * blocks. Sizes alone say how many tasks there are, so bits do not depend on the number of threads.
 * 16-bit tensors, of which this processor has no products, are f32 in the workspace, an image at a
 * time (widen.h); where it has, the library's convolution is left to them.
 *
 * Numerics: sums in f32, rounded once. */
#include "convolution_product.h"

#include "onednn.h"
#include "widen.h"

enum {
    MOST_TASKS = 8,
    LEAST_ROWS = 128,      /* of a task: each packs an image anew */
    LEAST_PIXELS = 1024,   /* that a block of images adds up, below which adding blocks is slow */
    BLOCK_ROOM = 32 << 20, /* bytes of all blocks' sums */
};

/* A call, cut into blocks of images times parts of the rows. */
typedef struct WeightCall {
    Conv c;
    const Tensor *image, *map, *weight;
    int64_t pixels, blocks, images, parts, rows; /* images of a block, rows of a part */
    bool wide;
    OneProduct product; /* of a task's first image; the others add to it */
} WeightCall;

static int64_t divisor(int64_t n, int64_t most)
{
    int64_t x = MAX(MIN(n, most), 1);
    while (n % x)
        x--;
    return x;
}

static int64_t weight_nbytes(const WeightCall *x)
{
    return x->c.out * x->c.in * (int64_t)sizeof(float);
}

static void cut(WeightCall *x)
{
    const Conv *c = &x->c;
    int64_t most = MIN(c->batch * x->pixels / LEAST_PIXELS, BLOCK_ROOM / weight_nbytes(x));
    x->blocks = divisor(c->batch, MIN(most, MOST_TASKS));
    x->images = c->batch / x->blocks;
    x->parts = divisor(c->out, MIN(c->out / LEAST_ROWS, MOST_TASKS / x->blocks));
    x->rows = c->out / x->parts;
}

static WeightCall call_of(const Call *call)
{
    WeightCall x = {.c = conv_weight_of(call->node),
                    .image = &call->in[CONV_IMAGE],
                    .map = &call->in[CONV_MAP],
                    .weight = &call->out[0],
                    .wide = call->out[0].dtype != F32};
    x.pixels = conv_pixels(&x.c);
    cut(&x);
    x.product = (OneProduct){
        .a = {F32, 2, {x.rows, x.pixels}, {x.pixels, 1}, false},
        .b = {F32, 2, {x.pixels, x.c.in}, {1, x.pixels}, false},
        .y = {F32, 2, {x.rows, x.c.in}, {x.c.in, 1}, false},
        .alone = true,
    };
    return x;
}

bool conv_weight_product_accepts(const Call *c)
{
    const Tensor *x = &c->in[CONV_IMAGE], *y = &c->in[CONV_MAP], *w = &c->out[0];
    Conv conv = conv_weight_of(c->node);
    DType d = w->dtype;
    return x->dtype == d && y->dtype == d &&
           (d == F32 || (dtype_size(d) == 2 && !matmul_fast(d))) && conv_lies(x, false) &&
           conv_lies(y, false) && conv_lies(w, true) && conv_is_product(&conv);
}

/* ---- workspace ---- */

/* Sums of blocks first (that of the first is the result where this is f32), then a part for each
 * slot: the image and the rows of the map in f32, scratch. */
typedef struct WeightRoom {
    int64_t sums, slots, image, map, scratch, each, end, nslot;
} WeightRoom;

static int64_t take(int64_t *at, int64_t nbytes)
{
    int64_t from = *at;
    *at += (nbytes + 63) / 64 * 64;
    return from;
}

static OneProduct adding(const WeightCall *x)
{
    OneProduct p = x->product;
    p.adds = true;
    return p;
}

static WeightRoom room_of(Ctx *ctx, const Call *c, const WeightCall *x)
{
    const OneProduct more = adding(x);
    const int64_t row = x->wide ? x->pixels * (int64_t)sizeof(float) : 0;
    WeightRoom r = {.nslot = MIN(par_threads(), x->blocks * x->parts)};
    int64_t at = 0, in = 0;
    r.sums = take(&at, weight_nbytes(x) * (x->blocks - !x->wide));
    r.slots = at;
    r.image = take(&in, x->c.in * row);
    r.map = take(&in, x->rows * row);
    r.scratch = take(&in, MAX(onednn_room(ctx, c->node, &x->product).scratch,
                              onednn_room(ctx, c->node, &more).scratch));
    r.each = in;
    r.end = at + r.nslot * r.each;
    return r;
}

int64_t conv_weight_product_workspace(Ctx *ctx, const Call *c)
{
    WeightCall x = call_of(c);
    return room_of(ctx, c, &x).end;
}

typedef struct PreparedWeight {
    WeightRoom room;
    OneRun **first, **more; /* of each slot: a task's first image, and the others */
    int *status;
} PreparedWeight;

static OneRun **make_runs(Arena *a, const Node *n, const OneProduct *p, int64_t count)
{
    OneRun **run = NEWN(a, OneRun *, count);
    for (int64_t i = 0; i < count; i++)
        run[i] = i ? onednn_twin(a, n, run[0]) : onednn_make(a, n, p);
    return run;
}

void conv_weight_product_prepare(Call *c, Arena *a)
{
    WeightCall x = call_of(c);
    const OneProduct more = adding(&x);
    PreparedWeight *m = c->state = NEW(a, PreparedWeight);
    m->room = room_of(arena_ctx(a), c, &x);
    CHECK(m->room.end == c->nbytes_work);
    m->first = make_runs(a, c->node, &x.product, m->room.nslot);
    m->more = make_runs(a, c->node, &more, m->room.nslot);
    m->status = NEWN(a, int, m->room.nslot);
}

int64_t conv_weight_product_handles(const Call *c)
{
    WeightCall x = call_of(c);
    OneKeeps keeps = onednn_keeps();
    return 2 * (keeps.each_run + (MIN(par_threads(), x.blocks * x.parts) - 1) * keeps.each_twin);
}

/* ---- a run ---- */

typedef struct WeightRun {
    const WeightCall *x;
    const PreparedWeight *m;
    char *work;
} WeightRun;

/* The sum of a block of images. */
static float *sum_at(const WeightRun *r, int64_t block)
{
    int64_t at = block - !r->x->wide;
    char *sums = r->work + r->m->room.sums;
    return (float *)(void *)(at < 0 ? r->x->weight->data : sums + at * weight_nbytes(r->x));
}

/* n elements of t, from the image's element `from` on: where they lie, or as f32 in `room`. */
static const void *bring(const WeightRun *r, const Tensor *t, int64_t image, int64_t from,
                         int64_t n, char *room)
{
    char *at = t->data + (image * t->stride[0] + from) * dtype_size(t->dtype);
    if (!r->x->wide)
        return at;
    widen_load(&(Widen){(float *)(void *)room, (uint16_t *)(void *)at, t->dtype}, 0, n);
    return room;
}

static int run_task(const WeightRun *r, int64_t slot, int64_t block, int64_t part)
{
    const WeightCall *x = r->x;
    const WeightRoom *room = &r->m->room;
    char *own = r->work + room->slots + slot * room->each;
    float *y = sum_at(r, block) + part * x->rows * x->c.in;
    int status = 0;
    for (int64_t i = 0; i < x->images && !status; i++) {
        int64_t image = block * x->images + i, rows = x->rows * x->pixels;
        const void *a = bring(r, x->map, image, part * rows, rows, own + room->map);
        const void *b = bring(r, x->image, image, 0, x->c.in * x->pixels, own + room->image);
        OneRun *run = i ? r->m->more[slot] : r->m->first[slot];
        status = onednn_run(run, a, b, NULL, y, own + room->scratch);
    }
    return status;
}

static void run_slots(void *arg, int64_t lo, int64_t hi)
{
    const WeightRun *r = arg;
    for (int64_t s = lo; s < hi; s++) {
        r->m->status[s] = 0;
        for (int64_t t = s; t < r->x->blocks * r->x->parts && !r->m->status[s];
             t += r->m->room.nslot)
            r->m->status[s] = run_task(r, s, t / r->x->parts, t % r->x->parts);
    }
}

static void add_blocks(void *arg, int64_t lo, int64_t hi)
{
    const WeightRun *r = arg;
    for (int64_t b = 1; b < r->x->blocks; b++)
        conv_add(sum_at(r, 0) + lo, sum_at(r, b) + lo, hi - lo);
}

int conv_weight_product_run(Call *c)
{
    WeightCall x = call_of(c);
    WeightRun r = {&x, c->state, c->work};
    const int64_t n = x.c.out * x.c.in;
    int status = 0;
    par_for(r.m->room.nslot, 1, run_slots, &r);
    for (int64_t s = 0; s < r.m->room.nslot && !status; s++)
        status = r.m->status[s];
    if (status)
        return run_fail(c, "oneDNN product failed (status %d)", status);
    par_for(n, 16384, add_blocks, &r);
    Widen all = {sum_at(&r, 0), (uint16_t *)(void *)x.weight->data, x.weight->dtype};
    if (x.wide)
        par_for(n, 16384, widen_store, &all);
    return 0;
}
