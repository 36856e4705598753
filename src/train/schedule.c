/* The learning rate of step s = 1 to N, with W steps of warm-up:
 *
 *   s <= W:    lr s / W
 *   constant:  lr
 *   linear:    min + (lr - min) (1 - x)
 *   cosine:    min + (lr - min) (1 + cos(pi x)) / 2
 *
 * with x = (s - F) / (N - F), where F = max(W, 1) is the step that has lr. So no step has rate 0,
 * the last one has exactly min (if N > F; else the run ends in its warm-up, or its one step has
 * lr), and x is 1 from N on. Under a limit of time, x is at least the fraction of that time that
 * has passed. Cosine without restarts: Loshchilov and Hutter 2017, arXiv:1608.03983. */
#include "train.h"

#include <math.h>
#include <string.h>

double train_sec(const TrainOptions *t)
{
    return t->ndata && (t->val_fraction > 0 || t->nval_data) ? 0.95 * t->max_sec : t->max_sec;
}

double schedule_lr(const TrainOptions *t, int64_t step, double by_time)
{
    double low = t->min_lr < 0 ? 0.1 * t->lr : t->min_lr;
    int64_t full = t->warmup > 1 ? t->warmup : 1;
    if (step < full)
        return t->lr * (double)step / (double)full;
    if (!strcmp(t->schedule, "constant"))
        return t->lr;
    double x = t->steps > full ? (double)(step - full) / (double)(t->steps - full) : 0;
    x = fmin(1, fmax(x, by_time));
    if (x == 0)
        return t->lr;
    double high =
        !strcmp(t->schedule, "cosine") ? 0.5 * (1 + cos(3.14159265358979323846 * x)) : 1 - x;
    return low + (t->lr - low) * high;
}
