/* The pass offload on random training graphs with random policies, after remat and before fuse or
 * not, in one microbatch or two. The interpreter and the emulated device compute the bits of the
 * graph without policies. What was asked for is so: of a value that the host keeps nothing in the
 * backward reads the value itself, behind its wait; all others have a decision that says why not.
 * The copies' distances cost no memory: the same graph without any has no lower peak. Running the
 * pass again changes nothing. `test_offload SEED` is for one graph; TN_LONG: ten times as many;
 * TN_QUICK: less. */
#include "../../src/exec/exec.h"
#include "../../src/flow/flow.h"
#include "../../src/pass/pass.h"
#include "../shared/gen.h"
#include "../shared/graphs.h"
#include "../shared/interp.h"
#include "../shared/test.h"

#include <stdlib.h>
#include <string.h>

static Ctx ctx;

/* Of all graphs: values that the host keeps, those that it could not, waits and reloads that stand
 * away from what they are for. */
typedef struct Counts {
    int moved, refused, apart;
} Counts;

static Counts counts;

typedef struct Trial {
    Arena *a;
    Library *lib;
    uint64_t seed;
    Graph *g;
    const Tensor *in;
    PassOptions o;
    Decisions decisions;
} Trial;

static void complain(const Trial *t, const char *what, const char *name)
{
    test_nfail++;
    printf("random graph %llu: %s %s\n", (unsigned long long)t->seed, what, name);
}

/* ---- the graph ---- */

/* Any policy on some nodes of the forward, `offload` the most. */
static void draw_policies(Graph *g, Rng *r)
{
    for (Node *n = g->first; n; n = n->next) {
        if (n->phase < BACKWARD && rng_chance(r, 0.5))
            n->policy = rng_chance(r, 0.7) ? OFFLOAD : (Policy)rng_below(r, NPOLICY);
        EACH_LOOP_BODY(b, n)
            draw_policies(n->region->body[b], r);
    }
}

static void run_passes(void *arg)
{
    Trial *t = arg;
    passes_run(t->g, "canonicalize,cse,dce,remat,offload", &t->o, NULL, NULL);
}

/* Whether it ran; policies may exclude each other. */
static bool may_run(Trial *t)
{
    if (!ctx_try(&ctx, run_passes, t))
        return true;
    if (!strstr(ctx.message, "but its base is") && !strstr(ctx.message, "whole"))
        complain(t, "passes:", ctx.message);
    return false;
}

/* ---- what became of it ---- */

static const Value *base_of(const Value *v)
{
    while (v->def && v->def->op->view)
        v = v->def->in[0];
    return v;
}

static const Decision *find_decision(const Trial *t, const Node *n)
{
    for (int i = 0; i < t->decisions.count; i++)
        if (t->decisions.list[i].policy == OFFLOAD &&
            !strcmp(t->decisions.list[i].node, n->out[0]->name))
            return &t->decisions.list[i];
    return NULL;
}

/* Whether a node of the backward, behind the wait that ends n's life, reads a result of n. */
static bool read_behind(const Node *n)
{
    bool freed = false, read = false;
    for (const Node *m = n->next; m; m = m->next) {
        for (int i = 0; i < m->nin && freed; i++)
            read |= base_of(m->in[i])->def == n && !node_transfers(m) && node_in_backward(m);
        freed |= m->op->wait && m->nin > 1 && m->in[1]->def == n;
    }
    return read;
}

static void check_graph(const Trial *t, const Graph *g)
{
    for (const Node *n = g->first; n; n = n->next) {
        EACH_LOOP_BODY(b, n)
            check_graph(t, n->region->body[b]);
        if (n->policy != OFFLOAD || n->phase >= BACKWARD || n->op->view)
            continue;
        const Decision *d = find_decision(t, n);
        if (!d || !d->reason)
            complain(t, "no decision about", n->out[0]->name);
        else if (d->offload && d->honoured && n->nout == 1 && read_behind(n))
            complain(t, "the backward reads what the host keeps:", n->out[0]->name);
        counts.moved += d && d->offload;
        counts.refused += d && !d->honoured;
    }
}

/* ---- distances ---- */

static bool reads(const Node *n, const Value *v)
{
    bool read = false;
    for (int i = 0; i < n->nin; i++)
        read |= base_of(n->in[i]) == v;
    return read;
}

/* Moves each reload down to its wait, and the waits of offloads up to what they must follow. */
static void take_distances(Graph *g)
{
    EACH_NODE(n, g) {
        EACH_LOOP_BODY(b, n)
            take_distances(n->region->body[b]);
        n->nafter = 0;
        const Node *copy = n->op->wait ? n->in[0]->def : NULL;
        if (!copy || !copy->op->async)
            continue;
        if (!copy->op->to_host) {
            counts.apart += copy->next != n;
            node_move(g, (Node *)copy, n);
            continue;
        }
        Node *to = n;
        while (to->prev != copy && !(reads(to->prev, n->in[1]) && !to->prev->op->view))
            to = to->prev;
        counts.apart += to != n;
        if (to != n)
            node_move(g, n, to);
    }
}

