/* Rows that documents share: of each kind of model, loss and gradients equal those of the documents
 * one a row, by the references in double and by the kernels in f32, with recomputation and in
 * microbatches; no value of the step has two axes as long as a row; attention takes a time that
 * follows the squares of the documents' lengths. And how documents are laid in rows: each once, in
 * few rows, whatever their number and lengths; without packing and shuffling as they stand. */
#include "../../include/tenon.h"
#include "../../src/pass/pass.h"
#include "../shared/gen.h"
#include "../shared/graphs.h"
#include "../shared/interp.h"
#include "../shared/test.h"

#include <math.h>
#include <time.h>
#include <unistd.h>

enum { T = 17, MOST_DOCS = 8, IGNORED = -100 };

static const double WIDE = 1e-12, NARROW = 2e-6;

/* Documents, and the row that each lies in. */
typedef struct Docs {
    int n;
    int64_t rows, length[MOST_DOCS], row[MOST_DOCS];
} Docs;

static const Docs docs = {6, 2, {7, 1, 8, 9, 3, 5}, {0, 0, 0, 1, 1, 1}};

typedef struct Job {
    Arena *a;
    const char *folder, *passes;
    PassOptions o;
    bool wide;
} Job;

/* ---- a batch, in both forms ---- */

/* Where document d begins: in the row that it shares, or in its own. */
static int64_t place_of(int d, bool pack)
{
    int64_t at = pack ? docs.row[d] * T : d * T;
    for (int i = 0; i < d && pack; i++)
        at += docs.row[i] == docs.row[d] ? docs.length[i] : 0;
    return at;
}

/* The batch of a graph's input: a third of the labels is ignored. */
static void fill(const Port *p, const Tensor *t, bool pack, int64_t vocabulary)
{
    bool ids = !strcmp(p->v->name, "input_ids"), starts = !strcmp(p->v->name, "starts");
    for (int64_t i = 0; i < tensor_nelem(t); i++)
        tensor_set(t, i, ids ? 0 : starts ? (double)(i % T) : IGNORED);
    for (int d = 0; d < docs.n; d++)
        for (int64_t i = 0; i < docs.length[d]; i++) {
            int64_t at = place_of(d, pack) + i, drawn = (31 * d + 17 * i + ids) % (vocabulary - 1);
            bool ignored = !ids && (i + d) % 3 == 2;
            tensor_set(t, at,
                       starts    ? (double)(place_of(d, pack) % T)
                       : ignored ? IGNORED
                                 : (double)drawn + 1);
        }
}

static Tensor *inputs(const Job *j, const Graph *g, bool pack, int64_t vocabulary)
{
    Tensor *in = graphs_inputs(j->a, g);
    for (int i = 0; i < g->nin; i++) {
        if (g->in[i].role == ROLE_BATCH)
            fill(&g->in[i], &in[i], pack, vocabulary);
        for (int64_t e = 0; g->in[i].role == ROLE_PARAM && e < tensor_nelem(&in[i]); e++)
            tensor_set(&in[i], e, 0.3 * tensor_get(&in[i], e));
    }
    return in;
}

/* ---- loss and gradients ---- */

static Graph *make(const Job *j, const ModelConfig *c, bool pack)
{
    const ModelOptions how = {.pack = pack};
    Graph *g = model_graph(j->a, c, pack ? docs.rows : docs.n, T, &how);
    PassOptions o = j->o;
    if (j->wide)
        g = graph_wide(j->a, g);
    passes_run(g, j->passes, &o, NULL, NULL);
    return g;
}

static Tensor *run_graph(const Job *j, const ModelConfig *c, Graph *g, bool pack)
{
    Tensor *in = inputs(j, g, pack, c->vocab);
    return j->wide ? graphs_interpret(j->a, g, in) : graphs_execute(j->a, g, in);
}

static void expect_near(const Job *j, const Port *p, const Tensor *got, const Tensor *want)
{
    double most = interp_largest(want), limit = j->wide ? WIDE : NARROW, far = 0;
    for (int64_t e = 0; e < tensor_nelem(want); e++)
        far = fmax(far, fabs(tensor_get(got, e) - tensor_get(want, e)));
    if (!EXPECT(most > 0 && far <= limit * most))
        printf("  %s, %s: %%%s is %g off of %g\n", j->folder, j->wide ? "f64" : "f32", p->v->name,
               far, most);
}

static bool is_square(const Graph *g)
{
    bool found = false;
    EACH_NODE(n, g)
        for (int k = 0; k < n->nout; k++) {
            int axes = 0;
            for (int d = 0; d < n->out[k]->type.rank; d++)
                axes += n->out[k]->type.dim[d] == T;
            found |= axes > 1;
        }
    return found;
}

