/* What of PyTorch's graphs is forward, backward and optimizer, and which inputs are parameters. */
#include "../shared/fx.h"

#include <time.h>

#define STEP                                                          \
    "  m = torch.ops.aten.mul.Tensor(x, y)\n"                         \
    "  t = torch.ops.aten.sum.default(m)\n"                           \
    "  o = torch.ops.aten.ones_like.default(t, pin_memory = False)\n" \
    "  e = torch.ops.aten.expand.default(o, [2, 4])\n"                \
    "  r = torch.ops.aten.neg.default(x)\n"                           \
    "  g = torch.ops.aten.mul.Tensor(e, r)\n"                         \
    "  h = torch.ops.aten.sum.dim_IntList(g, [0])\n"                  \
    "  return (t, h)\n"

static void expect_phases(const char *text, FxOptions o, const char *part)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Input in = input(a, text);
    in.o.loss = o.loss;
    in.o.params = o.params;
    in.o.backward = o.backward;
    point(&in);
    if (!EXPECT(ctx_try(&ctx, import, &in) == TN_OK))
        printf("  %s\n", ctx.message);
    else if (!EXPECT(strstr(in.printed, part) || strstr(in.summary, part)))
        printf("  expected %s\n  found %s%s", part, in.printed, in.summary);
    arena_free(a);
}

static void expect_refused(const char *text, FxOptions o, const char *part)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Input in = input(a, text);
    in.o.loss = o.loss;
    in.o.params = o.params;
    point(&in);
    if (!EXPECT(ctx_try(&ctx, import, &in) == TN_USAGE && strstr(ctx.message, part)))
        printf("  expected %s\n  found %s\n", part, ctx.message);
    arena_free(a);
}

static void test_phases(void)
{
    FxOptions none = {0};
    expect_phases(HEAD STEP, none, "forward 2, backward 5 (by the loss's tangent)");
    expect_phases(HEAD STEP, none, "%r: f32[2, 4] = neg(%x)  backward");
    expect_phases(HEAD STEP, none, "return %t, %h");
    expect_phases(HEAD STEP, (FxOptions){.loss = "t"}, "return loss %t, %h");
    expect_phases(HEAD STEP, (FxOptions){.params = "y", .loss = "t"},
                  "return loss %t, grad \"y\" %h");
    expect_phases(HEAD STEP, (FxOptions){.params = "?", .loss = "t"}, "gradients have no role");
    expect_phases(HEAD STEP, (FxOptions){.backward = "e"}, "forward 3, backward 4 (from the node");
    expect_phases("def forward(self, x, y, tangents_1: \"f32[2, 4]\"):\n  a = x * y\n"
                  "  b = a * tangents_1\n  return (a, b)\n",
                  none, "forward 1, backward 1");
    expect_phases(HEAD "  # Annotation: {'phase': 'backward'} File: a.py:1\n  a = x * y\n"
                       "  # File: a.py:2 in f\n  b = a * y\n  c = x * x\n  return (b, c)\n",
                  none, "forward 1, backward 2 (by comments)");
    expect_phases(HEAD "  # ac_graph_id: 1 - PREFER_RECOMPUTE File: a.py:1\n  a = x * y\n"
                       "  return a\n",
                  none, "forward prefer_recompute");
    expect_phases(HEAD "  # scope: h.0.attn, ac_graph_id: 1 - MUST_SAVE\n  a = x * y\n"
                       "  # code: scope: h.1\n  b = a * y\n  return b\n",
                  none, "mul(%x, %y)  @\"h.0.attn\" forward must_save\n");
    expect_phases(HEAD "  # scope: h.0.attn\n  a = x * y\n"
                       "  # code: scope: h.1\n  b = a * y\n  return b\n",
                  none, "mul(%a, %y)  forward\n");
}

/* The tangent as decompositions write it: full_like, or ones that say not what they are like. */
#define ONES(loss, ones)                                    \
    HEAD "  f = torch.ops.aten.full.default([], 1.0)\n"     \
         "  m = torch.ops.aten.mul.Tensor(x, y) * f\n"      \
         "  t = torch.ops.aten." loss ".default(m)\n"       \
         "  o = torch.ops.aten." ones "\n"                  \
         "  e = torch.ops.aten.expand.default(o, [2, 4])\n" \
         "  g = torch.ops.aten.mul.Tensor(e, x)\n"          \
         "  h = torch.ops.aten.sum.dim_IntList(g, [0])\n"   \
         "  c = torch.ops.aten.full.default([], 1.0)\n"     \
         "  d = torch.ops.aten.sum.default(m * c)\n"

