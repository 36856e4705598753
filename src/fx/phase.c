/* Finds the nodes of an imported graph that are backward (the optimizer's: optimizer.c), and the
 * roles of inputs and outputs.
 *
 * Comments above statements that say what is backward (annotations of PyTorch's tracer, or its
 * engine in a stack trace) are believed. Else a node is backward if it depends on the loss's
 * tangent: a tensor of ones like the loss, or an input tangents_N. If there is none, the tangent is
 * the first scalar 1 of the loss's type after the loss (inductor's form), where the loss was named,
 * or is the only floating-point scalar among the results and a result depends on that 1. A node
 * after the tangent that does not depend on it but that only backward nodes use (a transposed
 * weight, a recomputed activation) is backward too. A node's phase is never before that of its
 * operands, as the verifier requires.
 *
 * Outputs get roles only if the caller names the loss and the parameters: the code tells only the
 * order of gradients, not to which parameter each belongs. */
#include "fx.h"

#include <fnmatch.h>
#include <string.h>

/* ---- comments ---- */

static bool says_backward(const char *remark)
{
    static const char *const words[] = {"is_backward", "'phase': 'backward'",
                                        "'autograd_backward': True", "Backward of forward node",
                                        "_engine_run_backward"};
    for (int i = 0; i < LEN(words); i++)
        if (strstr(remark, words[i]))
            return true;
    return false;
}

static Policy policy_said(const char *remark)
{
    static const struct Word {
        const char *text;
        Policy policy;
    } words[] = {{"MUST_SAVE", MUST_SAVE},
                 {"PREFER_SAVE", PREFER_SAVE},
                 {"MUST_RECOMPUTE", MUST_RECOMPUTE},
                 {"PREFER_RECOMPUTE", PREFER_RECOMPUTE}};
    if (!strstr(remark, "ac_graph_id") && !strstr(remark, "recompute:"))
        return POLICY_NONE;
    for (int i = 0; i < LEN(words); i++)
        if (strstr(remark, words[i].text))
            return words[i].policy;
    return POLICY_NONE;
}

/* "scope: NAME", then what else the comment says behind a comma: the modules in which the call
 * stands, as python/tenon writes them. */
static const char *scope_said(Arena *a, const char *remark)
{
    static const char word[] = "scope: ";
    if (strncmp(remark, word, LEN(word) - 1))
        return "";
    remark += LEN(word) - 1;
    return arena_strndup(a, remark, strcspn(remark, ", \t\r\n"));
}

static const char *remark_of(const Importer *im, const Node *n)
{
    const FxStatement *s = n->id < im->progress.nmade ? im->progress.made_by[n->id] : NULL;
    return s && s->remark ? s->remark : "";
}

/* ---- the loss and its tangents ---- */

static Value *named(Importer *im, const char *name, const char *option)
{
    const Item *x = map_find(&im->names.env, name);
    if (x && x->kind == FX_TENSOR)
        return fx_peek(im, x->t);
    Value *v = map_find(&im->g->names, name);
    if (!v)
        fail(im->g->ctx, TN_USAGE, "--%s: no tensor is named \"%s\"", option, name);
    return v;
}

/* The one scalar that ones were made like, outputs before others; NULL where there is none or more.
 */
static Value *guess_loss(const Importer *im, bool *several)
{
    for (int pass = 0; pass < 2; pass++) {
        Value *found = NULL;
        for (int i = 0; i < im->gradients.ntangent; i++) {
            Value *v = im->gradients.tangent[i].like;
            bool fits = v && type_nelem(&v->type) == 1 && dtype_float(v->type.dtype) &&
                        (pass || graph_is_output(im->g, v));
            if (fits && found && v != found) {
                *several = true;
                return NULL;
            }
            found = fits ? v : found;
        }
        if (found)
            return found;
    }
    return NULL;
}

typedef struct Marks {
    bool *value; /* by id: depends on a tangent */
    bool any;
    const Value *one; /* the scalar that was taken for the tangent; NULL: none was */
} Marks;

static void mark(Marks *m, const Value *v)
{
    m->value[v->id] = true;
    m->any = true;
}

