/* Solutions as JSON. */
#include "pick.h"

static void print_list(Buf *b, int n, const int *x)
{
    buf_add(b, "[");
    for (int i = 0; i < n; i++)
        buf_printf(b, i ? ", %d" : "%d", x[i]);
    buf_add(b, "]");
}

void pick_print(Buf *b, const PickProblem *p, const PickResult *r, const int *strategy)
{
    if (!p->contest)
        buf_printf(b, "{\n  \"cost\": %.17g,\n  \"bound\": %.17g,\n  \"strategies\": ", r->cost,
                   r->bound);
    print_list(b, p->n, strategy);
    buf_add(b, p->contest ? "\n" : "\n}\n");
}
