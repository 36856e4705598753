/* run: the objects behind tenon.h, and the engines that its calls start: tuning, saving and
 * restoring, ranks, inputs and outputs piece by piece. */
#ifndef TENON_RUN_H
#define TENON_RUN_H

#include "../../include/tenon.h"

#include "../decide/decide.h"
#include "../exec/exec.h"
#include "../model/model.h"
#include "../place/place.h"

#include <sys/types.h>
#include <time.h>

/* A file as it was when its checksums were looked at. */
typedef struct SeenFile {
    dev_t device;
    ino_t number;
    off_t nbytes; /* -1: it cannot be looked at */
    struct timespec written;
} SeenFile;

enum { MOST_SEEN = 64 };

struct tn_context {
    Ctx ctx;
    Arena *a; /* what belongs to the context is freed by its deferred calls */
    struct Handle *live;
    bool warned_slow; /* that bf16 is slow here */
    Comm *comm;       /* to the ranks of which this context is one; NULL: it is alone */
    Arena *joined;    /* what that takes */
    Stream *stream;   /* of tn_limit_streams, kept, as it takes long to get; NULL: not yet */
    struct RankThread *thread; /* of tn_ranks_run, NULL: none */
    SeenFile seen[MOST_SEEN];  /* the last files that were verified */
    int nseen;                 /* all that were */
};

/* The head of every object: its context and its own memory. */
typedef struct Handle {
    tn_context *owner;
    Arena *a;
    struct Handle *prev, *next; /* in the context's list */
    bool kept;                  /* the call that has made it did not fail */
} Handle;

/* Whether collectives of a block are one call, of a step that tn_compile has planned. */
typedef struct BucketChoice {
    const char *asked, *taken; /* words of --bucket; NULL: nothing is known */
    const char *why;           /* of a choice; NULL: there was none */
    bool chosen;               /* taken by the clock, now or before */
    double joined, apart;      /* seconds of a step, as asked for or by blocks, and with all calls
                                  alone; 0: that was not planned */
    bool told;                 /* apart is what a short step tells */
} BucketChoice;

/* Texts of a graph of which the last one is kept. */
typedef enum GraphText {
    GRAPH_PRINT,
    GRAPH_DIFF,
    GRAPH_DOT,
    GRAPH_MESH,
    GRAPH_FX,
    GRAPH_TEXTS
} GraphText;

struct tn_graph {
    Handle h;
    const char *said[GRAPH_TEXTS]; /* what was given last, NULL: not asked for yet */
    Graph *g;
    Decisions decisions; /* of the passes that ran */
    ChunkReport chunk;   /* likewise */
    AgainReport again;   /* likewise */
    double rival;        /* seconds of another step, for plans that are taken if they are faster */
    ShardReport sharded; /* how spmd has chosen forms, if it was asked to */
    BucketChoice bucket;
    int64_t rows, filled; /* of a model's batch, and how many of them are no padding */
    int64_t iterations;   /* of the batch: in each of them padding lies after the others */
    const char *tied;     /* the embedding's name, of a model whose head it is too; else NULL */
    bool reorder;         /* its plan is ordered by plan_ordered, whatever its rows */
    bool unpriced;        /* its report needs no prices of other forms */
    bool asks;            /* its last pin is asked about */
    ShardKnown *known;    /* of the same step with other forms; NULL: nothing is */
    int asked_shardings;  /* rules that are not of a choice; 0: all */
    Globs adapters;       /* what alone is trained, of a model with adapters */
    bool own; /* this rank's alone: others have graphs, inputs and outputs of their own */
};

/* A file that goes into the model's checkpoints as it is. */
typedef struct Companion {
    const char *name;
    int fd;
    struct Companion *next;
} Companion;

/* A graph in the place of a configuration (graph_model.c). */
typedef struct GraphModel {
    const Graph *g;
    const char *weights;      /* the file of them, for messages */
    const Port *ids, *labels; /* inputs of g; labels NULL: it has none */
    int64_t vocab;            /* rows of the table that ids index */
    const char *shift; /* "same": it shifts labels, and takes the tokens; "shifted": it does not;
                          NULL: not known */
} GraphModel;

