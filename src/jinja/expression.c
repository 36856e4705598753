/* Parses the expressions of a template by recursive descent, with the precedence that Jinja's
 * parser has: from the loosest, `a if b else c`, or, and, not, comparisons and in, + and -, ~,
 * products, **, signs; filters and tests bind tighter than any operator before them. Depth is
 * limited. */
#include "parse.h"

#include <stdlib.h>
#include <string.h>

enum { DEEPEST = 150 };

static JinjaNode *unary(JinjaParser *p, bool filters);

/* ---- tokens ---- */

static const char *token_text(const JinjaParser *p, const JinjaToken *k)
{
    static const char *const names[] = {[JINJA_TEXT] = "text",
                                        [JINJA_OPEN] = "{{",
                                        [JINJA_CLOSE] = "}}",
                                        [JINJA_OPEN_BLOCK] = "{%",
                                        [JINJA_CLOSE_BLOCK] = "%}",
                                        [JINJA_STRING] = "a string",
                                        [JINJA_END] = "the template's end"};
    if (k->kind == JINJA_NAME || k->kind == JINJA_SIGN || k->kind == JINJA_INT ||
        k->kind == JINJA_REAL)
        return arena_printf(p->a, "%.40s", k->s);
    return names[k->kind];
}

_Noreturn void parse_expected(const JinjaParser *p, const char *what)
{
    fail(arena_ctx(p->a), TN_FAIL, "%s:%d: expected %s, found %s", p->t->where, p->k->line, what,
         token_text(p, p->k));
}

_Noreturn void parse_refuse(const JinjaParser *p, const char *what, const char *name)
{
    fail(arena_ctx(p->a), TN_FAIL, "%s:%d: the %s %s is not supported", p->t->where, p->k->line,
         what, name);
}

static bool is_sign(const JinjaParser *p, const char *s)
{
    return p->k->kind == JINJA_SIGN && !strcmp(p->k->s, s);
}

bool parse_is_name(const JinjaParser *p, const char *s)
{
    return p->k->kind == JINJA_NAME && !strcmp(p->k->s, s);
}

bool parse_take_sign(JinjaParser *p, const char *s)
{
    bool yes = is_sign(p, s);
    p->k += yes;
    return yes;
}

bool parse_take_name(JinjaParser *p, const char *s)
{
    bool yes = parse_is_name(p, s);
    p->k += yes;
    return yes;
}

void parse_need_sign(JinjaParser *p, const char *s)
{
    if (!parse_take_sign(p, s))
        parse_expected(p, s);
}

const char *parse_need_name(JinjaParser *p, const char *what)
{
    if (p->k->kind != JINJA_NAME)
        parse_expected(p, what);
    return p->k++->s;
}

void parse_deeper(JinjaParser *p)
{
    if (++p->depth > DEEPEST)
        fail(arena_ctx(p->a), TN_FAIL, "%s:%d: expected at most %d of what is in each other",
             p->t->where, p->k->line, DEEPEST);
}

/* ---- nodes ---- */

JinjaNode *parse_node(JinjaParser *p, JinjaNodeKind kind)
{
    JinjaNode *n = NEW(p->a, JinjaNode);
    n->kind = kind;
    n->line = p->k->line;
    return n;
}

void parse_add_kid(JinjaParser *p, JinjaNode *n, JinjaNode *kid)
{
    PUSH(p->a, n->kid, n->nkid, n->capkid, kid);
}

void parse_add_word(JinjaParser *p, JinjaNode *n, const char *word)
{
    PUSH(p->a, n->word, n->nword, n->capword, word);
}

JinjaNode *parse_wrap(JinjaParser *p, JinjaNodeKind kind, JinjaNode *kid, const char *name)
{
    JinjaNode *n = parse_node(p, kind);
    n->name = name;
    parse_add_kid(p, n, kid);
    return n;
}

