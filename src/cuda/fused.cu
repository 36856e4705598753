/* fused on CUDA: the body is compiled as one kernel (fused_text.c has the method) when a program is
 * prepared. */
#include "cuda.cuh"
extern "C" {
#include "fused_text.h"
}

struct Prepared {
    void *kernel;
    FusedText text;
    void **argument; /* the addresses of the kernel's arguments */
};

static void prepare(Call *c, Arena *a)
{
    Prepared *p = NEW(a, Prepared);
    c->state = p;
    p->text = fused_text(a, c);
    p->kernel = fused_compile(a, p->text.text);
    p->argument = NEWN(a, void *, c->nin + c->nout + 3 + p->text.nstream);
}

static int run(Call *c)
{
    Prepared *p = (Prepared *)c->state;
    void **argument = p->argument;
    for (int i = 0; i < c->nin; i++)
        *argument++ = &c->in[i].data;
    for (int k = 0; k < c->nout; k++)
        *argument++ = &c->out[k].data;
    *argument++ = &c->stop;
    *argument++ = &c->fault;
    *argument++ = &c->step;
    for (int i = 0; i < p->text.nstream; i++)
        *argument++ = &p->text.stream[i];
    return p->text.blocks ? fused_launch(c, p->kernel, &p->text, p->argument) : 0;
}

/* Faults of dropout, the one op in bodies that reads what may be wrong. */
static const char *const faults[] = {"offset %lld of axis %lld: expected %lld to %lld", NULL};

CUDA_KERNELS(fused) = {{.name = "compiled",
                        .accepts = fused_text_accepts,
                        .prepare = prepare,
                        .run = run,
                        .strided_out = true,
                        .faults = faults},
                       {}};
