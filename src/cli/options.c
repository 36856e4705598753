/* Options and their errors, help, messages: what all commands share. */
#include "cli.h"

#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* Text from patterns and files may hold what a terminal obeys. */
int report(int code, const char *format, ...)
{
    char text[1 << 14];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (char *s = text; *s; s++)
        *s = (unsigned char)*s < ' ' && *s != '\n' && *s != '\t' ? '?' : *s;
    fprintf(stderr, "tenon: %s\n", text);
    return code;
}

int report_last(int code, const tn_context *ctx)
{
    return report(code, "%s", tn_error(ctx));
}

bool took_long(time_t began)
{
    enum { QUIET = 30 }; /* seconds */
    return time(NULL) - began >= QUIET;
}

double plain_nan(double x)
{
    return isnan(x) ? fabs(x) : x;
}

tn_context *context_new(void)
{
    tn_context *ctx = tn_context_new();
    if (!ctx)
        exit(report(TN_CODE_FAIL, "out of memory"));
    return ctx;
}

int fuse_asked(const char *word)
{
    if (!strcmp(word, "fast"))
        fprintf(stderr, "tenon: note: --fuse fast is --fuse on here: no product takes its "
                        "activation with it\n");
    return strcmp(word, "off") != 0;
}

void warn(void *arg, const char *message)
{
    (void)arg;
    fprintf(stderr, "tenon: warning: %s\n", message);
}

static Option *find(Option *table, const char *name, size_t len)
{
    for (Option *o = table; o->kind; o++)
        if (strlen(o->name) == len && !strncmp(o->name, name, len))
            return o;
    return NULL;
}

bool option_given(const Option *table, const char *name)
{
    for (const Option *o = table; o->kind; o++)
        if (!strcmp(o->name, name))
            return o->given;
    return false;
}

const char *options_any(const Option *table, const char *names)
{
    char name[40];
    for (; *names; names += strspn(names, " ")) {
        size_t n = strcspn(names, " ");
        snprintf(name, sizeof name, "%.*s", (int)n, names);
        for (const Option *o = table; o->kind; o++)
            if (o->given && !strcmp(o->name, name))
                return o->name;
        names += n;
    }
    return NULL;
}

int options_refuse(const Command *c, const Option *table, const char *names, const char *why)
{
    const char *name = options_any(table, names);
    return name ? report(TN_CODE_USAGE, "%s: --%s %s", c->name, name, why) : -1;
}

/* Which plans read too. */
static bool read_by_plans(const Option *o)
{
    return !strcmp(o->name, "backend") || !strcmp(o->name, "machine") ||
           !strcmp(o->name, "overlap");
}

int options_refuse_passes(const Command *c, const Option *table, const char *why)
{
    for (const Option *o = table; o->kind; o++)
        if (o->given && !read_by_plans(o) &&
            (o->pass || o->kind == OPT_SHARED)) /* which makes tn_options.rules */
            return report(TN_CODE_USAGE, "%s: --%s %s", c->name, o->name, why);
    return -1;
}

/* Reports an option of another tool: what it is called here, and whether the command takes that. */
static int unknown_here(const Command *c, const Option *table, const char *word, const char *here)
{
    size_t len = !strncmp(here, "--", 2) ? strcspn(here + 2, " ,;") : 0;
    bool other = len && !find((Option *)(uintptr_t)table, here + 2, len);
    return report(TN_CODE_USAGE, "%s: unknown option \"%s\"; here it is %s%s%s%s", c->name, word,
                  here, other ? ", which " : "", other ? c->name : "",
                  other ? " does not take" : "");
}

