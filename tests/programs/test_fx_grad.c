/* Forwards that PyTorch traced, differentiated: what passes a gradient there passes it here,
 * against central differences in double; which forms tell what an alias does; the error where none
 * does. */
#include "../../src/pass/pass.h"
#include "../shared/fx.h"
#include "../shared/graphs.h"

static const PassOptions no_options;

static void differentiate(void *arg)
{
    Input *in = arg;
    import(in);
    passes_run(in->g, "canonicalize,cse,grad", &no_options, NULL, NULL);
}

/* ---- what passes a gradient ---- */

/* In a forward of double, where every call of a and c is added to the loss twice over. */
#define OF(call)                                                              \
    "def forward(self, x: \"f64[2, 4]\", w: \"f64[2, 4]\", v: \"f64[4]\"):\n" \
    "  a = torch.ops.aten.mul.Tensor(x, w)\n"                                 \
    "  c = torch.ops.aten.mul.Tensor(v, v)\n"                                 \
    "  b = " call "\n"                                                        \
    "  p = torch.ops.aten.mul.Tensor(b, b)\n"                                 \
    "  s = torch.ops.aten.sum.default(p)\n"                                   \
    "  m = torch.ops.aten.mul.Tensor(a, c)\n"                                 \
    "  t = torch.ops.aten.sum.default(m)\n"                                   \
    "  loss = torch.ops.aten.add.Tensor(s, t)\n"                              \
    "  return loss\n"

static const char *const passing[] = {
    OF("torch.ops.aten.positive.default(a)"),
    OF("torch.ops.aten.lift_fresh.default(a)"),
    OF("torch.ops.aten.alias_copy.default(a)"),
    OF("torch.ops.aten.to.dtype(a, torch.float64)"),
    OF("torch.ops.aten.to.dtype(a, torch.float64, False, True)"),
    OF("torch.ops.aten.to.dtype_layout(a, dtype = torch.float64, layout = torch.strided)"),
    OF("torch.ops.aten.to.device(a, device(type='cpu'), torch.float64)"),
    OF("torch.ops.aten.to.other(a, x)"),
    OF("torch.ops.aten.type_as.default(a, x)"),
    OF("torch.ops.aten._to_copy.default(a, dtype = torch.float64)"),
    OF("torch.ops.aten.contiguous.default(a)"),
    OF("torch.ops.aten.clone.default(a)"),
    OF("torch.ops.aten.view_as.default(a, x)"),
    OF("torch.ops.aten.view.default(a, [2, 4])"),
    OF("torch.ops.aten.reshape.default(a, [2, 4])"),
    OF("torch.ops.aten.expand.default(a, [2, 4])"),
    OF("torch.ops.aten.expand_as.default(a, x)"),
    OF("torch.ops.aten.broadcast_to.default(a, [2, 4])"),
    OF("torch.ops.aten.slice.Tensor(a, 0, 0, 9223372036854775807)"),
    OF("torch.ops.aten.narrow.default(a, 1, 0, 4)"),
    OF("torch.ops.aten.split.Tensor(a, 2)[0]"),
    OF("torch.ops.aten.chunk.default(a, 1)[0]"),
    OF("torch.ops.aten.permute.default(a, [0, 1])"),
    OF("torch.ops.aten.transpose.int(a, 1, 1)"),
    OF("torch.ops.aten.movedim.int(a, 1, 1)"),
    OF("torch.ops.aten.squeeze.dim(a, 0)"),
    OF("torch.ops.aten.squeeze.default(a)"),
    OF("torch.ops.aten.unflatten.int(a, 1, [4])"),
    OF("torch.ops.aten.flatten.using_ints(a, 1, 1)"),
    OF("torch.ops.aten.flatten.using_ints(c)"),
    OF("torch.ops.aten.flatten.using_ints(torch.ops.aten.sum.default(c))"),
    OF("torch.ops.aten.ravel.default(c)"),
    OF("torch.ops.aten.t.default(c)"),
    OF("torch.ops.aten.t.default(torch.ops.aten.sum.default(c))"),
    OF("torch.ops.aten.numpy_T.default(c)"),
    OF("torch.ops.aten.linear.default(c, a)"),
    OF("torch.ops.aten.linear.default(c, a, torch.ops.aten.select.int(a, 1, 0))"),
    OF("torch.ops.aten.linear.default(c, c)"),
    OF("torch.ops.aten.linear.default(a, c)"),
    OF("torch.ops.aten.linear.default(torch.ops.aten.reshape.default(a, [1, 2, 4]), c)"),
    OF("torch.ops.aten.matmul.default(a, c)"),
    OF("torch.ops.aten.scaled_dot_product_attention.default(a, a, torch.ops.aten.narrow.default(a, "
       "1, 0, 3))"),
    OF("torch.ops.aten.scaled_dot_product_attention.default(torch.ops.aten.narrow.default(a, 1, 0, "
       "2), torch.ops.aten.narrow.default(a, 1, 1, 2), a, None, 0.0, True)"),
    OF("torch.ops.aten.scaled_dot_product_attention.default(torch.ops.aten.narrow.default(a, 1, 0, "
       "2), torch.ops.aten.narrow.default(a, 1, 1, 2), a, scale = 0.3)"),
    OF("torch.ops.aten.dropout.default(a, 0.0, True)"),
    OF("torch.ops.aten.dropout.default(a, 0.5, False)"),
    OF("torch.ops.aten.clamp.default(a)"),
    OF("torch.ops.aten.constant_pad_nd.default(a, [0, 0])"),
    OF("torch.ops.aten.roll.default(a, [0], [0])"),
    OF("torch.ops.aten.flip.default(a, [])"),
    OF("torch.ops.aten.rot90.default(a, 0)"),
    OF("torch.ops.aten.repeat.default(a, [1, 1])"),
    OF("torch.ops.aten.cat.default([a])"),
    OF("torch.ops.aten.sum.dim_IntList(torch.ops.aten.unsqueeze.default(a, 0), [0])"),
    OF("torch.ops.aten.sum.default(torch.ops.aten.sum.default(c))"),
};

