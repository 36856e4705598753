/* What --reshard asks of gathered parameters, seen in whole steps of ranks, for each parameter by
 * itself: always gathers it in the forward and again in the backward, where that needs it, and no
 * node of the backward reads what the forward gathered; never gathers it once and saves it;
 * gradients are reduced once. So also in the halves of a step, in loops over microbatches and
 * whatever else is recomputed; all ranks in lockstep give the same bits however it is. Llama-3 8B
 * has the numbers of issue 18: 291, 290 and 291 calls, and 1,789.25 MiB of matrices and 0.51 MiB of
 * norms. */
#include "../../src/model/model.h"
#include "../shared/graphs.h"
#include "../shared/ranks.h"
#include "../shared/test.h"

#include <string.h>

static Ctx ctx;

/* ---- counting ---- */

/* What a value is made of: a parameter's shard alone, and whether it is gathered. */
typedef struct Made {
    const char *param;
    bool gathered;
} Made;

typedef struct Counts {
    Arena *a;
    int gathers[NPHASE]; /* first gathers of parameters, by phase */
    int parted;          /* reductions of gradients over fsdp */
    int stale;           /* reads by the backward of what the forward gathered of parameters */
} Counts;

static bool forms_alone(const Node *n)
{
    return n->op->class == CLASS_MOVEMENT || n->op->copy || node_is(n, OP_all_gather_into_tensor);
}

static Made make(const Node *n, const Made *made)
{
    Made m = {0};
    for (int i = 0; i < n->nin && forms_alone(n); i++) {
        if (!made[n->in[i]->id].param)
            return (Made){0};
        m = i ? m : made[n->in[i]->id];
    }
    m.gathered |= m.param && node_is(n, OP_all_gather_into_tensor);
    return m;
}

static bool over_fsdp(const Node *n)
{
    int i = attr_index(n->op, "group");
    return i >= 0 && strstr(n->attr[i].s, "fsdp");
}

static void count(Counts *c, const Graph *g, Made *made);

static void count_body(Counts *c, const Node *n, int b, const Made *outer)
{
    const Region *r = n->region;
    Made *made = NEWN(c->a, Made, r->body[b]->nvalue);
    for (int j = 0; j < r->nin; j++)
        if (r->in[j].at[b] >= 0 && r->in[j].kind == PORT_WHOLE)
            made[r->body[b]->in[r->in[j].at[b]].v->id] = outer[n->in[r->in[j].arg]->id];
    count(c, r->body[b], made);
}

static void count(Counts *c, const Graph *g, Made *made)
{
    for (const Node *n = g->first; n; n = n->next) {
        Made m = make(n, made);
        for (int k = 0; k < n->nout; k++)
            made[n->out[k]->id] = m;
        bool first =
            m.param && node_is(n, OP_all_gather_into_tensor) && !made[n->in[0]->id].gathered;
        c->gathers[n->phase] += first;
        c->parted += node_is(n, OP_reduce_scatter_tensor) && over_fsdp(n) && n->phase == BACKWARD;
        for (int i = 0; i < n->nin && n->phase == BACKWARD && n->op->region != LOOP; i++) {
            const Node *def = n->in[i]->def;
            c->stale += def && def->phase < BACKWARD && made[n->in[i]->id].gathered;
        }
        if (n->op->region == LOOP)
            for (int b = 0; b < region_nbody(n->region); b++)
                count_body(c, n, b, made);
    }
}

static Counts count_all(Arena *a, const Graph *g)
{
    Counts c = {.a = a};
    Made *made = NEWN(a, Made, g->nvalue);
    for (int i = 0; i < g->nin; i++)
        if (g->in[i].role == ROLE_PARAM)
            made[g->in[i].v->id].param = g->in[i].name;
    count(&c, g, made);
    return c;
}

/* ---- steps ---- */

