/* The pass spmd on random graphs: with gradients, optimizer steps, microbatches, dropout,
 * embeddings, losses, on random meshes of up to 16 ranks and 3 axes, with random shardings of
 * ports, whose sizes need not divide. All ranks in lockstep, in double, give what one rank gives,
 * within 1e-12 of the largest magnitude; on planned arenas they give the same bits as without.
 * Every way to cut every op must be drawn: they are counted, and with TN_LONG required; those that
 * no graph has are said.
 *
 * `test_spmd SEED` runs one graph and says what was asked for; `test_spmd SEED show` prints the
 * graph, that of rank 0, and the first value that differs. TN_LONG: ten times as many. */
#include "../include/tenon.h"
#include "../src/pass/pass.h"
#include "gen.h"
#include "interp.h"
#include "ranks_show.h"
#include "spmd_seen.h"
#include "test.h"

#include <math.h>

enum { NGRAPH = 1000, QUICK = 100, LONG = 10, MOST_SHOWN = 20, MOST_RANKS = 16, MOST_PLANNED = 8 };
enum { MOST_RULES = 40, LEAST_OF_EACH = 100, MOST_OF_OP = 6000 };

static const double TOLERANCE = 1e-12;
/* What rounding may do is measured by noise: of draws at that noise, times INSIDE. */
static const double NOISE = 4e-15, INSIDE = 50, BORDER = 1e-6;
enum { DRAWS = 4 };

typedef struct Counts {
    int64_t run, refused, on_border, explained, planned, staged, steps, loops;
} Counts;

typedef struct Trial {
    Arena *a;
    Library *lib;
    Rng rng;
    Counts *done;
    Seen *seen;
    bool say, show;
    Graph *g; /* of one rank */
    Tensor *in, *want;
    Mesh *mesh;
    PassOptions o;
    const OpCases *op; /* of which the graph is to be one node; NULL: any graph */
    Map sums;          /* names of inputs that are added up along axis 0 to be operands */
    const char *rule[MOST_RULES];
    int nrule;
    bool step, loop; /* it is a training step, in microbatches */
    Ranks ranks;
    const char *failure;
} Trial;

static void fail_trial(Trial *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void fail_trial(Trial *t, const char *format, ...)
{
    char text[1000];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!t->failure)
        t->failure = arena_strdup(t->a, text);
}

/* ---- the graph of one rank ---- */

typedef struct Passes {
    Graph *g;
    const char *names;
    const PassOptions *o;
} Passes;

static void run_passes(void *arg)
{
    const Passes *x = arg;
    passes_run(x->g, x->names, x->o, NULL, NULL);
}

static bool try_passes(Graph *g, const char *names, const PassOptions *o)
{
    Passes x = {g, names, o};
    return !ctx_try(g->ctx, run_passes, &x);
}

/* What a training step makes of a forward, as far as that works. */
static void make_step(Trial *t, int64_t rows)
{
    PassOptions o = pass_defaults();
    o.clip = rng_chance(&t->rng, 0.5);
    o.accumulate = rows > 3 && rng_chance(&t->rng, 0.4) ? 2 + rng_below(&t->rng, 2) : 1;
    const char *names = rng_chance(&t->rng, 0.25) ? "grad,dce"
                        : o.accumulate > 1        ? "grad,accumulate,optimizer,dce"
                                                  : "grad,optimizer,dce";
    Graph *g = graph_clone(t->a, t->g);
    if (!try_passes(g, names, &o)) /* an op without a gradient, no parameters */
        return;
    t->g = g;
    t->step = true;
    t->loop = strstr(names, "accumulate");
}

static double input_value(Trial *t, const Port *p)
{
    double u = rng_uniform(&t->rng);
    return p->role == ROLE_STEP ? 1 : p->role == ROLE_STATE ? 0.01 * u : u;
}

static void fill_inputs(Trial *t, const Gen *x)
{
    const Graph *g = t->g;
    t->in = NEWN(t->a, Tensor, g->nin);
    for (int i = 0; i < g->nin; i++) {
        const Port *from = i < x->b.g->nin ? &x->b.g->in[i] : NULL;
        if (from && !strcmp(from->v->name, g->in[i].v->name)) {
            t->in[i] = x->in[i];
            continue;
        }
        t->in[i] = tensor_new(t->a, &g->in[i].v->type, 0);
        for (int64_t e = 0; e < tensor_nelem(&t->in[i]); e++)
            tensor_set(&t->in[i], e, input_value(t, &g->in[i]));
    }
}

