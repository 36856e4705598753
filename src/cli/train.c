/* train: the command line of the training loop in src/train. */
#define _GNU_SOURCE /* program_invocation_name */
#include "cli.h"

#include "../train/train.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The command's options, which all ranks read. */
typedef struct Train {
    Common c;
    Texts data, weight, val_data, args;
    double weights[MOST_SOURCES];
    const char *on_nan, *shuffle, *config;
    json_t *kept; /* values of --config */
    int go_on, overwrite, retune, resize;
    bool machine; /* --machine was given, not that of the run that goes on */
    Resume from;
    TrainOptions t;
    Option table[MOST_OPTIONS];
    int argc; /* the command line */
    char **argv;
    MeshWords mesh; /* that --mesh auto has found */
} Train;

/* One refusal for all that a run cannot begin without, and the command line with likely values. */
static int check_missing(tn_context *ctx, const TrainOptions *t, int argc, char **argv)
{
    int64_t vocab, context = 0;
    bool graph = train_is_graph(t);
    tn_model *m;
    const struct {
        const char *name;
        bool missing;
        const char *value;
    } all[] = {{"data", !t->ndata && !t->batch_file, "text.txt"},
               {"steps", !t->steps && t->epochs == 0 && t->max_sec == 0, "1000"},
               {"batch-size", !t->batch && !t->batch_file && !graph, "8"},
               {"seq-len", !t->seq && !t->batch_file && !graph, NULL},
               {"out", !t->out, "run"}};
    char names[80] = "";
    int n = 0, count = 0;
    for (int i = 0; i < LEN(all); i++)
        count += all[i].missing;
    if (!count)
        return -1;
    for (int i = 0, k = 0; i < LEN(all); i++)
        if (all[i].missing) {
            const char *before = k == 0 ? "" : k == count - 1 ? " and " : ", ";
            n += snprintf(names + n, sizeof names - (size_t)n, "%s--%s", before, all[i].name);
            k++;
        }
    report(TN_CODE_USAGE, "train: %s %s missing%s", names, count > 1 ? "are" : "is",
           all[1].missing ? "; --epochs or --max-sec may stand for --steps" : "");
    if (!graph && !tn_model_open(ctx, t->model, &m)) {
        tn_model_shape(m, &vocab, &context);
        tn_model_free(m);
    }
    fputs("  for example: ", stderr);
    command_put(stderr, program_invocation_name, argc, argv, NULL);
    for (int i = 0; i < LEN(all); i++)
        if (all[i].missing && all[i].value)
            fprintf(stderr, " --%s %s", all[i].name, all[i].value);
        else if (all[i].missing)
            fprintf(stderr, " --%s %d", all[i].name,
                    context > 0 && context < 256 ? (int)context : 256);
    fputc('\n', stderr);
    return TN_CODE_USAGE;
}

static int check_options(const Option *table, const TrainOptions *t, const tn_options *o)
{
    const Command *c = command_find("train");
    int code = check_rounding(c, table, o);
    if (code >= 0)
        return code;
    if (!strcmp(o->optimizer, "none"))
        return report(TN_CODE_USAGE, "train: --optimizer none: nothing would be trained");
    if (t->lr * o->weight_decay > 1)
        return report(
            TN_CODE_USAGE,
            "train: --lr %g times --weight-decay %g is above 1: weights would change sign "
            "in each step",
            t->lr, o->weight_decay);
    if (t->min_lr > t->lr)
        return report(TN_CODE_USAGE, "train: --min-lr %g is above --lr %g", t->min_lr, t->lr);
    if (!t->resume && !strcmp(t->schedule, "constant") &&
        options_refuse(c, table, "min-lr", "does not go with --schedule constant") >= 0)
        return TN_CODE_USAGE;
    if (t->steps && t->epochs > 0)
        return report(TN_CODE_USAGE, "train: --steps and --epochs exclude each other");
    if (t->batch_file && t->ndata)
        return report(TN_CODE_USAGE, "train: --batch and --data exclude each other");
    if (t->batch_file)
        return options_refuse(
            c, table,
            "batch-size seq-len pack shuffle weight epochs val-data token-type val-fraction "
            "document-token eval-every eval-windows patience sample-every sample-tokens prompt "
            "tokenizer",
            "is for --data, not for --batch");
    if (t->nval_data && t->val_fraction > 0)
        return report(TN_CODE_USAGE, "train: --val-data and --val-fraction exclude each other");
    if (t->eval_every && t->val_fraction == 0 && !t->nval_data)
        return report(TN_CODE_USAGE, "train: --eval-every: --val-fraction 0 holds nothing out");
    if (t->patience && !t->eval_every)
        return report(TN_CODE_USAGE, "train: --patience needs --eval-every, the steps from one "
                                     "evaluation to the next");
    if (t->val_fraction == 0 && !t->nval_data &&
        options_refuse(c, table, "eval-windows",
                       "does not go with --val-fraction 0, which holds "
                       "nothing out") >= 0)
        return TN_CODE_USAGE;
    if (t->sample_tokens == 0)
        return options_refuse(c, table, "sample-every prompt", "needs --sample-tokens");
    return -1;
}

