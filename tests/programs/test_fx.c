/* Reading the code of PyTorch's graphs: what is accepted, names, writes through views, errors with
 * their place, and every way of being cut short. Phases: test_fx_phase.c; values: test_fx_run.c. */
#include "../shared/fx.h"

/* ---- what is accepted ---- */

static void expect_text(const char *body, const char *part)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Input in = input(a, arena_printf(a, "%s%s", strstr(body, "def ") ? "" : HEAD, body));
    point(&in);
    if (!EXPECT(ctx_try(&ctx, import, &in) == TN_OK))
        printf("  %s\n  %s\n", body, ctx.message);
    else if (!EXPECT(strstr(in.printed, part) || strstr(in.summary, part)))
        printf("  expected %s\n  found %s%s", part, in.printed, in.summary);
    arena_free(a);
}

static void test_accepted(void)
{
    expect_text("  return torch.ops.aten.mm.default(x, torch.ops.aten.t.default(x))",
                "mm(%x, %result.t)");
    /* operators, chains, unpacking, a nested index */
    expect_text("  a, b = torch.ops.aten.split.Tensor(y, 2)\n  c = d = a - b * 2\n  return (c, d)",
                "%c: f32[2] = sub(%a, %c.mul)");
    expect_text("  a, b = torch.ops.aten.sort.default(s, 0)\n"
                "  return torch.ops.aten.sort.default(a, -1)[1]",
                "sort(%result.view_2, dim=0)");
    expect_text("  return 2 - x", "sub(%result.full, %x)");
    expect_text("  return 2 ** i", "pow(%result.full, %i)");
    expect_text("  return (x > 0) & (x @ y < 1)[0]", "bitwise_and(%result.gt, ");
    expect_text("  v = [x, (y, s)][1][0]\n  return operator.neg(v)", "neg(%y)");
    expect_text("  v = torch.ops.aten.sum.dim_IntList(x, [-1], True)\n  return [v, None, {'a': v}]",
                "return %v, %v");
    expect_text("  v = torch.ops.aten.full.default([], -inf, dtype = torch.float64, layout = "
                "torch.strided, device = device(type='cuda', index=0), pin_memory = False)\n"
                "  return v",
                "%v: f64[] = full(size=[], fill_value=-inf, dtype=f64)");
    expect_text("  v: \"f32[2, 4][4, 1]cpu\" = torch.ops.aten.relu.default(x);  x = None\n"
                "  return v",
                "%v: f32[2, 4] = relu(%x)");
    expect_text("  v: f32[2, 4] = torch.ops.aten.relu_.default(x)\n  return v", "new \"x\" %v");
    expect_text("def forward(self, x: \"f32[2, 4]\", k: \"Sym(3)\"):\n  return x * x",
                "input k is not used");
    expect_text("def forward(self, x: \"f32[s0, s1]\", k: \"Sym(s0*s1)\"):\n"
                "  v: \"f32[Max(1, s0*s1)]\" = torch.ops.aten.view.default(x, [k])\n"
                "  w: \"f32[s0**2, (s1 + s0)//3]\" = torch.ops.aten.view.default(v, [4, 2])\n"
                "  return w",
                "%w: f32[4, 2] = view(%v, size=[4, 2])");
    expect_text("def forward(self, a: \"f32[3]\", ):\n  c: \"f32[]\" = self._tensor_constant0\n"
                "  d: \"f32[]\" = self.b.c\n  return a * d\n",
                "%b.c: f32[] const \"b.c\"");
}

/* Results written elsewhere, axes that go in place, results that are no tensors. */
static void test_elsewhere(void)
{
    expect_text("  return (x, 3, None, True, 2.5)", "a result of 3 is left out after output 1");
    expect_text("  return (x, 3, None, True, 2.5)", "a result of 2.5 is left out after output 1");
    expect_text("  a = torch.ops.aten.add.out(y, 1, out = y)\n  return a * y", "new \"y\" %a");
    expect_text("  a = torch.ops.aten.empty.memory_format([2])\n"
                "  b = torch.ops.aten.sum.IntList_out(x, [1], out = a)\n  return a * 2",
                "%result.mul: f32[2] = mul(%b, %result.full)");
    expect_text("  a = torch.ops.aten.mul.Tensor(x, 2)\n  b = torch.ops.aten.t_.default(a)\n"
                "  c = torch.ops.aten.neg_.default(a)\n  return (b, a)",
                "%c: f32[4, 2] = neg(%b)");
}

