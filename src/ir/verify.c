/* Checks the rules that every graph keeps, bodies of regions included; docs/formats.md lists them.
 * Runs after each pass and after a file is read. One walk in list order: arrays by id hold what is
 * defined so far, so "defined earlier in the same graph" is one comparison of pointers, and a
 * broken id is found before it is used as an index. Linear. */
#include "ir.h"

#include <string.h>

typedef struct Verify {
    const Graph *g; /* the outermost graph */
    Arena *tmp;
    const Mesh *mesh; /* of the ranks that run the graph, or NULL */
    Map tensors;      /* name of a param, state, const or cache -> its Port */
} Verify;

/* One graph, while its nodes are walked. */
typedef struct Scan {
    Verify *v;
    const Graph *g;
    const Value **value; /* by id: defined so far */
    const Node **node;
    int nvalue;
} Scan;

/* "FILE:LINE:COLUMN: graph NAME: param %w: expected FAULT"; p may be NULL. */
_Noreturn static void fail_fault(const Graph *g, const Port *p, const char *fault)
{
    char where[400] = "", what[300] = "";
    if (g->file && p && p->line)
        snprintf(where, sizeof where, "%.300s:%d:%d: ", g->file, p->line, p->column);
    else if (g->file)
        snprintf(where, sizeof where, "%.300s: ", g->file);
    if (p)
        snprintf(what, sizeof what, "%s%s%%%.200s: ", role_name(p->role), p->role ? " " : "",
                 p->v->name);
    fail(g->ctx, TN_FAIL, "%sgraph %.200s: %sexpected %s", where, g->name, what, fault);
}

/* The same, of "RULE, found FOUND". */
_Noreturn static void fail_port(const Graph *g, const Port *p, const char *rule, const char *found)
{
    char fault[700];
    snprintf(fault, sizeof fault, "%.350s, found %.300s", rule, found);
    fail_fault(g, p, fault);
}

/* ---- values ---- */

static bool name_valid(const char *s)
{
    if (!s || !*s)
        return false;
    for (; *s; s++)
        if (!(*s >= 'a' && *s <= 'z') && !(*s >= 'A' && *s <= 'Z') && !(*s >= '0' && *s <= '9') &&
            *s != '_' && *s != '.')
            return false;
    return true;
}

/* The fault of a value itself, or NULL. The value counts as defined from here on. */
static const char *define_value(Scan *s, const Value *v)
{
    if (v->id < 0 || v->id >= s->g->nvalue)
        return "an id outside of the graph's range";
    if (s->value[v->id])
        return "an id that another value has";
    if (!name_valid(v->name))
        return "a name of other characters than [A-Za-z0-9_.]";
    if (map_find(&s->g->names, v->name) != v)
        return "a name that is not its own in the graph's table";
    s->value[v->id] = v;
    s->nvalue++;
    return type_fault(&v->type);
}

static bool defined(const Scan *s, const Value *v)
{
    return v && v->id >= 0 && v->id < s->g->nvalue && s->value[v->id] == v;
}

static void check_input(Scan *s, int i)
{
    const Port *p = &s->g->in[i];
    const char *fault = define_value(s, p->v);
    if (!fault && (p->v->def || p->v->index != i))
        fault = "another def or index";
    if (fault)
        fail_port(s->g, p, "a consistent input", fault);
}

/* ---- nodes ---- */

static void check_links(const Scan *s, const Node *n)
{
    if (n->id < 0 || n->id >= s->g->nnode || s->node[n->id])
        fail_node(s->g, n, "expected an id of its own below %d, found %d", s->g->nnode, n->id);
    if ((n->prev ? n->prev->next : s->g->first) != n || (n->next ? n->next->prev : s->g->last) != n)
        fail_node(s->g, n, "expected a consistent list, found neighbours that do not point back");
    if ((unsigned)n->phase >= NPHASE || (unsigned)n->policy >= NPOLICY || !n->scope)
        fail_node(s->g, n, "expected a phase, a policy and a scope, found one out of range");
    if (n->origin && !name_valid(n->origin))
        fail_node(s->g, n, "expected an origin of characters [A-Za-z0-9_.], found another");
}

