/* Refuses options that no pass of a list reads. On ranks spmd counts as a reader of --dtype, which
 * it reads where it gathers parameters. */
#include "cli.h"

#include <stdio.h>
#include <string.h>

/* Whether a name is in a list. */
static bool names_pass(const char *list, const char *pass)
{
    size_t n = strlen(pass);
    for (const char *s = list; s; s = strchr(s, ',')) {
        s += *s == ',';
        if (!strncmp(s, pass, n) && (!s[n] || s[n] == ','))
            return true;
    }
    return false;
}

/* Options, and the passes any of which reads them. */
typedef struct PassReads {
    const char *passes, *options, *why;
    const char *on_ranks; /* more passes, where there is a mesh */
} PassReads;

static const PassReads reads[] = {
    {"policies", "save recompute-rule", "changes nothing without the pass remat", NULL},
    {"offload", "offload", "changes nothing without the pass offload", NULL},
    {"cse", "dedupe-recompute", "changes nothing without the pass cse", NULL},
    {"grad", "freeze", "changes nothing without the pass grad", NULL},
    {"precision", "dtype", "changes nothing without the pass precision", "spmd"},
    {"precision", "param-dtype", "changes nothing without the pass precision", NULL},
    {"accumulate", "accumulate", "changes nothing without the pass accumulate", NULL},
    {"optimizer", "optimizer weight-decay no-decay beta1 beta2 eps momentum rounding clip",
     "changes nothing without the pass optimizer", NULL},
    {"align", "align", "changes nothing without the pass align", NULL}};

/* Whether the list has a pass, on the graph as it stands, unless that is NULL. */
static bool has_pass(const PassList *l, const char *pass)
{
    int has = 0;
    if (!l->graph)
        return tn_passes_have(l->names, pass);
    return !tn_graph_passes_have(l->graph, l->names, pass, &has) && has;
}

/* Whether it has one of several. */
static bool has_any(const PassList *l, const char *passes)
{
    char name[40];
    for (; *passes; passes += strspn(passes, " ")) {
        size_t n = strcspn(passes, " ");
        snprintf(name, sizeof name, "%.*s", (int)n, passes);
        if (has_pass(l, name))
            return true;
        passes += n;
    }
    return false;
}

/* Whether all names of a list are passes, groups or pipelines, all of which run dce: an unknown one
 * is refused where the list is run. */
static bool all_known(const char *list)
{
    char name[40];
    bool known = true;
    for (const char *s = list; *s && known; s += strspn(s, ",")) {
        size_t n = strcspn(s, ",");
        snprintf(name, sizeof name, "%.*s", (int)n, s);
        known = tn_passes_have(name, name) || tn_passes_have(name, "dce");
        s += n;
    }
    return known;
}

/* Whether the options have what the graph has without any pass. */
static bool asks_nothing(const char *option, const tn_options *o)
{
    return (!strcmp(option, "optimizer") && !strcmp(o->optimizer, "none")) ||
           (!strcmp(option, "accumulate") && o->accumulate == 1);
}

/* The name of an option that was given and that no pass of the list reads, and why; NULL: none. */
static const char *option_unread(const Option *table, const PassList *l, const Common *x,
                                 const char **why)
{
    if (!all_known(l->names))
        return NULL;
    const bool none = !strcmp(x->o.recompute, "none") || !strcmp(x->o.recompute, "auto");
    if (!none && !has_pass(l, "policies") && option_given(table, "recompute")) {
        *why = reads[0].why;
        return "recompute";
    }
    for (int i = 0; i < LEN(reads); i++) {
        const char *passes = x->o.mesh ? reads[i].on_ranks : NULL;
        const bool read = has_any(l, reads[i].passes) || (passes && has_any(l, passes));
        const char *name = read ? NULL : options_any(table, reads[i].options);
        *why = reads[i].why;
        if (name && !asks_nothing(name, &x->o))
            return name;
    }
    return NULL;
}

int check_passes(const Command *c, const Option *table, const char *passes, const Common *x)
{
    if (!passes)
        return -1;
    if (x->fuse && !strcmp(x->fuse, "off") && names_pass(passes, "fuse"))
        return report(TN_CODE_USAGE, "%s: --fuse off and --passes with fuse exclude each other",
                      c->name);
    const char *why, *name = option_unread(table, &(PassList){passes, NULL}, x, &why);
    return name ? report(TN_CODE_USAGE, "%s: --%s %s", c->name, name, why) : -1;
}

int check_passes_of(tn_context *ctx, const char *prefix, const Option *table, const PassList *l,
                    const Common *x)
{
    const char *why, *name = l->names && *l->names ? option_unread(table, l, x, &why) : NULL;
    return name ? tn_context_fail(ctx, TN_CODE_USAGE,
                                  "%s--%s %s: the graph is a training step already", prefix, name,
                                  why)
                : 0;
}

int check_model(tn_context *ctx, const char *prefix, const Option *table, const tn_model *m,
                const Common *x)
{
    int64_t rows, seq;
    const char *labels;
    const int made = tn_model_graph_batch(m, &rows, &seq, &labels);
    const PassList list = {made == 3 ? "compiled" : "optimizer,compiled", NULL};
    if (made > 1)
        return check_passes_of(ctx, prefix, table, &list, x);
    if (!made && strcmp(x->o.param_dtype, "bf16") != 0 && option_given(table, "rounding"))
        return tn_context_fail(ctx, TN_CODE_USAGE, "%s--rounding is for --param-dtype bf16",
                               prefix);
    return 0;
}