/* An operand of that type: an input, or a sum, of which ranks may have parts. */
static Known *one_operand(Trial *trial, Gen *x, const CaseOperand *o)
{
    Type t = type_wide(&o->type), more = t;
    bool free = dtype_float(t.dtype) && !o->ranged;
    if (!free || t.rank == TN_RANK || rng_chance(x->rng, 0.3))
        return gen_input(x, &t, free ? 1 : o->lo, free ? -1 : o->hi);
    memmove(more.dim + 1, t.dim, sizeof *t.dim * (TN_RANK - 1));
    more.dim[0] = trial->op ? 12 : 2 + 2 * rng_below(x->rng, 3);
    more.rank++;
    Known *k = gen_input(x, &more, 1, -1);
    map_put(&trial->sums, k->v->name, k);
    return gen_emit(x, "sum", 1, &k, ATTRS(A_INTS("dim", 1, ((int64_t[]){0}))));
}

/* One line of tests/op: each op as often as any. */
static Gen *one_op(Trial *t)
{
    Gen *x = NEW(t->a, Gen);
    const OpCases *o = t->op;
    while (!o || !o->count || o->op->async || o->op->wait || o->op->class == CLASS_COLLECTIVE)
        o = &t->lib->op[rng_below(&t->rng, t->lib->count)];
    const Case *c = o->c[rng_below(&t->rng, o->count)];
    *x = (Gen){.a = t->a, .rng = &t->rng, .lib = t->lib, .b = {.g = graph_new(t->a, "one")}};
    Value **v = NEWN(t->a, Value *, c->nin);
    for (int i = 0; i < c->nin; i++)
        v[i] = one_operand(t, x, &c->in[i])->v;
    Node *n = case_emit_wide(&x->b, c, v);
    for (int k = 0; k < n->nout; k++)
        graph_output(x->b.g, n->out[k], ROLE_NONE, NULL);
    return x;
}

static void make_graph(Trial *t)
{
    Rng *r = &t->rng;
    int64_t rows = 0;
    bool one = t->op || rng_chance(r, 0.5), smooth = !one && rng_chance(r, 0.6);
    int nodes = 4 + (int)rng_below(r, smooth ? 12 : 20);
    Gen *x = one                            ? one_op(t)
             : smooth && rng_chance(r, 0.6) ? gen_rows(t->a, t->lib, r, nodes, &rows)
                                            : gen_graph(t->a, t->lib, r, nodes, smooth);
    t->g = x->b.g;
    if (smooth && rng_chance(r, 0.8))
        make_step(t, rows);
    PassOptions o = pass_defaults();
    passes_run(t->g, "canonicalize,cse,dce", &o, NULL, NULL);
    fill_inputs(t, x);
}

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

/* ---- the mesh ---- */

static void draw_mesh(Trial *t)
{
    static const char *const names[] = {"dp", "fsdp", "tp", "x", "y"};
    static const int64_t sizes[] = {2, 2, 2, 3, 4, 4, 5, 8, 16, 1};
    Rng *r = &t->rng;
    Mesh *m = NEW(t->a, Mesh);
    int want = 1 + (int)rng_below(r, 3);
    int64_t ranks = 1;
    for (int attempt = 0; attempt < 20 && m->naxes < want; attempt++) {
        const char *name = names[rng_below(r, LEN(names))];
        int64_t size = sizes[rng_below(r, LEN(sizes))];
        if (mesh_axis(m, name) >= 0 || ranks * size > MOST_RANKS)
            continue;
        mesh_add(t->a, m, name, size);
        ranks *= size;
    }
    t->mesh = m;
}

/* ---- rules ---- */

static bool may_have_rule(const Port *p)
{
    return p->v->type.rank && type_nelem(&p->v->type) &&
           (p->role == ROLE_PARAM || p->role == ROLE_NONE || p->role == ROLE_BATCH ||
            p->role == ROLE_METRIC);
}