static void check_op(const Scan *s, const Node *n)
{
    const Op *op = n->op;
    if (n->nin < op->nin_least || (op->nin_most >= 0 && n->nin > op->nin_most))
        fail_node(s->g, n, "takes %s operands, found %d", op_takes(s->g->a, op), n->nin);
    if (op->class == CLASS_RANDOM ? n->stream < 0 || n->stream > UINT32_MAX : n->stream != -1)
        fail_node(s->g, n, "expected %s, found stream %lld",
                  op->class == CLASS_RANDOM ? "a stream of 32 bits"
                                            : "no stream: the op is not random",
                  (long long)n->stream);
    if (!op->region != !n->region)
        fail_node(s->g, n,
                  op->region ? "expected a body, found none" : "expected no body, found one");
    if (n->phase == OPTIMIZER && n->policy != POLICY_NONE)
        fail_node(s->g, n, "expected no policy on an optimizer node, found %s",
                  policy_name(n->policy));
}

static void check_order(const Scan *s, const Node *n)
{
    for (int i = 0; i < n->nin; i++) {
        const Value *v = n->in[i];
        if (!defined(s, v))
            fail_node(s->g, n, "operand %d: expected a value defined earlier in the same graph%s%s",
                      i, v && v->name ? ", found %" : "", v && v->name ? v->name : "");
        if (v->def && v->def->phase > n->phase)
            fail_node(s->g, n, "operand %d: expected a phase not after %s, found %%%s of %s", i,
                      phase_name(n->phase), v->name, phase_name(v->def->phase));
    }
    for (int i = 0; i < n->nafter; i++) {
        const Node *m = n->after[i];
        if (!m || m->id < 0 || m->id >= s->g->nnode || s->node[m->id] != m)
            fail_node(s->g, n, "after: expected nodes that come earlier in the same graph");
        if (m->phase > n->phase)
            fail_node(s->g, n, "after: expected a phase not after %s, found %%%s of %s",
                      phase_name(n->phase), m->out[0]->name, phase_name(m->phase));
    }
}

/* Whether what n makes is unfinished, and its operand is read, until wait_tensor: a copy beside the
 * kernels, and a collective in a graph that says which ranks run it. */
static bool unfinished(const Scan *s, const Node *n)
{
    return n && (n->op->async || (s->v->mesh && n->op->class == CLASS_COLLECTIVE));
}

static void check_async(const Scan *s, const Node *n)
{
    for (int i = 0; i < n->nin; i++) {
        const Node *m = n->in[i]->def;
        if (!unfinished(s, m))
            continue;
        if (!n->op->wait || i)
            fail_node(s->g, n, "operand %d: expected wait_tensor between it and %s %%%s", i,
                      m->op->name, n->in[i]->name);
        const Value *from = m->in[n->in[0]->index];
        if (n->nin < 2 || n->in[1] != from)
            fail_node(s->g, n, "operand 1: expected %%%s, which %s %%%s reads, found %s%s",
                      from->name, m->op->name, n->in[0]->name, n->nin < 2 ? "none" : "%",
                      n->nin < 2 ? "" : n->in[1]->name);
    }
}

static void check_attrs(const Scan *s, const Node *n)
{
    const AttrField *f = op_attrs(n->op);
    for (int i = 0; f[i].kind; i++) {
        const Attr *a = n->attr ? &n->attr[i] : NULL;
        int64_t most = f[i].kind == ATTR_DTYPE && f[i].i == NDTYPE ? NDTYPE : NDTYPE - 1;
        bool valid = a && (f[i].kind != ATTR_DTYPE || (uint64_t)a->i <= (uint64_t)most) &&
                     (f[i].kind != ATTR_INTS || (a->i >= 0 && (!a->i || a->ints))) &&
                     (f[i].kind != ATTR_BOOL || (uint64_t)a->i <= 1);
        if (!valid)
            fail_node(s->g, n, "%s: expected a value of its kind, found none", f[i].name);
    }
}

/* ---- ranks ---- */

