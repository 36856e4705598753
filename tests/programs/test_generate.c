/* generate: decoding with caches gives the logits of the forward without, however the text is fed;
 * windows slide; a generator in a training program's arena leaves parameters and state alone; what
 * is drawn from logits. */
#include "../shared/test.h"

#include "../../src/api/api.h"

#include <math.h>

static tn_context *ctx;

#define OK(call) EXPECT((call) == 0 || (printf("  %s\n", tn_error(ctx)), 0))

/* ---- models ---- */

/* The preset demo, smaller and with the given changes. */
static tn_model *open_small(int64_t nkv, RopeKind rope, bool tie)
{
    tn_model *m;
    OK(tn_model_open(ctx, "demo", &m));
    ModelConfig *c = &m->config;
    c->vocab = 61;
    c->hidden = 48;
    c->nlayer = 3;
    c->nhead = 6;
    c->nkv = nkv;
    c->head_dim = 8;
    c->intermediate = 96;
    c->init_std = 0.3; /* logits that differ */
    c->tie = tie;
    c->rope.kind = rope;
    c->rope.factor = 4;
    c->rope.low = 1;
    c->rope.high = 4;
    c->rope.original = 32;
    m->param = model_params(m->h.a, c, &m->nparam);
    return m;
}

static void fill_text(int64_t *text, int64_t n, int64_t vocab)
{
    for (int64_t i = 0; i < n; i++)
        text[i] = (int64_t)((double)random_uniform(7, 0, 0, (uint64_t)i) * (double)vocab);
}

/* ---- the forward without caches ---- */

typedef struct Forward {
    tn_graph *g;
    tn_plan *p;
    tn_program *x;
    const float *logits; /* [n, vocab] */
} Forward;

static Forward forward(tn_model *m, const int64_t *text, int64_t n)
{
    Forward f;
    tn_options o = tn_options_default();
    void *ids, *logits;
    OK(tn_model_logits(m, 1, n, &f.g));
    OK(tn_plan_new(f.g, &o, 1, &f.p));
    OK(tn_program_new(f.p, &o, &f.x));
    OK(tn_program_load(f.x, m, &o));
    OK(tn_program_data(f.x, "input_ids", &ids, NULL));
    OK(tn_program_data(f.x, "metric.logits", &logits, NULL));
    memcpy(ids, text, sizeof *text * (size_t)n);
    OK(tn_program_run(f.x));
    f.logits = logits;
    return f;
}

static void drop_forward(Forward *f)
{
    tn_program_free(f->x);
    tn_plan_free(f->p);
    tn_graph_free(f->g);
}

/* The greatest difference, relative to the greatest of b. */
static double difference(const float *a, const float *b, int64_t n)
{
    double most = 0, worst = 0;
    for (int64_t i = 0; i < n; i++) {
        most = fmax(most, fabs(b[i]));
        worst = isfinite(a[i]) ? fmax(worst, fabs((double)a[i] - b[i])) : INFINITY;
    }
    return worst / most;
}

/* ---- caches against the forward ---- */

static tn_generator *start(tn_model *m, int64_t capacity)
{
    tn_generator *x = NULL;
    tn_options o = tn_options_default();
    OK(tn_generator_new(m, capacity, &o, &x));
    OK(tn_generator_start(x, NULL));
    return x;
}

/* Feeds the text in pieces of `piece` tokens and compares the logits after each. */
static void compare_pieces(tn_generator *x, const Forward *f, const int64_t *text, int64_t n,
                           int64_t piece)
{
    double worst = 0;
    tn_generator_reset(x);
    for (int64_t at = 0; at < n; at += piece) {
        const float *logits;
        int64_t count = MIN(piece, n - at);
        OK(tn_generator_feed(x, count, text + at));
        OK(tn_generator_logits(x, &logits));
        worst = fmax(worst, difference(logits, f->logits + (at + count - 1) * x->vocab, x->vocab));
    }
    if (!EXPECT(worst < 1e-5))
        printf("  pieces of %lld of %lld tokens: %g\n", (long long)piece, (long long)n, worst);
}

