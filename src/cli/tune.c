/* tune: measures this machine's kernels, or those of a device of it, at the shapes of models'
 * steps, into the file by which plans for it are made from then on. Without M it takes the shapes
 * that most runs have: those of gpt2 and of the demo, short and long, in both dtypes. */
#include "cli.h"

#include "../train/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_STEPS = 512, BATCH = 4 };

static const char *const usual_models[] = {"gpt2", "demo"};
static const int64_t usual_lengths[] = {64, 1024};
static const char *const usual_dtypes[] = {"f32", "bf16"};

typedef struct Tune {
    Common c;
    Option table[MOST_OPTIONS];
    Texts args;
    const char *output, *clock, *dtype;
    int again;
    bool terminal, told;
    int count;
    tn_tune_step step[MOST_STEPS];
    tn_options option[2]; /* by dtype */
} Tune;

/* ---- what is measured ---- */

static int add_steps(tn_context *ctx, Tune *x, const char *model)
{
    tn_model *m;
    int64_t vocab, context;
    int code = tn_model_open(ctx, model, &m);
    if (!code)
        code = check_model(ctx, "tune: ", x->table, m, &x->c);
    if (code)
        return report_last(code, ctx);
    tn_model_shape(m, &vocab, &context);
    tn_model_free(m);
    int64_t batch = x->c.batch ? x->c.batch : BATCH;
    for (int i = 0; i < LEN(usual_lengths) && (!i || !x->c.seq); i++)
        for (int d = 0; d < LEN(usual_dtypes); d++) {
            int64_t seq = x->c.seq ? x->c.seq : usual_lengths[i];
            bool fits = !context || seq <= context || x->c.seq; /* else its graph says so */
            if (x->count < MOST_STEPS && fits && (!x->dtype || !strcmp(x->dtype, usual_dtypes[d])))
                x->step[x->count++] = (tn_tune_step){model, batch, seq, &x->option[d]};
        }
    return -1;
}

static int find_steps(tn_context *ctx, Tune *x)
{
    int n = x->args.count, code = -1;
    for (int d = 0; d < LEN(usual_dtypes); d++) {
        x->option[d] = x->c.o;
        x->option[d].dtype = usual_dtypes[d];
    }
    for (int i = 0; i < (n ? n : LEN(usual_models)) && code < 0; i++)
        code = add_steps(ctx, x, n ? x->args.text[i] : usual_models[i]);
    return code;
}

/* ---- progress ---- */

static void put_title(FILE *f, const Tune *x, const tn_tune_news *n)
{
    const tn_tune_step *s = &x->step[n->step];
    fprintf(f, "%s B=%lld T=%lld %s", s->model, (long long)s->batch, (long long)s->seq,
            s->options->dtype);
}

static void print_step(const Tune *x, const tn_tune_news *n)
{
    if (x->terminal)
        line_clear(stderr);
    put_title(stdout, x, n);
    if (n->known)
        printf("  nothing is new, estimated %.4g s\n", n->est_sec);
    else
        printf("  step %.4g s, estimated %.4g s, ratio %.3f\n", n->step_sec, n->est_sec,
               n->est_sec / n->step_sec);
    fflush(stdout);
}

/* "2 threads"; or on what steps run beside the processor. */
static const char *where_text(const Tune *x, char text[40])
{
    int n = tn_threads_used();
    if (strcmp(x->c.o.backend, "cpu") != 0)
        snprintf(text, 40, "--backend %s", x->c.o.backend);
    else
        tn_count_text(n, "thread", text, 40);
    return text;
}

/* Once there is something to measure. */
static void say_before(Tune *x, const tn_tune_news *n)
{
    char where[40], count[40];
    x->told = true;
    fprintf(stderr,
            "tenon: note: measures the kernels of %s with %s, each call by all kernels that "
            "take it, then the whole step; minutes, in which nothing else should run; what is "
            "measured is kept if this is ended\n",
            tn_count_text(x->count, "step", count, sizeof count), where_text(x, where));
    if (n->goes_on)
        fprintf(stderr, "tenon: note: goes on from %s.part\n", n->path);
}

