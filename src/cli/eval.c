/* eval: the loss of a model on data that it was not trained on, or on one batch, with its logits.
 */
#include "cli.h"

#include "../train/train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEFAULT_LENGTH = 1024, DEFAULT_ROWS = 8, IGNORED = -100, INTERRUPTED = 130 };

/* The command's options; a rank has its own copy, with what it opens and finds. */
typedef struct Eval {
    Common c;
    const char *model;
    Texts data;
    const char *batch, *logits; /* of --batch, the file and where to write logits */
    const char *labels;         /* of a graph: same, shifted, NULL: as its run, or as found */
    Source source;
    int64_t document_token; /* -1: none */
    int64_t windows;        /* that are looked at, at most; 0: all */
    int json;
    Option table[MOST_OPTIONS];
    Texts args;
    int argc; /* the command line */
    char **argv;
    /* of a rank */
    tn_options o;
    int64_t peak;
    double sec;
    bool first;       /* which prints */
    bool told;        /* the error is on standard error already */
    bool graph, same; /* the model is a graph; it shifts its labels itself */
} Eval;

static int64_t find_length(const tn_model *m, const Common *c)
{
    int64_t vocab, limit, length = trained_length(m);
    tn_model_shape(m, &vocab, &limit);
    length = length ? length : DEFAULT_LENGTH;
    return c->seq ? c->seq : length < limit ? length : limit;
}

/* As graph_batch. */
static int take_graph(tn_context *ctx, const tn_model *m, Eval *x)
{
    int has = graph_batch(ctx, m, &x->c, x->labels, &x->same);
    if (!has && x->labels)
        return tn_context_fail(ctx, TN_CODE_USAGE, "eval: --labels is for graphs, not for models");
    return has;
}

/* Rows and tokens of a window: those of a graph, else as asked. */
static int find_sizes(tn_context *ctx, const tn_model *m, Eval *x)
{
    int has = take_graph(ctx, m, x);
    x->graph = has == 1;
    if (has)
        return has == 1 ? 0 : has;
    x->c.batch = x->c.batch ? x->c.batch : DEFAULT_ROWS;
    x->c.seq = find_length(m, &x->c);
    return 0;
}

/* Opens the data; windows are not longer than it, and not more at once than there are. */
static int open_data(tn_context *ctx, const tn_model *m, Eval *x, tn_data **data)
{
    int64_t ntrain, nval, nbytes;
    Source *s = &x->source;
    s->path = x->data.text;
    s->npath = x->data.count;
    s->progress = x->first && isatty(STDERR_FILENO);
    s->seq = x->c.seq;
    s->pack = pack_asked(&x->o);
    int code = source_open(ctx, m, s);
    if (!code && source_is_text(s))
        code = source_tokenize(ctx, m, s);
    if (!code)
        code = source_count_bytes(ctx, m, s);
    if (code)
        return code;
    *data = s->data;
    tn_data_size(*data, &ntrain, &nval, &nbytes);
    if (nval < 2)
        return tn_context_fail(ctx, TN_CODE_FAIL,
                               "%s: expected at least 2 tokens to evaluate, found %lld",
                               x->data.text[0], (long long)nval);
    if (!x->graph)
        x->c.seq = x->c.seq < nval - 1 ? x->c.seq : nval - 1;
    int64_t windows, nlabel;
    if (x->document_token >= 0)
        code = tn_data_document(*data, x->document_token);
    if (!code)
        code = pack_asked(&x->o) ? tn_data_pack(*data, x->c.seq) : 0;
    if (!code)
        code = tn_data_windows(*data, 1, x->c.seq, &windows, &nlabel);
    if (!code && !windows)
        code = tn_context_fail(ctx, TN_CODE_FAIL, "%s: no file has 2 tokens to evaluate",
                               x->data.text[0]);
    if (code)
        return code;
    if (!x->graph)
        x->c.batch = x->c.batch < windows ? x->c.batch : windows;
    return 0;
}

