/* Workspaces asked for without library objects: the linker puts counters before oneDNN's
 * constructors. Over all plans of a context a description of a product is made once for each
 * distinct question and once for each primitive; planning makes no primitive, whatever orders are
 * scored, and a program those of its plan. They are counted where every product is made as it lies,
 * which is one primitive, and attention by none: by a machine without rows WAY. That kernels keep
 * to their workspaces is test_op's. */
#include "../shared/test.h"

#include "../../src/api/api.h"

#include <oneapi/dnnl/dnnl.h>

enum { MOST_ASKED = 20000 };

#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t Lies;
#else
typedef const dnnl_memory_desc_t *Lies;
#endif

enum { OPERANDS = 4 }; /* operands, result, bias or NULL */

/* What oneDNN was asked to describe, each kind once. */
typedef struct Asked {
    Lies md[OPERANDS];
    int nthread;
} Asked;

static struct {
    int nengine, nstream, nprimitive, nmemory, ndesc, ndistinct;
    Asked *asked;
} seen;

static bool same(const Asked *x, const Asked *y)
{
    bool good = x->nthread == y->nthread;
    for (int i = 0; i < OPERANDS && good; i++)
        good = x->md[i] && y->md[i] ? dnnl_memory_desc_equal(x->md[i], y->md[i])
                                    : x->md[i] == y->md[i];
    return good;
}

/* Kept until forget(). */
static Lies copy_of(Lies md)
{
    if (!md)
        return NULL;
#if DNNL_VERSION_MAJOR >= 3
    dnnl_memory_desc_t copy;
    CHECK(!dnnl_memory_desc_clone(&copy, md));
#else
    dnnl_memory_desc_t *copy = malloc(sizeof *copy);
    CHECK(copy);
    *copy = *md;
#endif
    return copy;
}

static void drop(Lies md)
{
#if DNNL_VERSION_MAJOR >= 3
    if (md)
        dnnl_memory_desc_destroy((dnnl_memory_desc_t)(uintptr_t)md);
#else
    free((void *)(uintptr_t)md);
#endif
}

static void forget(void)
{
    for (int i = 0; i < seen.ndistinct; i++)
        for (int k = 0; k < OPERANDS; k++)
            drop(seen.asked[i].md[k]);
    seen.nengine = seen.nstream = seen.nprimitive = seen.nmemory = seen.ndesc = seen.ndistinct = 0;
}

static void note(Lies a, Lies b, Lies y, Lies bias)
{
    Asked x = {{a, b, y, bias}, par_threads()};
    int i = 0;
    while (i < seen.ndistinct && !same(&seen.asked[i], &x))
        i++;
    CHECK(i < MOST_ASKED);
    if (i == seen.ndistinct) {
        for (int k = 0; k < OPERANDS; k++)
            x.md[k] = copy_of(x.md[k]);
        seen.asked[seen.ndistinct++] = x;
    }
    seen.ndesc++;
}

dnnl_status_t __real_dnnl_engine_create(dnnl_engine_t *e, dnnl_engine_kind_t kind, size_t i);
dnnl_status_t __wrap_dnnl_engine_create(dnnl_engine_t *e, dnnl_engine_kind_t kind, size_t i);
dnnl_status_t __wrap_dnnl_engine_create(dnnl_engine_t *e, dnnl_engine_kind_t kind, size_t i)
{
    seen.nengine++;
    return __real_dnnl_engine_create(e, kind, i);
}

dnnl_status_t __real_dnnl_stream_create(dnnl_stream_t *s, dnnl_engine_t e, unsigned flags);
dnnl_status_t __wrap_dnnl_stream_create(dnnl_stream_t *s, dnnl_engine_t e, unsigned flags);
dnnl_status_t __wrap_dnnl_stream_create(dnnl_stream_t *s, dnnl_engine_t e, unsigned flags)
{
    seen.nstream++;
    return __real_dnnl_stream_create(s, e, flags);
}

dnnl_status_t __real_dnnl_primitive_create(dnnl_primitive_t *p, const_dnnl_primitive_desc_t d);
dnnl_status_t __wrap_dnnl_primitive_create(dnnl_primitive_t *p, const_dnnl_primitive_desc_t d);
dnnl_status_t __wrap_dnnl_primitive_create(dnnl_primitive_t *p, const_dnnl_primitive_desc_t d)
{
    seen.nprimitive++;
    return __real_dnnl_primitive_create(p, d);
}

dnnl_status_t __real_dnnl_memory_create(dnnl_memory_t *m, Lies d, dnnl_engine_t e, void *data);
dnnl_status_t __wrap_dnnl_memory_create(dnnl_memory_t *m, Lies d, dnnl_engine_t e, void *data);
dnnl_status_t __wrap_dnnl_memory_create(dnnl_memory_t *m, Lies d, dnnl_engine_t e, void *data)
{
    seen.nmemory++;
    return __real_dnnl_memory_create(m, d, e, data);
}

#if DNNL_VERSION_MAJOR >= 3
#define DESCRIBE(prefix)                                                              \
    dnnl_status_t prefix##_dnnl_matmul_primitive_desc_create(                         \
        dnnl_primitive_desc_t *p, dnnl_engine_t e, Lies a, Lies b, Lies bias, Lies y, \
        const_dnnl_primitive_attr_t attr)