static int unknown(const Command *c, const Option *table, const char *arg)
{
    const char *names[MOST_OPTIONS];
    int n = 0;
    char word[80];
    snprintf(word, sizeof word, "%.*s", (int)strcspn(arg, "="), arg);
    for (const Option *o = table; o->kind && n < LEN(names); o++)
        names[n++] = o->name;
    const char *here = foreign_option(word), *near = tn_nearest(word + strspn(word, "-"), names, n);
    const Option *other = option_elsewhere(word);
    bool spelled = near && option_spelled(word, near);
    if (*arg == '-' && !access(arg, F_OK))
        return report(TN_CODE_USAGE, "%s: unknown option \"%s\"; the file of that name is ./%s",
                      c->name, arg, arg);
    if (here && !spelled)
        return unknown_here(c, table, word, here);
    if (other && !spelled)
        return report(TN_CODE_USAGE, "%s: unknown option \"%s\": --%s is an option of %s", c->name,
                      word, other->name, other->commands);
    if (!near && strlen(word + strspn(word, "-")) == 1)
        return report(TN_CODE_USAGE,
                      "%s: unknown option \"%s\": options have names, which tenon %s --help lists",
                      c->name, word, c->name);
    return report(TN_CODE_USAGE, "%s: unknown option \"%s\"%s%s%s", c->name, word,
                  near ? "; the nearest is \"--" : "", near ? near : "", near ? "\"" : "");
}

bool word_among(const char *words, const char *value)
{
    size_t len = strlen(value);
    while (*words) {
        size_t n = strcspn(words, " |");
        if (n == len && !strncmp(words, value, n))
            return true;
        words += n + (words[n] != 0);
    }
    return false;
}

bool option_within(const Option *o, double x)
{
    return x >= o->lo && (o->open ? x < o->hi : x <= o->hi);
}

static int bad_value(const Command *c, const Option *o, const char *expected, const char *value)
{
    const char *here = foreign_value(o->name, value);
    return report(TN_CODE_USAGE, "%s: --%s: expected %s, found \"%s\"%s%s", c->name, o->name,
                  expected, value, here ? "; here it is " : "", here ? here : "");
}

/* Why the row has the limit that x is beyond; NULL: it does not say. */
static const char *reason(const Option *o, double x)
{
    bool beyond = o->open ? x >= o->hi : x < o->lo;
    return beyond ? o->words : NULL;
}

/* The word that a count may be; NULL: none. */
static const char *count_word(const Option *o)
{
    return o->kind == OPT_COUNT || o->kind == OPT_AUTO ? strchr(o->words, '|') + 1 : NULL;
}

static int store_number(const Command *c, Option *o, const char *value)
{
    char *end, expected[100];
    const char *word = count_word(o);
    bool named = word && !strcmp(value, word);
    double x = named ? (o->kind == OPT_AUTO ? 0 : o->hi) : strtod(value, &end);
    if (named && o->kind == OPT_AUTO && word_among("opt bench tune export", c->name))
        return report(TN_CODE_USAGE, "%s: --%s auto is for train, grad and plan", c->name, o->name);
    if (named)
        end = (char *)value + strlen(value);
    snprintf(expected, sizeof expected, "%s from %.10g to %s%.10g%s%s",
             o->kind == OPT_REAL ? "a number" : "an integer", o->lo, o->open ? "below " : "", o->hi,
             word ? ", or " : "", word ? word : "");
    bool number = end != value && !*end, whole = o->kind == OPT_REAL || x == floor(x);
    if (!number || !whole || (!option_within(o, x) && !named)) {
        const char *why = number && !word ? reason(o, x) : NULL;
        if (!why)
            return bad_value(c, o, expected, value);
        return report(TN_CODE_USAGE, "%s: --%s: expected %s, found \"%s\": %s", c->name, o->name,
                      expected, value, why);
    }
    if (o->kind == OPT_REAL) {
        *(double *)o->into = x;
    } else {
        *(int64_t *)o->into = strtoll(value, &end, 10);
        if (*end) /* 1e6, or a word */
            *(int64_t *)o->into = (int64_t)x;
    }
    return -1;
}

