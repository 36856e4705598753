/* Joins operands of a cat to its result: their kernels write where the cat would copy to.
 *
 * An operand can be joined if only the cat reads it, through views that keep it row-major, and if
 * its kernel gives the same bits when it writes with gaps between rows. The parts of a ring
 * (cat_ring) have no gaps; kernels that may not write parts of a tensor make those that are aligned
 * as a storage is, and collectives any. They are joined whoever else reads them, as long as no
 * result may lie over them, and all or none, as no step may then write where they lie. The result
 * is then alive from the first of these kernels on, which may be long before the cat. So operands
 * are joined one by one, those computed last first, as long as no more bytes are alive in between
 * than before: no peak rises. A cat whose operands are all joined takes no step.
 *
 * Runs last, on a flow that is not edited any more. A cat of n operands makes n tries that cost n
 * each; one of more than MOST operands copies all. */
#include "inside.h"
#include "problem.h"

enum { MOST = 64 };

/* An operand that can be joined: its view base, and where that would lie. */
typedef struct Joined {
    int value;
    Place at;
} Joined;

/* The place of a cat's operand i in its result. */
static Place part_of(const Flow *f, const FlowItem *x, int i)
{
    const Node *n = x->node;
    Place to = f->value[x->value].at;
    to.at.offset += cat_start(n, i) * to.at.stride[cat_axis(n)];
    return to;
}

/* A value of type t whose elements lie in order as those of a part do: `row` together, and the next
 * row `pitch` after it. */
static Place spread(const Type *t, Place to, int64_t row, int64_t pitch)
{
    Place x = place_whole(to.buffer, t);
    x.at.offset = to.at.offset;
    for (int d = 0; d < t->rank; d++)
        if (x.at.stride[d] >= row)
            x.at.stride[d] = x.at.stride[d] / row * pitch;
    return x;
}

static bool only_reader(const Flow *f, const FlowValue *y)
{
    return y->reader >= 0 && f->slot[y->reader].next < 0 && !y->yielded && y->sum < 0;
}

/* Whether no reader may put a result in the value's place, and the cat reads it once at most. */
static bool only_read(Flow *f, const FlowItem *cat, const FlowValue *y)
{
    bool reads = !y->yielded && y->sum < 0;
    int times = 0;
    for (int s = y->reader; s >= 0 && reads; s = f->slot[s].next) {
        const FlowItem *x = &f->item[f->slot[s].item];
        int i = s - x->slot, waits = x->node && x->node->op->wait;
        times += x == cat;
        reads = x->node && times < 2 &&
                (waits || (!node_aliases(x->node) && x->node->op->region != LOOP));
        for (int k = 0; reads && !waits && k < x->node->nout; k++)
            reads = i < 32 && !(flow_inplace(f, f->slot[s].item, k) >> i & 1);
    }
    return reads;
}

/* Whether the value may be written elsewhere, perhaps with gaps, by the kernel that makes it. */
static bool may_spread(const Flow *f, const FlowValue *y, bool gaps)
{
    const FlowItem *x = &f->item[y->item];
    const Buffer *r = &f->buffer[y->at.buffer];
    return x->ncore && x->node->op->region != LOOP && x->call.kernel &&
           (!gaps || x->call.kernel->strided_out) && r->def == y->item && r->outer < 0 &&
           r->renews < 0 && !r->kept && !x->part.count;
}

/* Whether the item's step may write there, where no gaps are. */
static bool may_begin_at(const FlowItem *x, const Type *t, const Place *at)
{
    return x->call.kernel->strided_out || x->node->op->class == CLASS_COLLECTIVE ||
           at->at.offset * dtype_size(t->dtype) % FLOW_ALIGN == 0;
}

/* Whether operand i of a ring, perhaps a collective's result behind its wait, can be joined. */
static bool find_ring_part(Flow *f, const FlowItem *x, int i, Joined *p)
{
    p->at = part_of(f, x, i);
    p->value = f->slot[x->slot + i].value;
    const FlowValue *v = &f->value[p->value];
    const FlowItem *def = &f->item[v->item];
    if (def->node && node_waits_for(def->node) && only_read(f, x, v)) {
        p->value = f->slot[def->slot].value;
        v = &f->value[p->value];
        def = &f->item[v->item];
    }
    return def->node && !node_aliases(def->node) && only_read(f, x, v) && may_spread(f, v, false) &&
           may_begin_at(def, &v->v->type, &p->at);
}

