/* train: the training loop, on the public API. Sections name the file that implements them. */
#ifndef TENON_TRAIN_H
#define TENON_TRAIN_H

#include "../../include/tenon.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>

struct json_t; /* jansson's */

enum { CHECKPOINT_PATH = 4096 };

/* The checkpoint that a run goes on from. */
typedef struct Resume {
    char folder[CHECKPOINT_PATH];
    int64_t step; /* -1: there is none */
    int threads;
    double sec;           /* that the run has taken so far */
    bool torn;            /* `latest` does not name it */
    struct json_t *state; /* its state.json */
} Resume;

typedef struct TrainOptions {
    tn_options o;
    int64_t steps, batch, seq, warmup; /* steps INT64_MAX: until max_sec */
    double max_sec;                    /* stop and let the schedule end by then; 0: no limit */
    double lr, min_lr;                 /* min_lr < 0: a tenth of lr */
    const char *schedule;              /* "cosine", "linear", "constant" */
    const char *out;                   /* checkpoint folder */
    const char *metrics;               /* JSON Lines file, or NULL */
    const char *profile;               /* trace-event file, or NULL */
    const char *batch_file;            /* train on this one batch; prints "step N loss V" */
    const char *const *data;
    int ndata;
    const char *token_type;
    double val_fraction;
    int64_t eval_every, save_every, sample_every, sample_tokens; /* 0: only at the end */
    const char *prompt;
    bool skip_bad;            /* --on-nan skip */
    bool progress;            /* standard error is a terminal: one line that is rewritten */
    int64_t keep;             /* checkpoints; 0: all */
    const char *model;        /* as it was named, for state.json */
    struct json_t *described; /* the command line, for state.json; borrowed */
    const Resume *resume;     /* NULL: from the beginning */
} TrainOptions;

/* ---- train.c ---- */

/* Trains; returns an exit code, with the context's message set where it is 1 to 3. 130 after an
 * interrupt, once the step is finished and saved. */
int train(tn_context *ctx, tn_model *m, const TrainOptions *t);

/* ---- schedule.c ---- */

/* Learning rate at a step (from 1) with `done` of the way (0 to 1) behind it. */
double schedule_lr(const TrainOptions *t, int64_t step, double done);

/* ---- peak.c ---- */

/* Floating-point operations per second of this machine's best product, measured in about half a
 * second; 0 where it cannot be measured. */
double peak_flops(tn_context *ctx);
double wall_sec(void);

/* ---- sample.c ---- */

/* Bytes generated from a prompt by a program with inputs input_ids i64[1, T] and output
 * metric.logits f32[T, vocab], drawing by seed at a temperature; they go to `to`, control
 * characters but tab and line feed as dots. Ends early once *stop is not 0. */
int sample(tn_program *x, int64_t seq, int64_t vocab, const char *prompt, int64_t count,
           uint64_t seed, double temperature, const volatile sig_atomic_t *stop, FILE *to);

/* ---- resume.c ---- */

/* Finds the checkpoint that a run in `out` goes on from, step -1 where none was saved yet; fails
 * where there are some and none is whole. Warns where it is not the one that `latest` names. */
int resume_find(tn_context *ctx, const char *out, Resume *x);
void resume_drop(Resume *x);

/* ---- inside ---- */

/* One training run. */
typedef struct Trainer {
    tn_context *ctx;
    tn_model *m;
    const TrainOptions *t;
    tn_data *data; /* NULL: one batch */
    tn_graph *step_graph, *eval_graph, *sample_graph;
    tn_plan *step_plan, *eval_plan, *sample_plan;
    tn_program *step, *eval, *sampler;
    int64_t *ids, *labels;         /* of the step's batch, in the arena */
    int64_t *one_ids, *one_labels; /* of --batch, read once */
    float *lr;                     /* inputs of the step; NULL where the graph has none */
    int64_t *step_input, *seed_input;
    int64_t sample_seq, vocab;
    int64_t peak, persistent, reserve; /* bytes of the step's plan */
    int64_t arena, high;      /* bytes of the arena of all plans; end of what a step wrote */
    double flops, best_flops; /* of a step's products; per second at best */
    double start, last_eval;
    int64_t ran;   /* steps of this run, until the profile is written */
    int64_t saved; /* the step of the last checkpoint, 0: none */
    int64_t first; /* the step before this process's first */
    int lock;      /* the folder of checkpoints, held; -1: not yet */
    FILE *metrics;
} Trainer;

/* What a step gave. */
typedef struct StepResult {
    double loss, norm, lr, sec;
    bool has_norm;
} StepResult;

/* ---- setup.c ---- */

/* Data, plans, memory check, programs, weights, output folder. */
int setup(Trainer *r);
void drop(Trainer *r);

/* ---- profile.c ---- */

int profile_start(Trainer *r);
void profile_before(Trainer *r, int64_t step); /* a step is about to run */
int profile_after(Trainer *r, bool last);      /* it has; last: no other will */

/* ---- checkpoint.c ---- */

/* Makes the folder, takes it for this run and removes what is not finished there. */
int checkpoint_open(Trainer *r);
/* Saves the state after a step; then removes what --keep does not keep. */
int checkpoint_save(Trainer *r, int64_t step);
/* The last step before `step` of which there is a folder, -1: none. */
int64_t checkpoint_before(const char *out, int64_t step);
/* What state.json says of the plan, and of the data: new objects. */
struct json_t *checkpoint_plan(const Trainer *r);
struct json_t *checkpoint_data(const Trainer *r);

/* ---- resume.c ---- */

/* That data and plan are those of the run; warns where the threads are not. */
int resume_check(const Trainer *r);
/* Removes from the metrics file what came after the checkpoint. */
int resume_metrics(Trainer *r, const char *path);

/* ---- show.c ---- */

void show_plan(const Trainer *r);
/* Part of the way behind a run after `step` steps, by steps or by time. */
double show_done(const Trainer *r, int64_t step);
void show_step(const Trainer *r, int64_t step, const StepResult *s, double smooth_sec);
void show_evaluating(const Trainer *r, int64_t done, int64_t all);
void show_evaluation(const Trainer *r, int64_t step);
void show_resume(const Trainer *r); /* the command that goes on */
int write_metrics(Trainer *r, int64_t step, const StepResult *s,
                  double eval_loss); /* s NULL: eval */

#endif