static void check_gradients(Input *in, const char *text)
{
    Arena *a = in->a;
    Graph *forward = graph_clone(a, in->g);
    passes_run(in->g, "grad", &no_options, NULL, NULL);
    Tensor *data = graphs_inputs(a, forward), *out = graphs_interpret(a, in->g, data);
    for (int i = 0; i < in->g->nout; i++) {
        const Port *p = &in->g->out[i];
        double error =
            p->role == ROLE_GRAD ? graphs_gradient_error(a, forward, data, p->name, &out[i]) : 0;
        if (!EXPECT(error < 1e-8))
            printf("  the gradient of %s is off by %.2g\n%s", p->name, error, text);
    }
    EXPECT(in->g->nout == 3); /* the loss, and a gradient of w and v each */
}

static void try_gradients(void *arg)
{
    import(arg);
    check_gradients(arg, ((Input *)arg)->text);
}

static void test_passing(void)
{
    for (int i = 0; i < LEN(passing); i++) {
        Ctx ctx = {0};
        Arena *a = arena_new(&ctx);
        Input in = {.a = a, .text = passing[i], .o = {.loss = "loss", .params = "w,v"}};
        if (!EXPECT(ctx_try(&ctx, try_gradients, &in) == TN_OK))
            printf("  %s\n%s", ctx.message, passing[i]);
        arena_free(a);
    }
}

/* ---- what an alias does ---- */

