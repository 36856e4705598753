/* train: the training loop, on the public API. Sections name the file that implements them. */
#ifndef TENON_TRAIN_H
#define TENON_TRAIN_H

#include "../../include/tenon.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>

struct json_t; /* jansson's */
struct Trainer;

enum { MOST_SOURCES = 64 };
enum { CHECKPOINT_PATH = 4096, RUN_ID = 17, TYPE_NAME = 8 };

/* Without --save-every a checkpoint is saved after so many seconds; of these so many are kept. */
enum { SAVE_SEC = 600, KEPT_BY_TIME = 2 };

/* --on-nan skip gives up after that many steps in a row. */
enum { MOST_SKIPPED = 10 };

/* The checkpoint that a run goes on from. */
typedef struct Resume {
    char folder[CHECKPOINT_PATH];
    int64_t step; /* -1: there is none */
    int threads;
    double sec;                   /* that the run has taken so far */
    int64_t skipped, skipped_now; /* as in Trainer */
    int64_t latest;               /* the step that `latest` named; -1: none */
    bool torn;                    /* `latest` does not name it */

    char run[RUN_ID];     /* of which run; "": not known */
    struct json_t *state; /* its state.json */
} Resume;

typedef struct TrainOptions {
    tn_options o;
    int64_t steps, batch, seq, warmup;       /* steps INT64_MAX: until max_sec */
    double epochs;                           /* not 0: steps follow from it once rows are counted */
    double max_sec;                          /* the run ends by then, see train_sec; 0: no limit */
    double lr, min_lr;                       /* min_lr < 0: a tenth of lr */
    const char *schedule;                    /* "cosine", "linear", "constant" */
    const char *out;                         /* checkpoint folder */
    const char *metrics;                     /* file of JSON Lines or CSV, or NULL */
    const char *tensorboard;                 /* folder of event files, or NULL */
    bool metrics_stored, tensorboard_stored; /* the checkpoint says so, not the user */
    const char *profile;                     /* trace-event file, or NULL */
    const char *batch_file;                  /* train on this one batch; prints "step N loss V" */
    const char *const *data, *const *val_data;
    int ndata, nval_data; /* nval_data 0: the end of data is held out */
    const double *weight; /* of each of data, mixed so; NULL: all files one after the other */
    const char *token_type;
    double val_fraction;
    int64_t document_token;                                      /* -1: none */
    int64_t eval_every, save_every, sample_every, sample_tokens; /* 0: only at the end */
    int64_t patience; /* evaluations in a row that do not better the best, after which it ends; 0:
                         any number */
    int64_t eval_windows;           /* of an evaluation, at most; 0: as evaluation_most says */
    const char *prompt, *tokenizer; /* tokenizer NULL: the model's */
    bool skip_bad;                  /* --on-nan skip */
    bool in_order;                  /* --shuffle off */
    bool progress;                  /* standard error is a terminal: one line that is rewritten */
    double save_sec;                /* between two checkpoints; 0: any time */
    int64_t keep;                   /* checkpoints; 0: all but those that save_sec asks for */
    bool overwrite;                 /* a run that is in out is renamed */
    const char *model;              /* as it was named, for state.json */
    const char *lora, *adapter;     /* adapters of the model: new ones, of a folder; NULL: none */
    const char *base;               /* of adapters that go on: another place; NULL: as they say */
    const char *inputs;             /* the weights of a model that is a graph, or NULL */
    const char *labels;       /* "same", "shifted": what such a model takes; NULL: as it says */
    bool graph, same;         /* it is a graph; it takes the tokens as labels, and shifts them */
    struct json_t *described; /* the command line, for state.json; borrowed */
    const Resume *resume;     /* NULL: from the beginning */
    bool resize;              /* the model gets rows for tokens that it does not have */
    bool retune;              /* it goes on with other kernels than it had */
    bool log_ranks;           /* ranks other than 0 say what they do too */
    /* Called where it does not fit, with the context's message; may be NULL. */
    void (*misfit)(void *arg, const struct Trainer *r, const struct TrainOptions *t);
    void *misfit_arg;
} TrainOptions;

/* ---- train.c ---- */

/* Trains; returns an exit code, with the context's message set where it is 1 to 3. 130 after an
 * interrupt, once the step is finished and saved. All ranks of a run call it together, alike but
 * for o.rank; the file system is theirs in common, and rank 0 alone writes there what is not part
 * of a checkpoint. */
