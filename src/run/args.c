/* The checks that every function of tenon.h makes on its arguments before it does anything. */
#include "run.h"

#include <string.h>

/* Name number i of "a, b, c". */
static const char *name_at(const char *names, int i, int *len)
{
    for (; i > 0; i--)
        names = strchr(names, ',') + 1;
    names += strspn(names, " ");
    *len = (int)strcspn(names, ",");
    return names;
}

/* The first name whose pointer is NULL, or NULL. */
static const char *name_of_null(const char *names, int n, const void *const *p, int *len)
{
    for (int i = 0; i < n; i++)
        if (!p[i])
            return name_at(names, i, len);
    return NULL;
}

#define NO_POINTER "%s: %.*s: expected a pointer, found NULL"

bool args_given(tn_context *ctx, const char *call, const char *names, int n, const void *const *p)
{
    int len;
    const char *name = name_of_null(names, n, p, &len);
    if (name)
        tn_context_fail(ctx, TN_CODE_USAGE, NO_POINTER, call, len, name);
    return !name;
}

bool args_given_to(tn_program *x, const char *call, const char *names, int n, const void *const *p)
{
    int len;
    const char *name = name_of_null(names, n, p, &len);
    if (name)
        program_fail(x, TN_CODE_USAGE, NO_POINTER, call, len, name);
    return !name;
}

bool args_within(tn_context *ctx, const char *call, const char *names, int n, const int64_t *x,
                 int64_t low, int64_t high)
{
    for (int i = 0; i < n; i++) {
        int len;
        const char *name = name_at(names, i, &len);
        if (x[i] >= low && x[i] <= high)
            continue;
        tn_context_fail(ctx, TN_CODE_USAGE, "%s: %.*s: expected %lld to %lld, found %lld", call,
                        len, name, (long long)low, (long long)high, (long long)x[i]);
        return false;
    }
    return true;
}

bool args_kin(const char *call, const void *x, const void *y)
{
    if (args_owner(x) == args_owner(y))
        return true;
    tn_context_fail(args_owner(x), TN_CODE_USAGE, "%s: expected objects of one context, found two",
                    call);
    return false;
}

bool args_list(tn_context *ctx, const char *call, const char *name, int n, const char *const *list)
{
    if (n < 0 || (n && !list)) {
        tn_context_fail(ctx, TN_CODE_USAGE, "%s: %s: expected a list, found %d of %s", call, name,
                        n, list ? "them" : "NULL");
        return false;
    }
    for (int i = 0; i < n; i++)
        if (!list[i]) {
            tn_context_fail(ctx, TN_CODE_USAGE, "%s: %s: expected texts, found NULL at %d", call,
                            name, i);
            return false;
        }
    return true;
}

bool args_plans(const char *call, tn_plan *const *plans, const char *const *side, int count)
{
    tn_context *ctx = plans ? args_owner(plans[0]) : NULL;
    if (!plans || !args_given(ctx, call, "plans[0], plans[1]", count, (const void *const *)plans))
        return false;
    return count == 1 ||
           (args_list(ctx, call, "side", count, side) && args_kin(call, plans[0], plans[1]));
}

bool args_traced(const char *call, const tn_program *x)
{
    if (x->x->trace)
        return true;
    tn_context_fail(args_owner(x), TN_CODE_USAGE, "%s: nothing is recorded before tn_program_trace",
                    call);
    return false;
}

/* ---- options ---- */

/* The members of tn_options by kind. */
/* clang-format off */
typedef enum {
    NO_NUMBER, INTEGER, REAL,
    OF_INT = INTEGER, OF_AUTO = INTEGER, OF_BYTES = INTEGER, OF_MEMORY = INTEGER, OF_REAL = REAL,
    OF_FLAG = NO_NUMBER, OF_SWITCH = NO_NUMBER, OF_SEED = NO_NUMBER, OF_WORD = NO_NUMBER,
    OF_DTYPE = NO_NUMBER, OF_TEXT = NO_NUMBER, OF_IN = NO_NUMBER, OF_LIST = NO_NUMBER, OF_RULES = NO_NUMBER,
} Number;
/* clang-format on */

