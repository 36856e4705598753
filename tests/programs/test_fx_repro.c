/* Repro files, as PyTorch writes them to be attached to reports: what is read of them, complex
 * inputs and results, groups, errors with their place, and every way of being cut short. */
#include "../shared/fx.h"

/* A file of two ranks' groups; each part may be another. */
typedef struct Parts {
    const char *init, *args, *body, *load, *groups;
} Parts;

#define LOAD                                                                                   \
    "    buf0 = reader.storage(None, 64, device=device(type='cuda', index=0), "                \
    "dtype_hint=torch.complex64)\n"                                                            \
    "    reader.tensor(buf0, (4, 2), dtype=torch.complex64, is_leaf=True)  # primals_1\n"      \
    "    buf1 = reader.storage(None, 32)\n"                                                    \
    "    reader.tensor(buf1, (4, 2), (1, 4), dtype=torch.bfloat16, requires_grad=True)  # w\n" \
    "    reader.symint(4)  # n\n"                                                              \
    "    reader.const('none')  # none, filtered out during compilation\n"
#define STORAGE "    b = reader.storage(None, 4096)\n"
#define BODY    "        c = torch.ops.aten.mul.Tensor(primals_1, primals_1);  primals_1 = None\n"
#define GROUPS                                                  \
    "def get_pg_config():\n    \"\"\"Groups.\n\n  'A' world.\n" \
    "    \"\"\"\n    return {'0': {'size': 4, 'rank': 1}, '1': {'size': 2, 'rank': 0}}\n"

static const char *repro(Arena *a, Parts p)
{
    return arena_printf(
        a,
        "import torch\ntorch._inductor.config.max_autotune = False\nif True:\n    x = {1: '('}\n\n"
        "class Repro(torch.nn.Module):\n    def __init__(self) -> None:\n        "
        "super().__init__()\n%s\n    def forward(self, %s):\n%s\n"
        "def load_args(reader):\n%sload_args._version = 0\nmod = Repro()\n%s",
        p.init ? p.init : "", p.args ? p.args : "primals_1, w, n, none",
        p.body ? p.body : BODY "        return (c, none)\n", p.load ? p.load : LOAD,
        p.groups ? p.groups : GROUPS);
}

static void expect_text(Parts p, const char *part)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Input in = {.a = a, .text = repro(a, p)};
    if (!EXPECT(ctx_try(&ctx, import, &in) == TN_OK))
        printf("  %s\n  %s\n", in.text, ctx.message);
    else if (!EXPECT(strstr(in.printed, part) || strstr(in.summary, part)))
        printf("  expected %s\n  found %s%s", part, in.printed, in.summary);
    arena_free(a);
}

static void expect_error(Parts p, const char *part)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Input in = {.a = a, .text = repro(a, p)};
    EXPECT_FAIL(&ctx, import, &in, part);
    arena_free(a);
}

/* ---- inputs ---- */

static void test_inputs(void)
{
    Parts used = {.body = "        v = torch.ops.aten.view.default(w, [n, 2])\n        return v\n"};
    expect_text(used, "%w: bf16[4, 2]");
    expect_text(used, "view(%w, size=[4, 2])");
    expect_text((Parts){.load =
                            "    # the order says which\n" STORAGE "    reader.tensor(b, (), )\n"
                            "    reader.tensor(b, shape=(3,), stride=(1,))\n",
                        .args = "a, b",
                        .body = "        c = torch.ops.aten.add.Tensor(a, b)\n        return c\n"},
                "%b: f32[3]");
    expect_text((Parts){.load = STORAGE
                        "    reader.tensor(b, (2,))  # b\n    reader.tensor(b, (3,))  # a\n",
                        .args = "a, b",
                        .body = "        c = torch.ops.aten.neg.default(a)\n        return c\n"},
                "%a: f32[3], %b: f32[2]");
    expect_text((Parts){.init = "        self.mask0 = lambda b, *args: True\n"}, "nodes ");
    expect_text((Parts){.args = "x: \"f32[2]\"",
                        .load = STORAGE "    reader.tensor(b, (2,))  # x\n",
                        .body = "        return x\n",
                        .groups = "if __name__ == '__main__':\n    run_repro(mod)\n"},
                "%x: f32[2]");
}

