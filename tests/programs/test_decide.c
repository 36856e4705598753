/* What is computed again so that a step fits. Whole models over 40 budgets: each is held where the
 * least one fits, a larger one is never slower, the same input gives the same plan, and so do two
 * machines with equal seconds; a refusal names the least that is accepted; and at five
 * budgets the loss and all gradients have the bits of a step that saves all, with dropout, in the
 * memory that was planned. So have the results of graphs that PyTorch traced. TN_LONG=1: more of
 * all. */
#include "../../include/tenon.h"
#include "../../src/io/io.h"
#include "../shared/test.h"

#include <math.h>

static Ctx ctx;
static Arena *a; /* of one case */

/* ---- plans of whole models ---- */

enum {
    BUDGETS = 40,
    FEW_BUDGETS = 5,
    LEAST_BUDGETS = 3,
    RUNS = 5,
    FEW_RUNS = 2,
    MOST_BYTES = 1 << 22
};

static bool more, less; /* TN_LONG, TN_QUICK */

typedef struct Asked {
    const char *model, *dtype, *optimizer, *mesh, *chunk, *backend;
    int64_t batch, seq, accumulate;
} Asked;

static const Asked cases[] = {
    {"tests/ref/gpt2-tiny", "f32", "adamw", NULL, NULL, NULL, 16, 32, 1},
    {"tests/ref/llama-tiny", "f32", "none", NULL, NULL, NULL, 16, 32, 1},
    {"tests/ref/llama-tiny", "f32", "adamw", NULL, NULL, "emulated", 16, 32, 1},
    {"tests/ref/gpt2-tiny", "f32", "adamw", NULL, NULL, NULL, 10, 32, 3},
    {"tests/ref/llama-tiny", "bf16", "adamw", NULL, NULL, NULL, 16, 64, 3},
    {"tests/ref/llama-tiny", "f32", "none", NULL, "4", NULL, 16, 32, 1},
    {"tests/ref/gpt2-tiny", "bf16", "none", NULL, NULL, NULL, 32, 32, 1},
    {"tests/ref/qwen3-tiny", "f32", "sgd", NULL, NULL, NULL, 16, 32, 1},
    {"tests/ref/llama-tiny", "f32", "adamw", "fsdp=2", NULL, NULL, 16, 32, 1},
    {"tests/ref/gpt2-tiny", "bf16", "adamw", "dp=2", NULL, NULL, 16, 32, 2},
    {"demo", "f32", "adamw", NULL, NULL, NULL, 4, 128, 1},
    {"tests/ref/gpt2-tiny", "f32", "none", NULL, NULL, "emulated", 16, 32, 3},
    {"tests/ref/gpt2-tiny", "f32", "adamw", "fsdp=2", NULL, "emulated", 16, 32, 1},
};
enum { QUICK = 3 };

static const char *case_text(const Asked *c)
{
    return arena_printf(a, "%s %s %s accumulate %d%s%s%s%s%s%s, batch %d of %d", c->model, c->dtype,
                        c->optimizer, (int)c->accumulate, c->mesh ? " mesh " : "",
                        c->mesh ? c->mesh : "", c->chunk ? " chunk " : "", c->chunk ? c->chunk : "",
                        c->backend ? " on " : "", c->backend ? c->backend : "", (int)c->batch,
                        (int)c->seq);
}

static tn_options case_options(const Asked *c)
{
    tn_options o = tn_options_default();
    o.dropout = 0.1;
    o.dtype = c->dtype;
    o.optimizer = c->optimizer;
    o.mesh = c->mesh;
    o.overlap = c->mesh ? "off" : o.overlap; /* by whose seconds the search goes */
    o.backend = c->backend ? c->backend : o.backend;
    o.accumulate = c->accumulate;
    o.chunk = &c->chunk;
    o.nchunk = c->chunk != NULL;
    return o;
}

/* A model of a case, in a context of its own. */
typedef struct Model {
    tn_context *ctx;
    tn_model *model;
    const Asked *c;
} Model;

