/* Consecutive calls that a device runs by fewer launches (Kernel.run_all), as an optimizer's
 * updates of a hundred small tensors: found once for a program. They stand outside of loops, on one
 * queue, only the first waits for another queue, and none writes what another reads or writes. Runs
 * whose steps are looked at one by one do not join them. */
#include "exec.h"

enum { MOST_JOINED = 1024, MOST_TOUCHED = 16 };

/* The ranges that a step touches. */
typedef struct Touched {
    ByteRange bytes[MOST_TOUCHED];
    bool write[MOST_TOUCHED];
    int n; /* MOST_TOUCHED + 1: more */
} Touched;

static void touch(void *arg, int step, int storage, ByteRange b, bool write)
{
    Touched *t = arg;
    (void)step, (void)storage;
    if (t->n >= MOST_TOUCHED) {
        t->n = MOST_TOUCHED + 1;
        return;
    }
    t->bytes[t->n] = b;
    t->write[t->n++] = write;
}

/* Whether either writes what the other touches. */
static bool meet(const Touched *a, const Touched *b)
{
    for (int i = 0; i < a->n; i++)
        for (int k = 0; k < b->n; k++)
            if ((a->write[i] || b->write[k]) && a->bytes[i].low < b->bytes[k].high &&
                b->bytes[k].low < a->bytes[i].high)
                return true;
    return false;
}

static bool joins(const Program *x, int i)
{
    const Step *s = &x->plan->step[i];
    return s->kind == STEP_CALL && s->kernel && s->kernel->run_all;
}

/* How many steps from `first` on run as one; touched: room for MOST_JOINED. */
static int find_joined(const Program *x, int first, Touched *touched)
{
    const Plan *p = x->plan;
    int n = 0;
    for (int i = first; i < p->nstep && n < MOST_JOINED && joins(x, i); i++, n++) {
        const Step *s = &p->step[i], *begin = &p->step[first];
        if (n && (s->kernel != begin->kernel || s->queue != begin->queue || s->nwait))
            break;
        touched[n].n = 0;
        step_each_access(p, i, NULL, 0, touch, &touched[n]);
        if (touched[n].n > MOST_TOUCHED)
            break;
        int k = 0;
        while (k < n && !meet(&touched[k], &touched[n]))
            k++;
        if (k < n)
            break;
    }
    return n;
}

/* At most, that could run as one. */
static int count_joins(const Program *x)
{
    int n = 0;
    for (int i = 0; i < x->plan->nstep; i++)
        n += joins(x, i);
    return MIN(n, MOST_JOINED);
}

void join_prepare(Program *x, Arena *a)
{
    const Plan *p = x->plan;
    int most = count_joins(x);
    if (!most)
        return;
    Touched *touched = NEWN(a, Touched, most);
    x->joined = NEWN(a, int, p->nstep);
    x->together = NEWN(a, Call *, most);
    for (int i = 0, depth = 0; i < p->nstep; i++) {
        depth += (p->step[i].kind == STEP_LOOP) - (p->step[i].kind == STEP_END);
        if (!joins(x, i))
            continue;
        int n = depth ? 0 : find_joined(x, i, touched);
        x->joined[i] = MAX(n, 1);
        i += MAX(n, 1) - 1;
    }
}
