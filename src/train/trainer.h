/* The inside of train: one run, and the phases in which setup prepares it. Sections name the file
 * that implements them. */
#ifndef TENON_TRAINER_H
#define TENON_TRAINER_H

#include "train.h"

/* Ids and labels of the steps, and where they come from. */
typedef struct Feed {
    Source source;
    char tokens[CHECKPOINT_PATH]; /* of source.file */
    Source *more;                 /* of --data with --weight: those after the first */
    char (*more_tokens)[CHECKPOINT_PATH];
    int nmore;
    tn_data *mixed; /* of all of them; NULL: there is one */
    tn_data *data;  /* mixed, or source.data; NULL: one batch */
    Source held;    /* --val-data; zeros: there is none */
    char held_tokens[CHECKPOINT_PATH];
    Batch batch;     /* the rows of a step that this rank has */
    Batch whole;     /* --batch, all of it */
    bool unread;     /* `batch` is not the next step's yet */
    double read_sec; /* that it took to read it */
    int64_t windows; /* that an epoch has; 0: one batch */
} Feed;

/* The data that is evaluated: its held-out part. */
static inline tn_data *feed_held(const Feed *f)
{
    return f->held.data ? f->held.data : f->data;
}

static inline const Source *feed_source(const Feed *f) /* that has it, or the first of them */
{
    return f->held.data ? &f->held : &f->source;
}

/* The plans of step, evaluation and sampling (plans.c), which share one arena. */
typedef struct TrainPlans {
    tn_compiled all;         /* owns them */
    tn_plan *step, *eval;    /* eval NULL: nothing is held out */
    tn_generator *generator; /* of samples; NULL: none are wanted */
    int64_t peak, arena;     /* bytes of the step's plan; of the arena of all plans */
    double flops;            /* of a step's products */
    double est_sec;          /* that a step is estimated to take */
} TrainPlans;

/* Times of wall_sec, and seconds. */
typedef struct TrainClock {
    double start, last_save; /* when a save was tried last, or the loop began */
    double elapsed, unsaved; /* since the run began and since the last save, by rank 0's clock */
    double step_sec;         /* that a step takes, smoothed; 0: none yet */
} TrainClock;

/* The evaluation on held-out data. */
typedef struct HeldOut {
    Evaluation last;
    int64_t step;   /* of `last`, in this process; 0: there was none */
    bool evaluated; /* the metrics have an evaluation of the step that the run goes on from */
    bool known;     /* the folder has that of that step; `last` is it */
} HeldOut;

/* The evaluation with the least loss (best.c). */
typedef struct BestStep {
    int64_t step;    /* after which it was; 0: none yet */
    int64_t kept;    /* the step that the link names: another, where saving the best failed */
    double loss;     /* its */
    int64_t windows; /* that evaluations were to look at */
    int64_t waited;  /* evaluations since then */
    int64_t seen;    /* the step of the last evaluation */
} BestStep;

/* Checkpoints of the run. */
typedef struct Checkpoints {
    int64_t saved;           /* the step of the last one, 0: none */
    int64_t untried;         /* that step, until a loss from its weights was finite; 0: it was */
    bool by_time;            /* that one is one that save_sec asked for, or the best */
    bool failed;             /* the last save has */
    int64_t nbytes, largest; /* of one, of its largest file; 0: not known */
} Checkpoints;

/* The folder of checkpoints (run_folder.c). */
typedef struct RunFolder {
    char run[RUN_ID];            /* which run it is, kept by --resume; "": not known */
    int lock;                    /* the folder, held; -1: not yet */
    char path[CHECKPOINT_PATH];  /* absolute */
    char aside[CHECKPOINT_PATH]; /* the name that --overwrite gave the run that was there; "" */
    bool made;                   /* folder_open was called, */
    size_t before;               /* when so many bytes of its path were those of what is there */
} RunFolder;

/* A file of metrics: of --metrics (metrics.c), or of events (events.c). */
typedef struct MetricsFile {
    FILE *file;
    char path[CHECKPOINT_PATH];
    bool csv;
    bool evaluated;           /* it has an evaluation of the step that the run goes on from */
    struct json_t *originals; /* files of the runs that this is a copy of; NULL: none */
} MetricsFile;

/* Whether and why the run ends. */
typedef struct Ending {
    const volatile sig_atomic_t *stop; /* not 0: this rank is asked to end after the step, saved */
    bool stopping;                     /* any rank is */
    bool exhausted;                    /* --patience ends it */
    bool spoiled;       /* a step has failed after it began: the state is that of no step */
    int failed;         /* the code of what went wrong here since the last step, 0: nothing */
    char failure[2000]; /* its message */
} Ending;

