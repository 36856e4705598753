/* Forwards that PyTorch traced and differentiated (tests/fx_grad; docs there), differentiated by
 * the pass grad, planned and run: the loss, every gradient and every other result against PyTorch's
 * own. Ties, masked rows and values that stand for nothing elsewhere are its oracle's to decide:
 * finite differences cannot. A folder with `error` has a loss that is refused, with that text. */
#include "../../include/tenon.h"
#include "../../src/io/io.h"
#include "../../src/op/op.h"
#include "../shared/test.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

typedef struct Case {
    tn_context *ctx;
    Arena *a;
    const char *name;
    tn_program *x;
} Case;

static const char *path_of(const Case *c, const char *file)
{
    return arena_printf(c->a, "tests/fx_grad/%s/%s", c->name, file);
}

static bool ok(const Case *c, int code)
{
    if (!EXPECT(code == TN_CODE_OK))
        printf("  %s: %s\n", c->name, tn_error(c->ctx));
    return code == TN_CODE_OK;
}

/* A line of a file; NULL: there is none. */
static char *line_of(const Case *c, const char *file)
{
    char *line = NEWN(c->a, char, 400);
    FILE *f = fopen(path_of(c, file), "r");
    bool got = f && fgets(line, 400, f);
    if (f)
        fclose(f);
    line[strcspn(line, "\n")] = 0;
    return got ? line : NULL;
}

/* |got - want| / |want|, infinite where one has what the other has not: NaN, infinity. */
static double relative_error(const Tensor *got, const Tensor *want)
{
    double error = 0, size = 0;
    for (int64_t i = 0, n = want->dim[0]; i < n; i++) {
        double a = tensor_get(got, i), b = tensor_get(want, i);
        bool same = a == b || (isnan(a) && isnan(b));
        if (!same && !isfinite(a - b))
            return INFINITY;
        error += same ? 0 : (a - b) * (a - b);
        size += isfinite(b) ? b * b : 0;
    }
    return error > 0 ? sqrt(error / (size > 0 ? size : 1)) : 0;
}

static void compare(const Case *c)
{
    const TensorFile *f = tensors_open(c->a, path_of(c, "outputs.safetensors"));
    EXPECT(f->count > 0);
    for (int i = 0; i < f->count; i++) {
        const TensorEntry *e = &f->entry[i];
        int64_t n = type_nelem(&e->type), nbytes = 0;
        void *got = NULL, *want = arena_alloc(c->a, (size_t)type_nbytes(&e->type) + 1);
        tn_port port;
        if (!ok(c, tn_program_port(c->x, e->name, &port)) ||
            !ok(c, tn_program_data(c->x, e->name, &got, &nbytes)))
            continue;
        DType d = (DType)dtype_parse(port.dtype);
        if (!EXPECT(nbytes == n * dtype_size(d)))
            continue;
        tensors_read(f, e, e->type.dtype, false, want);
        Tensor x = {.data = got, .dtype = d, .rank = 1, .dim = {n}, .stride = {1}}, y = x;
        y.data = want;
        y.dtype = e->type.dtype;
        double error = relative_error(&x, &y);
        if (!EXPECT(error < 2e-5))
            printf("  %s: %s: relative error %.2g\n", c->name, e->name, error);
    }
}

static void test_case(void *arg)
{
    Case *c = arg;
    tn_options o = tn_options_default();
    tn_graph *g = NULL;
    tn_plan *p = NULL;
    const char *summary, *refused = line_of(c, "error");
    char *loss = line_of(c, "loss"), *params = loss ? strchr(loss, ' ') : NULL;
    CHECK(params);
    *params = 0;
    tn_fx_options fx = {.inputs = path_of(c, "inputs.safetensors"),
                        .loss = loss,
                        .params = params + 1,
                        .alias = "pass"};
    if (!ok(c, tn_graph_import_fx(c->ctx, path_of(c, "graph.txt"), &fx, &g, &summary)))
        return;
    int code = tn_graph_passes(g, "canonicalize,cse,grad", &o, NULL, NULL);
    if (refused) {
        if (!EXPECT(code == TN_CODE_FAIL && strstr(tn_error(c->ctx), refused)))
            printf("  %s: expected \"%s\", found \"%s\"\n", c->name, refused, tn_error(c->ctx));
    } else if (ok(c, code) && ok(c, tn_plan_new(g, &o, 0, &p)) &&
               ok(c, tn_program_new(p, &o, &c->x)) &&
               ok(c, tn_program_read_file(c->x, fx.inputs)) && ok(c, tn_program_run(c->x))) {
        compare(c);
    }
    tn_program_free(c->x);
    tn_plan_free(p);
    tn_graph_free(g);
}

int main(void)
{
    DIR *dir = opendir("tests/fx_grad");
    tn_context *context = tn_context_new();
    CHECK(dir && context);
    for (struct dirent *e; (e = readdir(dir));) {
        Ctx ctx = {0};
        Case c = {.ctx = context, .a = arena_new(&ctx), .name = e->d_name};
        if (*c.name != '.' && !access(path_of(&c, "graph.txt"), R_OK) &&
            !EXPECT(ctx_try(&ctx, test_case, &c) == TN_OK))
            printf("  %s: %s\n", c.name, ctx.message);
        arena_free(c.a);
    }
    closedir(dir);
    tn_context_free(context);
    EXPECT(test_npass > 50); /* the folders are there */
    return test_report();
}