static void check_model(tn_model *m, int64_t capacity, int64_t n)
{
    static const int64_t pieces[] = {1, 2, 7, 64, 65, 1000};
    int64_t text[400], vocab, context;
    tn_model_shape(m, &vocab, &context);
    fill_text(text, n, vocab);
    Forward f = forward(m, text, n);
    tn_generator *x = start(m, capacity);
    for (int i = 0; i < LEN(pieces); i++)
        compare_pieces(x, &f, text, n, pieces[i]);
    EXPECT(!x->one.plan->p->ncopies); /* caches are extended in place */
    tn_generator_free(x);
    drop_forward(&f);
}

static void test_models(void)
{
    static const char *const folders[] = {"gpt2-tiny",    "gpt2-ignore", "llama-tiny", "llama-tied",
                                          "mistral-tiny", "qwen2-tiny",  "qwen3-tiny"};
    for (int i = 0; i < LEN(folders); i++) {
        char path[64];
        tn_model *m;
        int64_t vocab, context, most;
        snprintf(path, sizeof path, "tests/ref/%s", folders[i]);
        OK(tn_model_open(ctx, path, &m));
        tn_model_shape(m, &vocab, &context);
        most = context && context < 24 ? context : 24;
        check_model(m, most, most);
        check_model(m, most, most - 5);
        tn_model_free(m);
    }
}

static void test_long_texts(void)
{
    static const RopeKind ropes[] = {ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3};
    for (int i = 0; i < 3; i++) {
        tn_model *m = open_small(i == 1 ? 6 : 2, ropes[i], i == 2);
        check_model(m, 400, 200);
        check_model(m, 130, 130);
        check_model(m, 1, 1);
        check_model(m, 2, 2);
        tn_model_free(m);
    }
}

/* ---- windows ---- */

static void test_window_slides(void)
{
    enum { WINDOW = 20 };
    int64_t text[3 * WINDOW];
    tn_model *m = open_small(2, ROPE_PLAIN, true);
    tn_generator *x = start(m, WINDOW);
    fill_text(text, LEN(text), 61);
    for (int64_t n = 1, begin = 0; n <= LEN(text); n++) {
        const float *logits;
        if (n - begin > WINDOW) /* the window before held WINDOW: its later half stays */
            begin = n - 1 - WINDOW / 2;
        OK(tn_generator_feed(x, 1, text + n - 1));
        OK(tn_generator_logits(x, &logits));
        if (n % 10 > 1) /* on both sides of a slide */
            continue;
        Forward f = forward(m, text + begin, n - begin);
        EXPECT(difference(logits, f.logits + (n - begin - 1) * 61, 61) < 1e-5);
        drop_forward(&f);
    }
    tn_generator *y = start(m, WINDOW); /* all at once */
    const float *q;
    OK(tn_generator_feed(y, LEN(text), text));
    OK(tn_generator_logits(y, &q));
    Forward f = forward(m, text + LEN(text) - WINDOW, WINDOW); /* the last that it holds */
    EXPECT(difference(q, f.logits + (WINDOW - 1) * 61, 61) < 1e-5);
    drop_forward(&f);
    tn_generator_free(x);
    tn_generator_free(y);
    tn_model_free(m);
}

/* ---- beside training ---- */

typedef struct Trained {
    tn_graph *g;
    tn_plan *p;
    tn_program *x;
    int64_t persistent;
} Trained;

static Trained make_step(tn_model *m, int64_t arena)
{
    Trained s;
    tn_options o = tn_options_default();
    int64_t peak, reserve;
    OK(tn_model_graph(m, 2, 9, &o, &s.g));
    OK(tn_graph_passes(s.g, "default", &o, NULL, NULL));
    OK(tn_plan_new(s.g, &o, 1, &s.p));
    tn_plan_bytes(s.p, &peak, &s.persistent, &reserve);
    o.arena = arena;
    OK(tn_program_new(s.p, &o, &s.x));
    return s;
}