/* Plans the loss, and says what would do where that does not fit. */
static int make_plan(tn_context *ctx, tn_model *m, Eval *x, tn_plan **p)
{
    tn_compiled c = {0};
    FitAdvice f = {.o = &x->o, .argc = x->argc, .argv = x->argv};
    f.task.nparts = 1;
    f.task.batch = x->c.batch;
    f.task.part[0] = (tn_part){TN_PART_STEP, m, x->c.seq, NULL, "forward"};
    int code = tn_compile(ctx, &f.task, &x->o, &c);
    code = tn_agree_code(ctx, code);
    if (code == TN_CODE_FIT && x->first) {
        x->told = true;
        f.task.vary = x->batch || x->graph ? 0 : TN_VARY_BATCH;
        fit_report(ctx, &f);
    }
    x->peak = c.setting.peak;
    *p = c.plan[0];
    return code;
}

static int make_program(tn_context *ctx, tn_plan *p, tn_model *m, const tn_options *o,
                        tn_program **program)
{
    int code = tn_program_new(p, o, program);
    return tn_agree_code(ctx, code ? code : tn_program_load(*program, m, o));
}

/* A member; null where there is no number. */
static void put_real(const char *name, double x, const char *format)
{
    printf("\"%s\": ", name);
    printf(isfinite(x) ? format : "null", x);
    printf(", ");
}

static void print_json(const Eval *x, const Evaluation *e)
{
    printf("{");
    put_real("eval_loss", e->loss, "%.9g");
    put_real("perplexity", exp(e->loss), "%.9g");
    put_real("bits_per_byte", evaluation_bits(e), "%.9g");
    printf("\"tokens\": %lld, \"windows\": %lld, \"windows_planned\": %lld, \"windows_all\": %lld, "
           "\"interrupted\": %s, \"batch_size\": %lld, \"seq_len\": %lld, ",
           (long long)e->count, (long long)e->windows, (long long)e->planned, (long long)e->all,
           e->stopped ? "true" : "false", (long long)e->batch, (long long)e->seq);
    put_real("sec", x->sec, "%.6g");
    put_real("tokens_per_sec", (double)e->count / x->sec, "%.6g");
    printf("\"planned_peak_bytes\": %lld, \"rss_peak_bytes\": %lld}\n", (long long)x->peak,
           (long long)tn_rss_peak());
}

static void tell_windows(const Eval *x, const Evaluation *e)
{
    char text[40];
    fprintf(stderr, "perplexity %.6g; ", exp(e->loss));
    if (!isnan(evaluation_bits(e)))
        fprintf(stderr, "%.6g bits per byte; ", evaluation_bits(e));
    fprintf(stderr, "%s in ", tn_count_text(e->count, "token", text, sizeof text));
    if (evaluation_is_part(e))
        fprintf(stderr, "%lld of ", (long long)e->windows);
    fputs(tn_count_text(evaluation_is_part(e) ? e->all : e->windows, "window", text, sizeof text),
          stderr);
    fprintf(stderr, " of %s, %.1f s, %.0f tokens/s; arena %lld bytes\n",
            tn_count_text(e->seq, "token", text, sizeof text), x->sec, (double)e->count / x->sec,
            (long long)x->peak);
}

static void print(const Eval *x, const Evaluation *e)
{
    char text[40];
    if (!x->first)
        return;
    if (e->progress)
        line_clear(stderr);
    if (x->json)
        print_json(x, e);
    else if (e->count)
        printf("loss %.9g\n", e->loss);
    if (e->stopped)
        fprintf(stderr, "tenon: interrupted after %lld of %s%s\n", (long long)e->windows,
                tn_count_text(e->planned, "window", text, sizeof text),
                e->count ? ", whose loss this is" : ": no loss");
    if (!x->json && e->count)
        tell_windows(x, e);
}

static int check_loss(tn_context *ctx, const Evaluation *e)
{
    if (isfinite(e->loss))
        return 0;
    const char *fault = tn_program_fault(e->x);
    return tn_context_fail(ctx, TN_CODE_FAIL, "eval: the loss is %g%s%s", plain_nan(e->loss),
                           fault ? "\n  first value that is not finite: "
                                 : "; --check names the node",
                           fault ? fault : "");
}

