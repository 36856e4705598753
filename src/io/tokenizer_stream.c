/* Text in pieces of any size to token ids, the same ids as of the whole text at once.
 *
 * A chain of stages, each with a window of text that it cannot decide yet:
 *
 *     repair -> added tokens (verbatim) -> NFC -> added tokens (normalized) -> splits ... -> word
 *
 * A stage takes text and a flag `end` that a stretch ends here (at an added token, at a border of
 * the split before, or with the file); later stages see no further. It passes on what following
 * text cannot change, and keeps the rest:
 *
 *     added tokens: from where a token, a longer one or its white space could begin
 *     NFC: from the last place where composed forms cannot interact (text_cut)
 *     split: from where a match depends on what follows (regex_find, open)
 *     word: everything until its end, when it is merged
 *
 * So memory grows with the longest word only, not with the text; a window or word of more than
 * MAX_WORD bytes is an error, and so is a normalizer that makes more than MAX_GROWTH times the
 * text, or more than MAX_MADE bytes when one piece of MAX_FEED comes. The ids are those of Hugging
 * Face's added_vocabulary.rs, split.rs and byte_level.rs on the whole text. */
#include "tokenizer.h"

#include <string.h>

typedef struct TextStage {
    /* Works on text[0..n), after which the stretch ends or not; returns how much it is done with.
     */
    size_t (*run)(struct TextStage *s, const char *text, size_t n, bool end);
    struct TextStage *next;
    Encoder *e;
    const char *what;    /* it keeps, for the message */
    const Split *prefix; /* whose mark a stretch begins with; NULL: none */
    bool begun;          /* a stretch has */
    Buf window;

    const Split *split;
    const Normal *normal;
    const Finder *finder; /* added tokens: */
    size_t given;         /* text before it was passed on or is a token's */
    size_t searched;      /* text before it begins no token */
    bool after_word;      /* the character before the window is one of a word */
    bool put;             /* something of the stretch was passed on */
    Buf made;             /* text that was changed */
    size_t nmade, now;    /* bytes of it: of all texts, and of what was fed last */
} TextStage;

struct Encoder {
    Arena *a;
    const Tokenizer *t;
    Bpe *bpe;
    Unigram *unigram;
    void (*put)(void *arg, const uint32_t *id, size_t n);
    void *arg;
    const char *where;
    int64_t nbyte; /* of the text so far */
    size_t nfed;   /* of all texts so far */
    bool bad;      /* it is not UTF-8 somewhere */
    /* of all texts */
    int ntext, with_bad, empty;
    int64_t nbad, first_bad; /* places that are not UTF-8; the first one's byte */
    const char *bad_path, *empty_path;
    Buf raw, repaired, scratch;
    bool first; /* nothing of the text was given yet */
    int nstage;
    TextStage stage[2 * MAX_SPLITS + 3];
};

/* ---- the chain ---- */

_Noreturn static void fail_long(const TextStage *s)
{
    fail(s->e->t->ctx, TN_FAIL,
         "%s: before byte %lld: expected at most %d bytes of %s\n  white space or line breaks "
         "in it end it; --token-type byte takes each byte as a token",
         s->e->where, (long long)s->e->nbyte, MAX_WORD, s->what);
}

static void clear(TextStage *s)
{
    s->window.len = 0;
    s->given = s->searched = 0;
    s->begun = s->after_word = s->put = false;
}

/* Whether a stretch that begins so wants its mark before it. */
static bool wants_prefix(const TextStage *s, const char *text)
{
    const Split *p = s->prefix;
    return (p->prefix == PREFIX_ALWAYS || s->e->first) && *text != ' ' &&
           strncmp(text, p->mark, strlen(p->mark));
}

static void take(TextStage *s, const char *text, size_t n, bool end)
{
    if (!n && !(end && s->begun))
        return;
    if (s->prefix && !s->begun && wants_prefix(s, text))
        buf_add(&s->window, s->prefix->mark);
    if (s->prefix)
        s->e->first = false;
    s->begun = true;
    bool own = s->window.len > 0;
    if (own) {
        buf_addn(&s->window, text, n);
        text = s->window.text;
        n = s->window.len;
    }
    size_t done = s->run(s, text, n, end);
    if (end) {
        clear(s);
        return;
    }
    if (n - done > MAX_WORD + 64) /* what a match looks at after its end is a character */
        fail_long(s);
    if (own)
        memmove(s->window.text, text + done, s->window.len = n - done);
    else
        buf_addn(&s->window, text + done, n - done);
}