/* Arithmetic of bools, as of 0 and 1. */
static void test_bools(void)
{
    static const char *const tests[][2] = {
        {"mul.Tensor(b, b)", "logical_and(%b, %b)"},
        {"mul.Tensor(b, True)", "logical_and(%b, %result.full)"},
        {"add.Tensor(b, b)", "logical_or(%b, %b)"},
        {"maximum.default(b, b)", "logical_or(%b, %b)"},
        {"minimum.default(b, b)", "logical_and(%b, %b)"},
        {"mul.Tensor(b, 2)", "mul(%result._to_copy, %result.full)"},
        {"isfinite.default(b)", "full(size=[2, 4], fill_value=1.0, dtype=bool)"},
        {"isfinite.default(x)", "isfinite(%x)"},
    };
    for (int k = 0; k < LEN(tests); k++) {
        char body[200];
        snprintf(body, sizeof body,
                 "  b = torch.ops.aten.gt.Scalar(x, 0)\n  return torch.ops.aten.%s", tests[k][0]);
        expect_text(body, tests[k][1]);
    }
}

/* Integers that no double is. */
static void test_integers(void)
{
    expect_text("  r = torch.ops.aten.full.default([1], 2, dtype = torch.int64)\n"
                "  e = torch.ops.aten.expand.default(r, [3])\n"
                "  return torch.ops.aten.repeat_interleave.Tensor(e)",
                "i64[6] = repeat_interleave(%e, output_size=6)");
    expect_text("  return torch.ops.aten.where.ScalarOther(torch.ops.aten.gt.Scalar(i, 2), i, "
                "9223372036854775807)",
                "start=9223372036854775807, end=9223372036854775806, step=-1");
    expect_text("  return torch.ops.aten.add.Tensor(i, -9007199254740993)",
                "start=-9007199254740993, end=-9007199254740992)");
    expect_text("  return torch.ops.aten.add.Tensor(i, 9007199254740992)",
                "fill_value=9007199254740992");
    expect_text("  return torch.ops.aten.masked_fill.Scalar(i, i > 0, -9223372036854775808)",
                "start=-9223372036854775808, end=-9223372036854775807)");
    expect_text("  return torch.ops.aten.add.Tensor(i, - 9223372036854775808)",
                "start=-9223372036854775808, end=-9223372036854775807)");
}

static void test_metadata(void)
{
    expect_text(
        "  a = torch.ops.aten._assert_tensor_metadata.default(x, None, None, torch.float32, "
        "device = device(type='cpu'), layout = torch.strided);  a = None\n"
        "  n = torch.ops.aten.sym_size.int(x, 1)\n"
        "  return torch.ops.aten.view.default(x, [n, 2])",
        "view(%x, size=[4, 2])");
    expect_text("  a = torch.ops.aten.clone.default(x)\n  b = torch.ops.aten.detach_.default(a)\n"
                "  return b",
                "%b: f32[2, 4] = detach(%a)");
}

/* ---- writes ---- */

static void test_writes(void)
{
    /* a view sees what is written to its base, and the base what is written to a view */
    expect_text("  a = torch.ops.aten.clone.default(x)\n  v = torch.ops.aten.t.default(a)\n"
                "  w = torch.ops.aten.add_.Tensor(a, 1)\n  return v",
                "t(%w)");
    expect_text("  a = torch.ops.aten.clone.default(x)\n  v = torch.ops.aten.t.default(a)\n"
                "  w = torch.ops.aten.mul_.Tensor(v, 2)\n  return a",
                "%w.t: f32[2, 4] = t(%w)");
    expect_text("  a = torch.ops.aten.zero_.default(i)\n  return a", "%i: i64[3] state \"i\"");
    expect_text("  e = torch.ops.aten.empty.memory_format([2], dtype = torch.int64)\n"
                "  f = torch.ops.aten.fill_.Scalar(e, 3)\n  return e",
                "return %f");
    expect_text("  a = torch.ops.aten.pow_.Scalar(x, 2)\n  return a", "mul(%x, %x)");
    expect_text("  a = torch.ops.aten.pow_.Tensor(x, y)\n  return a", "pow(%x, %y)");
}

/* ---- errors ---- */

static void expect_error(const char *body, const char *part)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Input in = input(a, arena_printf(a, "%s%s", strstr(body, "forward") ? "" : HEAD, body));
    point(&in);
    EXPECT_FAIL(&ctx, import, &in, part);
    arena_free(a);
}

/* The head, `of` n times and the tail; 60,000 are refused, with `part` in the error. */
static void expect_repeated(const char *head, const char *of, int n, const char *tail,
                            const char *part)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Buf b = {.a = a};
    buf_add(&b, head);
    for (int k = 0; k < n; k++)
        buf_add(&b, of);
    buf_add(&b, tail);
    (n < 60000 ? expect_text : expect_error)(b.text, part);
    arena_free(a);
}

