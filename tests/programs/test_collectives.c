/* Collectives in plans. The summary of graphs of tests/collectives is what stands below a line
 * "---" (`test_collectives bless` writes it there where there is nothing yet). Ranks of a mesh have
 * one plan and one hash, though constants of their graphs differ; what is gathered of a parameter
 * counts as one at the peak. */
#include "../../src/page/page.h"
#include "../../src/plan/plan.h"
#include "../shared/test.h"

#include <dirent.h>
#include <math.h>

static Ctx ctx;
static Arena *a;

static Plan *plan_of(const char *text, const char *file)
{
    Graph *g = graph_parse(a, text, file);
    PlanFor to = {.machine = machine_get(a, "h100", 1)};
    graph_verify(g);
    return plan_make(a, g, &to);
}

/* ---- summaries ---- */

static const char *rows_text(const Plan *p)
{
    CollectiveRow *row;
    int count = plan_collectives(a, p, &row);
    double sec = 0;
    Buf b = {.a = a};
    for (int i = 0; i < count; i++) {
        const CollectiveRow *x = &row[i];
        buf_printf(&b, "%s %s %s %s %s: %lld values, %lld calls, %.0f bytes\n",
                   phase_name(x->phase), collective_role(x->role), collective_name(x->kind),
                   x->group, dtype_name(x->dtype), (long long)x->count, (long long)x->calls,
                   x->nbytes);
        sec += x->sec;
    }
    EXPECT(sec > 0 && fabs(sec - p->est.by_class[CLASS_COLLECTIVE]) <= 1e-9 * sec);
    return b.text;
}

static void check_file(const char *name, bool bless)
{
    size_t len;
    const char *path = arena_printf(a, "tests/collectives/%s", name);
    char *text = file_read(a, path, &len), *cut = strstr(text, "\n---\n");
    if (cut)
        cut[1] = 0;
    const char *found = rows_text(plan_of(text, path));
    if (bless && !cut) {
        const char *all = arena_printf(a, "%s---\n%s", text, found);
        file_write(&ctx, path, all, strlen(all));
    } else if (!EXPECT(cut && !strcmp(found, cut + 5))) {
        printf("%s: expected\n%sfound\n%s", path, cut ? cut + 5 : "", found);
    }
}

static void check_files(bool bless)
{
    DIR *d = opendir("tests/collectives");
    CHECK(d);
    for (const struct dirent *e; (e = readdir(d));)
        if (strstr(e->d_name, ".tn"))
            check_file(e->d_name, bless);
    closedir(d);
}

/* ---- one plan for all ranks ---- */

/* Each rank takes the relu of its half of what all have, and adds where that begins. */
static Plan *rank_plan(const char *mesh, int rank, int half, double fill)
{
    int start = rank * half;
    return plan_of(arena_printf(a,
                                "tenon 1\ngraph g %s (%%x: f32[8, 4] batch) {\n"
                                "  %%a: f32[8, 4] = exp(%%x)\n"
                                "  %%s: f32[%d, 4] = slice(%%a, start=%d, end=%d)\n"
                                "  %%r: f32[%d, 4] = relu(%%s)\n"
                                "  %%o: i64[] = full(size=[], fill_value=%d.0, dtype=i64)\n"
                                "  %%z: f32[] = full(size=[], fill_value=%.1f)\n"
                                "  %%c: f32[] = _to_copy(%%o, dtype=f32)\n"
                                "  %%d: f32[] = add(%%c, %%z)\n"
                                "  %%y: f32[%d, 4] = add(%%r, %%d)\n  return %%y\n}\n",
                                mesh, half, start, start + half, half, start, fill, half),
                   "rank");
}

static bool same_places(const Plan *p, const Plan *q)
{
    bool same = p->nstorage == q->nstorage && p->nstep == q->nstep;
    for (int i = 0; same && i < p->nstorage; i++) {
        const Storage *s = &p->storage[i], *t = &q->storage[i];
        same = s->offset == t->offset && s->nbytes == t->nbytes && s->start == t->start &&
               s->end == t->end;
    }
    return same;
}

static void test_hash(void)
{
    const char *zero = "mesh(dp=2) at(0)";
    Plan *p = rank_plan(zero, 0, 4, 1), *q = rank_plan("mesh(dp=2) at(1)", 1, 4, 1);
    EXPECT(same_places(p, q));
    EXPECT(plan_hash(p) == plan_hash(q));
    EXPECT(plan_hash(p) != plan_hash(rank_plan(zero, 0, 4, 2)));
    EXPECT(plan_hash(p) != plan_hash(rank_plan(zero, 0, 2, 1)));
    EXPECT(plan_hash(p) != plan_hash(rank_plan("mesh(dp=4) at(0)", 0, 4, 1)));
    EXPECT(plan_hash(p) != plan_hash(rank_plan("", 0, 4, 1)));
    EXPECT(plan_hash(rank_plan("", 0, 4, 1)) != plan_hash(rank_plan("", 1, 4, 1)));
}

/* ---- categories ---- */

static void test_categories(void)
{
    const Plan *p = plan_of("tenon 1\n"
                            "graph g mesh(fsdp=2) at(1) (%w: f32[16, 4] param \"w\" "
                            "shard(0: fsdp)) {\n"
                            "  %p: f32[32, 4] = all_gather_into_tensor(%w, group_size=2, "
                            "group=\"fsdp\")\n"
                            "  %pw: f32[32, 4] = wait_tensor(%p, %w)\n"
                            "  %t: f32[4, 32] = t(%pw)\n  %m: f32[4, 4] = mm(%t, %pw)\n"
                            "  return %m\n}\n",
                            "categories");
    EXPECT(p->space[SPACE_MAIN].persistent == 256);
    EXPECT(p->by_category[CAT_PARAM] == 256 + 512);
}

static void all(void *arg)
{
    check_files(*(const bool *)arg);
    test_hash();
    test_categories();
}

int main(int argc, char **argv)
{
    bool bless = argc > 1 && !strcmp(argv[1], "bless");
    a = arena_new(&ctx);
    CHECK(a);
    if (!EXPECT(ctx_try(&ctx, all, &bless) == TN_OK))
        printf("  %s\n", ctx.message);
    arena_free(a);
    return test_report();
}
