/* The copies that FSDP2 (torch.distributed.fsdp.fully_shard) puts around its collectives: the
 * shards of a block's parameters in one buffer, of which all ranks' are gathered, and back; and the
 * gradients of a block as rows, one for each rank, which are reduced and scattered. Tensors are
 * given for results; here they get values. */
#include "lower.h"

static void write_to(Site *s, const Item *out, Value *y)
{
    if (out->kind != FX_TENSOR || !shape_equal(&out->t->type, &y->type))
        site_fail(s, "argument out: expected %s, found %s", type_text(s->im->a, &y->type),
                  out->kind == FX_TENSOR ? type_text(s->im->a, &out->t->type) : item_text(out));
    fx_write(s->im, out->t, lower_cast(s, y, out->t->type.dtype));
}

static Value *joined(Site *s, int count, Value **x, int axis)
{
    return count == 1 ? x[0] : emit1(s->b, "cat", count, x, ATTRS(A_INT("dim", axis)));
}

/* The tensor to send, and the one to receive in, whose values nobody reads before. */
void row_all_gather_copy_in(Site *s)
{
    int count;
    Value **x = site_tensors(s, "all_gather_inputs", &count);
    for (int i = 0; i < count; i++)
        x[i] = lower_reshape(s, x[i], 1, (int64_t[]){type_nelem(&x[i]->type)});
    if (!count)
        site_fail(s, "argument all_gather_inputs: expected tensors, found none");
    Value *input = joined(s, count, x, 0);
    Item *pair = NEWN(s->im->a, Item, 2);
    pair[1] = *site_arg(s, "all_gather_output");
    DType d = site_type(s, "all_gather_output")->dtype;
    site_return(s, lower_cast(s, input, d));
    pair[0] = s->result;
    s->result = (Item){.kind = FX_LIST, .count = 2, .item = pair};
}

void row_split_with_sizes_copy(Site *s)
{
    Value *x = site_tensor(s, "all_gather_output");
    const Item *sizes = site_arg(s, "all_gather_input_split_sizes"), *out = site_arg(s, "out");
    int axis = site_axis(s, "dim", x->type.rank);
    int64_t from = 0;
    if (sizes->kind != FX_LIST || sizes->count != out->count)
        site_fail(s, "argument out: expected as many tensors as sizes, found %d", out->count);
    for (int i = 0; i < out->count; i++) {
        int64_t to = from + sizes->item[i].i;
        if (to < from || to > x->type.dim[axis])
            site_fail(s, "sizes: expected a sum of %lld", (long long)x->type.dim[axis]);
        write_to(s, &out->item[i], lower_slice(s, x, axis, from, to, 1));
        from = to;
    }
}

/* A tensor's rows in `count` equal runs, the last ones filled up with zeros: [count, elements]. */
static Value *in_chunks(Site *s, Value *x, int64_t count)
{
    int rank = x->type.rank;
    int64_t rows = site_parts(x->type.dim[0], count) * count, pad[2 * TN_RANK] = {0};
    pad[2 * rank - 1] = rows - x->type.dim[0]; /* the last axis comes first */
    if (rows > x->type.dim[0])
        x = emit1(s->b, "constant_pad_nd", IN(x),
                  ATTRS(A_INTS("pad", 2 * (int64_t)rank, pad), A_FLOAT("value", 0)));
    return lower_reshape(s, x, 2, (int64_t[]){count, type_nelem(&x->type) / count});
}

void row_chunk_cat(Site *s)
{
    int count;
    Value **x = site_tensors(s, "tensors", &count);
    int64_t chunks = site_int(s, "num_chunks");
    if (site_int(s, "dim") != 0 || chunks < 1 || !count)
        site_fail(s, "expected tensors, at least one chunk, and dim 0, found %d, %lld and %lld",
                  count, (long long)chunks, (long long)site_int(s, "dim"));
    for (int i = 0; i < count; i++) {
        if (!x[i]->type.rank)
            site_fail(s, "argument tensors: expected an axis, found %s",
                      type_text(s->im->a, &x[i]->type));
        x[i] = in_chunks(s, x[i], chunks);
    }
    write_to(s, site_arg(s, "out"), joined(s, count, x, 1));
}
