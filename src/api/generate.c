/* Generates text with two graphs of one model in one arena. One decodes a token: it reads every
 * weight once, and earlier text only as keys and values in the caches. The other takes many tokens
 * at once, for the prompt, and when a text outgrows the window. Both extend the same caches, which
 * lie behind what a host program keeps (plan.c), so that sampling during training takes no memory
 * of its own.
 *
 * Feeding tokens only appends them; those without keys in the caches are run in chunks when logits
 * are asked for. The last chunk may be padded: padding writes caches after all visible positions,
 * and these are overwritten before they become visible. A full window slides by half: the later
 * half is kept and run again, from position 0. */
#include "api.h"

#include <string.h>

/* Tokens of a run over many: products are as fast as they get, and little is lost where fewer are
 * asked for. */
enum { CHUNK = 64 };

static tn_context *context_of(const tn_generator *x)
{
    return x->h.owner;
}

/* ---- making ---- */

static void find_ports(GeneratorPass *p)
{
    const Plan *plan = p->plan->p;
    p->ids = port_find(plan, "input_ids");
    p->position = port_find(plan, "position");
    p->last = p->tokens > 1 ? port_find(plan, "last") : NULL;
    p->logits = port_find(plan, "metric.logits");
    CHECK(p->ids && p->position && p->logits);
}

static int plan_pass(tn_generator *x, GeneratorPass *p, int64_t tokens)
{
    tn_options o = x->o;
    int64_t peak, persistent, reserve;
    int code = tn_model_decode(x->model, tokens, x->capacity, &p->graph);
    o.memory = 0; /* checked for both together */
    if (!o.param_dtype || strcmp(o.param_dtype, "bf16") != 0)
        o.dtype = "f32"; /* casts of all weights would cost more than the rest of a token */
    p->tokens = tokens;
    if (!code)
        code = tn_graph_passes(p->graph, "forward", &o, NULL, NULL);
    if (!code)
        code = tn_plan_new(p->graph, &o, 1, &p->plan);
    if (code)
        return code;
    find_ports(p);
    tn_plan_bytes(p->plan, &peak, &persistent, &reserve);
    int64_t shared = MAX(x->reserve - x->handles, reserve - tn_plan_handles(p->plan));
    x->handles += tn_plan_handles(p->plan);
    x->reserve = shared + x->handles;
    x->peak = MAX(x->peak, peak);
    return 0;
}

static int check_memory(const tn_generator *x)
{
    int64_t limit = x->o.memory;
    if (!limit || x->peak + x->reserve <= limit)
        return 0;
    char what[60];
    snprintf(what, sizeof what, "generation over %lld positions needs ", (long long)x->capacity);
    Misfit m = {.limit = limit, .peak = x->peak, .reserve = x->reserve};
    m.least = m.peak + m.reserve;
    return fit_fail(context_of(x), &m,
                    &(FitText){.what = what, .holds = "", .unit = x->o.memory_unit});
}

static tn_generator *make_generator(tn_model *m, Arena *call, int64_t capacity, const tn_options *o)
{
    tn_generator *x = handle_new(m->h.owner, call, sizeof *x);
    x->model = m;
    x->o = *o;
    x->capacity = capacity;
    x->vocab = m->config.vocab;
    x->text = NEWN(x->h.a, int64_t, capacity);
    x->ids = NEWN(x->h.a, int64_t, MIN(capacity, CHUNK));
    x->logits = NEWN(x->h.a, float, x->vocab);
    x->candidate = NEWN(x->h.a, Candidate, x->vocab);
    return x;
}

/* The options that a start reads; the caller's texts are read during the call alone. */
static tn_options kept_options(tn_generator *x)
{
    tn_options o = tn_options_default();
    o.memory = x->o.memory;
    o.check = x->o.check;
    o.seed = x->o.seed;
    o.shard = x->o.shard;
    o.reduce = x->o.reduce ? arena_strdup(x->h.a, x->o.reduce) : NULL;
    return o;
}

int tn_generator_new(tn_model *m, int64_t capacity, const tn_options *options,
                     tn_generator **generator)
{
    if (!GIVEN(args_owner(m), m, options, generator) ||
        !WITHIN(args_owner(m), 1, INT32_MAX, capacity) ||
        !args_options(args_owner(m), __func__, options))
        return TN_CODE_USAGE;
    tn_generator *volatile made = NULL;
    TRY(t, &m->h.owner->ctx)
        made = handle_keep(make_generator(m, try_arena(&t), capacity, options));
    int code = tried(&t);
    tn_generator *x = made;
    if (!code)
        code = plan_pass(x, &x->one, 1);
    if (!code && capacity > 1)
        code = plan_pass(x, &x->many, MIN(capacity, CHUNK));
    if (!code)
        code = check_memory(x);
    if (code) {
        tn_generator_free(x);
        return code;
    }
    x->o = kept_options(x);
    *generator = x;
    return 0;
}

void tn_generator_bytes(const tn_generator *x, int64_t *peak, int64_t *reserve)
{
    if (!GIVEN(args_owner(x), x, peak, reserve))
        return;
    *peak = x->peak;
    *reserve = x->reserve;
}

int64_t tn_generator_handles(const tn_generator *x)
{
    return GIVEN(args_owner(x), x) ? x->handles : 0;
}

static void drop_programs(tn_generator *x)
{
    tn_program_free(x->many.program);
    tn_program_free(x->one.program);
    x->many.program = x->one.program = NULL;
}

