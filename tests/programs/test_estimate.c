/* Estimates: a step's seconds are those of its nodes, loops by their iterations; queues against a
 * time line that follows every iteration, over random plans; what computing again adds against the
 * difference of two plans; classes, machines, and that gpt2's estimate takes less than 5 ms. */
#include "../shared/test.h"

#include "../../src/api/api.h"

#include <jansson.h>
#include <math.h>

static tn_context *ctx;
static Arena *a;

/* ---- queues: plans of fills, which take as long as their bytes ---- */

typedef struct Naive {
    const Plan *p;
    double at[MAX_QUEUE], *ended;
} Naive;

/* Every iteration of every loop, one by one. */
static void follow_all(Naive *x, int from, int to)
{
    for (int i = from; i < to; i++) {
        const Step *s = &x->p->step[i];
        double begin = x->at[s->queue];
        if (s->kind == STEP_LOOP) {
            for (int64_t k = 0; k < s->count; k++)
                follow_all(x, i + 1, s->end);
            i = s->end;
            continue;
        }
        for (int k = 0; k < s->nwait; k++)
            begin = fmax(begin, x->ended[s->wait[k]]);
        x->at[s->queue] = x->ended[i] = begin + s->sec;
    }
}

static int draw(uint64_t *seed, int below)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((*seed >> 33) % (uint64_t)below);
}

static Step fill_step(uint64_t *seed, int at, int count)
{
    Step s = {.kind = STEP_ZERO, .queue = (Queue)draw(seed, MAX_QUEUE), .work = -1};
    s.nbytes = (int64_t)(1 + draw(seed, 100)) << 20;
    s.wait = NEWN(a, int, 4);
    for (int k = draw(seed, 3); k > 0 && at; k--)
        s.wait[s.nwait++] = draw(seed, count);
    return s;
}

/* `count` steps, of which those from 4 up to the one before the last are in a loop. */
static Plan *random_plan(uint64_t *seed, int count, int64_t iterations)
{
    Plan *p = NEW(a, Plan);
    p->g = graph_new(a, "g");
    p->machine = machine_get(a, "avx2", 2);
    p->device = device_at(DEVICE_emulated);
    p->nstep = count;
    p->step = NEWN(a, Step, count);
    for (int i = 0; i < count; i++)
        p->step[i] = fill_step(seed, i, count);
    if (iterations) {
        p->step[4] = (Step){.kind = STEP_LOOP, .count = iterations, .end = count - 2, .by = 1};
        p->step[count - 2] = (Step){.kind = STEP_END, .end = 4};
    }
    return p;
}

static double error_of(Plan *p)
{
    Naive x = {.p = p, .ended = NEWN(a, double, p->nstep)};
    plan_estimate(p, a);
    follow_all(&x, 0, p->nstep);
    double last = 0;
    for (int q = 0; q < MAX_QUEUE; q++)
        last = fmax(last, x.at[q]);
    return fabs(p->est.step - last) / last;
}

static void test_queues(void)
{
    static const int64_t iterations[] = {0, 1, 5, 8, 100};
    uint64_t seed = 17;
    double worst[LEN(iterations)] = {0};
    for (int i = 0; i < 300 * LEN(iterations); i++) {
        int k = i % LEN(iterations);
        worst[k] = fmax(worst[k], error_of(random_plan(&seed, 8 + draw(&seed, 30), iterations[k])));
    }
    for (int k = 0; k < LEN(iterations); k++)
        EXPECT(worst[k] < (iterations[k] > 8 ? 0.1 : 1e-12));
    printf("note: test_estimate: of loops of 100 iterations off by %.2g at most\n", worst[4]);
}

/* Two queues beside each other take less than the sum, a wait makes it the sum. */
static void test_overlap(void)
{
    uint64_t seed = 1;
    Plan *p = random_plan(&seed, 2, 0);
    p->step[0].queue = QUEUE_OUT;
    p->step[1].queue = QUEUE_COMPUTE;
    p->step[1].nwait = 0;
    plan_estimate(p, a);
    double x = p->step[0].sec, y = p->step[1].sec;
    EXPECT(p->est.step == fmax(x, y) && fabs(p->est.by_class[CLASS_CREATION] - x - y) < 1e-12);
    p->step[1].nwait = 1;
    p->step[1].wait[0] = 0;
    plan_estimate(p, a);
    EXPECT(fabs(p->est.step - x - y) < 1e-12);
}

