/* Questions about a flow, for those who do not see its structs: passes, the search for an order,
 * lowering. Constant or linear in what they return. */
#include "inside.h"

/* ---- the line ---- */

Graph *flow_graph(const Flow *f)
{
    return f->g;
}

const Device *flow_device(const Flow *f)
{
    return f->device;
}

int flow_first(const Flow *f)
{
    return f->line.first;
}

int flow_last(const Flow *f)
{
    return f->line.last;
}

int flow_next(const Flow *f, int item)
{
    return f->line.at[item].next;
}

int flow_prev(const Flow *f, int item)
{
    return f->line.at[item].prev;
}

bool flow_before(const Flow *f, int x, int y)
{
    return line_before(&f->line, x, y);
}

int flow_nitem(const Flow *f)
{
    return f->count.item;
}

int flow_nvalue(const Flow *f)
{
    return f->count.value;
}

/* ---- items ---- */

int flow_item(const Flow *f, const Node *n)
{
    return f->item_of[n->id];
}

const Node *item_node(const Flow *f, int item)
{
    return f->item[item].node;
}

bool item_gone(const Flow *f, int item)
{
    return f->item[item].gone;
}

Flow *item_body(const Flow *f, int item, int c)
{
    return c < 2 ? f->item[item].loop.body[c] : NULL;
}

int item_operand(const Flow *f, int item, int i)
{
    return f->slot[f->item[item].slot + i].value;
}

int item_result(const Flow *f, int item, int k)
{
    return f->item[item].value + k;
}

int64_t item_made_bytes(const Flow *f, int item)
{
    int64_t sum = 0;
    for (int k = 0; k < f->item[item].node->nout; k++)
        sum += f->root[f->value[f->item[item].value + k].at.root].nbytes;
    return sum;
}

int item_next_touch(const Flow *f, int item, int at)
{
    int first = -1;
    for (int k = 0; k < f->item[item].node->nout; k++) {
        const Root *r = &f->root[f->value[f->item[item].value + k].at.root];
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

int flow_value(const Flow *f, const Value *v)
{
    return f->value_of[v->id];
}

const Value *value_node(const Flow *f, int value)
{
    return f->value[value].v;
}

int value_item(const Flow *f, int value)
{
    return f->value[value].item;
}

bool values_share(const Flow *f, int x, int y)
{
    return f->value[x].at.root == f->value[y].at.root;
}

int value_last(const Flow *f, int value)
{
    int root = f->value[value].at.root;
    return f->root[root].kept ? f->line.last : root_last(f, root);
}

void flow_alive(const Flow *f, int item, int64_t *alive)
{
    for (int i = 0; i < f->g->nvalue; i++)
        alive[i] = 0;
    for (int i = 0; i < f->count.value; i++) {
        const FlowValue *v = &f->value[i];
        if (v->own < 0 || v->item < 0 || !f->item[v->item].node)
            continue;
        if (!flow_before(f, item, root_first(f, v->own)) &&
            !flow_before(f, root_last(f, v->own), item))
            alive[v->v->id] = root_bytes(f, &f->root[v->own]);
    }
}

int value_use(const Flow *f, int value)
{
    return f->value[value].reader;
}

int use_next(const Flow *f, int use)
{
    return f->slot[use].next;
}

int use_item(const Flow *f, int use)
{
    return f->slot[use].item;
}

int use_operand(const Flow *f, int use)
{
    return use - f->item[f->slot[use].item].slot;
}

/* ---- what lowering asks ---- */

int flow_nroot(const Flow *f)
{
    return f->count.root;
}

int root_outer(const Flow *f, int root)
{
    return f->root[root].outer;
}

int root_over(const Flow *f, int root)
{
    return f->root[root].over;
}

Space root_space(const Flow *f, int root)
{
    return f->root[root].space;
}

int64_t root_nbytes(const Flow *f, int root)
{
    return f->root[root].nbytes;
}

const Node *flow_loop(const Flow *f)
{
    return f->outer ? f->outer->item[f->loop].node : NULL;
}

int flow_depth(const Flow *f)
{
    return f->depth;
}

bool flow_tail(const Flow *f)
{
    return f->tail;
}

const Place *value_place(const Flow *f, int value)
{
    return &f->value[value].at;
}

const Move *item_moves(const Flow *f, int item, bool after, int *count)
{
    const Moves *m = after ? &f->item[item].after : &f->item[item].before;
    *count = m->count;
    return m->at;
}

int item_ncore(const Flow *f, int item)
{
    return f->item[item].ncore;
}

const Kernel *item_kernel(const Flow *f, int item)
{
    return f->item[item].call.kernel;
}

void item_read_places(const Flow *f, int item, const Place **at)
{
    const FlowItem *x = &f->item[item];
    for (int i = 0, made = 0; i < x->node->nin; i++)
        at[i] = x->call.copied[i] ? &x->before.at[made++].out : item_reads(f, x, i);
}

int64_t item_workspace(const Flow *f, int item, const Node **node, int *root)
{
    const FlowItem *x = item_started(f, &f->item[item]);
    x = x ? x : &f->item[item];
    *node = x->node;
    *root = x->call.work && op_starts(x->node->op) ? x->made.root[x->made.count - 1] : -1;
    return x->call.work;
}

const Value *item_names(const Flow *f, int item, int k)
{
    const FlowItem *x = &f->item[item];
    const FlowValue *y = &f->value[x->value + k];
    const Root *r = &f->root[y->at.root];
    return r->outer >= 0 || r->def == item ? y->v : f->item[r->def].node->out[0];
}

int item_carry(const Flow *f, int item, int j)
{
    return f->item[item].loop.carry[j];
}

int *item_touched(const Flow *f, int item, int c, Arena *a, int *count)
{
    const FlowItem *x = &f->item[item];
    int step = x->before.count + c, *root = NEWN(a, int, x->ntouch);
    *count = 0;
    for (int k = x->touch; k < x->touch + x->ntouch; k++)
        if (f->touch[k].first <= step && step <= f->touch[k].last)
            root[(*count)++] = f->touch[k].root;
    return root;
}
