/* Moves inputs and outputs between files and a program, in pieces of bounded size where the host
 * cannot touch the program's memory. Where it can, a tensor is one piece, which is read and written
 * in its place. */
#include "run.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_STAGED = 16 << 20 }; /* at once; a multiple of the size of every element */

static int64_t largest_away(const Program *x, const PlanPort *p, int count)
{
    int64_t nbytes = 0;
    for (int i = 0; i < count; i++)
        if (!program_on_host(x, &p[i]))
            nbytes = MAX(nbytes, type_nbytes(&p[i].type));
    return nbytes;
}

void stage_make(tn_program *x)
{
    const Plan *p = x->x->plan;
    x->whole = NEWN(x->h.a, Type, p->nin);
    part_wholes(p, NULL, x->whole);
    int64_t most = MAX(largest_away(x->x, p->in, p->nin), largest_away(x->x, p->out, p->nout));
    x->nstage = MIN(most, MOST_STAGED);
    if (!x->nstage)
        return;
    x->stage = malloc((size_t)x->nstage);
    if (!x->stage)
        fail(&x->h.owner->ctx, TN_FAIL, "out of memory");
    arena_defer(x->h.a, free, x->stage);
}

void *stage_room(const tn_program *x, const PlanPort *p, int64_t at, int64_t *nbytes)
{
    if (program_on_host(x->x, p))
        return (char *)program_data(x->x, p) + at;
    *nbytes = MIN(*nbytes, x->nstage);
    return x->stage;
}

void stage_done(const tn_program *x, const PlanPort *p, int64_t at, int64_t nbytes)
{
    if (!program_on_host(x->x, p) && program_write(x->x, p, at, nbytes, x->stage))
        fail(&x->h.owner->ctx, TN_FAIL, "%s", x->x->message);
}

const void *stage_bytes(const tn_program *x, const PlanPort *p, int64_t at, int64_t *nbytes)
{
    void *to = stage_room(x, p, at, nbytes);
    if (!program_on_host(x->x, p) && program_read(x->x, p, at, *nbytes, to))
        fail(&x->h.owner->ctx, TN_FAIL, "%s", x->x->message);
    return to;
}

/* A rank's part that is being filled, room by room in its order. */
typedef struct Filling {
    const tn_program *x;
    const PlanPort *p;
    GiveElements *give;
    void *arg;
    char *room; /* for bytes [at, at + n) of the part */
    int64_t at, n;
} Filling;

static void next_room(Filling *f)
{
    if (f->n)
        stage_done(f->x, f->p, f->at, f->n);
    f->at += f->n;
    f->n = type_nbytes(&f->p->type) - f->at;
    f->room = stage_room(f->x, f->p, f->at, &f->n);
}

static void fill_run(void *arg, PartRun r)
{
    Filling *f = arg;
    int64_t size = dtype_size(f->p->type.dtype);
    for (int64_t n; r.n; r.local += n, r.n -= n) {
        if (r.local * size == f->at + f->n)
            next_room(f);
        n = MIN(r.n, (f->at + f->n) / size - r.local);
        char *to = f->room + (r.local * size - f->at);
        if (r.whole < 0) {
            memset(to, 0, (size_t)(n * size));
            continue;
        }
        f->give(f->arg, r.whole, n, to);
        r.whole += n;
    }
}

void stage_part(const tn_program *x, Arena *tmp, const PlanPort *p, const Type *whole,
                GiveElements *give, void *arg)
{
    Filling f = {x, p, give, arg, NULL, 0, 0};
    part_each_run(tmp, &p->type, graph_mesh(x->x->plan->g), p->cut, whole, fill_run, &f);
    if (f.n)
        stage_done(x, p, f.at, f.n);
}

void stage_zeros(const tn_program *x, const PlanPort *p)
{
    Filling f = {.x = x, .p = p};
    fill_run(&f, (PartRun){0, -1, type_nelem(&p->type)});
    if (f.n)
        stage_done(x, p, f.at, f.n);
}

/* ---- from files ---- */

enum {
    BLOCK = 1 << 20,     /* bytes that are read at once for the sake of short runs in them */
    SHORT_RUN = 1 << 15, /* bytes; longer ones are read by themselves */
    FEW_ROWS = 4         /* a block has at least so many, or each run is read by itself */
};

typedef struct RunReader {
    const TensorFile *f;
    const TensorEntry *e;
    DType want;
    bool lossy;
    char *block; /* elements [first, first + n) */
    int64_t first, n;
    int64_t most, shortest; /* elements of a block; of a run that is read by itself */
} RunReader;

static void read_run(void *arg, int64_t first, int64_t n, void *to)
{
    RunReader *r = arg;
    int64_t size = dtype_size(r->want);
    if (n >= r->shortest) {
        tensors_read_part(r->f, r->e, r->want, r->lossy, first, n, to);
        return;
    }
    if (first < r->first || first + n > r->first + r->n) {
        r->first = first;
        r->n = MIN(r->most, type_nelem(&r->e->type) - first);
        tensors_read_part(r->f, r->e, r->want, r->lossy, r->first, r->n, r->block);
    }
    memcpy(to, r->block + (first - r->first) * size, (size_t)(n * size));
}

void stage_tensor(const tn_program *x, Arena *tmp, const PlanPort *p, const TensorFile *f,
                  const TensorEntry *e, bool lossy)
{
    DType d = p->type.dtype;
    RunReader r = {.f = f, .e = e, .want = d, .lossy = lossy};
    int64_t row = e->type.rank ? e->type.dim[e->type.rank - 1] * dtype_size(d) : 0;
    if (p->cut && row * FEW_ROWS <= BLOCK) {
        r.most = BLOCK / dtype_size(d);
        r.shortest = SHORT_RUN / dtype_size(d);
        r.block = arena_alloc(tmp, BLOCK);
    }
    tensors_read_part(f, e, d, lossy, 0, 0, NULL); /* one that is empty may fail too */
    stage_part(x, tmp, p, &e->type, read_run, &r);
}
