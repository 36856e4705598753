/* The plan as text. */
#include "plan.h"

#include <string.h>

static double mib(int64_t nbytes)
{
    return (double)nbytes / 1048576.0;
}

void plan_print(Buf *b, const Plan *p)
{
    buf_printf(b, "plan: %d nodes, %d calls (%d copies), %d buffers\n", graph_count(p->g), p->nstep,
               p->ncopies, p->nstorage);
    buf_printf(b, "  peak          %12lld bytes  %10.2f MiB\n", (long long)p->peak, mib(p->peak));
    buf_printf(b, "  lower bound   %12lld bytes  %10.2f MiB\n", (long long)p->bound, mib(p->bound));
    buf_printf(b, "  waste         %12lld bytes\n", (long long)(p->peak - p->bound));
    buf_printf(b, "  library       %12lld bytes  %10.2f MiB (reserve, beside the peak)\n",
               (long long)p->reserve, mib(p->reserve));
    const Node *n = p->nstep ? p->step[MIN(p->peak_step, p->nstep - 1)].node : NULL;
    if (n)
        buf_printf(b, "alive at the peak (%s%s%s):\n", n->op->name, *n->scope ? " in " : "",
                   n->scope);
    for (int c = 0; c < NCATEGORY; c++)
        if (p->by_category[c])
            buf_printf(b, "  %-13s %12lld bytes  %10.2f MiB\n", category_name((Category)c),
                       (long long)p->by_category[c], mib(p->by_category[c]));
}

static void print_arg(Buf *b, const Plan *p, const Arg *a)
{
    const Storage *s = &p->storage[a->storage];
    buf_printf(b, " %s@%lld", s->name, (long long)(s->offset + a->offset));
    for (int d = 0; d < TN_MAX_DEPTH; d++)
        if (a->turn[d])
            buf_printf(b, "+%lldt%d", (long long)a->turn[d], d);
}

static void print_call(Buf *b, const Plan *p, const Step *s)
{
    buf_printf(b, "%s%s.%s", s->copy ? "(planner) " : "", s->node->op->name,
               s->kernel ? s->kernel->name : "ref");
    for (int i = 0; i < s->call.nin; i++)
        print_arg(b, p, &s->arg[i]);
    buf_add(b, " ->");
    for (int k = 0; k < s->call.nout; k++)
        print_arg(b, p, &s->arg[s->call.nin + k]);
    if (s->work >= 0)
        buf_printf(b, " work @%lld %lld", (long long)p->storage[s->work].offset,
                   (long long)s->call.nbytes_work);
    if (*s->node->scope)
        buf_printf(b, "  %s", s->node->scope);
}

void plan_print_steps(Buf *b, const Plan *p)
{
    for (int i = 0; i < p->nstep; i++) {
        const Step *s = &p->step[i];
        buf_printf(b, "%5d ", i);
        switch (s->kind) {
        case STEP_CALL: print_call(b, p, s); break;
        case STEP_LOOP:
            buf_printf(b, "loop t%d = %lld, %lld turns by %lld", s->depth, (long long)s->first,
                       (long long)s->count, (long long)s->by);
            break;
        case STEP_END: buf_printf(b, "end of loop %d", s->end); break;
        case STEP_ZERO: buf_printf(b, "zero %lld bytes", (long long)s->nbytes); break;
        case STEP_OFFSET: buf_printf(b, "offset t%d * %lld", s->depth, (long long)s->by); break;
        }
        if (s->kind == STEP_ZERO || s->kind == STEP_OFFSET)
            print_arg(b, p, &s->arg[0]);
        buf_add(b, "\n");
    }
}

uint64_t plan_hash(const Plan *p)
{
    uint64_t h = graph_hash(p->g);
    for (int i = 0; i < p->nstorage; i++) {
        const Storage *s = &p->storage[i];
        int64_t key[] = {s->offset, s->nbytes, s->start, s->end};
        h = hash_bytes(key, sizeof key, h);
    }
    for (int i = 0; i < p->nstep; i++) {
        const char *kernel = p->step[i].kernel ? p->step[i].kernel->name : "ref";
        h = hash_bytes(kernel, strlen(kernel), h);
    }
    return h;
}
