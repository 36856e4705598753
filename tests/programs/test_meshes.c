/* The search for meshes: its outcome is the best of all settings, planned one by one, with any
 * number of threads; within a limit all that is found fits; refused meshes are counted. TN_LONG:
 * limits on more ranks; the same outcome with forms that are chosen, though settings are left out.
 */
#include "../../include/tenon.h"
#include "../shared/test.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, BATCH = 8, SEQ = 16, MOST = 100 };

static tn_context *ctx;

static tn_mesh_task task_of(const char *model, int workers)
{
    return (tn_mesh_task){
        .model = model, .batch = BATCH, .seq = SEQ, .ranks = RANKS, .workers = workers};
}

static tn_options options(void)
{
    tn_options o = tn_options_default();
    o.machine = "h100";
    return o;
}

/* ---- one by one ---- */

static const char *const solved_shardings[] = {"auto"};

typedef struct Found {
    const char *mesh;
    double sec;
    int64_t nbytes;
} Found;

static bool plan_one(tn_model *m, const char *mesh, const char *reshard, const char *recompute,
                     bool solved, Found *f)
{
    tn_options o = options();
    tn_task task = {.nparts = 1, .batch = BATCH};
    tn_compiled c;
    o.mesh = strcmp(mesh, "none") != 0 ? mesh : NULL;
    o.reshard = reshard;
    o.recompute = recompute;
    o.shardings = solved_shardings;
    o.nshardings = solved;
    task.part[0] = (tn_part){.kind = TN_PART_STEP, .model = m, .seq = SEQ, .passes = "default"};
    int code = tn_compile(ctx, &task, &o, &c);
    *f = (Found){mesh, c.setting.sec, c.setting.nbytes};
    tn_compiled_free(&c);
    return !code;
}

static int by_sec(const void *s, const void *t)
{
    const Found *x = s, *y = t;
    return x->sec != y->sec ? (x->sec < y->sec ? -1 : 1) : 0;
}

/* All settings of the preset on four ranks; *refused: those that cannot be. */
static int plan_all(bool solved, Found *all, int *refused)
{
    static const char *const meshes[] = {"dp=4",      "fsdp=4",      "dp=2,fsdp=2",
                                         "dp=2,tp=2", "fsdp=2,tp=2", "tp=4"};
    static const char *const recompute[] = {"none", "selective", "full"};
    tn_model *m;
    int n = 0;
    CHECK(!tn_model_open(ctx, "demo", &m));
    for (int i = 0; i < LEN(meshes); i++)
        for (int k = 0; k < LEN(recompute); k++)
            for (int r = 0; r < (strstr(meshes[i], "fsdp") ? 2 : 1); r++) {
                bool good =
                    plan_one(m, meshes[i], r ? "never" : "always", recompute[k], solved, &all[n]);
                n += good;
                *refused += !good;
            }
    tn_model_free(m);
    qsort(all, (size_t)n, sizeof *all, by_sec);
    return n;
}

static void expect_best(const tn_meshes *found, const Found *all, int n, int refused)
{
    EXPECT(found->settings == n + refused && found->refused == refused);
    EXPECT(found->nbest == TN_MOST_MESHES);
    EXPECT(found->planned + found->slower == n && found->slower > 0);
    EXPECT(!found->unfit && !found->over && !found->least);
    EXPECT(found->nreason == 1 && found->reason[0].count == refused &&
           strstr(found->reason[0].why, "the largest tp up to 4 that works is 2"));
    for (int i = 0; i < found->nbest; i++) {
        EXPECT(found->best[i].sec == all[i].sec);
        EXPECT(found->best[i].bound_sec <= found->best[i].sec * (1 + 1e-9));
        EXPECT(found->best[i].peak < found->best[i].nbytes);
    }
}