/* One training run; with ranks the part of one of them. Setup fills it from the top. */
typedef struct Trainer {
    tn_context *ctx;
    tn_model *m;
    const TrainOptions *t;
    TrainOptions *own; /* the same, for what is found while the run is set up */
    int rank, nrank;
    FILE *log; /* of log_open */
    Feed feed;
    Peak rate;
    TrainPlans plans;
    tn_tokenizer *tokenizer; /* of samples */
    tn_program *step, *eval;
    RunFolder folder;
    MetricsFile metrics, events;
    Checkpoints saves;
    HeldOut heldout;
    struct json_t *base; /* files of the weights that adapters belong to; NULL: there are none */
    BestStep best;
    int64_t first;                /* the step before this process's first */
    int64_t ran;                  /* steps of this process, until the profile is written */
    int64_t skipped, skipped_now; /* steps with --on-nan skip: of all; the last ones in a row */
    int64_t high, high_host;      /* ends of what a step wrote in the arena, in the host's memory */
    TrainClock clock;
    Ending ending;
} Trainer;

/* The results of a step. */
typedef struct StepResult {
    double loss, norm, lr, sec;
    bool has_norm;
    int64_t received; /* bytes from other ranks, by the rank with most */
    double waited;    /* seconds for other ranks, likewise */
} StepResult;

/* The sample of a run; ready for sample_begin. */
Sample sample_of(Trainer *r, const volatile sig_atomic_t *stop);

/* ---- setup.c ---- */

/* Data, plans, memory check, programs, weights, output folder. The code is that of all ranks. */
int setup(Trainer *r);
void drop(Trainer *r);

/* ---- plans.c: phases of setup, and what they make ---- */

int open_tokenizer(Trainer *r); /* of samples; a named one is saved in checkpoints too */
int compile_run(Trainer *r);    /* all plans, within the limit */
int check_prompt(Trainer *r);   /* of samples */
/* Held-out bytes that made a window may be too few tokens for one: then nothing is evaluated. */
int drop_evaluation(Trainer *r);
void drop_generator(TrainPlans *p); /* before the program whose arena it has */
void drop_plans(TrainPlans *p);
/* Rows of a pass: an evaluation takes no more at once than the step does. */
int64_t pass_rows(const TrainOptions *t);

/* ---- agree.c: with ranks, what happens next is decided by what all of them say ---- */

/* At the end of a step, and after whatever takes long: whether to stop, the time, and s, of which
 * the slowest and largest count; NULL: no step. Fails on all ranks alike where something has failed
 * on one. */
int agree(Trainer *r, StepResult *s);
/* Keeps what went wrong on this rank until all are told of it. */
void agree_later(tn_context *ctx, Ending *e, int code);
/* Tells all of what was kept. */
int agree_settle(tn_context *ctx, const Ending *e);
/* After a failure on this rank within a step, while the others wait for it: ends them too. */
int agree_end(tn_context *ctx, Ending *e, int code);
/* After what all have failed at: fails where a rank is lost, with what ended it; then nothing more
 * is tried. */
int agree_lost(tn_context *ctx, Ending *e);
/* Whether all ranks are there, and all have a state that can be saved. */
bool agree_whole(tn_context *ctx, bool here);

/* ---- profile.c ---- */

int profile_start(Trainer *r);
void profile_before(Trainer *r, int64_t step); /* a step is about to run */
int profile_after(Trainer *r, bool last);      /* it has; last: no other will */

/* ---- run_folder.c ---- */

/* Refuses a new run in a folder that holds one. */
int folder_check(tn_context *ctx, const TrainOptions *t);
/* Takes the folder, if it is there, and removes what saves that were killed have left. Chooses
 * the run's id. */
int folder_clean(Trainer *r);
/* Makes the folder (an earlier run's is renamed first), takes it for this run and removes what is
 * not finished there; sees that no save will meet something that is not this run's. */
int folder_open(Trainer *r);
/* After a refusal, before anything was trained: removes the folder, as far as this run has made it,
 * and gives a folder that was renamed its name again. */
void folder_undo(Trainer *r);
/* Says in the folder that this is its last run. */
int folder_begin(Trainer *r);
/* Keeps the evaluation after a step (heldout.last) in the folder; where that fails it is done
 * again. */
