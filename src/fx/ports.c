/* Inputs, constants and results of an imported graph: their types and names. A complex one is pairs
 * of numbers, real and imaginary part, on a last axis of 2, as torch.view_as_real shows it. */
#include "fx.h"

#include <string.h>

/* ---- inputs and constants ---- */

static const Type *known_type(const Importer *im, const char *name)
{
    return map_find(&im->names.known, name);
}

typedef struct NameList {
    const char **name;
    int count, cap;
} NameList;

static bool lists(const NameList *l, const char *name)
{
    for (int i = 0; i < l->count; i++)
        if (!strcmp(l->name[i], name))
            return true;
    return false;
}

static void list_constants(Importer *im, const Expr *e, NameList *l)
{
    if (e && e->kind == EX_SELF && !lists(l, e->s))
        PUSH(im->a, l->name, l->count, l->cap, e->s);
    for (int i = 0; e && i < e->count; i++)
        list_constants(im, e->item[i], l);
}

/* "x, y, m.b", at most 20 of them */
static const char *names_text(Importer *im, const NameList *l)
{
    Buf b = {.a = im->a};
    buf_add(&b, l->count ? "" : "none");
    for (int i = 0; i < MIN(l->count, 20); i++)
        buf_printf(&b, "%s%s", i ? ", " : "", l->name[i]);
    if (l->count > 20)
        buf_printf(&b, " and %d more", l->count - 20);
    return b.text;
}

/* Refuses a type that is for nothing in the module. */
static void check_names(Importer *im)
{
    NameList l = {0};
    for (int i = 0; i < im->m->nin; i++)
        PUSH(im->a, l.name, l.count, l.cap, im->m->in[i].name);
    for (int i = 0; i < im->m->nstatement; i++)
        list_constants(im, im->m->statement[i].value, &l);
    list_constants(im, im->m->result, &l);
    for (int i = 0; i < im->o->ninput; i++)
        if (!lists(&l, im->o->name[i]))
            fail(im->g->ctx, TN_FAIL, "%s: %s has no input \"%s\"; its inputs are: %s",
                 im->o->origin, im->m->file, im->o->name[i], names_text(im, &l));
}

static void find_used(Importer *im, const Expr *e)
{
    if (e && e->kind == EX_NAME)
        map_put(&im->names.used, e->s, im);
    for (int i = 0; e && i < e->count; i++)
        find_used(im, e->item[i]);
}

bool fx_is_used(const Importer *im, const char *name)
{
    return map_find(&im->names.used, name);
}

enum { SHOWN = 12 };

/* A line with the names of all inputs whose types are neither annotated nor given. */
static const char *untyped(Importer *im)
{
    Buf b = {.a = im->a};
    int count = 0;
    for (int i = 0; i < im->m->nin; i++) {
        const FxInput *in = &im->m->in[i];
        if (in->given || in->annotation.known || known_type(im, in->name) ||
            !fx_is_used(im, in->name))
            continue;
        if (count++ < SHOWN)
            buf_printf(&b, "%s%s", count > 1 ? ", " : "\n  types that are missing: ", in->name);
    }
    if (count > SHOWN)
        buf_printf(&b, " and %d more", count - SHOWN);
    return count > 1 ? b.text : "";
}

static void check_input(Importer *im, const FxInput *in, const Type *t)
{
    const Annotation *said = &in->annotation;
    if (said->other && (t || fx_is_used(im, in->name)))
        fail(im->g->ctx, TN_FAIL,
             "%s:%d:%d: input \"%s\" is annotated %s: that dtype is not supported", im->m->file,
             in->line, in->column, in->name, said->other);
    if (!t && in->size)
        fail(im->g->ctx, TN_FAIL,
             "%s:%d:%d: input \"%s\" is the size %s, which is left open: --shapes binds it, by the "
             "type of an input "
             "that has it",
             im->m->file, in->line, in->column, in->name, in->size);
    if (!t && !said->known)
        fail(im->g->ctx, TN_FAIL, "%s:%d:%d: input \"%s\" has no type: %s%s", im->m->file, in->line,
             in->column, in->name,
             im->o->origin ? arena_printf(im->a, "%s does not have it", im->o->origin)
             : im->m->untyped
                 ? arena_printf(im->a, "%s; --inputs or --shapes tell it, too", im->m->untyped)
                 : "give --inputs or --shapes",
             untyped(im));
    if (t && said->known && !type_equal(t, &said->type))
        fail(im->g->ctx, TN_FAIL, "%s:%d:%d: input \"%s\" is annotated %s%s, found %s in %s",
             im->m->file, in->line, in->column, in->name,
             said->complex ? "as pairs of complex numbers, " : "", type_text(im->a, &said->type),
             type_text(im->a, t), im->o->origin);
}

/* The port is pairs; its name in the code stands for the numbers. */
static Item complex_port(Importer *im, const char *name, int line, int column, FxTensor *pairs)
{
    FxStatement *s = NEW(im->a, FxStatement); /* nodes remember who made them */
    *s = (FxStatement){.line = line, .column = column};
    im->progress.at = s;
    im->progress.mark = im->g->nnode;
    Item x = fx_complex_of_pairs(im, pairs);
    fx_name_nodes(im, name);
    fx_name_item(im, &x, name);
    buf_printf(&im->summary, "%s is complex: pairs of numbers, %s\n", name,
               type_text(im->a, &pairs->type));
    return x;
}

