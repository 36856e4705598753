/* Reshards, in double: random values on random meshes of up to 16 ranks and 3 axes, from one random
 * legal form to another. The steps' graphs of all ranks, which differ in slices alone, run in
 * lockstep and must give the slices of the whole; what they are priced at is the seconds of the
 * collectives in the graph and of the copies that flow makes of it; no order of single axes is
 * cheaper. Every kind of step and every flat group of two axes must have come up 100 times.
 * `test_reshard SEED` runs one trial; TN_LONG: ten times as many. */
#include "../../src/flow/steps.h"
#include "../../src/spmd/spmd.h"
#include "../shared/cut_parts.h"
#include "../shared/gen.h"
#include "../shared/ranks.h"
#include "../shared/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NTRIAL = 10000, LONG = 10, LEAST = 100, NKIND = RESHARD_EXCHANGE + 1 };

typedef struct Counts {
    int64_t kind[NKIND], flat[NKIND], max[NKIND]; /* steps; over several axes; of maxima */
    int64_t strided, chain, orders;
} Counts;

typedef struct Trial {
    Arena *a;
    Rng rng;
    Counts *done;
    const char *failure;
    const Machine *machine;
    Mesh mesh;
    Type t;
    Cut from[MAX_MESH], to[MAX_MESH];
    Reshard r;
} Trial;

static void fail_trial(Trial *x, const char *why)
{
    if (!x->failure)
        x->failure =
            arena_printf(x->a, "%s on %s from \"%s\" to \"%s\": %s", type_text(x->a, &x->t),
                         mesh_text(x->a, &x->mesh), cuts_text(x->a, &x->mesh, x->from),
                         cuts_text(x->a, &x->mesh, x->to), why);
}

static void expect(Trial *x, bool holds, const char *what)
{
    if (!holds)
        fail_trial(x, what);
}

/* ---- random problems ---- */

static int64_t pick(Rng *r, int count, const int64_t *of)
{
    return of[rng_below(r, count)];
}

static void random_mesh(Trial *x)
{
    static const int64_t sizes[] = {2, 2, 2, 1, 3, 4}, naxes[] = {1, 2, 3, 3};
    static const char *const names[] = {"dp", "fsdp", "tp"};
    for (int d = 0, count = (int)pick(&x->rng, LEN(naxes), naxes); d < count; d++) {
        int64_t size = pick(&x->rng, LEN(sizes), sizes), most = 16 / mesh_nranks(&x->mesh);
        mesh_add(x->a, &x->mesh, names[d], MIN(size, most));
    }
}

static void random_type(Trial *x)
{
    static const int64_t sizes[] = {1, 2, 3, 4, 6, 8, 12, 24};
    x->t = (Type){.dtype = F64, .rank = (int)rng_below(&x->rng, 5)};
    if (rng_chance(&x->rng, 0.02)) { /* to take axes apart, some others must become one */
        x->t = type_make(F64, TN_RANK, (int64_t[]){2, 1, 1, 2, 1, 2, 4, 4});
        return;
    }
    for (int64_t d = 0, nelem = 1; d < x->t.rank; d++)
        nelem *= x->t.dim[d] = pick(&x->rng, nelem > 40 ? 2 : nelem > 8 ? 5 : LEN(sizes), sizes);
    if (x->t.rank && rng_chance(&x->rng, 0.03))
        x->t.dim[rng_below(&x->rng, x->t.rank)] = 0;
}

static bool legal(const Trial *x, const Cut *form)
{
    PartCut cuts[MAX_MESH] = {0};
    for (int d = 0; d < x->mesh.naxes; d++)
        cuts[d].count = x->mesh.size[d];
    return cut_value_legal(&x->t, x->mesh.naxes, cuts, form);
}

