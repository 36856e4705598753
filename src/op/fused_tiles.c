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
#include "fused.h"

#include "rows.h"

enum {
    TILE = 1024,    /* elements, where the slots then fit into the buffer */
    FAR_TILE = 512, /* the same where no cache holds the arrays: what is fetched ahead at once */
    ROWS_TILE =
        16384,      /* the same of rows: as long a run of each operand as the second cache holds */
    BUFFER = 32768, /* bytes: with 8 bytes an element FUSED_MOST slots of 64 elements fit */
    SLOTS = FUSED_MOST * ROW_RESULTS + ROW_OPERANDS,
};

/* ---- what a run needs, made once ---- */

/* A value's place while a tile is worked on. WHOLE: an operand of one element, or one that every
 * row reads from its beginning. END: a result that is there after the last row. */
typedef enum { AT_OPERAND, AT_RESULT, AT_SLOT, AT_WHOLE, AT_CONSTANT, AT_END } At;

typedef struct TilePlace {
    At at;
    int index;   /* of the operand, result, slot, or step of a constant */
    int size;    /* of an element, bytes */
    bool by_row; /* one element for each row */
} TilePlace;

/* An operand that is copied into a slot, or a result that is copied out of one. */
typedef struct TileMove {
    int index;
    TilePlace slot;
    Walk walk; /* of the slot's value, then the tensor */
} TileMove;

typedef struct TileStep {
    const RowKernel *rows; /* NULL: the lane */
    LaneFn lane;
    Call call;  /* of rows */
    bool slots; /* some of its tensors are */
    int64_t work;
    TilePlace *in, *out;
    int nin, nload, nstore;
    TileMove *load, *store;
    bool stretch;              /* an operand has one element for each row, the result all */
    bool fetch[LANE_OPERANDS]; /* whether it is the first to read this operand from outside */
    bool leaves;               /* nothing in the body reads the result */
    _Alignas(8) char constant[8];
} TileStep;

typedef struct Tiling {
    int nstep;
    int nslot[2];           /* of all elements; of one for each row */
    int64_t slot_bytes[2];  /* of one of these */
    int64_t nelem, row;     /* row: 1 without ops along rows */
    int64_t tile;           /* elements of a tile; rows that stay together */
    int64_t buffer, nlocal; /* bytes; buffers in the workspace, 0: on the stack */
    int64_t local;          /* where they begin there */
    int64_t nbytes_work;
    bool far; /* no cache holds the results: operands are fetched ahead, results go past */
    TileStep *step;
} Tiling;

/* While it is made: places by value id, the last reader of each, and which slots are taken. */
typedef struct TileMake {
    const Call *c;
    Arena *a;
    Tiling *p;
    TilePlace *place;
    int *last, *part;               /* part[]: 1 + the result that is copied there, or 0 */
    bool taken[2][SLOTS], *fetched; /* fetched: by operand */
} TileMake;

static void take_slot(TileMake *m, TilePlace *p)
{
    bool *taken = m->taken[p->by_row];
    int s = 0;
    while (taken[s])
        s++;
    CHECK(s < SLOTS);
    taken[s] = true;
    m->p->nslot[p->by_row] = MAX(m->p->nslot[p->by_row], s + 1);
    p->at = AT_SLOT;
    p->index = s;
}

static void free_slot(TileMake *m, const TilePlace *p)
{
    if (p->at == AT_SLOT)
        m->taken[p->by_row][p->index] = false;
}

static Tensor dense(const Type *t)
{
    Tensor x = {.dtype = t->dtype, .rank = t->rank};
    memcpy(x.dim, t->dim, sizeof x.dim);
    tensor_fill_strides(&x);
    return x;
}

/* One more of at most `most` moves. */
static void add_move(TileMake *m, TileMove **list, int *count, int most, TileMove x, const Type *t,
                     const Tensor *y)
{
    Tensor shape = dense(t);
    if (!*list)
        *list = NEWN(m->a, TileMove, most);
    walk_make(&x.walk, &shape, 1, y);
    (*list)[(*count)++] = x;
}

/* A tile's elements of operand i as a value of shape t: where it lies, or a copy. */
static TilePlace load(TileMake *m, TileStep *s, int i, const Type *t)
{
    const Tensor *x = &m->c->in[i];
    TilePlace p = {AT_OPERAND, i, dtype_size(x->dtype), type_nelem(t) != m->p->nelem};
    if (tensor_nelem(x) == 1) {
        p = (TilePlace){AT_WHOLE, i, p.size, false};
    } else if (tensor_nelem(x) != type_nelem(t) || !tensor_contiguous(x)) {
        take_slot(m, &p);
        add_move(m, &s->load, &s->nload, s->nin, (TileMove){.index = i, .slot = p}, t, x);
    }
    return p;
}

/* A pointwise node reads an operand from outside in its own shape, by broadcasting, but one that
 * the body shows by a view in the view's. */
