/* Patterns of pre-tokenizers. Hugging Face runs them by Oniguruma (Ruby's syntax), Tenon by PCRE2,
 * so a pattern is translated construct by construct: constructs with one meaning in both are kept,
 * those with another meaning are spelled out (\s, \d, ".", "$"), all others are refused by name.
 * Patterns that could look back (anchors at the start, \b, look-behind) are refused too, so that a
 * match depends on nothing before the place where the search begins.
 *
 * That, with PCRE2's hard partial matching, makes streaming exact: while more text may follow, a
 * match counts only if the matcher did not touch the end of the text so far. Then following text
 * could have changed neither the match nor anything tried before it.
 *
 * Both libraries' tables are of one version of Unicode each; characters assigned later than PCRE2's
 * version are no letters to it. */
#include "tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <ctype.h>
#include <math.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

/* PCRE2 10.42 takes \P{Lu} and \P{Nd} for disjoint, and a first character that look-ahead promises
 * for one before the last: \P{Lu}??\P{Nd} and (?=a+?)a??a go wrong unless it is told not to think
 * ahead, which takes a twentieth of the time. */
#define HOW (PCRE2_UTF | PCRE2_UCP | PCRE2_NO_START_OPTIMIZE | PCRE2_NO_AUTO_POSSESS)

enum {
    MAX_PATTERN = 1 << 16, /* bytes */
    MAX_ITEMS = 1 << 16,   /* with groups written out as often as counts say; PCRE2 does that */
    MAX_NEST = 60,
    MAX_STEPS = 10000000, /* of a match that begins at one place, where it tries again */
    MAX_HEAP = 64 << 10,  /* KiB */
};

struct Regex {
    Ctx *ctx;
    const char *where;
    pcre2_code *code;
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    bool jit;
};

/* ---- from Oniguruma's syntax to PCRE2's ---- */

#define SPACES                                                                                  \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}" \
    "\\x{205f}\\x{3000}"

typedef struct Rewrite {
    Ctx *ctx;
    const char *where, *pattern;
    const char *s; /* what is left */
    Buf out;
    bool atom;                  /* something precedes that a quantifier can repeat */
    int depth, folds;           /* open groups; the depth of the group that ignores case, 0: none */
    uint64_t looks;             /* bit by depth: an open group that looks ahead */
    char last;                  /* letter before, where case is ignored */
    double items[MAX_NEST + 1]; /* by depth: characters and sets of an open group so far */
    double group;               /* of the group that has just ended; 0: something else has */
} Rewrite;

_Noreturn static void refuse(Rewrite *w, const char *what)
{
    fail(w->ctx, TN_FAIL, "%s: pattern \"%s\": %s at byte %d is not supported", w->where,
         w->pattern, what, (int)(w->s - w->pattern));
}

static bool starts(const Rewrite *w, const char *text)
{
    return !strncmp(w->s, text, strlen(text));
}

static void keep(Rewrite *w, int n)
{
    buf_addn(&w->out, w->s, (size_t)n);
    w->s += n;
}

static int hex_digits(const char *s, int most, unsigned *value)
{
    int n = 0;
    *value = 0;
    for (; n < most; n++) {
        if (!isxdigit((unsigned char)s[n]))
            break;
        int c = s[n] | ' ';
        *value = *value * 16 + (unsigned)(c >= 'a' ? c - 'a' + 10 : c - '0');
    }
    return n;
}

/* \xHH, \x{H...}, \uHHHH */
static void rewrite_code(Rewrite *w)
{
    unsigned c;
    if (w->folds)
        refuse(w, "ignoring the case of an escape");
    bool braces = starts(w, "\\x{");
    int most = braces ? 6 : w->s[1] == 'u' ? 4 : 2;
    int n = hex_digits(w->s + (braces ? 3 : 2), most, &c);
    if ((braces ? n < 1 || w->s[3 + n] != '}' : n != most) ||
        (w->s[1] == 'x' && !braces && c > 0x7f))
        refuse(w, "this escape");
    buf_printf(&w->out, "\\x{%x}", c);
    w->s += n + (braces ? 4 : 2);
}

