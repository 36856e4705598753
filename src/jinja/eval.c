/* Runs a template: walks its nodes. Variables live in scopes: a loop's iteration and a macro's call
 * have one of their own, and what is set there ends with it, as in Jinja; `if` has none. Steps,
 * depth and the text's length are limited, so that every rendering ends.
 *
 * The span of a generation tag is where transformers puts it: it begins at the length of what the
 * whole template has written so far, though the tag may stand in a macro, and is as long, in
 * characters, as what is between the tags. */
#include "jinja.h"

#include <math.h>
#include <string.h>

enum { MOST_STEPS = 10000000, MOST_DEPTH = 1500, MOST_TEXT = 256 << 20 };

typedef struct JinjaScope {
    struct JinjaScope *outer;
    struct JinjaBound {
        const char *name;
        JinjaValue value;
    } * bound;
    int count, cap;
} JinjaScope;

typedef struct JinjaMacro {
    const JinjaNode *node;
    JinjaScope *scope; /* in which it was defined */
} JinjaMacro;

typedef enum { GOES_ON, BREAKS, CONTINUES } Flow;

static JinjaValue eval(JinjaRun *r, JinjaScope *s, const JinjaNode *n);
static Flow run(JinjaRun *r, JinjaScope *s, const JinjaNode *n);

/* ---- scopes ---- */

static JinjaScope *new_scope(JinjaRun *r, JinjaScope *outer)
{
    JinjaScope *s = NEW(r->a, JinjaScope);
    s->outer = outer;
    return s;
}

static JinjaValue *find_here(const JinjaScope *s, const char *name)
{
    for (int i = 0; i < s->count; i++)
        if (!strcmp(s->bound[i].name, name))
            return &s->bound[i].value;
    return NULL;
}

static void bind(JinjaRun *r, JinjaScope *s, const char *name, JinjaValue x)
{
    JinjaValue *there = find_here(s, name);
    struct JinjaBound b = {name, x};
    if (there)
        *there = x;
    else
        PUSH(r->a, s->bound, s->count, s->cap, b);
}

static JinjaValue lookup(const JinjaScope *s, const char *name)
{
    for (; s; s = s->outer) {
        const JinjaValue *x = find_here(s, name);
        if (x)
            return *x;
    }
    if (jinja_function_known(name))
        return (JinjaValue){.kind = JINJA_IS_FUNCTION, .u.s = name};
    return jinja_undefined(name);
}

/* One value for one name, or as many values as names. */
static void bind_targets(JinjaRun *r, JinjaScope *s, const JinjaNode *n, JinjaValue x)
{
    if (n->nword == 1) {
        bind(r, s, n->word[0], x);
        return;
    }
    const JinjaList *all = jinja_items(r, x);
    if (all->count != n->nword)
        jinja_fail(r, "expected %d values for as many names, found %d", n->nword, all->count);
    for (int i = 0; i < n->nword; i++)
        bind(r, s, n->word[i], all->item[i]);
}

/* ---- operators ---- */

static bool is_int(JinjaValue x)
{
    return x.kind == JINJA_IS_INT || x.kind == JINJA_IS_BOOL;
}

static int64_t int_of(JinjaValue x)
{
    return x.kind == JINJA_IS_BOOL ? x.u.yes : x.u.integer;
}

static double real_of(JinjaValue x)
{
    return is_int(x) ? (double)int_of(x) : x.u.real;
}

_Noreturn static void no_operator(const JinjaRun *r, const char *sign, JinjaValue x, JinjaValue y)
{
    const char *name = x.kind == JINJA_IS_UNDEFINED   ? x.u.s
                       : y.kind == JINJA_IS_UNDEFINED ? y.u.s
                                                      : NULL;
    if (name)
        jinja_fail(r, "%s: \"%s\" is undefined", sign, name);
    jinja_fail(r, "%s: expected numbers, or for + strings or lists, found %s and %s", sign,
               jinja_kind(x), jinja_kind(y));
}

