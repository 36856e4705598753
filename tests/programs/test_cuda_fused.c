/* Bodies of `fused` on CUDA, on the processor (simt.h): those that the pass fuse makes of models,
 * and of random chains of pointwise ops on operands that lie in all ways. Each gives the bits of
 * its nodes one by one, by the CUDA kernels of their ops, in place of an operand and as a part of a
 * larger tensor too, and what the references give. With the argument `texts` it prints what it will
 * run, as C++ (fused_made.h); with `all` these texts and those of the bodies that fuse makes of
 * graphs of PyTorch, for NVRTC (nvrtc.sh), each behind a form feed. */
#include "../../include/tenon.h"
#include "../../src/op/fused.h"
#include "../../src/cuda/fused_text.h"
#include "../../src/pass/pass.h"
#include "../shared/case.h"
#include "../shared/check.h"
#include "../shared/fused_made.h"
#include "../shared/gen.h"
#include "../shared/interp.h"
#include "../shared/simt.h"
#include "../shared/test.h"

#include <dirent.h>
#include <errno.h>
#include <unistd.h>

enum { CHAINS = 8, MOST_NODES = 14, TRIES = 3 };

typedef struct Trial {
    Arena *a;
    Rng rng;
    bool print, every; /* the texts, and run nothing; also of what is not run here */
    const char **text;
    int ntext, captext;
    const char *what;
    int bodies, alone;   /* compared with nodes one by one */
    const char *missing; /* an op without a kernel that took a node */
} Trial;

/* ---- tensors ---- */

/* Floats in [-2, 2), small integers. */
static void fill(Rng *r, const Tensor *x)
{
    int64_t ix[TN_RANK] = {0};
    if (tensor_nelem(x))
        do {
            double v = dtype_float(x->dtype) ? 4 * rng_uniform(r) - 2
                                             : (double)rng_below(r, x->dtype == BOOL ? 2 : 7);
            tensor_set(x, tensor_index(x, ix), v);
        } while (next_index(x->rank, x->dim, ix));
}

/* Memory for t: plain, from the second element on, rows apart, the last axes swapped. */
static Tensor lay(Trial *t, const Type *type, int how)
{
    Tensor x = {.dtype = type->dtype, .rank = type->rank};
    int last = type->rank - 1;
    int64_t apart = 1;
    memcpy(x.dim, type->dim, sizeof x.dim);
    for (int d = last; d >= 0; d--) {
        x.stride[d] = apart;
        apart *= x.dim[d];
        if (how == 2 && d == last)
            apart += rng_chance(&t->rng, 0.5) ? 8 : 3;
    }
    if (how == 3 && last > 0) {
        x.stride[last] = x.dim[last - 1];
        x.stride[last - 1] = 1;
    }
    size_t size = (size_t)dtype_size(x.dtype);
    x.data = guarded_alloc(t->a, (apart + 1) * (int64_t)size, 0x5a);
    x.data += how == 1 ? size : 0;
    return x;
}

static bool same(const Tensor *x, const Tensor *y)
{
    size_t size = (size_t)dtype_size(x->dtype);
    for (int64_t i = 0; i < tensor_nelem(x); i++) {
        int64_t p = tensor_linear(x, i), q = tensor_linear(y, i);
        bool nan = dtype_float(x->dtype) && tensor_get(x, p) != tensor_get(x, p) &&
                   tensor_get(y, q) != tensor_get(y, q);
        if (!nan && memcmp(x->data + p * (int64_t)size, y->data + q * (int64_t)size, size) != 0)
            return false;
    }
    return true;
}

/* ---- running ---- */

static void run(Trial *t, const Kernel *k, Call *c)
{
    kernel_prepare(k, c, t->a);
    c->work = guarded_alloc(t->a, MAX(c->nbytes_work, 1), 0xff);
    c->fault = NEWN(t->a, Fault, 1);
    if (!EXPECT(!k->run(c) && !c->fault->noted))
        printf("  %s: %s\n", t->what, c->message);
}