/* ---- whole steps ---- */

typedef struct Wish {
    const char *model, *recompute, *machine;
    int64_t batch, seq, accumulate;
    const char *offload; /* a pattern; NULL: on cpu */
} Wish;

static tn_plan *plan_of(const Wish *w)
{
    tn_options o = tn_options_default();
    tn_model *m = NULL;
    tn_graph *g = NULL;
    tn_plan *p = NULL;
    o.recompute = w->recompute ? w->recompute : "none";
    o.machine = w->machine;
    o.accumulate = w->accumulate ? w->accumulate : 1;
    o.backend = w->offload ? "emulated" : "cpu";
    o.rules = &(tn_rule){"offload", w->offload};
    o.nrules = w->offload != NULL;
    bool ok = !tn_model_open(ctx, w->model, &m) && !tn_model_graph(m, w->batch, w->seq, &o, &g) &&
              !tn_graph_passes(g, "default", &o, NULL, NULL) && !tn_plan_new(g, &o, 1, &p);
    EXPECT(ok);
    if (!ok)
        exit(test_report());
    return p;
}

static double nodes_sec(const Plan *p)
{
    double sec = 0;
    for (const Node *n = p->g->first; n; n = n->next)
        sec += node_sec(p->machine, NULL, n);
    return sec;
}

static double classes_sec(const Plan *p)
{
    double sec = 0;
    for (int c = 0; c < NCLASS; c++)
        sec += p->est.by_class[c];
    return sec;
}

/* The planner's copies and fills are the only seconds that no node has. */
static void test_sums(void)
{
    static const Wish wishes[] = {{"demo", NULL, "avx2", 8, 64, 1, NULL},
                                  {"demo", NULL, "avx2", 8, 64, 4, NULL},
                                  {"demo", "full", "h100", 7, 64, 2, NULL}};
    for (int i = 0; i < LEN(wishes); i++) {
        const Plan *p = plan_of(&wishes[i])->p;
        double nodes = nodes_sec(p);
        EXPECT(fabs(p->est.step - nodes) < 0.1 * nodes); /* fills, on a GPU */
        EXPECT(fabs(p->est.step - classes_sec(p)) < 1e-9 * nodes);
        EXPECT(p->est.by_class[CLASS_REGION] == 0 && !p->est.communicates);
    }
}

static void test_added(void)
{
    static const Wish none = {"gpt2", "none", "avx512", 4, 64, 1, NULL},
                      full = {"gpt2", "full", "avx512", 4, 64, 1, NULL};
    const Plan *x = plan_of(&none)->p, *y = plan_of(&full)->p;
    double difference = y->est.step - x->est.step;
    EXPECT(x->est.added == 0);
    EXPECT(fabs(y->est.added - difference) < 0.1 * difference);
    printf("note: test_estimate: gpt2, full: added %.4g s, difference %.4g s\n", y->est.added,
           difference);
}

static void test_machines(void)
{
    static const Wish here = {"demo", NULL, NULL, 8, 64, 1, NULL},
                      none = {"demo", NULL, "none", 8, 64, 1, NULL},
                      gpu = {"demo", NULL, "a100", 8, 64, 1, NULL};
    const Plan *x = plan_of(&here)->p, *y = plan_of(&none)->p, *z = plan_of(&gpu)->p;
    EXPECT(machine_is_here(x->machine) && plan_hash(x) == plan_hash(y));
    EXPECT(x->est.step == y->est.step && x->est.step != z->est.step);
    EXPECT(plan_hash(x) != plan_hash(z) && !strcmp(machine_name(z->machine), "a100"));
    EXPECT(!tn_machine_here(ctx, NULL, NULL) &&
           !tn_machine_here(ctx, NULL, machine_name(x->machine)));
    EXPECT(tn_machine_here(ctx, NULL, "a100") == TN_CODE_USAGE);
    EXPECT(tn_machine_here(ctx, NULL, "a1000") == TN_CODE_USAGE && strstr(tn_error(ctx), "a100?"));
}

