/* Decodes ids to text, token by token, with the result that Hugging Face's decoders give for the
 * whole list: a chain of steps, each of which takes a token's text and passes on what later tokens
 * cannot change. Only ByteFallback waits: a run of byte tokens becomes characters if it is UTF-8 as
 * a whole, else each byte becomes U+FFFD. */
#include "tokenizer.h"

#include <stdlib.h>
#include <string.h>

struct Decoder {
    const Tokenizer *t;
    struct {
        bool begun; /* a token came here */
        Buf bytes;  /* ByteFallback: that wait */
        Buf out;    /* of one token, or of such bytes */
        int64_t stripped;
        bool past; /* Strip after Fuse: something else than what it strips came */
    } step[MAX_SPLITS];
    Buf *to;
    size_t most; /* bytes that become of one token, and of the bytes that waited for it */
};

Decoder *decoder_new(Arena *a, const Tokenizer *t)
{
    Decoder *d = NEW(a, Decoder);
    d->t = t;
    const char *beyond = arena_printf(a,
                                      "%s: \"decoder\": makes more than %d bytes of each byte of a "
                                      "token, which is not supported",
                                      t->path, MAX_GROWTH);
    for (int i = 0; i < MAX_SPLITS; i++) {
        d->step[i].bytes.a = d->step[i].out.a = a;
        d->step[i].out.beyond = beyond;
        buf_add(&d->step[i].out, "");
    }
    return d;
}

void decoder_begin(Decoder *d)
{
    for (int i = 0; i < MAX_SPLITS; i++) {
        d->step[i].begun = d->step[i].past = false;
        d->step[i].stripped = 0;
        d->step[i].bytes.len = 0;
    }
}

static void pass(Decoder *d, int k, const char *s, size_t n, bool fused);

/* Where `first` is set, marks become nothing. */
static void replace(Buf *out, const char *s, size_t n, const char *text, const char *content,
                    bool first)
{
    size_t len = strlen(text);
    for (size_t at = 0; at < n;) {
        if (n - at >= len && !memcmp(s + at, text, len)) {
            buf_add(out, first ? "" : content);
            at += len;
        } else {
            buf_addn(out, s + at++, 1);
        }
    }
}

/* The byte that a token stands for, or -1. */
static int byte_of(const char *s, size_t n)
{
    char *end, digits[3] = {0};
    if (n != 6 || memcmp(s, "<0x", 3) || s[5] != '>')
        return -1;
    memcpy(digits, s + 3, 2);
    long byte = strtol(digits, &end, 16);
    return *end || digits[0] == '-' || digits[0] == ' ' ? -1 : (int)byte;
}

static void flush_bytes(Decoder *d, int k)
{
    Buf *b = &d->step[k].bytes, *text = &d->step[k].out;
    size_t n = b->len, first;
    int64_t bad;
    b->len = 0;
    if (!n)
        return;
    text->len = 0;
    text->most = 0;
    text_repair(text, b->text, n, true, &bad, &first);
    if (!bad) {
        pass(d, k + 1, text->text, n, false);
        return;
    }
    for (size_t i = 0; i < n; i++)
        pass(d, k + 1, "\xef\xbf\xbd", 3, false);
}

static void take_bytes(Decoder *d, int k, const char *s, size_t n)
{
    int byte = byte_of(s, n);
    if (byte >= 0) {
        if (d->step[k].bytes.len >= MAX_WORD)
            fail(d->t->ctx, TN_FAIL, "more than %d tokens of bytes side by side", MAX_WORD);
        buf_addn(&d->step[k].bytes, &(char){(char)byte}, 1);
        return;
    }
    flush_bytes(d, k);
    pass(d, k + 1, s, n, false);
}

/* Strips one token, or all that are fused to one. */
static void strip(Decoder *d, int k, const char *s, size_t n, bool fused)
{
    const Decoding *x = &d->t->decoding[k];
    size_t len = strlen(x->text), at = 0;
    if (!fused) {
        d->step[k].stripped = 0;
        d->step[k].past = false;
    }
    while (!d->step[k].past && d->step[k].stripped < x->start && n - at >= len &&
           !memcmp(s + at, x->text, len)) {
        at += len;
        d->step[k].stripped++;
    }
    d->step[k].past = d->step[k].past || at < n;
    pass(d, k + 1, s + at, n - at, fused);
}

/* A token, or where they are fused a part of it, to step k. */
static void pass(Decoder *d, int k, const char *s, size_t n, bool fused)
{
    if (k == d->t->ndecoding) {
        buf_addn(d->to, s, n);
        return;
    }
    const Decoding *x = &d->t->decoding[k];
    Buf *out = &d->step[k].out;
    bool first = !d->step[k].begun;
    d->step[k].begun = true;
    out->len = 0;
    out->most = d->most;
    switch (x->how) {
    case DECODE_BYTES: take_bytes(d, k, s, n); break;
    case DECODE_FUSE: pass(d, k + 1, s, n, true); break;
    case DECODE_STRIP: strip(d, k, s, n, fused); break;
    case DECODE_REPLACE:
    case DECODE_METASPACE:
        replace(out, s, n, x->text, x->content, x->drops && first);
        pass(d, k + 1, out->text, out->len, fused);
        break;
    case DECODE_JOIN:
        buf_add(out, first ? "" : " ");
        buf_addn(out, s, n);
        pass(d, k + 1, out->text, out->len, fused);
    }
}

/* Before n bytes of a token are decoded to the end of `to`. */
static void begin(Decoder *d, Buf *to, size_t n)
{
    for (int k = 0; k < d->t->ndecoding; k++)
        n += d->step[k].bytes.len;
    d->most = MAX_GROWTH * n + MAX_MORE;
    d->to = to;
    to->most = to->len + d->most;
    to->beyond = d->step[0].out.beyond;
}

static void end(Decoder *d)
{
    d->to->most = 0;
}

bool decoder_put(Decoder *d, int64_t id, Buf *to)
{
    size_t n;
    const char *bytes = tokenizer_shown(d->t, id, &n);
    if (!bytes)
        return false;
    begin(d, to, n);
    pass(d, 0, bytes, n, false);
    end(d);
    return true;
}

void decoder_end(Decoder *d, Buf *to)
{
    begin(d, to, 0);
    for (int k = 0; k < d->t->ndecoding; k++)
        if (d->t->decoding[k].how == DECODE_BYTES)
            flush_bytes(d, k);
    end(d);
}

int64_t decoder_bytes(Decoder *d, int64_t id, Buf *tmp)
{
    int64_t waiting = 0;
    decoder_begin(d);
    for (int k = 0; k < d->t->ndecoding; k++)
        d->step[k].begun = d->step[k].past = true;
    tmp->len = 0;
    if (!decoder_put(d, id, tmp))
        return -1;
    for (int k = 0; k < d->t->ndecoding; k++)
        waiting += (int64_t)d->step[k].bytes.len;
    return (int64_t)tmp->len + waiting;
}
