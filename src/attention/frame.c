/* The frame of "blocks", "panels" and "amx": attention by products of whole blocks of queries and
 * keys, each run by one thread, forward and backward. It cuts a call into tasks, copies operands,
 * walks blocks and keys, and writes results; a variant multiplies (blocks.c, panels.c).
 *
 * A task is a key head, or a part of its blocks of queries. The heads of a group stand in a block
 * side by side: row t group + g is query t of the group's head g, so that keys are read once for
 * all of them. Operands are copied densely, keys with zeros after, so that a few shapes of the
 * library serve all blocks: products of a block and 1, 2, ... units of keys. Panels have any number
 * of rows: on the diagonal of causal attention they take a strip of keys at a time, and leave out
 * the queries before the first that sees one of it.
 *
 * Where documents share rows, panels' blocks begin where long documents do (flash_cut_rows), with
 * as many rows as there are queries.
 *
 * Rows of a block are a share of the queries: larger ones cost less for each product, smaller ones
 * waste less where attention is causal.
 *
 * Backward: a task walks its blocks of queries one after the other and adds to sums of dk and dv of
 * its own, in f32 in the workspace; those of a key head's tasks are added in order. How many tasks
 * a key head has follows from the sizes alone. */
#include "attention.h"

typedef struct FrameState {
    Frame s;
    OneRun **run;       /* product i of u units of slot s is at [(s nproduct + i) steps + u - 1] */
    int *status;        /* of each slot */
    int64_t sums, nsum; /* where sums of dk and dv begin in the workspace; floats of one of them */
} FrameState;

/* ---- sizes ---- */

static int64_t frame_width(const Frame *s) /* bytes of an element */
{
    return dtype_size(s->dtype);
}

/* The keys that the block sees. */
static int64_t block_seen(const FrameBlock *j)
{
    return flash_seen(&j->s->f, j->query + j->n / j->s->f.group - 1);
}

int64_t frame_ended(const FrameBlock *j, int64_t key)
{
    const Frame *s = j->s;
    int64_t queries = j->n / s->f.group, end = queries;
    while (j->starts && end && flash_first(j->starts, j->b, j->query + end - 1) > key)
        end--;
    return j->starts ? end * s->f.group : j->rows;
}

int64_t frame_unseen(const FrameBlock *j, int64_t key)
{
    const Flash *f = &j->s->f;
    int64_t queries = key - f->offset - j->query; /* before the one that sees it */
    return f->causal ? MAX(0, MIN(queries * f->group, j->rows)) : 0;
}

/* How many keys, from `key` on, the block takes at once. */
static int64_t block_keys(const FrameBlock *j, int64_t key)
{
    const Frame *s = j->s;
    int64_t all = round_up(flash_seen(&s->f, j->query), s->strip);
    int64_t whole = s->steps * s->unit, most = key < all ? MIN(whole, all - key) : s->strip;
    most = MIN(most, whole - key % whole); /* panels do not cross from one to the next */
    return MIN(most, block_seen(j) - key);
}

/* All, where the position among the keys, or where documents begin, is known only when it runs. */
static unsigned units_used(const Call *c, const Frame *s)
{
    unsigned used = 1u << (s->steps - 1);
    const int extra = s->by->backward ? MASK : 3;
    if (flash_starts(c, extra) || (!s->by->backward && c->nin > 3 && !flash_mask(c, 3)))
        return 2 * used - 1;
    int64_t most = s->steps * s->unit;
    for (int64_t end = s->queries; end < s->f.queries + s->queries; end += s->queries) {
        int64_t seen = flash_seen(&s->f, MIN(end, s->f.queries) - 1);
        if (seen % most)
            used |= 1u << (frame_units(s, seen % most) - 1);
    }
    return used;
}