/* Whole, or sliced, often on an axis that another mesh axis cuts too. */
static Cut random_cut(Trial *x, const Cut *form)
{
    static const int64_t outer[] = {1, 1, 2, 3, 4, 6};
    if (!x->t.rank || rng_chance(&x->rng, 0.25))
        return (Cut){.kind = CUT_WHOLE};
    Cut c = {CUT_SLICE, (int)rng_below(&x->rng, x->t.rank), pick(&x->rng, LEN(outer), outer)};
    int other = (int)rng_below(&x->rng, x->mesh.naxes);
    if (form[other].kind == CUT_SLICE && rng_chance(&x->rng, 0.7)) {
        c.axis = form[other].axis;
        c.outer = form[other].outer * (rng_chance(&x->rng, 0.8) ? x->mesh.size[other] : c.outer);
    }
    return c;
}

/* Mesh axes are cut from `first` on, so that each may be major. */
static void random_form(Trial *x, int first, Cut *form)
{
    int naxes = x->mesh.naxes;
    for (int i = 0; i < naxes; i++) {
        Cut *c = &form[(first + i) % naxes];
        for (int k = 0; k < 10; k++) {
            Cut next = random_cut(x, form);
            *c = next;
            if (legal(x, form))
                break;
            *c = (Cut){.kind = CUT_WHOLE};
        }
    }
}

/* All mesh axes slice one axis, as one, from `first` on. */
static void flat_form(Trial *x, int first, Cut *form)
{
    int naxes = x->mesh.naxes, axis = (int)rng_below(&x->rng, x->t.rank);
    int64_t outer = 1 + rng_below(&x->rng, 2);
    x->t.dim[axis] = 2 * mesh_nranks(&x->mesh);
    for (int i = 0; i < naxes; i++) {
        int d = (first + i) % naxes;
        form[d] = (Cut){CUT_SLICE, axis, outer};
        outer *= x->mesh.size[d];
    }
}

/* Makes mesh axes partial with that chance, some to stay so. */
static void random_partial(Trial *x, double chance)
{
    CutKind merge = rng_chance(&x->rng, 0.6) ? CUT_SUM : CUT_MAX;
    for (int d = 0; d < x->mesh.naxes; d++) {
        if (!rng_chance(&x->rng, chance))
            continue;
        x->from[d] = (Cut){.kind = merge};
        if (chance < 1 && rng_chance(&x->rng, 0.2))
            x->to[d] = (Cut){.kind = merge};
    }
}

static void random_flat(Trial *x)
{
    enum { FROM_WHOLE, FROM_PARTIAL, FROM_SLICE = 3 };
    int first = (int)rng_below(&x->rng, x->mesh.naxes), from = (int)rng_below(&x->rng, 5);
    x->t = (Type){.dtype = F64, .rank = 1 + (int)rng_below(&x->rng, 3)};
    for (int d = 0; d < x->t.rank; d++)
        x->t.dim[d] = 1 + rng_below(&x->rng, 3);
    if (from >= FROM_SLICE)
        flat_form(x, first, x->from);
    if (from == FROM_WHOLE || rng_chance(&x->rng, 0.5))
        flat_form(x, first, x->to);
    if (from == FROM_PARTIAL || from == FROM_PARTIAL + 1)
        random_partial(x, 1);
}

static void random_problem(Trial *x)
{
    random_mesh(x);
    if (rng_chance(&x->rng, 0.6)) {
        random_flat(x);
        return;
    }
    random_type(x);
    random_form(x, (int)rng_below(&x->rng, x->mesh.naxes), x->from);
    random_form(x, (int)rng_below(&x->rng, x->mesh.naxes), x->to);
    random_partial(x, 0.3);
}

/* ---- the graphs ---- */

static Graph *rank_graph(const Trial *x, int64_t rank)
{
    Graph *g = graph_new(x->a, "rank");
    Mesh *m = mesh_clone(x->a, &x->mesh);
    Build b = {.g = g, .scope = ""};
    mesh_set_rank(m, rank);
    g->mesh = m;
    Value *v = graph_input(g, "x", cut_local_type(&x->t, m, x->from), ROLE_NONE, NULL);
    g->in[0].cut = cuts_clone(x->a, m, x->from);
    for (int i = 0; i < x->r.nstep; i++)
        v = reshard_emit(&b, m, &x->t, &x->r.step[i], v);
    graph_output(g, v, ROLE_NONE, NULL);
    g->out[0].cut = cuts_clone(x->a, m, x->to);
    graph_verify(g);
    return g;
}

