/* The op and pass tables as text. */
#include "api.h"

#include <string.h>

const char *text_kept(Arena *a, const char **said, const char *text)
{
    if (text && (!*said || strcmp(*said, text) != 0))
        *said = arena_strdup(a, text);
    return text ? *said : NULL;
}

Arena *text_arena(tn_context *ctx)
{
    if (!ctx->a && !(ctx->a = arena_new(&ctx->ctx)))
        fail(&ctx->ctx, TN_FAIL, "out of memory");
    arena_reset(ctx->a);
    return ctx->a;
}

/* ---- aligned columns ---- */

void table_row(Table *t, ...)
{
    va_list args;
    va_start(args, t);
    for (int i = 0; i < t->ncol; i++)
        PUSH(t->a, t->cell, t->count, t->cap, va_arg(args, const char *));
    va_end(args);
}

void table_print(Buf *b, const Table *t)
{
    int *width = NEWN(t->a, int, t->ncol);
    for (int i = 0; i < t->count; i++)
        width[i % t->ncol] = MAX(width[i % t->ncol], (int)strlen(t->cell[i]));
    for (int i = 0; i < t->count; i++)
        if ((i + 1) % t->ncol)
            buf_printf(b, "%-*s  ", width[i % t->ncol], t->cell[i]);
        else
            buf_printf(b, "%s\n", t->cell[i]);
}

/* ---- ops ---- */

static const char *yes(bool x)
{
    return x ? "yes" : "-";
}

/* "2", "0-1", "1+" */
static const char *inputs_text(Arena *a, const Op *op)
{
    if (op->nin_most < 0)
        return arena_printf(a, "%d+", op->nin_least);
    if (op->nin_most == op->nin_least)
        return arena_printf(a, "%d", op->nin_least);
    return arena_printf(a, "%d-%d", op->nin_least, op->nin_most);
}

static const char *outputs_text(Arena *a, const Op *op)
{
    return op->nout < 0 ? "-" : arena_printf(a, "%d", op->nout);
}

static int kernel_count(const Op *op, KernelSet set)
{
    int count = 0;
    for (const Kernel *k = op_kernels(op, set); k && k->name; k++)
        count++;
    return count;
}

static void describe_kernels(Buf *b, const Op *op, KernelSet set, const char *title)
{
    for (const Kernel *k = op_kernels(op, set); k && k->name; k++)
        buf_printf(b, "  %s: %s%s%s\n", title, k->name,
                   k->strided_out ? " (results may be strided)" : "",
                   k->over_wider ? " (a narrower result may lie over its operand)" : "");
}

static bool in_place(const OpRules *r)
{
    bool any = false;
    for (int k = 0; k < LEN(r->inplace); k++)
        any |= r->inplace[k] != 0;
    return any;
}

static void list_ops(Buf *b)
{
    Table t = {.a = b->a, .ncol = 13};
    table_row(&t, "op", "inputs", "outputs", "class", "commutes", "linear", "bf16", "view",
              "differentiable", "in-place", "kernels", "cuda", "mathematics");
    for (int i = 0; i < op_count; i++) {
        const Op *op = &op_table[i];
        const OpRules *r = op->rules;
        table_row(&t, op->name, inputs_text(b->a, op), outputs_text(b->a, op),
                  class_name(op->class), yes(op->commutes), op->linear, op->bf16, yes(op->view),
                  yes(r->diff || op->region == LOOP), yes(in_place(r)),
                  arena_printf(b->a, "%d", kernel_count(op, KERNELS_CPU)),
                  kernels_linked(KERNELS_CUDA)
                      ? arena_printf(b->a, "%d", kernel_count(op, KERNELS_CUDA))
                      : "-",
                  r->math);
    }
    table_print(b, &t);
}

/* One line, but for regions. */
static void describe_example(Buf *b, const Op *op)
{
    const char *s = op->rules->example;
    if (!op->region) {
        buf_printf(b, "  example: %s\n", s);
        return;
    }
    buf_add(b, "  example:\n");
    for (size_t n; *s; s += n + (s[n] == '\n')) {
        n = strcspn(s, "\n");
        buf_printf(b, "    %.*s\n", (int)n, s);
    }
}

static void describe_attrs(Buf *b, const Op *op)
{
    static const char *const kinds[] = {"", "int", "float", "bool", "string", "ints", "dtype"};
    for (const AttrField *f = op_attrs(op); f->kind; f++) {
        Attr fallback = {.i = f->i, .f = f->f, .s = f->s};
        buf_printf(b, "  attribute %s: %s", f->name, kinds[f->kind]);
        bool none = f->kind == ATTR_DTYPE && f->i == NDTYPE;
        if (f->optional ||
            (none && !f->required)) { /* no value that can be written is the default */
            buf_add(b, " (absent)");
        } else if (!f->required) {
            buf_add(b, " = ");
            attr_print(b, f->kind, &fallback);
        }
        buf_add(b, "\n");
    }
}

