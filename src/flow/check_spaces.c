/* Refuses graphs whose values do not lie where their readers need them. Which spaces and queues
 * there are depends on the device, so this is asked of a graph that is planned, not of every graph.
 * Collectives read and make values in the host's memory.
 *
 * On a device with two spaces only asynchronous copies carry values from one to the other. Each has
 * a wait, or its operand could die while it is being read; what else reads the result the verifier
 * has refused. The planner's own copies are kernels, and these read and write SPACE_MAIN. On a
 * device with one space there is nothing to offload. */
#include "inside.h"

static bool in_host(const Flow *f, int buffer)
{
    return buffer >= 0 && f->buffer[buffer].space == SPACE_HOST;
}

static const char *name_of(const FlowValue *y)
{
    return y->v->name;
}

static void check_copy(const Flow *f, const FlowItem *x)
{
    const Node *n = x->node;
    const FlowValue *y = &f->value[x->value];
    bool host = in_host(f, operand_value(f, x, 0)->at.buffer);
    if (f->nspace == 1)
        fail_node(f->g, n,
                  "expected a device with a memory of its own, found %s, where there is "
                  "only the host's: take another --backend, or leave the copy out of the graph",
                  f->device->name);
    if (host == n->op->to_host)
        fail_node(f->g, n, "operand 0: expected a value in the %s memory, found %%%s in the %s",
                  host ? "device's" : "host's", name_of(operand_value(f, x, 0)),
                  host ? "host's" : "device's");
    if (y->reader < 0)
        fail_node(f->g, n, "expected that wait_tensor reads the result, found no reader");
    for (int i = 0; i < n->nin; i++)
        CHECK(!x->call.copied[i]); /* or the copy would have to live until the wait */
}

/* Kernels read SPACE_MAIN; what a body reads of the graph around is judged there. */
static void check_operands(const Flow *f, const FlowItem *x)
{
    const Node *n = x->node;
    bool any = node_aliases(n) || n->op->region == LOOP || n->op->class == CLASS_COLLECTIVE;
    for (int i = 0; i < n->nin && !any; i++)
        if (in_host(f, operand_value(f, x, i)->at.buffer))
            fail_node(f->g, n,
                      "operand %d: expected a value in the device's memory, found %%%s in "
                      "the host's: read it by reload",
                      i, name_of(operand_value(f, x, i)));
}

static void check_one_space(const Flow *f, const FlowItem *x)
{
    bool first = in_host(f, operand_value(f, x, 0)->at.buffer);
    for (int i = 1; i < x->node->nin; i++)
        if (in_host(f, operand_value(f, x, i)->at.buffer) != first)
            fail_node(f->g, x->node,
                      "operand %d: expected all operands in one memory, found %%%s in another than "
                      "%%%s",
                      i, name_of(operand_value(f, x, i)), name_of(operand_value(f, x, 0)));
}

/* Other ranks reach the host's memory alone, but those of GPUs each other's by a library. */
static void check_ranks(const Flow *f, const FlowItem *x)
{
    if (device_is_gpu(f->device)) {
        check_one_space(f, x);
        return;
    }
    for (int i = 0; i < x->node->nin && f->nspace > 1 && graph_mesh(f->g); i++)
        if (!in_host(f, operand_value(f, x, i)->at.buffer))
            fail_node(f->g, x->node,
                      "operand %d: expected a value in the host's memory, which other ranks reach, "
                      "found %%%s in the device's: the pass stage brings it there",
                      i, name_of(operand_value(f, x, i)));
}

/* Checks the planner's own moves for an item; those at the end of a body are the loop's. */
static void check_moves(const Flow *f, const FlowItem *x)
{
    for (int k = 0; k < x->before.count + x->after.count; k++) {
        const Move *m = k < x->before.count ? &x->before.at[k] : &x->after.at[k - x->before.count];
        bool end = !x->node && f->outer;
        const Graph *g = end ? f->outer->g : f->g;
        const Node *n = end ? f->outer->item[f->loop].node : x->node;
        if (!n || !move_is(f, m) || (!in_host(f, m->in.buffer) && !in_host(f, m->out.buffer)))
            continue;
        fail_node(g, n,
                  "expected a value in the device's memory, found %%%s in the host's, of "
                  "which a copy would have to be made: read it by reload",
                  m->v->name);
    }
}

static void check_outputs(const Flow *f)
{
    const Graph *g = f->g;
    for (int i = 0; i < g->nout && !f->outer; i++) {
        const FlowValue *y = &f->value[f->value_of[g->out[i].v->id]];
        const bool host = in_host(f, y->at.buffer), want = in_host(f, f->end.owner[i]);
        if (host && !want)
            fail_node(g, y->v->def,
                      "expected outputs in the device's memory, found output %d in "
                      "the host's: return what reload makes of it",
                      i);
        if (want && (!host || f->buffer[y->at.buffer].renews != f->end.owner[i]))
            fail(g->ctx, TN_FAIL,
                 "graph %s: expected the new value of \"%s\", which lies in the host's memory, by "
                 "offload(new, old) and its wait, found %%%s",
                 g->name, g->out[i].name, y->v->name);
    }
}

void flow_check_spaces(const Flow *f)
{
    for (int i = f->line.first; i >= 0; i = f->line.at[i].next) {
        const FlowItem *x = &f->item[i];
        for (int c = 0; c < 2 && x->loop.body[c]; c++)
            flow_check_spaces(x->loop.body[c]);
        if (f->nspace > 1)
            check_moves(f, x);
        if (x->node && x->node->op->class == CLASS_COLLECTIVE)
            check_ranks(f, x);
        if (x->node && x->node->op->async)
            check_copy(f, x);
        else if (x->node)
            check_operands(f, x);
    }
    check_outputs(f);
}
