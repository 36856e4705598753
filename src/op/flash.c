/* Attributes, sizes, masks, factors and scores, which the rules and references of flash_attention
 * and flash_attention_backward share. */
#include "flash.h"
#include "rows.h"

#include <math.h>

const AttrField flash_attrs[] = {{.name = "causal", .kind = ATTR_BOOL, .i = 1},
                                 {.name = "scale", .kind = ATTR_FLOAT, .optional = true},
                                 {0}};

/* ---- sizes ---- */

/* The dtype in which scores are scaled. */
static DType scale_dtype(DType q)
{
    return q == F64 ? F64 : F32;
}

static void check_heads(const Graph *g, const Node *n, const Type *q, const Type *k, int at)
{
    if (k->dim[0] != q->dim[0] || k->dim[3] != q->dim[3])
        fail_node(g, n, "operand %d: expected batch %lld and head size %lld as in %s, found %s", at,
                  (long long)q->dim[0], (long long)q->dim[3], type_text(g->a, q),
                  type_text(g->a, k));
    if (q->dim[2] < 1)
        fail_node(g, n, "operand %d: expected a head at least, found %s", at - 1,
                  type_text(g->a, q));
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
                  dtype_name(scale_dtype(q->dtype)), n->attr[FLASH_SCALE].f);
    return f;
}

