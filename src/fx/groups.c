/* Process groups of collectives.
 *
 * A process group has a name ("0"), in the older form a tag and a list of ranks. In a graph for a
 * mesh it is one of the mesh's groups: --group NAME=AXIS says which; where there is a list, the
 * mesh tells. The attribute `group` is then the group's axes, else the name.
 *
 * A repro file has names, sizes and the rank's places of its groups, but not which ranks they have.
 * Each group that is called becomes an axis of the mesh where none is given, in the file's order,
 * so that the last is innermost; a group that may consist of others' ranks is refused. */
#include "fx.h"

#include <string.h>

/* The axis "NAME=AXIS" says for the group, or NULL. */
static const char *axis_said(const char *text, const char *name)
{
    const char *equals = strrchr(text, '=');
    size_t n = strlen(name);
    return (size_t)(equals - text) == n && !strncmp(text, name, n) ? equals + 1 : NULL;
}

/* ---- those of a repro file ---- */

static bool has_text(const Expr *e, const char *text)
{
    bool has = e && e->kind == EX_STRING && !strcmp(e->s, text);
    for (int i = 0; e && i < e->count && !has; i++)
        has = has_text(e->item[i], text);
    return has;
}

static bool calls_group(const FxModule *m, const char *name)
{
    bool calls = false;
    for (int i = 0; i < m->nstatement && !calls; i++)
        calls = has_text(m->statement[i].value, name);
    return calls;
}

static const char *axis_of_group(Importer *im, const FxGroup *g)
{
    return arena_printf(im->a, "group_%s", g->name);
}

/* Whether the sizes of two or more of the others multiply to this one's: it may have their ranks.
 */
static bool may_join(const FxModule *m, int k, const bool *called)
{
    int others = 0, other[MAX_MESH + 1];
    for (int i = 0; i < m->ngroup && others <= MAX_MESH; i++)
        if (i != k && called[i] && m->group[i].size > 1)
            other[others++] = i;
    for (unsigned set = 1; set < 1U << others; set++) {
        int64_t size = 1;
        int count = 0;
        for (int i = 0; i < others && size <= m->group[k].size; i++)
            if (set >> i & 1) {
                size *= m->group[other[i]].size;
                count++;
            }
        if (count > 1 && size == m->group[k].size)
            return true;
    }
    return false;
}

/* A mesh with an axis for each group that is called, in their order; NULL: none is. */
static const Mesh *mesh_of_groups(Importer *im)
{
    const FxModule *m = im->m;
    Mesh *mesh = NEW(im->a, Mesh);
    bool *called = NEWN(im->a, bool, m->ngroup + 1);
    for (int i = 0; i < m->ngroup; i++)
        called[i] = calls_group(m, m->group[i].name);
    for (int i = 0; i < m->ngroup; i++) {
        const FxGroup *g = &m->group[i];
        const char *fault = !called[i] ? NULL
                            : may_join(m, i, called)
                                ? "one that has no ranks of others together"
                                : mesh_add(im->a, mesh, axis_of_group(im, g), g->size);
        if (fault)
            fail(
                im->g->ctx, TN_FAIL,
                "%s: group \"%s\" of %lld ranks: expected %s\n  --mesh and --group say which ranks "
                "the groups have",
                m->file, g->name, (long long)g->size, fault);
        if (called[i])
            mesh->at[mesh->naxes - 1] = g->rank;
    }
    if (mesh->naxes)
        buf_printf(&im->summary,
                   "mesh %s: an axis for each process group; --mesh tells otherwise\n",
                   mesh_text(im->a, mesh));
    return mesh->naxes ? mesh : NULL;
}

/* The axis that a repro file's group became, or NULL. */
static const char *axis_made(Importer *im, const char *name)
{
    for (int i = 0; i < im->m->ngroup && !im->o->mesh; i++)
        if (!strcmp(im->m->group[i].name, name))
            return axis_of_group(im, &im->m->group[i]);
    return NULL;
}

/* ---- a repro file's beside --mesh, --rank and --group ---- */

/* The place of the mesh's rank in the group of these axes, the last innermost. */
static int64_t place_in_group(const Mesh *m, int naxes, const int *axes)
{
    int64_t place = 0;
    for (int i = 0; i < naxes; i++)
        place = place * m->size[axes[i]] + m->at[axes[i]];
    return place;
}

