/* The problem that a search for an order solves: the part of a flow that depends on the order of
 * the nodes. It lists which nodes wait for which, which storages each node defines and touches, and
 * in which of its steps, and which results may lie over which operands. Places, copies, bodies and
 * workspaces are taken from the flow, so the peak of an order is the peak of the flow once the
 * graph has that order, with two exceptions: inputs that nothing reads do not count, and a result
 * over a larger storage counts with its own bytes, be it only a plan that may put it there
 * (flow_lay_over_wider). Linear in nodes and operands. */
#include "inside.h"
#include "problem.h"

typedef struct ListPair {
    int row, item;
} ListPair;

typedef struct ListPairs {
    ListPair *pair;
    int count, cap;
} ListPairs;

/* Tables needed only while a problem is made. */
typedef struct ProblemMake {
    Arena *tmp;
    Flow *f;
    Problem *q;
    int *index;   /* of an item: its node */
    int *storage; /* of a buffer, or -1 */
    int *slots;   /* of a buffer: how often the present node reads it */
    ListPairs wait, use, make, reuse;
    int nreuse, capreuse, capused, capfirst, caplast;
    int barrier; /* the last one so far; -1: none */
} ProblemMake;

static void add_pair(ProblemMake *m, ListPairs *p, int row, int item)
{
    ListPair x = {row, item};
    PUSH(m->tmp, p->pair, p->count, p->cap, x);
}

/* Lists from pairs, in their order; with `flip` by item. */
static Lists make_lists(Arena *tmp, const ListPairs *p, int nrow, bool flip)
{
    Lists r = {NEWN(tmp, int, nrow + 2), NEWN(tmp, int, p->count)};
    int *next = r.at + 1;
    for (int k = 0; k < p->count; k++)
        r.at[(flip ? p->pair[k].item : p->pair[k].row) + 2]++;
    for (int i = 1; i < nrow; i++)
        next[i + 1] += next[i];
    for (int k = 0; k < p->count; k++) {
        ListPair x = p->pair[k];
        r.item[next[flip ? x.item : x.row]++] = flip ? x.row : x.item;
    }
    return r;
}

/* ---- storages ---- */

static int add_storage(ProblemMake *m, int buffer, int def, bool kept)
{
    Problem *q = m->q;
    int s = m->storage[buffer] = q->storage.count++;
    q->storage.def[s] = def;
    q->storage.kept[s] = kept;
    q->storage.over[s] = -1;
    q->storage.nbytes[s] =
        m->f->buffer[buffer].space == SPACE_MAIN ? m->f->buffer[buffer].nbytes : 0;
    q->storage.part[s] = m->f->buffer[buffer].part;
    return s;
}

/* Storages that the ends touch: inputs and copies at the first, what is kept at the last. */
static void add_storages(ProblemMake *m)
{
    const Flow *f = m->f;
    const FlowItem *last = &f->item[f->line.last];
    bool *stays = NEWN(m->tmp, bool, f->count.buffer),
         *renewed = NEWN(m->tmp, bool, f->count.buffer);
    for (int k = last->touch; k < last->touch + last->ntouch; k++)
        stays[f->touch[k].buffer] = true;
    for (int r = 0; r < f->count.buffer; r++)
        if (f->buffer[r].renews >= 0)
            renewed[f->buffer[r].renews] = true;
    for (int r = 0; r < f->count.buffer; r++) {
        const Buffer *x = &f->buffer[r];
        bool carry = x->outer >= 0 && renewed[r] && !stays[r];
        bool kept = x->kept || stays[r] || carry, input = x->def == f->line.first;
        m->storage[r] = -1;
        if ((x->outer >= 0 && !carry) || x->def == f->line.last ||
            (input && (kept ? !renewed[r] : !x->nuse)))
            continue;
        int s = add_storage(m, r, input ? -1 : m->index[x->def], kept);
        if (input && kept)
            m->q->storage.nbytes[s] = 0; /* only its readers matter */
        m->q->inputs += input ? m->q->storage.nbytes[s] : 0;
    }
}

/* ---- nodes ---- */

