/* Tiles of attention: sizes, the causal mask, and the products and transposes of tiles in f32, for
 * each instruction set (flash_block.h). */
#include "flash_tile.h"

#include "../op/rows.h"

#include <math.h>

/* ---- sizes ---- */

const AttrField flash_attrs[] = {{.name = "causal", .kind = ATTR_BOOL, .i = 1},
                                 {.name = "scale", .kind = ATTR_FLOAT, .optional = true},
                                 {0}};

/* What scores are scaled in. */
static DType scale_dtype(const Type *q)
{
    return q->dtype == F64 ? F64 : F32;
}

static void check_heads(const Graph *g, const Node *n, const Type *q, const Type *k, int at)
{
    if (k->dim[0] != q->dim[0] || k->dim[3] != q->dim[3])
        fail_node(g, n, "operand %d: expected batch %lld and head size %lld as in %s, found %s", at,
                  (long long)q->dim[0], (long long)q->dim[3], type_text(g->a, q),
                  type_text(g->a, k));
    if (k->dim[2] < 1 || q->dim[2] % k->dim[2])
        fail_node(g, n, "operand %d: expected a number of heads that divides %lld, found %s", at,
                  (long long)q->dim[2], type_text(g->a, k));
    if (k->dim[1] < 1 || k->dim[3] < 1)
        fail_node(g, n, "operand %d: expected a key and a head size of at least 1, found %s", at,
                  type_text(g->a, k));
}

Flash flash_check(const Graph *g, const Node *n, int first)
{
    const Type *q = &n->in[first]->type, *k = &n->in[first + 1]->type;
    for (int i = first; i < first + 3; i++) {
        need_float(g, n, i);
        need_rank(g, n, i, 4, 4);
        need_dtype(g, n, i, q->dtype);
    }
    check_heads(g, n, q, k, first + 1);
    need_type(g, n, first + 2, k);
    if (n->attr[FLASH_CAUSAL].i && k->dim[1] < q->dim[1])
        fail_node(g, n, "operand %d: causal attention of %lld queries needs as many keys, found %s",
                  first + 1, (long long)q->dim[1], type_text(g->a, k));
    Flash f = flash_of(n, first);
    if (!isfinite(f.scale))
        fail_node(g, n, "scale: expected a number that %s has, found %g",
                  dtype_name(scale_dtype(q)), n->attr[FLASH_SCALE].f);
    return f;
}

Flash flash_of(const Node *n, int first)
{
    const int64_t *q = n->in[first]->type.dim, *k = n->in[first + 1]->type.dim;
    const Attr *given = &n->attr[FLASH_SCALE];
    double scale = given->absent ? 1 / sqrt((double)q[3]) : given->f;
    if (!given->absent && scale_dtype(&n->in[first]->type) == F32)
        scale = (double)(float)scale;
    return (Flash){.batch = q[0],
                   .queries = q[1],
                   .keys = k[1],
                   .heads = q[2],
                   .group = q[2] / k[2],
                   .size = q[3],
                   .causal = n->attr[FLASH_CAUSAL].i,
                   .offset = k[1] - q[1],
                   .scale = scale,
                   .turn = (scale > 0) - (scale < 0),
                   .above = scale == 0 ? 1 : fabs(scale)};
}

int64_t flash_seen(const Flash *f, int64_t query)
{
    return f->causal ? query + f->offset + 1 : f->keys;
}

int flash_place(Call *c, Flash *f)
{
    if (c->nin < 4 || flash_mask(c, 3))
        return 0;
    int64_t position = tensor_int(&c->in[3], 0), most = f->keys - f->queries;
    if (position < 0 || position > most)
        return run_fail(c, "position %lld: expected 0 to %lld", (long long)position,
                        (long long)most);
    f->offset = position;
    return 0;
}

double flash_pairs(const Flash *f)
{
    double t = (double)f->queries;
    double each = f->causal ? t * ((double)f->offset + (t + 1) / 2) : t * (double)f->keys;
    return (double)(f->batch * f->heads) * each;
}

Type flash_lse_type(const Graph *g, const Node *n, int first)
{
    Flash f = flash_check(g, n, first);
    return type_make(stat_dtype(n->in[first]->type.dtype), 3,
                     (const int64_t[]){f.batch, f.heads, f.queries});
}

bool flash_accepts(const Call *c, int count)
{
    DType d = c->in[0].dtype;
    for (int i = 0; i < c->nin; i++)
        if (i < count ? c->in[i].dtype != d : c->in[i].dtype == F64 || c->in[i].dtype == F16)
            return false;
    for (int i = 0; i < count; i++)
        if (c->in[i].dim[3] != 1 && c->in[i].stride[3] != 1)
            return false;
    for (int k = 0; k < c->nout; k++)
        if (c->out[k].rank == 4 && c->out[k].dim[3] != 1 && c->out[k].stride[3] != 1)
            return false;
    return d == F32 || d == BF16;
}