/* ---- added tokens ---- */

/* The longest token at text[0..n): its index, or -1. *open: a longer one may be there. */
static int longest(const Finder *f, const char *text, size_t n, size_t *len, bool *open)
{
    int found = -1, node = 0;
    for (size_t i = 0;; i++) {
        int child = f->node[node].child;
        *open = i == n && child;
        if (i == n)
            return found;
        while (child && f->node[child].byte != (unsigned char)text[i])
            child = f->node[child].sibling;
        if (!child)
            return found;
        node = child;
        if (f->node[node].added) {
            found = f->node[node].added - 1;
            *len = i + 1;
        }
    }
}

static bool word_at(const TextStage *s, const char *text)
{
    size_t lo, hi;
    int n;
    char_at(text, &n);
    return regex_find(s->e->t->word_char, text, (size_t)n, 0, false, &lo, &hi) == FOUND_ALL;
}

static size_t spaces_before(const char *text, size_t at)
{
    int n;
    while (at) {
        size_t before = char_before(text, at);
        if (!space_char(char_at(text + before, &n)))
            break;
        at = before;
    }
    return at;
}

static size_t spaces_after(const char *text, size_t at, size_t n)
{
    int bytes;
    while (at < n && space_char(char_at(text + at, &bytes)))
        at += (size_t)bytes;
    return at;
}

typedef enum { TOKEN_OPEN, TOKEN_NOT, TOKEN_IS } Verdict;

/* Whether the token at [*lo, *hi) is one where it stands, and with which white space. */
static Verdict judge(const TextStage *s, const Added *x, const char *text, size_t n, bool end,
                     size_t *lo, size_t *hi)
{
    if ((x->single_word || x->rstrip) && *hi == n && !end)
        return TOKEN_OPEN;
    if (x->single_word) {
        bool before = *lo ? word_at(s, text + char_before(text, *lo)) : s->after_word;
        if (before || (*hi < n && word_at(s, text + *hi)))
            return TOKEN_NOT;
    }
    if (x->lstrip)
        *lo = MAX(spaces_before(text, *lo), s->given);
    if (x->rstrip)
        *hi = spaces_after(text, *hi, n);
    return x->rstrip && *hi == n && !end ? TOKEN_OPEN : TOKEN_IS;
}

/* One token at s->searched, or none; false where more text is needed to say. */
static bool find_token(TextStage *s, const char *text, size_t n, bool end)
{
    size_t len = 0, lo = s->searched;
    bool open;
    int k = longest(s->finder, text + lo, n - lo, &len, &open);
    if (open && !end)
        return false;
    if (k < 0) {
        s->searched++;
        return true;
    }
    const Added *x = &s->finder->added[k];
    size_t hi = lo + len;
    Verdict v = judge(s, x, text, n, end, &lo, &hi);
    if (v == TOKEN_OPEN)
        return false;
    s->searched += len;
    if (v == TOKEN_NOT || lo >= hi) /* nothing of it is left by the token before */
        return true;
    take(s->next, text + s->given, lo > s->given ? lo - s->given : 0, true);
    s->e->put(s->e->arg, &x->id, 1);
    s->e->first = false;
    s->given = hi;
    return true;
}

static size_t find_added(TextStage *s, const char *text, size_t n, bool end)
{
    for (bool go = true; go && s->searched < n;)
        if (!s->finder->start[(unsigned char)text[s->searched]])
            s->searched++;
        else
            go = find_token(s, text, n, end);
    size_t plain = end ? n : s->searched;
    if (s->finder->lstrip && !end)
        plain = spaces_before(text, plain);
    take(s->next, text + s->given, plain > s->given ? plain - s->given : 0, end);
    s->given = MAX(s->given, plain);
    size_t done = MIN(s->given, s->searched);
    if (done && s->e->t->word_char)
        s->after_word = word_at(s, text + char_before(text, done));
    s->given -= done;
    s->searched -= done;
    return done;
}

/* ---- normalizers, splits, words ---- */

