/* Says for plan --explain which variant of a kernel runs each call of ops that have several, by
 * what it was chosen, and which others take the call. */
#include "page.h"

#include <string.h>

/* Calls of one op with equal operands. */
typedef struct CallRow {
    const Step *step; /* the first of them */
    const char *key;
    int64_t calls;
    double sec;
} CallRow;

typedef struct CallRows {
    Arena *a;
    CallRow *row;
    int count, cap;
} CallRows;

static void add_call(void *arg, const Step *s, int64_t times)
{
    CallRows *x = arg;
    const char *key = way_key(x->a, &s->call);
    int i = 0;
    while (i < x->count && (x->row[i].step->kernel != s->kernel || strcmp(x->row[i].key, key) != 0))
        i++;
    if (i == x->count)
        PUSH(x->a, x->row, x->count, x->cap, ((CallRow){s, key, 0, 0}));
    x->row[i].calls += times;
    x->row[i].sec += s->sec * (double)times;
}

/* By what machine_way has chosen a kernel. */
static const char *chooser(Arena *a, const Plan *p, const Step *s, const Kernel *list)
{
    const char *known = machine_call_way(p->machine, &s->call);
    if (!s->kernel)
        return "no other takes it";
    if (known && !strcmp(known, s->kernel->name))
        return "the fastest as measured here";
    if (machine_way(p->machine, &s->call, list) == s->kernel)
        return arena_printf(a, "the fastest by the table of %s", machine_name(p->machine));
    return "the first of the op's list, as neither a table nor a measurement prefers another";
}

static void print_others(Buf *b, const Step *s, const Kernel *list, bool take)
{
    const char *next = take ? "; not taken, though possible: " : "; not possible here: ";
    for (const Kernel *k = list; k->name; k++)
        if (k != s->kernel && kernel_takes(k, &s->call) == take) {
            buf_printf(b, "%s%s", next, k->name);
            next = ", ";
        }
}

static void print_row(Buf *b, const Plan *p, const CallRow *r)
{
    const Step *s = r->step;
    const Kernel *list = op_kernels(s->node->op, p->device->kernels);
    buf_printf(b, "%-9s  %11lld %5s  %9s  %s.%s  %s: taken: %s", "kernel", (long long)r->calls,
               r->calls == 1 ? "call" : "calls", sec_text(b->a, r->sec), s->node->op->name,
               s->kernel ? s->kernel->name : "ref", r->key, chooser(b->a, p, s, list));
    print_others(b, s, list, true);
    print_others(b, s, list, false);
    buf_add(b, "\n");
}

void kernels_explain(Buf *b, const Plan *p)
{
    CallRows x = {.a = b->a};
    plan_each_call(p, add_call, &x);
    for (int i = 0; i < x.count; i++)
        print_row(b, p, &x.row[i]);
}
