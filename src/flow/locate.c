/* Finds, for each node, the places of its results, its kernel, and the copies that must be made
 * first: all that does not depend on the order of the nodes.
 *
 * The results of a node are row-major, each in a buffer of its own, in the space that its op says;
 * those of a collective, and its workspace, in the space of its operand. A view lies in its base's
 * buffer, with the strides and offset that its op gives it; a view that strides cannot express is a
 * view of a copy. A wait is a call whose result is its operand 0, in the same place. It also reads
 * what the asynchronous copy or collective reads, so operand and result of that are alive until the
 * wait, and nothing lies over them. A collective's workspace is alive until the wait too.
 * A kernel that needs its operand row-major sends a copy of it. The operand, or the copy, is alive
 * until the wait if the wait reads the operand, as it must in a graph with a mesh. A node runs by
 * the kernel that the machine names for its operands as they lie, else by the first that accepts
 * them so, or accepts them once some are copied; only those that it does not accept are copied, or
 * those of a copy of a node that lie otherwise than the original's (alike.c). Linear. */
#include "inside.h"

#include <string.h>

/* ---- places ---- */

Place place_whole(int buffer, const Type *t)
{
    return (Place){.buffer = buffer, .at = layout_row_major(t)};
}

Tensor tensor_at(const Type *t, const Place *x)
{
    Tensor y = {.dtype = t->dtype, .rank = t->rank};
    memcpy(y.dim, t->dim, sizeof y.dim);
    memcpy(y.stride, x->at.stride, sizeof y.stride);
    return y;
}

bool place_contiguous(const Type *t, const Place *x)
{
    Tensor y = tensor_at(t, x);
    return tensor_contiguous(&y);
}

bool place_direct(const Type *t, const Place *x)
{
    return !x->part && !x->at.offset && place_contiguous(t, x);
}

bool place_equal(const Place *x, const Place *y)
{
    return x->buffer == y->buffer && x->part == y->part && !memcmp(&x->at, &y->at, sizeof x->at) &&
           !memcmp(x->loop_stride, y->loop_stride, sizeof x->loop_stride);
}

bool place_same(const Type *t, const Place *x, const Place *y)
{
    for (int d = 0; d < t->rank; d++)
        if (t->dim[d] > 1 && x->at.stride[d] != y->at.stride[d])
            return false;
    return x->buffer == y->buffer && x->at.offset == y->at.offset &&
           !memcmp(x->loop_stride, y->loop_stride, sizeof x->loop_stride);
}

int buffer_new(Flow *f, int def, int64_t nbytes)
{
    Buffer *old = f->count.buffer < f->cap.buffer ? &f->buffer[f->count.buffer]
                                                  : NULL; /* one that was dropped */
    Buffer r = {.nbytes = flow_round(nbytes),
                .room = flow_round(nbytes),
                .use = old ? old->use : NULL,
                .capuse = old ? old->capuse : 0,
                .def = def,
                .outer = -1,
                .over = -1,
                .renews = -1,
                .if_over = -1};
    PUSH(f->a, f->buffer, f->count.buffer, f->cap.buffer, r);
    return f->count.buffer - 1;
}

/* ---- moves ---- */

void move_touch(Flow *f, int item, int step, const Move *m)
{
    if (m->in.buffer >= 0)
        touch_add(f, item, m->in.buffer, step, 0);
    if (!f->buffer[m->out.buffer].input) /* an input is alive all the time */
        touch_add(f, item, m->out.buffer, step, 0);
}

void move_add(Flow *f, int item, bool after, Move m)
{
    FlowItem *x = &f->item[item];
    Moves *list = after ? &x->after : &x->before;
    int step = after ? x->before.count + x->ncore + list->count : list->count;
    PUSH(f->a, list->at, list->count, list->cap, m);
    move_touch(f, item, step, &m);
}

static int buffer_made(Flow *f, int item, int64_t nbytes)
{
    FlowItem *x = &f->item[item];
    if (x->made.count == x->made.most)
        PUSH(f->a, x->made.buffer, x->made.most, x->made.cap, buffer_new(f, item, 0));
    Buffer *r = &f->buffer[x->made.buffer[x->made.count]];
    r->nbytes = flow_round(nbytes);
    r->room = r->over < 0 ? r->nbytes : r->room;
    r->space = SPACE_MAIN;
    r->if_over = -1;
    return x->made.buffer[x->made.count++];
}

