/* The pass chunk: graphs of tests/chunk and tests/fx/head_* whole and in slices.
 *
 * Each is run by the interpreter in double (equal within 1e-12), by kernels in f32 (an error
 * against double of at most twice the whole graph's and 2e-6) and with products in bf16 (a
 * root-mean-square error of at most 1.05 of the whole graph's), in numbers of slices that divide
 * the rows and not, that some slices of have no labels, and that are more than the rows. The region
 * must be there: loops, no whole value of the seed; and the planned peak must fall by at least half
 * of what the sliced values had there above a slice.
 *
 * tests/chunk/sound has pairs: what must be refused, with its reason (NAME.no.tn), and what must be
 * cut (NAME.yes.tn). Random regions of random steps are refused or give the same in double.
 *
 * `test_chunk FILE...` runs files or folders of tests/fx, and prints each; `test_chunk SEED` a
 * random step. TN_LONG: ten times as many of these; TN_QUICK: a fifth. */
#include "../shared/chunk_case.h"
#include "../shared/chunk_made.h"
#include "../shared/chunk_seen.h"
#include "../shared/interp.h"
#include "../shared/test.h"

#include <dirent.h>
#include <math.h>
#include <unistd.h>

static const int64_t slices[] = {2, 3, 7, 8, 64};
enum { RANDOM = 50, QUICK = 10, LONG = 10, SHOWN = 10 }; /* random graphs */
enum { CANDIDATES = 12 };
enum { MANY = 1000, AT_PEAK = 8 }; /* elements that are no sample; slices for the peak */

/* What an imported graph is run with. */
typedef struct ImportKind {
    const char *peak, *bf16; /* sizes; NULL: none, its own */
    bool mixed;              /* not of bf16 alone: norms have f32 beside it */
} ImportKind;

static const ImportKind head = {"20=100 37=1999", "20=160 6=48 37=211", false},
                        dpo = {"20=100 5=25 37=1999", "5=40 20=160 6=48 37=211", false},
                        bert = {"16=96 37=1999", "16=128 6=48 37=211", true},
                        bert_ops = {"16=96 37=1999", "16=128 6=48 37=211", false},
                        model = {NULL, NULL, true};

/* Imported graphs, the seeds of their regions, and how many loops these become. */
static const struct {
    const char *folder, *seed;
    int loops;
    const ImportKind *kind;
} imported[] = {
    {"head_cross_entropy", "mm_1 axis 0", 1, &head},
    {"head_cross_entropy_ops", "mm_1 axis 0", 1, &head},
    {"head_exported", "mm_1 axis 0", 1, &head},
    {"head_tied", "mm_1 axis 0", 1, &head},
    {"head_tied_ops", "mm_1 axis 0", 1, &head},
    {"head_label_smoothing", "mm_1 axis 0", 1, &head},
    {"head_label_smoothing_ops", "mm_1 axis 0", 1, &head},
    {"head_z_loss_ops", "mm_1 axis 0", 1, &head},
    {"head_distillation", "mm_1 axis 0", 1, &head},
    {"head_distillation_ops", "mm_1 axis 0", 1, &head},
    {"head_dpo", "mm_1 axis 0 inner 5", 2, &dpo},
    {"head_dpo_ops", "mm_1 axis 0 inner 5", 2, &dpo},
    {"head_two_losses_ops", "mm_1 axis 0", 1, &head},
    {"head_two_heads_ops", "mm_1 axis 0", 1, &head},
    {"head_scaled_ops", "mm_1 axis 0", 1, &head},
    {"head_late_scale_ops", "mm_1 axis 0", 1, &head},
    {"head_bert", "addmm_1 axis 0", 1, &bert},
    {"head_bert_ops", "addmm_1 axis 0", 1, &bert_ops},
    {"gpt2_step", "mm_8 axis 0", 1, &model},
    {"gpt2_inductor", "mm axis 0", 1, &model},
    {"llama_gqa", "mm_14 axis 0", 1, &model},
    {"bert_mlm", "addmm_13 axis 0", 1, &model},
};

