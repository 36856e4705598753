/* Planned arenas of all ranks in lockstep: every step runs on all ranks before the next does, with
 * the checks that programs have for every step: what died is poisoned, guards are whole. A
 * collective computes what it will give where it starts and keeps that aside; its wait puts it in
 * place, after a look at what must have been left alone in between. */
#include "ranks.h"

#include "../../src/pass/bucket.h"
#include "gen.h"

#include <string.h>

/* A collective of one rank between its start and its wait. */
typedef struct FlyingTensor {
    Tensor in, out; /* in the arena */
    Tensor sent;    /* a copy of in */
    Tensor result;
} FlyingTensor;

typedef struct Flight {
    int left; /* waits that have not come */
    FlyingTensor *tensor;
    const char *work;
    int64_t nbytes_work;
} Flight;

struct Fleet {
    const Ranks *r;
    Arena *tmp;     /* of one run */
    const Plan *p;  /* of rank 0: that of others but for their nodes */
    Program **x;    /* by rank */
    Flight *flight; /* by step and rank */
    bool kernels;   /* where there are any, else the references */
};

_Noreturn static void lost(const Fleet *t, int rank, const Node *n, const char *what)
{
    fail_node(t->r->g[rank], n, "rank %d: %s", rank, what);
}

/* ---- addresses ---- */

static char *address(const Program *x, const Arg *a, const Work *w)
{
    const Storage *s = &x->plan->storage[a->storage];
    int64_t at = s->offset + a->offset;
    for (int d = 0; d < TN_MAX_DEPTH; d++)
        at += a->loop_stride[d] * w->iteration[d];
    return x->base[s->space] + at;
}

/* The call of a step, its tensors where they lie in this iteration. */
static Call *place_call(const Program *x, const Work *w)
{
    const Step *s = &x->plan->step[w->step];
    Call *c = &x->call[w->step];
    for (int k = 0; k < c->nin + c->nout; k++)
        (k < c->nin ? &c->in[k] : &c->out[k - c->nin])->data = address(x, &s->arg[k], w);
    if (s->work >= 0)
        c->work = x->base[x->plan->storage[s->work].space] + x->plan->storage[s->work].offset;
    return c;
}

/* ---- collectives ---- */

static void poison(const Tensor *t)
{
    CHECK(tensor_contiguous(t));
    if (tensor_nbytes(t))
        memset(t->data, POISON, (size_t)tensor_nbytes(t));
}

static bool poisoned(const char *data, int64_t nbytes)
{
    for (int64_t i = 0; i < nbytes; i++)
        if ((uint8_t)data[i] != POISON)
            return false;
    return true;
}

static Flight *flight_of(const Fleet *t, int step, int rank)
{
    return &t->flight[step * t->r->n + rank];
}

/* What tensor k of the collective will be, on all ranks. */
static Tensor *make_results(const Fleet *t, const Work *w, int k)
{
    const Ranks *r = t->r;
    Node **n = NEWN(t->tmp, Node *, r->n);
    Tensor *in = NEWN(t->tmp, Tensor, r->n), *out = NEWN(t->tmp, Tensor, r->n);
    for (int j = 0; j < r->n; j++) {
        Call *c = place_call(t->x[j], w);
        n[j] = (Node *)c->node;
        in[j] = c->in[k];
        out[j] = tensor_new(t->tmp, &n[j]->out[k]->type, 0);
    }
    ranks_collective(r, n, in, out);
    return out;
}

static void start_collective(const Fleet *t, const Work *w)
{
    const Ranks *r = t->r;
    int count = place_call(t->x[0], w)->nin;
    Tensor **result = NEWN(t->tmp, Tensor *, count);
    for (int k = 0; k < count; k++)
        result[k] = make_results(t, w, k);
    for (int j = 0; j < r->n; j++) {
        Call *c = place_call(t->x[j], w);
        Flight *f = flight_of(t, w->step, j);
        if (f->left)
            lost(t, j, c->node, "it starts again before its wait");
        *f = (Flight){count, NEWN(t->tmp, FlyingTensor, count), c->work, c->nbytes_work};
        for (int k = 0; k < count; k++) {
            f->tensor[k] = (FlyingTensor){
                c->in[k], c->out[k], tensor_copy(r->a, &c->in[k], c->in[k].dtype), result[k][j]};
            poison(&f->tensor[k].out);
        }
        if (c->nbytes_work)
            memset(c->work, POISON, (size_t)c->nbytes_work);
    }
}