int train(tn_context *ctx, tn_model *m, const TrainOptions *t);

/* ---- line.c ---- */

/* Rewrites the line of progress on the terminal that standard error is, without a line feed; f
 * writes there. */
void line_show(FILE *f, const char *format, ...) __attribute__((format(printf, 2, 3)));
void line_clear(FILE *f);

/* ---- log.c ---- */

/* The stream on which a rank says what it does: rank 0 on standard error; others nowhere, or, with
 * `all`, there too, each line after "rank N: ". NULL without memory. */
FILE *log_open(const tn_context *ctx, bool all);
void log_close(FILE *log); /* NULL allowed */

/* ---- schedule.c ---- */

/* Learning rate at a step, from 1; by_time: the part of --max-sec that is used (0: no limit). */
double schedule_lr(const TrainOptions *t, int64_t step, double by_time);
/* Seconds of --max-sec in which a run trains: where something is held out a twentieth is left for
 * the evaluation at the end. */
double train_sec(const TrainOptions *t);

/* ---- peak.c ---- */

/* Floating-point operations per second of the back end's best product of a dtype, by which the
 * steps of a run are judged. */
typedef struct Peak {
    double flops;    /* per second; 0: it cannot be measured */
    double step_sec; /* that a step took when it was measured; 0: none yet */
    double when;     /* that was */
    bool stale;      /* the machine is faster or slower now */
} Peak;

/* Measures it, in about half a second, for the dtype and on the back end of the options. */
Peak peak_new(tn_context *ctx, const tn_options *o);
/* Whether steps that take so long say that it is. */
bool peak_drifts(const Peak *p, double step_sec);
/* After each step: one that was faster than the products were shows what the machine can do. */
void peak_see(Peak *p, double nflop, double step_sec);
/* The part of it that steps reach; at most 1 for the mean time of steps that were seen. */
double peak_part(const Peak *p, double nflop, double step_sec);
/* After a step: measures again where it is, at most twice a minute. */
void peak_follow(Peak *p, tn_context *ctx, const tn_options *o, double nflop, double step_sec);
double wall_sec(void);

/* ---- interrupt.c ---- */

/* The effect of SIGINT, SIGTERM and SIGHUP, of a process with ranks SIGUSR1 too. */
typedef enum Interrupted {
    INTERRUPT_KILLS,  /* what they always do: there is nothing to save */
    INTERRUPT_BEGINS, /* end the process with exit code 130; it says that no step was done */
    INTERRUPT_EXITS,  /* end the process with exit code 130; it says that nothing was written */
    INTERRUPT_SAVES,  /* are counted, for a run that then ends; the third ends the process (1) */
    INTERRUPT_WAITS,  /* likewise, where it ends soon by itself */
} Interrupted;

/* Called once, before there is another thread: blocks them in this one, and so in all that come
 * after, and starts one that waits for them. Where it cannot be started they do what they always
 * do. */
void interrupt_watch(void);
void interrupt_as(Interrupted what);          /* from now on */
void interrupt_before(const tn_context *ctx); /* INTERRUPT_BEGINS; rank 0 speaks */
/* Lets them be counted, in what this returns, until as many calls of interrupt_end. Ranks of one
 * process count together. */
const volatile sig_atomic_t *interrupt_begin(tn_context *ctx);
void interrupt_end(Interrupted then);

/* Whether one came; NULL: none is looked for. */
static inline bool stopped(const volatile sig_atomic_t *stop)
{
    return stop && __atomic_load_n(stop, __ATOMIC_RELAXED) != 0;
}

/* ---- evaluate.c ---- */

/* A forward and loss graph over the validation part of some data. With ranks all run it together.
 */
typedef struct Evaluation {
    tn_context *ctx;
    tn_program *x;
    tn_plan *plan; /* x's: with ranks, which rows of a pass are this one's */
    tn_data *data;
    int64_t batch, seq, most;          /* most: windows of seq tokens that are looked at */
    bool same;                         /* as in Batch */
    const int32_t *bytes;              /* that a token adds to a text; NULL: not known */
    int64_t nid;                       /* of so many ids */
    const volatile sig_atomic_t *stop; /* *stop not 0: ends it; may be NULL */
    double deadline;                   /* of wall_sec: ends it after the first pass; 0: none */
    double pass_sec;                   /* that a pass is estimated to take */
    bool announce;                     /* say before how much it is, and for how long, */
    double announce_from;              /* where that is at least so many seconds */
    bool progress;                     /* a terminal: one line that is rewritten */
    double say_sec;                    /* elsewhere a line every so many seconds; 0: 30 */
    FILE *log;                         /* for what is said; NULL: nothing */
    /* what came of it */
    int64_t windows, all, count; /* windows of all that there are; count: labels */
    int64_t planned;             /* windows that were to be looked at */
    int64_t text;                /* bytes of the text that the labels are; 0: not known */
    double loss;                 /* the mean over them; NaN where there are none */
    bool stopped;                /* it was ended, of whichever rank that was asked */
    bool late;                   /* the deadline ended it */
} Evaluation;

