/* The kernel of `fused` for the processor: tiles of at most TILE neighbouring elements, or of whole
 * rows, at most ROWS_TILE elements or one row, go through all of the body before the next ones do.
 *
 * Each node is run by its op's lane, or by its kernel along rows, the very functions that run it on
 * its own, and its values are rounded to their dtype in their tiles: the bits are those of the
 * nodes on their own, in any grouping, on any number of threads. Ops are dispatched for each tile,
 * not for each element.
 *
 * Method: a node reads operands that lie row-major where they are; any other is first copied into
 * a tile, row by row. A node writes to its result's memory, or to a slot of a small buffer on the
 * stack, from which a result that is a part of a larger tensor is copied; slots are given by the
 * linear scan of Poletto and Sarkar (1999) over the body. Slots of one element for each row are a
 * pool of their own. Only where a few rows are more than FUSED_ROOM bytes does the buffer lie in
 * the plan's workspace, one for each thread. */
#include "fused_tiles.h"

#include "rows.h"

static void drop_scratch(void *what)
{
    arena_free(*(Arena **)what);
}

/* The context's memory for one tiling at a time. */
static Arena *get_scratch(Ctx *ctx)
{
    static const char key[] = "fused scratch";
    Arena **a = memo_find(ctx, key, sizeof key);
    if (!a) {
        a = NEW(memo_arena(ctx), Arena *);
        arena_defer(memo_arena(ctx), drop_scratch, a);
        memo_put(ctx, key, sizeof key, a);
    }
    if (!*a)
        *a = arena_new(ctx);
    if (!*a)
        fail(ctx, TN_FAIL, "out of memory");
    arena_reset(*a);
    return *a;
}

/* As the tiling says. Without ops along rows slots are on the stack. */
static int64_t workspace(Ctx *ctx, const Call *c)
{
    if (!fused_shape(c->node).row)
        return 0;
    return tiling_make(c, get_scratch(ctx))->nbytes_work;
}

static void prepare(Call *c, Arena *a)
{
    Tiling *p = c->state = tiling_make(c, a);
    CHECK(p->nbytes_work == c->nbytes_work);
}

/* ---- a run ---- */

typedef struct TileRun {
    const Call *c;
    const Tiling *p;
    char *buffer;
    int64_t lo;    /* of the tile */
    uint64_t past; /* results that go past the caches */
} TileRun;

/* Where the tile begins in a value that lies whole in memory, bytes. */
static int64_t offset(const TileRun *x, const TilePlace *p)
{
    return (p->by_row ? x->lo / x->p->row : x->lo) * p->size;
}

static char *address(const TileRun *x, const TilePlace *p)
{
    switch (p->at) {
    case AT_OPERAND: return x->c->in[p->index].data + offset(x, p);
    case AT_RESULT: return x->c->out[p->index].data + offset(x, p);
    case AT_SLOT:
        return x->buffer + (p->by_row ? x->p->nslot[0] * x->p->slot_bytes[0] : 0) +
               p->index * x->p->slot_bytes[p->by_row];
    case AT_RUNS:
    case AT_WHOLE: return x->c->in[p->index].data;
    case AT_END: return x->c->out[p->index].data;
    default: return (char *)x->p->step[p->index].constant;
    }
}

typedef struct SlotCopy {
    char *slot; /* of position 0 */
    const Tensor *t;
    bool out; /* from the slot */
} SlotCopy;

static void copy_row(void *arg, int64_t n, const int64_t *at, const int64_t *stride)
{
    const SlotCopy *x = arg;
    int64_t size = dtype_size(x->t->dtype), apart = stride[1] * size;
    char *slot = x->slot + at[0] * size, *there = x->t->data + at[1] * size;
    if (x->out)
        copy_run(there, slot, n, apart, size, size);
    else
        copy_run(slot, there, n, size, apart, size);
}

/* Copies n elements between the slots and tensors that do not lie as the step has them. */
static void run_moves(const TileRun *x, const TileMove *move, int count, int64_t n, bool out)
{
    for (const TileMove *l = move; l < move + count; l++) {
        int64_t per = l->slot.by_row ? x->p->row : 1, lo = x->lo / per;
        const Tensor *t = out ? &x->c->out[l->index] : &x->c->in[l->index];
        SlotCopy copy = {address(x, &l->slot) - lo * l->slot.size, t, out};
        walk_part(&l->walk, lo, lo + n / per, copy_row, &copy);
    }
}