/* Copies to the host and back run beside the kernels: the step takes less than all of it together,
 * and no less than what each queue does. */
static void test_offload(void)
{
    static const Wish wishes[] = {{"demo", NULL, "h100", 8, 512, 1, "layers.*::*"},
                                  {"demo", NULL, "h100", 8, 512, 3, "layers.*::*"}};
    for (int i = 0; i < LEN(wishes); i++) {
        Plan *p = plan_of(&wishes[i])->p;
        double all = classes_sec(p), out = 0;
        int nout = 0;
        for (int k = 0; k < p->nstep; k++) {
            nout += p->step[k].queue == QUEUE_OUT;
            out += p->step[k].queue == QUEUE_OUT ? p->step[k].sec : 0;
        }
        EXPECT(nout > 10 && p->est.step < 0.95 * all && p->est.step > out);
        EXPECT(error_of(p) < 1e-12);
    }
}

/* On one queue a step takes what its calls take together; nothing is computed again. */
static void test_json(void)
{
    static const Wish demo = {"demo", NULL, NULL, 8, 64, 1, NULL};
    tn_plan *p = plan_of(&demo);
    double step, added, sum = 0;
    const char *text, *class;
    json_t *sec;
    tn_plan_sec(p, &step, &added);
    EXPECT(step > 0 && added == 0 && !tn_plan_json(p, 1, &text));
    json_t *o = json_loads(text, 0, NULL);
    json_object_foreach(json_object_get(o, "sec_by_class"), class, sec) sum +=
        json_number_value(sec);
    EXPECT(fabs(sum - step) < 1e-9 * step);
    EXPECT(fabs(json_number_value(json_object_get(o, "est_step_sec")) - step) < 1e-12 * step);
    EXPECT(json_number_value(json_object_get(o, "added_sec")) == 0);
    EXPECT(json_is_null(json_object_get(o, "est_comm_sec")));
    EXPECT(!tn_machine_here(ctx, NULL, json_string_value(json_object_get(o, "machine"))));
    EXPECT(json_string_length(json_object_get(o, "machine_hash")) == 16);
    json_decref(o);
}

/* What a value costs to compute again is what its node takes, as often as the step runs it. */
static void test_decisions(void)
{
    static const Wish once = {"demo", "full", "avx2", 8, 64, 1, NULL},
                      cut = {"demo", "full", "avx2", 8, 64, 2, NULL};
    const Decisions *d = &plan_of(&once)->graph->decisions;
    double sec = 0, added = plan_of(&once)->p->est.added, twice = 0;
    EXPECT(d->count > 0);
    for (int i = 0; i < d->count; i++) {
        EXPECT(d->list[i].sec > 0);
        sec += d->list[i].recompute ? d->list[i].sec : 0;
    }
    EXPECT(sec > 0.5 * added && sec < 1.1 * added); /* some are computed a third time */
    d = &plan_of(&cut)->graph->decisions;
    for (int i = 0; i < d->count; i++)
        twice += d->list[i].recompute ? d->list[i].sec : 0;
    EXPECT(twice > 0.9 * sec && twice < 3 * sec);
}

/* The least of ten, as others use the processor. */
static void test_cost(void)
{
    static const Wish gpt2 = {"gpt2", NULL, "avx512", 4, 64, 1, NULL};
    Plan *p = plan_of(&gpt2)->p;
    double least = INFINITY;
    for (int i = 0; i < 10; i++) {
        double start = cpu_sec();
        plan_estimate(p, a);
        least = fmin(least, cpu_sec() - start);
    }
    EXPECT(least < 5e-3);
    printf("note: test_estimate: estimating gpt2's step takes %.2f ms\n", 1e3 * least);
}

int main(void)
{
    ctx = tn_context_new();
    if (!ctx || !(a = arena_new(&ctx->ctx)))
        return EXIT_FAILURE;
    test_queues();
    test_overlap();
    test_sums();
    test_machines();
    test_offload();
    test_json();
    test_decisions();
    if (getenv("TN_QUICK")) {
        puts("note: test_estimate: GPT-2 is left out, which takes minutes under sanitizers");
    } else {
        test_added();
        test_cost();
    }
    arena_free(a);
    tn_context_free(ctx);
    return test_report();
}