/* Whether a step is the start of the collective whose result this wait reads. */
static int find_start(const Plan *p, const Step *wait)
{
    const Node *n = wait->node->in[0]->def;
    for (int i = 0; n && n->op->class == CLASS_COLLECTIVE && i < p->nstep; i++)
        if (p->step[i].kind == STEP_CALL && !p->step[i].copy && p->step[i].node == n)
            return i;
    return -1;
}

/* The first wait finds all of them. */
static void land(const Fleet *t, int rank, const Flight *f, const Call *c)
{
    if (!poisoned(f->work, f->nbytes_work))
        lost(t, rank, c->node, "the workspace was written before the wait");
    for (int k = 0; k < f->left; k++) {
        const FlyingTensor *x = &f->tensor[k];
        Tensor now = tensor_copy(t->tmp, &x->in, x->in.dtype);
        if (!tensor_same_bits(&now, &x->sent))
            lost(t, rank, c->node, "what is sent was written before the wait");
        if (!poisoned(x->out.data, tensor_nbytes(&x->out)))
            lost(t, rank, c->node, "where is received was written before the wait");
    }
    for (int k = 0; k < f->left; k++)
        strided_copy(&f->tensor[k].out, &f->tensor[k].result);
}

static void end_collective(const Fleet *t, int rank, int start, const Call *c)
{
    Flight *f = flight_of(t, start, rank);
    const Node *n = c->node->in[0]->def;
    if (!f->left)
        lost(t, rank, c->node, "nothing has been started for this wait");
    const FlyingTensor *x = &f->tensor[c->node->in[0]->index];
    if (c->in[0].data != x->out.data || c->out[0].data != x->out.data)
        lost(t, rank, c->node, "it waits elsewhere than where is received");
    if (f->left == n->nout)
        land(t, rank, f, c);
    f->left--;
}

/* ---- steps ---- */

static void run_call(const Fleet *t, int rank, const Work *w)
{
    const Step *s = &t->x[rank]->plan->step[w->step];
    Call *c = place_call(t->x[rank], w);
    int start = s->node->op->wait ? find_start(t->x[rank]->plan, s) : -1;
    bool kernel = s->kernel && (t->kernels || !s->node->op->rules->ref);
    if (start >= 0)
        end_collective(t, rank, start, c);
    else if (kernel ? s->kernel->run(c) : s->node->op->rules->ref(c))
        lost(t, rank, s->node, c->message);
}

static void run_step(const Fleet *t, Work w)
{
    const Step *s = &t->p->step[w.step];
    bool collective = s->kind == STEP_CALL && s->node->op->class == CLASS_COLLECTIVE;
    char message[RUN_MESSAGE];
    if (collective)
        start_collective(t, &w);
    for (int j = 0; j < t->r->n; j++) {
        w.x = t->x[j];
        if (s->kind == STEP_CALL && !collective)
            run_call(t, j, &w);
        else if (s->kind == STEP_ZERO)
            memset(address(w.x, s->arg, &w), 0, (size_t)s->nbytes);
        else if (s->kind == STEP_OFFSET)
            *(int64_t *)(void *)address(w.x, s->arg, &w) = w.iteration[s->depth] * s->by;
        if (check_step(&w, message))
            fail(t->r->g[j]->ctx, TN_FAIL, "rank %d: %s", j, message);
    }
}

/* Loops from this depth on are in their last iteration. */
static int last_from(const int64_t *left, int depth)
{
    while (depth > 0 && left[depth - 1] == 1)
        depth--;
    return depth;
}

static void run_steps(const Fleet *t)
{
    const Plan *p = t->p;
    Work w = {.step = 0};
    int64_t left[TN_MAX_DEPTH];
    int depth = 0;
    for (int i = 0; i < p->nstep; i++) {
        const Step *s = &p->step[i];
        if (s->kind == STEP_LOOP) {
            w.iteration[s->depth] = s->first;
            left[s->depth] = s->count;
            depth = s->depth + 1;
        }
        w.step = i;
        w.jumps = s->kind == STEP_END && left[s->depth] > 1;
        w.last = last_from(left, depth);
        run_step(t, w);
        if (w.jumps) {
            left[s->depth]--;
            w.iteration[s->depth] += p->step[s->end].by;
            i = s->end;
        } else if (s->kind == STEP_END) {
            w.iteration[s->depth] = 0;
            depth = s->depth;
        }
    }
}

