/* Reads one batch from a file and checks its ids and labels before a step reads them, as errors can
 * still name the file and the place in it. With ranks it gives each its rows. */
#include "train.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { IGNORED = -100 };

bool pack_asked(const tn_options *o)
{
    return o->pack && !strcmp(o->pack, "on");
}

int batch_make(tn_context *ctx, int64_t rows, int64_t seq, Batch *b)
{
    size_t count = (size_t)(rows * seq);
    *b = (Batch){.ids = calloc(4 * count, sizeof *b->ids), .rows = rows, .seq = seq};
    if (!b->ids)
        return tn_context_fail(ctx, TN_CODE_FAIL, "out of memory");
    b->labels = b->ids + count;
    b->sent = b->labels + count;
    b->starts = b->sent + count;
    return 0;
}

int batch_make_part(tn_context *ctx, tn_plan *plan, int64_t seq, Batch *part)
{
    const int64_t *rows;
    int64_t count;
    int code = tn_plan_rows(plan, &rows, &count);
    return code ? code : batch_make(ctx, count, seq, part);
}

/* Rows of padding count for nothing. */
static void copy_row(const Batch *all, int64_t from, const Batch *part, int64_t to)
{
    int64_t seq = part->seq, *ids = part->ids + to * seq, *labels = part->labels + to * seq;
    int64_t *starts = part->starts + to * seq;
    if (from < all->rows) {
        memcpy(ids, all->ids + from * seq, (size_t)seq * sizeof *ids);
        memcpy(labels, all->labels + from * seq, (size_t)seq * sizeof *labels);
        memcpy(starts, all->starts + from * seq, (size_t)seq * sizeof *starts);
        return;
    }
    for (int64_t i = 0; i < seq; i++) {
        ids[i] = 0;
        labels[i] = IGNORED;
        starts[i] = i;
    }
}

int batch_pick(const Batch *all, tn_plan *plan, Batch *part)
{
    const int64_t *rows;
    int64_t count;
    int code = tn_plan_rows(plan, &rows, &count);
    for (int64_t i = 0; !code && i < count; i++)
        copy_row(all, rows[i], part, i);
    return code;
}

void batch_drop(Batch *b)
{
    free(b->ids);
    *b = (Batch){0};
}

/* The labels of a program that shifts them: each token's own, or -100 where it does not count. */
static void shift_back(const Batch *b)
{
    for (int64_t i = 0; i < b->rows * b->seq; i++)
        b->sent[i] = i % b->seq ? b->labels[i - 1] : b->ids[i];
}

int batch_write(tn_context *ctx, tn_program *x, const Batch *b)
{
    if (b->same)
        shift_back(b);
    int64_t nbytes = b->rows * b->seq * (int64_t)sizeof *b->ids;
    int code = tn_program_write(x, "input_ids", b->ids, nbytes);
    if (!code && port_there(x, "labels"))
        code = tn_program_write(x, "labels", b->same ? b->sent : b->labels, nbytes);
    if (!code && port_there(x, "starts"))
        code = tn_program_write(x, "starts", b->starts, nbytes);
    return code ? tn_context_fail(ctx, code, "%s", tn_program_error(x)) : 0;
}

int batch_read(tn_context *ctx, const tn_model *m, const char *path, const Batch *b)
{
    int64_t vocab, context, count = 0, seq = b->seq;
    tn_model_shape(m, &vocab, &context);
    int code = tn_batch_read(ctx, path, b->rows, seq, b->ids, b->labels);
    for (int64_t i = 0; !code && i < 2 * b->rows * seq; i++) {
        bool label = i % 2;
        int64_t at = i / 2, id = label ? b->labels[at] : b->ids[at];
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
