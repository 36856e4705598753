/* cli: the program `tenon`, on the public API and src/train. command.def lists the commands. */
#ifndef TENON_CLI_H
#define TENON_CLI_H

#include "../../include/tenon.h"

#include <stdbool.h>
#include <stdio.h>
#include <time.h>

struct json_t; /* jansson's */

#define LEN(a) ((int)(sizeof(a) / sizeof((a)[0])))

/* ---- option_table.c ---- */

typedef enum {
    OPT_END,
    OPT_FLAG,   /* int: set to 1 */
    OPT_INT,    /* int64_t, within lo and hi */
    OPT_COUNT,  /* int64_t, within lo and hi, which the word after N| stands for */
    OPT_AUTO,   /* int64_t, within lo and hi, or the word auto, which is 0 */
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
    OPT_SEED = OPT_INT,
    OPT_DTYPE = OPT_WORD,
    OPT_SWITCH = OPT_WORD, /* the command makes a flag of the word */
    OPT_RULES = OPT_END,   /* of no command: made of OPT_SHARED */
} OptionKind;

typedef struct Texts {
    const char *text[64];
    const char *option[64]; /* where several options share a list: "NAME" or "NAME=..." */
    int count;
} Texts;

/* The options that a run which goes on may be given: options.def, "resume". */
typedef enum { RESUME_SAME, RESUME_OWN, RESUME_END, RESUME_NEVER } ResumeClass;

/* One long option: a row of options.def, and what a command line has of it. Tables end with {0}. */
typedef struct Option {
    const char *name; /* without -- */
    OptionKind kind;
    ResumeClass resume;
    bool pass;                           /* a pass reads it */
    const char *commands, *words, *help; /* words of numbers: as options.def says */
    const char *literal;                 /* the default as the row has it */
    double number;                       /* the default of numbers */
    const char *text;                    /* and of texts, or NULL */
    double lo, hi;
    bool open;         /* hi itself is too much */
    int at;            /* where it lies in tn_options; below 0: elsewhere */
    void *into;        /* where the value goes */
    bool given;        /* set by the parser */
    const char *value; /* as this command line has it last; NULL: not yet */
} Option;

enum { MOST_OPTIONS = 96 }; /* of one command, and the end of their table */

/* A command's option and the place of its value. Lists end with {0}. */
typedef struct OptionSlot {
    const char *name;
    void *into;
} OptionSlot;

typedef struct Command {
    const char *name, *usage, *what;
    int (*run)(int argc, char **argv);
} Command;

extern const Command command_table[];
extern const int command_count;

/* Fills a table of MOST_OPTIONS with what a command takes. A value goes to the slot of its name,
 * or, where there is none, to its member of o (NULL: none has one). */
void options_bind(Option *table, const char *command, tn_options *o, const OptionSlot *slot);
void options_default(const Option *table); /* stores the defaults */
/* Both. */
void options_begin(Option *table, const char *command, tn_options *o, const OptionSlot *slot);
double option_number(const char *name); /* the default of a row of options.def */
/* A row of the commands of which some take an option of that name, as it is spelled or with _ for -
 * and capital letters; NULL: none. */
bool option_spelled(const char *word, const char *option);
const Option *option_elsewhere(const char *word);
const char *option_argument(const Option *o); /* as help shows it */
const char *option_default(const Option *o);  /* the same; NULL: nothing is shown */

/* ---- pareto.c ---- */

/* A graph whose curve is shown, and how. */
typedef struct Pareto {
    tn_graph *graph;
    const char *passes;
    const tn_options *o;
    int json;
    FILE *to;         /* text or JSON */
    const char *html; /* a file for the page, or NULL; with the title and the command in it */
    const char *title, *command;
} Pareto;

/* Shows the curve; returns an exit code. */
int pareto(tn_context *ctx, const Pareto *x);

/* ---- train_data.c ---- */