/* A node by the first of its op's CUDA kernels that takes it; false: none does. */
static bool run_alone(Trial *t, const Node *n, Tensor *in, Tensor *out)
{
    Call c = {.node = n, .in = in, .out = out, .nin = n->nin, .nout = n->nout};
    const Kernel *k = op_kernels(n->op, KERNELS_CUDA);
    while (k && k->name && !k->accepts(&c))
        k++;
    if (!k || !k->name) {
        t->missing = n->op->name;
        return false;
    }
    for (int i = 0; i < n->nout; i++)
        out[i] = lay(t, &n->out[i]->type, 0);
    run(t, k, &c);
    return true;
}

/* The results of the body's nodes one by one, on contiguous operands. */
static bool run_nodes(Trial *t, const Node *n, const Tensor *in, Tensor *out)
{
    const Graph *g = n->region->body[MAIN];
    Tensor *value = NEWN(t->a, Tensor, g->nvalue);
    for (int i = 0; i < n->nin; i++)
        value[g->in[i].v->id] = tensor_copy(t->a, &in[i], in[i].dtype);
    for (const Node *m = g->first; m; m = m->next) {
        Tensor x[8], y[8];
        for (int i = 0; i < m->nin; i++)
            x[i] = value[m->in[i]->id];
        if (m->op->view) {
            y[0] = lay(t, &m->out[0]->type, 0);
            y[0].data = x[0].data;
        } else if (!run_alone(t, m, x, y)) {
            return false;
        }
        for (int k = 0; k < m->nout; k++)
            value[m->out[k]->id] = y[k];
    }
    for (int k = 0; k < n->nout; k++)
        out[k] = value[g->out[n->region->out[k].at[MAIN]].v->id];
    return true;
}

/* ---- one body ---- */

static void collect(Trial *t, const Call *c)
{
    const char *text = fused_text(t->a, c).text;
    for (int k = 0; k < t->ntext; k++)
        if (!strcmp(t->text[k], text))
            return;
    PUSH(t->a, t->text, t->ntext, t->captext, text);
}

static void check(Trial *t, Call *c, const Tensor *want, bool exact)
{
    const Kernel *k = op_kernels(c->node->op, KERNELS_CUDA);
    if (!EXPECT(k && k->accepts(c)))
        return;
    run(t, k, c);
    for (int i = 0; i < c->nout && want; i++) {
        const char *why = exact ? same(&c->out[i], &want[i]) ? NULL : "other bits"
                                : tensor_differs(t->a, &c->out[i], &want[i], 1e-4);
        if (!EXPECT(!why))
            printf("  %s: result %d: %s\n%s", t->what, i, why, fused_text(t->a, c).text);
    }
}

/* Behind a fault that was noted nothing is written. */
static void check_stop(Trial *t, Call c)
{
    const int stop = 1;
    Tensor *before = NEWN(t->a, Tensor, c.nout);
    for (int k = 0; k < c.nout; k++)
        before[k] = tensor_copy(t->a, &c.out[k], c.out[k].dtype);
    c.stop = &stop;
    run(t, op_kernels(c.node->op, KERNELS_CUDA), &c);
    for (int k = 0; k < c.nout; k++)
        EXPECT(same(&c.out[k], &before[k]));
}

/* Some results in the place of operands, where the body allows it. */
static void check_in_place(Trial *t, const Call *c, const Tensor *want)
{
    Call d = *c;
    bool *taken = NEWN(t->a, bool, c->nin + 1), any = false;
    d.in = NEWN(t->a, Tensor, c->nin);
    d.out = NEWN(t->a, Tensor, c->nout);
    for (int i = 0; i < c->nin; i++)
        d.in[i] =
            tensor_contiguous(&c->in[i]) ? tensor_copy(t->a, &c->in[i], c->in[i].dtype) : c->in[i];
    for (int k = 0; k < c->nout; k++) {
        d.out[k] = lay(t, &c->node->out[k]->type, 0);
        for (int i = 0; i < c->nin; i++)
            if (!taken[i] && tensor_contiguous(&c->in[i]) && node_inplace(c->node, k) >> i & 1) {
                d.out[k].data = d.in[i].data;
                taken[i] = any = true;
                break;
            }
    }
    simt_order(SIMT_BACKWARD);
    if (any) {
        check_stop(t, d);
        check(t, &d, want, true);
    }
    simt_order(SIMT_FORWARD);
}