static JinjaValue joined(JinjaRun *r, JinjaValue x, JinjaValue y)
{
    bool markup = x.markup || y.markup;
    if (markup && !x.markup)
        x = jinja_escape(r->a, x);
    if (markup && !y.markup)
        y = jinja_escape(r->a, y);
    char *s = NEWN(r->a, char, x.n + y.n + 1);
    memcpy(s, x.u.s, x.n);
    memcpy(s + x.n, y.u.s, y.n);
    jinja_step(r, (int64_t)(x.n + y.n) / 16);
    JinjaValue z = jinja_string(s, x.n + y.n);
    z.markup = markup;
    return z;
}

static JinjaValue plain(JinjaRun *r, JinjaValue x)
{
    x = jinja_str(r, x);
    x.markup = false;
    return x;
}

static JinjaValue joined_lists(JinjaRun *r, JinjaValue x, JinjaValue y)
{
    JinjaValue z = jinja_list(r->a);
    z.kind = x.kind;
    jinja_step(r, x.u.list->count + y.u.list->count);
    for (int i = 0; i < x.u.list->count; i++)
        jinja_push(r->a, z, x.u.list->item[i]);
    for (int i = 0; i < y.u.list->count; i++)
        jinja_push(r->a, z, y.u.list->item[i]);
    return z;
}

static JinjaValue repeated(JinjaRun *r, JinjaValue s, int64_t count)
{
    Buf b = {.a = r->a};
    buf_addn(&b, "", 0);
    jinja_step(r, MAX(count, 0));
    for (int64_t i = 0; i < count; i++) {
        jinja_step(r, (int64_t)s.n / 16);
        buf_addn(&b, s.u.s, s.n);
    }
    return jinja_string(b.text, b.len);
}

static JinjaValue int_result(const JinjaRun *r, bool overflow, int64_t x)
{
    if (overflow)
        jinja_fail(r, "expected an integer of 64 bits, found a larger one");
    return jinja_int(x);
}

static JinjaValue int_binary(JinjaRun *r, const char *sign, int64_t x, int64_t y)
{
    int64_t z = 1;
    bool over = false;
    if ((*sign == '/' || *sign == '%') && (!y || (y == -1 && x == INT64_MIN)))
        jinja_fail(r, "%s: division by %s", sign, y ? "-1 of the least integer" : "zero");
    if (!strcmp(sign, "**")) {
        if (y < 0)
            return jinja_real(pow((double)x, (double)y));
        for (; y-- > 0 && !over; jinja_step(r, 1))
            over = __builtin_mul_overflow(z, x, &z);
        return int_result(r, over, z);
    }
    switch (*sign) {
    case '+': over = __builtin_add_overflow(x, y, &z); break;
    case '-': over = __builtin_sub_overflow(x, y, &z); break;
    case '*': over = __builtin_mul_overflow(x, y, &z); break;
    case '%':
        z = x % y;
        z += z && (z < 0) != (y < 0) ? y : 0;
        break;
    default:
        if (!sign[1])
            return jinja_real((double)x / (double)y);
        z = x / y - (x % y != 0 && (x < 0) != (y < 0));
    }
    return int_result(r, over, z);
}

static JinjaValue real_binary(JinjaRun *r, const char *sign, double x, double y)
{
    if ((*sign == '/' || *sign == '%') && y == 0)
        jinja_fail(r, "%s: division by zero", sign);
    if (!strcmp(sign, "**"))
        return jinja_real(pow(x, y));
    if (!strcmp(sign, "//"))
        return jinja_real(floor(x / y));
    if (*sign == '%')
        return jinja_real(x - y * floor(x / y));
    return jinja_real(*sign == '+' ? x + y : *sign == '-' ? x - y : *sign == '*' ? x * y : x / y);
}