struct TrainOptions;
/* Gives a model as many tokens as its tokenizer has. */
int train_resize(tn_context *ctx, const struct TrainOptions *t, tn_model *m);
/* Fails where adapters have no folder of weights that they belong to. */
int train_base(tn_context *ctx, const struct TrainOptions *t, const tn_model *m);
/* The numbers of --weight, one for each --data; -1, or an exit code. */
int train_weights(const Texts *w, int ndata, double *weights);
/* Fails (2) where a run on ranks is to write samples; one that goes on goes on without them. Else
 * -1. */
int train_samples(const tn_options *o, struct TrainOptions *t);

/* ---- options.c ---- */

/* Parses argv[1..]: options into their places, the rest into args. Returns -1 to go on, or an exit
 * code: 0 after --help, 2 after a wrong option, which is reported with the nearest right one. */
int options_parse(const Command *c, int argc, char **argv, Option *table, Texts *args, int least,
                  int most);
/* Takes options from a JSON file, by their names, but those that the command line has given. What
 * they then hold lives in *kept. Returns as options_parse. */
int options_config(const Command *c, Option *table, const char *path, struct json_t **kept);
bool option_given(const Option *table, const char *name);
/* The first of these options, names separated by spaces, that was given; NULL: none. */
const char *options_any(const Option *table, const char *names);
/* Fails (2) where one of these options, names separated by spaces, was given; else -1. */
int options_refuse(const Command *c, const Option *table, const char *names, const char *why);
/* The same for options that passes alone read. */
int options_refuse_passes(const Command *c, const Option *table, const char *why);
bool option_within(const Option *o, double x);         /* its range */
bool word_among(const char *words, const char *value); /* separated by spaces or by | */
const Command *command_find(const char *name);

bool took_long(time_t began); /* whether progress is told where no terminal shows it */
/* A NaN without its sign, which printf would show. */
double plain_nan(double x);

/* A context; without memory, ends the program. */
tn_context *context_new(void);

