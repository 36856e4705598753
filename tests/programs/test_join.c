/* Operands of a cat that are made inside its result: when they are, that the bits are those of a
 * cat that copies, and that no peak rises. */
#include "../shared/test.h"

#include "../shared/graphs.h"

static Ctx ctx;
static Arena *a; /* of one test */

static Graph *parse(const char *text)
{
    return graph_parse(a, arena_printf(a, "tenon 1\n%s", text), "t");
}

/* Steps of the plan that are of the op. */
static int count_steps(Graph *g, const char *op)
{
    const Plan *p = plan_make(a, g, NULL);
    int count = 0;
    for (int i = 0; i < p->nstep; i++)
        count += p->step[i].kind == STEP_CALL && p->step[i].node->op == op_find(op);
    return count;
}

/* The text's $ is a second result of the graph that reads what the cat does, or nothing: then the
 * operands cannot be made inside. */
static void compare(const char *what, const char *text, const char *second, int joined, int apart)
{
    const char *at = strchr(text, '$');
    char *one = arena_printf(a, "%.*s%s", (int)(at - text), text, at + 1);
    char *two = arena_printf(a, "%.*s, %s%s", (int)(at - text), text, second, at + 1);
    Graph *g = parse(one), *h = parse(two);
    EXPECT(count_steps(g, "cat") == joined);
    if (!EXPECT(count_steps(h, "cat") == apart))
        printf("  %s\n", what);
    Tensor *x = graphs_execute(a, g, graphs_inputs(a, g)),
           *y = graphs_execute(a, h, graphs_inputs(a, h));
    EXPECT(!memcmp(x[0].data, y[0].data, (size_t)type_nbytes(&g->out[0].v->type)));
    EXPECT(plan_make(a, g, NULL)->space[SPACE_MAIN].peak <=
           plan_make(a, h, NULL)->space[SPACE_MAIN].peak);
}

static void test_bits(void)
{
    compare("pointwise, two operands",
            "graph t(%x: f32[5, 3], %y: f32[5, 7]) {\n"
            "  %a: f32[5, 3] = sin(%x)  forward\n"
            "  %b: f32[5, 7] = cos(%y)  forward\n"
            "  %c: f32[5, 10] = cat(%a, %b, dim=1)  forward\n"
            "  %d: f32[5, 10] = exp(%c)  forward\n"
            "  return %d$\n}\n",
            "%a, %b", 0, 1);
    compare("by way of a view",
            "graph t(%x: f32[2, 3, 4], %y: f32[2, 3, 4]) {\n"
            "  %a: f32[2, 3, 4] = sin(%x)  forward\n"
            "  %v: f32[2, 12] = view(%a, size=[2, 12])  forward\n"
            "  %b: f32[2, 3, 4] = cos(%y)  forward\n"
            "  %w: f32[2, 12] = view(%b, size=[2, 12])  forward\n"
            "  %c: f32[2, 24] = cat(%v, %w, dim=-1)  forward\n"
            "  %d: f32[2, 24] = exp(%c)  forward\n"
            "  return %d$\n}\n",
            "%a, %b", 0, 1);
    compare("a product is copied, the rest is made inside",
            "graph t(%x: f32[4, 4], %y: f32[4, 4]) {\n"
            "  %a: f32[4, 4] = mm(%x, %y)  forward\n"
            "  %b: f32[4, 4] = cos(%y)  forward\n"
            "  %c: f32[4, 8] = cat(%a, %b, dim=1)  forward\n"
            "  %d: f32[4, 8] = exp(%c)  forward\n"
            "  return %d$\n}\n",
            "%b", 1, 1);
    compare("a view of a part of its source is copied",
            "graph t(%x: f32[8, 4], %y: f32[4, 4]) {\n"
            "  %a: f32[8, 4] = sin(%x)  forward\n"
            "  %v: f32[4, 4] = slice(%a, dim=0, start=0, end=4)  forward\n"
            "  %b: f32[4, 4] = cos(%y)  forward\n"
            "  %c: f32[8, 4] = cat(%v, %b, dim=0)  forward\n"
            "  %d: f32[8, 4] = exp(%c)  forward\n"
            "  return %d$\n}\n",
            "%a, %b", 1, 1);
}

/* Parts of a ring are made inside by kernels that write parts of a tensor anywhere, and by others
 * where they begin as a storage does. */
