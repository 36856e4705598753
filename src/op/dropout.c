/* dropout: y = x / (1 - p) where an element is kept, else 0 (whatever x is). native_dropout,
 * ATen's, also gives the mask: true where kept. rand_like: uniform numbers in x's shape, whatever x
 * is; f32 or f64.
 *
 * An element is kept where random_uniform(seed, stream, step, position) >= p (Philox4x32-10, see
 * base.h). position is the row-major index in the logical whole-step tensor: x's shape, in which
 * axis axes[i] has the size extents[i] and x's part of it begins at the i-th offset operand. So the
 * mask depends neither on how the work is cut nor on when it is drawn, and backward, the same op on
 * dy with the same stream, draws the same mask. x has all of an axis without an offset operand; a
 * part of it gets one.
 *
 * Kernel: words are drawn for neighbouring positions at once (draw.c). u >= p is compared in
 * integers: u has 24 bits. */
#include "draw.h"
#include "pointwise.h"

enum { P };                /* of dropout */
enum { AXES, EXTENTS };    /* of place_attrs */
enum { FIRST_OFFSET = 3 }; /* operands: x, seed, step, offsets */

static const AttrField attrs[] = {
    {.name = "p", .kind = ATTR_FLOAT, .required = true},
    {.name = "axes", .kind = ATTR_INTS},
    {.name = "extents", .kind = ATTR_INTS},
    {0},
};

static const AttrField rand_attrs[] = {
    {.name = "axes", .kind = ATTR_INTS},
    {.name = "extents", .kind = ATTR_INTS},
    {0},
};

/* The attributes of a node that say where x lies, the last ones. */
static const Attr *place_attrs(const Node *n)
{
    return n->attr + (node_is(n, OP_rand_like) ? 0 : 1);
}

static void check_axes(const Graph *g, const Node *n)
{
    const Attr *axes = &place_attrs(n)[AXES], *extents = &place_attrs(n)[EXTENTS];
    const Type *x = &n->in[0]->type;
    double whole = 1;
    for (int d = 0; d < x->rank; d++)
        whole *= (double)MAX(x->dim[d], 1);
    if (axes->i != extents->i || axes->i != n->nin - FIRST_OFFSET)
        fail_node(g, n,
                  "expected as many axes as extents and offset operands, found %lld, %lld, %d",
                  (long long)axes->i, (long long)extents->i, n->nin - FIRST_OFFSET);
    for (int i = 0; i < axes->i; i++) {
        int64_t d = axes->ints[i];
        if (d < 0 || d >= x->rank || (i && d <= axes->ints[i - 1]))
            fail_node(g, n, "axes: expected rising axes of %s, found %lld", type_text(g->a, x),
                      (long long)d);
        if (extents->ints[i] < x->dim[d])
            fail_node(g, n, "extents: expected at least %lld for axis %lld, found %lld",
                      (long long)x->dim[d], (long long)d, (long long)extents->ints[i]);
        whole *= (double)extents->ints[i] / (double)MAX(x->dim[d], 1);
    }
    if (whole > 0x1p62)
        fail_node(g, n, "extents: expected at most 2^62 elements in the whole tensor, found %g",
                  whole);
}

static void check_source(const Graph *g, const Node *n)
{
    Type scalar = {.dtype = I64};
    for (int i = 1; i < n->nin; i++)
        need_type(g, n, i, &scalar);
    check_axes(g, n);
}

/* Narrower floats cannot hold the greatest numbers below 1. */
static int rand_infer(const Graph *g, const Node *n, Type *out)
{
    DType d = n->in[0]->type.dtype;
    if (d != F32 && d != F64)
        fail_node(g, n, "operand 0: expected f32 or f64, found %s", dtype_name(d));
    check_source(g, n);
    out[0] = n->in[0]->type;
    return 1;
}

static int infer(const Graph *g, const Node *n, Type *out)
{
    double p = n->attr[P].f;
    need_float(g, n, 0);
    if (!(p >= 0 && p <= 1))
        fail_node(g, n, "p: expected 0 to 1, found %g", p);
    check_source(g, n);
    out[0] = n->in[0]->type;
    out[1] = out[0];
    out[1].dtype = BOOL;
    return n->op->nout;
}

