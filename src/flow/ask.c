/* Questions about a flow, for those who do not see its structs: passes, the search for an order,
 * lowering. Constant or linear in what they return. */
#include "inside.h"

/* clang-format off */
#define ASK(type, name, arguments, answer) type name arguments { return answer; }
/*  type            name            arguments                         answer */
ASK(Graph *,        flow_graph,     (const Flow *f),                  f->g)
ASK(const Device *, flow_device,    (const Flow *f),                  f->device)
ASK(int,            flow_first,     (const Flow *f),                  f->line.first)
ASK(int,            flow_last,      (const Flow *f),                  f->line.last)
ASK(int,            flow_next,      (const Flow *f, int item),        f->line.at[item].next)
ASK(int,            flow_prev,      (const Flow *f, int item),        f->line.at[item].prev)
ASK(bool,           flow_before,    (const Flow *f, int x, int y),    line_before(&f->line, x, y))
ASK(int,            flow_nitem,     (const Flow *f),                  f->count.item)
ASK(int,            flow_nvalue,    (const Flow *f),                  f->count.value)
ASK(int,            flow_nbuffer,   (const Flow *f),                  f->count.buffer)
ASK(int,            flow_item,      (const Flow *f, const Node *n),   f->item_of[n->id])
ASK(const Node *,   item_node,      (const Flow *f, int item),        f->item[item].node)
ASK(bool,           item_gone,      (const Flow *f, int item),        f->item[item].gone)
ASK(Flow *,         item_body,      (const Flow *f, int item, int c), c < 2 ? f->item[item].loop.body[c] : NULL)
ASK(int,            item_operand,   (const Flow *f, int item, int i), f->slot[f->item[item].slot + i].value)
ASK(int,            item_result,    (const Flow *f, int item, int k), f->item[item].value + k)
ASK(int,            flow_value,     (const Flow *f, const Value *v),  f->value_of[v->id])
ASK(const Value *,  value_in_graph, (const Flow *f, int value),       f->value[value].v)
ASK(int,            value_item,     (const Flow *f, int value),       f->value[value].item)
ASK(bool,           values_share,   (const Flow *f, int x, int y),    f->value[x].at.buffer == f->value[y].at.buffer)
ASK(int,            value_use,      (const Flow *f, int value),       f->value[value].reader)
ASK(int,            use_next,       (const Flow *f, int use),         f->slot[use].next)
ASK(int,            use_item,       (const Flow *f, int use),         f->slot[use].item)
ASK(int,            use_operand,    (const Flow *f, int use),         use - f->item[f->slot[use].item].slot)
ASK(int,            buffer_outer,   (const Flow *f, int buffer),      f->buffer[buffer].outer)
ASK(int,            buffer_over,    (const Flow *f, int buffer),      f->buffer[buffer].over)
ASK(Space,          buffer_space,   (const Flow *f, int buffer),      f->buffer[buffer].space)
ASK(int64_t,        buffer_nbytes,  (const Flow *f, int buffer),      f->buffer[buffer].nbytes)
ASK(const Node *,   flow_loop,      (const Flow *f),                  f->outer ? f->outer->item[f->loop].node : NULL)
ASK(int,            flow_depth,     (const Flow *f),                  f->depth)
ASK(bool,           flow_tail,      (const Flow *f),                  f->tail)
ASK(const Place *,  value_place,    (const Flow *f, int value),       &f->value[value].at)
ASK(int,            item_ncore,     (const Flow *f, int item),        f->item[item].ncore)
ASK(const Kernel *, item_kernel,    (const Flow *f, int item),        f->item[item].call.kernel)
ASK(int,            item_carry,     (const Flow *f, int item, int j), f->item[item].loop.carry[j])
#undef ASK
/* clang-format on */

/* ---- items ---- */

int64_t item_made_bytes(const Flow *f, int item)
{
    int64_t sum = 0;
    for (int k = 0; k < f->item[item].node->nout; k++)
        sum += f->buffer[f->value[f->item[item].value + k].at.buffer].nbytes;
    return sum;
}

int item_next_touch(const Flow *f, int item, int at)
{
    int first = -1;
    for (int k = 0; k < f->item[item].node->nout; k++) {
        const Buffer *r = &f->buffer[f->value[f->item[item].value + k].at.buffer];
        if (r->kept)
            return -1;
        for (int u = 0; u < r->nuse; u++) {
            int reader = f->touch[r->use[u]].item;
            if (reader == at || reader == f->line.last)
                return -1;
            if (flow_before(f, at, reader) && (first < 0 || flow_before(f, reader, first)))
                first = reader;
        }
    }
    return first;
}

/* ---- values ---- */

int value_last(const Flow *f, int value)
{
    int buffer = f->value[value].at.buffer;
    return f->buffer[buffer].kept ? f->line.last : buffer_last(f, buffer);
}

void flow_alive(const Flow *f, int item, int64_t *alive)
{
    for (int i = 0; i < f->g->nvalue; i++)
        alive[i] = 0;
    for (int i = 0; i < f->count.value; i++) {
        const FlowValue *v = &f->value[i];
        if (v->own < 0 || v->item < 0 || !f->item[v->item].node)
            continue;
        if (!flow_before(f, item, buffer_first(f, v->own)) &&
            !flow_before(f, buffer_last(f, v->own), item))
            alive[v->v->id] = buffer_bytes(f, &f->buffer[v->own]);
    }
}

/* ---- what lowering asks ---- */

const Move *item_moves(const Flow *f, int item, bool after, int *count)
{
    const Moves *m = after ? &f->item[item].after : &f->item[item].before;
    *count = m->count;
    return m->at;
}

void item_read_places(const Flow *f, int item, const Place **at)
{
    const FlowItem *x = &f->item[item];
    for (int i = 0, made = 0; i < x->node->nin; i++)
        at[i] = x->call.copied[i] ? &x->before.at[made++].out : item_reads(f, x, i);
}

int64_t item_workspace(const Flow *f, int item, const Node **node, int *buffer)
{
    const FlowItem *x = item_started(f, &f->item[item]);
    x = x ? x : &f->item[item];
    *node = x->node;
    *buffer = x->call.work && op_starts(x->node->op) ? x->made.buffer[x->made.count - 1] : -1;
    return x->call.work;
}

const Value *item_names(const Flow *f, int item, int k)
{
    const FlowItem *x = &f->item[item];
    const FlowValue *y = &f->value[x->value + k];
    const Buffer *r = &f->buffer[y->at.buffer];
    return r->outer >= 0 || r->def == item ? y->v : f->item[r->def].node->out[0];
}

int *item_touched(const Flow *f, int item, int c, Arena *a, int *count)
{
    const FlowItem *x = &f->item[item];
    int step = x->before.count + c, *buffer = NEWN(a, int, x->ntouch);
    *count = 0;
    for (int k = x->touch; k < x->touch + x->ntouch; k++)
        if (f->touch[k].first <= step && step <= f->touch[k].last)
            buffer[(*count)++] = f->touch[k].buffer;
    return buffer;
}
