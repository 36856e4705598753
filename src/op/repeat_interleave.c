/* repeat_interleave: i stands repeats[i] times in the result, in order, whose length must be known:
 * ATen's repeat_interleave.Tensor with output_size. (Of a tensor along an axis: `index` with this.)
 * A negative count, or counts of another sum, are an error of the run. */
#include "index.h"

enum { OUTPUT_SIZE };

static const AttrField attrs[] = {{"output_size", ATTR_INT, .required = true}, {0}};

static int infer(const Graph *g, const Node *n, Type *out)
{
    int64_t size = n->attr[OUTPUT_SIZE].i;
    need_rank(g, n, 0, 1, 1);
    need_index(g, n, 0);
    if (size < 0)
        fail_node(g, n, "output_size: expected at least 0, found %lld", (long long)size);
    out[0] = type_make(n->in[0]->type.dtype, 1, &size);
    return 1;
}

static int check(Call *c)
{
    const Tensor *x = &c->in[0];
    int64_t left = c->out[0].dim[0];
    if (check_index(c, 0, 0, INT64_MAX))
        return -1;
    for (int64_t i = 0; i < x->dim[0]; i++) {
        int64_t count = index_at(x, i * x->stride[0]);
        if (count > left)
            return run_fail(c, "repeats: expected a sum of %lld, found more, at position %lld",
                            (long long)c->out[0].dim[0], (long long)i);
        left -= count;
    }
    return left ? run_fail(c, "repeats: expected a sum of %lld, found %lld",
                           (long long)c->out[0].dim[0], (long long)(c->out[0].dim[0] - left))
                : 0;
}

static int ref(Call *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    if (check(c))
        return -1;
    for (int64_t i = 0, at = 0; i < x->dim[0]; i++)
        for (int64_t k = tensor_int(x, i * x->stride[0]); k > 0; k--)
            tensor_set(y, at++ * y->stride[0], (double)i);
    return 0;
}

const OpRules op_repeat_interleave = {
    .math = "y = 0 repeats[0] times, then 1 repeats[1] times, ...",
    .example = "i64[4] output_size=8",
    .attrs = attrs,
    .infer = infer,
    .ref = ref,
    .alias = "aten.repeat_interleave.Tensor",
};
