/* Hashes of all results of all runs, as text, to find the first node at which two runs part: of one
 * rank and another, or of one rank with a microbatch for each and of that rank. For debugging: a
 * run that is hashed writes a file. */
#include "exec.h"

#include <errno.h>
#include <string.h>

struct Hashes {
    FILE *file;
    int64_t run;
    int *depth;        /* by step: of the loops around it */
    const char ***end; /* by step and result: what a line says of it; NULL: not hashed */
};

static void close_hashes(void *arg)
{
    Hashes *h = arg;
    fclose(h->file);
}

/* ---- hashes ---- */

/* FNV-1a (Fowler, Noll, Vo), of n bytes more. */
static uint64_t add_bytes(uint64_t h, const char *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)p[i]) * 0x100000001b3U;
    return h;
}

/* Hashes the elements, row-major. */
static uint64_t hash_tensor(const Tensor *t)
{
    int64_t n = tensor_nelem(t), size = dtype_size(t->dtype);
    uint64_t h = 0xcbf29ce484222325U;
    if (tensor_contiguous(t))
        return add_bytes(h, t->data, n * size);
    for (int64_t i = 0; i < n; i++)
        h = add_bytes(h, t->data + tensor_linear(t, i) * size, size);
    return h;
}

/* ---- lines ---- */

/* "2.0", of the loops around, outermost first; "-" outside of any. */
static void print_iteration(char *text, size_t size, const Work *w, int depth)
{
    size_t len = 0;
    snprintf(text, size, "-");
    for (int d = 0; d < depth; d++)
        len += (size_t)snprintf(text + len, size - len, "%s%lld", d ? "." : "",
                                (long long)w->iteration[d]);
}

void hash_step(const Work *w)
{
    const Program *x = w->x;
    const Hashes *h = x->hashes;
    char iteration[TN_MAX_DEPTH * 24];
    if (!h->end[w->step])
        return;
    print_iteration(iteration, sizeof iteration, w, h->depth[w->step]);
    for (int k = 0; k < x->call[w->step].nout; k++)
        fprintf(h->file, "%lld\t%s\t%016llx\t%s\n", (long long)h->run, iteration,
                (unsigned long long)hash_tensor(&x->call[w->step].out[k]), h->end[w->step][k]);
}

void hash_run(Program *x)
{
    x->hashes->run++;
}

/* ---- making ---- */

/* The value that it is a view of. */
static const Value *base_of(const Value *v)
{
    while (v->def && v->def->op->view)
        v = v->def->in[0];
    return v;
}

static const char **line_ends(Arena *a, const Node *n)
{
    const char **end = NEWN(a, const char *, n->nout);
    Buf types = {.a = a}, operands = {.a = a};
    buf_add(&types, "");
    buf_add(&operands, "");
    for (int i = 0; i < n->nin; i++) {
        buf_printf(&types, "%s%s", i ? ", " : "", type_text(a, &n->in[i]->type));
        buf_printf(&operands, "%s%%%s", i ? " " : "", base_of(n->in[i])->name);
    }
    for (int k = 0; k < n->nout; k++)
        end[k] = arena_printf(a, "%%%s\t%s\t%s\t%s\t%s\t%s", n->out[k]->name, n->op->name, n->scope,
                              type_text(a, &n->out[k]->type), operands.text, types.text);
    return end;
}

/* Steps that the planner added are no node's; a collective's result is there after its wait. */
static bool is_hashed(const Step *s)
{
    return s->kind == STEP_CALL && !s->copy && s->node->op->class != CLASS_COLLECTIVE;
}

void program_hash(Program *x, Arena *a, const char *path)
{
    const Plan *p = x->plan;
    Hashes *h = NEW(a, Hashes);
    if (device_is_gpu(p->device))
        fail(arena_ctx(a), TN_USAGE, "%s: hashes of results are those of cpu, found device %s",
             path, p->device->name);
    h->depth = NEWN(a, int, p->nstep);
    h->end = NEWN(a, const char **, p->nstep);
    for (int i = 0, depth = 0; i < p->nstep; i++) {
        const Step *s = &p->step[i];
        depth += (s->kind == STEP_LOOP) - (s->kind == STEP_END);
        h->depth[i] = depth;
        h->end[i] = is_hashed(s) ? line_ends(a, s->node) : NULL;
    }
    h->file = fopen(path, "we");
    if (!h->file)
        fail(arena_ctx(a), TN_FAIL, "%s: %s", path, strerror(errno));
    arena_defer(a, close_hashes, h);
    x->hashes = h;
}