static const Attr *find_attr(const Node *n, const char *name)
{
    const AttrField *f = op_attrs(n->op);
    for (int i = 0; f[i].kind; i++)
        if (!strcmp(f[i].name, name))
            return &n->attr[i];
    return NULL;
}

/* How many parts along axis 0 a list of their sizes says; an empty one has a part for each rank. */
static void check_split(const Scan *s, const Node *n, const char *name, int64_t nranks)
{
    const Attr *sizes = find_attr(n, name);
    if (sizes && sizes->i && sizes->i != nranks)
        fail_node(s->g, n, "%s: expected a size for each of %lld ranks, found %lld", name,
                  (long long)nranks, (long long)sizes->i);
    if (sizes && !sizes->i && n->in[0]->type.dim[0] % nranks)
        fail_node(s->g, n,
                  "operand 0: expected a multiple of %lld ranks as the size of axis 0, "
                  "found %s",
                  (long long)nranks, type_text(s->v->tmp, &n->in[0]->type));
}

/* The ranks of a collective are those of mesh axes. */
static void check_group(const Scan *s, const Node *n)
{
    const Mesh *m = s->v->mesh;
    if (!m || n->op->class != CLASS_COLLECTIVE)
        return;
    int axes[MAX_MESH];
    const Attr *group = find_attr(n, "group"), *size = find_attr(n, "group_size");
    int naxes = group && group->s ? group_axes(m, group->s, axes) : -1;
    if (naxes < 0)
        fail_node(s->g, n, "group: expected axes of the mesh %s, such as \"%s\", found \"%.100s\"",
                  mesh_text(s->v->tmp, m), m->name[0], group && group->s ? group->s : "");
    int64_t nranks = group_nranks(m, naxes, axes);
    if (size && size->i != nranks)
        fail_node(s->g, n, "group_size: expected %lld, the ranks of \"%s\", found %lld",
                  (long long)nranks, group->s, (long long)size->i);
    check_split(s, n, "output_split_sizes", nranks);
    check_split(s, n, "input_split_sizes", nranks);
}

/* Each axis as a text can have it; this rank is one of the mesh. */
static void check_mesh(const Verify *v)
{
    const Mesh *m = v->mesh;
    Mesh again = {0};
    const char *fault = m && m->naxes < 1 ? "a mesh with an axis, found none" : NULL;
    for (int i = 0; m && !fault && i < m->naxes; i++) {
        fault = mesh_add(v->tmp, &again, m->name[i], m->size[i]);
        if (!fault && (m->at[i] < 0 || m->at[i] >= m->size[i]))
            fault = arena_printf(v->tmp, "a coordinate of %s from 0 to %lld, found %lld",
                                 m->name[i], (long long)m->size[i] - 1, (long long)m->at[i]);
    }
    if (fault)
        fail_fault(v->g, NULL, fault);
}

/* Cuts that the port's type can have. What every rank must hold itself is no partial: what stays
 * from run to run, and scalars. */
static void check_cuts(const Verify *v, const Port *p)
{
    if (!p->cut)
        return;
    if (!v->mesh)
        fail_port(v->g, p, "no sharding, as the graph has no mesh", "one");
    const char *fault = cuts_fault(v->tmp, v->mesh, &p->v->type, p->cut);
    if (fault)
        fail_fault(v->g, p, fault);
    bool own = p->role != ROLE_NONE && p->role < ROLE_LOSS && p->role != ROLE_BATCH;
    for (int i = 0; own && i < v->mesh->naxes; i++)
        if (p->cut[i].kind > CUT_SLICE)
            fail_port(v->g, p, "an input that is no partial", cuts_text(v->tmp, v->mesh, p->cut));
}

/* An output that takes an input's place, or belongs to it, is cut as it is. */
static void need_cuts_of(const Verify *v, const Port *p, const Port *in)
{
    if (!v->mesh)
        return;
    const char *want = cuts_text(v->tmp, v->mesh, in->cut);
    const char *found = cuts_text(v->tmp, v->mesh, p->cut);
    if (strcmp(want, found))
        fail_port(v->g, p,
                  arena_printf(v->tmp, "%s, as %%%.200s has it", *want ? want : "no sharding",
                               in->v->name),
                  *found ? found : "none");
}