/* How much a normalizer may make: of all texts so far, and at once, as later stages hold it all. */
static size_t room(const TextStage *s)
{
    size_t all = MAX_GROWTH * s->e->nfed + MAX_MORE, once = MAX_MADE;
    size_t left = MIN(all - MIN(all, s->nmade), once - MIN(once, s->now));
    return MAX(left, 1u);
}

static size_t normalize(TextStage *s, const char *text, size_t n, bool end)
{
    const Normal *f = s->normal;
    s->made.len = 0;
    s->made.most = room(s);
    s->made.beyond = f->beyond;
    size_t done = f->run(f, &s->made, &s->e->scratch, text, n, s->put, end);
    s->nmade += s->made.len;
    s->now += s->made.len;
    s->put = s->put || s->made.len;
    take(s->next, s->made.text, s->made.len, end);
    return done;
}

static size_t split(TextStage *s, const char *text, size_t n, bool end)
{
    size_t at = 0, lo, hi;
    Found found = FOUND_ALL;
    const Regex *r = s->split->regex;
    while (at < n && (found = regex_find(r, text, n, at, !end, &lo, &hi)) == FOUND_ALL) {
        if (s->split->how == SPLIT_PREVIOUS)
            lo = hi;
        take(s->next, text + at, lo - at, true);
        if (s->split->how == SPLIT_REMOVED)
            s->e->first = false;
        else
            take(s->next, text + lo, hi - lo, true);
        at = hi;
    }
    size_t plain = at < n && found == FOUND_PART ? lo : n;
    take(s->next, text + at, plain - at, end);
    return plain;
}

/* Spaces become marks, and each mark begins a word. */
static size_t metaspace(TextStage *s, const char *text, size_t n, bool end)
{
    const char *mark = s->split->mark;
    size_t len = strlen(mark), from = 0;
    s->made.len = 0;
    for (size_t at = 0; at < n; at++) {
        bool space = text[at] == ' ';
        if (!space && (text[at] != *mark || n - at < len || memcmp(text + at, mark, len)))
            continue;
        buf_addn(&s->made, text + from, at - from);
        if (s->split->cuts) {
            take(s->next, s->made.text, s->made.len, true);
            s->made.len = 0;
        }
        buf_add(&s->made, mark);
        at += space ? 0 : len - 1;
        from = at + 1;
    }
    buf_addn(&s->made, text + from, n - from);
    take(s->next, s->made.text, s->made.len, end);
    return n;
}

/* As much of a word as its model can tell the ids of. */
static size_t word(TextStage *s, const char *text, size_t n, bool end)
{
    const uint32_t *id;
    size_t count, done;
    Encoder *e = s->e;
    if (!n)
        return 0;
    if (e->t->byte_level && end && n > MAX_WORD)
        fail_long(s);
    if (e->unigram)
        done = unigram_encode(e->unigram, text, n, !s->put, end, &id, &count);
    else
        done = bpe_encode(e->bpe, text, n, !s->put, end, &id, &count);
    s->put = s->put || done;
    e->put(e->arg, id, count);
    return done;
}

/* ---- the encoder ---- */

static TextStage *add_stage(Encoder *e, size_t (*run)(TextStage *, const char *, size_t, bool),
                            const char *what)
{
    TextStage *s = &e->stage[e->nstage++];
    *s = (TextStage){.run = run, .e = e, .what = what, .window.a = e->a, .made.a = e->a};
    buf_add(&s->made, "");
    if (e->nstage > 1)
        s[-1].next = s;
    return s;
}

/* A split that only puts a mark before text does it where the next stage begins. */
static void add_splits(Encoder *e)
{
    const Tokenizer *t = e->t;
    const Split *prefix = NULL;
    for (int i = 0; i <= t->nsplit; i++) {
        const Split *x = i < t->nsplit ? &t->split[i] : NULL;
        prefix = x && x->prefix ? x : prefix;
        if (x && x->how == SPLIT_NONE)
            continue;
        TextStage *s = x ? add_stage(e, x->how == SPLIT_METASPACE ? metaspace : split,
                                     "a match of the pre-tokenizer")
                         : add_stage(e, word, "a word of the pre-tokenizer");
        s->split = x;
        s->prefix = prefix;
        prefix = NULL;
    }
}