static void test_bad_inputs(void)
{
    static const char *const bad[][2] = {
        {"    reader.tensor(b, (2, 4), (1,))\n", ":15:30: load_args: expected as many strides"},
        {"    reader.tensor(b)\n", ":15:5: load_args: expected reader.tensor(storage, shape"},
        {"    reader.tensor(b, (8*((u0 + 1)//8), 4))\n",
         "load_args: expected a number as size, found one that depends on data"},
        {"    reader.tensor(b, (1, 1, 1, 1, 1, 1, 1, 1, 1))\n", "a tuple of at most 8 sizes"},
        {"    reader.tensor(b, (1, 1, 1, 1, 1, 1, 1, 1), dtype=torch.complex64)\n",
         "at most 7 axes of a complex tensor"},
        {"    reader.tensor(b, (-2, 4))\n",
         ":15:24: load_args: expected a size of 0 or more, found -2"},
        {"    reader.tensor(b, (2, 4), (-4, 1))\n", "expected a stride of 0 or more, found -4"},
        {"    reader.tensor(b, (2, 4), storage_offset=-1)\n",
         "expected a storage_offset of 0 or more, found -1"},
        {"    reader.opaque(b)\n", "expected a call of reader.storage, tensor, symint or const"},
        {"    u0 = 512\n", ":15:10: load_args: expected a call of the reader"},
        {"    reader.tensor(b, (4, 2), dtype=torch.int8)  # w\n",
         "input \"w\" is annotated torch.int8: that dtype is not supported"},
        {"    reader.symint(1)\n    reader.symint(1)\n    reader.symint(1)\n"
         "    reader.symint(1)\n    reader.symint(1)\n",
         "4 inputs as forward has, found more"},
        {"    reader.tensor(b, (4, 2)\n",
         "found the end of load_args; \"(\" at 15:18 is not closed"},
        {"    reader.tensor(b, (4, 2)\n    reader.tensor(b, (4, 2))\n",
         ":16:5: expected ,, found \"reader\"; \"(\" at 15:18 is not closed"},
        {"    pass\n", "a call of the reader"},
        {"    reader.tensor(b, (4, 2))  # w\n    reader.tensor(b, (4, 2))  # w\n",
         ":16:5: load_args: expected one call for input \"w\", found another on line 15"},
        {"    reader.tensor(b, (4, 2))\n    reader.symint(1)  # primals_1\n",
         "expected one call for input \"primals_1\", found another on line 15"},
    };
    for (int k = 0; k < LEN(bad); k++) {
        Ctx ctx = {0};
        Arena *a = arena_new(&ctx);
        expect_error(
            (Parts){.load = arena_printf(a, STORAGE "%s", bad[k][0]), .body = "        return w\n"},
            bad[k][1]);
        arena_free(a);
    }
    expect_error((Parts){.load = "    reader.symint(1)  # n\n", .body = "        return w\n"},
                 "input \"w\" has no type: load_args has no call for it; --inputs or --shapes");
}

/* forward and load_args say the same of an input, or it is an error. */
static void test_said_twice(void)
{
    Parts p = {.args = "x: \"f32[2, 3]\"", .body = "        return x\n", .groups = ""};
    p.load = STORAGE "    reader.tensor(b, (2, 3))  # x\n";
    expect_text(p, "%x: f32[2, 3]");
    p.load = STORAGE "    reader.tensor(b, (2, 4))  # x\n";
    expect_error(p, "expected f32[2, 3] as forward has input \"x\", found f32[2, 4]");
    p.load = "    reader.symint(4)  # x\n";
    expect_error(p, "expected reader.tensor for input \"x\", which forward has as f32[2, 3]");
}

