/* Folds of the ops: each row is a chain of nodes on %x; the fold of the last one must give
 * what the row says, of the same type and with the same bits. "-" is: no fold. */
#include "../shared/case.h"
#include "../shared/interp.h"
#include "../shared/test.h"

/* clang-format off */
/* type of %x, nodes (the last one is folded), what its value becomes */
static const char *const rows[][3] = {
    {"f32[2, 3]", "%y = view(%x, size=[2, 3])", "%x"},
    {"f32[2, 3]", "%y = view(%x, size=[-1, 3])", "%x"},
    {"f32[2, 3]", "%y = view(%x, size=[3, 2])", "-"},
    {"f32[2, 6]", "%a = view(%x, size=[12]) %y = view(%a, size=[-1, 3])", "view(%x, size=[-1, 3])"},
    {"f32[2, 6]", "%a = view(%x, size=[3, 4]) %y = view(%a, size=[2, 6])", "%x"},
    {"f32[2, 6]", "%a = unsqueeze(%x, dim=1) %y = view(%a, size=[12])", "view(%x, size=[12])"},
    {"f32[1, 6]", "%a = squeeze(%x, dim=[0]) %y = view(%a, size=[1, 6])", "%x"},
    {"f32[2, 6]", "%a = t(%x) %b = view(%a, size=[12]) %y = view(%b, size=[6, 2])", "t(%x)"},
    {"f32[2, 6]", "%a = t(%x) %y = view(%a, size=[2, 6])", "-"},
    {"f32[2, 3]", "%y = squeeze(%x, dim=[1])", "%x"},
    {"f32[2, 1]", "%y = squeeze(%x, dim=[1])", "-"},
    {"f32[2, 1]", "%a = squeeze(%x, dim=[1]) %y = unsqueeze(%a, dim=1)", "%x"},
    {"f32[2, 1]", "%a = squeeze(%x, dim=[1]) %y = unsqueeze(%a, dim=0)", "-"},
    {"f32[2, 3]", "%a = unsqueeze(%x, dim=0) %y = squeeze(%a, dim=[0])", "%x"},
    {"f32[2, 3]", "%y = permute(%x, dims=[0, -1])", "%x"},
    {"f32[2, 3]", "%y = permute(%x, dims=[1, 0])", "-"},
    {"f32[2, 3, 4]", "%a = permute(%x, dims=[2, 0, 1]) %y = permute(%a, dims=[1, 2, 0])", "%x"},
    {"f32[2, 3, 4]", "%a = permute(%x, dims=[1, 2, 0]) %y = permute(%a, dims=[1, 0, 2])", "permute(%x, dims=[2, 1, 0])"},
    {"f32[3, 3, 3]", "%a = permute(%x, dims=[1, 2, 0]) %y = permute(%a, dims=[1, 2, 0])", "permute(%x, dims=[2, 0, 1])"},
    {"f32[3, 3]", "%a = t(%x) %y = t(%a)", "%x"},
    {"f32[3, 3]", "%a = t(%x) %y = transpose(%a, dim0=0, dim1=-1)", "%x"},
    {"f32[3, 3]", "%y = t(%x)", "-"},
    {"f32[3, 3]", "%y = transpose(%x, dim0=1, dim1=-1)", "%x"},
    {"f32[3, 3]", "%y = transpose(%x, dim0=0, dim1=1)", "-"},
    {"f32[2, 3, 3]", "%a = transpose(%x, dim0=1, dim1=2) %y = transpose(%a, dim0=2, dim1=1)", "%x"},
    {"f32[3, 3, 3]", "%a = transpose(%x, dim0=0, dim1=1) %y = transpose(%a, dim0=1, dim1=2)", "permute(%x, dims=[1, 2, 0])"},
    {"f32[2, 3]", "%y = expand(%x, size=[-1, 3])", "%x"},
    {"f32[1, 3]", "%y = expand(%x, size=[2, 3])", "-"},
    {"f32[1, 3]", "%y = expand(%x, size=[1, 1, 3])", "-"},
    {"f32[1, 3]", "%a = expand(%x, size=[2, 3]) %y = expand(%a, size=[4, -1, -1])", "expand(%x, size=[4, 2, 3])"},
    {"f32[4, 3]", "%y = slice(%x, start=-9)", "%x"},
    {"f32[4, 3]", "%y = slice(%x, dim=1, end=3)", "%x"},
    {"f32[4, 3]", "%y = slice(%x, dim=1, end=2)", "-"},
    {"f32[4, 3]", "%y = slice(%x, step=2)", "-"},
    {"f32[4, 3]", "%y = split(%x, split_sizes=[4])", "%x"},
    {"f32[4, 3]", "%y = detach(%x)", "%x"},
    {"f32[4, 3]", "%y = cat(%x)", "%x"},
    {"f32[4, 3]", "%y = cat(%x, %x)", "-"},
    {"f32[4, 3]", "%a, %b = split(%x, split_sizes=[1, 3]) %y = cat(%a, %b)", "%x"},
    {"f32[4, 4]", "%a, %b = split(%x, split_sizes=[2, 2]) %y = cat(%b, %a)", "-"},
    {"f32[4, 4]", "%a, %b = split(%x, split_sizes=[2, 2]) %y = cat(%a, %b, dim=1)", "-"},
    {"f32[4, 4]", "%a, %b = split(%x, split_sizes=[2, 2], dim=-1) %y = cat(%a, %b, dim=1)", "%x"},
    {"f32[4, 3]", "%a, %b, %c = split(%x, split_sizes=[1, 1, 2]) %y = cat(%a, %b)", "-"},
    {"f32[4, 3]", "%y = slice_backward(%x, input_sizes=[4, 3])", "%x"},
    {"f32[4, 3]", "%y = slice_backward(%x, input_sizes=[5, 3], start=1)", "-"},
    {"f32[2, 3]", "%a = neg(%x) %y = neg(%a)", "%x"},
    {"f32[2, 3]", "%a = abs(%x) %y = neg(%a)", "-"},
    {"bool[4]", "%a = logical_not(%x) %y = logical_not(%a)", "%x"},
    {"f32[2, 3]", "%y = _to_copy(%x, dtype=f32)", "%x"},
    {"f32[2, 3]", "%y = _to_copy(%x, dtype=f64)", "-"},
    {"f32[2, 3]", "%a = full(size=[], fill_value=1.0) %y = mul(%x, %a)", "%x"},
    {"f32[2, 3]", "%a = full(size=[3], fill_value=1.0) %y = mul(%a, %x)", "%x"},
    {"f32[2, 3]", "%a = full(size=[4, 1, 1], fill_value=1.0) %y = mul(%a, %x)", "-"},
    {"f32[2, 3]", "%a = full(size=[], fill_value=2.0) %y = mul(%x, %a)", "-"},
    {"f32[2, 3]", "%a = full(size=[], fill_value=1.0) %y = div(%x, %a)", "%x"},
    {"f32[2, 3]", "%a = full(size=[], fill_value=1.0) %y = div(%a, %x)", "-"},
};
/* clang-format on */

