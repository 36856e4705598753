/* Checkpoints: folders in Hugging Face's layout, with the optimizer's state and what a run needs to
 * resume. A folder is written under another name, synced and renamed, and the link `latest` is
 * replaced last, so that at any moment there is a complete one. What a killed save leaves has a
 * name of its own (".NAME.tmpPID") and is removed when a run begins. */
#include "run.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A path's folder and the name in it. */
typedef struct FolderPath {
    const char *path; /* without slashes at its end */
    const char *parent, *name;
} FolderPath;

typedef struct Save {
    tn_program *x;
    tn_model *m;
    Arena *a;
    FolderPath to;
    const char *state;
    char *aside; /* where the folder is written first */
    bool first;  /* rank 0 */
    int64_t pid; /* its process */
} Save;

/* A plan's inputs of a role, as files have them; of state that of parameters, or buffers alone. */
static void list_role(TensorOut *out, const Plan *p, const Type *whole, Role role, bool buffers,
                      int *n)
{
    for (int i = 0; i < p->nin; i++)
        if (p->in[i].role == role && plan_is_buffer(p, &p->in[i]) == buffers)
            out[(*n)++] = (TensorOut){p->in[i].name, whole[i], &p->in[i]};
}

static Type *list_wholes(Arena *a, const Plan *p, const tn_model *m)
{
    Type *whole = NEWN(a, Type, p->nin);
    part_wholes(p, m, whole);
    return whole;
}

/* Tensors of a graph, and tied params once more under each further name. */
static TensorOut *add_tied(Arena *a, const Graph *g, const TensorOut *of, int *n)
{
    TensorOut *out = NULL;
    int count = 0, cap = 0;
    for (int i = 0; i < *n; i++) {
        const Port *p = graph_find_input(g, ROLE_PARAM, of[i].name);
        PUSH(a, out, count, cap, of[i]);
        for (const char **s = p ? p->tied : NULL; s && *s; s++) {
            PUSH(a, out, count, cap, of[i]);
            out[count - 1].name = *s;
        }
    }
    *n = count;
    return out;
}

/* Adapters, by the names of their file. */
static TensorOut *list_adapters(Arena *a, const Plan *p, const tn_model *m, int *n)
{
    int count = 0;
    TensorOut *out = NEWN(a, TensorOut, p->nin);
    list_role(out, p, list_wholes(a, p, m), ROLE_PARAM, false, &count);
    *n = 0;
    for (int i = 0; i < count; i++) {
        const char *name = model_param(m, out[i].name)->adapter;
        if (name)
            out[(*n)++] = (TensorOut){name, out[i].type, out[i].data};
    }
    return out;
}

/* The weights, and of a graph its constants and buffers. */
static TensorOut *list_weights(Arena *a, const Plan *p, const tn_model *m, int *n)
{
    static const Role roles[] = {ROLE_PARAM, ROLE_CONST, ROLE_CACHE, ROLE_STATE};
    const Type *whole = list_wholes(a, p, m);
    TensorOut *out = NEWN(a, TensorOut, p->nin);
    *n = 0;
    for (int i = 0; i < (m->graph ? LEN(roles) : 1); i++)
        list_role(out, p, whole, roles[i], roles[i] == ROLE_STATE, n);
    return m->graph ? add_tied(a, m->graph->g, out, n) : out;
}

/* The state of the optimizer. */
static TensorOut *list_state(Arena *a, const Plan *p, const tn_model *m, int *n)
{
    TensorOut *out = NEWN(a, TensorOut, p->nin);
    *n = 0;
    list_role(out, p, list_wholes(a, p, m), ROLE_STATE, false, n);
    return out;
}

static DType param_dtype(const Plan *p)
{
    for (int i = 0; i < p->nin; i++)
        if (p->in[i].role == ROLE_PARAM)
            return p->in[i].type.dtype;
    return F32;
}

/* The text of config.json; that of a graph says where to look, and which it is. Adapters have
 * adapter_config.json instead, which names their base. */
static const char *config_of(Arena *a, const tn_model *m, const Plan *p)
{
    if (m->config.lora)
        return lora_text(a, &m->config, m->base);
    if (m->graph)
        return arena_printf(a,
                            "{\n \"architectures\": [\"TenonGraph\"],\n"
                            " \"model_type\": \"tenon_graph\",\n \"graph_hash\": \"%s\"\n}\n",
                            graph_model_hash(m, a));
    return config_text_of(a, &m->config, param_dtype(p));
}