static int run_data(tn_context *ctx, Eval *x)
{
    tn_model *m;
    tn_plan *p = NULL;
    Evaluation e = {.ctx = ctx,
                    .most = x->windows ? x->windows : INT64_MAX,
                    .announce = true,
                    .announce_from = 1,
                    .progress = x->first && isatty(STDERR_FILENO),
                    .log = x->source.log};
    int code = model_open_as_trained(ctx, "eval", x->model, NULL, x->c.adapter, &m);
    if (!code)
        code = find_sizes(ctx, m, x);
    if (!code) {
        e.same = x->same;
        code = open_data(ctx, m, x, &e.data);
    }
    code = tn_agree_code(ctx, code);
    if (!code)
        code = alike_model(ctx, m, x->model);
    if (!code)
        code = alike_data(ctx, &x->source);
    if (code)
        return code;
    e.batch = x->c.batch;
    e.seq = x->c.seq;
    e.bytes = x->source.bytes;
    e.nid = x->source.nid;
    code = make_plan(ctx, m, x, &p);
    e.plan = p;
    if (!code)
        code = make_program(ctx, p, m, &x->o, &e.x);
    double start = wall_sec();
    if (!code)
        source_tell(&x->source);
    if (!code) {
        double added;
        tn_plan_sec(p, &e.pass_sec, &added);
        e.stop = interrupt_begin(ctx);
        code = evaluate(&e);
        interrupt_end(INTERRUPT_WAITS);
    }
    x->sec = wall_sec() - start;
    if (!code && (e.count || !e.stopped))
        code = check_loss(ctx, &e);
    if (!code)
        print(x, &e);
    return !code && e.stopped ? INTERRUPTED : code;
}

/* ---- one batch ---- */

/* Reads the batch; *count: how many labels count. */
static int read_batch(tn_context *ctx, const tn_model *m, const Eval *x, Batch *b, int64_t *count)
{
    int code = batch_make(ctx, x->c.batch, x->c.seq, b);
    if (!code)
        code = batch_read(ctx, m, x->batch, b);
    *count = 0;
    for (int64_t i = 0; !code && i < b->rows * b->seq; i++)
        *count += b->labels[i] != IGNORED && !(x->same && i % b->seq == b->seq - 1);
    b->same = x->same;
    return code;
}

static int run_logits(tn_context *ctx, tn_model *m, const Eval *x, const Batch *b, tn_plan *p)
{
    tn_program *program = NULL;
    int64_t nbytes = b->rows * b->seq * (int64_t)sizeof *b->ids;
    int code = make_program(ctx, p, m, &x->o, &program);
    if (!code)
        code = port_put(ctx, program, "input_ids", b->ids, nbytes);
    if (!code)
        code = port_run(ctx, program);
    if (!code)
        code = tn_program_write_file(program, x->logits, "metric.");
    tn_program_free(program);
    return code;
}

/* The batch's tokens through the graph that ends in logits. Its program is gone before that of the
 * loss is there, so that each of them has --memory. */
static int write_logits(tn_context *ctx, tn_model *m, const Eval *x, const Batch *b)
{
    tn_graph *g;
    tn_plan *p = NULL;
    int code = tn_model_logits(m, b->rows, b->seq, &g);
    if (!code)
        code = tn_graph_passes(g, "forward", &x->o, NULL, NULL);
    if (!code)
        code = tn_plan_new(g, &x->o, 1, &p);
    if (!code)
        code = run_logits(ctx, m, x, b, p);
    tn_plan_free(p);
    return code;
}

static int run_loss(tn_context *ctx, tn_model *m, tn_plan *p, Eval *x, const Batch *b,
                    Evaluation *e)
{
    int code = make_program(ctx, p, m, &x->o, &e->x);
    if (!code)
        code = tn_agree_code(ctx, rank_write(ctx, p, e->x, b));
    double start = wall_sec();
    if (!code)
        code = rank_ran(ctx, port_run(ctx, e->x));
    x->sec = wall_sec() - start;
    if (!code)
        e->loss = port_number(e->x, "loss");
    return code ? code : check_loss(ctx, e);
}

