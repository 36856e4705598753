/* Placement of buffers, by itself: of lists, and of CSV files, whose errors name lines. */
#include "api.h"

_Static_assert((int)TN_EFFORT == (int)PLACE_EFFORT, "one default");

/* ---- lists ---- */

/* The buffers of a call, for messages. */
typedef struct BufferList {
    Arena *a;
    const char *call;
    int n;
    const tn_buffer *buffer;
} BufferList;

/* `buffer 3 ("id")` */
static const char *title(const BufferList *x, int i)
{
    const char *id = x->buffer[i].id;
    return id ? arena_printf(x->a, "buffer %d (\"%.60s\")", i, id)
              : arena_printf(x->a, "buffer %d", i);
}

static void need(const BufferList *x, int i, const char *name, int64_t value, int64_t low,
                 int64_t high)
{
    if (value < low || value > high)
        fail(arena_ctx(x->a), TN_USAGE, "%s: %s: %s: expected %lld to %lld, found %lld", x->call,
             title(x, i), name, (long long)low, (long long)high, (long long)value);
}

static PlaceBuf *make_list(const BufferList *x, bool placed)
{
    PlaceBuf *buf = NEWN(x->a, PlaceBuf, x->n);
    int64_t left = PLACE_MOST; /* for the sizes that follow */
    for (int i = 0; i < x->n; i++) {
        const tn_buffer *b = &x->buffer[i];
        need(x, i, "upper", b->upper, -PLACE_MOST, PLACE_MOST);
        need(x, i, "lower", b->lower, -PLACE_MOST, b->upper);
        need(x, i, "size", b->size, 0, left);
        if (placed)
            need(x, i, "offset", b->offset, 0, PLACE_MOST - b->size);
        left -= b->size;
        buf[i] = (PlaceBuf){b->lower, b->upper, b->size, b->offset};
    }
    return buf;
}

_Noreturn static void fail_fit(Ctx *ctx, const PlaceResult *r, int64_t capacity)
{
    long long peak = r->peak, least = r->least, limit = capacity;
    if (least == peak)
        fail(ctx, TN_FIT, "does not fit: needs %lld bytes, which is proved; the capacity is %lld",
             peak, limit);
    if (least > limit)
        fail(ctx, TN_FIT,
             "does not fit: needs at least %lld bytes, which is proved; the best that was found "
             "needs %lld; the capacity is %lld",
             least, peak, limit);
    fail(ctx, TN_FIT,
         "does not fit as far as was searched, which proves nothing: the best that was found needs "
         "%lld bytes, at least %lld are needed; the capacity is %lld",
         peak, least, limit);
}

static void place_list(const BufferList *x, int64_t capacity, int effort, tn_buffer *to,
                       tn_placement *result)
{
    PlaceBuf *buf = make_list(x, false);
    PlaceResult r = place(x->a, buf, x->n, capacity, effort);
    for (int i = 0; i < x->n; i++)
        to[i].offset = buf[i].offset;
    *result = (tn_placement){r.bound, r.least, r.peak};
    if (capacity && r.peak > capacity)
        fail_fit(arena_ctx(x->a), &r, capacity);
}

int tn_place(tn_context *ctx, int64_t count, tn_buffer *buffer, int64_t capacity, int64_t effort,
             tn_placement *result)
{
    if (!GIVEN(ctx, ctx, result) || !WITHIN(ctx, 0, MOST_BUFFERS, count) ||
        !WITHIN(ctx, 0, PLACE_MOST, capacity) || !WITHIN(ctx, 0, MOST_EFFORT, effort) ||
        (count && !GIVEN(ctx, buffer)))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx) {
        BufferList x = {try_arena(&t), __func__, (int)count, buffer};
        place_list(&x, capacity, (int)effort, buffer, result);
    }
    return tried(&t);
}

static tn_placement checked(const PlaceCheck *c)
{
    return (tn_placement){c->bound, c->bound, c->peak};
}

static void check_list(const BufferList *x, tn_placement *result)
{
    const PlaceBuf *buf = make_list(x, true);
    PlaceCheck c = place_check(x->a, buf, x->n);
    *result = checked(&c);
    if (c.first < 0)
        return;
    const PlaceBuf *b = &buf[c.first], *d = &buf[c.second];
    fail(arena_ctx(x->a), TN_FAIL,
         "%s at %lld to %lld and %s at %lld to %lld overlap, both alive from %lld to %lld",
         title(x, c.first), (long long)b->offset, (long long)(b->offset + b->nbytes),
         title(x, c.second), (long long)d->offset, (long long)(d->offset + d->nbytes),
         (long long)MAX(b->start, d->start), (long long)MIN(b->end, d->end));
}

int tn_place_check(tn_context *ctx, int64_t count, const tn_buffer *buffer, tn_placement *result)
{
    if (!GIVEN(ctx, ctx, result) || !WITHIN(ctx, 0, MOST_BUFFERS, count) ||
        (count && !GIVEN(ctx, buffer)))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx)
        check_list(&(BufferList){try_arena(&t), __func__, (int)count, buffer}, result);
    return tried(&t);
}

/* ---- files ---- */

static tn_buffers *read_file(tn_context *ctx, Arena *call, const char *path)
{
    tn_buffers *b = handle_new(ctx, call, sizeof *b);
    const PlaceTable *t = b->table = place_read(b->h.a, path);
    b->list = NEWN(b->h.a, tn_buffer, t->n);
    for (int i = 0; i < t->n; i++)
        b->list[i] = (tn_buffer){t->row[i].id, t->buf[i].start, t->buf[i].end, t->buf[i].nbytes,
                                 t->buf[i].offset};
    return b;
}

int tn_buffers_read(tn_context *ctx, const char *path, void (*warn)(void *arg, const char *message),
                    void *arg, tn_buffers **buffers)
{
    if (!GIVEN(ctx, ctx, path, buffers))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx) {
        tn_buffers *b = read_file(ctx, try_arena(&t), path);
        if (warn && b->table->unread)
            warn(arg, b->table->unread);
        *buffers = handle_keep(b);
    }
    return tried(&t);
}

int tn_buffers_list(tn_buffers *b, tn_buffer **list, int64_t *count)
{
    if (!GIVEN(args_owner(b), b, list, count))
        return TN_CODE_USAGE;
    *list = b->list;
    *count = b->table->n;
    return 0;
}

/* The table with the offsets that the list has now. */
static const PlaceTable *placed(const tn_buffers *b)
{
    for (int i = 0; i < b->table->n; i++)
        b->table->buf[i].offset = b->list[i].offset;
    place_need_offsets(b->table);
    return b->table;
}

int tn_buffers_check(tn_buffers *b, tn_placement *result)
{
    if (!GIVEN(args_owner(b), b, result))
        return TN_CODE_USAGE;
    TRY(t, &b->h.owner->ctx) {
        const PlaceTable *table = placed(b);
        PlaceCheck c = place_check(try_arena(&t), table->buf, table->n);
        *result = checked(&c);
        if (c.first >= 0)
            place_overlap(table, &c);
    }
    return tried(&t);
}

int tn_buffers_write(tn_buffers *b, const char *path)
{
    if (!GIVEN(args_owner(b), b, path))
        return TN_CODE_USAGE;
    TRY(t, &b->h.owner->ctx) {
        Buf text = {.a = try_arena(&t)};
        place_print(&text, placed(b));
        file_write(t.ctx, path, text.text, text.len);
    }
    return tried(&t);
}

void tn_buffers_free(tn_buffers *b)
{
    handle_free((Handle *)b);
}