static void test_tangents(void)
{
    FxOptions none = {0}, t = {.loss = "t"};
    const char *full = "forward 4, backward 7 (by full([], 1), %o, taken for the loss's tangent)";
    static const char *const like[] = {
        ONES("sum", "full_like.default(t, 1)") "  return (t, h)\n",
        ONES("sum", "full_like.default(t, 1.0)") "  return (t, h)\n"};
    for (int i = 0; i < LEN(like); i++) {
        expect_phases(like[i], none, "forward 4, backward 7 (by the loss's tangent)");
        expect_phases(like[i], t, "%o: f32[] = full(size=[], fill_value=1.0)  backward");
    }
    expect_phases(ONES("sum", "full.default([], 1.0)") "  return (t, h)\n", none, full);
    expect_phases(ONES("sum", "full.default([], 1, dtype = torch.float32)") "  return (t, h)\n",
                  none, full);
    expect_phases(ONES("sum", "ones.default([])") "  return (t, h)\n", none, full);
    expect_phases(ONES("sum", "full.default([], 1.0)") "  return (t, h)\n", t,
                  "return loss %t, %h");
    /* two scalars: --loss tells; no gradient comes of it; an integer, and no one */
    expect_phases(ONES("sum", "full.default([], 1.0)") "  return (t, h, d)\n", none,
                  "no loss found");
    expect_phases(ONES("sum", "full.default([], 1.0)") "  return (t, h, d)\n", t,
                  "forward 7, backward 4 (by full([], 1), %o");
    expect_phases(ONES("sum", "full.default([], 1.0)") "  return (t, m)\n", none, "no loss found");
    expect_phases(ONES("sum", "full.default([], 2.0)") "  return (t, m)\n", none, "no loss found");
    expect_phases(ONES("sum", "full_like.default(t, 2)") "  return (t, m)\n", none,
                  "no loss found");
}

/* A forward alone has its loss marked; what looks like a gradient is not taken for forward. */
static void test_forward_loss(void)
{
    FxOptions t = {.loss = "t", .params = "y"};
#define LOSS "  m = torch.ops.aten.mul.Tensor(x, y)\n  t = torch.ops.aten.sum.default(m)\n"
    expect_phases(HEAD LOSS "  return (t, m)\n", t, "return loss %t, %m");
    expect_phases(HEAD LOSS "  return (t, m)\n", t,
                  "forward 2, backward 0 (nothing is made like the loss: all is forward)");
    expect_phases(HEAD LOSS "  return (t, m > t)\n", t, "return loss %t, %result.gt");
    expect_phases(
        HEAD LOSS
        "  # Annotation: {'phase': 'backward'} File: a.py:1\n  g = x * t\n  return (t, g)\n",
        t, "forward 2, backward 1 (by comments)");
    expect_refused(
        HEAD LOSS "  return (t, x * t)\n", t,
        "--loss: nothing is made like t, but %result.mul, a result after it, has an input's "
        "type, as a gradient does; give --backward-from too");
    expect_refused(HEAD LOSS "  return m\n", t,
                   "--loss: expected a floating-point scalar that is a result, found %t: f32[], "
                   "which is none");
    t.loss = "m";
    expect_refused(
        HEAD LOSS "  return m\n", t,
        "--loss: expected a floating-point scalar that is a result, found %m: f32[2, 4]");
}

/* Steps of SGD with momentum, by writes and by results; a tied weight's gradient is a sum. */
#define UPDATE                                              \
    HEAD "  m = torch.ops.aten.mul.Tensor(x, y)\n"          \
         "  t = torch.ops.aten.sum.default(m)\n"            \
         "  o = torch.ops.aten.ones_like.default(t)\n"      \
         "  e = torch.ops.aten.expand.default(o, [2, 4])\n" \
         "  f = torch.ops.aten.mul.Tensor(e, x)\n"          \
         "  g = torch.ops.aten.sum.dim_IntList(f, [0])\n"   \
         "  h = torch.ops.aten.add.Tensor(g, g[0])\n"       \
         "  u = torch.ops.aten.mul.Tensor(h, 0.1)\n"

