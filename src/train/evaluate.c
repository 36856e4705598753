/* Held-out loss: the mean over all labels of the validation part's windows, each predicted from its
 * own tokens alone. If only some windows are evaluated they are evenly spaced from the beginning,
 * and the same each time. */
#include "train.h"

#include <math.h>

static double loss_of(tn_program *x)
{
    void *loss = NULL;
    return tn_program_data(x, "loss", &loss, NULL) ? NAN : *(float *)loss;
}

static void tell(const Evaluation *e, int64_t done)
{
    if (e->progress)
        show_evaluating(done, e->windows);
}

int evaluate(Evaluation *e)
{
    void *ids = NULL, *labels = NULL;
    double sum = 0;
    int64_t count = 1, nlabel, stride = 1;
    int code = tn_data_windows(e->data, 1, e->seq, &e->all, &nlabel);
    e->windows = e->all;
    if (e->windows > e->most && (e->most + e->batch - 1) / e->batch * e->batch < e->windows) {
        e->windows = (e->most + e->batch - 1) / e->batch * e->batch; /* whole batches */
        stride = e->all / e->windows;
    }
    e->count = 0;
    if (!code)
        code = tn_program_data(e->x, "input_ids", &ids, NULL);
    if (!code)
        code = tn_program_data(e->x, "labels", &labels, NULL);
    for (int64_t first = 0; !code && !(e->stop && *e->stop) && first < e->windows;
         first += e->batch) {
        tell(e, first);
        code = tn_data_val(e->data, first * stride, stride, e->batch, e->seq, ids, labels, &count);
        if (code || !count)
            break;
        code = tn_program_run(e->x);
        sum += loss_of(e->x) * (double)count;
        e->count += count;
    }
    e->loss = e->count && !isnan(sum) ? sum / (double)e->count : NAN; /* without a sign */
    return code;
}

bool evaluation_is_part(const Evaluation *e)
{
    return e->windows < e->all;
}