/* The gradient of w by x * w, once through `b`: `twice` where that passes. */
static void expect_gradient(const char *text, const char *alias, bool twice)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Input in = {.a = a, .text = text, .o = {.loss = "s", .params = "w,p_w", .alias = alias}};
    if (!EXPECT(ctx_try(&ctx, differentiate, &in) == TN_OK)) {
        printf("  %s\n%s", ctx.message, text);
    } else {
        Tensor *data = graphs_inputs(a, in.g), *out = graphs_interpret(a, in.g, data);
        int x = 0, dw = in.g->nout - 1;
        while (in.g->in[x].role != ROLE_BATCH)
            x++;
        EXPECT(in.g->out[dw].role == ROLE_GRAD);
        double got = tensor_get(&out[dw], 0), want = (twice ? 2 : 1) * tensor_get(&data[x], 0);
        if (!EXPECT(got == want))
            printf("  expected %g, found %g\n%s", want, got, text);
    }
    arena_free(a);
}

static void expect_error(const char *text, const char *part)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Input in = {.a = a, .text = text, .o = {.loss = "s", .params = "w,p_w"}};
    if (!EXPECT(ctx_try(&ctx, differentiate, &in) == TN_FAIL && strstr(ctx.message, part)))
        printf("  expected %s\n  found %s\n%s", part, ctx.message, text);
    arena_free(a);
}

#define FORWARD(w, b, more)                                  \
    "def forward(self, " w ": \"f32[4]\", x: \"f32[4]\"):\n" \
    "  a = torch.ops.aten.mul.Tensor(x, " w ")\n"            \
    "  b = " b "\n"                                          \
    "  c = torch.ops.aten.add.Tensor(a, b)\n" more
#define SUM      "  s = torch.ops.aten.sum.default(c)\n  return s\n"
#define CORE_SUM "  s = torch.ops.aten.sum.dim_IntList(c, [])\n  return s\n"
#define ALIAS    "torch.ops.aten.alias.default(a)"
#define LINEAR                                                                \
    "  d = torch.ops.aten.linear.default(c, torch.ops.aten.eye.default(4))\n" \
    "  s = torch.ops.aten.sum.default(c)\n  return (s, d)\n"
/* calls that dispatch takes apart, and such that run_decompositions does */
#define DISPATCHED                                                                          \
    "  d = torch.ops.aten.linear.default(c, torch.ops.aten.eye.default(4))\n"               \
    "  d = torch.ops.aten.contiguous.default(torch.ops.aten.to.dtype(d, torch.float32))\n"  \
    "  d = torch.ops.aten.dropout.default(torch.ops.aten.positive.default(d), 0.0, True)\n" \
    "  d = torch.ops.aten.softmax.int(torch.ops.aten.view_as.default(d, x), 0)\n"
#define DECOMPOSED "  d = torch.ops.aten.silu.default(torch.ops.aten.t.default(d))\n"
#define RETURN     "  s = torch.ops.aten.sum.default(c)\n  return (s, d)\n"