static void find_seeds(Importer *im, const Value *loss, Marks *m)
{
    if (im->o->backward) {
        Value *v = named(im, im->o->backward, "backward-from");
        if (!v->def)
            fail(im->g->ctx, TN_USAGE, "--backward-from: \"%s\" is an input", im->o->backward);
        mark(m, v);
        return;
    }
    for (int i = 0; loss && i < im->gradients.ntangent; i++)
        if (im->gradients.tangent[i].like == loss)
            mark(m, im->gradients.tangent[i].ones);
    for (int i = 0; i < im->g->nin; i++)
        if (!strncmp(im->g->in[i].v->name, "tangents", 8))
            mark(m, im->g->in[i].v);
}

/* The only floating-point scalar that a node makes among the results; NULL where there are more. */
static Value *only_scalar(const Graph *g)
{
    Value *found = NULL;
    for (int i = 0; i < g->nout; i++) {
        Value *v = g->out[i].v;
        bool fits = v->def && !v->type.rank && dtype_float(v->type.dtype);
        if (fits && found && v != found)
            return NULL;
        found = fits ? v : found;
    }
    return found;
}

static bool makes_result(Importer *im, const Value *from)
{
    const Graph *g = im->g;
    bool *dependent = NEWN(im->a, bool, g->nvalue);
    dependent[from->id] = true;
    for (const Node *n = g->first; n; n = n->next)
        for (int i = 0; i < n->nin; i++)
            for (int k = 0; dependent[n->in[i]->id] && k < n->nout; k++)
                dependent[n->out[k]->id] = true;
    for (int i = 0; i < g->nout; i++)
        if (dependent[g->out[i].v->id])
            return true;
    return false;
}

/* Takes the first scalar one after the loss for its tangent. Returns the loss: the one given, or
 * where none is, the one found; NULL where there is none. */
static Value *find_one(Importer *im, Value *loss, Marks *m)
{
    Value *of = loss ? loss : only_scalar(im->g);
    for (int i = 0; of && of->def && i < im->gradients.ntangent; i++) {
        Value *one = im->gradients.tangent[i].ones;
        if (im->gradients.tangent[i].like || one->def->id < of->def->id ||
            !type_equal(&one->type, &of->type))
            continue;
        if (!makes_result(im, one))
            return loss;
        mark(m, one);
        m->one = one;
        return of;
    }
    return loss;
}

static bool feeds_only_backward(const bool *early, const Node *n)
{
    for (int k = 0; k < n->nout; k++)
        if (early[n->out[k]->id])
            return false;
    return true;
}

static void set_backward(Importer *im, Marks *m)
{
    Graph *g = im->g;
    bool *early = NEWN(im->a, bool, g->nvalue); /* an output or a forward node needs it */
    Node *first = NULL;
    for (Node *n = g->first; n; n = n->next) {
        bool backward = false;
        for (int i = 0; i < n->nin; i++)
            backward |= m->value[n->in[i]->id];
        for (int k = 0; k < n->nout; k++)
            backward |= m->value[n->out[k]->id];
        for (int k = 0; backward && k < n->nout; k++)
            m->value[n->out[k]->id] = true;
        n->phase = backward ? BACKWARD : FORWARD;
        first = backward && !first ? n : first;
    }
    for (int i = 0; i < g->nout; i++)
        early[g->out[i].v->id] = true;
    bool below = true;
    for (Node *n = g->last; n; n = n->prev) {
        below &= n != first;
        if (n->phase == FORWARD && below && first && feeds_only_backward(early, n))
            n->phase = BACKWARD;
        for (int i = 0; n->phase == FORWARD && i < n->nin; i++)
            early[n->in[i]->id] = true;
    }
}

/* Phases by comments; a node after a backward one is backward. */
static bool set_annotated(Importer *im)
{
    bool any = false;
    for (Node *n = im->g->first; n; n = n->next) {
        bool backward = says_backward(remark_of(im, n));
        for (int i = 0; i < n->nin; i++)
            backward |= n->in[i]->def && n->in[i]->def->phase == BACKWARD;
        n->phase = backward ? BACKWARD : FORWARD;
        any |= backward;
    }
    return any;
}

/* The values of backward nodes, in the place of those that depend on a tangent. */
static void mark_backward(const Graph *g, Marks *m)
{
    for (const Node *n = g->first; n; n = n->next)
        for (int k = 0; k < n->nout; k++)
            m->value[n->out[k]->id] = n->phase == BACKWARD;
}

/* ---- roles ---- */

static bool matches(Importer *im, const char *patterns, const char *name)
{
    char *text = arena_strdup(im->a, patterns), *rest;
    for (char *p = strtok_r(text, ",", &rest); p; p = strtok_r(NULL, ",", &rest))
        if (!fnmatch(p, name, 0))
            return true;
    return false;
}

