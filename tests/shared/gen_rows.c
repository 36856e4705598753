/* Random graphs over the rows of a batch, as models are: every value has the rows on one axis
 * (alone, or merged with others), parameters are broadcast over them, and the loss is a sum over
 * rows. Such graphs can be cut into microbatches. */
#include "gen.h"

#include <string.h>

enum { MOST_SIZE = 400 };

typedef struct Rows {
    Gen *x;
    int64_t b;   /* rows */
    bool formed; /* weights are formed of parameters */
    Known *seed, *step;
} Rows;

static Known *input(Gen *x, const Type *t, Role role, double lo, double hi)
{
    Known *k = gen_input(x, t, lo, hi);
    Port *p = &x->b.g->in[k->v->index];
    p->role = role;
    p->name = role == ROLE_PARAM ? p->v->name : NULL;
    return k;
}

static Known *param(Gen *x, int rank, const int64_t *dim)
{
    Type t = type_make(F64, rank, dim);
    return input(x, &t, ROLE_PARAM, -1, 1);
}

static Known *emit_one(Gen *x, const char *op, Known *a, const AttrArg *attrs)
{
    return gen_emit(x, op, 1, &a, attrs);
}

static Known *emit_two(Gen *x, const char *op, Known *a, Known *b, const AttrArg *attrs)
{
    return gen_emit(x, op, 2, (Known *[]){a, b}, attrs);
}

/* A parameter, or one of the views of a larger one, of which others may have other readers. */
static Known *part_of_param(Gen *x, int rank, const int64_t *dim)
{
    int64_t wide[2] = {dim[0], rank == 2 ? dim[1] : 0}, both[2] = {dim[0], dim[0]};
    if (rng_chance(x->rng, 0.6))
        return param(x, rank, dim);
    wide[0] *= 2;
    Known *p = param(x, rank, wide);
    if (rng_chance(x->rng, 0.5))
        return emit_one(x, "slice", p, ATTRS(A_INT("start", dim[0])));
    Known *first = emit_one(x, "split", p, ATTRS(A_INTS("split_sizes", 2, both)));
    return rng_chance(x->rng, 0.5) ? first : &x->known[x->nknown - 1];
}

static Known *batch(Rows *r, DType d, int rank, int64_t n, int64_t m, double lo, double hi)
{
    Type t = type_make(d, rank, (int64_t[]){r->b, n, m});
    return input(r->x, &t, ROLE_BATCH, lo, hi);
}

static int64_t last_dim(const Known *k)
{
    return k->v->type.dim[k->v->type.rank - 1];
}

/* Rows on axis 0, merged with every other axis but the last. */
static Known *matrix(Gen *x, Known *k)
{
    if (k->v->type.rank == 2)
        return k;
    return emit_one(x, "view", k, ATTRS(A_INTS("size", 2, ((int64_t[]){-1, last_dim(k)}))));
}

/* ---- layers: each takes a value [rows, ..., n] and gives another ---- */

static Known *unary(Rows *r, Known *k)
{
    static const char *const ops[] = {"tanh", "sigmoid", "gelu", "silu",
                                      "neg",  "sin",     "cos",  "erf"};
    return emit_one(r->x, ops[rng_below(r->x->rng, LEN(ops))], k, NOATTRS);
}

static Known *binary(Rows *r, Known *k)
{
    static const char *const ops[] = {"add", "sub", "mul"};
    int64_t n = last_dim(k);
    Known *w = rng_chance(r->x->rng, 0.5) ? part_of_param(r->x, 1, &n) : k;
    if (w != k && rng_chance(r->x->rng, 0.4)) /* then precision has it in f32 in the forward only */
        w = unary(r, w);
    return emit_two(r->x, ops[rng_below(r->x->rng, LEN(ops))], k, w, NOATTRS);
}

/* A weight that the forward forms of parameters alone: normed, scaled, a product of narrow ones. */
static Known *formed_weight(Rows *r, int64_t n, int64_t m)
{
    Gen *x = r->x;
    const AttrArg *rows =
        ATTRS(A_INTS("dim", 1, (int64_t[]){rng_below(x->rng, 2)}), A_BOOL("keepdim", 1));
    Known *w = part_of_param(x, 2, (int64_t[]){n, m});
    switch (rng_below(x->rng, 6)) {
    case 0: return unary(r, w);
    case 1: return emit_one(x, "_softmax", w, ATTRS(A_INT("dim", rng_below(x->rng, 2))));
    case 2: return emit_two(x, "mul", unary(r, w), emit_one(x, "sum", w, rows), NOATTRS);
    case 3: return emit_two(x, "add", w, unary(r, param(x, 1, &m)), NOATTRS);
    case 4: return emit_one(x, "t", unary(r, emit_one(x, "t", w, NOATTRS)), NOATTRS);
    default:
        return emit_two(x, "add", w,
                        emit_two(x, "mm", param(x, 2, (int64_t[]){n, 2}),
                                 unary(r, param(x, 2, (int64_t[]){2, m})), NOATTRS),
                        NOATTRS);
    }
}

