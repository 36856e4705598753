/* Steps cut in two (src/pass/split.c): the forward and then the backward, which gets what the first
 * hands over, give every output of the whole to the bit, by plan and, with collectives, by the
 * interpreter; no node is lost or made twice but views and constants; what one half must not hand
 * to the other is refused. The second half reads a state as it was before the first. Small models
 * in many ways to compile them, the graphs of tests/pass, and one by its text. */
#include "../../src/model/model.h"
#include "../shared/graphs.h"
#include "../shared/test.h"

#include <dirent.h>
#include <string.h>

static Ctx ctx;

/* ---- running ---- */

static bool communicates(const Graph *g)
{
    bool found = false;
    for (const Node *n = g->first; n && !found; n = n->next)
        found = n->op->class == CLASS_COLLECTIVE;
    return found;
}

/* planned: by plan, else by the interpreter. */
static Tensor *run(Arena *a, Graph *g, const Tensor *in, bool planned)
{
    return planned ? graphs_execute(a, g, in) : graphs_interpret(a, g, in);
}

/* The value of that name among ports; NULL: none. */
static const Tensor *find_value(const Port *p, int count, const Tensor *t, const char *name)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(p[i].v->name, name))
            return &t[i];
    return NULL;
}

/* The forward's value in the place of an input; NULL: there is none. */
static const Tensor *renewed(const Graph *forward, const Tensor *saved, const Port *in)
{
    for (int i = 0; i < forward->nout && role_renewed(in->role); i++)
        if (forward->out[i].role == ROLE_NEW && !strcmp(forward->out[i].name, in->name))
            return &saved[i];
    return NULL;
}

/* g's inputs: those of the whole, renewed by the forward where it does, or what that handed over.
 */
static Tensor *inputs_of(Arena *a, const Graph *g, const Graph *whole, const Tensor *in,
                         const Graph *forward, const Tensor *saved)
{
    Tensor *t = NEWN(a, Tensor, g->nin);
    for (int i = 0; i < g->nin; i++) {
        const char *name = g->in[i].v->name;
        const Tensor *x = forward ? renewed(forward, saved, &g->in[i]) : NULL;
        if (!x)
            x = find_value(whole->in, whole->nin, in, name);
        if (!x && forward)
            x = find_value(forward->out, forward->nout, saved, name);
        if (!EXPECT(x))
            printf("  no input %%%s\n", name);
        CHECK(x);
        t[i] = *x;
    }
    return t;
}

static bool same_bits(const Tensor *x, const Tensor *y)
{
    int size = dtype_size(x->dtype);
    for (int64_t i = 0, n = tensor_nelem(x); i < n; i++)
        if (memcmp(x->data + tensor_linear(x, i) * size, y->data + tensor_linear(y, i) * size,
                   (size_t)size) != 0)
            return false;
    return true;
}

/* Whether one of the halves has that output, of these bits. */
static bool has_output(const Graph *half, const Tensor *out, const Port *p, const Tensor *want)
{
    for (int i = 0; i < half->nout; i++) {
        const Port *q = &half->out[i];
        if (q->role == p->role && (!p->name || !strcmp(p->name, q->name)) &&
            !strcmp(q->v->name, p->v->name))
            return same_bits(&out[i], want);
    }
    return false;
}

/* ---- counting ---- */

static bool is_counted(const Node *n)
{
    return !n->op->view && n->op->class != CLASS_CREATION;
}

static int count(const Graph *g)
{
    int sum = 0;
    for (const Node *n = g->first; n; n = n->next)
        sum += is_counted(n);
    return sum;
}

static void check_phases(const Graph *g, bool backward)
{
    int wrong = 0;
    for (const Node *n = g->first; n; n = n->next)
        wrong += (n->phase >= BACKWARD) != backward;
    EXPECT(!wrong);
}

/* ---- one graph ---- */