void folder_evaluated(const Trainer *r, int64_t step);
/* Finds the evaluation that a run which goes on would do again at its first step. */
int folder_find_evaluated(Trainer *r);
/* Before each save: it may have been renamed or removed since, and the lock with it. */
int folder_hold(Trainer *r);
/* The step that a link of the run names, "latest" or "best"; -1: none. */
int64_t folder_linked(const char *out, const char *link);
/* The last step before `step` of which there is a folder, -1: none. */
int64_t folder_before(const char *out, int64_t step);
/* The state.json of a step: a new object, NULL where it cannot be read. */
struct json_t *folder_state(const char *out, int64_t step);
/* The run that an object, such as state.json, names; "" where it does not. */
void run_of_state(const struct json_t *state, char id[RUN_ID]);
/* The id of a checkpoint's run, and of a folder's last run; false if it cannot be read. */
bool run_of_step(const char *out, int64_t step, char id[RUN_ID]);
bool run_of_folder(const char *out, char id[RUN_ID]);
/* Fails where another run holds a file that is open here. */
int lock_file(tn_context *ctx, int fd, const char *path);
/* The first of PATH~1, PATH~2, ... that is not there. */
int path_aside(tn_context *ctx, const char *path, char aside[CHECKPOINT_PATH]);

/* ---- room.c ---- */

int room_open(Trainer *r);                /* whether there is room for what will be saved */
int room_beside_tokens(const Trainer *r); /* the same once the tokens are there too */
int room_check(const Trainer *r);         /* for one more checkpoint */

/* ---- checkpoint.c ---- */

/* Saves the state after a last step. Earlier ones stay until a loss from its weights was finite: */
int checkpoint_save(Trainer *r, int64_t step);
/* then this removes what is not to be kept. */
void checkpoint_tried(Trainer *r);
/* How many checkpoints before a step --keep counts, or without it those by the clock. */
int64_t checkpoint_count(const Trainer *r, int64_t step);
/* After a step that is not the last: saves where it is time to. Where that fails it warns, unless
 * the weights are not finite. */
int checkpoint_pause(Trainer *r, int64_t step);
bool checkpoint_due(const Trainer *r, int64_t step);
/* Saves the best step, likewise, unless it is saved. */
int checkpoint_best(Trainer *r, int64_t step);
/* Fails where weights or state have values that are not finite. */
int checkpoint_sound(Trainer *r, const char *when);
/* The text of state.json, to be freed; NULL without memory. by_time: saved as save_sec asks. */
char *checkpoint_state(const Trainer *r, int64_t step, bool by_time);
/* Parts of state.json: the plan, the data, the tokens of text (else null), and the
 * place in them after a step: new objects. */
struct json_t *checkpoint_plan(tn_plan *step);
struct json_t *checkpoint_data(const Trainer *r);
struct json_t *checkpoint_held(const Feed *f); /* the files of --val-data */
struct json_t *checkpoint_tokens(const Feed *f);
struct json_t *checkpoint_place(const Feed *f, int64_t batch, int64_t step);

/* ---- best.c ---- */

/* Its part of state.json: a new object. */
struct json_t *best_state(const BestStep *b);
/* Takes it from the checkpoint that the run goes on from, and puts the link right. */
int best_resume(Trainer *r);
/* After an evaluation, heldout.last: where it is the best saves the step; decides whether
 * --patience ends the run. An evaluation that was seen is not seen again. */
int best_see(Trainer *r, int64_t step);
void best_tell(const Trainer *r, int64_t last); /* at the end */

/* ---- resume.c ---- */

/* Fails where another process has saved since the checkpoint was found: the folder was not this
 * run's alone then. */
int resume_check_latest(const Trainer *r);
/* Checks that data and plan are those of the run; warns if the threads are not. */
int resume_check(const Trainer *r);
/* Checks tokens and the position in them likewise, once text has been tokenized. */
int resume_check_place(const Trainer *r);
/* Whether the run is already at its end. */
bool resume_at_end(const TrainOptions *t);

/* ---- base.c ---- */

/* Finds the files of the base of adapters, and their hashes. */
int base_find(Trainer *r);
/* Checks that it is the one that the run began with. */
int base_check(const Trainer *r);

/* ---- metrics_line.c ---- */

enum { MOST_METRICS = 24 };

typedef struct Metric {
    const char *name;
    bool whole; /* an integer */
    int64_t integer;
    double real; /* not finite: not known */
} Metric;

/* The metrics of a step, or of an evaluation after it. */
typedef struct MetricsLine {
    int64_t step;
    const char *run;
    Metric list[MOST_METRICS];
    int count;
} MetricsLine;

