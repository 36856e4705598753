/* libFuzzer entry for tables of buffers: `make fuzz` builds it with clang. Any bytes either make a
 * table whose placement is one to the checker and whose text, printed with it, reads back as the
 * same table and prints the same bytes, or fail by unwinding. */
#include "../../src/place/place.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 1000 }; /* buffers that are placed here */

typedef struct Input {
    Arena *a;
    const char *text;
    size_t size;
    PlaceTable *t;
} Input;

static void parse(void *arg)
{
    Input *in = arg;
    in->t = place_parse(in->a, in->text, in->size, "fuzz");
}

static void place_all(Arena *a, PlaceTable *t)
{
    PlaceResult r = place(a, t->buf, t->n, 0, 0);
    PlaceCheck c = place_check(a, t->buf, t->n);
    CHECK(c.first < 0 && c.peak == r.peak && c.bound == r.bound);
    CHECK(r.bound <= r.least && r.least <= r.peak && r.peak <= PLACE_MOST);
}

static void print_again(Ctx *ctx, const Input *in)
{
    const PlaceTable *t = in->t;
    Buf first = {.a = in->a}, second = {.a = in->a};
    place_print(&first, t);
    Input next = {in->a, first.text, first.len, NULL};
    CHECK(ctx_try(ctx, parse, &next) == TN_OK && next.t->n == t->n);
    for (int i = 0; i < t->n; i++) {
        const PlaceBuf *x = &t->buf[i], *y = &next.t->buf[i];
        CHECK(!strcmp(t->row[i].id, next.t->row[i].id) && x->start == y->start);
        CHECK(x->end == y->end && x->nbytes == y->nbytes && x->offset == y->offset);
    }
    place_print(&second, next.t);
    CHECK(first.len == second.len && !memcmp(first.text, second.text, first.len));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Ctx ctx = {0};
    Input in = {.a = arena_new(&ctx), .size = size};
    CHECK(in.a);
    in.text = arena_strndup(in.a, (const char *)data, size);
    if (ctx_try(&ctx, parse, &in) == TN_OK && in.t->n <= MOST) {
        place_all(in.a, in.t);
        print_again(&ctx, &in);
    }
    arena_free(in.a);
    return 0;
}
