/* The pass spmd on random graphs: with gradients, optimizer steps, microbatches, dropout,
 * embeddings, losses, on random meshes of up to 16 ranks and 3 axes, with random shardings of
 * ports, whose sizes need not divide. All ranks in lockstep, in double, give what one rank gives,
 * within 1e-12 of the largest magnitude; on planned arenas they give the same bits as without.
 * So do graphs whose forms are chosen at once (--shard auto), for the least seconds, and for costs
 * that are drawn, by which any legal choice may be taken.
 * Every way to cut every op must be drawn: they are counted, and with TN_LONG required; those that
 * no graph has are said.
 *
 * `test_spmd SEED` runs one graph and says what was asked for; `test_spmd SEED show` prints the
 * graph, that of rank 0, and the first value that differs. TN_LONG: fifty times as many. */
#include "../../include/tenon.h"
#include "../shared/interp.h"
#include "../shared/ranks_show.h"
#include "../shared/spmd_made.h"
#include "../shared/test.h"

#include <math.h>

enum { NGRAPH = 200, QUICK = 20, LONG = 50, MOST_SHOWN = 20, MOST_PLANNED = 8 };
enum { PICKED = 1250, LEAST_PICKED = 1000 }; /* with TN_LONG: tried and run by each picker */
enum { FEW_PICKED = 50 };
enum { LEAST_OF_EACH = 100, MOST_OF_OP = 6000 };

static const double TOLERANCE = 1e-12;
/* What rounding may do is measured by noise: of draws at that noise, times INSIDE. */
static const double NOISE = 4e-15, INSIDE = 50, BORDER = 1e-6;
enum { DRAWS = 4 };

/* ---- how exact it is ---- */

static double largest(const Tensor *t)
{
    return fmax(1, interp_largest(t));
}

/* The greatest difference; infinite where only one is finite. */
static double distance(const Tensor *x, const Tensor *y)
{
    double most = 0;
    for (int64_t i = 0, n = tensor_nelem(x); i < n; i++) {
        double p = tensor_get(x, i), q = tensor_get(y, i);
        bool integers = !dtype_float(x->dtype);
        if (integers ? tensor_int(x, i) == tensor_int(y, i) : p == q || (isnan(p) && isnan(q)))
            continue;
        most = isfinite(p - q) && p != q ? fmax(most, fabs(p - q)) : INFINITY;
    }
    return most;
}

/* How far noise on inputs and every result moves output k, at most. */
static double noisy_distance(Trial *t, double noise, int k)
{
    double most = 0;
    Tensor *out = NEWN(t->a, Tensor, t->g->nout);
    for (int i = 0; i < DRAWS; i++) {
        interp_noisy(t->a, t->g, t->in, i % 2 ? -noise : noise, (uint64_t)i / 2, out);
        most = fmax(most, distance(&out[k], &t->want[k]));
    }
    return most;
}

/* Whether a step of an op that is not continuous is so close that rounding may cross it. */
static bool is_on_border(Trial *t)
{
    for (int k = 0; k < t->g->nout; k++)
        if (!(noisy_distance(t, 1e-13, k) <= BORDER * largest(&t->want[k])))
            return true;
    return false;
}

typedef struct Borders {
    Trial *t;
    bool on;
} Borders;

static void look_for_borders(void *arg)
{
    Borders *x = arg;
    x->on = is_on_border(x->t);
}

/* Inputs of floats, moved a little. */
static void move_inputs(Trial *t)
{
    for (int i = 0; i < t->g->nin; i++) {
        Tensor *x = &t->in[i];
        bool param = t->g->in[i].role == ROLE_PARAM || t->g->in[i].role == ROLE_BATCH ||
                     t->g->in[i].role == ROLE_NONE;
        *x = tensor_copy(t->a, x, x->dtype);
        for (int64_t e = 0; param && dtype_float(x->dtype) && e < tensor_nelem(x); e++)
            tensor_set(x, e, tensor_get(x, e) * (1 + 1e-3 * (rng_uniform(&t->rng) - 0.5)));
    }
}

/* Finds inputs off the borders; false: there are none nearby. */
static bool leave_borders(Trial *t)
{
    t->want = NEWN(t->a, Tensor, t->g->nout);
    for (int i = 0; i < 3; i++) {
        Borders x = {.t = t};
        if (i)
            move_inputs(t);
        interp_graph(t->a, t->g, t->in, t->want);
        if (!ctx_try(t->g->ctx, look_for_borders, &x) && !x.on)
            return true;
    }
    return false;
}

/* How far output k is off. Limbs of sum_squares are one number, whose rows are rounded once for
 * each part. */
