/* Wholes of which ranks have parts. Parts are of equal size on all ranks, so axes that the mesh
 * does not divide are padded there, but not in files. */
#include "run.h"

#include <string.h>

/* The most parts into which an axis is padded: a reader may cut what the port has over one mesh
 * axis over the others too. */
static int64_t parts_of(const Mesh *m, const Cut *cut, int axis)
{
    int axes[MAX_MESH], count = cuts_of_axis(m, cut, axis, axes);
    int64_t ranks = 1;
    for (int c = 0; count && c < m->naxes; c++)
        ranks *= m->size[c];
    return count ? cut[axes[0]].outer * ranks : 1;
}

bool part_fits(const Plan *p, const PlanPort *port, const Type *whole)
{
    const Mesh *m = graph_mesh(p->g);
    Type all = cut_whole_type(&port->type, m, port->cut);
    bool fits = whole->rank == all.rank;
    for (int d = 0; fits && d < all.rank; d++) {
        int64_t padding = all.dim[d] - whole->dim[d];
        fits = padding >= 0 && padding < parts_of(m, port->cut, d);
    }
    return fits;
}

/* The parameter of that name, or the one whose state has the name: "PARAM.m". -1: there is none. */
static int find_param(const Plan *p, const char *name, bool state)
{
    const char *dot = strrchr(name, '.');
    size_t n = state && dot ? (size_t)(dot - name) : strlen(name);
    if (state && !dot)
        return -1;
    for (int i = 0; i < p->nin; i++)
        if (p->in[i].role == ROLE_PARAM && !strncmp(p->in[i].name, name, n) && !p->in[i].name[n])
            return i;
    return -1;
}

bool plan_is_buffer(const Plan *p, const PlanPort *port)
{
    return port->role == ROLE_STATE && find_param(p, port->name, true) < 0;
}

/* `whole` in the shape of `like`, where a port may have it; NULL: there is no such shape. */
static void take_shape(const Plan *p, const PlanPort *port, const Type *like, Type *whole)
{
    DType d = port->type.dtype;
    bool fits = like && part_fits(p, port, like);
    *whole = fits ? *like : cut_whole_type(&port->type, graph_mesh(p->g), port->cut);
    whole->dtype = d;
}

void part_wholes(const Plan *p, const tn_model *m, Type *whole)
{
    for (int i = 0; i < p->nin; i++) {
        const PlanPort *port = &p->in[i];
        const ModelParam *param = NULL;
        if (m && (port->role == ROLE_PARAM || port->role == ROLE_STATE)) {
            int of = find_param(p, port->name, port->role == ROLE_STATE);
            param = of < 0 ? NULL : model_param(m, p->in[of].name);
        }
        take_shape(p, port, param ? &param->type : NULL, &whole[i]);
    }
}

Type part_output(const Plan *p, const Type *whole, const PlanPort *out)
{
    bool named = out->role == ROLE_GRAD || out->role == ROLE_NEW;
    int of = named ? find_param(p, out->name, false) : -1;
    if (of < 0 && out->role == ROLE_NEW)
        of = find_param(p, out->name, true);
    Type t;
    take_shape(p, out, of < 0 ? NULL : &whole[of], &t);
    return t;
}