static void test_alias(void)
{
    const char *refused = "alias %b: whether a gradient passes is not known";
    /* after dispatch nothing tells; decompositions leave sums over no axes */
    expect_error(FORWARD("w", ALIAS, SUM), refused);
    expect_error(FORWARD("w", ALIAS, SUM), "test.fx:3:3: ");
    expect_error(FORWARD("w", ALIAS, SUM), "--alias pass or --alias stop");
    expect_error("ExportedProgram:\n" FORWARD("p_w", ALIAS, CORE_SUM), refused);
    expect_error(FORWARD("w", ALIAS, "  e = torch.ops.aten.reshape.default(c, [2, 2])\n" SUM),
                 refused);
    expect_gradient(FORWARD("w", ALIAS, SUM), "pass", true);
    expect_gradient(FORWARD("w", ALIAS, SUM), "stop", false);
    expect_gradient(FORWARD("w", ALIAS, LINEAR), "stop", false);
    /* a few calls may be kept by decompositions that make x.detach() an alias */
    expect_error("ExportedProgram:\n" FORWARD("p_w", ALIAS, SUM), refused);
    expect_error(FORWARD("w", ALIAS, LINEAR), refused);
    expect_error(FORWARD("w", ALIAS, DISPATCHED CORE_SUM), refused);
    expect_error(FORWARD("w", ALIAS, DISPATCHED SUM), refused);
    /* before dispatch and decompositions it passes: many calls, a module inside, a detach */
    expect_gradient(FORWARD("w", ALIAS, DISPATCHED DECOMPOSED RETURN), NULL, true);
    expect_gradient(FORWARD("w", ALIAS, "  e = torch.ops.aten.detach.default(c)\n" LINEAR), NULL,
                    true);
    /* but where something was taken apart */
    expect_error(FORWARD("w", ALIAS,
                         DISPATCHED DECOMPOSED "  e = torch.ops.aten._to_copy.default(c)\n" RETURN),
                 refused);
    expect_error(FORWARD("w", ALIAS, DISPATCHED DECOMPOSED CORE_SUM), refused);
    /* detach is one in every form, in place too */
    expect_gradient(FORWARD("p_w", "torch.ops.aten.detach.default(a)", SUM), NULL, false);
    expect_gradient(FORWARD("w", "torch.ops.aten.detach.default(a)", SUM), "pass", false);
    expect_gradient(FORWARD("w", "torch.ops.aten.detach_copy.default(a)", SUM), NULL, false);
    expect_gradient(FORWARD("w",
                            "torch.ops.aten.mul.Tensor(a, 1)\n"
                            "  d = torch.ops.aten.detach_.default(b)",
                            SUM),
                    NULL, false);
    /* one that no gradient reaches is no error, nor one of a graph that has its backward */
    expect_gradient(FORWARD("w",
                            "torch.ops.aten.mul.Tensor(a, 1)\n"
                            "  d = torch.ops.aten.alias.default(x)\n"
                            "  e = torch.ops.aten.alias.default(b)",
                            "  f = torch.ops.aten.mul.Tensor(c, d)\n" SUM),
                    NULL, true);
}

/* ---- without gradients ---- */

#define INNER(more)                             \
    "class submod_1(torch.nn.Module):\n"        \
    "  def forward(self, mul: \"f32[4]\"):\n"   \
    "    a = torch.ops.aten.neg.default(mul)\n" \
    "    c = torch.ops.aten.neg.default(a)\n" more "    return (c,)\n"
#define WRAPPED(call)                                    \
    "def forward(self, w: \"f32[4]\", x: \"f32[4]\"):\n" \
    "  a = torch.ops.aten.mul.Tensor(x, w)\n"            \
    "  m = self.submod_1\n"                              \
    "  g = torch.ops.higher_order." call ";  m = None\n" \
    "  c = torch.ops.aten.add.Tensor(a, g[0])\n" SUM
#define NO_GRAD "wrap_with_set_grad_enabled(False, m, a)"

static void test_no_grad(void)
{
    expect_gradient(WRAPPED(NO_GRAD) INNER(""), NULL, false);
    expect_gradient(WRAPPED(NO_GRAD "\n  a = " ALIAS) INNER(""), NULL, false);
    expect_gradient(WRAPPED("wrap_with_set_grad_enabled(True, m, a)") INNER(""), NULL, true);
    expect_gradient(WRAPPED("wrap_with_autocast('cpu', None, False, None, m, a)") INNER(""), NULL,
                    true);
    /* one more inside, where gradients are on again: those of what came in have ended */
    expect_gradient(WRAPPED(NO_GRAD)
                        INNER("    d = self.submod_2\n"
                              "    e = torch.ops.higher_order.wrap_with_set_grad_enabled(True, d, "
                              "c)\n") "class submod_2(torch.nn.Module):\n  def forward(self, a):\n"
                                      "    return (torch.ops.aten.neg.default(a),)\n",
                    NULL, false);
    expect_gradient(FORWARD("w",
                            "torch.ops.aten.neg.default(a)\n"
                            "  n = torch._C._set_grad_enabled(False);  n = None\n"
                            "  b = torch.ops.aten.neg.default(b)\n"
                            "  n = torch._C._set_grad_enabled(True);  n = None",
                            SUM),
                    NULL, false);
    const char *refused = "a module inside of another";
    expect_error(WRAPPED("wrap_with_autocast('cpu', torch.bfloat16, True, None, m, a)") INNER(""),
                 refused);
    expect_error(WRAPPED("wrap_with_set_grad_enabled(False, m, a, a)") INNER(""), refused);
    expect_error(WRAPPED("wrap_with_set_grad_enabled(False, m)") INNER(""), refused);
    expect_error(WRAPPED("wrap_with_set_grad_enabled(False)") INNER(""), refused);
    expect_error(WRAPPED(NO_GRAD), refused); /* gm.code does not show what it calls */
    expect_error(WRAPPED("cond(a, m, m, [a])") INNER(""), refused);
    expect_error(WRAPPED(NO_GRAD) INNER("") INNER(""), refused);
    expect_error(WRAPPED(NO_GRAD ";  h = torch.ops.higher_order." NO_GRAD) INNER(""), refused);
    expect_error(WRAPPED(NO_GRAD)
                     INNER("    d = torch.ops.higher_order.wrap_with_set_grad_enabled(False, "
                           "self.submod_1, c)\n"),
                 refused);
}