static Frame frame_of(const Call *c, const FrameVariant *by)
{
    enum { LEAST_ROWS = 64 };
    _Static_assert(LANES % PANEL == 0, "rows of a block are whole panels");
    Frame s = {.f = flash_of(c->node, by->backward ? Q : 0), .dtype = c->in[0].dtype, .by = by};
    const Flash *f = &s.f;
    s.size = by->describe ? f->size : round_up(f->size, PANEL);
    int64_t rows = MIN(MAX(f->queries * f->group / by->cut.share, LEAST_ROWS), by->cut.most_rows);
    s.queries = MIN(MAX(rows / f->group, 1), f->queries);
    s.count = (f->queries + s.queries - 1) / s.queries;
    s.queries = (f->queries + s.count - 1) / s.count;
    s.rows = round_up(s.queries * f->group, LANES);
    s.unit = MIN(by->cut.unit, round_up(f->keys, LANES));
    s.padded = round_up(f->keys, s.unit);
    s.steps = MIN(by->cut.keys, s.padded) / s.unit;
    if (!by->describe && flash_starts(c, by->backward ? MASK : 3))
        s.ncut = flash_ncut(f->queries, s.queries);
    s.strip = by->cut.strip ? by->cut.strip : s.steps * s.unit;
    s.used = units_used(c, &s);
    int64_t heads = f->batch * (f->heads / f->group);
    s.parts = flash_parts(heads, s.count);
    s.ntask = heads * s.parts;
    s.nslot = MAX(1, MIN(par_threads(), s.ntask));
    return s;
}

static FrameWork work_of(const Frame *s, char *work, int64_t *nbytes)
{
    int64_t keys = s->steps * s->unit, size = s->size, width = frame_width(s);
    bool backward = s->by->backward, panels = !s->by->describe, narrow = s->dtype != F32;
    FrameWork w = {0};
    *nbytes = 0;
    w.q = take_bytes(work, nbytes, s->rows * size * width);
    w.k = take_bytes(work, nbytes, s->padded * size * width);
    w.v = take_bytes(work, nbytes, (panels && !backward ? s->unit : s->padded) * size * width);
    w.s = take_floats(work, nbytes, s->rows * keys);
    w.p = narrow ? take_bytes(work, nbytes, s->rows * keys * width) : (char *)w.s;
    w.y = take_floats(work, nbytes, s->rows * size);
    if (backward) {
        w.grad = take_bytes(work, nbytes, s->rows * size * width);
        w.dp = take_floats(work, nbytes, s->rows * keys);
        w.ds = narrow ? take_bytes(work, nbytes, s->rows * keys * width) : (char *)w.dp;
        w.delta = take_floats(work, nbytes, s->rows);
    } else {
        w.top = take_floats(work, nbytes, s->rows);
        w.sum = take_floats(work, nbytes, s->rows);
    }
    w.lse = backward || panels ? take_floats(work, nbytes, s->rows) : w.top;
    w.own = take_bytes(work, nbytes, s->nown);
    return w;
}

/* The most that any of the library's products takes. */
static int64_t scratch(Ctx *ctx, const Node *n, const Frame *s)
{
    int64_t most = 0;
    for (int64_t i = 0; i < s->by->nproduct * s->steps; i++) {
        if (!(s->used >> i % s->steps & 1))
            continue;
        OneProduct p = s->by->describe(s, (int)(i / s->steps), (i % s->steps + 1) * s->unit);
        OneRoom room = onednn_room(ctx, n, &p);
        most = MAX(most, room.scratch);
    }
    return most;
}

static Frame sizes(Ctx *ctx, const Call *c, const FrameVariant *by)
{
    Frame s = frame_of(c, by);
    s.nown = by->own ? by->own(&s) : scratch(ctx, c->node, &s);
    work_of(&s, NULL, &s.nbytes);
    return s;
}

/* Pairs of sums: of each task, or of each slot where a key head has one task. */
static int64_t nsums(const Frame *s)
{
    return s->parts == 1 ? s->nslot : s->ntask;
}

/* ---- what a Kernel asks ---- */

bool frame_accepts(const Call *c, const FrameVariant *by)
{
    const Tensor *q = &c->in[by->backward ? Q : 0];
    return flash_accepts(c, by->backward) && tensor_nelem(q) && q->dim[3] <= ONE_MOST_LEADING;
}

/* Where sums begin in the workspace: after the slots' and the cuts. */
static int64_t before_sums(const Frame *s)
{
    return s->nslot * s->nbytes + round_up(s->f.batch * s->ncut * (int64_t)sizeof(int64_t), 64);
}

int64_t frame_workspace(Ctx *ctx, const Call *c, const FrameVariant *by)
{
    Frame s = sizes(ctx, c, by);
    int64_t sums = by->backward ? 2 * nsums(&s) * s.padded * s.size * (int64_t)sizeof(float) : 0;
    return before_sums(&s) + sums;
}

