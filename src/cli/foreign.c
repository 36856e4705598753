/* Names of options and commands in other trainers: foreign.def says what to do here instead. */
#include "cli.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

typedef struct Foreign {
    const char *names, *here;
} Foreign;

#define OPTION(names, here) {names, here},
#define COMMAND(names, here)
static const Foreign options[] = {
#include "foreign.def"
};
#define OPTION(names, here)
#define COMMAND(names, here) {names, here},
static const Foreign commands[] = {
#include "foreign.def"
};

static const char *find(const Foreign *row, int n, const char *word)
{
    char plain[80];
    int len = 0;
    word += strspn(word, "-");
    for (; word[len] && word[len] != '=' && len + 1 < LEN(plain); len++)
        plain[len] = word[len] == '_' ? '-' : (char)tolower((unsigned char)word[len]);
    plain[len] = 0;
    for (int i = 0; i < n && len; i++)
        if (word_among(row[i].names, plain))
            return row[i].here;
    return NULL;
}

const char *foreign_option(const char *word)
{
    return find(options, LEN(options), word);
}

const char *foreign_command(const char *word)
{
    return find(commands, LEN(commands), word);
}
