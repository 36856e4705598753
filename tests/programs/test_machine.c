/* Seconds: the test vectors of the cost model that machine.def takes its GPUs and links from, rows
 * that are complete, seconds that grow with bytes and shrink with cores, every op on every machine,
 * loops and fused nodes by their bodies; files of machines, wrong ones with line and column. */
#include "../shared/test.h"

#include "../../include/tenon.h"
#include "../../src/machine/machine.h"
#include "../../src/model/model.h"
#include "../../src/pass/pass.h"

#include <math.h>

static Ctx ctx;
static Arena *a;
static tn_context *api;

static const Machine *machine(const char *name)
{
    return machine_get(a, name, 2);
}

static const char *const rows[] = {
#define PROCESSOR(name, ...) #name,
#include "../../src/machine/machine.def"
};

static void near_usec(double sec, double want, double tolerance, const char *what)
{
    if (!test_note(fabs(1e6 * sec - want) <= tolerance * want, __FILE__, __LINE__, what))
        printf("  expected %g us, found %g\n", want, 1e6 * sec);
}

/* ---- against the reference ---- */

/* Collectives of a mesh of 16 x 8 H100, dp between hosts and tp within: microseconds. */
static void test_vectors(void)
{
    static const struct {
        const char *what;
        double nbytes, dp, then_tp, flat;
    } gathers[] = {{"w1", 112 * 0x1p20, 453, 781, 870},
                   {"wq", 32 * 0x1p20, 231, 346, 454},
                   {"embedding", 1002 * 0x1p20, 2784, 5480, 4592}};
    const Machine *m = machine("h100");
    const int64_t mesh[] = {16, 8};
    Group dp = mesh_group(m, mesh, 2, (bool[]){true, false});
    Group tp = mesh_group(m, mesh, 2, (bool[]){false, true});
    Group flat = mesh_group(m, mesh, 2, (bool[]){true, true});
    for (int i = 0; i < LEN(gathers); i++) {
        double n = gathers[i].nbytes, outer = collective_sec(m, ALL_GATHER, dp, n / 8);
        near_usec(outer, gathers[i].dp, 0.002, gathers[i].what);
        near_usec(outer + collective_sec(m, ALL_GATHER, tp, n), gathers[i].then_tp, 0.002, "tp");
        near_usec(collective_sec(m, ALL_GATHER, flat, n), gathers[i].flat, 0.002, "flat");
    }
    near_usec(collective_sec(m, ALL_GATHER, tp, 128 * 0x1p20), 371, 0.002, "activation");
    near_usec(collective_sec(m, ALL_TO_ALL, tp, 16 * 0x1p20), 94, 0.002, "all_to_all");
    near_usec(collective_sec(m, PERMUTE, tp, 16 * 0x1p20), 56.7, 0.002, "permute");
    Cost reshuffle = {.nread = 128 * 0x1p20, .nwrite = 128 * 0x1p20};
    near_usec(cost_sec(m, CLASS_MOVEMENT, BF16, &reshuffle), 104, 0.002, "reshuffle");
}

/* Latency and GB/s of LL, LL128 and SIMPLE of its table; the best of them, for a few sizes. */
static void test_rings(void)
{
    static const struct {
        Group g;
        double wait[3], rate[3];
    } table[] = {{{2, 1}, {11.6, 22.5, 22.4}, {48.0, 88.3, 96.0}},
                 {{2, 8}, {23.3, 44.6, 70.0}, {41.6, 313.2, 409.6}},
                 {{4, 1}, {21.6, 39.5, 50.4}, {27.2, 58.9, 64.0}},
                 {{4, 8}, {42.7, 79.2, 145.6}, {21.1, 303.1, 396.4}},
                 {{8, 1}, {41.6, 73.5, 106.4}, {23.3, 50.5, 54.9}},
                 {{8, 8}, {81.5, 148.4, 296.8}, {20.7, 298.3, 390.1}},
                 {{16, 1}, {81.6, 141.5, 218.4}, {21.8, 47.1, 51.2}},
                 {{16, 8}, {159.1, 286.8, 599.2}, {20.6, 295.9, 387.0}},
                 {{32, 1}, {161.6, 277.5, 442.4}, {21.1, 45.6, 49.5}},
                 {{32, 8}, {314.3, 563.6, 1204.0}, {20.5, 294.8, 385.5}}};
    const Machine *m = machine("h100");
    for (int i = 0; i < LEN(table); i++) {
        Group g = table[i].g;
        for (int size = 0; size < 4; size++) {
            /* where a full host's ramp has a point: 8 KiB, 16 KiB, 8 MiB, 1 GiB for each rank */
            static const double each[] = {0x1p13, 0x1p14, 0x1p23, 0x1p30};
            static const double share[] = {0.36, 0.68, 0.68, 1};
            double n = each[size] * g.nodes * g.ranks_per_node, best = INFINITY;
            for (int p = 0; p < 3; p++)
                best =
                    fmin(best, table[i].wait[p] + n / (1e3 * table[i].rate[p] *
                                                       (g.ranks_per_node == 8 ? share[size] : 1)));
            near_usec(collective_sec(m, ALL_GATHER, g, n), best, 0.005, "ring");
            near_usec(collective_sec(m, REDUCE_SCATTER, g, n), best, 0.005, "ring");
        }
    }
}