/* A number may be from `low` on and below or up to `high`. */
typedef struct Limit {
    const char *name;
    size_t at;
    Number number;
    double low, high, fallback; /* fallback: the default, which may lie outside: not given */
    bool open;                  /* high itself is too much */
    const char *why;            /* of high where that is open, else of low; or NULL */
} Limit;

/* clang-format off */
#define TO(low, high)    low, high
#define BELOW(low, high) low, high, .open = true
#define ANY              -0x1p62, 0x1p62
#define NUMBER_INT(x)    .fallback = x
#define NUMBER_AUTO(x)   .fallback = x
#define NUMBER_BYTES(x)  .fallback = x
#define NUMBER_MEMORY(x) .fallback = x
#define NUMBER_REAL(x)   .fallback = x
#define NUMBER_FLAG(x)   .fallback = 0
#define NUMBER_SEED(x)   .fallback = 0
#define NUMBER_SWITCH(x) .fallback = 0
#define NUMBER_WORD(x)   .fallback = 0
#define NUMBER_DTYPE(x)  .fallback = 0
#define NUMBER_TEXT(x)   .fallback = 0
#define NUMBER_IN(x)     .fallback = 0
#define NUMBER_LIST(x)   .fallback = 0
#define NUMBER_RULES(x)  .fallback = 0
static const Limit limits[] = {
#define CALL_OPTION(name, field, kind, resume, value, range, commands, words, ...) \
    {#field, offsetof(tn_options, field), OF_##kind, range, NUMBER_##kind(value), .why = words},
#define PASS_OPTION CALL_OPTION
#include "../base/options.def"
};
/* clang-format on */

static const char *reason(const Limit *l, double x)
{
    bool beyond = l->open ? x >= l->high : x < l->low;
    bool words = l->why && strchr(l->why, '|'); /* of command lines */
    return beyond && !words ? l->why : NULL;
}

static bool number_within(tn_context *ctx, const char *call, const tn_options *o, const Limit *l)
{
    const void *field = (const char *)o + l->at;
    bool real = l->number == REAL;
    double x = real ? *(const double *)field : (double)*(const int64_t *)field;
    if (x == l->fallback || (x >= l->low && (l->open ? x < l->high : x <= l->high)))
        return true;
    int digits = real ? 10 : 19; /* integers are shown as such */
    const char *why = reason(l, x);
    tn_context_fail(ctx, TN_CODE_USAGE, "%s: options.%s: expected %.*g %s %.*g, found %.*g%s%s",
                    call, l->name, digits, l->low, l->open ? "to below" : "to", digits, l->high,
                    digits, x, why ? ": " : "", why ? why : "");
    return false;
}

bool args_options(tn_context *ctx, const char *call, const tn_options *o)
{
    if (!args_list(ctx, call, "options.freeze", o->nfreeze, o->freeze) ||
        !args_list(ctx, call, "options.no_decay", o->nno_decay, o->no_decay) ||
        !args_list(ctx, call, "options.shardings", o->nshardings, o->shardings) ||
        !args_list(ctx, call, "options.pins", o->npins, o->pins) ||
        !args_list(ctx, call, "options.what_if", o->nwhat_if, o->what_if) ||
        !args_list(ctx, call, "options.chunk", o->nchunk, o->chunk))
        return false;
    if (o->nrules < 0 || (o->nrules && !o->rules)) {
        tn_context_fail(ctx, TN_CODE_USAGE, "%s: options.rules: expected a list, found %d of %s",
                        call, o->nrules, o->rules ? "them" : "NULL");
        return false;
    }
    if (!o->optimizer) {
        tn_context_fail(ctx, TN_CODE_USAGE,
                        "%s: options.optimizer: expected adamw, sgd or none, found NULL", call);
        return false;
    }
    for (int i = 0; i < LEN(limits); i++)
        if (limits[i].number != NO_NUMBER && !number_within(ctx, call, o, &limits[i]))
            return false;
    return true;
}
