/* Makes the tiling of a body of `fused`: where each node's values are while a tile is worked on,
 * how long a tile is, and the buffer that its slots take. */
#include "fused_tiles.h"
#include "rows.h"

enum {
    TILE = 1024,    /* elements, where the slots then fit into the buffer */
    FAR_TILE = 512, /* the same where no cache holds the arrays: what is fetched ahead at once */
    ROWS_TILE =
        16384,      /* the same of rows: as long a run of each operand as the second cache holds */
    NEAR = 1 << 20, /* bytes of a result from which on operands are fetched ahead */
    RUN = 32,       /* elements from which on a broadcast operand is read run by run */
    SLOTS = FUSED_MOST * ROW_RESULTS + ROW_OPERANDS,
};

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

/* Whether a lane reads x, which broadcasts to shape t, in long runs: of one element again and
 * again, or of neighbours. */
static bool has_runs(const TileStep *s, const Tensor *x, const Type *t)
{
    Tensor shape = dense(t);
    Walk w;
    if (s->rows || !s->lane.row || tensor_nelem(x) >= type_nelem(t))
        return false;
    walk_make(&w, &shape, 1, x);
    return w.dim[w.rank - 1] >= RUN && (uint64_t)w.stride[1][w.rank - 1] <= 1;
}

/* A tile's elements of operand i as a value of shape t: where it lies, or a copy. */
static TilePlace load(TileMake *m, TileStep *s, int i, const Type *t)
{
    const Tensor *x = &m->c->in[i];
    TilePlace p = {AT_OPERAND, i, dtype_size(x->dtype), type_nelem(t) != m->p->nelem};
    if (tensor_nelem(x) == 1) {
        p = (TilePlace){AT_WHOLE, i, p.size, false};
    } else if (!p.by_row && has_runs(s, x, t)) {
        p.at = AT_RUNS;
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

/* The walk over a lane's result and operands, if one of these has runs or an element for each row.
 */
static Walk *runs_of(const TileMake *m, const TileStep *s, const Node *n)
{
    Tensor y = dense(&n->out[0]->type), in[LANE_OPERANDS];
    const Tensor one = {.rank = 0};
    bool found = false;
    for (int i = 0; i < s->nin; i++) {
        const TilePlace *p = &s->in[i];
        found |= p->at == AT_RUNS || (p->by_row && !s->out[0].by_row);
        in[i] = p->at == AT_RUNS  ? m->c->in[p->index]
                : p->at > AT_RUNS ? one
                : p->by_row       ? dense(&n->in[i]->type)
                                  : y;
    }
    Walk *w = found ? NEW(m->a, Walk) : NULL;
    if (w)
        walk_make(w, &y, s->nin, in);
    return w;
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
    s->runs = s->rows ? NULL : runs_of(m, s, n);
    for (int i = 0; i < n->nin; i++) {
        const TilePlace *p = &s->in[i];
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
        most = MIN(most, TILE_BUFFER / (size * (p->nslot[0] + p->far)) / 64 * 64);
    if (p->nslot[1])
        most = MIN(most, TILE_BUFFER / (8 * p->nslot[1]) * p->row);
    p->tile = p->row > 1 ? MAX(most / p->row, 1) * p->row : most;
    p->slot_bytes[0] = (p->tile * size + 63) / 64 * 64;
    p->slot_bytes[1] = (p->tile / p->row * 8 + 63) / 64 * 64;
    p->buffer = (p->nslot[0] + p->far) * p->slot_bytes[0] + p->nslot[1] * p->slot_bytes[1];
    p->nlocal = p->buffer > FUSED_ROOM ? MIN(par_threads(), p->nelem / p->row) : 0;
    p->local = p->nbytes_work;
    p->nbytes_work += p->nlocal * p->buffer;
}

Tiling *tiling_make(const Call *c, Arena *a)
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
    p->ahead = p->nelem * dtype_size(c->out[0].dtype) >= NEAR;
    p->far = p->row == 1 && stream_worth(p->nelem * dtype_size(c->out[0].dtype));
    p->step = NEWN(a, TileStep, count);
    count = 0;
    for (const Node *n = g->first; n; n = n->next, count++)
        if (!n->op->view)
            add_step(&m, n, count);
    choose_tile(p, size);
    return p;
}