static void check_split(Arena *a, Graph *whole, const char *what)
{
    Graph *f = graph_split(a, a, whole, false), *b = graph_split(a, a, whole, true);
    Graph *apart = graph_clone(a, whole);
    graph_unfuse_mixed(apart, a);
    graph_prune(apart, a);
    int before = test_nfail;
    bool planned = !communicates(whole);
    EXPECT(count(f) + count(b) == count(apart));
    check_phases(f, false);
    check_phases(b, true);
    Tensor *in = graphs_inputs(a, whole), *want = run(a, whole, in, planned);
    Tensor *saved = run(a, f, inputs_of(a, f, whole, in, NULL, NULL), planned);
    Tensor *out = run(a, b, inputs_of(a, b, whole, in, f, saved), planned);
    for (int i = 0; i < whole->nout; i++) {
        const Port *p = &whole->out[i];
        if (!EXPECT(has_output(f, saved, p, &want[i]) || has_output(b, out, p, &want[i])))
            printf("  %%%s is another value\n", p->v->name);
    }
    if (test_nfail > before)
        printf("  in %s\n", what);
}

/* ---- models ---- */

static const struct {
    const char *recompute, *mesh, *reshard, *fuse;
    DType dtype;
    double dropout;
} ways[] = {
    {"none", NULL, "always", "on", F32, 0.1},
    {"selective", NULL, "always", "off", BF16, 0},
    {"full", NULL, "always", "on", F32, 0.1},
    {"full", "fsdp=2,tp=2", "always", "off", F32, 0},
    {"selective", "fsdp=4", "never", "on", BF16, 0},
    {"none", "dp=2,fsdp=2", "always", "off", BF16, 0},
};

typedef struct Job {
    Arena *a;
    int model, way;
} Job;

static void split_model(void *arg)
{
    const Job *x = arg;
    const char *preset = x->model ? "llama3-1b" : "gpt2";
    ModelConfig c = graphs_small(preset);
    PassOptions o = pass_defaults();
    o.recompute = ways[x->way].recompute;
    o.mesh = ways[x->way].mesh;
    o.reshard = ways[x->way].reshard;
    o.fuse = !strcmp(ways[x->way].fuse, "on");
    o.dtype = ways[x->way].dtype;
    Graph *g = model_graph(x->a, &c, 4, 16, NULL);
    passes_run(g, "default", &o, NULL, NULL);
    check_split(x->a, g, arena_printf(x->a, "%s, way %d", preset, x->way));
}

/* ---- graphs of tests/pass ---- */

typedef struct Read {
    Arena *a;
    const char *path;
    bool split;
} Read;

/* Whether a loop runs forward and backward in turn. */
static bool spans_both(const Graph *g)
{
    for (const Node *n = g->first; n; n = n->next)
        if (n->op->region == LOOP && n->phase >= BACKWARD && !node_in_backward(n) &&
            n->phase == BACKWARD)
            return true;
    return false;
}

static void split_file(void *arg)
{
    Read *x = arg;
    size_t len;
    char *text = file_read(x->a, x->path, &len), *cut = strstr(text, "\n---\n");
    if (cut)
        cut[1] = 0;
    Graph *g = graph_parse(x->a, text, x->path);
    graph_verify(g);
    PassOptions o = pass_defaults();
    if (!graph_has_backward(g))
        passes_run(g, "default", &o, NULL, NULL);
    if (spans_both(g))
        return;
    x->split = true;
    check_split(x->a, g, x->path);
}