/* A number with a unit that is spelled otherwise, or half: a line with both that it may mean. */
static const char *unit_hint(const char *value, char *text, size_t size)
{
    char *unit;
    double x = strtod(value, &unit);
    size_t digits = (size_t)(unit - value);
    unit += strspn(unit, " ");
    char letter = (char)toupper((unsigned char)*unit);
    const char *rest = unit + (*unit != 0);
    bool near = !*rest || !strcasecmp(rest, "b") || !strcasecmp(rest, "ib");
    *text = 0;
    if (digits && x > 0 && letter && strchr("KMGT", letter) && near)
        snprintf(text, size, "\n  %.*s%ciB is %.*s x 2^%d bytes, %.*s%cB is %.*s x 10^%d",
                 (int)digits, value, letter, (int)digits, value,
                 10 * (int)(strchr("KMGT", letter) - "KMGT" + 1), (int)digits, value,
                 letter == 'K' ? 'k' : letter, (int)digits, value,
                 3 * (int)(strchr("KMGT", letter) - "KMGT" + 1));
    return text;
}

static int bad_bytes(const Command *c, const Option *o, const char *expected, const char *value)
{
    char hint[200];
    return report(TN_CODE_USAGE, "%s: --%s: expected %s, found \"%s\"%s", c->name, o->name,
                  expected, value, unit_hint(value, hint, sizeof hint));
}

static int store_memory(const Command *c, Option *o, const char *value)
{
    tn_options *into = o->into;
    char *unit;
    if (!strcmp(value, "auto")) {
        into->memory = MEMORY_AUTO;
        into->memory_unit = "MiB";
        return -1;
    }
    into->memory = tn_bytes(value);
    if (into->memory < 1 || !option_within(o, (double)into->memory))
        return bad_bytes(c, o, "bytes such as 3GiB, from 1 to 4194304TiB, or auto", value);
    strtod(value, &unit);
    into->memory_unit = unit + strspn(unit, " ");
    return -1;
}

static bool is_path(const Option *o)
{
    return o->kind == OPT_IN || o->kind == OPT_INS || o->kind == OPT_OUT || o->kind == OPT_ONTO ||
           o->kind == OPT_DIR;
}

static bool is_list(const Option *o)
{
    return o->kind == OPT_LIST || o->kind == OPT_INS || o->kind == OPT_SHARED;
}

/* The last of an option that has one value counts; says so where it was given another before. */
static void warn_repeated(const Command *c, Option *o, const char *value, const char *second)
{
    bool other = o->value && (strcmp(o->value, value) ||
                              (second && strcmp(((const char **)o->into)[1], second)));
    if (other && !is_list(o))
        fprintf(stderr,
                "tenon: warning: %s: --%s is given twice: %s, which counts for nothing, and %s\n",
                c->name, o->name, o->value, value);
    o->value = value;
}

static int store(const Command *c, Option *o, const char *value, const char *second)
{
    o->given = true;
    warn_repeated(c, o, value, second);
    if (is_path(o) && !*value)
        return bad_value(c, o, "a path", value);
    if (o->kind == OPT_DIR && !strcmp(value, "-"))
        return report(TN_CODE_USAGE,
                      "%s: --%s: expected a folder, found \"-\"; ./- is one of that name", c->name,
                      o->name);
    switch (o->kind) {
    case OPT_INT:
    case OPT_COUNT:
    case OPT_AUTO:
    case OPT_REAL: return store_number(c, o, value);
    case OPT_BYTES:
        *(int64_t *)o->into = tn_bytes(value);
        if (*(int64_t *)o->into >= 0 && option_within(o, (double)*(int64_t *)o->into))
            return -1;
        return bad_bytes(c, o, o->lo > 0 ? "bytes such as 3GiB, at least 1" : "bytes such as 3GiB",
                         value);
    case OPT_MEMORY: return store_memory(c, o, value);
    case OPT_WORD:
        if (!word_among(o->words, value))
            return bad_value(c, o, o->words, value);
        *(const char **)o->into = value;
        return -1;
    case OPT_LIST:
    case OPT_INS:
    case OPT_SHARED: {
        Texts *t = o->into;
        if (t->count == LEN(t->text))
            return report(TN_CODE_USAGE, "%s: --%s: given more than %d times", c->name, o->name,
                          LEN(t->text));
        t->option[t->count] = o->name;
        t->text[t->count++] = value;
        return -1;
    }
    case OPT_PAIR:
        ((const char **)o->into)[0] = value;
        ((const char **)o->into)[1] = second;
        return -1;
    default: *(const char **)o->into = value; return -1;
    }
}

