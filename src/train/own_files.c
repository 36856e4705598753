/* Whether data would have a file that the run makes: it would be read as data where the run goes
 * on, and the data be others than those that it began with. */
#include "train.h"

#include <fnmatch.h>
#include <string.h>
#include <sys/stat.h>

/* Whether a folder of which all files are read, or a pattern, has a file of that path, which need
 * not be there. */
static bool reads(const char *data, const char *path)
{
    char parent[CHECKPOINT_PATH];
    struct stat st, in;
    folder_parent(path, parent);
    if (stat(data, &st))
        return !fnmatch(data, path, FNM_PATHNAME | FNM_PERIOD);
    return S_ISDIR(st.st_mode) && !stat(parent, &in) && st.st_dev == in.st_dev &&
           st.st_ino == in.st_ino;
}

static int check(tn_context *ctx, const TrainOptions *t, const char *path)
{
    for (int i = 0; i < t->ndata + t->nval_data; i++) {
        bool val = i >= t->ndata;
        const char *data = val ? t->val_data[i - t->ndata] : t->data[i];
        if (reads(data, path))
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
    char record[CHECKPOINT_PATH + 10];
    snprintf(record, sizeof record, "%s.json", tokens);
    int code = check(ctx, t, tokens);
    return code ? code : check(ctx, t, record);
}
