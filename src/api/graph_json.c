/* A planned graph as data: its nodes, bodies of regions within them; buffers with their addresses;
 * the calls that run; and the plan's own object, with what was decided. docs/formats.md has the
 * fields. */
#include "api.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

/* ---- text ---- */

/* null where there is none, or it is not UTF-8, which graphs need not be. */
static void add_text(Buf *b, const char *s)
{
    json_t *valid = s ? json_string(s) : NULL;
    json_decref(valid);
    if (!valid) {
        buf_add(b, "null");
        return;
    }
    buf_add(b, "\"");
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            buf_printf(b, "\\%c", c);
        else if (c < ' ')
            buf_printf(b, "\\u%04x", c);
        else
            buf_addn(b, s, 1);
    }
    buf_add(b, "\"");
}

/* "key": text */
static void put_text(Buf *b, const char *key, const char *s)
{
    buf_printf(b, "\"%s\": ", key);
    add_text(b, s);
}

static void put_ints(Buf *b, const char *key, int64_t n, const int64_t *x)
{
    buf_printf(b, "\"%s\": [", key);
    for (int64_t i = 0; i < n; i++)
        buf_printf(b, "%s%lld", i ? ", " : "", (long long)x[i]);
    buf_add(b, "]");
}

static void put_type(Buf *b, const Type *t)
{
    put_text(b, "dtype", dtype_name(t->dtype));
    buf_add(b, ", ");
    put_ints(b, "shape", t->rank, t->dim);
}

static void put_values(Buf *b, const char *key, int n, Value *const *v)
{
    buf_printf(b, "\"%s\": [", key);
    for (int i = 0; i < n; i++) {
        buf_add(b, i ? ", " : "");
        add_text(b, v[i]->name);
    }
    buf_add(b, "]");
}

/* ---- nodes ---- */

static void add_attr(Buf *b, AttrKind kind, const Attr *a)
{
    if (kind == ATTR_STR)
        add_text(b, a->s ? a->s : "");
    else if (kind == ATTR_DTYPE)
        add_text(b, dtype_name((DType)a->i));
    else if (kind == ATTR_FLOAT && !isfinite(a->f))
        add_text(b, isnan(a->f) ? "nan" : a->f > 0 ? "inf" : "-inf");
    else
        attr_print(b, kind, a);
}

/* All attributes that are not absent, defaults too. */
static void put_attrs(Buf *b, const Node *n)
{
    const AttrField *f = op_attrs(n->op);
    const char *next = "";
    buf_add(b, "\"attributes\": {");
    for (int i = 0; f[i].kind; i++) {
        if (n->attr[i].absent || (f[i].kind == ATTR_DTYPE && n->attr[i].i == NDTYPE))
            continue;
        buf_add(b, next);
        add_text(b, f[i].name);
        buf_add(b, ": ");
        add_attr(b, f[i].kind, &n->attr[i]);
        next = ", ";
    }
    buf_add(b, "}");
}

static void put_nodes(Buf *b, const Graph *g);

static void put_ports(Buf *b, const Node *n)
{
    const Region *r = n->region;
    buf_add(b, "\"ports\": [");
    for (int j = 0; j < r->nin; j++) {
        const PortIn *p = &r->in[j];
        int body = p->at[MAIN] >= 0 ? MAIN : TAIL;
        buf_add(b, j ? ", {" : "{");
        put_text(b, "kind", port_name(p->kind));
        buf_add(b, ", ");
        put_text(b, "name", r->body[body]->in[p->at[body]].v->name);
        buf_add(b, ", ");
        put_text(b, "operand", p->arg < 0 ? NULL : n->in[p->arg]->name);
        if (p->kind == PORT_SLICE)
            buf_printf(b, ", \"axis\": %d", p->axis);
        if (p->kind == PORT_OFFSET)
            buf_printf(b, ", \"step\": %lld", (long long)p->step);
        buf_add(b, "}");
    }
    buf_add(b, "], \"results_of\": [");
    for (int k = 0; k < r->nout; k++) {
        const PortOut *p = &r->out[k];
        buf_add(b, k ? ", {" : "{");
        put_text(b, "kind", port_name(p->kind));
        if (p->kind == PORT_CONCAT)
            buf_printf(b, ", \"axis\": %d", p->axis);
        if (p->kind == PORT_SUM) {
            buf_add(b, ", ");
            put_text(b, "dtype", dtype_name(p->dtype));
        }
        if (p->kind == PORT_CARRY) {
            buf_add(b, ", ");
            put_text(b, "carry", r->body[MAIN]->in[r->in[p->carry].at[MAIN]].v->name);
        }
        buf_add(b, "}");
    }
    buf_add(b, "]");
}