static void describe_sums(Buf *b, const Op *op)
{
    static const char *const words[] = {['n'] = "narrow",
                                        ['c'] = "common",
                                        ['w'] = "wide",
                                        ['k'] = "kept",
                                        ['s'] = "kept, result narrow"};
    buf_printf(b, "  linear in operands: %s\n", *op->linear == '-' ? "none" : op->linear);
    for (const char *s = op->bf16; *s; s++)
        buf_printf(b, "%s%s", s == op->bf16 ? "  operands with bf16: " : ", ",
                   words[(unsigned char)*s]);
    buf_add(b, op->bf16[1] ? ", ...\n" : "\n");
}

static void describe_op(Buf *b, const Op *op)
{
    const OpRules *r = op->rules;
    buf_printf(b, "%s: %s\n", op->name, r->math);
    buf_printf(b, "  class: %s\n", class_name(op->class));
    buf_printf(b, "  inputs: %s\n", inputs_text(b->a, op));
    buf_printf(b, "  outputs: %s\n",
               op->nout < 0 ? "by attributes or bodies" : outputs_text(b->a, op));
    describe_attrs(b, op);
    describe_sums(b, op);
    for (int k = 0; k < LEN(r->inplace); k++)
        for (int i = 0; i < 8; i++)
            if (r->inplace[k] >> i & 1)
                buf_printf(b, "  in place: result %d over operand %d\n", k, i);
    describe_kernels(b, op, KERNELS_CPU, "kernel");
    describe_kernels(b, op, KERNELS_CUDA, "kernel on cuda");
    buf_printf(b, "  lane in fused bodies: %s\n", r->lane ? "yes" : r->rows ? "by rows" : "none");
    buf_printf(b, "  reference: %s\n", r->ref ? "yes" : "none");
    if (r->alias)
        buf_printf(b, "  alias: %s\n", r->alias);
    describe_example(b, op);
}

static const char *ops_text(Arena *a, const char *name, const char *rule)
{
    Buf b = {.a = a};
    if (!name)
        list_ops(&b);
    else if (rule)
        show_rule(&b, op_get(arena_ctx(a), name), rule);
    else
        describe_op(&b, op_get(arena_ctx(a), name));
    return b.text;
}

int tn_ops(tn_context *ctx, const char *name, const char *rule, const char **text)
{
    if (!GIVEN(ctx, ctx, text))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx)
        *text = ops_text(text_arena(ctx), name, rule);
    int code = tried(&t);
    return code && name && !op_find(name) ? TN_CODE_USAGE : code; /* an argument, not a file's op */
}

/* ---- passes ---- */

/* The letters of the pipelines that have the row, each in its column. */
static const char *columns(Arena *a, const PassRow *row)
{
    Buf b = {.a = a};
    for (int i = 0; i < pass_table.npipeline; i++)
        buf_printf(&b, "%s%c", i ? " " : "",
                   pass_row_in(row, &pass_table.pipeline[i]) ? pass_table.pipeline[i].letter : '-');
    return b.text;
}

static void list_pipelines(Buf *b)
{
    for (int i = 0; i < pass_table.npipeline; i++) {
        const Pipeline *p = &pass_table.pipeline[i];
        buf_printf(b, "%c %s: %s\n", p->letter, p->name, p->what);
    }
    buf_add(b, "\n");
}

static const char *passes_text(Arena *a)
{
    Buf b = {.a = a};
    Table t = {.a = b.a, .ncol = 7};
    list_pipelines(&b);
    table_row(&t, "group", "pass", "in", "needs", "gives", "removes", "what it does");
    for (int i = 0; i < pass_table.nrow; i++) {
        const PassRow *row = &pass_table.row[i];
        bool begins = !i || strcmp(row->group, row[-1].group) != 0;
        table_row(&t, begins ? row->group : "", row->pass->name, columns(b.a, row),
                  pass_properties(b.a, row->pass->needs), pass_properties(b.a, row->pass->gives),
                  pass_properties(b.a, row->pass->removes), row->pass->what);
    }
    table_print(&b, &t);
    return b.text;
}

int tn_passes(tn_context *ctx, const char **text)
{
    if (!GIVEN(ctx, ctx, text))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx)
        *text = passes_text(text_arena(ctx));
    return tried(&t);
}

int tn_passes_have(const char *names, const char *pass)
{
    return names && pass && passes_have(names, pass);
}

const char *tn_nearest(const char *word, const char *const *candidates, int n)
{
    return word && candidates && n > 0 ? nearest(word, candidates, n) : NULL;
}

const char *tn_bytes_text(int64_t nbytes, const char *unit, char *text, size_t size)
{
    return text && size ? bytes_text(nbytes, unit, text, size) : NULL;
}

const char *tn_count_text(int64_t n, const char *noun, char *text, size_t size)
{
    return noun && text && size ? count_text(n, noun, text, size) : NULL;
}

int64_t tn_bytes(const char *text)
{
    return text ? parse_bytes(text) : -1;
}