static void run_step(Trained *s, int64_t number)
{
    void *ids, *labels, *lr, *step;
    OK(tn_program_data(s->x, "input_ids", &ids, NULL));
    OK(tn_program_data(s->x, "labels", &labels, NULL));
    OK(tn_program_data(s->x, "lr", &lr, NULL));
    OK(tn_program_data(s->x, "step", &step, NULL));
    fill_text(ids, 18, 61);
    fill_text(labels, 18, 61);
    *(float *)lr = 1e-3f;
    *(int64_t *)step = number;
    OK(tn_program_run(s->x));
}

static void test_beside_training(void)
{
    tn_model *m = open_small(3, ROPE_PLAIN, false);
    m->config.nlayer = 1; /* easily placed */
    m->param = model_params(m->h.a, &m->config, &m->nparam);
    tn_options o = tn_options_default();
    Trained alone = make_step(m, 0), s;
    tn_generator *x, *own = start(m, 100);
    int64_t peak, reserve, text[90];
    o.persistent = alone.persistent;
    OK(tn_generator_new(m, 100, &o, &x));
    tn_generator_bytes(x, &peak, &reserve);
    s = make_step(m, peak);
    OK(tn_generator_start(x, s.x));
    OK(tn_program_load(alone.x, m, &o));
    OK(tn_program_load(s.x, m, &o));
    fill_text(text, 90, 61);
    for (int64_t step = 1; step <= 3; step++) {
        const float *p, *q;
        char *kept = malloc((size_t)s.persistent);
        memcpy(kept, s.x->x->memory[SPACE_MAIN]->at, (size_t)s.persistent);
        tn_generator_reset(x);
        for (int64_t i = 0; i < 90; i += 30) {
            OK(tn_generator_feed(x, 30, text + i));
            OK(tn_generator_logits(x, &p));
        }
        EXPECT(!memcmp(kept, s.x->x->memory[SPACE_MAIN]->at, (size_t)s.persistent));
        free(kept);
        if (step == 1) { /* still the weights of the model */
            for (int64_t i = 0; i < 90; i += 30) {
                OK(tn_generator_feed(own, 30, text + i));
                OK(tn_generator_logits(own, &q));
            }
            EXPECT(!memcmp(p, q, 61 * sizeof *p));
        }
        run_step(&alone, step);
        run_step(&s, step);
        EXPECT(!memcmp(alone.x->x->memory[SPACE_MAIN]->at, s.x->x->memory[SPACE_MAIN]->at,
                       (size_t)s.persistent));
    }
    tn_generator_free(x);
    tn_generator_free(own);
}

/* ---- sampling ---- */

/* How often each of the tokens comes in n draws. */
static void count_draws(const tn_sampling *s, const float *logits, int64_t n, int64_t vocab,
                        int64_t *count)
{
    Candidate c[64];
    memset(count, 0, sizeof *count * (size_t)vocab);
    for (int64_t i = 0; i < n; i++)
        count[sampling_draw(s, logits, vocab, (uint64_t)i, c)]++;
}

/* Likelihoods 0.4, 0.3, 0.15, 0.1, 0.05 at ids 3, 0, 4, 1, 2. */
static const double likely[] = {0.3, 0.1, 0.05, 0.4, 0.15};

static void expect_kept(tn_sampling s, unsigned kept)
{
    enum { N = 20000 };
    float logits[5];
    int64_t count[5];
    double sum = 0;
    for (int i = 0; i < 5; i++) {
        logits[i] = (float)log(likely[i]) + 5;
        sum += kept >> i & 1 ? pow(likely[i], 1 / s.temperature) : 0;
    }
    count_draws(&s, logits, N, 5, count);
    for (int i = 0; i < 5; i++) {
        double p = kept >> i & 1 ? pow(likely[i], 1 / s.temperature) / sum : 0;
        EXPECT(fabs((double)count[i] - N * p) <= 5 * sqrt(N * p * (1 - p))); /* five sigma */
    }
}

