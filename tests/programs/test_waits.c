/* Small graphs of tests/waits, planned as they stand for the emulated device (`# on: cpu` at the
 * top: for that one): the steps with their queues, waits and addresses, and the peak of each space,
 * are what stands below a line "---"; or the reason why the graph is refused. `test_waits bless`
 * writes it there where there is nothing yet. On a plan of many steps the waits are found in time
 * that grows as the steps do. */
#include "../../src/page/page.h"
#include "../../src/plan/plan.h"
#include "../shared/test.h"

#include <dirent.h>

static Ctx ctx;

typedef struct File {
    Arena *a;
    const char *path, *text;
    const Device *device;
    const char *got;
} File;

static void print_spaces(Buf *b, const Plan *p)
{
    for (int s = 0; s < device_nspace(p->device); s++)
        buf_printf(b, "%s: %lld bytes, at least %lld\n", p->device->space[s],
                   (long long)p->space[s].peak, (long long)p->space[s].bound);
}

static void plan_file(void *arg)
{
    File *f = arg;
    PlanFor to = {.device = f->device};
    Graph *g = graph_parse(f->a, f->text, f->path);
    Buf b = {.a = f->a};
    graph_verify(g);
    Plan *p = plan_make(f->a, g, &to);
    plan_print_steps(&b, p);
    print_spaces(&b, p);
    f->got = b.text;
}

static void check_file(const char *name, bool bless)
{
    File f = {.a = arena_new(&ctx)};
    size_t len;
    CHECK(f.a);
    f.path = arena_printf(f.a, "tests/waits/%s", name);
    f.text = file_read(f.a, f.path, &len);
    f.device = device_at(strstr(f.text, "# on: cpu\n") ? DEVICE_cpu : DEVICE_emulated);
    char *cut = strstr((char *)f.text, "\n---\n");
    const char *expected = cut ? cut + 5 : NULL;
    if (cut)
        cut[1] = 0;
    if (ctx_try(&ctx, plan_file, &f))
        f.got = arena_printf(f.a, "%s\n", ctx.message);
    if (bless && !expected) {
        const char *all = arena_printf(f.a, "%s---\n%s", f.text, f.got);
        file_write(&ctx, f.path, all, strlen(all));
    } else if (!EXPECT(expected && !strcmp(f.got, expected))) {
        printf("%s: expected\n%sfound\n%s", f.path, expected ? expected : "", f.got);
    }
    arena_free(f.a);
}

static void check_files(bool bless)
{
    DIR *d = opendir("tests/waits");
    CHECK(d);
    for (const struct dirent *e; (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (n > 3 && !strcmp(e->d_name + n - 3, ".tn"))
            check_file(e->d_name, bless);
    }
    closedir(d);
}

/* ---- many steps ---- */

enum { APART = 4 };

/* A chain of n values that all go to the host, and come back APART later. */
static Graph *long_graph(Arena *a, int n)
{
    Graph *g = graph_new(a, "g");
    Type t = {.dtype = F32, .rank = 1, .dim = {64}};
    Build b = {.g = g, .scope = ""};
    Value *x = graph_input(g, "x", t, ROLE_BATCH, NULL), **host = NEWN(a, Value *, n);
    for (int i = 0; i < n + APART; i++) {
        Value *out = i < n ? emit1(&b, "offload", IN(x), NULL) : NULL;
        Value *in = i >= APART ? emit1(&b, "reload", IN(host[i - APART]), NULL) : NULL;
        Value *y = emit1(&b, "relu", IN(x), NULL);
        if (out)
            host[i] = emit1(&b, "wait_tensor", IN(out, x), NULL);
        if (in)
            y = emit1(&b, "add", IN(emit1(&b, "wait_tensor", IN(in, host[i - APART]), NULL), y),
                      NULL);
        x = y;
    }
    graph_output(g, x, ROLE_NONE, NULL);
    return g;
}

typedef struct Long {
    int n;
    double sec; /* for the waits */
    int nwait;
} Long;

static void plan_long(void *arg)
{
    Long *x = arg;
    Arena *a = arena_new(&ctx);
    CHECK(a);
    PlanFor to = {.device = device_at(DEVICE_emulated)};
    Plan *p = plan_make(a, long_graph(a, x->n), &to);
    for (int i = 0; i < p->nstep; i++)
        p->step[i].nwait = 0;
    x->sec = cpu_sec();
    plan_waits(p, a);
    x->sec = cpu_sec() - x->sec;
    for (int i = 0; i < p->nstep; i++)
        x->nwait += p->step[i].nwait;
    arena_free(a);
}

/* Twice for each copy: for its operand or its place, and for its result. */
static void check_long(void)
{
    Long x = {.n = 100}, y = {.n = 1600};
    EXPECT(!ctx_try(&ctx, plan_long, &x) && !ctx_try(&ctx, plan_long, &y));
    EXPECT(x.nwait > 3 * x.n && x.nwait <= 4 * x.n && y.nwait <= 4 * y.n);
    EXPECT(y.sec < 40 * x.sec + 0.05);
    printf("note: waits of %d and %d values found in %.1f and %.1f ms\n", x.n, y.n, x.sec * 1e3,
           y.sec * 1e3);
}

int main(int argc, char **argv)
{
    check_files(argc > 1 && !strcmp(argv[1], "bless"));
    check_long();
    return test_report();
}