/* Evaluates; after a signal or the deadline the results are those of the windows until then. */
int evaluate(Evaluation *e);
bool evaluation_is_part(const Evaluation *e); /* whether it looked at some windows alone */
double evaluation_bits(const Evaluation *e);  /* per byte of the text; NaN: not known */
/* How many windows an evaluation after `step` steps looks at, unless options say: 64 during
 * training, and then at the end too, so that they compare; where there is that one alone no more
 * than a tenth of the tokens trained, or one. */
int64_t evaluation_most(const TrainOptions *t, int64_t step, bool end);

/* ---- sample.c ---- */

enum { MOST_ENDS = 16 };

/* Text that a generator writes. */
typedef struct Sample {
    tn_context *ctx;
    tn_generator *generator;
    tn_tokenizer *tokenizer;
    tn_sampling sampling;
    const char *prompt;
    bool special;           /* the tokenizer's special tokens around the prompt */
    bool answer;            /* what follows the prompt is written alone */
    int64_t count;          /* tokens to be generated */
    int64_t end[MOST_ENDS]; /* nend tokens, each of which ends it before */
    int nend;
    const volatile sig_atomic_t *stop; /* *stop not 0: ends it too; may be NULL */
    FILE *to;
    bool clean; /* control characters but tab and line feed as dots */
    /* what came of it */
    int64_t nprompt, ndone; /* tokens */
    double prompt_sec, sec; /* of the prompt; of what follows it */
} Sample;

/* The tokenizer at a path; without, bytes where the model was trained on them, else the model's
 * own, bytes where its vocabulary is 256. */
int sample_tokenizer(tn_context *ctx, tn_model *m, const char *path, tn_tokenizer **t);
int sample_begin(Sample *s); /* a new text: feeds the prompt, fills nprompt */
int sample_run(Sample *s);   /* writes the prompt and what follows, as it comes */

/* ---- batch.c ---- */

bool pack_asked(const tn_options *o); /* --pack on */

/* Ids and labels of a batch, on their way to a program. */
typedef struct Batch {
    int64_t *ids, *labels; /* labels: the next tokens */
    int64_t *starts;       /* of each place the first of its document, where --pack is on */
    int64_t *sent;         /* room for labels as a program takes them */
    int64_t rows, seq;
    bool same; /* a program takes each token's own as its label */
} Batch;

int batch_make(tn_context *ctx, int64_t rows, int64_t seq, Batch *b);
void batch_drop(Batch *b);
/* Reads a batch file; fails, with the place in it, where an id or a label is not in m's vocabulary.
 */
int batch_read(tn_context *ctx, const tn_model *m, const char *path, const Batch *b);
/* Memory for the rows of a step that a rank has, see tn_plan_rows, and these rows of all. */
int batch_make_part(tn_context *ctx, tn_plan *plan, int64_t seq, Batch *part);
int batch_pick(const Batch *all, tn_plan *plan, Batch *part);
/* Writes the inputs of a program. */
int batch_write(tn_context *ctx, tn_program *x, const Batch *b);

/* ---- port.c: a program's inputs and outputs; errors become those of the context ---- */

bool port_there(tn_program *x, const char *name);
/* Writes an input, if the program has it. */
int port_put(tn_context *ctx, tn_program *x, const char *name, const void *data, int64_t nbytes);
/* Writes one that is an f64 or an f32. */
int port_put_number(tn_context *ctx, tn_program *x, const char *name, double value);
double port_number(tn_program *x, const char *name); /* NaN: none such, or no number */
int port_run(tn_context *ctx, tn_program *x);

/* ---- resume.c ---- */

/* Finds the checkpoint that the last run in `out` goes on from, step -1 where none was saved yet;
 * fails where none of its is whole, or where the only ones are of other runs.
 * Warns where it is not the one that `latest` names. Ranks find the one that rank 0 does. */