int64_t frame_handles(const Call *c, const FrameVariant *by)
{
    enum { MADE = 6 << 10 }; /* nothing is packed */
    Frame s = frame_of(c, by);
    int64_t each = MADE + (s.nslot - 1) * onednn_keeps().each_twin;
    return by->nproduct * __builtin_popcount(s.used) * each;
}

/* The library's products for each slot. */
static OneRun **products(Arena *a, const Node *n, const Frame *s)
{
    int64_t count = s->by->nproduct, each = count * s->steps;
    OneRun **run = NEWN(a, OneRun *, s->nslot * each);
    for (int64_t i = 0; i < s->nslot * each; i++) {
        if (!(s->used >> i % s->steps & 1))
            continue;
        OneProduct p =
            s->by->describe(s, (int)(i / s->steps % count), (i % s->steps + 1) * s->unit);
        run[i] = i < each ? onednn_make(a, n, &p) : onednn_twin(a, n, run[i - each]);
    }
    return run;
}

void frame_prepare(Call *c, Arena *a, const FrameVariant *by)
{
    FrameState *x = c->state = NEW(a, FrameState);
    x->s = sizes(arena_ctx(a), c, by);
    x->sums = before_sums(&x->s);
    x->nsum = x->s.padded * x->s.size;
    x->run = products(a, c->node, &x->s);
    x->status = NEWN(a, int, x->s.nslot);
}

/* ---- copies of operands ---- */

/* Fetches the row of a head that is read or written AHEAD rows later: rows of a head are further
 * apart than the processor looks by itself. */
enum { AHEAD = 8 };
static void fetch(const Frame *s, const Tensor *t, int64_t b, int64_t i, int64_t h)
{
    int64_t width = frame_width(s);
    const char *row = t->data + flash_at(t, b, i, h) * width;
    for (int64_t at = 0; at < t->dim[3] * width; at += 64)
        __builtin_prefetch(row + at);
}

/* A row, and zeros after it. */
static void load_row(const Frame *s, const Tensor *t, int64_t at, char *to)
{
    int64_t width = frame_width(s), nbytes = s->f.size * width;
    memcpy(to, t->data + at * width, (size_t)nbytes);
    if (s->size > s->f.size)
        memset(to + nbytes, 0, (size_t)(s->size * width - nbytes));
}

void frame_load_unit(const Frame *s, const Tensor *t, int64_t b, int64_t head, int64_t n, int64_t u,
                     char *to)
{
    int64_t nbytes = s->size * frame_width(s), lo = u * s->unit;
    int64_t hi = MIN(n, lo + s->unit);
    for (int64_t j = lo; j < hi; j++) {
        if (j + AHEAD < n)
            fetch(s, t, b, j + AHEAD, head);
        load_row(s, t, flash_at(t, b, j, head), to + (j - lo) * nbytes);
    }
    memset(to + (hi - lo) * nbytes, 0, (size_t)((lo + s->unit - hi) * nbytes));
}

/* The first n keys, to whole units. */
static void load_keys(const FrameBlock *j, const Tensor *t, int64_t n, char *to)
{
    const Frame *s = j->s;
    for (int64_t u = 0; u < frame_units(s, n); u++)
        frame_load_unit(s, t, j->b, j->head, n, u, to + u * s->unit * s->size * frame_width(s));
}

/* The query and the head of a block's row. */
static int64_t query_of(const FrameBlock *j, int64_t row)
{
    return j->query + row / j->s->f.group;
}

static int64_t head_of(const FrameBlock *j, int64_t row)
{
    return j->head * j->s->f.group + row % j->s->f.group;
}

/* The block's rows of q or do, and zeros after. */
static void load_rows(const FrameBlock *j, const Tensor *t, char *to)
{
    const Frame *s = j->s;
    int64_t nbytes = s->size * frame_width(s);
    for (int64_t r = 0; r < j->n; r++)
        load_row(s, t, flash_at(t, j->b, query_of(j, r), head_of(j, r)), to + r * nbytes);
    memset(to + j->n * nbytes, 0, (size_t)((j->rows - j->n) * nbytes));
}

