/* jinja: the subset of Jinja in which chat templates are written, as transformers runs it:
 * trim_blocks and lstrip_blocks are on, and a tag `generation` marks what an assistant says.
 * docs/formats.md has the grammar. Sections name the file that implements them. */
#ifndef TENON_JINJA_H
#define TENON_JINJA_H

#include "../base/base.h"

struct json_t; /* jansson's */

/* ---- what others use ---- */

typedef struct Jinja Jinja; /* a template; does not change once it is parsed */

/* Bytes [begin, end) of a rendered text that stood between generation tags. */
typedef struct JinjaSpan {
    size_t begin, end;
} JinjaSpan;

typedef struct JinjaText {
    char *text;
    size_t n;
    JinjaSpan *span;
    int nspan, capspan;
} JinjaText;

/* A template's text. Fails with where, line, and what is not supported or not expected. */
Jinja *jinja_parse(Arena *a, const char *text, size_t n, const char *where);
bool jinja_marks(const Jinja *t); /* whether it has generation tags */
/* Whether a name occurs in it, as that of a variable or function. */
bool jinja_names(const Jinja *t, const char *name);
/* Renders it with the members of a JSON object as variables. Fails with where and line. */
JinjaText jinja_render(const Jinja *t, Arena *a, const struct json_t *variables);

/* ---- lex.c ---- */

typedef enum {
    JINJA_TEXT,
    JINJA_OPEN,        /* {{ */
    JINJA_CLOSE,       /* }} */
    JINJA_OPEN_BLOCK,  /* {% */
    JINJA_CLOSE_BLOCK, /* %} */
    JINJA_NAME,
    JINJA_STRING, /* without quotes, escapes as they are meant */
    JINJA_INT,
    JINJA_REAL,
    JINJA_SIGN,
    JINJA_END,
} JinjaTokenKind;

typedef struct JinjaToken {
    JinjaTokenKind kind;
    int line;
    const char *s; /* n bytes, then NUL */
    size_t n;
} JinjaToken;

/* The tokens of a template, the last of which is JINJA_END. */
JinjaToken *jinja_lex(Arena *a, const char *text, size_t n, const char *where);

/* ---- value.c ---- */

typedef enum {
    JINJA_IS_UNDEFINED,
    JINJA_IS_NONE,
    JINJA_IS_BOOL,
    JINJA_IS_INT,
    JINJA_IS_REAL,
    JINJA_IS_STRING,
    JINJA_IS_LIST,
    JINJA_IS_TUPLE,
    JINJA_IS_DICT,
    JINJA_IS_NAMESPACE,
    JINJA_IS_LOOP,
    JINJA_IS_MACRO,
    JINJA_IS_FUNCTION,
    JINJA_IS_METHOD,
} JinjaKind;

typedef struct JinjaValue {
    JinjaKind kind;
    bool markup; /* STRING: of the filter safe, which changes what + does */
    size_t n;    /* STRING: bytes of s */
    union {
        bool yes;
        int64_t integer;
        double real;
        const char *s; /* UNDEFINED: its name, for messages; FUNCTION: its name */
        struct JinjaList *list;
        struct JinjaDict *dict; /* NAMESPACE too */
        struct JinjaLoop *loop;
        struct JinjaMacro *macro;
        struct JinjaMethod *method;
    } u;
} JinjaValue;

typedef struct JinjaList {
    JinjaValue *item;
    int count, cap;
} JinjaList;

typedef struct JinjaMember {
    JinjaValue key, value;
} JinjaMember;

typedef struct JinjaDict { /* in the order in which keys came */
    JinjaMember *member;
    int count, cap;
} JinjaDict;

typedef struct JinjaLoop {
    const JinjaList *all; /* of several, with a condition: those that it lets through so far */
    int at;
    const JinjaList *from; /* with a condition: all items; else NULL */
    int next;              /* of them, to be tested */
    JinjaValue passed;     /* a list */
    struct JinjaScope *outer;
    const struct JinjaNode *node;
} JinjaLoop;