static void check_distances(const Trial *t)
{
    const Device *d = device_at(DEVICE_emulated);
    Graph *h = graph_clone(t->a, t->g);
    take_distances(h);
    graph_verify(h);
    int64_t peak = flow_peak(flow_new(t->g, d, machine_for(t->a, d, NULL), t->a)),
            least = flow_peak(flow_new(h, d, machine_for(t->a, d, NULL), t->a));
    if (peak > least)
        complain(t, "distances cost memory:",
                 arena_printf(t->a, "%lld bytes, without %lld", (long long)peak, (long long)least));
}

/* ---- values ---- */

static void use_references(Plan *p)
{
    for (int i = 0; i < p->nstep; i++)
        if (p->step[i].kind == STEP_CALL && p->step[i].node->op->rules->ref &&
            !p->step[i].node->op->wait)
            p->step[i].kernel = NULL;
}

static void check_values(const Trial *t, const char *how, const Tensor *got, const Tensor *want)
{
    for (int i = 0; i < t->g->nout; i++)
        if (graphs_distance(&got[i], &want[i]) != 0)
            complain(t, how, t->g->out[i].v->name);
}

static void check_run(const Trial *t, const Tensor *want)
{
    Plan *p = plan_make(t->a, t->g, &(PlanFor){.device = device_at(DEVICE_emulated)});
    use_references(p);
    Program *x = program_make(t->a, p, true, 0);
    Tensor *got = NEWN(t->a, Tensor, t->g->nout);
    for (int i = 0; i < p->nin; i++) {
        Tensor in = tensor_copy(t->a, &t->in[i], p->in[i].type.dtype);
        CHECK(!program_write(x, &p->in[i], 0, tensor_nbytes(&in), in.data));
    }
    if (program_run(x) && !x->not_finite)
        complain(t, "run:", x->message);
    for (int i = 0; i < p->nout; i++) {
        got[i] = tensor_new(t->a, &p->out[i].type, 0);
        CHECK(!program_read(x, &p->out[i], 0, tensor_nbytes(&got[i]), got[i].data));
    }
    if (!x->not_finite)
        check_values(t, "the device computes another", got, want);
}

/* ---- one graph ---- */

static void try_graph(void *arg)
{
    Trial *t = arg;
    Rng r = {t->seed, 0};
    int64_t rows = 0;
    int nodes = 5 + (int)rng_below(&r, 40);
    Gen *x = rng_chance(&r, 0.3) ? gen_rows(t->a, t->lib, &r, nodes, &rows)
                                 : gen_graph(t->a, t->lib, &r, nodes, true);
    t->g = x->b.g;
    t->in = x->in;
    t->o = pass_defaults();
    t->o.backend = "emulated";
    t->o.fuse = rng_chance(&r, 0.5);
    t->o.decisions = &t->decisions;
    passes_run(t->g, "grad", &t->o, NULL, NULL);
    if (rows) {
        t->o.accumulate = rows > 1 ? 2 : 1;
        passes_run(t->g, "accumulate", &t->o, NULL, NULL);
    }
    Tensor *want = NEWN(t->a, Tensor, t->g->nout), *got = NEWN(t->a, Tensor, t->g->nout);
    interp_graph(t->a, t->g, t->in, want);
    draw_policies(t->g, &r);
    if (!may_run(t))
        return;
    check_graph(t, t->g);
    check_distances(t);
    interp_graph(t->a, t->g, t->in, got);
    check_values(t, "the interpreter computes another", got, want);
    const char *text = graphs_text(t->a, t->g);
    passes_run(t->g, "offload", &t->o, NULL, NULL);
    if (strcmp(text, graphs_text(t->a, t->g)) != 0)
        complain(t, "running the pass again changes the graph", "");
    check_run(t, want);
    test_npass++;
}

static void try_one(Library *lib, uint64_t seed)
{
    Trial t = {.a = arena_new(&ctx), .lib = lib, .seed = seed};
    CHECK(t.a);
    t.decisions.a = t.a;
    if (ctx_try(&ctx, try_graph, &t) && !strstr(ctx.message, "has no gradient through"))
        complain(&t, "failed:", ctx.message);
    arena_free(t.a);
}

int main(int argc, char **argv)
{
    Arena *a = arena_new(&ctx);
    Library lib;
    par_set_threads(1);
    CHECK(library_try(&ctx, a, &lib));
    int most = getenv("TN_QUICK") ? 40 : getenv("TN_LONG") ? 3000 : 300;
    if (argc > 1)
        try_one(&lib, strtoull(argv[1], NULL, 10));
    for (int i = 0; i < most && argc < 2 && test_nfail < 10; i++)
        try_one(&lib, (uint64_t)i);
    printf("note: %d values moved, %d refused, %d copies away from what they are for\n",
           counts.moved, counts.refused, counts.apart);
    EXPECT(argc > 1 || (counts.moved >= most && counts.refused > 0 && counts.apart >= most / 4));
    arena_free(a);
    ctx_end(&ctx);
    return test_report();
}