static bool ok(const Model *m, const char *what, int code)
{
    if (!EXPECT(code == TN_CODE_OK))
        printf("  %s: %s: %s\n", case_text(m->c), what, tn_error(m->ctx));
    return code == TN_CODE_OK;
}

static Model model_of(const Asked *c)
{
    Model m = {tn_context_new(), NULL, c};
    CHECK(m.ctx);
    ok(&m, "model", tn_model_open(m.ctx, c->model, &m.model));
    return m;
}

/* A plan, and what it came to. */
typedef struct Outcome {
    int code; /* of tn_plan_new */
    int64_t need, peak;
    double sec;
    char hash[17];
    tn_graph *g;
    tn_plan *p;
} Outcome;

static void read_plan(const Model *m, Outcome *x)
{
    static const char key[] = "\"plan_hash\": \"";
    int64_t persistent, reserve;
    double added;
    const char *text;
    tn_plan_bytes(x->p, &x->peak, &persistent, &reserve);
    tn_plan_sec(x->p, &x->sec, &added);
    x->need = x->peak + reserve;
    if (ok(m, "json", tn_plan_json(x->p, 1, &text)) && EXPECT(text = strstr(text, key)))
        snprintf(x->hash, sizeof x->hash, "%.16s", text + sizeof key - 1);
}

static Outcome plan_of(const Model *m, const tn_options *o)
{
    Outcome x = {.code = TN_CODE_FAIL, .sec = HUGE_VAL};
    if (ok(m, "graph", tn_model_graph(m->model, m->c->batch, m->c->seq, o, &x.g)) &&
        ok(m, "passes", tn_graph_passes(x.g, "default", o, NULL, NULL)))
        x.code = tn_plan_new(x.g, o, 1, &x.p);
    if (x.p)
        read_plan(m, &x);
    return x;
}

static void plan_drop(Outcome *x)
{
    tn_plan_free(x->p);
    tn_graph_free(x->g);
    x->p = NULL;
    x->g = NULL;
}

/* A plan for a limit, of which only numbers are kept. */
static Outcome plan_within(const Model *m, tn_options o, int64_t memory)
{
    o.memory = memory;
    Outcome x = plan_of(m, &o);
    plan_drop(&x);
    return x;
}

static Outcome plan_none(const Model *m, tn_options o)
{
    o.recompute = "none";
    return plan_within(m, o, 0);
}

/* ---- budgets ---- */

static int64_t budget(int64_t least, int64_t most, int i, int n)
{
    return least + (int64_t)((double)(most - least) * i / (n - 1));
}

static void test_budgets(const Asked *c)
{
    Model m = model_of(c);
    tn_options o = case_options(c);
    Outcome none = plan_none(&m, o), last = plan_within(&m, o, 1);
    int64_t least = last.need, from = 0;
    int n = more ? BUDGETS : less ? LEAST_BUDGETS : FEW_BUDGETS;
    EXPECT(last.code == TN_CODE_FIT && none.code == TN_CODE_OK);
    if (!EXPECT(least < none.need))
        printf("  %s: least %lld, none %lld\n", case_text(c), (long long)least,
               (long long)none.need);
    EXPECT(!more || plan_within(&m, o, least - 1).code == TN_CODE_FIT); /* least_case has one */
    last.sec = HUGE_VAL;
    Outcome once = {0};
    for (int i = 0; i < n; i++) {
        int64_t memory = budget(least, none.need, i, n);
        Outcome x = plan_within(&m, o, memory);
        if (!EXPECT(x.code == TN_CODE_OK && x.need <= memory && x.sec <= last.sec))
            printf("  %s: %lld bytes: code %d, needs %lld, %.9g us; %lld bytes: %.9g us\n",
                   case_text(c), (long long)memory, x.code, (long long)x.need, 1e6 * x.sec,
                   (long long)from, 1e6 * last.sec);
        last = x;
        from = memory;
        if (2 * i == n - 1) /* half of the range */
            once = x;
    }
    /* ranks can keep gathered parameters besides, and fused kernels compute again, which is faster
     */
    if (c->mesh || c->backend)
        EXPECT(last.sec <= none.sec);
    else
        EXPECT(last.sec == none.sec && !strcmp(last.hash, none.hash));
    if (n % 2 == 0)
        once = plan_within(&m, o, budget(least, none.need, 1, 3));
    Outcome again = plan_within(&m, o, budget(least, none.need, 1, 3));
    EXPECT(*once.hash && !strcmp(once.hash, again.hash) && strcmp(once.hash, none.hash) != 0);
    tn_context_free(m.ctx);
}