/* ---- where it does not fit ---- */

typedef struct TrainCommand {
    tn_context *ctx;
    int argc;
    char **argv;
    bool told; /* the error is on standard error already */
} TrainCommand;

/* A run that goes on keeps its settings, as its bits depend on them. */
static void advise(void *arg, const struct Trainer *r, const TrainOptions *t)
{
    TrainCommand *line = arg;
    if (!rank_first(line->ctx))
        return;
    line->told = true;
    FitAdvice f = {.o = &t->o, .argc = line->argc, .argv = line->argv};
    int code = TN_CODE_FIT; /* or of what shows while its graphs are named */
    if (t->resume || (code = train_task(r, &f.task))) {
        report_last(code, line->ctx);
        if (t->resume && (t->o.decided || t->o.goal_memory))
            fprintf(stderr,
                    "  the run keeps what was decided for it; --retune decides anew, and bits "
                    "may differ\n");
        return;
    }
    f.task.vary = model_vary(f.task.part[0].model) & (t->batch_file ? ~TN_VARY_BATCH : ~0);
    fit_report(line->ctx, &f);
}

/* Prints what the model's folder asks for and the run does not do, as no option says so. */
static void note_loss(const tn_model *m, const TrainOptions *t, const Option *table)
{
    double p;
    const char *dropout = tn_model_dropout(m, &p), *dtype = tn_model_dtype(m);
    if (dropout && !option_given(table, "dropout") && p > 0)
        fprintf(stderr,
                "tenon: note: %s: its config.json has %s, this run no dropout; --dropout %g sets "
                "it for embeddings and residual branches alike%s\n",
                t->model, dropout, p,
                strstr(dropout, "att") ? "; probabilities of attention are not dropped" : "");
    else if (dropout && !option_given(table, "dropout"))
        fprintf(stderr,
                "tenon: note: %s: its config.json has %s, this run has not: probabilities of "
                "attention are not dropped\n",
                t->model, dropout);
    if (dtype && strcmp(dtype, t->o.param_dtype) != 0 && !option_given(table, "param-dtype"))
        fprintf(stderr, "tenon: note: %s: its weights are %s, this run %s f32%s\n", t->model, dtype,
                tn_model_base(m) ? "has them in" : "trains and saves",
                !strcmp(dtype, "bf16") ? "; --param-dtype bf16 keeps them so" : "");
}

static int open_model(tn_context *ctx, TrainOptions *t, const Option *table, tn_model **m)
{
    int code = rank_machine(ctx, &t->o);
    if (!code)
        code = train_open(ctx, t, m);
    if (!code && t->resize && !t->resume)
        code = train_resize(ctx, t, *m);
    if (!code)
        code = train_base(ctx, t, *m);
    if (!code && t->batch_file)
        code = tn_batch_shape(ctx, t->batch_file, &t->batch, &t->seq);
    if (!code)
        code = train_take_graph(ctx, *m, t, table);
    if (code && t->resume && t->batch_file && access(t->batch_file, F_OK))
        tn_context_fail(ctx, code, "%s\n  if it has moved: --batch names the new place",
                        tn_error(ctx));
    return tn_agree_code(ctx, code);
}

