/* loss_count: has losses of log-probabilities read what they divide by before any region.
 *
 * nll_loss_forward gives a mean and the sum of its rows' weights, by which the backward divides,
 * too. That sum depends on the labels alone, but as a result of a node that reads all
 * log-probabilities it would be there only after a region around them, and the backward would need
 * a loop of its own. So the mean becomes a sum over rows, divided, and the weights are added up
 * from the labels, where the loss stands. The sum of weights has the same bits, the mean is rounded
 * once more. Linear in the graph, and once more for each loss. */
#include "pass.h"

#include <string.h>

static int64_t attr_int(const Node *n, const char *name)
{
    return n->attr[attr_index(n->op, name)].i;
}

static bool is_read(const Graph *g, const Value *v)
{
    for (const Node *n = v->def->next; n; n = n->next)
        for (int i = 0; i < n->nin; i++)
            if (n->in[i] == v)
                return true;
    return graph_is_output(g, v);
}

/* The weights of the labels' classes, 0 where a label does not count. */
static Value *emit_weights(Build *b, const Node *n)
{
    Value *labels = n->in[1], *weight = n->in[2];
    AttrArg ignore = A_FLOAT("fill_value", (double)attr_int(n, "ignore_index"));
    AttrArg integer = A_DTYPE("dtype", I64), scalar = A_INTS("size", 0, NULL);
    Value *ignored = emit1(b, "full", 0, NULL, ATTRS(scalar, ignore, integer));
    Value *zero = emit1(b, "full", 0, NULL, ATTRS(scalar, A_FLOAT("fill_value", 0), integer));
    Value *counts = emit1(b, "ne", IN(labels, ignored), NOATTRS);
    Value *safe = emit1(b, "where", IN(counts, labels, zero), NOATTRS);
    Value *each = emit1(b, "index", IN(weight, safe), ATTRS(A_INTS("dims", 1, ((int64_t[]){0}))));
    return emit1(b, "where", IN(counts, each, emit_full(b, 0, weight->type.dtype)), NOATTRS);
}

/* The sum of the rows' weights by the labels alone. */
static Value *emit_total(Build *b, const Node *n)
{
    DType d = n->out[1]->type.dtype;
    if (attr_int(n, "reduction") == REDUCE_NONE)
        return emit_full(b, 0, d);
    if (n->nin == 3) {
        Value *each = emit_weights(b, n);
        return emit1(b, "sum", IN(each),
                     each->type.dtype == d ? NOATTRS : ATTRS(A_DTYPE("dtype", d)));
    }
    AttrArg ignore = A_INT("ignore_index", attr_int(n, "ignore_index"));
    return emit_cast(b, emit1(b, "count_labels", IN(n->in[1]), ATTRS(ignore)), d);
}

/* Has all read v instead of n's result k. */
static void read_instead(Graph *g, Arena *tmp, const Node *n, int k, Value *v)
{
    Replace r = replace_start(g, tmp);
    replace_with(&r, n, k, v);
    EACH_NODE(m, g)
        replace_operands(&r, m);
    replace_outputs(&r, g);
}

int loss_counts(Graph *g, Arena *tmp)
{
    int count = 0;
    EACH_NODE(n, g) {
        if (!node_is(n, OP_nll_loss_forward))
            continue;
        bool mean = attr_int(n, "reduction") == REDUCE_MEAN && n->in[0]->type.dim[0] > 1;
        if (is_read(g, n->out[1])) {
            Build b = build_like(g, n, n);
            read_instead(g, tmp, n, 1, emit_total(&b, n));
            count++;
        }
        if (mean) {
            node_expose(g, tmp, n);
            count++;
        }
    }
    return count;
}