static void test_ring(void)
{
    static const char text[] = /* the last node is where most bytes are alive */
        "graph t(%%x: f32[%d, 4], %%w: f32[4, 4], %%v: f32[4, 1000]) {\n"
        "  %%a: f32[%d, 4] = %s  forward\n"
        "  %%b: f32[%d, 4] = %s  forward\n"
        "  %%c: f32[%d, 4] = cat_ring(%%a, %%b, first=1)  forward\n"
        "  %%d: f32[%d, 1000] = mm(%%c, %%v)  forward\n"
        "  return %%d\n}\n";
    for (int rows = 3; rows <= 4; rows++) /* of 48 or 64 bytes */
        for (int own = 0; own < 2; own++) {
            const char *one = own ? "sin(%x)" : "mm(%x, %w)", *two = own ? "cos(%x)" : "mm(%a, %w)";
            Graph *g = parse(arena_printf(a, text, rows, rows, one, rows, two, 2 * rows, 2 * rows));
            int want = rows == 3 && !own, steps = count_steps(g, "cat_ring");
            if (!EXPECT(steps == want))
                printf("  %d rows, %s: %d steps, expected %d\n", rows, one, steps, want);
        }
}

/* What nothing reads is there until the cat. */
static void test_unread(void)
{
    Graph *g = parse("graph t(%x: f32[2, 4], %y: f32[2, 4]) {\n"
                     "  %d: f32[2, 4] = sub(%y, %x)  forward\n"
                     "  %a: f32[2, 4] = clone(%y)  forward\n"
                     "  %b: f32[2, 4] = _softmax(%a, dim=-1)  forward\n"
                     "  %e: f32[2, 4] = _softmax(%y, dim=-1)  forward\n"
                     "  %c: f32[2, 12] = cat(%a, %e, %b, dim=1)  forward\n"
                     "  %f: f32[2, 4] = clone(%e)  forward\n"
                     "  return metric \"m1\" %d\n}\n");
    EXPECT(count_steps(g, "cat") == 1); /* plan_make compares the plan's peak with the flow's */
}

/* A result that nothing reads, of a cat that takes no step, is gone after the last operand. */
static void test_unread_result(void)
{
    Graph *g = parse("graph t(%x: f32[16]) {\n"
                     "  %a: f32[16] = sin(%x)  forward\n"
                     "  %b: f32[16] = cos(%x)  forward\n"
                     "  %p: f32[16] = exp(%x)  forward\n"
                     "  %q: f32[16] = exp(%x)  forward\n"
                     "  %r: f32[16] = mul(%p, %q)  forward\n"
                     "  %c: f32[32] = cat(%a, %b)  forward\n"
                     "  return %r\n}\n");
    const Plan *p = plan_make(a, g, NULL); /* compares with the flow's peak */
    EXPECT(p->space[SPACE_MAIN].bound == 3 * 64);
    EXPECT(count_steps(g, "cat") == 0);
}

/* What is made long before the cat stays apart where the whole result would be too much until then.
 */
static void test_peak(void)
{
    Graph *g = parse("graph t(%x: f32[64, 1], %y: f32[64, 400]) {\n"
                     "  %a: f32[64, 1] = sin(%x)  forward\n"
                     "  %m: f32[64, 400] = sin(%y)  forward\n"
                     "  %n: f32[64, 400] = exp(%y)  forward\n"
                     "  %o: f32[64, 400] = add(%m, %n)  forward\n"
                     "  %s: f32[] = sum(%o)  forward\n"
                     "  %b: f32[64, 400] = cos(%y)  forward\n"
                     "  %c: f32[64, 401] = cat(%a, %b, dim=1)  forward\n"
                     "  return %c, %s\n}\n");
    Flow *f = flow_new(g, device_at(DEVICE_cpu), machine_for(a, device_at(DEVICE_cpu), NULL), a);
    int64_t apart = flow_peak(f);
    flow_join(f);
    EXPECT(flow_peak(f) <= apart);
    EXPECT(count_steps(g, "cat") == 1);
    int item = flow_item(f, g->out[0].v->def), y = item_result(f, item, 0);
    EXPECT(!values_share(f, item_operand(f, item, 0), y) &&
           values_share(f, item_operand(f, item, 1), y));
}

static void run(void *arg)
{
    (void)arg;
    test_bits();
    test_ring();
    test_unread();
    test_unread_result();
    test_peak();
}

int main(void)
{
    a = arena_new(&ctx);
    EXPECT(a && !ctx_try(&ctx, run, NULL));
    if (ctx.message[0])
        printf("%s\n", ctx.message);
    arena_free(a);
    ctx_end(&ctx);
    return test_report();
}