static TilePlace operand_place(TileMake *m, TileStep *s, const Node *n, int i)
{
    const Value *v = n->in[i], *x = fused_base(v);
    if (x->def)
        return m->place[x->id];
    if (s->rows && s->rows->in[i] == ROW_ALL)
        return (TilePlace){AT_WHOLE, x->index, 0, false};
    return load(m, s, x->index, s->rows || v != x ? &v->type : &n->out[0]->type);
}

/* Places result k of n: a slot is taken only now, which its operands do not have. */
static TilePlace result_place(TileMake *m, TileStep *s, const Node *n, int k)
{
    const Value *y = n->out[k];
    const RowKernel *rows = s->rows;
    TilePlace *p = &m->place[y->id];
    int part = m->part[y->id] - 1;
    p->size = dtype_size(y->type.dtype);
    p->by_row = type_nelem(&y->type) != m->p->nelem;
    if (rows && rows->out[k] == ROW_FINISH)
        p->at = AT_END;
    else if (p->at == AT_SLOT)
        take_slot(m, p);
    if (part >= 0)
        add_move(m, &s->store, &s->nstore, n->nout, (TileMove){.index = part, .slot = *p}, &y->type,
                 &m->c->out[part]);
    return *p;
}

/* Frees slots whose last reader is node number `at`, and of results that are not read. */
static void free_slots(TileMake *m, const TileStep *s, const Node *n, int at)
{
    for (int k = 0; k < s->nload; k++)
        free_slot(m, &s->load[k].slot);
    for (int i = 0; i < n->nin; i++) {
        const Value *v = fused_base(n->in[i]);
        if (v->def && m->last[v->id] == at)
            free_slot(m, &m->place[v->id]);
    }
    for (int k = 0; k < n->nout; k++)
        if (m->last[n->out[k]->id] <= at)
            free_slot(m, &m->place[n->out[k]->id]);
}

/* The call of a node along rows: contiguous tensors, and what its kernel prepares for them. */
static void make_call(TileMake *m, TileStep *s, const Node *n)
{
    Call *c = &s->call;
    *c = (Call){.node = n, .nin = n->nin, .nout = n->nout};
    c->in = NEWN(m->a, Tensor, n->nin);
    c->out = NEWN(m->a, Tensor, n->nout);
    for (int i = 0; i < n->nin; i++)
        c->in[i] = dense(&n->in[i]->type);
    for (int k = 0; k < n->nout; k++)
        c->out[k] = dense(&n->out[k]->type);
    kernel_prepare(n->op->rules->kernels, c, m->a);
    s->work = m->p->nbytes_work;
    m->p->nbytes_work += (c->nbytes_work + 63) / 64 * 64;
}

static void add_step(TileMake *m, const Node *n, int at)
{
    FusedShape own;
    TileStep *s = &m->p->step[m->p->nstep];
    s->rows = node_rows(n, &own);
    s->nin = n->nin;
    s->in = NEWN(m->a, TilePlace, n->nin);
    s->out = NEWN(m->a, TilePlace, n->nout);
    if (s->rows)
        make_call(m, s, n);
    else
        CHECK(node_lane(n, &s->lane));
    if (fused_constant(n) && m->p->nelem != 1) {
        TilePlace *to = &m->place[n->out[0]->id];
        s->lane.row(1, s->constant, NULL, NULL, &s->lane.arg);
        *to = (TilePlace){AT_CONSTANT, m->p->nstep++, dtype_size(n->out[0]->type.dtype), false};
        s->out[0] = *to;
        return;
    }
    for (int i = 0; i < n->nin; i++)
        s->in[i] = operand_place(m, s, n, i);
    for (int k = 0; k < n->nout; k++)
        s->out[k] = result_place(m, s, n, k);
    s->leaves = s->out[0].at == AT_RESULT && m->last[n->out[0]->id] <= at;
    for (int i = 0; i < n->nin && !s->rows; i++) {
        const TilePlace *p = &s->in[i];
        s->stretch |= p->by_row && !s->out[0].by_row;
        s->fetch[i] = p->at == AT_OPERAND && !p->by_row && !m->fetched[p->index];
        m->fetched[p->at == AT_OPERAND ? p->index : 0] |= s->fetch[i];
    }
    for (int i = 0; i < n->nin; i++)
        s->slots |= s->in[i].at == AT_SLOT;
    for (int k = 0; k < n->nout; k++)
        s->slots |= s->out[k].at == AT_SLOT;
    free_slots(m, s, n, at);
    m->p->nstep++;
}