static JinjaNode *binary(JinjaParser *p, JinjaNodeKind kind, JinjaNode *x, JinjaNode *y,
                         const char *name)
{
    JinjaNode *n = parse_wrap(p, kind, x, name);
    n->line = x->line;
    parse_add_kid(p, n, y);
    return n;
}

static JinjaNode *constant(JinjaParser *p, JinjaValue x)
{
    JinjaNode *n = parse_node(p, JINJA_CONST);
    n->value = x;
    return n;
}

/* ---- values ---- */

static bool word_value(const char *s, JinjaValue *x)
{
    static const char *const names[] = {"true", "True", "false", "False", "none", "None"};
    for (int i = 0; i < LEN(names); i++)
        if (!strcmp(s, names[i])) {
            *x = i < 4 ? jinja_bool(i < 2) : jinja_none();
            return true;
        }
    return false;
}

static JinjaNode *name_node(JinjaParser *p)
{
    JinjaValue x;
    const char *name = p->k->s;
    if (word_value(name, &x)) {
        p->k++;
        return constant(p, x);
    }
    JinjaNode *n = parse_node(p, JINJA_VARIABLE);
    n->name = name;
    map_put(&p->t->names, name, n);
    p->k++;
    return n;
}

static JinjaNode *string_node(JinjaParser *p)
{
    Buf b = {.a = p->a};
    buf_addn(&b, "", 0);
    while (p->k->kind == JINJA_STRING) {
        buf_addn(&b, p->k->s, p->k->n);
        p->k++;
    }
    return constant(p, jinja_string(b.text, b.len));
}

static JinjaNode *number_node(JinjaParser *p)
{
    const JinjaToken *k = p->k++;
    if (k->kind == JINJA_REAL)
        return constant(p, jinja_real(strtod(k->s, NULL)));
    if (k->n > 18)
        fail(arena_ctx(p->a), TN_FAIL, "%s:%d: expected at most 18 digits, found %zu", p->t->where,
             k->line, k->n);
    return constant(p, jinja_int(strtoll(k->s, NULL, 10)));
}

/* Values up to a closing bracket; `()` and `(a,)` are tuples, `(a)` is a. */
static JinjaNode *sequence(JinjaParser *p, JinjaNodeKind kind, const char *close)
{
    JinjaNode *n = parse_node(p, kind);
    bool comma = false;
    p->k++;
    while (!parse_take_sign(p, close)) {
        parse_add_kid(p, n, parse_expression(p));
        comma = parse_take_sign(p, ",");
        if (!comma) {
            parse_need_sign(p, close);
            break;
        }
    }
    return kind == JINJA_TUPLE && n->nkid == 1 && !comma ? n->kid[0] : n;
}

static JinjaNode *dict_node(JinjaParser *p)
{
    JinjaNode *n = parse_node(p, JINJA_DICT);
    p->k++;
    while (!parse_take_sign(p, "}")) {
        parse_add_kid(p, n, parse_expression(p));
        parse_need_sign(p, ":");
        parse_add_kid(p, n, parse_expression(p));
        if (!parse_take_sign(p, ",")) {
            parse_need_sign(p, "}");
            break;
        }
    }
    return n;
}

static JinjaNode *primary(JinjaParser *p)
{
    switch (p->k->kind) {
    case JINJA_NAME: return name_node(p);
    case JINJA_STRING: return string_node(p);
    case JINJA_INT:
    case JINJA_REAL: return number_node(p);
    default: break;
    }
    if (is_sign(p, "("))
        return sequence(p, JINJA_TUPLE, ")");
    if (is_sign(p, "["))
        return sequence(p, JINJA_LIST, "]");
    if (is_sign(p, "{"))
        return dict_node(p);
    parse_expected(p, "a value");
}

/* ---- what follows a value ---- */

