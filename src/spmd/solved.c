/* solved: chooses how all nodes are cut at once (--shard auto), for the least sum of seconds of all
 * nodes and collectives of a rank, one after the other.
 *
 * Equal blocks are cut alike (equal.c). The problem of what remains (shard_problem.c) is solved by
 * src/pick, which gives a bound beside its choice: no choice that cuts equal blocks alike takes
 * less. Inputs of batches and outputs keep the forms that they have without that; parameters get
 * those of the choice, unless a rule of --shard says theirs. The walk then asks for each node's
 * strategy by the name of its result, and goes on by itself where it has made other nodes. */
#include "solved.h"

#include <math.h>
#include <string.h>

enum { EFFORT = 1 };

typedef struct Solved {
    Map of; /* by the name of a node's first result */
    const ShardProblem *p;
    const int *strategy;
    Arena *tmp; /* for names */
    const Strategy *merging;
    int part; /* of `merging`: the next to be taken */
} Solved;

/* ---- the picker ---- */

/* What was chosen for that name, which is in `tmp`. */
static Strategy *find_choice(const Solved *x, const char *name)
{
    Strategy *t = map_find(&x->of, name);
    arena_reset(x->tmp);
    return t;
}

static Strategy *pick_solved(void *arg, const SpmdGraph *s, const Node *n)
{
    Solved *x = arg;
    if (x->merging && x->part < x->merging->npart)
        return x->merging->part[x->part++];
    return find_choice(x, flat_name(x->tmp, loop_of(s), n->out[0]->name));
}

static const Cut *pick_entry(void *arg, const Node *loop, int i)
{
    const Solved *x = arg;
    const Strategy *t = find_choice(x, flat_entry(x->tmp, loop, i));
    return t ? t->in[0] : NULL;
}

static const Cut *pick_exit(void *arg, const Node *loop, int k)
{
    const Solved *x = arg;
    const Strategy *t = find_choice(x, flat_exit(x->tmp, loop, k));
    return t ? t->out[0] : NULL;
}

static void took_solved(void *arg, const Node *n, Strategy *t)
{
    Solved *x = arg;
    (void)n;
    if (t->npart) {
        x->merging = t;
        x->part = 0;
    }
}

static const Cut *pick_shared(void *arg, const SpmdGraph *s, const Value *v, const Node *reader)
{
    const Solved *x = arg;
    const EqualGraph *e = x->p->e;
    const Node *loop = loop_of(s);
    bool param = spmd_logical((SpmdGraph *)s, v)->param;
    const Value *whole = param ? loop_operand(s, v) : NULL;
    const char *name = whole ? whole->name : flat_name(x->tmp, loop, v->name);
    int at = equal_group(e, x->tmp, name, reader, loop, param);
    arena_reset(x->tmp);
    if (at < 0)
        return NULL;
    const ReadGroup *r = &e->group[at];
    const ValueClass *y = &e->value[r->value];
    if (r->shared < 0) /* it has one reader, which goes on from what was made */
        return r->param ? NULL : e->class[y->of].list.list[x->strategy[y->of]]->out[y->result];
    const SharedForm *f = &x->p->shared[r->shared];
    return y->forms->form[f->form[x->strategy[e->nclass + r->shared]]];
}

/* ---- the choice ---- */

static void set_form(Sharding *s, const Mesh *m, const Strategy *t)
{
    if (s->ruled)
        return;
    memset(s, 0, sizeof *s);
    for (int c = 0; c < m->naxes; c++) {
        s->cut[c] = t->out[0][c];
        s->storage_sharded[c] = s->cut[c].kind == CUT_SLICE;
    }
}

static void take_forms(const ShardProblem *p, const Mesh *m, const int *strategy, Sharding *in,
                       Sharding *out)
{
    const EqualGraph *e = p->e;
    for (int i = 0; i < e->g->nin; i++)
        if (!e->class[e->of_in[i]].fixed)
            set_form(&in[i], m, e->class[e->of_in[i]].list.list[strategy[e->of_in[i]]]);
    for (int i = 0; i < e->g->nout; i++)
        if (!e->class[e->of_out[i]].fixed)
            set_form(&out[i], m, e->class[e->of_out[i]].list.list[strategy[e->of_out[i]]]);
}

static void take_nodes(const ShardProblem *p, const int *strategy, Solved *x)
{
    const EqualGraph *e = p->e;
    for (const Node *n = e->g->first; n; n = n->next) {
        int c = e->of_node[n->id];
        const char *name = flat_node(e->flat, n).name;
        if (!e->class[c].skipped && name)
            map_put(&x->of, name, e->class[c].list.list[strategy[c]]);
    }
}

/* Seconds of the nodes that no fusion makes faster, each in its fastest form. */
static double least_of_products(const EqualGraph *e)
{
    double sec = 0;
    for (int c = 0; c < e->nclass; c++) {
        const EqualClass *q = &e->class[c];
        double least = INFINITY;
        if (!q->n || q->skipped || q->kind != FLAT_NODE ||
            (q->n->op->class != CLASS_PRODUCT && q->n->op->class != CLASS_ATTENTION &&
             q->n->op->class != CLASS_CONVOLUTION))
            continue;
        for (int i = 0; i < q->list.count; i++)
            least = fmin(least, q->sec[i]);
        sec += least < INFINITY ? least * q->count * (double)q->times : 0;
    }
    return sec;
}