static void put_body(Buf *b, const char *key, const Graph *g)
{
    buf_printf(b, ", \"%s\": {\"inputs\": [", key);
    for (int i = 0; i < g->nin; i++) {
        buf_add(b, i ? ", {" : "{");
        put_text(b, "name", g->in[i].v->name);
        buf_add(b, ", ");
        put_type(b, &g->in[i].v->type);
        buf_add(b, "}");
    }
    buf_add(b, "], ");
    put_nodes(b, g);
    buf_add(b, ", \"yield\": [");
    for (int i = 0; i < g->nout; i++) {
        buf_add(b, i ? ", " : "");
        add_text(b, g->out[i].v->name);
    }
    buf_add(b, "]}");
}

static void put_region(Buf *b, const Node *n)
{
    const Region *r = n->region;
    buf_printf(b, ", \"iterations\": %lld, \"reverse\": %s, ", (long long)r->n,
               r->reverse ? "true" : "false");
    put_ports(b, n);
    put_body(b, "body", r->body[MAIN]);
    if (r->body[TAIL])
        put_body(b, "tail", r->body[TAIL]);
}

static void put_results(Buf *b, const Node *n)
{
    buf_add(b, "\"results\": [");
    for (int k = 0; k < n->nout; k++) {
        buf_add(b, k ? ", {" : "{");
        put_text(b, "name", n->out[k]->name);
        buf_add(b, ", ");
        put_type(b, &n->out[k]->type);
        buf_add(b, "}");
    }
    buf_add(b, "], ");
}

static void put_node(Buf *b, const Node *n)
{
    buf_add(b, "{");
    put_text(b, "op", n->op->name);
    buf_add(b, ", ");
    put_results(b, n);
    put_values(b, "operands", n->nin, n->in);
    buf_add(b, ", ");
    put_attrs(b, n);
    buf_add(b, ", ");
    put_text(b, "phase", phase_name(n->phase));
    buf_add(b, ", ");
    put_text(b, "scope", n->scope);
    buf_add(b, ", ");
    put_text(b, "policy", policy_name(n->policy));
    buf_add(b, ", ");
    put_text(b, "origin", n->origin);
    buf_add(b, ", \"stream\": ");
    if (n->stream < 0)
        buf_add(b, "null");
    else
        buf_printf(b, "%lld", (long long)n->stream);
    buf_add(b, ", \"after\": [");
    for (int i = 0; i < n->nafter; i++) {
        buf_add(b, i ? ", " : "");
        add_text(b, n->after[i]->out[0]->name);
    }
    buf_add(b, "]");
    if (n->region)
        put_region(b, n);
    buf_add(b, "}");
}

static void put_nodes(Buf *b, const Graph *g)
{
    buf_add(b, "\"nodes\": [");
    for (const Node *n = g->first; n; n = n->next) {
        buf_add(b, n == g->first ? "\n" : ",\n");
        put_node(b, n);
    }
    buf_add(b, "]");
}

/* ---- inputs, outputs, mesh ---- */

static void put_graph_ports(Buf *b, const char *key, const Graph *g, const Port *p, int count)
{
    buf_printf(b, "\"%s\": [", key);
    for (int i = 0; i < count; i++) {
        buf_add(b, i ? ",\n{" : "\n{");
        put_text(b, "name", p[i].v->name);
        buf_add(b, ", ");
        put_text(b, "role", p[i].role == ROLE_NONE ? NULL : role_name(p[i].role));
        buf_add(b, ", ");
        put_text(b, "of", p[i].name);
        buf_add(b, ", ");
        put_type(b, &p[i].v->type);
        buf_add(b, ", ");
        put_text(b, "cut", g->mesh ? cuts_text(b->a, g->mesh, p[i].cut) : "");
        buf_add(b, p[i].host ? ", \"host\": true}" : "}");
    }
    buf_add(b, "],\n");
}

