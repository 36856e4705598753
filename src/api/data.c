/* Training data and batch files. */
#include "api.h"

static TokenType get_token_type(Ctx *ctx, const char *name)
{
    int type = token_type_parse(name);
    if (type < 0)
        fail(ctx, TN_USAGE, "token type: expected auto, byte, u16 or u32, found \"%s\"", name);
    return (TokenType)type;
}

int tn_data_open(tn_context *ctx, int npath, const char *const *path, const char *token_type,
                 double val_fraction, int64_t vocab, tn_data **data)
{
    if (!GIVEN(ctx, ctx, token_type, data) || !WITHIN(ctx, 1, INT32_MAX, npath) ||
        !args_list(ctx, __func__, "path", npath, path) || !WITHIN(ctx, 0, MOST_VOCAB, vocab))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx) {
        DataOptions o = {get_token_type(t.ctx, token_type), val_fraction, vocab};
        tn_data *d = handle_new(ctx, try_arena(&t), sizeof *d);
        d->set = data_open(d->h.a, npath, path, &o);
        *data = handle_keep(d);
    }
    return tried(&t);
}

int tn_data_mix(tn_context *ctx, int count, tn_data *const *parts, const double *weights,
                tn_data **mixed)
{
    if (!GIVEN(ctx, ctx, parts, weights, mixed) || !WITHIN(ctx, 1, 1024, count))
        return TN_CODE_USAGE;
    for (int i = 0; i < count; i++)
        if (!parts[i] || parts[i]->h.owner != ctx || parts[i]->set->mix)
            return tn_context_fail(ctx, TN_CODE_USAGE,
                                   "%s: parts: expected data of this context that is no mixture, "
                                   "found another at %d",
                                   __func__, i);
    TRY(t, &ctx->ctx) {
        DataSet **part = NEWN(try_arena(&t), DataSet *, count);
        tn_data *d = handle_new(ctx, try_arena(&t), sizeof *d);
        for (int i = 0; i < count; i++)
            part[i] = parts[i]->set;
        d->set = data_mix(d->h.a, arena_tmp(try_arena(&t)), count, part, weights);
        *mixed = handle_keep(d);
    }
    return tried(&t);
}

void tn_data_size(const tn_data *d, int64_t *ntrain, int64_t *nval, int64_t *nbytes)
{
    if (!GIVEN(args_owner(d), d, ntrain, nval, nbytes))
        return;
    *ntrain = d->set->ntrain;
    *nval = d->set->nval;
    *nbytes = d->set->nbytes;
}

int tn_data_file(const tn_data *d, int i, const char **path, int64_t *nbytes, uint64_t *fingerprint)
{
    if (!GIVEN(args_owner(d), d, path, nbytes, fingerprint))
        return 0;
    if (i < 0 || i >= d->set->count)
        return 0;
    const DataFile *f = &d->set->file[i];
    *path = f->path;
    *nbytes = f->nbytes;
    *fingerprint = f->fingerprint;
    return 1;
}

int tn_data_width(const tn_data *d)
{
    if (!GIVEN(args_owner(d), d))
        return 0;
    return d->set->file[0].width;
}

const char *tn_data_not_text(const tn_data *d)
{
    if (!GIVEN(args_owner(d), d))
        return NULL;
    for (int i = 0; i < d->set->count; i++)
        if (!d->set->file[i].text)
            return d->set->file[i].path;
    return NULL;
}

/* ---- texts ---- */

static void need_text(const tn_data *d)
{
    if (tn_data_width(d) != 1)
        fail(&d->h.owner->ctx, TN_USAGE, "%s: expected a text, found tokens of %d bytes",
             d->set->file[0].path, tn_data_width(d));
}

int tn_data_check_text(tn_data *d)
{
    if (!GIVEN(args_owner(d), d))
        return TN_CODE_USAGE;
    TRY(t, &d->h.owner->ctx) {
        need_text(d);
        data_check_text(try_arena(&t), d->set);
    }
    return tried(&t);
}

