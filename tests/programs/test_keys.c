/* Ways: keys of calls and nodes, of every op; what a file says of a call and when it holds; the
 * shipped rows, each of which names an op, a processor and a kernel that there are; a plan runs
 * what the machine names. */
#include "../shared/test.h"

#include "../../include/tenon.h"
#include "../../src/page/page.h"
#include "../../src/plan/plan.h"

static Ctx ctx;
static Arena *a;
static tn_context *api;

static Node *node_from(const char *text)
{
    Graph *g = graph_parse(a, text, "text");
    graph_verify(g);
    return g->last->op->wait && g->last->in[0]->def ? g->last->in[0]->def : g->last;
}

/* A call of n on row-major tensors. */
static Call call_of(Node *n)
{
    Call c = {.node = n, .nin = n->nin, .nout = n->nout};
    c.in = NEWN(a, Tensor, n->nin);
    c.out = NEWN(a, Tensor, n->nout);
    for (int i = 0; i < n->nin + n->nout; i++) {
        const Type *t = i < n->nin ? &n->in[i]->type : &n->out[i - n->nin]->type;
        Tensor *x = i < n->nin ? &c.in[i] : &c.out[i - n->nin];
        *x = (Tensor){.dtype = t->dtype, .rank = t->rank};
        memcpy(x->dim, t->dim, sizeof x->dim);
        tensor_fill_strides(x);
    }
    return c;
}

static Machine *machine_with(const char *lines)
{
    const char *text = arena_printf(a, "machine 1 name lab like avx2\n%s", lines);
    return machine_parse(a, text, strlen(text), "f.machine");
}

static const char *print(const Machine *m)
{
    Buf b = {.a = a};
    machine_print(&b, m);
    return b.text;
}

/* ---- keys ---- */

#define MM                                                     \
    "tenon 1\ngraph g(%x: bf16[64, 32], %w: bf16[32, 48]) {\n" \
    "  %y: bf16[64, 48] = mm(%x, %w)\n  return %y\n}\n"
#define MM_KEY "mm bf16[64, 32] bf16[32, 48] -> bf16[64, 48]"

static void test_keys(void)
{
    Node *n = node_from(MM);
    Call c = call_of(n);
    EXPECT(!strcmp(node_key(a, n), MM_KEY) && !strcmp(way_key(a, &c), MM_KEY));
    c.in[1].stride[0] = 1;
    c.in[1].stride[1] = 32;
    EXPECT(!strcmp(way_key(a, &c), "mm bf16[64, 32] bf16[32, 48]@[1, 32] -> bf16[64, 48]"));
    n = node_from("tenon 1\ngraph g(%x: f32[4, 1, 8]) {\n"
                  "  %y: f32[4, 1] = sum(%x, dim=[2])\n  return %y\n}\n");
    c = call_of(n);
    c.in[0].stride[1] = 77; /* of an axis of size 1 */
    EXPECT(!strcmp(way_key(a, &c), "sum(dim=[2]) f32[4, 1, 8] -> f32[4, 1]"));
    c.in[0].stride[0] = 16;
    EXPECT(!strcmp(way_key(a, &c), "sum(dim=[2]) f32[4, 1, 8]@[16, 0, 1] -> f32[4, 1]"));
}

/* A node of every op has a key that a file may name, or none. */
static void test_ops(void)
{
    int found = 0;
    for (int i = 0; i < op_count; i++) {
        const char *text;
        EXPECT(tn_ops(api, op_table[i].name, "infer", &text) == TN_CODE_OK);
        Node *n = node_from(text);
        const char *key = node_key(a, n);
        Machine *m = machine_copy(a, machine_get(a, "avx2", 2));
        double formula = node_sec(m, NULL, n);
        EXPECT(!machine_node_sec(m, n));
        if (!key)
            continue;
        found++;
        machine_set_sec(m, key, 123);
        if (!test_note(node_sec(m, NULL, n) == 123 && formula != 123, __FILE__, __LINE__, key))
            printf("  formula %g, known %g\n", formula, node_sec(m, NULL, n));
        EXPECT(!strcmp(print(m), print(machine_parse(a, print(m), strlen(print(m)), "again"))));
    }
    EXPECT(found > 50);
}

