/* Held-out loss: the mean over all labels of the validation part's windows, each predicted from its
 * own tokens alone. If only some windows are evaluated they are evenly spaced from the beginning,
 * and the same each time. Each rank reads all rows of a pass, which tells it how many labels count,
 * and computes its own. How many windows there are to be is a count, so that no number hangs on a
 * clock; a signal and --max-sec end it after a pass, with what it has. */
#include "train.h"

#include <inttypes.h>
#include <math.h>

enum { WINDOWS = 64, PART = 10, IGNORED = -100, SAY_SEC = 30 };

int64_t evaluation_most(const TrainOptions *t, int64_t step, bool end)
{
    double part = (double)step * (double)t->batch / PART;
    if (t->eval_windows)
        return t->eval_windows;
    return !end || t->eval_every || part >= WINDOWS ? WINDOWS : part < 1 ? 1 : (int64_t)part;
}

/* Rows of one pass, all and those of this rank. */
typedef struct EvaluationPass {
    Batch all, own;
    int64_t stride, count; /* count: labels of all of them */
    double start, said;    /* of wall_sec: when it began, and when that was told last */
} EvaluationPass;

/* ---- what is said ---- */

static void announce(const Evaluation *e)
{
    double sec = e->pass_sec * ceil((double)e->planned / (double)e->batch);
    double left = e->deadline - wall_sec();
    if (!e->announce || !e->log || sec < e->announce_from)
        return;
    fprintf(e->log, "evaluating %" PRId64 " of %" PRId64 " windows, about %.3g s", e->planned,
            e->all, sec);
    if (e->deadline && left < sec)
        fprintf(e->log, ", of which --max-sec leaves %.3g: the loss is that of as many windows",
                left > 0 ? left : 0);
    fputc('\n', e->log);
}

/* On a terminal a line that is rewritten, elsewhere one every SAY_SEC. */
static void tell(const Evaluation *e, int64_t done, EvaluationPass *p)
{
    double now = wall_sec(), left = done ? (now - p->start) / (double)done : 0;
    double pause = e->say_sec > 0 ? e->say_sec : SAY_SEC;
    if (!e->log || (!e->progress && now < p->said + pause))
        return;
    p->said = now;
    char after[40] = "", text[120];
    if (done)
        snprintf(after, sizeof after, ", %.0f s left", left * (double)(e->planned - done));
    snprintf(text, sizeof text, "evaluating: %" PRId64 " of %" PRId64 " windows%s", done,
             e->planned, after);
    if (e->progress)
        line_show(e->log, "%s", text);
    else
        fprintf(e->log, "%s\n", text);
    fflush(e->log);
}

/* ---- passes ---- */

/* Rows after the last window that is looked at do not count. */
static void leave_out(const Evaluation *e, int64_t rows, EvaluationPass *p)
{
    for (int64_t i = rows * e->seq; i < e->batch * e->seq; i++) {
        p->count -= p->all.labels[i] != IGNORED;
        p->all.labels[i] = IGNORED;
    }
}

/* Bytes of the text that the labels of a pass are. */
static int64_t label_bytes(const Evaluation *e, const EvaluationPass *p)
{
    int64_t sum = 0;
    for (int64_t i = 0; e->bytes && i < e->batch * e->seq; i++) {
        int64_t id = p->all.labels[i];
        bool counts = id != IGNORED && !(e->same && i % e->seq == e->seq - 1);
        sum += counts && id < e->nid && e->bytes[id] > 0 ? e->bytes[id] : 0;
    }
    return sum;
}

static int read_pass(Evaluation *e, int64_t first, EvaluationPass *p)
{
    tell(e, first, p);
    int code = tn_data_val_packed(e->data, first * p->stride, p->stride, e->batch, e->seq,
                                  p->all.ids, p->all.labels, p->all.starts, &p->count);
    if (!code && e->planned - first < e->batch)
        leave_out(e, e->planned - first, p);
    for (int64_t i = e->seq - 1; e->same && i < e->batch * e->seq; i += e->seq)
        p->count -= p->all.labels[i] != IGNORED; /* which no place is left for */
    if (code || tn_ranks(e->ctx) == 1)
        return code;
    return batch_pick(&p->all, e->plan, &p->own);
}

/* Ranks run a pass together or not at all. */
static int agree_pass(Evaluation *e, bool stop, bool late, int code)
{
    int64_t x[] = {stop, code, late};
    int lost = tn_agree(e->ctx, x, 3);
    e->stopped = x[0] > 0;
    e->late = x[2] > 0 && !e->stopped;
    if (lost || !x[1])
        return lost;
    return tn_agree_code(e->ctx, code);
}

static int run_pass(Evaluation *e, const EvaluationPass *p)
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
static int sum_losses(Evaluation *e, EvaluationPass *p, double *sum)
{
    for (e->windows = 0; e->windows < e->planned;) {
        bool stop = stopped(e->stop), late = e->windows && e->deadline && wall_sec() > e->deadline;
        int code = agree_pass(e, stop, late, stop || late ? 0 : read_pass(e, e->windows, p));
        if (code || e->stopped || e->late)
            return code;
        if (p->count && (code = run_pass(e, p)))
            return code;
        *sum += p->count ? port_number(e->x, "loss") * (double)p->count : 0;
        e->count += p->count;
        e->text += label_bytes(e, p);
        int64_t end = e->windows + e->batch;
        e->windows = end < e->planned ? end : e->planned;
    }
    return 0;
}

int evaluate(Evaluation *e)
{
    EvaluationPass p = {.stride = 1, .start = wall_sec()};
    double sum = 0;
    int64_t nlabel;
    int code = tn_data_windows(e->data, 1, e->seq, &e->all, &nlabel);
    e->planned = e->all;
    if (!code && e->planned > e->most) {
        e->planned = e->most;
        p.stride = e->all / e->planned;
    }
    e->count = e->text = 0;
    e->stopped = e->late = false;
    p.said = p.start;
    if (!code)
        code = batch_make(e->ctx, e->batch, e->seq, &p.all);
    if (!code && tn_ranks(e->ctx) > 1)
        code = batch_make_part(e->ctx, e->plan, e->seq, &p.own);
    p.all.same = p.own.same = e->same;
    code = tn_agree_code(e->ctx, code);
    if (!code)
        announce(e);
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

double evaluation_bits(const Evaluation *e)
{
    const double ln2 = 0.69314718055994531;
    return e->text > 0 ? e->loss * (double)e->count / (ln2 * (double)e->text) : NAN;
}
