/* Reads one batch from a file and checks its ids and labels before a step reads them, as errors can
 * still name the file and the place in it. */
#include "train.h"

#include <inttypes.h>
#include <string.h>

enum { IGNORED = -100 };

int batch_read(tn_context *ctx, const tn_model *m, const char *path, int64_t batch, int64_t seq,
               int64_t *ids, int64_t *labels)
{
    int64_t vocab, context, count = 0;
    tn_model_shape(m, &vocab, &context);
    int code = tn_batch_read(ctx, path, batch, seq, ids, labels);
    for (int64_t i = 0; !code && i < 2 * batch * seq; i++) {
        bool label = i % 2;
        int64_t at = i / 2, id = label ? labels[at] : ids[at];
        count += label && id != IGNORED;
        if ((id < 0 || id >= vocab) && !(label && id == IGNORED))
            code = tn_context_fail(ctx, TN_CODE_FAIL,
                                   "%s: %s, row %" PRId64 ", column %" PRId64
                                   " (from 0): expected 0 to %" PRId64 "%s, found %" PRId64,
                                   strcmp(path, "-") ? path : "standard input",
                                   label ? "labels" : "input_ids", at / seq, at % seq, vocab - 1,
                                   label ? ", or -100 where none counts" : "", id);
    }
    if (!code && !count)
        code = tn_context_fail(ctx, TN_CODE_FAIL,
                               "%s: labels: expected at least 1 that is not -100, found none",
                               strcmp(path, "-") ? path : "standard input");
    return code;
}
