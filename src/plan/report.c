/* A plan as text: the breakdown for people, every step with its addresses, and the hash of these.
 */
#include "plan.h"

#include <string.h>

enum { MIB = 1 << 20 };

static double mib(int64_t nbytes)
{
    return (double)nbytes / MIB;
}

/* ---- groups of parameters ---- */

/* Whether a parameter is in a group: trained by an optimizer's node, or not at all. */
static bool find_group(const Map *renewed, const Map *grads, const char *param, const Node **n)
{
    const Value *now = map_find(renewed, param);
    *n = now ? now->def : NULL;
    if (now)
        return *n && attr_index((*n)->op, "weight_decay") >= 0;
    return !map_find(grads, param);
}

static bool trains(const Graph *g, Arena *a)
{
    const Map params = graph_named(g->in, g->nin, ROLE_PARAM, a);
    for (int i = 0; i < g->nout; i++)
        if (g->out[i].role == ROLE_GRAD ||
            (g->out[i].role == ROLE_NEW && map_find(&params, g->out[i].name)))
            return true;
    return false;
}

static void add_to_group(Arena *a, ParamGroup **groups, int *count, int *cap, const Node *n,
                         const Type *t)
{
    const Op *op = n ? n->op : NULL;
    double decay = n ? n->attr[attr_index(op, "weight_decay")].f : 0;
    int i = 0;
    while (i < *count && ((*groups)[i].op != op || (*groups)[i].decay != decay))
        i++;
    if (i == *count)
        PUSH(a, *groups, *count, *cap, ((ParamGroup){op, decay, 0, 0}));
    (*groups)[i].ntensor++;
    (*groups)[i].nelem += type_nelem(t);
}

int plan_groups(Arena *a, const Plan *p, ParamGroup **groups)
{
    const Graph *g = p->g;
    const Node *n;
    int count = 0, cap = 0;
    if (!trains(g, a))
        return 0;
    const Map renewed = graph_named(g->out, g->nout, ROLE_NEW, a),
              grads = graph_named(g->out, g->nout, ROLE_GRAD, a);
    for (int frozen = 0; frozen < 2; frozen++)
        for (int i = 0; i < g->nin; i++)
            if (g->in[i].role == ROLE_PARAM && find_group(&renewed, &grads, g->in[i].name, &n) &&
                (n == NULL) == frozen)
                add_to_group(a, groups, &count, &cap, n, &g->in[i].v->type);
    return count;
}

static void print_groups(Buf *b, const Plan *p)
{
    ParamGroup *group = NULL;
    int count = plan_groups(b->a, p, &group);
    for (int i = 0; i < count; i++) {
        const ParamGroup *x = &group[i];
        buf_printf(b, "  %-13s %12lld values in %d tensors", x->op ? x->op->name : "frozen",
                   (long long)x->nelem, x->ntensor);
        if (x->op)
            buf_printf(b, ", weight decay %g", x->decay);
        buf_add(b, "\n");
    }
}

/* ---- the plan ---- */

static void print_scopes(Buf *b, const Breakdown *x)
{
    bool backward = x->nsaved || x->nrecomputed;
    buf_printf(b, "by scope, in MiB:                 at the peak%s\n",
               backward ? "        saved   recomputed" : "");
    for (int i = 0; i < x->nrow; i++) {
        const ScopeBytes *y = &x->row[i];
        if (MAX(y->peak, MAX(y->saved, y->recomputed)) * y->count < MIB / 100)
            continue; /* labels and such */
        buf_printf(b, "  %-24s", scope_title(b->a, y));
        buf_printf(b, y->count > 1 ? "%4d x" : "      ", y->count);
        buf_printf(b, " %12.2f", mib(y->peak));
        if (backward)
            buf_printf(b, " %12.2f %12.2f", mib(y->saved), mib(y->recomputed));
        buf_add(b, "\n");
    }
    if (backward)
        buf_printf(b, "saved for the backward: %d values, %lld bytes, %.2f MiB\n", x->nsaved,
                   (long long)x->saved, mib(x->saved));
    if (x->nrecomputed)
        buf_printf(b,
                   "computed again: %d values, %lld bytes, %.2f MiB, %.4g GFLOP (%.1f %% of the "
                   "step's)\n",
                   x->nrecomputed, (long long)x->recomputed, mib(x->recomputed),
                   x->added_nflop / 1e9, 100 * x->added_nflop / MAX(x->nflop, 1));
}

void plan_print(Buf *b, const Plan *p)
{
    buf_printf(b, "plan: %d nodes, %d calls (%d copies), %d buffers\n", graph_count(p->g), p->nstep,
               p->ncopies, p->nstorage);
    buf_printf(b, "  peak          %12lld bytes  %10.2f MiB\n", (long long)p->peak, mib(p->peak));
    buf_printf(b, "  lower bound   %12lld bytes  %10.2f MiB\n", (long long)p->bound, mib(p->bound));
    buf_printf(b, "  order bound   %12lld bytes  %10.2f MiB (of any order)\n",
               (long long)p->order_bound, mib(p->order_bound));
    buf_printf(b, "  waste         %12lld bytes\n", (long long)(p->peak - p->bound));
    buf_printf(b, "  library       %12lld bytes  %10.2f MiB (reserve, beside the peak)\n",
               (long long)p->reserve, mib(p->reserve));
    print_groups(b, p);
    const Node *n = p->nstep ? p->step[MIN(p->peak_step, p->nstep - 1)].node : NULL;
    if (n)
        buf_printf(b, "alive at the peak (%s%s%s):\n", n->op->name, *n->scope ? " in " : "",
                   n->scope);
    for (int c = 0; c < NCATEGORY; c++)
        if (p->by_category[c])
            buf_printf(b, "  %-13s %12lld bytes  %10.2f MiB\n", category_name((Category)c),
                       (long long)p->by_category[c], mib(p->by_category[c]));
    print_scopes(b, plan_breakdown(b->a, p));
}

static void print_arg(Buf *b, const Plan *p, const Arg *a)
{
    const Storage *s = &p->storage[a->storage];
    buf_printf(b, " %s@%lld", s->name, (long long)(s->offset + a->offset));
    for (int d = 0; d < TN_MAX_DEPTH; d++)
        if (a->loop_stride[d])
            buf_printf(b, "+%lldt%d", (long long)a->loop_stride[d], d);
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
            buf_printf(b, "loop t%d = %lld, %lld iterations by %lld", s->depth, (long long)s->first,
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
