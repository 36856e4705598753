/* cli: the program `tenon`, on the public API and src/train. command.def lists the commands. */
#ifndef TENON_CLI_H
#define TENON_CLI_H

#include "../../include/tenon.h"

#include <stdbool.h>
#include <stdio.h>

#define LEN(a) ((int)(sizeof(a) / sizeof((a)[0])))

/* ---- options.c ---- */

typedef enum {
    OPT_END,
    OPT_FLAG,   /* int: set to 1 */
    OPT_INT,    /* int64_t, within lo and hi */
    OPT_REAL,   /* double, within lo and hi */
    OPT_BYTES,  /* int64_t */
    OPT_MEMORY, /* tn_options *: the limit, and the unit that it was given in */
    OPT_TEXT,   /* const char * */
    OPT_LIST,   /* Texts: may be given many times */
    OPT_SHARED, /* the same, in one list with others, whose order counts */
    OPT_IN,     /* const char *: a path that is read */
    OPT_INS,    /* Texts: paths and patterns that are read */
    OPT_OUT,    /* const char *: a file that is written, never one that is read */
    OPT_ONTO,   /* const char *: a file that is written, aside, after all was read: it may be one */
    OPT_DIR,    /* const char *: a folder */
    OPT_WORD,   /* const char *, one of the words in `words` (separated by |) */
    OPT_PAIR,   /* const char *[2]: two values */
} OptionKind;

typedef struct Texts {
    const char *text[64];
    const char *option[64]; /* where several options share a list: "NAME" or "NAME=..." */
    int count;
} Texts;

/* One long option. Tables end with {0}. */
typedef struct Option {
    const char *name; /* without -- */
    OptionKind kind;
    void *into;
    const char *help, *words; /* of numbers: why they are limited so, or NULL */
    double lo, hi;
    bool given; /* set by the parser */
} Option;

typedef struct Command {
    const char *name, *usage, *what;
    int (*run)(int argc, char **argv);
} Command;

extern const Command command_table[];
extern const int command_count;

/* Parses argv[1..]: options into their places, the rest into args. Returns -1 to go on, or an exit
 * code: 0 after --help, 2 after a wrong option, which is reported with the nearest right one. */
int options_parse(const Command *c, int argc, char **argv, Option *table, Texts *args, int least,
                  int most);
bool option_given(const Option *table, const char *name);
/* Fails (2) where one of these options, names separated by spaces, was given; else -1. */
int options_refuse(const Command *c, const Option *table, const char *names, const char *why);
bool option_word(const Option *o, const char *value); /* whether it is one of the option's words */
const Command *command_find(const char *name);

/* A NaN without its sign, which printf would show. */
double plain_nan(double x);

/* A context; without memory, ends the program. */
tn_context *context_new(void);