/* all_reduce over whole hosts: the best of its trees, by its tables. */
static void test_reduces(void)
{
    static const struct {
        Group g;
        double want[11]; /* of 1 KiB, 4 KiB, ... 1 GiB */
    } sizes[] = {
        {{2, 8}, {25.3, 25.6, 26.6, 31.8, 52.0, 62.5, 90.5, 140.4, 304.6, 1059.5, 4079.0}},
        {{8, 8}, {45.3, 45.9, 47.9, 57.8, 86.9, 100.2, 135.7, 271.6, 691.5, 1786.7, 6819.9}},
        {{16, 8}, {55.3, 55.9, 57.9, 67.8, 103.9, 117.2, 152.7, 288.6, 855.7, 2043.5, 6847.9}}};
    for (int i = 0; i < LEN(sizes); i++)
        for (int j = 0; j < LEN(sizes[i].want); j++)
            near_usec(collective_sec(machine("h100"), ALL_REDUCE, sizes[i].g, exp2(10 + 2 * j)),
                      sizes[i].want[j], 0.005, "all_reduce");
}

/* The last node, or what it waits for. */
static Node *node_from(const char *text)
{
    Graph *g = graph_parse(a, text, "text");
    graph_verify(g);
    return g->last->op->wait && g->last->in[0]->def ? g->last->in[0]->def : g->last;
}

/* The column-parallel product of w1, 16384 x 4096 x 1792. */
static void test_product(void)
{
    Node *n = node_from("tenon 1\ngraph g(%x: bf16[16384, 4096], %w: bf16[4096, 1792]) {\n"
                        "  %y: bf16[16384, 1792] = mm(%x, %w)\n  return %y\n}\n");
    near_usec(node_sec(machine("h100"), NULL, n), 347, 0.002, "w1");
    Cost nothing = {.nread = 1, .nwrite = 1};
    near_usec(cost_sec(machine("h100"), CLASS_POINTWISE, F32, &nothing), 7, 0.002, "launch");
}

static bool group_is(Group g, int nodes, int ranks_per_node)
{
    return g.nodes == nodes && g.ranks_per_node == ranks_per_node;
}

static void test_groups(void)
{
    const Machine *m = machine("h100");
    const int64_t mesh[] = {4, 2, 4};
    EXPECT(group_is(mesh_group(m, mesh, 3, (bool[]){false, false, true}), 1, 4));
    EXPECT(group_is(mesh_group(m, mesh, 3, (bool[]){false, true, false}), 1, 2));
    EXPECT(group_is(mesh_group(m, mesh, 3, (bool[]){true, false, false}), 4, 1));
    EXPECT(group_is(mesh_group(m, mesh, 3, (bool[]){false, true, true}), 1, 8));
    EXPECT(group_is(mesh_group(m, mesh, 3, (bool[]){true, true, true}), 4, 8));
    EXPECT(group_is(mesh_group(m, mesh, 3, (bool[]){false, false, false}), 1, 1));
    EXPECT(group_is(mesh_group(m, (int64_t[]){2, 3}, 2, (bool[]){true, false}), 1, 2));
    EXPECT(group_is(mesh_group(m, (int64_t[]){12}, 1, (bool[]){true}), 2, 8));
    EXPECT(
        group_is(mesh_group(machine("gb200"), (int64_t[]){9, 8}, 2, (bool[]){true, true}), 1, 72));
    const int64_t vast[] = {1 << 20, 1 << 20, 1 << 20};
    EXPECT(mesh_group(m, vast, 3, (bool[]){true, true, true}).nodes == INT32_MAX);
    EXPECT(collective_sec(m, ALL_REDUCE, (Group){1, 1}, 1e9) == 0);
}

