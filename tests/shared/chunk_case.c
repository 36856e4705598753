/* Reads what chunk_case.h says. */
#include "chunk_case.h"

#include "../../src/fx/fx.h"
#include "../../src/io/io.h"

#include <stdlib.h>
#include <string.h>

enum { NO_LABEL = -100 };

/* ---- comments ---- */

_Noreturn static void refuse(const ChunkCase *c, const char *expected, const char *found)
{
    fail(arena_ctx(c->a), TN_FAIL, "%s: expected %s, found \"%s\"", c->name, expected, found);
}

/* The word at *s, which goes behind it; NULL: none is left. */
static const char *next_word(Arena *a, const char **s)
{
    *s += strspn(*s, " ,");
    size_t len = strcspn(*s, " ,");
    const char *word = arena_strndup(a, *s, len);
    *s += len;
    return len ? word : NULL;
}

static int64_t next_number(const ChunkCase *c, const char **s)
{
    const char *word = next_word(c->a, s);
    char *end;
    int64_t x = word ? strtoll(word, &end, 10) : 0;
    if (!word || *end)
        refuse(c, "a number", word ? word : "");
    return x;
}

static void read_seed(ChunkCase *c, const char *s)
{
    ChunkRegion r = {.value = next_word(c->a, &s), .cut = {CUT_SLICE, -1, 1}, .inner = 1};
    CHECK(c->nregion < MOST_SEEDS);
    for (const char *word; (word = next_word(c->a, &s));) {
        if (!strcmp(word, "axis"))
            r.cut.axis = (int)next_number(c, &s);
        else if (!strcmp(word, "outer"))
            r.cut.outer = next_number(c, &s);
        else if (!strcmp(word, "inner"))
            r.inner = next_number(c, &s);
        else if (!strcmp(word, "all"))
            r.all = true;
        else if (!strcmp(word, "cheap"))
            r.cheap = true;
        else
            refuse(c, "axis, outer, inner, all or cheap", word);
    }
    if (!r.value || r.cut.axis < 0)
        refuse(c, "VALUE axis A", s);
    c->region[c->nregion++] = r;
}

static void read_labels(ChunkCase *c, const char *s)
{
    ChunkLabels l = {.value = next_word(c->a, &s), .none = ""};
    CHECK(c->nlabels < MOST_LABELS);
    l.count = next_number(c, &s);
    const char *word = next_word(c->a, &s);
    if (word && !strcmp(word, "distinct")) {
        l.distinct = true;
        word = next_word(c->a, &s);
    }
    if (word && !strcmp(word, "none")) {
        next_word(c->a, &s);
        l.none = s;
    } else if (word) {
        refuse(c, "distinct or none at", word);
    }
    c->labels[c->nlabels++] = l;
}

static void read_options(ChunkCase *c, const char *s)
{
    for (const char *word; (word = next_word(c->a, &s));) {
        const char *value = strchr(word, '=');
        if (value && !strncmp(word, "accumulate=", 11))
            c->o.accumulate = atoll(value + 1);
        else if (value && !strncmp(word, "clip=", 5))
            c->o.clip = atof(value + 1);
        else
            refuse(c, "accumulate= or clip=", word);
    }
}

static void read_comment(ChunkCase *c, const char *line)
{
    static const char *const names[] = {"# seed: ",  "# labels: ", "# options: ", "# passes: ",
                                        "# loops: ", "# peak: ",   "# refused: ", "# bf16: "};
    int i = 0;
    while (i < LEN(names) && strncmp(line, names[i], strlen(names[i])))
        i++;
    const char *rest = i < LEN(names) ? line + strlen(names[i]) : line;
    switch (i) {
    case 0: read_seed(c, rest); break;
    case 1: read_labels(c, rest); break;
    case 2: read_options(c, rest); break;
    case 3: c->passes = strcmp(rest, "none") ? rest : ""; break;
    case 4: c->loops = (int)next_number(c, &rest); break;
    case 5: c->peak = strcmp(rest, "no") ? rest : NULL; break;
    case 6: c->refused = rest; break;
    case 7: c->bf16 = strcmp(rest, "no") ? rest : NULL; break;
    default: break;
    }
}