/* The way back of one row, rounded. */
static void put_row(const Frame *s, const Tensor *t, int64_t b, int64_t i, int64_t h,
                    const float *row)
{
    if (i + AHEAD < t->dim[1])
        fetch(s, t, b, i + AHEAD, h);
    if (s->dtype == F32)
        memcpy(flash_row(t, b, i, h), row, sizeof *row * (size_t)s->f.size);
    else
        flash_store(t, b, i, h, 1, row, s->f.size);
}

/* ---- rows of a block ---- */

/* q turned, for what looks for the greatest score before it scales. Nothing is summed yet. */
static void begin_forward(const FrameBlock *j)
{
    const Frame *s = j->s;
    float turn = (float)s->f.turn;
    for (int64_t i = 0; turn != 1 && i < j->rows * s->size; i++)
        v_store(j->w.q, i, turn * v_load(j->w.q, i, s->dtype), s->dtype);
    for (int64_t r = 0; r < j->rows; r++) {
        j->w.top[r] = -INFINITY;
        j->w.sum[r] = 0;
    }
}

KERNEL_FMA(float, dot_f32, (const char *x, const char *y, int64_t n), (x, y, n))
{
    return row_dot(x, y, n, F32);
}

KERNEL_FMA(float, dot_bf16, (const char *x, const char *y, int64_t n), (x, y, n))
{
    return row_dot(x, y, n, BF16);
}

/* Rows of do, and what each row has one of. Rows after are of no weight. */
static void begin_backward(const FrameBlock *j)
{
    const Frame *s = j->s;
    const Tensor *x = j->c->in;
    int64_t nbytes = s->size * frame_width(s);
    load_rows(j, &x[DO], j->w.grad);
    for (int64_t r = 0; r < j->rows; r++) {
        int64_t t = query_of(j, r), h = head_of(j, r);
        j->w.lse[r] = INFINITY;
        j->w.delta[r] = 0;
        if (r >= j->n)
            continue;
        if (t + AHEAD < s->f.queries)
            fetch(s, &x[O], j->b, t + AHEAD, h);
        const char *o = element(&x[O], flash_at(&x[O], j->b, t, h));
        j->w.lse[r] = flash_row_sum(j->c, j->b, h, t);
        j->w.delta[r] =
            (s->dtype == F32 ? dot_f32 : dot_bf16)(j->w.grad + r * nbytes, o, s->f.size);
    }
}

static void put_rows(const FrameBlock *j)
{
    const Tensor *lse = &j->c->out[1];
    for (int64_t r = 0; r < j->n; r++) {
        int64_t t = query_of(j, r), h = head_of(j, r);
        put_row(j->s, &j->c->out[0], j->b, t, h, j->w.y + r * j->s->size);
        if (!j->s->by->backward)
            f32(lse)[tensor_index(lse, (int64_t[]){j->b, h, t})] = j->w.lse[r];
    }
}

static void add_mask(const FrameBlock *j, int64_t r, float *scores, int64_t apart, int64_t key,
                     int64_t nkeys)
{
    int64_t h = head_of(j, r), t = query_of(j, r);
    float level = j->s->by->backward ? flash_row_level(j->c, j->b, h, t) : 0;
    flash_add_mask(j->mask, scores, apart, j->factor, level, j->b, h, t, key, nkeys);
}

void frame_add_mask(const FrameBlock *j, int64_t key, int64_t nkeys, int64_t first, int64_t step,
                    int64_t apart)
{
    for (int64_t r = first; r < j->n && j->mask; r++)
        add_mask(j, r, j->w.s + r * step, apart, key, nkeys);
}

/* p and ds of a key and `n` rows, from scores and dp. */
INLINE void grads(const FrameWork *w, int64_t at, int64_t n, int64_t from, float scale,
                  float factor, bool narrow)
{
    const float *s = w->s + at, *dp = w->dp + at;
    float *p_wide = w->s + at, *ds_wide = w->dp + at;
    uint16_t *p_half = (uint16_t *)(void *)w->p + at, *ds_half = (uint16_t *)(void *)w->ds + at;
    INDEPENDENT
    for (int64_t i = from; i < n; i++) {
        float x = s[i] * scale - w->lse[i];
        float p = narrow ? tile_exp2(x * LOG2E) : tile_exp(x);
        float ds = p * (dp[i] - w->delta[i]) * factor;
        if (narrow) {
            p_half[i] = tile_half(p);
            ds_half[i] = tile_half(ds);
        } else {
            p_wide[i] = p;
            ds_wide[i] = ds;
        }
    }
}