static void write_weights(const Save *s)
{
    int n, nshard;
    const TensorOut *weights = list_weights(s->a, s->x->x->plan, s->m, &n);
    TensorShard *shard = tensors_shards(s->a, s->aside, s->x->shard, n, weights, &nshard);
    for (int i = 0; i < nshard; i++)
        write_together(s->x, s->a, shard[i].path, shard[i].n, shard[i].t, true);
}

/* In one file, as PEFT looks for no other. */
static void write_adapters(const Save *s)
{
    int n;
    const TensorOut *t = list_adapters(s->a, s->x->x->plan, s->m, &n);
    const char *path = arena_printf(s->a, "%s/adapter_model.safetensors", s->aside);
    write_together(s->x, s->a, path, n, t, true);
}

static void write_tensors(const Save *s)
{
    const Plan *p = s->x->x->plan;
    int n;
    if (s->m->config.lora)
        write_adapters(s);
    else
        write_weights(s);
    const TensorOut *state = list_state(s->a, p, s->m, &n);
    const char *path = arena_printf(s->a, "%s/optimizer.safetensors", s->aside);
    write_together(s->x, s->a, path, n, state, true);
}

static void write_text(const Save *s, const char *text, const char *file)
{
    file_write(arena_ctx(s->a), arena_printf(s->a, "%s/%s", s->aside, file), text, strlen(text));
}

static void close_folder(void *folder)
{
    closedir(folder);
}

/* Whether a file of that name is one that a save writes. */
static bool is_part(const char *name)
{
    static const char *const parts[] = {"config.json",
                                        "graph.tn",
                                        "adapter_config.json",
                                        "adapter_model.safetensors",
                                        "model.safetensors",
                                        "model-[0-9]*-of-[0-9]*.safetensors",
                                        "model.safetensors.index.json",
                                        "optimizer.safetensors",
                                        "state.json"};
    for (int i = 0; i < LEN(parts); i++)
        if (!fnmatch(parts[i], name, 0))
            return true;
    return companion_is(name);
}

/* Fails unless the folder is empty, or a checkpoint and nothing else: the error names the first
 * entry that no save has written, or says that state.json is not there. */
static void check_own(Arena *a, const char *path)
{
    Ctx *ctx = arena_ctx(a);
    bool state = false, empty = true;
    struct stat st;
    if (lstat(path, &st)) {
        if (errno == ENOENT || errno == ENOTDIR)
            return;
        fail(ctx, TN_FAIL, "%s: cannot look at: %s", path, strerror(errno));
    }
    if (!S_ISDIR(st.st_mode))
        fail(ctx, TN_FAIL, "%s: not a checkpoint: it stays as it is", path);
    DIR *folder = opendir(path);
    if (!folder)
        fail(ctx, TN_FAIL, "%s: cannot open: %s", path, strerror(errno));
    arena_defer(a, close_folder, folder);
    errno = 0;
    for (struct dirent *e; (e = readdir(folder)); errno = 0) {
        const char *inner = arena_printf(a, "%s/%s", path, e->d_name);
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        if (!is_part(e->d_name) || lstat(inner, &st) || !S_ISREG(st.st_mode))
            fail(ctx, TN_FAIL, "%s: not a file of a checkpoint: its folder stays as it is", inner);
        empty = false;
        state |= !strcmp(e->d_name, "state.json");
    }
    if (errno)
        fail(ctx, TN_FAIL, "%s: cannot read: %s", path, strerror(errno));
    if (!empty && !state)
        fail(ctx, TN_FAIL, "%s: has no state.json: not a checkpoint, it stays as it is", path);
}

/* Makes a link of that name beside the folder. */
static void replace_link(Arena *a, const FolderPath *to, const char *name)
{
    Ctx *ctx = arena_ctx(a);
    const char *link = arena_printf(a, "%s/%s", to->parent, name);
    const char *aside = arena_printf(a, "%s/.%s.tmp%ld", to->parent, name, (long)getpid());
    unlink(aside);
    if (symlink(to->name, aside) || rename(aside, link)) {
        int why = errno;
        unlink(aside);
        fail(ctx, TN_FAIL, "%s: cannot replace: %s", link, strerror(why));
    }
    folder_sync(ctx, to->parent);
}

static FolderPath split_path(Arena *a, const char *path)
{
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')
        len--;
    path = arena_strndup(a, path, len);
    const char *slash = strrchr(path, '/');
    const char *parent = !slash ? "." : arena_strndup(a, path, (size_t)MAX(slash - path, 1));
    return (FolderPath){path, parent, slash ? slash + 1 : path};
}