static void arguments(JinjaParser *p, JinjaNode *n)
{
    parse_need_sign(p, "(");
    while (!parse_take_sign(p, ")")) {
        const char *word = NULL;
        if (is_sign(p, "*") || is_sign(p, "**"))
            parse_refuse(p, "argument", p->k->s);
        if (p->k->kind == JINJA_NAME && p->k[1].kind == JINJA_SIGN && !strcmp(p->k[1].s, "=")) {
            word = p->k->s;
            p->k += 2;
        }
        parse_add_kid(p, n, parse_expression(p));
        parse_add_word(p, n, word);
        if (!parse_take_sign(p, ",")) {
            parse_need_sign(p, ")");
            return;
        }
    }
}

static JinjaNode *call(JinjaParser *p, JinjaNode *x)
{
    JinjaNode *n = parse_wrap(p, JINJA_CALL, x, NULL);
    arguments(p, n);
    return n;
}

static JinjaNode *subscript(JinjaParser *p, JinjaNode *x)
{
    JinjaNode *part[3] = {0};
    int at = 0;
    p->k++;
    if (!is_sign(p, ":"))
        part[0] = parse_expression(p);
    if (part[0] && parse_take_sign(p, "]"))
        return binary(p, JINJA_SUBSCRIPT, x, part[0], NULL);
    while (at < 2 && parse_take_sign(p, ":")) {
        at++;
        if (!is_sign(p, ":") && !is_sign(p, "]"))
            part[at] = parse_expression(p);
    }
    parse_need_sign(p, "]");
    JinjaNode *n = parse_wrap(p, JINJA_SLICE, x, NULL);
    for (int i = 0; i < 3; i++)
        parse_add_kid(p, n, part[i]);
    return n;
}

static JinjaNode *attribute(JinjaParser *p, JinjaNode *x)
{
    p->k++;
    if (p->k->kind == JINJA_INT)
        return binary(p, JINJA_SUBSCRIPT, x, number_node(p), NULL);
    JinjaNode *n = parse_wrap(p, JINJA_ATTRIBUTE, x, NULL);
    n->name = parse_need_name(p, "an attribute's name");
    return n;
}

static JinjaNode *postfix(JinjaParser *p, JinjaNode *x)
{
    for (;;) {
        if (is_sign(p, "."))
            x = attribute(p, x);
        else if (is_sign(p, "["))
            x = subscript(p, x);
        else if (is_sign(p, "("))
            x = call(p, x);
        else
            return x;
    }
}

static JinjaNode *filter(JinjaParser *p, JinjaNode *x)
{
    JinjaNode *n = parse_wrap(p, JINJA_FILTER, x, NULL);
    n->name = parse_need_name(p, "a filter's name");
    if (!jinja_filter_known(n->name)) {
        p->k--;
        parse_refuse(p, "filter", n->name);
    }
    if (is_sign(p, "("))
        arguments(p, n);
    return n;
}

/* Whether an argument of a test without brackets begins. */
static bool begins_value(const JinjaParser *p)
{
    static const char *const ends[] = {"else", "or", "and", "if", "is", "in", "not"};
    for (int i = 0; i < LEN(ends); i++)
        if (parse_is_name(p, ends[i]))
            return false;
    return p->k->kind == JINJA_NAME || p->k->kind == JINJA_STRING || p->k->kind == JINJA_INT ||
           p->k->kind == JINJA_REAL || is_sign(p, "[") || is_sign(p, "{");
}

static JinjaNode *test(JinjaParser *p, JinjaNode *x)
{
    JinjaNode *n = parse_wrap(p, JINJA_TEST, x, NULL);
    n->inverted = parse_take_name(p, "not");
    n->name = parse_need_name(p, "a test's name");
    if (!jinja_test_known(n->name)) {
        p->k--;
        parse_refuse(p, "test", n->name);
    }
    if (is_sign(p, "(")) {
        arguments(p, n);
    } else if (begins_value(p)) {
        parse_add_kid(p, n, postfix(p, primary(p)));
        parse_add_word(p, n, NULL);
    }
    return n;
}

static JinjaNode *filters(JinjaParser *p, JinjaNode *x)
{
    for (;;) {
        if (parse_take_sign(p, "|"))
            x = filter(p, x);
        else if (parse_take_name(p, "is"))
            x = test(p, x);
        else if (is_sign(p, "("))
            x = call(p, x);
        else
            return x;
    }
}

