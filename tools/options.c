/* Prints what documents say of the options, from src/base/options.def:
 *
 *     options header      the members of tn_options, each with a comment
 *     options man         the list of docs/tenon.1
 *     options man-OWN     in roff, the names of those with that word for train --resume
 *     options markdown    the members of tn_options as a table
 *     options python      their names and kinds, for python/tenon
 *
 * tools/docs.sh compiles it and puts what it prints between marks. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { MEMBER_AT = 40, WIDTH = 100 }; /* columns of comments, and where a line ends */

typedef struct Row {
    const char *name, *field; /* field NULL: of command lines alone */
    const char *kind, *resume, *value, *range, *commands, *words, *help, *doc;
} Row;

/* clang-format off */
static const Row row[] = {
#define CALL_OPTION(name, field, kind, resume, value, range, commands, words, help, doc) \
    {name, #field, #kind, #resume, #value, #range, commands, words, help, doc},
#define PASS_OPTION CALL_OPTION
#define LINE_OPTION(name, kind, resume, value, range, commands, words, help) \
    {name, NULL, #kind, #resume, #value, #range, commands, words, help, NULL},
#include "../src/base/options.def"
};
/* clang-format on */
enum { NROW = sizeof row / sizeof *row };

static bool is(const Row *r, const char *kinds)
{
    const char *at = strstr(kinds, r->kind);
    size_t n = strlen(r->kind);
    return at && (at == kinds || at[-1] == ' ') && (!at[n] || at[n] == ' ');
}

static bool is_number(const Row *r)
{
    return is(r, "INT AUTO REAL SEED BYTES MEMORY");
}

/* "TO(0, 1e6)" as "0 to 1e6", "BELOW(0, 1)" as "0 to below 1"; "" where nothing is too much. */
static const char *range_text(const Row *r)
{
    static char text[80];
    char low[30], high[30];
    *text = 0;
    if (sscanf(r->range, "TO(%29[^,], %29[^)])", low, high) == 2 && strcmp(high, "0x1p62"))
        snprintf(text, sizeof text, "%s to %s", low, high);
    else if (sscanf(r->range, "BELOW(%29[^,], %29[^)])", low, high) == 2)
        snprintf(text, sizeof text, "%s to below %s", low, high);
    return text;
}

/* ---- tn_options ---- */

/* How members of some kinds are declared in C, and as ctypes is told. */
typedef struct MemberType {
    const char *kinds, *c, *python;
} MemberType;

static const MemberType *member_type(const Row *r)
{
    static const MemberType types[] = {{"FLAG SWITCH", "int ", "int"},
                                       {"REAL", "double ", "double"},
                                       {"SEED", "uint64_t ", "uint64"},
                                       {"INT AUTO BYTES MEMORY", "int64_t ", "int64"},
                                       {"LIST", "const char *const *", "texts"},
                                       {"RULES", "const tn_rule *", "rules"}};
    static const MemberType text = {"", "const char *", "text"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (is(r, types[i].kinds))
            return &types[i];
    return &text;
}

/* Writes words from a column on, in lines of a comment. */
static void put_comment(int column, const char *text)
{
    int at = column + printf("/*");
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (at + 1 + n > WIDTH - 3)
            at = printf("\n%*s *", column, "") - 1;
        at += printf(" %.*s", n, text);
        text += n + (text[n] == ' ');
    }
    printf(" */\n");
}

/* The default of a word on the command line that is a flag in tn_options. */
static const char *switch_text(const Row *r)
{
    return strcmp(r->value, "\"off\"") ? "1" : "0";
}

/* What a member may be, and in parentheses its default; "" of lists, texts and flags. */
static const char *values_text(const Row *r)
{
    static char text[120];
    bool bare = r->value[0] != '"';
    const char *values = is(r, "SEED") ? "any" : is_number(r) ? range_text(r) : r->words;
    if (is(r, "SWITCH"))
        snprintf(text, sizeof text, "(%s): ", switch_text(r));
    else if (is_number(r) || (r->words && !is(r, "LIST")))
        snprintf(text, sizeof text, "%s%s(%.*s): ", values, *values ? " " : "",
                 (int)strlen(r->value) - (bare ? 0 : 2), r->value + !bare);
    else
        *text = 0;
    return text;
}

static void print_header(void)
{
    char text[500];
    for (const Row *r = row; r < row + NROW; r++) {
        if (!r->field)
            continue;
        snprintf(text, sizeof text, "%s%s", values_text(r), r->doc ? r->doc : r->help);
        int column = printf("    %s%s;", member_type(r)->c, r->field);
        column += printf("%*s", column < MEMBER_AT ? MEMBER_AT - column : 1, "");
        put_comment(column, text);
        if (is(r, "LIST RULES"))
            printf("    int n%s;\n", r->field);
    }
}

/* ("memory", "int64"): the members as ctypes is told them. */
static void print_python(void)
{
    for (const Row *r = row; r < row + NROW; r++) {
        if (!r->field)
            continue;
        printf("    (\"%s\", \"%s\"),\n", r->field, member_type(r)->python);
        if (is(r, "LIST RULES"))
            printf("    (\"n%s\", \"int\"),\n", r->field);
    }
}

/* ---- lists of the options of commands ---- */

static const char *argument(const Row *r)
{
    static const char *const kinds[][2] = {
        {"FLAG", ""},         {"REAL", "X"},  {"INT SEED", "N"}, {"BYTES MEMORY", "BYTES"},
        {"OUT ONTO", "FILE"}, {"DIR", "DIR"}, {"PAIR", "A B"},   {"IN INS", "PATH"}};
    if (r->words && is(r, "MEMORY AUTO"))
        return r->words;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (is(r, kinds[i][0]))
            return kinds[i][1];
    return r->words ? r->words : "TEXT";
}

/* The default as help shows it, "" where the text says it or there is none. */
static const char *shown_default(const Row *r)
{
    static char text[80];
    size_t n = strlen(r->help), bare = r->value[0] == '"';
    if ((n && r->help[n - 1] == ')') || !strcmp(r->value, "NULL") || is(r, "FLAG"))
        return "";
    snprintf(text, sizeof text, " (%.*s)", (int)(strlen(r->value) - 2 * bare), r->value + bare);
    return text;
}

static void put_roff(const char *text)
{
    for (; *text; text++)
        if (*text == '-')
            printf("\\-");
        else if (*text == '\\')
            printf("\\e");
        else if (*text == '\'')
            printf("\\(aq");
        else
            putchar(*text);
}

static void print_man(void)
{
    for (const Row *r = row; r < row + NROW; r++) {
        if (!*r->commands)
            continue;
        printf(".TP\n\\fB\\-\\-");
        put_roff(r->name);
        printf("\\fP%s", *argument(r) ? " \\fI" : "");
        put_roff(argument(r));
        printf("%s\n", *argument(r) ? "\\fP" : "");
        put_roff(r->commands);
        printf(": ");
        put_roff(r->help);
        put_roff(shown_default(r));
        putchar('\n');
    }
}

/* "--a, --b and --c", a name a line. */
static void print_resume(const char *class)
{
    int left = 0;
    for (const Row *r = row; r < row + NROW; r++)
        left += !strcmp(r->resume, class);
    for (const Row *r = row; r < row + NROW; r++) {
        if (strcmp(r->resume, class))
            continue;
        left--;
        printf(left > 1 ? ".BR \\-\\-" : ".B \\-\\-");
        put_roff(r->name);
        printf(left > 1 ? " ,\n" : left ? "\nand\n" : "\n");
    }
}

static void print_markdown(void)
{
    printf("| member | option | of | may be | default |\n|---|---|---|---|---|\n");
    for (const Row *r = row; r < row + NROW; r++) {
        bool list = is(r, "LIST RULES"), quoted = r->value[0] == '"';
        const char *values = is(r, "FLAG SWITCH") ? "0, 1"
                             : list && !r->words  ? "a list"
                             : is(r, "SEED")      ? "any"
                             : is_number(r)       ? range_text(r)
                             : r->words           ? r->words
                                                  : "a text";
        const char *value = list ? "none" : is(r, "SWITCH") ? switch_text(r) : r->value;
        if (!r->field)
            continue;
        printf("| `%s` | %s%s | %s | ", r->field, *r->name ? "--" : "", r->name, r->commands);
        for (values = *values ? values : "0 or more"; *values; values++)
            printf(*values == '|' ? ", " : "%c", *values);
        quoted = quoted && value == r->value;
        printf(" | %.*s |\n", (int)strlen(value) - 2 * quoted, value + quoted);
    }
}

int main(int argc, char **argv)
{
    const char *what = argc == 2 ? argv[1] : "";
    if (!strcmp(what, "header"))
        print_header();
    else if (!strcmp(what, "man"))
        print_man();
    else if (!strncmp(what, "man-", 4))
        print_resume(what + 4);
    else if (!strcmp(what, "markdown"))
        print_markdown();
    else if (!strcmp(what, "python"))
        print_python();
    else
        return fprintf(stderr, "usage: options header|man|man-CLASS|markdown|python\n"), 2;
    return 0;
}
