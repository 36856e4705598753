/* The memory that this machine has free for a plan: what the system can give without swapping, no
 * more than the process's groups leave of their limits (cgroups v1 and v2, from the process's own
 * up to the root; a container may see its own as the root), less a margin. Pages of files that were
 * read once count as free, as the kernel drops them first. */
#include "run.h"

#include <stdio.h>
#include <string.h>

enum { MOST_PATH = 4096 };

/* The number after a line's key, or the file's first where key is ""; -1: there is none, as of the
 * limit "max". */
static int64_t read_number(const char *path, const char *key)
{
    char line[300];
    long long x, found = -1;
    size_t n = strlen(key);
    FILE *f = fopen(path, "r");
    while (f && found < 0 && fgets(line, sizeof line, f))
        if (!strncmp(line, key, n) && sscanf(line + n, "%lld", &x) == 1 && x >= 0)
            found = x;
    if (f)
        fclose(f);
    return found;
}

/* The files of a version of cgroups. */
typedef struct GroupFiles {
    const char *mount, *limit, *usage, *cached; /* cached: the key in memory.stat */
} GroupFiles;

static const GroupFiles versions[] = {
    {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "total_inactive_file "},
    {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "},
    {"/sys/fs/cgroup/unified", "memory.max", "memory.current", "inactive_file "},
};

static int64_t read_group(const char *folder, const char *file, const char *key)
{
    char path[MOST_PATH + 40];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    return read_number(path, key);
}

/* Bytes that a group leaves; INT64_MAX: it has no limit. */
static int64_t group_free(const GroupFiles *v, const char *folder)
{
    int64_t limit = read_group(folder, v->limit, ""), usage = read_group(folder, v->usage, ""),
            cached = read_group(folder, "memory.stat", v->cached);
    if (limit < 0 || usage < 0)
        return INT64_MAX;
    return MAX(limit - MAX(usage - MAX(cached, 0), 0), 0);
}

/* The least of a group and those that hold it. */
static int64_t groups_free(const GroupFiles *v, const char *root, const char *group)
{
    char folder[MOST_PATH];
    int n = snprintf(folder, sizeof folder, "%s%s", root, v->mount), base = n;
    int64_t left = INT64_MAX;
    snprintf(folder + n, sizeof folder - (size_t)n, "%s", group);
    for (;;) {
        left = MIN(left, group_free(v, folder));
        char *slash = strrchr(folder + base, '/');
        if (!slash)
            return left;
        *slash = 0;
    }
}

/* Whether the controllers of a line "ID:CONTROLLERS:PATH" have memory, as those of v2, "", may. */
static bool is_memory(const char *controllers, size_t n)
{
    static const char name[] = "memory";
    for (const char *s = controllers; s < controllers + n; s += strcspn(s, ",:") + 1)
        if (strcspn(s, ",:") == sizeof name - 1 && !strncmp(s, name, sizeof name - 1))
            return true;
    return n == 0;
}

int64_t memory_free_under(const char *root)
{
    char path[MOST_PATH], line[MOST_PATH];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    int64_t kib = read_number(path, "MemAvailable:"), left = kib < 0 ? INT64_MAX : kib * 1024;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group || !is_memory(controllers + 1, (size_t)(group - controllers - 1)))
            continue;
        for (int i = 0; i < LEN(versions); i++)
            left = MIN(left, groups_free(&versions[i], root, group + 1));
    }
    if (f)
        fclose(f);
    return left == INT64_MAX ? -1 : left;
}

int64_t memory_less_margin(int64_t nbytes)
{
    return MAX(nbytes - MAX(nbytes / TN_MARGIN_PART, (int64_t)TN_MARGIN_LEAST), 1);
}

/* How many ranks of a step share the memory. */
static int64_t count_sharing(tn_context *ctx, Arena *tmp, const tn_options *o, const Device *d)
{
    const Driver *driver = driver_of(d);
    if (device_is_gpu(d)) { /* in turn; a single one that a launcher shows each rank is its own */
        int count = ctx->comm && driver->count ? driver->count() : 0;
        return count > 1 ? (tn_ranks_here(ctx) + count - 1) / count : 1;
    }
    if (ctx->comm)
        return tn_ranks_here(ctx);
    return o->mesh && strcmp(o->mesh, "none") ? mesh_nranks(mesh_parse(&ctx->ctx, tmp, o->mesh))
                                              : 1;
}

static int64_t find_free(tn_context *ctx, Arena *tmp, const tn_options *o)
{
    const Device *d = device_get(&ctx->ctx, o->backend);
    const Driver *driver = driver_of(d);
    if (driver->ready)
        driver->ready(&ctx->ctx, ranks_device(ctx, d, o->device));
    int64_t left = device_is_gpu(d) ? driver->available() : memory_free_under("");
    if (left < 0)
        fail(&ctx->ctx, TN_FAIL, "%s does not say how much memory it has free: expected bytes",
             device_is_gpu(d) ? "the device" : "the system");
    return left / count_sharing(ctx, tmp, o, d);
}

int tn_memory_free(tn_context *ctx, const tn_options *options, int64_t *nbytes, int64_t *margin)
{
    if (!GIVEN(ctx, ctx, options, nbytes))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx) {
        const int64_t left = find_free(ctx, try_arena(&t), options);
        *nbytes = memory_less_margin(left);
        if (margin)
            *margin = MAX(left - *nbytes, 0);
    }
    return tried(&t);
}