static void check_state(Ctx *ctx, const char *text)
{
    json_error_t e = {0};
    json_t *state = json_loads(text, JSON_REJECT_DUPLICATES, &e);
    bool good = json_is_object(state), summed = json_object_get(state, "crc32c") != NULL;
    json_decref(state);
    if (!good)
        fail(ctx, TN_USAGE, "state: expected a JSON object: %s",
             *e.text ? e.text : "found another value");
    if (summed)
        fail(ctx, TN_USAGE, "state: expected no key \"crc32c\", which a save adds");
}

static char *path_aside(Arena *a, const FolderPath *to, int64_t pid)
{
    return arena_printf(a, "%s/.%s.tmp%lld", to->parent, to->name, (long long)pid);
}

/* Rank 0 makes the folder aside, with all but tensors in it. */
static void begin_save(void *arg)
{
    Save *s = arg;
    if (s->m->config.lora && !s->m->base)
        fail(arena_ctx(s->a), TN_USAGE,
             "adapters of a model without a folder of weights cannot be saved: nothing names their "
             "base");
    check_state(arena_ctx(s->a), s->state);
    model_check(s->m, s->x->x->plan);
    s->to = split_path(s->a, s->to.path);
    if (!s->first)
        return;
    check_own(s->a, s->to.path);
    folders_make(s->a, s->to.parent);
    s->pid = getpid();
    s->aside = path_aside(s->a, &s->to, s->pid);
    folder_remove(s->aside); /* of a process that was killed */
    if (mkdir(s->aside, 0777))
        fail(arena_ctx(s->a), TN_FAIL, "%s: cannot create: %s", s->to.path, strerror(errno));
    arena_defer(s->a, folder_drop, s->aside); /* what failed, or what was there before */
    write_text(s, config_of(s->a, s->m, s->x->x->plan),
               s->m->config.lora ? "adapter_config.json" : "config.json");
    if (s->m->graph)
        write_text(s, graph_model_text(s->m, s->a), "graph.tn");
    companions_write(s->m, s->a, s->aside);
    write_text(s, json_add_sum(s->a, s->state), "state.json");
}

static void end_save(void *arg)
{
    Save *s = arg;
    int n;
    if (!s->first)
        return;
    const TensorOut *weights = list_weights(s->a, s->x->x->plan, s->m, &n);
    if (!s->m->config.lora)
        tensors_write_index(s->a, s->aside, s->x->shard, n, weights);
    folder_sync(arena_ctx(s->a), s->aside);
    folder_put(s->a, s->aside, s->to.path);
    replace_link(s->a, &s->to, "latest");
}

static void save(Save *s)
{
    tn_context *owner = s->x->h.owner;
    Comm *c = write_ranks(s->x);
    s->first = !c || !comm_rank(c);
    ranks_do(owner, c, begin_save, s);
    ranks_share(owner, c, &s->pid, sizeof s->pid);
    s->aside = path_aside(s->a, &s->to, s->pid);
    write_tensors(s);
    ranks_do(owner, c, end_save, s);
}

int tn_program_save(tn_program *x, tn_model *m, const char *folder, const char *state)
{
    if (!GIVEN(args_owner(x), x, m, folder, state) || !args_kin(__func__, x, m))
        return TN_CODE_USAGE;
    TRY(t, &x->h.owner->ctx)
        save(&(Save){.x = x, .m = m, .a = try_arena(&t), .to.path = folder, .state = state});
    return tried(&t);
}

static FileSizes save_sizes(const Plan *p, const tn_model *m, Arena *a, int64_t shard,
                            int64_t block)
{
    FileSizes sizes = {.block = block};
    int n;
    bool adapters = m->config.lora != NULL;
    model_check(m, p);
    const TensorOut *weights = adapters ? list_adapters(a, p, m, &n) : list_weights(a, p, m, &n);
    tensors_folder_sizes(a, adapters ? 0 : shard, n, weights, &sizes);
    const TensorOut *state = list_state(a, p, m, &n);
    sizes_add(&sizes, tensors_size(a, n, state, true));
    sizes_add(&sizes, (int64_t)strlen(config_of(a, m, p)));
    if (m->graph)
        sizes_add(&sizes, (int64_t)strlen(graph_model_text(m, a)));
    companions_sizes(m, &sizes);
    return sizes;
}

