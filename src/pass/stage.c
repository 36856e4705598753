/* stage: has ranks talk through the host's memory, on devices whose kernels compute in another. Of
 *
 *     %g = all_gather_into_tensor(%x)
 *     %a = wait_tensor(%g, %x)          the others read it
 *
 * it makes
 *
 *     %x_copy = offload(%x)
 *     %x_host = wait_tensor(%x_copy, %x)     %x may die here
 *     %g = all_gather_into_tensor(%x_host)   its result and workspace lie where its operand does
 *     %a = wait_tensor(%g, %x_host)
 *     %a_load = reload(%a)
 *     %a_back = wait_tensor(%a_load, %a)     the others read this
 *
 * A collective that reads another's result reads that in the host's memory, and what only
 * collectives read is not loaded back.
 *
 * The pass stands after remat: clones of collectives are staged as what they are. The new nodes
 * have the collective's phase, scope and policy, and are clones where it is one, so that a graph
 * that is compiled again recomputes or saves all of them or none. Its result's policy `offload` is
 * then the reload's: the host has the value already (offload).
 *
 * GPUs that talk by NCCL (--gpu-comm nccl) need none of it.
 *
 * It adds only copies and waits, so bits stay. Collectives that are staged already are left alone:
 * idempotent. Each body of a loop is a graph of its own. Linear. */
#include "pass.h"

#include <string.h>

typedef struct StagedGraph {
    Graph *g;
    Arena *tmp;
    const Device *device;
    Replace loaded;    /* what stands in the device's memory for what ranks made */
    bool *wanted;      /* by value id: something reads it in the device's memory */
    const Node **copy; /* by value id of a collective's result: of its operand to the host, ... */
    const Node **load; /* ... and of itself back; NULL: none */
    int changes;
} StagedGraph;

static bool is_collective(const Node *n)
{
    return n && n->op->class == CLASS_COLLECTIVE;
}

/* The collective for which n waits, NULL: it is no such wait. */
static Node *waited(const Node *n)
{
    return n->op->wait && is_collective(n->in[0]->def) ? n->in[0]->def : NULL;
}

/* Whether v lies in the host's memory: a copy there, or what ranks made of one. */
static bool in_host(const Value *v)
{
    const Node *n = v->def && v->def->op->wait ? v->def->in[0]->def : NULL;
    return n && (n->op->to_host || (is_collective(n) && in_host(started_from(v->def->in[0]))));
}

/* Whether n takes what ranks made where the host has it: as a rank, or to load it. */
static bool reads_host(const Node *n)
{
    return is_collective(n) || node_is(n, OP_reload) || waited(n) ||
           (n->op->wait && node_is(n->in[0]->def, OP_reload));
}

/* ---- the nodes ---- */

/* origin: the node of which the new one is a clone, where n is one. */
static Node *emit_copy(StagedGraph *x, const Node *n, Node *before, const char *op,
                       Value *const *in, int nin, const Value *of, const char *suffix,
                       const Node *origin)
{
    Build b = build_like(x->g, before, n);
    const char *name = graph_fresh(x->g, arena_printf(x->g->a, "%s%s", of->name, suffix));
    b.policy = nin > 1 || b.policy == OFFLOAD ? POLICY_NONE : b.policy;
    b.origin = !n->origin ? NULL : origin ? origin->out[0]->name : n->origin;
    x->changes++;
    return emit_named(&b, op_get(x->g->ctx, op), nin, in, NULL, NULL, -1, &name, 1);
}

/* The staging node, in `of`, of result k of the collective that n clones; NULL: none. */
static const Node *staged_before(const StagedGraph *x, const Node *n, int k, const Node *const *of)
{
    const Node *from = n->origin ? find_original(x->g, n) : NULL;
    return from && from->id < x->loaded.nnode && k < from->nout ? of[from->out[k]->id] : NULL;
}

static const Node *next_of(const Node *n)
{
    return n ? n->next : NULL;
}

