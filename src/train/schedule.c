/* The learning rate: linear warm-up, then constant, or down to min_lr on a line or half a cosine
 * over what is left after the warm-up. */
#include "train.h"

#include <math.h>
#include <string.h>

double schedule_lr(const TrainOptions *t, int64_t step, double done)
{
    double low = t->min_lr < 0 ? 0.1 * t->lr : t->min_lr;
    if (step <= t->warmup)
        return t->lr * (double)step / (double)t->warmup;
    if (!strcmp(t->schedule, "constant"))
        return t->lr;
    double warm = (double)t->warmup / (double)(t->steps > t->warmup ? t->steps : t->warmup + 1);
    double way = (done - warm) / (1 - warm);
    way = way < 0 ? 0 : way > 1 ? 1 : way;
    double high =
        !strcmp(t->schedule, "cosine") ? 0.5 * (1 + cos(3.14159265358979323846 * way)) : 1 - way;
    return low + (t->lr - low) * high;
}
