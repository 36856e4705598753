/* In the place of plan_make and plan_ordered, where a test program is linked so: every plan that it
 * makes is checked. */
#include "check_queue.h"

#include <stdlib.h>

Plan *__real_plan_make(Arena *a, Graph *g, const PlanFor *to);
Plan *__real_plan_ordered(Arena *a, Graph *g, const PlanFor *to);
Plan *__wrap_plan_make(Arena *a, Graph *g, const PlanFor *to);
Plan *__wrap_plan_ordered(Arena *a, Graph *g, const PlanFor *to);

static Plan *checked(Arena *a, Plan *p)
{
    const bool low = p->order_bound <= p->space[SPACE_MAIN].bound;
    const char *fault = low ? check_queue(a, p) : "its bound of any order is above its own";
    if (!fault)
        return p;
    Buf b = {.a = a};
    graph_print(&b, p->g);
    printf("plan of the graph below: %s\n%s", fault, b.text);
    fflush(stdout);
    abort();
}

Plan *__wrap_plan_make(Arena *a, Graph *g, const PlanFor *to)
{
    return checked(a, __real_plan_make(a, g, to));
}

Plan *__wrap_plan_ordered(Arena *a, Graph *g, const PlanFor *to)
{
    return checked(a, __real_plan_ordered(a, g, to));
}