static int split_folder(const char *folder)
{
    int nsplit = 0;
    DIR *d = opendir(folder);
    CHECK(d);
    for (const struct dirent *e; (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (n < 4 || strcmp(e->d_name + n - 3, ".tn") != 0)
            continue;
        Arena *a = arena_new(&ctx);
        CHECK(a);
        Read x = {a, arena_printf(a, "%s/%s", folder, e->d_name), false};
        Code code = ctx_try(&ctx, split_file, &x);
        if (x.split && !EXPECT(!code))
            printf("%s: %s\n", x.path, ctx.message);
        nsplit += x.split;
        arena_free(a);
    }
    closedir(d);
    return nsplit;
}

/* ---- by its text ---- */

static const char whole[] =
    "tenon 1\n"
    "graph step(%x: f32[4, 6] batch, %w: f32[6, 2] param \"w\", %u: f32[2] param \"u\") {\n"
    "  %h: f32[4, 2] = mm(%x, %w)  forward\n"
    "  %v: f32[2, 4] = t(%h)  forward\n"
    "  %p: f32[8] = view(%h, size=[8])  forward\n"
    "  %s: f32[] = sum(%p)  loss\n"
    "  %d: f32[2, 4] = mul(%v, %v)  backward\n"
    "  %e: f32[2] = sum(%d, dim=[1])  backward\n"
    "  %n: f32[2] = add(%u, %e)  optimizer\n"
    "  return loss %s, new \"u\" %n, %x\n"
    "}\n";

static const char first[] = "tenon 1\n"
                            "graph step_forward(%x: f32[4, 6] batch, %w: f32[6, 2] param \"w\") {\n"
                            "  %h: f32[4, 2] = mm(%x, %w)  forward\n"
                            "  %p: f32[8] = view(%h, size=[8])  forward\n"
                            "  %s: f32[] = sum(%p)  loss\n"
                            "  return loss %s, %x, %h\n"
                            "}\n";

static const char second[] = "tenon 1\n"
                             "graph step_backward(%u: f32[2] param \"u\", %h: f32[4, 2]) {\n"
                             "  %v: f32[2, 4] = t(%h)  backward\n"
                             "  %d: f32[2, 4] = mul(%v, %v)  backward\n"
                             "  %e: f32[2] = sum(%d, dim=[1])  backward\n"
                             "  %n: f32[2] = add(%u, %e)  optimizer\n"
                             "  return new \"u\" %n\n"
                             "}\n";

static void expect_text(Arena *a, const Graph *g, const char *want)
{
    const char *got = graphs_text(a, g);
    if (!EXPECT(!strcmp(got, want)))
        printf("expected:\n%s\nfound:\n%s\n", want, got);
}

static void split_text(void *arg)
{
    Arena *a = arg;
    Graph *g = graph_parse(a, whole, "step.tn");
    graph_verify(g);
    expect_text(a, graph_split(a, a, g, false), first);
    expect_text(a, graph_split(a, a, g, true), second);
}

/* ---- states that the forward renews ---- */

/* The backward reads the state, a view of one, or one that becomes another; a metric crosses. */
static const char *const states[] = {
    "tenon 1\ngraph g(%p: f32[3] param \"p\", %s: f32[3] state \"mean\") {\n"
    "  %m = mul(%p, %s)  forward\n  %l = sum(%m)  loss\n  %n = exp(%s)  forward\n"
    "  %d = mul(%s, %s)  backward\n"
    "  return loss %l, new \"mean\" %n, grad \"p\" %d\n}\n",
    "tenon 1\ngraph g(%p: f32[3] param \"p\", %s: f32[1, 3] state \"mean\") {\n"
    "  %v = view(%s, size=[3])  forward\n  %m = mul(%p, %v)  forward\n  %l = sum(%m)  loss\n"
    "  %n = exp(%s)  forward\n  %d = mul(%v, %v)  backward\n"
    "  return loss %l, new \"mean\" %n, grad \"p\" %d\n}\n",
    "tenon 1\ngraph g(%p: f32[3] param \"p\", %s: f32[3] state \"a\", %t: f32[1, 3] state \"b\",\n"
    "        %u: f32[3] state \"c\") {\n"
    "  %m = mul(%p, %s)  forward\n  %l = sum(%m)  loss\n  %v = view(%t, size=[3])  forward\n"
    "  %w = exp(%t)  forward\n  %n = exp(%u)  forward\n  %d = mul(%s, %s)  backward\n"
    "  return loss %l, new \"a\" %v, new \"b\" %w, new \"c\" %n, grad \"p\" %d\n}\n",
    "tenon 1\ngraph g(%p: f32[3] param \"p\", %s: f32[3] state \"a\", %t: f32[3] state \"b\") {\n"
    "  %m = mul(%p, %s)  forward\n  %l = sum(%m)  loss\n  %w = exp(%t)  forward\n"
    "  %d = add(%p, %p)  backward\n"
    "  return loss %l, new \"a\" %t, new \"b\" %w, grad \"p\" %d\n}\n",
    "tenon 1\ngraph g(%p: f32[3] param \"p\", %s: f32[3] state \"mean\") {\n"
    "  %y = exp(%p)  forward\n  %z = mul(%s, %s)  forward\n  %m = mul(%y, %z)  forward\n"
    "  %l = sum(%m)  loss\n  %d = mul(%y, %z)  backward\n"
    "  return loss %l, metric \"act\" %y, new \"mean\" %z, grad \"p\" %d\n}\n",
};

typedef struct State {
    Arena *a;
    int i;
} State;

static bool hands_on(const Graph *forward, const char *name)
{
    for (int i = 0; i < forward->nout; i++)
        if (forward->out[i].role == ROLE_NONE && !strcmp(forward->out[i].v->name, name))
            return true;
    return false;
}

static void split_state(void *arg)
{
    const State *x = arg;
    Graph *g = graph_parse(x->a, states[x->i], "state.tn");
    graph_verify(g);
    check_split(x->a, g, arena_printf(x->a, "states, %d", x->i));
    const Graph *f = graph_split(x->a, x->a, g, false), *b = graph_split(x->a, x->a, g, true);
    for (int i = 0; i < b->nin; i++)
        if (b->in[i].role == ROLE_NONE && !EXPECT(hands_on(f, b->in[i].v->name)))
            printf("  the forward of %d does not hand over %%%s\n", x->i, b->in[i].v->name);
}

/* ---- refused ---- */

typedef struct Text {
    Arena *a;
    const char *text;
} Text;

static void split_refused(void *arg)
{
    const Text *x = arg;
    Graph *g = graph_parse(x->a, x->text, "refused.tn");
    graph_verify(g);
    graph_split(x->a, x->a, g, true);
}

static void expect_refused(Arena *a, const char *text, const char *why)
{
    Text x = {a, text};
    EXPECT_FAIL(&ctx, split_refused, &x, why);
}

static void test_refused(Arena *a)
{
    expect_refused(a, "tenon 1\ngraph g(%x: f32[4]) {\n  %y = exp(%x)\n  return %y\n}\n",
                   "the graph has no backward");
    expect_refused(a,
                   "tenon 1\ngraph g(%x: f32[4] batch) {\n"
                   "  %s = loop(n=2, slice %x: f32[2] = %x axis 0) -> (sum f32) backward {\n"
                   "    %y = exp(%x)  forward\n    %d = sum(%y)  backward\n    yield %d\n  }\n"
                   "  return %s\n}\n",
                   "refused.tn:3:3: loop %s: cannot be split: its iterations run forward and");
    expect_refused(a,
                   "tenon 1\ngraph g(%x: f32[4] batch) {\n"
                   "  %g = all_gather_into_tensor(%x, group_size=2, group=\"0\")  forward\n"
                   "  %w = wait_tensor(%g, %x)  backward\n  return %w\n}\n",
                   "cannot be split: the backward waits for what the forward starts");
    expect_refused(a,
                   "tenon 1\ngraph g(%x: f32[4] batch) {\n  %y = exp(%x)\n"
                   "  %h = offload(%y)\n  %hw = wait_tensor(%h, %y)\n"
                   "  %r = reload(%hw)  backward\n  %rw = wait_tensor(%r, %hw)  backward\n"
                   "  return %rw\n}\n",
                   "refused.tn:4:3: offload %h: cannot be split: the host keeps its value");
}

int main(void)
{
    Arena *a = arena_new(&ctx);
    CHECK(a);
    EXPECT(!ctx_try(&ctx, split_text, a) || !printf("  %s\n", ctx.message));
    test_refused(a);
    for (int i = 0; i < LEN(states); i++) {
        State x = {a, i};
        EXPECT(!ctx_try(&ctx, split_state, &x) || !printf("  %s\n", ctx.message));
    }
    arena_free(a);
    for (int i = 0; i < 2 * LEN(ways); i++) {
        Job x = {arena_new(&ctx), i % 2, i / 2};
        CHECK(x.a);
        if (!EXPECT(!ctx_try(&ctx, split_model, &x)))
            printf("  model %d, way %d: %s\n", x.model, x.way, ctx.message);
        arena_free(x.a);
    }
    EXPECT(split_folder("tests/pass/remat") > 10);
    EXPECT(split_folder("tests/pass/grad") > 10);
    EXPECT(split_folder("tests/pass/policies") > 3);
    return test_report();
}