/* A write that autograd does not record ends no gradient in PyTorch: refused, not zero. */
static void test_unrecorded(void)
{
#define OFF  "  n = torch._C._set_grad_enabled(False)\n"
#define ON   "  n = torch._C._set_grad_enabled(True)\n"
#define COPY "torch.ops.aten.clone.default(a)\n"
    const char *refused = "test.fx:5:3: writes under no_grad, or through detach";
    expect_error(FORWARD("w",
                         COPY "  d = torch.ops.aten.detach.default(b)\n"
                              "  e = torch.ops.aten.mul_.Tensor(d, 2)",
                         SUM),
                 refused);
    expect_error(FORWARD("w", COPY OFF "  e = torch.ops.aten.clamp_.default(b, 0)\n" ON, SUM),
                 refused);
    expect_error(FORWARD("w",
                         COPY OFF "  e = torch.ops.aten.zero_.default("
                                  "torch.ops.aten.slice.Tensor(b, 0, 0, 2))\n" ON,
                         SUM),
                 refused);
    /* what has no gradient may be written so */
    expect_gradient(FORWARD("w",
                            "torch.ops.aten.detach.default(a)\n" OFF
                            "  b = torch.ops.aten.clone.default(b)\n"
                            "  e = torch.ops.aten.mul_.Tensor(b, 2)\n" ON,
                            SUM),
                    NULL, false);
}

/* ---- the summary ---- */

static void expect_summary(const char *text, const char *alias, const char *part)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Input in = {.a = a, .text = text, .o = {.alias = alias}};
    if (!EXPECT(ctx_try(&ctx, import, &in) == TN_OK && strstr(in.summary, part)))
        printf("  expected %s\n  found %s%s", part, ctx.message, in.summary);
    arena_free(a);
}

static void test_summary(void)
{
    expect_summary(
        FORWARD("w", ALIAS, SUM), NULL,
        "aliases 1: gradient unknown (--alias pass: gradients pass; stop: it came of detach())\n"
        "  the code shows x[:] and x.detach() alike: pass is right for a model that calls no "
        "detach(); torch.export.export(model, args) tells them apart\n");
    /* autograd's own, which nothing reads */
    expect_summary("def forward(self, w: \"f32[4]\", x: \"f32[4]\"):\n"
                   "  a = torch.ops.aten.relu.default(w)\n"
                   "  b = torch.ops.aten.alias.default(a)\n"
                   "  s = torch.ops.aten.sum.default(a)\n  return s\n",
                   NULL, "--backward-from tell)\ninputs 2");
    expect_summary(FORWARD("w", ALIAS, DISPATCHED DECOMPOSED RETURN), NULL,
                   "aliases 1: gradient pass\n");
    expect_summary(FORWARD("w", "torch.ops.aten.neg.default(a)", SUM), "stop",
                   "aliases 0: gradient stop\n");
}

int main(void)
{
    test_passing();
    test_alias();
    test_no_grad();
    test_unrecorded();
    test_summary();
    return test_report();
}