/* A lane over the runs of a tile: where the tile's first element, or the operand, would begin. */
typedef struct LaneRuns {
    const TileStep *s;
    char *out;
    const char *in[LANE_OPERANDS];
} LaneRuns;

static void run_run(void *arg, int64_t n, const int64_t *at, const int64_t *stride)
{
    const LaneRuns *x = arg;
    const TileStep *s = x->s;
    const void *in[LANE_OPERANDS] = {0};
    for (int i = 0; i < s->nin; i++)
        in[i] = x->in[i] + at[i + 1] * s->in[i].size;
    s->lane.row(n, x->out + at[0] * s->out->size, in, stride + 1, &s->lane.arg);
}

static void run_runs(const TileRun *x, const TileStep *s, int64_t n, char *out)
{
    LaneRuns runs = {s, out - x->lo * s->out->size, {0}};
    for (int i = 0; i < s->nin; i++) {
        const TilePlace *p = &s->in[i];
        runs.in[i] = address(x, p) - (p->at < AT_RUNS ? offset(x, p) : 0);
    }
    walk_part(s->runs, x->lo, x->lo + n, run_run, &runs);
}

static void run_lane(const TileRun *x, const TileStep *s, int64_t n, char *out)
{
    const LaneFn *l = &s->lane;
    const char *in[LANE_OPERANDS] = {0};
    int64_t stride[LANE_OPERANDS] = {0}, row = s->out->by_row ? x->p->row : 1;
    if (s->runs) {
        run_runs(x, s, n, out);
        return;
    }
    for (int i = 0; i < s->nin; i++) {
        in[i] = address(x, &s->in[i]);
        stride[i] = s->in[i].at < AT_RUNS;
    }
    if (l->row)
        l->row(n / row, out, (const void *const *)in, stride, &l->arg);
    else
        l->placed(n / row, out, (const void *const *)in, &l->arg, x->lo / row);
}

/* Fetches what the step is the first to read of the next tile, which is as long or the last. */
static void fetch_next(const TileRun *x, const TileStep *s, int64_t n, int64_t left)
{
    for (int i = 0; i < s->nin; i++)
        if (s->fetch[i])
            fetch_ahead(address(x, &s->in[i]), n, MIN(n, left), s->in[i].size);
}

/* A lane, whose result bypasses the caches if the body does not read it. */
static void run_past(const TileRun *x, const TileStep *s, int64_t n)
{
    char *out = address(x, s->out), *spare = x->buffer + x->p->buffer - x->p->slot_bytes[0];
    bool past = s->leaves && x->past >> s->out->index & 1;
    run_lane(x, s, n, past ? spare : out);
    if (past)
        stream_store(out, spare, n * s->out->size);
}

/* The rows of the tile: tensors have their data from set_data(), but for slots, which each thread
 * has of its own. */
static void run_rows(const TileRun *x, const TileStep *s, int64_t n)
{
    const int64_t lo = x->lo / x->p->row, hi = (x->lo + n) / x->p->row;
    Tensor in[ROW_OPERANDS], out[ROW_RESULTS];
    Call c = {.node = s->call.node, .nin = s->call.nin, .nout = s->call.nout};
    if (!s->slots) {
        s->rows->run((Call *)&s->call, lo, hi);
        return;
    }
    memcpy(in, s->call.in, sizeof *in * (size_t)c.nin);
    memcpy(out, s->call.out, sizeof *out * (size_t)c.nout);
    c.in = in;
    c.out = out;
    c.work = s->call.work;
    c.state = s->call.state;
    for (int i = 0; i < c.nin; i++)
        if (s->in[i].at == AT_SLOT)
            in[i].data = address(x, &s->in[i]) - offset(x, &s->in[i]);
    for (int k = 0; k < c.nout; k++)
        if (s->out[k].at == AT_SLOT)
            out[k].data = address(x, &s->out[k]) - offset(x, &s->out[k]);
    s->rows->run(&c, lo, hi);
}

static void run_tiles(TileRun x, int64_t lo, int64_t hi)
{
    for (x.lo = lo; x.lo < hi; x.lo += x.p->tile)
        for (int i = 0; i < x.p->nstep; i++) {
            const TileStep *s = &x.p->step[i];
            int64_t n = MIN(x.p->tile, hi - x.lo);
            if (s->out->at == AT_CONSTANT)
                continue;
            run_moves(&x, s->load, s->nload, n, false);
            if (x.p->ahead)
                fetch_next(&x, s, n, hi - x.lo - n);
            if (s->rows)
                run_rows(&x, s, n);
            else if (x.p->far)
                run_past(&x, s, n);
            else
                run_lane(&x, s, n, address(&x, s->out));
            run_moves(&x, s->store, s->nstore, n, true);
        }
    if (x.past)
        stream_end();
}

