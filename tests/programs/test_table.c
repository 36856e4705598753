/* The tables and what they show of each op: an example that infers, a backward that is a graph with
 * the gradients of all operands, the cost of the rule, axes that multiply up from factors. */
#include "../shared/test.h"

#include "../../include/tenon.h"
#include "../../src/op/op.h"

typedef struct Subject {
    tn_context *api;
    Arena *a;
    const Op *op;
} Subject;

/* A failure names the op. */
static void holds(const Subject *s, bool ok, const char *what)
{
    if (!test_note(ok, __FILE__, __LINE__, what))
        printf("  op: %s\n", s->op->name);
}

static const char *show(const Subject *s, const char *rule)
{
    const char *text = "";
    int code = tn_ops(s->api, s->op->name, rule, &text);
    holds(s, code == TN_CODE_OK, rule);
    if (code)
        printf("  %s\n", tn_error(s->api));
    return text;
}

/* The text's graph; fails where it is malformed or breaks a rule. */
static Graph *read_graph(const Subject *s, const char *text)
{
    Graph *g = graph_parse(s->a, text, s->op->name);
    graph_verify(g);
    return g;
}

/* The last node; of an op whose result must be waited for, the one before. */
static const Node *node_from(const Subject *s, const Graph *g)
{
    return op_starts(s->op) ? g->last->prev : g->last;
}

/* ---- attributes ---- */

/* The example's text with one more attribute of the op's call; NULL: the call has it already. */
static const char *with_attr(const Subject *s, const char *text, const char *name,
                             const char *value)
{
    const char *call = strstr(text, arena_printf(s->a, " = %s(", s->op->name));
    const char *end = call ? strchr(call, '\n') : NULL, *has = NULL;
    while (end && *end != ')')
        end--;
    has = call ? strstr(call, arena_printf(s->a, "%s=", name)) : NULL;
    holds(s, call && end > call, "the example calls the op");
    if (!call || (has && has < end))
        return NULL;
    bool first = end[-1] == '(';
    return arena_printf(s->a, "%.*s%s%s=%s%s", (int)(end - text), text, first ? "" : ", ", name,
                        value, end);
}

/* What is shown as a default can be written, and means what leaving it out does. */
static void check_attrs(const Subject *s)
{
    const char *line = arena_strdup(s->a, show(s, NULL)), *example = show(s, "infer");
    for (const AttrField *f = op_attrs(s->op); f->kind; f++) {
        const char *at = strstr(line, arena_printf(s->a, "  attribute %s: ", f->name));
        holds(s, at != NULL, f->name);
        at = at ? at + strlen("  attribute ") : "";
        const char *end = strchr(at, '\n'), *equal = strstr(at, " = ");
        bool absent = end && end - at > 9 && !strncmp(end - 9, " (absent)", 9);
        equal = equal && equal < end ? equal : NULL;
        holds(s, f->required ? !equal && !absent : absent == !equal, "a default, or none");
        holds(s, !f->optional || absent, "an optional attribute has no value where it is absent");
        const char *value =
            equal ? arena_printf(s->a, "%.*s", (int)(end - equal - 3), equal + 3) : NULL;
        const char *text = value ? with_attr(s, example, f->name, value) : NULL;
        if (!text)
            continue;
        Buf b = {.a = s->a};
        graph_print(&b, read_graph(s, text));
        holds(s, !strcmp(b.text, example), text);
    }
}

/* ---- infer and cost ---- */

static void check_infer(const Subject *s)
{
    const Graph *g = read_graph(s, show(s, "infer"));
    const Node *n = node_from(s, g);
    holds(s, n->op == s->op, "the example's last node is the op's");
    holds(s, s->op->nout < 0 || s->op->nout == n->nout, "as many results as the row says");
}

static void check_cost(const Subject *s)
{
    Cost c = node_cost(node_from(s, read_graph(s, show(s, "infer"))));
    const char *want =
        arena_printf(s->a, "flops         %8.0f\nbytes read    %8.0f\nbytes written %8.0f\n",
                     c.nflop, c.nread, c.nwrite);
    holds(s, strstr(show(s, "cost"), want) != NULL, "cost is the rule's");
    holds(s, c.nflop + c.nread + c.nwrite > 0 || s->op->view, "something is computed or moved");
}

/* ---- diff ---- */