static double output_distance(const Trial *t, int k, const Tensor *got)
{
    enum { LIMB = 27, NLIMB = 22 };
    const Tensor *want = &t->want[k];
    double x = 0, y = 0;
    if (!node_is(t->g->out[k].v->def, OP_sum_squares))
        return distance(got, want);
    for (int i = 0; i < NLIMB; i++) {
        x += ldexp(tensor_get(got, i), LIMB * i);
        y += ldexp(tensor_get(want, i), LIMB * i);
    }
    for (int i = NLIMB; i < NLIMB + 2; i++) /* of what is not finite */
        if (!tensor_get(got, i) != !tensor_get(want, i))
            return INFINITY;
    return x == y ? 0 : fabs(x - y) / fmax(x, y) * largest(want);
}

static void compare(Trial *t, Tensor *got)
{
    bool explained = false;
    for (int k = 0; k < t->g->nout; k++) {
        double far = output_distance(t, k, &got[k]);
        if (far <= TOLERANCE * largest(&t->want[k]))
            continue;
        double noise = INSIDE * noisy_distance(t, NOISE, k);
        explained = true;
        if (!(isfinite(noise) && far <= noise))
            trial_fail(t, "output %d (%%%s) is %g off, noise explains %g", k, t->g->out[k].v->name,
                       far, noise);
    }
    t->done->explained += explained;
}

/* The same bits on planned arenas, of one memory or two, with collectives joined or not. */
static void compare_planned(Trial *t, Tensor *const *in, Tensor *const *out)
{
    bool two = rng_chance(&t->rng, 0.5);
    bool moves = two && t->step && rng_chance(&t->rng, 0.7);
    uint64_t seed = (uint64_t)rng_below(&t->rng, 1 << 30);
    int joined = 0;
    Ranks r = rng_chance(&t->rng, 0.75) ? ranks_bucketed(&t->ranks, seed, &joined) : t->ranks;
    t->done->bucketed += joined > 0;
    r = moves ? ranks_offloaded(&r, t->o.reshard, seed, rng_uniform(&t->rng))
        : two ? ranks_staged(&r)
              : r;
    t->done->offloaded += moves;
    Tensor **again = ranks_execute(&r, device_at(two ? DEVICE_emulated : DEVICE_cpu), in);
    t->done->planned++;
    t->done->staged += two;
    for (int j = 0; j < t->ranks.n; j++)
        for (int k = 0; k < t->g->nout; k++)
            if (distance(&again[j][k], &out[j][k]) != 0)
                trial_fail(t, "on its arena rank %d has another output %d (%%%s)", j, k,
                           t->g->out[k].v->name);
}

/* In a part of the trials collectives beside products are taken apart. */
static void take_apart(Trial *t)
{
    Rng own = {t->rng.seed ^ 1, 0}; /* what is drawn of the other does not depend on it */
    int calls = 0;
    if (rng_chance(&own, 0.5))
        t->ranks = ranks_ringed(&t->ranks, &calls);
    t->done->ringed += calls > 0;
}

static void run_ranks(Trial *t)
{
    take_apart(t);
    Tensor **in = ranks_inputs(&t->ranks, t->g, t->in);
    Tensor **out = ranks_interpret(&t->ranks, in, NULL);
    Tensor *joined = NEWN(t->a, Tensor, t->g->nout);
    const char *why = ranks_together(&t->ranks, t->g, out, joined);
    if (why)
        trial_fail(t, "%s", why);
    else
        compare(t, joined);
    t->done->run++;
    t->done->steps += t->step;
    t->done->loops += t->loop;
    if (!t->failure && t->ranks.n <= MOST_PLANNED)
        compare_planned(t, in, out);
}

static void run_trial(void *arg)
{
    Trial *t = arg;
    trial_graph(t);
    if (!leave_borders(t)) {
        t->done->on_border++;
        return;
    }
    if (t->op) {
        trial_ask_for_op(t);
    } else {
        trial_mesh(t);
        trial_ask(t);
    }
    if (t->show)
        ranks_print("one rank", t->a, t->g);
    if (!trial_ranks(t))
        return;
    if (t->show) {
        ranks_print("rank 0", t->a, t->ranks.g[0]);
        ranks_show(&t->ranks, t->g, t->in);
    }
    run_ranks(t);
}

static void try_with(Ctx *ctx, Library *lib, const OpCases *op, uint64_t seed, int how,
                     Counts *done, Seen *seen, const char *picker)
{
    Arena *a = arena_new(ctx);
    CHECK(a);
    Trial t = {.a = a,
               .lib = lib,
               .rng = {seed, 0},
               .done = done,
               .seen = seen,
               .op = op,
               .solved = picker != NULL,
               .drawn = picker && !strcmp(picker, "drawn")};
    t.sums.a = a;
    t.say = how > 0;
    t.show = how > 1;
    if (ctx_try(ctx, run_trial, &t))
        trial_fail(&t, "%s", ctx->message);
    if (!EXPECT(!t.failure) && test_nfail <= MOST_SHOWN)
        printf("random graph %llu%s%s%s%s: %s\n", (unsigned long long)seed, op ? " of " : "",
               op ? op->op->name : "", picker ? ", picker " : "", picker ? picker : "", t.failure);
    arena_free(a);
}