/* Decides whether a line that was written stays. */
typedef struct MetricsKey {
    int64_t step;
    bool evaluation;
    char run[RUN_ID]; /* "": it does not say */
} MetricsKey;

MetricsLine metrics_line(const Trainer *r, int64_t step, const StepResult *s); /* s NULL: the last
                                                                                  evaluation */
bool metrics_is_csv(const char *path);
void metrics_put(FILE *f, const MetricsLine *l, bool csv);
void metrics_put_head(FILE *f); /* the first line of CSV */
bool metrics_is_head(const char *line, size_t len);
/* Reads a line with its end back; false: it is none. */
bool metrics_read(const char *line, size_t len, bool csv, MetricsKey *k);

/* ---- event_record.c ---- */

enum {
    EVENT_MOST = 4096,
    EVENT_FRAME = 16
}; /* bytes of a message; of what a record has beside it */

typedef struct EventMessage {
    unsigned char byte[EVENT_MOST];
    size_t n;
} EventMessage;

EventMessage event_version(void);            /* by which readers know the file */
EventMessage event_restart(int64_t step);    /* what came from that step on is no more */
EventMessage event_of(const MetricsLine *l); /* the values that are known */
void event_write(FILE *f, const EventMessage *m);
/* Reads a record: 1; 0 at the end, also within a record; -1 where it is damaged. */
int event_read(FILE *f, EventMessage *m);
/* Reads the step and the kind of a message; false: it is none. */
bool event_key(const void *message, size_t n, MetricsKey *k);

/* ---- events.c ---- */

/* Whether event files of a new run can be written, which changes nothing yet. */
int events_check(const Trainer *r);
/* Begins an event file in the folder of --tensorboard, if there is one. A run that goes on removes
 * from its earlier files what came after the checkpoint. Those of other runs are put aside. */
int open_events(Trainer *r);
int events_write(Trainer *r, const MetricsLine *l);

/* ---- metrics.c ---- */

/* Whether a line stays in a file of the run when it goes on: that of a step up to the checkpoint's.
 * An evaluation of that step itself stays too (*evaluated) where others follow, as it may be of all
 * windows, or where it is not done again at the end. */
int metrics_stays(const Trainer *r, const MetricsKey *k, bool *evaluated);
const char *metrics_parent(const char *path, char folder[CHECKPOINT_PATH]); /* of a path */
/* Whether a path is in the run's folder, or below it. */
bool metrics_inside(const Trainer *r, const char *path);
/* Whether a path has the metrics of the run that this one is a copy of. */
bool metrics_original(const Trainer *r, const char *path);

/* The path that a checkpoint names (stored); where nothing is there, as the run's folder was moved,
 * that in the folder, if it is the run's own. Says so. */
const char *metrics_moved(const Trainer *r, const char *path, bool stored,
                          bool (*own)(const Trainer *r, const char *path), const char *option,
                          char to[CHECKPOINT_PATH]);

/* Whether a file or folder is the run's to go on with: the user named it (`option`), or the
 * checkpoint did and it is in the run's folder or has the run's `what` already, as `own` finds. A
 * checkpoint may be someone else's, and is not to name what is written. Says why not. */
bool metrics_claim(const Trainer *r, const char *path, bool stored,
                   bool (*own)(const Trainer *r, const char *path), const char *what,
                   const char *option);
/* Whether the file of a new run can be opened, which changes nothing yet. */
int metrics_check(const Trainer *r);
/* Opens the file of --metrics, where there is to be one. A run that goes on removes from it what
 * came after the checkpoint, and puts aside what is of other runs. */
int open_metrics(Trainer *r);
/* Writes a line and an event, but of an evaluation that is there already. s NULL: evaluation. */
int write_metrics(Trainer *r, int64_t step, const StepResult *s);

/* ---- progress.c ---- */

void show_plan(const Trainer *r);
/* Part of --max-sec that a run has used, 0 without. */
double show_time_done(const Trainer *r);
void show_epoch(const Trainer *r, int64_t step); /* where one begins with the step */
/* Part of a run that is done after `step` steps, by steps or by time. */
double show_done(const Trainer *r, int64_t step);
void show_estimate(const Trainer *r, int64_t step); /* before the first step of a process */
void show_step(const Trainer *r, int64_t step, const StepResult *s, double smooth_sec);
void show_evaluation(const Trainer *r, int64_t step);
void show_resume(const Trainer *r);            /* the command that goes on */
const char *show_line_start(const Trainer *r); /* on a terminal, over the line of progress */
double show_epochs_done(const Trainer *r, int64_t step);

#endif
