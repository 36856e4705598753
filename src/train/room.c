/* Checks that the disk has room for checkpoints, whose size follows from the plan: before a run's
 * first step, and before each save, as others may fill the disk. */
#include "trainer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

enum { STATE_GROWS = 1000 }; /* bytes by which state.json may become longer */

/* The file system that a folder is in, or would be made in; false where it does not say. */
static bool find_room(const char *folder, struct statvfs *v)
{
    char path[CHECKPOINT_PATH];
    snprintf(path, sizeof path, "%s", folder);
    while (statvfs(path, v)) {
        char *slash = strrchr(path, '/');
        if (errno != ENOENT || !strcmp(path, ".") || !strcmp(path, "/"))
            return false;
        if (slash)
            slash[slash == path] = 0;
        else
            snprintf(path, sizeof path, ".");
    }
    return v->f_blocks > 0 && v->f_frsize > 0;
}

/* Measures a checkpoint there, in whole blocks. */
static int measure(Trainer *r, const struct statvfs *v)
{
    int64_t block = (int64_t)v->f_frsize;
    char *state = checkpoint_state(r, 0, false);
    if (!state)
        return tn_context_fail(r->ctx, TN_CODE_FAIL, "out of memory");
    int64_t nbytes = (int64_t)strlen(state) + STATE_GROWS;
    free(state);
    int code = tn_plan_save_bytes(r->plans.step, r->m, &r->t->o, block, &r->saves.nbytes,
                                  &r->saves.largest);
    r->saves.nbytes += (nbytes + block - 1) / block * block;
    return code;
}

static int check_limit(tn_context *ctx, const char *out, int64_t largest)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur == RLIM_INFINITY ||
        (int64_t)limit.rlim_cur >= largest)
        return 0;
    return tn_context_fail(ctx, TN_CODE_FAIL,
                           "%s: a checkpoint cannot be written there: its largest file has %" PRId64
                           " bytes, and files are limited to %" PRId64 " (ulimit -f)",
                           out, largest, (int64_t)limit.rlim_cur);
}

static int64_t bytes_free(const struct statvfs *v)
{
    return (int64_t)(v->f_bavail * v->f_frsize);
}

static int check_room(const Trainer *r, const struct statvfs *v, int64_t count)
{
    double need = (double)count * (double)r->saves.nbytes;
    char at_once[100] = "";
    if (need <= (double)bytes_free(v))
        return 0;
    if (count > 1)
        snprintf(at_once, sizeof at_once,
                 ", with --keep %" PRId64 " up to %" PRId64 " more at a time: %.0f", r->t->keep,
                 count, need);
    return tn_context_fail(r->ctx, TN_CODE_FAIL,
                           "%s: too little room: a checkpoint needs %" PRId64
                           " bytes%s; free are %" PRId64,
                           r->t->out, r->saves.nbytes, at_once, bytes_free(v));
}

/* Saves that are still to come for certain. */
static int64_t count_saves(const TrainOptions *t)
{
    int64_t first = t->resume ? t->resume->step : 0, every = t->save_every;
    if (t->steps == INT64_MAX) /* by time, or by epochs that are not counted yet */
        return 1;
    return 1 + (every ? (t->steps - 1) / every - first / every : 0);
}

/* How many old checkpoints there are, which may be removed. */
static int64_t count_there(const Trainer *r)
{
    const Resume *x = r->t->resume;
    return x ? checkpoint_count(r, x->step + 1) : 0;
}

/* The best stays beside those that are counted. */
static bool best_to_come(const Trainer *r)
{
    return r->t->eval_every > 0 && !r->best.kept;
}

/* How many checkpoints there will be at once beside those that are there: an old one goes only when
 * a new one is whole, but one that there are too many of is gone before the next save. */
static int64_t count_more(const Trainer *r)
{
    const TrainOptions *t = r->t;
    int64_t there = count_there(r), saves = count_saves(t), more = t->keep - there + 1;
    if (!t->keep) /* by the clock: the older one may go first */
        return there < KEPT_BY_TIME;
    more += best_to_come(r);
    return more < 0 ? 0 : more < saves ? more : saves;
}

/* The last checkpoint needs room beside the best, and one by the clock beside the one before it. */
static void warn_of_last(const Trainer *r, const struct statvfs *v)
{
    bool clock = r->t->save_sec > 0, best = best_to_come(r);
    int64_t room = bytes_free(v) / r->saves.nbytes + count_there(r);
    if (room > clock + best)
        return;
    fprintf(r->log,
            "tenon: warning: %s: room for %" PRId64 " checkpoint%s, of %" PRId64
            " bytes: after %s none can be saved, not even at the end\n",
            r->t->out, room, room == 1 ? "" : "s", r->saves.nbytes,
            !best   ? "one by the clock"
            : clock ? "the best and one by the clock"
                    : "the best");
}

int room_open(Trainer *r)
{
    const TrainOptions *t = r->t;
    struct statvfs v;
    if (resume_at_end(t) || !find_room(t->out, &v))
        return 0;
    int code = measure(r, &v);
    if (!code)
        code = check_limit(r->ctx, t->out, r->saves.largest);
    if (!code)
        code = check_room(r, &v, count_more(r));
    int64_t saves = count_saves(t);
    if (!code && !t->keep && t->save_every &&
        (double)saves * (double)r->saves.nbytes > (double)bytes_free(&v))
        fprintf(r->log,
                "tenon: warning: %s: room for %" PRId64 " of the %" PRId64
                " checkpoints to come, of %" PRId64 " bytes each; --keep N removes old ones\n",
                t->out, bytes_free(&v) / r->saves.nbytes, saves, r->saves.nbytes);
    if (!code)
        warn_of_last(r, &v);
    return code;
}

int room_beside_tokens(const Trainer *r)
{
    struct statvfs v;
    return r->saves.nbytes && find_room(r->t->out, &v) ? check_room(r, &v, count_more(r)) : 0;
}

int room_check(const Trainer *r)
{
    struct statvfs v;
    if (!r->saves.nbytes || !find_room(r->t->out, &v))
        return 0;
    return check_room(r, &v, 1);
}