static void try_one(Ctx *ctx, Library *lib, const OpCases *op, uint64_t seed, int how, Counts *done,
                    Seen *seen)
{
    try_with(ctx, lib, op, seed, how, done, seen, NULL);
}

/* ---- what was done ---- */

/* Why random graphs have no such op; NULL: they have. */
static const char *find_without(const OpCases *c)
{
    return c->op->region                      ? "a region"
           : c->op->class == CLASS_COLLECTIVE ? "of graphs of ranks"
           : c->op->async                     ? "of graphs of several memories"
           : !c->count                        ? "without problems in tests/op"
                                              : NULL;
}

/* Every way to cut the example of every op. */
static void expect_ways(Seen *s, const Library *lib)
{
    tn_context *api = tn_context_new();
    const char *text;
    CHECK(api);
    for (int i = 0; i < lib->count; i++) {
        const Op *op = lib->op[i].op;
        CHECK(!tn_ops(api, op->name, "infer", &text));
        const Node *n = graph_parse(s->a, text, op->name)->last;
        seen_expect(s, n->op == op ? n : n->in[0]->def, find_without(&lib->op[i]));
    }
    tn_context_free(api);
}

/* Neither refused nor explained away. */
static void expect_counts(const Counts *done, double count)
{
    printf("note: %lld graphs run by ranks, %lld on planned arenas; %lld steps, %lld loops, %lld "
           "with policies, %lld offloaded, %lld with joined collectives, %lld with rings; "
           "%lld refused, %lld near a border, %lld differences explained by rounding\n",
           (long long)done->run, (long long)done->planned, (long long)done->steps,
           (long long)done->loops, (long long)done->policies, (long long)done->offloaded,
           (long long)done->bucketed, (long long)done->ringed, (long long)done->refused,
           (long long)done->on_border, (long long)done->explained);
    EXPECT((double)done->run >= 0.8 * count);
    EXPECT((double)done->planned >= 0.35 * count);
    EXPECT((double)done->staged >= 0.15 * count);
    EXPECT((double)done->bucketed >= 0.05 * count);
    EXPECT((double)done->steps >= 0.12 * count);
    EXPECT((double)done->loops >= 0.005 * count);
    EXPECT((double)done->refused <= 0.15 * count);
    EXPECT((double)done->on_border <= 0.1 * count);
    EXPECT((double)done->explained <= 0.01 * count);
}

/* Graphs of each op alone until all its ways were taken often enough, or MOST_OF_OP. */
static void try_ops(Ctx *ctx, Library *lib, Counts *done, Seen *seen)
{
    for (int i = 0; i < lib->count; i++)
        for (int k = 0; k < MOST_OF_OP && !find_without(&lib->op[i]) && !lib->op[i].op->wait &&
                        seen_short(seen, lib->op[i].op, LEAST_OF_EACH);
             k++)
            try_one(ctx, lib, &lib->op[i], (uint64_t)k, 0, done, seen);
}

/* Graphs whose forms are chosen at once. */
static void try_picker(Ctx *ctx, Library *lib, const char *picker, int first, int end, int how)
{
    Counts done = {0};
    for (int i = first; i < end; i++)
        try_with(ctx, lib, NULL, (uint64_t)i, how, &done, NULL, picker);
    printf("note: %lld graphs run by ranks whose forms the picker %s chose at once, %lld refused\n",
           (long long)done.run, picker, (long long)done.refused);
    if (!how)
        EXPECT(done.run >= (end - first == PICKED ? LEAST_PICKED : (end - first) / 2));
}

int main(int argc, char **argv)
{
    static const char *const pickers[] = {"solved", "drawn"};
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Library lib;
    Counts done = {0};
    Seen seen = {.a = a, .way = {.a = a}};
    bool all = getenv("TN_LONG");
    int first = argc > 1 ? atoi(argv[1]) : 0;
    int count = argc > 1 ? first + 1 : all ? NGRAPH * LONG : getenv("TN_QUICK") ? QUICK : NGRAPH;
    par_set_threads(1); /* all is small */
    if (!EXPECT(library_try(&ctx, a, &lib)))
        return test_report();
    lib.apart = true;
    expect_ways(&seen, &lib);
    for (int i = first; i < count; i++)
        try_one(&ctx, &lib, NULL, (uint64_t)i, argc > 2 ? 2 : argc > 1, &done, &seen);
    if (argc == 1)
        expect_counts(&done, count);
    for (int p = 0; p < LEN(pickers); p++)
        try_picker(&ctx, &lib, pickers[p], first,
                   argc > 1 ? count
                   : all    ? PICKED
                            : FEW_PICKED,
                   argc > 2 ? 2 : argc > 1);
    if (all)
        try_ops(&ctx, &lib, &done, &seen);
    if (all)
        EXPECT(seen_report(&seen, LEAST_OF_EACH, getenv("TN_WAYS")) == 0);
    else if (getenv("TN_WAYS"))
        seen_report(&seen, 0, true);
    arena_free(a);
    ctx_end(&ctx);
    return test_report();
}