static int run_train(tn_context *ctx, const void *arg, bool *told)
{
    const Train *a = arg;
    TrainOptions t = a->t;
    TrainCommand line = {ctx, a->argc, a->argv, false};
    tn_model *m;
    t.o = rank_options(ctx, &a->c);
    t.progress = rank_first(ctx) && isatty(STDERR_FILENO);
    t.misfit = advise;
    t.misfit_arg = &line;
    int code = open_model(ctx, &t, a->table, &m);
    if (!code && !t.resume && rank_first(ctx))
        note_loss(m, &t, a->table);
    if (!code)
        code = train(ctx, m, &t);
    *told = line.told;
    return code;
}

/* M is stored; given again it is that by name or inode, or the folder of the run. The base of
 * adapters may have moved: its contents are compared once it is open. */
static int resume_model(TrainOptions *t, const Resume *from)
{
    const char *before = json_string_value(json_object_get(from->state, "model"));
    if (t->model && json_object_get(from->state, "base") && !path_same(t->model, t->out)) {
        t->base = t->model;
        t->resume = from;
        return -1;
    }
    if (t->model && before && strcmp(t->model, before) != 0 && !path_same(t->model, before) &&
        !path_same(t->model, t->out))
        return report(TN_CODE_USAGE, "train: the run began with the model %s, found %s", before,
                      t->model);
    t->model = before ? before : from->folder;
    t->resume = from;
    return -1;
}

/* Whether other ranks go on, which it says. */
static bool note_mesh(const json_t *stored, const Common *c)
{
    const char *mesh = json_string_value(json_object_get(stored, "mesh"));
    const char *before = mesh ? mesh : "none", *now = c->o.mesh ? c->o.mesh : "none";
    bool other = strcmp(before, now) != 0;
    if (other)
        fprintf(stderr, "tenon: warning: --resume: the run was on %s, now on %s: bits may differ\n",
                mesh ? mesh : "one rank", strcmp(now, "none") ? now : "one rank");
    return other;
}

/* Another --memory is a limit for this process; what was decided stays, so that the plan and its
 * bits do. It is taken as the checkpoint has it, and searched for where that has none. --retune
 * decides anew, and so do other ranks, for the limit that they have. */
static void keep_decisions(Train *a, const json_t *options, bool same_mesh)
{
    const json_t *memory = json_object_get(options, "memory");
    int64_t before = json_is_integer(memory) ? json_integer_value(memory) : 0;
    const int64_t endless = INT64_C(1) << 62; /* the run had no limit */
    if (a->retune || !same_mesh)
        return;
    a->c.o.decided = json_string_value(json_object_get(a->from.state, "decided"));
    if (option_given(a->table, "memory") && before >= 0)
        a->c.o.goal_memory = before ? before : endless;
}

/* With --mesh auto a run goes on with its mesh, if as many ranks were started. */
static void keep_mesh(Train *a, const json_t *options)
{
    const char *stored = json_string_value(json_object_get(options, "mesh"));
    const char *reshard = json_string_value(json_object_get(options, "reshard"));
    if (!mesh_auto(&a->c.o) || launch_ranks() != (stored ? launch_mesh_ranks(stored) : 1))
        return;
    a->c.o.mesh = stored;
    if (reshard && !option_given(a->table, "reshard"))
        a->c.o.reshard = reshard;
}

/* The options of the run, but those of this process that were given again. */
static int resume_options(Train *a)
{
    TrainOptions *t = &a->t;
    const Resume *from = &a->from;
    json_t *options = json_object_get(from->state, "options");
    if (options && !json_object_get(options, "rounding")) /* of a version that knew no other */
        json_object_set_new(options, "rounding", json_string("nearest"));
    bool threads = option_given(a->table, "threads"),
         tokenizer = option_given(a->table, "tokenizer");
    a->machine = option_given(a->table, "machine");
    t->metrics_stored = !option_given(a->table, "metrics");
    t->tensorboard_stored = !option_given(a->table, "tensorboard");
    int code = state_check(from->state, from->folder);
    if (code < 0)
        code = resume_adapter(a->table, a->c.adapter, options);
    if (code < 0)
        code = options_resume(a->table, options, from->folder);
    if (code >= 0)
        return code;
    keep_mesh(a, options);
    bool same_mesh = !note_mesh(options, &a->c);
    keep_decisions(a, options, same_mesh);
    if (same_mesh && !threads) /* those of each rank */
        a->c.threads = from->threads;
    if (!tokenizer && t->tokenizer && strcmp(t->tokenizer, "bytes") != 0)
        t->tokenizer = NULL; /* the checkpoint has it */
    return resume_model(t, from);
}