static Graph *whole_graph(Trial *x)
{
    Graph *g = graph_new(x->a, "whole");
    graph_output(g, graph_input(g, "x", x->t, ROLE_NONE, NULL), ROLE_NONE, NULL);
    return g;
}

static void run_ranks(Trial *x)
{
    int n = (int)mesh_nranks(&x->mesh);
    Graph **g = NEWN(x->a, Graph *, n), *whole = whole_graph(x);
    Tensor in = tensor_new(x->a, &x->t, 0), out;
    for (int64_t e = 0; e < tensor_nelem(&in); e++)
        tensor_set(&in, e, rng_uniform(&x->rng) - 0.5);
    for (int j = 0; j < n; j++)
        g[j] = rank_graph(x, j);
    Ranks r = ranks_of(x->a, n, g);
    Tensor **part = ranks_interpret(&r, ranks_inputs(&r, whole, &in), NULL);
    const char *why = ranks_together(&r, whole, part, &out);
    why = why ? why : cut_differ(x->a, &out, &in, 1);
    if (why)
        fail_trial(x, why);
}

/* ---- prices ---- */

static double copied_sec(const Trial *x, const Type *t)
{
    double nbytes = (double)type_nbytes(t);
    return cost_sec(x->machine, CLASS_MOVEMENT, t->dtype, &(Cost){0, nbytes, nbytes});
}

static double wire_sec(const Trial *x, const Node *n)
{
    extern const OpId OP_all_gather_into_tensor, OP_reduce_scatter_tensor, OP_all_reduce,
        OP_all_to_all_single;
    static const struct {
        const OpId *op;
        CollectiveKind kind;
    } kinds[] = {{&OP_all_gather_into_tensor, ALL_GATHER},
                 {&OP_reduce_scatter_tensor, REDUCE_SCATTER},
                 {&OP_all_reduce, ALL_REDUCE},
                 {&OP_all_to_all_single, ALL_TO_ALL}};
    int axes[MAX_MESH], k = 0, at = attr_index(n->op, "group");
    bool in_group[MAX_MESH] = {0};
    int naxes = group_axes(&x->mesh, n->attr[at].s, axes);
    for (int i = 0; i < naxes; i++)
        in_group[axes[i]] = true;
    while (!node_of(n, kinds[k].op))
        k++;
    int64_t in = type_nbytes(&n->in[0]->type), out = type_nbytes(&n->out[0]->type);
    return collective_sec(x->machine, kinds[k].kind,
                          mesh_group(x->machine, x->mesh.size, x->mesh.naxes, in_group),
                          (double)MAX(in, out));
}

/* Copies that flow makes for a view; a collective takes its operand row-major. */
static double moves_sec(const Trial *x, const Flow *f, const Node *n)
{
    const Type *t = &n->in[0]->type;
    int count;
    item_moves(f, flow_item(f, n), false, &count);
    if (n->op->class == CLASS_COLLECTIVE)
        return place_contiguous(t, value_place(f, flow_value(f, n->in[0]))) ? 0 : copied_sec(x, t);
    return count ? copied_sec(x, t) : 0;
}

static double graph_sec(const Trial *x, Graph *g)
{
    double sec = 0;
    Flow *f =
        flow_new(g, device_at(DEVICE_cpu), machine_for(x->a, device_at(DEVICE_cpu), NULL), x->a);
    for (const Node *n = g->first; n; n = n->next) {
        sec += moves_sec(x, f, n);
        sec += n->op->class == CLASS_COLLECTIVE ? wire_sec(x, n) : 0;
    }
    return sec;
}

static bool is_near(double x, double y)
{
    return fabs(x - y) <= 1e-12 * MAX(x, y);
}

