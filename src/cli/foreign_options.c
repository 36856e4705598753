/* Names of options and commands in other trainers: foreign_options.def says what to do here
 * instead. */
#include "cli.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

typedef struct ForeignOption {
    const char *names, *values, *here; /* values: of a VALUE */
} ForeignOption;

#define OPTION(names, here) {names, NULL, here},
#define VALUE(names, values, here)
#define COMMAND(names, here)
static const ForeignOption options[] = {
#include "foreign_options.def"
};
#define OPTION(names, here)
#define VALUE(names, values, here) {names, values, here},
#define COMMAND(names, here)
static const ForeignOption values[] = {
#include "foreign_options.def"
};
#define OPTION(names, here)
#define VALUE(names, values, here)
#define COMMAND(names, here) {names, NULL, here},
static const ForeignOption commands[] = {
#include "foreign_options.def"
};

enum { PLAIN = 80 };

/* A word as the table has it; "" where it is longer than any there. */
static void plain_word(const char *word, char plain[PLAIN])
{
    int len = 0;
    word += strspn(word, "-");
    for (; word[len] && word[len] != '=' && len + 1 < PLAIN; len++)
        plain[len] = word[len] == '_' ? '-' : (char)tolower((unsigned char)word[len]);
    plain[len + 1 < PLAIN ? len : 0] = 0;
}

static const char *find(const ForeignOption *row, int n, const char *word, const char *value)
{
    char plain[PLAIN], known[PLAIN];
    plain_word(word, plain);
    plain_word(value, known);
    for (int i = 0; i < n && *plain; i++)
        if (word_among(row[i].names, plain) &&
            (!row[i].values || (*known && word_among(row[i].values, known))))
            return row[i].here;
    return NULL;
}

const char *foreign_option(const char *word)
{
    return find(options, LEN(options), word, "");
}

const char *foreign_value(const char *option, const char *value)
{
    return find(values, LEN(values), option, value);
}

const char *foreign_command(const char *word)
{
    return find(commands, LEN(commands), word, "");
}