static void diff(Grad *d)
{
    const Node *n = d->n;
    Value **in = NEWN(d->b->g->a, Value *, n->nin);
    memcpy(in, n->in, sizeof *in * (size_t)n->nin);
    in[0] = d->dy[0];
    const Attr *axes = &place_attrs(n)[AXES], *extents = &place_attrs(n)[EXTENTS];
    d->dx[0] = emit_stream(d->b, "dropout", n->nin, in,
                           ATTRS(A_FLOAT("p", n->attr[P].f), A_INTS("axes", axes->i, axes->ints),
                                 A_INTS("extents", extents->i, extents->ints)),
                           n->stream)
                   ->out[0];
}

static Cost cost(const Node *n)
{
    Cost c = pointwise_cost(n, 25); /* ten rounds for four elements */
    c.nwrite += n->nout == 2 ? (double)type_nbytes(&n->out[1]->type) : 0;
    return c;
}

/* Which offset operand belongs to axis d, or -1. */
static int offset_of(const Attr *attr, int d)
{
    for (int i = 0; i < attr[AXES].i; i++)
        if (attr[AXES].ints[i] == d)
            return FIRST_OFFSET + i;
    return -1;
}

static void factors(const Node *n, Factors *f)
{
    const Type *x = &n->in[0]->type;
    for (int d = 0; d < x->rank; d++) {
        int offset = offset_of(place_attrs(n), d);
        if (x->dim[d] == 1 && offset < 0)
            continue;
        int k = factor_new(f, FACTOR_PARALLEL, x->dim[d]);
        f->factor[k].offset = (int8_t)offset;
        f->factor[k].placed = offset < 0;
        axis_add(&f->in[0], d, k);
        for (int i = 0; i < n->nout; i++)
            axis_add(&f->out[i], d, k);
    }
}

/* The list with x at index `at`. */
static void insert_int(Arena *a, Attr *list, int64_t at, int64_t x)
{
    int64_t *longer = NEWN(a, int64_t, list->i + 1);
    for (int64_t i = 0; i <= list->i; i++)
        longer[i] = i == at ? x : list->ints[i - (i > at)];
    list->ints = longer;
    list->i++;
}

/* Tells the node that its part of axis d, of size `whole`, begins at `start`: an offset operand of
 * its own, where the axis has none; operands are in the order of axes. */
static void place_axis(Arena *a, Attr *attr, Value **in, int d, int64_t whole, Value *start)
{
    int at = 0, count = (int)attr[AXES].i;
    while (at < count && attr[AXES].ints[at] < d)
        at++;
    Value **offset = in + FIRST_OFFSET + at;
    memmove(offset + 1, offset, sizeof *in * (size_t)(count - at));
    *offset = start;
    insert_int(a, &attr[AXES], at, d);
    insert_int(a, &attr[EXTENTS], at, whole);
}

static void part_of(Part *p)
{
    const Node *n = p->n;
    Arena *a = p->b->g->a;
    int rank = n->in[0]->type.rank;
    Attr *attr = part_attr(p), *place = attr + (place_attrs(n) - n->attr);
    Value **in = NEWN(a, Value *, n->nin + rank);
    memcpy(in, p->in, sizeof *in * (size_t)n->nin);
    for (int d = 0; d < rank; d++) {
        if (!p->f->in[0].n[d])
            continue;
        int k = p->f->in[0].f[d][0], offset = offset_of(place, d);
        Value *start = offset < 0 ? part_start(p, k) : p->start[k];
        if (start && offset < 0)
            place_axis(a, place, in, d, n->in[0]->type.dim[d], start);
        else if (start)
            in[offset] = emit1(p->b, "add", IN(in[offset], start), NOATTRS);
    }
    part_with(p, attr, FIRST_OFFSET + (int)place[AXES].i, in);
}

/* ---- the mask ---- */

/* Checks that x lies within the whole tensor, by n's operands. Returns 0, or c's failed run. */
static int check_operands(Call *c, const Node *n, const void *const *in)
{
    const Attr *axes = &place_attrs(n)[AXES], *extents = &place_attrs(n)[EXTENTS];
    for (int i = 0; i < axes->i; i++) {
        int64_t offset = *(const int64_t *)in[FIRST_OFFSET + i];
        int64_t most = extents->ints[i] - n->in[0]->type.dim[axes->ints[i]];
        if (offset < 0 || offset > most)
            return run_fail(c, "offset %lld of axis %lld: expected 0 to %lld", (long long)offset,
                            (long long)axes->ints[i], (long long)most);
    }
    return 0;
}

