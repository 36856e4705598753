/* Functional collectives as PyTorch traces them, of _c10d_functional and its older form
 * c10d_functional (FSDP2, DTensor, torch.distributed's functional collectives).
 *
 * A collective's result may be read only once it has been waited for. PyTorch's wait_tensor gives
 * its operand back, so that both names stand for one tensor, and a trace may leave it out. Here the
 * first reader of a collective's result, be it wait_tensor or any other, gets a wait_tensor node
 * that reads what is sent too; it is emitted there, and all later readers share it. */
#include "lower.h"

#include <ctype.h>
#include <string.h>

/* ---- waits ---- */

Value *fx_waited(Importer *im, Value *v)
{
    const Node *n = v->def;
    if (!n || n->op->class != CLASS_COLLECTIVE)
        return v;
    const char *key = arena_printf(im->a, "%d", n->id);
    Value *y = map_find(&im->groups.wait, key);
    if (!y) {
        y = emit1(&im->b, "wait_tensor", IN(v, n->in[0]), NOATTRS);
        map_put(&im->groups.wait, key, y);
    }
    return y;
}

/* The tensors themselves, which are read from now on as what has arrived. */
void row_wait(Site *s)
{
    const Item *x = &s->arg[0];
    bool list = x->kind == FX_LIST;
    for (int i = 0; list && i < x->count; i++)
        fx_peek(s->im, x->item[i].t);
    if (!list)
        fx_peek(s->im, site_storage(s, s->arg_name[0]));
    s->result = *x;
}

/* ---- the collectives ---- */