/* ---- the least that is named ---- */

/* The least that the refusal within so many bytes names; 0: they do. */
static int64_t named_least(const Model *m, tn_options o, int64_t memory)
{
    tn_misfit misfit = {0};
    o.memory = memory;
    Outcome x = plan_of(m, &o);
    const bool refused = x.code == TN_CODE_FIT && EXPECT(tn_error_misfit(m->ctx, &misfit));
    if (!refused)
        ok(m, "least", x.code);
    plan_drop(&x);
    return misfit.least;
}

/* A refusal names the same least whatever the limit is; so many bytes do, and one unit of addresses
 * less does not. */
static void least_case(void *arg)
{
    enum { UNIT = 64 };
    Model m = model_of(arg);
    const tn_options o = case_options(arg);
    const int64_t least = named_least(&m, o, 1);
    const int64_t limits[] = {least - UNIT, least - least / 50, least / 2};
    EXPECT(least > 0 && !named_least(&m, o, least));
    for (int i = 0; i < (more ? LEN(limits) : 1); i++) {
        const int64_t named = named_least(&m, o, limits[i]);
        if (!EXPECT(named == least))
            printf("  %s: within %lld bytes the least is %lld, within 1 byte %lld\n",
                   case_text(arg), (long long)limits[i], (long long)named, (long long)least);
    }
    tn_context_free(m.ctx);
}

/* ---- what was decided before ---- */

static bool was_searched(const Model *m, const Outcome *x)
{
    const char *text = "";
    return x->p && ok(m, "json", tn_plan_json(x->p, 1, &text)) &&
           strstr(text, "\"recompute_auto\"");
}

enum { MOST_TEXT = 100000, FEW_TEXTS = 4 };

/* The text with a node that no graph has; drops: such nodes may be left out. */
static void add_unknown(const char *text, bool drops, char *to)
{
    const char *sum = strstr(text, "\nsum ");
    const int n = snprintf(to, MOST_TEXT, "%smust_recompute nothing\n%.*s",
                           drops ? "missing dropped\n" : "", (int)(sum + 1 - text), text);
    CHECK(n < MOST_TEXT / 2);
    snprintf(to + n, MOST_TEXT / 2, "sum %016llx\n",
             (unsigned long long)hash_bytes(to, (size_t)n, 0));
}

/* The plan by what was decided is the same, without a search; neither a text of another graph
 * nor one that lacks a line is taken, unless it says that nodes may be missing. */
static void replay_case(void *arg)
{
    Model m = model_of(arg);
    tn_options o = case_options(arg);
    const char *text = "";
    o.memory = budget(plan_within(&m, o, 1).need, plan_none(&m, o).need, 1, 3);
    Outcome x = plan_of(&m, &o);
    if (x.p && ok(&m, "decided", tn_plan_decided(x.p, &text)) && EXPECT(*text)) {
        static char dropped[MOST_TEXT], unknown[MOST_TEXT];
        add_unknown(text, true, dropped);
        add_unknown(text, false, unknown);
        const char *const other[] = {text,
                                     dropped,
                                     unknown,
                                     strchr(text, '\n') + 1,
                                     "must_recompute nothing\n",
                                     "must_recompute",
                                     "x\ny\n"};
        for (int i = 0; i < (more ? LEN(other) : FEW_TEXTS); i++) {
            o.decided = other[i];
            Outcome y = plan_of(&m, &o);
            EXPECT(!strcmp(x.hash, y.hash) && was_searched(&m, &y) == (i > 1));
            plan_drop(&y);
        }
    }
    EXPECT(was_searched(&m, &x));
    plan_drop(&x);
    tn_context_free(m.ctx);
}

