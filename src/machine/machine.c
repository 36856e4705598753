/* machine: the tables of machine.def, the row of this processor, a machine as text, and its hash.
 * The processor's instruction set is the one that oneDNN, which runs products, says it uses. */
#include "machine.h"
#include "../product/onednn.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const MachineFigure figure_table[] = {
#define FIGURE(id, unit, least, most) {#id, unit, least, most},
#include "machine.def"
};

typedef enum { CPU, GPU, NKIND } Kind;

enum { LINK_FIRST = FIGURE_host_ranks };

typedef struct Processor {
    const char *name;
    Kind kind;
    const char *link;
    double figure[LINK_FIRST];
} Processor;

static const Processor processors[] = {
#define PROCESSOR(name, kind, link, ...) {#name, kind, #link, {__VA_ARGS__}},
#include "machine.def"
};

typedef struct Link {
    const char *name;
    double figure[NFIGURE - LINK_FIRST];
} Link;

static const Link links[] = {
#define LINK(name, ...) {#name, {__VA_ARGS__}},
#include "machine.def"
};

static const Share shares[NCLASS][NKIND] = {
#define SHARE(class, ca, cm, ce, ga, gm, ge) [CLASS_##class] = {{ca, cm, ce}, {ga, gm, ge}},
#include "machine.def"
};

/* ---- rows ---- */

bool machine_link(Machine *m, const char *name)
{
    for (int i = 0; i < LEN(links); i++) {
        if (strcmp(links[i].name, name))
            continue;
        memcpy(m->figure + LINK_FIRST, links[i].figure, sizeof links[i].figure);
        return true;
    }
    return false;
}

Machine *machine_row(Arena *a, const char *name)
{
    for (int i = 0; i < LEN(processors); i++) {
        const Processor *p = &processors[i];
        if (strcmp(p->name, name))
            continue;
        Machine *m = NEW(a, Machine);
        *m = (Machine){.a = a, .name = p->name, .like = p->name, .gpu = p->kind == GPU, .cores = 1};
        memcpy(m->figure, p->figure, sizeof p->figure);
        for (int c = 0; c < NCLASS; c++)
            m->share[c] = shares[c][p->kind];
        CHECK(machine_link(m, p->link));
        return m;
    }
    return NULL;
}

const char *link_list(Arena *a)
{
    Buf b = {.a = a};
    for (int i = 0; i < LEN(links); i++)
        buf_printf(&b, "%s%s", i ? " " : "", links[i].name);
    return b.text;
}

const char *machine_list(Arena *a)
{
    Buf b = {.a = a};
    for (int i = 0; i < LEN(processors); i++)
        buf_printf(&b, "%s%s", i ? " " : "", processors[i].name);
    return b.text;
}