/* Collectives of a graph are priced by where its mesh puts their groups. */
static void test_mesh(void)
{
    const Machine *m = machine("h100");
    const Mesh *mesh = mesh_parse(&ctx, a, "fsdp=16,tp=8");
    Graph *g = graph_new(a, "g");
    Build b = {.g = g};
    Value *x = graph_input(g, "x", type_make(BF16, 1, (int64_t[]){14 << 22}), ROLE_NONE, NULL);
    Node *n[NCOLLECTIVE];
    const struct {
        const char *group;
        int64_t ranks;
        Group where;
    } list[] = {{"fsdp", 16, {16, 1}}, {"tp", 8, {1, 8}}, {"tp,fsdp", 128, {16, 8}}};
    g->mesh = mesh;
    for (int i = 0; i < LEN(list); i++) {
        const AttrArg group = A_STR("group", list[i].group), sum = A_STR("reduce_op", "sum"),
                      size = A_INT("group_size", list[i].ranks);
        double nelem = 14 << 22, ranks = (double)list[i].ranks;
        n[ALL_GATHER] = emit(&b, "all_gather_into_tensor", IN(x), ATTRS(size, group));
        n[REDUCE_SCATTER] = emit(&b, "reduce_scatter_tensor", IN(x), ATTRS(sum, size, group));
        n[ALL_REDUCE] = emit(&b, "all_reduce", IN(x), ATTRS(sum, group));
        n[ALL_TO_ALL] = emit(&b, "all_to_all_single", IN(x), ATTRS(group));
        n[BROADCAST] = emit(&b, "broadcast", IN(x), ATTRS(A_INT("src", 0), group));
        n[PERMUTE] = emit(&b, "permute_tensor", IN(x), ATTRS(A_INT("shift", 1), group));
        for (int k = 0; k < NCOLLECTIVE; k++) {
            double nbytes = 2 * nelem * (k == ALL_GATHER ? ranks : 1);
            Group found = node_group(m, mesh, n[k]);
            EXPECT(node_collective(n[k]) == (CollectiveKind)k);
            EXPECT(group_is(found, list[i].where.nodes, list[i].where.ranks_per_node));
            EXPECT(node_sec(m, mesh, n[k]) ==
                   collective_sec(m, (CollectiveKind)k, list[i].where, nbytes));
        }
    }
    mesh = mesh_parse(&ctx, a, "dp=1,tp=8");
    n[ALL_REDUCE]->attr[attr_index(n[ALL_REDUCE]->op, "group")].s = "dp";
    EXPECT(node_sec(m, mesh, n[ALL_REDUCE]) == 0);
}

/* A group of more ranks than an int counts takes longer, on every machine. */
static void test_vast_groups(void)
{
    static const char *const sizes[] = {"3000000000", "9223372036854775807"};
    Node *small = node_from("tenon 1\ngraph g(%x: f32[0, 6]) {\n  %y: f32[0, 6] = "
                            "all_gather_into_tensor(%x, group_size=64, group=\"0\")\n"
                            "  %w: f32[0, 6] = wait_tensor(%y, %x)\n  return %w\n}\n");
    for (int i = 0; i < LEN(sizes); i++) {
        Node *vast =
            node_from(arena_printf(a,
                                   "tenon 1\ngraph g(%%x: f32[0, 6]) {\n  %%y: f32[0, 6] = "
                                   "all_gather_into_tensor(%%x, group_size=%s, group=\"0\")"
                                   "\n  %%w: f32[0, 6] = wait_tensor(%%y, %%x)\n"
                                   "  return %%w\n}\n",
                                   sizes[i]));
        for (int k = 0; k < LEN(rows); k++)
            EXPECT(node_sec(machine(rows[k]), NULL, vast) >
                   100 * node_sec(machine(rows[k]), NULL, small));
    }
}