void flash_check_mask(const Graph *g, const Node *n, int first, int at)
{
    Flash f = flash_of(n, first);
    const Type *mask = &n->in[at]->type;
    Type want = type_make(mask->dtype, 4, (int64_t[]){f.batch, f.heads, f.queries, f.keys});
    if (!widens(n->in[first]->type.dtype, mask->dtype))
        need_dtype(g, n, at, n->in[first]->type.dtype);
    bool fits = mask->rank == 4;
    for (int d = 0; d < 4 && fits; d++)
        fits = mask->dim[d] == 1 || mask->dim[d] == want.dim[d];
    if (!fits)
        fail_node(g, n, "operand %d: expected a mask %s, or 1 in place of any size, found %s", at,
                  type_text(g->a, &want), type_text(g->a, mask));
}

bool flash_has_mask(const Node *n, int at)
{
    return at < n->nin && dtype_float(n->in[at]->type.dtype);
}

const Tensor *flash_mask(const Call *c, int at)
{
    return flash_has_mask(c->node, at) ? &c->in[at] : NULL;
}

/* The strides of a mask, 0 where it is broadcast. */
static void mask_strides(const Tensor *mask, int64_t *stride)
{
    for (int d = 0; d < 4; d++)
        stride[d] = mask->dim[d] == 1 ? 0 : mask->stride[d];
}

double flash_mask_at(const Tensor *mask, int64_t b, int64_t h, int64_t query, int64_t key)
{
    int64_t s[4];
    mask_strides(mask, s);
    return tensor_get(mask, b * s[0] + h * s[1] + query * s[2] + key * s[3]);
}

void flash_axes(Axes *x, int batch, int row, int head, int member, int size)
{
    axis_add(x, 0, batch);
    axis_add(x, 1, row);
    axis_add(x, 2, head);
    if (member != NO_FACTOR)
        axis_add(x, 2, member);
    axis_add(x, 3, size);
}

void flash_lse_axes(Axes *x, int batch, int head, int member, int query)
{
    axis_add(x, 0, batch);
    axis_add(x, 1, head);
    axis_add(x, 1, member);
    axis_add(x, 2, query);
}

void flash_mask_axes(Axes *x, const Type *mask, int batch, int head, int member, int query, int key)
{
    if (mask->dim[0] != 1)
        axis_add(x, 0, batch);
    if (mask->dim[1] != 1) {
        axis_add(x, 1, head);
        axis_add(x, 1, member);
    }
    if (mask->dim[2] != 1)
        axis_add(x, 2, query);
    if (mask->dim[3] != 1)
        axis_add(x, 3, key);
}

double flash_dot(const Tensor *x, int64_t at, const Tensor *y, int64_t other, int64_t size)
{
    double sum = 0;
    for (int64_t d = 0; d < size; d++)
        sum += tensor_get(x, at + d * x->stride[3]) * tensor_get(y, other + d * y->stride[3]);
    return sum;
}

/* ---- rows in f32 ---- */

KERNEL(void, widen, (float *restrict to, const uint16_t *from, int64_t n), (to, from, n))
{
    for (int64_t i = 0; i < n; i++)
        to[i] = v_bf16_to_f32(from[i]);
}

KERNEL(void, narrow, (uint16_t *restrict to, const float *from, int64_t n), (to, from, n))
{
    for (int64_t i = 0; i < n; i++)
        to[i] = v_f32_to_bf16(from[i]);
}

const float *flash_load(const Tensor *t, int64_t b, int64_t i, int64_t h, int64_t n, float *buf,
                        int64_t *apart)
{
    int64_t size = t->dim[3];
    const char *rows = element(t, flash_at(t, b, i, h));
    *apart = t->dtype == F32 ? t->stride[1] : size;
    if (t->dtype == F32)
        return (const float *)(const void *)rows;
    for (int64_t j = 0; j < n; j++)
        widen(buf + j * size, (const uint16_t *)(const void *)rows + j * t->stride[1], size);
    return buf;
}

void flash_store(const Tensor *t, int64_t b, int64_t i, int64_t h, int64_t n, const float *rows,
                 int64_t apart)
{
    uint16_t *to = (uint16_t *)(void *)t->data + flash_at(t, b, i, h);
    for (int64_t j = 0; j < n; j++)
        narrow(to + j * t->stride[1], rows + j * apart, t->dim[3]);
}

/* ---- tiles ---- */

Tiles flash_tiles(int64_t queries)
{
    int64_t count = (queries + TILE_QUERIES - 1) / TILE_QUERIES;
    int64_t width = round_lanes((queries + count - 1) / MAX(count, 1));
    return (Tiles){count ? (queries + width - 1) / width : 0, width};
}