static Known *linear(Rows *r, Known *k)
{
    int64_t n = last_dim(k), m = 1 + rng_below(r->x->rng, 6);
    Known *w = r->formed && rng_chance(r->x->rng, 0.5) ? formed_weight(r, n, m)
                                                       : part_of_param(r->x, 2, (int64_t[]){n, m});
    k = matrix(r->x, k);
    if (rng_chance(r->x->rng, 0.5))
        return emit_two(r->x, "mm", k, w, NOATTRS);
    return gen_emit(r->x, "addmm", 3, (Known *[]){param(r->x, 1, &m), k, w}, NOATTRS);
}

static Known *norm(Rows *r, Known *k)
{
    int64_t n = last_dim(k);
    Known *w = param(r->x, 1, &n);
    if (rng_chance(r->x->rng, 0.5))
        return emit_two(r->x, "rms_norm", k, w, NOATTRS);
    return gen_emit(r->x, "native_layer_norm", 3, (Known *[]){k, w, param(r->x, 1, &n)},
                    ATTRS(A_INTS("normalized_shape", 1, &n)));
}

static Known *softmax(Rows *r, Known *k)
{
    return emit_one(r->x, rng_chance(r->x->rng, 0.5) ? "_softmax" : "_log_softmax", k,
                    ATTRS(A_INT("dim", -1)));
}

static Known *reduce(Rows *r, Known *k)
{
    return emit_one(r->x, rng_chance(r->x->rng, 0.5) ? "sum" : "mean", k,
                    ATTRS(A_INTS("dim", 1, (int64_t[]){-1}), A_BOOL("keepdim", 1)));
}

/* [rows, n] seen as [rows, n / d, d], [rows * n / d, d] or so, or with two axes exchanged and back.
 */
static Known *reshape(Rows *r, Known *k)
{
    Gen *x = r->x;
    int64_t n = last_dim(k), d = n % 2 == 0 ? 2 : n % 3 == 0 ? 3 : 1;
    switch (rng_below(x->rng, 4)) {
    case 0: return emit_one(x, "view", k, ATTRS(A_INTS("size", 2, ((int64_t[]){-1, d}))));
    case 1: return emit_one(x, "view", k, ATTRS(A_INTS("size", 3, ((int64_t[]){r->b, -1, d}))));
    case 2: return emit_one(x, "view", k, ATTRS(A_INTS("size", 2, ((int64_t[]){r->b, -1}))));
    default:
        if (k->v->type.rank != 3)
            return emit_one(x, "unsqueeze", k, ATTRS(A_INT("dim", -1)));
        k = emit_one(x, "transpose", k, ATTRS(A_INT("dim0", 1), A_INT("dim1", 2)));
        return rng_chance(x->rng, 0.5) ? k : emit_one(x, "clone", k, NOATTRS);
    }
}

static Known *join(Rows *r, Known *k)
{
    Gen *x = r->x;
    int64_t n = last_dim(k);
    if (n > 1 && rng_chance(x->rng, 0.5))
        return emit_one(x, "slice", k,
                        ATTRS(A_INT("dim", -1), A_INT("start", 0), A_INT("end", n - 1)));
    return emit_two(x, "cat", k, k, ATTRS(A_INT("dim", -1)));
}

static Known *attention(Rows *r, Known *k)
{
    int64_t n = last_dim(k);
    if (k->v->type.rank != 3 || k->v->type.dim[0] != r->b)
        return NULL;
    int64_t size[4] = {r->b, k->v->type.dim[1], 1, n};
    k = emit_one(r->x, "view", k, ATTRS(A_INTS("size", 4, size)));
    return gen_emit(r->x, "flash_attention", 3, (Known *[]){k, k, k}, NOATTRS);
}

static Known *batch_product(Rows *r, Known *k)
{
    if (k->v->type.rank != 3 || k->v->type.dim[0] != r->b)
        return NULL;
    Known *y = emit_one(r->x, "transpose", k, ATTRS(A_INT("dim0", 1), A_INT("dim1", 2)));
    return emit_two(r->x, "bmm", k, y, NOATTRS);
}