/* ---- rows ---- */

static void test_rows(void)
{
    for (int i = 0; i < LEN(rows); i++) {
        const Machine *m = machine(rows[i]);
        EXPECT(!strcmp(machine_name(m), rows[i]));
        for (int f = 0; f < NFIGURE; f++)
            if (!test_note(m->figure[f] >= figure_table[f].least &&
                               m->figure[f] <= figure_table[f].most,
                           __FILE__, __LINE__, figure_table[f].key))
                printf("  machine: %s: %g\n", rows[i], m->figure[f]);
        for (int c = 0; c < NCLASS; c++)
            EXPECT(m->share[c].arithmetic > 0 && m->share[c].memory > 0 && m->share[c].each >= 0);
        for (int k = 0; k < i; k++)
            EXPECT(machine_hash(m) != machine_hash(machine(rows[k])));
        EXPECT(strstr(machine_list(a), rows[i]) != NULL);
    }
    EXPECT(machine_is_here(machine(NULL)) && machine_is_here(machine("none")));
    EXPECT(!machine_is_here(machine("h100")));
    EXPECT(machine_hash(machine_get(a, NULL, 1)) != machine_hash(machine_get(a, NULL, 2)));
    EXPECT(machine_hash(machine_get(a, "h100", 1)) == machine_hash(machine_get(a, "h100", 2)));
}

/* More bytes never take less time; four times as many take more, from 1 MiB on. */
static void check_bytes(const Machine *m, CollectiveKind k, Group g)
{
    double before = 0, quarter[8] = {0};
    for (int i = 0; i < 8 * 36; i++) {
        double sec = collective_sec(m, k, g, exp2(i / 8.0));
        if (!test_note(sec >= before && sec > 0 && (i < 8 * 20 || sec > 1.0001 * before), __FILE__,
                       __LINE__, "grows with bytes"))
            printf("  %s, %s of %d x %d: 2^%g bytes take %g s, an eighth less %g\n",
                   machine_name(m), collective_name(k), g.nodes, g.ranks_per_node, i / 8.0, sec,
                   before);
        quarter[i % 8] = before = sec;
    }
    EXPECT(quarter[0] > 0);
}

static void test_monotone(void)
{
    for (int i = 0; i < LEN(rows); i++) {
        const Machine *m = machine(rows[i]);
        for (int k = 0; k < NCOLLECTIVE; k++)
            for (int nodes = 1; nodes <= 64; nodes *= 2)
                for (int each = nodes == 1 ? 2 : 1; each <= 8; each += each < 4 ? 1 : 4)
                    check_bytes(m, (CollectiveKind)k, (Group){nodes, each});
        for (int c = 0; c < NCLASS; c++) {
            double before = 0;
            for (int e = 0; e < 44; e++) {
                Cost cost = {exp2(e), exp2(e), exp2(e)};
                double sec = cost_sec(m, (OpClass)c, F32, &cost);
                EXPECT(sec >= before && sec > 0 && sec < 1e7);
                before = sec;
            }
        }
        EXPECT(copy_sec(m, 2e9) > copy_sec(m, 1e9) && copy_sec(m, 0) > 0);
    }
}

/* ---- every op ---- */

static Node *example(const Op *op)
{
    const char *text;
    EXPECT(tn_ops(api, op->name, "infer", &text) == TN_CODE_OK);
    return node_from(text);
}

static void test_ops(void)
{
    for (int i = 0; i < op_count; i++) {
        const Op *op = &op_table[i];
        Node *n = example(op);
        bool free = op->view || op->wait;
        for (int k = 0; k < LEN(rows); k++) {
            double sec = node_sec(machine(rows[k]), NULL, n), more = sec;
            for (int cores = 1; cores <= 256 && !machine(rows[k])->gpu; cores *= 2) {
                double now = node_sec(machine_get(a, rows[k], cores), NULL, n);
                EXPECT(cores == 1 || now <= more);
                more = now;
            }
            if (!test_note(free ? sec == 0 : sec > 0 && sec < 1, __FILE__, __LINE__, "seconds"))
                printf("  %s on %s: %g\n", op->name, rows[k], sec);
        }
    }
}

static double body_sec(const Machine *m, const Graph *g)
{
    double sec = 0;
    for (const Node *n = g->first; n; n = n->next)
        sec += node_sec(m, NULL, n);
    return sec;
}