static void check_diff(const Subject *s)
{
    const char *text = show(s, "diff");
    if (!s->op->rules->diff && s->op->region != LOOP) {
        holds(s, !strcmp(text, arena_printf(s->a, "%s cannot be differentiated\n", s->op->name)),
              "an op without diff says so");
        return;
    }
    const Graph *g = read_graph(s, text);
    int count = 0;
    for (int i = 0; i < g->nin; i++) {
        const Port *p = &g->in[i];
        if (p->role != ROLE_PARAM)
            continue;
        const char *zero = arena_printf(s->a, "# the gradient of %%%s is zero\n", p->name);
        bool found = graph_find_output(g, ROLE_GRAD, p->name) != NULL;
        holds(s, found != (strstr(text, zero) != NULL), "a gradient, or a word that it is zero");
        count++;
    }
    holds(s, count > 0, "some operand is differentiated");
}

/* ---- factors ---- */

enum { LETTERS = 26 };

/* One value's axes, "[a*b, 1]": each is its size, or the product of its factors. */
static bool axes_multiply(const char *axes, const Type *t, const long long *size)
{
    const char *at = axes;
    for (int d = 0; d < t->rank; d++) {
        long long product = 1;
        do {
            at++;
            bool letter = *at >= 'a' && *at < 'a' + LETTERS;
            product *= letter ? size[*at - 'a'] : strtoll(at, NULL, 10);
            at += strcspn(at, "*,]");
        } while (*at == '*');
        if (product != t->dim[d] || (d + 1 < t->rank && *at++ != ','))
            return false;
    }
    return !strcmp(t->rank ? at : at + 1, "]");
}

static void check_value(const Subject *s, const char *text, const Value *v, const long long *size)
{
    const char *row = strstr(text, arena_printf(s->a, "\n%s ", v->name));
    const char *type = row ? strstr(row, type_text(s->a, &v->type)) : NULL;
    const char *axes = type ? strstr(type, "  [") : NULL;
    const char *end = axes ? strchr(axes, '\n') : NULL;
    holds(s, end != NULL, "each operand and result has a row");
    if (end)
        holds(
            s,
            axes_multiply(arena_strndup(s->a, axes + 2, (size_t)(end - axes - 2)), &v->type, size),
            "axes are the products of their factors");
}

static void check_factors(const Subject *s)
{
    const Node *n = node_from(s, read_graph(s, show(s, "infer")));
    const char *text = show(s, "factors"), *line = strstr(text, "factor  kind");
    long long size[LETTERS] = {0};
    char letter, kind[16];
    holds(s, line != NULL, "a table of factors");
    while (line && (line = strchr(line, '\n')) && line[1] != '\n') {
        line++;
        long long x;
        bool ok = sscanf(line, "%c %15s %lld", &letter, kind, &x) == 3 && letter >= 'a';
        holds(s, ok, "a factor has a name, a kind and a size");
        if (ok)
            size[letter - 'a'] = x;
    }
    for (int i = 0; i < n->nin; i++)
        check_value(s, text, n->in[i], size);
    for (int k = 0; k < n->nout; k++)
        check_value(s, text, n->out[k], size);
}

/* ---- every op ---- */

static void check_op(void *arg)
{
    const Subject *s = arg;
    holds(s, s->op->rules->example != NULL, "every op has an example");
    if (!s->op->rules->example)
        return;
    check_infer(s);
    check_attrs(s);
    check_cost(s);
    check_diff(s);
    check_factors(s);
    const char *text = show(s, NULL);
    holds(s, s->op->region || strstr(text, s->op->rules->example), "the example is printed");
}

static void check_ops(tn_context *api)
{
    Ctx ctx = {0};
    for (int i = 0; i < op_count; i++) {
        Subject s = {.api = api, .a = arena_new(&ctx), .op = &op_table[i]};
        bool ok = ctx_try(&ctx, check_op, &s) == TN_OK;
        holds(&s, ok, "what is shown is a good graph");
        if (!ok)
            printf("  %s\n", ctx.message);
        arena_free(s.a);
    }
}

/* ---- exact texts, the table, errors ---- */

static void expect_text(tn_context *api, const char *op, const char *rule, const char *want)
{
    const char *text = "";
    EXPECT(!tn_ops(api, op, rule, &text));
    if (!EXPECT(!strcmp(text, want)))
        printf("  ops %s --show %s:\n%s", op, rule, text);
}

