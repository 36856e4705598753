/* Held-out loss: the mean over all labels of the validation part's windows, each predicted from its
 * own tokens alone. If only some windows are evaluated they are evenly spaced from the beginning,
 * and the same each time. Of a pass each rank reads all rows, which tells it how many labels count,
 * and computes its own. */
#include "train.h"

#include <math.h>

/* Rows of one pass, all and those of this rank. */
typedef struct Pass {
    Batch all, own;
    int64_t stride, count; /* count: labels of all of them */
} Pass;

static int read_pass(Evaluation *e, int64_t first, Pass *p)
{
    if (e->progress)
        show_evaluating(first, e->windows);
    int code = tn_data_val(e->data, first * p->stride, p->stride, e->batch, e->seq, p->all.ids,
                           p->all.labels, &p->count);
    if (code || tn_ranks(e->ctx) == 1)
        return code;
    return batch_pick(&p->all, e->plan, &p->own);
}

/* Ranks run a pass together or not at all. */
static int agree_pass(Evaluation *e, bool stop, int code)
{
    int64_t x[] = {stop, code};
    int lost = tn_agree(e->ctx, x, 2);
    e->stopped = x[0] > 0;
    if (lost || !x[1])
        return lost;
    return tn_agree_code(e->ctx, code);
}

static int run_pass(Evaluation *e, const Pass *p)
{
    bool alone = tn_ranks(e->ctx) == 1;
    int code = batch_write(e->ctx, e->x, alone ? &p->all : &p->own);
    if (!code)
        code = port_run(e->ctx, e->x);
    if (code && !alone)
        tn_ranks_end(e->ctx, code);
    return code;
}

/* The sum of the losses of all labels. */
static int sum_losses(Evaluation *e, Pass *p, double *sum)
{
    for (int64_t first = 0; first < e->windows; first += e->batch) {
        bool stop = stopped(e->stop);
        int code = agree_pass(e, stop, stop ? 0 : read_pass(e, first, p));
        if (code || e->stopped || !p->count)
            return code;
        if ((code = run_pass(e, p)))
            return code;
        *sum += port_number(e->x, "loss") * (double)p->count;
        e->count += p->count;
    }
    return 0;
}

int evaluate(Evaluation *e)
{
    Pass p = {.stride = 1};
    double sum = 0;
    int64_t nlabel;
    int code = tn_data_windows(e->data, 1, e->seq, &e->all, &nlabel);
    e->windows = e->all;
    if (e->windows > e->most && (e->most + e->batch - 1) / e->batch * e->batch < e->windows) {
        e->windows = (e->most + e->batch - 1) / e->batch * e->batch; /* whole batches */
        p.stride = e->all / e->windows;
    }
    e->count = 0;
    e->stopped = false;
    if (!code)
        code = batch_make(e->ctx, e->batch, e->seq, &p.all);
    if (!code && tn_ranks(e->ctx) > 1)
        code = batch_make_part(e->ctx, e->plan, e->seq, &p.own);
    code = tn_agree_code(e->ctx, code);
    if (!code)
        code = sum_losses(e, &p, &sum);
    batch_drop(&p.all);
    batch_drop(&p.own);
    e->loss = e->count && !isnan(sum) ? sum / (double)e->count : NAN; /* without a sign */
    return code;
}

bool evaluation_is_part(const Evaluation *e)
{
    return e->windows < e->all;
}