static bool tell;        /* figures of each graph */
static int listed, kept; /* candidates made; those of them that keep bits */

/* A graph, and what one of its regions is asked. */
typedef struct Trial {
    const ChunkCase *c;
    const ChunkRegion *r;
    int64_t slices;
    Graph *whole, *wide;       /* before chunk, in f32 and in f64 */
    Tensor *in, *in64, *want;  /* inputs, results in double */
    Graph *half, *half32;      /* with the sizes for bf16: in bf16, and in f32 */
    Tensor *in16, *want16;     /* inputs, results in f32 */
    double *error32, *error16; /* by output: of the whole graph, by kernels */
    double worst[4];           /* double, f32 above the whole, bf16 by the whole, same likewise */
} Trial;

static void complain(const Trial *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void complain(const Trial *t, const char *format, ...)
{
    char text[1000];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (++test_nfail <= 100)
        printf("%s: %%%s axis %d%s in %lld slices: %s\n", t->c->name, t->r->value, t->r->cut.axis,
               t->r->all ? " all" : "", (long long)t->slices, text);
}

static void note(const Trial *t, bool good, const char *text)
{
    if (good)
        test_npass++;
    else
        complain(t, "%s", text);
}

/* ---- errors ---- */

/* sqrt(sum (got - want)^2 / sum want^2) */
static double rms_error(const Tensor *got, const Tensor *want)
{
    double error = 0, size = 0;
    for (int64_t i = 0, n = tensor_nelem(want); i < n; i++) {
        double x = tensor_get(got, tensor_linear(got, i)),
               y = tensor_get(want, tensor_linear(want, i));
        error += x == y ? 0 : (x - y) * (x - y);
        size += y * y;
    }
    return error > 0 ? sqrt(error / (size > 0 ? size : 1)) : 0;
}

static double *errors_of(const Trial *t, Graph *g, const Tensor *in, const Tensor *want,
                         double (*error)(const Tensor *, const Tensor *))
{
    Tensor *got = graphs_execute(t->c->a, g, in);
    double *e = NEWN(t->c->a, double, g->nout);
    for (int i = 0; i < g->nout; i++)
        e[i] = error(&got[i], &want[i]);
    return e;
}

/* ---- one number of slices ---- */

static Graph *chunked(const Trial *t, const Graph *whole, const char *sizes, const char *accumulate)
{
    Graph *g = graph_clone(t->c->a, whole);
    ChunkRegion r = chunk_case_region(t->r, sizes);
    const char *why;
    chunk_case_run(g, &r, t->slices, accumulate, &why);
    if (why)
        complain(t, "%s", why);
    return g;
}

static void check_double(Trial *t)
{
    Graph *g = chunked(t, t->wide, NULL, "f32");
    Tensor *got = graphs_interpret(t->c->a, g, t->in64);
    for (int i = 0; i < g->nout; i++) {
        double error = graphs_distance(&got[i], &t->want[i]);
        t->worst[0] = fmax(t->worst[0], error);
        if (error <= 1e-12)
            test_npass++;
        else
            complain(t, "output %%%s is off by %.3g in double", g->out[i].v->name, error);
    }
}

/* Slices sum in another order, with an error of their own, which is as large as the whole's where
 * terms cancel: how large, differs by processor. */
static void check_f32(Trial *t)
{
    Graph *g = chunked(t, t->whole, NULL, "f32");
    double *error = errors_of(t, g, t->in, t->want, graphs_distance);
    for (int i = 0; i < g->nout; i++) {
        t->worst[1] = fmax(t->worst[1], error[i] - t->error32[i]);
        if (error[i] <= 2 * t->error32[i] + 2e-6)
            test_npass++;
        else
            complain(t, "output %%%s is off by %.3g in f32, whole by %.3g", g->out[i].v->name,
                     error[i], t->error32[i]);
    }
}

/* How many times the whole graph's error that of slices may be: a few elements are a sample, whose
 * mean has a deviation of its own. */
static double allowed(int64_t nelem)
{
    return 1.05 * (nelem < MANY ? 1 + 3 / sqrt(2 * (double)nelem) : 1);
}

/* `same`: sums in their own dtype, of which the error is only told. */
static void check_bf16(Trial *t, bool same)
{
    Graph *g = chunked(t, t->half, t->c->bf16, same ? "same" : "f32");
    double *error = errors_of(t, g, t->in16, t->want16, rms_error), *worst = &t->worst[2 + same];
    for (int i = 0; i < g->nout; i++) {
        int64_t nelem = type_nelem(&g->out[i].v->type);
        double ratio = error[i] / fmax(t->error16[i], nelem < MANY ? 0x1p-9 : 1e-6);
        *worst = fmax(*worst, ratio);
        if (same || ratio <= allowed(nelem))
            test_npass++;
        else
            complain(t, "output %%%s is off by %.4g with bf16, whole by %.4g", g->out[i].v->name,
                     error[i], t->error16[i]);
    }
}

static void check_made(const Trial *t)
{
    Graph *g = chunked(t, t->whole, NULL, "f32");
    if (tell && t->slices == 3)
        printf("%s", graphs_text(t->c->a, g));
    int loops = chunk_seen_loops(g) - chunk_seen_loops(t->whole);
    if (loops == t->c->loops)
        test_npass++;
    else
        complain(t, "expected %d loops, found %d", t->c->loops, loops);
    note(t, !t->r->cheap || !chunk_seen_again(g), "a product is made again");
    note(t, !chunk_seen_whole(g, t->whole, t->r), "the seed is still there as a whole");
    Graph *again = graph_parse(t->c->a, graphs_text(t->c->a, g), "chunked");
    graph_verify(again);
    note(t, !strcmp(graphs_text(t->c->a, again), graphs_text(t->c->a, g)), "printing changes it");
}

/* The peak falls by half at least of what is sliced there, but for one slice. */
static void check_peak(const Trial *t)
{
    Graph *whole = chunk_case_graph(t->c, t->c->peak, F32),
          *g = chunked(t, whole, t->c->peak, "f32");
    ChunkPeak p = chunk_seen_peak(t->c->a, whole, g);
    const Value *seed = map_find(&whole->names, t->r->value);
    ChunkRegion r = chunk_case_region(t->r, t->c->peak);
    CHECK(seed);
    int64_t units = chunk_units(seed, &r), part = slices_of(units, t->slices).part;
    double least = 0.5 * (double)p.sliced * (1 - (double)part / (double)units);
    if (tell)
        printf("  peak %lld, of it sliced %lld; then %lld\n", (long long)p.before,
               (long long)p.sliced, (long long)p.after);
    note(t, p.sliced >= type_nbytes(&seed->type), "the seed is not at the peak");
    if ((double)(p.before - p.after) >= least)
        test_npass++;
    else
        complain(t, "peak %lld, of it sliced %lld; then %lld: expected %.0f less",
                 (long long)p.before, (long long)p.sliced, (long long)p.after, least);
}

/* ---- one region ---- */

static void check_one_slice(Trial *t)
{
    t->slices = 1;
    Graph *g = chunked(t, t->whole, NULL, "f32");
    note(t, !strcmp(graphs_text(t->c->a, g), graphs_text(t->c->a, t->whole)), "another graph");
}

static void check_region(Trial *t)
{
    const ChunkCase *c = t->c;
    t->error32 = errors_of(t, t->whole, t->in, t->want, graphs_distance);
    t->error16 = errors_of(t, t->half, t->in16, t->want16, rms_error);
    check_one_slice(t);
    for (int i = 0; i < LEN(slices); i++) {
        t->slices = slices[i];
        check_double(t);
        check_made(t);
        check_f32(t);
        check_bf16(t, false);
        check_bf16(t, true);
    }
    t->slices = AT_PEAK;
    if (c->peak)
        check_peak(t);
    printf("note: %s: %%%s axis %d: double %.1e, f32 %+.1e above the whole's; bf16 %.3f of it, "
           "accumulated in its own dtype %.3f\n",
           c->name, t->r->value, t->r->cut.axis, t->worst[0], t->worst[1], t->worst[2],
           t->worst[3]);
}

/* ---- the regions that the pass lists itself ---- */

static bool same_bits(const Trial *t, Graph *g)
{
    Tensor *got = graphs_execute(t->c->a, g, t->in16);
    bool same = true;
    for (int i = 0; i < g->nout; i++)
        same &= tensor_same_bits(&got[i], &t->want16[i]);
    return same;
}

/* Each can be made, and keeps the bits of f32 where it says so. */
static void check_candidates(Trial *t)
{
    ChunkReport r = chunk_case_list(t->half32);
    t->slices = 3;
    for (int i = 0; i < r.ncandidate && i < CANDIDATES; i++) {
        const ChunkCandidate *c = &r.candidate[i];
        t->r = &c->region;
        if (tell)
            printf("%%%s axis %d%s: %s%s\n", t->r->value, t->r->cut.axis, t->r->all ? " all" : "",
                   c->why ? c->why : "a region", c->bits ? ", same bits" : "");
        if (c->why || c->member)
            continue;
        Graph *g = chunked(t, t->half32, NULL, "f32");
        listed++;
        int loops = chunk_seen_loops(g) - chunk_seen_loops(t->half32);
        note(t, loops && loops % c->loops == 0, "not as many loops as listed"); /* and in a tail */
        if (!c->bits)
            continue;
        kept++;
        note(t, same_bits(t, g), "other bits, though it is said to keep them");
    }
}

static void check_refused(Trial *t)
{
    t->slices = 4;
    Graph *g = graph_clone(t->c->a, t->whole);
    const char *why;
    chunk_case_run(g, t->r, t->slices, "f32", &why);
    note(t, !strcmp(graphs_text(t->c->a, g), graphs_text(t->c->a, t->whole)), "another graph");
    if (why && strstr(why, t->c->refused))
        test_npass++;
    else
        complain(t, "expected \"%s\", found \"%s\"", t->c->refused, why ? why : "a region");
}

/* ---- one graph ---- */

typedef struct Job {
    Arena *a;
    const char *path;
    int import; /* the place in `imported`, -1: a file */
} Job;

static ChunkCase read_case(const Job *j)
{
    if (j->import < 0)
        return chunk_case_read(j->a, j->path);
    ChunkCase c = chunk_case_import(j->a, j->path, imported[j->import].seed);
    c.loops = imported[j->import].loops;
    c.peak = imported[j->import].kind->peak;
    c.bf16 = imported[j->import].kind->bf16;
    c.mixed = imported[j->import].kind->mixed;
    return c;
}

/* The values of in[] in the types of g's inputs. */
static Tensor *widened(Arena *a, const Graph *g, const Tensor *in)
{
    Tensor *out = NEWN(a, Tensor, g->nin);
    for (int i = 0; i < g->nin; i++)
        out[i] = tensor_copy(a, &in[i], g->in[i].v->type.dtype);
    return out;
}

static void run_case(void *arg)
{
    const Job *j = arg;
    ChunkCase c = read_case(j);
    CHECK(!strstr(j->path, ".no.tn") == !c.refused);
    Trial t = {.c = &c, .whole = chunk_case_graph(&c, NULL, F32)};
    t.wide = chunk_case_graph(&c, NULL, F64);
    t.half = chunk_case_graph(&c, c.bf16, BF16);
    t.half32 = chunk_case_graph(&c, c.bf16, F32);
    t.in = chunk_case_inputs(&c, t.whole);
    t.in64 = chunk_case_inputs(&c, t.wide);
    t.in16 = chunk_case_inputs(&c, t.half);
    Tensor *wide16 = widened(j->a, t.half32, t.in16);
    t.want = graphs_interpret(j->a, t.wide, t.in64);
    t.want16 = graphs_execute(j->a, t.half32, wide16);
    for (int i = 0; i < c.nregion; i++) {
        t.r = &c.region[i];
        memset(t.worst, 0, sizeof t.worst);
        if (c.refused)
            check_refused(&t);
        else
            check_region(&t);
    }
    t.in16 = wide16;
    check_candidates(&t);
}

static void test_case(const char *path, int import)
{
    Ctx ctx = {0};
    Job j = {arena_new(&ctx), path, import};
    CHECK(j.a);
    if (tell)
        printf("%s\n", path);
    if (!EXPECT(ctx_try(&ctx, run_case, &j) == TN_OK))
        printf("  %s: %s\n", path, ctx.message);
    arena_free(j.a);
    ctx_end(&ctx);
}

/* ---- all ---- */

static int is_graph(const struct dirent *e)
{
    size_t len = strlen(e->d_name);
    return len > 3 && !strcmp(e->d_name + len - 3, ".tn");
}

static int test_folder(const char *folder)
{
    struct dirent **file;
    int count = scandir(folder, &file, is_graph, alphasort);
    for (int i = 0; i < count; i++) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", folder, file[i]->d_name);
        test_case(path, -1);
        free(file[i]);
    }
    if (count > 0)
        free(file);
    return count;
}