static void expect_long(const char *head, const char *of, const char *tail, const char *part)
{
    expect_repeated(head, of, 60000, tail, part);
}

static void test_deep(void)
{
    static const char *const of[] = {"[", "-", "x ** ", "(x, "};
    for (int k = 0; k < LEN(of); k++)
        expect_long("  return ", of[k], "", "test.fx:2:");
    expect_long("  return ", "[", "", "nested too deep");
    expect_long("  return x", "[0]", "", "test.fx:2:1511: nested too deep");
    expect_long("  return x", " + 1", "", "nested too deep");
    expect_long("  return 1", " * 1", "", "nested too deep");
    expect_long("  return x", " < 1", "", "nested too deep");
    expect_repeated("  return x", " + 1", 500, "", "nodes 1000: forward 1000");
    expect_long("  return self", ".a", "", "test.fx:2:10: a name longer than 1000 bytes");
    expect_long("  return torch", ".a", "(x)", "a name longer than 1000 bytes");
    expect_long("  return ", "a", "", "test.fx:2:10: a name longer than 1000 bytes");
}

static void test_nearest(void)
{
    static const char *const tests[][2] = {
        {"softmx.int", "; the nearest is aten.softmax.int"},
        {"add.Tenser", "; the nearest is aten.add.Tensor"},
        {"special_zeta.default", "; nothing is near"},
        {"linalg_qr.default", "; nothing is near"},
    };
    for (int k = 0; k < LEN(tests); k++) {
        char body[100];
        snprintf(body, sizeof body, "  a = torch.ops.aten.%s(x)\n  return a", tests[k][0]);
        expect_error(body, tests[k][1]);
    }
}