/* A tensor lies within its storage. */
static void test_storages(void)
{
    static const struct Storage {
        const char *call, *error; /* error: NULL: it lies within 32 bytes */
    } storages[] = {
        {"(4, 2)", NULL},
        {"(4, 2), (2, 1)", NULL},
        {"(8, 2), (1, 0)", NULL},
        {"(16,), dtype=torch.bfloat16", NULL},
        {"(4,), dtype=torch.complex64", NULL},
        {"(3,), storage_offset=5", NULL},
        {"(3,), dtype=torch.complex64, storage_offset=1", NULL},
        {"(0, 1000)", NULL},
        {"(4, 2), dtype=torch.float8_e4m3fn", "is annotated torch.float8_e4m3fn"},
        {"(9,)", ":15:5: load_args: expected a storage of at least 36 bytes for this tensor, "
                 "found 32"},
        {"(4, 2), (3, 1)", "at least 44 bytes"},
        {"(17,), dtype=torch.bfloat16", "at least 34 bytes"},
        {"(5,), dtype=torch.complex64", "at least 40 bytes"},
        {"(4,), storage_offset=5", "at least 36 bytes"},
        {"(4,), dtype=torch.complex64, storage_offset=1", "at least 40 bytes"},
        {"(4611686018427387904, 4611686018427387904)", "at least 9223372036854775807 bytes"},
        {"(2,), (9223372036854775807,)", "at least 9223372036854775807 bytes"},
        {"(1,), storage_offset=9223372036854775807", "at least 9223372036854775807 bytes"},
    };
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Parts p = {.args = "x", .body = "        return x\n", .groups = ""};
    for (int k = 0; k < LEN(storages); k++) {
        const char *error = storages[k].error;
        p.load = arena_printf(a, "    b = reader.storage(None, 32)\n    reader.tensor(b, %s)\n",
                              storages[k].call);
        error ? expect_error(p, error) : expect_text(p, "input");
    }
    p.load = "    b = reader.storage(None, 0)\n    reader.tensor(b, (4,))\n";
    expect_text(p, "%x: f32[4]");
    p.load = "    b = reader.storage(None, 8*s0)\n    reader.tensor(b, (4,))\n";
    expect_text(p, "%x: f32[4]");
    p.load = "    b = reader.storage(None, -8)\n    reader.tensor(b, (4,))\n";
    expect_error(p, "expected a number of bytes of 0 or more, found -8");
    p.load = "    b = reader.storage(None)\n";
    expect_error(p, "expected reader.storage(hash, nbytes, ...)");
    p.load = "    reader.storage(None, 8)\n";
    expect_error(p, "expected a name for the storage");
    p.load = "    reader.tensor(b, (4,))\n";
    expect_error(p, ":14:19: load_args: expected a storage that reader.storage gave before");
    arena_free(a);
}

/* ---- parts that lack or are there twice ---- */

static void expect_without(const char *from, const char *to, const char *part)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    const char *whole = repro(a, (Parts){.body = "        return w\n"});
    const char *at = strstr(whole, from);
    CHECK(at);
    Input in = {.a = a,
                .text =
                    arena_printf(a, "%.*s%s%s", (int)(at - whole), whole, to, at + strlen(from))};
    EXPECT_FAIL(&ctx, import, &in, part);
    arena_free(a);
}

static void test_parts(void)
{
    expect_without("def load_args(", "def load_arks(",
                   "input \"w\" has no type: the file has no \"def load_args(reader):\"");
    expect_without("def load_args(reader):\n", "def load_args(reader\n",
                   "found the end of load_args; \"(\" at 13:14 is not closed");
    expect_without("def forward(", "def backward(",
                   "test.fx:6:1: class Repro: expected \"def forward(self, ...)\"");
    expect_without("mod = Repro()", "class Repro(X):", "expected one \"class Repro(\" in a file");
    expect_without("mod = Repro()", "def load_args(reader):\n    x",
                   "expected one \"def load_args(\" in a file, found another on line 13");
    expect_without("    return {'0'", "    raise {'0'",
                   "expected return {'NAME': {'size': N, 'rank': R}, ...}, found the end of "
                   "get_pg_config");
    expect_without("'rank': 0}}", "'rank': 0}", "found the end of get_pg_config; \"{\" at ");
}