/* how: of operands and results, 0 or random. */
static void try_body(Trial *t, const Graph *g, const Node *n, bool lie_anyhow)
{
    Call c = {.node = n, .nin = n->nin, .nout = n->nout};
    c.in = NEWN(t->a, Tensor, n->nin);
    c.out = NEWN(t->a, Tensor, n->nout);
    for (int i = 0; i < n->nin; i++)
        c.in[i] = lay(t, &n->in[i]->type, lie_anyhow ? (int)rng_below(&t->rng, 4) : 0);
    for (int k = 0; k < n->nout; k++)
        c.out[k] = lay(t, &n->out[k]->type, lie_anyhow && rng_chance(&t->rng, 0.3) ? 2 : 0);
    for (int i = 0; i < n->nin; i++)
        fill(&t->rng, &c.in[i]);
    if (!fused_text_accepts(&c)) /* a view of what does not lie row-major */
        for (int i = 0; i < n->nin; i++)
            c.in[i] = tensor_copy(t->a, &c.in[i], c.in[i].dtype);
    if (t->print) {
        collect(t, &c);
        return;
    }
    Tensor *want = NEWN(t->a, Tensor, n->nout), *first = NEWN(t->a, Tensor, n->nout);
    bool alone = run_nodes(t, n, c.in, want);
    t->bodies++;
    t->alone += alone;
    check(t, &c, alone ? want : NULL, true);
    for (int k = 0; k < n->nout; k++)
        first[k] = tensor_copy(t->a, &c.out[k], c.out[k].dtype);
    if (!lie_anyhow) {
        check_in_place(t, &c, first);
        interp_node(t->a, g, n, c.in, want);
        check(t, &c, want, false);
    }
}

/* A dropout of a part that does not lie in the whole is noted, by the call's own step. */
static void try_offset(Trial *t)
{
    static const char text[] =
        "tenon 1\n"
        "graph g(%x: f32[8] batch, %s: i64[] batch, %t: i64[] batch, %o: i64[] batch) {\n"
        "  %e: f32[8] = fused(%x: f32[8] = %x, %s: i64[] = %s, %t: i64[] = %t, %o: i64[] = %o)  "
        "forward {\n"
        "    %n: f32[8] = neg(%x)  forward\n"
        "    %d: f32[8] = dropout(%n, %s, %t, %o, p=0.5, axes=[0], extents=[12])  forward "
        "stream=1\n"
        "    %e: f32[8] = neg(%d)  forward\n"
        "    yield %e\n"
        "  }\n"
        "  return %e\n"
        "}\n";
    static const int64_t offset[] = {0, 4, 5, -1};
    const Node *n = graph_parse(t->a, text, "offset")->first;
    const Kernel *k = op_kernels(n->op, KERNELS_CUDA);
    Call c = {.node = n, .nin = n->nin, .nout = n->nout, .step = 3};
    c.in = NEWN(t->a, Tensor, n->nin);
    c.out = NEWN(t->a, Tensor, n->nout);
    for (int i = 0; i < n->nin; i++) {
        c.in[i] = lay(t, &n->in[i]->type, 0);
        fill(&t->rng, &c.in[i]);
    }
    c.out[0] = lay(t, &n->out[0]->type, 0);
    if (t->print)
        collect(t, &c);
    for (int i = 0; i < LEN(offset) && !t->print; i++) {
        memcpy(c.in[3].data, &offset[i], sizeof offset[i]);
        kernel_prepare(k, &c, t->a);
        c.fault = NEWN(t->a, Fault, 1);
        EXPECT(!k->run(&c));
        EXPECT(c.fault->noted == (offset[i] < 0 || offset[i] > 4));
        EXPECT(!c.fault->noted || (c.fault->step == 3 && c.fault->value[0] == offset[i] &&
                                   c.fault->value[1] == 0 && c.fault->value[3] == 4));
    }
}