int tn_data_holds(tn_data *d, tn_holds *holds)
{
    if (!GIVEN(args_owner(d), d, holds))
        return TN_CODE_USAGE;
    *holds = TN_HOLDS_PLAIN;
    TRY(t, &d->h.owner->ctx) {
        need_text(d);
        *holds = (tn_holds)data_holds(try_arena(&t), d->set);
    }
    return tried(&t);
}

int tn_data_row_counts(const tn_data *d, tn_row_counts *counts)
{
    if (!GIVEN(args_owner(d), d, counts))
        return 0;
    const RowCounts *c = &d->set->rows;
    *counts = (tn_row_counts){c->rows, c->tokens, c->learned, c->cut, c->lost, c->left_out};
    return d->set->index > 0;
}

static bool progress(void *arg, int64_t done, int64_t total)
{
    const tn_text_options *o = arg;
    return !o->progress(o->progress_arg, done, total);
}

static tn_data *tokenize(const tn_data *text, Arena *call, const tn_tokenizer *t,
                         const tn_text_options *o, int *made)
{
    TextOptions how = {.path = o->file,
                       .keep = o->keep != 0,
                       .between = o->between,
                       .holds = (DataHolds)o->holds,
                       .chat = o->chat,
                       .seq = o->seq,
                       .val_fraction = o->val_fraction,
                       .vocab = o->vocab,
                       .progress = o->progress ? progress : NULL,
                       .arg = (void *)(uintptr_t)o,
                       .warn = o->warn,
                       .warn_arg = o->warn_arg};
    bool new = false;
    need_text(text);
    tn_data *tokens = handle_new(text->h.owner, call, sizeof *tokens);
    tokens->set = data_tokenize(tokens->h.a, arena_tmp(call), text->set, t->t, &how, &new);
    *made = new;
    return tokens;
}

int tn_data_tokenize(tn_data *text, tn_tokenizer *t, const tn_text_options *options,
                     tn_data **tokens, int *made)
{
    if (!GIVEN(args_owner(text), text, t, options, tokens, made) || !args_kin(__func__, text, t) ||
        !WITHIN(args_owner(text), 0, 3, options->holds) ||
        (holds_rows((DataHolds)options->holds) &&
         !WITHIN(args_owner(text), 1, INT32_MAX - 1, options->seq)))
        return TN_CODE_USAGE;
    *made = 0;
    TRY(call, &text->h.owner->ctx)
        *tokens = handle_keep(tokenize(text, try_arena(&call), t, options, made));
    return tried(&call);
}

/* ---- batches ---- */

int tn_data_document(tn_data *d, int64_t token)
{
    if (!GIVEN(args_owner(d), d))
        return TN_CODE_USAGE;
    TRY(t, &d->h.owner->ctx)
        for (int i = 0; i < (d->set->mix ? d->set->mix->n : 1); i++)
            data_set_document(d->set->mix ? d->set->mix->part[i] : d->set, token);
    return tried(&t);
}

int tn_data_shuffle(tn_data *d, int on)
{
    if (!GIVEN(args_owner(d), d) || !WITHIN(args_owner(d), 0, 1, on))
        return TN_CODE_USAGE;
    d->ahead = NULL; /* a reader has begun with the other order */
    for (int i = 0; i < (d->set->mix ? d->set->mix->n : 1); i++)
        (d->set->mix ? d->set->mix->part[i] : d->set)->in_order = !on;
    return TN_CODE_OK;
}

/* A reader has begun with the rows that were asked for before: it is asked no more. */
static void set_part(tn_data *d, int64_t count, const int64_t *rows)
{
    int64_t *row = rows ? NEWN(d->h.a, int64_t, MAX(count, 1)) : NULL;
    for (int64_t i = 0; row && i < count; i++)
        row[i] = rows[i];
    d->set->row = row;
    d->set->nrow = count;
    d->ahead = NULL;
}

int tn_data_part(tn_data *d, int64_t count, const int64_t *rows)
{
    tn_context *ctx = args_owner(d);
    if (!GIVEN(ctx, d) || !WITHIN(ctx, 0, INT32_MAX, count))
        return TN_CODE_USAGE;
    for (int64_t i = 0; rows && i < count; i++)
        if (rows[i] < 0)
            return tn_context_fail(ctx, TN_CODE_USAGE,
                                   "%s: rows: expected 0 or more, found %lld at %lld", __func__,
                                   (long long)rows[i], (long long)i);
    TRY(t, &ctx->ctx)
        set_part(d, count, rows);
    return tried(&t);
}