/* ---- complex numbers ---- */

static void test_complex(void)
{
    expect_text((Parts){0}, "%primals_1: f32[4, 2, 2]");
    expect_text((Parts){0}, "primals_1 is complex: pairs of numbers, f32[4, 2, 2]");
    expect_text((Parts){0}, "output 0 is complex: pairs of numbers");
    expect_text((Parts){0}, "%c.real: f32[4, 2] = sub(");
    expect_text((Parts){.body = "        return (primals_1, w)\n"}, "f32[4, 2, 2] = cat(");
    expect_text((Parts){.args = "x: \"c64[2]\"", .load = "", .body = "        return x\n"},
                "%x: f32[2, 2]");
    expect_text(
        (Parts){.args = "x: \"c128[2, 3][3, 1]cuda:0\"",
                .load = "",
                .body = "        y: \"c128[3, 2]\" = torch.ops.aten.permute.default(x, [1, 0])\n"
                        "        return y\n"},
        "%x: f64[2, 3, 2]");
    expect_text((Parts){.body = "        t: \"c64[4]\" = self.table\n"
                                "        return torch.ops.aten.view_as_real.default(t)\n"},
                "%table: f32[4, 2] const \"table\"");
    expect_error((Parts){.body = "        c: \"c64[4]\" = torch.ops.aten.neg.default(primals_1)\n"
                                 "        return c\n"},
                 "c is annotated complex, pairs f32[4, 2], found complex, pairs f32[4, 2, 2]");
    expect_error((Parts){.body = "        c: \"c64[4]\" = torch.ops.aten.neg.default(w)\n"
                                 "        return c\n"},
                 "c is annotated complex, pairs f32[4, 2], found bf16[4, 2]");
    expect_error((Parts){.body = "        c: \"f32[4, 2, 2]\" = torch.ops.aten.neg.default("
                                 "primals_1)\n        return c\n"},
                 "c is annotated f32[4, 2, 2], found complex, pairs f32[4, 2, 2]");
    expect_error((Parts){.args = "x: \"c64[1, 1, 1, 1, 1, 1, 1, 1]\"",
                         .load = "",
                         .body = "        return x\n"},
                 "expected at most 7 sizes of a complex tensor");
}

/* ---- groups ---- */

#define GATHER(group, n)                                                                          \
    "        a" group " = torch.ops._c10d_functional.all_gather_into_tensor.default(w, " #n       \
    ", '" group "')\n        b" group " = torch.ops._c10d_functional.wait_tensor.default(a" group \
    ")\n"

static void test_groups(void)
{
    Parts both = {.body = GATHER("0", 4) GATHER("1", 2) "        return (b0, b1)\n"};
    expect_text(both, "mesh group_0=4,group_1=2: an axis for each process group");
    expect_text(both, "at(1, 0)");
    expect_text(both, "group=\"group_1\"");
    expect_text((Parts){.body = GATHER("1", 2) "        return b1\n"}, "mesh group_1=2:");
    both.groups = "if __name__ == '__main__':\n    from torch import x\n"
                  "    setup_fake_process_groups({'1': {'size': 2, 'rank': 1}})\n";
    both.body = GATHER("1", 2) "        return b1\n";
    expect_text(both, "at(1)");
    both.groups = "";
    expect_text(both, "group=\"1\"");
}