static void test_sampling(void)
{
    expect_kept((tn_sampling){.temperature = 1, .top_p = 1}, 0x1f);
    expect_kept((tn_sampling){.temperature = 2, .top_p = 1, .seed = 3}, 0x1f);
    expect_kept((tn_sampling){.temperature = 0.5, .top_p = 1}, 0x1f);
    expect_kept((tn_sampling){.temperature = 1, .top_k = 3, .top_p = 1}, 0x19);
    expect_kept((tn_sampling){.temperature = 1, .top_k = 1, .top_p = 1}, 0x08);
    expect_kept((tn_sampling){.temperature = 1, .top_k = 9, .top_p = 1}, 0x1f);
    expect_kept((tn_sampling){.temperature = 1, .top_p = 0.65}, 0x09);
    expect_kept((tn_sampling){.temperature = 1, .top_p = 0.75}, 0x19);
    expect_kept((tn_sampling){.temperature = 1, .top_p = 0.39}, 0x08);
    expect_kept((tn_sampling){.temperature = 1, .top_p = 1e-9}, 0x08);
    expect_kept((tn_sampling){.temperature = 1, .top_k = 2, .top_p = 0.56}, 0x08); /* of 4/7, 3/7 */
    expect_kept((tn_sampling){.temperature = 1, .top_k = 2, .top_p = 0.58}, 0x09);
}

static void test_sampling_edges(void)
{
    float logits[50], same[50];
    int64_t count[50];
    Candidate c[50];
    for (int i = 0; i < 50; i++) {
        logits[i] = (float)((i * 37) % 50);
        same[i] = 1;
    }
    for (int k = 1; k <= 50; k++) { /* the k greatest and no other */
        tn_sampling s = {.temperature = 1e6, .top_k = k, .top_p = 1, .seed = (uint64_t)k};
        count_draws(&s, logits, 2000, 50, count);
        for (int i = 0; i < 50; i++)
            EXPECT((count[i] > 0) == (logits[i] >= (float)(50 - k)));
        count_draws(&s, same, 2000, 50, count);
        for (int i = 0; i < 50; i++)
            EXPECT((count[i] > 0) == (i < k)); /* ties: the lower id */
    }
    tn_sampling greedy = {.temperature = 0, .top_p = 1}, plain = {.temperature = 1, .top_p = 1};
    EXPECT(logits[sampling_draw(&greedy, logits, 50, 0, c)] == 49);
    EXPECT(sampling_draw(&greedy, same, 50, 0, c) == 0);
    logits[7] = NAN;
    EXPECT(sampling_draw(&greedy, logits, 50, 0, c) == -1);
    EXPECT(sampling_draw(&plain, logits, 50, 0, c) == -1);
    logits[7] = 3e38f; /* the others vanish */
    EXPECT(sampling_draw(&plain, logits, 50, 0, c) == 7);
    double sum = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        double u = sampling_uniform(i % 3, i);
        EXPECT(u >= 0 && u < 1);
        sum += u;
    }
    EXPECT(fabs(sum - 500) < 50);
    EXPECT(sampling_uniform(1, 5) != sampling_uniform(2, 5));
    EXPECT(sampling_uniform(1, 5) != sampling_uniform(1, 6));
}

/* ---- texts ---- */

static void draw_text(tn_generator *x, const tn_sampling *s, int64_t *out, int64_t n)
{
    int64_t first = 5;
    tn_generator_reset(x);
    OK(tn_generator_feed(x, 1, &first));
    for (int64_t i = 0; i < n; i++)
        OK(tn_generator_next(x, s, &out[i]));
}

static void test_texts(void)
{
    tn_model *m = open_small(2, ROPE_PLAIN, true);
    tn_generator *x = start(m, 40);
    int64_t a[60], b[60];
    tn_sampling s = tn_sampling_default();
    draw_text(x, &s, a, 60);
    draw_text(x, &s, b, 60);
    EXPECT(!memcmp(a, b, sizeof a));
    s.seed = 1;
    draw_text(x, &s, b, 60);
    EXPECT(memcmp(a, b, sizeof a));
    s.temperature = 0;
    draw_text(x, &s, a, 60);
    s.seed = 2;
    draw_text(x, &s, b, 60);
    EXPECT(!memcmp(a, b, sizeof a));
    tn_generator_free(x);
    tn_model_free(m);
}