static void try_bodies(Trial *t, const Graph *g, int tries)
{
    for (const Node *n = g->first; n; n = n->next) {
        for (int k = 0; n->op->region == FUSED && k < tries; k++)
            try_body(t, g, n, k > 0);
        EACH_LOOP_BODY(b, n)
            try_bodies(t, n->region->body[b], tries);
    }
}

static void each_body(Trial *t, Graph *g, int tries)
{
    PassOptions o = pass_defaults();
    o.backend = "cuda";
    passes_run(g, "fuse", &o, NULL, NULL);
    try_bodies(t, g, tries);
}

/* ---- where bodies come from ---- */

/* A training step with the default passes; each text once. */
static void try_model(Trial *t, const char *folder, const char *dtype, double dropout)
{
    tn_context *ctx = tn_context_new();
    tn_model *m;
    tn_graph *g;
    const char *text = NULL;
    tn_options o = tn_options_default();
    o.dtype = dtype;
    o.dropout = dropout;
    o.backend = "cuda";
    t->what = arena_printf(t->a, "%s %s", folder, dtype);
    bool made = !tn_model_open(ctx, folder, &m) && !tn_model_graph(m, 2, 16, &o, &g) &&
                !tn_graph_passes(g, "default", &o, NULL, NULL) && !tn_graph_print(g, &text);
    if (!EXPECT(made))
        printf("  %s: %s\n", t->what, tn_error(ctx));
    else
        each_body(t, graph_parse(t->a, text, folder), 1);
    tn_context_free(ctx);
}

/* A graph of PyTorch, imported; in bf16 too. */
static void try_traced(Trial *t, const char *folder, const char *dtype)
{
    tn_context *ctx = tn_context_new();
    tn_graph *g;
    const char *text = NULL, *summary;
    const char *path = arena_printf(t->a, "%s/graph.txt", folder);
    tn_fx_options fx = {.inputs = arena_printf(t->a, "%s/inputs.safetensors", folder)};
    tn_options o = tn_options_default();
    o.dtype = dtype;
    o.backend = "cuda";
    t->what = arena_printf(t->a, "%s %s", folder, dtype);
    bool made = !tn_graph_import_fx(ctx, path, &fx, &g, &summary) &&
                !tn_graph_passes(g, "precision,canonicalize,cse,dce", &o, NULL, NULL) &&
                !tn_graph_print(g, &text);
    if (!EXPECT(made))
        printf("  %s: %s\n", t->what, tn_error(ctx));
    else
        each_body(t, graph_parse(t->a, text, folder), 1);
    tn_context_free(ctx);
}

static void each_traced(Trial *t, const char *parent)
{
    DIR *dir = opendir(parent);
    if (!dir) {
        fprintf(stderr, "note: no graphs of %s: %s\n", parent, strerror(errno));
        return;
    }
    for (struct dirent *e; (e = readdir(dir));) {
        const char *folder = arena_printf(t->a, "%s/%s", parent, e->d_name);
        if (e->d_name[0] == '.' || access(arena_printf(t->a, "%s/graph.txt", folder), R_OK))
            continue;
        try_traced(t, folder, "f32");
        try_traced(t, folder, "bf16");
    }
    closedir(dir);
}

static const char *const floats1[] = {"neg",  "abs",  "exp",    "sqrt",   "tanh",  "sigmoid",
                                      "relu", "silu", "gelu_n", "gelu_t", "round", "erf"};
static const char *const floats2[] = {"add",     "sub",     "mul",           "div",
                                      "maximum", "minimum", "silu_backward", "threshold_backward"};
static const char *const integers2[] = {"add", "sub", "mul", "maximum"};
static const char *const compares[] = {"lt", "ge", "eq", "ne"};

#define PICK(list) (list)[rng_below(&t->rng, LEN(list))]

static Value *unary(Trial *t, Build *b, Value *x)
{
    const char *op = PICK(floats1);
    if (!strncmp(op, "gelu", 4))
        return emit1(b, "gelu", IN(x), ATTRS(A_STR("approximate", op[5] == 'n' ? "none" : "tanh")));
    return emit1(b, op, IN(x), NOATTRS);
}

