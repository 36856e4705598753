/* Placement of buffers, by itself: of lists, and of CSV files, whose errors name lines. */
#include "api.h"

_Static_assert((int)TN_EFFORT == (int)PLACE_EFFORT, "one default");

/* ---- lists ---- */

typedef struct ListArgs {
    tn_context *ctx;
    Arena *a;
    const char *call;
    int n;
    const tn_buffer *buffer;
    tn_buffer *out; /* the same where they are to be placed, NULL where they are checked */
    int64_t capacity;
    int effort;
    tn_placement *result;
} ListArgs;

/* `buffer 3 ("id")` */
static const char *title(const ListArgs *x, int i)
{
    const char *id = x->buffer[i].id;
    return id ? arena_printf(x->a, "buffer %d (\"%.60s\")", i, id)
              : arena_printf(x->a, "buffer %d", i);
}

static void need(const ListArgs *x, int i, const char *name, int64_t value, int64_t low,
                 int64_t high)
{
    if (value < low || value > high)
        fail(&x->ctx->ctx, TN_USAGE, "%s: %s: %s: expected %lld to %lld, found %lld", x->call,
             title(x, i), name, (long long)low, (long long)high, (long long)value);
}

static PlaceBuf *make_list(const ListArgs *x)
{
    PlaceBuf *buf = NEWN(x->a, PlaceBuf, x->n);
    int64_t left = PLACE_MOST; /* for the sizes that follow */
    for (int i = 0; i < x->n; i++) {
        const tn_buffer *b = &x->buffer[i];
        need(x, i, "upper", b->upper, -PLACE_MOST, PLACE_MOST);
        need(x, i, "lower", b->lower, -PLACE_MOST, b->upper);
        need(x, i, "size", b->size, 0, left);
        if (!x->out)
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

static void place_list(void *arg)
{
    ListArgs *x = arg;
    PlaceBuf *buf = make_list(x);
    PlaceResult r = place(x->a, buf, x->n, x->capacity, x->effort);
    for (int i = 0; i < x->n; i++)
        x->out[i].offset = buf[i].offset;
    *x->result = (tn_placement){r.bound, r.least, r.peak};
    if (x->capacity && r.peak > x->capacity)
        fail_fit(&x->ctx->ctx, &r, x->capacity);
}

int tn_place(tn_context *ctx, int64_t count, tn_buffer *buffer, int64_t capacity, int64_t effort,
             tn_placement *result)
{
    if (!GIVEN(ctx, ctx, result) || !WITHIN(ctx, 0, MOST_BUFFERS, count) ||
        !WITHIN(ctx, 0, PLACE_MOST, capacity) || !WITHIN(ctx, 0, MOST_EFFORT, effort) ||
        (count && !GIVEN(ctx, buffer)))
        return TN_CODE_USAGE;
    ListArgs x = {.ctx = ctx,
                  .call = __func__,
                  .n = (int)count,
                  .buffer = buffer,
                  .out = buffer,
                  .capacity = capacity,
                  .effort = (int)effort,
                  .result = result};
    return try_aside(ctx, &x.a, place_list, &x);
}

static tn_placement checked(const PlaceCheck *c)
{
    return (tn_placement){c->bound, c->bound, c->peak};
}

static void check_list(void *arg)
{
    ListArgs *x = arg;
    const PlaceBuf *buf = make_list(x);
    PlaceCheck c = place_check(x->a, buf, x->n);
    *x->result = checked(&c);
    if (c.first < 0)
        return;
    const PlaceBuf *b = &buf[c.first], *d = &buf[c.second];
    fail(&x->ctx->ctx, TN_FAIL,
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
    ListArgs x = {
        .ctx = ctx, .call = __func__, .n = (int)count, .buffer = buffer, .result = result};
    return try_aside(ctx, &x.a, check_list, &x);
}

/* ---- files ---- */

typedef struct FileArgs {
    tn_context *ctx;
    Arena *a;
    const char *path;
    tn_buffers *buffers;
    tn_placement *result;
} FileArgs;

static void read_file(void *arg)
{
    FileArgs *x = arg;
    tn_buffers *b = x->buffers = handle_new(x->ctx, sizeof *b);
    const PlaceTable *t = b->table = place_read(b->h.a, x->path);
    b->list = NEWN(b->h.a, tn_buffer, t->n);
    for (int i = 0; i < t->n; i++)
        b->list[i] = (tn_buffer){t->row[i].id, t->buf[i].start, t->buf[i].end, t->buf[i].nbytes,
                                 t->buf[i].offset};
}

int tn_buffers_read(tn_context *ctx, const char *path, void (*warn)(void *arg, const char *message),
                    void *arg, tn_buffers **buffers)
{
    if (!GIVEN(ctx, ctx, path, buffers))
        return TN_CODE_USAGE;
    FileArgs x = {.ctx = ctx, .path = path};
    int code = (int)ctx_try(&ctx->ctx, read_file, &x);
    if (code) {
        tn_buffers_free(x.buffers);
        return code;
    }
    if (warn && x.buffers->table->unread)
        warn(arg, x.buffers->table->unread);
    *buffers = x.buffers;
    return 0;
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

static void check_file(void *arg)
{
    FileArgs *x = arg;
    const PlaceTable *t = placed(x->buffers);
    PlaceCheck c = place_check(x->a, t->buf, t->n);
    *x->result = checked(&c);
    if (c.first >= 0)
        place_overlap(t, &c);
}

int tn_buffers_check(tn_buffers *b, tn_placement *result)
{
    if (!GIVEN(args_owner(b), b, result))
        return TN_CODE_USAGE;
    FileArgs x = {.buffers = b, .result = result};
    return try_aside(b->h.owner, &x.a, check_file, &x);
}

static void write_file(void *arg)
{
    FileArgs *x = arg;
    Buf text = {.a = x->a};
    place_print(&text, placed(x->buffers));
    file_write(&x->buffers->h.owner->ctx, x->path, text.text, text.len);
}

int tn_buffers_write(tn_buffers *b, const char *path)
{
    if (!GIVEN(args_owner(b), b, path))
        return TN_CODE_USAGE;
    FileArgs x = {.buffers = b, .path = path};
    return try_aside(b->h.owner, &x.a, write_file, &x);
}

void tn_buffers_free(tn_buffers *b)
{
    handle_free((Handle *)b);
}