static void add_touches(ProblemMake *m, int i)
{
    Problem *q = m->q;
    const Flow *f = m->f;
    const FlowItem *x = &f->item[q->item[i]];
    for (int k = x->touch; k < x->touch + x->ntouch; k++) {
        const Touch *t = &f->touch[k];
        int s = m->storage[t->buffer], count = m->make.count;
        q->aside[i] |= f->buffer[t->buffer].space != SPACE_MAIN;
        if (s >= 0 && q->storage.def[s] == i) {
            PUSH(m->tmp, q->first, count, m->capfirst, t->first);
            count = m->make.count;
            PUSH(m->tmp, q->last, count, m->caplast, t->last);
            add_pair(m, &m->make, i, s);
        } else if (s >= 0) {
            count = m->use.count;
            PUSH(m->tmp, q->used, count, m->capused, t->last);
            add_pair(m, &m->use, i, s);
        }
    }
}

/* The operands that result k of node i may lie over. A new value may lie over the old one, after
 * all nodes that touch that. */
static void add_reuses(ProblemMake *m, int i, int k)
{
    Problem *q = m->q;
    const Flow *f = m->f;
    const FlowItem *x = &f->item[q->item[i]];
    const Buffer *y = &f->buffer[f->value[x->value + k].at.buffer];
    int to = m->storage[f->value[x->value + k].at.buffer];
    unsigned mask = node_inplace(x->node, k);
    for (int j = 0; j < MIN(x->node->nin, 32) && mask >> j && y->def == q->item[i]; j++) {
        int buffer = operand_value(f, x, j)->at.buffer, from = m->storage[buffer];
        bool over = item_may_lie_over(f, q->item[i], k, j) ||
                    (!j && item_may_lie_over_wider(m->f, q->item[i]));
        if (!(mask >> j & 1) || to < 0 || from < 0 || m->slots[buffer] != 1 || !over)
            continue;
        Reuse r = {to, from, j};
        add_pair(m, &m->reuse, to, m->nreuse);
        PUSH(m->tmp, q->reuses, m->nreuse, m->capreuse, r);
        if (buffer == y->renews)
            q->storage.over[to] = from;
    }
}

/* The first values that a loop's carries may lie over. */
static void add_carries(ProblemMake *m, int i)
{
    const Flow *f = m->f;
    const FlowItem *x = &f->item[m->q->item[i]];
    for (int j = 0; j < x->node->region->nin; j++) {
        if (x->loop.carry[j] < 0 || !carry_may_lie_over(f, m->q->item[i], j))
            continue;
        int buffer = operand_value(f, x, x->node->region->in[j].arg)->at.buffer;
        Reuse r = {m->storage[x->loop.carry[j]], m->storage[buffer], -1};
        if (r.to < 0 || r.from < 0 || m->slots[buffer] != 1)
            continue;
        add_pair(m, &m->reuse, r.to, m->nreuse);
        PUSH(m->tmp, m->q->reuses, m->nreuse, m->capreuse, r);
    }
}

static bool reduces(const Node *n)
{
    CollectiveKind k = n && n->op->class == CLASS_COLLECTIVE ? node_collective(n) : ALL_GATHER;
    return k == REDUCE_SCATTER || k == ALL_REDUCE;
}

/* Node i waits for a reduction; of one that several wait for, or one of several values, none is its
 * end. */
static void add_finish(ProblemMake *m, int i, const Node *start)
{
    Problem *q = m->q;
    int k = m->index[m->f->item_of[start->id]];
    bool again = q->finish[k] >= 0;
    q->begin[again ? q->finish[k] : i] = again ? -1 : k;
    q->finish[k] = again ? -1 : i;
}

/* All before a barrier run before it, and all behind it after it. */
static void add_barrier(ProblemMake *m, int i, const Node *n)
{
    bool barrier = node_is_barrier(n);
    for (int j = barrier ? MAX(m->barrier, 0) : i; j < i; j++)
        add_pair(m, &m->wait, i, j);
    if (!barrier && m->barrier >= 0)
        add_pair(m, &m->wait, i, m->barrier);
    if (barrier)
        m->barrier = i;
}

