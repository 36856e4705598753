/* shard_show: the choice of --shard auto as people read it. Linear in forms and their readers. */
#include "page.h"

#include <math.h>
#include <string.h>

enum { MOST_UNCUT = 8 }; /* nodes that are named */

const char *shard_way(Arena *a, const ShardTry *t)
{
    return t->exposed > 0 ? arena_printf(a, "%.0f %% exposed", 100 * t->exposed) : "recipes";
}

/* ---- the report ---- */

/* The ways among which the clock has chosen. */
static void print_tried(Buf *b, const ShardReport *r)
{
    for (int i = 0; i < r->ntried; i++) {
        const ShardTry *t = &r->tried[i];
        if (t->sec <= 0)
            continue;
        buf_printf(b, "  %-17s %s a step by the clock, %lld bytes",
                   arena_printf(b->a, t->exposed > 0 ? "%13s" : "%s", shard_way(b->a, t)),
                   sec_text(b->a, t->sec), (long long)t->nbytes);
        if (t->limit)
            buf_printf(b, ", %lld counted, limit %lld", (long long)t->kept, (long long)t->limit);
        buf_printf(b, "%s\n", i == r->taken ? ", taken" : "");
    }
}

/* "+30 us"; what there is no number for in words. */
static const char *more_text(Arena *a, double sec, double than)
{
    double more = sec - than;
    return isfinite(more) ? arena_printf(a, "%s%s", more < 0 ? "-" : "+", sec_text(a, fabs(more)))
                          : "nothing goes with it";
}

static void print_what_if(Buf *b, const ShardReport *r)
{
    const ShardTry *all = &r->tried[0], *taken = &r->tried[r->taken];
    for (int i = 0; i < r->nwhat_if; i++) {
        const ShardWhatIf *y = &r->what_if[i];
        double than = all->objective > 0 ? all->objective : r->sec;
        buf_printf(b, "  what if           %s: %s of the objective", y->pin,
                   more_text(b->a, y->objective, than));
        if (y->sec > 0)
            buf_printf(b, ", %s by the clock",
                       isfinite(y->sec) ? more_text(b->a, y->sec, taken->sec)
                                        : "nothing that fits");
        buf_printf(b, "\n");
    }
}

/* Names nodes that no axis can cut, those that take longest first. */
static void print_uncut(Buf *b, const ShardReport *r)
{
    bool *told = NEWN(b->a, bool, r->nform);
    double sec = 0;
    int count = 0, nclass = 0;
    for (int i = 0; i < r->nform; i++)
        if (r->form[i].uncut) {
            count += r->form[i].count;
            sec += r->form[i].count * r->form[i].sec;
            nclass++;
        }
    if (!count)
        return;
    buf_printf(b, "  whole on all      %d node%s that no axis can cut, %s a step: ", count,
               count > 1 ? "s" : "", sec_text(b->a, sec));
    for (int k = 0; k < MIN(nclass, MOST_UNCUT); k++) {
        int most = -1;
        for (int i = 0; i < r->nform; i++)
            if (r->form[i].uncut && !told[i] &&
                (most < 0 ||
                 r->form[i].count * r->form[i].sec > r->form[most].count * r->form[most].sec))
                most = i;
        told[most] = true;
        buf_printf(b, "%s%s%s%s", k ? ", " : "", r->form[most].node,
                   *r->form[most].scope ? " @" : "", r->form[most].scope);
    }
    buf_printf(b, nclass > MOST_UNCUT ? ", ...\n" : "\n");
}

/* Says which choices a limited gap speaks of, and by which seconds: the problem has a
 * reader of a shared form pay for it though it takes the form that was made. */
static const char *limited_text(Arena *a, const ShardReport *r)
{
    const ShardTry *t = &r->tried[r->taken];
    if (!r->ntried || !t->limit)
        return "";
    const char *within = "the limit";
    if (t->kept > t->limit)
        within = arena_printf(a, "%lld bytes, the least that was found", (long long)t->kept);
    return arena_printf(a, " within %s, by the problem's seconds, which are the objective or more",
                        within);
}

void shard_print(Buf *b, const ShardReport *r)
{
    if (!r->ntried && !r->solved)
        return;
    buf_printf(b, "sharding chosen for the shortest step:\n");
    print_tried(b, r);
    if (r->solved) {
        buf_printf(b, "  objective         %s a step without overlap, %s of the nodes emitted\n",
                   sec_text(b->a, r->sec), sec_text(b->a, r->emitted - r->rest));
        if (r->rest > 0)
            buf_printf(b,
                       "                    beside %s that add up a norm, no part of the choice\n",
                       sec_text(b->a, r->rest));
        buf_printf(b, "  gap               %.3f %%, of choices that cut equal blocks alike%s\n",
                   100 * r->gap, limited_text(b->a, r));
        buf_printf(b, "  problem           %d classes of nodes and ports, %d variables, %d edges\n",
                   r->nclass, r->nvariable, r->nedge);
        print_uncut(b, r);
    }
    print_what_if(b, r);
    if (r->solved)
        buf_printf(b, "  took              %.3f s to build, %.3f s to solve\n", r->build_sec,
                   r->solve_sec);
}

/* ---- forms ---- */

static void print_reading(Buf *b, const ShardReading *y)
{
    if (*y->reader)
        buf_printf(b, "           read as %s by %s%s%s", y->form, y->reader, *y->scope ? " @" : "",
                   y->scope);
    else
        buf_printf(b, "           made once as %s", y->form);
    if (y->sec > 0 || *y->steps)
        buf_printf(b, ": %.0f bytes, %s%s%s", y->nbytes, sec_text(b->a, y->sec),
                   *y->steps ? " by " : "", y->steps);
    buf_printf(b, "\n");
}

void shard_explain(Buf *b, const ShardReport *r)
{
    if (!r->solved && r->nform)
        buf_printf(b, "forms      of the fastest choice; the recipes' step, which is taken, has "
                      "those of the lines sharding and reshard\n");
    for (int i = 0; i < r->nform; i++) {
        const ShardForm *f = &r->form[i];
        buf_printf(b, "%-9s  %5d %s  %9s  %s%s%s: %s%s\n", "form", f->count,
                   f->port ? "ports" : "nodes", sec_text(b->a, f->sec), f->node,
                   *f->scope ? " @" : "", f->scope, f->form,
                   f->uncut ? ", as no axis can cut it" : "");
        for (int k = 0; k < f->nreading; k++)
            print_reading(b, &f->reading[k]);
        for (int k = 0; k < f->nother; k++)
            buf_printf(b, "           else %s: %s\n", f->other[k].form,
                       isfinite(f->other[k].sec)
                           ? arena_printf(b->a, "+%s", sec_text(b->a, f->other[k].sec))
                           : "nothing goes with it");
    }
    if (r->npriced || r->nopen)
        buf_printf(b,
                   "prices     of the objective with all else chosen again, %.0f %% of gathers of "
                   "parameters and reductions of gradients counted; of %d forms, %d more for which "
                   "there was no time (--what-if asks for one)\n",
                   100 * r->exposed, r->npriced, r->nopen);
}
