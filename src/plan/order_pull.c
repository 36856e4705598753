/* Moves reductions over ranks, such as those of gradients, after what they reduce. A search for an
 * order may leave them anywhere below the peak; but what a reduction frees is free for longer the
 * earlier it runs, its place is easier to find, and it runs beside more kernels.
 *
 * The order is walked once. A reduction whose operands are there, and which together with the node
 * that waits for it leaves no more alive than before, runs at once if the peak allows; it is tried
 * when its last operand was made, and when its operand has lost its last other reader. Between its
 * new place and the old one no more is alive than before, so the peak stays. Linear. */
#include "order.h"

#include <string.h>

typedef struct Pull {
    const Problem *q;
    int *out, nout;
    int *left;          /* of a storage: readers that have not run */
    int *wait;          /* of a node: how many must run first */
    bool *done;         /* of a node */
    int *ready, nready; /* reductions to be tried */
    int64_t live, peak;
} Pull;

/* Reductions that may run once i has. */
static void add_ready(Pull *x, int i)
{
    const Problem *q = x->q;
    EACH_ITEM(k, q->succ, i) {
        int j = q->succ.item[k], now = --x->wait[j];
        if (now == 0 && q->finish[j] >= 0)
            x->ready[x->nready++] = j;
        else if (now == 1 && q->begin[j] >= 0)
            x->ready[x->nready++] = q->begin[j];
    }
    EACH_ITEM(k, q->use, i) {
        int s = q->use.item[k];
        bool last = x->left[s] == 2; /* but for a reduction and what waits for it */
        for (int j = q->user.at[s]; last && j < q->user.at[s + 1]; j++)
            if (q->finish[q->user.item[j]] >= 0)
                x->ready[x->nready++] = q->user.item[j];
    }
}

static void run(Pull *x, int i)
{
    const Problem *q = x->q;
    x->live += problem_effect(q, x->left, 1, i).net;
    x->out[x->nout++] = i;
    x->done[i] = true;
    EACH_ITEM(k, q->use, i)
        x->left[q->use.item[k]]--;
    add_ready(x, i);
}

/* Runs reductions that may run now. */
static void run_reductions(Pull *x)
{
    const Problem *q = x->q;
    while (x->nready) {
        int i = x->ready[--x->nready], end = q->finish[i];
        if (x->done[i] || x->wait[i] || x->wait[end] != 1)
            continue;
        Effect e = problem_pair_effect(q, x->left, i);
        if (e.net > 0 || x->live + e.need > x->peak)
            continue;
        run(x, i);
        run(x, end);
    }
}

static Pull *pull_new(const Problem *q, Arena *tmp, int64_t peak, int *out)
{
    Pull *x = NEW(tmp, Pull);
    *x = (Pull){.q = q, .out = out, .live = q->base + q->inputs, .peak = peak};
    x->left = NEWN(tmp, int, q->storage.count);
    x->wait = NEWN(tmp, int, q->n);
    x->done = NEWN(tmp, bool, q->n);
    x->ready = NEWN(tmp, int, q->succ.at[q->n] + q->user.at[q->storage.count]);
    for (int s = 0; s < q->storage.count; s++)
        x->left[s] = q->user.at[s + 1] - q->user.at[s];
    for (int i = 0; i < q->n; i++)
        x->wait[i] = q->pred.at[i + 1] - q->pred.at[i];
    return x;
}

bool order_pull(const Problem *q, Arena *tmp, const int *order, int *out)
{
    Pull *x = pull_new(q, tmp, problem_peak(q, tmp, order), out);
    for (int k = 0; k < q->n; k++)
        if (!x->done[order[k]]) {
            run(x, order[k]);
            run_reductions(x);
        }
    return memcmp(out, order, sizeof *out * (size_t)q->n) != 0 &&
           problem_peak(q, tmp, out) <= x->peak;
}