/* Whether a step before the last joins units of single elements, by strides alone: the next may
 * undo it, or slice them apart again, and needs no copy then. */
static bool joins_apart(const Trial *x, const Reshard *r)
{
    for (int i = 0; i + 1 < r->nstep; i++) {
        const ReshardStep *s = &r->step[i];
        const Cut *from = &s->from[s->axes[0]], *to = &s->to[s->axes[0]];
        if (from->kind != CUT_SLICE)
            continue;
        int64_t units = cut_local_type(&x->t, &x->mesh, s->from).dim[from->axis];
        if (to->kind == CUT_SLICE && to->axis == from->axis)
            units /= group_nranks(&x->mesh, s->naxes, s->axes);
        if (units == 1)
            return true;
    }
    return false;
}

static void check_price(Trial *x)
{
    double sec = 0, graph = graph_sec(x, rank_graph(x, 0));
    for (int i = 0; i < x->r.nstep; i++)
        sec += x->r.step[i].sec;
    expect(x, sec == x->r.sec, "the price is not that of the steps");
    bool less = joins_apart(x, &x->r), more = x->t.rank == TN_RANK; /* axes taken as one */
    expect(x, is_near(sec, graph) || (less && sec > graph) || (more && sec < graph),
           "the price is not that of the graph");
}

/* The same by one mesh axis after the other, in this order; infinite where that is no way. */
static double chain_sec(const Trial *x, int count, const int *axes)
{
    Trial y = *x;
    Cut form[MAX_MESH], next[MAX_MESH];
    Reshard r;
    memcpy(form, x->from, sizeof form);
    y.r.nstep = 0;
    for (int i = 0; i < count; i++) {
        memcpy(next, form, sizeof form);
        next[axes[i]] = x->to[axes[i]];
        if (!legal(x, next) || !reshard_find(x->machine, &x->mesh, &x->t, form, next, &r))
            return INFINITY;
        for (int k = 0; k < r.nstep; k++)
            y.r.step[y.r.nstep++] = r.step[k];
        memcpy(form, next, sizeof form);
    }
    return joins_apart(x, &y.r) ? INFINITY : graph_sec(&y, rank_graph(&y, 0));
}

