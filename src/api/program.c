#include "api.h"

#include <string.h>

typedef struct ProgramArgs {
    tn_plan *plan;
    const tn_options *o;
    tn_program *program;
} ProgramArgs;

static void make(void *arg)
{
    ProgramArgs *x = arg;
    x->program = handle_new(x->plan->h.owner, sizeof *x->program);
    x->program->plan = x->plan;
    x->program->x = program_make(x->program->h.a, x->plan->p, x->o->check, x->o->arena);
}

int tn_program_new(tn_plan *p, const tn_options *options, tn_program **program)
{
    ProgramArgs x = {p, options, NULL};
    int code = (int)ctx_try(&p->h.owner->ctx, make, &x);
    if (code)
        tn_program_free(x.program);
    else
        *program = x.program;
    return code;
}

typedef struct ShareArgs {
    tn_plan *plan;
    tn_program *host, *program;
} ShareArgs;

static void share(void *arg)
{
    ShareArgs *x = arg;
    x->program = handle_new(x->plan->h.owner, sizeof *x->program);
    x->program->plan = x->plan;
    x->program->x = program_share(x->program->h.a, x->plan->p, x->host->x);
}

int tn_program_share(tn_plan *p, tn_program *host, tn_program **program)
{
    ShareArgs x = {p, host, NULL};
    int code = (int)ctx_try(&p->h.owner->ctx, share, &x);
    if (code)
        tn_program_free(x.program);
    else
        *program = x.program;
    return code;
}

int64_t tn_rss_peak(void)
{
    return rss_peak_bytes();
}

void tn_program_free(tn_program *x)
{
    handle_free((Handle *)x);
}

int tn_program_run(tn_program *x)
{
    if (!program_run(x->x))
        return TN_CODE_OK;
    Ctx *ctx = &x->h.owner->ctx;
    snprintf(ctx->message, sizeof ctx->message, "%s", x->x->message);
    ctx->code = TN_FAIL;
    return TN_CODE_FAIL;
}

const char *tn_program_fault(tn_program *x)
{
    const Node *n = x->x->not_finite;
    if (!n)
        return NULL;
    snprintf(x->fault, sizeof x->fault, "%s %%%s%s%s", n->op->name, n->nout ? n->out[0]->name : "?",
             *n->scope ? " in " : "", n->scope);
    return x->fault;
}

void tn_program_fill(tn_program *x, int pattern)
{
    program_fill(x->x, (uint8_t)pattern);
}

int64_t tn_program_high(const tn_program *x, int pattern)
{
    return program_high(x->x, (uint8_t)pattern);
}

/* ---- data by name ---- */

/* The name under which an output is written: loss, grad.NAME, new.NAME, metric.NAME, outN. */
static void output_name(const Plan *p, int i, char *text, size_t size)
{
    const PlanPort *o = &p->out[i];
    if (o->role == ROLE_LOSS)
        snprintf(text, size, "loss");
    else if (o->role == ROLE_NONE)
        snprintf(text, size, "out%d", i);
    else
        snprintf(text, size, "%s.%s", role_name(o->role), o->name);
}

static const PlanPort *find_port(const Plan *p, const char *name)
{
    char text[600];
    for (int i = 0; i < p->nin; i++)
        if (!strcmp(p->in[i].value, name) || (p->in[i].name && !strcmp(p->in[i].name, name)))
            return &p->in[i];
    for (int i = 0; i < p->nout; i++) {
        output_name(p, i, text, sizeof text);
        if (!strcmp(text, name))
            return &p->out[i];
    }
    return NULL;
}

int tn_program_data(tn_program *x, const char *name, void **data, int64_t *nbytes)
{
    const PlanPort *p = find_port(x->x->plan, name);
    if (p) {
        *data = program_data(x->x, p);
        if (nbytes)
            *nbytes = type_nbytes(&p->type);
        return TN_CODE_OK;
    }
    Ctx *ctx = &x->h.owner->ctx;
    snprintf(ctx->message, sizeof ctx->message, "no input or output \"%s\"", name);
    return TN_CODE_FAIL;
}

/* ---- safetensors ---- */

typedef struct FileArgs {
    tn_program *x;
    const char *path, *prefix;
} FileArgs;

static void read_inputs(void *arg)
{
    FileArgs *f = arg;
    Program *x = f->x->x;
    const Plan *p = x->plan;
    Ctx *ctx = p->g->ctx;
    Arena *a = f->x->h.a;
    TensorFile *file = tensors_open(a, f->path);
    for (int i = 0; i < p->nin; i++) {
        const PlanPort *q = &p->in[i];
        const TensorEntry *e = tensors_find(file, q->value);
        if (!e)
            fail(ctx, TN_FAIL, "%s: input \"%s\": expected %s, found no such tensor", f->path, q->value,
                 type_text(a, &q->type));
        if (!shape_equal(&e->type, &q->type))
            fail(ctx, TN_FAIL, "%s: input \"%s\": expected %s, found %s", f->path, q->value,
                 type_text(a, &q->type), type_text(a, &e->type));
        tensors_read(file, e, q->type.dtype, false, program_data(x, q));
    }
    for (int k = 0; k < file->count; k++) {
        bool known = false;
        for (int i = 0; i < p->nin; i++)
            known |= !strcmp(p->in[i].value, file->entry[k].name);
        if (!known)
            fail(ctx, TN_FAIL, "%s: tensor \"%s\" is no input of the graph", f->path,
                 file->entry[k].name);
    }
}

int tn_program_read(tn_program *x, const char *path)
{
    FileArgs f = {x, path, NULL};
    return (int)ctx_try(&x->h.owner->ctx, read_inputs, &f);
}

static void write_outputs(void *arg)
{
    FileArgs *f = arg;
    const Plan *p = f->x->x->plan;
    Arena *a = f->x->h.a;
    TensorOut *out = NEWN(a, TensorOut, p->nout);
    size_t cut = strlen(f->prefix);
    int n = 0;
    for (int i = 0; i < p->nout; i++) {
        char text[600];
        output_name(p, i, text, sizeof text);
        if (strncmp(text, f->prefix, cut))
            continue;
        out[n++] = (TensorOut){arena_strdup(a, text + cut), p->out[i].type,
                               program_data(f->x->x, &p->out[i])};
    }
    tensors_write(p->g->ctx, f->path, n, out);
}

int tn_program_write(tn_program *x, const char *path, const char *prefix)
{
    FileArgs f = {x, path, prefix};
    return (int)ctx_try(&x->h.owner->ctx, write_outputs, &f);
}