static void run_short(void *arg, int64_t lo, int64_t hi)
{
    TileRun x = *(const TileRun *)arg;
    _Alignas(64) char buffer[TILE_BUFFER];
    x.buffer = buffer;
    run_tiles(x, lo, hi);
}

static void run_long(void *arg, int64_t lo, int64_t hi)
{
    TileRun x = *(const TileRun *)arg;
    _Alignas(64) char buffer[FUSED_ROOM];
    x.buffer = buffer;
    run_tiles(x, lo, hi);
}

static void run_all_rows(void *arg, int64_t lo, int64_t hi)
{
    const Tiling *p = ((const TileRun *)arg)->p;
    (p->buffer > TILE_BUFFER ? run_long : run_short)(arg, lo * p->row, hi * p->row);
}

/* Parts [lo, hi) of nlocal, each with a buffer in the workspace. */
static void run_locals(void *arg, int64_t lo, int64_t hi)
{
    TileRun x = *(const TileRun *)arg;
    const Tiling *p = x.p;
    int64_t rows = p->nelem / p->row;
    for (int64_t i = lo; i < hi; i++) {
        x.buffer = x.c->work + p->local + i * p->buffer;
        run_tiles(x, rows * i / p->nlocal * p->row, rows * (i + 1) / p->nlocal * p->row);
    }
}

/* Gives tensors of ops along rows the data that lies in memory. */
static void set_data(const Call *c)
{
    const Tiling *p = c->state;
    TileRun x = {.c = c, .p = p};
    for (int i = 0; i < p->nstep; i++) {
        TileStep *s = &p->step[i];
        s->call.work = c->work + s->work;
        for (int k = 0; k < s->nin && s->rows; k++)
            if (s->in[k].at != AT_SLOT)
                s->call.in[k].data = address(&x, &s->in[k]);
        for (int k = 0; k < s->call.nout && s->rows; k++)
            if (s->out[k].at != AT_SLOT)
                s->call.out[k].data = address(&x, &s->out[k]);
    }
}

/* The results that are in the place of no operand. */
static uint64_t apart(const Call *c)
{
    uint64_t mask = 0;
    for (int k = 0; k < MIN(c->nout, 64); k++) {
        bool found = false;
        for (int i = 0; i < c->nin; i++)
            found |= c->in[i].data == c->out[k].data;
        mask |= (uint64_t)!found << k;
    }
    return mask;
}

/* A lane's check before the first element, by operands that are there. */
static int check_lane(Call *c, const TileStep *s)
{
    const TileRun x = {.c = c, .p = c->state};
    const void *in[LANE_OPERANDS] = {0};
    for (int i = 0; i < s->nin; i++)
        in[i] = s->in[i].at >= AT_WHOLE ? address(&x, &s->in[i]) : NULL;
    return s->lane.check(c, s->lane.arg.node, in);
}

/* Runs what ops along rows and lanes do before the first row, or after the last. */
static int run_borders(Call *c, bool start)
{
    const Tiling *p = c->state;
    for (int i = 0; i < p->nstep; i++) {
        TileStep *s = &p->step[i];
        if (start && !s->rows && s->lane.check && check_lane(c, s))
            return -1;
        int (*border)(Call *) = s->rows ? start ? s->rows->start : s->rows->finish : NULL;
        if (border && border(&s->call))
            return run_fail(c, "%s", s->call.message);
    }
    return 0;
}

static int run(Call *c)
{
    const Tiling *p = c->state;
    TileRun x = {.c = c, .p = p, .past = p->far ? apart(c) : 0};
    set_data(c);
    if (run_borders(c, true))
        return -1;
    if (p->nlocal)
        par_for(p->nlocal, 1, run_locals, &x);
    else if (p->row > 1)
        par_for(p->nelem / p->row, row_grain(p->row), run_all_rows, &x);
    else
        walk_par(p->nelem, run_short, &x);
    return run_borders(c, false);
}

const Kernel fused_kernels[] = {
    {.name = "tiles",
     .accepts = fused_accepts,
     .workspace = workspace,
     .prepare = prepare,
     .run = run,
     .strided_out = true},
    {0},
};
