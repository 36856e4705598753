/* Calls that run as one (exec/join.c): kernels of a small plan get a run_all that counts how many
 * calls it is given and runs them in reverse, which shows wherever they are not independent. */
#include "../shared/graphs.h"
#include "../shared/test.h"

#include <string.h>

enum { MOST_GIVEN = 8 };

static Ctx ctx;
static int given[MOST_GIVEN], ngiven;
static const Kernel *real;

static int run_each(Call *const *c, int n)
{
    if (ngiven < MOST_GIVEN)
        given[ngiven] = n;
    ngiven++;
    for (int i = n - 1; i >= 0; i--)
        if (real->run(c[i]))
            return -1;
    return 0;
}

#define UPDATE(w, g)                                                                      \
    "  %p" w ": f32[40], %m" w ": f32[40], %v" w ": f32[40] = adamw(%" w ", %" g ", %m" w \
    "0, %v" w "0, %lr, %step, %scale, %apply)  optimizer\n"
#define INPUTS(w)                                                                                  \
    "%" w ": f32[40] param \"" w "\", %g" w ": f32[40], %m" w "0: f32[40] state \"" w ".m\", %v" w \
    "0: f32[40] state \"" w ".v\", "
#define RESULTS(w) "new \"" w "\" %p" w ", new \"" w ".m\" %m" w ", new \"" w ".v\" %v" w
#define GRAPH(body, results)                                  \
    "tenon 1\ngraph g(" INPUTS("a") INPUTS("b")               \
        INPUTS("c") "%lr: f32[], %step: i64[], "              \
                    "%scale: f32[], %apply: bool[]) {\n" body \
                    "  return " RESULTS("a") ", " RESULTS("b") ", " RESULTS("c") results "\n}\n"

typedef struct Joined {
    const char *what, *text;
    int joined[MOST_GIVEN]; /* what run_all is given, 0 at the end */
} Joined;

static const Joined cases[] = {
    {"independent calls", GRAPH(UPDATE("a", "ga") UPDATE("b", "gb") UPDATE("c", "gc"), ""), {3}},
    {"one reads what another writes",
     GRAPH(UPDATE("a", "ga") UPDATE("b", "pa") UPDATE("c", "gc"), ""),
     {2}},
    {"another call between",
     GRAPH(UPDATE("a", "ga")
               UPDATE("b", "gb") "  %d: f32[40] = relu(%pb)  optimizer\n" UPDATE("c", "gc"),
           ", %d"),
     {2}},
};

/* A kernel as the plan has it, with run_all. */
static void add_run_all(Arena *a, Plan *p)
{
    for (int i = 0; i < p->nstep; i++) {
        Step *s = &p->step[i];
        if (s->kind != STEP_CALL || !node_is(s->node, OP_adamw))
            continue;
        Kernel *with = NEW(a, Kernel);
        real = s->kernel;
        *with = *real;
        with->run_all = run_each;
        for (int k = i; k < p->nstep; k++)
            if (p->step[k].kernel == real)
                p->step[k].kernel = with;
        return;
    }
}

static Tensor *run(Arena *a, const Plan *p, const Tensor *in)
{
    Program *x = program_make(a, p, false, 0);
    Tensor *out = NEWN(a, Tensor, p->nout);
    for (int i = 0; i < p->nin; i++)
        CHECK(!program_write(x, &p->in[i], 0, tensor_nbytes(&in[i]), in[i].data));
    ngiven = 0;
    if (program_run(x))
        fail(&ctx, TN_FAIL, "%s", x->message);
    for (int i = 0; i < p->nout; i++) {
        out[i] = tensor_new(a, &p->out[i].type, 0);
        CHECK(!program_read(x, &p->out[i], 0, tensor_nbytes(&out[i]), out[i].data));
    }
    return out;
}

static void check_case(void *arg)
{
    const Joined *c = arg;
    Arena *a = arena_new(&ctx);
    CHECK(a);
    Graph *g = graph_parse(a, c->text, c->what);
    graph_verify(g);
    const Tensor *in = graphs_inputs(a, g);
    Plan *p = graphs_plan(a, g);
    const Tensor *want = run(a, p, in);
    EXPECT(ngiven == 0);
    add_run_all(a, p);
    const Tensor *got = run(a, p, in);
    int count = 0;
    while (c->joined[count])
        count++;
    if (!EXPECT(ngiven == count && !memcmp(given, c->joined, sizeof *given * (size_t)count)))
        printf("%s: %d joined calls, the first of %d\n", c->what, ngiven, given[0]);
    for (int i = 0; i < p->nout; i++)
        EXPECT(!memcmp(got[i].data, want[i].data, (size_t)tensor_nbytes(&got[i])));
    arena_free(a);
}

int main(void)
{
    for (int i = 0; i < LEN(cases); i++)
        if (!EXPECT(!ctx_try(&ctx, check_case, (void *)(uintptr_t)&cases[i])))
            printf("%s: %s\n", cases[i].what, ctx.message);
    ctx_end(&ctx);
    return test_report();
}
