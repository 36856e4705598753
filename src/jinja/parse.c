/* Parses the statements of a template. What the subset does not have is refused here, with its
 * line, before anything is rendered. */
#include "parse.h"

#include <string.h>

static JinjaNode *statements(JinjaParser *p, const char *const *end, int nend);

static void close_block(JinjaParser *p)
{
    if (p->k->kind != JINJA_CLOSE_BLOCK)
        parse_expected(p, "%}");
    p->k++;
}

/* ---- statements ---- */

static bool at_end(const JinjaParser *p, const char *const *end, int nend)
{
    for (int i = 0; i < nend; i++)
        if (p->k->kind == JINJA_OPEN_BLOCK && p->k[1].kind == JINJA_NAME &&
            !strcmp(p->k[1].s, end[i]))
            return true;
    return false;
}

/* Statements up to the block `end`, which is taken. */
static JinjaNode *body_of(JinjaParser *p, const char *end)
{
    JinjaNode *n = statements(p, &end, 1);
    p->k += 2;
    close_block(p);
    return n;
}

/* After `if` or `elif`. */
static JinjaNode *if_node(JinjaParser *p)
{
    static const char *const ends[] = {"elif", "else", "endif"};
    parse_deeper(p);
    JinjaNode *n = parse_wrap(p, JINJA_IF, parse_values(p, true), NULL);
    close_block(p);
    n->body = statements(p, ends, LEN(ends));
    p->k++;
    const char *end = p->k++->s;
    if (!strcmp(end, "elif")) {
        n->other = if_node(p);
        p->depth--;
        return n;
    }
    close_block(p);
    if (!strcmp(end, "else"))
        n->other = body_of(p, "endif");
    p->depth--;
    return n;
}

/* Names with commas between them, perhaps in brackets. */
static void targets(JinjaParser *p, JinjaNode *n)
{
    bool bracket = parse_take_sign(p, "(");
    do
        parse_add_word(p, n, parse_need_name(p, "a variable's name"));
    while (parse_take_sign(p, ","));
    if (bracket)
        parse_need_sign(p, ")");
}

static JinjaNode *for_node(JinjaParser *p)
{
    static const char *const ends[] = {"else", "endfor"};
    JinjaNode *n = parse_node(p, JINJA_FOR);
    targets(p, n);
    if (!parse_take_name(p, "in"))
        parse_expected(p, "in");
    parse_add_kid(p, n, parse_values(p, false));
    parse_add_kid(p, n, parse_take_name(p, "if") ? parse_expression(p) : NULL);
    if (parse_is_name(p, "recursive"))
        parse_refuse(p, "word", "recursive");
    close_block(p);
    p->loops++;
    n->body = statements(p, ends, LEN(ends));
    p->loops--;
    p->k++;
    bool other = !strcmp(p->k++->s, "else");
    close_block(p);
    if (other)
        n->other = body_of(p, "endfor");
    return n;
}

static JinjaNode *set_node(JinjaParser *p)
{
    JinjaNode *n = parse_node(p, JINJA_SET);
    targets(p, n);
    if (n->nword == 1 && parse_take_sign(p, "."))
        n->name = parse_need_name(p, "an attribute's name");
    if (n->name) {
        JinjaNode *of = parse_node(p, JINJA_VARIABLE);
        of->name = n->word[0];
        n->other = of;
    }
    if (parse_take_sign(p, "=")) {
        parse_add_kid(p, n, parse_values(p, true));
        close_block(p);
        return n;
    }
    if (parse_take_sign(p, "|"))
        parse_refuse(p, "filter", "of a block set");
    close_block(p);
    n->kind = JINJA_SET_BLOCK;
    n->body = body_of(p, "endset");
    return n;
}

