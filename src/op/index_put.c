/* index_put.c: what ops that read and write by index tensors share; see index.h.
 *
 * Several elements may be put to one place. They are put in row-major order of their positions, by
 * one thread each place, so that the last one stays, or the sum is formed in a fixed order: the
 * same bits for any number of threads, without atomics. */
#include "index.h"

#include "pointwise.h"

void need_index(const Graph *g, const Node *n, int i)
{
    DType d = n->in[i]->type.dtype;
    if (d == BOOL || d == U8)
        fail_node(g, n,
                  "operand %d: expected i64 or i32, found a mask (%s): how many elements it "
                  "selects depends on the data",
                  i, dtype_name(d));
    if (d != I64 && d != I32)
        fail_node(g, n, "operand %d: expected i64 or i32, found %s", i, dtype_name(d));
}

int check_index(Call *c, int i, int64_t least, int64_t size)
{
    const Tensor *t = &c->in[i];
    Rows at = rows_of(t, t->rank);
    int64_t count = tensor_nelem(t);
    for (int64_t p = 0; p < count; p++) {
        int64_t id = index_at(t, row_offset(&at, p));
        if (id < least || id >= size)
            return run_fail(c, "index %lld at position %lld of operand %d: expected %lld to %lld",
                            (long long)id, (long long)p, i, (long long)least, (long long)size - 1);
    }
    return 0;
}

Tensor tensor_axes(const Tensor *t, int from, int to)
{
    Tensor s = {.data = t->data, .dtype = t->dtype, .rank = to - from};
    memcpy(s.dim, t->dim + from, sizeof *s.dim * (size_t)s.rank);
    memcpy(s.stride, t->stride + from, sizeof *s.stride * (size_t)s.rank);
    return s;
}

Tensor tensor_without(const Tensor *t, int axis)
{
    Tensor s = tensor_axes(t, 0, axis);
    for (int d = axis + 1; d < t->rank; d++, s.rank++) {
        s.dim[s.rank] = t->dim[d];
        s.stride[s.rank] = t->stride[d];
    }
    return s;
}

/* ---- parts of a sum ---- */

void put_factor(const Node *n, Factors *f, int factor)
{
    if (!node_is_full(n->in[0]->def, 0))
        factor_partials(f, factor, 1, FACTOR_SUM, FACTOR_SUM);
}

void put_part(Part *p, int src)
{
    int nin = p->n->nin;
    Value **in = NEWN(p->b->g->a, Value *, nin);
    Type t = p->in[0]->type;
    memcpy(in, p->in, sizeof *in * (size_t)nin);
    t.dtype = dtype_size(t.dtype) == 2 ? F32 : t.dtype;
    if (p->partials) {
        in[0] = emit_zeros(p->b, &t);
        in[src] = emit_cast(p->b, in[src], t.dtype);
    }
    part_with(p, NULL, nin, in);
}

void put_finish(Part *p, Value *const *merged)
{
    Value *x = emit_cast(p->b, p->in[0], merged[0]->type.dtype);
    Value *y = emit1(p->b, "add", IN(x, merged[0]), NOATTRS);
    p->out[0] = emit_cast(p->b, y, p->n->out[0]->type.dtype);
}

/* ---- begin and end ---- */

static bool is_wide(const Call *c, bool add)
{
    return add && dtype_size(c->out[0].dtype) == 2;
}

int64_t put_nwork(const Call *c, bool add)
{
    return is_wide(c, add) ? (int64_t)sizeof(float) * tensor_nelem(&c->out[0]) : 0;
}

