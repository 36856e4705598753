/* fit: if a plan needs more than --memory, or than could be mapped, finds the settings of
 * --accumulate with which the same command fits, and of --recompute where auto was not asked for.
 * Every setting that is named was planned; what auto computes again, src/decide says.
 *
 * Numbers of microbatches 1, 2, 4, ... are planned; more microbatches do not always need less
 * memory, as more than one needs accumulators, and parts of unequal size need two bodies. The
 * fastest of the settings that fit is named. A smaller batch, which changes the training, is tried
 * only if nothing else fits. With --chunk the least that would do is what the same command needs,
 * beside which other settings may need less. With --chunk auto, for which a step is planned many
 * times, nothing is sliced in these plans, as it would not be where they fit; if none does, those
 * that need least are planned with slices. Evaluation can only change its batch, whose size affects
 * the last bits only. */
#define _GNU_SOURCE /* program_invocation_name */
#include "cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MOST_LEVELS = 40,
    MOST_SLICED = 3, /* settings that are planned with --chunk auto */
    MOST_TRIED = 4 * MOST_LEVELS,
};

/* Settings, and their results. */
typedef struct FitSetting {
    const char *recompute;
    int64_t accumulate, batch;
    int64_t nbytes; /* arena and library reserve; 0: cannot be planned */
    int64_t peak;
    double sec;  /* of a step, estimated */
    bool slices; /* planned with --chunk auto, where that was asked for */
} FitSetting;

typedef struct FitSearch {
    const Misfit *f;
    FitSetting least;            /* of all that were planned, the fewest bytes */
    FitSetting best;             /* of those that fit; nbytes 0: none */
    FitSetting low[MOST_SLICED]; /* of all without slices, those with the fewest bytes */
    int nlow;
    const char **chunk; /* --chunk without auto, NULL: it was not asked for */
    int nchunk;
    bool slices;   /* with auto, nevertheless */
    int64_t limit; /* --memory, else what could be mapped */
    int count;
    FitSetting tried[MOST_TRIED]; /* each setting is planned once */
    int ntried;
} FitSearch;

/* ---- planning ---- */

static void keep_low(FitSearch *s, const FitSetting *x)
{
    int i = s->nlow < MOST_SLICED ? s->nlow++ : MOST_SLICED;
    for (; i > 0 && x->nbytes < s->low[i - 1].nbytes; i--)
        if (i < MOST_SLICED)
            s->low[i] = s->low[i - 1];
    if (i < MOST_SLICED)
        s->low[i] = *x;
}

/* Fills x with what it came to before; false: it was not planned yet. */
static bool find_tried(const FitSearch *s, FitSetting *x)
{
    for (int i = 0; i < s->ntried; i++) {
        const FitSetting *y = &s->tried[i];
        if (strcmp(x->recompute, y->recompute) || x->accumulate != y->accumulate ||
            x->batch != y->batch || s->slices != y->slices)
            continue;
        *x = *y;
        return true;
    }
    return false;
}