/* ---- machines ---- */

/* The hash of the steps within so many bytes, by a machine that is written so. */
static void half_hash(const Model *m, tn_options o, int64_t memory, const char *machine, char *hash)
{
    static const char key[] = "\"steps_hash\": \"";
    const char *text;
    o.machine = machine;
    o.memory = memory;
    Outcome x = plan_of(m, &o);
    if (ok(m, "plan", x.code) && EXPECT(x.need <= o.memory) &&
        ok(m, "json", tn_plan_json(x.p, 1, &text)) && EXPECT(text = strstr(text, key)))
        snprintf(hash, sizeof x.hash, "%.16s", text + sizeof key - 1);
    plan_drop(&x);
}

/* Machines with other names, lines and figures that no node of the step has its seconds of get one
 * plan; one on which products take longer gets another. */
static void machines_case(void *arg)
{
    Model m = model_of(arg);
    tn_options o = case_options(arg);
    char one[17] = "", same[17] = "", other[17] = "";
    const char *const first = "machine 1\nname one\nlike avx2\n";
    o.machine = first;
    const int64_t half = budget(plan_within(&m, o, 1).need, plan_none(&m, o).need, 1, 3);
    half_hash(&m, o, half, first, one);
    half_hash(&m, o, half, "machine 1\nname same\nlike avx2\nnetwork 1\nlaunch 7\nvector 25\n",
              same);
    half_hash(&m, o, half, "machine 1\nname slow\nlike avx2\nproduct_f32 0.01\n", other);
    EXPECT(*one && !strcmp(one, same) && strcmp(one, other) != 0);
    tn_context_free(m.ctx);
}

/* ---- bits ---- */

typedef struct Result {
    char *bytes;
    size_t nbytes;
} Result;

static void keep(const Model *m, tn_program *x, const char *name, Result *r)
{
    void *p = NULL;
    int64_t nbytes = 0;
    if (!ok(m, name, tn_program_data(x, name, &p, &nbytes)))
        return;
    CHECK(r->nbytes + (size_t)nbytes <= MOST_BYTES);
    memcpy(r->bytes + r->nbytes, p, (size_t)nbytes);
    r->nbytes += (size_t)nbytes;
}

/* The loss and all gradients; with an optimizer what it makes of parameters. */
static void keep_all(const Model *m, tn_program *x, Result *r)
{
    const char *path = arena_printf(a, "%s/grads.safetensors", m->c->model);
    const TensorFile *f = tensors_open(a, path); /* its names are the parameters' */
    bool updates = strcmp(m->c->optimizer, "none") != 0;
    keep(m, x, "loss", r);
    for (int i = 0; i < f->count; i++)
        keep(m, x, arena_printf(a, "%s.%s", updates ? "new" : "grad", f->entry[i].name), r);
}

static void put_batch(const Model *m, tn_program *x)
{
    void *at, *ids = NULL, *labels = NULL;
    int64_t nbytes = 0, vocab = 0, context;
    tn_model_shape(m->model, &vocab, &context);
    if (!tn_program_data(x, "lr", &at, NULL))
        *(float *)at = 1e-3F;
    if (!tn_program_data(x, "step", &at, NULL))
        *(int64_t *)at = 1;
    if (!tn_program_data(x, "seed", &at, NULL))
        *(int64_t *)at = 7;
    if (!ok(m, "ids", tn_program_data(x, "input_ids", &ids, &nbytes)) ||
        !ok(m, "labels", tn_program_data(x, "labels", &labels, NULL)))
        return;
    for (int64_t i = 0; i < nbytes / 8; i++) {
        ((int64_t *)ids)[i] = (i * 7 + i / 3) % vocab;
        ((int64_t *)labels)[i] = (i * 5 + i / 2 + 1) % vocab;
    }
}