int tn_plan_save_bytes(tn_plan *p, tn_model *m, const tn_options *options, int64_t block,
                       int64_t *nbytes, int64_t *largest)
{
    if (!GIVEN(args_owner(p), p, m, options, nbytes, largest) || !args_kin(__func__, p, m))
        return TN_CODE_USAGE;
    if (block < 1 || block > (int64_t)1 << 40)
        return tn_context_fail(p->h.owner, TN_CODE_USAGE,
                               "%s: block: expected 1 to 2^40 bytes, found %lld", __func__,
                               (long long)block);
    *nbytes = *largest = 0;
    TRY(t, &p->h.owner->ctx) {
        FileSizes sizes = save_sizes(p->p, m, try_arena(&t), options->shard, block);
        *nbytes = sizes.nbytes;
        *largest = sizes.largest;
    }
    return tried(&t);
}

/* ---- before training ---- */

static void try_folder(Arena *a, const char *path)
{
    folders_make(a, path);
    const char *probe = arena_printf(a, "%s/.probe.tmp%ld", path, (long)getpid());
    int fd = open(probe, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        fail(arena_ctx(a), TN_FAIL, "%s: cannot write there: %s", path, strerror(errno));
    close(fd);
    unlink(probe);
}

int tn_folder_make(tn_context *ctx, const char *path)
{
    if (!GIVEN(ctx, ctx, path))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx)
        try_folder(try_arena(&t), path);
    return tried(&t);
}

int tn_checkpoint_replaceable(tn_context *ctx, const char *path)
{
    if (!GIVEN(ctx, ctx, path))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx)
        check_own(try_arena(&t), path);
    return tried(&t);
}

/* ---- after training ---- */

/* Files of tokens or rows that are not finished, of --data, --val-data and further sources. */
static bool unfinished_tokens(const char *name)
{
    static const char *const ends[] = {"tokens.bin.tmp", "tokens.bin.json.tmp", "rows.bin.tmp",
                                       "rows.bin.json.tmp"};
    size_t digits = strspn(name, "0123456789");
    if (!strncmp(name, "val-", 4))
        name += 4;
    else if (digits && name[digits] == '-')
        name += digits + 1;
    for (int i = 0; i < LEN(ends); i++)
        if (!strncmp(name, ends[i], strlen(ends[i])))
            return true;
    return false;
}

/* Names that saves give to what is not finished. */
static bool unfinished(const char *name)
{
    static const char *const begins[] = {".step-",     ".latest.tmp", ".best.tmp",
                                         ".probe.tmp", ".run.tmp",    ".evaluated.tmp"};
    for (int i = 0; i < LEN(begins); i++)
        if (!strncmp(name, begins[i], strlen(begins[i])) && strstr(name, ".tmp"))
            return true;
    return unfinished_tokens(name);
}

static void clean_entry(Arena *a, const char *folder, const char *name)
{
    const char *path = arena_printf(a, "%s/%s", folder, name);
    size_t len = strlen(name), stem = (size_t)(strstr(name, ".tmp") - name);
    if (len > 4 && !strcmp(name + len - 4, ".old")) { /* moved away, and not yet replaced */
        const char *place = arena_printf(a, "%s/%.*s", folder, (int)stem - 1, name + 1);
        if (access(place, F_OK) && !rename(path, place))
            return;
    }
    if (folder_remove(path))
        fail(arena_ctx(a), TN_FAIL, "%s: cannot remove: %s", path, strerror(errno));
}

static void clean(Arena *a, const char *path)
{
    DIR *folder = opendir(path);
    if (!folder)
        fail(arena_ctx(a), TN_FAIL, "%s: cannot open: %s", path, strerror(errno));
    arena_defer(a, close_folder, folder);
    for (struct dirent *e; (e = readdir(folder));)
        if (unfinished(e->d_name))
            clean_entry(a, path, e->d_name);
}

int tn_checkpoint_clean(tn_context *ctx, const char *path)
{
    if (!GIVEN(ctx, ctx, path))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx)
        clean(try_arena(&t), path);
    return tried(&t);
}

static void remove_checkpoint(Arena *a, const char *path)
{
    FolderPath s = split_path(a, path);
    check_own(a, s.path);
    const char *aside = path_aside(a, &s, getpid());
    if (rename(s.path, aside) || folder_remove(aside))
        fail(arena_ctx(a), TN_FAIL, "%s: cannot remove: %s", s.path, strerror(errno));
}