int tn_generator_start(tn_generator *x, tn_program *host)
{
    if (!GIVEN(args_owner(x), x))
        return TN_CODE_USAGE;
    if (host && !args_kin(__func__, x, host))
        return TN_CODE_USAGE;
    if (x->one.program)
        return tn_context_fail(args_owner(x), TN_CODE_USAGE, "%s: the generator has its memory",
                               __func__);
    tn_options o = x->o;
    o.arena = x->peak;
    int code = host ? tn_program_share(x->one.plan, host, &x->one.program)
                    : tn_program_new(x->one.plan, &o, &x->one.program);
    if (!code && x->many.plan)
        code = tn_program_share(x->many.plan, x->one.program, &x->many.program);
    if (!code && !host)
        code = tn_program_load(x->one.program, x->model, &o);
    if (code)
        drop_programs(x); /* another start may succeed */
    return code;
}

void tn_generator_free(tn_generator *x)
{
    GeneratorPass *pass[2];
    if (!x)
        return;
    drop_programs(x);
    pass[0] = &x->many;
    pass[1] = &x->one;
    for (int i = 0; i < 2; i++) {
        tn_plan_free(pass[i]->plan);
        tn_graph_free(pass[i]->graph);
    }
    handle_free(&x->h);
}

/* ---- text ---- */

void tn_generator_reset(tn_generator *x)
{
    if (!GIVEN(args_owner(x), x))
        return;
    x->count = x->cached = 0;
    x->drawn = 0;
}

static void append(tn_generator *x, int64_t id)
{
    if (x->count == x->capacity) {
        x->count = x->capacity / 2;
        x->cached = 0;
        memmove(x->text, x->text + x->capacity - x->count, sizeof *x->text * (size_t)x->count);
    }
    x->text[x->count++] = id;
}

int tn_generator_feed(tn_generator *x, int64_t count, const int64_t *ids)
{
    if (!GIVEN(args_owner(x), x) || !WITHIN(args_owner(x), 0, INT32_MAX, count) ||
        (count && !GIVEN(args_owner(x), ids)))
        return TN_CODE_USAGE;
    const int64_t first = MAX(count - x->capacity, 0); /* the window holds no more */
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= x->vocab)
            return tn_context_fail(context_of(x), TN_CODE_FAIL,
                                   "token %lld is %lld, but the model has %lld tokens",
                                   (long long)i, (long long)ids[i], (long long)x->vocab);
        if (i == first && first)
            x->count = x->cached = 0;
        if (i >= first)
            append(x, ids[i]);
    }
    return TN_CODE_OK;
}

/* Runs the next tokens that have no keys in the caches, at most as many as p takes. */
static int run_pass(tn_generator *x, GeneratorPass *p)
{
    int64_t start = MIN(x->cached, x->capacity - p->tokens), n = MIN(x->count - start, p->tokens);
    int64_t last = n - 1;
    memset(x->ids, 0, sizeof *x->ids * (size_t)p->tokens);
    memcpy(x->ids, x->text + start, sizeof *x->ids * (size_t)n);
    Program *y = p->program->x;
    bool bad = program_write(y, p->ids, 0, (int64_t)sizeof *x->ids * p->tokens, x->ids) ||
               program_write(y, p->position, 0, sizeof start, &start) ||
               (p->last && program_write(y, p->last, 0, sizeof last, &last)) || program_run(y) ||
               program_read(y, p->logits, 0, (int64_t)sizeof *x->logits * x->vocab, x->logits);
    if (bad)
        return tn_context_fail(context_of(x), TN_CODE_FAIL, "%s", y->message);
    x->cached = start + n;
    return 0;
}

int tn_generator_logits(tn_generator *x, const float **logits)
{
    if (!GIVEN(args_owner(x), x, logits))
        return TN_CODE_USAGE;
    int code = 0;
    if (!x->one.program || !x->count)
        return tn_context_fail(context_of(x), TN_CODE_USAGE, "generation: %s",
                               x->count ? "not started" : "no token to begin with");
    while (!code && x->cached < x->count)
        code = run_pass(x, x->count - x->cached == 1 ? &x->one : &x->many);
    *logits = code ? NULL : x->logits;
    return code;
}

static int check_sampling(tn_context *ctx, const tn_sampling *s)
{
    if (s->temperature >= 0 && s->top_k >= 0 && s->top_p > 0 && s->top_p <= 1)
        return 0;
    return tn_context_fail(
        ctx, TN_CODE_USAGE,
        "sampling: expected temperature and top_k of at least 0 and top_p above 0 "
        "and at most 1, found %g, %lld and %g",
        s->temperature, (long long)s->top_k, s->top_p);
}

int tn_generator_next(tn_generator *x, const tn_sampling *sampling, int64_t *id)
{
    if (!GIVEN(args_owner(x), x, sampling, id))
        return TN_CODE_USAGE;
    const float *logits;
    int code = check_sampling(context_of(x), sampling);
    if (!code)
        code = tn_generator_logits(x, &logits);
    if (code)
        return code;
    *id = sampling_draw(sampling, logits, x->vocab, x->drawn, x->candidate);
    if (*id < 0)
        return tn_context_fail(context_of(x), TN_CODE_FAIL,
                               "the model's logits after %lld tokens are not finite",
                               (long long)x->count);
    x->drawn++;
    append(x, *id);
    return TN_CODE_OK;
}

tn_sampling tn_sampling_default(void)
{
    return (tn_sampling){.temperature = 0.8, .top_p = 1};
}