static Value *binary(Trial *t, Build *b, Value *x, Value *y)
{
    const char *op = dtype_float(x->type.dtype) ? PICK(floats2) : PICK(integers2);
    if (!strcmp(op, "threshold_backward"))
        return emit1(b, op, IN(x, y), ATTRS(A_FLOAT("threshold", 0.3)));
    return emit1(b, op, IN(x, y), NOATTRS);
}

/* A random value of that dtype: an earlier one, cast. */
static Value *pick(Trial *t, Build *b, Value *const *known, int count, DType d)
{
    Value *x = known[rng_below(&t->rng, count)];
    return x->type.dtype == d ? x : emit1(b, "_to_copy", IN(x), ATTRS(A_DTYPE("dtype", d)));
}

/* One more value of all elements. */
static Value *grow(Trial *t, Build *b, Value *const *known, int count)
{
    static const DType dtypes[] = {F32, F32, BF16, BF16, F64, I64, I32};
    Value *full = known[count - 1];
    DType d =
        dtype_float(full->type.dtype) && rng_chance(&t->rng, 0.7) ? full->type.dtype : PICK(dtypes);
    Value *x =
        full->type.dtype == d ? full : emit1(b, "_to_copy", IN(full), ATTRS(A_DTYPE("dtype", d)));
    double u = rng_uniform(&t->rng);
    if (u < 0.3 && dtype_float(d))
        return unary(t, b, x);
    Value *y = pick(t, b, known, count, d);
    if (u < 0.8)
        return rng_chance(&t->rng, 0.5) ? binary(t, b, x, y) : binary(t, b, y, x);
    Value *less = emit1(b, PICK(compares), IN(x, y), NOATTRS);
    return emit1(b, "where", IN(less, x, emit_full(b, dtype_float(d) ? 0.75 : 3, d)), NOATTRS);
}

static void try_chain(Trial *t, int number)
{
    static const int64_t shapes[][3] = {{3, 4, 16}, {2, 3, 7}, {5, 2, 12}, {1, 6, 40}};
    static const DType dtypes[] = {F32, BF16, F32, BF16, F64, I64};
    const int64_t *dim = PICK(shapes);
    Graph *g = graph_new(t->a, "chain");
    Build b = {.g = g, .phase = FORWARD, .scope = ""};
    Value *known[MOST_NODES + 8];
    int count = 0;
    t->what = arena_printf(t->a, "chain %d", number);
    const int64_t part[][3] = {{dim[2]}, {dim[1], 1}, {dim[0], dim[1], dim[2]}};
    const int rank[] = {1, 2, 3};
    for (int i = 0; i < 4; i++) {
        int k = MIN(i, 2);
        Type type = type_make(PICK(dtypes), rank[k], part[k]);
        known[count++] = graph_input(g, arena_printf(t->a, "x%d", i), type, ROLE_BATCH, NULL);
    }
    for (int i = 0; i < MOST_NODES; i++, count++)
        known[count] = grow(t, &b, known, count);
    graph_output(g, known[count - 1], ROLE_NONE, NULL);
    graph_output(g, known[count - 4], ROLE_NONE, NULL);
    each_body(t, g, TRIES);
}