static void add_node(ProblemMake *m, int i)
{
    const Flow *f = m->f;
    const FlowItem *x = &f->item[m->q->item[i]];
    const Node *n = x->node;
    add_touches(m, i);
    for (int k = x->touch; k < x->touch + x->ntouch; k++)
        m->slots[f->touch[k].buffer] = f->touch[k].slots;
    for (int j = 0; j < n->nin; j++)
        if (n->in[j]->def)
            add_pair(m, &m->wait, i, m->index[f->item_of[n->in[j]->def->id]]);
    for (int j = 0; j < n->nafter; j++)
        add_pair(m, &m->wait, i, m->index[f->item_of[n->after[j]->id]]);
    add_barrier(m, i, n);
    if (n->op->wait && reduces(n->in[0]->def) && n->in[0]->def->nout == 1)
        add_finish(m, i, n->in[0]->def);
    for (int k = 0; k < n->nout && !node_aliases(n) && n->op->region != LOOP; k++)
        add_reuses(m, i, k);
    if (n->op->region == LOOP)
        add_carries(m, i);
    for (int k = x->touch; k < x->touch + x->ntouch; k++)
        m->slots[f->touch[k].buffer] = 0;
}

/* ---- the problem ---- */

static bool find_cycle(const Problem *q, Arena *tmp)
{
    int *wait = NEWN(tmp, int, q->n), *ready = NEWN(tmp, int, q->n), nready = 0, ndone = 0;
    for (int i = 0; i < q->n; i++)
        if (!(wait[i] = q->pred.at[i + 1] - q->pred.at[i]))
            ready[nready++] = i;
    while (ndone < nready) {
        int i = ready[ndone++];
        EACH_ITEM(k, q->succ, i)
            if (!--wait[q->succ.item[k]])
                ready[nready++] = q->succ.item[k];
    }
    return ndone < q->n;
}

static ProblemMake setup(Flow *f, Arena *tmp)
{
    Problem *q = NEW(tmp, Problem);
    ProblemMake m = {.tmp = tmp, .f = f, .q = q, .barrier = -1};
    int most = 0;
    m.index = NEWN(tmp, int, f->count.item);
    m.storage = NEWN(tmp, int, f->count.buffer);
    m.slots = NEWN(tmp, int, f->count.buffer);
    q->flow = f;
    q->item = NEWN(tmp, int, f->count.item);
    q->storage.nbytes = NEWN(tmp, int64_t, f->count.buffer);
    q->storage.def = NEWN(tmp, int, f->count.buffer);
    q->storage.kept = NEWN(tmp, bool, f->count.buffer);
    q->storage.part = NEWN(tmp, bool, f->count.buffer);
    q->aside = NEWN(tmp, bool, f->count.item);
    q->storage.over = NEWN(tmp, int, f->count.buffer);
    q->finish = NEWN(tmp, int, f->count.item);
    q->begin = NEWN(tmp, int, f->count.item);
    for (int i = 0; i < f->count.item; i++)
        q->finish[i] = q->begin[i] = -1;
    for (int i = f->line.at[f->line.first].next; i != f->line.last; i = f->line.at[i].next) {
        const FlowItem *x = &f->item[i];
        most = MAX(most, item_steps(x));
        m.index[i] = q->n;
        q->item[q->n++] = i;
    }
    q->change = NEWN(tmp, int64_t, most + 2);
    return m;
}

Problem *problem_new(Flow *f, Arena *tmp)
{
    int64_t peak = flow_peak(f); /* measures all items */
    ProblemMake m = setup(f, tmp);
    Problem *q = m.q;
    (void)peak;
    add_storages(&m);
    for (int i = 0; i < q->n; i++)
        add_node(&m, i);
    q->use = make_lists(tmp, &m.use, q->n, false);
    q->user = make_lists(tmp, &m.use, q->storage.count, true);
    q->make = make_lists(tmp, &m.make, q->n, false);
    q->reuse = make_lists(tmp, &m.reuse, q->storage.count, false);
    q->dep = make_lists(tmp, &m.wait, q->n, false);
    q->depend = make_lists(tmp, &m.wait, q->n, true);
    const Span *first = &f->line.at[f->line.first].own[SPACE_MAIN];
    const Span *last = &f->line.at[f->line.last].own[SPACE_MAIN];
    q->base = first->net - q->inputs;
    int64_t final = q->base;
    for (int s = 0; s < q->storage.count; s++) {
        if (q->storage.over[s] < 0)
            final += q->storage.kept[s] ? q->storage.nbytes[s] : 0;
        else
            EACH_ITEM(k, q->user, q->storage.over[s])
                if (q->user.item[k] != q->storage.def[s])
                    add_pair(&m, &m.wait, q->storage.def[s], q->user.item[k]);
    }
    q->ends = MAX(first->most, final + last->most);
    q->pred = make_lists(tmp, &m.wait, q->n, false);
    q->succ = make_lists(tmp, &m.wait, q->n, true);
    q->cyclic = find_cycle(q, tmp);
    return q;
}

