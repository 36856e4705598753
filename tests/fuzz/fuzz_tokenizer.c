/* libFuzzer entry for tokenizer.json: `make fuzz` builds it with clang. Any bytes either make a
 * tokenizer that gives a text the same ids whole and byte by byte, and a text of these ids, or fail
 * by unwinding. */
#include "../../src/io/io.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 1024 };

typedef struct Input {
    Arena *a;
    const uint8_t *data;
    size_t size;
    const Tokenizer *t;
    size_t piece; /* bytes fed at once */
    uint32_t id[2][MOST];
    size_t count[2];
    int turn;
} Input;

static void collect(void *arg, const uint32_t *id, size_t n)
{
    Input *in = arg;
    for (size_t i = 0; i < n && in->count[in->turn] < MOST; i++)
        in->id[in->turn][in->count[in->turn]++] = id[i];
}

static void open_tokenizer(void *arg)
{
    Input *in = arg;
    in->t = tokenizer_parse(in->a, (const char *)in->data, in->size, "fuzz");
}

static void encode(void *arg)
{
    static const char text[] =
        "It's  12345 words\n\n  <m> both [R]  abc<|endoftext|>\te\xcc\x81 \xd0\xb6\xd0\xb5\xcc"
        "\x81 \xe4\xb8\xad\xe6\x96\x87\xff!\r\n   a word in the \xe2\x96\x81x "
        "\xe2\x98\x83\xe2\x98\x83 "
        "\xef\xbc\xa1\xc4\xb0 ``a'' <0x41>  norm \xc3\x9cn\xc3\xaf ";
    Input *in = arg;
    Encoder *e = encoder_new(in->a, in->t, collect, in);
    encoder_begin(e, "text");
    for (size_t at = 0; at < sizeof text - 1; at += in->piece)
        encoder_feed(e, text + at, MIN(in->piece, sizeof text - 1 - at));
    encoder_end(e);
}

static void decode(void *arg)
{
    Input *in = arg;
    Buf text = {.a = in->a};
    Decoder *d = decoder_new(in->a, in->t);
    decoder_begin(d);
    for (size_t i = 0; i < in->count[0]; i++)
        CHECK(decoder_put(d, in->id[0][i], &text));
    decoder_end(d, &text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Ctx ctx = {0};
    Input in = {.a = arena_new(&ctx), .data = data, .size = size, .piece = MOST};
    CHECK(in.a);
    if (ctx_try(&ctx, open_tokenizer, &in) == TN_OK) {
        Code whole = ctx_try(&ctx, encode, &in);
        in.turn = in.piece = 1;
        CHECK(ctx_try(&ctx, encode, &in) == whole);
        size_t same = sizeof in.id[0][0] * in.count[0];
        CHECK(whole || (in.count[0] == in.count[1] && !memcmp(in.id[0], in.id[1], same)));
        ctx_try(&ctx, decode, &in);
    }
    arena_free(in.a);
    return 0;
}