typedef struct JinjaMethod {
    JinjaValue of;
    const char *name;
} JinjaMethod;

/* One rendering. */
typedef struct JinjaRun {
    const Jinja *t;
    Arena *a;
    Ctx *ctx;
    int line; /* of the node that is evaluated */
    int depth;
    int64_t left; /* steps that it may still take */
    Buf *out;     /* where text goes now, */
    Buf *root;    /* and that of the whole */
    JinjaText result;
} JinjaRun;

_Noreturn void jinja_fail(const JinjaRun *r, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void jinja_step(JinjaRun *r, int64_t count); /* fails where a rendering takes too many */

JinjaValue jinja_none(void);
JinjaValue jinja_bool(bool yes);
JinjaValue jinja_int(int64_t x);
JinjaValue jinja_real(double x);
JinjaValue jinja_string(const char *s, size_t n); /* borrowed */
JinjaValue jinja_undefined(const char *name);
JinjaValue jinja_list(Arena *a);
JinjaValue jinja_dict(Arena *a);
JinjaValue jinja_json(Arena *a, const struct json_t *v);

void jinja_push(Arena *a, JinjaValue list, JinjaValue x);
void jinja_put(Arena *a, JinjaValue dict, JinjaValue key, JinjaValue x);
const JinjaValue *jinja_find(JinjaValue dict, JinjaValue key); /* NULL where absent */

bool jinja_true(JinjaValue x);
bool jinja_equal(JinjaValue x, JinjaValue y);
/* Less than 0, 0 or more, as x is before y; fails where they have no order. */
int jinja_order(const JinjaRun *r, JinjaValue x, JinjaValue y);
bool jinja_in(const JinjaRun *r, JinjaValue x, JinjaValue y);
const char *jinja_kind(JinjaValue x); /* for messages, as Python names it */
bool jinja_is_string(JinjaValue x, const char *s);
/* The items that a loop over it meets; fails where it has none. */
/* Tests items of a loop with a condition until `at` is one that it lets through, or none is left.
 */
void jinja_loop_reach(JinjaRun *r, JinjaLoop *l, int at);
const JinjaList *jinja_items(JinjaRun *r, JinjaValue x);

/* ---- show.c: values as text ---- */

void jinja_show(JinjaRun *r, Buf *b, JinjaValue x); /* as str() of Python */
JinjaValue jinja_str(JinjaRun *r, JinjaValue x);
void jinja_real_text(Buf *b, double x); /* as repr() */

typedef struct JinjaDump {
    int indent; /* -1: on one line */
    const char *comma, *colon;
    bool ascii, sorted;
} JinjaDump;

void jinja_dump(JinjaRun *r, Buf *b, JinjaValue x, const JinjaDump *how); /* as json.dumps */

/* ---- text.c: strings as Python has them ---- */

bool jinja_space(const char *s, size_t n, size_t *len); /* whether white space begins there */
size_t jinja_char(const char *s, size_t n);             /* bytes of the character there */
size_t jinja_length(JinjaValue s);                      /* in characters */
/* Characters [from, to) by a step, as s[from:to:step]. */
JinjaValue jinja_cut(Arena *a, JinjaValue s, int64_t from, int64_t to, int64_t step);
typedef enum { JINJA_LEFT = 1, JINJA_RIGHT = 2, JINJA_BOTH = 3 } JinjaSide;
/* chars NULL: white space. */
JinjaValue jinja_strip(JinjaValue s, const JinjaValue *chars, JinjaSide side);
/* TITLE: as str.title has it; WORDS: as the filter title. */
typedef enum { JINJA_UPPER, JINJA_LOWER, JINJA_CAPITAL, JINJA_TITLE, JINJA_WORDS } JinjaCase;
JinjaValue jinja_case(Arena *a, JinjaValue s, JinjaCase how);
JinjaValue jinja_replace(Arena *a, JinjaValue s, JinjaValue from, JinjaValue to, int64_t most);
/* by NULL: at white space; most -1: everywhere. */
JinjaValue jinja_split(Arena *a, JinjaValue s, const JinjaValue *by, int64_t most, bool right);
/* Where it first occurs, or last, in bytes; -1: nowhere. */
int64_t jinja_search(JinjaValue s, JinjaValue part, bool last);
JinjaValue jinja_escape(Arena *a, JinjaValue s); /* for HTML, as Markup does */

/* ---- parse.c ---- */

typedef struct JinjaNode JinjaNode;

typedef enum {
    /* expressions */
    JINJA_CONST,
    JINJA_VARIABLE,
    JINJA_LIST,
    JINJA_TUPLE,
    JINJA_DICT, /* kid: key, value, key, value, ... */
    JINJA_ATTRIBUTE,
    JINJA_SUBSCRIPT,
    JINJA_SLICE, /* kid: of, from, to, step; NULL: not said */
    JINJA_CALL,  /* kid[0] is what is called; then arguments */
    JINJA_FILTER,
    JINJA_TEST,
    JINJA_NOT,
    JINJA_NEGATE,
    JINJA_PLUS,
    JINJA_BINARY,
    JINJA_COMPARE, /* kid: operands; sign: operators between them */
    JINJA_AND,
    JINJA_OR,
    JINJA_CHOICE, /* kid: then, condition, else (or NULL) */
    /* statements */
    JINJA_OUTPUT,
    JINJA_PRINT,
    JINJA_IF,  /* kid: condition; body, other */
    JINJA_FOR, /* kid: items, condition (or NULL); target, body, other */
    JINJA_SET, /* kid: value */
    JINJA_SET_BLOCK,
    JINJA_DEFINE, /* a macro: kid are defaults (or NULL) of target's names */
    JINJA_GENERATION,
    JINJA_BREAK,
    JINJA_CONTINUE,
} JinjaNodeKind;

struct JinjaNode {
    JinjaNodeKind kind;
    int line;
    const char *name; /* of a variable, attribute, filter, test, macro, operator */
    JinjaValue value; /* CONST, OUTPUT */
    JinjaNode **kid;
    int nkid, capkid;
    const char **word; /* of arguments by name, NULL by place; names of a target; operators */
    int nword, capword;
    JinjaNode *body, *other; /* lists of statements */
    JinjaNode *next;
    bool inverted; /* TEST: `is not` */
};

struct Jinja {
    const char *where;
    JinjaNode *body;
    bool marks;
    Map names; /* of variables; not NULL: it occurs */
};

/* ---- filter.c, test.c, call.c ---- */

typedef struct JinjaArgs {
    JinjaValue *value;
    const char **word; /* NULL: by place */
    int count;
} JinjaArgs;

/* Argument `at` by place, or that of the name; NULL where neither is there. */
const JinjaValue *jinja_arg(const JinjaArgs *args, int at, const char *word);
bool jinja_filter_known(const char *name);
/* Fails where an argument is beyond these words, of one place each. */
void jinja_check_args(JinjaRun *r, const char *name, const char *words, const JinjaArgs *args);
JinjaValue jinja_filter(JinjaRun *r, const char *name, JinjaValue x, const JinjaArgs *args);
bool jinja_test_known(const char *name);
bool jinja_test(JinjaRun *r, const char *name, JinjaValue x, const JinjaArgs *args);
/* x.name, x[name]; what is not there is undefined. */
JinjaValue jinja_attribute(JinjaRun *r, JinjaValue x, const char *name);
JinjaValue jinja_subscript(JinjaRun *r, JinjaValue x, JinjaValue key);
bool jinja_function_known(const char *name);
JinjaValue jinja_function(JinjaRun *r, const char *name, const JinjaArgs *args);
JinjaValue jinja_method(JinjaRun *r, const JinjaMethod *m, const JinjaArgs *args);

#endif
