/* Held-out loss: the mean over all labels of the validation part's windows, each predicted from its
 * own tokens alone. If only some windows are evaluated they are evenly spaced from the beginning,
 * and the same each time. */
#include "train.h"

#include <math.h>

static void tell(const Evaluation *e, int64_t done)
{
    if (e->progress)
        show_evaluating(done, e->windows);
}

/* The sum of the losses of all labels. */
static int sum_losses(Evaluation *e, const Batch *b, int64_t stride, double *sum)
{
    int64_t count = 1;
    int code = 0;
    for (int64_t first = 0; !code && !(e->stop && *e->stop) && first < e->windows;
         first += e->batch) {
        tell(e, first);
        code = tn_data_val(e->data, first * stride, stride, e->batch, e->seq, b->ids, b->labels,
                           &count);
        if (code || !count)
            break;
        code = batch_write(e->ctx, e->x, b);
        if (!code)
            code = port_run(e->ctx, e->x);
        if (!code)
            *sum += port_number(e->x, "loss") * (double)count;
        e->count += count;
    }
    return code;
}

int evaluate(Evaluation *e)
{
    Batch b = {0};
    double sum = 0;
    int64_t nlabel, stride = 1;
    int code = tn_data_windows(e->data, 1, e->seq, &e->all, &nlabel);
    e->windows = e->all;
    if (e->windows > e->most && (e->most + e->batch - 1) / e->batch * e->batch < e->windows) {
        e->windows = (e->most + e->batch - 1) / e->batch * e->batch; /* whole batches */
        stride = e->all / e->windows;
    }
    e->count = 0;
    if (!code)
        code = batch_make(e->ctx, e->batch, e->seq, &b);
    if (!code)
        code = sum_losses(e, &b, stride, &sum);
    batch_drop(&b);
    e->loss = e->count && !isnan(sum) ? sum / (double)e->count : NAN; /* without a sign */
    return code;
}

bool evaluation_is_part(const Evaluation *e)
{
    return e->windows < e->all;
}