/* Whether operand i of the cat can be joined. */
static bool find_part(Flow *f, const FlowItem *x, int i, Joined *p)
{
    const Type *y = &x->node->out[0]->type, *t = &x->node->in[i]->type;
    int axis = cat_axis(x->node);
    int64_t row = f->value[x->value].at.at.stride[axis], pitch = row * y->dim[axis];
    row *= t->dim[axis];
    if (type_nelem(t) == 0)
        return false;
    if (node_is(x->node, OP_cat_ring))
        return find_ring_part(f, x, i, p);
    p->value = f->slot[x->slot + i].value;
    p->at = part_of(f, x, i);
    for (;;) {
        const FlowValue *v = &f->value[p->value];
        const FlowItem *def = &f->item[v->item];
        if (!def->node || !only_reader(f, v))
            return false;
        if (!def->node->op->view)
            return may_spread(f, v, true);
        Layout seen = p->at.at;
        if (def->node->nout > 1 || def->before.count)
            return false;
        p->value = f->slot[def->slot].value;
        if (type_nelem(&f->value[p->value].v->type) != type_nelem(&v->v->type))
            return false;
        p->at = spread(&f->value[p->value].v->type, p->at, row, pitch);
        Place again = p->at, wanted = p->at;
        wanted.at = seen;
        if (!def->node->op->rules->view(def->node, 0, &p->at.at, &again.at) ||
            !place_same(&v->v->type, &again, &wanted))
            return false;
    }
}

/* Sorted by place on the line, the base defined last first. */
static int find_parts(Flow *f, int item, Joined *list)
{
    const FlowItem *x = &f->item[item];
    int count = 0;
    for (int i = 0; i < x->node->nin; i++) {
        Joined p;
        if (!find_part(f, x, i, &p))
            continue;
        int at = count++, def = f->value[p.value].item;
        for (; at > 0 && line_before(&f->line, f->value[list[at - 1].value].item, def); at--)
            list[at] = list[at - 1];
        list[at] = p;
    }
    return count;
}

/* Puts the values where the parts say, or in buffers of their own again. False where a kernel would
 * change. */
static bool put_parts(Flow *f, int item, const Joined *list, int count, bool inside)
{
    FlowItem *x = &f->item[item];
    bool same = true, ring = node_is(x->node, OP_cat_ring);
    x->part.count = 0;
    f->buffer[f->value[x->value].at.buffer].joined = inside;
    for (int k = 0; k < count; k++) {
        FlowValue *y = &f->value[list[k].value];
        const FlowItem *def = &f->item[y->item];
        const Kernel *kernel = def->call.kernel;
        Place old = y->at;
        y->at = inside ? list[k].at : place_own(f, y->item, y);
        if (inside)
            numbers_add(f->a, &x->part, y->item);
        place_changed(f, list[k].value, &old);
        same &= kernel && def->call.kernel == kernel && (ring || kernel->strided_out);
    }
    for (int k = 0; k < x->part.count; k++)
        item_mark(f, x->part.at[k]);
    item_mark(f, item);
    return same;
}

void flow_mark_parts(Flow *f)
{
    for (int i = f->line.first; i >= 0; i = f->line.at[i].next) {
        const FlowItem *x = &f->item[i];
        Joined p;
        for (int j = 0; x->node && cat_axis(x->node) >= 0 && j < MIN(x->node->nin, MOST); j++)
            if (find_part(f, x, j, &p))
                f->buffer[f->value[p.value].at.buffer].part = true;
    }
}

static void join(Flow *f, int item)
{
    const FlowItem *x = &f->item[item];
    Joined list[MOST];
    const Buffer *r = &f->buffer[f->value[x->value].at.buffer];
    bool good = x->node->nin <= MOST && r->def == item && r->outer < 0 && r->renews < 0;
    bool ring = node_is(x->node, OP_cat_ring);
    int count = good ? find_parts(f, item, list) : 0, least = ring ? x->node->nin : 1;
    if (count < least)
        return;
    int first = f->value[list[count - 1].value].item,
        last = ring ? f->line.last : item; /* parts may live longer */
    int64_t apart = flow_most(f, first, last);
    for (; count >= least; count--) {
        if (put_parts(f, item, list, count, true) && flow_most(f, first, last) <= apart)
            return;
        put_parts(f, item, list, count, false);
    }
}

void flow_join(Flow *f)
{
    for (int i = f->line.first; i >= 0; i = f->line.at[i].next) {
        for (int c = 0; c < 2 && f->item[i].loop.body[c]; c++) {
            flow_join(f->item[i].loop.body[c]);
            item_mark(f, i);
        }
        if (f->item[i].node && cat_axis(f->item[i].node) >= 0)
            join(f, i);
    }
    flow_settle(f);
}