/* ---- plans ---- */

static bool same_step(const Step *s, const Step *t)
{
    bool same = s->kind == t->kind && s->kernel == t->kernel && s->work == t->work &&
                s->narg == t->narg && s->queue == t->queue;
    for (int k = 0; same && k < s->narg; k++)
        same = s->arg[k].storage == t->arg[k].storage;
    return same;
}

/* But for where in a buffer a rank's slice of it begins. */
static bool same_plan(const Plan *p, const Plan *q)
{
    bool same = p->nstep == q->nstep && p->nstorage == q->nstorage;
    for (int i = 0; same && i < p->nstep; i++)
        same = same_step(&p->step[i], &q->step[i]);
    for (int i = 0; same && i < p->nstorage; i++)
        same = p->storage[i].offset == q->storage[i].offset &&
               p->storage[i].nbytes == q->storage[i].nbytes;
    return same;
}

static void poison_spaces(const Program *x)
{
    for (int s = 0; s < MAX_SPACE; s++)
        if (x->memory[s])
            memset(x->base[s], POISON, (size_t)x->plan->space[s].peak);
}

Fleet *fleet_make_on(const Ranks *r, const Device *d, bool kernels, bool overlap)
{
    Fleet *t = NEW(r->a, Fleet);
    *t = (Fleet){.r = r, .x = NEWN(r->a, Program *, r->n), .kernels = kernels};
    for (int j = 0; j < r->n; j++) {
        Plan *p = plan_ordered(r->a, graph_clone(r->a, r->g[j]),
                               &(PlanFor){.device = d, .overlap = overlap});
        if (j && !same_plan(p, t->p))
            fail(p->g->ctx, TN_FAIL, "ranks 0 and %d have other plans", j);
        t->p = j ? t->p : p;
        t->x[j] = program_make(r->a, p, true, 0);
        poison_spaces(t->x[j]);
    }
    t->flight = NEWN(r->a, Flight, t->p->nstep * r->n);
    t->tmp = arena_tmp(r->a);
    return t;
}

Fleet *fleet_make(const Ranks *r, bool kernels)
{
    return fleet_make_on(r, device_at(DEVICE_cpu), kernels, true);
}

static char *port_data(const Program *x, const PlanPort *port)
{
    return x->base[SPACE_MAIN] + x->plan->storage[port->storage].offset;
}

void fleet_write(const Fleet *t, Tensor *const *in, bool all)
{
    for (int j = 0; j < t->r->n; j++)
        for (int i = 0; i < t->p->nin; i++)
            if (all || !t->p->storage[t->p->in[i].storage].persistent)
                memcpy(port_data(t->x[j], &t->p->in[i]), in[j][i].data,
                       (size_t)tensor_nbytes(&in[j][i]));
}

void fleet_run(const Fleet *t)
{
    run_steps(t);
    for (int i = 0; i < t->p->nstep; i++)
        if (flight_of(t, i, 0)->left)
            lost(t, 0, t->p->step[i].node, "nothing waits for it");
    arena_reset(t->tmp);
}

Tensor **fleet_read(const Fleet *t, Arena *a)
{
    Tensor **out = NEWN(a, Tensor *, t->r->n);
    for (int j = 0; j < t->r->n; j++) {
        out[j] = NEWN(a, Tensor, t->p->nout);
        for (int k = 0; k < t->p->nout; k++) {
            out[j][k] = tensor_new(a, &t->p->out[k].type, 0);
            memcpy(out[j][k].data, port_data(t->x[j], &t->p->out[k]),
                   (size_t)tensor_nbytes(&out[j][k]));
        }
    }
    return out;
}

static void draw_offload(Graph *g, Rng *rng, double chance)
{
    for (Node *n = g->first; n; n = n->next) {
        if (n->phase < BACKWARD && !n->op->view && !n->op->wait && !n->policy &&
            rng_chance(rng, chance))
            n->policy = OFFLOAD;
        EACH_LOOP_BODY(b, n)
            draw_offload(n->region->body[b], rng, chance);
    }
}