/* The same where forms are chosen: a step that several settings come to is listed once. */
static void expect_solved(void)
{
    Found all[MOST];
    tn_options o = options();
    tn_mesh_task task = task_of("demo", 1);
    tn_meshes found;
    int refused = 0, n = plan_all(true, all, &refused), at = 0;
    o.shardings = solved_shardings;
    o.nshardings = 1;
    EXPECT(!tn_mesh_search(ctx, &task, &o, &found));
    EXPECT(found.slower + found.guessed > 0 && found.nbest > 5);
    for (int i = 0; i < n && at < found.nbest; i++) {
        bool again = i && all[i].sec == all[i - 1].sec && all[i].nbytes == all[i - 1].nbytes &&
                     !strcmp(all[i].mesh, all[i - 1].mesh);
        if (!again && !EXPECT(found.best[at++].sec == all[i].sec))
            printf("  %s: %g s, found %g\n", all[i].mesh, all[i].sec, found.best[at - 1].sec);
    }
    EXPECT(at == found.nbest);
}

/* ---- equal for any number of threads ---- */

static bool same(const tn_meshes *x, const tn_meshes *y)
{
    bool same = x->nbest == y->nbest && x->planned == y->planned && x->slower == y->slower;
    for (int i = 0; i < x->nbest && same; i++) {
        const tn_mesh *p = &x->best[i], *q = &y->best[i];
        same = !strcmp(p->mesh, q->mesh) && !strcmp(p->reshard, q->reshard) &&
               !strcmp(p->recompute, q->recompute) && p->sec == q->sec && p->nbytes == q->nbytes;
    }
    return same;
}

/* The first search's texts go with the second's: they lie in a context of its own. */
static void expect_same(const tn_meshes *want, int workers)
{
    tn_context *other = tn_context_new();
    tn_options o = options();
    tn_mesh_task task = task_of("demo", workers);
    tn_meshes found;
    CHECK(other);
    EXPECT(!tn_mesh_search(other, &task, &o, &found) && same(want, &found));
    tn_context_free(other);
}

/* ---- limits ---- */

/* limit: 0 for none. Returns the least bytes of the best. */
static int64_t expect_limit(int ranks, int64_t limit, int code)
{
    tn_options o = options();
    tn_mesh_task task = task_of("demo", 2);
    tn_meshes found;
    int64_t least = INT64_MAX;
    task.ranks = ranks;
    o.memory = limit;
    EXPECT(tn_mesh_search(ctx, &task, &o, &found) == code);
    for (int i = 0; i < found.nbest; i++) {
        EXPECT(!limit || found.best[i].nbytes <= limit);
        least = found.best[i].nbytes < least ? found.best[i].nbytes : least;
    }
    EXPECT(code ? !found.nbest && found.least > limit : found.nbest > 0);
    EXPECT(found.settings ==
           found.planned + found.slower + found.saved + found.guessed + found.over + found.refused);
    return least;
}

/* ---- wrong arguments ---- */

static void expect_refused(tn_mesh_task task, tn_options o, const char *why)
{
    tn_meshes found;
    EXPECT(tn_mesh_search(ctx, &task, &o, &found) != TN_CODE_OK);
    if (!EXPECT(strstr(tn_error(ctx), why)))
        printf("  %s\n", tn_error(ctx));
}

static void test_refusals(void)
{
    tn_options mesh = options(), word = options();
    tn_mesh_task ranks = task_of("demo", 1), none = task_of("demo", 1);
    mesh.mesh = "dp=2";
    expect_refused(none, mesh, "expected no mesh");
    word.recompute = "some";
    expect_refused(none, word, "some");
    ranks.ranks = 0;
    expect_refused(ranks, options(), "ranks");
    expect_refused(task_of("nobody", 2), options(), "nobody");
    expect_refused(task_of(NULL, 2), options(), "expected a model");
}

int main(void)
{
    Found all[MOST];
    int refused = 0, n;
    ctx = tn_context_new();
    CHECK(ctx);
    n = plan_all(false, all, &refused);
    tn_options o = options();
    tn_mesh_task task = task_of("demo", 1);
    tn_meshes found;
    EXPECT(!tn_mesh_search(ctx, &task, &o, &found));
    expect_best(&found, all, n, refused);
    if (getenv("TN_LONG"))
        expect_same(&found, 2);
    expect_same(&found, 3);
    for (int ranks = 1; ranks <= (getenv("TN_LONG") ? 2 : 1); ranks++)
        expect_limit(ranks, expect_limit(ranks, 0, TN_CODE_OK), TN_CODE_OK);
    expect_limit(2, 1 << 20, TN_CODE_FIT);
    if (getenv("TN_LONG"))
        expect_solved();
    test_refusals();
    tn_context_free(ctx);
    return test_report();
}