static Known *scalar_input(Rows *r, Role role)
{
    Type t = type_make(I64, 0, NULL);
    return input(r->x, &t, role, 1, 1000);
}

static Known *dropout(Rows *r, Known *k)
{
    if (!r->seed) {
        r->seed = scalar_input(r, ROLE_SEED);
        r->step = scalar_input(r, ROLE_STEP);
    }
    Gen *x = r->x;
    Value *in[] = {k->v, r->seed->v, r->step->v};
    Tensor t[] = {k->t, r->seed->t, r->step->t};
    Node *n = emit_stream(&x->b, "dropout", 3, in, ATTRS(A_FLOAT("p", 0.4)), rng_below(x->rng, 9));
    gen_run(x, n, t);
    return &x->known[x->nknown - 1];
}

static Known *lookup(Rows *r, Known *k)
{
    (void)k;
    Known *table = param(r->x, 2, (int64_t[]){5, 4});
    return emit_two(r->x, "embedding", table, batch(r, I64, 2, 3, 0, 0, 4), NOATTRS);
}

/* ---- the loss: sums over rows ---- */

static Known *weighted_sum(Rows *r, Known *k)
{
    int64_t n = last_dim(k);
    return emit_one(r->x, "sum", emit_two(r->x, "mul", k, param(r->x, 1, &n), NOATTRS), NOATTRS);
}

/* Logits of an odd vocabulary, whose table has a row for each token, as a tied embedding has. */
static Known *head(Rows *r, Known *k)
{
    Gen *x = r->x;
    Known *table = param(x, 2, (int64_t[]){3 + 2 * rng_below(x->rng, 3), last_dim(k)});
    return emit_two(x, "mm", matrix(x, k), emit_one(x, "t", table, NOATTRS), NOATTRS);
}

static Known *cross_entropy(Rows *r, Known *k)
{
    Gen *x = r->x;
    k = r->formed && rng_chance(x->rng, 0.5) ? head(r, k) : matrix(x, k);
    int64_t n = k->v->type.dim[0], v = last_dim(k);
    if (n % r->b)
        return NULL;
    Known *labels = batch(r, I64, 2, n / r->b, 0, 0, (double)(v - 1));
    labels = emit_one(x, "view", labels, ATTRS(A_INTS("size", 1, &n)));
    Known *count = emit_one(x, "count_labels", labels, NOATTRS);
    k = gen_emit(x, "cross_entropy", 3, (Known *[]){k, labels, count}, NOATTRS);
    for (int i = x->nknown - 1;; i--) /* the first of its results */
        if (x->known[i].v == k->v->def->out[0])
            return &x->known[i];
}

/* ---- the graph ---- */

static Known *layer(Rows *r, Known *k)
{
    static Known *(*const layers[])(Rows *, Known *) = {
        unary, binary, linear,    norm,          softmax, reduce, reshape,
        join,  linear, attention, batch_product, dropout, lookup, reshape};
    Known *y = layers[rng_below(r->x->rng, LEN(layers))](r, k);
    if (!y || !y->finite || tensor_nelem(&y->t) > MOST_SIZE)
        return k;
    return gen_within(y, 1, -1) ? y : emit_one(r->x, "tanh", y, NOATTRS);
}

static Gen *make(Arena *a, Library *lib, Rng *rng, int nodes, int64_t *rows, bool formed)
{
    Gen *x = NEW(a, Gen);
    *x = (Gen){.a = a, .rng = rng, .lib = lib, .smooth = true};
    x->b = (Build){.g = graph_new(a, "rows")};
    Rows r = {.x = x, .b = *rows = 2 + rng_below(rng, 6), .formed = formed};
    Known *loss = NULL, *k = linear(&r, batch(&r, F64, 2, 1 + rng_below(rng, 6), 0, -1, 1));
    while (x->b.g->nnode < nodes || !loss) {
        k = layer(&r, k);
        if (!rng_chance(rng, 0.2))
            continue;
        x->b.phase = LOSS;
        Known *term = rng_chance(rng, 0.5) ? weighted_sum(&r, k) : cross_entropy(&r, k);
        if (term)
            loss = loss ? emit_two(x, "add", loss, term, NOATTRS) : term;
        x->b.phase = FORWARD;
    }
    graph_output(x->b.g, loss->v, ROLE_LOSS, NULL);
    return x;
}

Gen *gen_rows(Arena *a, Library *lib, Rng *rng, int nodes, int64_t *rows)
{
    return make(a, lib, rng, nodes, rows, false);
}

Gen *gen_formed(Arena *a, Library *lib, Rng *rng, int nodes, int64_t *rows)
{
    return make(a, lib, rng, nodes, rows, true);
}
