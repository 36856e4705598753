/* Graphs in which one value has many readers, or stands in a long chain: reading, verifying, each
 * pass and planning stay linear. Of 20,000 nodes each takes hundredths of a second; what walks the
 * readers of a value for each of them took 5 s. Processor time, which others on the machine do not
 * lengthen, against a limit that is far from both. */
#include "../src/pass/pass.h"
#include "../src/plan/plan.h"
#include "test.h"

static const double LIMIT_SEC = 1.5;

typedef struct Work {
    Ctx *ctx;
    Arena *a;
    Graph *g;
    const char *name, *pass;
    void (*make)(Build *b, int count, Value **v);
} Work;

/* ---- graphs ---- */

static Value *square(Build *b, int64_t rows)
{
    Type t = type_make(F32, 2, (int64_t[]){rows, 4});
    Value *x = graph_input(b->g, "x", t, ROLE_PARAM, "x");
    return emit1(b, "mul", IN(x, x), NOATTRS);
}

static void finish(Build *b, int count, Value **v)
{
    Value *all = emit1(b, "cat", count, v, NOATTRS);
    b->phase = LOSS;
    graph_output(b->g, emit1(b, "sum", IN(all), NOATTRS), ROLE_LOSS, NULL);
}

/* Slices of one value. */
static void slices(Build *b, int count, Value **v)
{
    Value *y = square(b, count);
    for (int i = 0; i < count; i++)
        v[i] = emit1(b, "slice", IN(y), ATTRS(A_INT("start", i), A_INT("end", i + 1)));
    finish(b, count, v);
}

/* Ops with another attribute each. */
static void attributes(Build *b, int count, Value **v)
{
    Value *y = square(b, 4);
    for (int i = 0; i < count; i++)
        v[i] = emit1(b, "constant_pad_nd", IN(y),
                     ATTRS(A_INTS("pad", 2, ((int64_t[]){0, 1})), A_FLOAT("value", i)));
    finish(b, count, v);
}

/* Equal nodes of which none may go, and copies of one value. */
static void obeyed(Build *b, int count, Value **v)
{
    Value *y = square(b, 4);
    for (int i = 0; i < count; i++) {
        b->policy = i % 2 ? MUST_SAVE : POLICY_NONE;
        b->origin = i % 2 ? NULL : arena_printf(b->g->a, "origin%d", i);
        v[i] = emit1(b, "tanh", IN(y), NOATTRS);
    }
    b->policy = POLICY_NONE;
    b->origin = NULL;
    finish(b, count, v);
}

/* Views of views. */
static void chain(Build *b, int count, Value **v)
{
    int64_t n = 32, half[] = {4, 8};
    v[0] = emit1(b, "t", IN(square(b, 8)), NOATTRS);
    for (int i = 1; i < count; i++)
        v[0] = emit1(b, "view", 1, v,
                     i % 2 ? ATTRS(A_INTS("size", 1, &n)) : ATTRS(A_INTS("size", 2, half)));
    finish(b, 1, v);
}

/* ---- what is timed ---- */

static void run_pass(void *arg)
{
    const Work *w = arg;
    PassOptions o = pass_defaults();
    passes_run(w->g, w->pass, &o, NULL, NULL);
}

static void read_text(void *arg)
{
    Work *w = arg;
    Buf b = {.a = w->a};
    graph_print(&b, w->g);
    w->g = graph_parse(w->a, b.text, "scale.tn");
    graph_verify(w->g);
}

static void make_plan(void *arg)
{
    const Work *w = arg;
    plan_make(w->a, w->g, NULL);
}

static void timed(Work *w, const char *what, void (*fn)(void *))
{
    double start = cpu_sec();
    bool good = !ctx_try(w->ctx, fn, w);
    double sec = cpu_sec() - start;
    if (!EXPECT(good))
        printf("  %s, %s: %s\n", w->name, what, w->ctx->message);
    if (!EXPECT(sec < LIMIT_SEC))
        printf("  %s, %s: %.2f s\n", w->name, what, sec);
    printf("note: %s, %s: %.3f s\n", w->name, what, sec);
}

static const struct {
    const char *name;
    void (*make)(Build *b, int count, Value **v);
} shapes[] = {{"slices", slices}, {"attributes", attributes}, {"obeyed", obeyed}, {"chain", chain}};

static void make(void *arg)
{
    Work *w = arg;
    int count = getenv("TN_QUICK") ? 1000 : 20000;
    Build b = {.g = w->g = graph_new(w->a, "scale"), .scope = ""};
    w->make(&b, count, NEWN(w->a, Value *, count));
}

int main(void)
{
    static const char *const passes[] = {"cse",   "dce",  "grad",   "precision",
                                         "remat", "fuse", "unfuse", "canonicalize,cse,dce",
                                         "remat", "fuse", "unfuse"};
    for (int i = 0; i < LEN(shapes); i++) {
        Ctx ctx = {0};
        Work w = {
            .ctx = &ctx, .a = arena_new(&ctx), .name = shapes[i].name, .make = shapes[i].make};
        CHECK(w.a);
        timed(&w, "making", make);
        timed(&w, "reading and verifying", read_text);
        for (int k = 0; k < LEN(passes); k++) {
            w.pass = passes[k];
            timed(&w, w.pass, run_pass);
        }
        timed(&w, "planning", make_plan);
        arena_free(w.a);
        ctx_end(&ctx);
    }
    return test_report();
}
