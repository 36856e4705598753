/* Symbolic sizes, s0 and s77 of annotations, which --shapes or --inputs bind: where an input that
 * they name is annotated f32[s0, 2*s1], its type says what s0 is; an expression is checked once all
 * symbols are known. */
#include "fx.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- expressions: integers, symbols, + - * // **, brackets, Max and Min ---- */

typedef struct Sizes {
    Arena *a;
    const Map *known; /* name -> int64_t *; may be NULL */
    const char *at;
    int depth;
    bool bad;
} Sizes;

static int64_t sum(Sizes *z);

static const char *skip(Sizes *z)
{
    z->at += strspn(z->at, " ");
    return z->at;
}

/* The arguments of Max or Min, whose name is behind. */
static int64_t extreme(Sizes *z, bool max)
{
    int64_t x = sum(z);
    while (!z->bad && *skip(z) == ',') {
        z->at++;
        int64_t y = sum(z);
        x = (y > x) == max ? y : x;
    }
    z->bad |= *skip(z) != ')';
    z->at += !z->bad;
    return x;
}

static int64_t symbol(Sizes *z)
{
    if (!strncmp(z->at, "Max(", 4) || !strncmp(z->at, "Min(", 4)) {
        bool max = z->at[1] == 'a';
        z->at += 4;
        return extreme(z, max);
    }
    size_t n = strspn(z->at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789");
    const int64_t *known = n && z->known ? map_find(z->known, arena_strndup(z->a, z->at, n)) : NULL;
    z->bad |= !known;
    z->at += n;
    return known ? *known : 0;
}

static int64_t atom(Sizes *z)
{
    if (z->bad || ++z->depth > 60) {
        z->bad = true;
        return 0;
    }
    int64_t x = 0;
    skip(z);
    if (isdigit((unsigned char)*z->at)) {
        char *end;
        errno = 0;
        x = strtoll(z->at, &end, 10);
        z->bad |= errno == ERANGE;
        z->at = end;
    } else if (*z->at == '-') {
        z->at++;
        x = -atom(z);
    } else if (*z->at == '(') {
        z->at++;
        x = sum(z);
        z->bad |= *skip(z) != ')';
        z->at += !z->bad;
    } else {
        x = symbol(z);
    }
    z->depth--;
    return x;
}

static int64_t factor(Sizes *z)
{
    int64_t x = atom(z), y = 1;
    skip(z);
    if (z->bad || strncmp(z->at, "**", 2) != 0)
        return x;
    z->at += 2;
    int64_t times = factor(z);
    z->bad |= times < 0 || times > 62;
    for (int64_t i = 0; i < times && !z->bad; i++)
        z->bad |= __builtin_mul_overflow(y, x, &y);
    return y;
}

/* Floor division, as Python has it. */
static int64_t divide(Sizes *z, int64_t x, int64_t y)
{
    z->bad |= y == 0 || (x == INT64_MIN && y == -1);
    return z->bad ? 0 : x / y - (x % y != 0 && (x < 0) != (y < 0));
}

static int64_t term(Sizes *z)
{
    int64_t x = factor(z);
    while (!z->bad && (*skip(z) == '*' || !strncmp(z->at, "//", 2))) {
        bool divides = *z->at == '/';
        z->at += 1 + divides;
        int64_t y = factor(z);
        if (divides)
            x = divide(z, x, y);
        else
            z->bad |= __builtin_mul_overflow(x, y, &x);
    }
    return x;
}

static int64_t sum(Sizes *z)
{
    int64_t x = term(z);
    while (!z->bad && (*skip(z) == '+' || *z->at == '-')) {
        bool minus = *z->at++ == '-';
        int64_t y = term(z);
        z->bad |= minus ? __builtin_sub_overflow(x, y, &x) : __builtin_add_overflow(x, y, &x);
    }
    return x;
}

bool symbols_size(Arena *a, const Map *known, const char **s, int64_t *size)
{
    Sizes z = {.a = a, .known = known, .at = *s};
    *size = sum(&z);
    if (z.bad)
        return false;
    *s = skip(&z);
    return true;
}

/* ---- what inputs say ---- */

/* The annotation's sizes after `NAME: "f32[`; NULL: the code annotates no such name. */
static const char *sizes_of(const char *text, const char *name)
{
    size_t len = strlen(name);
    for (const char *at = strstr(text, name); at; at = strstr(at + 1, name)) {
        const char *s = at + len + strspn(at + len, " ");
        if ((at > text && (isalnum((unsigned char)at[-1]) || strchr("_.", at[-1]))) || *s != ':')
            continue;
        s += 1 + strspn(s + 1, " \"'");
        s += strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789");
        return *s == '[' ? s + 1 : NULL;
    }
    return NULL;
}

static void bind(Arena *a, Map *known, const char *file, const char *input, const char *name,
                 int64_t size)
{
    const int64_t *before = map_find(known, name);
    if (before && *before != size)
        fail(arena_ctx(a), TN_FAIL,
             "%s: size %s: expected one, found %lld, and %lld of input \"%s\"", file, name,
             (long long)*before, (long long)size, input);
    int64_t *kept = NEW(a, int64_t);
    *kept = size;
    map_put(known, name, kept);
}

Map *symbols_bind(Arena *a, const char *text, const char *file, const FxOptions *o)
{
    Map *known = NEW(a, Map);
    known->a = a;
    for (int i = 0; i < o->ninput; i++) {
        const char *s = sizes_of(text, o->name[i]);
        for (int d = 0; s && d < o->type[i].rank && *s && *s != ']'; d++) {
            s += strspn(s, " ");
            size_t n = strcspn(s, ",]");
            bool plain = isalpha((unsigned char)*s) &&
                         strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_") >= n;
            if (plain)
                bind(a, known, file, o->name[i], arena_strndup(a, s, n), o->type[i].dim[d]);
            s += n + (s[n] == ',');
        }
    }
    return known;
}
