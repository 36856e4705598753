/* Copies of nodes whose operands lie otherwise than the originals': they are copied first, and the
 * bits are the originals'; what may lie as it likes is not copied. */
#include "../shared/test.h"

#include "../shared/graphs.h"

static Ctx ctx;
static Arena *a;

static Graph *parse(const char *text)
{
    return graph_parse(a, arena_printf(a, "tenon 1\n%s", text), "t");
}

static const Step *step_of(const Plan *p, const char *name)
{
    for (int i = 0; i < p->nstep; i++)
        if (p->step[i].kind == STEP_CALL && !p->step[i].copy &&
            !strcmp(p->step[i].node->out[0]->name, name))
            return &p->step[i];
    return NULL;
}

/* The graph's results are %y and %again, of equal operands. `copies`: how many of those are to be
 * copied. They run by one kernel, which sees the same, and have the same bits. */
static void compare(const char *what, const char *text, int copies)
{
    Graph *g = parse(text);
    const Plan *p = plan_make(a, g, NULL);
    const Step *y = step_of(p, "y"), *again = step_of(p, "again");
    bool same = EXPECT(y && again && y->kernel == again->kernel && p->ncopies == copies) &&
                EXPECT(y->call.nbytes_work == again->call.nbytes_work) &&
                EXPECT(!strcmp(way_key(a, &y->call), way_key(a, &again->call)));
    Tensor *x = graphs_execute(a, g, graphs_inputs(a, g));
    same &= EXPECT(!memcmp(x[0].data, x[1].data, (size_t)type_nbytes(&g->out[0].v->type)));
    if (!same)
        printf("  %s: %d copies\n", what, p->ncopies);
}

#define W     "%t: f32[501, 70] = t(%w)  forward\n"
#define DENSE "%c: f32[501, 70] = clone(%t)  forward\n"
#define MM(in)                                                       \
    "graph g(%x: f32[60, 501], %w: f32[70, 501]) {\n  " W "  " DENSE \
    "  %y: f32[60, 70] = mm(%x, " in ")  forward\n"

static void test_products(void)
{
    compare("a transposed operand, row-major in the copy",
            MM("%t") "  %again: f32[60, 70] = mm(%x, %c)  backward origin=%y\n"
                     "  return %y, %again\n}\n",
            1);
    compare("the reverse",
            MM("%c") "  %again: f32[60, 70] = mm(%x, %t)  backward origin=%y\n"
                     "  return %y, %again\n}\n",
            1);
    compare("both transposed",
            MM("%t") "  %again: f32[60, 70] = mm(%x, %t)  backward origin=%y\n"
                     "  return %y, %again\n}\n",
            0);
    compare("a copy of a copy",
            MM("%t") "  %z: f32[60, 70] = mm(%x, %t)  backward origin=%y\n"
                     "  %again: f32[60, 70] = mm(%x, %c)  backward origin=%z\n"
                     "  return %y, %again, %z\n}\n",
            1);
    compare("rows with gaps",
            "graph g(%x: f32[60, 600], %w: f32[500, 70]) {\n"
            "  %s: f32[60, 500] = slice(%x, dim=1, start=17, end=517)  forward\n"
            "  %c: f32[60, 500] = clone(%s)  forward\n"
            "  %y: f32[60, 70] = mm(%s, %w)  forward\n"
            "  %again: f32[60, 70] = mm(%c, %w)  backward origin=%y\n"
            "  return %y, %again\n}\n",
            1);
    compare("heads side by side",
            "graph g(%x: f32[60, 3, 50], %w: f32[3, 50, 70]) {\n"
            "  %s: f32[3, 60, 50] = permute(%x, dims=[1, 0, 2])  forward\n"
            "  %c: f32[3, 60, 50] = clone(%s)  forward\n"
            "  %y: f32[3, 60, 70] = bmm(%s, %w)  forward\n"
            "  %again: f32[3, 60, 70] = bmm(%c, %w)  backward origin=%y\n"
            "  return %y, %again\n}\n",
            1);
}

static void test_others(void)
{
    compare("a sum down columns",
            "graph g(%x: f32[501, 70]) {\n"
            "  %s: f32[70, 501] = t(%x)  forward\n"
            "  %c: f32[70, 501] = clone(%s)  forward\n"
            "  %y: f32[70] = sum(%s, dim=[1])  forward\n"
            "  %again: f32[70] = sum(%c, dim=[1])  backward origin=%y\n"
            "  return %y, %again\n}\n",
            1);
    Graph *g = parse("graph g(%x: f32[50, 70]) {\n"
                     "  %s: f32[70, 50] = t(%x)  forward\n"
                     "  %c: f32[70, 50] = clone(%s)  forward\n"
                     "  %y: f32[70, 50] = sin(%s)  forward\n"
                     "  %again: f32[70, 50] = sin(%c)  backward origin=%y\n"
                     "  return %y, %again\n}\n");
    const Plan *p = plan_make(a, g, NULL);
    EXPECT(!p->ncopies && !tensor_contiguous(&step_of(p, "y")->call.in[0]));
    EXPECT(tensor_contiguous(&step_of(p, "again")->call.in[0]));
}

/* Elements that overlap cannot be copied so; a ring of origins, one that is gone, another op. */
static void test_left(void)
{
    static const char *const text[] = {
        "graph g(%x: f32[1, 501], %w: f32[501, 70]) {\n"
        "  %s: f32[60, 501] = expand(%x, size=[60, 501])  forward\n"
        "  %c: f32[60, 501] = clone(%s)  forward\n"
        "  %y: f32[60] = sum(%s, dim=[1])  forward\n"
        "  %again: f32[60] = sum(%c, dim=[1])  backward origin=%y\n"
        "  return %y, %again\n}\n",
        MM("%t") "  %again: f32[60, 70] = mm(%x, %c)  backward origin=%gone\n"
                 "  return %y, %again\n}\n",
        MM("%t") "  %z: f32[60, 70] = mm(%x, %t)  backward origin=%again\n"
                 "  %again: f32[60, 70] = mm(%x, %c)  backward origin=%z\n"
                 "  return %y, %again, %z\n}\n",
        MM("%t") "  %again: f32[60, 70] = mm(%x, %c)  backward origin=%c\n"
                 "  return %y, %again\n}\n"};
    for (int i = 0; i < LEN(text); i++)
        EXPECT(!plan_make(a, parse(text[i]), NULL)->ncopies);
}

static void test_loop(void)
{
    compare("in a loop's body",
            "graph g(%x: f32[120, 501], %w: f32[70, 501]) {\n"
            "  %y_all: f32[120, 70], %again_all: f32[120, 70] = loop(n=2, slice %x: f32[60, 501] = "
            "%x axis 0, whole %w: f32[70, 501] = %w) -> (concat axis 0, concat axis 0) {\n"
            "    " W "    " DENSE "    %y: f32[60, 70] = mm(%x, %t)  forward\n"
            "    %again: f32[60, 70] = mm(%x, %c)  backward origin=%y\n"
            "    yield %y, %again\n  }\n"
            "  return %y_all, %again_all\n}\n",
            3); /* two of what the body yields */
}

static void run(void *arg)
{
    (void)arg;
    test_products();
    test_others();
    test_left();
    test_loop();
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