static void put_mesh(Buf *b, const Mesh *m)
{
    buf_add(b, "\"mesh\": [");
    for (int i = 0; m && i < m->naxes; i++) {
        buf_add(b, i ? ", {" : "{");
        put_text(b, "axis", m->name[i]);
        buf_printf(b, ", \"ranks\": %lld, \"at\": %lld}", (long long)m->size[i],
                   (long long)m->at[i]);
    }
    buf_add(b, "],\n");
}

/* ---- the plan ---- */

static void put_buffers(Buf *b, const Plan *p)
{
    buf_add(b, "\"buffers\": [");
    for (int i = 0; i < p->nstorage; i++) {
        const Storage *s = &p->storage[i];
        buf_add(b, i ? ",\n{" : "\n{");
        put_text(b, "name", s->name);
        buf_add(b, ", ");
        put_text(b, "scope", s->scope);
        buf_add(b, ", ");
        put_text(b, "category", category_name(s->category));
        buf_printf(
            b,
            ", \"space\": %d, \"offset\": %lld, \"bytes\": %lld, \"first\": %d, \"end\": %d, "
            "\"persistent\": %s}",
            (int)s->space, (long long)s->offset, (long long)s->nbytes, s->start, s->end,
            s->persistent ? "true" : "false");
    }
    buf_add(b, "],\n");
}

static void put_args(Buf *b, const char *key, const Arg *arg, int count)
{
    buf_printf(b, ", \"%s\": [", key);
    for (int i = 0; i < count; i++)
        buf_printf(b, "%s[%d, %lld]", i ? ", " : "", arg[i].storage, (long long)arg[i].offset);
    buf_add(b, "]");
}

static void put_call(Buf *b, const Step *s)
{
    static const char *const kinds[] = {"call", "loop", "end", "zero", "offset"};
    buf_add(b, "{");
    put_text(b, "kind", kinds[s->kind]);
    buf_add(b, ", ");
    put_text(b, "node", s->node && !s->copy ? s->node->out[0]->name : NULL);
    buf_add(b, ", ");
    put_text(b, "op", s->node ? s->node->op->name : NULL);
    if (s->kind == STEP_CALL) {
        buf_add(b, ", ");
        put_text(b, "kernel", s->kernel ? s->kernel->name : "ref");
        buf_printf(b, ", \"copy\": %s, \"sec\": %.9g", s->copy ? "true" : "false", s->sec);
        put_args(b, "operands", s->arg, s->call.nin);
        put_args(b, "results", s->arg + s->call.nin, s->narg - s->call.nin);
        buf_printf(b, ", \"workspace\": %d", s->work);
    }
    if (s->kind == STEP_LOOP)
        buf_printf(b, ", \"first\": %lld, \"count\": %lld, \"by\": %lld, \"last\": %d",
                   (long long)s->first, (long long)s->count, (long long)s->by, s->end);
    buf_add(b, "}");
}

static void put_calls(Buf *b, const Plan *p)
{
    buf_add(b, "\"calls\": [");
    for (int i = 0; i < p->nstep; i++) {
        buf_add(b, i ? ",\n" : "\n");
        put_call(b, &p->step[i]);
    }
    buf_add(b, "],\n");
}

int tn_plan_export_json(tn_plan *p, const char **text)
{
    if (!GIVEN(args_owner(p), p, text))
        return TN_CODE_USAGE;
    TRY(t, &p->h.owner->ctx) {
        Buf b = {.a = try_arena(&t)};
        const Graph *g = p->p->g;
        buf_add(&b, "{\"tenon\": \"" TN_VERSION "\",\n");
        put_text(&b, "graph", g->name);
        buf_add(&b, ",\n");
        put_mesh(&b, g->mesh);
        put_graph_ports(&b, "inputs", g, g->in, g->nin);
        put_graph_ports(&b, "outputs", g, g->out, g->nout);
        put_nodes(&b, g);
        buf_add(&b, ",\n");
        put_buffers(&b, p->p);
        put_calls(&b, p->p);
        buf_printf(&b, "\"plan\": %s}\n", plan_json(b.a, p, p->fits));
        *text = text_kept(p->h.a, &p->said[SAID_EXPORT], b.text);
    }
    return tried(&t);
}