static void check_device(const StagedGraph *x, const Node *n)
{
    if (!op_kernels(n->op, x->device->kernels))
        fail_node(x->g, n,
                  "expected a back end whose ranks communicate, found %s, which has no %s: take "
                  "--backend %s",
                  x->device->name, n->op->name, device_at(DEVICE_cpu)->name);
}

static void stage_operand(StagedGraph *x, Node *n, int k)
{
    Value *v = n->in[k];
    const Node *from = staged_before(x, n, k, x->copy);
    Node *copy = emit_copy(x, n, n, "offload", &v, 1, v, "_copy", from);
    Value *in[] = {copy->out[0], v};
    Node *host = emit_copy(x, n, n, "wait_tensor", in, 2, v, "_host", next_of(from));
    x->copy[n->out[k]->id] = copy;
    n->in[k] = host->out[0];
}

/* What the host has already a collective reads there. */
static void stage_operands(StagedGraph *x, Node *n)
{
    Value **host = NEWN(x->tmp, Value *, n->nin);
    for (int k = 0; k < n->nin; k++)
        host[k] = in_host(n->in[k]) ? n->in[k] : NULL;
    replace_operands(&x->loaded, n);
    for (int k = 0; k < n->nin; k++)
        if (host[k])
            n->in[k] = host[k];
        else
            stage_operand(x, n, k);
}

/* n waits for the collective `made`. */
static void stage_result(StagedGraph *x, Node *n, Node *made)
{
    Value *v = n->out[0];
    const Node *from = staged_before(x, made, n->in[0]->index, x->load);
    Node *before = n->next;
    Node *load = emit_copy(x, made, before, "reload", &v, 1, v, "_load", from);
    Value *in[] = {load->out[0], v};
    Node *back = emit_copy(x, made, before, "wait_tensor", in, 2, v, "_back", next_of(from));
    load->phase = back->phase = n->phase;
    load->policy = made->policy;
    made->policy = made->policy == OFFLOAD ? POLICY_NONE : made->policy;
    x->load[n->in[0]->id] = load;
    replace_with(&x->loaded, n, 0, back->out[0]);
}

static void stage_node(StagedGraph *x, Node *n)
{
    Node *made = waited(n);
    if (made) {
        n->in[1] = started_from(n->in[0]);
        if (x->wanted[n->out[0]->id])
            stage_result(x, n, made);
    } else if (is_collective(n)) {
        check_device(x, n);
        stage_operands(x, n);
    } else if (!reads_host(n)) {
        replace_operands(&x->loaded, n);
    }
}

/* ---- a graph and the bodies in it ---- */

/* By value id: whether something reads it where kernels compute. */
static bool *find_wanted(const Graph *g, Arena *tmp)
{
    bool *wanted = NEWN(tmp, bool, g->nvalue);
    for (const Node *n = g->first; n; n = n->next)
        for (int i = 0; i < n->nin && !reads_host(n); i++)
            wanted[n->in[i]->id] = true;
    for (int i = 0; i < g->nout; i++)
        wanted[g->out[i].v->id] = true;
    return wanted;
}

static int stage_graph(Graph *g, Arena *tmp, const Device *d)
{
    StagedGraph x = {.g = g,
                     .tmp = tmp,
                     .device = d,
                     .loaded = replace_start(g, tmp),
                     .wanted = find_wanted(g, tmp)};
    int changes = 0;
    x.copy = NEWN(tmp, const Node *, g->nvalue);
    x.load = NEWN(tmp, const Node *, g->nvalue);
    EACH_NODE(n, g) {
        EACH_LOOP_BODY(b, n)
            changes += stage_graph(n->region->body[b], tmp, d);
        if (n->id < x.loaded.nnode)
            stage_node(&x, n);
    }
    replace_outputs(&x.loaded, g);
    return changes + x.changes;
}

int pass_stage(Graph *g, Arena *tmp, const PassOptions *o)
{
    bool direct = device_is_gpu(o->device) && o->gpu_comm && !strcmp(o->gpu_comm, "nccl");
    return device_is_host(o->device) || !g->mesh || direct ? 0 : stage_graph(g, tmp, o->device);
}