/* The step is run in arenas of two patterns, of which the higher end is what was written. */
static Result run_plan(const Model *m, const tn_options *o, const Outcome *p)
{
    Result r = {calloc(1, MOST_BYTES), 0};
    tn_program *x = NULL;
    int64_t high = 0;
    CHECK(r.bytes);
    if (ok(m, "program", tn_program_new(p->p, o, &x))) {
        for (int i = 0; i < 2; i++) {
            int pattern = i ? 0x5a : 0xa5;
            tn_program_fill(x, pattern);
            ok(m, "load", tn_program_load(x, m->model, o));
            put_batch(m, x);
            ok(m, "step", tn_program_run(x));
            int64_t end = tn_program_high(x, pattern);
            high = MAX(high, end);
        }
        keep_all(m, x, &r);
        if (!EXPECT(high == p->peak))
            printf("  %s: within %lld bytes: planned %lld, highest written %lld\n", case_text(m->c),
                   (long long)o->memory, (long long)p->peak, (long long)high);
    }
    tn_program_free(x);
    return r;
}

static Result run_within(const Model *m, tn_options o, int64_t memory)
{
    Result r = {0};
    o.memory = memory;
    o.recompute = memory ? "auto" : "none";
    Outcome p = plan_of(m, &o);
    if (ok(m, "plan", p.code))
        r = run_plan(m, &o, &p);
    plan_drop(&p);
    return r;
}

static void test_bits(const Asked *c)
{
    Model m = model_of(c);
    tn_options o = case_options(c);
    int64_t most = plan_none(&m, o).need, least = plan_within(&m, o, 1).need;
    Result saved = run_within(&m, o, 0);
    EXPECT(saved.nbytes > 1000);
    for (int i = 0, n = more ? RUNS : FEW_RUNS; i < n; i++) {
        int64_t memory = budget(least, most, i, n + 1);
        Result again = run_within(&m, o, memory);
        if (!EXPECT(again.nbytes == saved.nbytes && again.bytes &&
                    !memcmp(again.bytes, saved.bytes, saved.nbytes)))
            printf("  %s: %lld bytes: other bits than with all saved\n", case_text(c),
                   (long long)memory);
        free(again.bytes);
    }
    free(saved.bytes);
    tn_context_free(m.ctx);
}

/* ---- graphs of PyTorch ---- */

enum { MOST_OUT = 64, TRACED_RUNS = 3, FEW_TRACED = 1, FEW_NAMES = 3 };

/* A graph that was traced with its backward, and what is asked of it. */
typedef struct Traced {
    tn_context *ctx;
    const char *name;
    tn_options o;
} Traced;

static bool did(const Traced *t, const char *what, int code)
{
    if (!EXPECT(code == TN_CODE_OK))
        printf("  %s: %s: %s\n", t->name, what, tn_error(t->ctx));
    return code == TN_CODE_OK;
}

static const char *inputs_of(const Traced *t)
{
    return arena_printf(a, "tests/fx/%s/inputs.safetensors", t->name);
}

static Outcome traced_plan(const Traced *t)
{
    Outcome x = {.code = TN_CODE_FAIL};
    tn_fx_options fx = {.inputs = inputs_of(t)};
    const char *summary;
    int64_t persistent, reserve = 0;
    if (did(t, "import",
            tn_graph_import_fx(t->ctx, arena_printf(a, "tests/fx/%s/graph.txt", t->name), &fx, &x.g,
                               &summary)) &&
        did(t, "passes", tn_graph_passes(x.g, "default", &t->o, NULL, NULL)))
        x.code = tn_plan_new(x.g, &t->o, 1, &x.p);
    if (x.p)
        tn_plan_bytes(x.p, &x.peak, &persistent, &reserve);
    x.need = x.p ? x.peak + reserve : 0;
    return x;
}

static void keep_outputs(tn_program *x, Result *r)
{
    for (int i = 0; i < MOST_OUT; i++) {
        void *p;
        int64_t nbytes;
        if (tn_program_data(x, arena_printf(a, "out%d", i), &p, &nbytes))
            break;
        CHECK(r->nbytes + (size_t)nbytes <= MOST_BYTES);
        memcpy(r->bytes + r->nbytes, p, (size_t)nbytes);
        r->nbytes += (size_t)nbytes;
    }
}