Place place_made(Flow *f, int item, const Type *t)
{
    return place_whole(buffer_made(f, item, type_nbytes(t)), t);
}

Place move_copy(Flow *f, int item, const Value *v, Place in)
{
    Place out = place_made(f, item, &v->type);
    move_add(f, item, false, (Move){FLOW_COPY, v, &v->type, &v->type, in, out, 0, -1, -1});
    return out;
}

/* ---- nodes ---- */

/* Whether n may take a rank's part, half or less, of what all ranks have: its plan must be that of
 * the other ranks, so that where the part begins must not count, be it at 0. */
static bool takes_part(const Flow *f, const Node *n)
{
    return node_is(n, OP_slice) &&
           2 * type_nelem(&n->out[0]->type) <= type_nelem(&n->in[0]->type) && graph_mesh(f->g);
}

/* Fills where a view's results lie in its operand; false: they need a copy of it. */
static bool fill_views(Flow *f, const FlowItem *x, const Place *from)
{
    const Node *n = x->node;
    bool part = from->part || takes_part(f, n), fits = true;
    for (int k = 0; k < n->nout; k++) {
        Place *to = &f->value[x->value + k].at;
        *to = *from;
        to->part = part;
        fits &= layout_view(n, k, &from->at, &to->at);
    }
    return fits;
}

static void locate_view(Flow *f, int item)
{
    FlowItem *x = &f->item[item];
    Place from = operand_value(f, x, 0)->at;
    if (fill_views(f, x, &from))
        return;
    from = move_copy(f, item, operand_value(f, x, 0)->v, from);
    fill_views(f, x, &from);
}

/* The call of an item in scratch: operands, results, and room for the operands packed. */
static Call call_of(Flow *f, const FlowItem *x)
{
    const Node *n = x->node;
    int count = 2 * n->nin + n->nout;
    while (f->scratch.captensor < count)
        f->scratch.tensor = arena_grow(f->a, f->scratch.tensor, f->scratch.captensor,
                                       &f->scratch.captensor, sizeof *f->scratch.tensor);
    Call c = {.node = n, .mesh = graph_mesh(f->g), .nin = n->nin, .nout = n->nout};
    c.in = f->scratch.tensor;
    c.out = f->scratch.tensor + 2 * n->nin;
    for (int i = 0; i < n->nin; i++)
        c.in[i] = tensor_at(&n->in[i]->type, &operand_value(f, x, i)->at);
    for (int k = 0; k < n->nout; k++) {
        Place at = f->value[x->value + k].at, whole = place_whole(-1, &n->out[k]->type);
        c.out[k] = tensor_at(&n->out[k]->type, at.buffer < 0 ? &whole : &at);
    }
    return c;
}

/* Whether k takes c once some operands are packed; these are marked, and packed in c. */
static bool takes_packed(const Kernel *k, Call *c, bool *copied)
{
    Call packed = *c;
    packed.in = c->in + c->nin;
    memcpy(packed.in, c->in, sizeof *c->in * (size_t)c->nin);
    for (int i = 0; i < c->nin; i++)
        tensor_fill_strides(&packed.in[i]);
    if (!kernel_takes(k, &packed))
        return false;
    for (int i = 0; i < c->nin; i++) {
        Tensor strided = c->in[i];
        if (tensor_contiguous(&strided))
            continue;
        packed.in[i] = strided;
        if (k->accepts(&packed))
            continue;
        tensor_fill_strides(&packed.in[i]);
        copied[i] = true;
    }
    memcpy(c->in, packed.in, sizeof *c->in * (size_t)c->nin);
    return true;
}

static void clear_copied(Flow *f, FlowItem *x)
{
    if (x->call.capcopied < x->node->nin)
        x->call.copied = NEWN(f->a, bool, x->call.capcopied = x->node->nin);
    for (int i = 0; i < x->node->nin; i++)
        x->call.copied[i] = false;
}

/* The number of elements from the first to the last; 0: they overlap. */
static int64_t extent(const Tensor *t)
{
    int64_t last = 0;
    for (int d = 0; d < t->rank; d++) {
        int64_t inside = 0; /* of the axes with smaller strides, or as small ones after */
        for (int e = 0; e < t->rank; e++)
            if (t->stride[e] < t->stride[d] || (e > d && t->stride[e] == t->stride[d]))
                inside += t->dim[e] > 1 ? (t->dim[e] - 1) * t->stride[e] : 0;
        if (t->dim[d] == 0 || (t->dim[d] > 1 && t->stride[d] <= inside))
            return 0;
        last += (t->dim[d] - 1) * t->stride[d];
    }
    return last + 1;
}

