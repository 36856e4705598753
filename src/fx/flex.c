/* flex_attention, whose scores and mask are modules of one score, or none, and four indices: batch,
 * head, query, key. Here each module runs once, over indices along the four axes of the scores, so
 * that what it computes element by element broadcasts; it may read tensors beside, by these
 * indices. Without a change of scores it is attention, causal where the mask is `query >= key` of
 * as many, else with the mask as a tensor: sliding windows, documents. With one the scores are a
 * matrix. The lists of blocks, which only say what a kernel may skip, are not read (inline.c). */
#include "lower.h"

#include <math.h>
#include <string.h>

enum { BATCH, HEAD, QUERY, KEY, NINDEX };

typedef struct Flex {
    Importer *im;
    Site s;
    const Expr *call;
    Value *q, *k, *v, *index[NINDEX];
    Attr scale;
} Flex;

/* Whether a call by its name is flex_attention: query, key, value, scores' module, (query length,
 * key length, blocks..., mask's module), scale, options, tensors of the first, tensors of the
 * second. */
bool fx_is_flex(const Expr *e)
{
    return e && e->kind == EX_CALL && !strcmp(e->s, "torch.ops.higher_order.flex_attention") &&
           e->count >= 6 && e->item[4]->kind == EX_LIST && e->item[4]->count;
}

static Value *tensor(Flex *f, int at, const char *what)
{
    Item x = fx_evaluate(f->im, f->call->item[at]);
    if (x.kind != FX_TENSOR || x.t->type.rank != 4)
        site_fail(&f->s, "%s: expected a tensor [B, H, T, D], found %s", what, item_text(&x));
    return fx_read(f->im, x.t);
}

/* 0, 1, ... along an axis of the scores. */
static Value *index_along(Flex *f, int axis, int64_t n)
{
    int64_t size[NINDEX] = {1, 1, 1, 1};
    size[axis] = n;
    Value *v = emit1(f->s.b, "arange", 0, NULL, ATTRS(A_INT("end", n), A_DTYPE("dtype", I64)));
    return lower_reshape(&f->s, v, NINDEX, size);
}

/* ---- a module ---- */

/* Fails where the nodes of a statement do not compute each element by itself; `from`: the id of the
 * first. */
static void check_elementwise(Flex *f, const FxStatement *st, int from)
{
    bool picks = st->value->kind == EX_CALL && !strcmp(st->value->s, "torch.ops.aten.index.Tensor");
    bool scalar = !st->annotation.known || !st->annotation.type.rank;
    for (const Node *n = f->im->g->last; n && n->id >= from && scalar; n = n->prev)
        scalar = picks || !n->nin || n->op->view || n->op->copy || n->op->class == CLASS_POINTWISE;
    if (!scalar)
        site_fail(&f->s,
                  "a module of scores or masks: expected what is computed for each element by "
                  "itself, or read by its indices, found %s at line %d",
                  st->value->kind == EX_CALL ? st->value->s : "another value", st->line);
}

/* The result of a module, of which nodes get the name of the call. */
static Value *run(Flex *f, const Expr *module, int n, const Item *arg)
{
    const FxModule *m = module->module;
    if (n != m->nin)
        site_fail(&f->s, "module %s: expected %d arguments, found %d", m->name, m->nin, n);
    for (int i = 0; i < n; i++)
        fx_assign(f->im, m->in[i].name, &arg[i]);
    for (int i = 0; i < m->nstatement; i++) {
        const FxStatement *st = &m->statement[i];
        int from = f->im->g->nnode;
        if (!st->value)
            continue;
        Item x = fx_evaluate(f->im, st->value);
        check_elementwise(f, st, from);
        if (st->unpack)
            site_fail(&f->s, "module %s: expected one result of each call", m->name);
        for (int k = 0; k < st->ntarget; k++)
            fx_assign(f->im, st->target[k], &x);
    }
    Item x = fx_evaluate(f->im, m->result);
    if (x.kind == FX_LIST && x.count == 1)
        x = x.item[0];
    if (x.kind != FX_TENSOR || x.t->type.rank > NINDEX)
        site_fail(&f->s, "module %s: expected a tensor as result, found %s", m->name,
                  item_text(&x));
    return fx_read(f->im, x.t);
}

/* Runs a module with the indices, after `first` unless that is NULL, and the tensors that argument
 * `more` of the call lists. */
static Value *run_module(Flex *f, const Expr *module, Value *first, int more)
{
    Item rest = {.kind = FX_LIST};
    if (more < f->call->count)
        rest = fx_evaluate(f->im, f->call->item[more]);
    Item *arg = NEWN(f->im->a, Item, 1 + NINDEX + rest.count);
    int n = 0;
    if (first)
        arg[n++] = (Item){.kind = FX_TENSOR, .t = fx_fresh(f->im, first)};
    for (int i = 0; i < NINDEX; i++)
        arg[n++] = (Item){.kind = FX_TENSOR, .t = fx_fresh(f->im, f->index[i])};
    for (int i = 0; rest.kind == FX_LIST && i < rest.count; i++)
        arg[n++] = rest.item[i];
    return run(f, module, n, arg);
}

/* ---- the mask ---- */