static void expect_part(tn_context *api, const char *op, const char *rule, const char *part)
{
    const char *text = "";
    EXPECT(!tn_ops(api, op, rule, &text));
    if (!EXPECT(strstr(text, part)))
        printf("  ops %s --show %s: expected %s, found\n%s", op, rule, part, text);
}

static void check_texts(tn_context *api)
{
    expect_text(api, "mm", "infer",
                "tenon 1\n"
                "graph mm(%x0: f32[4, 6], %x1: f32[6, 5]) {\n"
                "  %y: f32[4, 5] = mm(%x0, %x1)  forward\n"
                "  return %y\n"
                "}\n");
    expect_text(api, "mm", "diff",
                "tenon 1\n"
                "graph mm(%x0: f32[4, 6] param \"x0\", %x1: f32[6, 5] param \"x1\", "
                "%dy: f32[4, 5]) {\n"
                "  %y: f32[4, 5] = mm(%x0, %x1)  forward\n"
                "  %t: f32[5, 6] = t(%x1)  backward\n"
                "  %mm: f32[4, 6] = mm(%dy, %t)  backward\n"
                "  %t_1: f32[6, 4] = t(%x0)  backward\n"
                "  %mm_1: f32[6, 5] = mm(%t_1, %dy)  backward\n"
                "  return %y, grad \"x0\" %mm, grad \"x1\" %mm_1\n"
                "}\n");
    expect_text(api, "mm", "cost",
                "flops              240\n"
                "bytes read         216\n"
                "bytes written       80\n");
    expect_text(api, "mm", "factors",
                "factor  kind      size  offset  partials\n"
                "a       parallel  4     -       -\n"
                "b       parallel  5     -       -\n"
                "c       sum       6     -       -\n"
                "\n"
                "value  type       axes\n"
                "x0     f32[4, 6]  [a, c]\n"
                "x1     f32[6, 5]  [c, b]\n"
                "y      f32[4, 5]  [a, b]\n");
    expect_part(api, "view", "factors", "f32[16, 4]    [c*b, a]\n");
    expect_part(api, "addmm", "factors", "c       sum       6     -       sum\n");
    expect_part(api, "dropout", "factors",
                "a       parallel  2     x3      -\nb       parallel  8     placed  -\n");
    expect_part(api, "dropout", "diff", "stream=0\n");
    expect_part(api, "flash_attention", "diff", "# flash_attention %y0: has no gradient through");
    expect_part(api, "loop", "diff", "      reverse,\n");
    expect_part(api, "loop", "cost", "# the rules of loop follow from its ports");
    expect_part(api, "rope_table", NULL, "  inputs: 0-1\n  outputs: 2\n  attribute length: int\n");
    expect_part(api, "loop", NULL, "  example:\n    tenon 1\n    graph loop(");
}

/* Every row has its cells where the header has its. */
static void check_table(tn_context *api)
{
    const char *text = "";
    EXPECT(!tn_ops(api, NULL, NULL, &text));
    size_t width = strcspn(text, "\n");
    int rows = 0;
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1, rows++)
        for (size_t i = 1; i < width; i++)
            if (text[i] != ' ' && text[i - 1] == ' ') {
                EXPECT(strcspn(line, "\n") > i && line[i] != ' ');
                EXPECT(line[i - 1] == ' ' && line[i - 2] == ' ');
            }
    EXPECT(rows == 1 + op_count);
    EXPECT(strstr(text, "\nsplit "));
}

static void check_errors(tn_context *api)
{
    const char *text;
    EXPECT(tn_ops(api, "flash_atention", "diff", &text) == TN_CODE_USAGE);
    EXPECT(strstr(tn_error(api), "the nearest is \"flash_attention\""));
    EXPECT(tn_ops(api, "mmm", NULL, &text) == TN_CODE_USAGE);
    EXPECT(strstr(tn_error(api), "unknown op \"mmm\"; the nearest is \"mm\""));
    EXPECT(tn_ops(api, "mm", "fold", &text) == TN_CODE_USAGE);
    EXPECT(strstr(tn_error(api), "expected infer, diff, cost or factors, found \"fold\""));
}

int main(void)
{
    tn_context *api = tn_context_new();
    check_ops(api);
    check_texts(api);
    check_table(api);
    check_errors(api);
    tn_context_free(api);
    return test_report();
}