static void report(const ShardProblem *p, const PickResult *r, double sec, ShardReport *y)
{
    y->solved = true;
    y->sec = sec;
    y->products = least_of_products(p->e);
    double cost = r->feasible ? r->cost : r->found_cost;
    double bound = r->feasible ? r->bound : r->found_bound;
    y->gap = cost > 0 ? (cost - bound) / cost : 0;
    y->nclass = p->e->nclass;
    y->nbytes = r->found;
    y->least = r->least;
    y->nvariable = p->e->nclass + p->nshared;
    y->nedge = p->pick.nedge;
}

/* A problem with pins, and its solution. */
typedef struct Solution {
    const FlatGraph *flat;
    PinList pins;
    const Sharding *in, *out;
    Arena *a;
    ShardProblem *p;
    PickResult r;
    int *strategy;
    double build_sec, solve_sec;
} Solution;

/* "mm layers.*.mlp", "param layers.*.mlp.weight"; what JSON would escape becomes an underscore. */
static const char *class_name_of(const EqualClass *q, Arena *a)
{
    char *name = q->n ? arena_printf(a, "%s %s", q->n->op->name, q->n->scope)
                      : arena_printf(a, "port %s", q->name);
    for (char *s = name; *s; s++)
        if (*s == '"' || *s == '\\' || (unsigned char)*s < ' ')
            *s = '_';
    return name;
}

static void write_problem(const ShardProblem *p, Arena *tmp, const char *path)
{
    Buf text = {.a = tmp};
    const EqualGraph *e = p->e;
    const char **name = NEWN(tmp, const char *, p->pick.n);
    for (int i = 0; i < e->nclass; i++)
        name[i] = class_name_of(&e->class[i], tmp);
    for (int i = 0; i < p->nshared; i++) {
        const ValueClass *v = &e->value[e->group[p->shared[i].group].value];
        name[e->nclass + i] = arena_printf(tmp, "shared form of %s", name[v->of]);
    }
    pick_print_problem(&text, &p->pick, name);
    file_write(arena_ctx(tmp), path, text.text, text.len);
}

/* A solution that is known, by its problem. */
typedef struct Known {
    PickResult r;
    int strategy[];
} Known;

/* Two hashes of bytes, which are many: by words. */
static void hash_words(const void *from, size_t size, uint64_t h[2])
{
    const uint64_t odd[] = {UINT64_C(0x9E3779B97F4A7C15), UINT64_C(0xC2B2AE3D27D4EB4F)};
    uint64_t word;
    for (size_t at = 0; at < size; at += sizeof word) {
        word = 0;
        memcpy(&word, (const char *)from + at, MIN(sizeof word, size - at));
        for (int k = 0; k < LEN(odd); k++) {
            h[k] = (h[k] ^ word) * odd[k];
            h[k] ^= h[k] >> 32;
        }
    }
}

static const char *problem_key(Arena *a, const PickProblem *p)
{
    const int n = p->first[p->n];
    int64_t pairs = 0;
    for (int e = 0; e < p->nedge; e++)
        pairs = MAX(pairs, p->edge[e].at + (int64_t)pick_strategies(p, p->edge[e].u) *
                                               pick_strategies(p, p->edge[e].v));
    const struct {
        const void *at;
        size_t size;
    } part[] = {
        {p->first, (size_t)(p->n + 1) * sizeof *p->first},
        {p->cost, (size_t)n * sizeof *p->cost},
        {p->usage, p->usage ? (size_t)n * sizeof *p->usage : 0},
        {p->start, p->start ? (size_t)p->n * sizeof *p->start : 0},
        {p->end, p->end ? (size_t)p->n * sizeof *p->end : 0},
        {p->same, p->same ? (size_t)p->n * sizeof *p->same : 0},
        {p->edge, (size_t)p->nedge * sizeof *p->edge},
        {p->matrix, (size_t)pairs * sizeof *p->matrix},
        {&p->limit, sizeof p->limit},
    };
    uint64_t h[2] = {0, 1};
    for (int i = 0; i < LEN(part); i++)
        hash_words(part[i].at, part[i].size, h);
    return arena_printf(a, "%d %d %016llx%016llx", p->n, p->nedge, (unsigned long long)h[0],
                        (unsigned long long)h[1]);
}

/* A search for a solution, which may fail. */
typedef struct Picking {
    Arena *tmp;
    const PickProblem *p;
    Known *to;
} Picking;

static void pick_known(void *arg)
{
    const Picking *x = arg;
    x->to->r = pick(x->tmp, x->p, EFFORT, NULL, NULL, x->to->strategy);
}