/* \p{...} and \P{...}: general categories, and the scripts that pre-tokenizers name. */
static void rewrite_property(Rewrite *w)
{
    static const char *const categories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn",
                                             "Mc", "Me", "N",  "Nd", "Nl", "No", "P",  "Pc",
                                             "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm",
                                             "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "Cc"};
    static const char *const scripts[] = {"Han",      "Hiragana", "Katakana", "Hangul", "Latin",
                                          "Cyrillic", "Greek",    "Arabic",   "Hebrew", "Thai"};
    bool braces = w->s[2] == '{', negated = w->s[1] == 'P';
    const char *name = braces ? w->s + 3 : "";
    if (*name == '^') {
        negated = !negated;
        name++;
    }
    size_t n = strcspn(name, "}");
    const char *kind = NULL;
    for (int i = 0; i < LEN(categories); i++)
        if (strlen(categories[i]) == n && !strncmp(name, categories[i], n))
            kind = "";
    for (int i = 0; i < LEN(scripts); i++)
        if (strlen(scripts[i]) == n && !strncmp(name, scripts[i], n))
            kind = "sc:";
    if (!braces || !name[n] || !kind || (w->folds && *name == 'L' && strchr("ult", name[1])))
        refuse(w, "this property");
    buf_printf(&w->out, "\\%c{%s%.*s}", negated ? 'P' : 'p', kind, (int)n, name);
    w->s = name + n + 1;
}

/* One escape; says whether it stands for a set, which no range can begin or end with. */
static bool rewrite_escape(Rewrite *w, bool in_class)
{
    char c = w->s[1];
    if (c && strchr("rntf", c)) {
        keep(w, 2);
        return false;
    }
    if (c == 'x' || c == 'u') {
        rewrite_code(w);
        return false;
    }
    if (c && strchr(" \\^$.|?*+()[]{}-/#&~,:;!=@%\"", c)) {
        keep(w, 2);
        return false;
    }
    if (c == 'p' || c == 'P') {
        rewrite_property(w);
        return true;
    }
    if (c == 's' || (c == 'S' && !in_class))
        buf_printf(&w->out, in_class ? "%s%s" : "[%s%s]", c == 'S' ? "^" : "", SPACES);
    else if (c == 'd' || c == 'D')
        buf_add(&w->out, c == 'd' ? "\\p{Nd}" : "\\P{Nd}");
    else if (c == 'v')
        buf_add(&w->out, "\\x{b}");
    else
        refuse(w, "this escape");
    w->s += 2;
    return c != 'v';
}

/* The token before in a class: only after a character can a dash make a range. */
typedef enum { CLASS_NONE, CLASS_CHAR, CLASS_SET, CLASS_DASH } ClassItem;

static ClassItem rewrite_class_item(Rewrite *w, ClassItem before)
{
    if (*w->s == '-' && w->s[1] != ']' && before != CLASS_NONE) {
        if (before != CLASS_CHAR)
            refuse(w, "this range");
        keep(w, 1);
        return CLASS_DASH;
    }
    bool set = *w->s == '-';
    if (*w->s == '\\')
        set = rewrite_escape(w, true);
    else
        keep(w, char_bytes(*w->s));
    if (set && before == CLASS_DASH)
        refuse(w, "the end of a range before this");
    return set || before == CLASS_DASH ? CLASS_SET : CLASS_CHAR;
}

static void rewrite_class(Rewrite *w)
{
    ClassItem before = CLASS_NONE;
    keep(w, w->s[1] == '^' ? 2 : 1);
    do {
        if (!*w->s || (before == CLASS_NONE && *w->s == ']') || *w->s == '[' || starts(w, "&&"))
            refuse(w, "this in a class");
        if (w->folds && (unsigned char)*w->s >= 0x80)
            refuse(w, "ignoring the case of a character that is not ASCII");
        before = rewrite_class_item(w, before);
    } while (*w->s != ']');
    keep(w, 1);
}