static Ranks staged(const Ranks *r, const char *passes, const char *reshard, uint64_t seed,
                    double chance)
{
    PassOptions o = pass_defaults();
    Ranks x = *r;
    o.backend = "emulated";
    o.reshard = reshard;
    x.g = NEWN(r->a, Graph *, r->n);
    for (int j = 0; j < r->n; j++) {
        Rng rng = {seed, 0};
        x.g[j] = graph_clone(r->a, r->g[j]);
        draw_offload(x.g[j], &rng, chance);
        passes_run(x.g[j], passes, &o, NULL, NULL);
    }
    return x;
}

/* Whether n can be one call with m. */
static bool joins(const Node *n, const Node *m)
{
    CollectiveKind kind = node_collective(n);
    return m->op == n->op && m->phase == n->phase && m->policy == n->policy &&
           !m->origin == !n->origin && m->in[0]->type.dtype == n->in[0]->type.dtype &&
           attrs_equal(n, m) && kind != ALL_TO_ALL && kind != BROADCAST && kind != PERMUTE;
}

static bool is_single(const Node *n)
{
    return n->op->class == CLASS_COLLECTIVE && n->nin == 1 && !n->nafter;
}

/* Each collective into the first bucket that can have it and does, by chance. */
static Buckets draw_buckets(Graph *g, Arena *a, Rng *rng)
{
    Buckets list = {.tmp = a};
    for (Node *n = g->first; n; n = n->next) {
        Bucket *b = NULL;
        for (int i = 0; i < list.count && is_single(n) && !b; i++)
            if (joins(n, list.at[i]->node[0]) && rng_chance(rng, 0.7))
                b = list.at[i];
        if (!b && is_single(n)) {
            b = NEW(a, Bucket);
            PUSH(a, list.at, list.count, list.cap, b);
        }
        if (b)
            PUSH(a, b->node, b->count, b->cap, n);
    }
    for (int i = 0; i < list.count; i++)
        list.at[i]->left = list.at[i]->count < 2;
    return list;
}

static int bucket_by_chance(Graph *g, Arena *a, Rng *rng)
{
    int joined = 0;
    for (Node *n = g->first; n; n = n->next)
        EACH_LOOP_BODY(b, n)
            joined += bucket_by_chance(n->region->body[b], a, rng);
    Buckets list = draw_buckets(g, a, rng);
    return joined + buckets_emit(&list, g, NEWN(a, bool, g->nvalue));
}

Ranks ranks_bucketed(const Ranks *r, uint64_t seed, int *joined)
{
    Graph **g = NEWN(r->a, Graph *, r->n);
    for (int j = 0; j < r->n; j++) {
        Rng rng = {seed, 0};
        g[j] = graph_clone(r->a, r->g[j]);
        *joined = bucket_by_chance(g[j], r->a, &rng);
        graph_verify(g[j]);
    }
    return ranks_of(r->a, r->n, g);
}

/* Ranks of one host, for which a call of more than two takes long, and one of two nothing. */
static const Machine *slow_calls(Arena *a)
{
    Machine *m = machine_row(a, "h100");
    CHECK(m && machine_link(m, "nvlink4"));
    for (int i = FIGURE_gather_4_wait; i <= FIGURE_gather_8_wait; i++)
        m->figure[i] = 1e5;
    m->figure[FIGURE_gather_2_wait] = m->figure[FIGURE_launch] = 1e-3;
    return m;
}

Ranks ranks_ringed(const Ranks *r, int *calls)
{
    Graph **g = NEWN(r->a, Graph *, r->n);
    PassOptions o = pass_defaults();
    o.overlap = "chunked";
    o.device = device_at(DEVICE_cpu);
    o.prices = slow_calls(r->a);
    for (int j = 0; j < r->n; j++) {
        g[j] = graph_clone(r->a, r->g[j]);
        *calls = pass_ring(g[j], r->a, &o);
        graph_verify(g[j]);
    }
    return ranks_of(r->a, r->n, g);
}

Ranks ranks_staged(const Ranks *r)
{
    return staged(r, "stage", NULL, 0, 0);
}

Ranks ranks_offloaded(const Ranks *r, const char *reshard, uint64_t seed, double chance)
{
    return staged(r, "stage,offload", reshard, seed, chance);
}

Tensor **ranks_execute(const Ranks *r, const Device *d, Tensor *const *in)
{
    Fleet *t = fleet_make_on(r, d, false, true);
    fleet_write(t, in, true);
    fleet_run(t);
    return fleet_read(t, r->a);
}