/* ---- random graphs ---- */

static void test_random(int first, int count)
{
    Ctx ctx = {0};
    Arena *lib_arena = arena_new(&ctx);
    Library lib;
    ChunkMade done = {0};
    int failed = 0;
    CHECK(lib_arena);
    if (!EXPECT(library_try(&ctx, lib_arena, &lib)))
        return;
    for (int i = first; i < first + count; i++) {
        Arena *a = arena_new(&ctx);
        CHECK(a);
        const char *why = chunk_made_try(a, &lib, (uint64_t)i, tell, &done);
        if (!EXPECT(!why) && failed++ < SHOWN)
            printf("random graph %d: %s\n", i, why);
        arena_free(a);
    }
    printf(
        "note: %lld random steps: %lld regions made, %lld of them in two loops, %lld with random "
        "numbers; %lld refused\n",
        (long long)done.graphs, (long long)done.made, (long long)done.two, (long long)done.random,
        (long long)done.refused);
    if (count >= RANDOM) /* else it says little */
        EXPECT(done.made >= done.graphs && done.two > 0 && done.random > 0 && done.refused > 0);
    arena_free(lib_arena);
    ctx_end(&ctx);
}

/* What is refused has a sibling that is cut, and says so in its name. */
static void check_pairs(const char *folder)
{
    struct dirent **file;
    int count = scandir(folder, &file, is_graph, alphasort);
    for (int i = 0; i < count; i++) {
        char path[400];
        const char *no = strstr(file[i]->d_name, ".no.tn");
        snprintf(path, sizeof path, "%s/%.*s.yes.tn", folder, no ? (int)(no - file[i]->d_name) : 0,
                 file[i]->d_name);
        if (no && !EXPECT(!access(path, R_OK)))
            printf("  %s: there is no such file\n", path);
        free(file[i]);
    }
    if (count > 0)
        free(file);
}

static int import_of(const char *folder)
{
    int i = LEN(imported) - 1;
    while (i >= 0 && strcmp(imported[i].folder, folder))
        i--;
    return i;
}

int main(int argc, char **argv)
{
    tell = argc > 1;
    par_set_threads(1); /* all is small */
    for (int i = 1; i < argc; i++)
        if (strspn(argv[i], "0123456789") == strlen(argv[i]))
            test_random(atoi(argv[i]), 1);
        else
            test_case(argv[i], import_of(argv[i]));
    if (tell)
        return test_report();
    EXPECT(test_folder("tests/chunk") > 0);
    EXPECT(test_folder("tests/chunk/sound") > 0);
    check_pairs("tests/chunk/sound");
    for (int i = 0; i < LEN(imported); i++)
        test_case(imported[i].folder, i);
    printf("note: %d candidates made, %d of them to keep bits\n", listed, kept);
    EXPECT(kept > 0 && kept < listed);
    test_random(0, getenv("TN_LONG") ? LONG * RANDOM : getenv("TN_QUICK") ? QUICK : RANDOM);
    return test_report();
}
