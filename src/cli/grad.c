/* grad: the gradients of one batch. */
#include "cli.h"

#include "../train/train.h"

#include <math.h>
#include <string.h>

typedef struct GradCommand {
    Common c;
    const char *model, *batch, *out;
    Option table[MOST_OPTIONS];
    Texts args;
    int argc; /* the command line */
    char **argv;
} GradCommand;

/* On a rank: the model, with the sizes of its batch, and what runs it. */
typedef struct GradStep {
    tn_task task;
    tn_options o;
    tn_compiled c;
    tn_plan *p;
    tn_program *x;
} GradStep;

/* A loss that is not finite is a fault, named by its node under --check. */
static int check_loss(tn_context *ctx, tn_program *x, double loss)
{
    const char *fault = tn_program_fault(x);
    if (isfinite(loss))
        return 0;
    return tn_context_fail(ctx, TN_CODE_FAIL, "the loss is not finite%s%s",
                           fault ? "\n  first value that is not finite: "
                                 : "; --check names the node",
                           fault ? fault : "");
}

static int open_gradients(tn_context *ctx, const GradCommand *a, GradStep *s)
{
    tn_part *part = &s->task.part[0];
    int code = rank_machine(ctx, &s->o);
    if (!code)
        code = tn_agree_code(ctx, model_open_as_trained(ctx, "grad", a->model, a->c.lora,
                                                        a->c.adapter, &part->model));
    if (!code)
        code = alike_model(ctx, part->model, a->model);
    if (!code)
        code = alike_file(ctx, a->batch);
    if (code)
        return code;
    part->kind = TN_PART_STEP;
    part->passes = "gradients";
    s->task.nparts = 1;
    code = tn_batch_shape(ctx, a->batch, &s->task.batch, &part->seq);
    if (!code)
        code = tn_compile(ctx, &s->task, &s->o, &s->c);
    s->p = s->c.plan[0];
    s->o.accumulate = s->c.setting.accumulate;
    return tn_agree_code(ctx, code);
}

static int fill(tn_context *ctx, const GradCommand *a, GradStep *s)
{
    const int64_t step = 1;
    Batch b = {0};
    int code = tn_program_new(s->p, &s->o, &s->x);
    if (!code)
        code = batch_make(ctx, s->task.batch, s->task.part[0].seq, &b);
    if (!code)
        code = batch_read(ctx, s->task.part[0].model, a->batch, &b);
    if (!code)
        code = tn_program_load(s->x, s->task.part[0].model, &s->o);
    if (!code)
        code = rank_write(ctx, s->p, s->x, &b);
    batch_drop(&b);
    if (!code)
        code = port_put(ctx, s->x, "seed", &s->o.seed, sizeof s->o.seed);
    if (!code)
        code = port_put(ctx, s->x, "step", &step, sizeof step);
    return tn_agree_code(ctx, code);
}

static int write_gradients(tn_context *ctx, const GradCommand *a, GradStep *s)
{
    bool first = rank_first(ctx);
    int code = fill(ctx, a, s);
    if (!code)
        code = rank_ran(ctx, port_run(ctx, s->x));
    if (!code)
        code = tn_program_write_file(s->x, a->out, "grad.");
    if (code)
        return code;
    if (a->c.freeze.count && first)
        fprintf(stderr, "tenon: gradients of frozen parameters are written as zeros\n");
    double loss = port_number(s->x, "loss");
    if (first) /* standard output is the file's if it is written there */
        fprintf(strcmp(a->out, "-") ? stdout : stderr, "loss %.9g\n", plain_nan(loss));
    return check_loss(ctx, s->x, loss);
}

static int run_grad(tn_context *ctx, const void *arg, bool *told)
{
    const GradCommand *a = arg;
    GradStep s = {.o = rank_options(ctx, &a->c)};
    int code = open_gradients(ctx, a, &s);
    if (!code)
        return write_gradients(ctx, a, &s);
    *told = code == TN_CODE_FIT && rank_first(ctx);
    s.task.vary = TN_VARY_RECOMPUTE | TN_VARY_ACCUMULATE;
    if (*told)
        fit_report(ctx, &(FitAdvice){.task = s.task, .o = &s.o, .argc = a->argc, .argv = a->argv});
    return code;
}

static int parse_grad(GradCommand *a)
{
    const OptionSlot slots[] = {{"batch", &a->batch}, {"out", &a->out}, COMMON_SLOTS(a->c), {0}};
    const Command *c = command_find("grad");
    options_begin(a->table, c->name, &a->c.o, slots);
    int code = options_parse(c, a->argc, a->argv, a->table, &a->args, 1, 1);
    if (code >= 0)
        return code;
    if (!a->batch || !a->out)
        return report(TN_CODE_USAGE, "grad: --%s is missing", a->batch ? "out" : "batch");
    a->model = a->args.text[0];
    a->c.o.optimizer = "none";
    code = check_chunk(c, a->table, NULL, &a->c);
    if (code < 0)
        code = check_adapters(c, &a->c);
    if (code < 0)
        code = launch_check(c, a->table, &a->c);
    if (code < 0)
        common_apply(&a->c);
    return code;
}

int command_grad(int argc, char **argv)
{
    GradCommand a = {.c = {.o = tn_options_default()}, .argc = argc, .argv = argv};
    Launch l;
    int code = launch_begin(&l, command_find("grad"), argc, argv);
    if (code < 0)
        code = launch_parsed(&l, parse_grad(&a), a.table, &a.args);
    if (code < 0)
        code = launch_memory(&l, &a.c.o);
    if (code < 0)
        code = launch_run(&l, &a.c, run_grad, &a);
    launch_drop(&l);
    return code;
}