Flash flash_of(const Node *n, int first)
{
    const int64_t *q = n->in[first]->type.dim, *k = n->in[first + 1]->type.dim;
    const Attr *given = &n->attr[FLASH_SCALE];
    double scale = given->absent ? 1 / sqrt((double)q[3]) : given->f;
    if (!given->absent && scale_dtype(n->in[first]->type.dtype) == F32)
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
    if (flash_starts(c, 3))
        return flash_check_documents(c, 3);
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

/* ---- masks ---- */

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

void flash_mask_strides(const Tensor *mask, int64_t stride[4])
{
    for (int d = 0; d < 4; d++)
        stride[d] = mask->dim[d] == 1 ? 0 : mask->stride[d];
}

/* ---- levels ---- */

double flash_least_level(DType d)
{
    return ldexp(1, d == F64 ? FLASH_LEAST_F64 : FLASH_LEAST);
}

double flash_level(double score, DType d)
{
    double x = score * -FLASH_SHARE;
    int exponent;
    if (!(x >= flash_least_level(d)) || isinf(x))
        return score;
    frexp(x, &exponent); /* x is at least half of 2^exponent */
    return -ldexp(1, MIN(exponent - 1, FLASH_MOST) + 2);
}

double flash_masked_lse(double top, double log_sum, DType d)
{
    bool level = top <= -4 * flash_least_level(d);
    return level ? top - top * (log_sum / 128) : top + log_sum;
}

double flash_take_level(double *lse, DType d)
{
    int exponent;
    if (!(*lse < -2 * flash_least_level(d)) || isinf(*lse))
        return 0;
    double share = frexp(-*lse, &exponent); /* in [1/2, 1) */
    exponent -= share == 0.5;
    double level = -ldexp(1, exponent);
    *lse = (1 - *lse / level) * 128;
    return level;
}

/* ---- documents ---- */

void flash_check_starts(const Graph *g, const Node *n, int first, int at)
{
    Flash f = flash_of(n, first);
    Type want = type_make(I64, 2, (int64_t[]){f.batch, f.queries});
    need_type(g, n, at, &want);
    if (!f.causal || f.keys != f.queries)
        fail_node(g, n,
                  "operand %d: starts of documents are for causal attention of as many queries as "
                  "keys",
                  at);
}

bool flash_has_starts(const Node *n, int at)
{
    return at < n->nin && n->in[at]->type.rank == 2 && !dtype_float(n->in[at]->type.dtype);
}

const Tensor *flash_starts(const Call *c, int at)
{
    return flash_has_starts(c->node, at) ? &c->in[at] : NULL;
}

int flash_check_documents(Call *c, int at)
{
    const Tensor *starts = flash_starts(c, at);
    for (int64_t b = 0; starts && b < starts->dim[0]; b++)
        for (int64_t t = 0, least = 0; t < starts->dim[1]; t++) {
            int64_t start = flash_first(starts, b, t);
            if (start < least || start > t)
                return run_fail(c,
                                "start of row %lld, position %lld: expected %lld to that position, "
                                "found %lld",
                                (long long)b, (long long)t, (long long)least, (long long)start);
            least = start;
        }
    return 0;
}

/* ---- factors ---- */

FlashFactors flash_factors(Factors *f, const Flash *s, FactorKind query, FactorKind key,
                           FactorKind member)
{
    FlashFactors x;
    x.batch = factor_new(f, FACTOR_PARALLEL, s->batch);
    x.query = factor_new(f, s->causal ? FACTOR_REPLICATE : query, s->queries);
    x.key = factor_new(f, s->causal ? FACTOR_REPLICATE : key, s->keys);
    x.head = factor_new(f, FACTOR_PARALLEL, s->heads / s->group);
    x.member = factor_new(f, member, s->group);
    x.size = factor_new(f, FACTOR_REPLICATE, s->size);
    return x;
}

void flash_query_axes(Axes *x, const FlashFactors *f)
{
    axis_add(x, 0, f->batch);
    axis_add(x, 1, f->query);
    axis_add(x, 2, f->head);
    axis_add(x, 2, f->member);
    axis_add(x, 3, f->size);
}

void flash_key_axes(Axes *x, const FlashFactors *f)
{
    axis_add(x, 0, f->batch);
    axis_add(x, 1, f->key);
    axis_add(x, 2, f->head);
    axis_add(x, 3, f->size);
}

void flash_lse_axes(Axes *x, const FlashFactors *f)
{
    axis_add(x, 0, f->batch);
    axis_add(x, 1, f->head);
    axis_add(x, 1, f->member);
    axis_add(x, 2, f->query);
}

void flash_mask_axes(Axes *x, const Type *mask, const FlashFactors *f)
{
    if (mask->dim[0] != 1)
        axis_add(x, 0, f->batch);
    if (mask->dim[1] != 1) {
        axis_add(x, 1, f->head);
        axis_add(x, 1, f->member);
    }
    if (mask->dim[2] != 1)
        axis_add(x, 2, f->query);
    if (mask->dim[3] != 1)
        axis_add(x, 3, f->key);
}

void flash_start_axes(Axes *x, const FlashFactors *f)
{
    axis_add(x, 0, f->batch);
    axis_add(x, 1, f->query);
}

/* ---- for references ---- */

double flash_dot(const Tensor *x, int64_t at, const Tensor *y, int64_t other, int64_t size)
{
    double sum = 0;
    for (int64_t d = 0; d < size; d++)
        sum += tensor_get(x, at + d * x->stride[3]) * tensor_get(y, other + d * y->stride[3]);
    return sum;
}

double flash_score(const Flash *f, const Tensor *q, const Tensor *k, const Tensor *mask, int64_t b,
                   int64_t t, int64_t h, int64_t j)
{
    double dot = flash_dot(q, flash_at(q, b, t, h), k, flash_at(k, b, j, h / f->group), f->size);
    int64_t s[4];
    if (!mask)
        return f->scale * dot;
    flash_mask_strides(mask, s);
    double at = tensor_get(mask, b * s[0] + h * s[1] + t * s[2] + j * s[3]);
    return flash_level(f->scale * dot + at, scale_dtype(q->dtype));
}

void flash_add_row(double *sum, double w, const Tensor *x, int64_t at, int64_t n)
{
    for (int64_t d = 0; d < n; d++)
        sum[d] += w * tensor_get(x, at + d * x->stride[3]);
}

void flash_set_row(const Tensor *y, int64_t at, const double *sum, int64_t n)
{
    for (int64_t d = 0; d < n; d++)
        tensor_set(y, at + d * y->stride[3], sum[d]);
}