int resume_find(tn_context *ctx, const char *out, Resume *x);
void resume_drop(Resume *x);

/* ---- base.c ---- */

/* Says in text how the weights to which adapters of a run belong differ from those that it began
 * with; "" where they do not, or where no run says. Reads all of them. Returns a code. */
int base_compare(tn_context *ctx, const tn_model *m, char *text, size_t size);

/* ---- own_files.c ---- */

/* Fails where --data or --val-data would have the file of tokens that a run makes (NULL: it makes
 * none), its record, or its checkpoints. */
int own_files_check(tn_context *ctx, const TrainOptions *t, const char *tokens);

/* ---- run_folder.c ---- */

/* Whether a folder is a checkpoint of a run; and where it is one, or lies in one, which. */
bool folder_is_checkpoint(const char *folder);
bool folder_in_checkpoint(const char *folder, char checkpoint[CHECKPOINT_PATH]);
/* Whether both are there and are one file or folder. */
bool path_same(const char *path, const char *other);
/* The folder that a path is in, as the path has it. */
void folder_parent(const char *path, char parent[CHECKPOINT_PATH]);
/* A JSON file of a folder: a new value, NULL where it cannot be read or is no regular file. */
struct json_t *folder_json(const char *path);

/* ---- source.c ---- */

/* The files of --data, and what they are taken as. */
typedef struct Source {
    const char *const *path;
    int npath;
    const char *token_type; /* "auto": as the files, the model and its run say */
    const char *tokenizer;  /* NULL: the model's */
    double val_fraction;
    const char *file;         /* for the tokens of text; NULL: one without a name */
    int64_t seq;              /* labels of a row at most, where it holds chats */
    bool pack;                /* texts in records share rows too */
    bool old;                 /* text is bytes: of a run before it was tokenized */
    bool keep;                /* fail where file has the tokens of other texts */
    bool progress;            /* standard error is a terminal */
    FILE *log;                /* for what is said; NULL: standard error */
    bool (*pause)(void *arg); /* called often while it tokenizes, which true ends; or NULL */
    void *pause_arg;
    /* what came of it */
    char type[TYPE_NAME]; /* "text", "byte", "u16", "u32" */
    tn_holds holds;       /* of text: whether it is in records */
    tn_data *files;       /* as they were given */
    tn_data *data;        /* what is read: the files, but of text its tokens */
    bool made;            /* the file of the tokens is new */
    int32_t *bytes;       /* as in Evaluation; NULL: not known */
    int64_t nid;
    char told[2 * CHECKPOINT_PATH + 100]; /* a line on it, or "" */
} Source;

/* Opens the files and says what they are; text is not tokenized yet. */
int source_open(tn_context *ctx, const tn_model *m, Source *s);
bool source_is_text(const Source *s);
/* Makes the tokens of text, or takes those that are there. */
int source_tokenize(tn_context *ctx, const tn_model *m, Source *s);
/* Finds the bytes of tokens where that can be: of text they are known once it is tokenized. */
int source_count_bytes(tn_context *ctx, const tn_model *m, Source *s);
void source_tell(const Source *s); /* in one line, where it is not what an option said */
void source_drop(Source *s);
/* The type that the model's run was trained on; "" where there was none, or it is not known. */
void source_run_type(const tn_model *m, char type[TYPE_NAME]);
/* Whether the model's folder has a tokenizer, and its path. */
bool source_tokenizer(const tn_model *m, char path[CHECKPOINT_PATH]);
/* The folder whose chat template is used: the one that --tokenizer names, else the model's; NULL:
 * there is none. */
const char *source_chat_folder(const tn_model *m, const char *tokenizer);
/* Whether text has another tokenizer than the model's, and the path of its file. */
bool source_own_tokenizer(const Source *s, char path[CHECKPOINT_PATH]);

/* ---- same_inputs.c: whether ranks that are processes read the same ---- */

/* Compare hashes of files with rank 0's; where one differs all ranks fail, with the rank and the
 * file: those of a model, named so on the command line; those of --data; one file. */
int alike_model(tn_context *ctx, const tn_model *m, const char *name);
int alike_data(tn_context *ctx, const Source *s);
int alike_file(tn_context *ctx, const char *path);

/* ---- plans.c ---- */

/* Fills the graphs of a run that was set up as far as its data. Returns a code. */
int train_task(const struct Trainer *r, tn_task *task);

#endif
