/* The text form: files of tests/ir print as they were read; files of tests/ir/bad fail on the line
 * that says so; every prefix and many seeded corruptions of good files either make a graph that
 * prints and parses again, or fail with FILE:LINE:COLUMN; graphs made by the builder and random
 * numbers come back. The verifier's rules that no text can break are broken in memory. */
#include "../shared/test.h"

#include "../../src/ir/ir.h"

#include <dirent.h>
#include <ctype.h>

static Ctx ctx;
static Arena *files; /* names and texts of the good files */

/* ---- files ---- */

typedef struct File {
    const char *path;
    char *text;
    size_t len;
} File;

typedef struct FileList {
    File *f;
    int count, cap;
} FileList;

static int ends_in_tn(const struct dirent *d)
{
    size_t n = strlen(d->d_name);
    return n > 3 && !strcmp(d->d_name + n - 3, ".tn");
}

static FileList list_files(Arena *a, const char *dir)
{
    FileList l = {0};
    struct dirent **d;
    int n = scandir(dir, &d, ends_in_tn, alphasort);
    EXPECT(n > 0);
    for (int i = 0; i < n; i++) {
        File f = {.path = arena_printf(a, "%s/%s", dir, d[i]->d_name)};
        f.text = file_read(a, f.path, &f.len);
        PUSH(a, l.f, l.count, l.cap, f);
        free(d[i]);
    }
    if (n >= 0)
        free(d);
    return l;
}

/* ---- one text ---- */

typedef struct Job {
    Arena *a;
    const char *text, *path;
    Graph *g;          /* what was parsed */
    const char *again; /* what it prints */
} Job;

static const char *print(Arena *a, const Graph *g)
{
    Buf b = {.a = a};
    graph_print(&b, g);
    return b.text;
}

static void read_and_verify(void *arg)
{
    Job *j = arg;
    j->g = graph_parse(j->a, j->text, j->path);
    graph_verify(j->g);
}

static void round_trip(void *arg)
{
    Job *j = arg;
    read_and_verify(j);
    j->again = print(j->a, j->g);
    Graph *g = graph_parse(j->a, j->again, "printed");
    graph_verify(g);
    const char *twice = print(j->a, g), *copy = print(j->a, graph_clone(j->a, j->g));
    if (strcmp(j->again, twice) || strcmp(j->again, copy))
        fail(&ctx, TN_FAIL, "prints otherwise the second time or as a clone");
}

/* Whether the message begins with PATH:LINE:COLUMN: */
static bool has_position(const char *message, const char *path)
{
    size_t n = strlen(path);
    int used = 0;
    return !strncmp(message, path, n) &&
           (sscanf(message + n, ":%*[0-9]:%*[0-9]: %n", &used), used > 0);
}

static const char *first_difference(const char *s, const char *t)
{
    const char *line = s;
    for (; *s && *s == *t; s++, t++)
        if (*s == '\n')
            line = s + 1;
    return line;
}

static void test_good(const File *f)
{
    Job j = {.a = arena_new(&ctx), .text = f->text, .path = f->path};
    if (ctx_try(&ctx, round_trip, &j))
        printf("%s: %s\n", f->path, ctx.message);
    else if (strcmp(j.text, j.again))
        printf("%s: prints otherwise:\n%.200s\n", f->path, first_difference(j.again, j.text));
    EXPECT(j.again && !strcmp(j.text, j.again));
    arena_free(j.a);
}

/* The examples of docs/formats.md: from "tenon 1" to the end of the code block. */
static void test_documentation(void)
{
    static const char start[] = "```\ntenon 1\n";
    File f = {.path = "docs/formats.md"};
    char *next = strstr(file_read(files, f.path, &f.len), start);
    EXPECT(next);
    while (next) {
        f.text = next + 4;
        char *end = strstr(f.text, "```");
        next = strstr(end, start);
        *end = 0;
        test_good(&f);
    }
}

/* ---- malformed files ---- */

/* The text after "# error: " and its line, or NULL. */
static const char *expected_error(Arena *a, const File *f, int *line)
{
    const char *mark = strstr(f->text, "# error: ");
    if (!mark)
        return NULL;
    *line = 1;
    for (const char *s = f->text; s < mark; s++)
        *line += *s == '\n';
    mark += strlen("# error: ");
    return arena_strndup(a, mark, strcspn(mark, "\n"));
}