static void test_bad_groups(void)
{
    static const char *const bad[][2] = {
        {"def get_pg_config():\n    return {'0': {'size': 8, 'rank': 0}}\n",
         "group_size: expected the 8 ranks of \"group_0\" in the mesh group_0=8, found 4"},
        {"def get_pg_config():\n    return {'0': {'size': 4, 'rank': 4}}\n",
         "process groups: expected 'NAME': {'size': N, 'rank': R}, R below N"},
        {"def get_pg_config():\n    return {'0': 4}\n", "process groups: expected 'NAME'"},
        {"def get_pg_config():\n    return {0: {'size': 4, 'rank': 0}}\n", "expected 'NAME'"},
        {"def get_pg_config():\n    return 4\n", "process groups: expected {'NAME'"},
        {"def get_pg_config():\n    return {'1': {'size': 4, 'rank': 0}}\n",
         "group \"0\": expected a process group of the file; --mesh and --group"},
        {"def get_pg_config():\n    return {'0': {'size': 4, 'rank': 0}, '0': {'size': 4, "
         "'rank': 0}}\n",
         "process groups: expected each name once, found \"0\" twice"},
        {"def get_pg_config():\n    return {'0': {'size': 4, 'rank': 0}, '1': {'size': 2, "
         "'rank': 0}, '2': {'size': 2, 'rank': 0}}\n",
         "group \"0\" of 4 ranks: expected one that has no ranks of others together"},
    };
    for (int k = 0; k < LEN(bad); k++)
        expect_error((Parts){.body = GATHER("0", 4) GATHER("1", 2) GATHER("2", 2) "        return "
                                                                                  "(b0, b1)\n",
                             .groups = bad[k][0]},
                     bad[k][1]);
}

/* The file's groups beside a mesh, a rank and groups that are given. */
static void expect_given(const char *mesh, int64_t rank, const char *group, const char *part)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Mesh *m = mesh_parse(&ctx, a, mesh);
    const char *groups[] = {"0=dp", group};
    mesh_set_rank(m, rank);
    Input in = {.a = a,
                .text = repro(a, (Parts){.body = GATHER("0", 4) GATHER("1", 2) "        return "
                                                                               "(b0, b1)\n"}),
                .o.mesh = m,
                .o.ngroup = LEN(groups),
                .o.group = groups};
    if (*part)
        EXPECT_FAIL(&ctx, import, &in, part);
    else if (!EXPECT(ctx_try(&ctx, import, &in) == TN_OK))
        printf("  %s\n", ctx.message);
    arena_free(a);
}

static void test_given_groups(void)
{
    expect_given("dp=4,tp=2", 2, "1=tp", "");
    expect_given("tp=2,dp=4", 1, "1=tp", "");
    expect_given("dp=2,tp=2", 0, "1=tp",
                 "--group 0=dp: expected the 4 ranks that group \"0\" has in test.fx, found 2 in "
                 "the mesh dp=2,tp=2");
    expect_given("dp=4,tp=2", 0, "1=tp",
                 "--rank 0: expected place 1 in group \"0\", as test.fx says, found 0 of the mesh "
                 "dp=4,tp=2; --rank 2 agrees with it");
    expect_given("dp=4,tp=2", 3, "1=tp", "expected place 0 in group \"1\"");
    expect_given("dp=4", 1, "1=dp", "--group 1=dp: expected the 2 ranks");
}

/* ---- barriers ---- */

#define SEND "        s = torch.ops._c10d_functional.isend.default(w, 1, 0, '0')\n"
#define WAIT "        t = torch.ops._c10d_functional.wait_tensor.default(s);  s = t = None\n"

static void expect_barrier(const char *body, bool barriers, const char *part)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Input in = {.a = a, .text = repro(a, (Parts){.body = body}), .o.barriers = barriers};
    bool fine = ctx_try(&ctx, import, &in) == TN_OK;
    if (!EXPECT(fine ? strstr(in.printed, part) || strstr(in.summary, part)
                     : strstr(ctx.message, part) != NULL))
        printf("  expected %s\n  found %s%s\n", part, fine ? in.printed : ctx.message,
               fine ? in.summary : "");
    arena_free(a);
}