static bool is_causal(const Flex *f, const Value *seen)
{
    const Node *n = seen->def;
    const Value *query = f->index[QUERY], *key = f->index[KEY];
    if (!n || f->q->type.dim[2] != f->k->type.dim[2])
        return false;
    return (node_is(n, OP_ge) && n->in[0] == query && n->in[1] == key) ||
           (node_is(n, OP_le) && n->in[0] == key && n->in[1] == query);
}

static bool is_all(const Value *seen)
{
    const Node *n = seen->def;
    return n && node_is(n, OP_full) && n->attr[attr_index(n->op, "fill_value")].f == 1;
}

/* Widens what is seen to every query and key. */
static Value *as_mask(Flex *f, Value *seen)
{
    Type t = {.dtype = BOOL, .rank = NINDEX};
    for (int d = 0; d < NINDEX; d++) {
        int at = d - (NINDEX - seen->type.rank);
        t.dim[d] = at < 0 ? 1 : seen->type.dim[at];
    }
    seen = lower_reshape(&f->s, lower_cast(&f->s, seen, BOOL), NINDEX, t.dim);
    t.dim[QUERY] = f->q->type.dim[2];
    t.dim[KEY] = f->k->type.dim[2];
    return lower_expand(&f->s, seen, &t);
}

/* ---- the call ---- */

static bool asks(const Flex *f, const char *option)
{
    const Expr *options = f->call->count > 6 ? f->call->item[6] : NULL;
    for (int i = 0; options && options->kind == EX_LIST && options->key && i < options->count; i++)
        if (options->key[i] && !strcmp(options->key[i], option))
            return options->item[i]->kind == EX_BOOL && options->item[i]->i;
    return false;
}

/* The result and, where it is asked for, the log-sum-exp of scores, to base 2. */
static void give(Flex *f, Value *y, Value *lse)
{
    Value *out[3] = {y};
    if (asks(f, "OUTPUT_MAX"))
        site_fail(&f->s, "OUTPUT_MAX, the scores' maximum as a result, is not supported");
    if (asks(f, "OUTPUT_LOGSUMEXP"))
        out[1] = lower_times(&f->s, lse, 1 / log(2.0));
    site_return_list(&f->s, LEN(out), out);
}

static void by_matrix(Flex *f, const Expr *score_module, Value *seen)
{
    Site *s = &f->s;
    DType own = f->q->type.dtype, d = own == F64 ? F64 : F32;
    Value *score = lower_cast(s, lower_scores(s, f->q, f->k, f->scale), d);
    const Type whole = score->type;
    score = lower_cast(s, run_module(f, score_module, score, 7), d);
    score = lower_expand(s, score, &whole);
    if (seen)
        score = lower2(s, "add", score, lower_mask(s, as_mask(f, seen), d));
    Item of[] = {{.kind = FX_TENSOR, .t = fx_fresh(f->im, score)}, item_ints(s, 1, (int64_t[]){3})};
    Item lse = {0};
    if (asks(f, "OUTPUT_LOGSUMEXP"))
        lse = lower_call(s, "logsumexp.default", LEN(of), of);
    Value *weight = lower_cast(s, lower_safe_softmax(s, score, 3), own);
    give(f, lower_weighted(s, weight, f->v), lse.t ? fx_read(f->im, lse.t) : NULL);
}

static Attr scale_of(Flex *f)
{
    Item x = fx_evaluate(f->im, f->call->item[5]);
    if (x.kind != FX_NONE && x.kind != FX_FLOAT && x.kind != FX_INT)
        site_fail(&f->s, "scale: expected a number, found %s", item_text(&x));
    return (Attr){.f = x.f, .absent = x.kind == FX_NONE};
}

/* Whether a module of scores gives what it is given. */
static bool is_identity(const FxModule *m)
{
    const Expr *e = m->result;
    while (e->kind == EX_LIST && e->count == 1)
        e = e->item[0];
    return e->kind == EX_NAME && m->nin && !strcmp(e->s, m->in[0].name);
}

Item fx_flex(Importer *im, const Expr *call)
{
    const Expr *blocks = call->item[4], *score = call->item[3];
    const Expr *mask = blocks->item[blocks->count - 1];
    Flex f = {.im = im, .call = call};
    f.s = (Site){.im = im, .b = &im->b, .name = "flex_attention"};
    f.q = tensor(&f, 0, "query");
    f.k = tensor(&f, 1, "key");
    f.v = tensor(&f, 2, "value");
    f.scale = scale_of(&f);
    const int64_t n[NINDEX] = {f.q->type.dim[0], f.q->type.dim[1], f.q->type.dim[2],
                               f.k->type.dim[2]};
    for (int i = 0; i < NINDEX; i++)
        f.index[i] = index_along(&f, i, n[i]);
    Value *seen = run_module(&f, mask, NULL, 8), *lse;
    seen = is_all(seen) ? NULL : seen;
    if (!is_identity(score->module)) {
        by_matrix(&f, score, seen);
        return f.s.result;
    }
    bool causal = seen && is_causal(&f, seen);
    Value *add = seen && !causal ? lower_mask(&f.s, as_mask(&f, seen), f.q->type.dtype) : NULL;
    Value *y = lower_attention(&f.s, (Value *[]){f.q, f.k, f.v}, add, causal, f.scale, &lse);
    give(&f, y, lse);
    return f.s.result;
}