static void test_optimizer(void)
{
    FxOptions none = {0};
    expect_phases(UPDATE "  p = torch.ops.aten.sub_.Tensor(y, u)\n  return t\n", none,
                  "forward 2, backward 7, optimizer 3 (by the loss's tangent)");
    expect_phases(UPDATE "  p = torch.ops.aten.sub.Tensor(y, u)\n  return (t, p)\n", none,
                  "%h: f32[4] = add(%g, %h.squeeze)  backward");
    expect_phases(UPDATE "  p = torch.ops.aten.sub.Tensor(y, u)\n  return (t, p)\n", none,
                  "%p: f32[4] = sub(%y, %u)  optimizer");
    /* the gradient is a result too; the scaled one is not; a product is no update */
    expect_phases(UPDATE "  p = torch.ops.aten.sub.Tensor(y, u)\n  return (t, h, p)\n", none,
                  "%u: f32[4] = mul(%h, %u.full)  optimizer");
    expect_phases(UPDATE "  p = torch.ops.aten.sub.Tensor(y, u)\n  return (t, u, p)\n", none,
                  "%u: f32[4] = mul(%h, %u.full)  backward");
    expect_phases(UPDATE "  p = torch.ops.aten.mul.Tensor(y, u)\n  return (t, p)\n", none,
                  "%p: f32[4] = mul(%y, %u)  backward");
    /* its norm is the optimizer's, as is what it is clipped by */
    expect_phases(UPDATE "  q = torch.ops.aten.mul.Tensor(h, h)\n"
                         "  n = torch.ops.aten.sum.default(q)\n  c = u / n\n"
                         "  p = torch.ops.aten.sub.Tensor(y, c)\n  return (t, p)\n",
                  none, "%n: f32[] = sum(%q)  optimizer");
    expect_phases(HEAD "  return (x, None, None, None)\n", none,
                  "results of None are left out: 3\n");
}

/* A step of sgd of `layers` layers, 8 nodes and a parameter each. */
static const char *long_step(Arena *a, int layers)
{
    Buf b = {.a = a};
    buf_add(&b, "def forward(self, x: \"f32[4]\", lr: \"f32[]\"");
    for (int i = 0; i < layers; i++)
        buf_printf(&b, ", w%d: \"f32[4]\"", i);
    buf_add(&b, "):\n  h0 = x * 1\n");
    for (int i = 0; i < layers; i++)
        buf_printf(&b,
                   "  a%d = h%d * w%d\n  b%d = a%d + h%d\n"
                   "  h%d = torch.ops.aten.tanh.default(b%d)\n",
                   i, i, i, i, i, i, i + 1, i);
    buf_printf(&b,
               "  loss = torch.ops.aten.sum.default(h%d)\n"
               "  one = torch.ops.aten.ones_like.default(loss)\n"
               "  d%d = torch.ops.aten.expand.default(one, [4])\n",
               layers, layers);
    for (int i = layers - 1; i >= 0; i--)
        buf_printf(&b,
                   "  t%d = torch.ops.aten.tanh_backward.default(d%d, h%d)\n"
                   "  d%d = t%d * w%d\n  g%d = t%d * h%d\n  s%d = g%d * lr\n"
                   "  n%d = w%d - s%d\n",
                   i, i + 1, i + 1, i, i, i, i, i, i, i, i, i, i, i);
    buf_add(&b, "  return (loss");
    for (int i = 0; i < layers; i++)
        buf_printf(&b, ", n%d", i);
    buf_add(&b, ")\n");
    return b.text;
}

/* Updates are found in one walk: 40,000 nodes with 5,000 of them took minutes by a walk for each.
 */
static void test_long_step(void)
{
    enum { LAYERS = 5000 };
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Input in = {.a = a, .text = long_step(a, LAYERS)};
    clock_t begin = clock();
    if (!EXPECT(ctx_try(&ctx, import, &in) == TN_OK))
        printf("  %s\n", ctx.message);
    else if (!EXPECT(
                 strstr(in.summary, "nodes 40005: forward 15003, backward 15002, optimizer 10000")))
        printf("  %s", in.summary);
    EXPECT((double)(clock() - begin) / CLOCKS_PER_SEC < 20);
    arena_free(a);
}

int main(void)
{
    test_phases();
    test_tangents();
    test_forward_loss();
    test_optimizer();
    test_long_step();
    return test_report();
}