static const char *reduce_op(Site *s)
{
    bool older = !strncmp(s->name, "c10d_functional.", 16);
    char *op = arena_strdup(s->im->a, site_text(s, older ? "reduceOp" : "reduce_op"));
    for (char *p = op; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    return op;
}

static Value *reduced(Site *s, Value *x)
{
    int64_t ranks;
    const char *group = fx_group(s, &ranks);
    return emit1(s->b, "all_reduce", IN(x),
                 ATTRS(A_STR("reduce_op", reduce_op(s)), A_STR("group", group)));
}

static Value *gathered(Site *s, Value *x)
{
    int64_t ranks;
    const char *group = fx_group(s, &ranks);
    return emit1(s->b, "all_gather_into_tensor", IN(x),
                 ATTRS(A_INT("group_size", ranks), A_STR("group", group)));
}

static Value *scattered(Site *s, Value *x)
{
    int64_t ranks;
    const char *group = fx_group(s, &ranks);
    return emit1(
        s->b, "reduce_scatter_tensor", IN(x),
        ATTRS(A_STR("reduce_op", reduce_op(s)), A_INT("group_size", ranks), A_STR("group", group)));
}

/* The one tensor of a call, or each of a list. */
static void each(Site *s, Value *(*emit_one)(Site *s, Value *x))
{
    if (s->arg[0].kind != FX_LIST) {
        site_return(s, emit_one(s, site_tensor(s, s->arg_name[0])));
        return;
    }
    int count;
    Value **x = site_tensors(s, s->arg_name[0], &count);
    for (int i = 0; i < count; i++)
        x[i] = emit_one(s, x[i]);
    site_return_list(s, count, x);
}

void row_all_reduce(Site *s)
{
    each(s, reduced);
}

void row_all_gather(Site *s)
{
    each(s, gathered);
}

void row_reduce_scatter(Site *s)
{
    each(s, scattered);
}

/* Written to `out`, which is given back. */
static void write_out(Site *s, Value *y)
{
    FxTensor *out = site_storage(s, "out");
    if (!type_equal(&out->type, &y->type))
        site_fail(s, "argument out: expected %s, found %s", type_text(s->im->a, &y->type),
                  type_text(s->im->a, &out->type));
    fx_write(s->im, out, y);
    s->result = (Item){.kind = FX_TENSOR, .t = out};
}

void row_all_gather_out(Site *s)
{
    write_out(s, gathered(s, site_tensor(s, "input")));
}

void row_reduce_scatter_out(Site *s)
{
    write_out(s, scattered(s, site_tensor(s, "input")));
}

static const int64_t *sizes(Site *s, const char *name, int64_t ranks, int64_t *count)
{
    const Item *x = site_arg(s, name);
    int64_t *size = NEWN(s->im->a, int64_t, x->count + 1);
    *count = x->kind == FX_LIST ? x->count : 0;
    if (*count && ranks && *count != ranks)
        site_fail(s, "argument %s: expected %lld sizes, one for each rank, found %lld", name,
                  (long long)ranks, (long long)*count);
    for (int i = 0; i < *count; i++)
        size[i] = x->item[i].i;
    return size;
}

void row_all_to_all(Site *s)
{
    int64_t ranks, nout, nin;
    const char *group = fx_group(s, &ranks);
    const int64_t *out = sizes(s, "output_split_sizes", ranks, &nout);
    const int64_t *in = sizes(s, "input_split_sizes", ranks, &nin);
    site_return(s, emit1(s->b, "all_to_all_single", IN(site_tensor(s, s->arg_name[0])),
                         ATTRS(A_INTS("output_split_sizes", nout, out),
                               A_INTS("input_split_sizes", nin, in), A_STR("group", group))));
}

/* src is the place in the group: of both forms, as the older calls the newer. */
void row_broadcast(Site *s)
{
    int64_t ranks;
    const char *group = fx_group(s, &ranks);
    int64_t src = site_int(s, "src");
    if (src < 0 || (ranks && src >= ranks))
        site_fail(s, "argument src: expected 0 to %lld, a place in group \"%s\", found %lld",
                  (long long)(ranks ? ranks : INT64_MAX) - 1, group, (long long)src);
    site_return(s, emit1(s->b, "broadcast", IN(site_tensor(s, s->arg_name[0])),
                         ATTRS(A_INT("src", src), A_STR("group", group))));
}

/* x with axis `from` before axis `to` of the others. */
static Value *move_axis(Site *s, Value *x, int from, int to)
{
    int64_t dims[TN_RANK];
    int rank = x->type.rank, n = 0;
    for (int d = 0; d < rank; d++)
        if (d != from)
            dims[n++] = d;
    memmove(dims + to + 1, dims + to, sizeof *dims * (size_t)(rank - 1 - to));
    dims[to] = from;
    return emit1(s->b, "permute", IN(x), ATTRS(A_INTS("dims", rank, dims)));
}

/* A tensor cut along gather_dim is cut along shard_dim instead: the parts along shard_dim go to
 * their ranks, and those that come are joined along gather_dim. It waits itself. */
void row_shard_dim_alltoall(Site *s)
{
    int64_t ranks, size[TN_RANK + 1];
    Value *x = site_tensor(s, "input");
    int rank = x->type.rank, gather = site_axis(s, "gather_dim", rank),
        shard = site_axis(s, "shard_dim", rank);
    const char *group = fx_group(s, &ranks);
    if (!ranks)
        site_fail(s, "group \"%s\": expected --mesh and --group, which say how many ranks it has",
                  group);
    if (gather == shard || rank == TN_RANK || x->type.dim[shard] % ranks)
        site_fail(s, "expected two axes, and a multiple of %lld along axis %d of %s",
                  (long long)ranks, shard, type_text(s->im->a, &x->type));
    memcpy(size, x->type.dim, sizeof *size * (size_t)shard);
    size[shard] = ranks;
    size[shard + 1] = x->type.dim[shard] / ranks;
    memcpy(size + shard + 2, x->type.dim + shard + 1, sizeof *size * (size_t)(rank - 1 - shard));
    Value *y = move_axis(s, lower_reshape(s, x, rank + 1, size), shard, 0);
    y = fx_waited(s->im, emit1(s->b, "all_to_all_single", IN(y), ATTRS(A_STR("group", group))));
    y = move_axis(s, y, 0, gather);
    memcpy(size, x->type.dim, sizeof *size * (size_t)rank);
    size[gather] *= ranks;
    size[shard] /= ranks;
    site_return(s, lower_reshape(s, y, rank, size));
}
