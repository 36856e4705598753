/* The column `linear` of op.def: operands of a set that it lists are split into two random parts
 * each, the others are whole for both, and the results of the parts must add up to the result, by
 * ref in double at 1e-12; of bool they must be equal. Of every other operand alone, pair, and all
 * together, where they are floating point, some line of the op must show that they do not. That is
 * asked of all lines together, because one may be degenerate: a padding with zeros is linear. */
#include "check.h"

#include "interp.h"

#include <math.h>
#include <string.h>

enum {
    STREAM_PART = 400,
    LARGE = 1000000 /* operations and bytes read of a line that is left out */
};

typedef struct Sum {
    Problem *p;
    uint64_t set;
    Tensor *in[2], *out[2]; /* of the parts */
} Sum;

static bool has(uint64_t set, int i)
{
    return set >> MIN(i, 63) & 1;
}

/* ---- splitting and adding ---- */

static void int_put(const Tensor *t, int64_t i, int64_t x)
{
    memcpy(t->data + i * dtype_size(t->dtype), &x, (size_t)dtype_size(t->dtype)); /* low bytes */
}

static double greatest(const Tensor *t)
{
    double most = 0;
    for (int64_t i = 0, n = tensor_nelem(t); i < n; i++)
        most = isfinite(tensor_get(t, i)) ? fmax(most, fabs(tensor_get(t, i))) : most;
    return most > 0 ? most : 1;
}

/* Integers are split without going over what they were, as those without a sign could not. */
static void split(const Sum *s, int i)
{
    const Tensor *x = &s->p->in64[i];
    double size = dtype_float(x->dtype) ? greatest(x) : 0;
    for (int k = 0; k < 2; k++)
        s->in[k][i] = tensor_copy(s->p->a, x, x->dtype);
    for (int64_t e = 0, n = tensor_nelem(x); e < n; e++) {
        double u = random_uniform(s->p->c->seed, STREAM_PART, (uint32_t)i, (uint64_t)(2 * e));
        double v = random_uniform(s->p->c->seed, STREAM_PART, (uint32_t)i, (uint64_t)(2 * e + 1));
        if (dtype_float(x->dtype)) {
            double part =
                (2 * u - 1) * size + (isfinite(tensor_get(x, e)) ? v * tensor_get(x, e) : 0);
            tensor_set(&s->in[0][i], e, part);
            tensor_set(&s->in[1][i], e, tensor_get(x, e) - part);
        } else {
            int64_t part = (int64_t)(u * (double)(tensor_int(x, e) / 2));
            int_put(&s->in[0][i], e, part);
            int_put(&s->in[1][i], e, tensor_int(x, e) - part);
        }
    }
}

static Tensor added(Arena *a, const Tensor *x, const Tensor *y)
{
    Tensor sum = tensor_copy(a, x, x->dtype);
    for (int64_t e = 0, n = tensor_nelem(x); e < n; e++)
        if (dtype_float(x->dtype))
            tensor_set(&sum, e, tensor_get(x, e) + tensor_get(y, e));
        else
            int_put(&sum, e, (int64_t)((uint64_t)tensor_int(x, e) + (uint64_t)tensor_int(y, e)));
    return sum;
}

static void run_parts(void *arg)
{
    Sum *s = arg;
    const Node *n = s->p->wide;
    for (int k = 0; k < 2; k++) {
        s->in[k] = NEWN(s->p->a, Tensor, n->nin);
        s->out[k] = NEWN(s->p->a, Tensor, n->nout);
        memcpy(s->in[k], s->p->in64, sizeof *s->in[k] * (size_t)n->nin);
    }
    for (int i = 0; i < n->nin; i++)
        if (has(s->set, i))
            split(s, i);
    for (int k = 0; k < 2; k++)
        interp_node(s->p->a, s->p->g, n, s->in[k], s->out[k]);
}