void tile_mask(const Flash *f, float *s, int64_t key0, int64_t nkeys, int64_t query0, int64_t lanes)
{
    for (int64_t j = 0; j < nkeys && f->causal; j++) {
        int64_t blind = MIN(lanes, key0 + j - f->offset - query0);
        for (int64_t i = 0; i < blind; i++)
            s[j * lanes + i] = -INFINITY;
    }
    for (int64_t i = nkeys * lanes; i < (nkeys + 3) / 4 * 4 * lanes; i++)
        s[i] = -INFINITY;
}

void tile_add_mask(const Tensor *mask, float *s, int64_t b, int64_t h, int64_t key0, int64_t nkeys,
                   int64_t query0, int64_t n, int64_t lanes)
{
    int64_t stride[4];
    mask_strides(mask, stride);
    const char *from =
        mask->data + (b * stride[0] + h * stride[1] + query0 * stride[2] + key0 * stride[3]) *
                         dtype_size(mask->dtype);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < nkeys; j++)
            s[j * lanes + i] += v_load(from, i * stride[2] + j * stride[3], mask->dtype);
}

void flash_add_mask(const Tensor *mask, float *s, int64_t apart, float scale, int64_t b, int64_t h,
                    int64_t query, int64_t key0, int64_t nkeys)
{
    int64_t stride[4];
    mask_strides(mask, stride);
    const char *from = element(mask, b * stride[0] + h * stride[1] + query * stride[2]);
    for (int64_t j = 0; j < nkeys; j++)
        s[j * apart] = scale * s[j * apart] + v_load(from, (key0 + j) * stride[3], mask->dtype);
}

/* ---- products ---- */

/* Vectors wider than the instruction set's are slow, narrower ones too: one variant for each. */
#if defined(TN_X86) && !defined(__clang__)
#define X86_VARIANTS 1
#define LANES        16
#define ROWS         8
#define COLUMNS      3
#define NAME(x)      x##16
#define TARGET       __attribute__((target("arch=x86-64-v4"), optimize("fp-contract=fast")))
#include "flash_block.h"

#define LANES   8
#define ROWS    4
#define COLUMNS 3
#define NAME(x) x##8
#define TARGET  __attribute__((target("arch=x86-64-v3"), optimize("fp-contract=fast")))
#include "flash_block.h"
#endif

#define LANES   4
#define ROWS    4
#define COLUMNS 2
#define NAME(x) x##4
#define TARGET
#include "flash_block.h"

bool tile_multiply_by(int lanes, const TileProduct *x)
{
#ifdef X86_VARIANTS
    if (lanes == 16 && isa_level() >= ISA_AVX512) {
        multiply16(x);
        return true;
    }
    if (lanes == 8 && isa_level() >= ISA_AVX2) {
        multiply8(x);
        return true;
    }
#endif
    if (lanes == 4)
        multiply4(x);
    return lanes == 4;
}

void tile_multiply(const TileProduct *x)
{
    for (int lanes = 16; !tile_multiply_by(lanes, x);)
        lanes /= 2;
}

/* ---- transposes ---- */

typedef float Quad __attribute__((vector_size(16), aligned(4), may_alias));

/* to[0..3][0..3] = scale * transposed from[0..3][0..3] */
INLINE void transpose4(float *to, int64_t ldto, const float *from, int64_t ldfrom, float scale)
{
    Quad r0 = *(const Quad *)from, r1 = *(const Quad *)(from + ldfrom);
    Quad r2 = *(const Quad *)(from + 2 * ldfrom), r3 = *(const Quad *)(from + 3 * ldfrom);
    Quad low01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5);
    Quad low23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
    Quad high01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
    Quad high23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
    *(Quad *)to = scale * __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
    *(Quad *)(to + ldto) = scale * __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
    *(Quad *)(to + 2 * ldto) = scale * __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
    *(Quad *)(to + 3 * ldto) = scale * __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
}

void tile_transpose(float *to, int64_t ldto, int64_t width, const float *from, int64_t ldfrom,
                    int64_t rows, int64_t columns, float scale)
{
    int64_t rows4 = rows & ~(int64_t)3, columns4 = columns & ~(int64_t)3;
    for (int64_t i = 0; i < rows4; i += 4)
        for (int64_t j = 0; j < columns4; j += 4)
            transpose4(to + j * ldto + i, ldto, from + i * ldfrom + j, ldfrom, scale);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = i < rows4 ? columns4 : 0; j < columns; j++)
            to[j * ldto + i] = scale * from[i * ldfrom + j];
    for (int64_t j = 0; j < columns && rows < width; j++)
        for (int64_t i = rows; i < width; i++)
            to[j * ldto + i] = 0;
}
