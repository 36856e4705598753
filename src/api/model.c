/* Models: opening, graphs, weights into a program's arena, checkpoints out of it. */
#define _GNU_SOURCE /* renameat2 */
#include "api.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct ModelArgs {
    tn_context *ctx;
    const char *path;
    tn_model *model;
} ModelArgs;

static bool exists(const char *path)
{
    struct stat st;
    return !stat(path, &st);
}

/* The folder that holds config.json: path itself, or of a training run its latest checkpoint. */
static const char *model_folder(Arena *a, const char *path)
{
    if (exists(arena_printf(a, "%s/config.json", path)))
        return path;
    const char *latest = arena_printf(a, "%s/latest", path);
    if (exists(arena_printf(a, "%s/config.json", latest)))
        return latest;
    return NULL;
}

static void fail_unknown(Ctx *ctx, const char *path)
{
    const char *names[32];
    int n = 0;
    while (n < LEN(names) && (names[n] = config_preset_name(n)))
        n++;
    const char *near = nearest(path, names, n);
    if (exists(path))
        fail(ctx, TN_FAIL, "%s: no config.json there and no latest checkpoint", path);
    fail(ctx, TN_FAIL, "model \"%s\": no such folder and no preset of that name%s%s%s", path,
         near ? "; the nearest is \"" : "", near ? near : "", near ? "\"" : "");
}

static void open_model(void *arg)
{
    ModelArgs *x = arg;
    x->model = handle_new(x->ctx, sizeof *x->model);
    tn_model *m = x->model;
    Arena *a = m->h.a;
    const ModelConfig *preset = config_preset(x->path);
    const char *folder = model_folder(a, x->path);
    if (folder) {
        m->folder = arena_strdup(a, folder);
        m->config = config_read(a, arena_printf(a, "%s/config.json", folder));
        m->file = tensors_open(a, folder);
        model_match(a, &m->config, m->file);
    } else if (preset) {
        m->config = *preset;
    } else {
        fail_unknown(&x->ctx->ctx, x->path);
    }
    m->param = model_params(a, &m->config, &m->nparam);
}

int tn_model_open(tn_context *ctx, const char *path, tn_model **model)
{
    ModelArgs x = {ctx, path, NULL};
    int code = (int)ctx_try(&ctx->ctx, open_model, &x);
    if (code)
        tn_model_free(x.model);
    else
        *model = x.model;
    return code;
}

void tn_model_free(tn_model *m)
{
    handle_free((Handle *)m);
}

int64_t tn_model_count(const tn_model *m)
{
    int64_t n = 0;
    for (int i = 0; i < m->nparam; i++)
        n += type_nelem(&m->param[i].type);
    return n;
}

void tn_model_shape(const tn_model *m, int64_t *vocab, int64_t *context)
{
    *vocab = m->config.vocab;
    *context = m->config.kind == MODEL_GPT2 ? m->config.npos : 0;
}

typedef struct GraphArgs {
    tn_model *model;
    int64_t batch, seq;
    const tn_options *o;
    tn_graph *graph;
} GraphArgs;

static void make_graph(void *arg)
{
    GraphArgs *x = arg;
    x->graph = handle_new(x->model->h.owner, sizeof *x->graph);
    x->graph->g = model_graph(x->graph->h.a, &x->model->config, x->batch, x->seq, x->o->dropout);
    graph_verify(x->graph->g);
}

int tn_model_graph(tn_model *m, int64_t batch, int64_t seq, const tn_options *options,
                   tn_graph **graph)
{
    GraphArgs x = {m, batch, seq, options, NULL};
    int code = (int)ctx_try(&m->h.owner->ctx, make_graph, &x);
    if (code)
        tn_graph_free(x.graph);
    else
        *graph = x.graph;
    return code;
}

static void make_logits(void *arg)
{
    GraphArgs *x = arg;
    x->graph = handle_new(x->model->h.owner, sizeof *x->graph);
    x->graph->g = model_logits(x->graph->h.a, &x->model->config, x->batch, x->seq);
}

int tn_model_logits(tn_model *m, int64_t batch, int64_t seq, tn_graph **graph)
{
    GraphArgs x = {m, batch, seq, NULL, NULL};
    int code = (int)ctx_try(&m->h.owner->ctx, make_logits, &x);
    if (code)
        tn_graph_free(x.graph);
    else
        *graph = x.graph;
    return code;
}

/* ---- weights in ---- */

typedef struct LoadArgs {
    tn_program *x;
    tn_model *m;
    const tn_options *o;
} LoadArgs;

static const ModelParam *find_param(const tn_model *m, const char *name)
{
    for (int i = 0; i < m->nparam; i++)
        if (!strcmp(m->param[i].name, name))
            return &m->param[i];
    return NULL;
}

static void load_param(const LoadArgs *l, const PlanPort *p, void *dst)
{
    const tn_model *m = l->m;
    const ModelParam *param = find_param(m, p->name);
    if (!param || !type_equal(&param->type, &p->type))
        fail(&m->h.owner->ctx, TN_FAIL, "parameter \"%s\" is not one of the model", p->name);
    if (m->file)
        tensors_read(m->file, tensors_get(m->file, p->name), p->type.dtype, true, dst);
    else
        model_init(param, l->o->seed, dst);
}

static void load(void *arg)
{
    LoadArgs *l = arg;
    const Plan *p = l->x->x->plan;
    for (int i = 0; i < p->nin; i++) {
        void *dst = program_data(l->x->x, &p->in[i]);
        if (p->in[i].role == ROLE_PARAM)
            load_param(l, &p->in[i], dst);
        else if (p->in[i].role == ROLE_STATE)
            memset(dst, 0, (size_t)type_nbytes(&p->in[i].type));
    }
}