/* What is wrong, and a part of what is said about it. */
static const char *const errors[][2] = {
    {"  a = torch.ops.aten.mn.default(x, x)\n  return a",
     "test.fx:2:3: unknown op aten.mn.default; the nearest is aten.m"},
    {"  a = torch.ops.aten.mm.default(x, x)\n  return a", "test.fx:2:3: aten.mm.default: mm"},
    {"\n\n  a = torch.ops.aten.mkldnn_convolution.default(x, x)\n  return a",
     "test.fx:4:3: aten.mkldnn_convolution.default is refused: it is a convolution in a layout of"},
    {"  b = torch.ops.aten.reshape.default(x, [1, 1, 2, 4])\n"
     "  a = torch.ops.aten._adaptive_avg_pool2d.default(b, [2, 0])\n  return a",
     "expected sizes of 1 to 2147483647 for axes of as many elements, found 0 for 4"},
    {"  a = torch.ops.aten.upsample_nearest1d.default(x, [4])\n  return a",
     "expected floats [N, C, ...] with 1 axes of space, found f32[2, 4]"},
    {"  b = torch.ops.aten.reshape.default(x, [1, 2, 4])\n"
     "  a = torch.ops.aten.conv1d.padding(b, x, None, [2], 'same')\n  return a",
     "argument weight: expected 1 to 3 axes of space"},
    {"  b = torch.ops.aten.reshape.default(x, [1, 2, 4])\n"
     "  a = torch.ops.aten.conv1d.padding(b, b, None, [2], 'same')\n  return a",
     "argument stride: expected 1 with padding \"same\", found 2"},
    {"  a = torch.ops.aten.sum.dim_IntList(x, [0], keep = True)\n  return a",
     "unknown argument keep"},
    {"  a = torch.ops.aten.sum.dim_IntList(x, 'a')\n  return a",
     "argument dim: expected int[]?, found a string"},
    {"  a: \"f32[4, 2]\" = torch.ops.aten.relu.default(x)\n  return a",
     "test.fx:2:3: aten.relu.default: a is annotated f32[4, 2], found f32[2, 4]"},
    {"  a: \"f64[2, 4]\" = torch.ops.aten.relu.default(x)\n  return a", "annotated f64"},
    {"  a: \"f32[2, s0]\" = torch.ops.aten.relu.default(x)\n  return a",
     "sizes must be numbers, found \"s0\", a symbol for any size\n  --shapes binds it"},
    {"  a: \"f32[u0, 4]\" = torch.ops.aten.relu.default(x)\n  return a",
     "sizes must be numbers, found \"u0\", a size that depends on data\n  instead of x[mask]"},
    {"  a: \"i8[2]\" = torch.ops.aten.relu.default(x)\n  return a",
     "a is annotated i8: that dtype is not supported"},
    {"  return z", "test.fx:2:10: nothing is named \"z\""},
    {"  a: \"f32[s0 + 1, 4]\" = torch.ops.aten.relu.default(x)\n  return a", "found \"s0 + 1\""},
    {"  return x[2]", "argument index: expected -2 to 1, found 2"},
    {"  return (x, 'a')", "a result must be a tensor, a number or None, found a string"},
    {"  a = 'x\n  return a", "test.fx:2:7: string without its end"},
    {"  a = (x\n  return a", "test.fx:3:3: expected"},
    {"  return torch.ops.aten.view.default(x, [-1, -1])",
     "argument size: expected at most one -1, found another on axis 1"},
    {"  a = 9223372036854775808\n  return a", "test.fx:2:7: integer out of range"},
    {"  a = -9223372036854775809\n  return a", "test.fx:2:8: integer out of range"},
    {"  a = 1x\n  return a", "test.fx:2:7: malformed number"},
    {"  a b\n  return a", "test.fx:2:5: expected the end of the statement, found \"b\""},
    {"  a = x\n", "expected return, found the end of the file"},
    {"def forward(x):\n  return x", "test.fx:1:13: this is a model's source"},
    {"def forward(self, q):\n  return q",
     "test.fx:1:19: input \"q\" has no type: the test does not have it"},
    {"def forward(self, x: \"f32[3]\"):\n  return x",
     "input \"x\" is annotated f32[3], found f32[2, 4] in the test"},
    {"  e = torch.ops.aten.empty_like.default(x)\n  return e",
     "reads a tensor that line 2 made empty"},
    {"  e = torch.ops.aten.empty_like.default(y)\n"
     "  h = torch.ops.aten.slice.Tensor(e, 0, 0, 2)\n"
     "  f = torch.ops.aten.fill_.Scalar(h, 1)\n  g = torch.ops.aten.fill_.Scalar(h, 2)\n"
     "  return e",
     "reads a tensor that line 2 made empty"},
    {"  e = torch.ops.aten.expand.default(s, [3])\n"
     "  f = torch.ops.aten.add_.Tensor(e, 1)\n  return e",
     "several of its elements share one place"},
    {"  e = torch.ops.aten.unfold.default(x, 1, 3, 1)\n"
     "  f = torch.ops.aten.add_.Tensor(e, 1)\n  return e",
     "test.fx:3:3: aten.add_.Tensor: writes in place through unfold, which is not supported"},
    {"  a = torch.ops.aten.div.Tensor_mode(x, 2, rounding_mode='\\x61b')\n  return a", "\"ab\""},
    {"  a = torch.ops.aten.kron.default(x, x)\n"
     "  e = torch.ops.aten.as_strided.default(a, [2], [1])\n  return e",
     "test.fx:3:3: aten.as_strided.default: the strides of what self is a view of are not "
     "known"},
    {"  a = torch.ops.aten.kron.default(x, x)\n  b = torch.ops.aten.ravel.default(a)\n"
     "  c = torch.ops.aten.add_.Tensor(a, 1)\n  return b",
     "on line 3 PyTorch makes a view or a copy, by strides that are not known"},
    {"  a = torch.ops.aten.kron.default(x, x)\n  b = torch.ops.aten.ravel.default(a)\n"
     "  c = torch.ops.aten.add_.Tensor(b, 1)\n  return (c, a)",
     "on line 3 PyTorch makes a view or a copy, by strides that are not known"},
    {"  a = torch.ops.aten.view.default(x, [8, 1, 1])\n"
     "  b = torch.ops.aten.pixel_shuffle.default(a, 8589934592)\n  return b",
     "expected axes C, H, W that the factor 8589934592 divides"},
    {"  a = torch.ops.aten.as_strided.default(x, [5], [2])\n  return a",
     "expected elements below 8, found 8"},
    {"  a = torch.ops.aten._foreach_add.List([x, x], [x])\n  return a",
     "argument other: expected 2 elements as in the lists before, found 1"},
    {"  a = torch.ops.aten._foreach_mul.ScalarList([x], [x])\n  return a",
     "argument scalars: expected Scalar[], found a list"},
    {"  a = torch.ops.aten._fused_sgd_.default([x], [], [], weight_decay = 0., momentum = 0., "
     "lr = 1., dampening = 0., nesterov = False, maximize = False, is_first_step = True)\n"
     "  return x",
     "argument grads: expected 1 tensors, found 0"},
    {"  a = torch.ops.aten.diagonal_scatter.default(x, s)\n  return a",
     "expected i64[2] to be put there, found f32[]"},
    {"  a = torch.ops.aten.native_group_norm.default(x, None, None, 2, 4, 1, 3, 1e-5)\n"
     "  return a",
     "a divisor of C as groups of f32[2, 4], found 2, 4 and 3"},
    {"  a = torch.ops.aten.rrelu.default(x, 0.1, 0.2, True)\n  return a",
     "its slopes are PyTorch's random numbers"},
    {"  a = torch.ops.aten.einsum.default('ij,j->il', [x, y])\n  return a",
     "no operand has the axis \"l\" of the result"},
    {"  a = torch.ops.aten.einsum.default('ij', [x, y])\n  return a",
     "expected 2 operands, this one with 2 axes"},
    {"  a = torch.ops.aten.pad.default(x, [1, 4], 'reflect')\n  return a",
     "expected to pad axis 1 of f32[2, 4] by less than all of the axis, found 4"},
    {"  a = torch.ops.aten.pad.default(x, [1, 1], 'mirror')\n  return a",
     "\"replicate\" or \"circular\", found \"mirror\""},
    {"  a = torch.ops.aten.cross_entropy_loss.default(x, i)\n  return a",
     "argument target: expected f32[2], found i64[3]"},
    {"ExportedProgram:\nclass A(M):\ndef forward(self, x):\n  return x\nGraph:\n",
     "test.fx:5:1: expected nothing more"},
    {"  a = \033[31m3\033[0m\n  return \033[x", "unexpected byte 27"},
    {"  a = torch.ops.aten.expand.default(x, [1, 1, 1, 2, 4])\n"
     "  b = torch.ops.aten.scaled_dot_product_attention.default(x, x, x, a)\n  return b",
     "argument attn_mask: expected at most 4 axes"},
    {"  a = torch.ops.aten.expand.default(x, [1, 1, 1, 2, 4])\n"
     "  b = torch.ops.aten.einsum.default('abcde,fghij', [a, a])\n  return b",
     "expected at most 8 axes"},
    {"  a = torch.ops.aten.relu_copy.default(x)\n  return a", "unknown op aten.relu_copy"},
    {"  a = torch.ops.aten.add_.Tensor(i, 0.5)\n  return a",
     "a result of f32 cannot be stored in i64"},
    {"  a = torch.ops.aten.mm.out(x, x)\n  return a", "argument out is missing"},
    {"  a = torch.ops.aten.add.out(x, x, out = y)\n  return a",
     "in place: expected a result of f32[4], found f32[2, 4]"},
    {"  a = torch.ops.aten.bincount.default(i, None, 3)\n  return a",
     "the shape of its result depends on data"},
    {"  a = torch.ops.aten.nonzero.default(x)\n  return a", "depends on data"},
    {"  a = torch.ops.aten.nll_loss2d_backward.default(s, x, i, None, 1, 0, s)\n  return a",
     "expected self [N, C, H, W] and target [N, H, W], found f32[2, 4] and i64[3]"},
    {"  a = self.c\n  return a", "constant self.c has no type"},
    {"  a = torch.ops.aten._assert_tensor_metadata.default(x, [2, 3])\n  return x",
     "expected f32[2, 3], found f32[2, 4]"},
    {"  a = torch.ops.aten.randperm.default(4)\n  return a", "random numbers are not ours"},
    {"  a = torch.ops.aten.uniform_.default(x, 1.0, 0.0)\n  return a", "expected from <= to"},
    {"  a = torch.ops.aten.exponential_.default(x, 0.0)\n  return a",
     "expected more than 0, found 0"},
    {"  a = torch.ops.aten.randint.default(33554432, [4])\n  return a", "both of at most 2^24"},
    {"  a, b = torch.ops.aten.split.Tensor(y, 1)\n  return a",
     "expected 2 values to unpack, found 4"},
};