/* ---- operators ---- */

static JinjaNode *unary(JinjaParser *p, bool with_filters)
{
    JinjaNode *x;
    parse_deeper(p);
    if (parse_take_sign(p, "-"))
        x = parse_wrap(p, JINJA_NEGATE, unary(p, false), NULL);
    else if (parse_take_sign(p, "+"))
        x = parse_wrap(p, JINJA_PLUS, unary(p, false), NULL);
    else
        x = primary(p);
    x = postfix(p, x);
    if (with_filters)
        x = filters(p, x);
    p->depth--;
    return x;
}

/* Operators of one level, from the loosest: each is of the left. */
static const char *const levels[][5] = {{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}};

static JinjaNode *arithmetic(JinjaParser *p, int level)
{
    if (level == LEN(levels))
        return unary(p, true);
    JinjaNode *x = arithmetic(p, level + 1);
    for (;;) {
        const char *sign = NULL;
        for (const char *const *s = levels[level]; *s && !sign; s++)
            sign = parse_take_sign(p, *s) ? *s : NULL;
        if (!sign)
            return x;
        x = binary(p, JINJA_BINARY, x, arithmetic(p, level + 1), sign);
    }
}

static const char *take_comparison(JinjaParser *p)
{
    static const char *const signs[] = {"==", "!=", "<=", ">=", "<", ">"};
    for (int i = 0; i < LEN(signs); i++)
        if (parse_take_sign(p, signs[i]))
            return signs[i];
    if (parse_take_name(p, "in"))
        return "in";
    if (parse_is_name(p, "not") && p->k[1].kind == JINJA_NAME && !strcmp(p->k[1].s, "in")) {
        p->k += 2;
        return "not in";
    }
    return NULL;
}

static JinjaNode *comparison(JinjaParser *p)
{
    JinjaNode *x = arithmetic(p, 0), *n = NULL;
    for (const char *sign; (sign = take_comparison(p));) {
        if (!n)
            n = parse_wrap(p, JINJA_COMPARE, x, NULL);
        parse_add_word(p, n, sign);
        parse_add_kid(p, n, arithmetic(p, 0));
    }
    return n ? n : x;
}

static JinjaNode *negation(JinjaParser *p)
{
    if (!parse_take_name(p, "not"))
        return comparison(p);
    parse_deeper(p);
    JinjaNode *x = parse_wrap(p, JINJA_NOT, negation(p), NULL);
    p->depth--;
    return x;
}

static JinjaNode *conjunction(JinjaParser *p)
{
    JinjaNode *x = negation(p);
    while (parse_take_name(p, "and"))
        x = binary(p, JINJA_AND, x, negation(p), NULL);
    return x;
}

static JinjaNode *disjunction(JinjaParser *p)
{
    JinjaNode *x = conjunction(p);
    while (parse_take_name(p, "or"))
        x = binary(p, JINJA_OR, x, conjunction(p), NULL);
    return x;
}

JinjaNode *parse_expression(JinjaParser *p)
{
    parse_deeper(p);
    JinjaNode *x = disjunction(p);
    while (parse_take_name(p, "if")) {
        x = binary(p, JINJA_CHOICE, x, disjunction(p), NULL);
        parse_add_kid(p, x, parse_take_name(p, "else") ? parse_expression(p) : NULL);
    }
    p->depth--;
    return x;
}

JinjaNode *parse_values(JinjaParser *p, bool choice)
{
    JinjaNode *x = choice ? parse_expression(p) : disjunction(p), *n = NULL;
    while (parse_take_sign(p, ",")) {
        if (!n)
            n = parse_wrap(p, JINJA_TUPLE, x, NULL);
        if (p->k->kind == JINJA_CLOSE_BLOCK || p->k->kind == JINJA_CLOSE)
            break;
        parse_add_kid(p, n, choice ? parse_expression(p) : disjunction(p));
    }
    return n ? n : x;
}