/* ---- the peak of an order ---- */

static bool dies(const Problem *q, const int *left, int own, int s)
{
    return left[s] == own && !q->storage.kept[s];
}

/* Whether result s lies over an operand; taken: operands that others of its node lie over. */
static bool lies_over(const Problem *q, const int *left, int own, int s, unsigned *taken)
{
    EACH_ITEM(k, q->reuse, s) {
        Reuse r = q->reuses[q->reuse.item[k]];
        if (!dies(q, left, own, r.from))
            continue;
        if (r.slot < 0)
            return true;
        if (*taken >> r.slot & 1)
            continue;
        *taken |= 1u << r.slot;
        return true;
    }
    return false;
}

int problem_steps(const Problem *q, int i)
{
    return MAX(item_steps(&q->flow->item[q->item[i]]), 1);
}

int64_t problem_core_bytes(const Problem *q, int i, int step)
{
    return item_core_bytes(&q->flow->item[q->item[i]], SPACE_MAIN, step);
}

int problem_body(const Problem *q, int i, int step)
{
    const FlowItem *x = &q->flow->item[q->item[i]];
    int core = step - x->before.count;
    return x->loop.body[0] && core >= 0 && core < x->ncore ? core : -1;
}

Effect problem_effect(const Problem *q, const int *left, int own, int i)
{
    int nstep = problem_steps(q, i);
    unsigned taken = 0;
    Effect e = {0, 0};
    for (int k = 0; k <= nstep; k++)
        q->change[k] = 0;
    EACH_ITEM(k, q->use, i) {
        int s = q->use.item[k];
        q->change[q->used[k] + 1] -= dies(q, left, own, s) ? q->storage.nbytes[s] : 0;
    }
    EACH_ITEM(k, q->make, i) {
        int s = q->make.item[k];
        if (q->storage.over[s] >= 0)
            continue;
        q->change[q->first[k] + lies_over(q, left, own, s, &taken)] += q->storage.nbytes[s];
        q->change[q->last[k] + 1] -= dies(q, left, 0, s) ? q->storage.nbytes[s] : 0;
    }
    for (int k = 0; k <= nstep; k++) {
        e.net += q->change[k];
        if (k < nstep)
            e.need = MAX(e.need, e.net + problem_core_bytes(q, i, k));
    }
    return e;
}

static void count_users(const Problem *q, int *left, int i, int by)
{
    EACH_ITEM(k, q->use, i)
        left[q->use.item[k]] += by;
}

Effect problem_pair_effect(const Problem *q, int *left, int i)
{
    Effect e = problem_effect(q, left, 1, i);
    count_users(q, left, i, -1);
    Effect w = problem_effect(q, left, 1, q->finish[i]);
    count_users(q, left, i, 1);
    return (Effect){MAX(e.need, e.net + w.need), e.net + w.net};
}

int64_t problem_peak(const Problem *q, Arena *tmp, const int *order)
{
    int *left = NEWN(tmp, int, q->storage.count);
    int64_t live = q->base + q->inputs, peak = q->ends;
    for (int s = 0; s < q->storage.count; s++)
        left[s] = q->user.at[s + 1] - q->user.at[s];
    for (int k = 0; k < q->n; k++) {
        Effect e = problem_effect(q, left, 1, order[k]);
        peak = MAX(peak, live + e.need);
        live += e.net;
        count_users(q, left, order[k], -1);
    }
    return peak;
}