DESCRIBE(__real);
DESCRIBE(__wrap);
DESCRIBE(__wrap)
{
    note(a, b, y, bias);
    return __real_dnnl_matmul_primitive_desc_create(p, e, a, b, bias, y, attr);
}
#else
#define DESCRIBE(prefix)                                                                    \
    dnnl_status_t prefix##_dnnl_primitive_desc_create(                                      \
        dnnl_primitive_desc_t *p, const_dnnl_op_desc_t d, const_dnnl_primitive_attr_t attr, \
        dnnl_engine_t e, const_dnnl_primitive_desc_t hint)
DESCRIBE(__real);
DESCRIBE(__wrap);
DESCRIBE(__wrap)
{
    const dnnl_matmul_desc_t *x = d;
    note(&x->src_desc, &x->weights_desc, &x->dst_desc, &x->bias_desc);
    return __real_dnnl_primitive_desc_create(p, d, attr, e, hint);
}
#endif

/* ---- plans ---- */

static int count_products(const Plan *p)
{
    int n = 0;
    for (int i = 0; i < p->nstep; i++)
        n += p->step[i].kernel && !strncmp(p->step[i].kernel->name, "onednn", 6);
    return n;
}

/* Plans a step of the model and, to be run, makes a program of it. Returns how many primitives that
 * has. */
static int plan(tn_context *ctx, const char *model, const tn_options *o, bool run)
{
    tn_model *m = NULL;
    tn_graph *g = NULL;
    tn_plan *p = NULL;
    tn_program *x = NULL;
    int n = 0, before = seen.nprimitive;
    if (EXPECT(!tn_model_open(ctx, model, &m) && !tn_model_graph(m, 2, 64, o, &g) &&
               !tn_graph_passes(g, "default", o, NULL, NULL) && !tn_plan_new(g, o, 1, &p)) &&
        EXPECT(seen.nprimitive == before && count_products(p->p) > 0) &&
        EXPECT(!run || !tn_program_new(p, o, &x)))
        n = run ? count_products(p->p) : 0;
    else
        printf("  %s: %s\n", model, tn_error(ctx));
    tn_program_free(x);
    tn_plan_free(p);
    tn_graph_free(g);
    tn_model_free(m);
    return n;
}

static void expect_counts(const char *model, int nproduct, bool plain)
{
    if (!plain) {
        EXPECT(seen.nengine == 1 && seen.nprimitive >= nproduct && seen.nstream >= nproduct);
        return;
    }
    bool good = EXPECT(seen.nprimitive == nproduct && seen.nengine == 1);
    good &= EXPECT(seen.nstream == nproduct && seen.nmemory <= 5 * nproduct);
    good &= EXPECT(seen.ndesc == seen.ndistinct + nproduct);
    if (!good)
        printf("  %s: %d products prepared; made %d engines, %d streams, %d primitives, %d "
               "memories; %d descriptions, %d distinct\n",
               model, nproduct, seen.nengine, seen.nstream, seen.nprimitive, seen.nmemory,
               seen.ndesc, seen.ndistinct);
}

/* plain: on a machine without rows WAY. */
static void test_plans(const char *model, const char *dtype, int64_t accumulate, bool run,
                       bool plain)
{
    tn_context *ctx = tn_context_new();
    tn_options o = tn_options_default();
    o.dtype = dtype;
    o.accumulate = accumulate;
    o.machine = plain ? "x86_64" : "none";
    forget();
    tn_threads(2);
    int n = plan(ctx, model, &o, run), ndistinct = seen.ndistinct;
    expect_counts(model, n, plain);
    EXPECT(ndistinct > 0 && (!run || ndistinct < n));
    n += plan(ctx, model, &o, run); /* another graph, the same products */
    expect_counts(model, n, plain);
    EXPECT(seen.ndistinct == ndistinct);
    tn_threads(1);
    n += plan(ctx, model, &o, run);
    expect_counts(model, n, plain);
    EXPECT(plain ? seen.ndistinct == 2 * ndistinct : seen.ndistinct > ndistinct);
    tn_context_free(ctx);
}

/* ---- what a context remembers ---- */

/* Keys that are beginnings of each other, in a table that grows: each is found whole. */
static void test_memo(void *arg)
{
    enum { KEYS = 3000 };
    Ctx *ctx = arg;
    static const char key[KEYS];
    int *what = NEWN(memo_arena(ctx), int, KEYS);
    EXPECT(!memo_find(ctx, key, 1));
    for (int i = 1; i < KEYS; i++) {
        EXPECT(!memo_find(ctx, key, (size_t)i));
        memo_put(ctx, key, (size_t)i, &what[i]);
    }
    for (int i = 1; i < KEYS; i++)
        EXPECT(memo_find(ctx, key, (size_t)i) == &what[i]);
    EXPECT(ctx->memo.count == KEYS - 1);
    ctx_end(ctx);
    EXPECT(!memo_find(ctx, key, 1));
}

int main(void)
{
    Ctx ctx = {0};
    seen.asked = malloc(sizeof *seen.asked * MOST_ASKED);
    CHECK(seen.asked);
    EXPECT(ctx_try(&ctx, test_memo, &ctx) == TN_OK);
    for (int plain = 0; plain < 2; plain++) {
        test_plans("gpt2", "f32", 1, true, plain);
        test_plans("gpt2", "bf16", 2, true, plain);
        test_plans("llama3-1b", "f32", 1, false, plain);
        test_plans("llama3-8b", "bf16", 1, false, plain);
    }
    forget();
    free(seen.asked);
    return test_report();
}