int tn_data_windows(tn_data *d, int val, int64_t seq, int64_t *windows, int64_t *labels)
{
    if (!GIVEN(args_owner(d), d, windows, labels) || !WITHIN(args_owner(d), 0, 1, val) ||
        !WITHIN(args_owner(d), 1, INT32_MAX, seq))
        return TN_CODE_USAGE;
    *windows = *labels = 0;
    TRY(t, &d->h.owner->ctx)
        *windows = data_windows(d->set, val, seq, labels);
    return tried(&t);
}

int tn_data_pack(tn_data *d, int64_t seq)
{
    if (!GIVEN(args_owner(d), d) || !WITHIN(args_owner(d), 1, INT32_MAX, seq))
        return TN_CODE_USAGE;
    d->ahead = NULL; /* a reader has begun with other rows */
    TRY(t, &d->h.owner->ctx)
        for (int i = 0; i < (d->set->mix ? d->set->mix->n : 1); i++)
            data_pack(d->h.a, arena_tmp(try_arena(&t)), d->set->mix ? d->set->mix->part[i] : d->set,
                      seq);
    return tried(&t);
}

/* Where documents share rows a batch without starts would show each what the others say. */
static void need_starts(const tn_data *d, const int64_t *starts)
{
    const DataSet *s = d->set->mix ? d->set->mix->part[0] : d->set;
    if (s->pack_seq && !starts)
        fail(&d->h.owner->ctx, TN_USAGE,
             "documents share rows: expected tn_data_packed or tn_data_val_packed, which give "
             "their starts");
}

static int read_batch_of(tn_data *d, uint64_t seed, uint32_t step, int64_t batch, DataRow to)
{
    TRY(t, &d->h.owner->ctx) {
        need_starts(d, to.starts);
        if (!d->ahead || !data_reader_take(d->ahead, seed, step, batch, to))
            data_train_batch(d->set, seed, step, batch, to);
    }
    return tried(&t);
}

int tn_data_batch(tn_data *d, uint64_t seed, uint32_t step, int64_t batch, int64_t seq,
                  int64_t *ids, int64_t *labels)
{
    if (!GIVEN(args_owner(d), d, ids, labels) || !WITHIN(args_owner(d), 1, INT32_MAX, batch, seq) ||
        !WITHIN(args_owner(d), 1, UINT32_MAX, step))
        return TN_CODE_USAGE;
    return read_batch_of(d, seed, step, batch, (DataRow){seq, ids, labels, NULL});
}

int tn_data_packed(tn_data *d, uint64_t seed, uint32_t step, int64_t batch, int64_t seq,
                   int64_t *ids, int64_t *labels, int64_t *starts)
{
    if (!GIVEN(args_owner(d), d, ids, labels, starts) ||
        !WITHIN(args_owner(d), 1, INT32_MAX, batch, seq) ||
        !WITHIN(args_owner(d), 1, UINT32_MAX, step))
        return TN_CODE_USAGE;
    return read_batch_of(d, seed, step, batch, (DataRow){seq, ids, labels, starts});
}

int tn_data_read_ahead(tn_data *d, uint64_t seed, uint32_t step, int64_t batch, int64_t seq)
{
    if (!GIVEN(args_owner(d), d) || !WITHIN(args_owner(d), 1, INT32_MAX, batch, seq) ||
        !WITHIN(args_owner(d), 1, UINT32_MAX, step))
        return TN_CODE_USAGE;
    TRY(t, &d->h.owner->ctx)
        d->ahead = data_reader_start(d->h.a, d->set, seed, step, batch, seq);
    return tried(&t);
}

static int read_val(tn_data *d, int64_t first, int64_t stride, int64_t batch, DataRow to,
                    int64_t *count)
{
    *count = 0;
    TRY(t, &d->h.owner->ctx) {
        need_starts(d, to.starts);
        *count = data_val_batch(d->set, first, stride, batch, to);
    }
    return tried(&t);
}