/* Prints "tenon: message" on standard error; returns the code. */
int report(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
int report_last(int code, const tn_context *ctx); /* the context's message */
void warn(void *arg, const char *message);        /* for tn_options.warn */
int fuse_asked(const char *word);                 /* whether --fuse is on; of fast a note */
/* Writes a text file, aside and renamed; "-" is standard output. Returns an exit code. */
int write_text(const char *path, const char *text);

/* ---- paths.c ---- */

/* Whether both are there and are one file or folder. */
bool path_same(const char *path, const char *other);
/* Fails (2) where a file to be written (OPT_OUT) is one that is read (OPT_IN, OPT_INS, the
 * arguments; of folders the files of models) or that is written twice; else -1. */
int check_paths(const Command *c, const Option *table, const Texts *args);
/* Fails (2) where a folder that an option has renamed has what is read, or is worked in; else -1.
 */
int check_renamed(const Command *c, const char *option, const char *folder, const Option *table,
                  const Texts *args);

/* ---- resume.c ---- */

struct json_t; /* jansson's */

/* The values of all options, for state.json: a new object. */
struct json_t *options_describe(const Option *table);
/* Takes what was not given from the values stored in the folder `where`, borrowing their texts, and
 * refuses what was given otherwise. Returns -1 to go on, or an exit code. */
int options_resume(Option *table, const struct json_t *stored, const char *where);
/* That what the state in the folder `where` says beside the options agrees with them, and that it
 * is of no later version. Returns -1 to go on, or an exit code. */
int state_check(const struct json_t *state, const char *where);

/* ---- fit.c ---- */

/* A command that needs more than o->memory. */
typedef struct Fit {
    /* Plans it with other options and rows, without a limit: bytes of the arena, of it and the
     * library's reserve together, and its work. Returns a code. */
    int (*plan)(void *arg, const tn_options *o, int64_t batch, int64_t *peak, int64_t *nbytes,
                double *work);
    void *arg;
    const tn_options *o;
    int64_t batch;                             /* rows of a step */
    bool recompute, accumulate, smaller_batch; /* which of the three can be set */
    int argc;                                  /* the command line, from the command's name on */
    char **argv;
} Fit;

/* Prints the error that says what does not fit, and the command line that fits, or what needs
 * least. Returns the fewest bytes of all plans of the batch, 0 where nothing can be set. */
int64_t fit_report(tn_context *ctx, const Fit *f);
/* Arena, and with the library's reserve, of a plan, and its work, each for a Fit. */
void fit_need(const tn_plan *p, int64_t *peak, int64_t *nbytes, double *work);
/* Writes a command line that a shell reads as it was, without the options in `drop` (NULL: none;
 * names with --, a NULL last) and their values. */
void command_put(FILE *f, const char *program, int argc, char **argv, const char *const *drop);

/* ---- what train, grad and plan share ---- */

typedef struct Common {
    tn_options o;
    Texts freeze, no_decay, rules;
    tn_rule rule[64];
    int64_t threads, batch, seq, seed;
    const char *recompute, *chunk, *fuse;
} Common;

/* --seq-len of the run that wrote a checkpoint, 0 where there is none: a model knows no positions
 * but those it was trained on. */
int64_t trained_length(const tn_model *m);

Common common_defaults(void);
void common_apply(Common *c);
/* Whether a list of passes names one. */
bool names_pass(const char *list, const char *pass);
/* Fails (2) where recomputation was asked for and no pass of the list does it; else -1. */
int check_passes(const Command *c, const Option *table, const char *passes, const Common *x);
/* Fails (2) where an option of one optimizer was given and another is chosen; else -1. */
int check_optimizer(const Command *command, const Option *table, const tn_options *o);

/* clang-format off */
#define DTYPE_OPTIONS(o)                                                                           \
    {"dtype", OPT_WORD, &(o).dtype, "of computation (f32)", "f32|bf16", 0, 0, 0},                  \
    {"param-dtype", OPT_WORD, &(o).param_dtype, "of parameters (f32)", "f32|bf16", 0, 0, 0}

#define RECOMPUTE_OPTIONS(c)                                                                       \
    {"recompute", OPT_TEXT, &(c).recompute, "what the backward computes again, of which blocks (none)", "none|full|every=K|selective", 0, 0, 0}, \
    {"save", OPT_SHARED, &(c).rules, "SCOPE::OP, patterns: nodes that must be saved; may repeat, 64 of both in all", NULL, 0, 0, 0}, \
    {"recompute-rule", OPT_SHARED, &(c).rules, "SCOPE::OP: that must be computed again; may repeat", NULL, 0, 0, 0}

#define COMMON_OPTIONS(c)                                                                          \
    FORWARD_OPTIONS(c),                                                                            \
    RECOMPUTE_OPTIONS(c),                                                                          \
    {"accumulate", OPT_INT, &(c).o.accumulate, "loop iterations of a step (1)", NULL, 1, 1e9, 0},       \
    {"dropout", OPT_REAL, &(c).o.dropout, "probability (0)", "what is kept is divided by 1 - dropout", 0, 0.999999, 0}

/* Of graphs, for the pass cse. */
#define DEDUPE_OPTION(c)                                                                           \
    {"dedupe-recompute", OPT_FLAG, &(c).o.dedupe_recompute, "the pass cse merges what the backward computes again with the original", NULL, 0, 0, 0}

/* Of eval too. */
#define FORWARD_OPTIONS(c)                                                                         \
    DTYPE_OPTIONS((c).o),                                                                          \
    {"chunk", OPT_WORD, &(c).chunk, "(off)", "off", 0, 0, 0},                                      \
    {"fuse", OPT_WORD, &(c).fuse, "chains of pointwise ops in one pass over memory (on)", "on|off|fast", 0, 0, 0}, \
    {"memory", OPT_MEMORY, &(c).o, "refuse what needs more than this", NULL, 0, 0, 0},       \
    {"threads", OPT_INT, &(c).threads, "(the cores the process may use)", NULL, 1, 4096, 0},       \
    {"seed", OPT_INT, &(c).seed, "of weights, data and dropout (0)", NULL, 0, 9e18, 0},            \
    {"check", OPT_FLAG, &(c).o.check, "poison dead buffers, guard the arena, look for NaN", NULL, 0, 0, 0}

/* Of train, grad, plan and opt; of those that make the loss. */
#define FREEZE_OPTION(c)                                                                           \
    {"freeze", OPT_LIST, &(c).freeze, "parameters not to be trained: a pattern; may repeat", NULL, 0, 0, 0}

#define LOSS_OPTIONS(c)                                                                            \
    {"z-loss", OPT_REAL, &(c).o.z_loss, "times the mean of logsumexp squared, added to the loss (0)", NULL, 0, 1e3, 0}, \
    {"label-smoothing", OPT_REAL, &(c).o.label_smoothing, "part of a label that all tokens share (0)", NULL, 0, 1, 0}

#define OPTIMIZER_OPTIONS(c)                                                                       \
    {"optimizer", OPT_WORD, &(c).o.optimizer, "(adamw)", "adamw|sgd|none", 0, 0, 0},               \
    {"weight-decay", OPT_REAL, &(c).o.weight_decay, "on tensors of two or more dimensions (0.1)", NULL, 0, 1e3, 0}, \
    {"no-decay", OPT_LIST, &(c).no_decay, "parameters without weight decay: a pattern; may repeat", NULL, 0, 0, 0}, \
    {"beta1", OPT_REAL, &(c).o.beta1, "of adamw (0.9)", "at 1 moments are divided by 0", 0, 0.999999, 0}, \
    {"beta2", OPT_REAL, &(c).o.beta2, "of adamw (0.95)", "at 1 moments are divided by 0", 0, 0.999999, 0}, \
    {"eps", OPT_REAL, &(c).o.eps, "of adamw (1e-8)", "where gradients are 0 it alone keeps 0 / 0, which is NaN, from the weights", 1.2e-38, 1, 0}, \
    {"momentum", OPT_REAL, &(c).o.momentum, "of sgd (0: no state)", NULL, 0, 0.999999, 0},      \
    {"clip", OPT_REAL, &(c).o.clip, "global norm of the gradient (1.0; 0: off)", NULL, 0, 1e30, 0}
/* clang-format on */

/* ---- the commands, one function each ---- */
#define COMMAND(name, usage, what) int command_##name(int argc, char **argv);
#include "command.def"
#undef COMMAND

#endif
