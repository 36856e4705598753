/* Which rows of a step's batch this rank has. The graph's batch may have padding: rows of each
 * iteration after those that the batch has for it. */
#include "api.h"

typedef struct RowList {
    const tn_graph *g;
    int64_t *row, count;
} RowList;

/* Row `at` of the graph's batch as one of the batch that was asked for; a padding row is after. */
static int64_t real_row(const tn_graph *g, int64_t at)
{
    if (g->rows == g->filled)
        return at;
    int64_t padded = g->rows / g->iterations;
    int64_t part = (g->filled + g->iterations - 1) / g->iterations;
    int64_t row = at / padded * part + at % padded;
    return at % padded < part && row < g->filled ? row : g->filled;
}

static void add_rows(void *arg, PartRun r)
{
    RowList *x = arg;
    for (int64_t i = 0; i < r.n; i++)
        x->row[x->count++] = real_row(x->g, r.whole + i);
}

static void find_rows(tn_plan *plan, Arena *tmp)
{
    const Plan *p = plan->p;
    const PlanPort *ids = port_find(p, "input_ids");
    if (!ids || !ids->type.rank)
        fail(arena_ctx(tmp), TN_FAIL, "the plan has no input \"input_ids\" with rows");
    Type local = type_make(I64, 1, ids->type.dim);
    Type whole = cut_whole_type(&local, p->g->mesh, ids->cut);
    RowList x = {plan->graph, NEWN(plan->h.a, int64_t, MAX(local.dim[0], 1)), 0};
    part_each_run(tmp, &local, p->g->mesh, ids->cut, &whole, add_rows, &x);
    CHECK(x.count == local.dim[0]);
    plan->rows = x.row;
    plan->nrow = x.count;
}

int tn_plan_rows(tn_plan *p, const int64_t **rows, int64_t *count)
{
    if (!GIVEN(args_owner(p), p, rows, count))
        return TN_CODE_USAGE;
    TRY(t, &p->h.owner->ctx) {
        if (!p->rows)
            find_rows(p, try_arena(&t));
        *rows = p->rows;
        *count = p->nrow;
    }
    return tried(&t);
}