/* The file that the run named need not hold here: it may be of other threads, or of another
 * processor. */
static void leave_machine(tn_context *ctx, Train *a)
{
    tn_options *o = &a->c.o;
    if (a->machine || !o->machine || !tn_machine_here(ctx, o->backend, o->machine))
        return;
    fprintf(stderr,
            "tenon: warning: --resume: %s\n  goes on as with --machine none: bits may differ\n",
            tn_error(ctx));
    o->machine = "none";
}

static int refuse_machine(const Resume *from, const char *why)
{
    return report(TN_CODE_FAIL,
                  "--resume: %s/state.json: %s\n  --retune goes on with the kernels that are the "
                  "fastest here, whose bits may differ",
                  from->folder, why);
}

/* Whether plans are made by the machine as the run's was: there is nothing to take then. */
static int is_run_machine(tn_context *ctx, const Train *a, bool *same)
{
    const json_t *plan = json_object_get(a->t.resume->state, "plan");
    const char *stored = json_string_value(json_object_get(plan, "machine_hash"));
    char found[20];
    uint64_t hash;
    int code = tn_machine_hash(ctx, a->c.o.backend, a->c.o.machine, &hash);
    snprintf(found, sizeof found, "%016llx", (unsigned long long)hash);
    *same = stored && !strcmp(found, stored);
    return code;
}

/* Takes the run's machine file, with its kernels, so that a file that was tuned since changes
 * nothing. On another processor they do not hold. */
static int take_stored(tn_context *ctx, Train *a, const char *text)
{
    const Resume *from = a->t.resume;
    tn_options *o = &a->c.o;
    if (!text || strncmp(text, "machine ", 8) != 0 || !strchr(text, '\n'))
        return refuse_machine(from, "\"machine_file\": expected the text of a machine file");
    if ((int)a->c.threads != from->threads) /* nor with other threads */
        return -1;
    const json_t *plan = json_object_get(from->state, "plan");
    const char *before = json_string_value(json_object_get(plan, "backend"));
    const char *now = o->backend ? o->backend : "cpu";
    bool same, named = o->machine && strcmp(o->machine, "none") != 0; /* perhaps no more a file */
    int code = is_run_machine(ctx, a, &same);
    if (code && !named)
        return report_last(code, ctx);
    if (!code && same)
        return -1;
    code = tn_machine_here(ctx, now, text);
    if (!code)
        o->machine = text;
    bool elsewhere = code == TN_CODE_USAGE || strcmp(before ? before : "cpu", now) != 0;
    return code <= 0 || elsewhere ? -1 : refuse_machine(from, tn_error(ctx));
}

static int take_machine(tn_context *ctx, Train *a)
{
    const Resume *from = a->t.resume;
    const json_t *stored = json_object_get(from ? from->state : NULL, "machine_file");
    int code = -1;
    if (!from)
        return -1;
    if (a->t.retune)
        fprintf(stderr, "tenon: warning: --retune: kernels, and what --memory decides, may be "
                        "others than the run's: bits may differ\n");
    else if (stored && !a->machine)
        code = take_stored(ctx, a, json_string_value(stored));
    if (code < 0)
        leave_machine(ctx, a);
    return code;
}

/* Takes up the run in --out, whose options then stand in the table; where there is no checkpoint
 * yet it begins, so that one command serves a job that is started again and again. */
