/* The search for steps of so many nodes that few plans can be made, on smaller ones, of blocks with
 * drawn widths, ops and heads, with scopes and without: what it chooses fits each of several
 * limits, is never slower than with all computed again, nor than within a smaller limit, and is the
 * same when it is asked for again; its plan is that of the graph. TN_LONG=1: more of them. */
#include "../../src/decide/again.h"
#include "../../src/run/run.h"
#include "../shared/test.h"

#include <string.h>

enum { BLOCKS = 24, LIMITS = 7, WIDTH = 64, ROWS = 512 };

/* ---- the graph ---- */

typedef struct Drawing {
    Buf params, nodes;
    const char *scope;
    uint64_t seed, drawn;
} Drawing;

static int draw(Drawing *x, int most)
{
    return (int)(random_uniform(x->seed, 0, 0, x->drawn++) * (float)most);
}

static void draw_mlp(Drawing *x, int i)
{
    static const char *const op[] = {"gelu", "silu", "tanh", "sin", "sigmoid"};
    const int width = 16 * (1 + draw(x, 24));
    Buf *b = &x->nodes;
    buf_printf(&x->params, ", %%u%d: f32[%d, %d] param \"u%d\", %%d%d: f32[%d, %d] param \"d%d\"",
               i, WIDTH, width, i, i, width, WIDTH, i);
    buf_printf(b, "  %%a%d_0 = mm(%%x%d, %%u%d)%s\n", i, i, i, x->scope);
    const int n = 1 + draw(x, 3);
    for (int k = 1; k <= n; k++)
        buf_printf(b, "  %%a%d_%d = %s(%%a%d_%d)%s\n", i, k, op[draw(x, LEN(op))], i, k - 1,
                   x->scope);
    buf_printf(b, "  %%y%d = mm(%%a%d_%d, %%d%d)%s\n", i, i, n, i, x->scope);
}

static void draw_attention(Drawing *x, int i)
{
    const int heads = 1 + draw(x, 4), size = 8 * (1 + draw(x, 4)), width = heads * size;
    Buf *b = &x->nodes;
    for (const char *p = "qkv"; *p; p++) {
        buf_printf(&x->params, ", %%%c%d: f32[%d, %d] param \"%c%d\"", *p, i, WIDTH, width, *p, i);
        buf_printf(b, "  %%%cp%d = mm(%%x%d, %%%c%d)%s\n", *p, i, i, *p, i, x->scope);
        buf_printf(b, "  %%%ch%d = view(%%%cp%d, size=[1, %d, %d, %d])%s\n", *p, i, *p, i, ROWS,
                   heads, size, x->scope);
    }
    buf_printf(&x->params, ", %%p%d: f32[%d, %d] param \"p%d\"", i, width, WIDTH, i);
    buf_printf(b, "  %%o%d, %%s%d = flash_attention(%%qh%d, %%kh%d, %%vh%d, causal=true)%s\n", i, i,
               i, i, i, x->scope);
    buf_printf(b, "  %%of%d = view(%%o%d, size=[%d, %d])%s\n", i, i, ROWS, width, x->scope);
    buf_printf(b, "  %%y%d = mm(%%of%d, %%p%d)%s\n", i, i, i, x->scope);
}

static const char *draw_graph(Arena *a, uint64_t seed, bool scoped)
{
    Drawing x = {.params.a = a, .nodes.a = a, .scope = "  forward", .seed = seed};
    buf_printf(&x.nodes, "  %%h0 = tanh(%%x)  forward\n");
    for (int i = 0; i < BLOCKS; i++) {
        if (scoped)
            x.scope = arena_printf(a, "  @\"layers.%d\" forward", i);
        buf_printf(&x.params, ", %%n%d: f32[%d] param \"n%d\"", i, WIDTH, i);
        buf_printf(&x.nodes, "  %%x%d, %%r%d = rms_norm(%%h%d, %%n%d)%s\n", i, i, i, i, x.scope);
        if (draw(&x, 2))
            draw_mlp(&x, i);
        else
            draw_attention(&x, i);
        buf_printf(&x.nodes, "  %%h%d = add(%%h%d, %%y%d)%s\n", i + 1, i, i, x.scope);
    }
    return arena_printf(a,
                        "tenon 1\ngraph large(%%x: f32[%d, %d] batch%s) {\n%s"
                        "  %%l = sum(%%h%d)  loss\n  return loss %%l\n}\n",
                        ROWS, WIDTH, x.params.text, x.nodes.text, BLOCKS);
}