static int check_offsets(Call *c)
{
    const void *in[FIRST_OFFSET + TN_RANK];
    for (int i = FIRST_OFFSET; i < c->nin; i++)
        in[i] = c->in[i].data;
    return check_operands(c, c->node, in);
}

/* The source of a call's positions and words. */
typedef struct MaskDraw {
    DrawKey from;
    uint32_t least; /* kept where word >> 8 is at least this */
    float scale;
    int64_t first;           /* position of x's first element */
    int64_t stride[TN_RANK]; /* what one step along an axis adds to the position */
} MaskDraw;

static MaskDraw draw_of(const Call *c)
{
    const Node *n = c->node;
    const Tensor *x = &c->in[0];
    MaskDraw r = {.from = {(uint64_t)tensor_int(&c->in[1], 0), (uint32_t)n->stream,
                           (uint32_t)tensor_int(&c->in[2], 0)}};
    if (!node_is(n, OP_rand_like)) {
        r.least = (uint32_t)ceil(n->attr[P].f * 0x1p24);
        r.scale = (float)(1 / (1 - n->attr[P].f));
    }
    const Attr *place = place_attrs(n);
    uint64_t first = 0;
    for (int64_t d = x->rank - 1, stride = 1; d >= 0; d--) {
        int offset = offset_of(place, (int)d);
        r.stride[d] = stride;
        if (offset >= 0)
            first += (uint64_t)tensor_int(&c->in[offset], 0) * (uint64_t)stride;
        stride *= offset < 0 ? x->dim[d] : place[EXTENTS].ints[offset - FIRST_OFFSET];
    }
    r.first = (int64_t)(first & INT64_MAX >> 1); /* offsets out of range must not overflow later */
    return r;
}

/* The number of an element. */
static float uniform_at(const MaskDraw *r, int rank, const int64_t *ix)
{
    int64_t position = r->first;
    for (int d = 0; d < rank; d++)
        position += ix[d] * r->stride[d];
    return random_uniform(r->from.seed, r->from.stream, r->from.step, (uint64_t)position);
}

static int rand_ref(Call *c)
{
    const Tensor *y = &c->out[0];
    MaskDraw r = draw_of(c);
    int64_t ix[TN_RANK] = {0};
    if (check_offsets(c))
        return -1;
    if (tensor_nelem(y) == 0)
        return 0;
    do
        tensor_set(y, tensor_index(y, ix), uniform_at(&r, y->rank, ix));
    while (next_index(y->rank, y->dim, ix));
    return 0;
}

static int ref(Call *c)
{
    const Tensor *y = &c->out[0], *x = &c->in[0];
    double p = c->node->attr[P].f;
    MaskDraw r = draw_of(c);
    int64_t ix[TN_RANK] = {0};
    if (check_offsets(c))
        return -1;
    if (tensor_nelem(y) == 0)
        return 0;
    do {
        float u = uniform_at(&r, x->rank, ix);
        double scaled = tensor_get(x, tensor_index(x, ix)) / (1 - p);
        bool kept = (double)u >= p;
        tensor_set(y, tensor_index(y, ix), kept ? scaled : 0);
        if (c->nout == 2)
            tensor_set(&c->out[1], tensor_index(&c->out[1], ix), kept);
    } while (next_index(y->rank, y->dim, ix));
    return 0;
}

/* ---- kernel ---- */

INLINE void keep(int64_t n, void *y, const void *x, int64_t step, const uint32_t *word,
                 const MaskDraw *r, DType d)
{
    uint32_t least = r->least;
    float scale = r->scale;
    if (step == 1)
        INDEPENDENT for (int64_t i = 0; i < n; i++)
        {
            v_store(y, i, word[i] >> 8 >= least ? v_load(x, i, d) * scale : 0.0f, d);
        }
    else
        for (int64_t i = 0; i < n; i++)
            v_store(y, i, word[i] >> 8 >= least ? v_load(x, i * step, d) * scale : 0.0f, d);
}