static _Noreturn void fail_name(Arena *a, const char *name)
{
    const char *names[LEN(processors)];
    for (int i = 0; i < LEN(processors); i++)
        names[i] = processors[i].name;
    const char *near = nearest(name, names, LEN(processors));
    fail(arena_ctx(a), TN_USAGE, "machine: expected one of %s or a file, found \"%.200s\"%s%s%s",
         machine_list(a), name, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

/* ---- this processor ---- */

#if defined(__x86_64__)
static const char *const known[] = {[ISA_BASE] = "x86_64",
                                    [ISA_AVX2] = "avx2",
                                    [ISA_AVX512] = "avx512",
                                    [ISA_BF16] = "avx512_bf16",
                                    [ISA_AMX] = "avx512_amx"};
#endif

/* Where products of bf16 are no faster than of f32, it is one that has only these. */
static const char *here(void)
{
#if defined(__x86_64__)
    Isa isa = onednn_isa();
    return known[isa == ISA_BF16 && !isa_bf16_pays() ? ISA_AVX512 : isa];
#elif defined(__aarch64__)
    return "aarch64";
#else
    return "other";
#endif
}

/* By its instructions too: files that were measured before bf16 was looked at name these. */
bool machine_is_here(const Machine *m)
{
#if defined(__x86_64__)
    if (!strcmp(m->like, known[onednn_isa()]))
        return true;
#endif
    return !strcmp(m->like, here());
}

bool machine_is_gpu(const Machine *m)
{
    return m->gpu;
}

const char *machine_name(const Machine *m)
{
    return m->name;
}

const char *machine_library(Arena *a)
{
    char version[ONE_VERSION];
    return arena_printf(a, "onednn %s", onednn_version(version));
}

/* Whether reading it again gives its text again: no pipe, no standard input. */
static bool is_lasting(const char *name)
{
    struct stat st;
    return strcmp(name, "-") != 0 && (stat(name, &st) || S_ISREG(st.st_mode));
}

/* A file's text; of a pipe what it had when it was read first, as each pass and plan asks for the
 * machine anew. A lasting file is read again, as it may be edited between two compilations. */
static const char *file_text(Arena *a, const char *name, size_t *len)
{
    Ctx *ctx = arena_ctx(a);
    if (is_lasting(name))
        return file_read(a, name, len);
    const char *key = arena_printf(a, "machine from %s", name);
    Buf *kept = memo_find(ctx, key, strlen(key));
    if (!kept) {
        kept = NEW(memo_arena(ctx), Buf);
        kept->text = file_read(memo_arena(ctx), name, len);
        kept->len = *len;
        memo_put(ctx, key, strlen(key), kept);
    }
    *len = kept->len;
    return kept->text;
}

bool machine_is_text(const char *name)
{
    return name && !strncmp(name, "machine ", 8) && strchr(name, '\n');
}

bool machine_is_file(const char *name)
{
    bool is_row = false;
    for (int i = 0; name && i < LEN(processors); i++)
        is_row |= !strcmp(processors[i].name, name);
    return name && !is_row && strcmp(name, "none") != 0 && !machine_is_text(name);
}

/* The machine of a text, which a context reads once, however often it is asked for. */
static const Machine *parsed(Ctx *ctx, const char *text, size_t len, const char *title)
{
    Machine *m = memo_find(ctx, text, len);
    if (!m) {
        m = machine_parse(memo_arena(ctx), text, len, title);
        memo_put(ctx, text, len, m);
    }
    return m;
}

/* The machine of a text or a file; NULL: the name is that of neither. */
static Machine *read_machine(Arena *a, const char *name, int nthread)
{
    const char *text = name, *title = "machine";
    size_t len = strlen(name);
    if (!machine_is_text(name)) {
        if (!strpbrk(name, "/.") && strcmp(name, "-") != 0 && access(name, F_OK))
            return NULL;
        text = file_text(a, name, &len);
        title = file_title(name);
    }
    Machine *m = NEW(a, Machine);
    *m = *parsed(arena_ctx(a), text, len, title);
    m->a = a;
    machine_check_ways(m, nthread, title);
    return m;
}

const Machine *machine_get(Arena *a, const char *name, int nthread)
{
    CHECK(nthread >= 1);
    bool none = !name || !strcmp(name, "none");
    Machine *m = machine_row(a, none ? here() : name);
    m = m ? m : read_machine(a, name, nthread);
    if (!m)
        fail_name(a, name);
    if (none && !isa_bf16_pays()) /* widened */
        m->figure[FIGURE_product_bf16] =
            MIN(m->figure[FIGURE_product_bf16], m->figure[FIGURE_product_f32]);
    m->cores = m->gpu ? 1 : nthread;
    return m;
}

const Machine *machine_for(Arena *a, const Device *d, const char *name)
{
    const char *asked = machine_asked(name);
    const Device *cpu = device_at(DEVICE_cpu);
    const Machine *tuned = asked ? NULL : machine_tuned(arena_ctx(a), d, par_threads());
    if (!asked && !tuned && d != cpu && d->kernels == cpu->kernels)
        tuned = machine_tuned(arena_ctx(a), cpu, par_threads());
    bool none = !asked || !strcmp(asked, "none");
    return tuned ? tuned : machine_get(a, none ? d->machine : asked, par_threads());
}

/* ---- as text ---- */

const char *machine_title(Arena *a, const Machine *m)
{
    if (m->gpu && strcmp(m->name, m->like) != 0)
        return arena_printf(a, "%s, %s", m->name, m->like);
    if (m->gpu)
        return m->name;
    return arena_printf(a, "%s, %d core%s", m->name, m->cores, m->cores > 1 ? "s" : "");
}

/* With as few digits as give the same number. */
static void put_number(Buf *b, double x)
{
    char text[40];
    int digits = 1;
    do
        snprintf(text, sizeof text, "%.*g", digits++, x);
    while (digits <= 17 && strtod(text, NULL) != x);
    buf_printf(b, " %s", text);
}

static void put_key(Buf *b, const char *what, const char *key)
{
    buf_printf(b, "%s ", what);
    attr_print(b, ATTR_STR, &(Attr){.s = key});
}

static void print_known(Buf *b, const Machine *m)
{
    if (m->nthread)
        buf_printf(b, "threads %d\n", m->nthread);
    if (m->library) {
        put_key(b, "library", m->library);
        buf_add(b, "\n");
    }
    for (int i = 0; i < m->way.count; i++) {
        put_key(b, "way", m->way.row[i].key);
        buf_printf(b, " %s\n", m->way.row[i].kernel);
    }
    for (int i = 0; i < m->known.count; i++) {
        put_key(b, "sec", m->known.row[i].key);
        put_number(b, m->known.row[i].sec);
        buf_add(b, "\n");
    }
}

void machine_print(Buf *b, const Machine *m)
{
    buf_printf(b, "machine 1\nname %s\nlike %s\n", m->name, m->like);
    for (int i = 0; i < NFIGURE; i++) {
        buf_add(b, figure_table[i].key);
        put_number(b, m->figure[i]);
        buf_printf(b, " # %s\n", figure_table[i].unit);
    }
    for (int c = 0; c < NCLASS; c++) {
        buf_printf(b, "share %s", class_name((OpClass)c));
        put_number(b, m->share[c].arithmetic);
        put_number(b, m->share[c].memory);
        put_number(b, m->share[c].each);
        buf_add(b, "\n");
    }
    print_known(b, m);
    buf_add(b, "end\n");
}

uint64_t machine_hash(const Machine *m)
{
    uint64_t hash = hash_bytes(m->name, strlen(m->name), (uint64_t)m->cores);
    hash = hash_bytes(m->like, strlen(m->like), hash);
    hash = hash_bytes(m->figure, sizeof m->figure, hash);
    hash = hash_bytes(m->share, sizeof m->share, hash);
    return machine_hash_known(m, machine_hash_rows(m, hash));
}