/* ---- what is chosen ---- */

typedef struct Large {
    PassOptions o;
    PassWalk w;
    ChunkAsked chunk;
    DecideTask t;
} Large;

static void begin(Large *x, tn_graph *g, bool ordered)
{
    const Globs off = {0};
    x->o = pass_defaults();
    x->o.machine = "avx512_bf16";
    pass_target(&x->o, g->h.a);
    x->chunk = chunk_asked(g->h.a, &off);
    x->w = passes_begin(g->g, "default", &x->o);
    x->t = (DecideTask){.to = {.device = x->o.device, .machine = x->o.prices},
                        .ordered = ordered,
                        .fuses = true,
                        .chunk = &x->chunk};
}

/* The choice within a limit. */
static Planned choose_within(Large *x, Arena *a, int64_t memory)
{
    AgainReport r = {.a = a};
    x->t.memory = memory;
    Decider d = again_new(&x->w, &x->t, &x->o, &r);
    EXPECT(again_begin(&d));
    plan_full(&d, &r.none);
    r.chosen = r.none;
    EXPECT(plan_fits(&d, &r.none) || choose_large(&d));
    const Planned y = {.need = r.chosen.need, .peak = r.chosen.peak, .sec = r.chosen.sec};
    arena_reset(d.keep);
    return y;
}

/* All saved, and all computed again. */
static void plan_ends(Large *x, Arena *a, Planned *none, Planned *all)
{
    AgainReport r = {.a = a};
    Decider d = again_new(&x->w, &x->t, &x->o, &r);
    EXPECT(again_begin(&d));
    plan_full(&d, none);
    const Ladder l = ladder_new(d.keep, d.step, d.o.prices, d.blocks.of, NULL, false);
    all->level = levels_of_steps(&d, &l, l.n);
    plan_full(&d, all);
    none->level = all->level = NULL;
    arena_reset(d.keep);
}

/* The plan of what is decided is that of the graph in its order, and of no other. */
static void test_made(Large *x, Arena *a, int64_t memory)
{
    AgainReport r = {.a = a};
    x->t.memory = memory;
    x->t.keeps = true;
    again_choose(&x->w, &x->t, &x->o, &r);
    PlanFor to = x->t.to;
    to.limit = memory;
    again_apply(&r, x->w.g, &x->o);
    passes_until(&x->w, NULL);
    AgainReport turned = r;
    const Plan *made = again_made(&r, x->w.g, &to, false), *p = plan_make(a, x->w.g, &to);
    EXPECT(made && plan_hash(made) == plan_hash(p) && made->order_bound == p->order_bound &&
           plan_least(p) == r.chosen.need && p->est.step == r.chosen.sec);
    EXPECT(!again_made(&turned, x->w.g, &to, true));
}

static void test_limits(uint64_t seed, bool scoped, bool ordered)
{
    tn_context *ctx = tn_context_new();
    tn_graph *g;
    Large x;
    Planned none = {0}, all = {0};
    CHECK(ctx);
    Arena *text = arena_new(&ctx->ctx);
    if (!EXPECT(!tn_graph_parse(ctx, draw_graph(text, seed, scoped), "drawn", &g)))
        printf("  %s\n", tn_error(ctx));
    begin(&x, g, ordered);
    EXPECT(passes_until(&x.w, "policies"));
    plan_ends(&x, g->h.a, &none, &all);
    EXPECT(all.need < none.need && all.sec > none.sec);
    double last = all.sec;
    for (int i = 1; i <= LIMITS; i++) {
        const int64_t memory = all.need + (none.need - all.need) * i / LIMITS;
        const Planned y = choose_within(&x, g->h.a, memory);
        if (!EXPECT(y.need <= memory && y.sec <= last))
            printf("  seed %d: within %lld bytes %lld, %.9g s, before %.9g s\n", (int)seed,
                   (long long)memory, (long long)y.need, y.sec, last);
        last = y.sec;
        if (i == LIMITS / 2) {
            const Planned z = choose_within(&x, g->h.a, memory);
            EXPECT(z.need == y.need && z.sec == y.sec && y.sec < all.sec);
        }
    }
    EXPECT(last == none.sec);
    if (!ordered)
        test_made(&x, g->h.a, (all.need + none.need) / 2);
    arena_free(text);
    tn_context_free(ctx);
}

int main(void)
{
    const int n = getenv("TN_LONG") ? 12 : 2;
    for (int i = 0; i < n; i++)
        test_limits((uint64_t)i + 1, i % 2, i % 4 == 1);
    return test_report();
}