Encoder *encoder_new(Arena *a, const Tokenizer *t,
                     void (*put)(void *arg, const uint32_t *id, size_t n), void *arg)
{
    Encoder *e = NEW(a, Encoder);
    *e = (Encoder){
        .a = a, .t = t, .put = put, .arg = arg, .raw.a = a, .repaired.a = a, .scratch.a = a};
    if (t->bytes)
        return e;
    if (t->trie)
        e->unigram = unigram_new(a, t);
    else
        e->bpe = bpe_new(a, t);
    if (t->verbatim)
        add_stage(e, find_added, "white space beside an added token")->finder = t->verbatim;
    for (int i = 0; i < t->nnormal; i++)
        add_stage(e, normalize, "text that the normalizer joins")->normal = &t->normal[i];
    if (t->normalized)
        add_stage(e, find_added, "white space beside an added token")->finder = t->normalized;
    add_splits(e);
    return e;
}

void encoder_begin(Encoder *e, const char *where)
{
    e->where = where;
    e->nbyte = 0;
    e->bad = false;
    e->raw.len = 0;
    e->first = true;
    for (int i = 0; i < e->nstage; i++)
        clear(&e->stage[i]);
}

static void put_bytes(Encoder *e, const char *text, size_t n)
{
    uint32_t id[256];
    for (size_t at = 0; at < n; at += LEN(id)) {
        size_t count = MIN(n - at, (size_t)LEN(id));
        for (size_t i = 0; i < count; i++)
            id[i] = (unsigned char)text[at + i];
        e->put(e->arg, id, count);
    }
}

/* At most MAX_FEED bytes, so that no stage sees more at once, whole text or not. */
static void feed(Encoder *e, const char *text, size_t n, bool last)
{
    e->nbyte += (int64_t)n;
    e->nfed += n;
    for (int i = 0; i < e->nstage; i++)
        e->stage[i].now = 0;
    if (e->t->bytes) {
        put_bytes(e, text, n);
        return;
    }
    buf_addn(&e->raw, text, n);
    e->repaired.len = 0;
    int64_t bad;
    size_t first, left = text_repair(&e->repaired, e->raw.text, e->raw.len, last, &bad, &first);
    if (bad && !e->nbad) {
        e->first_bad = e->nbyte - (int64_t)(e->raw.len - first);
        e->bad_path = e->where;
    }
    e->bad = e->bad || bad;
    e->nbad += bad;
    memmove(e->raw.text, e->raw.text + e->raw.len - left, left);
    e->raw.len = left;
    take(&e->stage[0], e->repaired.text, e->repaired.len, last);
}

void encoder_feed(Encoder *e, const char *text, size_t n)
{
    for (size_t at = 0; at < n; at += MAX_FEED)
        feed(e, text + at, MIN(n - at, (size_t)MAX_FEED), false);
}

void encoder_end(Encoder *e)
{
    feed(e, "", 0, true);
    e->ntext++;
    e->with_bad += e->bad;
    e->empty_path = e->nbyte || e->empty ? e->empty_path : e->where;
    e->empty += !e->nbyte;
}

void encoder_tell(const Encoder *e, Arena *a, void (*warn)(void *arg, const char *message),
                  void *arg)
{
    if (warn && e->empty && e->ntext == 1)
        warn(arg, arena_printf(a, "%s: is empty", e->empty_path));
    else if (warn && e->empty)
        warn(arg, arena_printf(a, "%s: is empty (%d of %d texts are)", e->empty_path, e->empty,
                               e->ntext));
    if (warn && e->nbad)
        warn(arg,
             arena_printf(a,
                          "%s: byte %lld: not UTF-8; %lld such place%s in %d of %d texts: each "
                          "became U+FFFD",
                          e->bad_path, (long long)e->first_bad, (long long)e->nbad,
                          e->nbad == 1 ? "" : "s", e->with_bad, e->ntext));
}

void encoder_put_special(Encoder *e, bool after)
{
    const Tokenizer *t = e->t;
    if (t->special.post)
        fail(t->ctx, TN_FAIL, "%s: special tokens: %s", t->path, t->special.post);
    e->put(e->arg, after ? t->special.after : t->special.before,
           (size_t)(after ? t->special.nafter : t->special.nbefore));
}