static JinjaValue binary(JinjaRun *r, const char *sign, JinjaValue x, JinjaValue y)
{
    bool numbers = (is_int(x) || x.kind == JINJA_IS_REAL) && (is_int(y) || y.kind == JINJA_IS_REAL);
    if (*sign == '~')
        return joined(r, plain(r, x), plain(r, y));
    if (numbers && is_int(x) && is_int(y))
        return int_binary(r, sign, int_of(x), int_of(y));
    if (numbers)
        return real_binary(r, sign, real_of(x), real_of(y));
    if (*sign == '+' && x.kind == y.kind && x.kind == JINJA_IS_STRING)
        return joined(r, x, y);
    if (*sign == '+' && x.kind == y.kind && (x.kind == JINJA_IS_LIST || x.kind == JINJA_IS_TUPLE))
        return joined_lists(r, x, y);
    if (!strcmp(sign, "*") && x.kind == JINJA_IS_STRING && is_int(y))
        return repeated(r, x, int_of(y));
    if (!strcmp(sign, "*") && y.kind == JINJA_IS_STRING && is_int(x))
        return repeated(r, y, int_of(x));
    no_operator(r, sign, x, y);
}

static bool holds(const JinjaRun *r, const char *sign, JinjaValue x, JinjaValue y)
{
    if (!strcmp(sign, "=="))
        return jinja_equal(x, y);
    if (!strcmp(sign, "!="))
        return !jinja_equal(x, y);
    if (!strcmp(sign, "in") || !strcmp(sign, "not in"))
        return jinja_in(r, x, y) == (*sign == 'i');
    int order = jinja_order(r, x, y);
    bool equal = sign[1] == '=' && !order;
    return equal || (*sign == '<' ? order < 0 : order > 0);
}

static JinjaValue compare(JinjaRun *r, JinjaScope *s, const JinjaNode *n)
{
    JinjaValue x = eval(r, s, n->kid[0]);
    for (int i = 0; i < n->nword; i++) {
        JinjaValue y = eval(r, s, n->kid[i + 1]);
        if (!holds(r, n->word[i], x, y))
            return jinja_bool(false);
        x = y;
    }
    return jinja_bool(true);
}

static JinjaValue signed_value(JinjaRun *r, JinjaValue x, bool minus)
{
    if (is_int(x))
        return int_binary(r, minus ? "-" : "+", 0, int_of(x));
    if (x.kind != JINJA_IS_REAL)
        jinja_fail(r, "%s: expected a number, found %s", minus ? "-" : "+", jinja_kind(x));
    return jinja_real(minus ? -x.u.real : x.u.real);
}

/* ---- parts ---- */

static int64_t bound_of(JinjaRun *r, JinjaScope *s, const JinjaNode *n, int64_t otherwise)
{
    JinjaValue x = n ? eval(r, s, n) : jinja_none();
    if (x.kind == JINJA_IS_NONE)
        return otherwise;
    if (!is_int(x))
        jinja_fail(r, "a slice: expected integers, found %s", jinja_kind(x));
    return int_of(x);
}

/* A place in a sequence of n, which may be counted from its end, within [low, high]. */
static int64_t clamp(int64_t at, int64_t n, int64_t low, int64_t high)
{
    at += at < 0 ? n : 0;
    return MIN(MAX(at, low), high);
}

static JinjaValue slice(JinjaRun *r, JinjaScope *s, const JinjaNode *n)
{
    JinjaValue x = eval(r, s, n->kid[0]);
    bool list = x.kind == JINJA_IS_LIST || x.kind == JINJA_IS_TUPLE;
    int64_t step = bound_of(r, s, n->kid[3], 1);
    if (x.kind == JINJA_IS_UNDEFINED)
        jinja_fail(r, "\"%s\" is undefined", x.u.s);
    if ((!list && x.kind != JINJA_IS_STRING) || !step || step == INT64_MIN)
        jinja_fail(r, "a slice: expected a string or a list and a step that is not 0, found %s",
                   jinja_kind(x));
    int64_t count = list ? x.u.list->count : (int64_t)jinja_length(x);
    int64_t low = step > 0 ? 0 : -1, high = step > 0 ? count : count - 1;
    int64_t from = bound_of(r, s, n->kid[1], INT64_MAX), to = bound_of(r, s, n->kid[2], INT64_MAX);
    from = from == INT64_MAX ? (step > 0 ? 0 : count - 1) : clamp(from, count, low, high);
    to = to == INT64_MAX ? (step > 0 ? count : -1) : clamp(to, count, low, high);
    jinja_step(r, count);
    step = step > 0 ? MIN(step, count + 1) : MAX(step, -count - 1);
    if (!list)
        return jinja_cut(r->a, x, from, to, step);
    JinjaValue part = jinja_list(r->a);
    part.kind = x.kind;
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step)
        jinja_push(r->a, part, x.u.list->item[i]);
    return part;
}