/* Texts that are no code of ATen calls, what they are called and what helps. */
static const char *const foreign[][3] = {
    {"graph():\n    %forward : [num_users=1] = placeholder[target=x]\n    return forward\n",
     "test.fx:1:1: this is what print(gm.graph) shows, a list of nodes", "  print(gm.code), or"},
    {"graph():\n    %forward : [num_users=1] = call_module[target=layer.0](args = (%x,))\n",
     "shows of torch.fx.symbolic_trace, which calls modules and methods", "  make_fx(model)"},
    {"graph(%self.1 : __torch__.forward,\n      %x : Float(2, 4)):\n", "this is TorchScript",
     "  make_fx(model)"},
    {"M(\n  (forward): Linear(in_features=4, out_features=8, bias=True)\n)\n",
     "test.fx:4:1: these are the layers of a model, without code", "  make_fx(model)"},
    {"  a = getattr(self.layer, \"0\")(x)\n  return a", "test.fx:2:15: calls a module",
     "  make_fx(model)"},
    {"  a = self.layer.0(x)\n  return a", "test.fx:2:7: calls a module", "  make_fx(model)"},
    {"  a = self.out(x)\n  return a", "test.fx:2:7: calls a module", "run_decompositions()"},
    {"  a = x[0].view(2)\n  return a", "calls a method", "  make_fx(model)"},
    {"  a = x.view(2)\n  return a", "test.fx:2:7: unknown op x.view, no call of torch.ops",
     "  make_fx(model)"},
    {"def forward(self, a):\n  return torch.relu(a)", "test.fx:2:10: unknown op torch.relu",
     "  make_fx(model)"},
    {"  return x\nclass B(torch.nn.Module):\n", "test.fx:4:1: expected def", "def"},
    {"def forward(self):\n  return 1\nclass B(torch.nn.Module):\n  def forward(self):\n    return "
     "1\n",
     "test.fx:3:1: a module inside of another", "  program.run_decompositions()"},
    {"  a = torch.ops.higher_order.wrap_with_set_grad_enabled(False, self.m, x)\n  return a",
     "test.fx:2:7: unknown op torch.ops.higher_order.wrap_with_set_grad_enabled, a module inside",
     "expected its code too: print(program)"},
    {"  a = torch.amp.autocast_mode._enter_autocast('cpu', torch.bfloat16, True, False)\n  return "
     "x",
     "autocast, whose casts a trace made before dispatch does not show", "  make_fx(model)"},
    {"def forward(self,\n    x: Tensor) -> Tensor:\n  return torch.relu(x)\n",
     "test.fx:2:8: this is the code of TorchScript", "  make_fx(model)"},
    {"import torch\nclass M(torch.nn.Module):\n  def __init__(s):\n    super().__init__()\n  def "
     "forward(s, x):\n",
     "test.fx:3:16: this is a model's source", "  make_fx(model)"},
    {"class M(torch.nn.Module):\n  def forward(s, x):\n    return x\n",
     "test.fx:2:15: this is a model's source", "  make_fx(model)"},
    {"\n# inputs\nforward: PARAMETER target='w'\nx: USER_INPUT\n\n# outputs\nmul: USER_OUTPUT\n",
     "test.fx:3:8: this is a program's signature, without code", "  print(program), not"},
    {"ExportGraphSignature(input_specs=[forward])\n", "this is a program's signature",
     "  print(program), not"},
    {"opcode       name    target    args    kwargs\n-------  ------  ----\nplaceholder  forward\n",
     "test.fx:1:1: this is what print_tabular shows", "  print(gm.code), or"},
};