static double product_sec_of(const Machine *m, DType d, int64_t side)
{
    Build b = {.g = graph_new(a, "product")};
    Type x = type_make(d, 2, (int64_t[]){4096, side}), w = type_make(d, 2, (int64_t[]){side, 4096});
    Value *in[] = {graph_input(b.g, "x", x, ROLE_NONE, NULL),
                   graph_input(b.g, "w", w, ROLE_NONE, NULL)};
    return node_sec(m, NULL, emit(&b, "mm", 2, in, NOATTRS));
}

/* A longer side never takes less time; where sides are long it is the operations that count, and a
 * short one is slower for each, but by no more than 4 times. */
static void test_sides(void)
{
    for (int i = 0; i < LEN(rows); i++) {
        const Machine *m = machine(rows[i]);
        for (DType d = F64; d <= BF16; d++) {
            double before = 0;
            for (int64_t side = 1; side <= 8192; side += side < 1024 ? 1 : 1024) {
                double sec = product_sec_of(m, d, side);
                EXPECT(sec >= 0.999999 * before);
                before = sec;
            }
        }
        double longer = product_sec_of(m, F32, 8192), one = product_sec_of(m, F32, 4096);
        EXPECT(longer > 1.9 * one && longer < 2.01 * one);
    }
    double usual = product_sec_of(machine("avx2"), F32, 2048) / 2048;
    double narrow = product_sec_of(machine("avx2"), F32, 8) / 8;
    EXPECT(narrow > 3 * usual && narrow < 5 * usual);
    /* as measured on the machine of that row: slices of 64 rows reach 0.69 to 0.84 of the rate */
    double slice = product_sec_of(machine("avx512_bf16"), F32, 64) / 64;
    usual = product_sec_of(machine("avx512_bf16"), F32, 2048) / 2048;
    EXPECT(slice > usual / 0.84 && slice < usual / 0.69);
}

/* More cores: arithmetic and large copies take less time, up to the memory's bandwidth. */
static void test_cores(void)
{
    Cost move = {0, 1e9, 1e9}, multiply = {1e12, 1e6, 1e6};
    for (int i = 0; i < LEN(rows); i++) {
        double least = 2 / machine(rows[i])->figure[FIGURE_memory_all], before = 0, first = 0;
        for (int cores = 1; cores <= 256 && !machine(rows[i])->gpu; cores *= 2) {
            const Machine *m = machine_get(a, rows[i], cores);
            double sec = cost_sec(m, CLASS_MOVEMENT, F32, &move);
            double work = cost_sec(m, CLASS_PRODUCT, F32, &multiply);
            EXPECT(cores == 1 || sec <= before);
            EXPECT(cores == 1 || fabs(work * cores / first - 1) < 0.2);
            EXPECT(cores <= 8 ? sec > least / 2 : sec < 8 * least);
            before = sec;
            first = cores == 1 ? work : first;
        }
    }
}

static void test_hash(void)
{
    Machine *m = machine_row(a, "avx512");
    uint64_t hash = machine_hash(m);
    for (int f = 0; f < NFIGURE; f++) {
        double x = m->figure[f];
        m->figure[f] += 1;
        EXPECT(machine_hash(m) != hash);
        m->figure[f] = x;
    }
    m->share[CLASS_NORM].each++;
    EXPECT(machine_hash(m) != hash);
    m->share[CLASS_NORM].each--;
    EXPECT(machine_hash(m) == hash);
}

