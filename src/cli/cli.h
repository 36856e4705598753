/* cli: the program `tenon`, on the public API and src/train. command.def lists the commands. */
#ifndef TENON_CLI_H
#define TENON_CLI_H

#include "../../include/tenon.h"

#include <stdbool.h>

#define LEN(a) ((int)(sizeof(a) / sizeof((a)[0])))

/* ---- options.c ---- */

typedef enum {
    OPT_END,
    OPT_FLAG,  /* int: set to 1 */
    OPT_INT,   /* int64_t, within lo and hi */
    OPT_REAL,  /* double, within lo and hi */
    OPT_BYTES, /* int64_t */
    OPT_TEXT,  /* const char * */
    OPT_LIST,  /* Texts: may be given many times */
    OPT_WORD,  /* const char *, one of the words in `words` (separated by |) */
} OptionKind;

typedef struct Texts {
    const char *text[64];
    int count;
} Texts;

/* One long option. Tables end with {0}. */
typedef struct Option {
    const char *name; /* without -- */
    OptionKind kind;
    void *into;
    const char *help, *words;
    double lo, hi;
    bool given; /* set by the parser */
} Option;

typedef struct Command {
    const char *name, *usage, *what;
    int (*run)(int argc, char **argv);
} Command;

extern const Command command_table[];
extern const int command_count;

/* Parses argv[1..]: options into their places, the rest into args. Returns -1 to go on, or an exit
 * code: 0 after --help, 2 after a wrong option, which is reported with the nearest right one. */
int options_parse(const Command *c, int argc, char **argv, Option *table, Texts *args, int least,
                  int most);
bool option_given(const Option *table, const char *name);
const Command *command_find(const char *name);

/* Prints "tenon: message" on standard error; returns the code. */
int report(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
int report_last(int code, const tn_context *ctx); /* the context's message */

/* ---- the commands, one function each ---- */
#define COMMAND(name, usage, what) int command_##name(int argc, char **argv);
#include "command.def"
#undef COMMAND

#endif