struct tn_model {
    Handle h;
    GraphModel *graph; /* NULL: config says what it is */
    Companion *companion;
    ModelConfig config;
    TensorFile *file;     /* NULL: a preset, initialised by its seed */
    TensorFile *adapters; /* of config.lora; NULL: none, or new ones, initialised by a seed */
    const char *folder;
    const char *base; /* absolute path of the folder of `file`, which names it; NULL: no folder */
    int nread;        /* files that it was read from: the configuration, weights, the tokenizer's */
    const char **read;
    const ModelParam *param;
    int nparam;
    int64_t verified; /* of so many ranks this has checked the checksums of its files; 0: not yet */
};

/* Texts of a plan of which the last one is kept. */
typedef enum SaidText {
    SAID_JSON,
    SAID_REFUSAL,
    SAID_DECIDED,
    SAID_MACHINE,
    SAID_PLAN,
    SAID_STEPS,
    SAID_EXPLAIN,
    SAID_TRACE,
    SAID_PAGE,
    SAID_COMPARE,
    SAID_COMPARE_JSON,
    SAID_EXPORT,
    SAID_TEXTS
} SaidText;

struct tn_plan {
    Handle h;
    tn_graph *graph;
    Plan *p;
    int64_t limit;       /* the options' memory */
    bool fits;           /* into it */
    tn_setting others;   /* the least of other options, where that is less; nbytes 0: it is not */
    int64_t *rows, nrow; /* of the whole batch, that this rank has; NULL: not asked for yet */
    const char *said[SAID_TEXTS]; /* what was given last, NULL: not asked for yet */
};

struct tn_program {
    Handle h;
    tn_plan *plan;
    Program *x;
    const char **names; /* of inputs, then of outputs: for messages */
    bool shares;        /* the arena of another */
    bool lacks;         /* ranks that its collectives need */
    bool fast;          /* its sums are the library's */
    int64_t shard;      /* most bytes of a file of weights; 0: any */
    char *stage;        /* nstage bytes of the host; NULL: it can touch all memory */
    int64_t nstage;
    Type *whole; /* by input: of what ranks have parts; without padding once `sized` */
    bool sized;
    Arena *traced;        /* of the trace; NULL: none was asked for yet */
    const tn_call *calls; /* what was given last, of `nrecorded` calls and runs; NULL: nothing */
    int ncalls;
    int64_t nrecorded;
    char error[800]; /* why the last call failed, of those that may run at once with others */
    char fault[400];
};

/* ---- args.c: what functions ask of their arguments; false after an error with code USAGE ---- */

#define MOST_WINDOW  ((int64_t)1 << 53) /* so that first + stride * batch does not overflow */
#define MOST_PORTS   (1 << 20)
#define MOST_VOCAB   ((int64_t)1 << 32)
#define MOST_THREADS 4096
#define MOST_BUFFERS ((int64_t)1 << 26)
#define MOST_EFFORT  1000000

/* The context of an object, NULL of NULL. */
static inline tn_context *args_owner(const void *handle)
{
    return handle ? ((const Handle *)handle)->owner : NULL;
}

/* Those named are not NULL. */
#define GIVEN(ctx, ...)                                                             \
    args_given((ctx), __func__, #__VA_ARGS__, LEN(((const void *[]){__VA_ARGS__})), \
               (const void *[]){__VA_ARGS__})
/* The same, as an error of a program. */
#define GIVEN_TO(x, ...)                                                             \
    args_given_to((x), __func__, #__VA_ARGS__, LEN(((const void *[]){__VA_ARGS__})), \
                  (const void *[]){__VA_ARGS__})
/* Those named are from low to high. */
#define WITHIN(ctx, low, high, ...)                                                   \
    args_within((ctx), __func__, #__VA_ARGS__, LEN(((const int64_t[]){__VA_ARGS__})), \
                (const int64_t[]){__VA_ARGS__}, (low), (high))

bool args_given(tn_context *ctx, const char *call, const char *names, int n, const void *const *p);
bool args_given_to(tn_program *x, const char *call, const char *names, int n, const void *const *p);
bool args_within(tn_context *ctx, const char *call, const char *names, int n, const int64_t *x,
                 int64_t low, int64_t high);
bool args_kin(const char *call, const void *x, const void *y); /* two objects are of one context */
bool args_list(tn_context *ctx, const char *call, const char *name, int n, const char *const *list);
bool args_traced(const char *call, const tn_program *x); /* its runs are recorded */
/* One plan, or two of one context, each with its side. */
bool args_plans(const char *call, tn_plan *const *plans, const char *const *side, int count);
bool args_options(tn_context *ctx, const char *call, const tn_options *o);

/* ---- handle.c ---- */