bool tensors_alike(const Tensor *s, const Tensor *t)
{
    bool alike = true;
    for (int d = 0; d < s->rank; d++)
        alike &= s->dim[d] == 1 || s->stride[d] == t->stride[d];
    return alike;
}

Tensor operand_tensor(const Flow *f, const FlowItem *x, int i)
{
    if (x->call.copied[i] && x->call.alike)
        return operand_tensor(f, &f->item[x->call.like], i);
    const Type *t = &x->node->in[i]->type;
    Place at = x->call.copied[i] ? place_whole(-1, t) : operand_value(f, x, i)->at;
    return tensor_at(t, &at);
}

/* The same for the kernel of the item that x is like. False where that does not take the call. */
static bool choose_like(const Flow *f, FlowItem *x, Call *c)
{
    const FlowItem *y = &f->item[x->call.like];
    for (int i = 0; i < c->nin; i++) {
        Tensor t = operand_tensor(f, y, i);
        x->call.copied[i] = extent(&t) && !tensors_alike(&t, &c->in[i]);
        c->in[i] = x->call.copied[i] ? t : c->in[i];
    }
    x->call.kernel = y->call.kernel;
    x->call.alike = !x->call.kernel || kernel_takes(x->call.kernel, c);
    return x->call.alike;
}

/* Chooses the kernel that the machine names, else the first of the list that takes the call, as it
 * is or once some operands are packed; then again the one that the machine names for packed
 * operands. */
static void choose_best(Flow *f, FlowItem *x, Call *c)
{
    const Kernel *list = op_kernels(x->node->op, f->device->kernels), *k = list;
    x->call.kernel = machine_way(f->machine, c, list);
    for (; !x->call.kernel && k && k->name; k++)
        if (kernel_takes(k, c)) {
            x->call.kernel = k;
        } else if (takes_packed(k, c, x->call.copied)) {
            const Kernel *way = machine_way(f->machine, c, list);
            x->call.kernel = way ? way : k;
        }
}

/* Fills the item's kernel and which operands it reads from copies. */
static void choose(Flow *f, FlowItem *x)
{
    Call c = call_of(f, x);
    x->call.chosen = true;
    x->call.alike = false;
    clear_copied(f, x);
    if (x->call.like >= 0 && !choose_like(f, x, &c)) {
        c = call_of(f, x);
        clear_copied(f, x);
    }
    if (!x->call.alike)
        choose_best(f, x, &c);
    x->call.work = kernel_workspace(f->g->ctx, x->call.kernel, &c);
}

void choose_as(Flow *f, int item, int other)
{
    FlowItem *x = &f->item[item];
    const FlowItem *y = &f->item[other];
    if (!y->call.chosen)
        return;
    x->call.chosen = true;
    x->call.kernel = y->call.kernel;
    x->call.work = y->call.work;
    clear_copied(f, x);
    for (int i = 0; i < x->node->nin; i++)
        x->call.copied[i] = y->call.copied[i];
}

/* The space of a node's results: a collective's is that of its operand. */
static Space space_of(const Flow *f, int item)
{
    const FlowItem *x = &f->item[item];
    return f->nspace == 1 ? SPACE_MAIN
           : x->node->op->class == CLASS_COLLECTIVE
               ? f->buffer[operand_value(f, x, 0)->at.buffer].space
               : node_space(x->node);
}

Place place_own(Flow *f, int item, FlowValue *y)
{
    if (y->own < 0) {
        y->own = buffer_new(f, item, type_nbytes(&y->v->type));
        f->buffer[y->own].space = space_of(f, item);
        if (f->end.renewed && f->value_of[y->v->id] == y - f->value)
            f->buffer[y->own].renews = f->end.renewed[y->v->id];
    }
    return place_whole(y->own, &y->v->type);
}

static void fill_results(Flow *f, int item)
{
    const FlowItem *x = &f->item[item];
    for (int k = 0; k < x->node->nout; k++) {
        FlowValue *y = &f->value[x->value + k];
        if (y->at.buffer < 0)
            y->at = place_own(f, item, y);
        touch_add(f, item, y->at.buffer, x->before.count, 0);
    }
}