/* ---- results ---- */

static void check_results(Scan *s, const Node *n)
{
    Type few[TN_MAX_OUT] = {0};
    Type *t =
        n->region && n->region->nout > TN_MAX_OUT ? NEWN(s->v->tmp, Type, n->region->nout) : few;
    int count = op_infer(s->g, n, t);
    if (count != n->nout || !count)
        fail_node(s->g, n, "expected %d results by inference (at least 1), found %d", count,
                  n->nout);
    for (int k = 0; k < n->nout; k++) {
        const char *fault = define_value(s, n->out[k]);
        if (fault)
            fail_node(s->g, n, "result %d: expected a consistent value, found %s", k, fault);
        if (n->out[k]->def != n || n->out[k]->index != k)
            fail_node(s->g, n, "result %d: expected def and index to point back, found others", k);
        if (!type_equal(&n->out[k]->type, &t[k]))
            fail_node(s->g, n, "result %d: expected %s by inference, found %s", k,
                      type_text(s->v->tmp, &t[k]), type_text(s->v->tmp, &n->out[k]->type));
    }
}

/* ---- regions ---- */

static void scan_graph(Verify *v, const Graph *g);

static int latest_phase(const Graph *g)
{
    int phase = -1;
    for (const Node *n = g->first; n; n = n->next)
        phase = MAX(phase, (int)n->phase);
    return phase;
}

/* Counts uses by index; fails where one is used other than `most` times at most, once at least. */
static void need_used(const Scan *s, const Node *n, const char *what, const int *uses, int count,
                      int most)
{
    for (int i = 0; i < count; i++)
        if (uses[i] < 1 || uses[i] > most)
            fail_node(s->g, n, "%s %d: expected one port of its own, found %d", what, i, uses[i]);
}

static void count_use(int *uses, int count, int i)
{
    if (i >= 0 && i < count)
        uses[i]++;
}

static void check_ports_of(const Scan *s, const Node *n, const Graph *body, int b)
{
    const Region *r = n->region;
    int *in = NEWN(s->v->tmp, int, body->nin), *out = NEWN(s->v->tmp, int, body->nout);
    for (int j = 0; j < r->nin; j++)
        count_use(in, body->nin, r->in[j].at[b]);
    for (int k = 0; k < r->nout; k++)
        count_use(out, body->nout, r->out[k].at[b]);
    need_used(s, n, b == TAIL ? "input of the tail" : "input of the body", in, body->nin, 1);
    need_used(s, n, b == TAIL ? "output of the tail" : "output of the body", out, body->nout, 1);
}

static void check_operand_ports(const Scan *s, const Node *n)
{
    const Region *r = n->region;
    int *arg = NEWN(s->v->tmp, int, n->nin), *carry = NEWN(s->v->tmp, int, r->nin);
    for (int j = 0; j < r->nin; j++) {
        count_use(arg, n->nin, r->in[j].arg);
        carry[j] = r->in[j].kind != PORT_CARRY;
    }
    for (int k = 0; k < r->nout; k++)
        if (r->out[k].kind == PORT_CARRY)
            count_use(carry, r->nin, r->out[k].carry);
    need_used(s, n, "operand", arg, n->nin, r->nin);
    need_used(s, n, "carry port", carry, r->nin, 1);
}

static void check_region(const Scan *s, const Node *n)
{
    const Region *r = n->region;
    int phase = -1;
    region_need_depth(s->g, n);
    EACH_BODY(b, n) {
        const Graph *body = r->body[b];
        if (!body || body->parent != s->g || body->ctx != s->g->ctx)
            fail_node(s->g, n, "expected a body whose parent is this graph, found another");
        scan_graph(s->v, body);
        phase = MAX(phase, latest_phase(body));
        check_ports_of(s, n, body, b);
    }
    check_operand_ports(s, n);
    if (phase >= 0 && phase != (int)n->phase)
        fail_node(s->g, n, "expected the latest phase of its body, %s, found %s",
                  phase_name((Phase)phase), phase_name(n->phase));
}

