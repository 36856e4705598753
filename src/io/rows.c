/* Makes rows of documents: the ids of a chat's text, or of a prompt and its completion, each with a
 * bit that says whether it is learned; or of a text, all of which is learned. A token is learned if
 * it has a character of an answer: ids are those of the whole text, and the ids of the text before
 * a border say where it lies among them, by the bytes that tokens stand for where the border is
 * within one. A row that is longer than T + 1 tokens is cut at its end, but a text goes on in
 * another row; a document of which no token after the first is learned makes no row. */
#include "record.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

typedef struct IdList {
    uint32_t *id;
    int count, cap;
} IdList;

typedef struct RowPlace {
    uint64_t begin, learned; /* ids and learned labels of all rows before */
} RowPlace;

struct RowMaker {
    Arena *a, *tmp; /* tmp: of one document */
    const Tokenizer *t;
    const Chat *chat;
    const char *why;
    int64_t T, end;
    Encoder *e;
    IdList *to, whole, part;
    RowPlace *place;
    int nplace, capplace;
    int64_t late;      /* documents left out whose answers begin behind what fits a row */
    const char *first; /* the first that is left out: file and line; NULL: none is */
    RowCounts counts;
};

static void put(void *arg, const uint32_t *id, size_t n)
{
    RowMaker *m = arg;
    IdList *l = m->to;
    if (n > (size_t)(INT32_MAX / 4 - l->count))
        fail(arena_ctx(m->a), TN_FAIL, "a document has too many tokens");
    for (size_t i = 0; i < n; i++)
        PUSH(m->a, l->id, l->count, l->cap, id[i]);
}

RowMaker *rows_new(Arena *a, const Tokenizer *t, const Chat *chat, const char *why, int64_t T,
                   int64_t end)
{
    RowMaker *m = NEW(a, RowMaker);
    *m = (RowMaker){.a = a, .tmp = arena_tmp(a), .t = t, .chat = chat, .why = why, .T = T};
    m->end = end;
    m->e = encoder_new(a, t, put, m);
    return m;
}

/* Appends the ids of a text. */
static void encode(RowMaker *m, IdList *to, const char *text, size_t n)
{
    m->to = to;
    encoder_begin(m->e, "a document");
    encoder_feed(m->e, text, n);
    encoder_end(m->e);
}

/* ---- where an answer lies among the ids ---- */

/* The added token of an id, which may take white space beside it; NULL: it is none of a finder. */
static const Added *find_in(const Finder *f, uint32_t id)
{
    for (int i = 0; f && i < f->count; i++)
        if (f->added[i].id == id)
            return &f->added[i];
    return NULL;
}

static const Added *find_added(const Tokenizer *t, uint32_t id)
{
    const Added *x = find_in(t->verbatim, id);
    return x ? x : find_in(t->normalized, id);
}

/* Bytes of the normalized text that an id stands for. */
static size_t bytes_of(const RowMaker *m, const IdList *l, int at)
{
    size_t n = 0;
    uint32_t id = l->id[at];
    const char *text = find_in(m->t->normalized, id) ? tokenizer_shown(m->t, id, &n)
                                                     : tokenizer_bytes(m->t, id, &n);
    return text ? n : 0;
}

/* Whether the last id of the text before a byte stands for what follows it too, as an unknown token
 * may, and an added one that takes white space: their bytes do not say. */
static bool goes_on(RowMaker *m, const JinjaText *t, size_t at)
{
    int count = m->part.count;
    size_t n;
    if (!count || at >= t->n)
        return false;
    uint32_t last = m->part.id[count - 1];
    const Added *added = find_added(m->t, last);
    if (last != m->t->unk)
        return added && added->rstrip && jinja_space(t->text + at, t->n - at, &n);
    m->part.count = 0;
    encode(m, &m->part, t->text, at + jinja_char(t->text + at, t->n - at));
    return m->part.count == count && m->part.id[count - 1] == last;
}

/* Whether an id stands for white space before it. */
static bool strips_left(const RowMaker *m, const IdList *l, int at)
{
    const Added *added = at < l->count ? find_added(m->t, l->id[at]) : NULL;
    return added && added->lstrip;
}

/* Ids [0, *before) end at a byte of the text or before it, id *after is the first that begins there
 * or behind it: they are one but where the byte is within a token. */