static void test_bad(const File *f)
{
    Job j = {.a = arena_new(&ctx), .text = f->text, .path = f->path};
    int line = 0;
    const char *want = expected_error(j.a, f, &line);
    ctx.message[0] = 0;
    bool failed = ctx_try(&ctx, read_and_verify, &j) != TN_OK;
    const char *at = arena_printf(j.a, "%s:%d:", f->path, line);
    bool ok = want && failed && !strncmp(ctx.message, at, strlen(at)) &&
              has_position(ctx.message, f->path) && strstr(ctx.message, want);
    if (!ok)
        printf("%s:%d: expected %s\n  found: %s\n", f->path, line, want ? want : "an # error: line",
               failed ? ctx.message : "no error");
    EXPECT(ok);
    arena_free(j.a);
}

/* ---- what may be written otherwise ---- */

/* Spaces, line ends, order of fields, types of results, defaults: read in any manner, printed in
 * one. */
static void test_loose(void)
{
    Job j = {.a = arena_new(&ctx), .path = "loose"};
    j.text = "# a comment\r\ntenon 1 graph\t\"g\"(%x:f32[ 4,3 ]\n,%w : f32 [3,4]param\"w\"){\n"
             "%y.0=sum(%x,keepdim=false,dim=[])none %y=mm(%x,%w)must_save after=%y.0 loss @\"s\"#\n"
             "%z=full(fill_value=-1,size=[])loss return%y,%z,%y.0}# the end";
    const char *want = "tenon 1\n"
                       "graph g(%x: f32[4, 3], %w: f32[3, 4] param \"w\") {\n"
                       "  %y.0: f32[] = sum(%x)  forward\n"
                       "  %y: f32[4, 4] = mm(%x, %w)  @\"s\" loss must_save after=%y.0\n"
                       "  %z: f32[] = full(size=[], fill_value=-1.0)  loss\n"
                       "  return %y, %z, %y.0\n"
                       "}\n";
    if (!EXPECT(!ctx_try(&ctx, round_trip, &j) && !strcmp(j.again, want)))
        printf("%s\n", j.again ? j.again : ctx.message);
    arena_free(j.a);
}

/* ---- damage ---- */

/* A text that may be malformed: a graph that round-trips, or an error with a position. */
static bool survives(const char *text, const char *path)
{
    Job j = {.a = arena_new(&ctx), .text = text, .path = path};
    ctx.message[0] = 0;
    bool ok = !ctx_try(&ctx, round_trip, &j) || has_position(ctx.message, path);
    if (!ok)
        printf("%s: %s, from:\n%s\n", path, ctx.message, text);
    arena_free(j.a);
    return ok;
}