static void test_barriers(void)
{
    static const char unknown[] =
        "        y: \"f32[3]\" = torch.ops.lib.mix.default(w, [w, None], 2)"
        "\n        return y\n";
    expect_barrier(SEND WAIT "        return w\n", false,
                   "%s: bf16[0] = opaque(%w, call=\"_c10d_functional.isend.default\", size=[0], "
                   "dtype=bf16)  forward must_save");
    expect_barrier(SEND WAIT "        return w\n", false, "as barriers 1: planned, not run");
    expect_barrier("        r = torch.ops._c10d_functional.irecv.default(w, 1, 0, '0')\n"
                   "        return r\n",
                   false, "%r: bf16[4, 2] = opaque(%w, call=");
    expect_barrier(unknown, false, "unknown op lib.mix.default");
    expect_barrier(unknown, true, "%y: f32[3] = opaque(%w, %w, call=\"lib.mix.default\"");
    expect_barrier("        y = torch.ops.lib.mix.default(w)\n        return w\n", true,
                   "%y: f32[0] = opaque(%w, ");
    expect_barrier("        y = torch.ops.lib.mix.default(w)\n        return y\n", true,
                   "a barrier: expected the type of its result beside it");
    expect_barrier("        y: \"f32[3]\" = torch.ops.lib.mix.default(w)[0]\n        return y\n",
                   true, "a barrier: expected the type of its result beside it");
    expect_barrier("        y = torch.ops.lib.mix_.default(w)\n        return w\n", true,
                   "a barrier that writes to its argument is not supported");
    expect_barrier("        y = lib.mix(w)\n        return w\n", true, "no call of torch.ops");
}

/* ---- cut short at every byte, every byte another ---- */

/* A graph that prints, or a message that begins with a place or a name of the file. */
static void expect_told(Arena *tmp, const char *text, const char *how, size_t at)
{
    Ctx *ctx = arena_ctx(tmp);
    Input in = {.a = tmp, .text = text};
    bool fine = ctx_try(ctx, import, &in) == TN_OK;
    if (!fine && !EXPECT(!strncmp(ctx->message, "test.fx:", 8)))
        printf("  %s at %zu: %s\n", how, at, ctx->message);
    arena_reset(tmp);
}

/* Bytes that stand for others: 255 of each with TN_LONG, else those that mean most to the grammar
 * in turn. */
static void test_damage(void)
{
    static const char bytes[] = "()[]{}'\"#\n:,.=-09 x_;\\\x80\xff";
    bool all = getenv("TN_LONG") != NULL;
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx), *tmp = arena_new(&ctx);
    const char *whole = repro(a, (Parts){.body = GATHER("0", 4) BODY "        return (c, b0)\n"});
    size_t n = strlen(whole);
    char *copy = arena_strndup(a, whole, n);
    expect_text((Parts){.body = GATHER("0", 4) BODY "        return (c, b0)\n"}, "nodes ");
    for (size_t k = 0; k <= n; k++)
        expect_told(tmp, arena_strndup(tmp, whole, k), "cut", k);
    for (size_t k = 0; k < n; k++) {
        for (int c = 1; all && c < 256; c++) {
            copy[k] = (char)c;
            expect_told(tmp, copy, "changed", k);
        }
        for (size_t c = 0; !all && c < 2; c++) {
            copy[k] = bytes[(2 * k + c + k / 11) % (sizeof bytes - 1)];
            expect_told(tmp, copy, "changed", k);
        }
        copy[k] = whole[k];
    }
    arena_free(tmp);
    arena_free(a);
}

int main(void)
{
    test_inputs();
    test_bad_inputs();
    test_said_twice();
    test_storages();
    test_parts();
    test_complex();
    test_groups();
    test_bad_groups();
    test_given_groups();
    test_barriers();
    test_damage();
    return test_report();
}
