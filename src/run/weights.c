/* A model folder: the place of its configuration, and the model's parameters for those of a plan.
 */
#include "run.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool exists(const char *path)
{
    struct stat st;
    return !stat(path, &st);
}

const char *model_folder(Arena *a, const char *path)
{
    if (exists(arena_printf(a, "%s/config.json", path)))
        return path;
    const char *latest = arena_printf(a, "%s/latest", path);
    if (exists(arena_printf(a, "%s/config.json", latest)))
        return latest;
    return NULL;
}

const char *model_folder_linked(Arena *a, const char *folder)
{
    char name[256];
    if (!folder)
        return NULL;
    size_t len = strlen(folder);
    while (len > 1 && folder[len - 1] == '/')
        len--;
    ssize_t n = readlink(arena_printf(a, "%.*s", (int)len, folder), name, sizeof name - 1);
    if (n <= 0 || memchr(name, '/', (size_t)n))
        return folder;
    while (len && folder[len - 1] != '/')
        len--;
    return arena_printf(a, "%.*s%.*s", (int)len, folder, (int)n, name);
}

void model_check_state(Arena *a, const char *folder)
{
    const char *path = arena_printf(a, "%s/state.json", folder);
    file_check_link(arena_ctx(a), path);
    if (exists(path))
        json_check_sum(a, path);
}

static SeenFile look(const TensorFile *f, int i)
{
    struct stat st;
    if (fstat(f->file[i].fd, &st))
        return (SeenFile){.nbytes = -1};
    return (SeenFile){st.st_dev, st.st_ino, st.st_size, st.st_mtim};
}

static bool is_seen(const tn_context *ctx, const SeenFile *x)
{
    for (int i = 0; i < MIN(ctx->nseen, MOST_SEEN); i++) {
        const SeenFile *y = &ctx->seen[i];
        if (x->device == y->device && x->number == y->number && x->nbytes == y->nbytes &&
            x->written.tv_sec == y->written.tv_sec && x->written.tv_nsec == y->written.tv_nsec)
            return true;
    }
    return false;
}

static bool all_seen(const tn_context *ctx, const TensorFile *f)
{
    for (int i = 0; i < f->nfile; i++) {
        SeenFile x = look(f, i);
        if (x.nbytes < 0 || !is_seen(ctx, &x))
            return false;
    }
    return true;
}

void weights_verify(tn_context *ctx, const TensorFile *f)
{
    if (all_seen(ctx, f))
        return;
    int nfile = MIN(f->nfile, MOST_SEEN);
    SeenFile seen[MOST_SEEN];
    for (int i = 0; i < nfile; i++) /* now: what is written meanwhile is another */
        seen[i] = look(f, i);
    tensors_verify(f, 0, 1);
    for (int i = 0; i < nfile; i++)
        ctx->seen[ctx->nseen++ % MOST_SEEN] = seen[i];
}

/* The share of one rank. */
static void verify_share(const tn_context *ctx, const TensorFile *f, int64_t rank, int64_t nranks)
{
    if (f && !all_seen(ctx, f))
        tensors_verify(f, rank, nranks);
}

void model_verify(tn_model *m, const Mesh *mesh)
{
    int64_t nranks = mesh ? mesh_nranks(mesh) : 1, rank = mesh ? mesh_rank(mesh) : 0;
    if (m->verified == nranks)
        return;
    verify_share(m->h.owner, m->file, rank, nranks);
    verify_share(m->h.owner, m->adapters, rank, nranks);
    m->verified = nranks;
}

const ModelParam *model_param(const tn_model *m, const char *name)
{
    for (int i = 0; i < m->nparam; i++)
        if (!strcmp(m->param[i].name, name))
            return &m->param[i];
    return NULL;
}

_Noreturn static void fail_param(const tn_model *m, const char *name)
{
    char text[1000];
    Arena *a = arena_tmp(m->h.a);
    const char **names = NEWN(a, const char *, m->nparam);
    for (int i = 0; i < m->nparam; i++)
        names[i] = m->param[i].name;
    fail(&m->h.owner->ctx, TN_FAIL, "parameter \"%s\" is not one of the model%s", name,
         names_hint(name, names, m->nparam, text, sizeof text));
}

const ModelParam *model_get_param(const tn_model *m, const Plan *plan, const PlanPort *p)
{
    const ModelParam *param = model_param(m, p->name);
    if (!param || !part_fits(plan, p, &param->type))
        fail_param(m, p->name);
    return param;
}

void model_check(const tn_model *m, const Plan *p)
{
    int n = 0;
    for (int i = 0; i < p->nin; i++)
        if (p->in[i].role == ROLE_PARAM && model_get_param(m, p, &p->in[i]))
            n++;
    if (n != m->nparam)
        fail(&m->h.owner->ctx, TN_FAIL, "expected the model's %d parameters, found %d", m->nparam,
             n);
}
