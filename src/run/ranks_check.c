/* Checks that ranks run one program. Each rank makes texts of everything that all must have alike;
 * hashes of the texts go to all ranks, so that all find the same first rank and text that differ
 * from rank 0's. Only that text goes around then, for the message. */
#include "run.h"
#include "../page/page.h"
#include "../product/onednn.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_ALIKE = 64, SHOWN = 120 };

/* Texts that all ranks must have alike, by name. */
typedef struct Alike {
    Arena *a;
    int count;
    const char *what[MOST_ALIKE], *text[MOST_ALIKE];
} Alike;

static void add(Alike *x, const char *what, const char *text)
{
    CHECK(x->count < MOST_ALIKE);
    x->what[x->count] = what;
    x->text[x->count++] = text;
}

/* ---- options ---- */

/* clang-format off */
#define TEXT_FLAG(o, field)   arena_printf(x->a, "%d", (o)->field)
#define TEXT_SWITCH(o, field) TEXT_FLAG(o, field)
#define TEXT_INT(o, field)    arena_printf(x->a, "%lld", (long long)(o)->field)
#define TEXT_AUTO(o, field)   TEXT_INT(o, field)
#define TEXT_BYTES(o, field)  TEXT_INT(o, field)
#define TEXT_MEMORY(o, field) TEXT_INT(o, field)
#define TEXT_SEED(o, field)   arena_printf(x->a, "%llu", (unsigned long long)(o)->field)
#define TEXT_REAL(o, field)   arena_printf(x->a, "%.17g", (o)->field)
#define TEXT_WORD(o, field)   ((o)->field ? (o)->field : "none")
#define TEXT_DTYPE(o, field)  ((o)->field ? (o)->field : "f32")
#define TEXT_TEXT(o, field)   TEXT_WORD(o, field)
#define TEXT_IN(o, field)     NULL /* files that are the same may lie elsewhere */
#define TEXT_LIST(o, field)   list_text(x->a, (o)->n##field, (o)->field)
#define TEXT_RULES(o, field)  NULL /* the plan says what became of them */
/* clang-format on */

static const char *list_text(Arena *a, int n, const char *const *list)
{
    Buf b = {.a = a};
    buf_add(&b, n ? "" : "none");
    for (int i = 0; i < n; i++)
        buf_printf(&b, "%s%s", i ? " " : "", list[i]);
    return b.text;
}

static void add_option(Alike *x, const char *name, const char *text)
{
    if (text)
        add(x, arena_printf(x->a, "--%s", name), text);
}

/* Which rows of options decide over numbers: what a run keeps when it is resumed, and what passes
 * read of a run's own. */
enum { CALL_SAME = 1, CALL_OWN = 0, CALL_NEVER = 0 };
enum { PASS_SAME = 1, PASS_OWN = 1, PASS_NEVER = 0 };