static void show(void *arg, const tn_tune_news *n)
{
    Tune *x = arg;
    if (!strcmp(n->doing, "done")) {
        print_step(x, n);
        return;
    }
    if (!x->told && strcmp(n->doing, "plan") != 0)
        say_before(x, n);
    if (!x->terminal)
        return;
    char title[200] = "", part[200] = "";
    FILE *f = fmemopen(title, sizeof title, "w");
    if (f) {
        put_title(f, x, n);
        fclose(f);
    }
    if (n->count)
        snprintf(part, sizeof part, " %lld of %lld %s", (long long)n->done + 1, (long long)n->count,
                 n->call);
    line_show(stderr, "%d of %d  %s  %s%s", n->step + 1, n->nstep, title, n->doing, part);
    fflush(stderr);
}

/* ---- the command ---- */

static void say_after(const Tune *x, const char *path)
{
    const char *set = getenv("TENON_MACHINE");
    char where[40];
    if (x->output)
        fprintf(stderr, "tenon: note: %s: --machine %s makes plans by it\n", path, path);
    else if (set && *set)
        fprintf(stderr, "tenon: note: %s: not used while TENON_MACHINE is set, which is \"%s\"\n",
                path, set);
    else
        fprintf(stderr, "tenon: note: %s: plans for %s are made by it from now on\n", path,
                where_text(x, where));
}

static int measure(tn_context *ctx, Tune *x)
{
    const char *path = x->output;
    int code = path ? 0 : tn_tune_path_for(ctx, &x->c.o, &path);
    if (!code && !path)
        code = tn_context_fail(ctx, TN_CODE_USAGE,
                               "tune: none of TENON_CACHE, XDG_CACHE_HOME and HOME says where the "
                               "file should be; -o FILE does");
    if (code)
        return report_last(code, ctx);
    tn_tune_options o = {.path = x->output,
                         .again = x->again,
                         .cpu = !strcmp(x->clock, "cpu"),
                         .stop = interrupt_begin(ctx),
                         .news = show,
                         .warn = warn,
                         .arg = x};
    code = tn_tune(ctx, x->step, x->count, &o);
    interrupt_end(INTERRUPT_WAITS);
    if (x->terminal && code)
        line_clear(stderr);
    if (code)
        return report_last(code, ctx);
    say_after(x, path);
    return 0;
}

static int parse(int argc, char **argv, Tune *x)
{
    const OptionSlot slots[] = {{"batch-size", &x->c.batch}, {"seq-len", &x->c.seq},
                                {"output", &x->output},      {"clock", &x->clock},
                                {"dtype", &x->dtype},        {"again", &x->again},
                                COMMON_SLOTS(x->c),          {0}};
    const Command *c = command_find("tune");
    options_begin(x->table, c->name, &x->c.o, slots);
    int code = options_parse(c, argc, argv, x->table, &x->args, 0, LEN(x->args.text));
    if (code >= 0)
        return code;
    if (!x->args.count)
        code = options_refuse(c, x->table, "batch-size seq-len", "is for a model that is named");
    if (code < 0 && !strcmp(x->clock, "cpu") && option_given(x->table, "threads") &&
        x->c.threads != 1)
        return report(TN_CODE_USAGE, "tune: --clock cpu is for one thread");
    if (code < 0 && !strcmp(x->clock, "cpu") && tn_backend_is_gpu(x->c.o.backend))
        return report(TN_CODE_USAGE, "tune: --clock cpu does not go with --backend cuda: what a "
                                     "GPU takes is no CPU time");
    if (code < 0 && x->output && !strcmp(x->output, "-"))
        return report(TN_CODE_USAGE, "tune: --output: expected a file, which grows as it measures");
    if (code < 0)
        code = check_chunk(c, x->table, NULL, &x->c);
    if (code < 0)
        code = check_optimizer(c, x->table, &x->c.o);
    if (code < 0 && !strcmp(x->clock, "cpu"))
        x->c.threads = 1;
    if (code < 0)
        common_apply(&x->c);
    return code;
}

int command_tune(int argc, char **argv)
{
    Tune *x = calloc(1, sizeof *x);
    if (!x)
        return report(TN_CODE_FAIL, "out of memory");
    x->c.o = tn_options_default();
    x->terminal = isatty(STDERR_FILENO);
    int code = parse(argc, argv, x);
    if (code < 0) {
        tn_context *ctx = context_new();
        code = find_steps(ctx, x);
        if (code < 0)
            code = measure(ctx, x);
        tn_context_free(ctx);
    }
    free(x);
    return code;
}
