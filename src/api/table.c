/* The op and pass tables as text. */
#include "api.h"

#include <string.h>

typedef struct TableArgs {
    tn_context *ctx;
    const char *name, *rule, *text;
} TableArgs;

static Arena *table_arena(tn_context *ctx)
{
    if (!ctx->a) {
        Handle *h = handle_new(ctx, sizeof *h);
        ctx->a = h->a;
    }
    return ctx->a;
}

static void list_ops(Buf *b)
{
    buf_printf(b, "%-28s %-7s %-5s %-5s %-6s %s\n", "op", "inputs", "diff", "view", "random",
               "mathematics");
    for (int i = 0; i < op_count; i++) {
        const Op *op = &op_table[i];
        char inputs[16];
        snprintf(inputs, sizeof inputs, op->nin_most == op->nin_least ? "%d" : "%d+",
                 op->nin_least);
        bool diff = op->rules->diff || op->region;
        buf_printf(b, "%-28s %-7s %-5s %-5s %-6s %s\n", op->name, inputs, diff ? "yes" : "no",
                   op->view ? "yes" : "", op->random ? "yes" : "", op->rules->math);
    }
}

static void describe_attrs(Buf *b, const Op *op)
{
    static const char *const kinds[] = {"", "int", "float", "bool", "string", "ints", "dtype"};
    for (const AttrField *f = op_attrs(op); f->kind; f++) {
        Attr fallback = {.i = f->i, .f = f->f, .s = f->s};
        buf_printf(b, "  attribute %s: %s", f->name, kinds[f->kind]);
        if (!f->required) {
            buf_add(b, " = ");
            attr_print(b, f->kind, &fallback);
        }
        buf_add(b, "\n");
    }
}

static void describe_op(Buf *b, const Op *op)
{
    const OpRules *r = op->rules;
    buf_printf(b, "%s: %s\n", op->name, r->math);
    buf_printf(b, "  inputs: %d%s\n", op->nin_least,
               op->nin_most == op->nin_least ? "" : " or more");
    describe_attrs(b, op);
    for (int k = 0; k < LEN(r->inplace); k++)
        for (int i = 0; i < 8; i++)
            if (r->inplace[k] >> i & 1)
                buf_printf(b, "  in place: result %d over operand %d\n", k, i);
    for (const Kernel *k = r->kernels; k && k->name; k++)
        buf_printf(b, "  kernel: %s\n", k->name);
    buf_printf(b, "  reference: %s\n", r->ref ? "yes" : "none");
    if (r->alias)
        buf_printf(b, "  alias: %s\n", r->alias);
}

/* Rules are C functions; what can be said of them without a node. */
static void describe_rule(Ctx *ctx, Buf *b, const Op *op, const char *rule)
{
    const OpRules *r = op->rules;
    if (!strcmp(rule, "infer"))
        buf_printf(b, "%s: output types follow from %s\n", op->name,
                   op->region        ? "the region's ports"
                   : op->elementwise ? "broadcasting the operands"
                                     : "operands and attributes");
    else if (!strcmp(rule, "diff"))
        buf_printf(b, "%s: %s\n", op->name,
                   r->diff || op->region ? "differentiable" : "cannot be differentiated");
    else if (!strcmp(rule, "cost"))
        buf_printf(b, "%s: %s\n", op->name,
                   r->cost
                       ? "its own rule"
                       : "one flop per result element, every operand read and result written once");
    else if (!strcmp(rule, "factors"))
        buf_printf(b, "%s: %s\n", op->name,
                   r->factors        ? "its own rule"
                   : op->elementwise ? "every axis parallel"
                                     : "every axis whole");
    else
        fail(ctx, TN_USAGE, "rule: expected infer, diff, cost or factors, found \"%s\"", rule);
}

static void ops(void *arg)
{
    TableArgs *x = arg;
    Ctx *ctx = &x->ctx->ctx;
    Buf b = {.a = table_arena(x->ctx)};
    if (!x->name)
        list_ops(&b);
    else if (x->rule)
        describe_rule(ctx, &b, op_get(ctx, x->name), x->rule);
    else
        describe_op(&b, op_get(ctx, x->name));
    x->text = b.text;
}

int tn_ops(tn_context *ctx, const char *name, const char *rule, const char **text)
{
    TableArgs x = {ctx, name, rule, NULL};
    int code = (int)ctx_try(&ctx->ctx, ops, &x);
    if (!code)
        *text = x.text;
    return code;
}

static void passes(void *arg)
{
    TableArgs *x = arg;
    Buf b = {.a = table_arena(x->ctx)};
    for (int i = 0; i < pass_count; i++)
        buf_printf(&b, "%-14s %-9s %s\n", pass_table[i].name,
                   pass_table[i].optional ? "optional" : "", pass_table[i].what);
    x->text = b.text;
}

int tn_passes(tn_context *ctx, const char **text)
{
    TableArgs x = {ctx, NULL, NULL, NULL};
    int code = (int)ctx_try(&ctx->ctx, passes, &x);
    if (!code)
        *text = x.text;
    return code;
}

const char *tn_nearest(const char *word, const char *const *candidates, int n)
{
    return nearest(word, candidates, n);
}

int64_t tn_bytes(const char *text)
{
    return parse_bytes(text);
}
