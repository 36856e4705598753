/* That each command takes exactly the options that options.def says, with the values that it says:
 * every name of the table is given to every command, whose own parser answers, with --help behind
 * it: code 0 where it takes the option, 2 where it does not. This test has all objects of the
 * program and takes the place of its main. */
#include "../../src/cli/cli.h"
#include "../shared/test.h"

#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

int __wrap_main(void);

typedef struct Row {
    const char *name, *kind, *commands, *words;
    double low, high;
    bool open, number;
} Row;

/* clang-format off */
#define TO(low, high)    low, high, false, true
#define BELOW(low, high) low, high, true, true
#define ANY              0, 0, false, false
static const Row rows[] = {
#define LINE_OPTION(name, kind, resume, value, range, commands, words, help) \
    {name, #kind, commands, words, range},
#define CALL_OPTION(name, field, kind, resume, value, range, commands, words, help, doc) \
    {name, #kind, commands, words, range},
#define PASS_OPTION CALL_OPTION
#include "../../src/base/options.def"
};
/* clang-format on */

static bool is(const Row *r, const char *kinds)
{
    return word_among(kinds, r->kind);
}

/* The row by which a command takes an option; NULL: it does not. *count: how many there are. */
static const Row *find_row(const char *command, const char *name, int *count)
{
    const Row *found = NULL;
    *count = 0;
    for (const Row *r = rows; r < rows + LEN(rows); r++)
        if (!strcmp(r->name, name) && word_among(r->commands, command)) {
            found = r;
            ++*count;
        }
    return found;
}

/* The command's exit code, with what it prints dropped. */
static int run_quietly(const Command *c, int argc, char **argv)
{
    int none = open("/dev/null", O_WRONLY), fd[2];
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        fd[i] = dup(STDOUT_FILENO + i);
        CHECK(none >= 0 && fd[i] >= 0 && dup2(none, STDOUT_FILENO + i) >= 0);
    }
    int code = c->run(argc, argv);
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        CHECK(dup2(fd[i], STDOUT_FILENO + i) >= 0);
        close(fd[i]);
    }
    close(none);
    return code;
}

/* That `tenon COMMAND --NAME VALUE --help` ends with a code; a value may be two words. */
static void gives(int code, const Command *c, const char *name, const char *value)
{
    char text[100], *argv[6], *rest = text;
    int argc = 1,
        n = snprintf(text, sizeof text, "--%s%s%s --help", name, *value ? " " : "", value);
    CHECK(n < (int)sizeof text);
    argv[0] = (char *)(uintptr_t)c->name;
    while (argc < LEN(argv) && (argv[argc] = strsep(&rest, " ")))
        argc++;
    int found = run_quietly(c, argc, argv);
    if (!test_note(found == code, __FILE__, __LINE__, "the exit code"))
        printf("  tenon %s --%s %s: expected %d, found %d\n", c->name, name, value, code, found);
}

static void gives_number(int code, const Command *c, const char *name, double x)
{
    char text[40];
    snprintf(text, sizeof text, "%.17g", x);
    gives(code, c, name, text);
}

/* What the row's range says of numbers: its ends, and what is beyond them. */
static void check_number(const Command *c, const Row *r)
{
    bool whole = is(r, "INT SEED AUTO");
    gives_number(0, c, r->name, r->low);
    gives_number(0, c, r->name, r->open ? nextafter(r->high, 0) : r->high);
    gives_number(TN_CODE_USAGE, c, r->name,
                 r->open ? r->high
                 : whole ? r->high * 2
                         : nextafter(r->high, INFINITY));
    gives_number(TN_CODE_USAGE, c, r->name, whole ? r->low - 1 : nextafter(r->low, -INFINITY));
    gives(TN_CODE_USAGE, c, r->name, "nan");
}

static void check_taken(const Command *c, const Row *r)
{
    char word[40];
    if (is(r, "BYTES MEMORY")) {
        gives(0, c, r->name, "1KiB");
        gives(is(r, "MEMORY") ? 0 : TN_CODE_USAGE, c, r->name, "auto");
        gives(TN_CODE_USAGE, c, r->name, "-1");
    } else if (r->number) {
        check_number(c, r);
        if (is(r, "AUTO"))
            gives(word_among("train grad plan", c->name) ? 0 : TN_CODE_USAGE, c, r->name, "auto");
    } else if (is(r, "INT REAL SEED")) {
        gives(0, c, r->name, "1");
    } else if (is(r, "WORD DTYPE SWITCH")) {
        snprintf(word, sizeof word, "%.*s", (int)strcspn(r->words, "|"), r->words);
        gives(0, c, r->name, word);
        gives(TN_CODE_USAGE, c, r->name, "x");
    } else {
        gives(0, c, r->name, is(r, "FLAG") ? "" : is(r, "PAIR") ? "x y" : "x");
    }
}

static void check_commands(const Row *r)
{
    int count;
    for (const Command *c = command_table; c < command_table + command_count; c++) {
        const Row *own = find_row(c->name, r->name, &count);
        EXPECT(count <= 1);
        if (own == r)
            check_taken(c, r);
        else if (!own)
            gives(TN_CODE_USAGE, c, r->name, "");
    }
}

/* That the names in the column are commands. */
static void check_column(const Row *r)
{
    char list[200], *rest = list;
    snprintf(list, sizeof list, "%s", r->commands);
    for (char *name; (name = strsep(&rest, " ")) && *name;)
        EXPECT(command_find(name));
}

int __wrap_main(void)
{
    for (const Row *r = rows; r < rows + LEN(rows); r++) {
        check_column(r);
        if (*r->name)
            check_commands(r);
    }
    return test_report();
}