/* Prints "tenon: message" on standard error; returns the code. */
int report(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
int report_last(int code, const tn_context *ctx); /* the context's message */
void warn(void *arg, const char *message);        /* for tn_options.warn */
int fuse_asked(const char *word);                 /* whether --fuse is on; of fast a note */

/* ---- write_text.c ---- */

/* Writes a text file, aside and renamed; "-" is standard output. Returns an exit code. */
int write_text(const char *path, const char *text);
/* Fails where write_text() to it would, before the text is made. */
int check_writable(const char *path);

/* ---- foreign_options.c ---- */

/* Advice where other trainers have an option or a command of that name; NULL: none has. */
const char *foreign_option(const char *word);
/* The same of a value that one of Tenon's options does not take. */
const char *foreign_value(const char *option, const char *value);
const char *foreign_command(const char *word);

/* ---- output_is_input.c ---- */

/* Fails (2) where a file to be written (OPT_OUT) is one that is read (OPT_IN, OPT_INS, the
 * arguments; of folders the files of models) or that is written twice, and (1) where a file cannot
 * be written, before anything else is done; else -1. */
int check_paths(const Command *c, const Option *table, const Texts *args);
/* Fails (2) where a folder that an option has renamed has what is read, or is worked in; else -1.
 */
int check_renamed(const Command *c, const char *option, const char *folder, const Option *table,
                  const Texts *args);

/* ---- resume.c ---- */

/* An option's value, new; a text that is not UTF-8 becomes null. */
struct json_t *option_value(const Option *o);
/* Whether a value is that of an option that was not given, which no command line can say. */
bool option_absent(const Option *o, const struct json_t *value);
/* Fails (2) where a folder, given as that of a run, is one of its checkpoints; else -1. */
int resume_not_inside(const char *out);
/* Fails (2) where a text that state.json would keep is not UTF-8; else -1. That of --out is given
 * again with --resume. */
int options_storable(const Command *c, const Option *table);
/* The values of all options, for state.json: a new object. */
struct json_t *options_describe(const Option *table);
/* Takes what was not given from the values stored in the folder `where`, borrowing their texts, and
 * refuses what was given otherwise. Returns -1 to go on, or an exit code. */
int options_resume(Option *table, const struct json_t *stored, const char *where);
/* Fails (2) where --adapter is given again, and is not what the run began with: it goes on with the
 * adapters of its checkpoint. Else -1. */
int resume_adapter(const Option *table, const char *now, const struct json_t *stored);
/* Checks that the state in the folder `where` agrees with the options beside them, and that it
 * is of no later version. Returns -1 to go on, or an exit code. */
int state_check(const struct json_t *state, const char *where);

/* ---- fit.c ---- */

enum { MEMORY_AUTO = -1 }; /* in tn_options.memory, of --memory auto, until it is known */

/* Makes --memory auto bytes; an exit code, or -1 to go on. ranks: of a mesh that is "auto". */
int memory_find(tn_context *ctx, tn_options *o, int64_t ranks);

/* A command that does not fit. */
typedef struct FitAdvice {
    tn_task task; /* with what may vary */
    const tn_options *o;
    int argc; /* the command line, from the command's name on */
    char **argv;
    const char *note; /* a line before what would fit; NULL: none */
} FitAdvice;

/* Makes a task say how far tn_compile is, where standard error is a terminal. */
void fit_tell(tn_task *task);
/* After a call that failed with code FIT: prints its error, which has the least that would do, and
 * the command line that fits, or what needs least. */
void fit_report(tn_context *ctx, const FitAdvice *f);
/* The same after tn_compile has looked for what would fit. */
void fit_print(const tn_context *ctx, const FitAdvice *f, const tn_compiled *c);
/* Writes a command line that a shell reads as it was, without the options in `drop` (NULL: none;
 * names with --, a NULL last) and their values. */
void command_put(FILE *f, const char *program, int argc, char **argv, const char *const *drop);

/* ---- common.c: what train, grad and plan share ---- */

typedef struct Common {
    tn_options o;
    Texts freeze, no_decay, rules, shardings, pins, what_if, chunk;
    tn_rule rule[64];
    int64_t threads, batch, seq;
    const char *fuse, *sequence_parallel;
    const char *lora, *adapter; /* of the model; NULL: none */
    double comm_timeout;
    int log_ranks;
} Common;

/* --seq-len of the run that wrote a checkpoint, 0 where there is none: a model knows no positions
 * but those it was trained on. */
int64_t trained_length(const tn_model *m);
/* Returns the TN_VARY_ flags of what may change where a step of the model does not fit: a graph has
 * its batch, and one with its backward takes no microbatches. */
int model_vary(const tn_model *m);
/* Fails (2): a graph of these rows and tokens is given others; 0: none is. */
int refuse_sizes(tn_context *ctx, const char *graph, const int64_t of[2], const int64_t given[2]);
/* Takes the batch from a model that is a graph, and whether it shifts its labels itself: as
 * `labels` says, which may be NULL, as its run was told, or as is found. same NULL: labels do not
 * matter. Returns 0 for another model, 1, or fails (2) where another batch is asked for, or nothing
 * says what labels are. */
int graph_batch(tn_context *ctx, const tn_model *m, Common *c, const char *labels, bool *same);

/* Opens M with the adapters that options ask for, of which NULL asks for none. Returns a code. */
int model_open(tn_context *ctx, const char *path, const char *lora, const char *adapter,
               tn_model **m);
/* The same for a command that computes with the weights: adapters of a run were trained for those
 * that it began with. Others fail, and are taken with a warning where `adapter` names the folder.
 */
int model_open_as_trained(tn_context *ctx, const char *command, const char *path, const char *lora,
                          const char *adapter, tn_model **m);
/* Fails (2) where options of adapters exclude each other, or what is given; else -1. */
int check_adapters(const Command *c, const Common *x);

void common_apply(Common *c);
/* Fails (2) where an option of meshes was given that nothing would read; passes may be NULL: those
 * of a model; else -1. A mesh "none" becomes NULL. */
int check_mesh(const Command *c, const Option *table, const char *passes, bool graph, Common *x);
/* Fails (2) where an option of chunking was given that nothing would read; passes as above. */
int check_chunk(const Command *c, const Option *table, const char *passes, const Common *x);
/* Fails (2) where an option of one optimizer was given and another is chosen; else -1. */
int check_optimizer(const Command *command, const Option *table, const tn_options *o);
/* The same for models, whose weights have the dtype that options say. */
int check_rounding(const Command *command, const Option *table, const tn_options *o);

/* Places in Common of what is not in its tn_options. */
/* clang-format off */
#define COMMON_SLOTS(c)                                                                 \
    {"freeze", &(c).freeze}, {"no-decay", &(c).no_decay}, {"save", &(c).rules},         \
    {"recompute-rule", &(c).rules}, {"offload", &(c).rules}, {"chunk", &(c).chunk},     \
    {"fuse", &(c).fuse}, {"threads", &(c).threads}, {"shard", &(c).shardings},          \
    {"pin", &(c).pins}, {"what-if", &(c).what_if},                                      \
    {"sequence-parallel", &(c).sequence_parallel},                                      \
    {"comm-timeout", &(c).comm_timeout}, {"log-ranks", &(c).log_ranks},                 \
    {"lora", &(c).lora}, {"adapter", &(c).adapter}
/* clang-format on */

/* ---- check_passes.c ---- */

/* A list of passes, and the graph that they are for; NULL: it is not read yet. */
typedef struct PassList {
    const char *names;
    tn_graph *graph;
} PassList;

/* Fails (2) where an option was given that no pass of the list reads; passes may be NULL; else -1.
 */
int check_passes(const Command *c, const Option *table, const char *passes, const Common *x);
/* The same once the graph is read, whose pipelines may be others. Returns as functions of the API
 * do; tn_error begins with the prefix. */
int check_passes_of(tn_context *ctx, const char *prefix, const Option *table, const PassList *l,
                    const Common *x);
/* The same of an open model whose step is made by default; --rounding needs weights in bf16. */
int check_model(tn_context *ctx, const char *prefix, const Option *table, const tn_model *m,
                const Common *x);

/* ---- run.c ---- */

/* The program of a graph's file, as it is written; refuses (2) that of one of many ranks. */
int program_of_graph(tn_context *ctx, const char *path, const tn_options *o, tn_plan **p,
                     tn_program **x);

/* ---- same_command.c ---- */

/* Fail (2) on all ranks where one has another command line than rank 0; else return 0. */
int alike_command(tn_context *ctx, const Command *c);
int alike_options(tn_context *ctx, const Command *c, const Option *table, const Texts *args,
                  bool help);

/* ---- train_graph.c ---- */

struct TrainOptions;

bool train_is_graph(const struct TrainOptions *t); /* whether M names a graph */
/* Opens the model or graph that a run trains, of one that goes on its checkpoint's. */
int train_open(tn_context *ctx, const struct TrainOptions *t, tn_model **m);
/* The search of --mesh auto for the model that train_open opens. */
struct MeshCommand train_mesh(const struct TrainOptions *t, const tn_options *o);
/* Fails (2) where a graph is given options of models, or no weights; else -1. */
int train_graph_options(const Option *table, const struct TrainOptions *t, const tn_options *o);
/* Takes the batch's sizes and what its labels are from a graph; fails where options say otherwise.
 */
int train_take_graph(tn_context *ctx, const tn_model *m, struct TrainOptions *t,
                     const Option *table);

/* ---- write_json.c ---- */

struct json_t;
/* Prints o, which it releases, and a line's end. Returns a code; o NULL: out of memory, reported.
 */
int write_json(FILE *f, struct json_t *o);

/* ---- meshes.c ---- */

/* The search of --mesh auto. */
typedef struct MeshCommand {
    const char *model, *passes; /* passes: NULL: those of a step */
    const char *lora, *adapter; /* NULL: none */
    int64_t batch, seq, ranks;
    const tn_options *o;
    int json;
} MeshCommand;

bool mesh_auto(const tn_options *o);
/* Returns a code; found is filled where none fits, too. */
int meshes_find(tn_context *ctx, const MeshCommand *x, tn_meshes *found);
int meshes_print(tn_context *ctx, const MeshCommand *x, FILE *to);

/* ---- launch.c ---- */

/* The ranks that run a command: one, those that a launcher has started, or threads of this process.
 */
typedef struct Launch {
    const Command *c;
    tn_context *ctx;
    int held[2]; /* standard output and error, where what is written there is held back; else -1 */
    int text;    /* what is; -1 */
} Launch;

/* Before a command reads its arguments: under a launcher joins its ranks, and holds back what they
 * print. Returns -1 to go on, or an exit code. */
int launch_begin(Launch *l, const Command *c, int argc, char **argv);
/* Holds back what ranks but the first print, until they agree on what came of it: */
void launch_hold(Launch *l);
/* all return the code of the first that has one, else their own, and the error stands once. */
int launch_agree(Launch *l, int code);
/* The same after a command line was parsed, which must be one on all ranks: who has another is
 * named. */
int launch_parsed(Launch *l, int code, const Option *table, const Texts *args);
/* check_mesh, for a command that runs; and refuses (2) standard input where there is a mesh. */
int launch_check(const Command *c, const Option *table, Common *x);
/* Runs the command on each rank of the mesh, and returns their exit code. arg is shared and only
 * read; told: that the error is on standard error already, which else is printed once. */
int launch_run(Launch *l, const Common *x, int (*run)(tn_context *ctx, const void *arg, bool *told),
               const void *arg);
/* The same on n ranks, each of which has a file of its own. */
int launch_each(Launch *l, const Common *x, int n,
                int (*run)(tn_context *ctx, const void *arg, bool *told), const void *arg);
int launch_ranks(void); /* that were started; 1 without a launcher */
/* The ranks of a mesh "dp=2,tp=4"; 0: malformed, which the passes say. */
int64_t launch_mesh_ranks(const char *mesh);

/* The fastest of the meshes, and what goes with it, on all ranks alike. */
typedef struct MeshWords {
    char mesh[80], reshard[16], recompute[40];
} MeshWords;

/* Rank 0 looks for meshes for the ranks that were started, each with so many threads (0: its share
 * of the cores), unless `code` says that something has failed. Returns -1, or a code that is
 * reported. */
int launch_mesh(Launch *l, MeshCommand *m, int64_t threads, int code, MeshWords *to);
void launch_drop(Launch *l);

/* Makes --memory auto bytes, the least of what all ranks have; an exit code, or -1 to go on. */
int launch_memory(Launch *l, tn_options *o);

/* Whether this rank prints what is the same on all of them. */
bool rank_first(const tn_context *ctx);
/* The options of a rank; warnings are printed once. */
tn_options rank_options(const tn_context *ctx, const Common *x);
/* Makes rank 0's machine that of all; fails unless it is what runs the plan. */
int rank_machine(tn_context *ctx, tn_options *o);
/* Writes the inputs of a program: of a batch the rows that this rank has. */
struct Batch;
int rank_write(tn_context *ctx, tn_plan *p, tn_program *x, const struct Batch *all);
/* After what may have failed on this rank alone, while others wait for it: then it ends all of
 * them. Returns the code. */
int rank_ran(tn_context *ctx, int code);

/* ---- the commands, one function each ---- */
#define COMMAND(name, usage, what) int command_##name(int argc, char **argv);
#include "command.def"
#undef COMMAND

#endif
