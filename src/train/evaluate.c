/* Held-out loss: the windows of the validation part in order, each predicted from its own tokens
 * alone, the mean over all labels. */
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
    void *ids, *labels;
    double sum = 0;
    int64_t count = 1, ntrain, nval, nbytes;
    tn_data_size(e->data, &ntrain, &nval, &nbytes);
    e->windows = nval < 2 ? 0 : (nval - 2 + e->seq) / e->seq;
    e->windows = e->windows < e->most ? e->windows : e->most;
    e->count = 0;
    int code = tn_program_data(e->x, "input_ids", &ids, NULL);
    if (!code)
        code = tn_program_data(e->x, "labels", &labels, NULL);
    for (int64_t first = 0; !code && !(e->stop && *e->stop) && first < e->windows;
         first += e->batch) {
        tell(e, first);
        code = tn_data_val(e->data, first, e->batch, e->seq, ids, labels, &count);
        if (code || !count)
            break;
        code = tn_program_run(e->x);
        sum += loss_of(e->x) * (double)count;
        e->count += count;
    }
    e->loss = e->count ? sum / (double)e->count : NAN;
    return code;
}