static void print_help(const Command *c, const Option *table)
{
    printf("usage: tenon %s %s\n%s\n\n", c->name, c->usage, c->what);
    for (const Option *o = table; o->kind; o++) {
        char left[80];
        const char *value = option_default(o);
        snprintf(left, sizeof left, "--%s %s", o->name, option_argument(o));
        bool wide = strlen(left) > 32; /* its text begins on the next line */
        printf(wide ? "  %s\n  %32s" : "  %-32s", left, "");
        printf(value ? " %s (%s)\n" : " %s\n", o->help, value);
    }
    printf("  %-32s %s\n", "-h, --help", "this text");
}

/* One option at argv[*i]; -1 to go on. */
static int parse_one(const Command *c, int argc, char **argv, int *i, Option *table)
{
    const char *arg = argv[*i], *name = arg + 2;
    if (!strcmp(arg, "-h") || !strcmp(arg, "--help")) {
        print_help(c, table);
        return 0;
    }
    if (!strcmp(arg, "-o")) /* the one short option, where the command writes a file */
        name = "output";
    else if (arg[1] != '-')
        return unknown(c, table, arg);
    size_t len = strcspn(name, "=");
    Option *o = find(table, name, len);
    if (!o)
        return unknown(c, table, arg);
    if (o->kind == OPT_FLAG) {
        if (name[len])
            return report(TN_CODE_USAGE, "%s: --%s takes no value", c->name, o->name);
        *(int *)o->into = 1;
        o->given = true;
        return -1;
    }
    bool pair = o->kind == OPT_PAIR;
    if (*i + (name[len] != '=') + pair >= argc)
        return report(TN_CODE_USAGE, "%s: --%s needs %s", c->name, o->name,
                      pair ? "two values" : "a value");
    const char *value = name[len] == '=' ? name + len + 1 : argv[++*i];
    if (name[len] != '=' && !pair && !strncmp(value, "--", 2) &&
        find(table, value + 2, strcspn(value + 2, "=")))
        return report(TN_CODE_USAGE,
                      "%s: --%s needs a value, found the option %s\n  --%s=%s if that is the value",
                      c->name, o->name, value, o->name, value);
    return store(c, o, value, pair ? argv[++*i] : NULL);
}

/* An option that is given, takes a path, and may repeat: a shell may have made several of one. */
static const Option *given_paths(const Option *table)
{
    for (const Option *o = table; o->kind; o++)
        if (o->kind == OPT_INS && o->given)
            return o;
    return NULL;
}

int options_parse(const Command *c, int argc, char **argv, Option *table, Texts *args, int least,
                  int most)
{
    bool ended = false; /* the options, by -- */
    args->count = 0;
    for (int i = 1; i < argc; i++) {
        if (!ended && !strcmp(argv[i], "--")) {
            ended = true;
        } else if (!ended && argv[i][0] == '-' && argv[i][1]) {
            int code = parse_one(c, argc, argv, &i, table);
            if (code >= 0)
                return code;
        } else if (args->count == LEN(args->text)) {
            return report(TN_CODE_USAGE, "%s: more than %d arguments", c->name, LEN(args->text));
        } else if (!*argv[i]) {
            return report(TN_CODE_USAGE, "%s: argument %d is empty", c->name, args->count + 1);
        } else {
            args->text[args->count++] = argv[i];
        }
    }
    if (args->count >= least && args->count <= most)
        return check_paths(c, table, args);
    char count[40];
    const Option *list = args->count > most ? given_paths(table) : NULL;
    report(TN_CODE_USAGE, "%s: expected %s%s, found %d; usage: tenon %s %s", c->name,
           most > least ? "at most " : "", tn_count_text(most, "argument", count, sizeof count),
           args->count, c->name, c->usage);
    if (list)
        fprintf(stderr,
                "  \"%s\" is none of --%s, which takes one path: quote a pattern, or repeat it\n",
                args->text[most], list->name);
    return TN_CODE_USAGE;
}