static void check_orders(Trial *x)
{
    static const int order[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                   {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int k = 0; k < LEN(order); k++) {
        int axes[3] = {0}, count = 0;
        for (int i = 0; i < 3; i++)
            if (order[k][i] < x->mesh.naxes)
                axes[count++] = order[k][i];
        double sec = count > 1 ? chain_sec(x, count, axes) : x->r.sec;
        x->done->orders += sec < INFINITY;
        expect(x, x->r.sec <= sec * (1 + 1e-12), "an order of single axes is cheaper");
    }
}

/* ---- steps ---- */

static bool same_forms(const Trial *x, const Cut *f, const Cut *g)
{
    for (int d = 0; d < x->mesh.naxes; d++)
        if (x->mesh.size[d] > 1 && !cut_equal(f[d], g[d]))
            return false;
    return true;
}

static void check_steps(Trial *x)
{
    const Cut *now = x->from;
    for (int i = 0; i < x->r.nstep; i++) {
        const ReshardStep *s = &x->r.step[i];
        expect(x, same_forms(x, now, s->from), "a step does not begin where the last one ends");
        expect(x, legal(x, s->to), "a form on the way is not legal");
        bool none = s->kind == RESHARD_SLICE || !type_nelem(&x->t);
        expect(x, none == (s->nbytes == 0), "bytes of a step");
        int64_t *count = x->done->kind;
        count[s->kind]++;
        x->done->flat[s->kind] += s->naxes > 1;
        x->done->max[s->kind] += s->from[s->axes[0]].kind == CUT_MAX;
        x->done->strided += s->strided;
        now = s->to;
    }
    x->done->chain += x->r.nstep > 1;
    expect(x, same_forms(x, now, x->to), "the last step does not end in the form asked for");
}

/* An h100, one whose links take long for one byte, and a cpu. */
static const Machine *machine_of(Arena *a, int64_t which)
{
    static const char slow[] = "machine 1 name slow like h100 gather_2_wait 1e5 gather_4_wait 1e5 "
                               "gather_8_wait 1e5 reduce_2_wait 1e5 reduce_4_wait 1e5 "
                               "reduce_8_wait 1e5 exchange_wait 1e5";
    if (which == 1)
        return machine_parse(a, slow, sizeof slow - 1, "slow");
    return machine_get(a, which ? "avx2" : "h100", 1);
}

static void run_trial(void *arg)
{
    Trial *x = arg;
    x->machine = machine_of(x->a, rng_below(&x->rng, 3));
    random_problem(x);
    if (!reshard_find(x->machine, &x->mesh, &x->t, x->from, x->to, &x->r)) {
        fail_trial(x, "no way");
        return;
    }
    check_steps(x);
    if (type_nelem(&x->t))
        check_price(x);
    if (type_nelem(&x->t) && rng_chance(&x->rng, 0.5))
        check_orders(x);
    run_ranks(x);
}

static bool run_seed(uint64_t seed, Counts *done)
{
    Ctx ctx = {0};
    Trial x = {.a = arena_new(&ctx), .rng = {.seed = seed}, .done = done};
    Code code = ctx_try(&ctx, run_trial, &x);
    const char *why = code ? ctx.message : x.failure;
    if (why)
        printf("seed %llu: %s\n", (unsigned long long)seed, why);
    arena_free(x.a);
    ctx_end(&ctx);
    return !why;
}

static void test_random(void)
{
    Counts done = {0};
    int count = NTRIAL * (getenv("TN_LONG") ? LONG : 1);
    for (int i = 0; i < count; i++)
        EXPECT(run_seed(1 + (uint64_t)i, &done));
    for (int k = 0; k < NKIND; k++) {
        bool merges = k == RESHARD_SCATTER || k == RESHARD_REDUCE;
        EXPECT(done.kind[k] - done.flat[k] >= LEAST && done.flat[k] >= LEAST);
        EXPECT(!merges || (done.max[k] >= LEAST && done.kind[k] - done.max[k] >= LEAST));
    }
    EXPECT(done.strided >= LEAST && done.chain >= LEAST && done.orders >= LEAST);
}

/* ---- known ones ---- */

/* bf16[4096, 64, 128] on fsdp=16,tp=8, which have each "-" whole, AXIS or AXIS/OUTER, or + (sum),
 * > (max), ~ (log-sum-exp). The nodes, by machine_of(0) and machine_of(1), where they differ; NULL:
 * there is no way. */
static const struct {
    const char *from, *to, *nodes, *slow;
} known[] = {
    {"0 -", "0 -", "", NULL},
    {"~ -", "~ -", "", NULL},
    {"- 0", "- -", "all_gather_into_tensor(tp) wait_tensor", NULL},
    {"- 1", "- -", "all_gather_into_tensor(tp) wait_tensor view permute view", NULL},
    {"~ 0", "~ -", "all_gather_into_tensor(tp) wait_tensor", NULL},
    {"0/8 0", "- -",
     "all_gather_into_tensor(fsdp) wait_tensor all_gather_into_tensor(tp) wait_tensor",
     "all_gather_into_tensor(tp,fsdp) wait_tensor"},
    {"0 0/16", "- -",
     "all_gather_into_tensor(fsdp) wait_tensor all_gather_into_tensor(tp) wait_tensor view permute "
     "view",
     "all_gather_into_tensor(fsdp,tp) wait_tensor"},
    {"+ +", "- -", "all_reduce(fsdp,tp) wait_tensor", NULL},
    {"+ +", "0/8 0",
     "reduce_scatter_tensor(tp) wait_tensor reduce_scatter_tensor(fsdp) wait_tensor",
     "reduce_scatter_tensor(tp,fsdp) wait_tensor"},
    {"+ +", "- 0", "reduce_scatter_tensor(tp) wait_tensor all_reduce(fsdp) wait_tensor", NULL},
    {"> -", "- -", "all_reduce(fsdp) wait_tensor", NULL},
    {"- +", "- 0", "reduce_scatter_tensor(tp) wait_tensor", NULL},
    {"- +", "- 1", "view permute view reduce_scatter_tensor(tp) wait_tensor", NULL},
    {"- 0", "- 1", "view permute view all_to_all_single(tp) wait_tensor", NULL},
    {"- 1", "- 0", "all_to_all_single(tp) wait_tensor view permute view", NULL},
    {"- 1", "- 2", "view permute view all_to_all_single(tp) wait_tensor view permute view", NULL},
    {"- -", "- 1", "slice", NULL},
    {"- -", "- 1/4", "view slice view", NULL},
    {"- -", "0/8 0", "slice", NULL},
    {"- 1", "- 1/8", "permute view all_to_all_single(tp) wait_tensor view permute", NULL},
    {"- 1", "- 1/2", "all_gather_into_tensor(tp) wait_tensor view permute view view slice view",
     NULL},
    {"- -", "- +", NULL, NULL},
    {"- 0", "- +", NULL, NULL},
    {"- >", "- +", NULL, NULL},
    {"~ -", "- -", NULL, NULL},
    {"+ >", "- -", NULL, NULL},
    {"- 2/32", "- -", NULL, NULL},
    {"- -", "- 2/32", NULL, NULL},
    {"0 0/3", "- -", NULL, NULL},
};

static void parse_form(const char *text, Cut *form)
{
    static const char partial[] = "+>~";
    for (int d = 0; d < 2; d++, text += strcspn(text, " ") + 1) {
        const char *kind = strchr(partial, *text);
        form[d] = (Cut){.kind = kind ? CUT_SUM + (CutKind)(kind - partial) : CUT_WHOLE};
        if (*text >= '0' && *text <= '9')
            form[d] = (Cut){CUT_SLICE, *text - '0', text[1] == '/' ? atoi(text + 2) : 1};
    }
}

/* "all_reduce(tp) wait_tensor" */
static const char *nodes_text(Arena *a, const Graph *g)
{
    Buf b = {.a = a};
    buf_add(&b, "");
    for (const Node *n = g->first; n; n = n->next) {
        int at = attr_index(n->op, "group");
        buf_printf(&b, "%s%s", b.len ? " " : "", n->op->name);
        if (at >= 0)
            buf_printf(&b, "(%s)", n->attr[at].s);
    }
    return b.text;
}

static void try_known(Arena *a, int i, int machine)
{
    Trial x = {.a = a, .machine = machine_of(a, machine)};
    const char *want = machine && known[i].slow ? known[i].slow : known[i].nodes, *found = NULL;
    mesh_add(a, &x.mesh, "fsdp", 16);
    mesh_add(a, &x.mesh, "tp", 8);
    x.t = type_make(BF16, 3, (int64_t[]){4096, 64, 128});
    parse_form(known[i].from, x.from);
    parse_form(known[i].to, x.to);
    if (reshard_find(x.machine, &x.mesh, &x.t, x.from, x.to, &x.r))
        found = nodes_text(a, rank_graph(&x, 37));
    bool same = !want == !found && (!want || !strcmp(want, found));
    if (!test_note(same, __FILE__, __LINE__, "known nodes"))
        printf("  %s to %s, machine %d: expected %s, found %s\n", known[i].from, known[i].to,
               machine, want ? want : "no way", found ? found : "no way");
}

static void test_known(void *arg)
{
    for (int i = 0; i < LEN(known); i++)
        for (int machine = 0; machine < 2; machine++)
            try_known(arg, i, machine);
}

int main(int argc, char **argv)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Counts none = {0};
    EXPECT(!ctx_try(&ctx, test_known, a));
    if (argc > 1)
        EXPECT(run_seed(strtoull(argv[1], NULL, 10), &none));
    else
        test_random();
    arena_free(a);
    ctx_end(&ctx);
    return test_report();
}
