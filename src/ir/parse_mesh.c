/* Parses what a graph's text says of ranks: the mesh after the graph's name, and the shardings of
 * inputs and outputs (docs/formats.md has the grammar and the rules). What only the text can get
 * wrong fails here, at its token; what needs the value's type, in the verifier. */
#include "ir.h"

/* NAME=SIZE */
static void parse_axis(Lexer *x, Mesh *m)
{
    Token t = lex_token(x, TOK_WORD, "a mesh axis (a word)");
    lex_need(x, "=");
    int64_t size = lex_int(x, "a number of ranks", 1, MESH_AXIS_MOST);
    const char *fault = mesh_add(x->a, m, t.s, size);
    if (fault)
        lex_fail(x, &t, "expected %s", fault);
}

static void parse_coordinate(Lexer *x, Mesh *m, int i)
{
    if (i)
        lex_need(x, ",");
    const char *what = arena_printf(x->a, "a coordinate of %.60s", m->name[i]);
    m->at[i] = lex_int(x, what, 0, m->size[i] - 1);
}

Mesh *lex_mesh(Lexer *x)
{
    if (!lex_take(x, "mesh"))
        return NULL;
    Mesh *m = NEW(x->a, Mesh);
    lex_need(x, "(");
    do
        parse_axis(x, m);
    while (lex_take(x, ","));
    lex_need(x, ")");
    lex_need(x, "at");
    lex_need(x, "(");
    for (int i = 0; i < m->naxes; i++)
        parse_coordinate(x, m, i);
    lex_need(x, ")");
    return m;
}

/* ---- shardings ---- */

/* One port's, as far as they are read. */
typedef struct PortCuts {
    const Mesh *m;
    Cut *cut;
    bool sharded[TN_RANK], merged[CUT_LOGSUMEXP + 1];
} PortCuts;

/* The mesh axis that stands here, which has no cut yet. */
static int take_axis(Lexer *x, PortCuts *r)
{
    Token t = lex_token(x, TOK_WORD, "a mesh axis");
    int i = mesh_axis(r->m, t.s);
    if (i < 0)
        lex_fail(x, &t, "expected an axis of the mesh %s, found \"%.60s\"", mesh_text(x->a, r->m),
                 t.s);
    if (r->cut[i].kind != CUT_WHOLE)
        lex_fail(x, &t, "expected each mesh axis once, found \"%.60s\" again", t.s);
    return i;
}

static int64_t multiply(Lexer *x, const Token *t, int64_t units, int64_t by)
{
    if (__builtin_mul_overflow(units, by, &units) || units > (int64_t)1 << 56)
        lex_fail(x, t, "expected parts of an axis that are at most 2^56, found more");
    return units;
}

/* (AXIS: PART, ...), where a part is a mesh axis, or the size of a part that is not cut. */
static void parse_shard(Lexer *x, PortCuts *r)
{
    lex_need(x, "(");
    Token t = x->t;
    int axis = (int)lex_int(x, "an axis", 0, TN_RANK - 1);
    if (r->sharded[axis])
        lex_fail(x, &t, "expected one list for each axis, found another for axis %d", axis);
    r->sharded[axis] = true;
    const char *before = ":";
    int64_t outer = 1;
    do {
        lex_need(x, before);
        before = ",";
        t = x->t;
        if (t.kind == TOK_INT) {
            outer = multiply(x, &t, outer, lex_int(x, "a size", 1, (int64_t)1 << 56));
            continue;
        }
        int i = take_axis(x, r);
        r->cut[i] = (Cut){CUT_SLICE, axis, outer};
        outer = multiply(x, &t, outer, r->m->size[i]);
    } while (lex_at(x, ","));
    if (t.kind == TOK_INT)
        lex_fail(x, &t, "expected a mesh axis at the end of the list, found the size %lld",
                 (long long)t.i);
    lex_need(x, ")");
}

static CutKind parse_merge(Lexer *x)
{
    for (CutKind kind = CUT_SUM; kind <= CUT_LOGSUMEXP; kind++)
        if (lex_take(x, cut_merge_name(kind)))
            return kind;
    lex_expected(x, "sum, max or logsumexp");
}

/* (sum: AXIS, ...) */
static void parse_partial(Lexer *x, PortCuts *r)
{
    lex_need(x, "(");
    Token t = x->t;
    CutKind kind = parse_merge(x);
    if (r->merged[kind])
        lex_fail(x, &t, "expected one list for each merge, found another %s", cut_merge_name(kind));
    r->merged[kind] = true;
    lex_need(x, ":");
    do
        r->cut[take_axis(x, r)] = (Cut){.kind = kind};
    while (lex_take(x, ","));
    lex_need(x, ")");
}

const Cut *lex_cuts(Lexer *x, const Mesh *m)
{
    PortCuts r = {.m = m};
    while (lex_at(x, "shard") || lex_at(x, "partial")) {
        if (!m)
            lex_expected(x, "no sharding, as the graph has no mesh");
        if (!r.cut)
            r.cut = NEWN(x->a, Cut, m->naxes);
        if (lex_take(x, "shard")) {
            parse_shard(x, &r);
        } else {
            lex_next(x);
            parse_partial(x, &r);
        }
    }
    return r.cut;
}