static void compare(void *arg)
{
    const Job *j = arg;
    ModelConfig c = config_read(j->a, arena_printf(j->a, "tests/ref/%s/config.json", j->folder));
    Graph *packed = make(j, &c, true), *plain = make(j, &c, false);
    EXPECT(!is_square(packed));
    Tensor *got = run_graph(j, &c, packed, true), *want = run_graph(j, &c, plain, false);
    int compared = 0;
    for (int k = 0; k < packed->nout; k++) {
        int at = graphs_output(plain, packed, k);
        if (packed->out[k].role != ROLE_LOSS && packed->out[k].role != ROLE_GRAD)
            continue;
        compared++;
        expect_near(j, &packed->out[k], &got[k], &want[at]);
    }
    EXPECT(compared > 10);
}

static void check_models(Ctx *ctx, bool quick)
{
    static const char *const folders[] = {"llama-tiny", "gpt2-tiny", "qwen2-tiny", "qwen3-tiny"};
    static const struct {
        const char *recompute;
        int accumulate;
    } how[] = {{"none", 1}, {"full", 1}, {"none", 2}};
    for (int i = 0; i < LEN(folders); i++)
        for (int k = 0; k < LEN(how) + 1; k++) {
            if (i && (k > 1 || quick)) /* of one model all ways */
                continue;
            Job j = {arena_new(ctx), folders[i],
                     "grad,accumulate,canonicalize,cse,dce,policies,remat", pass_defaults(),
                     k == LEN(how)};
            j.wide = k == 0;
            j.o.recompute = how[k ? k - 1 : 0].recompute;
            j.o.accumulate = how[k ? k - 1 : 0].accumulate;
            if (!EXPECT(!ctx_try(ctx, compare, &j)))
                printf("  %s: %s\n", j.folder, ctx->message);
            arena_free(j.a);
        }
}

/* ---- seconds ---- */