/* Ranks are of the graph around it. */
static void check_ranks_of_body(const Graph *g)
{
    bool none = !g->parent || !g->mesh;
    for (int i = 0; g->parent && i < g->nin; i++)
        none &= !g->in[i].cut;
    for (int i = 0; g->parent && i < g->nout; i++)
        none &= !g->out[i].cut;
    if (!none)
        fail_fault(g, NULL, "a body without a mesh and shardings of its own, found one");
}

/* ---- one graph, its roles aside ---- */

static void scan_graph(Verify *v, const Graph *g)
{
    Scan s = {v, g, NEWN(v->tmp, const Value *, g->nvalue), NEWN(v->tmp, const Node *, g->nnode),
              0};
    check_ranks_of_body(g);
    for (int i = 0; i < g->nin; i++)
        check_input(&s, i);
    for (const Node *n = g->first; n; n = n->next) {
        check_links(&s, n);
        check_op(&s, n);
        check_order(&s, n);
        check_async(&s, n);
        check_attrs(&s, n);
        check_group(&s, n);
        if (n->region)
            check_region(&s, n);
        check_results(&s, n);
        s.node[n->id] = n;
    }
    if (s.nvalue != g->names.count)
        fail_port(g, NULL, "a table of the graph's names alone",
                  arena_printf(v->tmp, "%d names for %d values", g->names.count, s.nvalue));
    for (int i = 0; i < g->nout; i++) {
        const Value *y = g->out[i].v;
        if (!defined(&s, y))
            fail_port(g, NULL, "outputs that are values of the graph",
                      arena_printf(v->tmp, "another at position %d", i));
        if (unfinished(&s, y->def))
            fail_node(g, y->def, "expected that wait_tensor reads what it makes, found an output");
    }
}

/* ---- roles ---- */

static void need_type_of(const Graph *g, const Port *p, const Type *t)
{
    if (!type_equal(&p->v->type, t))
        fail_port(g, p, type_text(g->a, t), type_text(g->a, &p->v->type));
}

/* A name that only one port of these roles has; roles that hold a single port have no names. */
static void need_once(const Graph *g, const Port *p, Map *seen)
{
    const char *name = p->name ? p->name : "";
    if (map_find(seen, name))
        fail_port(g, p, *name ? "a name used once" : "one such port at most",
                  *name ? name : "another");
    map_put(seen, name, (void *)p);
}

static const Port *find_tensor(const Verify *v, Role role, const char *name)
{
    const Port *p = map_find(&v->tensors, name);
    return p && p->role == role ? p : NULL;
}

static void check_role(const Graph *g, const Port *p, bool input)
{
    bool fits =
        (unsigned)p->role < NROLE && (p->role == ROLE_NONE || input == (p->role < ROLE_LOSS));
    if (!fits)
        fail_port(g, p, input ? "a role of an input" : "a role of an output", "another role");
    if (role_named(p->role) ? !p->name || !*p->name : p->name != NULL)
        fail_port(g, p, role_named(p->role) ? "a name of the role" : "no name of the role",
                  p->name && *p->name ? p->name : "none");
}

static Type whole_type(const Verify *v, const Port *p)
{
    return v->mesh ? cut_whole_type(&p->v->type, v->mesh, p->cut) : p->v->type;
}

/* PARAM.m and PARAM.v, which updates read, have the parameter's shape; of ranks' parts the wholes'
 * shapes. Any other state has a name and type of its own. */
static void check_state(const Verify *v, const Port *p)
{
    const char *dot = strrchr(p->name, '.');
    bool update = dot && (!strcmp(dot, ".m") || !strcmp(dot, ".v"));
    const char *stem = arena_strndup(v->tmp, p->name, update ? (size_t)(dot - p->name) : 0);
    const Port *param = find_tensor(v, ROLE_PARAM, stem);
    if (!param)
        return;
    const Type want = whole_type(v, param), found = whole_type(v, p);
    if (!shape_equal(&found, &want))
        fail_port(v->g, p, arena_printf(v->tmp, "the shape of %s", type_text(v->tmp, &want)),
                  type_text(v->tmp, &found));
}