/* Tiles of as many elements as fit, whole rows; slots, which are on the stack where they fit. */
static void choose_tile(Tiling *p, int size)
{
    int64_t most = p->row > 1 ? ROWS_TILE : p->far ? FAR_TILE : TILE;
    if (p->nslot[0])
        most = MIN(most, BUFFER / (size * (p->nslot[0] + p->far)) / 64 * 64);
    if (p->nslot[1])
        most = MIN(most, BUFFER / (8 * p->nslot[1]) * p->row);
    p->tile = p->row > 1 ? MAX(most / p->row, 1) * p->row : most;
    p->slot_bytes[0] = (p->tile * size + 63) / 64 * 64;
    p->slot_bytes[1] = (p->tile / p->row * 8 + 63) / 64 * 64;
    p->buffer = (p->nslot[0] + p->far) * p->slot_bytes[0] + p->nslot[1] * p->slot_bytes[1];
    p->nlocal = p->buffer > FUSED_ROOM ? MIN(par_threads(), p->nelem / p->row) : 0;
    p->local = p->nbytes_work;
    p->nbytes_work += p->nlocal * p->buffer;
}

static Tiling *make_tiling(const Call *c, Arena *a)
{
    const Region *r = c->node->region;
    const Graph *g = r->body[MAIN];
    FusedShape shape = fused_shape(c->node);
    Tiling *p = NEW(a, Tiling);
    TileMake m = {.c = c, .a = a, .p = p};
    int count = 0, size = 1;
    m.place = NEWN(a, TilePlace, g->nvalue);
    m.last = NEWN(a, int, g->nvalue);
    m.part = NEWN(a, int, g->nvalue);
    m.fetched = NEWN(a, bool, c->nin + 1);
    for (const Node *n = g->first; n; n = n->next, count++) {
        for (int k = 0; k < n->nout; k++) {
            m.place[n->out[k]->id].at = AT_SLOT;
            size = MAX(size, dtype_size(n->out[k]->type.dtype));
        }
        for (int i = 0; i < n->nin && !n->op->view; i++)
            m.last[fused_base(n->in[i])->id] = count;
    }
    for (int k = 0; k < r->nout; k++) {
        int id = g->out[r->out[k].at[MAIN]].v->id;
        if (tensor_contiguous(&c->out[k]))
            m.place[id] = (TilePlace){AT_RESULT, k, 0, false};
        else
            m.part[id] = k + 1;
    }
    for (int i = 0; i < c->nin; i++)
        size = MAX(size, dtype_size(c->in[i].dtype));
    p->nelem = shape.nelem;
    p->row = MAX(shape.row, 1);
    p->far = p->row == 1 && stream_worth(p->nelem * dtype_size(c->out[0].dtype));
    p->step = NEWN(a, TileStep, count);
    count = 0;
    for (const Node *n = g->first; n; n = n->next, count++)
        if (!n->op->view)
            add_step(&m, n, count);
    choose_tile(p, size);
    return p;
}

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
    return make_tiling(c, get_scratch(ctx))->nbytes_work;
}

static void prepare(Call *c, Arena *a)
{
    Tiling *p = c->state = make_tiling(c, a);
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

static void run_lane(const TileRun *x, const TileStep *s, int64_t n, char *out)
{
    const LaneFn *l = &s->lane;
    const char *in[LANE_OPERANDS] = {0};
    int64_t stride[LANE_OPERANDS] = {0}, row = x->p->row, count = s->out->by_row ? n / row : n;
    for (int i = 0; i < s->nin; i++) {
        in[i] = address(x, &s->in[i]);
        stride[i] = s->in[i].at < AT_WHOLE && !(s->stretch && s->in[i].by_row);
    }
    if (!s->stretch && l->row)
        l->row(count, out, (const void *const *)in, stride, &l->arg);
    else if (!s->stretch)
        l->placed(count, out, (const void *const *)in, &l->arg, x->lo / (s->out->by_row ? row : 1));
    else
        for (int64_t at = 0; at < n; at += row, out += row * s->out->size) {
            l->row(row, out, (const void *const *)in, stride, &l->arg);
            for (int i = 0; i < s->nin; i++)
                in[i] += s->in[i].by_row ? s->in[i].size : stride[i] * row * s->in[i].size;
        }
}

/* The same; the next tile's operands are fetched meanwhile, and results that the body does not read
 * bypass the caches. */
static void run_far(const TileRun *x, const TileStep *s, int64_t n, bool last)
{
    char *out = address(x, s->out), *spare = x->buffer + x->p->buffer - x->p->slot_bytes[0];
    bool past = s->leaves && x->past >> s->out->index & 1;
    for (int i = 0; i < s->nin && !last; i++)
        if (s->fetch[i])
            fetch_ahead(address(x, &s->in[i]), n, n, s->in[i].size);
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
            if (s->rows)
                run_rows(&x, s, n);
            else if (x.p->far)
                run_far(&x, s, n, x.lo + n == hi);
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
    _Alignas(64) char buffer[BUFFER];
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
    (p->buffer > BUFFER ? run_long : run_short)(arg, lo * p->row, hi * p->row);
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

/* What a lane checks before the first element, by operands that are there. */
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