/* ---- options from a file ---- */

/* A value as a command line has it; numbers become strings in their place, which the options then
 * hold. NULL: it is none. */
static const char *config_text(json_t *value, json_t *kept)
{
    char text[40];
    if (json_is_string(value))
        return json_string_value(value);
    if (json_is_integer(value))
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        snprintf(text, sizeof text, "%.17g", json_real_value(value));
    else
        return NULL;
    json_t *string = json_string(text);
    return json_array_append_new(kept, string) ? NULL : json_string_value(string);
}

static int config_value(const Command *c, const char *path, Option *o, json_t *value, json_t *kept)
{
    const char *text = config_text(value, kept);
    if (o->kind == OPT_FLAG && json_is_boolean(value)) {
        *(int *)o->into = json_is_true(value);
        o->given = json_is_true(value);
        return -1;
    }
    if (o->kind == OPT_FLAG || o->kind == OPT_PAIR || !text)
        return report(TN_CODE_USAGE, "%s: --config: %s: \"%s\": expected %s", c->name, path,
                      o->name,
                      o->kind == OPT_FLAG   ? "true or false"
                      : o->kind == OPT_PAIR ? "it on the command line"
                      : is_list(o)          ? "a text, or a list of texts"
                                            : "a text or a number");
    return store(c, o, text, NULL);
}

static int config_unknown(const Command *c, const Option *table, const char *path, const char *key)
{
    if (*key == '-')
        return report(TN_CODE_USAGE, "%s: --config: %s: \"%s\": expected a name without dashes",
                      c->name, path, key);
    int code = unknown(c, table, key);
    fprintf(stderr, "  it is a name in %s\n", path);
    return code;
}

/* Whether the command line has what a name of the file would exclude. */
static bool config_excluded(const Option *table, const bool *given, const char *name)
{
    static const char *const pairs[][2] = {{"steps", "epochs"},
                                           {"data", "batch"},
                                           {"val-data", "val-fraction"},
                                           {"lora", "adapter"},
                                           {"resume", "overwrite"}};
    for (int i = 0; i < LEN(pairs); i++)
        for (int k = 0; k < 2; k++)
            for (int j = 0; table[j].kind && !strcmp(name, pairs[i][k]); j++)
                if (given[j] && !strcmp(table[j].name, pairs[i][!k]))
                    return true;
    return false;
}

int options_config(const Command *c, Option *table, const char *path, json_t **kept)
{
    bool given[MOST_OPTIONS];
    json_error_t e = {0};
    json_t *all = !strcmp(path, "-") ? json_loadf(stdin, JSON_REJECT_DUPLICATES, &e)
                                     : json_load_file(path, JSON_REJECT_DUPLICATES, &e);
    json_t *value, *item;
    const char *key;
    size_t at;
    int code = -1;
    *kept = json_array();
    if (!json_is_object(all)) {
        code = report(TN_CODE_FAIL, "--config: %s:%d: expected a JSON object%s%s", path,
                      e.line > 0 ? e.line : 1, *e.text ? ": " : "", e.text);
        json_decref(all);
        return code;
    }
    json_array_append_new(*kept, all);
    for (int i = 0; table[i].kind; i++)
        given[i] = table[i].given;
    json_object_foreach(all, key, value)
    {
        Option *o = find(table, key, strlen(key));
        if (!o || !strcmp(o->name, "config"))
            code = config_unknown(c, table, path, key);
        else if (given[o - table] || config_excluded(table, given, o->name)) /* the line wins */
            ;
        else if (json_is_array(value) && is_list(o))
            json_array_foreach(value, at, item) code =
                code < 0 ? config_value(c, path, o, item, *kept) : code;
        else
            code = config_value(c, path, o, value, *kept);
        if (code >= 0)
            return code;
    }
    return -1;
}