static JinjaArgs eval_args(JinjaRun *r, JinjaScope *s, const JinjaNode *n)
{
    JinjaArgs args = {NEWN(r->a, JinjaValue, n->nkid + 1), n->word, n->nkid - 1};
    for (int i = 1; i < n->nkid; i++)
        args.value[i - 1] = eval(r, s, n->kid[i]);
    return args;
}

static JinjaValue build_list(JinjaRun *r, JinjaScope *s, const JinjaNode *n)
{
    JinjaValue x = jinja_list(r->a);
    x.kind = n->kind == JINJA_TUPLE ? JINJA_IS_TUPLE : JINJA_IS_LIST;
    for (int i = 0; i < n->nkid; i++)
        jinja_push(r->a, x, eval(r, s, n->kid[i]));
    return x;
}

static JinjaValue build_dict(JinjaRun *r, JinjaScope *s, const JinjaNode *n)
{
    JinjaValue x = jinja_dict(r->a);
    for (int i = 0; i < n->nkid; i += 2) {
        JinjaValue key = eval(r, s, n->kid[i]);
        jinja_put(r->a, x, key, eval(r, s, n->kid[i + 1]));
    }
    return x;
}

/* ---- calls ---- */

/* The text of statements, as a string. */
static JinjaValue written(JinjaRun *r, JinjaScope *s, const JinjaNode *body)
{
    Buf b = {.a = r->a, .most = MOST_TEXT, .beyond = r->out->beyond}, *outer = r->out;
    buf_addn(&b, "", 0);
    r->out = &b;
    run(r, s, body);
    r->out = outer;
    return jinja_string(b.text, b.len);
}

static JinjaValue call_macro(JinjaRun *r, const JinjaMacro *m, const JinjaArgs *args)
{
    const JinjaNode *n = m->node;
    JinjaScope *s = new_scope(r, m->scope);
    int place = 0;
    for (int i = 0; i < args->count; i++) {
        const char *word = args->word[i];
        int k = word ? 0 : place++;
        while (word && k < n->nword && strcmp(word, n->word[k]) != 0)
            k++;
        if (k >= n->nword)
            jinja_fail(r, "macro %s: expected %d arguments, found another%s%s", n->name, n->nword,
                       word ? ", " : "", word ? word : "");
        bind(r, s, n->word[k], args->value[i]);
    }
    for (int i = 0; i < n->nword; i++)
        if (!find_here(s, n->word[i]))
            bind(r, s, n->word[i], n->kid[i] ? eval(r, s, n->kid[i]) : jinja_undefined(n->word[i]));
    return written(r, s, n->body);
}

static JinjaValue call(JinjaRun *r, JinjaScope *s, const JinjaNode *n)
{
    JinjaValue f = eval(r, s, n->kid[0]);
    JinjaArgs args = eval_args(r, s, n);
    r->line = n->line;
    switch (f.kind) {
    case JINJA_IS_MACRO: return call_macro(r, f.u.macro, &args);
    case JINJA_IS_FUNCTION: return jinja_function(r, f.u.s, &args);
    case JINJA_IS_METHOD: return jinja_method(r, f.u.method, &args);
    case JINJA_IS_UNDEFINED: jinja_fail(r, "\"%s\" is undefined, so it cannot be called", f.u.s);
    default: jinja_fail(r, "expected a function to call, found %s", jinja_kind(f));
    }
}

static JinjaValue apply(JinjaRun *r, JinjaScope *s, const JinjaNode *n)
{
    JinjaValue x = eval(r, s, n->kid[0]);
    JinjaArgs args = eval_args(r, s, n);
    r->line = n->line;
    if (n->kind == JINJA_FILTER)
        return jinja_filter(r, n->name, x, &args);
    return jinja_bool(jinja_test(r, n->name, x, &args) != n->inverted);
}