static void find_border(RowMaker *m, const JinjaText *t, size_t at, int *before, int *after)
{
    const IdList *w = &m->whole, *p = &m->part;
    int k = 0;
    size_t rest = 0, sum = 0, n;
    m->part.count = 0;
    encode(m, &m->part, t->text, at);
    while (k < p->count && k < w->count && p->id[k] == w->id[k])
        k++;
    for (int i = k; i < p->count; i++)
        rest += bytes_of(m, p, i);
    for (; k < w->count && sum < rest && !strips_left(m, w, k); k++) {
        n = bytes_of(m, w, k);
        if (sum + n > rest)
            break;
        sum += n;
    }
    *before = k;
    *after = k + (sum < rest && k < w->count);
    if (k && k == p->count && goes_on(m, t, at))
        *before = k - 1;
}

static void learn(IdList *l, int from, int to)
{
    for (int i = from; i < to; i++)
        l->id[i] |= ROW_LEARNED;
}

/* Marks ids after all borders are known. An empty span within a token marks it, as transformers
 * does. */
static void mark_spans(RowMaker *m, const JinjaText *t)
{
    int *range = NEWN(m->tmp, int, 2 * t->nspan + 1), other;
    for (int i = 0; i < t->nspan; i++) {
        const JinjaSpan *s = &t->span[i];
        size_t end = MIN(s->end, t->n), begin = MIN(s->begin, end);
        find_border(m, t, begin, &range[2 * i], &other);
        range[2 * i + 1] = m->whole.count;
        if (end < t->n)
            find_border(m, t, end, &other, &range[2 * i + 1]);
    }
    for (int i = 0; i < t->nspan; i++)
        learn(&m->whole, range[2 * i], range[2 * i + 1]);
}

/* ---- documents ---- */

static void make_chat(RowMaker *m, const RecordReader *r, const Document *d)
{
    JinjaText *t = NEW(m->tmp, JinjaText);
    TRY(tried_chat, r->ctx)
        *t = chat_render(m->chat, m->tmp, d);
    if (tried(&tried_chat))
        fail_again(r->ctx, arena_printf(m->tmp, "%s:%" PRId64 ": ", r->path, r->first));
    encode(m, &m->whole, t->text, t->n);
    mark_spans(m, t);
}

/* A prompt and its completion, as the text that they are together. */
static void make_pair(RowMaker *m, const json_t *prompt, const json_t *answer)
{
    Buf b = {.a = m->tmp};
    size_t n = json_string_length(prompt);
    bool special = !m->t->special.post;
    if (prompt)
        buf_addn(&b, json_string_value(prompt), n);
    buf_addn(&b, json_string_value(answer), json_string_length(answer));
    JinjaSpan span = {n, b.len};
    JinjaText t = {.text = b.text, .n = b.len, .span = &span, .nspan = 1};
    encode(m, &m->whole, b.text, b.len);
    mark_spans(m, &t);
    const uint32_t end = (uint32_t)m->end | ROW_LEARNED;
    m->to = &m->whole;
    if (m->end >= 0)
        put(m, &end, 1);
    if (!special || !m->t->special.nbefore)
        return;
    int count = m->whole.count, before = m->t->special.nbefore;
    encoder_put_special(m->e, false);
    memmove(m->whole.id + before, m->whole.id, sizeof *m->whole.id * (size_t)count);
    memcpy(m->whole.id, m->t->special.before, sizeof *m->whole.id * (size_t)before);
}

static void add_row(RowMaker *m, int64_t n, int64_t learned)
{
    RowCounts *c = &m->counts;
    RowPlace p = {(uint64_t)c->tokens, (uint64_t)c->learned};
    PUSH(m->a, m->place, m->nplace, m->capplace, p);
    c->rows++;
    c->tokens += n;
    c->learned += learned;
}

/* Pieces of a text, of at most T + 1 ids: each begins with the last id of the one before, so that
 * all but the first of the text are labels. */
static void keep_pieces(RowMaker *m)
{
    IdList *w = &m->whole;
    int64_t n = w->count, T = m->T, count = (n + T - 2) / T;
    uint32_t none = 0;
    m->to = w;
    for (int64_t i = 1; i < count; i++)
        put(m, &none, 1);
    for (int64_t i = count - 1; i > 0; i--)
        memmove(w->id + i * T + i, w->id + i * T, sizeof *w->id * (size_t)MIN(T + 1, n - i * T));
    for (int64_t i = 0; i < count; i++)
        add_row(m, MIN(T + 1, n - i * T), MIN(T, n - i * T - 1));
}