static double process_sec(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct Timed {
    Arena *a;
    DType dtype;
    int64_t rows, length, each; /* each: of a document */
    double sec;
} Timed;

/* Attention of rows and its backward, the fastest of a few. */
static void time_rows(void *arg)
{
    Timed *x = arg;
    Graph *g = graph_new(x->a, "g");
    Build b = {.g = g, .phase = FORWARD};
    const int64_t dim[] = {x->rows, x->length, 8, 64}; /* heads enough for one task each */
    Value *in[4];
    for (int i = 0; i < 3; i++)
        in[i] = graph_input(g, (const char *[]){"q", "k", "v"}[i], type_make(x->dtype, 4, dim),
                            ROLE_BATCH, NULL);
    in[3] = graph_input(g, "starts", type_make(I64, 2, dim), ROLE_BATCH, NULL);
    Node *n = emit(&b, "flash_attention", 4, in, NOATTRS);
    Node *back =
        emit(&b, "flash_attention_backward", 7,
             (Value *[]){n->out[0], in[0], in[1], in[2], n->out[0], n->out[1], in[3]}, NOATTRS);
    for (int i = 0; i < 3; i++)
        graph_output(g, back->out[i], ROLE_METRIC, (const char *[]){"dq", "dk", "dv"}[i]);
    Plan *p = graphs_plan(x->a, g);
    Program *program = program_make(x->a, p, false, 0);
    Tensor *data = graphs_inputs(x->a, g);
    for (int64_t t = 0; t < x->rows * x->length; t++)
        tensor_set(&data[3], t, (double)(t % x->length / x->each * x->each));
    for (int i = 0; i < p->nin; i++)
        CHECK(!program_write(program, &p->in[i], 0, tensor_nbytes(&data[i]), data[i].data));
    x->sec = INFINITY;
    for (int i = 0; i < 4; i++) {
        double start = process_sec();
        CHECK(!program_run(program));
        x->sec = fmin(x->sec, process_sec() - start);
    }
}

static double sec_of(Ctx *ctx, Timed x)
{
    x.a = arena_new(ctx);
    if (!EXPECT(!ctx_try(ctx, time_rows, &x)))
        printf("  %s\n", ctx->message);
    arena_free(x.a);
    return x.sec;
}

/* Rows of `length` tokens, of one document and of 2, 4, ... up to documents of `least`: seconds are
 * those of one document by the sums of the squares of lengths, and what each token takes by itself:
 * reading, turning, writing. Less where long documents' keys are beyond the caches. TN_LONG: held
 * closely, as other work beside it must not fail a test. *one: of one document. Returns the last.
 */
static double check_squares(Ctx *ctx, DType d, int64_t length, int64_t least, double *one)
{
    const bool closely = getenv("TN_LONG");
    double sec = *one =
        sec_of(ctx, (Timed){.dtype = d, .rows = 1, .length = length, .each = length});
    for (int64_t each = length / (closely ? 2 : 4); each >= least; each /= closely ? 2 : 4) {
        double squares = (double)each / (double)length;
        sec = sec_of(ctx, (Timed){.dtype = d, .rows = 1, .length = length, .each = each});
        double most = closely ? 1.25 * squares + 0.08 : 2 * squares + 0.125;
        if (!EXPECT(sec <= *one * most) || closely)
            printf("note: %s, %lld tokens in documents of %lld: %.3g ms, %.3g of one document's, "
                   "squares %.3g\n",
                   dtype_name(d), (long long)length, (long long)each, 1e3 * sec, sec / *one,
                   squares);
    }
    return sec;
}

/* Documents that no block of a kernel divides, and rows of their own too, of 2048 tokens. */
static void check_seconds(Ctx *ctx, DType d)
{
    double one, many = check_squares(ctx, d, 2048, 128, &one);
    double odd = sec_of(ctx, (Timed){.dtype = d, .rows = 1, .length = 2048, .each = 100});
    double apart = sec_of(ctx, (Timed){.dtype = d, .rows = 16, .length = 128, .each = 128});
    if (!EXPECT(odd < one / 3 && odd < 1.7 * many && many < 1.7 * apart) || getenv("TN_LONG"))
        printf("note: %s: 16 documents of 128 tokens %.3g ms, 21 of up to 100 %.3g, 16 in rows of "
               "their own %.3g\n",
               dtype_name(d), 1e3 * many, 1e3 * odd, 1e3 * apart);
    if (getenv("TN_LONG"))
        check_squares(ctx, d, 4096, 128, &one);
}

/* ---- rows ---- */

enum { RECORDS = 120, PLACES = 50, BATCH = 3 };

static void write_records(const char *path)
{
    FILE *f = fopen(path, "wb");
    Rng r = {.seed = 4};
    CHECK(f);
    for (int i = 0; i < RECORDS; i++) {
        int prompt = (int)rng_below(&r, 20), answer = 1 + (int)rng_below(&r, i % 5 ? 12 : 40);
        fprintf(f, "{\"prompt\": \"%0*d\", \"completion\": \"%0*d\"}\n", prompt + 1, i, answer,
                RECORDS - i);
    }
    CHECK(!fclose(f));
}

static tn_data *open_rows(tn_context *ctx, const char *path)
{
    tn_data *text, *rows;
    tn_tokenizer *t;
    int made;
    const tn_text_options o = {
        .between = -1, .holds = TN_HOLDS_ROWS, .seq = PLACES, .val_fraction = 0.25};
    CHECK(!tn_data_open(ctx, 1, &path, "byte", 0, 0, &text));
    CHECK(!tn_tokenizer_open(ctx, "bytes", &t));
    CHECK(!tn_data_tokenize(text, t, &o, &rows, &made));
    return rows;
}

/* A row's ids, labels and starts. */
typedef struct Row3 {
    int64_t ids[PLACES], labels[PLACES], starts[PLACES];
} Row3;

/* The sum of a hash of each document of a row; *n counts them. Starts must be those of documents,
 * and of padding its own. */
static uint64_t sum_documents(const Row3 *r, int *n)
{
    uint64_t sum = 0;
    for (int64_t at = 0, end; at < PLACES; at = end) {
        for (end = at + 1; end < PLACES && r->starts[end] == at;)
            end++;
        EXPECT(r->starts[at] == at);
        bool padding = end == at + 1 && !r->ids[at] && r->labels[at] == IGNORED;
        size_t nbytes = sizeof *r->ids * (size_t)(end - at);
        *n += !padding;
        sum += padding ? 0 : hash_bytes(&r->labels[at], nbytes, hash_bytes(&r->ids[at], nbytes, 1));
    }
    return sum;
}

static uint64_t sum_held(tn_data *d, int64_t rows, int *n)
{
    Row3 r;
    int64_t count;
    uint64_t sum = 0;
    for (int64_t k = 0; k < rows; k++) {
        CHECK(!tn_data_val_packed(d, k, 1, 1, PLACES, r.ids, r.labels, r.starts, &count));
        EXPECT(count > 0);
        sum += sum_documents(&r, n);
    }
    return sum;
}

/* Adds up an epoch, whose rows come in an order of their own. */
static uint64_t sum_epoch(tn_data *d, int64_t rows, int *n)
{
    static Row3 r;
    uint64_t sum = 0;
    for (int64_t k = 0; k < rows; k++) {
        CHECK(!tn_data_packed(d, 9, (uint32_t)k + 1, 1, PLACES, r.ids, r.labels, r.starts));
        sum += sum_documents(&r, n);
    }
    return sum;
}

static void check_ahead(tn_context *ctx, const char *path, const Row3 *want)
{
    tn_data *d = open_rows(ctx, path);
    static int64_t ids[BATCH * PLACES], labels[BATCH * PLACES], starts[BATCH * PLACES];
    CHECK(!tn_data_pack(d, PLACES) && !tn_data_read_ahead(d, 9, 1, BATCH, PLACES));
    CHECK(!tn_data_packed(d, 9, 1, BATCH, PLACES, ids, labels, starts));
    for (int b = 0; b < BATCH; b++)
        EXPECT(!memcmp(want[b].ids, ids + b * PLACES, sizeof want->ids) &&
               !memcmp(want[b].labels, labels + b * PLACES, sizeof want->ids) &&
               !memcmp(want[b].starts, starts + b * PLACES, sizeof want->ids));
}

/* The number that a prompt is. */
static int64_t number_of(const Row3 *r)
{
    int64_t x = 0;
    for (int t = 0; t < PLACES; t++) {
        x = 10 * x + r->ids[t] - '0';
        if (r->labels[t] != IGNORED)
            break;
    }
    return x;
}

static void check_order(tn_context *ctx, const char *path, int64_t rows)
{
    tn_data *d = open_rows(ctx, path);
    static Row3 r;
    CHECK(!tn_data_shuffle(d, 0));
    for (int64_t k = 0; k < 2 * rows; k++) {
        CHECK(!tn_data_packed(d, 9, (uint32_t)k + 1, 1, PLACES, r.ids, r.labels, r.starts));
        EXPECT(number_of(&r) == k % rows);
    }
}

static void check_rows(void)
{
    char path[] = "/tmp/tenon_pack_XXXXXX";
    int fd = mkstemp(path);
    tn_context *ctx = tn_context_new();
    CHECK(fd >= 0 && ctx && !close(fd));
    write_records(path);
    tn_data *plain = open_rows(ctx, path), *packed = open_rows(ctx, path);
    int64_t rows[2], held[2], nlabel[2], places = 0;
    int n[4] = {0};
    CHECK(!tn_data_pack(packed, PLACES));
    CHECK(!tn_data_windows(plain, 0, PLACES, &rows[0], &nlabel[0]));
    CHECK(!tn_data_windows(packed, 0, PLACES, &rows[1], &nlabel[1]));
    EXPECT(nlabel[0] == nlabel[1] && rows[0] == RECORDS * 3 / 4);
    EXPECT(sum_epoch(plain, rows[0], &n[0]) == sum_epoch(packed, rows[1], &n[1]));
    EXPECT(n[0] == RECORDS * 3 / 4 && n[1] == n[0]);
    CHECK(!tn_data_windows(plain, 1, PLACES, &held[0], &nlabel[0]));
    CHECK(!tn_data_windows(packed, 1, PLACES, &held[1], &nlabel[1]));
    EXPECT(sum_held(plain, held[0], &n[2]) == sum_held(packed, held[1], &n[3]) && n[2] == n[3]);
    Row3 r[BATCH];
    for (int64_t k = 0; k < rows[0]; k++) {
        CHECK(!tn_data_packed(plain, 9, (uint32_t)k + 1, 1, PLACES, r->ids, r->labels, r->starts));
        for (int t = 0; t < PLACES; t++)
            places += !r->starts[t] || t == 0;
    }
    EXPECT(rows[1] * PLACES < places * 11 / 9 + 4 * PLACES && rows[1] * PLACES >= places);
    for (uint32_t k = 0; k < BATCH; k++)
        CHECK(!tn_data_packed(packed, 9, k + 1, 1, PLACES, r[k].ids, r[k].labels, r[k].starts));
    check_ahead(ctx, path, r);
    check_order(ctx, path, rows[0]);
    EXPECT(tn_data_batch(packed, 9, 1, 1, PLACES, r->ids, r->labels) == TN_CODE_USAGE &&
           strstr(tn_error(ctx), "expected tn_data_packed"));
    EXPECT(tn_data_packed(packed, 9, 1, 1, 4, r->ids, r->labels, r->starts) == TN_CODE_USAGE);
    EXPECT(tn_data_pack(packed, INT32_MAX) == TN_CODE_USAGE);
    tn_context_free(ctx);
    unlink(path);
}

int main(void)
{
    static Ctx ctx;
    bool quick = getenv("TN_QUICK");
    check_rows();
    check_models(&ctx, quick);
    par_set_threads(1);
    if (quick) {
        printf("note: of one model, and without seconds, which sanitizers change\n");
        return test_report();
    }
    check_seconds(&ctx, F32);
    check_seconds(&ctx, BF16);
    return test_report();
}
