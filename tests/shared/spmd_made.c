/* Random graphs for the pass spmd: with gradients, optimizer steps, microbatches, dropout,
 * embeddings, losses, on random meshes of up to 16 ranks and 3 axes, with random shardings of
 * ports, whose sizes need not divide. */
#include "spmd_made.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MOST_RANKS = 16 };

void trial_fail(Trial *t, const char *format, ...)
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

/* Every fourth graph is of formed weights and odd vocabularies, on meshes that gather parameters
 * and pad them, more often in microbatches. */
static bool is_formed(const Trial *t)
{
    return !t->op && t->rng.seed % 4 == 2;
}

/* What a training step makes of a forward, as far as that works. */
static void make_step(Trial *t, int64_t rows)
{
    PassOptions o = pass_defaults();
    double loops = is_formed(t) ? 0.8 : 0.4;
    o.clip = rng_chance(&t->rng, 0.5);
    o.accumulate = rows > 3 && rng_chance(&t->rng, loops) ? 2 + rng_below(&t->rng, 2) : 1;
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

void trial_graph(Trial *t)
{
    Rng *r = &t->rng;
    int64_t rows = 0;
    bool formed = is_formed(t), one = !formed && (t->op || rng_chance(r, 0.5));
    bool smooth = formed || (!one && rng_chance(r, 0.6));
    int nodes = 4 + (int)rng_below(r, smooth ? 12 : 20);
    Gen *x = one                            ? one_op(t)
             : formed                       ? gen_formed(t->a, t->lib, r, nodes, &rows)
             : smooth && rng_chance(r, 0.6) ? gen_rows(t->a, t->lib, r, nodes, &rows)
                                            : gen_graph(t->a, t->lib, r, nodes, smooth);
    t->g = x->b.g;
    if (smooth && rng_chance(r, 0.8))
        make_step(t, rows);
    PassOptions o = pass_defaults();
    passes_run(t->g, "canonicalize,cse,dce", &o, NULL, NULL);
    fill_inputs(t, x);
}
/* ---- the mesh ---- */

void trial_mesh(Trial *t)
{
    static const char *const names[] = {"dp", "fsdp", "tp", "x", "y"};
    static const int64_t sizes[] = {2, 2, 2, 3, 4, 4, 5, 8, 16, 1};
    Rng *r = &t->rng;
    Mesh *m = NEW(t->a, Mesh);
    int want = 1 + (int)rng_below(r, 3);
    int64_t ranks = 1;
    for (int attempt = 0; attempt < 20 && m->naxes < want; attempt++) {
        const char *drawn = names[rng_below(r, LEN(names))];
        const char *name = is_formed(t) && !m->naxes ? "fsdp" : drawn;
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

static void draw_in(Rng *r, Graph *g, const Policy *of, int count, double chance)
{
    for (Node *n = g->first; n; n = n->next) {
        if (n->phase < BACKWARD && !n->op->view && rng_chance(r, chance))
            n->policy = of[rng_below(r, count)];
        EACH_LOOP_BODY(b, n)
            draw_in(r, n->region->body[b], of, count, chance);
    }
}

/* Whether one rank takes what is asked of its step's values. */
static bool one_rank_takes(const Trial *t, const Graph *g)
{
    PassOptions o = pass_defaults();
    return try_passes(graph_clone(t->a, g), t->names + strlen("align,spmd,"), &o);
}

/* Policies on what a step's backward reads, and logits that the mesh pads: the whole pipeline then.
 * What one rank refuses is not asked. */
static void draw_policies(Trial *t)
{
    static const Policy of[] = {PREFER_SAVE, PREFER_RECOMPUTE, MUST_SAVE, MUST_RECOMPUTE};
    Rng *r = &t->rng;
    double chance = rng_uniform(r);
    Graph *g = graph_clone(t->a, t->g);
    t->names = "align,spmd,remat";
    draw_in(r, g, of, LEN(of), chance);
    if (!one_rank_takes(t, g))
        return;
    t->g = g;
    t->done->policies++;
}

/* False where the pass refuses what was asked for. */
bool trial_ranks(Trial *t)
{
    int n = (int)mesh_nranks(t->mesh);
    Graph **g = NEWN(t->a, Graph *, n);
    if (t->seen)
        t->seen->size = t->mesh->size;
    for (int j = 0; j < n; j++) {
        g[j] = graph_clone(t->a, t->g);
        t->o.rank = j;
        t->o.spmd_seen = j || !t->seen ? NULL : seen_node;
        t->o.spmd_arg = t->seen;
        if (try_passes(g[j], t->names, &t->o))
            continue;
        if (t->g->ctx->code != TN_USAGE && !strstr(t->g->ctx->message, "without collectives"))
            trial_fail(t, "rank %d: %s", j, t->g->ctx->message);
        else if (t->say)
            printf("refused: %s\n", t->g->ctx->message);
        t->done->refused++;
        return false;
    }
    t->ranks = ranks_of(t->a, n, g);
    return true;
}

void trial_ask(Trial *t)
{
    t->o = pass_defaults();
    t->o.mesh = mesh_text(t->a, t->mesh);
    t->o.reshard = rng_chance(&t->rng, 0.3) ? "never" : "always";
    t->o.sequence_parallel = rng_chance(&t->rng, 0.5);
    t->names = "spmd";
    t->o.spmd_choice = rng_chance(&t->rng, 0.7) ? 1 + rng_below(&t->rng, 1 << 30) : 0;
    draw_rules(t);
    if (t->step && rng_chance(&t->rng, 0.5))
        draw_policies(t);
    if (t->solved && t->nrule < MOST_RULES) {
        t->rule[t->nrule++] = "auto";
        t->o.shardings.count = t->nrule;
        t->o.spmd_choice = t->drawn ? 1 + (int64_t)t->rng.seed : 0;
    }
    if (t->say)
        say(t);
}

/* One axis, which cuts sums into partial terms, and other inputs along any axis. */
void trial_ask_for_op(Trial *t)
{
    const Graph *g = t->g;
    Mesh *m = NEW(t->a, Mesh);
    const bool must[MAX_MESH] = {true};
    t->names = "spmd";
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
