/* policy_named: policies by name, for whole blocks of a model:
 *
 *   none       sets none; so does auto, for which src/decide has set them where there is a limit
 *   full       recomputes every block
 *   every=K    recomputes the blocks whose number is a multiple of K
 *   selective  recomputes every block, but saves the first, third, fifth ... product of a block,
 *              attention, maxima, what ranks reduce and scatter or exchange, and the first residual
 *              sum (torchtitan's list)
 *
 * A block is the scope up to its first part that is a number: layers.3 of layers.3.attn.q_proj.
 * Nodes outside of blocks (embedding, last norm, head, loss) get no policy by name: their values
 * are saved. A value that a forward node of another block reads is saved by every named policy, as
 * that block's recomputation begins with it. Views get no policy: they go with their base; a node
 * that has a policy keeps it. A name is an error if it applies to no block of the forward. Linear.
 */
#include "pass.h"

#include <stdlib.h>
#include <string.h>

typedef struct Tags {
    int64_t every; /* blocks whose number it divides */
    bool selective;
    bool *seam;  /* by node id: read by another block's forward */
    Node **base; /* by value id */
    Map blocks;  /* of Count */
    Arena *tmp;
} Tags;

/* A block as far as the walk has met it. */
typedef struct Count {
    int products;
    bool residual;
} Count;

static bool is_costly(const Node *n)
{
    return n->op->class == CLASS_ATTENTION || n->op->class == CLASS_CONVOLUTION ||
           node_is(n, OP_amax) || node_is(n, OP_reduce_scatter_tensor) ||
           node_is(n, OP_all_to_all_single);
}

/* Whether n is a sum with a value from outside of the block. */
static bool is_residual(const Tags *p, const Node *n, const Block *b)
{
    if (!node_is(n, OP_add) || !type_equal(&n->in[0]->type, &n->in[1]->type))
        return false;
    for (int i = 0; i < n->nin; i++) {
        const Node *from = p->base[n->in[i]->id];
        Block other = block_of(from ? from->scope : "");
        if (!block_equal(b, &other))
            return true;
    }
    return false;
}

static Count *count_of(Tags *p, const Block *b)
{
    const char *name = arena_strndup(p->tmp, b->scope, (size_t)b->len);
    Count *c = map_find(&p->blocks, name);
    if (!c)
        map_put(&p->blocks, name, c = NEW(p->tmp, Count));
    return c;
}

static bool is_saved(Tags *p, const Node *n, const Block *b)
{
    if (!p->selective)
        return p->seam[n->id];
    Count *c = count_of(p, b);
    bool product = n->op->class == CLASS_PRODUCT && c->products++ % 2 == 0;
    bool residual = !c->residual && is_residual(p, n, b);
    c->residual |= residual;
    return p->seam[n->id] || product || residual || is_costly(n);
}

static void find_seams(Tags *p, const Graph *g)
{
    for (const Node *n = g->first; n; n = n->next) {
        Block b = block_of(n->scope);
        for (int i = 0; i < n->nin && n->phase < BACKWARD && !node_aliases(n); i++) {
            const Node *from = p->base[n->in[i]->id];
            Block other = block_of(from ? from->scope : "");
            if (from && !block_equal(&b, &other))
                p->seam[from->id] = true;
        }
    }
}

static int tag_graph(Graph *g, Arena *tmp, int64_t every, bool selective)
{
    Tags p = {every,      selective, NEWN(tmp, bool, g->nnode), find_view_bases(g, tmp),
              {.a = tmp}, tmp};
    int changes = 0;
    find_seams(&p, g);
    EACH_NODE(n, g) {
        EACH_LOOP_BODY(t, n)
            changes += tag_graph(n->region->body[t], tmp, every, selective);
        Block b = block_of(n->scope);
        if (n->phase >= BACKWARD || node_aliases(n) || node_copies_memory(n) || !b.len ||
            b.number % every)
            continue;
        bool saved = is_saved(&p, n, &b); /* counts, whatever the node has */
        if (n->policy)
            continue;
        n->policy = saved ? PREFER_SAVE : PREFER_RECOMPUTE;
        changes++;
    }
    return changes;
}

/* Whether a forward node is in a block that every=K means. */
static bool has_block(const Graph *g, int64_t every)
{
    for (const Node *n = g->first; n; n = n->next) {
        Block b = block_of(n->scope);
        if (n->phase < BACKWARD && b.len && b.number % every == 0)
            return true;
        EACH_BODY(t, n)
            if (has_block(n->region->body[t], every))
                return true;
    }
    return false;
}

/* The highest number of a block; -1: there is none. */
static int64_t last_block(const Graph *g)
{
    int64_t last = -1;
    for (const Node *n = g->first; n; n = n->next) {
        const Block b = block_of(n->scope);
        last = MAX(last, n->phase < BACKWARD && b.len ? b.number : -1);
        EACH_BODY(t, n)
            last = MAX(last, last_block(n->region->body[t]));
    }
    return last;
}

const char *policy_named_doubt(const Graph *g, Arena *a, const char *name)
{
    const int64_t every = strncmp(name, "every=", 6) ? 0 : atoll(name + 6), last = last_block(g);
    if (every < 2 || last < 0 || every <= last + 1)
        return NULL;
    return arena_printf(a,
                        "recompute %s: the last block's number is %lld, so that block 0 alone is "
                        "computed again",
                        name, (long long)last);
}

int policy_named(Graph *g, Arena *tmp, const char *name)
{
    int64_t every = 1;
    bool selective = !strcmp(name, "selective");
    if (!strcmp(name, "none") || !strcmp(name, "auto"))
        return 0;
    if (!strncmp(name, "every=", 6)) {
        size_t n = strspn(name + 6, "0123456789");
        every = n && n < 10 && !name[6 + n] ? atoll(name + 6) : 0;
    } else if (!selective && strcmp(name, "full") != 0) {
        every = 0;
    }
    if (every < 1)
        fail(g->ctx, TN_USAGE,
             "recompute: expected auto, none, full, every=K (K at least 1) or selective, found "
             "\"%.100s\"",
             name);
    if (!has_block(g, every))
        fail(g->ctx, TN_USAGE,
             "recompute \"%.100s\": no node's scope names a block (a part that is a number)%s, so "
             "nothing would be computed again; use recompute-rule",
             name, every > 1 ? " whose number K divides" : "");
    return tag_graph(g, tmp, every, selective);
}
