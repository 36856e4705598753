/* The hash of a plan: its graph, steps, addresses and kernels, without what may differ from rank to
 * rank. */
#include "plan.h"

#include <string.h>

/* Hashes what a device with several spaces and queues adds. */
static uint64_t hash_device(const Plan *p, uint64_t h)
{
    h = hash_bytes(p->device->name, strlen(p->device->name), h);
    for (int i = 0; i < p->nstorage; i++)
        h = hash_bytes(&p->storage[i].space, sizeof p->storage[i].space, h);
    for (int i = 0; i < p->nstep; i++) {
        const Step *s = &p->step[i];
        int key[] = {(int)s->queue, s->nwait};
        h = hash_bytes(key, sizeof key, h);
        h = hash_bytes(s->wait, sizeof *s->wait * (size_t)s->nwait, h);
    }
    return h;
}

static void clear_attr(Node *n, const char *name)
{
    Attr *x = &n->attr[attr_index(n->op, name)];
    x->i = 0;
    x->f = 0;
}

/* Forgets what may differ from rank to rank: where slices and rings begin, and integers
 * made from nothing. */
static void clear_coordinates(Graph *g)
{
    EACH_NODE(n, g) {
        EACH_BODY(b, n)
            clear_coordinates(n->region->body[b]);
        if (node_is(n, OP_slice)) {
            clear_attr(n, "start");
            clear_attr(n, "end");
        } else if (node_is(n, OP_cat_ring)) {
            clear_attr(n, "first");
        } else if (node_is(n, OP_full) && !dtype_float(n->out[0]->type.dtype)) {
            clear_attr(n, "fill_value");
        }
    }
}

/* Hashes the parts of a rank's graph that all ranks share, as their plans must be one. */
static uint64_t hash_graph(Graph *g)
{
    if (!g->mesh)
        return graph_hash(g);
    Arena *tmp = arena_tmp(g->a);
    Graph *x = graph_clone(tmp, g);
    Mesh *mesh = mesh_clone(tmp, g->mesh);
    mesh_set_rank(mesh, 0);
    x->mesh = mesh;
    clear_coordinates(x);
    uint64_t h = graph_hash(x);
    arena_reset(tmp);
    return h;
}

/* h, which is of the graph and what else counts, with addresses and kernels. */
static uint64_t hash_steps(const Plan *p, uint64_t h)
{
    for (int i = 0; i < p->nstorage; i++) {
        const Storage *s = &p->storage[i];
        int64_t key[] = {s->offset, s->nbytes, s->start, s->end};
        h = hash_bytes(key, sizeof key, h);
    }
    for (int i = 0; i < p->nstep; i++) {
        const char *kernel = p->step[i].kernel ? p->step[i].kernel->name : "ref";
        h = hash_bytes(kernel, strlen(kernel), h);
    }
    return p->device->id == DEVICE_cpu ? h : hash_device(p, h);
}

uint64_t plan_hash(const Plan *p)
{
    uint64_t machine = machine_hash(p->machine);
    return hash_steps(p, hash_bytes(&machine, sizeof machine, hash_graph(p->g)));
}

uint64_t plan_hash_steps(const Plan *p)
{
    return hash_steps(p, hash_graph(p->g));
}