static const struct {
    const char *preset, *mesh, *recompute;
    int64_t accumulate;
    int params, head; /* parameters; 1: the head is the embedding, gathered for itself */
    int again;        /* parameters that the backward needs */
} steps[] = {
    {"llama3-1b", "fsdp=4", "none", 1, 20, 1, 20},
    {"llama3-1b", "fsdp=2,tp=2", "selective", 1, 20, 1, 20},
    {"llama3-1b", "fsdp=2,tp=2", "full", 2, 20, 1, 20},
    {"llama3-8b", "dp=2,fsdp=2", "selective", 3, 21, 0, 20},
    {"llama3-8b", "fsdp=3", "none", 2, 21, 0, 20},
    {"gpt2", "fsdp=4", "full", 1, 28, 1, 24},
    {"gpt2", "fsdp=2,tp=2", "selective", 2, 28, 1, 18},
};

static Graph *compile(Arena *a, const ModelConfig *c, int64_t rows, int64_t tokens,
                      const PassOptions *o)
{
    Graph *g = model_graph(a, c, rows, tokens, NULL);
    passes_run(g, "default", o, NULL, NULL);
    return g;
}

typedef struct Job {
    Arena *a;
    int step;
    bool never;
} Job;

static void check_halves(Arena *a, const Graph *g, const Counts *whole)
{
    Counts f = count_all(a, graph_split(a, a, g, false));
    Counts b = count_all(a, graph_split(a, a, g, true));
    EXPECT(f.gathers[FORWARD] + f.gathers[LOSS] == whole->gathers[FORWARD] + whole->gathers[LOSS]);
    EXPECT(b.gathers[BACKWARD] == whole->gathers[BACKWARD] && b.parted == whole->parted);
}

static void check_small(void *arg)
{
    const Job *x = arg;
    const int params = steps[x->step].params, head = steps[x->step].head;
    ModelConfig c = graphs_small(steps[x->step].preset);
    PassOptions o = pass_defaults();
    o.mesh = steps[x->step].mesh;
    o.recompute = steps[x->step].recompute;
    o.reshard = x->never ? "never" : "always";
    o.accumulate = steps[x->step].accumulate;
    o.bucket = "off"; /* calls are counted */
    o.fuse = false;
    o.dtype = BF16;
    Graph *g = compile(x->a, &c, 24, 16, &o);
    Counts n = count_all(x->a, g);
    int before = test_nfail;
    EXPECT(n.gathers[FORWARD] + n.gathers[LOSS] == params + (x->never ? 0 : head));
    EXPECT(n.gathers[BACKWARD] == (x->never ? 0 : steps[x->step].again));
    EXPECT(n.parted == params);
    EXPECT(x->never || !n.stale);
    if (o.accumulate == 1)
        check_halves(x->a, g, &n);
    if (test_nfail > before)
        printf("  step %d, reshard %s: %d gathers in the forward, %d in the backward, %d stale; %d "
               "reductions\n",
               x->step, o.reshard, n.gathers[FORWARD], n.gathers[BACKWARD], n.stale, n.parted);
}

/* ---- bits ---- */

static const struct {
    const char *reshard, *recompute, *bucket;
} kinds[] = {{"always", "none", "off"},   {"never", "none", "off"},   {"always", "full", "off"},
             {"always", "none", "block"}, {"never", "none", "block"}, {"always", "full", "block"},
             {"always", "full", "3000"}};

/* What all ranks give of the whole step, compiled so. */
static Tensor **run_ranks(Arena *a, const Graph *whole, const Tensor *in, PassOptions o, int kind)
{
    int n = (int)mesh_nranks(mesh_parse(&ctx, a, o.mesh));
    Graph **g = NEWN(a, Graph *, n);
    o.reshard = kinds[kind].reshard;
    o.recompute = kinds[kind].recompute;
    o.bucket = kinds[kind].bucket;
    for (int r = 0; r < n; r++) {
        o.rank = r;
        g[r] = graph_clone(a, whole);
        passes_run(g[r], "spmd,remat,bucket", &o, NULL, NULL);
    }
    Ranks ranks = ranks_of(a, n, g);
    return ranks_interpret(&ranks, ranks_inputs(&ranks, whole, in), NULL);
}