static int resume(tn_context *ctx, Train *a)
{
    TrainOptions *t = &a->t;
    Resume *from = &a->from;
    if (!t->out)
        return report(TN_CODE_USAGE, "train: --out is missing");
    int code = resume_find(ctx, t->out, from);
    if (code)
        return report_last(code, ctx);
    if (from->step < 0 && (code = resume_not_inside(t->out)) >= 0)
        return code;
    if (from->step < 0 && !t->model)
        return report(TN_CODE_FAIL, "%s: no checkpoint there to go on from", t->out);
    if (from->step < 0) {
        fprintf(stderr, "tenon: note: %s: no checkpoint there: begins with step 1\n", t->out);
        return -1;
    }
    if ((code = resume_options(a)) >= 0)
        return code;
    const Texts read = {.text = {t->model, from->folder}, .count = 2};
    return check_paths(command_find("train"), a->table, &read);
}

/* A run of --epochs that goes on may end by --steps, and the other way round: what was given now
 * stands, not what the run began with. */
static int resume_length(tn_context *ctx, Train *a)
{
    bool steps = option_given(a->table, "steps"), epochs = option_given(a->table, "epochs");
    int code = resume(ctx, a);
    if (steps && !epochs)
        a->t.epochs = 0;
    if (epochs && !steps)
        a->t.steps = 0;
    return code;
}

/* Those of the run that goes on, and what follows from all of them. */
static int finish_options(tn_context *ctx, Train *a)
{
    TrainOptions *t = &a->t;
    int code = a->go_on ? resume_length(ctx, a) : -1;
    t->data = a->data.text;
    t->ndata = a->data.count;
    t->val_data = a->val_data.text;
    t->nval_data = a->val_data.count;
    if (t->nval_data && !option_given(a->table, "val-fraction"))
        t->val_fraction = 0;
    t->batch = a->c.batch;
    t->seq = a->c.seq;
    t->lora = a->c.lora;
    t->adapter = a->c.adapter;
    t->log_ranks = a->c.log_ranks;
    if (code < 0)
        code = train_weights(&a->weight, a->data.count, a->weights);
    t->weight = a->weight.count ? a->weights : NULL;
    if (code < 0)
        code = check_options(a->table, t, &a->c.o);
    if (code < 0)
        code = check_chunk(command_find("train"), a->table, NULL, &a->c);
    if (code < 0)
        code = check_adapters(command_find("train"), &a->c);
    if (code < 0)
        code = train_is_graph(t) ? train_graph_options(a->table, t, &a->c.o) : -1;
    if (code < 0)
        code = check_missing(ctx, t, a->argc, a->argv);
    if (code < 0)
        code = launch_check(command_find("train"), a->table, &a->c);
    if (code < 0)
        code = train_samples(&a->c.o, t);
    if (code < 0)
        code = options_storable(command_find("train"), a->table);
    if (code >= 0)
        return code;
    t->described = options_describe(a->table);
    /* the memory for which was decided, as the run began */
    if (t->resume && a->c.o.goal_memory)
        json_object_set(t->described, "memory",
                        json_object_get(json_object_get(t->resume->state, "options"), "memory"));
    t->steps = t->steps ? t->steps : INT64_MAX;
    common_apply(&a->c);
    if (t->save_sec < 0)
        t->save_sec = t->save_every ? 0 : SAVE_SEC;
    t->skip_bad = !strcmp(a->on_nan, "skip");
    t->in_order = !strcmp(a->shuffle, "off");
    t->retune = a->retune;
    t->resize = a->resize;
    return take_machine(ctx, a);
}

/* The bytes that --memory auto stands for are those of the run. */
static int settle_memory(Launch *l, Train *a)
{
    tn_options *o = &a->c.o;
    bool found = o->memory == MEMORY_AUTO;
    int code = launch_memory(l, o);
    if (code < 0 && found && !o->goal_memory)
        json_object_set_new(a->t.described, "memory", json_integer(o->memory));
    return code;
}

/* The mesh that --mesh auto stands for is the run's, and what goes with it. */
static int settle_mesh(Launch *l, Train *a)
{
    tn_options *o = &a->c.o;
    TrainOptions *t = &a->t;
    MeshCommand m = train_mesh(t, o);
    if (!mesh_auto(o))
        return -1;
    int code = t->batch_file ? tn_batch_shape(l->ctx, t->batch_file, &m.batch, &m.seq) : 0;
    code = launch_mesh(l, &m, a->c.threads, code, &a->mesh);
    if (code >= 0)
        return code;
    o->mesh = strcmp(a->mesh.mesh, "none") != 0 ? a->mesh.mesh : NULL;
    o->reshard = a->mesh.reshard;
    o->recompute = a->mesh.recompute;
    json_object_set_new(t->described, "mesh", o->mesh ? json_string(o->mesh) : json_null());
    json_object_set_new(t->described, "reshard", json_string(o->reshard));
    json_object_set_new(t->described, "recompute", json_string(o->recompute));
    return -1;
}

