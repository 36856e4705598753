/* The op table, made from op.def by inclusion. */
#include "op.h"

#include <string.h>

#ifdef TN_PARTIAL_OPS /* while ops are being written: rows without a file are unknown ops */
#define OP(n, ...) extern const OpRules op_##n __attribute__((weak));
#else
#define OP(n, ...) extern const OpRules op_##n;
#endif
#include "op.def"
#undef OP

enum {
#define OP(n, ...) ROW_##n,
#include "op.def"
#undef OP
};
#define OP(n, ...) const OpId OP_##n = {ROW_##n};
#include "op.def"
#undef OP

/* The words of the column `trait`, beside LOOP and FUSED. */
enum {
    COMMUTES = 4,
    VIEW = 8,
    IDENTITY = 16 | VIEW,
    COPY = 32,
    COUNTS = 64,
    ASYNC = 128,
    TO_HOST = 256 | ASYNC,
    WAIT = 512,
    BARRIER = 1024
};

#define HAS(t, trait) (((t) & (trait)) == (trait))
#define OP(n, least, most, nresult, kind, t, sets, letters) \
    {.name = #n,                                            \
     .id = ROW_##n,                                         \
     .nin_least = least,                                    \
     .nin_most = most,                                      \
     .nout = nresult,                                       \
     .class = CLASS_##kind,                                 \
     .commutes = HAS(t, COMMUTES),                          \
     .linear = sets,                                        \
     .bf16 = letters,                                       \
     .view = HAS(t, VIEW),                                  \
     .identity = HAS(t, IDENTITY),                          \
     .copy = HAS(t, COPY),                                  \
     .counts = HAS(t, COUNTS),                              \
     .async = HAS(t, ASYNC),                                \
     .to_host = HAS(t, TO_HOST),                            \
     .wait = HAS(t, WAIT),                                  \
     .barrier = HAS(t, BARRIER),                            \
     .region = (RegionKind)((t) & (LOOP | FUSED)),          \
     .rules = &op_##n},
const Op op_table[] = {
#include "op.def"
};
#undef OP
const int op_count = LEN(op_table);

/* By id, kernels_cuda.c; absent from programs that are linked without it. */
extern const Kernel *const cuda_kernels[] __attribute__((weak, visibility("hidden")));

const Kernel *op_kernels(const Op *op, KernelSet set)
{
    if (set == KERNELS_CPU)
        return op->rules->kernels;
    return cuda_kernels ? cuda_kernels[op->id] : NULL;
}

bool kernels_linked(KernelSet set)
{
    return set == KERNELS_CPU || cuda_kernels;
}

const char *class_name(OpClass c)
{
    static const char *const names[] = {
#define X(id, name) name,
        OP_CLASSES(X)
#undef X
    };
    return names[c];
}

const Op *op_find(const char *name)
{
    for (int i = 0; i < op_count; i++)
        if (!strcmp(op_table[i].name, name) && op_table[i].rules)
            return &op_table[i];
    return NULL;
}

const Op *op_get(Ctx *ctx, const char *name)
{
    const Op *op = op_find(name);
    if (op)
        return op;
    const char *names[LEN(op_table)];
    for (int i = 0; i < op_count; i++)
        names[i] = op_table[i].name;
    const char *near = nearest(name, names, op_count);
    fail(ctx, TN_FAIL, "unknown op \"%s\"%s%s%s; `tenon ops` lists them", name,
         near ? "; the nearest is \"" : "", near ? near : "", near ? "\"" : "");
}

const AttrField *op_attrs(const Op *op)
{
    static const AttrField none[] = {{0}};
    return op->rules->attrs ? op->rules->attrs : none;
}

const char *op_takes(Arena *a, const Op *op)
{
    if (op->nin_most == op->nin_least)
        return arena_printf(a, "%d", op->nin_least);
    if (op->nin_most < 0)
        return arena_printf(a, "%d or more", op->nin_least);
    return arena_printf(a, "%d to %d", op->nin_least, op->nin_most);
}

int op_infer(const Graph *g, const Node *n, Type *out)
{
    if (n->op->nout < 0 && !n->region && n->nin > TN_MAX_OUT)
        fail_node(g, n, "takes at most %d inputs, found %d", TN_MAX_OUT, n->nin);
    return n->op->rules->infer(g, n, out);
}

bool node_of(const Node *n, const OpId *op)
{
    return n && n->op->id == op->row;
}

bool node_is_full(const Node *n, double value)
{
    return node_is(n, OP_full) && n->attr[attr_index(n->op, "fill_value")].f == value;
}

Queue node_queue(const Node *n)
{
    return n->op->to_host ? QUEUE_OUT : n->op->async ? QUEUE_IN : QUEUE_COMPUTE;
}

Space node_space(const Node *n)
{
    return n->op->to_host ? SPACE_HOST : SPACE_MAIN;
}

/* ---- linearity ---- */

static uint64_t all_operands(const Node *n)
{
    return n->nin < 64 ? (UINT64_C(1) << n->nin) - 1 : UINT64_MAX;
}

static bool has_floating(const Node *n, int i)
{
    return i < n->nin && dtype_float(n->in[i]->type.dtype);
}

static bool has_set(const Node *n, uint64_t partial)
{
    uint64_t set = 0;
    for (const char *s = n->op->linear;; s++) {
        if (*s == '*')
            set = all_operands(n);
        else if (*s == '+')
            s += !has_floating(n, s[1] - '0');
        else if (*s >= '0' && *s <= '9')
            set |= UINT64_C(1) << (*s - '0');
        else if (set == partial || !*s)
            return set == partial;
        else
            set = 0;
    }
}

/* Whether these operands and the results, but those of bool, are all floating, or all integers of
 * which no result is wider than an operand: integers wrap, and a wider sum of wrapped ones differs.
 */
static bool of_one_kind(const Node *n, uint64_t partial)
{
    int floats = 0, integers = 0, bools = 0, results = 0, narrowest = 8, widest = 0;
    for (int i = 0; i < n->nin; i++) {
        DType d = n->in[i]->type.dtype;
        if (i < 64 && !(partial >> i & 1))
            continue;
        bools += d == BOOL;
        narrowest = MIN(narrowest, dtype_size(d));
        *(dtype_float(d) ? &floats : &integers) += 1;
    }
    for (int k = 0; k < n->nout; k++) {
        DType d = n->out[k]->type.dtype;
        if (d == BOOL)
            continue;
        results++;
        widest = MAX(widest, dtype_size(d));
        *(dtype_float(d) ? &floats : &integers) += 1;
    }
    return !bools && results && (!integers || (!floats && widest <= narrowest));
}

bool op_linear(const Node *n, uint64_t partial)
{
    return partial && has_set(n, partial) && of_one_kind(n, partial);
}

/* ---- attributes, in-place rules, lanes ---- */

int op_nattr(const Op *op)
{
    int count = 0;
    while (op_attrs(op)[count].kind)
        count++;
    return count;
}

int attr_index(const Op *op, const char *name)
{
    const AttrField *f = op_attrs(op);
    for (int i = 0; f[i].kind; i++)
        if (!strcmp(f[i].name, name))
            return i;
    return -1;
}

unsigned node_inplace(const Node *n, int k)
{
    const OpRules *r = n->op->rules;
    if (r->overwrites)
        return r->overwrites(n, k);
    return k < LEN(r->inplace) ? r->inplace[k] : 0;
}

bool node_lane(const Node *n, LaneFn *l)
{
    Tensor in[LANE_OPERANDS], out = {.dtype = n->out[0]->type.dtype};
    Call c = {.node = n, .in = in, .out = &out, .nin = n->nin, .nout = 1};
    if (!n->op->rules->lane || n->nout != 1 || n->nin > LEN(in))
        return false;
    for (int i = 0; i < n->nin; i++)
        in[i] = (Tensor){.dtype = n->in[i]->type.dtype};
    return n->op->rules->lane(&c, l);
}

bool kernel_takes(const Kernel *k, const Call *c)
{
    for (int i = 0; i < c->nout && !k->strided_out; i++)
        if (!tensor_contiguous(&c->out[i]))
            return false;
    return k->accepts(c);
}

int64_t kernel_workspace(Ctx *ctx, const Kernel *k, const Call *c)
{
    return k && k->workspace ? k->workspace(ctx, c) : 0;
}

void kernel_prepare(const Kernel *k, Call *c, Arena *a)
{
    c->nbytes_work = kernel_workspace(arena_ctx(a), k, c);
    if (k->prepare)
        k->prepare(c, a);
}

static Tensor dense(const Type *t)
{
    Tensor x = {.dtype = t->dtype, .rank = t->rank};
    memcpy(x.dim, t->dim, sizeof x.dim);
    tensor_fill_strides(&x);
    return x;
}

const RowKernel *node_rows(const Node *n, FusedShape *s)
{
    const OpRules *r = n->op->rules;
    Tensor in[ROW_OPERANDS], out[ROW_RESULTS];
    Call c = {.node = n, .in = in, .out = out, .nin = n->nin, .nout = n->nout};
    if (!r->rows || n->nin > ROW_OPERANDS || n->nout > ROW_RESULTS)
        return NULL;
    for (int i = 0; i < n->nin; i++)
        in[i] = dense(&n->in[i]->type);
    for (int k = 0; k < n->nout; k++)
        out[k] = dense(&n->out[k]->type);
    int lead = r->kernels->accepts(&c) ? r->rows->lead(&c) : -1;
    if (lead < 0)
        return NULL;
    const Type *x = &n->in[strchr(r->rows->in, ROW_ELEMENTS) - r->rows->in]->type;
    *s = (FusedShape){type_nelem(x), 1};
    for (int d = lead; d < x->rank; d++)
        s->row *= x->dim[d];
    return s->row > 1 && s->nelem > s->row ? r->rows : NULL;
}

Cost node_cost(const Node *n)
{
    if (n->op->rules->cost)
        return n->op->rules->cost(n);
    Cost c = cost_bytes(n);
    for (int k = 0; k < n->nout; k++)
        c.nflop += (double)type_nelem(&n->out[k]->type);
    return c;
}