/* Further names are of params alone, and of nothing else. */
static void check_tied(const Verify *v, const Port *p, Map *tied)
{
    for (const char **s = p->tied; s && *s; s++) {
        if (p->role != ROLE_PARAM)
            fail_port(v->g, p, "one name", *s);
        if (!**s || map_find(&v->tensors, *s) || map_find(tied, *s))
            fail_port(v->g, p, "further names that are used once", *s);
        map_put(tied, *s, (void *)p);
    }
}

static void check_input_roles(Verify *v)
{
    const Type integer = type_make(I64, 0, NULL);
    Map scalars = {.a = v->tmp}, single[NROLE] = {[ROLE_SEED] = scalars, [ROLE_STEP] = scalars};
    for (int i = 0; i < v->g->nin; i++) {
        const Port *p = &v->g->in[i];
        check_role(v->g, p, true);
        check_cuts(v, p);
        if (role_kept(p->role))
            need_once(v->g, p, &v->tensors);
        if (p->role == ROLE_SCALAR)
            need_once(v->g, p, &scalars);
        if (p->role == ROLE_SEED || p->role == ROLE_STEP) {
            need_once(v->g, p, &single[p->role]);
            need_type_of(v->g, p, &integer);
        }
        if (p->role == ROLE_SCALAR && p->v->type.rank)
            fail_port(v->g, p, "no dimensions", type_text(v->tmp, &p->v->type));
    }
    Map tied = {.a = v->tmp};
    for (int i = 0; i < v->g->nin; i++) {
        check_tied(v, &v->g->in[i], &tied);
        if (v->g->in[i].role == ROLE_STATE)
            check_state(v, &v->g->in[i]);
    }
}

/* grad and new are named after an input, and have its type; a gradient of 16 bits may be in f32. */
static void check_named_output(const Verify *v, const Port *p)
{
    const Port *in = map_find(&v->tensors, p->name);
    bool renews = p->role == ROLE_NEW;
    if (!in || (renews ? !role_renewed(in->role) : in->role != ROLE_PARAM))
        fail_port(v->g, p, renews ? "the name of a param, state or cache" : "the name of a param",
                  p->name);
    Type t = in->v->type;
    if (p->role == ROLE_GRAD && (t.dtype == BF16 || t.dtype == F16) && p->v->type.dtype == F32)
        t.dtype = F32;
    need_cuts_of(v, p, in);
    need_type_of(v->g, p, &t);
}

static void check_output_roles(Verify *v)
{
    const Graph *g = v->g;
    Map seen[NROLE] = {{0}};
    if (!g->nout)
        fail_port(g, NULL, "at least one output", "none");
    for (int i = 0; i < g->nout; i++) {
        const Port *p = &g->out[i];
        const Type *t = &p->v->type;
        check_role(g, p, false);
        check_cuts(v, p);
        seen[p->role].a = v->tmp;
        if (p->role != ROLE_NONE)
            need_once(g, p, &seen[p->role]);
        if (p->role == ROLE_LOSS && (t->rank || !dtype_float(t->dtype)))
            fail_port(g, p, "a floating-point scalar", type_text(v->tmp, t));
        if (p->role == ROLE_GRAD || p->role == ROLE_NEW)
            check_named_output(v, p);
    }
}

static void verify(void *arg)
{
    Verify *v = arg;
    check_mesh(v);
    scan_graph(v, v->g);
    if (v->g->parent)
        return;
    check_input_roles(v);
    check_output_roles(v);
}

void graph_verify(const Graph *g)
{
    Verify v = {.g = g, .tmp = arena_new(g->ctx), .mesh = graph_mesh(g)};
    if (!v.tmp)
        fail(g->ctx, TN_FAIL, "out of memory");
    v.tensors.a = v.tmp;
    Code code = ctx_try(g->ctx, verify, &v);
    arena_free(v.tmp);
    if (code != TN_OK)
        fail_again(g->ctx, "");
}