static int set_params(Importer *im)
{
    Graph *g = im->g;
    bool signature = !strcmp(im->o->params, "signature");
    int count = signature ? fx_sign(im) : 0;
    for (int i = 0; i < g->nin && !signature; i++) {
        Port *p = &g->in[i];
        if (p->role != ROLE_NONE)
            continue;
        bool param = matches(im, im->o->params, p->v->name) && dtype_float(p->v->type.dtype);
        p->role = param ? ROLE_PARAM : ROLE_BATCH;
        p->name = param ? p->v->name : NULL;
        count += param;
    }
    if (!count)
        fail(g->ctx, TN_USAGE, "--params: no floating-point input matches \"%s\"", im->o->params);
    return count;
}

/* Results after the loss are the parameters' gradients where they have their types in order. */
static bool set_gradients(Importer *im)
{
    Graph *g = im->g;
    Port **out = NEWN(im->a, Port *, g->nout + 1);
    int n = 0, k = 0;
    for (int i = 0; i < g->nout; i++)
        if (g->out[i].role == ROLE_NONE && g->out[i].v->def && g->out[i].v->def->phase == BACKWARD)
            out[n++] = &g->out[i];
    for (int pass = 0; pass < 2; pass++, k = 0)
        for (int i = 0; i < g->nin; i++) {
            if (g->in[i].role != ROLE_PARAM)
                continue;
            if (k == n || !type_equal(&out[k]->v->type, &g->in[i].v->type))
                return false;
            if (pass) {
                out[k]->role = ROLE_GRAD;
                out[k]->name = g->in[i].name;
            }
            k++;
        }
    return true;
}

/* An input that is written in place and is no parameter is state, which a step leaves to the next.
 */
static void set_mutated(Graph *g)
{
    for (int i = 0; i < g->nout; i++) {
        const Value *v = g->out[i].role == ROLE_NEW ? map_find(&g->names, g->out[i].name) : NULL;
        if (v && !role_renewed(g->in[v->index].role)) {
            Port *in = &g->in[v->index];
            in->role = ROLE_STATE;
            in->name = in->name ? in->name : v->name;
            g->out[i].name = in->name;
        }
    }
}

/* --loss where no tangent is known: of a forward, which has no result that is as gradients are. */
static void check_forward_loss(Importer *im, const Value *loss)
{
    const Graph *g = im->g;
    const char *type = type_text(im->a, &loss->type);
    if (!graph_is_output(g, loss) || loss->type.rank || !dtype_float(loss->type.dtype))
        fail(g->ctx, TN_USAGE,
             "--loss: expected a floating-point scalar that is a result, found %%%s: %s%s",
             loss->name, type, graph_is_output(g, loss) ? "" : ", which is none");
    for (int i = 0; i < g->nout; i++)
        for (int k = 0; k < g->nin; k++) {
            const Value *v = g->out[i].v, *in = g->in[k].v;
            bool after = v->def && loss->def && v->def->id > loss->def->id;
            if (after && dtype_float(v->type.dtype) && type_equal(&v->type, &in->type))
                fail(g->ctx, TN_USAGE,
                     "--loss: nothing is made like %s, but %%%s, a result after it, has an input's "
                     "type, as a gradient does; give --backward-from too",
                     im->o->loss, v->name);
        }
}

static void set_roles(Importer *im, Value *loss, bool gradients)
{
    Graph *g = im->g;
    if (im->o->params)
        set_params(im);
    for (int i = 0; im->o->loss && i < g->nout; i++)
        if (g->out[i].v == loss && !loss->type.rank && !graph_find_output(g, ROLE_LOSS, NULL))
            g->out[i].role = ROLE_LOSS;
    if (im->o->params && gradients && !set_gradients(im))
        buf_add(&im->summary, "gradients have no role: the backward results do not have the "
                              "parameters' types in their order\n");
    set_mutated(g);
}

/* ---- the summary ---- */

static void count_ports(Buf *b, const char *what, const Port *p, int n)
{
    buf_printf(b, "%s", what);
    for (int r = 0; r < NROLE; r++) {
        int count = 0;
        for (int i = 0; i < n; i++)
            count += p[i].role == (Role)r;
        if (count)
            buf_printf(b, " %d%s%s", count, r ? " " : "", role_name((Role)r));
    }
    buf_add(b, "\n");
}