/* The group of the file that a --group names, with its axes; NULL: the file does not have it. */
static const FxGroup *group_said(const Importer *im, int i, int *naxes, int *axes)
{
    const char *text = im->o->group[i];
    for (int k = 0; k < im->m->ngroup; k++) {
        const char *axis = axis_said(text, im->m->group[k].name);
        if (!axis)
            continue;
        *naxes = group_axes(im->o->mesh, axis, axes);
        return &im->m->group[k];
    }
    return NULL;
}

/* Whether the mesh's rank has the places in groups that the file says. */
static bool rank_agrees(const Importer *im, const Mesh *m)
{
    int axes[MAX_MESH], n = 0;
    for (int i = 0; i < im->o->ngroup; i++) {
        const FxGroup *g = group_said(im, i, &n, axes);
        if (g && place_in_group(m, n, axes) != g->rank)
            return false;
    }
    return true;
}

/* Says which rank has all places that the file says. */
static const char *agreeing_rank(Importer *im)
{
    Mesh m = *im->o->mesh;
    int axes[MAX_MESH], n = 0;
    for (int i = 0; i < im->o->ngroup; i++) {
        const FxGroup *g = group_said(im, i, &n, axes);
        int64_t left = g ? g->rank : 0;
        for (int k = n - 1; g && k >= 0; k--) {
            m.at[axes[k]] = left % m.size[axes[k]];
            left /= m.size[axes[k]];
        }
    }
    return rank_agrees(im, &m)
               ? arena_printf(im->a, "--rank %lld agrees with it", (long long)mesh_rank(&m))
               : "no rank of this mesh agrees with it";
}

/* The sizes of groups, and the places of the rank in them, are those that the file has. */
static void check_table(Importer *im)
{
    const Mesh *m = im->o->mesh;
    int axes[MAX_MESH], n = 0;
    for (int i = 0; i < im->o->ngroup; i++) {
        const FxGroup *g = group_said(im, i, &n, axes);
        if (g && group_nranks(m, n, axes) != g->size)
            fail(im->g->ctx, TN_USAGE,
                 "--group %s: expected the %lld ranks that group \"%s\" has in %s, found %lld in "
                 "the mesh %s",
                 im->o->group[i], (long long)g->size, g->name, im->m->file,
                 (long long)group_nranks(m, n, axes), mesh_text(im->a, m));
    }
    for (int i = 0; i < im->o->ngroup; i++) {
        const FxGroup *g = group_said(im, i, &n, axes);
        if (g && place_in_group(m, n, axes) != g->rank)
            fail(im->g->ctx, TN_USAGE,
                 "--rank %lld: expected place %lld in group \"%s\", as %s says, found %lld of the "
                 "mesh %s; %s",
                 (long long)mesh_rank(m), (long long)g->rank, g->name, im->m->file,
                 (long long)place_in_group(m, n, axes), mesh_text(im->a, m), agreeing_rank(im));
    }
}

/* ---- all ---- */

void fx_check_groups(Importer *im)
{
    const FxOptions *o = im->o;
    int axes[MAX_MESH];
    im->g->mesh = mesh_clone(im->a, o->mesh ? o->mesh : mesh_of_groups(im));
    for (int i = 0; i < o->ngroup; i++) {
        const char *text = o->group[i], *equals = strrchr(text, '=');
        if (!equals || equals == text)
            fail(im->g->ctx, TN_USAGE, "--group %s: expected NAME=AXIS", text);
        if (!o->mesh)
            fail(im->g->ctx, TN_USAGE, "--group %s: expected --mesh beside it", text);
        if (group_axes(o->mesh, equals + 1, axes) < 0)
            fail(im->g->ctx, TN_USAGE, "--group %s: expected axes of the mesh %s, found \"%s\"",
                 text, mesh_text(im->a, o->mesh), equals + 1);
        for (int k = 0; k < i; k++)
            if (axis_said(o->group[k], arena_strndup(im->a, text, (size_t)(equals - text))))
                fail(im->g->ctx, TN_USAGE, "--group %s: expected each group once, found --group %s",
                     text, o->group[k]);
    }
    check_table(im);
    im->groups.given = NEWN(im->a, bool, o->ngroup + 1);
}

void fx_check_groups_used(Importer *im)
{
    for (int i = 0; i < im->o->ngroup; i++)
        if (!im->groups.given[i])
            fail(im->g->ctx, TN_FAIL, "--group %s: no collective of %s has this group; theirs: %s",
                 im->o->group[i], im->m->file,
                 im->groups.names.len ? im->groups.names.text : "none");
}