static void test_foreign(void)
{
    for (int k = 0; k < LEN(foreign); k++)
        for (int part = 1; part < 3; part++)
            expect_error(foreign[k][0], foreign[k][part]);
}

/* Masks: what they select has a shape only where it is put by one row or number, or summed. */
static const char *const masks[][2] = {
    {"  a = torch.ops.aten.index_put.default(x, [None, y > 0], s)\n  return a",
     "where(%a.gt, %s, %x)"},
    {"  a = torch.ops.aten.index_put.default(x, [x > 0], s, True)\n  return a",
     "where(%a.gt, %a.add, %x)"},
    {"  m = torch.ops.aten.index.Tensor(x, [None, y > 0])\n"
     "  return torch.ops.aten.sum.dim_IntList(m, [-1])",
     "sum(%m.where, dim=[-1])"},
    {"  j = torch.ops.aten._to_copy.default(i, dtype = torch.int32)\n"
     "  return torch.ops.aten.index.Tensor(x, [i, j])",
     "dtype=i64)"},
};

static const char *const mask_errors[][2] = {
    {"  m = torch.ops.aten.index.Tensor(x, [x > 0])\n  return m",
     "found what a mask selects, whose shape depends on data"},
    {"  m = torch.ops.aten.index.Tensor(x, [None, y > 0])\n  a = torch.ops.aten.relu.default(m)\n"
     "  return a",
     "argument self: expected Tensor, found what a mask selects"},
    {"  m = torch.ops.aten.index.Tensor(x, [None, y > 0])\n"
     "  return torch.ops.aten.sum.dim_IntList(m, [0])",
     "no sum over that axis"},
    {"  a = torch.ops.aten.index_put.default(x, [None, y > 0], y)\n  return a",
     "expected one row or number for all of them, found f32[4]"},
    {"  a = torch.ops.aten.index_put.default(x, [y > 0], s)\n  return a",
     "expected a mask of axes of f32[2, 4] from axis 0 on, found bool[4]"},
    {"  a = torch.ops.aten.index_put.default(x, [i, y > 0], s)\n  return a",
     "a mask selects as many elements as data says"},
    {"  a = torch.ops.aten.scatter_reduce.two(x, 0, i, y, 'median')\n  return a",
     "expected \"sum\", \"mean\", \"amax\", \"amin\" or \"prod\", found \"median\""},
};