static bool try_setting(FitSearch *s, FitSetting *x)
{
    if (find_tried(s, x))
        return x->nbytes && x->nbytes <= s->limit;
    tn_options o = *s->f->o;
    o.recompute = x->recompute;
    o.accumulate = x->accumulate;
    o.goal_memory = s->limit;
    o.memory = 0;
    o.warn = NULL; /* of the plan that was asked for it has warned */
    if (s->chunk && !s->slices) {
        o.chunk = s->chunk;
        o.nchunk = s->nchunk;
    }
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r  planning what would fit: %d\033[K", ++s->count);
    else
        s->count++;
    x->nbytes = 0;
    if (s->f->plan(s->f->arg, &o, x->batch, &x->peak, &x->nbytes, &x->sec))
        x->nbytes = 0;
    if (x->nbytes && (!s->least.nbytes || x->nbytes < s->least.nbytes))
        s->least = *x;
    if (x->nbytes && !s->slices)
        keep_low(s, x);
    x->slices = s->slices;
    if (s->ntried < MOST_TRIED)
        s->tried[s->ntried++] = *x;
    return x->nbytes && x->nbytes <= s->limit;
}

/* A larger batch is better, then less time. */
static void consider(FitSearch *s, const FitSetting *x)
{
    const FitSetting *best = &s->best;
    if (!best->nbytes || x->batch > best->batch || (x->batch == best->batch && x->sec < best->sec))
        s->best = *x;
}

static void try_all(FitSearch *s, FitSetting *level, int count)
{
    for (int i = 0; i < count; i++)
        if (try_setting(s, &level[i]))
            consider(s, &level[i]);
}

/* The first level that fits, of batches that get smaller. */
static void bisect(FitSearch *s, FitSetting *level, int count)
{
    int low = 0, high = count - 1;
    if (count < 1 || !try_setting(s, &level[high]))
        return;
    while (low < high) {
        int middle = (low + high) / 2;
        if (try_setting(s, &level[middle]))
            high = middle;
        else
            low = middle + 1;
    }
    consider(s, &level[high]);
}

void fit_need(const tn_plan *p, int64_t *peak, int64_t *nbytes, double *sec)
{
    int64_t persistent, reserve;
    double added;
    tn_plan_bytes(p, peak, &persistent, &reserve);
    *nbytes = *peak + reserve;
    tn_plan_sec(p, sec, &added);
}

/* ---- what may be set ---- */

/* Microbatches of so many rows that none is empty: one, then twice as many, and as many as were
 * asked for. */
static int fill_accumulate(const Misfit *f, const char *recompute, FitSetting *level)
{
    int count = 0;
    int64_t rows = f->batch, asked = f->o->accumulate, last = 0;
    if (!f->accumulate)
        last = level[count++].accumulate = asked;
    for (int64_t k = 1; f->accumulate && k < 2 * rows; k *= 2) {
        int64_t iterations = k < rows ? k : rows, each = (rows + iterations - 1) / iterations;
        if (last < asked && asked < iterations)
            level[count++].accumulate = asked;
        if ((rows + each - 1) / each == iterations)
            level[count++].accumulate = iterations;
        last = iterations;
    }
    for (int i = 0; i < count; i++)
        level[i] =
            (FitSetting){.recompute = recompute, .accumulate = level[i].accumulate, .batch = rows};
    return count;
}

static int fill_batch(const Misfit *f, const char *recompute, FitSetting *level)
{
    int count = 0;
    int64_t size = 1;
    while (2 * size < f->batch)
        size *= 2;
    for (; size && size < f->batch; size /= 2)
        level[count++] = (FitSetting){.recompute = recompute, .accumulate = 1, .batch = size};
    return count;
}

static void search(FitSearch *s,
                   int (*fill)(const Misfit *f, const char *recompute, FitSetting *level),
                   void (*run)(FitSearch *s, FitSetting *level, int count))
{
    const char *const settings[] = {s->f->o->recompute, "auto"};
    bool other = s->f->recompute && strcmp(settings[0], settings[1]) != 0;
    for (int i = 0; i < 1 + other; i++) {
        FitSetting level[MOST_LEVELS];
        int count = fill(s->f, settings[i], level);
        run(s, level, count);
    }
}

/* ---- what is printed ---- */

static bool is_dropped(const char *arg, const char *const *drop)
{
    size_t n = strcspn(arg, "=");
    for (; *drop; drop++)
        if (n == strlen(*drop) && !strncmp(arg, *drop, n))
            return true;
    return false;
}

static void put_word(FILE *f, const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "-_=./,:+@%";
    bool bare = *text && !text[strspn(text, plain)];
    fputs(bare ? "" : "'", f);
    for (; *text; text++)
        fputs(*text == '\'' ? "'\\''" : (char[]){*text, 0}, f);
    fputs(bare ? "" : "'", f);
}

void command_put(FILE *f, const char *program, int argc, char **argv, const char *const *drop)
{
    put_word(f, program);
    for (int i = 0; i < argc; i++) {
        bool dropped = drop && is_dropped(argv[i], drop);
        if (dropped && !strchr(argv[i], '='))
            i++; /* and its value */
        if (dropped)
            continue;
        fputc(' ', f);
        put_word(f, argv[i]);
    }
}

/* The command of a setting, with a new limit where it needs one. */
static void put_command(const Misfit *f, const FitSetting *x, const char *memory)
{
    const tn_options *o = f->o;
    const char *drop[5] = {NULL};
    bool recompute = strcmp(x->recompute, o->recompute) != 0, batch = x->batch != f->batch;
    int n = 0;
    if (recompute)
        drop[n++] = "--recompute";
    if (x->accumulate != o->accumulate)
        drop[n++] = "--accumulate";
    if (batch)
        drop[n++] = "--batch-size";
    if (memory)
        drop[n++] = "--memory";
    fputs("  ", stderr);
    command_put(stderr, program_invocation_name, f->argc, f->argv, drop);
    if (recompute)
        fprintf(stderr, " --recompute %s", x->recompute);
    if (x->accumulate != o->accumulate)
        fprintf(stderr, " --accumulate %lld", (long long)x->accumulate);
    if (batch)
        fprintf(stderr, " --batch-size %lld", (long long)x->batch);
    if (memory)
        fprintf(stderr, " --memory %s", memory);
    fputc('\n', stderr);
}

static void put_found(const FitSearch *s, bool other_batch)
{
    const FitSetting *x = &s->best;
    const char *unit = s->f->o->memory_unit;
    char peak[40], all[40];
    fprintf(stderr, "  %s; its planned peak is %s, with the library's reserve %s:\n",
            other_batch ? "only a smaller batch fits, which trains otherwise"
                        : "this fits, by estimate the fastest of all that do",
            tn_bytes_text(x->peak, unit, peak, sizeof peak),
            tn_bytes_text(x->nbytes, unit, all, sizeof all));
    put_command(s->f, x, NULL);
}

static void put_least(const FitSearch *s)
{
    char all[40];
    bool given = s->f->o->memory > 0;
    tn_bytes_text(s->least.nbytes, s->f->o->memory_unit, all, sizeof all);
    fprintf(stderr, "  none of %d other plans fits%s; this one needs least, %s:\n", s->count,
            given ? "" : " what could be mapped", all);
    put_command(s->f, &s->least, given ? all : NULL);
}

/* The error, where it says what the least is with that of all plans of the batch. */
static void put_error(const Misfit *f, const char *text, int64_t least)
{
    static const char phrase[] = "the least that would do is ";
    char bytes[40];
    const char *at = strstr(text, phrase);
    if (!at || !least) {
        report(TN_CODE_FIT, "%s", text);
        return;
    }
    at += sizeof phrase - 1;
    tn_bytes_text(least, f->o->memory_unit, bytes, sizeof bytes);
    report(TN_CODE_FIT, "%.*s%s%s%s%s", (int)(at - text), text, bytes, f->beside ? ", with " : "",
           f->beside ? f->beside : "", at + strcspn(at, "\n"));
}

/* Whether --chunk auto was asked for; then s->chunk is what else was. any: whether slices were. */
static bool begin_slices(FitSearch *s, bool *any)
{
    const tn_options *o = s->f->o;
    bool found = false;
    *any = false;
    for (int i = 0; i < o->nchunk; i++)
        *any |= strcmp(o->chunk[i], "off") != 0;
    s->chunk = calloc((size_t)o->nchunk + 1, sizeof *s->chunk);
    for (int i = 0; s->chunk && i < o->nchunk; i++)
        if (strcmp(o->chunk[i], "auto") != 0)
            s->chunk[s->nchunk++] = o->chunk[i];
        else
            found = true;
    if (found)
        return true;
    free(s->chunk);
    s->chunk = NULL;
    return false;
}

/* Bytes that a plan may need: --memory; without it those that could be mapped, from the error. 0:
 * not known. */
static int64_t find_limit(const Misfit *f, const char *text)
{
    static const char phrase[] = "what could be mapped is ";
    const char *at = f->o->memory || !text ? NULL : strstr(text, phrase);
    return at ? strtoll(at + sizeof phrase - 1, NULL, 10) : f->o->memory;
}

int64_t fit_report(tn_context *ctx, const Misfit *f)
{
    FitSearch s = {.f = f, .limit = find_limit(f, tn_error(ctx))};
    if (!s.limit) {
        report_last(TN_CODE_FIT, ctx);
        return 0;
    }
    bool step = f->accumulate || f->recompute; /* whose last resort is a smaller batch */
    bool chunk, slices = begin_slices(&s, &chunk);
    char *text = strdup(tn_error(ctx)); /* before other plans have theirs */
    FitSetting asked = {.recompute = f->o->recompute, .accumulate = f->o->accumulate};
    asked.batch = f->batch;
    if (step && f->misfit && f->o->memory) {
        FitSetting *x = &s.tried[s.ntried++];
        *x = asked;
        x->slices = slices;
        fit_need(f->misfit, &x->peak, &x->nbytes, &x->sec);
        s.least = *x;
        if (!slices)
            keep_low(&s, x);
    }
    if (chunk) { /* what the same command needs at least, all plans of a run together */
        s.slices = slices;
        try_setting(&s, &asked);
        s.slices = false;
        s.least.nbytes = 0;
    }
    const FitSetting same = chunk ? asked : (FitSetting){.nbytes = 0};
    if (step) {
        try_all(&s, &asked, 1);
        s.count = 0;
        search(&s, fill_accumulate, try_all);
    }
    if (slices && !s.best.nbytes) {
        s.slices = true;
        try_all(&s, s.low, s.nlow);
        s.slices = false;
    }
    if (same.nbytes && (!s.least.nbytes || same.nbytes < s.least.nbytes))
        s.least = same;
    const FitSetting least = s.least;
    bool other_batch = !s.best.nbytes && f->smaller_batch;
    if (other_batch)
        search(&s, fill_batch, bisect);
    if (s.count && isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
    put_error(f, text ? text : "does not fit", chunk ? same.nbytes : least.nbytes);
    free(text);
    free(s.chunk);
    s.least = step && least.nbytes ? least : s.least;
    if (s.best.nbytes)
        put_found(&s, other_batch && step);
    else if (s.least.nbytes)
        put_least(&s);
    return chunk ? same.nbytes : least.nbytes;
}