/* Whether all operands of a cat are joined to its result: then there is nothing left to do. */
static bool all_inside(const Flow *f, const FlowItem *x)
{
    bool inside = x->part.count > 0;
    for (int i = 0; i < x->node->nin; i++)
        inside &= operand_value(f, x, i)->at.buffer == f->value[x->value].at.buffer;
    return inside;
}

/* Adds a copy of operand i, row-major or as the item is like reads it. */
static void copy_operand(Flow *f, int item, int i)
{
    const FlowItem *x = &f->item[item];
    const FlowValue *v = operand_value(f, x, i);
    Tensor t = operand_tensor(f, x, i);
    Place out = place_whole(-1, &v->v->type);
    int64_t nelem = extent(&t);
    out.buffer = buffer_made(f, item, nelem * dtype_size(t.dtype));
    memcpy(out.at.stride, t.stride, sizeof out.at.stride);
    move_add(f, item, false,
             (Move){FLOW_COPY, v->v, &v->v->type, &v->v->type, v->at, out, 0, -1, -1});
}

static void locate_call(Flow *f, int item)
{
    FlowItem *x = &f->item[item];
    if (all_inside(f, x)) {
        touch_add(f, item, f->value[x->value].at.buffer, 0, 0);
        return;
    }
    if (!x->call.chosen)
        choose(f, x);
    for (int i = 0; i < x->node->nin; i++) {
        Place at = operand_value(f, x, i)->at;
        if (!x->call.copied[i])
            continue;
        touch_add(f, item, at.buffer, x->before.count, 1);
        if (!x->call.alike)
            move_copy(f, item, operand_value(f, x, i)->v, at);
        else
            copy_operand(f, item, i);
    }
    x->ncore = 1;
    for (int k = 0; k < x->before.count; k++)
        touch_add(f, item, x->before.at[k].out.buffer, x->before.count, 0);
    for (int i = 0; i < x->node->nin; i++)
        if (!x->call.copied[i])
            touch_add(f, item, operand_value(f, x, i)->at.buffer, x->before.count, 1);
    fill_results(f, item);
    if (op_starts(x->node->op) && x->call.work) {
        int work = buffer_made(f, item, x->call.work);
        f->buffer[work].space = space_of(f, item);
        touch_add(f, item, work, x->before.count, 0);
    }
}

const FlowItem *item_started(const Flow *f, const FlowItem *x)
{
    const FlowItem *y =
        x->node && x->node->op->wait ? &f->item[operand_value(f, x, 0)->item] : NULL;
    return y && y->node && op_starts(y->node->op) ? y : NULL;
}

const Place *item_reads(const Flow *f, const FlowItem *x, int i)
{
    const FlowItem *y = item_started(f, x);
    int k = y ? f->slot[x->slot].value - y->value : 0, copies = 0;
    bool sent =
        y && i == 1 && y->call.copied[k] && operand_value(f, y, k) == operand_value(f, x, 1);
    for (int j = 0; sent && j < k; j++)
        copies += y->call.copied[j];
    return sent ? &y->before.at[copies].out : &operand_value(f, x, i)->at;
}

static void locate_wait(Flow *f, int item)
{
    FlowItem *x = &f->item[item];
    f->value[x->value].at = operand_value(f, x, 0)->at;
    if (!x->call.chosen)
        choose(f, x);
    x->ncore = 1;
    for (int i = 0; i < x->node->nin; i++)
        touch_add(f, item, item_reads(f, x, i)->buffer, 0, 1);
    const FlowItem *y = item_started(f, x);
    if (y && y->call.work) /* of its copies only what this reads: lowering knows of no other */
        touch_add(f, item, y->made.buffer[y->made.count - 1], 0, 0);
}

void item_locate(Flow *f, int item)
{
    FlowItem *x = &f->item[item];
    x->ntouch = x->before.count = x->ncore = x->after.count = x->made.count = 0;
    if (x->node->op->region == LOOP)
        locate_loop(f, item);
    else if (x->node->op->view)
        locate_view(f, item);
    else if (x->node->op->wait)
        locate_wait(f, item);
    else
        locate_call(f, item);
    add_sums(f, item);
    touch_pinned(f, item);
}