/* Each of these differs from the first of its op in one attribute, of another kind. */
static void test_attrs(void)
{
    static const char *const call[] = {"sum(%x, dim=[1])",
                                       "sum(%x, dim=[0])",
                                       "sum(%x, dim=[1], keepdim=true)",
                                       "_softmax(%x, dim=1)",
                                       "_softmax(%x, dim=0)",
                                       "gelu(%x)",
                                       "gelu(%x, approximate=\"tanh\")",
                                       "threshold_backward(%x, %x, threshold=0.5)",
                                       "threshold_backward(%x, %x, threshold=0.25)"};
    Node *n[LEN(call)];
    for (int i = 0; i < LEN(call); i++)
        n[i] = node_from(arena_printf(
            a, "tenon 1\ngraph g(%%x: f32[8, 8]) {\n  %%y = %s\n  return %%y\n}\n", call[i]));
    for (int i = 0; i < LEN(call); i++) {
        Machine *m = machine_copy(a, machine_get(a, "avx2", 2));
        machine_set_sec(m, node_key(a, n[i]), 5);
        for (int k = 0; k < LEN(call); k++)
            if (!test_note(machine_node_sec(m, n[k]) == (k == i ? 5 : 0), __FILE__, __LINE__,
                           "one"))
                printf("  %s has the seconds of %s\n", call[k], call[i]);
    }
}

static Node *fused(const char *x, const char *op)
{
    return node_from(arena_printf(
        a,
        "tenon 1\ngraph g(%%x: f32[8, 4], %%z: f32[8, 4]) {\n  %%y: f32[8, 4] = fused(%%x: f32[8, "
        "4] = %%x, %%z: f32[8, 4] = %%z) {\n    %%%s: f32[8, 4] = add(%%x, %%z)\n    %%b: f32[8, "
        "4] "
        "= %s(%%%s, %%z)\n    yield %%b\n  }\n  return %%y\n}\n",
        x, op, x));
}

/* A body's names do not count, its ops and what they read do. */
static void test_fused(void)
{
    const char *key = node_key(a, fused("u", "mul"));
    EXPECT(!strcmp(key, node_key(a, fused("v", "mul"))));
    EXPECT(strcmp(key, node_key(a, fused("u", "sub"))) != 0);
    EXPECT(
        strcmp(key, node_key(a, node_from("tenon 1\ngraph g(%x: f32[8, 4], %z: f32[8, 4]) {\n"
                                          "  %y: f32[8, 4] = fused(%x: f32[8, 4] = %x, %z: f32[8, "
                                          "4] = %z) {\n    %u: f32[8, 4] = add(%x, %z)\n"
                                          "    %b: f32[8, 4] = mul(%u, %x)\n    yield %b\n  }\n"
                                          "  return %y\n}\n"))) != 0);
}

/* ---- what a file says ---- */

static void test_choice(void)
{
    Node *n = node_from(MM);
    Call c = call_of(n);
    const Kernel list[] = {
        op_kernels(n->op, KERNELS_CPU)[0], op_kernels(n->op, KERNELS_CPU)[1], {0}};
    Machine *m = machine_with("threads 2 way \"" MM_KEY "\" onednn_widened");
    EXPECT(!machine_way(m, &c, list)); /* one core */
    m->cores = 2;
    EXPECT(machine_way(m, &c, list) == &list[1]);
    EXPECT(!machine_way(m, &c, list + 1)); /* no choice */
    c.in[0].stride[0] = 40;
    EXPECT(!machine_call_way(m, &c) && !machine_way(m, &c, list)); /* another call */
    m = machine_with("way \"mm f32[64, 32] f32[32, 48] -> f32[64, 48]\" onednn_widened");
    n = node_from("tenon 1\ngraph g(%x: f32[64, 32], %w: f32[32, 48]) {\n"
                  "  %y: f32[64, 48] = mm(%x, %w)\n  return %y\n}\n");
    c = call_of(n);
    EXPECT(!list[1].accepts(&c) && !machine_way(m, &c, list)); /* which is not taken */
}

/* A kernel that a file names but that does not take the call leaves it to the row WAY. */
static void test_not_taken(void)
{
    Call c = call_of(node_from("tenon 1\ngraph g(%x: f32[512, 32], %w: f32[32, 1024]) {\n"
                               "  %y: f32[512, 1024] = mm(%x, %w)\n  return %y\n}\n"));
    const Kernel *list = op_kernels(c.node->op, KERNELS_CPU);
    Machine *m = machine_copy(a, machine_get(a, "avx512_amx", 1));
    const Kernel *row = machine_way(m, &c, list);
    EXPECT(row && !strcmp(row->name, "onednn_own"));
    machine_set_way(m, way_key(a, &c), "onednn_gemm");
    EXPECT(!strcmp(machine_way(m, &c, list)->name, "onednn_gemm"));
    machine_set_way(m, way_key(a, &c), "onednn_widened"); /* which takes 16 bits */
    EXPECT(machine_way(m, &c, list) == row);
}

