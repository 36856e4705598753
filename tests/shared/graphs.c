/* What tests of whole graphs share. Random data is a function of an input's name, so that a graph
 * and what a pass made of it get the same. */
#include "graphs.h"

#include "interp.h"

#include <math.h>
#include <string.h>

/* ---- inputs ---- */

static double input_value(const Port *p, uint32_t stream, int64_t i)
{
    double u = random_uniform(11, stream, 0, (uint64_t)i);
    if (p->role == ROLE_STEP)
        return 3;
    if (!dtype_float(p->v->type.dtype))
        return u < 0.5;
    return p->role == ROLE_STATE ? 0.01 * u : p->role == ROLE_SCALAR ? 0.01 : 2 * u - 1;
}

Tensor *graphs_inputs(Arena *a, const Graph *g)
{
    Tensor *in = NEWN(a, Tensor, g->nin);
    for (int i = 0; i < g->nin; i++) {
        const Port *p = &g->in[i];
        uint32_t stream = (uint32_t)hash_bytes(p->v->name, strlen(p->v->name), 7);
        in[i] = tensor_new(a, &p->v->type, 0);
        for (int64_t e = 0, n = tensor_nelem(&in[i]); e < n; e++)
            tensor_set(&in[i], e, input_value(p, stream, e));
    }
    return in;
}

/* ---- running ---- */

Tensor *graphs_interpret(Arena *a, const Graph *g, const Tensor *in)
{
    Tensor *out = NEWN(a, Tensor, g->nout);
    interp_graph(a, g, in, out);
    return out;
}

static bool transfers(const Graph *g)
{
    bool found = false;
    for (const Node *n = g->first; n && !found; n = n->next) {
        found = node_copies_memory(n);
        EACH_BODY(b, n)
            found |= transfers(n->region->body[b]);
    }
    return found;
}

Plan *graphs_plan(Arena *a, Graph *g)
{
    PlanFor to = {.device = device_at(transfers(g) ? DEVICE_emulated : DEVICE_cpu)};
    return plan_make(a, g, &to);
}

Tensor *graphs_execute(Arena *a, Graph *g, const Tensor *in)
{
    Plan *p = graphs_plan(a, g);
    Program *x = program_make(a, p, true, 0);
    program_fill(x, 0xff);
    for (int i = 0; i < p->nin; i++)
        CHECK(!program_write(x, &p->in[i], 0, tensor_nbytes(&in[i]), in[i].data));
    if (program_run(x))
        fail(g->ctx, TN_FAIL, "%s", x->message);
    Tensor *out = NEWN(a, Tensor, g->nout);
    for (int i = 0; i < p->nout; i++) {
        out[i] = tensor_new(a, &p->out[i].type, 0);
        CHECK(!program_read(x, &p->out[i], 0, tensor_nbytes(&out[i]), out[i].data));
    }
    return out;
}

/* ---- comparing ---- */

double graphs_distance(const Tensor *got, const Tensor *want)
{
    double diff = 0, most = 0;
    for (int64_t i = 0, n = tensor_nelem(want); i < n; i++) {
        double x = tensor_get(got, tensor_linear(got, i));
        double y = tensor_get(want, tensor_linear(want, i));
        if (x == y || (isnan(x) && isnan(y)))
            x = y = isfinite(y) ? y : 0;
        diff = isfinite(x - y) ? fmax(diff, fabs(x - y)) : INFINITY;
        most = isfinite(y) ? fmax(most, fabs(y)) : most;
    }
    return diff > 0 ? diff / (most > 0 ? most : 1) : 0;
}

int graphs_output(const Graph *g, const Graph *h, int i)
{
    const Port *want = &h->out[i];
    for (int k = 0; k < g->nout; k++) {
        const Port *p = &g->out[k];
        bool named = want->name && p->name ? !strcmp(p->name, want->name) : want->name == p->name;
        if (p->role == want->role && named && (p->role != ROLE_NONE || k == i))
            return k;
    }
    return -1;
}

static double loss_of(Arena *tmp, const Graph *g, const Tensor *in)
{
    const Port *loss = graph_find_output(g, ROLE_LOSS, NULL);
    double y = tensor_get(&graphs_interpret(tmp, g, in)[loss - g->out], 0);
    arena_reset(tmp);
    return y;
}

/* By the five-point stencil, whose error is h^4. */
static double slope(Arena *tmp, const Graph *g, const Tensor *in, double *x)
{
    static const double at[4] = {-2, -1, 1, 2}, coefficient[4] = {1, -8, 8, -1};
    double old = *x, h = 1e-3, sum = 0;
    for (int j = 0; j < 4; j++) {
        *x = old + at[j] * h;
        sum += coefficient[j] * loss_of(tmp, g, in);
    }
    *x = old;
    return sum / (12 * h);
}

double graphs_gradient_error(Arena *a, const Graph *g, const Tensor *in, const char *name,
                             const Tensor *dx)
{
    Arena *tmp = arena_tmp(a);
    const Tensor *x = &in[graph_find_input(g, ROLE_PARAM, name) - g->in];
    double diff = 0, most = 1e-3;
    CHECK(x->dtype == F64);
    for (int64_t i = 0, n = tensor_nelem(x); i < n; i++) {
        double want = slope(tmp, g, in, (double *)(void *)x->data + i);
        diff = fmax(diff, fabs(tensor_get(dx, i) - want));
        most = fmax(most, fabs(want));
    }
    return diff / most;
}

/* ---- text and structure ---- */

const char *graphs_text(Arena *a, const Graph *g)
{
    Buf b = {.a = a};
    graph_print(&b, g);
    return b.text;
}

int graphs_count(const Graph *g, const char *op)
{
    int count = 0;
    for (const Node *n = g->first; n; n = n->next) {
        count += n->op == op_find(op);
        EACH_BODY(b, n)
            count += graphs_count(n->region->body[b], op);
    }
    return count;
}

/* Ops whose dtype, where they name none, is f32. */
static const char *const f32_by_default[] = {"rope_table(", " full("};

/* By text: every f32 becomes `dtype`, and such a default is said. */
static Graph *retype(Arena *a, const Graph *g, const char *dtype)
{
    Buf wide = {.a = a};
    for (const char *s = graphs_text(a, g); *s;) {
        int op = 0;
        while (op < LEN(f32_by_default) &&
               strncmp(s, f32_by_default[op], strlen(f32_by_default[op])))
            op++;
        size_t len = op < LEN(f32_by_default) ? strcspn(s, ")") : 0;
        if (!strncmp(s, "f32", 3)) {
            buf_add(&wide, dtype);
            s += 3;
        } else if (len && !strstr(arena_strndup(a, s, len), "dtype=")) {
            buf_printf(&wide, "%.*s, dtype=%s", (int)len, s, dtype);
            s += len;
        } else {
            buf_addn(&wide, s++, 1);
        }
    }
    return graph_parse(a, wide.text, dtype);
}

Graph *graphs_widen(Arena *a, const Graph *g)
{
    return retype(a, g, "f64");
}

Graph *graphs_narrow(Arena *a, const Graph *g)
{
    return retype(a, g, "bf16");
}

ModelConfig graphs_small(const char *preset)
{
    ModelConfig c = *config_preset(preset);
    c.nlayer = 2;
    c.vocab = 96;
    c.hidden = 64;
    c.intermediate = 128;
    c.nhead = 8;
    c.nkv = c.kind == MODEL_GPT2 ? 8 : 4;
    c.head_dim = 8;
    c.npos = 32;
    c.dropout = 0;
    return c;
}
