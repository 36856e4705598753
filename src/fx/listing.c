/* A graph's list of nodes, as str(gm.graph) shows it, as the code that gm.code would have, line by
 * line, so that errors name the list's lines:
 *
 *   graph():                                                       def forward(self,
 *       %x : [num_users=1] = placeholder[target=x]                 x,
 *       %w : [num_users=1] = get_attr[target=w]                    ): w = self.w
 *       %y : [num_users=1] = call_function[target=torch.ops.       y = torch.ops.
 *           aten.mm.default](args = (%x, %w), kwargs = {})             aten.mm.default(x, w)
 *       return y                                                   return y
 *
 * Texts stand there without quotes: what is no number, name of torch or value gets them back. The
 * list has no types. Linear. */
#include "fx.h"

#include <stdlib.h>
#include <string.h>

typedef struct Listing {
    Arena *a;
    const char *file;
    int line;
    Buf code;
} Listing;

static _Noreturn void expected(const Listing *x, const char *what, const char *found)
{
    fail(arena_ctx(x->a), TN_FAIL, "%s:%d:1: a list of nodes: expected %s, found \"%.*s\"", x->file,
         x->line, what, (int)MIN(strcspn(found, "\n"), 60), found);
}

/* Goes past `word` at *s. */
static void need(const Listing *x, const char **s, const char *word)
{
    size_t n = strlen(word);
    if (strncmp(*s, word, n) != 0)
        expected(x, word, *s);
    *s += n;
}

/* Whether a word means in code what it says. */
static bool is_plain(const char *word)
{
    static const char *const values[] = {"None", "True", "False", "inf", "-inf", "nan"};
    char *end;
    for (int i = 0; i < LEN(values); i++)
        if (!strcmp(word, values[i]))
            return true;
    strtod(word, &end);
    return (*word && !*end) || !strncmp(word, "torch.", 6);
}

/* The length of a word. A comma ends it where a space or a bracket follows; those of einsum's
 * equation, which may have spaces, stand before its list of tensors. */
static size_t word_length(const char *s)
{
    const char *list = strstr(s, ", ["), *arrow = strstr(s, "->");
    if (list && arrow && arrow < list && strcspn(s, "%()[]{}\n") == (size_t)(list + 2 - s))
        return (size_t)(list - s);
    size_t n = strcspn(s, ",()[]{}\n");
    while (s[n] == ',' && !strchr(" )]}\n", s[n + 1]))
        n += 1 + strcspn(s + n + 1, ",()[]{}\n");
    return n;
}

static void put_word(Listing *x, const char **s)
{
    size_t n = word_length(*s);
    const char *word = arena_strndup(x->a, *s, n);
    if (strchr("({\n", (*s)[n]) || strpbrk(word, "'\\"))
        expected(x, "a value", *s);
    buf_printf(&x->code, is_plain(word) ? "%s" : "'%s'", word);
    *s += n;
}

static void put_argument(Listing *x, const char **s, int depth)
{
    enum { MOST_DEPTH = 25 };
    bool list = **s == '[' || **s == '(';
    if (depth > MOST_DEPTH)
        expected(x, "fewer brackets", *s);
    if (**s == '%') {
        size_t n = strcspn(++*s, ",()[]{} \n");
        buf_printf(&x->code, "%.*s", (int)n, *s);
        *s += n;
        return;
    }
    if (!list) {
        put_word(x, s);
        return;
    }
    char end = *(*s)++ == '[' ? ']' : ')';
    buf_add(&x->code, "[");
    while (**s != end) {
        put_argument(x, s, depth + 1);
        if (**s != end)
            need(x, s, ",");
        *s += strspn(*s, " ");
        buf_add(&x->code, ", ");
    }
    ++*s;
    buf_add(&x->code, "]");
}

/* `(args = (%a, 1), kwargs = {dim: 2})` */
static void put_arguments(Listing *x, const char *s)
{
    need(x, &s, "(args = (");
    buf_add(&x->code, "(");
    while (*s != ')') {
        put_argument(x, &s, 0);
        if (*s != ')')
            need(x, &s, ",");
        s += strspn(s, " ");
        buf_add(&x->code, ", ");
    }
    need(x, &s, "), kwargs = {");
    while (*s != '}') {
        size_t n = strcspn(s, ":,}\n");
        buf_printf(&x->code, "%.*s = ", (int)n, s);
        s += n;
        need(x, &s, ": ");
        put_argument(x, &s, 0);
        if (*s != '}')
            need(x, &s, ", ");
        buf_add(&x->code, ", ");
    }
    need(x, &s, "})");
    buf_add(&x->code, ")");
}

/* The line of a node; *open: the function's arguments are not all known. */
static void put_node(Listing *x, const char *s, bool *open)
{
    static const char input[] = "placeholder[target=", constant[] = "get_attr[target=",
                      call[] = "call_function[target=";
    size_t n = strcspn(s, " :\n");
    const char *equal = strstr(s, " = ");
    if (!equal || equal > s + strcspn(s, "\n"))
        expected(x, "%NAME : ... = ...", s);
    const char *op = equal + 3, *target = strchr(op, '=') ? strchr(op, '=') + 1 : op;
    size_t len = strcspn(target, "]\n");
    if (!strncmp(op, input, LEN(input) - 1)) {
        if (!*open)
            expected(x, "placeholders before other nodes", s);
        buf_printf(&x->code, "%.*s,", (int)n - 1, s + 1);
        return;
    }
    buf_add(&x->code, *open ? "): " : "");
    *open = false;
    buf_printf(&x->code, "%.*s = ", (int)n - 1, s + 1);
    if (!strncmp(op, constant, LEN(constant) - 1)) {
        buf_printf(&x->code, "self.%.*s", (int)len, target);
    } else if (!strncmp(op, call, LEN(call) - 1) && target[len] == ']') {
        buf_printf(&x->code, "%.*s", (int)len, target);
        put_arguments(x, target + len + 1);
    } else {
        expected(x, "placeholder, get_attr or call_function", op);
    }
}

const char *fx_listing(Arena *a, const char *text, const char *file)
{
    static const char head[] = "graph():";
    Listing x = {.a = a, .file = file, .line = 1, .code = {.a = a}};
    bool open = true;
    const char *s = text + strspn(text, " \t\r\n");
    if (strncmp(s, head, LEN(head) - 1) || fx_foreign_graph(s) != FOREIGN_GRAPH)
        return text;
    for (const char *t = text; t < s; t++)
        if (*t == '\n') {
            buf_add(&x.code, "\n");
            x.line++;
        }
    buf_add(&x.code, "def forward(self,");
    for (s += strcspn(s, "\n"); *s; s += strcspn(s, "\n")) {
        buf_add(&x.code, "\n");
        x.line++;
        s++;
        s += strspn(s, " \t\r");
        if (*s == '%') {
            put_node(&x, s, &open);
        } else if (!strncmp(s, "return", 6)) {
            buf_printf(&x.code, "%s%.*s", open ? "): " : "", (int)strcspn(s, "\n"), s);
            open = false;
        } else if (*s && *s != '\n') {
            expected(&x, "a node", s);
        }
    }
    return x.code.text;
}