static bool has_loss(const Graph *g)
{
    return graph_find_output(g, ROLE_LOSS, NULL) && !graph_has_backward(g);
}

ChunkCase chunk_case_read(Arena *a, const char *path)
{
    size_t len;
    const char *text = file_read(a, path, &len);
    ChunkCase c = {.a = a,
                   .name = path,
                   .mixed = true,
                   .o = pass_defaults(),
                   .loops = 1,
                   .peak = "20=100 37=1999",
                   .bf16 = "20=160 6=48 37=211"};
    for (const char *s = text; *s == '#'; s += len + (s[len] != 0)) {
        len = strcspn(s, "\n");
        read_comment(&c, arena_strndup(a, s, len));
    }
    c.g = graph_parse(a, text, path);
    graph_verify(c.g);
    if (!c.passes)
        c.passes = has_loss(c.g) ? "grad,canonicalize,cse,dce" : "canonicalize,cse,dce";
    if (!c.nregion)
        refuse(&c, "a seed", "none");
    return c;
}

/* ---- imported ---- */

static void read_types(Arena *a, const char *path, FxOptions *o)
{
    const TensorFile *f = tensors_open(a, path);
    const char **name = NEWN(a, const char *, f->count);
    Type *type = NEWN(a, Type, f->count);
    for (int i = 0; i < f->count; i++) {
        name[i] = f->entry[i].name;
        type[i] = f->entry[i].type;
    }
    *o = (FxOptions){.ninput = f->count, .name = name, .type = type, .origin = path};
}

ChunkCase chunk_case_import(Arena *a, const char *folder, const char *seed)
{
    const char *path = arena_printf(a, "tests/fx/%s/graph.txt", folder), *summary;
    ChunkCase c = {.a = a,
                   .name = folder,
                   .o = pass_defaults(),
                   .loops = 1,
                   .peak = "20=100 37=1999",
                   .bf16 = "20=160 6=48 37=211"};
    FxOptions o;
    size_t len;
    c.inputs = arena_printf(a, "tests/fx/%s/inputs.safetensors", folder);
    read_types(a, c.inputs, &o);
    c.g = fx_import(a, file_read(a, path, &len), path, &o, &summary);
    c.passes = "canonicalize,cse,dce";
    read_seed(&c, seed);
    return c;
}

/* ---- graphs ---- */

/* What takes the place of a number in a list "20=100 37=1999"; itself if that does not name it. */
static int64_t size_instead(const char *list, int64_t size)
{
    for (char *end; list; list = strchr(list, ' ')) {
        list += *list == ' ';
        if (strtoll(list, &end, 10) == size && *end == '=')
            return strtoll(end + 1, NULL, 10);
    }
    return size;
}

/* By text: numbers that are sizes stand behind these. */
static Graph *with_sizes(const ChunkCase *c, const char *sizes)
{
    Buf b = {.a = c->a};
    const char *text = graphs_text(c->a, c->g);
    for (const char *s = text; *s;) {
        char *end = NULL;
        bool size = s > text && strchr("[ =", s[-1]) && *s >= '0' && *s <= '9';
        int64_t x = size ? strtoll(s, &end, 10) : 0;
        if (size && *end != '.' && *end != 'e') {
            buf_printf(&b, "%lld", (long long)size_instead(sizes, x));
            s = end;
        } else {
            buf_addn(&b, s++, 1);
        }
    }
    Graph *g = graph_parse(c->a, b.text, c->name);
    graph_verify(g);
    return g;
}

Graph *chunk_case_graph(const ChunkCase *c, const char *sizes, DType d)
{
    Graph *g = sizes ? with_sizes(c, sizes) : graph_clone(c->a, c->g);
    if (d == F64)
        g = graphs_widen(c->a, g);
    if (d == BF16 && !c->mixed)
        g = graphs_narrow(c->a, g);
    PassOptions o = c->o;
    const char *rest = c->passes;
    o.dtype = o.param_dtype = c->mixed && d == BF16 ? BF16 : F32;
    if (!strncmp(rest, "grad,", 5)) {
        passes_run(g, "grad", &o, NULL, NULL);
        rest += 5;
    }
    if (o.dtype != F32)
        passes_run(g, "precision", &o, NULL, NULL);
    if (*rest)
        passes_run(g, rest, &o, NULL, NULL);
    return g;
}