/* The value as text: "%x", or its node without the name. */
static const char *definition(Arena *a, const Graph *g, const Value *v)
{
    Buf b = {.a = a};
    graph_print(&b, g);
    const char *start = v->def ? strstr(b.text, arena_printf(a, "  %%%s: ", v->name)) : NULL;
    if (!start)
        return arena_printf(a, "%%%s", v->name);
    const char *from = strstr(start, " = ") + 3;
    const char *end = strchr(from, ')');
    return arena_strndup(a, from, (size_t)(end + 1 - from));
}

static void check_bits(Arena *a, Graph *g, Value *y, Value *v)
{
    Tensor x = tensor_new(a, &g->in[0].v->type, 0), out[2];
    for (int64_t i = 0; i < tensor_nelem(&x); i++)
        tensor_set(&x, i, (double)i);
    g->nout = 0;
    graph_output(g, y, ROLE_NONE, NULL);
    graph_output(g, v, ROLE_NONE, NULL);
    interp_graph(a, g, &x, out);
    EXPECT(tensor_same_bits(&out[0], &out[1]));
}

static void check_row(Arena *a, const char *const row[3])
{
    Buf text = {.a = a};
    buf_printf(&text, "tenon 1\ngraph g(%%x: %s) {\n", row[0]);
    for (const char *c = row[1]; *c; c++) { /* a line for each node */
        buf_addn(&text, c, 1);
        if (*c == ')')
            buf_add(&text, "\n");
    }
    buf_add(&text, "\n  return %y\n}\n");
    Graph *g = graph_parse(a, text.text, "row");
    Build b = {.g = g, .before = g->last};
    Value *y = g->last->out[0], *v = g->last->op->rules->fold(&b, g->last);
    const char *got = v ? definition(a, g, v) : "-";
    if (!EXPECT(!strcmp(got, row[2])))
        printf("  %s: expected %s, found %s\n", row[1], row[2], got);
    if (v && EXPECT(type_equal(&v->type, &y->type)))
        check_bits(a, g, y, v);
}

static void run(void *arg)
{
    for (int i = 0; i < LEN(rows); i++) {
        check_row(arg, rows[i]);
        arena_reset(arg);
    }
}

int main(void)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    if (!EXPECT(ctx_try(&ctx, run, a) == TN_OK))
        printf("  %s\n", ctx.message);
    arena_free(a);
    return test_report();
}