/* ---- expressions ---- */

static JinjaValue eval_node(JinjaRun *r, JinjaScope *s, const JinjaNode *n)
{
    JinjaValue x;
    switch (n->kind) {
    case JINJA_CONST: return n->value;
    case JINJA_VARIABLE: return lookup(s, n->name);
    case JINJA_LIST:
    case JINJA_TUPLE: return build_list(r, s, n);
    case JINJA_DICT: return build_dict(r, s, n);
    case JINJA_ATTRIBUTE: return jinja_attribute(r, eval(r, s, n->kid[0]), n->name);
    case JINJA_SUBSCRIPT:
        x = eval(r, s, n->kid[0]);
        return jinja_subscript(r, x, eval(r, s, n->kid[1]));
    case JINJA_SLICE: return slice(r, s, n);
    case JINJA_CALL: return call(r, s, n);
    case JINJA_FILTER:
    case JINJA_TEST: return apply(r, s, n);
    case JINJA_NOT: return jinja_bool(!jinja_true(eval(r, s, n->kid[0])));
    case JINJA_NEGATE:
    case JINJA_PLUS: return signed_value(r, eval(r, s, n->kid[0]), n->kind == JINJA_NEGATE);
    case JINJA_BINARY:
        x = eval(r, s, n->kid[0]);
        return binary(r, n->name, x, eval(r, s, n->kid[1]));
    case JINJA_COMPARE: return compare(r, s, n);
    case JINJA_AND: x = eval(r, s, n->kid[0]); return jinja_true(x) ? eval(r, s, n->kid[1]) : x;
    case JINJA_OR: x = eval(r, s, n->kid[0]); return jinja_true(x) ? x : eval(r, s, n->kid[1]);
    case JINJA_CHOICE:
        if (jinja_true(eval(r, s, n->kid[1])))
            return eval(r, s, n->kid[0]);
        return n->kid[2] ? eval(r, s, n->kid[2]) : jinja_undefined("a choice without else");
    default: CHECK(!"an expression");
    }
    return jinja_none();
}

static void enter(JinjaRun *r, const JinjaNode *n)
{
    r->line = n->line;
    jinja_step(r, 1);
    if (++r->depth > MOST_DEPTH)
        jinja_fail(r, "expected calls and values at most %d deep", MOST_DEPTH);
}

static JinjaValue eval(JinjaRun *r, JinjaScope *s, const JinjaNode *n)
{
    enter(r, n);
    JinjaValue x = eval_node(r, s, n);
    r->depth--;
    r->line = n->line;
    return x;
}

/* ---- statements ---- */

void jinja_loop_reach(JinjaRun *r, JinjaLoop *l, int at)
{
    while (l->from && l->all->count <= at && l->next < l->from->count) {
        JinjaScope *s = new_scope(r, l->outer);
        const JinjaValue x = l->from->item[l->next++];
        bind_targets(r, s, l->node, x);
        if (jinja_true(eval(r, s, l->node->kid[1])))
            jinja_push(r->a, l->passed, x);
    }
}

static void run_for(JinjaRun *r, JinjaScope *outer, const JinjaNode *n)
{
    JinjaLoop *loop = NEW(r->a, JinjaLoop);
    const JinjaList *all = jinja_items(r, eval(r, outer, n->kid[0]));
    *loop = (JinjaLoop){.all = all, .outer = outer, .node = n};
    if (n->kid[1]) {
        loop->from = all;
        loop->passed = jinja_list(r->a);
        loop->all = loop->passed.u.list;
    }
    bool ended = false; /* some body, neither left nor cut short */
    for (; jinja_loop_reach(r, loop, loop->at), loop->at < loop->all->count; loop->at++) {
        JinjaScope *s = new_scope(r, outer);
        bind(r, s, "loop", (JinjaValue){.kind = JINJA_IS_LOOP, .u.loop = loop});
        bind_targets(r, s, n, loop->all->item[loop->at]);
        const Flow flow = run(r, s, n->body);
        ended |= flow == GOES_ON;
        if (flow == BREAKS)
            break;
    }
    if (!ended)
        run(r, new_scope(r, outer), n->other);
}

