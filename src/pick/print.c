/* Problems and solutions as JSON. */
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

static void print_costs(Buf *b, int n, const double *cost)
{
    buf_add(b, "[");
    for (int i = 0; i < n; i++) {
        buf_add(b, i ? "," : "");
        if (isfinite(cost[i]))
            buf_printf(b, "%.17g", cost[i]);
        else
            buf_add(b, "null");
    }
    buf_add(b, "]");
}

static void print_node(Buf *b, const PickProblem *p, int i, const char *name)
{
    int k = pick_strategies(p, i);
    const int64_t *usage = &p->usage[p->first[i]];
    buf_printf(b, "%s\n    {", i ? "," : "");
    if (name)
        buf_printf(b, "\"name\": \"%s\", ", name);
    if (p->same && p->same[i] >= 0) {
        buf_printf(b, "\"same\": %d", p->same[i]);
    } else {
        buf_add(b, "\"cost\": ");
        print_costs(b, k, &p->cost[p->first[i]]);
    }
    if (p->start[i] < p->end[i]) {
        buf_add(b, ", \"usage\": [");
        for (int j = 0; j < k; j++)
            buf_printf(b, j ? ",%lld" : "%lld", (long long)usage[j]);
        buf_printf(b, "], \"interval\": [%lld, %lld]", (long long)p->start[i],
                   (long long)p->end[i]);
    }
    buf_add(b, "}");
}

void pick_print_problem(Buf *b, const PickProblem *p, const char *const *name)
{
    buf_add(b, "{\n  \"nodes\": [");
    for (int i = 0; i < p->n; i++)
        print_node(b, p, i, name ? name[i] : NULL);
    buf_add(b, "\n  ],\n  \"edges\": [");
    for (int i = 0; i < p->nedge; i++) {
        const PickEdge *e = &p->edge[i];
        int rows = pick_strategies(p, e->u), k = pick_strategies(p, e->v);
        buf_printf(b, "%s\n    {\"nodes\": [%d, %d], \"cost\": [", i ? "," : "", e->u, e->v);
        for (int j = 0; j < rows; j++) {
            buf_add(b, j ? "," : "");
            print_costs(b, k, &p->matrix[e->at + (int64_t)j * k]);
        }
        buf_add(b, "]}");
    }
    buf_add(b, "\n  ]");
    if (p->limit < PICK_MOST)
        buf_printf(b, ",\n  \"usage_limit\": %lld", (long long)p->limit);
    buf_add(b, "\n}\n");
}
