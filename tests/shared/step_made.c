/* Random forwards: each node reads the last value or an earlier one; what nothing reads goes into
 * the loss. */
#include "step_made.h"

enum { MOST_MADE = 24, BLOCK = 4 };

/* A forward that is being written. Value 0 is the input; each has as many rows. */
typedef struct Forward {
    Arena *a;
    Rng *rng;
    Buf params, nodes;
    int64_t cols[MOST_MADE];
    bool used[MOST_MADE];
    int n, nparam;
} Forward;

static int draw_value(Forward *f)
{
    int i = rng_chance(f->rng, 0.7) ? f->n - 1 : (int)rng_below(f->rng, f->n);
    f->used[i] = true;
    return i;
}

static int put_param(Forward *f, const char *shape)
{
    int i = f->nparam++;
    buf_printf(&f->params, ", %%w%d: f32[%s] param \"w%d\"", i, shape, i);
    return i;
}

static const char *shape_text(Forward *f, int64_t rows, int64_t cols)
{
    return rows ? arena_printf(f->a, "%lld, %lld", (long long)rows, (long long)cols)
                : arena_printf(f->a, "%lld", (long long)cols);
}

static void put_product(Forward *f, int from)
{
    static const int widths[] = {64, 128, 256, 384, 512, 1024};
    f->cols[f->n] = widths[rng_below(f->rng, LEN(widths))];
    int w = put_param(f, shape_text(f, f->cols[from], f->cols[f->n]));
    buf_printf(&f->nodes, "  %%v%d = mm(%%v%d, %%w%d)", f->n, from, w);
}

/* Reads another value with as many columns, or the same one twice. */
static void put_pair(Forward *f, int from)
{
    static const char *const op[] = {"add", "mul", "sub"};
    int other = from;
    for (int i = 0; i < f->n; i++)
        other = f->cols[i] == f->cols[from] && rng_chance(f->rng, 0.5) ? i : other;
    f->used[other] = true;
    buf_printf(&f->nodes, "  %%v%d = %s(%%v%d, %%v%d)", f->n, op[rng_below(f->rng, LEN(op))], from,
               other);
}

static void put_norm(Forward *f, int from)
{
    int w = put_param(f, shape_text(f, 0, f->cols[from]));
    buf_printf(&f->nodes, "  %%v%d, %%r%d = rms_norm(%%v%d, %%w%d)", f->n, f->n, from, w);
}

/* Views there and back. */
static void put_views(Forward *f, int from)
{
    buf_printf(&f->nodes, "  %%t%d = t(%%v%d)\n  %%v%d = t(%%t%d)", f->n, from, f->n, f->n);
}

static void put_softmax(Forward *f, int from)
{
    buf_printf(&f->nodes, "  %%v%d = _softmax(%%v%d, dim=1)", f->n, from);
}

static void put_unary(Forward *f, int from)
{
    static const char *const op[] = {"tanh", "gelu", "silu", "exp", "sin", "sigmoid"};
    buf_printf(&f->nodes, "  %%v%d = %s(%%v%d)", f->n, op[rng_below(f->rng, LEN(op))], from);
}

static void put_node(Forward *f, bool blocks)
{
    static void (*const put[])(Forward * f, int from) = {
        put_product, put_product, put_product, put_product, put_pair,  put_pair,
        put_norm,    put_views,   put_softmax, put_unary,   put_unary, put_unary};
    int from = draw_value(f);
    f->cols[f->n] = f->cols[from];
    put[rng_below(f->rng, LEN(put))](f, from);
    if (blocks && !rng_chance(f->rng, 0.1))
        buf_printf(&f->nodes, "  @\"layers.%d.x\"", (f->n - 1) / BLOCK);
    buf_add(&f->nodes, " forward\n");
    f->n++;
}

/* The sums of all values that nothing reads, added up. */
static void put_loss(Forward *f)
{
    const char *last = NULL;
    for (int i = 1; i < f->n; i++) {
        if (f->used[i])
            continue;
        buf_printf(&f->nodes, "  %%s%d = sum(%%v%d)  loss\n", i, i);
        if (last)
            buf_printf(&f->nodes, "  %%l%d = add(%%%s, %%s%d)  loss\n", i, last, i);
        last = arena_printf(f->a, "%c%d", last ? 'l' : 's', i);
    }
    buf_printf(&f->nodes, "  return loss %%%s\n}\n", last);
}

const char *step_made(Arena *a, Rng *rng, int nodes, bool blocks)
{
    Forward f = {.a = a, .rng = rng, .params = {.a = a}, .nodes = {.a = a}, .n = 1};
    f.cols[0] = 256;
    put_param(&f, "256");
    buf_add(&f.nodes, "  %v1 = mul(%v0, %w0)  @\"embed\" forward\n");
    f.cols[f.n++] = 256;
    while (f.n <= MIN(nodes, MOST_MADE - 1))
        put_node(&f, blocks);
    put_loss(&f);
    return arena_printf(a, "tenon 1\ngraph step(%%v0: f32[%d, 256] batch%s) {\n%s",
                        512 << rng_below(rng, 5), f.params.text, f.nodes.text);
}
