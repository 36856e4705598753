/* train: the training loop, on the public API. Sections name the file that implements them. */
#ifndef TENON_TRAIN_H
#define TENON_TRAIN_H

#include "../../include/tenon.h"

#include <stdbool.h>
#include <stdio.h>

typedef struct TrainOptions {
    tn_options o;
    int64_t steps, batch, seq, warmup;
    double max_sec;       /* stop and let the schedule end by then; 0: no limit */
    double lr, min_lr;    /* min_lr < 0: a tenth of lr */
    const char *schedule; /* "cosine", "linear", "constant" */
    const char *out;      /* checkpoint folder */
    const char *metrics;  /* JSON Lines file, or NULL */
    const char *batch_file; /* train on this one batch; prints "step N loss V" */
    const char *const *data;
    int ndata;
    const char *token_type;
    double val_fraction;
    int64_t eval_every, save_every, sample_every, sample_tokens; /* 0: only at the end */
    const char *prompt;
    bool skip_bad;        /* --on-nan skip */
    bool progress;        /* standard error is a terminal: one line that is rewritten */
    const char *options_json; /* what the command line said, for state.json */
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
 * metric.logits f32[T, vocab], drawing by seed at a temperature; they go to `to`. */
int sample(tn_program *x, int64_t seq, int64_t vocab, const char *prompt, int64_t count, uint64_t seed,
           double temperature, FILE *to);

#endif
