/* What callers may do wrong with the C API: every function of include/tenon.h is called with NULL
 * for each pointer, with numbers below and beyond what they may be, and out of order. Each call
 * returns an error code and its message names the argument; none crashes, which sanitized builds
 * look at closely. A function without a row in misuse.h fails, and so does one whose row has not as
 * many arguments as the header declares.
 *
 * And scalar inputs, which were set or not. */
#include "../shared/misuse.h"
#include "../shared/test.h"

#include <math.h>
#include <unistd.h>

static const Row *find_row(const char *name)
{
    for (int i = 0; i < LEN(rows); i++)
        if (!strcmp(rows[i].name, name))
            return &rows[i];
    return NULL;
}

/* ---- what the header declares ---- */

/* Arguments in the brackets that begin at s. */
static int count_arguments(const char *s)
{
    int depth = 0, n = strncmp(s, "(void)", 6) ? 1 : 0;
    do {
        depth += (*s == '(') - (*s == ')');
        n += *s == ',' && depth == 1;
        s++;
    } while (depth);
    return n;
}

static void check_declaration(const char *s)
{
    char name[80] = "";
    const char *begin = strstr(s, "tn_"), *bracket = strchr(s, '(');
    while (begin && begin + strcspn(begin, " *(") != bracket) /* types come first */
        begin = strstr(begin + 3, "tn_");
    if (!EXPECT(begin && bracket))
        return;
    snprintf(name, sizeof name, "%.*s", (int)(bracket - begin), begin);
    int n = count_arguments(bracket);
    const Row *r = find_row(name);
    if (n && !EXPECT(r && (int)strlen(r->kinds) == n))
        printf("  %s: %s for its %d arguments\n", name, r ? "another number of kinds" : "no row",
               n);
}