static Result traced_run(const Traced *t, const Outcome *p)
{
    Result r = {calloc(1, MOST_BYTES), 0};
    tn_program *x = NULL;
    int64_t high = 0;
    CHECK(r.bytes);
    if (did(t, "program", tn_program_new(p->p, &t->o, &x))) {
        for (int i = 0; i < 2; i++) {
            int pattern = i ? 0x5a : 0xa5;
            tn_program_fill(x, pattern);
            did(t, "inputs", tn_program_read_file(x, inputs_of(t)));
            did(t, "run", tn_program_run(x));
            int64_t end = tn_program_high(x, pattern);
            high = MAX(high, end);
        }
        keep_outputs(x, &r);
        if (!EXPECT(high == p->peak))
            printf("  %s: within %lld bytes: planned %lld, highest written %lld\n", t->name,
                   (long long)t->o.memory, (long long)p->peak, (long long)high);
    }
    tn_program_free(x);
    return r;
}

/* The bytes that it needs within that memory; its results are those of `saved`, which is filled
 * where it is empty. */
static int64_t traced_within(Traced *t, int64_t memory, Result *saved)
{
    t->o.memory = memory;
    Outcome p = traced_plan(t);
    int64_t need = p.need;
    if (memory == 1 || did(t, "plan", p.code)) {
        EXPECT(memory == 1 || !memory || need <= memory);
        Result r = traced_run(t, &p);
        if (!saved->bytes)
            *saved = r;
        else if (!EXPECT(r.nbytes == saved->nbytes && !memcmp(r.bytes, saved->bytes, r.nbytes)))
            printf("  %s: %lld bytes: other results\n", t->name, (long long)memory);
        if (r.bytes != saved->bytes)
            free(r.bytes);
    }
    plan_drop(&p);
    return need;
}

static void traced_case(void *arg)
{
    Traced t = {tn_context_new(), arg, tn_options_default()};
    Result saved = {0};
    CHECK(t.ctx);
    int64_t all = traced_within(&t, 0, &saved), least = traced_within(&t, 1, &saved);
    EXPECT(saved.nbytes > 0);
    if (!EXPECT(least < all))
        printf("  %s: least %lld, all saved %lld\n", t.name, (long long)least, (long long)all);
    for (int i = 0, n = more ? TRACED_RUNS : FEW_TRACED; i < n; i++)
        traced_within(&t, budget(least, all, i + !more, n + !more), &saved);
    free(saved.bytes);
    tn_context_free(t.ctx);
}

/* ---- all ---- */

static void guarded(void (*fn)(void *arg), void *arg)
{
    if (!EXPECT(!ctx_try(&ctx, fn, arg)))
        printf("  %s\n", ctx.message);
    arena_reset(a);
}

static void budgets_case(void *arg)
{
    test_budgets(arg);
}

static void bits_case(void *arg)
{
    test_bits(arg);
}

static void test_models(void)
{
    if (!less) {
        Asked first = cases[0];
        guarded(machines_case, &first);
        guarded(replay_case, &first);
    }
    for (int i = 0; i < (more ? LEN(cases) : 1); i++) {
        Asked c = cases[i];
        guarded(least_case, &c);
    }
    for (int i = less; i < (more ? LEN(cases) : QUICK); i++) {
        Asked c = cases[i];
        guarded(budgets_case, &c);
        if (strcmp(c.model, "demo") != 0 && !c.mesh &&
            !c.backend) /* gradients have names in a file; one runs, in the host's memory */
            guarded(bits_case, &c);
    }
}

static void test_traced(void)
{
    static char names[][16] = {"gpt2_step", "bert_mlm", "llama_gqa", "gpt2_inductor", "aot_joint"};
    for (int i = 0; i < (less ? 1 : more ? LEN(names) : FEW_NAMES); i++)
        guarded(traced_case, names[i]);
}

int main(void)
{
    more = getenv("TN_LONG");
    less = getenv("TN_QUICK");
    a = arena_new(&ctx);
    tn_threads(1); /* all is small */
    test_models();
    test_traced();
    arena_free(a);
    return test_report();
}