KERNEL_FMA(void, grads_f32,
           (const FrameWork *w, int64_t at, int64_t n, int64_t from, float scale, float factor),
           (w, at, n, from, scale, factor))
{
    grads(w, at, n, from, scale, factor, false);
}

KERNEL_FMA(void, grads_bf16,
           (const FrameWork *w, int64_t at, int64_t n, int64_t from, float scale, float factor),
           (w, at, n, from, scale, factor))
{
    grads(w, at, n, from, scale, factor, true);
}

void frame_score_grads(const FrameBlock *j, int64_t key, int64_t nkeys, int64_t width,
                       int64_t first)
{
    const Frame *s = j->s;
    const FrameWork *w = &j->w;
    bool narrow = s->dtype != F32;
    int64_t element = frame_width(s);
    frame_add_mask(j, key, nkeys, first, 1, s->rows);
    for (int64_t i = 0; i < width; i++) {
        int64_t at = i * s->rows, blind = i < nkeys ? frame_unseen(j, key + i) : j->rows;
        int64_t from = MAX(first, blind / LANES * LANES);
        (narrow ? grads_bf16 : grads_f32)(w, at, j->rows, from, j->scale, j->factor);
        blind = MAX(first, blind);
        memset(w->p + (at + first) * element, 0, (size_t)((blind - first) * element));
        memset(w->ds + (at + first) * element, 0, (size_t)((blind - first) * element));
        int64_t end = MAX(blind, i < nkeys ? frame_ended(j, key + i) : j->rows);
        memset(w->p + (at + end) * element, 0, (size_t)((j->rows - end) * element));
        memset(w->ds + (at + end) * element, 0, (size_t)((j->rows - end) * element));
    }
}

/* ---- tasks ---- */

static int block(const FrameBlock *j)
{
    const Frame *s = j->s;
    const FrameSteps *steps = s->by->steps;
    bool backward = s->by->backward;
    int64_t seen = block_seen(j), taken;
    int status = 0;
    load_rows(j, &j->c->in[backward ? Q : 0], j->w.q);
    (backward ? begin_backward : begin_forward)(j);
    if (steps->begin)
        steps->begin(j);
    else
        memset(j->w.y, 0, sizeof(float) * (size_t)(j->rows * s->size));
    for (int64_t key = j->first; key < seen && !status; key += taken) {
        taken = block_keys(j, key);
        status = steps->step(j, key, taken);
    }
    if (steps->end)
        steps->end(j);
    put_rows(j);
    return status;
}

static float *sums_of(const Call *c, int64_t slot, int64_t i, int k)
{
    const FrameState *x = c->state;
    float *sums = (float *)(void *)(c->work + x->sums);
    return sums + (2 * (x->s.parts == 1 ? slot : i) + k - DK) * x->nsum;
}

static FrameBlock job_of(const Call *c, int64_t slot, int64_t i)
{
    const FrameState *x = c->state;
    const Frame *s = &x->s;
    bool backward = s->by->backward;
    int64_t heads = s->f.heads / s->f.group, unit = i / s->parts, nbytes;
    FrameBlock j = {.c = c, .s = s, .b = unit / heads, .head = unit % heads};
    j.w = work_of(s, c->work + slot * s->nbytes, &nbytes);
    j.run = x->run + slot * s->by->nproduct * s->steps;
    j.mask = flash_mask(c, backward ? MASK : 3);
    j.starts = flash_starts(c, backward ? MASK : 3);
    j.factor = (float)(backward ? s->f.scale : s->f.above);
    j.scale = j.mask ? 1 : j.factor;
    return j;
}

/* The cuts of a row that documents share; NULL: blocks have the same queries. */
static int64_t *cuts_of(const Call *c, int64_t b)
{
    const FrameState *x = c->state;
    int64_t *cuts = (int64_t *)(void *)(c->work + x->s.nslot * x->s.nbytes);
    return x->s.ncut ? cuts + b * x->s.ncut : NULL;
}