/* A new object of `size` bytes that begins with a Handle, freed with `call` unless it is kept:
 * handle_keep returns it. Unwinds without memory. */
void *handle_new(tn_context *ctx, Arena *call, size_t size);
void *handle_keep(void *handle);
void handle_free(Handle *h);

/* Stores the message as the program's, not its context's; returns code. */
int program_fail(tn_program *x, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- weights.c ---- */

/* The folder that holds config.json: path itself, or of a training run its latest checkpoint; else
 * NULL. */
const char *model_folder(Arena *a, const char *path);
/* The folder that it is where it is a link of a run, such as `latest`, which may name another one
 * between the reading of two files; NULL where it is NULL. */
const char *model_folder_linked(Arena *a, const char *folder);

/* Fails where a folder's state.json, if a run has written one, does not have its checksum. */
void model_check_state(Arena *a, const char *folder);
/* Fails where a tensor of a file does not have the checksum that the file says. The context notes
 * the file, so that it is not read for that again while it is as it was. */
void weights_verify(tn_context *ctx, const TensorFile *f);
/* The same of a model; looks once at each tensor, of which every rank of the mesh has its share. */
void model_verify(tn_model *m, const Mesh *mesh);
const ModelParam *model_param(const tn_model *m, const char *name); /* NULL where absent */
/* The model's parameter for a plan's; fails where there is none, or one of another shape. */
const ModelParam *model_get_param(const tn_model *m, const Plan *plan, const PlanPort *p);
/* Fails where the plan's parameters are not the model's. */
void model_check(const tn_model *m, const Plan *p);

/* ---- adapters.c ---- */

/* The folder of adapters: path itself, or of a training run its latest checkpoint; else NULL. */
const char *adapters_folder(Arena *a, const char *path);
/* Whether the folder is of adapters alone: opening it opens their base. */
bool adapters_alone(Arena *a, const char *folder);
void adapters_new(tn_model *m, const char *text);              /* as lora_parse reads it */
void adapters_open(tn_model *m, Arena *a, const char *folder); /* in the place of any */
/* Fails where the folder's files are not whole, but for the numbers of the tensors it returns. */
TensorFile *adapters_check(Arena *a, const char *folder);
/* Fills a port with the first value of a magnitude, its weight's norms. */
void adapters_magnitude(const tn_program *x, const tn_model *m, Arena *tmp, const PlanPort *p,
                        const ModelParam *magnitude, uint64_t seed);
/* The patterns of what is trained of a model with adapters. */
Globs adapters_trained(const tn_model *m, Arena *a);

/* ---- merge.c ---- */

void merge_write(const tn_model *m, Arena *a, const char *folder, const char *dtype, int64_t shard,
                 tn_merged *merged);

/* ---- folder.c: folders that are written aside, and then renamed ---- */

void folders_make(Arena *a, const char *path); /* those that are not there */
void folder_sync(Ctx *ctx, const char *path);
/* Removes a folder with its contents; links are not followed. Returns 0 or -1 with errno. */
int folder_remove(const char *path);
void folder_drop(void *path); /* the same, for arena_defer */
/* Gives what was written aside its name. An earlier folder of that name goes. */
void folder_put(Arena *a, const char *aside, const char *path);

/* ---- graph_model.c ---- */

/* Makes m, new, the model of a graph's file with weights of a file or folder. */
void graph_model_open(tn_model *m, const char *path, const char *weights);
const char *graph_model_file(Arena *a, const char *folder); /* its graph.tn; NULL: it has none */
const char *graph_model_text(const tn_model *m, Arena *a);
const char *graph_model_hash(const tn_model *m, Arena *a); /* of its text */
/* Fails where the graph of a checkpoint is another than the one that was saved. */
void graph_model_check(const tn_model *m, Arena *a, const char *folder);
/* The tensor of the weights for a plan's input. */
const TensorEntry *graph_model_tensor(const tn_model *m, const PlanPort *p);
/* A copy whose batch inputs are input_ids and labels. */
Graph *graph_model_graph(const tn_model *m, Arena *a);
/* Leaves the loss alone, without dropout, and what it is made of: of the inputs too. */
void graph_model_evaluates(Graph *g);
/* The passes that make its training step, where `passes` make one of a forward. */
const char *graph_model_passes(const tn_model *m, const char *passes);

/* ---- companion.c ---- */

bool companion_is(const char *name);                   /* whether a companion has that file name */
void companions_open(tn_model *m, const char *folder); /* those that are there */
void companions_write(const tn_model *m, Arena *a, const char *folder);
void companions_sizes(const tn_model *m, FileSizes *sizes); /* adds theirs */

/* ---- tensor_io.c: inputs and outputs piece by piece, wherever they lie ---- */

/* A buffer for the program to move what the host cannot touch; unwinds without memory. */
void stage_make(tn_program *x);
/* Where to put a port's bytes from `at` on: at most *nbytes, sets how many. In the host's memory
 * that is the port itself, all at once, so that nothing is copied. */
void *stage_room(const tn_program *x, const PlanPort *p, int64_t at, int64_t *nbytes);
void stage_done(const tn_program *x, const PlanPort *p, int64_t at, int64_t nbytes); /* they are */
/* A port's bytes from `at` on, likewise; valid until the next call. */
const void *stage_bytes(const tn_program *x, const PlanPort *p, int64_t at, int64_t *nbytes);
/* Puts elements [first, first + n) of a whole at `to`. */
typedef void GiveElements(void *arg, int64_t first, int64_t n, void *to);
/* Fills a port with this rank's part of a whole, and zeros where that is padding. */
void stage_part(const tn_program *x, Arena *tmp, const PlanPort *p, const Type *whole,
                GiveElements *give, void *arg);
void stage_zeros(const tn_program *x, const PlanPort *p);
/* Reads this rank's part of a tensor of a file into a port, as the port's dtype. */
void stage_tensor(const tn_program *x, Arena *tmp, const PlanPort *p, const TensorFile *f,
                  const TensorEntry *e, bool lossy);

/* ---- whole_shape.c: the wholes of which ranks have parts ---- */

/* Whether an input is state of no parameter, which lies among the weights in files. */
bool plan_is_buffer(const Plan *p, const PlanPort *port);
/* Whether a rank's port can be a part of a whole of that shape, of which the mesh need not divide
 * the axes that it cuts. */
bool part_fits(const Plan *p, const PlanPort *port, const Type *whole);
/* By input, the type of the whole: as the model says of parameters and their state; of the rest,
 * and where m is NULL, as large as all parts together. */
void part_wholes(const Plan *p, const tn_model *m, Type *whole);
/* The type of an output's whole; whole[] is by input. */
Type part_output(const Plan *p, const Type *whole, const PlanPort *out);

/* ---- memory_free.c ---- */

/* What the system has free for this process, by the files under a root; -1: they do not say. */
int64_t memory_free_under(const char *root);
/* Without what is left to the process itself and to others. */
int64_t memory_less_margin(int64_t nbytes);

/* ---- write.c: files that all ranks write together ---- */

/* Writes a .safetensors file ("-": standard output) aside, syncs it and renames it to path; where
 * it fails, path is as before and nothing is left aside. The tensors are of the types of wholes,
 * and their data PlanPorts of x; NULL: zeros. summed: with checksums of them. */
void write_together(tn_program *x, Arena *with, const char *path, int n, const TensorOut *t,
                    bool summed);

/* ---- ranks.c ---- */

/* The comm between the ranks of x; NULL: its plan is for one. Fails where they have not joined.
 */
Comm *write_ranks(const tn_program *x);
/* Calls fn on every rank; where it fails on some, it fails on all as it did on the lowest. c NULL:
 * one rank. */
void ranks_do(tn_context *owner, const Comm *c, void (*fn)(void *arg), void *arg);
void ranks_share(tn_context *owner, const Comm *c, void *data, size_t nbytes); /* rank 0's */
/* The number of the device of this rank, where the first rank of its host has `first`: the others
 * take the next ones, around, so that several share one where there are fewer. */
int ranks_device(const tn_context *ctx, const Device *d, int64_t first);
void ranks_leave(tn_context *ctx); /* closes what the context has joined */

/* ---- ranks_check.c ---- */

/* Whether the plan is for several ranks, and the context one of some. */
bool ranks_run(const tn_plan *p);
/* Called by all ranks with the program that each has made, or the code by which it failed: lets
 * them run together, or fails alike on all where one has failed, or has another program than rank
 * 0: then the message says what differs. o NULL: options have been compared. */
int ranks_join(const tn_plan *p, tn_program *x, int code, const tn_options *o);

/* ---- ranks_graph.c ---- */

/* Fails alike on all ranks unless the collectives of their plans, of graphs of their own, match. */
void ranks_match(const tn_plan *p, Arena *a);

#endif