static void expect_error(int code, int want, const char *part)
{
    if (!EXPECT(code == want && strstr(tn_error(ctx), part)))
        printf("  code %d: %s\n", code, tn_error(ctx));
}

/* Handles of both programs count, and the rest of the larger reserve. */
static void check_reserve(const tn_generator *x, int64_t reserve)
{
    const Plan *one = x->one.plan->p, *many = x->many.plan->p;
    int64_t each[2] = {tn_plan_handles(x->one.plan), tn_plan_handles(x->many.plan)};
    EXPECT(each[0] > 0 && each[0] % 4096 == 0 && each[1] > 0);
    EXPECT(tn_generator_handles(x) == each[0] + each[1]);
    EXPECT(reserve == MAX(one->reserve - each[0], many->reserve - each[1]) + each[0] + each[1]);
}

static void test_errors(void)
{
    tn_model *m, *g = NULL;
    tn_generator *x = NULL;
    tn_options o = tn_options_default();
    const float *logits;
    int64_t peak, reserve, bad[] = {3, 61}, id;
    tn_sampling s = tn_sampling_default();
    m = open_small(2, ROPE_PLAIN, true);
    OK(tn_model_open(ctx, "tests/ref/gpt2-tiny", &g));
    expect_error(tn_generator_new(g, 33, &o, &x), 2, "the model has 32 positions");
    expect_error(tn_generator_new(g, 0, &o, &x), 2, "capacity: expected 1 to");
    tn_model_free(g);
    OK(tn_model_open(ctx, "tests/ref/mistral-tiny", &g));
    expect_error(tn_generator_new(g, 20, &o, &x), 2, "key \"sliding_window\"");
    OK(tn_generator_new(m, 30, &o, &x));
    tn_generator_bytes(x, &peak, &reserve);
    check_reserve(x, reserve);
    OK(tn_generator_feed(x, 1, bad));
    expect_error(tn_generator_logits(x, &logits), 2, "not started");
    tn_generator_free(x);
    o.memory = peak + reserve - 1;
    expect_error(tn_generator_new(m, 30, &o, &x), 3, "does not fit");
    o.memory++;
    OK(tn_generator_new(m, 30, &o, &x));
    OK(tn_generator_start(x, NULL));
    expect_error(tn_generator_logits(x, &logits), 2, "no token to begin with");
    expect_error(tn_generator_feed(x, 2, bad), 1, "token 1 is 61, but the model has 61 tokens");
    s.temperature = -1;
    expect_error(tn_generator_next(x, &s, &id), 2, "found -1");
    s = (tn_sampling){.temperature = 1, .top_p = 1.5};
    expect_error(tn_generator_next(x, &s, &id), 2, "and 1.5");
    tn_generator_free(x);
    tn_model_free(g);
    tn_model_free(m);
}

/* A start that has failed leaves nothing behind, and reads no text of the caller's. */
static void test_starts_again(void)
{
    tn_options o = tn_options_default();
    char reduce[] = "ordered";
    tn_sampling s = tn_sampling_default();
    tn_generator *x;
    tn_model *m;
    int64_t id, ids[] = {1, 2};
    OK(tn_model_open(ctx, "tests/ref/llama-tiny", &m));
    o.reduce = reduce;
    OK(tn_generator_new(m, 16, &o, &x));
    memset(reduce, 'x', sizeof reduce - 1);
    tn_model_close_files(m);
    EXPECT(tn_generator_start(x, NULL) == 1);
    EXPECT(tn_generator_start(x, NULL) == 1);
    OK(tn_generator_feed(x, 2, ids));
    expect_error(tn_generator_next(x, &s, &id), 2, "not started");
    tn_generator_free(x);
    tn_model_free(m);
}

int main(void)
{
    ctx = tn_context_new();
    CHECK(ctx);
    tn_threads(1); /* small work: threads would only wait for each other */
    test_models();
    test_long_texts();
    test_window_slides();
    test_beside_training();
    test_sampling();
    test_sampling_edges();
    test_texts();
    test_errors();
    test_starts_again();
    tn_context_free(ctx);
    return test_report();
}