static int check_command(const Command *self, Train *a)
{
    TrainOptions *t = &a->t;
    t->model = a->args.count ? a->args.text[0] : NULL;
    t->overwrite = a->overwrite;
    if (a->go_on && a->overwrite)
        return report(TN_CODE_USAGE, "train: --resume and --overwrite exclude each other");
    if (a->retune && !a->go_on)
        return report(TN_CODE_USAGE, "train: --retune needs --resume");
    if (!t->model && !a->go_on)
        return report(TN_CODE_USAGE, "train: expected 1 argument, found 0; usage: tenon train %s",
                      self->usage);
    return a->overwrite && t->out ? check_renamed(self, "overwrite", t->out, a->table, &a->args)
                                  : -1;
}

static int parse(Train *a)
{
    TrainOptions *t = &a->t;
    const OptionSlot slots[] = {{"data", &a->data},
                                {"config", &a->config},
                                {"weight", &a->weight},
                                {"resize-embeddings", &a->resize},
                                {"val-data", &a->val_data},
                                {"batch", &t->batch_file},
                                {"steps", &t->steps},
                                {"epochs", &t->epochs},
                                {"max-sec", &t->max_sec},
                                {"inputs", &t->inputs},
                                {"labels", &t->labels},
                                {"batch-size", &a->c.batch},
                                {"seq-len", &a->c.seq},
                                {"out", &t->out},
                                {"lr", &t->lr},
                                {"min-lr", &t->min_lr},
                                {"warmup", &t->warmup},
                                {"schedule", &t->schedule},
                                {"eval-every", &t->eval_every},
                                {"save-every", &t->save_every},
                                {"save-sec", &t->save_sec},
                                {"keep", &t->keep},
                                {"resume", &a->go_on},
                                {"overwrite", &a->overwrite},
                                {"retune", &a->retune},
                                {"sample-every", &t->sample_every},
                                {"sample-tokens", &t->sample_tokens},
                                {"prompt", &t->prompt},
                                {"tokenizer", &t->tokenizer},
                                {"eval-windows", &t->eval_windows},
                                {"patience", &t->patience},
                                {"metrics", &t->metrics},
                                {"tensorboard", &t->tensorboard},
                                {"profile", &t->profile},
                                {"on-nan", &a->on_nan},
                                {"token-type", &t->token_type},
                                {"val-fraction", &t->val_fraction},
                                {"document-token", &t->document_token},
                                {"shuffle", &a->shuffle},
                                COMMON_SLOTS(a->c),
                                {0}};
    const Command *self = command_find("train");
    options_begin(a->table, self->name, &a->c.o, slots);
    int code = options_parse(self, a->argc, a->argv, a->table, &a->args, 0, 1);
    if (code < 0 && a->config)
        code = options_config(self, a->table, a->config, &a->kept);
    if (code < 0 && a->config)
        code = check_paths(self, a->table, &a->args);
    return code < 0 ? check_command(self, a) : code;
}

int command_train(int argc, char **argv)
{
    Train a = {.c = {.o = tn_options_default()}, .from = {.step = -1}, .argc = argc, .argv = argv};
    Launch l;
    int code = launch_begin(&l, command_find("train"), argc, argv);
    if (code < 0)
        code = launch_parsed(&l, parse(&a), a.table, &a.args);
    if (code < 0) {
        interrupt_before(l.ctx);
        launch_hold(&l);
        code = launch_agree(&l, finish_options(l.ctx, &a));
        code = code < 0 ? settle_memory(&l, &a) : code;
        code = code < 0 ? settle_mesh(&l, &a) : code;
    }
    if (code < 0)
        code = launch_run(&l, &a.c, run_train, &a);
    json_decref(a.t.described);
    json_decref(a.kept);
    launch_drop(&l);
    resume_drop(&a.from);
    return code;
}
