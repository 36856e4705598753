/* A graph as a model: one whose network is a graph of forward and loss, with or without backward
 * and update, in the place of a config.json. Its batch inputs are token ids i64[B, T] and, if it
 * has a second one, labels of that shape. A checkpoint of it has the graph's text, graph.tn, beside
 * the weights, among which its constants are.
 *
 * The data's labels are the next tokens. Graphs of transformers take the tokens themselves and
 * shift them: the graph slices the labels from place 1 of their last axis on. */
#include "../pass/pass.h"
#include "run.h"

#include <string.h>
#include <sys/stat.h>

_Noreturn static void fail_port(const Graph *g, const Port *p, const char *what)
{
    fail(g->ctx, TN_FAIL, "%s: input %%%s: %s", g->file, p->v->name, what);
}

/* ---- what reads a value ---- */

typedef bool SeeReader(const Node *n, int operand, void *arg);

/* Whether n's result 0 has operand 0's elements, in another shape, dtype or memory, or some of
 * them. */
static bool passes_on(const Node *n)
{
    return n->op->view || n->op->copy || node_is(n, OP_constant_pad_nd);
}

/* Calls see for every node that reads v, or what passes_on makes of it; ends where one says true.
 */
static bool each_reader(const Graph *g, const Value *v, SeeReader *see, void *arg)
{
    for (const Node *n = v->def ? v->def->next : g->first; n; n = n->next)
        for (int i = 0; i < n->nin; i++) {
            if (n->in[i] != v)
                continue;
            if (see(n, i, arg) || (i == 0 && passes_on(n) && each_reader(g, n->out[0], see, arg)))
                return true;
        }
    return false;
}

/* Sets *arg to the node where the value is an index of rows of a table. */
static bool sees_table(const Node *n, int operand, void *arg)
{
    bool looks_up =
        (node_is(n, OP_embedding) && operand == 1) || (node_is(n, OP_index) && operand == 1);
    if (looks_up && dtype_float(n->in[0]->type.dtype))
        *(const Node **)arg = n;
    return *(const Node **)arg != NULL;
}

static const Node *table_of(const Graph *g, const Value *v)
{
    const Node *table = NULL;
    each_reader(g, v, sees_table, &table);
    return table;
}

/* Whether n is a slice from place 1 on, of the last axis. */
static bool sees_shift(const Node *n, int operand, void *arg)
{
    (void)operand, (void)arg;
    if (!node_is(n, OP_slice))
        return false;
    int64_t dim = n->attr[attr_index(n->op, "dim")].i, rank = n->in[0]->type.rank;
    return (dim < 0 ? dim + rank : dim) == rank - 1 && n->attr[attr_index(n->op, "start")].i == 1;
}

/* Whether n reads all T labels of the rows, and more than moves them. */
static bool sees_all(const Node *n, int operand, void *arg)
{
    return !passes_on(n) && type_nelem(&n->in[operand]->type) == *(int64_t *)arg;
}

/* ---- batch inputs ---- */

static void find_batch(tn_model *m)
{
    GraphModel *x = m->graph;
    const Graph *g = x->g;
    x->ids = x->labels = NULL;
    for (int i = 0; i < g->nin; i++) {
        const Port *p = &g->in[i];
        const Type *t = &p->v->type;
        if (p->role != ROLE_BATCH)
            continue;
        if (t->dtype != I64 || t->rank != 2 || !t->dim[0] || !t->dim[1])
            fail_port(g, p,
                      arena_printf(m->h.a,
                                   "expected token ids or labels, i64[B, T], found %s: the data "
                                   "of train are tokens\n  a step over other data, as of images, "
                                   "runs from Python (tenon.compile) or by `tenon run %s`",
                                   type_text(m->h.a, t), g->file));
        const Node *table = table_of(g, p->v);
        const Port **place = table && !x->ids ? &x->ids : &x->labels;
        if (*place)
            fail_port(g, p,
                      "expected two batch inputs at most, token ids that index a table and labels");
        *place = p;
        x->vocab = table && place == &x->ids ? table->in[0]->type.dim[0] : x->vocab;
    }
    if (!x->ids)
        fail(g->ctx, TN_FAIL,
             "%s: expected an input of role batch whose numbers index a table's rows: token ids",
             g->file);
    if (x->labels && !shape_equal(&x->labels->v->type, &x->ids->v->type))
        fail_port(g, x->labels, "expected labels of the shape of the token ids");
}

static void find_shift(GraphModel *x)
{
    if (!x->labels)
        return;
    int64_t all = type_nelem(&x->labels->v->type);
    bool shifts = each_reader(x->g, x->labels->v, sees_shift, NULL);
    bool reads = each_reader(x->g, x->labels->v, sees_all, &all);
    x->shift = shifts ? "same" : reads ? "shifted" : NULL;
}