static void check_bits(void *arg)
{
    const Job *x = arg;
    ModelConfig c = graphs_small(x->step ? "llama3-1b" : "gpt2");
    PassOptions o = pass_defaults();
    o.mesh = "fsdp=2,tp=2";
    o.accumulate = x->never ? 2 : 1;
    Graph *g = model_graph(x->a, &c, 4, 4, NULL);
    passes_run(g, "unfuse,grad,precision,accumulate,optimizer,canonicalize,cse,dce", &o, NULL,
               NULL);
    Tensor *in = graphs_inputs(x->a, g), **want = run_ranks(x->a, g, in, o, 0);
    for (int kind = 1; kind < LEN(kinds); kind++) {
        Tensor **out = run_ranks(x->a, g, in, o, kind);
        int differ = 0;
        for (int r = 0; r < 4; r++)
            for (int i = 0; i < g->nout; i++)
                differ += memcmp(out[r][i].data, want[r][i].data,
                                 (size_t)tensor_nbytes(&want[r][i])) != 0;
        if (!EXPECT(!differ))
            printf("  step %d, %s %s %s: %d outputs differ\n", x->step, kinds[kind].reshard,
                   kinds[kind].recompute, kinds[kind].bucket, differ);
    }
}

/* ---- Llama-3 8B ---- */

/* Bytes of gathers that are saved for the backward; of those of norms, which have one axis. */
static int64_t saved_bytes(const Graph *g, const Decisions *d, int64_t *norms)
{
    int64_t sum = 0;
    *norms = 0;
    for (int i = 0; i < d->count; i++) {
        const Value *v = map_find(&g->names, d->list[i].node);
        bool gather = v && node_is(v->def, OP_all_gather_into_tensor) &&
                      d->list[i].policy == MUST_SAVE && !d->list[i].unused;
        sum += gather ? d->list[i].nbytes : 0;
        *norms += gather && v->type.rank == 1 ? d->list[i].nbytes : 0;
    }
    return sum;
}

static void check_8b(void *arg)
{
    const Job *x = arg;
    ModelConfig c = *config_preset("llama3-8b");
    PassOptions o = pass_defaults();
    Decisions d = {.a = x->a};
    o.mesh = "fsdp=16,tp=8";
    o.recompute = "selective";
    o.reshard = x->never ? "never" : "always";
    o.dtype = BF16;
    o.bucket = "off";
    o.decisions = &d;
    Graph *g = compile(x->a, &c, 32, 8192, &o);
    Counts n = count_all(x->a, g);
    int64_t norms, sum = saved_bytes(g, &d, &norms);
    EXPECT(n.gathers[FORWARD] == 291);
    EXPECT(n.gathers[BACKWARD] == (x->never ? 0 : 290));
    EXPECT(n.parted == 291);
    EXPECT(x->never || !n.stale);
    EXPECT(norms == (x->never ? 65 * 4096 * 2 : 0));
    EXPECT(sum - norms == (x->never ? 1876164608 : 0)); /* 1,789.25 MiB */
}

static void try(void (*check)(void *), int step, bool never)
{
    Job x = {arena_new(&ctx), step, never};
    CHECK(x.a);
    if (!EXPECT(!ctx_try(&ctx, check, &x)))
        printf("  step %d: %s\n", step, ctx.message);
    arena_free(x.a);
}

int main(void)
{
    for (int i = 0; i < 2 * LEN(steps); i++)
        try(check_small, i / 2, i % 2);
    for (int i = 0; i < 2; i++)
        try(check_bits, i, i);
    try(check_8b, -1, false);
    try(check_8b, -1, true);
    return test_report();
}