static void test_header(void)
{
    static char text[1 << 18];
    FILE *f = fopen("include/tenon.h", "rb");
    CHECK(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    int count = 0;
    for (const char *s = text; (s = strstr(s, "\nTN_API ")); s++, count++)
        check_declaration(s);
    EXPECT(count > LEN(rows) && strlen(text) < sizeof text - 1);
}

/* ---- objects to call with ---- */

static tn_context *ctx;
static tn_graph *g;
static tn_value *v;
static tn_model *m;
static tn_data *d;
static tn_tokenizer *t;
static tn_plan *plans[2];
static tn_program *x;
static tn_generator *generator;
static tn_buffers *buffers;
static tn_sharding *sharding;
static tn_chat *chat;
static tn_options o;
static char folder[] = "/tmp/tenon_misuse_XXXXXX", nowhere[100];
static const char *texts[2] = {nowhere, nowhere};
static int64_t room[512];

static void ok(int code)
{
    if (!EXPECT(code == TN_CODE_OK))
        printf("  %s\n", tn_error(ctx));
}

static const char *const step_text =
    "tenon 1\ngraph g(%w: f32[2] param \"w\", %t: i64[] step, %r: f32[] scalar \"lr\") {\n"
    "  %n: f32[2] = mul(%w, %r)  optimizer\n  %y: f32[2] = exp(%n)  optimizer\n"
    "  return new \"w\" %n, %y, %t\n}\n";

static void start(void)
{
    const char *data = "README.md";
    const int64_t shape[] = {2};
    ctx = tn_context_new();
    o = tn_options_default();
    CHECK(ctx && mkdtemp(folder));
    snprintf(nowhere, sizeof nowhere, "%s/nothing/x", folder);
    ok(tn_graph_new(ctx, "g", &g));
    ok(tn_graph_input(g, "x", "f32", 1, shape, "", NULL, &v));
    ok(tn_graph_output(g, v, "", NULL));
    ok(tn_model_open(ctx, "tests/ref/gpt2-tiny", &m));
    ok(tn_data_open(ctx, 1, &data, "byte", 0.1, 256, &d));
    ok(tn_tokenizer_open(ctx, "bytes", &t));
    for (int i = 0; i < 2; i++)
        ok(tn_plan_new(g, &o, 0, &plans[i]));
    ok(tn_program_new(plans[0], &o, &x));
    ok(tn_generator_new(m, 8, &o, &generator));
    ok(tn_buffers_read(ctx, "tests/seeds/place/plain.csv", NULL, NULL, &buffers));
    ok(tn_sharding_read(ctx, "tests/seeds/pick/own.json", &sharding));
    ok(tn_chat_open(ctx, "tests/chat", &chat));
}

static void finish(void)
{
    char command[100];
    tn_context_free(ctx);
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK(!system(command));
}

/* ---- every argument wrong in turn ---- */

static Arg usual(char kind)
{
    static char zeros[256];
    switch (kind) {
    case 'C': return (Arg){.p = ctx};
    case 'G': return (Arg){.p = g};
    case 'V': return (Arg){.p = v};
    case 'M': return (Arg){.p = m};
    case 'D': return (Arg){.p = d};
    case 'K': return (Arg){.p = t};
    case 'P': return (Arg){.p = plans[0]};
    case 'Q': return (Arg){.p = plans};
    case 'T': return (Arg){.p = texts};
    case 'X': return (Arg){.p = x};
    case 'N': return (Arg){.p = generator};
    case 'B': return (Arg){.p = buffers};
    case 'H': return (Arg){.p = sharding};
    case 'J': return (Arg){.p = chat};
    case 's': return (Arg){.p = nowhere};
    case 'o': return (Arg){.p = &o};
    case 'p': return (Arg){.p = zeros};
    case 'r': return (Arg){.p = room};
    case 'n':
    case 'm':
    case 'k': return (Arg){.i = 1};
    case 'd': return (Arg){.d = 0};
    default: return (Arg){.i = 0};
    }
}

/* Wrong values of a kind, and whether they are refused. */
static int wrong(char kind, Arg *w, bool *refused)
{
    static tn_plan *no_plans[2];
    static const char *no_texts[2];
    const Arg low[] = {{.i = -1}, {.i = INT64_MIN}};
    const Arg any[] = {{.i = -1}, {.i = 0}, {.i = 1}, {.i = INT64_MAX}, {.i = INT64_MIN}};
    const Arg part[] = {{.d = NAN}, {.d = -1}, {.d = 2}, {.d = INFINITY}};
    *refused = kind != 'i';
    switch (kind) {
    case '0':
    case '.': return 0;
    case 'i': memcpy(w, any, sizeof any); return LEN(any);
    case 'd': memcpy(w, part, sizeof part); return LEN(part);
    case 'b': memcpy(w, (Arg[]){{.i = -1}, {.i = 2}}, 2 * sizeof *w); return 2;
    case 'k': w[0].i = 0; return 1;
    case 'z':
    case 'c': memcpy(w, low, sizeof low); return LEN(low);
    case 'm':
    case 'n':
        memcpy(w, low, sizeof low);
        w[2].i = 0;
        w[3].i = INT64_MAX;
        return kind == 'n' ? 4 : 3;
    case 'Q':
        w[0].p = NULL;
        w[1].p = no_plans;
        return 2;
    case 'T':
        w[0].p = NULL;
        w[1].p = no_texts;
        return 2;
    default: w[0].p = NULL; return 1;
    }
}

/* Whether a message was left since forget(), with the context or with the program. */
static bool told(void)
{
    return strcmp(tn_error(ctx), "none") != 0 || !strstr(tn_program_error(x), "\"none\"");
}

static void forget(void)
{
    tn_context_fail(ctx, 0, "none");
    EXPECT(tn_program_read(x, "none", room, 1) == TN_CODE_FAIL);
}

static void check_argument(const Row *r, Arg *a, int k)
{
    Arg w[8];
    bool refused;
    int n = wrong(r->kinds[k], w, &refused);
    for (int i = 0; i < n; i++) {
        Arg was = a[k];
        a[k] = w[i];
        forget();
        int64_t code = r->call(a);
        bool good = r->quiet || (refused ? code == TN_CODE_USAGE : code >= 0 && code <= 3);
        bool unowned = k == 0 && (!a[0].p || r->kinds[0] == 'Q');
        if (!EXPECT(good && (r->quiet || !code || unowned || told())))
            printf("  %s: argument %d, wrong value %d: code %lld: %s, %s\n", r->name, k, i,
                   (long long)code, tn_error(ctx), tn_program_error(x));
        a[k] = was;
    }
    tn_threads(1);
}

static void test_arguments(void)
{
    for (int i = 0; i < LEN(rows); i++) {
        Arg a[10];
        for (int k = 0; rows[i].kinds[k]; k++)
            a[k] = usual(rows[i].kinds[k]);
        for (int k = 0; rows[i].kinds[k]; k++)
            check_argument(&rows[i], a, k);
    }
}

/* ---- arguments that are wrong together, and calls out of order ---- */

static void refused(int code, const char *part, int line)
{
    if (!test_note(code == TN_CODE_USAGE && strstr(tn_error(ctx), part), __FILE__, line, part))
        printf("  found code %d: %s\n", code, tn_error(ctx));
}
#define REFUSED(call, part) refused((call), (part), __LINE__)

/* The same of a program, whose context hears nothing of it. */
static void left(tn_program *y, int code, int want, const char *part, int line)
{
    bool good = code == want && strstr(tn_program_error(y), part) && !strcmp(tn_error(ctx), "none");
    if (!test_note(good, __FILE__, line, part))
        printf("  found code %d: %s; %s\n", code, tn_program_error(y), tn_error(ctx));
}
#define LEFT(y, call, want, part) \
    (tn_context_fail(ctx, 0, "none"), left((y), (call), (want), (part), __LINE__))

static void test_together(void)
{
    void *r = room;
    tn_context *other = tn_context_new();
    tn_model *stranger = NULL;
    int count;
    REFUSED(tn_generator_feed(generator, 1, NULL), "ids: expected a pointer");
    REFUSED(tn_tokenizer_encode(t, NULL, 1, 0, r, r), "text: expected a pointer");
    REFUSED(tn_tokenizer_decode(t, 1, NULL, r, r), "ids: expected a pointer");
    REFUSED(tn_graph_node(g, "exp", 1, NULL, NULL, NULL, NULL, 1, &v), "in: expected a pointer");
    REFUSED(tn_graph_node(g, "exp", 1, &v, NULL, NULL, NULL, 1, NULL), "out: expected a pointer");
    REFUSED(tn_graph_input(g, "y", "f32", 1, NULL, "", NULL, r), "shape: expected a pointer");
    REFUSED(tn_graph_new(ctx, "a b", r), "\"a b\"");
    REFUSED(tn_program_trace_write(x, nowhere), "tn_program_trace");
    REFUSED(tn_program_calls(x, r, &count), "tn_program_trace");
    REFUSED(tn_plan_page(plans, NULL, 2, "", "", r), "side");
    EXPECT(tn_model_end(m, 1, NULL) == 0 && tn_plan_products(plans[0], 1, NULL) == 0);
    EXPECT(!tn_model_open(other, "tests/ref/gpt2-tiny", &stranger));
    REFUSED(tn_program_load(x, stranger, &o), "one context");
    REFUSED(tn_program_save(x, stranger, nowhere, "{}"), "one context");
    tn_context_free(other);
    ok(tn_generator_start(generator, NULL));
    REFUSED(tn_generator_start(generator, NULL), "has its memory");
}

/* Sizes that .tn takes, an input takes too. */
static void test_input_sizes(void)
{
    const int64_t most[] = {(int64_t)1 << 54}, more[] = {((int64_t)1 << 54) + 4096}, few[] = {-1};
    tn_value *y;
    ok(tn_graph_input(g, "most", "f32", 1, most, "", NULL, &y));
    REFUSED(tn_graph_input(g, "more", "f32", 1, more, "", NULL, &y), "more than 2^56 bytes");
    REFUSED(tn_graph_input(g, "few", "f32", 1, few, "", NULL, &y), "a negative size");
}

/* ---- options ---- */

#define WRONG(field, value, part)                                       \
    do {                                                                \
        tn_options w = o;                                               \
        tn_graph *made = NULL;                                          \
        w.field = (value);                                              \
        REFUSED(tn_model_graph(m, 1, 4, &w, &made), "options." #field); \
        EXPECT(!made && strstr(tn_error(ctx), part));                   \
    } while (0)

static void test_options(void)
{
    WRONG(accumulate, 0, "found 0");
    WRONG(optimizer, NULL, "adamw");
    WRONG(weight_decay, -1, "found -1");
    WRONG(weight_decay, NAN, "nan");
    WRONG(beta1, 1, "1 - beta1^step");
    WRONG(beta2, 1, "1 - beta2^step");
    WRONG(beta2, -0.5, "found -0.5");
    EXPECT(!strstr(tn_error(ctx), "1 - beta2^step"));
    WRONG(eps, 0, "NaN");
    WRONG(eps, -1e-8, "NaN");
    WRONG(eps, INFINITY, "found inf");
    EXPECT(!strstr(tn_error(ctx), "NaN")); /* the reason is of the other limit */
    WRONG(clip, -1, "found -1");
    WRONG(momentum, 1, "found 1");
    WRONG(dropout, 1, "1 - dropout");
    WRONG(z_loss, -1, "found -1");
    WRONG(label_smoothing, 1.5, "found 1.5");
    WRONG(memory, -1, "found -1");
    WRONG(persistent, -1, "found -1");
    WRONG(arena, -1, "found -1");
    WRONG(shard, -1, "found -1");
    tn_options w = o;
    w.nfreeze = 1;
    REFUSED(tn_graph_passes(g, "cse", &w, NULL, NULL), "options.freeze");
    w = o;
    w.nrules = -1;
    REFUSED(tn_graph_passes(g, "cse", &w, NULL, NULL), "options.rules");
}

/* ---- scalars ---- */

static float *place(tn_program *program, const char *name)
{
    void *data = NULL;
    ok(tn_program_data(program, name, &data, NULL));
    return data;
}

static void test_scalars(void)
{
    tn_graph *step;
    tn_plan *p;
    tn_program *y, *beside;
    o.check = 1; /* what is dead is overwritten */
    ok(tn_graph_parse(ctx, step_text, "step", &step));
    ok(tn_plan_new(step, &o, 0, &p));
    ok(tn_program_new(p, &o, &y));
    float *w = place(y, "w"), *lr = place(y, "lr");
    int64_t *count = (void *)place(y, "step");
    w[0] = w[1] = 1;
    LEFT(y, tn_program_run(y), TN_CODE_USAGE, "input \"step\" was never set");
    *count = 3;
    LEFT(y, tn_program_run(y), TN_CODE_USAGE, "input \"lr\" was never set");
    *lr = 0;
    ok(tn_program_run(y));
    EXPECT(w[0] == 0 && *count == 3);
    w[0] = w[1] = 1;
    *lr = 0.5f;
    for (int i = 0; i < 3; i++)
        ok(tn_program_run(y));
    EXPECT(w[0] == 0.125f && *lr == 0.5f && *count == 3);
    ok(tn_program_share(p, y, &beside));
    LEFT(beside, tn_program_run(beside), TN_CODE_USAGE, "input \"step\" was never set");
    *(int64_t *)(void *)place(beside, "step") = 1;
    LEFT(beside, tn_program_run(beside), TN_CODE_USAGE, "input \"lr\" was never set");
    REFUSED(tn_program_check(beside, 1), "shares");
    *place(beside, "lr") = 2;
    ok(tn_program_run(beside));
    EXPECT(w[0] == 0.25f);
    ok(tn_program_run(y)); /* what one set stays set, whichever ran in the arena since */
    EXPECT(w[0] == 0.125f && *lr == 0.5f && *count == 3);
    ok(tn_program_run(beside));
    EXPECT(w[0] == 0.25f && *place(beside, "lr") == 2);
    tn_program_fill(y, 0x5a);
    ok(tn_program_run(y));
    EXPECT(w[0] == 0.125f && *lr == 0.5f && *count == 3);
}

/* A step of 4 tokens that trains beside a guest that evaluates 128: lr is set once, and the weights
 * are those of training alone. */
static void train_beside(bool guest, float *last)
{
    tn_graph *step, *eval;
    tn_model *llama;
    tn_plan *p, *q;
    tn_program *y, *beside = NULL;
    tn_options host = tn_options_default(), own = host;
    int64_t peak, reserve;
    host.arena = 4 << 20;
    ok(tn_model_open(ctx, "tests/ref/llama-tiny", &llama));
    ok(tn_model_graph(llama, 2, 4, &host, &step));
    ok(tn_graph_passes(step, "default", &host, NULL, NULL));
    ok(tn_plan_new(step, &host, 1, &p));
    ok(tn_program_new(p, &host, &y));
    ok(tn_program_load(y, llama, &host));
    tn_plan_bytes(p, &peak, &own.persistent, &reserve);
    ok(tn_model_graph(llama, 2, 64, &own, &eval));
    ok(tn_graph_passes(eval, "forward", &own, NULL, NULL));
    ok(tn_plan_new(eval, &own, 1, &q));
    ok(tn_program_share(q, y, &beside));
    *place(y, "lr") = 0.01f;
    for (int i = 1; i <= 3; i++) {
        *(int64_t *)(void *)place(y, "step") = i;
        for (int k = 0; k < 8; k++)
            ((int64_t *)(void *)place(y, "input_ids"))[k] =
                ((int64_t *)(void *)place(y, "labels"))[k] = k + i;
        ok(tn_program_run(y));
        for (int k = 0; guest && k < 128; k++)
            ((int64_t *)(void *)place(beside, "input_ids"))[k] =
                ((int64_t *)(void *)place(beside, "labels"))[k] = k % 50;
        if (guest)
            ok(tn_program_run(beside));
    }
    memcpy(last, place(y, "model.embed_tokens.weight"), 64 * sizeof *last);
}

static void failed(int code, const char *part)
{
    if (!EXPECT(code && strstr(tn_error(ctx), part) && access(nowhere, F_OK)))
        printf("  found code %d: %s\n", code, tn_error(ctx));
}

/* What would be a broken checkpoint is not written. */
static void test_save(void)
{
    tn_model *other;
    tn_graph *step;
    tn_plan *p;
    tn_program *y;
    tn_options host = tn_options_default();
    ok(tn_model_open(ctx, "tests/ref/llama-tiny", &other));
    ok(tn_model_graph(m, 1, 4, &host, &step));
    ok(tn_plan_new(step, &host, 1, &p));
    ok(tn_program_new(p, &host, &y));
    ok(tn_program_load(y, m, &host));
    failed(tn_program_save(y, other, nowhere, "{}"), "is not one of the model");
    failed(tn_plan_save_bytes(p, other, &host, 1, room, room + 1), "is not one of the model");
    failed(tn_program_save(y, m, nowhere, "{bad"), "JSON object");
    failed(tn_program_save(y, m, nowhere, "[1]"), "JSON object");
    failed(tn_program_save(x, m, nowhere, "{}"), "parameters, found 0");
    ok(tn_program_save(y, m, nowhere, "{}"));
}

/* An output that is the input would replace the text. */
static void test_same_file(void)
{
    char path[120];
    int64_t count;
    int width;
    const char *input = path;
    const tn_tokenize_options how = {0};
    snprintf(path, sizeof path, "%s/text.txt", folder);
    FILE *f = fopen(path, "w");
    CHECK(f && fputs("text", f) >= 0 && !fclose(f));
    REFUSED(tn_tokenize(t, 1, &input, path, &how, &count, &width), "would replace");
    REFUSED(tn_detokenize(t, path, path, &how, &count), "would replace");
}

static void test_messages(void)
{
    tn_context_fail(ctx, 0, "none");
    EXPECT(tn_context_fail(ctx, 1, NULL) == 1 && strcmp(tn_error(ctx), "none") != 0);
    tn_options w = o;
    w.memory = -1;
    REFUSED(tn_graph_passes(g, "cse", &w, NULL, NULL), "expected 0 to 4611686018427387904");
    const char *list[] = {NULL, "loss", NULL};
    const char *near = tn_nearest("lodss", list, 3);
    EXPECT(near && !strcmp(near, "loss"));
}

static void test_guest(void)
{
    float alone[64], beside[64];
    train_beside(false, alone);
    train_beside(true, beside);
    EXPECT(!memcmp(alone, beside, sizeof alone));
}

/* ---- offsets ---- */

static void check_offset(const char *text, int64_t offset, const char *part)
{
    tn_graph *h;
    tn_plan *p;
    tn_program *y;
    ok(tn_graph_parse(ctx, text, "offset", &h));
    ok(tn_plan_new(h, &o, 0, &p));
    ok(tn_program_new(p, &o, &y));
    *(int64_t *)(void *)place(y, "at") = offset;
    int code = tn_program_run(y);
    if (!EXPECT(part ? code == TN_CODE_FAIL && strstr(tn_program_error(y), part) : !code))
        printf("  offset %lld: code %d: %s\n", (long long)offset, code, tn_program_error(y));
    tn_program_free(y);
    tn_plan_free(p);
    tn_graph_free(h);
}

#define DROPOUT(dtype, extent)                                                           \
    "tenon 1\ngraph g(%x: " dtype "[2, 3], %s: i64[] seed, %at: i64[]) {\n"              \
    "  %y: " dtype "[2, 3] = dropout(%x, %s, %s, %at, p=0.5, axes=[0], extents=[" extent \
    "])  stream=0\n"                                                                     \
    "  return %y\n}\n"
#define TABLE(dtype)                                                    \
    "tenon 1\ngraph g(%at: i64[]) {\n  %c: " dtype "[4, 2], %s: " dtype \
    "[4, 2] = rope_table(%at, length=4, dim=4, dtype=" dtype ")\n  return %c, %s\n}\n"

static void test_offsets(void)
{
    static const char *const dropouts[] = {DROPOUT("f32", "8"), DROPOUT("f64", "8")};
    static const char *const tables[] = {TABLE("f32"), TABLE("f64")};
    const int64_t far[] = {7, (int64_t)1 << 62, INT64_MAX, -1, INT64_MIN};
    const int64_t beyond[] = {((int64_t)1 << 53) - 3, (int64_t)1 << 62, INT64_MAX,
                              -((int64_t)1 << 53) - 1, INT64_MIN};
    tn_graph *h = NULL;
    for (int i = 0; i < 2; i++) {
        check_offset(dropouts[i], 6, NULL);
        check_offset(tables[i], ((int64_t)1 << 53) - 4, NULL);
        for (int k = 0; k < LEN(far); k++) {
            check_offset(dropouts[i], far[k], "expected 0 to 6");
            check_offset(tables[i], beyond[k], "expected -2^53 to");
        }
    }
    int code = tn_graph_parse(ctx, DROPOUT("f32", "4611686018427387904"), "large", &h);
    EXPECT(code && !h && strstr(tn_error(ctx), "at most 2^62 elements"));
}

/* ---- buffers ---- */

/* Three buffers whose least peak is 7, one of them changed; nothing is written where that is
 * refused. */
static void test_buffers(void)
{
    const int64_t most = (int64_t)1 << 62;
    const tn_buffer good[] = {
        {"a", 0, 2, 4, -1}, {"b", 1, 3, 3, -1}, {NULL, -most, most, 0, -1}, {"d", 2, 3, 4, -1}};
    const struct {
        int at;
        tn_buffer wrong;
        const char *part;
    } cases[] = {
        {1,
         {"b", 4, 3, 1, -1},
         "buffer 1 (\"b\"): lower: expected -4611686018427387904 to 3, found 4"},
        {2, {NULL, 0, most + 1, 1, -1}, "buffer 2: upper: expected -4611686018427387904 to"},
        {2, {NULL, INT64_MIN, 0, 1, -1}, "buffer 2: lower: expected -4611686018427387904 to 0"},
        {3,
         {"d", 0, 1, -1, -1},
         "buffer 3 (\"d\"): size: expected 0 to 4611686018427387897, found -1"},
        {3, {"d", 0, 1, most - 6, -1}, "size: expected 0 to 4611686018427387897, found"},
    };
    tn_placement r = {0};
    tn_buffer b[4];
    memcpy(b, good, sizeof b);
    REFUSED(tn_place(ctx, 1, NULL, 0, 0, &r), "buffer: expected a pointer");
    REFUSED(tn_place_check(ctx, 4, b, &r), "buffer 0 (\"a\"): offset: expected 0 to");
    for (int i = 0; i < LEN(cases); i++) {
        b[cases[i].at] = cases[i].wrong;
        REFUSED(tn_place(ctx, 4, b, 0, 0, &r), cases[i].part);
        EXPECT(b[0].offset == -1 && !r.peak);
        b[cases[i].at] = good[cases[i].at];
    }
    ok(tn_place(ctx, 4, b, 0, 0, &r));
    EXPECT(r.bound == 7 && r.least == 7 && r.peak == 7 && b[2].offset == 0);
    ok(tn_place_check(ctx, 4, b, &r));
    EXPECT(r.bound == 7 && r.least == 7 && r.peak == 7);
    EXPECT(
        tn_place(ctx, 4, b, 6, 0, &r) == TN_CODE_FIT && r.peak == 7 &&
        strstr(tn_error(ctx), "does not fit: needs 7 bytes, which is proved; the capacity is 6"));
    b[1].offset = b[0].offset + 1;
    EXPECT(tn_place_check(ctx, 4, b, &r) == TN_CODE_FAIL && r.bound == 7 &&
           strstr(tn_error(ctx), "both alive from 1 to 2"));
    ok(tn_place(ctx, 0, NULL, 0, 0, &r));
    EXPECT(!r.bound && !r.least && !r.peak);
}

int main(void)
{
    test_header();
    start();
    test_arguments();
    test_together();
    test_input_sizes();
    test_options();
    test_scalars();
    test_guest();
    test_save();
    test_messages();
    test_same_file();
    test_offsets();
    test_buffers();
    finish();
    return test_report();
}
