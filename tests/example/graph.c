/* A network of two layers learns to draw a sine: a graph built node by node, its gradient and
 * optimizer by passes, a plan that says what it needs, and steps that allocate nothing.
 *
 *     cc graph.c $(pkg-config --cflags --libs tenon) -lm -o graph */
#include <tenon.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 64, WIDTH = 32, STEPS = 300 };

static tn_context *ctx;

/* Every function that can fail returns a code; tn_error has the message. */
static void need(int code)
{
    if (code == TN_CODE_OK)
        return;
    fprintf(stderr, "graph: %s\n", tn_error(ctx));
    exit(code);
}

static tn_value *input(tn_graph *g, const char *name, int64_t rows, int64_t cols, const char *role)
{
    const int64_t shape[] = {rows, cols};
    const char *role_name = role[0] == 'p' ? name : NULL; /* parameters have a name */
    tn_value *v;
    need(tn_graph_input(g, name, "f32", 2, shape, role, role_name, &v));
    return v;
}

static tn_value *node(tn_graph *g, const char *op, tn_value *a, tn_value *b, const char *phase)
{
    tn_value *in[] = {a, b}, *out;
    need(tn_graph_node(g, op, b ? 2 : 1, in, NULL, "network", phase, 1, &out));
    return out;
}

/* loss = mean((gelu(x first) second - y)^2) */
static tn_graph *build(void)
{
    tn_graph *g;
    need(tn_graph_new(ctx, "sine", &g));
    tn_value *x = input(g, "x", ROWS, 2, "batch"), *y = input(g, "y", ROWS, 1, "batch");
    tn_value *first = input(g, "first", 2, WIDTH, "param");
    tn_value *second = input(g, "second", WIDTH, 1, "param");
    tn_value *h = node(g, "mm", x, first, "forward");
    h = node(g, "gelu", h, NULL, "forward");
    h = node(g, "mm", h, second, "forward");
    tn_value *difference = node(g, "sub", h, y, "loss");
    tn_value *square = node(g, "mul", difference, difference, "loss");
    need(tn_graph_output(g, node(g, "mean", square, NULL, "loss"), "loss", NULL));
    return g;
}

/* Programs have messages of their own: several may run at once. */
static void check(tn_program *p, int code)
{
    if (code == TN_CODE_OK)
        return;
    fprintf(stderr, "graph: %s\n", tn_program_error(p));
    exit(code);
}

static float draw(void)
{
    return 2 * (float)rand() / (float)RAND_MAX - 1;
}

/* New points in every step: what was in the arena before may have been overwritten. */
static void fill_batch(tn_program *p)
{
    float x[2 * ROWS], y[ROWS];
    for (int i = 0; i < ROWS; i++) {
        x[2 * i] = draw();
        x[2 * i + 1] = 1;
        y[i] = sinf(3 * x[2 * i]);
    }
    check(p, tn_program_write(p, "x", x, sizeof x));
    check(p, tn_program_write(p, "y", y, sizeof y));
}

/* They stay where they are, and each step changes them. */
static void fill_parameters(tn_program *p)
{
    float first[2 * WIDTH], second[WIDTH];
    for (int i = 0; i < 2 * WIDTH; i++)
        first[i] = draw();
    for (int i = 0; i < WIDTH; i++)
        second[i] = 0.2f * draw();
    check(p, tn_program_write(p, "first", first, sizeof first));
    check(p, tn_program_write(p, "second", second, sizeof second));
}

int main(void)
{
    ctx = tn_context_new();
    if (!ctx)
        return 1;
    tn_options o = tn_options_default();
    o.weight_decay = 0;
    tn_graph *g = build();
    need(tn_graph_passes(g, "grad,optimizer,canonicalize,cse,dce", &o, NULL, NULL));

    tn_plan *plan;
    tn_program *x;
    int64_t peak, persistent, reserve;
    need(tn_plan_new(g, &o, 1, &plan));
    tn_plan_bytes(plan, &peak, &persistent, &reserve);
    printf("a step takes %lld bytes, of which %lld stay\n", (long long)peak, (long long)persistent);
    need(tn_program_new(plan, &o, &x));

    float loss, lr = 0.02f;
    fill_parameters(x);
    check(x, tn_program_write(x, "lr", &lr, sizeof lr)); /* stays what it is */
    for (int64_t step = 1; step <= STEPS; step++) {
        fill_batch(x);
        check(x, tn_program_write(x, "step", &step, sizeof step));
        check(x, tn_program_run(x));
        check(x, tn_program_read(x, "loss", &loss, sizeof loss));
        if (step == 1 || step % 100 == 0)
            printf("step %d loss %.6f\n", (int)step, (double)loss);
    }
    tn_context_free(ctx); /* and everything that belongs to it */
    return 0;
}
