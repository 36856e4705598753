/* Names of rank_pattern and alpha_pattern: regular expressions of Python, of which PEFT asks
 * re.match(rf"(.*\.)?({name})$", module). PCRE2 runs the same text. Constructs that mean the same
 * in both are taken, all others refused by name: escapes of other letters, back references, looks
 * behind, sets within sets, flags, and counts that one of both reads as characters. */
#include "model.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <ctype.h>
#include <pcre2.h>
#include <string.h>

enum { MOST_STEPS = 1000000, MOST_BYTES = 4096 };

typedef struct Check {
    Ctx *ctx;
    const char *where, *text, *s; /* s: what is left */
} Check;

struct LoraName {
    Ctx *ctx;
    pcre2_code *code;
    pcre2_match_data *data;
    pcre2_match_context *context;
};

_Noreturn static void refuse(const Check *c, const char *what)
{
    fail(c->ctx, TN_FAIL, "%s: pattern \"%s\": %s at byte %d is not supported", c->where, c->text,
         what, (int)(c->s - c->text));
}

/* ---- what both read alike ---- */

/* A letter after a backslash, or a sign that then means itself. */
static void take_escape(Check *c, const char *letters)
{
    unsigned char e = (unsigned char)c->s[1];
    if (!e || e > 126 || isspace(e) || (isalnum(e) && !strchr(letters, e)))
        refuse(c, "this escape");
    c->s += 2;
}

/* [...], in which ] is a member where it is the first. */
static void take_set(Check *c)
{
    c->s += c->s[1] == '^' ? 2 : 1;
    for (bool first = true; first || *c->s != ']'; first = false) {
        if (!*c->s)
            refuse(c, "a set without an end");
        if (*c->s == '[' || (*c->s == c->s[1] && strchr("&|~", *c->s)))
            refuse(c, "a set within a set");
        if (*c->s == '\\')
            take_escape(c, "dwsDWS");
        else
            c->s++;
    }
    c->s++;
}

/* ( and what says which group it is. */
static void take_group(Check *c)
{
    static const char *const kinds[] = {"(?:", "(?=", "(?!"};
    for (int i = 0; i < LEN(kinds); i++)
        if (!strncmp(c->s, kinds[i], 3)) {
            c->s += 3;
            return;
        }
    if (c->s[1] == '?' || c->s[1] == '*')
        refuse(c, "this group");
    c->s++;
}

/* {n}, {n,} or {n,m}. */
static void take_count(Check *c)
{
    const char *s = c->s + 1;
    size_t low = strspn(s, "0123456789"), high = 0;
    s += low;
    if (low && *s == ',')
        high = strspn(++s, "0123456789");
    if (!low || low > 4 || high > 4 || s[high] != '}')
        refuse(c, "this count");
    c->s = s + high + 1;
}

/* +, * or ?, then perhaps ? or +: what follows repeats nothing again. */
static void take_repeat(Check *c)
{
    if (*c->s == '{')
        take_count(c);
    else
        c->s++;
    if (*c->s == '?' || *c->s == '+')
        c->s++;
    if (*c->s && strchr("*+?{", *c->s))
        refuse(c, "a repetition of a repetition");
}

static void check_alike(Check *c)
{
    while (*c->s) {
        if (*c->s == '\\')
            take_escape(c, "dwsDWSbBA");
        else if (*c->s == '[')
            take_set(c);
        else if (*c->s == '(')
            take_group(c);
        else if (strchr("*+?{", *c->s))
            take_repeat(c);
        else
            c->s++;
    }
}

/* ---- compiling and matching ---- */

static void drop(void *arg)
{
    LoraName *n = arg;
    pcre2_code_free(n->code);
    pcre2_match_data_free(n->data);
    pcre2_match_context_free(n->context);
}

const LoraName *lora_pattern(Arena *a, const char *where, const char *name)
{
    Check c = {.ctx = arena_ctx(a), .where = where, .text = name, .s = name};
    int code;
    PCRE2_SIZE at;
    char why[120] = "";
    if (strlen(name) > MOST_BYTES)
        fail(c.ctx, TN_FAIL, "%s: pattern of %zu bytes: expected %d at most", where, strlen(name),
             MOST_BYTES);
    check_alike(&c);
    const char *text = arena_printf(a, "(.*\\.)?(%s)$", name);
    LoraName *n = NEW(a, LoraName);
    *n = (LoraName){.ctx = c.ctx};
    arena_defer(a, drop, n);
    n->code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &code, &at, NULL);
    if (!n->code) {
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        fail(c.ctx, TN_FAIL, "%s: pattern \"%s\": expected a regular expression: %s", where, name,
             why);
    }
    n->data = pcre2_match_data_create_from_pattern(n->code, NULL);
    n->context = pcre2_match_context_create(NULL);
    if (!n->data || !n->context)
        fail(c.ctx, TN_FAIL, "out of memory");
    pcre2_set_match_limit(n->context, MOST_STEPS);
    return n;
}

bool lora_pattern_means(const LoraPattern *p, const char *module)
{
    const LoraName *n = p->compiled;
    int found = pcre2_match(n->code, (PCRE2_SPTR)module, strlen(module), 0, 0, n->data, n->context);
    if (found < 0 && found != PCRE2_ERROR_NOMATCH)
        fail(n->ctx, TN_FAIL, "pattern \"%s\": matching \"%s\" takes too many steps", p->module,
             module);
    return found >= 0;
}