static void rewrite_group(Rewrite *w)
{
    static const char *const heads[] = {"(?:", "(?=", "(?!", "(?>"};
    if (++w->depth > MAX_NEST)
        refuse(w, "groups nested as deep as this");
    w->items[w->depth] = 1;
    w->atom = false;
    w->looks &= ~(1ull << w->depth);
    if (starts(w, "(?i:")) {
        w->folds = w->folds ? w->folds : w->depth;
        keep(w, 4);
        return;
    }
    for (int i = 0; i < LEN(heads); i++)
        if (starts(w, heads[i])) {
            w->looks |= (uint64_t)(i == 1 || i == 2) << w->depth;
            keep(w, 3);
            return;
        }
    if (w->s[1] == '?' || w->s[1] == '*')
        refuse(w, "this kind of group");
    buf_add(&w->out, "(?:");
    w->s++;
}

static void leave_group(Rewrite *w)
{
    if (!w->depth)
        refuse(w, "this without a group");
    w->atom = !(w->looks >> w->depth & 1); /* Oniguruma repeats no look-ahead */
    w->last = 0;
    w->folds = w->depth == w->folds ? 0 : w->folds;
    w->group = w->items[w->depth--];
    w->items[w->depth] += w->group;
    keep(w, 1);
}

/* A group is written out as often as its largest count says. */
static void count_items(Rewrite *w, const char *counts)
{
    char *end;
    double count = strtod(counts, &end);
    if (*end == ',' && end[1] != '}')
        count = strtod(end + 1, NULL);
    w->items[w->depth] += w->group * fmax(count - 1, 0);
}

static void rewrite_repeat(Rewrite *w)
{
    if (!w->atom)
        refuse(w, "this quantifier");
    w->atom = false;
    if (*w->s != '{') {
        keep(w, w->s[1] == '?' || w->s[1] == '+' ? 2 : 1);
        return;
    }
    size_t n = 1 + strspn(w->s + 1, "0123456789"), m = n;
    if (w->s[m] == ',')
        m += 1 + strspn(w->s + m + 1, "0123456789");
    if (n == 1 || w->s[m] != '}' || strchr("?+", w->s[m + 1] ? w->s[m + 1] : 'x'))
        refuse(w, "this quantifier");
    count_items(w, w->s + 1);
    keep(w, (int)m + 1);
}

/* With case ignored Oniguruma takes ligatures for these pairs of letters. */
static void check_fold(Rewrite *w, char c)
{
    static const char *const pairs[] = {"ss", "ff", "fi", "fl", "st"};
    c = (char)(c | ' ');
    if ((unsigned char)*w->s >= 0x80)
        refuse(w, "ignoring the case of a character that is not ASCII");
    for (int i = 0; i < LEN(pairs); i++)
        if (w->last == pairs[i][0] && c == pairs[i][1])
            refuse(w, "ignoring the case of a ligature's letters");
    w->last = c;
}

static void rewrite_literal(Rewrite *w)
{
    if (w->folds)
        check_fold(w, *w->s);
    if (*w->s == ']' || *w->s == '}')
        buf_add(&w->out, "\\");
    keep(w, char_bytes(*w->s));
    w->atom = true;
}

static void rewrite_one(Rewrite *w)
{
    char c = *w->s;
    if (c == '\\' || c == '[' || c == '.') {
        w->last = 0;
        w->atom = true;
    }
    if (!strchr("*+?{", c))
        w->group = 0;
    w->items[w->depth]++;
    if (w->items[w->depth] > MAX_ITEMS)
        refuse(w, "a count that makes more than 65536 items of it");
    switch (c) {
    case '\\': rewrite_escape(w, false); break;
    case '[': rewrite_class(w); break;
    case '(': rewrite_group(w); break;
    case '*':
    case '+':
    case '?':
    case '{': rewrite_repeat(w); break;
    case '.':
    case '$': /* at the end of each line */
        buf_add(&w->out, c == '.' ? "[^\\n]" : "(?![^\\n])");
        w->atom = c == '.';
        w->s++;
        break;
    case '^': refuse(w, "this anchor");
    case ')': leave_group(w); break;
    case '|':
        w->atom = false;
        w->last = 0;
        keep(w, 1);
        break;
    default: rewrite_literal(w);
    }
}