/* How the phases were found. */
static const char *method(const Importer *im, const Marks *m, bool annotated, bool several)
{
    if (annotated)
        return "by comments";
    if (im->o->backward)
        return "from the node given";
    if (m->one)
        return arena_printf(im->a, "by full([], 1), %%%s, taken for the loss's tangent",
                            m->one->name);
    if (m->any)
        return "by the loss's tangent";
    if (im->o->loss)
        return "nothing is made like the loss: all is forward";
    return several ? "several losses: --loss tells which"
                   : "no loss found: --loss or --backward-from tell";
}

/* The aliases of unknown gradient that something reads: autograd's own, of results that it has
 * saved, nothing does. */
static int count_unknown(Importer *im)
{
    const Graph *g = im->g;
    bool *read = NEWN(im->a, bool, g->nvalue);
    int count = 0;
    for (const Node *n = g->first; n; n = n->next)
        for (int i = 0; i < n->nin; i++)
            read[n->in[i]->id] = true;
    for (int i = 0; i < g->nout; i++)
        read[g->out[i].v->id] = true;
    for (const Node *n = g->first; n; n = n->next)
        count += node_is(n, OP_alias) && read[n->out[0]->id] &&
                 !strcmp(n->attr[attr_index(n->op, "gradient")].s, "unknown");
    return count;
}

/* Says what aten.alias does to gradients; a graph with a backward needs no answer. */
static void count_aliases(Importer *im, bool differentiated)
{
    if (!im->o->alias && !strcmp(im->gradients.alias, "unknown"))
        im->gradients.nalias = count_unknown(im);
    bool asked = im->o->alias || (im->gradients.nalias && !differentiated);
    if (!asked)
        return;
    const char *tell =
        !strcmp(im->gradients.alias, "unknown")
            ? " (--alias pass: gradients pass; stop: it came of detach())\n"
              "  the code shows x[:] and x.detach() alike: pass is right for a model that calls no "
              "detach(); torch.export.export(model, args) tells them apart"
            : "";
    buf_printf(&im->summary, "aliases %d: gradient %s%s\n", im->gradients.nalias,
               im->gradients.alias, tell);
}

void fx_finish(Importer *im)
{
    Graph *g = im->g;
    Marks m = {.value = NEWN(im->a, bool, g->nvalue)};
    bool several = false;
    Value *loss = im->o->loss ? named(im, im->o->loss, "loss") : guess_loss(im, &several);
    find_seeds(im, loss, &m);
    bool told = im->o->backward || (im->o->loss && m.any);
    bool annotated = !told && set_annotated(im);
    if (!m.any && !annotated && !several)
        loss = find_one(im, loss, &m);
    if (im->o->loss && !m.any && !annotated)
        check_forward_loss(im, loss);
    if (!annotated)
        set_backward(im, &m);
    if (annotated)
        mark_backward(g, &m);
    fx_find_optimizer(im, m.value);
    for (Node *n = g->first; n; n = n->next) {
        if (n->phase != OPTIMIZER)
            n->policy = n->op->barrier ? MUST_SAVE : policy_said(remark_of(im, n));
        n->scope = scope_said(g->a, remark_of(im, n));
    }
    fx_check_baked(im);
    int again = fx_mark_again(im);
    set_roles(im, loss, m.any || annotated);
    int count[NPHASE] = {0};
    for (Node *n = g->first; n; n = n->next)
        count[n->phase]++;
    if (im->o->params && graph_find_output(g, ROLE_LOSS, NULL) && !count[BACKWARD]) {
        fx_check_writes(im);
        fx_check_saved(im);
    }
    Buf *b = &im->summary;
    buf_printf(b, "nodes %d: forward %d, backward %d%s (%s)\n",
               count[FORWARD] + count[BACKWARD] + count[OPTIMIZER], count[FORWARD], count[BACKWARD],
               count[OPTIMIZER] ? arena_printf(im->a, ", optimizer %d", count[OPTIMIZER]) : "",
               method(im, &m, annotated, several));
    if (again)
        buf_printf(b, "computed again %d\n", again);
    if (im->nopaque)
        buf_printf(b, "calls that are not ours, as barriers %d: planned, not run\n", im->nopaque);
    count_aliases(im, count[BACKWARD] > 0);
    if (loss)
        buf_printf(b, "loss %%%s\n", loss->name);
    count_ports(b, "inputs", g->in, g->nin);
    count_ports(b, "outputs", g->out, g->nout);
}