ChunkRegion chunk_case_region(const ChunkRegion *r, const char *sizes)
{
    ChunkRegion x = *r;
    x.inner = size_instead(sizes, r->inner);
    x.cut.outer = size_instead(sizes, r->cut.outer);
    return x;
}

static void take_warning(void *arg, const char *message)
{
    const char **why = arg;
    *why = strdup(message);
}

void chunk_case_run(Graph *g, const ChunkRegion *r, int64_t slices, const char *accumulate,
                    const char **why)
{
    ChunkRegion region = *r;
    PassOptions o = pass_defaults();
    const char *said = NULL;
    region.slices = slices;
    o.chunk_region = &region;
    o.nchunk_region = 1;
    o.chunk_accumulate = accumulate;
    o.warn = take_warning;
    o.warn_arg = &said;
    passes_run(g, "chunk", &o, NULL, NULL);
    if (why)
        *why = said ? arena_strdup(g->a, said) : NULL;
    free((void *)said);
}

ChunkReport chunk_case_list(const Graph *g)
{
    ChunkReport report = {.a = g->a};
    PassOptions o = pass_defaults();
    o.chunk_report = &report;
    passes_run(graph_clone(g->a, g), "chunk", &o, NULL, NULL);
    return report;
}

/* ---- inputs ---- */

/* Whether label i has no number: "6-9 19" names rows. */
static bool has_none(const char *s, int64_t i)
{
    while (*s) {
        char *end;
        int64_t first = strtoll(s, &end, 10),
                last = *end == '-' ? strtoll(end + 1, &end, 10) : first;
        if (end == s)
            return false;
        if (i >= first && i <= last)
            return true;
        s = end;
    }
    return false;
}

static void fill_labels(const ChunkLabels *l, const Tensor *t)
{
    int64_t row = t->rank ? t->dim[t->rank - 1] : 1;
    for (int64_t i = 0, n = tensor_nelem(t); i < n; i++) {
        double u = random_uniform(5, 1, 0, (uint64_t)i);
        int64_t x =
            l->distinct ? (i % row * 5 + i / row) % l->count : (int64_t)(u * (double)l->count);
        tensor_set(t, i, (double)(has_none(l->none, i) ? NO_LABEL : x));
    }
}

/* Of a file, if they have the file's sizes. */
static void read_inputs(const ChunkCase *c, const Graph *g, Tensor *in)
{
    const TensorFile *f = tensors_open(c->a, c->inputs);
    for (int i = 0; i < g->nin; i++) {
        const TensorEntry *e = tensors_get(f, g->in[i].v->name);
        if (!shape_equal(&e->type, &g->in[i].v->type))
            continue;
        Tensor t = tensor_new(c->a, &e->type, 0);
        tensors_read(f, e, e->type.dtype, false, t.data);
        in[i] = tensor_copy(c->a, &t, g->in[i].v->type.dtype);
    }
}

/* Labels of imported graphs with other sizes. */
static void draw_labels(const ChunkCase *c, const Graph *g, Tensor *in)
{
    static const char *const names[] = {"labels", "more", "arg3_1"};
    for (int i = 0; i < g->nin; i++)
        for (int k = 0; k < LEN(names); k++)
            if (!strncmp(g->in[i].v->name, names[k], strlen(names[k])) &&
                !dtype_float(g->in[i].v->type.dtype))
                fill_labels(&(ChunkLabels){.none = "30-59 100", .count = 37}, &in[i]);
    read_inputs(c, g, in);
}

Tensor *chunk_case_inputs(const ChunkCase *c, const Graph *g)
{
    Tensor *in = graphs_inputs(c->a, g);
    if (c->inputs)
        draw_labels(c, g, in);
    for (int i = 0; i < g->nin; i++) {
        for (int k = 0; k < c->nlabels; k++)
            if (!strcmp(g->in[i].v->name, c->labels[k].value))
                fill_labels(&c->labels[k], &in[i]);
        if (in[i].dtype == F64) { /* what f32 has of it */
            Tensor narrow = tensor_copy(c->a, &in[i], F32);
            in[i] = tensor_copy(c->a, &narrow, F64);
        }
    }
    return in;
}