/* ---- PCRE2 ---- */

static void drop(void *p)
{
    Regex *r = p;
    pcre2_jit_stack_free(r->stack);
    pcre2_match_context_free(r->context);
    pcre2_match_data_free(r->data);
    pcre2_code_free(r->code);
}

_Noreturn static void fail_code(Ctx *ctx, const char *where, int code)
{
    PCRE2_UCHAR text[200];
    pcre2_get_error_message(code, text, sizeof text);
    fail(ctx, TN_FAIL, "%s: pattern: %s", where, (char *)text);
}

static void prepare_jit(Regex *r)
{
    r->jit = !pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
    if (!r->jit)
        return;
    r->stack = pcre2_jit_stack_create(32 << 10, 8 << 20, NULL);
    if (!r->stack)
        fail(r->ctx, TN_FAIL, "out of memory");
    pcre2_jit_stack_assign(r->context, NULL, r->stack);
}

Regex *regex_new_plain(Arena *a, const char *where, const char *pattern)
{
    int code;
    size_t offset;
    uint32_t empty = 0;
    Regex *r = NEW(a, Regex);
    r->ctx = arena_ctx(a);
    r->where = arena_strdup(a, where);
    arena_defer(a, drop, r);
    r->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, HOW, &code, &offset, NULL);
    if (!r->code)
        fail_code(r->ctx, where, code);
    r->data = pcre2_match_data_create_from_pattern(r->code, NULL);
    r->context = pcre2_match_context_create(NULL);
    if (!r->data || !r->context)
        fail(r->ctx, TN_FAIL, "out of memory");
    pcre2_set_heap_limit(r->context, MAX_HEAP);
    pcre2_set_match_limit(r->context, MAX_STEPS);
    pcre2_pattern_info(r->code, PCRE2_INFO_MATCHEMPTY, &empty);
    if (empty)
        fail(r->ctx, TN_FAIL, "%s: pattern: matches empty text, which is not supported", where);
    prepare_jit(r);
    return r;
}

Regex *regex_new(Arena *a, const char *where, const char *pattern)
{
    Rewrite w = {.ctx = arena_ctx(a), .where = where, .pattern = pattern, .s = pattern, .out.a = a};
    if (strlen(pattern) > MAX_PATTERN)
        fail(w.ctx, TN_FAIL, "%s: pattern: more than %d bytes are not supported", where,
             MAX_PATTERN);
    buf_add(&w.out, "");
    while (*w.s)
        rewrite_one(&w);
    if (w.items[0] > MAX_ITEMS)
        refuse(&w, "a count that makes more than 65536 items of it");
    return regex_new_plain(a, where, w.out.text);
}

Found regex_find(const Regex *r, const char *text, size_t n, size_t at, bool open, size_t *lo,
                 size_t *hi)
{
    uint32_t how = open ? PCRE2_PARTIAL_HARD : 0;
    int code = r->jit ? pcre2_jit_match(r->code, (PCRE2_SPTR)text, n, at, how, r->data, r->context)
                      : pcre2_match(r->code, (PCRE2_SPTR)text, n, at, how | PCRE2_NO_UTF_CHECK,
                                    r->data, r->context);
    if (code == PCRE2_ERROR_NOMATCH)
        return FOUND_NONE;
    if (code < 0 && code != PCRE2_ERROR_PARTIAL)
        fail_code(r->ctx, r->where, code);
    const size_t *span = pcre2_get_ovector_pointer(r->data);
    *lo = span[0];
    *hi = span[1];
    return code == PCRE2_ERROR_PARTIAL ? FOUND_PART : FOUND_ALL;
}