/* Fails where the loss is the sum over the labels: how many there are would scale all steps, and
 * what is told of it. */
static void check_mean(const Graph *g, const Value *v)
{
    while (v->def && passes_on(v->def))
        v = v->def->in[0];
    const Node *n = v->def, *last = n;
    bool summed = n && node_is(n, OP_sum);
    for (n = summed ? n->in[0]->def : n; n && passes_on(n);)
        n = n->in[0]->def;
    if (!n || !node_is(n, OP_nll_loss_forward))
        return;
    int64_t how = n->attr[attr_index(n->op, "reduction")].i;
    if (how == REDUCE_SUM || (summed && how == REDUCE_NONE))
        fail(g->ctx, TN_FAIL,
             "%s: the loss %%%s is a sum over the labels: expected their mean, in nats per token: "
             "reduction='mean', or the sum divided by how many labels count",
             g->file, last->out[0]->name);
}

/* ---- parameters ---- */

static const TensorEntry *find_tensor(const tn_model *m, const Port *p)
{
    const TensorEntry *e = tensors_find(m->file, p->name);
    return e ? e : tensors_find(m->file, p->v->name);
}

const TensorEntry *graph_model_tensor(const tn_model *m, const PlanPort *p)
{
    const TensorEntry *e = tensors_find(m->file, p->name);
    return e ? e : tensors_find(m->file, p->value);
}

static void add_params(tn_model *m)
{
    const Graph *g = m->graph->g;
    Arena *a = m->h.a;
    const Map params = graph_named(g->in, g->nin, ROLE_PARAM, arena_tmp(a));
    ModelParam *param = NEWN(a, ModelParam, g->nin);
    for (int i = 0; i < g->nin; i++) {
        const Port *p = &g->in[i];
        bool weight = p->role == ROLE_PARAM;
        if (p->role == ROLE_NONE)
            fail_port(g, p, "expected a role: batch, param, const, seed, step");
        if (p->role == ROLE_SCALAR && strcmp(p->name, "lr") != 0)
            fail_port(g, p, "a scalar that training does not set; it sets \"lr\"");
        if (!role_kept(p->role))
            continue;
        const TensorEntry *e = find_tensor(m, p);
        bool zeros = p->role == ROLE_STATE && graph_state_param(&params, p->name);
        if (!e && !zeros && type_nelem(&p->v->type)) /* no element needs no tensor */
            fail_port(g, p, arena_printf(a, "%s has no tensor \"%s\"", m->graph->weights, p->name));
        if (e && !shape_equal(&e->type, &p->v->type))
            fail_port(g, p,
                      arena_printf(a, "expected %s, found %s in %s", type_text(a, &p->v->type),
                                   type_text(a, &e->type), m->graph->weights));
        if (weight) {
            param[m->nparam] =
                (ModelParam){.name = p->name, .type = p->v->type, .index = m->nparam};
            m->nparam++;
        }
    }
    m->param = param;
    if (!m->nparam)
        fail(g->ctx, TN_FAIL,
             "%s: expected inputs of role param, found none: nothing would be trained", g->file);
}

/* ---- opening ---- */

void graph_model_open(tn_model *m, const char *path, const char *weights)
{
    Arena *a = m->h.a;
    Ctx *ctx = arena_ctx(a);
    size_t len;
    GraphModel *x = m->graph = NEW(a, GraphModel);
    const char *text = file_read(a, path, &len);
    if (strlen(text) != len)
        fail(ctx, TN_FAIL, "%s: a NUL byte", path);
    Graph *g = graph_parse(a, text, arena_strdup(a, path));
    graph_verify(g);
    *x = (GraphModel){.g = g, .weights = arena_strdup(a, weights), .vocab = INT32_MAX};
    if (!graph_find_output(g, ROLE_LOSS, NULL))
        fail(ctx, TN_FAIL, "%s: expected an output of role loss, found none", path);
    if (g->mesh)
        fail(ctx, TN_FAIL, "%s: a rank's graph: expected that of the whole step, which --mesh cuts",
             path);
    check_mean(g, graph_find_output(g, ROLE_LOSS, NULL)->v);
    find_batch(m);
    find_shift(x);
    m->file = tensors_open(a, weights);
    add_params(m);
    m->read = NEWN(a, const char *, m->file->nfile + 2);
    m->read[m->nread++] = g->file;
    for (int i = 0; i < m->file->nfile; i++)
        m->read[m->nread++] = m->file->file[i].path;
}

const char *graph_model_file(Arena *a, const char *folder)
{
    const char *path = arena_printf(a, "%s/graph.tn", folder);
    struct stat st;
    return stat(path, &st) ? NULL : path;
}