static void note_group(Importer *im, const char *name)
{
    if (map_find(&im->groups.known, name))
        return;
    map_put(&im->groups.known, name, im);
    buf_printf(&im->groups.names, "%s\"%s\"", im->groups.names.len ? ", " : "", name);
}

/* Whether the ranks are those of the mesh's group of these axes in which the first of them is. */
static bool spans(const Mesh *m, int naxes, const int *axes, const Item *ranks)
{
    int64_t n = group_nranks(m, naxes, axes);
    if (n != ranks->count || ranks->item[0].i < 0 || ranks->item[0].i >= mesh_nranks(m))
        return false;
    for (int64_t i = 0; i < n; i++) {
        Mesh at = *m;
        int64_t left = i;
        mesh_set_rank(&at, ranks->item[0].i);
        for (int k = naxes - 1; k >= 0; k--) {
            at.at[axes[k]] = left % m->size[axes[k]];
            left /= m->size[axes[k]];
        }
        if (mesh_rank(&at) != ranks->item[i].i)
            return false;
    }
    return true;
}

/* The group of these ranks by name, of the fewest axes, in the mesh's order; NULL: the mesh has
 * none. */
static const char *group_of_ranks(Importer *im, const Item *ranks)
{
    const Mesh *m = im->g->mesh;
    const char *found = NULL;
    int fewest = MAX_MESH + 1;
    for (unsigned set = 1; set < 1U << m->naxes && ranks->count; set++) {
        int axes[MAX_MESH], n = 0;
        for (int i = 0; i < m->naxes; i++)
            if (set >> i & 1)
                axes[n++] = i;
        if (n < fewest && spans(m, n, axes, ranks)) {
            found = group_name(im->a, m, n, axes);
            fewest = n;
        }
    }
    return found;
}

static const char *ranks_text(Importer *im, const Item *ranks)
{
    Buf b = {.a = im->a};
    buf_add(&b, "");
    for (int i = 0; i < ranks->count; i++)
        buf_printf(&b, "%s%lld", i ? "," : "", (long long)ranks->item[i].i);
    return b.text;
}

static const char *mesh_group(Site *s, const char *name, const Item *ranks)
{
    Importer *im = s->im;
    for (int i = 0; i < im->o->ngroup; i++) {
        const char *axis = axis_said(im->o->group[i], name);
        if (!axis)
            continue;
        im->groups.given[i] = true;
        return axis;
    }
    const char *found = axis_made(im, name);
    if (!found && ranks)
        found = group_of_ranks(im, ranks);
    if (!found && !im->o->mesh)
        site_fail(
            s, "group \"%s\": expected a process group of the file; --mesh and --group say others",
            name);
    if (!found)
        site_fail(s, "group \"%s\": expected --group '%s=AXIS' with axes of the mesh %s", name,
                  name, mesh_text(im->a, im->g->mesh));
    return found;
}

/* How many ranks the call's group has; 0: it does not say, and there is no mesh. */
static int64_t ranks_of_group(Site *s, const char *group, int64_t stated)
{
    const Mesh *m = s->im->g->mesh;
    int axes[MAX_MESH], n = m ? group_axes(m, group, axes) : 0;
    int64_t ranks = m ? group_nranks(m, n, axes) : stated;
    if (stated && stated != ranks)
        site_fail(s, "group_size: expected the %lld ranks of \"%s\" in the mesh %s, found %lld",
                  (long long)ranks, group, mesh_text(s->im->a, m), (long long)stated);
    return ranks;
}

const char *fx_group(Site *s, int64_t *ranks)
{
    bool older = !strncmp(s->name, "c10d_functional.", 16), sized = older;
    const Item *list = older ? site_arg(s, "ranks") : NULL;
    const char *name = site_text(s, older ? "tag" : "group_name");
    for (int k = 0; k < s->narg; k++)
        sized |= !strcmp(s->arg_name[k], "group_size");
    if (older && !*name)
        name = ranks_text(s->im, list);
    note_group(s->im, name);
    const char *group = s->im->g->mesh ? mesh_group(s, name, list) : name;
    *ranks = ranks_of_group(s, group, sized ? site_int(s, "group_size") : 0);
    return group;
}