/* Block t of its row. Panels take as many rows as there are, products of the library the same. */
static void place_block(FrameBlock *j, const int64_t *cuts, int64_t t)
{
    const Frame *s = j->s;
    j->query = cuts ? cuts[1 + t] : t * s->queries;
    int64_t end = cuts ? cuts[2 + t] : MIN(j->query + s->queries, s->f.queries);
    j->n = (end - j->query) * s->f.group;
    j->rows = cuts ? round_up(j->n, PANEL) : s->rows;
    j->first = flash_first(j->starts, j->b, j->query) / s->unit * s->unit;
}

static int task(const Call *c, int64_t slot, int64_t i)
{
    const FrameState *x = c->state;
    const Frame *s = &x->s;
    bool backward = s->by->backward;
    FrameBlock j = job_of(c, slot, i);
    const int64_t *cuts = cuts_of(c, j.b);
    int64_t seen = flash_seen(&s->f, s->f.queries - 1), count = cuts ? *cuts : s->count;
    int first = backward ? Q : 0, status = 0;
    load_keys(&j, &c->in[first + 1], seen, j.w.k);
    if (backward || s->by->describe)
        load_keys(&j, &c->in[first + 2], seen, j.w.v);
    if (s->by->steps->load_keys)
        s->by->steps->load_keys(&j, seen);
    if (backward) {
        j.dk = sums_of(c, slot, i, DK);
        j.dv = sums_of(c, slot, i, DV);
        memset(j.dk, 0, sizeof(float) * (size_t)(2 * x->nsum));
    }
    for (int64_t t = 0; t < count && !status; t++) {
        if (!flash_deals(t, s->parts, i % s->parts))
            continue;
        place_block(&j, cuts, t);
        status = block(&j);
    }
    for (int64_t key = 0; backward && key < s->f.keys && s->parts == 1; key++) {
        put_row(s, &c->out[DK], j.b, key, j.head, j.dk + key * s->size);
        put_row(s, &c->out[DV], j.b, key, j.head, j.dv + key * s->size);
    }
    return status;
}

/* Runs the tasks of slots lo to hi in turn, until one gives a status that is not 0. */
static void run_slots(void *arg, int64_t lo, int64_t hi)
{
    const Call *c = arg;
    const FrameState *x = c->state;
    const Frame *s = &x->s;
    bool amx = s->by->multiply == amx_multiply;
    for (int64_t slot = lo; slot < hi; slot++) {
        x->status[slot] = 0;
        if (amx)
            amx_begin();
        for (int64_t i = slot; i < s->ntask && !x->status[slot]; i += s->nslot)
            x->status[slot] = task(c, slot, i);
        if (amx)
            amx_end();
    }
}

/* Rows lo to hi of dk and dv, by heads: the sums of a head's tasks. */
static void add_parts(void *arg, int64_t lo, int64_t hi)
{
    const Call *c = arg;
    const FrameState *x = c->state;
    const Frame *s = &x->s;
    int64_t heads = s->f.heads / s->f.group, size = s->size;
    for (int64_t i = 2 * lo; i < 2 * hi; i++) {
        int k = i % 2 ? DV : DK;
        int64_t head = i / 2 / s->f.keys, key = i / 2 % s->f.keys;
        float *row = sums_of(c, 0, head * s->parts, k) + key * size;
        for (int64_t part = 1; part < s->parts; part++)
            flash_add(row, sums_of(c, 0, head * s->parts + part, k) + key * size, size);
        put_row(s, &c->out[k], head / heads, key, head % heads, row);
    }
}

int frame_run(Call *c)
{
    FrameState *x = c->state;
    const Frame *s = &x->s;
    if (s->by->backward ? flash_check_documents(c, MASK) : flash_place(c, &x->s.f))
        return -1;
    if (s->ncut)
        flash_cut_rows(flash_starts(c, s->by->backward ? MASK : 3), s->queries, cuts_of(c, 0));
    par_for(s->nslot, 1, run_slots, c);
    for (int64_t i = 0; i < s->nslot; i++)
        if (x->status[i])
            return run_fail(c, "oneDNN product failed (status %d)", x->status[i]);
    if (s->by->backward && s->parts > 1)
        par_for(s->ntask / s->parts * s->f.keys, row_grain(s->f.size), add_parts, c);
    return 0;
}