/* The sums of a file are the same in any order, and count where they hold. */
static void test_hash(void)
{
    const char *one = "sec \"" MM_KEY "\" 0.5\n", *way = "way \"" MM_KEY "\" onednn\n";
    Machine *plain = machine_with(""), *m = machine_with(one);
    EXPECT(machine_hash(m) != machine_hash(plain));
    EXPECT(machine_hash(machine_with(arena_printf(a, "%s%s", one, way))) ==
           machine_hash(machine_with(arena_printf(a, "%s%s", way, one))));
    EXPECT(machine_hash(machine_with(arena_printf(a, "%s%s", one, way))) != machine_hash(m));
    EXPECT(machine_hash(machine_with("sec \"" MM_KEY "\" 0.25")) != machine_hash(m));
    EXPECT(machine_hash(machine_with(arena_printf(a, "threads 2 %s", one))) == machine_hash(plain));
    EXPECT(node_sec(machine_with(arena_printf(a, "threads 2 %s", one)), NULL, node_from(MM)) < 0.1);
    EXPECT(node_sec(m, NULL, node_from(MM)) == 0.5);
}

static void parse(void *arg)
{
    machine_with(arg);
}

#define WRONG(text, part) EXPECT_FAIL(&ctx, parse, (void *)(uintptr_t)(text), part)

static void test_wrong(void)
{
    WRONG("threads 0", "f.machine:2:9: expected a number of threads from 1 to 1048576");
    WRONG("threads 2 threads 2", "f.machine:2:11: threads stands twice");
    WRONG("library onednn", "f.machine:2:9: expected a library's name and version");
    WRONG("library \"a\" library \"a\"", "f.machine:2:13: library stands twice");
    WRONG("way mm onednn", "f.machine:2:5: expected the key of a call");
    WRONG("way \"m\" onednn",
          "f.machine:2:5: key:1:1: expected an op that kernels run, found \"m\"");
    WRONG("way \"loop -> f32[]\" onednn", "expected an op that kernels run, found \"loop\"");
    WRONG("way \"mm f32[2]\" onednn", "key:1:10: expected \"->\", found the end of the file");
    WRONG("way \"mm f32[2]@[1, 2] ->\" x", "key:1:10: expected 1 strides, found 2");
    WRONG("way \"mm f3[2] ->\" x", "f3");
    WRONG("way \"mm(beta=1) f32[2] ->\" x",
          "f.machine:2:5: key:1:4: expected an attribute of mm, found \"beta\"");
    WRONG("way \"mm(out_dtype=f32 1) f32[2] ->\" x", "f.machine:2:5: key:1:18: expected \")\"");
    WRONG("sec \"permute f32[2] -> f32[2]\" 1",
          "f.machine:2:5: key:1:1: permute: expected the attribute \"dims\", found none");
    WRONG("sec \"relu f32[2] ->\" 1", "key:1:15: expected a type, found the end of the file");
    WRONG("way \"mm f32[2] -> f32[2] =\" x", "expected a type, found \"=\"");
    WRONG("way \"fused(body=\\\"12\\\") -> f32[2]\" x", "the hash of a body, of 16 digits");
    WRONG("way \"fused(body=\\\"0x00000000000012\\\") -> f32[2]\" x", "of 16 digits");
    WRONG("way \"" MM_KEY "\" gem", "f.machine:2:5: key: expected a kernel of mm, found \"gem\"");
    WRONG("way \"" MM_KEY "\" onednn way \"" MM_KEY "\" onednn",
          "the way of this call stands twice");
    WRONG("sec \"" MM_KEY "\" 1 sec \"" MM_KEY "\" 1", "seconds of this call stand twice");
    WRONG("sec \"" MM_KEY "\" 0", "seconds: expected 1e-09 to 1e+06 (s), found 0");
    WRONG("sec \"" MM_KEY "\" nan", "expected a number for seconds, found \"nan\"");
    WRONG("wey", "did you mean way?");
}

static void get(void *arg)
{
    machine_get(a, arg, 2);
}

#define REFUSED(text, part) \
    EXPECT_FAIL(&ctx, get, (void *)(uintptr_t)("machine 1 name lab like avx2\n" text), part)

/* What was measured elsewhere is refused where it was asked for. */
static void test_refused(void)
{
    REFUSED("library \"onednn 1.0\"", "machine: expected what was measured with onednn ");
    REFUSED("library \"onednn 1.0\"", "which this program uses, found onednn 1.0");
    REFUSED("threads 3", "measured with 2 threads, found 3; give --threads 3, or measure again");
    EXPECT(machine_get(a, "machine 1 name lab like avx2\nthreads 2", 2));
}