KERNEL(void, keep_f32,
       (int64_t n, void *y, const void *x, int64_t step, const uint32_t *word, const MaskDraw *r),
       (n, y, x, step, word, r))
{
    keep(n, y, x, step, word, r, F32);
}

KERNEL(void, keep_bf16,
       (int64_t n, void *y, const void *x, int64_t step, const uint32_t *word, const MaskDraw *r),
       (n, y, x, step, word, r))
{
    keep(n, y, x, step, word, r, BF16);
}

KERNEL(void, fill_mask, (int64_t n, uint8_t *mask, const uint32_t *word, uint32_t least),
       (n, mask, word, least))
{
    for (int64_t i = 0; i < n; i++)
        mask[i] = word[i] >> 8 >= least;
}

typedef struct DropoutJob {
    const Call *c;
    MaskDraw draw;
    Walk walk; /* y, x, and the positions as a third tensor */
} DropoutJob;

static void make_walk(DropoutJob *job)
{
    const Call *c = job->c;
    Tensor in[2] = {c->in[0], c->in[0]};
    memcpy(in[1].stride, job->draw.stride, sizeof in[1].stride);
    walk_make(&job->walk, &c->out[0], 2, in);
}

/* Where positions are not neighbours: an axis of size 1 is a part of a larger one. */
static void row_apart(const MaskDraw *r, int64_t n, void *y, uint8_t *mask, const void *x, DType d,
                      int64_t position, const int64_t *stride)
{
    for (int64_t i = 0; i < n; i++) {
        uint64_t at = (uint64_t)(position + i * stride[2]);
        float u = random_uniform(r->from.seed, r->from.stream, r->from.step, at);
        bool kept = u * 0x1p24f >= (float)r->least;
        v_store(y, i, kept ? v_load(x, i * stride[1], d) * r->scale : 0.0f, d);
        if (mask)
            mask[i] = kept;
    }
}

static void row(void *arg, int64_t n, const int64_t *at, const int64_t *stride)
{
    const DropoutJob *job = arg;
    DType d = job->c->in[0].dtype;
    int64_t size = dtype_size(d);
    char *y = job->c->out[0].data + at[0] * size;
    const char *x = job->c->in[0].data + at[1] * size;
    uint8_t *mask = job->c->nout == 2 ? (uint8_t *)job->c->out[1].data + at[0] : NULL;
    uint64_t position = (uint64_t)(job->draw.first + at[2]);
    uint32_t drawn[DRAWN];
    if (stride[2] != 1 && n > 1) {
        row_apart(&job->draw, n, y, mask, x, d, (int64_t)position, stride);
        return;
    }
    while (n > 0) {
        int64_t m = MIN(n, (int64_t)(DRAWN - position % 4));
        const uint32_t *word = draw_words(&job->draw.from, position, (int)m, drawn);
        (d == F32 ? keep_f32 : keep_bf16)(m, y, x, stride[1], word, &job->draw);
        if (mask) {
            fill_mask(m, mask, word, job->draw.least);
            mask += m;
        }
        position += (uint64_t)m;
        y += m * size;
        x += m * stride[1] * size;
        n -= m;
    }
}

static void part(void *arg, int64_t lo, int64_t hi)
{
    walk_part(&((DropoutJob *)arg)->walk, lo, hi, row, arg);
}

/* Elements from position `at` on, as a part of whole tensors that would begin before them. */
static void placed(int64_t n, void *to, const void *const *in, const void *arg, int64_t at)
{
    const Node *node = *(const Node *const *)arg;
    Tensor y = {.dtype = node->in[0]->type.dtype, .rank = node->in[0]->type.rank}, x[LANE_OPERANDS];
    Call c = {.node = node, .in = x, .out = &y, .nin = node->nin, .nout = 1};
    memcpy(y.dim, node->in[0]->type.dim, sizeof y.dim);
    tensor_fill_strides(&y);
    y.data = (char *)to - at * dtype_size(y.dtype);
    x[0] = y;
    x[0].data = (char *)in[0] - at * dtype_size(y.dtype);
    for (int i = 1; i < node->nin; i++)
        x[i] = (Tensor){.data = (char *)in[i], .dtype = I64};
    DropoutJob job = {.c = &c, .draw = draw_of(&c)};
    make_walk(&job);
    walk_part(&job.walk, at, at + n, row, &job);
}

