/* What every function of tenon.h asks of its arguments before it does anything. */
#include "api.h"

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

bool args_given(tn_context *ctx, const char *call, const char *names, int n, const void *const *p)
{
    for (int i = 0; i < n; i++) {
        int len;
        const char *name = name_at(names, i, &len);
        if (p[i])
            continue;
        tn_context_fail(ctx, TN_CODE_USAGE, "%s: %.*s: expected a pointer, found NULL", call, len,
                        name);
        return false;
    }
    return true;
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

/* Numbers of tn_options and what they may be, from `low` on and below or up to `high`. */
static const struct {
    const char *name;
    size_t at;
    bool real; /* a double, else an int64_t */
    double low, high;
    bool open; /* high itself is too much */
    const char *why;
} limits[] = {
/* clang-format off */
#define INT(name, low)                   {#name, offsetof(tn_options, name), false, low, 0x1p62, false, ""}
#define REAL(name, low, high, open, why) {#name, offsetof(tn_options, name), true, low, high, open, why}
    INT(accumulate, 1),
    INT(memory, 0),
    INT(persistent, 0),
    INT(arena, 0),
    INT(shard, 0),
    REAL(weight_decay, 0, 1e6, false, ""),
    REAL(beta1, 0, 1, true, ": at 1 the correction 1 - beta1^step is 0, by which is divided"),
    REAL(beta2, 0, 1, true, ": at 1 the correction 1 - beta2^step is 0, by which is divided"),
    REAL(eps, 1.2e-38, 1e6, false,
         ": where all gradients were 0 it alone keeps 0 / 0, which is NaN, from the weights"),
    REAL(clip, 0, 1e38, false, ""),
    REAL(momentum, 0, 1, true, ""),
    REAL(dropout, 0, 1, true, ": what is kept is divided by 1 - dropout"),
    REAL(z_loss, 0, 1e6, false, ""),
    REAL(label_smoothing, 0, 1, false, ""),
};
/* clang-format on */

bool args_options(tn_context *ctx, const char *call, const tn_options *o)
{
    if (!args_list(ctx, call, "options.freeze", o->nfreeze, o->freeze) ||
        !args_list(ctx, call, "options.no_decay", o->nno_decay, o->no_decay))
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
    for (int i = 0; i < LEN(limits); i++) {
        const char *field = (const char *)o + limits[i].at;
        double x = limits[i].real ? *(const double *)(const void *)field
                                  : (double)*(const int64_t *)(const void *)field;
        if (x >= limits[i].low && (limits[i].open ? x < limits[i].high : x <= limits[i].high))
            continue;
        int digits = limits[i].real ? 10 : 19; /* integers are shown as such */
        tn_context_fail(ctx, TN_CODE_USAGE, "%s: options.%s: expected %.*g %s %.*g, found %.*g%s",
                        call, limits[i].name, digits, limits[i].low,
                        limits[i].open ? "to below" : "to", digits, limits[i].high, digits, x,
                        limits[i].why);
        return false;
    }
    return true;
}
