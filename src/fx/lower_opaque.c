/* Calls that are not ours to run: sends and receives between two ranks, and with --unknown barrier
 * all that nothing here knows. Each becomes the op `opaque`, a barrier, which reads all tensors of
 * the call. It is taken to write to none of them. The type of its result is what the code says of
 * it; a result that nobody reads has no elements. */
#include "lower.h"

/* Adds the tensors of an argument, which may be a list of lists. */
static int add_tensors(Site *s, Value **in, int n, const Item *x)
{
    if (x->kind == FX_TENSOR) {
        if (n == FX_MAX_ARG)
            site_fail(s, "expected at most %d tensors", FX_MAX_ARG);
        in[n++] = fx_read(s->im, x->t);
    }
    for (int i = 0; x->kind == FX_LIST && i < x->count; i++)
        n = add_tensors(s, in, n, &x->item[i]);
    return n;
}

static void emit_opaque(Site *s, int narg, const Item *arg, const Type *t)
{
    Value *in[FX_MAX_ARG];
    int n = 0;
    for (int i = 0; i < narg; i++)
        n = add_tensors(s, in, n, &arg[i]);
    site_return(s, emit1(s->b, "opaque", n, in,
                         ATTRS(A_STR("call", s->name), A_INTS("size", t->rank, t->dim),
                               A_DTYPE("dtype", t->dtype))));
    s->im->nopaque++;
}

/* The type that the statement gives the call's result, if the call is all of it. */
static const Annotation *said_of(const Importer *im, const Expr *call)
{
    const FxStatement *at = im->progress.at;
    return at->value == call && at->ntarget == 1 && !at->unpack ? &at->annotation : NULL;
}

static bool is_read(const Importer *im, const Expr *call)
{
    const FxStatement *at = im->progress.at;
    bool read = at->value != call || !at->target;
    for (int i = 0; i < at->ntarget; i++)
        read |= fx_is_used(im, at->target[i]);
    return read && at->ntarget > 0;
}

Item fx_opaque_call(Site *s, const Expr *call, const Item *arg, bool writes)
{
    const Annotation *said = said_of(s->im, call);
    if (writes)
        site_fail(s, "a barrier that writes to its argument is not supported");
    Type t = {.dtype = F32, .rank = 1};
    if (said && said->known && !said->complex)
        t = said->type;
    else if (is_read(s->im, call))
        site_fail(s,
                  "a barrier: expected the type of its result beside it, such as y: \"f32[2, 4]\"");
    emit_opaque(s, call->count, arg, &t);
    return s->result;
}

/* A tensor without elements, which a wait is for. */
void row_isend(Site *s)
{
    Type t = {.dtype = site_type(s, "tensor")->dtype, .rank = 1};
    emit_opaque(s, s->narg, s->arg, &t);
}

void row_irecv(Site *s)
{
    emit_opaque(s, s->narg, s->arg, site_type(s, "tensor"));
}
