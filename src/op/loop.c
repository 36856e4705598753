/* loop: runs a body n times in order. Its types come from its ports (ir/region.c), its gradient
 * from pass/grad_loop.c, its memory from flow/loop_memory.c, its calls from plan/lower.c; the
 * executor adds what an iteration adds to addresses. */
#include "op.h"

static int infer(const Graph *g, const Node *n, Type *out)
{
    return region_infer(g, n, out);
}

static Cost body_cost(const Graph *g, double times)
{
    Cost sum = {0};
    for (const Node *n = g->first; n; n = n->next) {
        if (n->op->view)
            continue;
        Cost c = node_cost(n);
        sum.nflop += times * c.nflop;
        sum.nread += times * c.nread;
        sum.nwrite += times * c.nwrite;
    }
    return sum;
}

static Cost cost(const Node *n)
{
    const Region *r = n->region;
    Cost c = body_cost(r->body[MAIN], (double)r->n);
    if (r->body[TAIL]) {
        Cost t = body_cost(r->body[TAIL], 1);
        c = (Cost){c.nflop + t.nflop, c.nread + t.nread, c.nwrite + t.nwrite};
    }
    return c;
}

const OpRules op_loop = {
    .math = "for iteration in 0 .. n-1: results = body(operands of the iteration)",
    .example =
        "tenon 1\n"
        "graph loop(%x: f32[6, 4], %w: f32[4, 3]) {\n"
        "  %y, %s = loop(n=3, slice %rows: f32[2, 4] = %x axis 0, whole %w: f32[4, 3] = %w)\n"
        "      -> (concat axis 0, sum f32) {\n"
        "    %y = mm(%rows, %w)\n"
        "    %s = sum(%y)\n"
        "    yield %y, %s\n"
        "  }\n"
        "  return %y, %s\n"
        "}\n",
    .infer = infer,
    .cost = cost,
};