/* Why the parts do not add up, or NULL. */
static const char *differs(Sum *s)
{
    Arena *a = s->p->a;
    if (ctx_try(arena_ctx(a), run_parts, s))
        return arena_ctx(a)->message;
    for (int k = 0; k < s->p->wide->nout; k++) {
        const Tensor *want = &s->p->out64[k], *x = &s->out[0][k], *y = &s->out[1][k];
        Tensor sum = want->dtype == BOOL ? *x : added(a, x, y);
        const char *how = tensor_differs(a, &sum, want, 1e-12);
        if (!how && want->dtype == BOOL)
            how = tensor_differs(a, y, want, 0);
        if (how)
            return arena_printf(a, "output %d: %s", k, how);
    }
    return NULL;
}

/* ---- which sets ---- */

static const char *set_text(Arena *a, uint64_t set)
{
    Buf b = {.a = a};
    for (int i = 0; i < 64; i++)
        if (set >> i & 1)
            buf_printf(&b, "%s%d", b.len ? "," : "", i);
    return arena_printf(a, "{%s}", b.text);
}

/* What might be a sum of parts: no operand of it is bool, some result is not, and integers only
 * where the op is said to be linear. */
static bool may_be_sum(const Node *n, uint64_t set)
{
    bool results = false;
    for (int k = 0; k < n->nout; k++)
        results |= n->out[k]->type.dtype != BOOL;
    for (int i = 0; i < n->nin; i++)
        results &= !has(set, i) || dtype_float(n->in[i]->type.dtype) || op_linear(n, set);
    return results;
}

static void check_set(Problem *p, uint64_t set, int i, int j)
{
    Sum s = {.p = p, .set = set};
    bool linear = op_linear(p->wide, set);
    if (!may_be_sum(p->wide, set) || (!linear && p->cover->sums[i][j].shown))
        return;
    const char *how = differs(&s);
    if (linear && how)
        miss(p, "not linear in the operands %s: %s", set_text(p->a, set), how);
    p->cover->sums[i][j].tried |= linear;
    p->cover->sums[i][j].met |= !linear;
    p->cover->sums[i][j].shown |= !linear && how;
}

static uint64_t all(int count)
{
    return count < 64 ? (UINT64_C(1) << count) - 1 : UINT64_MAX;
}

void check_linear(Problem *p)
{
    const Node *n = p->wide;
    Cost c = node_cost(n);
    if (!n->nin || c.nflop + c.nread > LARGE)
        return;
    for (int i = 0; i < MIN(n->nin, SUM_OPERANDS); i++)
        for (int j = i; j < MIN(n->nin, SUM_OPERANDS); j++)
            check_set(p, UINT64_C(1) << i | UINT64_C(1) << j, i, j);
    if (n->nin > 2)
        check_set(p, all(n->nin), SUM_OPERANDS, 0);
}

/* ---- all lines of an op ---- */

static int check_listed(const Op *op, const Coverage *cover)
{
    int missing = 0;
    for (const char *s = op->linear; *s;) {
        size_t len = strcspn(s, " ");
        bool many = *s == '*', without = s[1] != '+'; /* or "0+2" */
        int i = many ? SUM_OPERANDS : *s - '0', j = many ? 0 : len > 1 ? s[len - 1] - '0' : i;
        if (*s != '-' && (len > (without ? 2 : 3) || !cover->sums[i][j].tried ||
                          !(without || cover->sums[i][i].tried))) {
            printf(
                "tests/op/%s.case: no line tries whether it is linear in the operands \"%.*s\"\n",
                op->name, (int)len, s);
            missing++;
        }
        s += len + (s[len] == ' ');
    }
    return missing;
}

/* The sets that op.def does not list. */
static int check_others(const Op *op, const Coverage *cover)
{
    int missing = 0;
    for (int i = 0; i <= SUM_OPERANDS; i++)
        for (int j = 0; j < SUM_OPERANDS; j++) {
            if (!cover->sums[i][j].met || cover->sums[i][j].shown)
                continue;
            printf("tests/op/%s.case: no line shows that it is not linear in ", op->name);
            if (i == SUM_OPERANDS)
                printf("all operands\n");
            else if (i == j)
                printf("operand %d\n", i);
            else
                printf("operands %d and %d\n", i, j);
            missing++;
        }
    return missing;
}

int check_linear_coverage(const Op *op, const Coverage *cover)
{
    bool runs = !op->region && op->class != CLASS_COLLECTIVE;
    return (runs ? check_listed(op, cover) : 0) + check_others(op, cover);
}