static bool accepts(const Call *c)
{
    return c->in[0].dtype == F32 || c->in[0].dtype == BF16;
}

/* A body of one element could make an offset itself, which could not be checked before it runs. */
static bool lane(const Call *c, LaneFn *l)
{
    l->placed = placed;
    l->check = c->nin > FIRST_OFFSET ? check_operands : NULL;
    l->arg.node = c->node;
    return accepts(c) && !(l->check && type_nelem(&c->node->in[0]->type) == 1);
}

static int run_parts(Call *c, void (*fn)(void *arg, int64_t lo, int64_t hi))
{
    if (check_offsets(c))
        return -1;
    DropoutJob job = {.c = c, .draw = draw_of(c)};
    make_walk(&job);
    walk_par(job.walk.nelem, fn, &job);
    return 0;
}

static int run(Call *c)
{
    return run_parts(c, part);
}

static const Kernel kernels[] = {{.name = "rows", .accepts = accepts, .run = run}, {0}};

/* ---- uniform numbers ---- */

KERNEL(void, scale_words, (int64_t n, float *y, const uint32_t *word), (n, y, word))
{
    for (int64_t i = 0; i < n; i++)
        y[i] = (float)(word[i] >> 8) * 0x1p-24f;
}

static void rand_row(void *arg, int64_t n, const int64_t *at, const int64_t *stride)
{
    const DropoutJob *job = arg;
    const DrawKey *from = &job->draw.from;
    float *y = (float *)(void *)job->c->out[0].data + at[0];
    uint64_t position = (uint64_t)(job->draw.first + at[2]);
    uint32_t drawn[DRAWN];
    if (stride[2] != 1) {
        for (int64_t i = 0; i < n; i++)
            y[i] = random_uniform(from->seed, from->stream, from->step,
                                  position + (uint64_t)(i * stride[2]));
        return;
    }
    for (int64_t m; n > 0; n -= m, y += m, position += (uint64_t)m) {
        m = MIN(n, (int64_t)(DRAWN - position % 4));
        scale_words(m, y, draw_words(from, position, (int)m, drawn));
    }
}

static void rand_part(void *arg, int64_t lo, int64_t hi)
{
    walk_part(&((DropoutJob *)arg)->walk, lo, hi, rand_row, arg);
}

static int rand_run(Call *c)
{
    return run_parts(c, rand_part);
}

static bool rand_accepts(const Call *c)
{
    return c->in[0].dtype == F32;
}

static const Kernel rand_kernels[] = {{.name = "rows", .accepts = rand_accepts, .run = rand_run},
                                      {0}};

/* No gradient: x is not read. */
static void rand_diff(Grad *d)
{
    (void)d;
}

const OpRules op_rand_like = {
    .math = "y = uniform(seed, stream, step, position), of x's shape",
    .example = "f32[2, 8, 4] i64[] i64[] i64[] axes=[0] extents=[16] stream=0",
    .attrs = rand_attrs,
    .infer = rand_infer,
    .diff = rand_diff,
    .cost = cost,
    .factors = factors,
    .part = part_of,
    .kernels = rand_kernels,
    .ref = rand_ref,
};

const OpRules op_dropout = {
    .math = "y = x / (1 - p) where uniform(seed, stream, step, position) >= p, else 0",
    .example = "f32[2, 8, 4] i64[] i64[] i64[] p=0.1 axes=[0] extents=[16] stream=0",
    .attrs = attrs,
    .infer = infer,
    .diff = diff,
    .cost = cost,
    .factors = factors,
    .part = part_of,
    .inplace = {1},
    .lane = lane,
    .kernels = kernels,
    .ref = ref,
};

const OpRules op_native_dropout = {
    .math = "mask = uniform(seed, stream, step, position) >= p; y = x / (1 - p) where mask, else 0",
    .example = "f32[2, 8, 4] i64[] i64[] i64[] p=0.1 axes=[0] extents=[16] stream=0",
    .attrs = attrs,
    .infer = infer,
    .diff = diff,
    .cost = cost,
    .factors = factors,
    .part = part_of,
    .inplace = {1},
    .kernels = kernels,
    .ref = ref,
    .alias = "aten.native_dropout.default",
};
