/* Tests, `x is NAME`, by their names in a table. An undefined value is iterable and a sequence, as
 * Jinja's is. */
#include "jinja.h"

#include <string.h>

typedef enum {
    TEST_DEFINED,
    TEST_UNDEFINED,
    TEST_NONE,
    TEST_BOOLEAN,
    TEST_TRUE,
    TEST_FALSE,
    TEST_STRING,
    TEST_NUMBER,
    TEST_INTEGER,
    TEST_FLOAT,
    TEST_MAPPING,
    TEST_ITERABLE,
    TEST_SEQUENCE,
    TEST_CALLABLE,
    TEST_ODD,
    TEST_EVEN,
    TEST_DIVISIBLE,
    TEST_EQUAL,
    TEST_OTHER,
    TEST_LESS,
    TEST_GREATER,
    TEST_MOST,
    TEST_LEAST,
    TEST_IN,
} JinjaTestKind;

static const struct {
    const char *name;
    JinjaTestKind kind;
} tests[] = {
    {"defined", TEST_DEFINED},
    {"undefined", TEST_UNDEFINED},
    {"none", TEST_NONE},
    {"boolean", TEST_BOOLEAN},
    {"true", TEST_TRUE},
    {"false", TEST_FALSE},
    {"string", TEST_STRING},
    {"number", TEST_NUMBER},
    {"integer", TEST_INTEGER},
    {"float", TEST_FLOAT},
    {"mapping", TEST_MAPPING},
    {"iterable", TEST_ITERABLE},
    {"sequence", TEST_SEQUENCE},
    {"callable", TEST_CALLABLE},
    {"odd", TEST_ODD},
    {"even", TEST_EVEN},
    {"divisibleby", TEST_DIVISIBLE},
    {"eq", TEST_EQUAL},
    {"equalto", TEST_EQUAL},
    {"ne", TEST_OTHER},
    {"lt", TEST_LESS},
    {"lessthan", TEST_LESS},
    {"gt", TEST_GREATER},
    {"greaterthan", TEST_GREATER},
    {"le", TEST_MOST},
    {"ge", TEST_LEAST},
    {"in", TEST_IN},
    {"==", TEST_EQUAL},
    {"!=", TEST_OTHER},
    {"<", TEST_LESS},
    {">", TEST_GREATER},
    {"<=", TEST_MOST},
    {">=", TEST_LEAST},
};

static int find(const char *name)
{
    for (int i = 0; i < LEN(tests); i++)
        if (!strcmp(tests[i].name, name))
            return i;
    return -1;
}

bool jinja_test_known(const char *name)
{
    return find(name) >= 0;
}

/* Whether a value of kind k passes a test of kinds. */
static bool is_kind(JinjaTestKind test, JinjaKind k)
{
    bool list = k == JINJA_IS_LIST || k == JINJA_IS_TUPLE, number = k == JINJA_IS_INT;
    bool many = list || k == JINJA_IS_STRING || k == JINJA_IS_DICT || k == JINJA_IS_UNDEFINED;
    switch (test) {
    case TEST_DEFINED: return k != JINJA_IS_UNDEFINED;
    case TEST_UNDEFINED: return k == JINJA_IS_UNDEFINED;
    case TEST_NONE: return k == JINJA_IS_NONE;
    case TEST_BOOLEAN: return k == JINJA_IS_BOOL;
    case TEST_STRING: return k == JINJA_IS_STRING;
    case TEST_NUMBER: return number || k == JINJA_IS_REAL || k == JINJA_IS_BOOL;
    case TEST_INTEGER: return number;
    case TEST_FLOAT: return k == JINJA_IS_REAL;
    case TEST_MAPPING: return k == JINJA_IS_DICT;
    case TEST_ITERABLE: return many || k == JINJA_IS_LOOP;
    case TEST_SEQUENCE: return many;
    default: return k >= JINJA_IS_MACRO || k == JINJA_IS_UNDEFINED; /* callable */
    }
}

static int64_t integer(const JinjaRun *r, const char *name, JinjaValue x)
{
    if (x.kind != JINJA_IS_INT)
        jinja_fail(r, "is %s: expected an integer, found %s", name, jinja_kind(x));
    return x.u.integer;
}

static bool compared(const JinjaRun *r, JinjaTestKind kind, JinjaValue x, JinjaValue y)
{
    if (kind == TEST_EQUAL || kind == TEST_OTHER)
        return jinja_equal(x, y) == (kind == TEST_EQUAL);
    if (kind == TEST_IN)
        return jinja_in(r, x, y);
    int order = jinja_order(r, x, y);
    return kind == TEST_LESS      ? order < 0
           : kind == TEST_GREATER ? order > 0
           : kind == TEST_MOST    ? order <= 0
                                  : order >= 0;
}

bool jinja_test(JinjaRun *r, const char *name, JinjaValue x, const JinjaArgs *args)
{
    JinjaTestKind kind = tests[find(name)].kind;
    const JinjaValue *y = jinja_arg(args, 0, NULL);
    if (kind >= TEST_DIVISIBLE && !y)
        jinja_fail(r, "is %s: expected a value to compare with", name);
    switch (kind) {
    case TEST_TRUE: return x.kind == JINJA_IS_BOOL && x.u.yes;
    case TEST_FALSE: return x.kind == JINJA_IS_BOOL && !x.u.yes;
    case TEST_ODD: return integer(r, name, x) % 2 != 0;
    case TEST_EVEN: return integer(r, name, x) % 2 == 0;
    case TEST_DIVISIBLE:
        if (!integer(r, name, *y))
            jinja_fail(r, "is %s: division by zero", name);
        return y->u.integer == -1 || integer(r, name, x) % y->u.integer == 0;
    default: break;
    }
    return kind >= TEST_EQUAL ? compared(r, kind, x, *y) : is_kind(kind, x.kind);
}