const char *graph_model_text(const tn_model *m, Arena *a)
{
    Buf b = {.a = a};
    graph_print(&b, m->graph->g);
    return b.text;
}

const char *graph_model_hash(const tn_model *m, Arena *a)
{
    const char *text = graph_model_text(m, a);
    return arena_printf(a, "%016llx", (unsigned long long)hash_bytes(text, strlen(text), 0));
}

void graph_model_check(const tn_model *m, Arena *a, const char *folder)
{
    Json config = json_read(a, arena_printf(a, "%s/config.json", folder));
    const char *stored = json_find_string(config, "graph_hash", NULL);
    if (stored && strcmp(stored, graph_model_hash(m, a)) != 0)
        fail(arena_ctx(a), TN_FAIL,
             "%s/graph.tn: the graph is another than the one that the run saved: expected the hash "
             "%s, found %s\n  a changed graph is a new run: train GRAPH.tn --inputs %s",
             folder, stored, graph_model_hash(m, a), folder);
}

/* ---- graphs of it ---- */

/* Gives a batch input the name that the data has for it. */
static void name_port(Graph *g, const Port *like, const char *name)
{
    Value *v = g->in[like->v->index].v, *other = map_find(&g->names, name);
    if (v == other) /* by place, as the other may have been renamed */
        return;
    if (other)
        value_rename(g, other, graph_fresh(g, name));
    value_rename(g, v, name);
}

Graph *graph_model_graph(const tn_model *m, Arena *a)
{
    const GraphModel *x = m->graph;
    Graph *g = graph_clone(a, x->g);
    name_port(g, x->ids, "input_ids");
    if (x->labels)
        name_port(g, x->labels, "labels");
    return g;
}

/* Every reader of a dropout's result reads its operand, in the bodies of g too. */
static void drop_dropout(Graph *g)
{
    EACH_NODE(n, g) {
        EACH_BODY(b, n)
            drop_dropout(n->region->body[b]);
        if (!node_is(n, OP_dropout) && !node_is(n, OP_native_dropout))
            continue;
        for (Node *r = n->next; r; r = r->next)
            for (int i = 0; i < r->nin; i++)
                if (r->in[i] == n->out[0])
                    r->in[i] = n->in[0];
        for (int i = 0; i < g->nout; i++)
            if (g->out[i].v == n->out[0])
                g->out[i].v = n->in[0];
    }
}

static bool is_read(const Graph *g, const Value *v)
{
    EACH_NODE(n, g)
        for (int i = 0; i < n->nin; i++)
            if (n->in[i] == v)
                return true;
    return false;
}

/* Removes inputs that the update alone has read: its scalars, and the parameters' state unless
 * some of it is read still, as all of it has its place behind the weights. */
static void drop_inputs(Graph *g, Arena *tmp)
{
    const Map params = graph_named(g->in, g->nin, ROLE_PARAM, tmp);
    bool *update = NEWN(tmp, bool, g->nin), keeps = false;
    int n = 0;
    for (int i = 0; i < g->nin; i++) {
        const Port *p = &g->in[i];
        update[i] = p->role == ROLE_STATE && graph_state_param(&params, p->name);
        keeps = keeps || (update[i] && is_read(g, p->v));
    }
    for (int i = 0; i < g->nin; i++) {
        Port p = g->in[i];
        if ((update[i] && !keeps) || (role_scalar(p.role) && !is_read(g, p.v))) {
            map_del(&g->names, p.v->name);
            continue;
        }
        p.v->index = n;
        g->in[n++] = p;
    }
    g->nin = n;
}

void graph_model_evaluates(Graph *g)
{
    Port loss = *graph_find_output(g, ROLE_LOSS, NULL);
    g->out[0] = loss;
    g->nout = 1;
    drop_dropout(g);
    graph_prune(g, arena_tmp(g->a));
    drop_inputs(g, arena_tmp(g->a));
}

/* Whether the graph has a backward or an update; new values of buffers alone are a forward's. */
static bool is_differentiated(const Graph *g, bool *updated)
{
    *updated = false;
    for (int i = 0; i < g->nout; i++)
        if (g->out[i].role == ROLE_NEW && graph_find_input(g, ROLE_PARAM, g->out[i].name))
            *updated = true;
    return *updated || graph_find_output(g, ROLE_GRAD, NULL);
}

const char *graph_model_passes(const tn_model *m, const char *passes)
{
    bool updated, differentiated = is_differentiated(m->graph->g, &updated);
    if (!strcmp(passes, "forward") || !differentiated)
        return passes;
    return updated ? "compiled" : "optimizer,compiled";
}