static void test_masks(void)
{
    for (int k = 0; k < LEN(masks); k++)
        expect_text(masks[k][0], masks[k][1]);
    for (int k = 0; k < LEN(mask_errors); k++)
        expect_error(mask_errors[k][0], mask_errors[k][1]);
}

#define PAIRS                                                       \
    "  v = torch.ops.aten.view.default(x, [4, 2])\n"                \
    "  c: \"c64[4]\" = torch.ops.aten.view_as_complex.default(v)\n" \
    "  f = torch.ops.aten.polar.default(torch.ops.aten.ones_like.default(y), y)\n"

/* Complex numbers are two real parts as long as they rotate. */
static void test_complex(void)
{
    static const char *const bad[][2] = {
        {"  a = torch.ops.aten.exp.default(c)\n  return a",
         "aten.exp.default of complex numbers is not supported: only what rotates pairs is"},
        {"  a = torch.ops.aten.mul_.Tensor(c, f)\n  return a", "in place of complex numbers"},
        {"  a = torch.ops.aten.div.Tensor(c, f)\n  return a", "by a complex number of complex"},
        {"  a = torch.ops.aten.add.Tensor(c, y)\n  return a", "with a real tensor of complex"},
        {"  return complex(0.0, 1.0)",
         "a result must be a tensor, a number or None, found a complex number"},
        {"  a = torch.ops.aten.view_as_complex.default(x)\n  return a",
         "expected 2 elements on the last axis, found f32[2, 4]"},
        {"  a = torch.ops.aten.view_as_real.default(x)\n  return a",
         "expected a complex tensor, found f32[2, 4]"},
        {"  a = torch.ops.aten.mul.Tensor(c, complex(1, y))\n  return a", "expected numbers"},
        {"  a = torch.ops.aten.view.dtype(x, torch.int32)\n  return a",
         "bits cannot be read as another dtype"},
    };
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    expect_text(PAIRS "  m = torch.ops.aten.mul.Tensor(c, torch.ops.aten._conj.default(f))\n"
                      "  return torch.ops.aten.view_as_real.default(m)",
                "%m.imag: f32[4] = add(");
    expect_text(PAIRS "  m = torch.ops.aten.mul.Tensor(c, complex(0.0, 1.0))\n"
                      "  return torch.ops.aten.imag.default(m)",
                "return %m.imag");
    for (int k = 0; k < LEN(bad); k++)
        expect_error(arena_printf(a, PAIRS "%s", bad[k][0]), bad[k][1]);
    arena_free(a);
}

/* What stands beside the calls of torch.ops: no_grad, tuples with names; and parts of empty tensors
 * that are written by making another. */
static void test_beside(void)
{
    expect_text("  _g = torch._C._set_grad_enabled(False);  _g = None\n"
                "  a = torch.ops.aten.neg.default(x)\n"
                "  b, c = torch.ops.aten.sort.default(y)\n"
                "  _g1 = torch._C._set_grad_enabled(True)\n"
                "  d = torch.ops.aten.neg.default(a)\n  return (d, b)",
                "%a: f32[2, 4] = detach(%a.neg)  forward\n  %b");
    expect_text(
        "  _g = torch._C._set_grad_enabled(False)\n  _h = torch._C._set_grad_enabled(True)\n"
        "  a = torch.ops.aten.neg.default(x)\n  return a",
        "%a: f32[2, 4] = neg(%x)");
    expect_text("  a = torch.ops.aten.neg.default(x)\n"
                "  return (torch.nn.modules.adaptive._ASMoutput(a, loss = x), y)",
                "return %a, %x, %y");
    static const char half[] = "  e = torch.ops.aten.empty.memory_format([2, 4])\n"
                               "  h = torch.ops.aten.ones.default([2, 2])\n"
                               "  a = torch.ops.aten.slice_scatter.default(e, h, 1, 0, 2)\n";
    char text[400];
    snprintf(text, sizeof text, "%s%s", half,
             "  b = torch.ops.aten.slice_scatter.default(a, h, 1, 2, 4)\n  return b");
    expect_text(text, "slice_scatter(%b.clone, %h, dim=1, start=2, end=4)");
    snprintf(text, sizeof text, "%s  return a", half);
    expect_error(text, "reads a tensor that line 2 made empty before all of it was written");
    snprintf(text, sizeof text, "%s  return e", half);
    expect_error(text, "reads a tensor that line 2 made empty before all of it was written");
}