/* Chooses strategies, or takes those that were chosen for an equal problem. */
static PickResult pick_once(Arena *a, const PickProblem *p, ShardKnown *known, int *strategy)
{
    Arena *tmp = arena_tmp(a);
    const size_t nbytes = (size_t)p->n * sizeof *strategy, size = sizeof(Known) + nbytes;
    const char *key = known ? problem_key(known->a, p) : NULL;
    Known *y = known ? map_find(&known->solved, key) : NULL;
    if (!y) {
        y = arena_alloc(known ? known->a : a, size);
        Picking x = {tmp, p, y};
        if (key)
            share_once(arena_ctx(tmp), key, strlen(key), y, size, pick_known, &x);
        else
            pick_known(&x);
        arena_reset(tmp);
        if (known)
            map_put(&known->solved, key, y);
    }
    memcpy(strategy, y->strategy, nbytes);
    return y->r;
}

static Solution solve(const FlatGraph *g, Arena *a, const Spmd *x, const Sharding *in,
                      const Sharding *out, const PinList *pins)
{
    Solution y = {.a = a, .flat = g, .pins = *pins, .in = in, .out = out};
    double begin = cpu_sec();
    EqualGraph *e = equal_find(g, a, x->mesh, in, out, pins,
                               (GatherHow){x->keep, !x->keep && gathers_count_twice(x)});
    equal_fill_units(e, x);
    y.p = shard_problem(e, &(Pricer){x, a, arena_tmp(a)});
    y.build_sec = cpu_sec() - begin;
    y.strategy = NEWN(a, int, y.p->pick.n);
    y.r =
        pick_once(a, &y.p->pick, x->o->shard_report ? x->o->shard_report->known : NULL, y.strategy);
    y.solve_sec = cpu_sec() - begin - y.build_sec;
    return y;
}

/* The seconds of the step with one more pin. */
static void try_pins(const Solution *of, const Spmd *x, ShardReport *y)
{
    const Globs *texts = &x->o->what_if;
    const PinList *pins = &of->pins;
    Arena *a = of->a;
    y->what_if = NEWN(y->a, ShardWhatIf, texts->count);
    PinList more = pins_parse(of->flat->g, a, x->mesh, "what-if", texts);
    for (int i = 0; i < texts->count; i++) {
        PinList all = {.pin = NEWN(a, Pin *, pins->count + 1), .count = pins->count + 1};
        memcpy(all.pin, pins->pin, sizeof(Pin *) * (size_t)pins->count);
        all.pin[pins->count] = more.pin[i];
        Solution s = solve(of->flat, a, x, of->in, of->out, &all);
        double sec = s.r.feasible ? shard_problem_sec(s.p, x, s.strategy) : INFINITY;
        y->what_if[y->nwhat_if++] = (ShardWhatIf){arena_strdup(y->a, texts->pattern[i]), sec, 0};
    }
}

Solution *solved_choose(const Graph *g, Arena *a, const Spmd *x, const Sharding *in,
                        const Sharding *out)
{
    Solution *s = NEW(a, Solution);
    const FlatGraph *flat = flat_graph(g, a);
    PinList pins = pins_parse(flat->g, a, x->mesh, "pin", &x->o->pins);
    if (!x->o->shard_report || !x->o->shard_report->asks)
        pins_check(flat->g, &pins, x->mesh->naxes);
    *s = solve(flat, a, x, in, out, &pins);
    return s;
}

bool solved_better(const Solution *y, const Solution *z)
{
    if (y->r.forbidden || z->r.forbidden)
        return !y->r.forbidden;
    if (y->r.feasible && z->r.feasible)
        return y->r.cost < z->r.cost;
    return y->r.feasible || (!z->r.feasible && y->r.found < z->r.found);
}

Picker *solved_picker(const Solution *s, const Spmd *x, Sharding *in, Sharding *out)
{
    Arena *a = s->a;
    ShardReport own = {.a = a}, *y = x->o->shard_report ? x->o->shard_report : &own;
    if (x->o->shard_problem)
        write_problem(s->p, arena_tmp(a), x->o->shard_problem);
    if (s->r.forbidden)
        fail(x->ctx, TN_FAIL, "shard auto: found no way to cut all nodes for the mesh %s%s",
             mesh_text(a, x->mesh), s->pins.count ? " with these pins" : "");
    y->build_sec = s->build_sec;
    y->solve_sec = s->solve_sec;
    y->exposed = x->o->shard_exposed;
    report(s->p, &s->r, shard_problem_sec(s->p, x, s->strategy), y);
    if (y != &own) {
        bool prices = x->o->decisions && x->o->decisions->all && !y->unpriced;
        solved_explain(x, a, s->p, &s->r, s->strategy, prices, y);
        try_pins(s, x, y);
    }
    Solved *chosen = NEW(a, Solved);
    *chosen = (Solved){.of = {.a = a}, .p = s->p, .strategy = s->strategy, .tmp = arena_tmp(a)};
    take_forms(s->p, x->mesh, s->strategy, in, out);
    take_nodes(s->p, s->strategy, chosen);
    Picker *picker = NEW(a, Picker);
    *picker = (Picker){pick_solved, took_solved, pick_shared, pick_entry, pick_exit, chosen};
    return picker;
}