static JinjaNode *macro_node(JinjaParser *p)
{
    JinjaNode *n = parse_node(p, JINJA_DEFINE);
    n->name = parse_need_name(p, "a macro's name");
    parse_need_sign(p, "(");
    while (!parse_take_sign(p, ")")) {
        parse_add_word(p, n, parse_need_name(p, "an argument's name"));
        parse_add_kid(p, n, parse_take_sign(p, "=") ? parse_expression(p) : NULL);
        if (!parse_take_sign(p, ",")) {
            parse_need_sign(p, ")");
            break;
        }
    }
    close_block(p);
    int loops = p->loops;
    p->loops = 0;
    n->body = body_of(p, "endmacro");
    p->loops = loops;
    return n;
}

static JinjaNode *generation_node(JinjaParser *p)
{
    JinjaNode *n = parse_node(p, JINJA_GENERATION);
    int loops = p->loops;
    close_block(p);
    p->t->marks = true;
    p->loops = 0;
    n->body = body_of(p, "endgeneration");
    p->loops = loops;
    return n;
}

static JinjaNode *jump_node(JinjaParser *p, JinjaNodeKind kind)
{
    if (!p->loops) {
        p->k--;
        parse_expected(p, "a loop around it");
    }
    close_block(p);
    return parse_node(p, kind);
}

static JinjaNode *block_node(JinjaParser *p)
{
    static const char *const others[] = {"block", "extends",    "include", "import", "from",
                                         "call",  "filter",     "with",    "do",     "raw",
                                         "trans", "autoescape", "debug"};
    const JinjaToken *k = ++p->k;
    const char *name = parse_need_name(p, "a statement");
    if (!strcmp(name, "if"))
        return if_node(p);
    if (!strcmp(name, "for"))
        return for_node(p);
    if (!strcmp(name, "set"))
        return set_node(p);
    if (!strcmp(name, "macro"))
        return macro_node(p);
    if (!strcmp(name, "generation"))
        return generation_node(p);
    if (!strcmp(name, "break") || !strcmp(name, "continue"))
        return jump_node(p, *name == 'b' ? JINJA_BREAK : JINJA_CONTINUE);
    p->k = k;
    for (int i = 0; i < LEN(others); i++)
        if (!strcmp(name, others[i]))
            parse_refuse(p, "statement", name);
    parse_expected(p,
                   "if, for, set, macro, generation, break, continue, or the end of one of them");
}

static JinjaNode *statement(JinjaParser *p)
{
    JinjaNode *n;
    if (p->k->kind == JINJA_TEXT) {
        n = parse_node(p, JINJA_OUTPUT);
        n->value = jinja_string(p->k->s, p->k->n);
        p->k++;
        return n;
    }
    if (p->k->kind == JINJA_OPEN_BLOCK)
        return block_node(p);
    p->k++;
    n = parse_wrap(p, JINJA_PRINT, parse_values(p, true), NULL);
    if (p->k->kind != JINJA_CLOSE)
        parse_expected(p, "}}");
    p->k++;
    return n;
}

static JinjaNode *statements(JinjaParser *p, const char *const *end, int nend)
{
    JinjaNode *first = NULL, **at = &first;
    parse_deeper(p);
    while (!at_end(p, end, nend)) {
        if (p->k->kind == JINJA_END && !nend)
            break;
        if (p->k->kind == JINJA_END)
            parse_expected(p, arena_printf(p->a, "%s", end[nend - 1]));
        *at = statement(p);
        at = &(*at)->next;
    }
    p->depth--;
    return first;
}

Jinja *jinja_parse(Arena *a, const char *text, size_t n, const char *where)
{
    Jinja *t = NEW(a, Jinja);
    *t = (Jinja){.where = arena_strdup(a, where), .names.a = a};
    JinjaParser p = {.a = a, .t = t, .k = jinja_lex(a, text, n, t->where)};
    t->body = statements(&p, NULL, 0);
    return t;
}

bool jinja_marks(const Jinja *t)
{
    return t->marks;
}

bool jinja_names(const Jinja *t, const char *name)
{
    return map_find(&t->names, name) != NULL;
}