/* What is added is there, in place of what was, and in a copy. */
static void test_set(void)
{
    Machine *m = machine_copy(a, machine_get(a, "avx2", 2));
    EXPECT(!machine_known_way(m, MM_KEY) && machine_known_sec(m, MM_KEY) < 0);
    machine_set_way(m, MM_KEY, "onednn");
    machine_set_sec(m, MM_KEY, 2);
    EXPECT(m->nthread == 2 && !strcmp(m->library, machine_library(a)));
    machine_set_way(m, MM_KEY, "onednn_widened");
    machine_set_ways_for(m, 3, "x");
    for (int i = 0; i < 1000; i++)
        machine_set_sec(m, arena_printf(a, "relu f32[%d] -> f32[%d]", i, i), 1 + i);
    machine_set_sec(m, MM_KEY, 3);
    m = machine_copy(a, m);
    EXPECT(m->nthread == 3 && !strcmp(m->library, "x") && m->known.count == 1001);
    EXPECT(machine_known_sec(m, MM_KEY) == 3 &&
           machine_known_sec(m, "relu f32[9] -> f32[9]") == 10);
    EXPECT(!strcmp(machine_known_way(m, MM_KEY), "onednn_widened"));
    EXPECT(machine_node_sec(m, node_from(MM)) == 0); /* of three threads */
    m->cores = 3;
    EXPECT(machine_node_sec(m, node_from(MM)) == 3);
}

/* ---- shipped rows ---- */

static bool has_kernel(int op, const char *name)
{
    for (const Kernel *k = op_kernels(&op_table[op], KERNELS_CPU); k && k->name; k++)
        if (!strcmp(k->name, name))
            return true;
    return false;
}

static void test_rows(void)
{
    extern const OpId OP_mm, OP_addmm, OP_flash_attention, OP_flash_attention_backward;
    static const struct {
        const char *processor;
        const OpId *op;
        const char *layouts, *kernel;
    } rows[] = {
#define WAY(processor, op, dtype, layouts, when, kernel) {#processor, &OP_##op, layouts, kernel},
#include "../../src/machine/machine.def"
        {0}};
    for (int i = 0; rows[i].kernel; i++)
        if (!test_note(machine_row(a, rows[i].processor) &&
                           has_kernel(rows[i].op->row, rows[i].kernel) &&
                           strspn(rows[i].layouts, "nts.") == strlen(rows[i].layouts),
                       __FILE__, __LINE__, "a row WAY"))
            printf("  %s %s \"%s\" %s\n", rows[i].processor, op_table[rows[i].op->row].name,
                   rows[i].layouts, rows[i].kernel);
}

/* ---- plans ---- */

#define ATTENTION                                                                          \
    "tenon 1\ngraph g(%x: bf16[2, 64, 4, 16]) {\n  %y, %l = flash_attention(%x, %x, %x)\n" \
    "  return %y\n}\n"

static void test_plan(void)
{
    Graph *g = graph_parse(a, ATTENTION, "text");
    Plan *p = plan_make(a, g, NULL);
    const Machine *here = machine_for(a, device_at(DEVICE_cpu), NULL);
    const Call *c = &p->step[0].call;
    Machine *m = machine_copy(a, here);
    for (const Kernel *k = op_kernels(c->node->op, KERNELS_CPU); k->name; k++) {
        if (!k->accepts(c))
            continue;
        machine_set_way(m, way_key(a, c), k->name);
        Plan *q = plan_make(a, g, &(PlanFor){.machine = m});
        EXPECT(q->step[0].kernel == k && !strcmp(machine_call_way(m, c), k->name));
        EXPECT(q->step[0].call.nbytes_work == kernel_workspace(&ctx, k, c));
        EXPECT(plan_hash(q) != plan_hash(p));
    }
    machine_set_sec(m, node_key(a, c->node), 0.125);
    EXPECT(plan_make(a, g, &(PlanFor){.machine = m})->est.step == 0.125);
}

/* A copy that the plan adds has the seconds of its own call. */
static void test_copy(void)
{
    Graph *g = graph_parse(
        a, "tenon 1\ngraph g(%x: f32[64, 32]) {\n  %y: f32[32, 64] = t(%x)\n  return %y\n}\n",
        "text");
    Plan *p = plan_make(a, g, NULL);
    CHECK(p->nstep == 1 && p->step[0].copy);
    Machine *m = machine_copy(a, p->machine);
    machine_set_sec(m, "clone f32[32, 64] -> f32[32, 64]", 3);
    EXPECT(plan_make(a, g, &(PlanFor){.machine = m})->est.step == p->est.step);
    machine_set_sec(m, way_key(a, &p->step[0].call), 2);
    EXPECT(plan_make(a, g, &(PlanFor){.machine = m})->est.step == 2);
}

static void all(void *arg)
{
    (void)arg;
    test_keys();
    test_ops();
    test_attrs();
    test_fused();
    test_choice();
    test_not_taken();
    test_hash();
    test_set();
    test_rows();
    test_plan();
    test_copy();
}

int main(void)
{
    a = arena_new(&ctx);
    api = tn_context_new();
    CHECK(a && api);
    if (!EXPECT(ctx_try(&ctx, all, NULL) == TN_OK))
        printf("  %s\n", ctx.message);
    test_wrong();
    test_refused();
    arena_free(a);
    ctx_end(&ctx);
    tn_context_free(api);
    return test_report();
}
