/* Whether the ranks that a launcher has started read the same: each opens the model, the data and
 * the batch by itself, perhaps on another disk, and what differs there would be trained on as a
 * mixture, without a word. So hashes of all files are compared with rank 0's before anything is
 * planned. Ranks that are threads have one disk. */
#include "train.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct Print {
    int64_t nbytes;
    uint64_t hash;
} Print;

/* Paths of files, borrowed. */
typedef struct Files {
    const char **path;
    int64_t count, cap;
} Files;

static int add(tn_context *ctx, Files *f, const char *path)
{
    if (f->count == f->cap) {
        int64_t cap = f->cap ? 2 * f->cap : 16;
        const char **more = realloc(f->path, (size_t)cap * sizeof *more);
        if (!more)
            return tn_context_fail(ctx, TN_CODE_FAIL, "out of memory");
        f->path = more;
        f->cap = cap;
    }
    f->path[f->count++] = path;
    return 0;
}

static int compare_one(tn_context *ctx, const char *path, const Print *own, const Print *first)
{
    if (own->nbytes != first->nbytes)
        return tn_context_fail(ctx, TN_CODE_FAIL,
                               "%s: %" PRId64 " bytes here, %" PRId64
                               " on rank 0: ranks must have the same files",
                               path, own->nbytes, first->nbytes);
    if (own->hash != first->hash)
        return tn_context_fail(ctx, TN_CODE_FAIL,
                               "%s: other content here than on rank 0, in %" PRId64
                               " bytes: ranks must have the same files",
                               path, own->nbytes);
    return 0;
}

/* Hashes this rank's files and compares them with rank 0's, which has as many. */
static int compare(tn_context *ctx, const Files *f)
{
    size_t n = (size_t)f->count;
    Print *own = calloc(2 * n, sizeof *own), *first = own + n;
    int code = own ? 0 : tn_context_fail(ctx, TN_CODE_FAIL, "out of memory");
    for (size_t i = 0; i < n && !code; i++)
        code = tn_file_hash(ctx, f->path[i], &own[i].nbytes, &own[i].hash);
    code = tn_agree_code(ctx, code);
    if (!code) {
        memcpy(first, own, n * sizeof *own);
        code = tn_share(ctx, first, n * sizeof *first);
    }
    if (!code) {
        for (size_t i = 0; i < n && !code; i++)
            code = compare_one(ctx, f->path[i], &own[i], &first[i]);
        code = tn_agree_code(ctx, code);
    }
    free(own);
    return code;
}

static int compare_all(tn_context *ctx, int code, const char *what, Files *f)
{
    int64_t first = f->count;
    code = tn_agree_code(ctx, code);
    if (!code)
        code = tn_share(ctx, &first, sizeof first);
    if (!code && f->count != first)
        code =
            tn_context_fail(ctx, TN_CODE_FAIL, "%s: %" PRId64 " files here, %" PRId64 " on rank 0",
                            what, f->count, first);
    code = tn_agree_code(ctx, code);
    if (!code && first)
        code = compare(ctx, f);
    free(f->path);
    return code;
}

/* Ranks that are threads read the very same files. */
static bool is_one_disk(const tn_context *ctx)
{
    return tn_ranks(ctx) == 1 || tn_launched() < 2;
}

int alike_model(tn_context *ctx, const tn_model *m, const char *name)
{
    Files f = {0};
    int code = 0;
    const char *path;
    if (is_one_disk(ctx))
        return 0;
    for (int i = 0; !code && (path = tn_model_file(m, i)); i++)
        code = add(ctx, &f, path);
    return compare_all(ctx, code, name, &f);
}

int alike_data(tn_context *ctx, const Source *s)
{
    char tokenizer[CHECKPOINT_PATH];
    const char *path;
    int64_t nbytes;
    uint64_t fingerprint;
    Files f = {0};
    int code = 0;
    if (is_one_disk(ctx))
        return 0;
    if (source_is_text(s) && source_own_tokenizer(s, tokenizer)) /* the model's is the model's */
        code = add(ctx, &f, tokenizer);
    for (int i = 0; !code && tn_data_file(s->files, i, &path, &nbytes, &fingerprint); i++)
        code = add(ctx, &f, path);
    return compare_all(ctx, code, "--data", &f);
}

int alike_file(tn_context *ctx, const char *path)
{
    Files f = {0};
    return is_one_disk(ctx) ? 0 : compare_all(ctx, add(ctx, &f, path), path, &f);
}