/* An empty one has nothing to learn, whatever stands around it. */
static void make_text(RowMaker *m, const Document *d)
{
    if (json_string_length(d->text))
        make_pair(m, NULL, d->text);
    if (m->whole.count > 1) {
        keep_pieces(m);
        return;
    }
    m->whole.count = 0;
    m->counts.left_out++;
}

static void keep_row(RowMaker *m)
{
    RowCounts *c = &m->counts;
    IdList *w = &m->whole;
    int64_t learned = 0, most = m->T + 1;
    int64_t n = MIN(w->count, most);
    for (int64_t i = 1; i < n; i++)
        learned += (w->id[i] & ROW_LEARNED) != 0;
    for (int64_t i = n; !learned && i < w->count; i++)
        if (w->id[i] & ROW_LEARNED) {
            m->late++;
            break;
        }
    c->cut += w->count > most;
    c->lost += MAX(w->count - most, 0);
    c->left_out += !learned;
    w->count = learned ? (int)n : 0;
    if (learned)
        add_row(m, n, learned);
}

const uint32_t *rows_make(RowMaker *m, const RecordReader *r, const Document *d, size_t *count)
{
    arena_reset(m->tmp);
    m->whole.count = 0;
    if (d->kind == DOCUMENT_TEXT)
        make_text(m, d);
    else if (d->kind == DOCUMENT_CHAT && m->chat)
        make_chat(m, r, d);
    else if (d->answer)
        make_pair(m, d->text, d->answer);
    else
        records_fail(r,
                     "a chat needs a template that makes text of it: %s\n  --tokenizer FOLDER "
                     "names a folder "
                     "with a tokenizer and its template",
                     m->why);
    if (d->kind != DOCUMENT_TEXT)
        keep_row(m);
    if (m->counts.left_out && !m->first)
        m->first = arena_printf(m->a, "%s:%lld", r->path, (long long)r->first);
    *count = (size_t)m->whole.count;
    return m->whole.id;
}

const RowCounts *rows_counts(const RowMaker *m)
{
    return &m->counts;
}

const char *rows_why_none(const RowMaker *m, Arena *a)
{
    int64_t all = m->counts.left_out, without = all - m->late;
    if (!all)
        return "there is no record in it";
    Buf b = {.a = a};
    if (without)
        buf_printf(&b,
                   "documents without an answer (a message of the assistant, a completion) or "
                   "text: %" PRId64 "%s",
                   without, m->late ? "; " : "");
    if (m->late)
        buf_printf(&b,
                   "documents whose first answer begins behind the %" PRId64
                   " tokens that --seq-len %" PRId64 " keeps: %" PRId64,
                   m->T + 1, m->T, m->late);
    return b.text;
}

void rows_tell(const RowMaker *m, Arena *a, void (*warn)(void *arg, const char *message), void *arg)
{
    const RowCounts *c = &m->counts;
    if (warn && c->cut)
        warn(arg, arena_printf(a,
                               "%" PRId64 " of %" PRId64 " rows were longer than --seq-len: cut to "
                               "%" PRId64 " tokens, %" PRId64 " tokens lost",
                               c->cut, c->rows + c->left_out, m->T + 1, c->lost));
    if (warn && c->left_out)
        warn(arg, arena_printf(a,
                               "%" PRId64 " of %" PRId64 " documents have nothing that is learned "
                               "in as many tokens: left out, the first %s",
                               c->left_out, c->rows + c->left_out, m->first));
}

/* ---- the end of a file of rows ---- */

static void put_number(Writer *w, uint64_t x)
{
    char bytes[8];
    for (int k = 0; k < 8; k++)
        bytes[k] = (char)(x >> (8 * k));
    writer_put(w, bytes, sizeof bytes);
}

void rows_end(const RowMaker *m, Writer *w)
{
    const RowCounts *c = &m->counts;
    const uint64_t all[] = {(uint64_t)c->rows, (uint64_t)c->tokens, (uint64_t)c->learned,
                            (uint64_t)c->cut,  (uint64_t)c->lost,   (uint64_t)c->left_out,
                            (uint64_t)m->T,    ROWS_MAGIC};
    if (c->tokens % 2)
        writer_put(w, "\0\0\0", 4); /* numbers begin at multiples of 8 */
    for (int i = 0; i < m->nplace; i++) {
        put_number(w, m->place[i].begin);
        put_number(w, m->place[i].learned);
    }
    put_number(w, (uint64_t)c->tokens);
    put_number(w, (uint64_t)c->learned);
    for (int i = 0; i < LEN(all); i++)
        put_number(w, all[i]);
}
