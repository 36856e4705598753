/* Whether data would have a file that the run makes: it would be read as data where the run goes
 * on, and the data be others than those that it began with. */
#include "train.h"

#include <fnmatch.h>
#include <string.h>
#include <sys/stat.h>

static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Compares folders, not their spelling. */
static bool matches(const char *pattern, const char *path)
{
    char of[CHECKPOINT_PATH], in[CHECKPOINT_PATH];
    folder_parent(pattern, of);
    folder_parent(path, in);
    return !fnmatch(pattern, path, FNM_PATHNAME | FNM_PERIOD) ||
           (path_same(of, in) && !fnmatch(name_of(pattern), name_of(path), FNM_PERIOD));
}

/* Whether a folder of which all files are read, or a pattern, has a file of that path, which need
 * not be there; `folder`: or a pattern a folder. */
static bool reads(const char *data, const char *path, bool folder)
{
    char parent[CHECKPOINT_PATH];
    struct stat st;
    folder_parent(path, parent);
    return stat(data, &st) ? matches(data, path) : !folder && path_same(data, parent);
}

static int check(tn_context *ctx, const TrainOptions *t, const char *path, bool folder)
{
    for (int i = 0; i < t->ndata + t->nval_data; i++) {
        bool val = i >= t->ndata;
        const char *data = val ? t->val_data[i - t->ndata] : t->data[i];
        if (reads(data, path, folder))
            return tn_context_fail(
                ctx, TN_CODE_USAGE,
                "train: --out %s: the run makes %s, which would be one of the files of "
                "--%sdata %s: expected another folder",
                t->out, path, val ? "val-" : "", data);
    }
    return 0;
}

int own_files_check(tn_context *ctx, const TrainOptions *t, const char *tokens)
{
    char path[CHECKPOINT_PATH + 10];
    snprintf(path, sizeof path, "%s/latest", t->out);
    int code = check(ctx, t, path, true);
    snprintf(path, sizeof path, "%s.json", tokens ? tokens : "");
    code = code || !tokens ? code : check(ctx, t, tokens, false);
    return code || !tokens ? code : check(ctx, t, path, false);
}