static void add_options(Alike *x, const tn_options *o)
{
#define CALL_OPTION(name, field, kind, resume, ...) \
    if (CALL_##resume)                              \
        add_option(x, name, TEXT_##kind(o, field));
#define PASS_OPTION(name, field, kind, resume, ...) \
    if (PASS_##resume)                              \
        add_option(x, name, TEXT_##kind(o, field));
#include "../base/options.def"
    add_option(x, "reduce", o->reduce ? o->reduce : "ordered");
}

/* ---- the rest ---- */

static const char *versions(Arena *a)
{
    char *text = arena_strdup(a, tn_version());
    for (char *s = text; (s = strchr(s, '\n'));)
        *s = ',';
    return text;
}

static const char *processor(Arena *a)
{
    return arena_printf(a, "%s, instruction set %x", machine_name(machine_get(a, NULL, 1)),
                        onednn_isa_bits());
}

static const char *hash_text(Arena *a, uint64_t hash)
{
    return arena_printf(a, "%016llx", (unsigned long long)hash);
}

/* The collectives of a step in their order: kinds, groups, shapes, and the names of results, as two
 * of one shape may change places. */
static const char *sequence(Arena *a, const Plan *p)
{
    uint64_t hash = 0;
    int count = 0;
    for (int i = 0; i < p->nstep; i++) {
        const Step *s = &p->step[i];
        int64_t loop[] = {s->kind, s->first, s->count, s->by};
        if (s->kind == STEP_LOOP || s->kind == STEP_END)
            hash = hash_bytes(loop, sizeof loop, hash);
        if (s->kind != STEP_CALL || s->node->op->class != CLASS_COLLECTIVE)
            continue;
        const Node *n = s->node;
        int shift = attr_index(n->op, "shift");
        const char *text =
            arena_printf(a, "%s %s %lld", n->op->name, n->attr[attr_index(n->op, "group")].s,
                         shift < 0 ? 0 : (long long)n->attr[shift].i);
        hash = hash_bytes(text, strlen(text), hash);
        for (int k = 0; k < n->nin; k++) {
            text = arena_printf(a, "%s %s %s", n->out[k]->name, type_text(a, &n->in[k]->type),
                                type_text(a, &n->out[k]->type));
            hash = hash_bytes(text, strlen(text), hash);
        }
        count++;
    }
    return arena_printf(a, "%d of them, %s", count, hash_text(a, hash));
}

static void collect(Alike *x, const Plan *p, const tn_options *o)
{
    add(x, "version", versions(x->a));
    add(x, "processor", processor(x->a));
    add(x, "threads", arena_printf(x->a, "%d", p->nthread));
    add(x, "device", p->device->name);
    add(x, "mesh", mesh_text(x->a, p->g->mesh));
    if (o)
        add_options(x, o);
    add(x, "machine",
        arena_printf(x->a, "%s, %s", machine_name(p->machine),
                     hash_text(x->a, machine_hash(p->machine))));
}

static void collect_plan(Alike *x, const Plan *p)
{
    add(x, "collectives", sequence(x->a, p));
    add(x, "plan", hash_text(x->a, plan_hash(p)));
}

/* ---- among ranks ---- */

static void gather(tn_context *ctx, const void *mine, int64_t nbytes, void *all)
{
    char message[COMM_MESSAGE] = "";
    if (comm_gather(ctx->comm, mine, nbytes, all, true, message))
        fail(&ctx->ctx, TN_FAIL, "%s", message);
}

static _Noreturn void fail_other(tn_context *ctx, const Alike *x, int i, int rank)
{
    const char *what = i < x->count ? x->what[i] : "options";
    char *mine = NEWN(x->a, char, SHOWN);
    char *all = NEWN(x->a, char, SHOWN *tn_ranks(ctx));
    snprintf(mine, SHOWN, "%s", i < x->count ? x->text[i] : "");
    gather(ctx, mine, SHOWN, all);
    fail(&ctx->ctx, TN_FAIL,
         "ranks must run one program; they differ in %s: rank %d has %.*s, rank 0 has %.*s", what,
         rank, SHOWN - 1, all + SHOWN * rank, SHOWN - 1, all);
}

static void compare(const tn_plan *p, Arena *a, const tn_options *o)
{
    tn_context *ctx = p->h.owner;
    int n = tn_ranks(ctx);
    Alike x = {.a = a};
    uint64_t mine[MOST_ALIKE] = {0}, *all = NEWN(a, uint64_t, n * MOST_ALIKE);
    collect(&x, p->p, o);
    if (!p->graph->own)
        collect_plan(&x, p->p);
    for (int i = 0; i < x.count; i++)
        mine[i] = hash_bytes(x.text[i], strlen(x.text[i]), 1);
    gather(ctx, mine, sizeof mine, all);
    for (int i = 0; i < MOST_ALIKE; i++)
        for (int rank = 1; rank < n; rank++)
            if (all[rank * MOST_ALIKE + i] != all[i])
                fail_other(ctx, &x, i, rank);
    if (p->graph->own)
        ranks_match(p, a);
}

/* ---- a plan and the ranks that are there ---- */

bool ranks_run(const tn_plan *p)
{
    return p->p->g->mesh && mesh_nranks(p->p->g->mesh) > 1 && p->h.owner->comm;
}

static int compare_all(const tn_plan *p, const tn_options *o)
{
    TRY(t, &p->h.owner->ctx)
        compare(p, try_arena(&t), o);
    return tried(&t);
}

static int let_run(tn_program *x, Comm *c)
{
    TRY(t, &x->h.owner->ctx)
        program_join(x->x, x->h.a, c, x->fast);
    return tried(&t);
}

static int make_library(tn_program *x)
{
    TRY(t, &x->h.owner->ctx)
        program_library(x->x, &x->h.owner->ctx);
    return tried(&t);
}

int ranks_join(const tn_plan *p, tn_program *x, int code, const tn_options *o)
{
    tn_context *ctx = p->h.owner;
    code = tn_agree_code(ctx, code);
    if (!code)
        code = compare_all(p, o);
    if (!code)
        code = tn_agree_code(ctx, let_run(x, ctx->comm));
    return code ? code : tn_agree_code(ctx, make_library(x));
}