/* "0:x,2,y;1:dp": each mesh axis of `must`, and others by chance, on some axis of the value. */
static const char *draw_cuts(Trial *t, const Type *type, const bool *must)
{
    Rng *r = &t->rng;
    Buf b = {.a = t->a}, list[TN_RANK] = {0};
    int64_t units[TN_RANK];
    int order[MAX_MESH];
    for (int c = 0; c < t->mesh->naxes; c++) {
        int at = (int)rng_below(r, c + 1);
        order[c] = order[at];
        order[at] = c;
    }
    for (int i = 0; i < t->mesh->naxes; i++) {
        int c = order[i], d = (int)rng_below(r, type->rank);
        if (!must[c] && rng_chance(r, 0.5))
            continue;
        if (!list[d].a) {
            list[d].a = t->a;
            units[d] = 1;
        }
        int64_t outer = 2 + rng_below(r, 2), size = t->mesh->size[c];
        if (rng_chance(r, 0.2) && type->dim[d] % (units[d] * outer * size) == 0) {
            buf_printf(&list[d], "%s%lld", list[d].len ? "," : "", (long long)outer);
            units[d] *= outer;
        }
        buf_printf(&list[d], "%s%s", list[d].len ? "," : "", t->mesh->name[c]);
        units[d] *= size;
    }
    for (int d = 0; d < type->rank; d++)
        if (list[d].len)
            buf_printf(&b, "%s%d:%s", b.len ? ";" : "", d, list[d].text);
    return b.len ? b.text : "";
}

static void add_rule(Trial *t, const Port *p, const bool *must)
{
    const char *name = p->role == ROLE_PARAM ? p->name : p->v->name;
    if (t->nrule < MOST_RULES)
        t->rule[t->nrule++] = arena_printf(t->a, "%s=%s", name, draw_cuts(t, &p->v->type, must));
}

/* Axes that have no meaning of their own must be named by a rule, and those that find nothing. */
static void draw_rules(Trial *t)
{
    const Graph *g = t->g;
    bool must[MAX_MESH] = {0}, none[MAX_MESH] = {0};
    double chance = rng_uniform(&t->rng);
    for (int c = 0; c < t->mesh->naxes; c++)
        must[c] = rng_chance(&t->rng, 0.3) || mesh_axis_kind(t->mesh->name[c]) == AXIS_OTHER ||
                  mesh_axis_kind(t->mesh->name[c]) == AXIS_TP || t->mesh->size[c] == 1;
    for (int c = 0; c < t->mesh->naxes && !graph_find_input(g, ROLE_BATCH, NULL); c++)
        must[c] = true;
    int count = g->nin + g->nout, first = (int)rng_below(&t->rng, count);
    for (int i = 0, named = 0; i < count; i++) {
        int k = (first + i) % count;
        const Port *p = k < g->nin ? &g->in[k] : &g->out[k - g->nin];
        if (may_have_rule(p) && (!named || rng_chance(&t->rng, chance)))
            add_rule(t, p, named++ ? none : must);
    }
    t->o.shardings = (Globs){t->rule, t->nrule};
}

/* ---- the ranks ---- */

static void say(const Trial *t)
{
    printf("--mesh %s%s%s --sequence-parallel %s --choice %lld", t->o.mesh,
           t->o.reshard ? " --reshard " : "", t->o.reshard ? t->o.reshard : "",
           t->o.sequence_parallel ? "on" : "off", (long long)t->o.spmd_choice);
    for (int i = 0; i < t->nrule; i++)
        printf(" --shard '%s'", t->rule[i]);
    printf("\n");
}

/* False where the pass refuses what was asked for. */
static bool make_ranks(Trial *t)
{
    int n = (int)mesh_nranks(t->mesh);
    Graph **g = NEWN(t->a, Graph *, n);
    t->seen->size = t->mesh->size;
    for (int j = 0; j < n; j++) {
        g[j] = graph_clone(t->a, t->g);
        t->o.rank = j;
        t->o.spmd_seen = j ? NULL : seen_node;
        t->o.spmd_arg = t->seen;
        if (try_passes(g[j], "spmd", &t->o))
            continue;
        if (t->g->ctx->code != TN_USAGE && !strstr(t->g->ctx->message, "without collectives"))
            fail_trial(t, "rank %d: %s", j, t->g->ctx->message);
        else if (t->say)
            printf("refused: %s\n", t->g->ctx->message);
        t->done->refused++;
        return false;
    }
    t->ranks = ranks_of(t->a, n, g);
    return true;
}

static void ask(Trial *t)
{
    t->o = pass_defaults();
    t->o.mesh = mesh_text(t->a, t->mesh);
    t->o.reshard = rng_chance(&t->rng, 0.3) ? "never" : "always";
    t->o.sequence_parallel = rng_chance(&t->rng, 0.5);
    t->o.spmd_choice = rng_chance(&t->rng, 0.7) ? 1 + rng_below(&t->rng, 1 << 30) : 0;
    draw_rules(t);
    if (t->say)
        say(t);
}