static void link_checkpoint(Arena *a, const char *path, const char *name)
{
    FolderPath s = split_path(a, path);
    if (!*name || strchr(name, '/') || !strcmp(name, ".") || !strcmp(name, ".."))
        fail(arena_ctx(a), TN_USAGE, "%s: expected the name of a link, found \"%s\"", path, name);
    if (access(arena_printf(a, "%s/state.json", s.path), F_OK))
        fail(arena_ctx(a), TN_FAIL, "%s: not a checkpoint: %s", s.path, strerror(errno));
    replace_link(a, &s, name);
}

int tn_checkpoint_link(tn_context *ctx, const char *path, const char *name)
{
    if (!GIVEN(ctx, ctx, path, name))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx)
        link_checkpoint(try_arena(&t), path, name);
    return tried(&t);
}

int tn_checkpoint_remove(tn_context *ctx, const char *path)
{
    if (!GIVEN(ctx, ctx, path))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx)
        remove_checkpoint(try_arena(&t), path);
    return tried(&t);
}

/* The headers say where each tensor begins and ends, and the last ends where its file does; and
 * which checksum it has, but in files of earlier versions. */
static void check_whole(tn_context *ctx, Arena *a, const char *path)
{
    FolderPath s = split_path(a, path);
    bool adapters = adapters_alone(a, s.path);
    TensorFile *weights = adapters ? adapters_check(a, s.path) : tensors_open(a, s.path);
    if (!adapters && !graph_model_file(a, s.path)) {
        ModelConfig config = config_read(a, arena_printf(a, "%s/config.json", s.path));
        model_match(a, &config, weights);
    }
    const TensorFile *state = tensors_open(a, arena_printf(a, "%s/optimizer.safetensors", s.path));
    Json run = json_read(a, arena_printf(a, "%s/state.json", s.path));
    json_check_sum(a, run.where);
    int64_t step = json_get_int(run, "step", 0, INT64_MAX);
    if (strcmp(s.name, arena_printf(a, "step-%lld", (long long)step)) != 0)
        fail(arena_ctx(a), TN_FAIL, "%s: \"step\": expected that of the folder, found %lld",
             run.where, (long long)step);
    const int rank = tn_rank(ctx), stride = rank ? tn_ranks(ctx) : 1; /* rank 0 reads all */
    if (rank)
        tensors_verify(weights, rank, stride);
    else
        weights_verify(ctx, weights);
    tensors_verify(state, rank, stride);
}

int tn_checkpoint_check(tn_context *ctx, const char *path)
{
    if (!GIVEN(ctx, ctx, path))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx)
        check_whole(ctx, try_arena(&t), path);
    return tried(&t);
}

/* Fails where a tensor of the file is not the state of which input i has a part. */
static void check_tensor(const tn_program *x, Arena *a, const TensorFile *f, const TensorEntry *e,
                         int i)
{
    const Type *whole = &x->whole[i];
    bool fits = x->sized ? shape_equal(&e->type, whole)
                         : part_fits(x->x->plan, &x->x->plan->in[i], &e->type);
    if (!fits || e->type.dtype != whole->dtype)
        fail(arena_ctx(a), TN_FAIL, "%s: \"%s\": expected %s, found %s", f->path, e->name,
             type_text(a, whole), type_text(a, &e->type));
}

static void restore(const tn_program *x, Arena *a, const char *folder)
{
    const Plan *p = x->x->plan;
    Arena *tmp = arena_tmp(a);
    const TensorFile *f = tensors_open(a, arena_printf(a, "%s/optimizer.safetensors", folder));
    int n = 0;
    for (int i = 0; i < p->nin; i++) {
        if (p->in[i].role != ROLE_STATE || plan_is_buffer(p, &p->in[i]))
            continue;
        const TensorEntry *e = tensors_get(f, p->in[i].name);
        check_tensor(x, a, f, e, i);
        stage_tensor(x, tmp, &p->in[i], f, e, false);
        arena_reset(tmp);
        n++;
    }
    if (n != f->count)
        fail(arena_ctx(a), TN_FAIL, "%s: expected %d tensors, found %d", f->path, n, f->count);
}

int tn_program_restore(tn_program *x, const char *folder)
{
    if (!GIVEN(args_owner(x), x, folder))
        return TN_CODE_USAGE;
    TRY(t, &x->h.owner->ctx)
        restore(x, try_arena(&t), folder);
    return tried(&t);
}