static void test_paths(void)
{
    expect_text("def forward(self, a: \"f32[3]\"):\n"
                "  c: \"f32[3]\" = getattr(self.layer, \"0\").weight\n"
                "  d: \"f32[3]\" = self.layer.1.bias\n  _guards_fn = self._guards_fn(a)\n"
                "  return a * c + d\n",
                "%layer.0.weight: f32[3] const \"layer.0.weight\",\n"
                "    %layer.1.bias: f32[3] const \"layer.1.bias\"");
    expect_text("  return torch.ops.prims.mul.default(x, x)", "mul(%x, %x)");
    expect_text("  return torch.ops.prims.neg.default(x)", "neg(%x)");
    expect_text("  return torch.ops.prims.broadcast_in_dim.default(y, [3, 4, 2], [1])",
                "view(%y, size=[1, 4, 1])");
    expect_error("  a = torch.ops.prims.sum.default(x, [2])\n  return a",
                 "argument dim: expected axes below 2, found 2");
}

static void test_errors(void)
{
    for (int k = 0; k < LEN(errors); k++)
        expect_error(errors[k][0], errors[k][1]);
}

static void list_unknown(void *arg)
{
    Input *in = arg;
    in->printed = fx_unknown(in->a, in->text, "test.fx", false);
}

static void test_unknown(void)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Input in =
        input(a, HEAD "  a = torch.ops.aten.foo.default(x)\n"
                      "  b = torch.ops.aten.nonzero.default(a)\n"
                      "  c = torch.ops.aten.foo.default(b)\n  return torch.ops.aten.mm.nothing(c)");
    EXPECT(ctx_try(&ctx, list_unknown, &in) == TN_OK);
    EXPECT(strstr(in.printed, "test.fx:2: torch.ops.aten.foo.default, 2 times"));
    EXPECT(strstr(in.printed, "test.fx:3: torch.ops.aten.nonzero.default, 1 time; the shape"));
    EXPECT(strstr(in.printed, "aten.mm.nothing"));
    in.text = HEAD "  return torch.ops.aten.neg.default(x)\n";
    EXPECT(ctx_try(&ctx, list_unknown, &in) == TN_OK);
    EXPECT(!in.printed);
    arena_free(a);
}

/* ---- cut short at every byte ---- */

static void read_file(void *arg)
{
    Input *in = arg;
    size_t n;
    in->text = file_read(in->a, in->text, &n);
}

static void test_cut(const char *path)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx), *tmp = arena_new(&ctx);
    Input whole = {.a = a, .text = path};
    CHECK(ctx_try(&ctx, read_file, &whole) == TN_OK);
    size_t n = strlen(whole.text), good = 0;
    for (size_t k = 0; k <= n; k++) {
        Input in = input(tmp, arena_strndup(tmp, whole.text, k));
        static const char *const names[] = {"x_1", "w1_1", "w2_1"};
        static const Type types[] = {{F32, 2, {2, 4}}, {F32, 2, {4, 8}}, {F32, 2, {8, 4}}};
        in.o = (FxOptions){.ninput = 3, .name = names, .type = types, .origin = "the test"};
        bool fine = ctx_try(&ctx, import, &in) == TN_OK;
        good += fine;
        if (!fine && !EXPECT(!strncmp(ctx.message, "test.fx:", 8)))
            printf("  %s cut at %zu: %s\n", path, k, ctx.message);
        if (k == n && !EXPECT(fine))
            printf("  %s: %s\n", path, ctx.message);
        arena_reset(tmp);
    }
    EXPECT(good < 60); /* only within what follows the result */
    arena_free(tmp);
    arena_free(a);
}

int main(void)
{
    test_accepted();
    test_elsewhere();
    test_bools();
    test_integers();
    test_metadata();
    test_writes();
    test_nearest();
    test_deep();
    test_errors();
    test_foreign();
    test_masks();
    test_complex();
    test_paths();
    test_beside();
    test_unknown();
    test_cut("tests/fx/vanilla_ac/graph.txt");
    test_cut("tests/fx/text/strange.fx");
    return test_report();
}