int tn_program_load(tn_program *x, tn_model *m, const tn_options *options)
{
    LoadArgs l = {x, m, options};
    return (int)ctx_try(&x->h.owner->ctx, load, &l);
}

/* ---- checkpoints out ---- */

typedef struct SaveArgs {
    tn_program *x;
    tn_model *m;
    Arena *a;
    const char *folder, *state;
    const char *parent, *name, *aside; /* the folder's parent and name; where it is written first */
} SaveArgs;

static void write_role(const SaveArgs *s, Role role, const char *file)
{
    const Plan *p = s->x->x->plan;
    TensorOut *out = NEWN(s->a, TensorOut, p->nin);
    int n = 0;
    for (int i = 0; i < p->nin; i++)
        if (p->in[i].role == role)
            out[n++] = (TensorOut){p->in[i].name, p->in[i].type, program_data(s->x->x, &p->in[i])};
    tensors_write(arena_ctx(s->a), arena_printf(s->a, "%s/%s", s->aside, file), n, out);
}

static void write_text(const SaveArgs *s, const char *text, const char *file)
{
    file_write(arena_ctx(s->a), arena_printf(s->a, "%s/%s", s->aside, file), text, strlen(text));
}

static void sync_folder(Ctx *ctx, const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int why = fd < 0 || fsync(fd) ? errno : 0;
    if (fd >= 0)
        close(fd);
    if (why)
        fail(ctx, TN_FAIL, "%s: cannot sync: %s", path, strerror(why));
}

static void remove_folder(const char *path)
{
    static const char *const files[] = {"config.json", "model.safetensors", "optimizer.safetensors",
                                        "state.json"};
    char file[PATH_MAX];
    for (int i = 0; i < LEN(files); i++)
        if (snprintf(file, sizeof file, "%s/%s", path, files[i]) < (int)sizeof file)
            unlink(file);
    rmdir(path);
}

static void drop_folder(void *path)
{
    remove_folder(path);
}

/* An earlier folder of that name is exchanged as a whole, so that at every moment one is there;
 * where the file system cannot, it is moved out of the way first. */
static void put_in_place(const SaveArgs *s)
{
    char *old = arena_printf(s->a, "%s.old", s->aside);
    if (!rename(s->aside, s->folder) ||
        !renameat2(AT_FDCWD, s->aside, AT_FDCWD, s->folder, RENAME_EXCHANGE))
        return;
    bool moved = (errno == EINVAL || errno == ENOSYS) && !rename(s->folder, old);
    if (!moved || rename(s->aside, s->folder))
        fail(arena_ctx(s->a), TN_FAIL, "%s: cannot create: %s", s->folder, strerror(errno));
    remove_folder(old);
}

static void make_folders(Arena *a, const char *path)
{
    char *part = arena_strdup(a, path);
    for (char *end = part;;) {
        end += strspn(end, "/");
        end += strcspn(end, "/");
        char after = *end;
        *end = 0;
        if (mkdir(part, 0777) && errno != EEXIST)
            fail(arena_ctx(a), TN_FAIL, "%s: cannot create: %s", part, strerror(errno));
        if (!after)
            return;
        *end = after;
    }
}

static void replace_latest(const SaveArgs *s)
{
    Ctx *ctx = arena_ctx(s->a);
    const char *link = arena_printf(s->a, "%s/latest", s->parent);
    const char *aside = arena_printf(s->a, "%s/.latest.tmp%ld", s->parent, (long)getpid());
    unlink(aside);
    if (symlink(s->name, aside) || rename(aside, link)) {
        int why = errno;
        unlink(aside);
        fail(ctx, TN_FAIL, "%s: cannot replace: %s", link, strerror(why));
    }
    sync_folder(ctx, s->parent);
}

static void split_path(SaveArgs *s)
{
    size_t len = strlen(s->folder);
    while (len > 1 && s->folder[len - 1] == '/')
        len--;
    s->folder = arena_strndup(s->a, s->folder, len);
    const char *slash = strrchr(s->folder, '/');
    s->name = slash ? slash + 1 : s->folder;
    s->parent = !slash ? "." : arena_strndup(s->a, s->folder, (size_t)MAX(slash - s->folder, 1));
}

static void save(void *arg)
{
    SaveArgs *s = arg;
    Ctx *ctx = arena_ctx(s->a);
    split_path(s);
    make_folders(s->a, s->parent);
    char *aside = arena_printf(s->a, "%s/.%s.tmp%ld", s->parent, s->name, (long)getpid());
    remove_folder(aside); /* of a process that was killed */
    if (mkdir(aside, 0777))
        fail(ctx, TN_FAIL, "%s: cannot create: %s", s->folder, strerror(errno));
    s->aside = aside;
    arena_defer(s->a, drop_folder, aside); /* what failed, or what was there before */
    write_text(s, config_text(s->a, &s->m->config), "config.json");
    write_role(s, ROLE_PARAM, "model.safetensors");
    write_role(s, ROLE_STATE, "optimizer.safetensors");
    write_text(s, s->state, "state.json");
    sync_folder(ctx, aside);
    put_in_place(s);
    replace_latest(s);
}

int tn_program_save(tn_program *x, tn_model *m, const char *folder, const char *state)
{
    SaveArgs s = {.x = x, .m = m, .folder = folder, .state = state};
    return try_aside(x->h.owner, &s.a, save, &s);
}
