/* machine_text: reads a machine from the text of a file (docs/formats.md): a row to begin with,
 * then figures that differ from it. Words and numbers are those of .tn text. */
#include "machine.h"

#include <math.h>
#include <string.h>

/* Whether f is no number for that key: out of its range, or a part of a rank. */
static bool is_wrong(double f, const char *unit, double least, double most)
{
    bool whole = !strcmp(unit, "ranks") || !strcmp(unit, "0 or 1");
    return !(f >= least && f <= most) || (whole && f != floor(f));
}

static double number(Lexer *x, const char *key, const char *unit, double least, double most)
{
    Token t = x->t;
    if (t.kind != TOK_INT && t.kind != TOK_FLOAT)
        lex_expected(x, arena_printf(x->a, "a number for %s", key));
    if (is_wrong(t.f, unit, least, most))
        lex_fail(x, &t, "%s: expected %g to %g%s%s%s, found %.*s", key, least, most,
                 *unit ? " (" : "", unit, *unit ? ")" : "", MIN(t.len, 40), t.begin);
    lex_next(x);
    return t.f;
}

static int find_figure(const char *key)
{
    for (int i = 0; i < NFIGURE; i++)
        if (!strcmp(figure_table[i].key, key))
            return i;
    return -1;
}

static _Noreturn void fail_key(Lexer *x, const Token *key)
{
    static const char *const others[] = {"share", "threads", "library", "way", "sec", "end"};
    const char *keys[NFIGURE + LEN(others)];
    memcpy(keys, others, sizeof others);
    for (int i = 0; i < NFIGURE; i++)
        keys[LEN(others) + i] = figure_table[i].key;
    const char *near = nearest(key->s, keys, LEN(keys));
    lex_fail(x, key, "expected a figure of a machine, found \"%.40s\"%s%s%s", key->s,
             near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

static OpClass read_class(Lexer *x)
{
    for (int c = 0; c < NCLASS; c++)
        if (lex_take(x, class_name((OpClass)c)))
            return (OpClass)c;
    lex_expected(x, "a class of ops (see `tenon ops`)");
}

static void read_share(Lexer *x, Machine *m, bool *seen)
{
    Token at = x->t;
    OpClass c = read_class(x);
    if (seen[c])
        lex_fail(x, &at, "the share of %s stands twice", class_name(c));
    seen[c] = true;
    m->share[c].arithmetic = number(x, "the share of arithmetic", "", 1e-4, 1e3);
    m->share[c].memory = number(x, "the share of memory", "", 1e-4, 1e3);
    m->share[c].each = number(x, "operations for each element", "", 0, 1e6);
}

static void read_link(Lexer *x, Machine *m)
{
    Token t = lex_token(x, TOK_WORD, "the name of a link");
    if (!machine_link(m, t.s))
        lex_fail(x, &t, "expected a link (%s), found \"%.40s\"", link_list(x->a), t.s);
}

static Machine *read_head(Lexer *x)
{
    lex_need(x, "machine");
    lex_int(x, "a version", 1, 1);
    lex_need(x, "name");
    Token name = lex_token(x, TOK_WORD, "a name");
    lex_need(x, "like");
    Token like = lex_token(x, TOK_WORD, "the name of a machine");
    Machine *m = machine_row(x->a, like.s);
    if (!m)
        lex_fail(x, &like, "expected a machine (%s), found \"%.40s\"", machine_list(x->a), like.s);
    if (strcmp(name.s, like.s) != 0 && (machine_row(x->a, name.s) || !strcmp(name.s, "none")))
        lex_fail(x, &name, "expected a name of its own, found \"%.40s\", which is that of another",
                 name.s);
    m->name = name.s;
    return m;
}

/* ---- what was measured ---- */

/* A key, and where it stands. */
static Token read_key(Lexer *x, const char **title)
{
    Token t = lex_token(x, TOK_STRING, "the key of a call");
    *title = arena_printf(x->a, "%s:%d:%d: key", x->file, t.line, t.column);
    return t;
}

static void read_way(Lexer *x, Machine *m)
{
    const char *title;
    Token key = read_key(x, &title);
    Token kernel = lex_token(x, TOK_WORD, "the name of a kernel");
    if (!machine_put_way(m, key.s, kernel.s, title))
        lex_fail(x, &key, "the way of this call stands twice");
}

static void read_sec(Lexer *x, Machine *m)
{
    const char *title;
    Token key = read_key(x, &title);
    if (!machine_put_sec(m, key.s, number(x, "seconds", "s", SEC_LEAST, SEC_MOST), title))
        lex_fail(x, &key, "the seconds of this call stand twice");
}

/* Reads what follows `key`, if that is no figure; false: it is none of these keys. */
static bool read_other(Lexer *x, Machine *m, const Token *key, bool *share)
{
    if (!strcmp(key->s, "share"))
        read_share(x, m, share);
    else if (!strcmp(key->s, "way"))
        read_way(x, m);
    else if (!strcmp(key->s, "sec"))
        read_sec(x, m);
    else if (!strcmp(key->s, "threads") && !m->nthread)
        m->nthread = (int)lex_int(x, "a number of threads", 1, 1 << 20);
    else if (!strcmp(key->s, "library") && !m->library)
        m->library = lex_token(x, TOK_STRING, "a library's name and version").s;
    else if (!strcmp(key->s, "threads") || !strcmp(key->s, "library"))
        lex_fail(x, key, "%s stands twice", key->s);
    else if (!strcmp(key->s, "link"))
        lex_fail(x, key, "expected link before all figures");
    else if (!strcmp(key->s, "end") && x->t.kind != TOK_END)
        lex_expected(x, "nothing behind end");
    else
        return !strcmp(key->s, "end");
    return true;
}

static void read_figure(Lexer *x, Machine *m, const Token *key, bool *figure)
{
    int i = find_figure(key->s);
    if (i < 0)
        fail_key(x, key);
    if (figure[i])
        lex_fail(x, key, "%s stands twice", key->s);
    const MachineFigure *f = &figure_table[i];
    m->figure[i] = number(x, f->key, f->unit, f->least, f->most);
    figure[i] = true;
}

Machine *machine_parse(Arena *a, const char *text, size_t len, const char *file)
{
    if (strlen(text) != len)
        fail(arena_ctx(a), TN_FAIL, "%.300s: expected text, found a byte of 0", file);
    Lexer lexer, *x = &lexer;
    lex_start(x, a, text, file);
    Machine *m = read_head(x);
    bool figure[NFIGURE] = {false}, share[NCLASS] = {false}, ended = false;
    if (lex_take(x, "link"))
        read_link(x, m);
    while (x->t.kind != TOK_END) {
        Token key = lex_token(x, TOK_WORD, "a figure of a machine");
        if (!read_other(x, m, &key, share))
            read_figure(x, m, &key, figure);
        ended = !strcmp(key.s, "end");
    }
    if (!ended && !strcmp(m->name, TUNED))
        lex_expected(x, "end, with which a tuned file ends: it is cut off");
    return m;
}