INLINE float half_get(const char *x, int64_t i, DType d)
{
    uint16_t bits = ((const uint16_t *)(const void *)x)[i];
    return d == BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

typedef struct RoundedPut {
    float *wide;
    char *narrow;
    DType dtype;
} RoundedPut;

KERNEL(void, widen_bf16, (float *wide, const uint16_t *y, int64_t n), (wide, y, n))
{
    for (int64_t i = 0; i < n; i++)
        wide[i] = v_bf16_to_f32(y[i]);
}

KERNEL(void, narrow_bf16, (uint16_t * y, const float *wide, int64_t n), (y, wide, n))
{
    for (int64_t i = 0; i < n; i++)
        y[i] = v_f32_to_bf16(wide[i]);
}

static void widen(void *arg, int64_t lo, int64_t hi)
{
    const RoundedPut *r = arg;
    const uint16_t *y = (const uint16_t *)(const void *)r->narrow;
    if (r->dtype == BF16)
        widen_bf16(r->wide + lo, y + lo, hi - lo);
    else
        for (int64_t i = lo; i < hi; i++)
            r->wide[i] = f16_to_f32(y[i]);
}

static void narrow(void *arg, int64_t lo, int64_t hi)
{
    const RoundedPut *r = arg;
    uint16_t *y = (uint16_t *)(void *)r->narrow;
    if (r->dtype == BF16)
        narrow_bf16(y + lo, r->wide + lo, hi - lo);
    else
        for (int64_t i = lo; i < hi; i++)
            y[i] = f32_to_f16(r->wide[i]);
}

Target put_begin(Call *c, bool add, char *work)
{
    Tensor *y = &c->out[0];
    Target t = {y->data, y->dtype, add};
    if (y->data != c->in[0].data)
        strided_copy(y, &c->in[0]);
    if (is_wide(c, add)) {
        RoundedPut r = {(float *)(void *)work, y->data, y->dtype};
        par_for(tensor_nelem(y), 1 << 14, widen, &r);
        t.data = work;
    }
    return t;
}

void put_end(Call *c, const Target *t)
{
    RoundedPut r = {(float *)(void *)t->data, c->out[0].data, t->dtype};
    if (is_wide(c, t->add))
        par_for(tensor_nelem(&c->out[0]), 1 << 14, narrow, &r);
}

/* ---- runs ---- */

#define EACH(statement)             \
    for (int64_t i = 0; i < n; i++) \
    statement

INLINE void assign(char *y, int64_t ts, const char *v, int64_t vs, int64_t n, size_t size)
{
    EACH(memcpy(y + i * ts * (int64_t)size, v + i * vs * (int64_t)size, size));
}

static void assign_run(char *y, int64_t ts, const char *v, int64_t vs, int64_t n, int size)
{
    if (ts == 1 && vs == 1)
        memcpy(y, v, (size_t)(n * size));
    else
        switch (size) {
        case 1: assign(y, ts, v, vs, n, 1); break;
        case 2: assign(y, ts, v, vs, n, 2); break;
        case 4: assign(y, ts, v, vs, n, 4); break;
        default: assign(y, ts, v, vs, n, 8); break;
        }
}

/* Integers wrap, as in ATen; bool is a logical or. */
#define ADD(T, U)                                           \
    do {                                                    \
        T *y = (T *)(void *)t->data + to;                   \
        const T *x = (const T *)(const void *)v;            \
        EACH(y[i * ts] = (T)((U)y[i * ts] + (U)x[i * vs])); \
    } while (0)

static void add_run(const Target *t, int64_t to, int64_t ts, const char *v, int64_t vs, int64_t n)
{
    switch (t->dtype) {
    case F64: ADD(double, double); break;
    case F32: ADD(float, float); break;
    case I64: ADD(int64_t, uint64_t); break;
    case I32: ADD(int32_t, uint32_t); break;
    case U8: ADD(uint8_t, unsigned); break;
    case BOOL: EACH(t->data[to + i * ts] |= v[i * vs]); break;
    default: EACH(((float *)(void *)t->data)[to + i * ts] += half_get(v, i * vs, t->dtype)); break;
    }
}

void put_run(const Target *t, int64_t to, int64_t ts, const char *v, int64_t vs, int64_t n)
{
    int size = dtype_size(t->dtype);
    if (t->add)
        add_run(t, to, ts, v, vs, n);
    else
        assign_run(t->data + to * size, ts, v, vs, n, size);
}

/* ---- reference ---- */

static void copy_operand(Call *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    for (int64_t i = 0, n = tensor_nelem(x); i < n && x->data != y->data; i++)
        move_element(y, tensor_linear(y, i), x, tensor_linear(x, i));
}

/* The sum of y's element and one of src, integers exact. */
static void ref_add(const Tensor *y, int64_t to, const Tensor *src, int64_t from)
{
    int64_t whole = (int64_t)((uint64_t)tensor_int(y, to) + (uint64_t)tensor_int(src, from));
    if (dtype_float(y->dtype))
        tensor_set(y, to, tensor_get(y, to) + tensor_get(src, from));
    else
        tensor_set_int(y, to, y->dtype == BOOL ? whole != 0 : whole);
}

/* For 16 bits, rounded once: adds every element that goes where p goes, unless p is not the first.
 */
static void ref_add_all(Call *c, const Tensor *src, int64_t p,
                        int64_t (*target)(const Call *c, int64_t p))
{
    const Tensor *y = &c->out[0];
    int64_t to = target(c, p);
    double sum = tensor_get(y, to);
    for (int64_t q = 0, n = tensor_nelem(src); q < n; q++) {
        if (target(c, q) != to)
            continue;
        if (q < p)
            return;
        sum += tensor_get(src, tensor_linear(src, q));
    }
    tensor_set(y, to, sum);
}

int put_ref(Call *c, bool add, const Tensor *src, int64_t (*target)(const Call *c, int64_t p))
{
    const Tensor *y = &c->out[0];
    copy_operand(c);
    for (int64_t p = 0, n = tensor_nelem(src); p < n; p++)
        if (is_wide(c, add))
            ref_add_all(c, src, p, target);
        else if (add)
            ref_add(y, target(c, p), src, tensor_linear(src, p));
        else
            move_element(y, target(c, p), src, tensor_linear(src, p));
    return 0;
}

/* ---- gradients ---- */

Value *emit_positions(Build *b, const Type *t)
{
    Value *flat = emit1(b, "arange", 0, NULL, ATTRS(A_INT("end", type_nelem(t))));
    return emit1(b, "view", IN(flat), ATTRS(A_INTS("size", t->rank, t->dim)));
}

Value *emit_kept(Build *b, Value *kept, Value *positions, Value *dy)
{
    Value *same = emit1(b, "eq", IN(kept, positions), NOATTRS);
    return emit1(b, "where", IN(same, dy, emit_full(b, 0, dy->type.dtype)), NOATTRS);
}