/* One axis, which cuts sums into partial terms, and other inputs along any axis. */
static void ask_for_op(Trial *t)
{
    const Graph *g = t->g;
    Mesh *m = NEW(t->a, Mesh);
    const bool must[MAX_MESH] = {true};
    mesh_add(t->a, m, "x", 2 + rng_below(&t->rng, 3));
    t->mesh = m;
    t->o = pass_defaults();
    t->o.mesh = mesh_text(t->a, m);
    t->o.spmd_choice = 1 + rng_below(&t->rng, 1 << 30);
    for (int i = 0; i < g->nin && t->nrule < MOST_RULES; i++) {
        const Port *p = &g->in[i];
        if (map_find(&t->sums, p->v->name) && rng_chance(&t->rng, 0.6))
            t->rule[t->nrule++] = arena_printf(t->a, "%s=0:x", p->v->name);
        else if (may_have_rule(p) && rng_chance(&t->rng, 0.2))
            add_rule(t, p, must);
    }
    for (int i = 0; i < g->nin && !t->nrule; i++)
        if (may_have_rule(&g->in[i]))
            add_rule(t, &g->in[i], must);
    t->o.shardings = (Globs){t->rule, t->nrule};
    if (t->say)
        say(t);
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
            fail_trial(t, "output %d (%%%s) is %g off, noise explains %g", k, t->g->out[k].v->name,
                       far, noise);
    }
    t->done->explained += explained;
}

/* The same bits on planned arenas, of one memory or two. */
static void compare_planned(Trial *t, Tensor *const *in, Tensor *const *out)
{
    bool two = rng_chance(&t->rng, 0.5);
    Ranks r = two ? ranks_staged(&t->ranks) : t->ranks;
    Tensor **again = ranks_execute(&r, device_at(two ? DEVICE_emulated : DEVICE_cpu), in);
    t->done->planned++;
    t->done->staged += two;
    for (int j = 0; j < t->ranks.n; j++)
        for (int k = 0; k < t->g->nout; k++)
            if (distance(&again[j][k], &out[j][k]) != 0)
                fail_trial(t, "on its arena rank %d has another output %d (%%%s)", j, k,
                           t->g->out[k].v->name);
}

static void run_ranks(Trial *t)
{
    Tensor **in = ranks_inputs(&t->ranks, t->g, t->in);
    Tensor **out = ranks_interpret(&t->ranks, in, NULL);
    Tensor *joined = NEWN(t->a, Tensor, t->g->nout);
    const char *why = ranks_together(&t->ranks, t->g, out, joined);
    if (why)
        fail_trial(t, "%s", why);
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
    make_graph(t);
    if (!leave_borders(t)) {
        t->done->on_border++;
        return;
    }
    if (t->op) {
        ask_for_op(t);
    } else {
        draw_mesh(t);
        ask(t);
    }
    if (t->show)
        ranks_print("one rank", t->a, t->g);
    if (!make_ranks(t))
        return;
    if (t->show) {
        ranks_print("rank 0", t->a, t->ranks.g[0]);
        ranks_show(&t->ranks, t->g, t->in);
    }
    run_ranks(t);
}

static void try_one(Ctx *ctx, Library *lib, const OpCases *op, uint64_t seed, int how, Counts *done,
                    Seen *seen)
{
    Arena *a = arena_new(ctx);
    CHECK(a);
    Trial t = {.a = a, .lib = lib, .rng = {seed, 0}, .done = done, .seen = seen, .op = op};
    t.sums.a = a;
    t.say = how > 0;
    t.show = how > 1;
    if (ctx_try(ctx, run_trial, &t))
        fail_trial(&t, "%s", ctx->message);
    if (!EXPECT(!t.failure) && test_nfail <= MOST_SHOWN)
        printf("random graph %llu%s%s: %s\n", (unsigned long long)seed, op ? " of " : "",
               op ? op->op->name : "", t.failure);
    arena_free(a);
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
    printf("note: %lld graphs run by ranks, %lld on planned arenas; %lld steps, %lld loops; %lld "
           "refused, %lld near a border, %lld differences explained by rounding\n",
           (long long)done->run, (long long)done->planned, (long long)done->steps,
           (long long)done->loops, (long long)done->refused, (long long)done->on_border,
           (long long)done->explained);
    EXPECT((double)done->run >= 0.8 * count);
    EXPECT((double)done->planned >= 0.35 * count);
    EXPECT((double)done->staged >= 0.15 * count);
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

int main(int argc, char **argv)
{
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
    expect_ways(&seen, &lib);
    for (int i = first; i < count; i++)
        try_one(&ctx, &lib, NULL, (uint64_t)i, argc > 2 ? 2 : argc > 1, &done, &seen);
    if (argc == 1)
        expect_counts(&done, count);
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