/* A loop of 3 iterations and a tail: their bodies, and four sums of one element. */
static void test_loop(void)
{
    Node *n =
        node_from("tenon 1\ngraph step(%x: f32[700, 80], %w: f32[80, 40]) {\n"
                  "  %y: f32[700, 40], %l: f32[] = loop(n=3, slice %xb: f32[200, 80] = %x axis "
                  "0, whole %w: f32[80, 40] = %w) -> (concat axis 0, sum f32) {\n"
                  "    %mm: f32[200, 40] = mm(%xb, %w)\n"
                  "    %v: f32[8000] = view(%mm, size=[8000])\n    %s: f32[] = sum(%v)\n"
                  "    yield %mm, %s\n  } tail(%xb: f32[100, 80], %w: f32[80, 40]) {\n"
                  "    %mm: f32[100, 40] = mm(%xb, %w)\n    %s: f32[] = sum(%mm)\n"
                  "    yield %mm, %s\n  }\n  return %y, %l\n}\n");
    Cost c = node_cost(n);
    EXPECT(c.nread == 3 * (4 * (16000 + 3200) + 32000) + 4 * (8000 + 3200) + 16000);
    EXPECT(c.nwrite == 3 * (32000 + 4) + 16000 + 4);
    for (int i = 0; i < LEN(rows); i++) {
        const Machine *m = machine(rows[i]);
        double add = cost_sec(m, CLASS_POINTWISE, F32, &(Cost){1, 8, 4});
        double want = 3 * (body_sec(m, n->region->body[MAIN]) + add) +
                      body_sec(m, n->region->body[TAIL]) + add;
        EXPECT(fabs(node_sec(m, NULL, n) / want - 1) < 1e-12);
    }
}

/* A fused chain reads and writes memory once: less than its nodes apart, not less than one. */
static void test_fused(void)
{
    Node *n =
        node_from("tenon 1\ngraph step(%x: f32[4096, 4096], %z: f32[4096, 4096]) {\n"
                  "  %y: f32[4096, 4096] = fused(%x: f32[4096, 4096] = %x, %z: "
                  "f32[4096, 4096] = %z) {\n    %a: f32[4096, 4096] = add(%x, %z)\n"
                  "    %b: f32[4096, 4096] = mul(%a, %z)\n    %c: f32[4096, 4096] = relu(%b)\n"
                  "    yield %c\n  }\n  return %y\n}\n");
    for (int i = 0; i < LEN(rows); i++) {
        const Machine *m = machine(rows[i]);
        double sec = node_sec(m, NULL, n);
        EXPECT(sec < body_sec(m, n->region->body[MAIN]));
        EXPECT(sec > 0.75 * node_sec(m, NULL, n->region->body[MAIN]->first));
    }
}

/* All of GPT-2's step in less than 5 ms of a core: the best of some tries. */
static void test_speed(void)
{
    Graph *g = model_graph(a, config_preset("gpt2"), 4, 1024, NULL);
    PassOptions o = pass_defaults();
    passes_run(g, "default", &o, NULL, NULL);
    const Machine *m = machine(NULL);
    double best = INFINITY, sec = 0;
    for (int i = 0; i < 20; i++) {
        double start = cpu_sec();
        sec = body_sec(m, g);
        best = fmin(best, cpu_sec() - start);
    }
    EXPECT(sec > 1e-3 && sec < 1e4);
    if (!EXPECT(best < 5e-3))
        printf("  found %g ms\n", 1e3 * best);
}

/* ---- files ---- */

typedef struct Text {
    const char *text;
    const Machine *m;
} Text;

static void parse(void *arg)
{
    Text *x = arg;
    x->m = machine_parse(a, x->text, strlen(x->text), "f.machine");
}

static void get(void *arg)
{
    ((Text *)arg)->m = machine_get(a, ((Text *)arg)->text, 1);
}

#define HEAD              "machine 1\nname lab\nlike avx2\n"
#define WRONG(text, part) EXPECT_FAIL(&ctx, parse, (&(Text){text, NULL}), part)