static void run_set(JinjaRun *r, JinjaScope *s, const JinjaNode *n)
{
    JinjaValue x =
        n->kind == JINJA_SET ? eval(r, s, n->kid[0]) : written(r, new_scope(r, s), n->body);
    if (!n->name) {
        bind_targets(r, s, n, x);
        return;
    }
    JinjaValue of = lookup(s, n->other->name);
    r->line = n->line;
    if (of.kind != JINJA_IS_NAMESPACE)
        jinja_fail(r, "set %s.%s: expected a namespace, found %s", n->other->name, n->name,
                   jinja_kind(of));
    jinja_put(r->a, of, jinja_string(n->name, strlen(n->name)), x);
}

static void run_generation(JinjaRun *r, JinjaScope *s, const JinjaNode *n)
{
    JinjaText *t = &r->result;
    size_t begin = r->root->len;
    JinjaValue x = written(r, new_scope(r, s), n->body);
    JinjaSpan span = {begin, jinja_length(x)}; /* which end_spans makes a place */
    PUSH(r->a, t->span, t->nspan, t->capspan, span);
    buf_addn(r->out, x.u.s, x.n);
}

static void define(JinjaRun *r, JinjaScope *s, const JinjaNode *n)
{
    JinjaMacro *m = NEW(r->a, JinjaMacro);
    *m = (JinjaMacro){n, s};
    bind(r, s, n->name, (JinjaValue){.kind = JINJA_IS_MACRO, .u.macro = m});
}

static Flow run_one(JinjaRun *r, JinjaScope *s, const JinjaNode *n)
{
    switch (n->kind) {
    case JINJA_OUTPUT: buf_addn(r->out, n->value.u.s, n->value.n); break;
    case JINJA_PRINT: jinja_show(r, r->out, eval(r, s, n->kid[0])); break;
    case JINJA_IF: return run(r, s, jinja_true(eval(r, s, n->kid[0])) ? n->body : n->other);
    case JINJA_FOR: run_for(r, s, n); break;
    case JINJA_SET:
    case JINJA_SET_BLOCK: run_set(r, s, n); break;
    case JINJA_DEFINE: define(r, s, n); break;
    case JINJA_GENERATION: run_generation(r, s, n); break;
    case JINJA_BREAK: return BREAKS;
    case JINJA_CONTINUE: return CONTINUES;
    default: CHECK(!"a statement");
    }
    return GOES_ON;
}

static Flow run(JinjaRun *r, JinjaScope *s, const JinjaNode *n)
{
    for (; n; n = n->next) {
        enter(r, n);
        Flow f = run_one(r, s, n);
        r->depth--;
        if (f != GOES_ON)
            return f;
    }
    return GOES_ON;
}

/* Spans end as many characters behind their begin as was written between their tags. */
static void end_spans(JinjaText *t)
{
    for (int i = 0; i < t->nspan; i++) {
        size_t count = t->span[i].end, at = t->span[i].begin;
        for (; count && at < t->n; count--)
            at += jinja_char(t->text + at, t->n - at);
        t->span[i].end = at;
    }
}

JinjaText jinja_render(const Jinja *t, Arena *a, const struct json_t *variables)
{
    Buf b = {.a = a, .most = MOST_TEXT, .beyond = "the template writes more than 256 MiB"};
    JinjaRun r = {.t = t, .a = a, .ctx = arena_ctx(a), .left = MOST_STEPS, .out = &b, .root = &b};
    JinjaScope *s = new_scope(&r, NULL);
    JinjaValue all = jinja_json(a, variables);
    for (int i = 0; i < all.u.dict->count; i++)
        bind(&r, s, all.u.dict->member[i].key.u.s, all.u.dict->member[i].value);
    buf_addn(&b, "", 0);
    run(&r, new_scope(&r, s), t->body);
    r.result.text = b.text;
    r.result.n = b.len;
    end_spans(&r.result);
    return r.result;
}
