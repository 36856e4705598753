/* Ranks as threads, whose programs run plans with comm between them. */
#include "ranks_run.h"

#include <pthread.h>

typedef struct RankThread {
    pthread_t thread;
    CommShared *shared;
    const CommOptions *o;
    int rank;
    RankFn *fn;
    void *arg;
    Arena *a;
    Comm *c;
    char message[COMM_MESSAGE];
} RankThread;

static void run_rank(void *arg)
{
    RankThread *t = arg;
    void *self;
    const Transport *how = comm_threads(t->shared, t->rank, &self);
    t->c = comm_open(t->a, how, self, t->o);
    t->fn(t->a, t->c, t->arg);
}

static void *start(void *arg)
{
    RankThread *t = arg;
    Ctx ctx = {0};
    par_set_threads(1);
    t->a = arena_new(&ctx);
    CHECK(t->a);
    if (ctx_try(&ctx, run_rank, t)) {
        snprintf(t->message, sizeof t->message, "rank %d: %.300s", t->rank, ctx.message);
        if (t->c)
            comm_abort(t->c, TN_FAIL, ctx.message);
    }
    arena_free(t->a);
    ctx_end(&ctx);
    return NULL;
}

const char *ranks_threads(Arena *a, int n, const CommOptions *o, RankFn *fn, void *arg)
{
    const char *failed = NULL;
    RankThread *t = NEWN(a, RankThread, n);
    CommShared *shared = comm_shared(a, n);
    for (int j = 0; j < n; j++) {
        t[j] = (RankThread){.shared = shared, .o = o, .rank = j, .fn = fn, .arg = arg};
        CHECK(!pthread_create(&t[j].thread, NULL, start, &t[j]));
    }
    for (int j = 0; j < n; j++) {
        pthread_join(t[j].thread, NULL);
        failed = failed || !*t[j].message ? failed : t[j].message;
    }
    return failed;
}

/* ---- programs ---- */

Program *ranks_program(Arena *a, const Graph *g, const Device *d, Comm *c, bool check)
{
    PlanFor to = {.overlap = true, .device = d};
    Program *x = program_make(a, plan_ordered(a, graph_clone(a, g), &to), check, 0);
    program_join(x, a, c, false);
    program_fill(x, POISON);
    return x;
}

void ranks_write(Program *x, const Tensor *in, bool all)
{
    const Plan *p = x->plan;
    for (int i = 0; i < p->nin; i++)
        if (all || !p->storage[p->in[i].storage].persistent)
            CHECK(!program_write(x, &p->in[i], 0, tensor_nbytes(&in[i]), in[i].data));
}

void ranks_step(Program *x)
{
    if (program_run(x))
        fail(x->plan->g->ctx, TN_FAIL, "%s", x->message);
}

Tensor *ranks_outputs(Arena *a, const Graph *g)
{
    Tensor *out = NEWN(a, Tensor, g->nout);
    for (int k = 0; k < g->nout; k++)
        out[k] = tensor_new(a, &g->out[k].v->type, 0);
    return out;
}

void ranks_read(Program *x, const Tensor *out)
{
    const Plan *p = x->plan;
    for (int k = 0; k < p->nout; k++)
        CHECK(!program_read(x, &p->out[k], 0, tensor_nbytes(&out[k]), out[k].data));
}