/* Norms and, in f32, softmaxes of rows, and pointwise nodes between them, as one body. */
static void try_rows(Trial *t, int row, DType d)
{
    const char *all = arena_printf(t->a, "%s[6, %d]", dtype_name(d), row);
    Buf b = {.a = t->a};
    buf_printf(&b,
               "tenon 1\ngraph rows(%%x: %s batch, %%y: %s batch, %%w: f32[%d] batch) {\n"
               "  %%a, %%m, %%q, %%o = fused(%%x: %s = %%x, %%y: %s = %%y, %%w: f32[%d] = %%w) {\n"
               "    %%a = add(%%x, %%y)\n"
               "    %%n, %%m, %%r = native_layer_norm(%%a, %%w, %%w, normalized_shape=[%d])\n"
               "    %%s = silu(%%n)\n    %%z0 = mul(%%s, %%x)\n",
               all, all, row, all, all, row, row);
    if (d == F32)
        buf_add(&b, "    %s1 = _softmax(%z0, dim=1)\n"
                    "    %z1 = _softmax_backward_data(%a, %s1, dim=1)\n"
                    "    %s2 = _log_softmax(%z1, dim=1)\n"
                    "    %z2 = _log_softmax_backward_data(%x, %s2, dim=1)\n");
    buf_printf(&b,
               "    %%l, %%p = rms_norm(%%z%d, %%w)\n    %%q = mul(%%p, %%r)\n"
               "    %%o = mul(%%l, %%y)\n    yield %%a, %%m, %%q, %%o\n  }\n"
               "  return %%a, %%m, %%q, %%o\n}\n",
               d == F32 ? 2 : 0);
    t->what = arena_printf(t->a, "rows of %d %s", row, dtype_name(d));
    Graph *g = graph_parse(t->a, b.text, t->what);
    graph_verify(g);
    each_body(t, g, 2);
}

/* Rows of two axes, more elements than a team holds, whose packs go from one part of a row to the
 * next: where parts are apart, a statement reads element by element. */
static void try_long_rows(Trial *t)
{
    static const char text[] =
        "tenon 1\ngraph rows(%x: f32[2, 3, 5503] batch, %y: f32[2, 3, 5503] batch, "
        "%w: f32[3, 5503] batch) {\n"
        "  %a, %n, %m, %r = fused(%x: f32[2, 3, 5503] = %x, %y: f32[2, 3, 5503] = %y, "
        "%w: f32[3, 5503] = %w) {\n"
        "    %a = add(%x, %y)\n"
        "    %n, %m, %r = native_layer_norm(%x, %w, %w, normalized_shape=[3, 5503])\n"
        "    yield %a, %n, %m, %r\n  }\n"
        "  return %a, %n, %m, %r\n}\n";
    t->what = "long rows of parts";
    Graph *g = graph_parse(t->a, text, t->what);
    graph_verify(g);
    each_body(t, g, 2 * TRIES);
}

static void all(void *arg)
{
    static const int rows[] = {40, 131, 1500, 8208};
    static const char *const folders[] = {"tests/ref/gpt2-tiny", "tests/ref/llama-tiny"};
    Trial *t = arg;
    for (int i = 0; i < LEN(folders); i++)
        for (int narrow = 0; narrow < 2; narrow++)
            try_model(t, folders[i], narrow ? "bf16" : "f32", narrow ? 0 : 0.1);
    try_offset(t);
    for (int i = 0; i < CHAINS; i++) {
        t->rng = (Rng){.seed = (uint64_t)i + 1};
        try_chain(t, i);
    }
    for (int i = 0; i < LEN(rows); i++)
        for (int narrow = 0; narrow < 2; narrow++)
            try_rows(t, rows[i], narrow ? BF16 : F32);
    try_long_rows(t);
    if (t->every) {
        each_traced(t, "tests/fx");
        each_traced(t, "../shared/fixtures/fx");
        for (int k = 0; k < t->ntext; k++)
            printf("\f\n%s", t->text[k]);
    } else if (t->print)
        fused_made_print(t->text, t->ntext);
    else
        printf("%d bodies, %d of them beside their nodes\n", t->bodies, t->alone);
    if (t->missing)
        printf("note: no kernel for %s\n", t->missing);
}

int main(int argc, char **argv)
{
    Ctx ctx = {0};
    Trial t = {.print = argc > 1, .every = argc > 1 && !strcmp(argv[1], "all"), .rng = {.seed = 7}};
    t.a = arena_new(&ctx);
    if (!EXPECT(ctx_try(&ctx, all, &t) == TN_OK))
        printf("  %s: %s\n", t.what, ctx.message);
    arena_free(t.a);
    ctx_end(&ctx);
    return t.print && !test_nfail ? EXIT_SUCCESS : test_report();
}