static void add_input(Importer *im, const FxInput *in)
{
    const Type *t = known_type(im, in->name);
    if (in->given && (!in->size || fx_is_used(im, in->name))) {
        fx_assign(im, in->name, in->given);
        return;
    }
    if (!t && !in->annotation.known && !fx_is_used(im, in->name)) {
        buf_printf(&im->summary, "input %s is not used and has no type: left out\n", in->name);
        return;
    }
    check_input(im, in, t);
    Value *v = graph_input(im->g, in->name, t ? *t : in->annotation.type, ROLE_NONE, NULL);
    FxTensor *x = fx_fresh(im, v);
    if (in->annotation.has_stride)
        fx_set_strides(im, x, in->annotation.stride);
    else
        fx_set_row_major(im, x);
    Item item = {.kind = FX_TENSOR, .t = x};
    fx_assign(im, arena_printf(im->a, "input %s", in->name), &item);
    if (in->annotation.complex)
        item = complex_port(im, in->name, in->line, in->column, x);
    fx_assign(im, in->name, &item);
}

static void add_constant(Importer *im, const Expr *e, const FxStatement *s)
{
    const char *key = arena_printf(im->a, "self.%s", e->s);
    const Type *t = known_type(im, e->s);
    if (fx_find(im, key))
        return;
    if (!t && s && s->value == e && s->annotation.known)
        t = &s->annotation.type;
    if (!t)
        fail(im->g->ctx, TN_FAIL, "%s:%d:%d: constant self.%s has no type: %s%s", im->m->file,
             e->line, e->column, e->s, im->o->origin ? im->o->origin : "give --inputs or --shapes",
             im->o->origin ? " does not have it" : "");
    Value *v = graph_input(im->g, e->s, *t, ROLE_CONST, e->s);
    Item x = {.kind = FX_TENSOR, .t = fx_fresh(im, v)};
    if (s && s->value == e && s->annotation.complex)
        x = complex_port(im, e->s, e->line, e->column, x.t);
    fx_assign(im, key, &x);
}

static void constants_of(Importer *im, const Expr *e, const FxStatement *s)
{
    if (e && e->kind == EX_SELF)
        add_constant(im, e, s);
    for (int i = 0; e && i < e->count; i++)
        constants_of(im, e->item[i], s);
}

/* Fills the maps of names, and fails for names of the options that stand for nothing. */
void fx_find_names(Importer *im)
{
    const FxOptions *o = im->o;
    for (int i = 0; i < o->ninput; i++)
        if (!map_find(&im->names.known, o->name[i]))
            map_put(&im->names.known, o->name[i], (void *)&o->type[i]);
    for (int i = 0; i < im->m->nstatement; i++)
        find_used(im, im->m->statement[i].value);
    find_used(im, im->m->result);
    if (o->all)
        check_names(im);
}

void fx_add_inputs(Importer *im)
{
    for (int i = 0; i < im->m->nin; i++)
        add_input(im, &im->m->in[i]);
    for (int i = 0; i < im->m->nstatement; i++)
        constants_of(im, im->m->statement[i].value, &im->m->statement[i]);
    constants_of(im, im->m->result, NULL);
}

/* ---- results ---- */

/* A result that is no tensor, as Python writes it. */
static const char *constant_text(Importer *im, const Item *x)
{
    switch (x->kind) {
    case FX_NONE: return "None";
    case FX_BOOL: return x->i ? "True" : "False";
    case FX_INT: return arena_printf(im->a, "%lld", (long long)x->i);
    case FX_FLOAT: return arena_printf(im->a, "%.17g", x->f);
    default:
        fail(im->g->ctx, TN_FAIL, "a result must be a tensor, a number or None, found %s",
             item_text(x));
    }
}

static void add_outputs(Importer *im, const Item *x)
{
    if (x->kind == FX_LIST) {
        for (int i = 0; i < x->count; i++)
            add_outputs(im, &x->item[i]);
    } else if (x->kind == FX_TENSOR) {
        graph_output(im->g, fx_read(im, x->t), ROLE_NONE, NULL);
    } else if (fx_pairs_type(x, &(Type){0})) {
        buf_printf(&im->summary, "output %d is complex: pairs of numbers\n", im->g->nout);
        graph_output(im->g, fx_read(im, fx_pairs_of_complex(im, x)), ROLE_NONE, NULL);
    } else if (x->kind == FX_NONE) {
        im->nnone++;
    } else {
        buf_printf(&im->summary, "a result of %s is left out after output %d\n",
                   constant_text(im, x), im->g->nout);
    }
}

/* Inputs written in place give their new value too, after the results. */
static void add_mutated(Importer *im)
{
    for (int i = 0; i < im->m->nin; i++) {
        const Item *x = fx_find(im, arena_printf(im->a, "input %s", im->m->in[i].name));
        if (x && x->t->storage->version)
            graph_output(im->g, fx_read(im, x->t), ROLE_NEW, im->m->in[i].name);
    }
}

void fx_add_results(Importer *im, const Item *x)
{
    add_outputs(im, x);
    if (im->nnone)
        buf_printf(&im->summary, "results of None are left out: %d\n", im->nnone);
    add_mutated(im);
}