static void test_truncation(const File *f)
{
    char *text = malloc(f->len + 1);
    int nbad = 0;
    for (size_t n = 0; n < f->len; n++) {
        memcpy(text, f->text, n);
        text[n] = 0;
        nbad += !survives(text, f->path);
    }
    EXPECT(nbad == 0);
    free(text);
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Pieces that reach deeper into the parser than random bytes do. */
static const char *const pieces[] = {
    "%",
    "%x",
    "\"",
    "\\",
    "\n",
    " ",
    "#",
    "(",
    ")",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "=",
    "@",
    "->",
    "-",
    "0",
    "-1",
    "1e99",
    "8",
    "inf",
    "nan",
    "f32",
    "i64",
    "bool",
    "bf16",
    "mm",
    "loop",
    "tail",
    "n",
    "yield",
    "carry",
    "slice",
    "whole",
    "stack",
    "offset",
    "axis",
    "return",
    "loss",
    "t",
    "view",
    "cat",
    "optimizer",
    "after",
    "stream=3",
    "1.5",
    "\xff",
    "9223372036854775807",
    "-9223372036854775808",
    "99999999999999999999",
    "4611686018427387904",
    "1: f32[]",
    "shard",
    "partial",
    "tp",
    "sum: ",
    " shard(0: 2, dp)",
    " partial(sum: tp)",
    " mesh(dp=2, tp=3) at(1, 0) ",
    "72057594037927936",
};

/* Replaces, deletes, inserts or repeats a few bytes at a random place. */
static void damage(Buf *b, const File *f, uint64_t *state)
{
    size_t at = next_random(state) % f->len, gone = next_random(state) % 6;
    gone = MIN(gone, f->len - at);
    buf_addn(b, f->text, at);
    switch (next_random(state) % 4) {
    case 0: buf_add(b, pieces[next_random(state) % LEN(pieces)]); break;
    case 1: break;
    case 2: buf_addn(b, f->text + next_random(state) % (f->len - 8), 8); break;
    default: buf_printf(b, "%c", (int)(next_random(state) % 127 + 1)); break;
    }
    buf_addn(b, f->text + at + gone, f->len - at - gone);
}

static void test_corruption(const FileList *l, int rounds)
{
    uint64_t state = 1;
    int nbad = 0;
    for (int i = 0; i < rounds; i++) {
        Arena *a = arena_new(&ctx);
        const File *f = &l->f[next_random(&state) % (uint32_t)l->count];
        File damaged = *f;
        for (int k = 1 + (int)(next_random(&state) % 3); k > 0 && damaged.len > 8; k--) {
            Buf b = {.a = a};
            damage(&b, &damaged, &state);
            damaged.text = b.text;
            damaged.len = b.len;
        }
        nbad += !survives(damaged.text, f->path);
        arena_free(a);
    }
    EXPECT(nbad == 0);
}

/* ---- numbers ---- */

static void test_float(double x, const char *want)
{
    Arena *a = arena_new(&ctx);
    Buf b = {.a = a};
    Lexer lexer;
    attr_print(&b, ATTR_FLOAT, &(Attr){.f = x});
    lex_start(&lexer, a, b.text, "number");
    double y = lex_attr(&lexer, ATTR_FLOAT).f;
    bool same = x != x ? y != y : !memcmp(&x, &y, sizeof x);
    if (!EXPECT(same && lexer.t.kind == TOK_END && (!want || !strcmp(want, b.text))))
        printf("  %.17g prints as %s\n", x, b.text);
    arena_free(a);
}

static void test_floats(void)
{
    static const struct {
        double x;
        const char *text;
    } shortest[] = {
        {0, "0.0"},
        {-0.0, "-0.0"},
        {1, "1.0"},
        {0.1, "0.1"},
        {-2.5, "-2.5"},
        {100, "100.0"},
        {1e-4, "0.0001"},
        {1e-5, "1e-5"},
        {1.25e-7, "1.25e-7"},
        {1e15, "1000000000000000.0"},
        {1e16, "1e16"},
        {1.0 / 3, "0.3333333333333333"},
        {5e-324, "5e-324"},
        {1.7976931348623157e308, "1.7976931348623157e308"},
        {1 / 0.0, "inf"},
        {-1 / 0.0, "-inf"},
        {__builtin_nan(""), "nan"},
        {123456.789, "123456.789"},
        {(double)0.1f, "0.10000000149011612"},
    };
    for (int i = 0; i < LEN(shortest); i++)
        test_float(shortest[i].x, shortest[i].text);
    uint64_t state = 7;
    for (int i = 0; i < 3000; i++) {
        uint64_t bits = (uint64_t)next_random(&state) << 33 ^ (uint64_t)next_random(&state) << 11 ^
                        next_random(&state);
        double x;
        memcpy(&x, &bits, sizeof x);
        test_float(x, NULL);
    }
}

/* ---- graphs made by the builder ---- */

static Value *mm(Build *b, Value *x, Value *y)
{
    return emit1(b, "mm", IN(x, y), NOATTRS);
}

static Graph *build_flat(Arena *a)
{
    Graph *g = graph_new(a, "a \"flat\" graph");
    const Type t = type_make(F32, 2, (int64_t[]){4, 4});
    Value *x = graph_input(g, "x", t, ROLE_BATCH, NULL);
    Value *w = graph_input(g, "w", t, ROLE_PARAM, "line\n\"quoted\" \\ back");
    Build b = {.g = g, .scope = "layers.0", .policy = MUST_SAVE};
    Value *y = mm(&b, x, w);
    b = (Build){.g = g, .phase = BACKWARD, .policy = PREFER_RECOMPUTE, .origin = "gone.1"};
    Value *z = mm(&b, y, w);
    z->def->after = NEWN(a, Node *, 1);
    z->def->after[z->def->nafter++] = y->def;
    graph_output(g, y, ROLE_METRIC, "y");
    graph_output(g, z, ROLE_GRAD, "line\n\"quoted\" \\ back");
    return g;
}

/* A body that multiplies its part of x by w; a tail where `rest` rows are left. */
static Graph *loop_body(Graph *g, int64_t rows, Type square)
{
    Graph *body = graph_body(g);
    Type part = type_make(F32, 2, (int64_t[]){rows, 4});
    Value *w = graph_input(body, "w", square, ROLE_NONE, NULL);
    Value *x = graph_input(body, "x", part, ROLE_NONE, NULL);
    Build b = {.g = body, .phase = FORWARD};
    graph_output(body, mm(&b, x, w), ROLE_NONE, NULL);
    return body;
}

static Graph *build_loop(Arena *a)
{
    Graph *g = graph_new(a, "loop");
    const Type square = type_make(F32, 2, (int64_t[]){4, 4});
    Value *x = graph_input(g, "x", type_make(F32, 2, (int64_t[]){8, 4}), ROLE_BATCH, NULL);
    Value *w = graph_input(g, "w", square, ROLE_NONE, NULL);
    Region *r = NEW(a, Region);
    PortIn in[] = {{PORT_SLICE, 0, {1, 1}, 0, 0}, {PORT_WHOLE, 1, {0, 0}, 0, 0}};
    PortOut out[] = {{.kind = PORT_CONCAT, .axis = 0}};
    *r = (Region){.n = 2, .nin = 2, .nout = 1, .in = NEWN(a, PortIn, 2), .out = NEW(a, PortOut)};
    memcpy(r->in, in, sizeof in);
    memcpy(r->out, out, sizeof out);
    r->body[MAIN] = loop_body(g, 3, square);
    r->body[TAIL] = loop_body(g, 2, square);
    Build b = {.g = g};
    Node *n = emit_loop(&b, IN(x, w), r);
    graph_output(g, n->out[0], ROLE_NONE, NULL);
    return g;
}

/* A random chain of products with random fields. */
static Graph *build_random(Arena *a, uint64_t seed)
{
    uint64_t state = seed;
    Graph *g = graph_new(a, "random");
    const Type t = type_make(F32, 2, (int64_t[]){3, 3});
    Value *v[24] = {graph_input(g, "x", t, ROLE_BATCH, NULL)};
    Build b = {.g = g};
    for (int i = 1; i < LEN(v); i++) {
        b.phase += b.phase + 1 < NPHASE && next_random(&state) % 8 == 0;
        b.policy = b.phase == OPTIMIZER ? POLICY_NONE : (Policy)(next_random(&state) % NPOLICY);
        b.scope = next_random(&state) % 2 ? "" : arena_printf(a, "s.%u", next_random(&state) % 5);
        b.origin = next_random(&state) % 4 ? NULL : v[next_random(&state) % (uint32_t)i]->name;
        v[i] = mm(&b, v[next_random(&state) % (uint32_t)i], v[next_random(&state) % (uint32_t)i]);
    }
    graph_output(g, v[LEN(v) - 1], ROLE_NONE, NULL);
    return g;
}

static void test_built(Arena *a, Graph *g)
{
    graph_verify(g);
    Job j = {.a = a, .text = print(a, g), .path = "built"};
    if (ctx_try(&ctx, round_trip, &j))
        printf("%s\n", ctx.message);
    EXPECT(j.again && !strcmp(j.again, j.text) && graph_hash(j.g) == graph_hash(g) &&
           graph_count(j.g) == graph_count(g));
}

static void test_builder(void)
{
    Arena *a = arena_new(&ctx);
    test_built(a, build_flat(a));
    test_built(a, build_loop(a));
    for (uint64_t seed = 0; seed < 200; seed++)
        test_built(a, build_random(a, seed));
    arena_free(a);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 20000; /* of corruption */
    files = arena_new(&ctx);
    FileList good = list_files(files, "tests/ir"), bad = list_files(files, "tests/ir/bad");
    for (int i = 0; i < good.count; i++)
        test_good(&good.f[i]);
    for (int i = 0; i < bad.count; i++)
        test_bad(&bad.f[i]);
    for (int i = 0; i < good.count; i++)
        test_truncation(&good.f[i]);
    test_corruption(&good, rounds);
    test_documentation();
    test_loose();
    test_floats();
    test_builder();
    arena_free(files);
    return test_report();
}
