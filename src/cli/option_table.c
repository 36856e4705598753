/* The rows of options.def that a command takes, each with the place where its value goes: a member
 * of tn_options, or what the command names in an OptionSlot. */
#include "cli.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* clang-format off */
/* The place of a value in tn_options, by its row's kind; some are made of what is kept elsewhere */
#define AT_FLAG(field)   (int)offsetof(tn_options, field)
#define AT_INT(field)    (int)offsetof(tn_options, field)
#define AT_AUTO(field)   (int)offsetof(tn_options, field)
#define AT_SEED(field)   (int)offsetof(tn_options, field)
#define AT_REAL(field)   (int)offsetof(tn_options, field)
#define AT_BYTES(field)  (int)offsetof(tn_options, field)
#define AT_WORD(field)   (int)offsetof(tn_options, field)
#define AT_DTYPE(field)  (int)offsetof(tn_options, field)
#define AT_TEXT(field)   (int)offsetof(tn_options, field)
#define AT_IN(field)     (int)offsetof(tn_options, field)
#define AT_MEMORY(field) 0
#define AT_SWITCH(field) ELSEWHERE
#define AT_LIST(field)   ELSEWHERE
#define AT_RULES(field)  ELSEWHERE
enum { ELSEWHERE = -1 };

/* A default, a number or a text. */
#define VALUE_FLAG(x)   x, NULL
#define VALUE_INT(x)    x, NULL
#define VALUE_COUNT(x)  x, NULL
#define VALUE_AUTO(x)   x, NULL
#define VALUE_SEED(x)   x, NULL
#define VALUE_REAL(x)   x, NULL
#define VALUE_BYTES(x)  x, NULL
#define VALUE_MEMORY(x) x, NULL
#define VALUE_WORD(x)   0, x
#define VALUE_DTYPE(x)  0, x
#define VALUE_SWITCH(x) 0, x
#define VALUE_TEXT(x)   0, x
#define VALUE_LIST(x)   0, x
#define VALUE_SHARED(x) 0, x
#define VALUE_RULES(x)  0, x
#define VALUE_PAIR(x)   0, x
#define VALUE_IN(x)     0, x
#define VALUE_INS(x)    0, x
#define VALUE_OUT(x)    0, x
#define VALUE_ONTO(x)   0, x
#define VALUE_DIR(x)    0, x

#define TO(low, high)    low, high, false
#define BELOW(low, high) low, high, true
#define ANY              -0x1p62, 0x1p62, false

static const Option rows[] = {
#define LINE_OPTION(name, kind, resume, value, range, commands, words, help) \
    {name, OPT_##kind, RESUME_##resume, false, commands, words, help, #value, VALUE_##kind(value), range, ELSEWHERE, NULL, false, NULL},
#define CALL_OPTION(name, field, kind, resume, value, range, commands, words, help, doc) \
    {name, OPT_##kind, RESUME_##resume, false, commands, words, help, #value, VALUE_##kind(value), range, AT_##kind(field), NULL, false, NULL},
#define PASS_OPTION(name, field, kind, resume, value, range, commands, words, help, doc) \
    {name, OPT_##kind, RESUME_##resume, true, commands, words, help, #value, VALUE_##kind(value), range, AT_##kind(field), NULL, false, NULL},
#include "../base/options.def"
};
/* clang-format on */

double option_number(const char *name)
{
    for (const Option *row = rows; row < rows + LEN(rows); row++)
        if (!strcmp(row->name, name))
            return row->number;
    return 0;
}

bool option_spelled(const char *word, const char *option)
{
    word += strspn(word, "-");
    for (; option && *word && *option; word++, option++)
        if ((*word == '_' ? '-' : tolower((unsigned char)*word)) != *option)
            return false;
    return option && !*word && !*option;
}

const Option *option_elsewhere(const char *word)
{
    for (const Option *row = rows; row < rows + LEN(rows); row++)
        if (*row->name && *row->commands && option_spelled(word, row->name))
            return row;
    return NULL;
}

static void *find_place(const Option *row, tn_options *o, const OptionSlot *slot)
{
    for (; slot->name; slot++)
        if (!strcmp(slot->name, row->name))
            return slot->into;
    return o && row->at != ELSEWHERE ? (char *)o + row->at : NULL;
}

void options_bind(Option *table, const char *command, tn_options *o, const OptionSlot *slot)
{
    int n = 0;
    for (const Option *row = rows; row < rows + LEN(rows); row++) {
        if (!word_among(row->commands, command))
            continue;
        table[n] = *row;
        table[n].into = find_place(row, o, slot);
        if (!table[n].into || n + 1 == MOST_OPTIONS)
            exit(report(TN_CODE_FAIL, "%s: --%s has no place", command, row->name));
        n++;
    }
    table[n] = (Option){0};
}

static void store_default(const Option *o)
{
    switch (o->kind) {
    case OPT_FLAG: *(int *)o->into = (int)o->number; break;
    case OPT_REAL: *(double *)o->into = o->number; break;
    case OPT_INT:
    case OPT_COUNT:
    case OPT_AUTO:
    case OPT_BYTES: *(int64_t *)o->into = (int64_t)o->number; break;
    case OPT_LIST:
    case OPT_INS:
    case OPT_SHARED: ((Texts *)o->into)->count = 0; break;
    case OPT_PAIR: ((const char **)o->into)[1] = NULL; /* fall through */
    case OPT_TEXT:
    case OPT_WORD:
    case OPT_IN:
    case OPT_OUT:
    case OPT_ONTO:
    case OPT_DIR: *(const char **)o->into = o->text; break;
    case OPT_MEMORY: /* as tn_options_default has it */
    case OPT_END: break;
    }
}

void options_default(const Option *table)
{
    for (const Option *o = table; o->kind; o++)
        store_default(o);
}

void options_begin(Option *table, const char *command, tn_options *o, const OptionSlot *slot)
{
    options_bind(table, command, o, slot);
    options_default(table);
}

const char *option_argument(const Option *o)
{
    static const char *const kinds[] = {
        [OPT_FLAG] = "",     [OPT_INT] = "N",       [OPT_COUNT] = "",       [OPT_AUTO] = "",
        [OPT_REAL] = "X",    [OPT_BYTES] = "BYTES", [OPT_MEMORY] = "BYTES", [OPT_TEXT] = "TEXT",
        [OPT_LIST] = "TEXT", [OPT_SHARED] = "TEXT", [OPT_IN] = "PATH",      [OPT_INS] = "PATH",
        [OPT_OUT] = "FILE",  [OPT_ONTO] = "FILE",   [OPT_DIR] = "DIR",      [OPT_WORD] = "",
        [OPT_PAIR] = "A B"};
    bool number = o->kind == OPT_INT || o->kind == OPT_REAL;
    return o->words && !number ? o->words : kinds[o->kind];
}

const char *option_default(const Option *o)
{
    size_t n = strlen(o->help);
    if (o->kind == OPT_FLAG || (n && o->help[n - 1] == ')'))
        return NULL;
    return o->literal[0] == '"' || !strcmp(o->literal, "NULL") ? o->text : o->literal;
}