static void test_wrong(void)
{
    WRONG("", "f.machine:1:1: expected \"machine\", found the end of the file");
    WRONG("machine 2", "f.machine:1:9: expected a version from 1 to 1, found 2");
    WRONG("machine 1\nname 3", "f.machine:2:6: expected a name");
    WRONG("machine 1\nname x\nlike y", "f.machine:3:6: expected a machine (avx512_amx avx512_bf16");
    WRONG(HEAD "vectr 5", "f.machine:4:1: expected a figure of a machine, found \"vectr\"; did you "
                          "mean vector?");
    WRONG(HEAD "vector", "f.machine:4:7: expected a number for vector, found the end of the file");
    WRONG(HEAD "vector x", "f.machine:4:8: expected a number for vector, found \"x\"");
    WRONG(HEAD "vector nan", "expected a number for vector, found \"nan\"");
    WRONG(HEAD "vector inf", "expected a number for vector, found \"inf\"");
    WRONG(HEAD "vector -nan",
          "f.machine:4:8: vector: expected 0.001 to 1e+09 (Gflop/s), found -nan");
    WRONG(HEAD "vector 1e999", "vector: expected 0.001 to 1e+09 (Gflop/s), found 1e999");
    WRONG(HEAD "vector 0", "vector: expected 0.001 to 1e+09 (Gflop/s), found 0");
    WRONG(HEAD "vector -5", "vector: expected 0.001 to 1e+09 (Gflop/s), found -5");
    WRONG(HEAD "vector 1e-9", "found 1e-9");
    WRONG(HEAD "vector 1\nvector 1", "f.machine:5:1: vector stands twice");
    WRONG(HEAD "link nvlink", "f.machine:4:6: expected a link (nvlink4 nvlink5");
    WRONG(HEAD "network 5 link xgmi", "f.machine:4:11: expected link before all figures");
    WRONG(HEAD "link xgmi link xgmi", "f.machine:4:11: expected link before all figures");
    WRONG(HEAD "share products 1 1 1", "f.machine:4:7: expected a class of ops");
    WRONG(HEAD "share product 1 1", "expected a number for operations for each element");
    WRONG(HEAD "share product 0 1 1", "the share of arithmetic: expected 0.0001 to 1000, found 0");
    WRONG(HEAD "multicast 0.5", "multicast: expected 0 to 1 (0 or 1), found 0.5");
    WRONG(HEAD "host_ranks 1.5", "expected 1 to 1e+06 (ranks), found 1.5");
    WRONG("machine 1 name h100 like avx2", "expected a name of its own, found \"h100\"");
    WRONG("machine 1 name none like avx2", "expected a name of its own, found \"none\"");
    WRONG(HEAD "share product 1 1 1 share product 1 1 1", "the share of product stands twice");
    WRONG(HEAD "= 5", "f.machine:4:1: expected a figure of a machine, found \"=\"");
    EXPECT_FAIL(&ctx, get, (&(Text){"h10", NULL}), "did you mean h100?");
    EXPECT_FAIL(&ctx, get, (&(Text){"", NULL}), "machine: expected one of avx512_amx");
    EXPECT_FAIL(&ctx, get, (&(Text){"/nowhere/x", NULL}), "/nowhere/x: cannot open");
}

static const char *print(const Machine *m)
{
    Buf b = {.a = a};
    machine_print(&b, m);
    return b.text;
}

/* What is printed is a file of the same machine; a file differs from its row where it says. */
static void test_text(void)
{
    for (int i = 0; i < LEN(rows); i++) {
        Text x = {print(machine_get(a, rows[i], 1)), NULL};
        EXPECT(ctx_try(&ctx, parse, &x) == TN_OK && !strcmp(print(x.m), x.text));
        EXPECT(machine_hash(x.m) == machine_hash(machine_get(a, rows[i], 1)));
    }
    Text x = {HEAD "link xgmi # a comment\nvector 12.5\nshare norm 0.25 1 2\n", NULL};
    EXPECT(ctx_try(&ctx, parse, &x) == TN_OK && !strcmp(machine_name(x.m), "lab"));
    EXPECT(x.m->figure[FIGURE_vector] == 12.5 && x.m->share[CLASS_NORM].arithmetic == 0.25);
    EXPECT(x.m->figure[FIGURE_memory] == machine("avx2")->figure[FIGURE_memory]);
    EXPECT(x.m->figure[FIGURE_host_ranks] == machine("mi300x")->figure[FIGURE_host_ranks]);
    EXPECT(!machine_is_here(x.m) || machine_is_here(machine("avx2")));
}

static void all(void *arg)
{
    (void)arg;
    test_vectors();
    test_rings();
    test_reduces();
    test_product();
    test_groups();
    test_mesh();
    test_vast_groups();
    test_rows();
    test_monotone();
    test_ops();
    test_sides();
    test_cores();
    test_hash();
    test_loop();
    test_fused();
    test_speed();
    test_text();
}

int main(void)
{
    a = arena_new(&ctx);
    api = tn_context_new();
    CHECK(a && api);
    if (!EXPECT(ctx_try(&ctx, all, NULL) == TN_OK))
        printf("  %s\n", ctx.message);
    test_wrong();
    arena_free(a);
    ctx_end(&ctx);
    tn_context_free(api);
    return test_report();
}