int tn_data_val(tn_data *d, int64_t first, int64_t stride, int64_t batch, int64_t seq, int64_t *ids,
                int64_t *labels, int64_t *count)
{
    if (!GIVEN(args_owner(d), d, ids, labels, count) ||
        !WITHIN(args_owner(d), 0, MOST_WINDOW, first) ||
        !WITHIN(args_owner(d), 1, INT32_MAX, stride, batch, seq))
        return TN_CODE_USAGE;
    return read_val(d, first, stride, batch, (DataRow){seq, ids, labels, NULL}, count);
}

int tn_data_val_packed(tn_data *d, int64_t first, int64_t stride, int64_t batch, int64_t seq,
                       int64_t *ids, int64_t *labels, int64_t *starts, int64_t *count)
{
    if (!GIVEN(args_owner(d), d, ids, labels, starts, count) ||
        !WITHIN(args_owner(d), 0, MOST_WINDOW, first) ||
        !WITHIN(args_owner(d), 1, INT32_MAX, stride, batch, seq))
        return TN_CODE_USAGE;
    return read_val(d, first, stride, batch, (DataRow){seq, ids, labels, starts}, count);
}

/* ---- one batch from a file ---- */

static const TensorEntry *get_tokens(Arena *a, const TensorFile *f, const char *name)
{
    const TensorEntry *e = tensors_get(f, name);
    if (e->type.rank != 2 || dtype_float(e->type.dtype))
        fail(arena_ctx(a), TN_FAIL, "%s: \"%s\": expected i64[B, T], found %s", f->path, name,
             type_text(a, &e->type));
    return e;
}

/* A batch file; its entries are input_ids and labels, both of *type. */
static const TensorFile *open_batch(Arena *a, const char *path, Type *type)
{
    TensorFile *f = tensors_open(a, path);
    *type = get_tokens(a, f, "input_ids")->type;
    if (!shape_equal(type, &get_tokens(a, f, "labels")->type) || f->count != 2)
        fail(arena_ctx(a), TN_FAIL,
             "%s: expected input_ids and labels of one shape and nothing else", f->path);
    return f;
}

static void read_batch(Arena *a, const char *path, int64_t batch, int64_t seq, int64_t *ids,
                       int64_t *labels)
{
    Type t;
    const TensorFile *f = open_batch(a, path, &t);
    if (t.dim[0] != batch || t.dim[1] != seq)
        fail(arena_ctx(a), TN_FAIL, "%s: expected i64[%lld, %lld], found %s", f->path,
             (long long)batch, (long long)seq, type_text(a, &t));
    tensors_read(f, tensors_get(f, "input_ids"), I64, false, ids);
    tensors_read(f, tensors_get(f, "labels"), I64, false, labels);
}

int tn_batch_read(tn_context *ctx, const char *path, int64_t batch, int64_t seq, int64_t *ids,
                  int64_t *labels)
{
    if (!GIVEN(ctx, ctx, path, ids, labels) || !WITHIN(ctx, 1, INT32_MAX, batch, seq))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx)
        read_batch(try_arena(&t), path, batch, seq, ids, labels);
    return tried(&t);
}

int tn_file_hash(tn_context *ctx, const char *path, int64_t *nbytes, uint64_t *hash)
{
    if (!GIVEN(ctx, ctx, path, nbytes, hash))
        return TN_CODE_USAGE;
    *nbytes = 0;
    *hash = 0;
    TRY(t, &ctx->ctx)
        *hash = file_hash(t.ctx, path, nbytes);
    return tried(&t);
}

uint32_t tn_crc32c(const void *data, int64_t nbytes)
{
    return data && nbytes > 0 ? crc32c_end(crc32c_add(0, data, nbytes), nbytes) : 0;
}

int tn_batch_shape(tn_context *ctx, const char *path, int64_t *batch, int64_t *seq)
{
    if (!GIVEN(ctx, ctx, path, batch, seq))
        return TN_CODE_USAGE;
    *batch = *seq = 0;
    TRY(t, &ctx->ctx) {
        Type type;
        open_batch(try_arena(&t), path, &type);
        *batch = type.dim[0];
        *seq = type.dim[1];
    }
    return tried(&t);
}

void tn_data_free(tn_data *d)
{
    handle_free((Handle *)d);
}
