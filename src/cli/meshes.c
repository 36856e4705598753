/* plan --mesh auto: the fastest meshes for so many ranks, as text or JSON. */
#include "cli.h"

#include "../train/train.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

bool mesh_auto(const tn_options *o)
{
    return o->mesh && !strcmp(o->mesh, "auto");
}

/* When the search began, and when it was told last how far it is. */
typedef struct Told {
    time_t began, last;
} Told;

/* Tells how far the search is: on a terminal always, else, once it takes long, each ten seconds
 * and at an end. */
static void tell(void *arg, const char *what, int done, int all)
{
    enum { EACH_SEC = 10 };
    Told *told = arg;
    time_t now = time(NULL);
    if (isatty(STDERR_FILENO)) {
        line_show(stderr, "  %s: %d of %d", what, done, all);
    } else if (took_long(told->began) && (now - told->last >= EACH_SEC || done == all)) {
        fprintf(stderr, "tenon: %s: %d of %d\n", what, done, all);
        told->last = now;
    }
}

/* ---- text ---- */

static void put_mesh(FILE *f, const tn_mesh *x, int width)
{
    fprintf(f, "%-*s %-8s %-8s %-10s %12.6g %12.6g %12.6g %12.6g %16lld %16lld  %s\n", width,
            x->mesh, x->forms, x->reshard, x->recompute, x->sec, x->bound_sec, x->comm_sec,
            x->exposed_sec, (long long)x->peak, (long long)x->nbytes, x->bucket);
}

/* unlimited: --recompute is left to choose, and no limit says what for. */
static void put_text(FILE *f, const tn_meshes *x, bool unlimited)
{
    int width = (int)strlen("mesh");
    for (int i = 0; i < x->nbest; i++) {
        int length = (int)strlen(x->best[i].mesh);
        width = length > width ? length : width;
    }
    fprintf(f, "%-*s %-8s %-8s %-10s %12s %12s %12s %12s %16s %16s  %s\n", width, "mesh", "forms",
            "reshard", "recompute", "s a step", "at least, s", "collectives", "exposed",
            "peak, bytes", "with reserve", "bucket");
    for (int i = 0; i < x->nbest; i++)
        put_mesh(f, &x->best[i], width);
    fprintf(f, "settings: %d; planned %d", x->settings, x->planned);
    if (x->unfit)
        fprintf(f, ", of which %d need more than the limit", x->unfit);
    fprintf(f, "\n  left out by the bound of their step: %d\n", x->slower);
    if (x->over)
        fprintf(f, "  left out by the bound of their memory: %d\n", x->over);
    if (x->saved)
        fprintf(f, "  left out, as their mesh fits with all saved: %d\n", x->saved);
    if (x->guessed)
        fprintf(f, "  left out by an estimate from other plans: %d\n", x->guessed);
    if (unlimited)
        fprintf(f, "  --recompute auto: not tried, as without --memory it is none\n");
    fprintf(f, "  refused: %d\n", x->refused);
    for (int i = 0; i < x->nreason; i++)
        fprintf(f, "    %d: %s%s\n", x->reason[i].count, x->reason[i].why,
                x->reason[i].others ? " (of some with other numbers)" : "");
}

/* ---- JSON ---- */

static json_t *mesh_json(const tn_mesh *x)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:I, s:I}", "mesh", x->mesh,
                     "forms", x->forms, "reshard", x->reshard, "recompute", x->recompute, "bucket",
                     x->bucket, "est_step_sec", x->sec, "bound_sec", x->bound_sec, "est_comm_sec",
                     x->comm_sec, "est_exposed_sec", x->exposed_sec, "peak_bytes",
                     (json_int_t)x->peak, "need_bytes", (json_int_t)x->nbytes);
}

static json_t *list_json(const tn_meshes *x)
{
    json_t *list = json_array();
    for (int i = 0; i < x->nbest; i++)
        json_array_append_new(list, mesh_json(&x->best[i]));
    return list;
}

static json_t *reasons_json(const tn_meshes *x)
{
    json_t *list = json_array();
    for (int i = 0; i < x->nreason; i++)
        json_array_append_new(
            list, json_pack("{s:s, s:i}", "why", x->reason[i].why, "settings", x->reason[i].count));
    return list;
}

static int put_json(FILE *f, const tn_meshes *x)
{
    json_t *o = json_pack("{s:s, s:o, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:o, s:o}", "status",
                          x->nbest ? "planned" : "refused", "meshes", list_json(x), "settings",
                          x->settings, "planned", x->planned, "planned_above_limit", x->unfit,
                          "slower_by_bound", x->slower, "larger_by_bound", x->over,
                          "fits_with_all_saved", x->saved, "slower_by_estimate", x->guessed,
                          "refused", x->refused, "reasons", reasons_json(x), "least_feasible_bytes",
                          x->least ? json_integer(x->least) : json_null());
    return write_json(f, o);
}

/* ---- the search ---- */

int meshes_find(tn_context *ctx, const MeshCommand *x, tn_meshes *found)
{
    tn_options o = *x->o;
    Told told = {time(NULL), time(NULL)};
    tn_mesh_task task = {.model = x->model,
                         .lora = x->lora,
                         .adapter = x->adapter,
                         .batch = x->batch,
                         .seq = x->seq,
                         .ranks = x->ranks,
                         .passes = x->passes,
                         .tell = tell,
                         .tell_arg = &told};
    o.mesh = NULL;
    int code = tn_mesh_search(ctx, &task, &o, found);
    if (isatty(STDERR_FILENO))
        line_clear(stderr);
    return code;
}

static bool is_open(const char *word)
{
    return !word || !strcmp(word, "auto");
}

int meshes_print(tn_context *ctx, const MeshCommand *x, FILE *to)
{
    tn_meshes found;
    int code = meshes_find(ctx, x, &found);
    if (code)
        report_last(code, ctx);
    if (code && code != TN_CODE_FIT)
        return code;
    int bad = 0;
    if (x->json)
        bad = put_json(to, &found);
    else if (!code)
        put_text(to, &found, !x->o->memory && is_open(x->o->recompute));
    return bad ? bad : code;
}