static int run_batch(tn_context *ctx, Eval *x)
{
    tn_model *m;
    tn_plan *p = NULL;
    Batch b = {0};
    Evaluation e = {.ctx = ctx, .most = INT64_MAX};
    int code = model_open_as_trained(ctx, "eval", x->model, NULL, x->c.adapter, &m);
    if (!code)
        code = tn_batch_shape(ctx, x->batch, &x->c.batch, &x->c.seq);
    if (!code && (code = take_graph(ctx, m, x)) == 1)
        code = 0;
    if (!code)
        code = read_batch(ctx, m, x, &b, &e.count);
    code = tn_agree_code(ctx, code);
    if (!code)
        code = alike_model(ctx, m, x->model);
    if (!code)
        code = alike_file(ctx, x->batch);
    if (!code)
        code = make_plan(ctx, m, x, &p);
    if (!code && x->logits)
        code = write_logits(ctx, m, x, &b);
    if (!code)
        code = run_loss(ctx, m, p, x, &b, &e);
    batch_drop(&b);
    e.windows = e.planned = e.all = e.batch = x->c.batch;
    e.seq = x->c.seq;
    if (!code)
        print(x, &e);
    return code;
}

/* -1 to go on, or an exit code. */
static int check_what(const Command *c, const Option *table, const Eval *x)
{
    if (!x->data.count && !x->batch)
        return report(TN_CODE_USAGE, "eval: --data or --batch is missing");
    if (x->batch)
        return options_refuse(
            c, table,
            "data batch-size seq-len val-fraction token-type tokenizer eval-windows pack "
            "document-token",
            "does not go with --batch");
    return options_refuse(c, table, "logits", "needs --batch");
}

static int run_eval(tn_context *ctx, const void *arg, bool *told)
{
    Eval x = *(const Eval *)arg;
    x.first = rank_first(ctx);
    x.o = rank_options(ctx, &x.c);
    x.source.log = log_open(ctx, x.c.log_ranks);
    int code = rank_machine(ctx, &x.o);
    if (!code)
        code = x.batch ? run_batch(ctx, &x) : run_data(ctx, &x);
    log_close(x.source.log);
    free(x.source.bytes);
    *told = x.told;
    return code;
}

static int parse_eval(Eval *x)
{
    const OptionSlot slots[] = {{"data", &x->data},
                                {"batch-size", &x->c.batch},
                                {"seq-len", &x->c.seq},
                                {"val-fraction", &x->source.val_fraction},
                                {"token-type", &x->source.token_type},
                                {"tokenizer", &x->source.tokenizer},
                                {"document-token", &x->document_token},
                                {"eval-windows", &x->windows},
                                {"batch", &x->batch},
                                {"labels", &x->labels},
                                {"logits", &x->logits},
                                {"json", &x->json},
                                COMMON_SLOTS(x->c),
                                {0}};
    const Command *c = command_find("eval");
    options_begin(x->table, c->name, &x->c.o, slots);
    int code = options_parse(c, x->argc, x->argv, x->table, &x->args, 1, 1);
    if (code < 0)
        code = check_what(c, x->table, x);
    if (code < 0)
        code = launch_check(c, x->table, &x->c);
    if (code < 0 && x->c.o.mesh)
        code = options_refuse(c, x->table, "logits", "is for one rank, without --mesh");
    if (code >= 0)
        return code;
    x->model = x->args.text[0];
    common_apply(&x->c);
    return -1;
}

int command_eval(int argc, char **argv)
{
    Eval x = {.c = {.o = tn_options_default()}, .argc = argc, .argv = argv};
    Launch l;
    int code = launch_begin(&l, command_find("eval"), argc, argv);
    if (code < 0)
        code = launch_parsed(&l, parse_eval(&x), x.table, &x.args);
    if (code < 0)
        code = launch_memory(&l, &x.c.o);
    if (code < 0)
        code = launch_run(&l, &x.c, run_eval, &x);
    launch_drop(&l);
    return code;
}
