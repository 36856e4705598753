/* Training data and batch files. */
#include "api.h"

typedef struct OpenArgs {
    tn_context *ctx;
    int npath;
    const char *const *path;
    const char *token_type;
    double val_fraction;
    int64_t vocab;
    tn_data *data;
} OpenArgs;

static void open_data(void *arg)
{
    OpenArgs *x = arg;
    int type = token_type_parse(x->token_type);
    if (type < 0)
        fail(&x->ctx->ctx, TN_USAGE, "token type: expected auto, byte, u16 or u32, found \"%s\"",
             x->token_type);
    x->data = handle_new(x->ctx, sizeof *x->data);
    DataOptions o = {(TokenType)type, x->val_fraction, x->vocab};
    x->data->set = data_open(x->data->h.a, x->npath, x->path, &o);
}

int tn_data_open(tn_context *ctx, int npath, const char *const *path, const char *token_type,
                 double val_fraction, int64_t vocab, tn_data **data)
{
    if (!GIVEN(ctx, ctx, token_type, data) || !WITHIN(ctx, 1, INT32_MAX, npath) ||
        !args_list(ctx, __func__, "path", npath, path) || !WITHIN(ctx, 0, MOST_VOCAB, vocab))
        return TN_CODE_USAGE;
    OpenArgs x = {ctx, npath, path, token_type, val_fraction, vocab, NULL};
    int code = (int)ctx_try(&ctx->ctx, open_data, &x);
    if (code)
        tn_data_free(x.data);
    else
        *data = x.data;
    return code;
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

typedef struct CheckArgs {
    tn_data *d;
    Arena *tmp;
} CheckArgs;

static void check_text(void *arg)
{
    CheckArgs *x = arg;
    if (tn_data_width(x->d) != 1)
        fail(arena_ctx(x->tmp), TN_USAGE, "%s: expected a text, found tokens of %d bytes",
             x->d->set->file[0].path, tn_data_width(x->d));
    data_check_text(x->tmp, x->d->set);
}

int tn_data_check_text(tn_data *d)
{
    if (!GIVEN(args_owner(d), d))
        return TN_CODE_USAGE;
    CheckArgs x = {.d = d};
    return try_aside(d->h.owner, &x.tmp, check_text, &x);
}

typedef struct TextArgs {
    tn_data *text, *tokens;
    tn_tokenizer *t;
    Arena *tmp;
    const tn_text_options *options;
    bool made;
} TextArgs;

static bool progress(void *arg, int64_t done, int64_t total)
{
    const tn_text_options *o = arg;
    return !o->progress(o->progress_arg, done, total);
}

static void tokenize(void *arg)
{
    TextArgs *x = arg;
    const tn_text_options *o = x->options;
    TextOptions how = {.path = o->file,
                       .keep = o->keep != 0,
                       .between = o->between,
                       .val_fraction = o->val_fraction,
                       .vocab = o->vocab,
                       .progress = o->progress ? progress : NULL,
                       .arg = (void *)(uintptr_t)o,
                       .warn = o->warn,
                       .warn_arg = o->warn_arg};
    if (tn_data_width(x->text) != 1)
        fail(arena_ctx(x->tmp), TN_USAGE, "%s: expected a text, found tokens of %d bytes",
             x->text->set->file[0].path, tn_data_width(x->text));
    x->tokens = handle_new(x->text->h.owner, sizeof *x->tokens);
    x->tokens->set = data_tokenize(x->tokens->h.a, x->tmp, x->text->set, x->t->t, &how, &x->made);
}

int tn_data_tokenize(tn_data *text, tn_tokenizer *t, const tn_text_options *options,
                     tn_data **tokens, int *made)
{
    if (!GIVEN(args_owner(text), text, t, options, tokens, made) || !args_kin(__func__, text, t))
        return TN_CODE_USAGE;
    TextArgs x = {.text = text, .t = t, .options = options};
    int code = try_aside(text->h.owner, &x.tmp, tokenize, &x);
    *made = x.made;
    if (code)
        tn_data_free(x.tokens);
    else
        *tokens = x.tokens;
    return code;
}

/* ---- batches ---- */

typedef struct DocumentArgs {
    tn_data *d;
    int64_t token;
} DocumentArgs;

static void set_document(void *arg)
{
    DocumentArgs *x = arg;
    data_set_document(x->d->set, x->token);
}

int tn_data_document(tn_data *d, int64_t token)
{
    if (!GIVEN(args_owner(d), d))
        return TN_CODE_USAGE;
    DocumentArgs x = {d, token};
    return (int)ctx_try(&d->h.owner->ctx, set_document, &x);
}

typedef struct PartArgs {
    tn_data *d;
    int64_t count;
    const int64_t *rows;
} PartArgs;

/* A reader has begun with the rows that were asked for before: it is asked no more. */
static void set_part(void *arg)
{
    const PartArgs *x = arg;
    DataSet *s = x->d->set;
    int64_t *row = x->rows ? NEWN(x->d->h.a, int64_t, MAX(x->count, 1)) : NULL;
    for (int64_t i = 0; row && i < x->count; i++)
        row[i] = x->rows[i];
    s->row = row;
    s->nrow = x->count;
    x->d->ahead = NULL;
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
    PartArgs x = {d, count, rows};
    return (int)ctx_try(&ctx->ctx, set_part, &x);
}

typedef struct WindowArgs {
    tn_data *d;
    bool val;
    int64_t seq, windows, labels;
} WindowArgs;

static void count_windows(void *arg)
{
    WindowArgs *x = arg;
    x->windows = data_windows(x->d->set, x->val, x->seq, &x->labels);
}

int tn_data_windows(tn_data *d, int val, int64_t seq, int64_t *windows, int64_t *labels)
{
    if (!GIVEN(args_owner(d), d, windows, labels) || !WITHIN(args_owner(d), 0, 1, val) ||
        !WITHIN(args_owner(d), 1, INT32_MAX, seq))
        return TN_CODE_USAGE;
    WindowArgs x = {.d = d, .val = val, .seq = seq};
    int code = (int)ctx_try(&d->h.owner->ctx, count_windows, &x);
    *windows = x.windows;
    *labels = x.labels;
    return code;
}

typedef struct BatchArgs {
    tn_data *d;
    uint64_t seed;
    uint32_t step;
    int64_t first, stride, batch, seq, count;
    int64_t *ids, *labels;
} BatchArgs;

static void train_batch(void *arg)
{
    BatchArgs *x = arg;
    if (x->d->ahead &&
        data_reader_take(x->d->ahead, x->seed, x->step, x->batch, x->seq, x->ids, x->labels))
        return;
    data_train_batch(x->d->set, x->seed, x->step, x->batch, x->seq, x->ids, x->labels);
}

int tn_data_batch(tn_data *d, uint64_t seed, uint32_t step, int64_t batch, int64_t seq,
                  int64_t *ids, int64_t *labels)
{
    if (!GIVEN(args_owner(d), d, ids, labels) || !WITHIN(args_owner(d), 1, INT32_MAX, batch, seq) ||
        !WITHIN(args_owner(d), 1, UINT32_MAX, step))
        return TN_CODE_USAGE;
    BatchArgs x = {.d = d,
                   .seed = seed,
                   .step = step,
                   .batch = batch,
                   .seq = seq,
                   .ids = ids,
                   .labels = labels};
    return (int)ctx_try(&d->h.owner->ctx, train_batch, &x);
}

static void read_ahead(void *arg)
{
    BatchArgs *x = arg;
    x->d->ahead = data_reader_start(x->d->h.a, x->d->set, x->seed, x->step, x->batch, x->seq);
}

int tn_data_read_ahead(tn_data *d, uint64_t seed, uint32_t step, int64_t batch, int64_t seq)
{
    if (!GIVEN(args_owner(d), d) || !WITHIN(args_owner(d), 1, INT32_MAX, batch, seq) ||
        !WITHIN(args_owner(d), 1, UINT32_MAX, step))
        return TN_CODE_USAGE;
    BatchArgs x = {.d = d, .seed = seed, .step = step, .batch = batch, .seq = seq};
    return (int)ctx_try(&d->h.owner->ctx, read_ahead, &x);
}

static void val_batch(void *arg)
{
    BatchArgs *x = arg;
    x->count = data_val_batch(x->d->set, x->first, x->stride, x->batch, x->seq, x->ids, x->labels);
}

int tn_data_val(tn_data *d, int64_t first, int64_t stride, int64_t batch, int64_t seq, int64_t *ids,
                int64_t *labels, int64_t *count)
{
    if (!GIVEN(args_owner(d), d, ids, labels, count) ||
        !WITHIN(args_owner(d), 0, MOST_WINDOW, first) ||
        !WITHIN(args_owner(d), 1, INT32_MAX, stride, batch, seq))
        return TN_CODE_USAGE;
    BatchArgs x = {.d = d,
                   .first = first,
                   .stride = stride,
                   .batch = batch,
                   .seq = seq,
                   .ids = ids,
                   .labels = labels};
    int code = (int)ctx_try(&d->h.owner->ctx, val_batch, &x);
    *count = x.count;
    return code;
}

/* ---- one batch from a file ---- */

typedef struct FileArgs {
    Arena *a;
    const char *path;
    int64_t batch, seq, *ids, *labels; /* ids NULL: only the shape is wanted */
} FileArgs;

static const TensorEntry *get_tokens(Arena *a, const TensorFile *f, const char *name)
{
    const TensorEntry *e = tensors_get(f, name);
    if (e->type.rank != 2 || dtype_float(e->type.dtype))
        fail(arena_ctx(a), TN_FAIL, "%s: \"%s\": expected i64[B, T], found %s", f->path, name,
             type_text(a, &e->type));
    return e;
}

static void read_batch(void *arg)
{
    FileArgs *x = arg;
    Ctx *ctx = arena_ctx(x->a);
    TensorFile *f = tensors_open(x->a, x->path);
    const TensorEntry *ids = get_tokens(x->a, f, "input_ids");
    const TensorEntry *labels = get_tokens(x->a, f, "labels");
    if (!shape_equal(&ids->type, &labels->type) || f->count != 2)
        fail(ctx, TN_FAIL, "%s: expected input_ids and labels of one shape and nothing else",
             f->path);
    if (!x->ids) {
        x->batch = ids->type.dim[0];
        x->seq = ids->type.dim[1];
        return;
    }
    if (ids->type.dim[0] != x->batch || ids->type.dim[1] != x->seq)
        fail(ctx, TN_FAIL, "%s: expected i64[%lld, %lld], found %s", f->path, (long long)x->batch,
             (long long)x->seq, type_text(x->a, &ids->type));
    tensors_read(f, ids, I64, false, x->ids);
    tensors_read(f, labels, I64, false, x->labels);
}

int tn_batch_read(tn_context *ctx, const char *path, int64_t batch, int64_t seq, int64_t *ids,
                  int64_t *labels)
{
    if (!GIVEN(ctx, ctx, path, ids, labels) || !WITHIN(ctx, 1, INT32_MAX, batch, seq))
        return TN_CODE_USAGE;
    FileArgs x = {NULL, path, batch, seq, ids, labels};
    return try_aside(ctx, &x.a, read_batch, &x);
}

typedef struct HashArgs {
    tn_context *ctx;
    const char *path;
    int64_t *nbytes;
    uint64_t *hash;
} HashArgs;

static void hash_file(void *arg)
{
    HashArgs *x = arg;
    *x->hash = file_hash(&x->ctx->ctx, x->path, x->nbytes);
}

int tn_file_hash(tn_context *ctx, const char *path, int64_t *nbytes, uint64_t *hash)
{
    if (!GIVEN(ctx, ctx, path, nbytes, hash))
        return TN_CODE_USAGE;
    *nbytes = 0;
    *hash = 0;
    return (int)ctx_try(&ctx->ctx, hash_file, &(HashArgs){ctx, path, nbytes, hash});
}

int tn_batch_shape(tn_context *ctx, const char *path, int64_t *batch, int64_t *seq)
{
    if (!GIVEN(ctx, ctx, path, batch, seq))
        return TN_CODE_USAGE;
    FileArgs x = {.path = path};
    int code = try_aside(ctx, &x.a, read_batch, &x);
    *batch = x.batch;
    *seq = x.seq;
    return code;
}

void tn_data_free(tn_data *d)
{
    handle_free((Handle *)d);
}
