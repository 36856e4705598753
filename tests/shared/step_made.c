/* Random forwards: each node reads the last value or an earlier one; what nothing reads goes into
 * the loss. */
#include "step_made.h"

#include <string.h>

enum { MOST_MADE = 40 };

/* A forward that is being written. Value 0 is the input; each has as many rows. */
typedef struct Forward {
    Arena *a;
    Rng *rng;
    const StepForm *form;
    Buf params, nodes;
    int64_t cols[MOST_MADE];
    bool used[MOST_MADE];
    int n, nparam;
} Forward;

static int draw_value(Forward *f)
{
    int i = rng_chance(f->rng, f->form->last) ? f->n - 1 : (int)rng_below(f->rng, f->n);
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
    f->cols[f->n] = f->form->widths[rng_below(f->rng, f->form->nwidth)];
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
    static const char *const op[] = {"tanh", "gelu", "silu", "exp", "sin", "sigmoid", "neg"};
    CHECK(f->form->nunary <= LEN(op));
    buf_printf(&f->nodes, "  %%v%d = %s(%%v%d)", f->n, op[rng_below(f->rng, f->form->nunary)],
               from);
}

static void put_node(Forward *f)
{
    static void (*const put[])(Forward * f, int from) = {
        ['p'] = put_product, ['a'] = put_pair,    ['n'] = put_norm,
        ['v'] = put_views,   ['s'] = put_softmax, ['u'] = put_unary};
    const StepForm *m = f->form;
    int from = draw_value(f);
    f->cols[f->n] = f->cols[from];
    put[(int)m->kinds[rng_below(f->rng, (int64_t)strlen(m->kinds))]](f, from);
    if (m->block && !rng_chance(f->rng, m->scopeless))
        buf_printf(&f->nodes, "  @\"layers.%d.x\"", (f->n - 1) / m->block);
    bool save = m->save > 0 && rng_chance(f->rng, m->save);
    buf_printf(&f->nodes, " forward%s\n", save ? " must_save" : "");
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

const char *step_made(Arena *a, Rng *rng, const StepForm *form, int end)
{
    Forward f = {.a = a, .rng = rng, .form = form, .params = {.a = a}, .nodes = {.a = a}, .n = 1};
    CHECK(end <= MOST_MADE);
    f.cols[0] = form->columns;
    put_param(&f, shape_text(&f, 0, form->columns));
    buf_add(&f.nodes, "  %v1 = mul(%v0, %w0)  @\"embed\" forward\n");
    f.cols[f.n++] = form->columns;
    while (f.n < end)
        put_node(&f);
    put_loss(&f);
    return arena_printf(a, "tenon 1\ngraph step(%%v0: f32[%d, %lld] batch%s) {\n%s",
                        form->rows << rng_below(rng, form->nrows), (long long)form->columns,
                        f.params.text, f.nodes.text);
}
