/* tenon.h: the public interface of Tenon, a training-graph compiler and runtime.
 *
 * A graph is read, built, or made from a model; passes rewrite it; a plan gives every byte of a
 * step an address; a program runs the plan. Objects belong to their context and die with it, or
 * earlier by their own free function.
 *
 * Contexts share nothing: each may be used by a thread of its own. A context and what belongs to it
 * is used by one thread at a time, except by these calls, which touch one program and read its
 * plan: tn_program_run, tn_program_read, tn_program_write, tn_program_data, tn_program_bind,
 * tn_program_port, tn_program_fault, tn_program_fill, tn_program_high, tn_program_high_host,
 * tn_program_used and tn_program_error. They may run at once with calls on other objects, except
 * those that rewrite or free the plan's graph. So programs of one plan run in several threads; each
 * program is used by one thread at a time, and programs that share an arena count as one.
 *
 * Functions that can fail return 0 or one of the codes below; tn_error then has the message, or of
 * the calls above tn_program_error. Pointers returned are borrowed (valid until their object is
 * freed) unless marked TN_GIVE; pointers passed are only read during the call unless marked
 * TN_TAKE. Sizes are bytes, times seconds.
 *
 * NULL where nothing says that it is allowed, and a number out of range, is TN_CODE_USAGE, and the
 * message names the argument; functions that return no code do nothing then and return 0, NULL or
 * what they return where nothing is found. Sizes of batches, sequences and lists are at most
 * 2^31 - 1. What a call that failed would have written is as before, or 0. */
#ifndef TENON_H
#define TENON_H

/* Each field of a docstring begins a line; the formatter would join them. */
/* clang-format off */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TN_API __attribute__((visibility("default")))
#define TN_TAKE /* the callee takes ownership */
#define TN_GIVE /* the caller gets ownership and must free it */

enum {
    TN_CODE_OK = 0,
    TN_CODE_FAIL = 1,  /* bad file, I/O, numerical fault */
    TN_CODE_USAGE = 2, /* wrong option or argument */
    TN_CODE_FIT = 3    /* does not fit: memory, capacity */
};

typedef struct tn_context tn_context;
typedef struct tn_graph tn_graph;
typedef struct tn_value tn_value;
typedef struct tn_model tn_model;
typedef struct tn_data tn_data;
typedef struct tn_tokenizer tn_tokenizer;
typedef struct tn_plan tn_plan;
typedef struct tn_program tn_program;
typedef struct tn_generator tn_generator;
typedef struct tn_buffers tn_buffers;
typedef struct tn_sharding tn_sharding;

/* Which values of the forward the backward finds saved or computes again. */
typedef struct tn_rule {
    const char *policy;  /* "must_save", "prefer_save", "prefer_recompute", "must_recompute",
                          * "offload" */
    const char *pattern; /* of nodes: "SCOPE::OP", both patterns (*, ?, [...]) */
} tn_rule;

/* Why something does not fit, in bytes. */
typedef struct tn_misfit {
    int64_t limit;         /* options.memory, or what could be mapped; 0: not known */
    int mapped;            /* whether it is what could be mapped, or what a device had free */
    int64_t peak, reserve; /* that are needed: the arena, and what libraries take beside it */
    int64_t least;         /* the least that would do, of all that was planned */
    const char *holds;     /* lines: what holds the peak; valid as tn_error is */
} tn_misfit;

/* What the caller asks of a model's training step: start from tn_options_default. A comment says first
 * what the member may be and, in parentheses, its default; texts and lists are borrowed. */
typedef struct tn_options {
    /* begin header: made from src/base/options.def by tools/docs.sh */
    int64_t memory;                     /* (0): most bytes of plan and library reserve together;
                                         * 0: no limit */
    const char *memory_unit;            /* in which messages say bytes, see tn_bytes_text; NULL:
                                         * plain bytes */
    int64_t goal_memory;                /* (0): bytes of plan and library reserve that chunk and
                                         * recompute "auto" are to reach, whatever the limit is;
                                         * 0: memory */
    const char *decided;                /* what was decided of the same step before, by
                                         * tn_plan_decided, which is taken instead of a search;
                                         * NULL: nothing */
    int64_t persistent;                 /* (0): least bytes of a plan's persistent part: that of
                                         * the plan it shares with */
    int64_t persistent_host;            /* (0): the same of the host's memory, where that is
                                         * another: tn_plan_host_persistent */
    int64_t reserve;                    /* (0): least bytes of a plan's library reserve: that of
                                         * the plan it shares with */
    int64_t arena;                      /* (0): least bytes of a program's arena: for programs
                                         * that will share it */
    int64_t shard;                      /* (5000000000): most bytes of a file of weights that
                                         * tn_program_save writes; 0: any */
    uint64_t seed;                      /* any (0): of a preset's weights */
    int check;                          /* poison dead buffers, guard the arena, look for values
                                         * not finite */
    int64_t device;                     /* 0 to 1023 (0): the number of the GPU that runs a plan
                                         * for cuda; the first rank on a host takes it, the
                                         * others the next ones, around */
    const char *reduce;                 /* ordered|fast (ordered): sums over ranks: in the order
                                         * of the ranks, or the library's own, whose bits may
                                         * differ from run to run; NULL: ordered */
    double dropout;                     /* 0 to below 1 (0): probability */
    const char *pack;                   /* on|off (off): on: the graph has an input starts,
                                         * i64[batch, seq], of each position the first one of its
                                         * document: positions count from there and attention
                                         * does not look before it; NULL: off */
    double z_loss;                      /* 0 to 1e6 (0): times the mean of logsumexp squared,
                                         * added to the loss */
    double label_smoothing;             /* 0 to 1 (0): part of a label that all tokens share */
    int explain;                        /* tn_graph_passes looks for what might run in slices,
                                         * also where chunk is off, for tn_plan_explain */
    const char *const *freeze;          /* patterns of parameters that get no gradient; borrowed */
    int nfreeze;
    const char *dtype;                  /* f32|bf16 (f32): of computation; NULL: f32 */
    const char *param_dtype;            /* f32|bf16 (f32): of parameters; gradients and the
                                         * optimizer's state are f32 in any case; NULL: f32 */
    int64_t accumulate;                 /* 1 to 1e9 (1): parts of a step's batch, one after the
                                         * other; of tn_compile 0 too: the fastest number that
                                         * fits */
    const char *optimizer;              /* adamw|sgd|none (adamw): AdamW, gradient descent, or no
                                         * update */
    double weight_decay;                /* 0 to 1e6 (0.1): pull of weights towards 0, of tensors
                                         * of two or more dimensions */
    const char *const *no_decay;        /* patterns of parameters without weight decay; borrowed */
    int nno_decay;
    double beta1;                       /* 0 to below 1 (0.9): of adamw: what the mean gradient
                                         * keeps of itself */
    double beta2;                       /* 0 to below 1 (0.95): of adamw: what the mean square
                                         * keeps of itself */
    double eps;                         /* 1.2e-38 to 1e6 (1e-8): of adamw: added to the root of
                                         * the mean square */
    double momentum;                    /* 0 to below 1 (0): of sgd; 0: no state */
    const char *rounding;               /* stochastic|nearest (stochastic): how updated
                                         * parameters of 16 bits are rounded: stochastic, whose
                                         * mean is the update, or nearest, which loses small
                                         * ones; NULL: stochastic */
    double clip;                        /* 0 to 1e38 (1.0): largest global norm of the gradient;
                                         * 0: off */
    int dedupe_recompute;               /* the pass cse merges what the backward computes again
                                         * with the original */
    const char *recompute;              /* auto|none|full|every=K|selective (auto): what the
                                         * backward computes again, of which blocks; auto: what
                                         * memory needs, at the least time; NULL: auto */
    const tn_rule *rules;               /* policies of nodes, over recompute and over those in a
                                         * graph's text; the later wins */
    int nrules;
    int fuse;                           /* (1): whether the pass fuse makes one node of chains of
                                         * pointwise ops */
    const char *backend;                /* cpu|emulated|cuda (cpu): the device that passes and
                                         * plans are for; NULL: cpu */
    const char *machine;                /* NAME|FILE|none (NULL): by which kernels are chosen and
                                         * seconds estimated, such as h100; none: this processor
                                         * as shipped; NULL: as TENON_MACHINE says, else what
                                         * tn_tune has measured here, else as none */
    int64_t align;                      /* 1 to 4096 (0): bytes to whose multiples the pass align
                                         * pads rows of large logits, a power of two; 0: not
                                         * given, as the back end wants */
    const char *mesh;                   /* the ranks that run the step, such as dp=2,fsdp=4,tp=2;
                                         * NULL: one */
    int64_t rank;                       /* 0 to 2147483646 (0): whose graph it is, of the mesh's
                                         * ranks */
    const char *const *shardings;       /* rules PATTERN=AXIS:MESH_AXES that say how parameters
                                         * are cut, the last match holds; auto: what they leave
                                         * open is chosen for the shortest step; borrowed */
    int nshardings;
    const char *const *pins;            /* with shard auto: PATTERN=AXIS:MESH_AXES, the form in
                                         * which nodes make their first result, by SCOPE::OP or
                                         * its name; the last match holds; borrowed */
    int npins;
    const char *const *what_if;         /* with shard auto: pins, each of which is tried alone
                                         * beside the others, for the report; borrowed */
    int nwhat_if;
    double shard_exposed;               /* 0.01 to 1 (1): of shard auto: which share of gathering
                                         * parameters and reducing gradients no computing hides */
    int64_t shard_memory;               /* (0): of shard auto: bytes that a rank may keep, as the
                                         * choice counts them; 0: no limit */
    const char *shard_problem;          /* of shard auto: the file to which the problem is
                                         * written; NULL: none */
    const char *reshard;                /* auto|always|never (auto): whether gathered parameters
                                         * are dropped after the forward: always, never, or auto:
                                         * where a limit wants it, without one always; NULL: auto */
    const char *gpu_comm;               /* host|nccl (host): how ranks of cuda talk: host (by
                                         * MPI, through the host's memory) or nccl (GPU to GPU);
                                         * NULL: host */
    const char *bucket;                 /* auto|off|block|BYTES (auto): collectives of parameters
                                         * and of gradients that are made one call: off (none),
                                         * block (those of a block), or up to so many bytes;
                                         * auto: of tn_compile off or block, whichever makes the
                                         * faster step, else block; NULL: auto */
    const char *overlap;                /* on|off|chunked (on): whether collectives are moved to
                                         * run beside computing: on, in no more memory than the
                                         * limit, or than two more of a block's take; chunked,
                                         * where those before and behind products are taken apart
                                         * too, which may round these otherwise; or off; NULL: on */
    int sequence_parallel;              /* (1): whether tp cuts norms and residuals along the
                                         * tokens */
    const char *const *chunk;           /* off, auto, how many slices of the region that holds
                                         * the peak, and PATTERN=N: how many of that of a value,
                                         * by SCOPE or SCOPE::OP; the last match holds; none:
                                         * off; borrowed */
    int nchunk;
    const char *chunk_accumulate;       /* f32|same (f32): the dtype in which the slices'
                                         * gradients of weights are summed, or same: their own;
                                         * NULL: f32 */
    /* end */
    void (*warn)(void *arg, const char *message); /* told what is done but may not be meant; or NULL */
    void *warn_arg;
} tn_options;

/* ---- tables and help ---- */

/* The op table, one op with all it knows, or one of its rules, as text.
 * in: name, NULL for the table; rule "infer", "diff", "cost" or "factors", shown on the op's example,
 *     NULL for a summary
 * out: *text, valid until the next call with this context
 * error: unknown op or rule, naming the nearest
 * cost: none
 * from: `tenon ops`
 * see also: tn_passes */
TN_API int tn_ops(tn_context *ctx, const char *name, const char *rule, const char **text);

/* The pass table as text.
 * in: context
 * out: *text, valid until the next call with this context
 * error: no memory
 * cost: none
 * from: `tenon passes`
 * see also: tn_graph_passes */
TN_API int tn_passes(tn_context *ctx, const char **text);

/* Whether a list of passes, as tn_graph_passes takes it, runs one.
 * in: names, separated by commas; a pass or group of passes
 * out: 1 or 0; of a pipeline what it runs where there is no backward yet
 * error: none: unknown names run nothing
 * cost: none
 * from: `tenon opt --passes`
 * see also: tn_passes */
TN_API int tn_passes_have(const char *names, const char *pass);

/* The candidate nearest to a word by edit distance.
 * in: word; n candidates
 * out: one of the candidates; NULL where none is near: at most an edit for each four letters, or a part
 *     that begins with the word
 * error: none
 * cost: none
 * from: messages for wrong options
 * see also: tn_bytes */
TN_API const char *tn_nearest(const char *word, const char *const *candidates, int n);

/* Reads "12", "3GiB", "1.5 MB".
 * in: text
 * out: bytes, a part of one left away; -1 where malformed, or where bytes without a unit are not whole
 * error: none
 * cost: none
 * from: --memory
 * see also: tn_nearest */
TN_API int64_t tn_bytes(const char *text);

/* Bytes as text that tn_bytes reads.
 * in: nbytes; unit "KiB", "MiB", "GiB", "TiB", "kB", "MB", "GB" or "TB", else plain bytes; text of
 *     `size` bytes, 40 suffice
 * out: the text, which is returned: "1.47GiB", rounded up, or "1575386112"
 * error: none
 * cost: none
 * from: --memory, whose unit messages keep
 * see also: tn_bytes */
TN_API const char *tn_bytes_text(int64_t nbytes, const char *unit, char *text, size_t size);

/* A number of things as text.
 * in: n; noun, the word for one of them; text of `size` bytes
 * out: the text, which is returned: "1 value", "2 values", "3 copies"
 * error: none
 * cost: none
 * from: what commands print
 * see also: tn_bytes_text */
TN_API const char *tn_count_text(int64_t n, const char *noun, char *text, size_t size);

/* tn_memory_free leaves one part of so many of what is free, and so many bytes at least. */
enum { TN_MARGIN_PART = 16, TN_MARGIN_LEAST = 134217728 };

/* Finds the bytes that options.memory can be here: those that the device of options has free, less a margin
 * for the rest of the process and for others. A host has free what the system can give without swapping, no
 * more than the process's control groups (v1 and v2) leave, divided by the ranks of this host, or where no
 * ranks have joined by all of options.mesh.
 * in: options (backend, device, mesh)
 * out: *nbytes, at least 1; *margin, unless it is NULL: what is free beside them
 * error: a device that cannot be used, or a system that does not say
 * cost: a few small files
 * from: --memory auto
 * see also: tn_compile, tn_rss_peak */
TN_API int tn_memory_free(tn_context *ctx, const tn_options *options, int64_t *nbytes, int64_t *margin);

/* Peak resident size of this process.
 * in: nothing
 * out: bytes
 * error: none
 * cost: one system call
 * from: `tenon run --json`, rss_peak_bytes
 * see also: tn_program_high */
TN_API int64_t tn_rss_peak(void);

/* Makes a folder with its parents, where it is not there, and sees that files can be made in it.
 * in: path
 * out: the folder
 * error: the path and why
 * cost: a few system calls
 * from: --out, checked before training
 * see also: tn_program_save */
TN_API int tn_folder_make(tn_context *ctx, const char *path);

/* ---- context ---- */

/* The library's version and those of the libraries it uses, one per line, and the instruction set in use.
 * in: nothing
 * out: static text, the first line is "tenon MAJOR.MINOR.PATCH"
 * error: none
 * cost: none
 * from: build/tenon --version
 * see also: tn_context_new */
TN_API const char *tn_version(void);

/* A new context.
 * in: nothing
 * out: TN_GIVE context, or NULL without memory
 * error: where TN_ISA in the environment is wrong, tn_error says so, as does each call with the context (TN_CODE_USAGE)
 * cost: a few kilobytes
 * from: start of a program
 * see also: tn_context_free */
TN_API TN_GIVE tn_context *tn_context_new(void);

/* Frees a context and everything that belongs to it.
 * in: context (TN_TAKE), NULL allowed
 * out: nothing
 * error: none
 * cost: proportional to what is freed
 * from: tn_context_new
 * see also: tn_graph_free */
TN_API void tn_context_free(TN_TAKE tn_context *ctx);

/* The message of the last call that failed.
 * in: context
 * out: text: one line, then optional lines that begin with two spaces; valid until the next failure
 * error: none
 * cost: none
 * from: any function that returned a code other than TN_CODE_OK
 * see also: tn_program_error */
TN_API const char *tn_error(const tn_context *ctx);

/* Gives the numbers of memory in the last failure.
 * in: context
 * out: returned: 1 where the last call that failed did so because something does not fit, else 0; *misfit is
 *      filled then
 * error: none
 * cost: none
 * from: tn_plan_new, tn_compile, tn_program_new
 * see also: tn_error, tn_compile */
TN_API int tn_error_misfit(const tn_context *ctx, tn_misfit *misfit);

/* The defaults of all options.
 * in: nothing
 * out: options by value: AdamW, betas 0.9 and 0.95, eps 1e-8, weight decay 0.1, clip 1, no dropout
 * error: none
 * cost: none
 * from: `tenon train`
 * see also: tn_model_graph */
TN_API tn_options tn_options_default(void);

/* Stores a message of the caller's own as the context's last, printf style.
 * in: context; code; format and arguments
 * out: code, so that it can be returned
 * error: none
 * cost: none
 * from: programs that report errors in one way
 * see also: tn_error */
TN_API int tn_context_fail(tn_context *ctx, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The number of threads that tn_threads has set in this thread.
 * in: nothing
 * out: threads
 * error: none
 * cost: none
 * from: tn_threads
 * see also: tn_threads */
TN_API int tn_threads_used(void);

/* The library's version alone.
 * in: nothing
 * out: "MAJOR.MINOR.PATCH"
 * error: none
 * cost: none
 * from: tn_version
 * see also: tn_version */
TN_API const char *tn_version_number(void);

/* Sets the number of threads for the plans that this thread makes from now on. A plan keeps it: its programs run
 * with as many, whichever thread runs them, and their bits depend on it alone.
 * in: count of threads, at least 1 and at most 4096, which more count as; 0: the cores that the process may use
 * out: nothing
 * error: none
 * cost: none
 * from: --threads
 * see also: tn_plan_new */
TN_API void tn_threads(int count);

/* ---- ranks ---- */

/* A context may be one of several ranks, which run the parts of one step: then its options.mesh says
 * what each has, and options.rank is tn_rank. Ranks are processes that a launcher has started, or
 * threads; each has its context, and in it a model, a plan and programs of its own. What the calls below
 * say of all ranks they do together: all call them, in one order. tn_program_new and tn_program_share
 * of a plan for several ranks are such calls too, and so are tn_program_run where there are collectives,
 * tn_program_save, tn_program_write_file and tn_machine_share. Where a call fails on all ranks alike,
 * each may go on; where a rank fails alone, the others wait for it until it ends them by tn_ranks_end. */

/* How many ranks a launcher (mpirun, srun) has started, of which this process is one.
 * in: nothing
 * out: ranks; 0 where no launcher has started this process
 * error: none
 * cost: a look at the environment
 * from: mpirun -n
 * see also: tn_join, tn_ranks_run */
TN_API int tn_launched(void);

/* Whether this process is the first of those that a launcher has started on this host: who says what keeps
 * all of them from joining.
 * in: nothing
 * out: 1 or 0; 1 too where no launcher has started this process
 * error: none
 * cost: a look at the environment
 * from: OMPI_COMM_WORLD_LOCAL_RANK, MPI_LOCALRANKID, SLURM_LOCALID
 * see also: tn_launched, tn_join */
TN_API int tn_launched_first(void);

/* Makes a context one of the ranks that a launcher has started. All of them call it, once in a process.
 * in: context; timeout: seconds after which a message that another rank does not send is an error, 0: never.
 *     It holds within a step and for tn_agree; whatever else waits for a rank does so while its process
 *     answers: one that does not for that long, as it hangs or has died, ends all
 * out: context; the ranks part when it is freed
 * error: USAGE: no launcher, joined already; what all ranks of a host have alike: no module for this MPI,
 *        with what to install, another MPI, TENON_COMM_DELAY or TENON_COMM_LINK; FAIL: why MPI does not start
 * cost: what the start of MPI takes; a thread, which alone calls MPI and polls
 * from: MPI_Init_thread
 * see also: tn_launched, tn_ranks_run, tn_rank */
TN_API int tn_join(tn_context *ctx, double timeout);

enum { TN_RANKS = 4096 }; /* as threads, at most */

/* Runs ranks as threads of this process, each with a context of its own, which has joined and is freed
 * in the end. Rank 0 is run by the calling thread, and the others have as large a stack. Each begins with
 * as many threads for its plans as the caller has, divided by the ranks, but one at least. Where a rank
 * returns a code and not all others return within some seconds, it ends them as by tn_ranks_end.
 * in: count 1 to TN_RANKS; timeout, as tn_join; run(ctx, arg), whose messages are gone with its context
 * out: returned: 0; else the code of the lowest rank that returned one, of those that did before another
 *      ended them
 * error: USAGE: count, timeout or run, or what TENON_COMM_DELAY and TENON_COMM_LINK say; FAIL: no memory or
 *        no threads: run is not called then, and but for the arguments standard error has the reason
 * cost: a context and two threads for each rank
 * from: `tenon train --mesh` without a launcher
 * see also: tn_join, tn_rank */
TN_API int tn_ranks_run(int count, double timeout, int (*run)(tn_context *ctx, void *arg), void *arg);

/* Which rank the context is, how many there are, and how many of these are on this host.
 * in: context
 * out: a number from 0, and numbers from 1; of a context that has not joined 0, 1 and 1
 * error: none
 * cost: none
 * from: MPI_Comm_rank, MPI_Comm_size
 * see also: tn_join */
TN_API int tn_rank(const tn_context *ctx);
TN_API int tn_ranks(const tn_context *ctx);
TN_API int tn_ranks_here(const tn_context *ctx);

/* The maximum over all ranks of each number.
 * in: context; x i64[n]; n 1 to 64
 * out: x, on all ranks the same
 * error: another rank has ended or ended all, with its message; it did not come in time
 * cost: a message to each other rank
 * from: MPI_Allreduce, MPI_MAX
 * see also: tn_agree_code, tn_gather */
TN_API int tn_agree(tn_context *ctx, int64_t *x, int n);

/* Ends what one rank alone may have failed at: all ranks fail then, or none. It waits without end for those
 * that still are at it.
 * in: context; code: of this rank; where it is not 0 tn_error has the message
 * out: returned: 0 where no rank has a code; else that of the lowest rank that has one, whose message is
 *      tn_error then, with "rank N: " before it unless it is rank 0's
 * error: as tn_agree
 * cost: as tn_agree; of a failure a message of 2 kB more
 * from: phases such as loading and saving
 * see also: tn_ranks_end */
TN_API int tn_agree_code(tn_context *ctx, int code);

/* Gives rank 0's bytes to all ranks.
 * in: context; data of nbytes, at least 1 and on all ranks as many
 * out: data
 * error: as tn_agree, but without end of time
 * cost: rank 0 sends them to each other rank
 * from: MPI_Bcast
 * see also: tn_gather */
TN_API int tn_share(tn_context *ctx, void *data, size_t nbytes);

/* Gives the bytes of each rank to all ranks.
 * in: context; mine: nbytes, at least 1 and on all ranks as many; all: room for nbytes of each rank
 * out: all, in the order of ranks
 * error: as tn_share
 * cost: each rank sends its bytes to each other
 * from: MPI_Allgather
 * see also: tn_share */
TN_API int tn_gather(tn_context *ctx, const void *mine, size_t nbytes, void *all);

/* What options.machine should be, so that all ranks price by rank 0's machine: where that is a file, its
 * text, which other ranks may not have, or have otherwise. Where name is NULL and TENON_MACHINE is not set that is
 * the file that tn_tune made for rank 0's processor, if any, whatever options.backend says: for a device that
 * is no processor give the name of its machine.
 * in: context; name: options.machine as it was asked for, which rank 0 reads
 * out: *machine, valid as long as the context; of a context that has not joined the name itself
 * error: on all ranks: what is wrong with rank 0's file; as tn_agree
 * cost: reads the file
 * from: --machine
 * see also: tn_share, tn_machine_here */
TN_API int tn_machine_share(tn_context *ctx, const char *name, const char **machine);

/* Ends all ranks, because this one has failed alone. With MPI all processes end, and this does not return;
 * of ranks that are threads all calls that wait for others fail, now and later.
 * in: context, tn_error of which says why; code
 * out: the others' messages: "rank N: " and that one
 * error: none
 * cost: none
 * from: MPI_Abort
 * see also: tn_agree_code */
TN_API void tn_ranks_end(tn_context *ctx, int code);

/* Tells where a request to stop will be noted. Once there is one, a rank whose process does not answer for
 * 5 seconds ends all, whatever the timeout of tn_join: it may have been killed, and the others shall not
 * wait for it until their launcher kills them too.
 * in: context; stop, which is 0 until then and which a signal handler, or a thread that waits for signals, may
 *     set: valid until the context is freed; NULL: nowhere
 * out: nothing
 * error: none
 * cost: none
 * from: srun --kill-on-bad-exit
 * see also: tn_join, tn_ranks_end */
TN_API void tn_ranks_stop(tn_context *ctx, const volatile int *stop);

/* What this rank has received from others, and how long it has waited for them, since it joined.
 * in: context
 * out: *nreceived bytes; *waited seconds in which the caller did nothing else
 * error: none
 * cost: none
 * from: `tenon train`, share of communication
 * see also: tn_program_run */
TN_API int tn_ranks_count(const tn_context *ctx, int64_t *nreceived, double *waited);

/* ---- graphs ---- */

/* Parses a graph from .tn text and verifies it.
 * in: NUL-terminated text; file, a name for messages
 * out: *graph
 * error: FILE:LINE:COLUMN, what was expected and what was found; or the node and the rule it breaks
 * cost: linear in the text
 * from: formats.md, "Graphs"
 * see also: tn_graph_read, tn_graph_print */
TN_API int tn_graph_parse(tn_context *ctx, const char *text, const char *file, tn_graph **graph);

/* Reads a graph from a .tn file.
 * in: path, "-" for standard input
 * out: *graph
 * error: as tn_graph_parse; or why the file cannot be read
 * cost: linear in the file
 * from: formats.md, "Graphs"
 * see also: tn_graph_parse */
TN_API int tn_graph_read(tn_context *ctx, const char *path, tn_graph **graph);

/* The graph's text; parsing it and printing again gives the same bytes.
 * in: graph
 * out: *text, valid until the graph is freed
 * error: no memory
 * cost: linear in the graph
 * from: formats.md, "Graphs"
 * see also: tn_graph_parse */
TN_API int tn_graph_print(tn_graph *g, const char **text);

/* Says how two graphs differ, one of which became the other: inputs, nodes and outputs that were added (+),
 * removed (-), changed (~) or moved (>), a line for each, after one with counts. Nodes are one another's by
 * the name of their first result.
 * in: before, after, graphs of one context
 * out: *text, valid until `after` is freed
 * error: no memory
 * cost: n log n in the nodes, and n for each body of a region
 * from: `tenon opt --diff`
 * see also: tn_graph_print, tn_graph_passes */
TN_API int tn_graph_diff(tn_graph *before, tn_graph *after, const char **text);

/* One half of a step: the forward with the loss, or the backward with the optimizer. The second reads values of
 * the first, which are outputs without a role of the one and inputs without a role of the other, of one name; a
 * metric or loss among them is an output twice. Both have the inputs that they read. The second alone renews a
 * state that it reads. Run one after the other they give what the step gives.
 * in: graph with a backward; backward: 0 or 1, which half
 * out: *half, a graph of its own
 * error: there is no backward, or a loop runs forward and backward in turn (accumulate); what the host keeps
 * cost: linear in the graph
 * from: `tenon opt --split forward`; the two graphs of AOTAutograd's partitioners
 * see also: tn_graph_passes */
TN_API int tn_graph_split(tn_graph *g, int backward, tn_graph **half);

/* The graph as a Graphviz drawing.
 * in: graph
 * out: *text, valid until the graph is freed
 * error: no memory
 * cost: linear in the graph
 * from: `tenon show --dot`
 * see also: tn_graph_print */
TN_API int tn_graph_dot(tn_graph *g, const char **text);

/* Makes a graph that of this rank alone, to run with graphs that other ranks have of their own, as PyTorch
 * traces them: all ranks call it, each with its own. Plans may then differ from rank to rank, inputs and
 * outputs are read and written as each rank has them, in files of its own, and tn_program_write_file gives
 * none of these its name before all are written. A graph with a mesh has groups of its axes; one without,
 * whose groups have the names that PyTorch gave them, gets the mesh ranks=N,one=1. Where the graphs differ
 * in form, each collective runs after the one that is written before it.
 * in: graph, of a context that has joined
 * out: graph
 * error: alike on all ranks: a mesh of another number of ranks, or the graph of another rank (USAGE); a
 *     group whose ranks the graph does not say; collectives that do not match: the first that differs
 * cost: linear in the graphs, a message to each other rank
 * from: `tenon run R0.tn R1.tn`
 * see also: tn_graph_read, tn_ranks_run, tn_plan_new */
TN_API int tn_graph_ranks(tn_graph *g);

/* What a rank of the graph's mesh has of the inputs and outputs, as two tables: of each the types of the whole and of
 * the rank's part, the cuts, bytes of both (with padding); and of each mesh axis the bytes of parameters, state,
 * constants and caches that all ranks along it have alike, and how many inputs and outputs it cuts, has partials of,
 * and leaves whole.
 * in: graph
 * out: *text, valid until the graph is freed
 * error: the graph has no mesh
 * cost: linear in the graph
 * from: `tenon show --mesh`; formats.md, "Ranks"
 * see also: tn_graph_print */
TN_API int tn_graph_mesh(tn_graph *g, const char **text);

/* Runs two graphs with the same inputs on the same seeded random data and compares the outputs: on cpu, but
 * a graph that moves values to the host's memory on the emulated device, where that is another memory.
 * in: graphs a and b of one context; seed
 * out: *worst, the largest relative difference; *where, the output's name, valid until a is freed
 * error: inputs or outputs that differ in name, role or type; what tn_plan_new and tn_program_run say
 * cost: a plan and a step of each
 * from: `tenon check`
 * see also: tn_program_run */
TN_API int tn_graph_compare(tn_graph *a, tn_graph *b, uint64_t seed, double *worst,
                            const char **where);

/* How a graph of PyTorch is read; NULL leaves out. */
typedef struct tn_fx_options {
    const char *inputs;        /* safetensors file: types of inputs and of constants, by name */
    const char *shapes;        /* "x=f32[2,4],m.b=f32[4]": the same; each must be the graph's */
    const char *loss;          /* name of the loss: its tangent begins the backward, its output is one */
    const char *params;        /* patterns (*, ?, [...]) of inputs that are parameters, by commas; or "signature" */
    const char *backward_from; /* name of the first value of the backward */
    const char *alias; /* "pass", "stop": what aten.alias does to a gradient; NULL: what the code's
                          form tells, where it does not the pass grad refuses to cross one */
    const char *unknown;       /* "refuse", "barrier": calls that are not known; NULL: refuse */
    const char *mesh;          /* "dp=2,tp=4": the ranks that ran the graph; NULL: not known */
    int64_t rank;              /* whose graph it is, of these */
    const char *const *groups; /* "NAME=AXIS": the mesh axes that a process group of it spans */
    int ngroups;
} tn_fx_options;

/* Reads the code of a torch.fx GraphModule, as print(gm.code) and print_readable write it.
 * in: path, "-" for standard input; options
 * out: *graph, verified, values under their names in the code; *summary: what was found, a line each,
 *      valid as long as the graph
 * error: file:line:column, the op, what was expected and what was found; an unknown op with the nearest
 * cost: linear in the code
 * from: `tenon import fx`
 * see also: tn_fx_unknown */
TN_API int tn_graph_import_fx(tn_context *ctx, const char *path, const tn_fx_options *options,
                              tn_graph **graph, const char **summary);

/* A graph as a module of Python whose calls are ATen's: PyTorch runs it. docs/formats.md has its form.
 * in: graph
 * out: *text, valid until the graph is freed
 * error: a node that PyTorch has no expression for (its op and place)
 * cost: linear in the graph
 * from: `tenon export fx`
 * see also: tn_graph_import_fx */
TN_API int tn_graph_export_fx(tn_graph *g, const char **text);

/* All calls of a GraphModule's code that tn_graph_import_fx does not know.
 * in: path, "-" for standard input
 * out: *text, a line for each name: where it is first, how often, the nearest or why it is refused;
 *      NULL where all are known; valid until the next call with this context that gives a text
 * error: code that cannot be parsed
 * cost: linear in the code
 * from: `tenon import fx --list-unknown`
 * see also: tn_graph_import_fx */
TN_API int tn_fx_unknown(tn_context *ctx, const char *path, const char **text);

/* Frees a graph, its plans and their programs must have been freed before.
 * in: graph (TN_TAKE), NULL allowed
 * out: nothing
 * error: none
 * cost: none
 * from: any function that made a graph
 * see also: tn_context_free */
TN_API void tn_graph_free(TN_TAKE tn_graph *g);

/* Whether a list of passes, as tn_graph_passes takes it, runs one on this graph.
 * in: graph; names, separated by commas; a pass or group of passes
 * out: *has, 1 or 0; of a pipeline what it runs on the graph as it stands: for one that is a step already
 *     "default" is "compiled"
 * error: NULL; unknown names run nothing
 * cost: linear in the graph
 * from: `tenon plan FILE.tn --passes`
 * see also: tn_passes_have, tn_graph_passes */
TN_API int tn_graph_passes_have(tn_graph *g, const char *names, const char *pass, int *has);

/* Runs passes by name, verifying the graph after each.
 * in: graph; names separated by commas, of pipelines ("default" for a training step, "gradients" for one
 *     without an update, "forward" for a graph that is run without a backward, "compiled" for a step
 *     that is there already, which the first two are for one), groups ("remat") or single passes
 *     ("dce"); options
 * out: the graph is rewritten in place; after(arg, graph, pass, changes, sec) is called after each
 *      pass unless NULL: after each of a group of several by both names ("remat.dce"), and then for the
 *      whole group by its name, with the sums; with dtype bf16 options->warn is told, once, where this processor has no
 *      products of bf16
 * error: unknown pass, a pass that needs another graph, with what it lacks, or one that cannot do
 *        what was asked, with the node and the reason; the graph may then be half rewritten, and only printing and freeing it are of use
 * cost: near linear in the graph for each pass; with options.chunk auto or N up to 60 times that, as settings are
 *       tried, and with options.memory they depend on it
 * from: `tenon passes`, `tenon opt`
 * see also: tn_graph_print */
TN_API int tn_graph_passes(tn_graph *g, const char *names, const tn_options *options,
                           void (*after)(void *arg, tn_graph *g, const char *pass, int changes,
                                         double sec),
                           void *arg);

/* A step within a limit. */
typedef struct tn_curve_point {
    int64_t limit;    /* bytes of plan and library reserve together */
    int64_t need;     /* of the plan that was chosen */
    int64_t peak;     /* of it without the library's reserve */
    double sec;       /* estimated seconds of a step */
    double none_sec;  /* with all values saved */
    double bound_sec; /* no choice that fits has fewer seconds of what is computed again; NAN: no
                         bound is known */
    const char *word; /* of options.recompute that was chosen; NULL: values by themselves */
    int nvalue;       /* how many are computed again, of a choice without word */
    int noffloaded;   /* how many are in the host's memory */
    int ngathered;    /* gathered parameters that are kept for the backward */
} tn_curve_point;

/* Plans a step within several limits: the least that is found to do, the bytes that it needs with all values
 * saved, and others evenly between. Each point is chosen as options.memory chooses; tries are shared.
 * in: graph, which stays as it is; passes, as for tn_graph_passes; options, whose memory counts as 0;
 *     count of points, at least 2 and at most 1000; tell, called after each point, or NULL
 * out: point[count], by limits upward; their words are static
 * error: passes without policies and remat; options.recompute other than auto; nothing to compute again
 * cost: some 20 plans for each point, of which many are shared
 * from: `tenon plan --pareto`
 * see also: tn_curve_page */
TN_API int tn_graph_curve(tn_graph *graph, const char *passes, const tn_options *options, int count,
                          tn_curve_point *point, void (*tell)(void *arg, int done, int all), void *arg);

/* The picture of a curve as an HTML page that needs no network and nothing beside it.
 * in: point[count], from tn_graph_curve, at most 1000; title and command, shown in it
 * out: *text, valid until the next call with this context
 * error: no memory
 * cost: linear in count
 * from: `tenon plan --pareto --html`
 * see also: tn_plan_page */
TN_API int tn_curve_page(tn_context *ctx, const tn_curve_point *point, int count, const char *title,
                         const char *command, const char **text);


/* An empty graph to be built node by node.
 * in: context; name
 * out: *graph
 * error: no memory
 * cost: none
 * from: torch.fx.Graph
 * see also: tn_graph_input, tn_graph_node, tn_graph_output */
TN_API int tn_graph_new(tn_context *ctx, const char *name, tn_graph **graph);

/* Adds an input.
 * in: value name without %; dtype "f32" ...; shape of `rank` sizes (NULL of rank 0); role as in the text form ("" none,
 *     "batch", "param", "state", "const", "cache", "seed", "step", "scalar"); role_name for roles
 *     with a name
 * out: *value
 * error: unknown dtype or role, a negative size, more than 2^56 bytes
 * cost: none
 * from: formats.md, "Graphs"
 * see also: tn_graph_node */
TN_API int tn_graph_input(tn_graph *g, const char *name, const char *dtype, int rank,
                          const int64_t *shape, const char *role, const char *role_name,
                          tn_value **value);

/* Adds a node.
 * in: op name; nin operands (NULL of none); attributes as in the text form ("dim=[1], keepdim=true"), or NULL; scope
 *     and phase ("forward", "loss", "backward", "optimizer")
 * out: its results in out[0 .. nout-1], which must be as many as the op has; an op that draws random
 *      numbers gets the next stream, from 0
 * error: the op, what was expected and what was found; the graph is then as before
 * cost: none
 * from: `tenon ops`
 * see also: tn_graph_input */
TN_API int tn_graph_node(tn_graph *g, const char *op, int nin, tn_value *const *in,
                         const char *attributes, const char *scope, const char *phase, int nout,
                         tn_value **out);

/* Makes a value an output.
 * in: value; role ("" none, "loss", "grad", "new", "metric"); role_name for roles with a name
 * out: nothing
 * error: unknown role
 * cost: none
 * from: formats.md, "Graphs"
 * see also: tn_graph_passes (the pass grad needs an output with role loss) */
TN_API int tn_graph_output(tn_graph *g, tn_value *value, const char *role, const char *role_name);

/* ---- models ---- */

/* Opens a model: a Hugging Face folder (config.json, safetensors), a checkpoint folder, a preset, or a
 * file NAME.json (a config.json): the last two have no weights yet, tn_program_load draws them.
 * in: path or preset name
 * out: *model; weights are checked by name and shape but not read
 * error: the file, key or tensor that is missing, unexpected or not supported
 * cost: headers only
 * from: the argument M of `tenon train`
 * see also: tn_model_graph, tn_program_load */
TN_API int tn_model_open(tn_context *ctx, const char *path, tn_model **model);

/* Number of trained values of a model, tied ones counted once.
 * in: model
 * out: count
 * error: none
 * cost: none
 * from: tn_model_open
 * see also: tn_model_open */
TN_API int64_t tn_model_count(const tn_model *m);

/* Vocabulary size and longest sequence of a model.
 * in: model
 * out: *vocab; *context: its positions, or its sliding window where that is shorter
 * error: none
 * cost: none
 * from: config.json
 * see also: tn_model_open */
TN_API void tn_model_shape(const tn_model *m, int64_t *vocab, int64_t *context);

/* Dropout that a model's config.json names.
 * in: model
 * out: its text, "embd_pdrop 0.1, resid_pdrop 0.1", or NULL: none; *p: what tn_options.dropout would be,
 *     0 where it is only of attention's probabilities, which graphs do not drop
 * error: none
 * cost: none
 * from: config.json
 * see also: tn_options */
TN_API const char *tn_model_dropout(const tn_model *m, double *p);

/* The dtype of the weights in a model's folder.
 * in: model
 * out: "f32", "bf16", "f16" or "f64"; "mixed"; NULL where it has no weights yet
 * error: none
 * cost: linear in the number of parameters
 * from: safetensors
 * see also: tn_options (param_dtype) */
TN_API const char *tn_model_dtype(const tn_model *m);

/* Gives a model more tokens, before its first graph: rows are added to the embedding, and to a head of its own, each
 * the mean of those that are there once they are loaded (of a preset drawn as the others), and config.json is saved so.
 * in: model; vocab, at least what it has
 * out: model
 * error: fewer tokens than it has; a graph
 * cost: reading the tables twice as they are loaded
 * from: resize_token_embeddings of transformers
 * see also: tn_model_shape, tn_tokenizer_limit */
TN_API int tn_model_resize(tn_model *m, int64_t vocab);

/* The folder that a model was read from, which may be the latest checkpoint in the one that was given, or
 * that of a config.json.
 * in: model
 * out: path, valid until the model is freed, or NULL: a preset
 * error: none
 * cost: none
 * from: tn_model_open
 * see also: tn_tokenizer_open */
TN_API const char *tn_model_folder(const tn_model *m);

/* A file that a model was read from: the configuration, then weights, then the tokenizer's.
 * in: model; i from 0
 * out: path, valid until the model is freed, or NULL: there is no such file, as of a preset
 * error: none
 * cost: none
 * from: tn_model_open
 * see also: tn_file_hash */
TN_API const char *tn_model_file(const tn_model *m, int i);

/* Takes a tokenizer into the model's checkpoints, where those of the model's folder are anyway.
 * in: model; path: a tokenizer.json, or a folder with one, which may be a run's
 * out: nothing; the file is opened now and copied by each tn_program_save
 * error: why the file cannot be opened
 * cost: opening the file
 * from: --tokenizer
 * see also: tn_program_save, tn_tokenizer_open */
TN_API int tn_model_tokenizer(tn_model *m, const char *path);

/* Gives a model new adapters (LoRA), in the place of any: the model is frozen, and they alone are trained,
 * saved and have a state. tn_program_load gives them the first values of PEFT, by options.seed.
 * in: model; text "r=16,alpha=32,dropout=0.05,targets=q_proj|v_proj": fields separated by commas, each at most
 *     once: r (16), alpha (twice r), dropout of their inputs (0), targets (all-linear): ends of names of linear
 *     modules, save: ends of names of modules that are trained whole, rslora and dora (off, or =on)
 * out: nothing
 * error: a field that is not one of those; a target that the model has not; a model that is a graph
 * cost: linear in the number of parameters
 * from: PEFT, LoraConfig
 * see also: tn_model_adapter, tn_model_merge */
TN_API int tn_model_lora(tn_model *m, const char *text);

/* Gives a model the adapters of a folder, in the place of any: as PEFT or tn_program_save has written it.
 * in: model; path of a folder with adapter_config.json and adapter_model.safetensors, or of a run of train
 * out: nothing
 * error: no such files; a key of adapter_config.json that may change the mathematics and is not supported;
 *        tensors that are not those of the model
 * cost: reading the header
 * from: PEFT, adapter_config.json
 * see also: tn_model_lora, tn_model_base, tn_model_merge */
TN_API int tn_model_adapter(tn_model *m, const char *path);

/* The number of values of a model that training changes: of one with adapters theirs, and those of modules that
 * are trained whole; else all.
 * in: model
 * out: the number
 * error: none
 * cost: linear in the number of parameters
 * from: PEFT, get_nb_trainable_parameters
 * see also: tn_model_count, tn_model_lora */
TN_API int64_t tn_model_trained(const tn_model *m);

/* The folder of weights to which a model's adapters belong, which their adapter_config.json names.
 * in: model
 * out: absolute path, valid until the model is freed, or NULL: it has no adapters, or no folder of weights
 * error: none
 * cost: none
 * from: PEFT, base_model_name_or_path
 * see also: tn_model_folder, tn_model_adapter */
TN_API const char *tn_model_base(const tn_model *m);

/* Figures of tn_model_merge. */
typedef struct tn_merged {
    int64_t modules; /* to whose weights adapters were added */
    double added;    /* the most by which they change a weight */
    double rounded;  /* the most by which rounding to the dtype that was written has changed one */
    char name[256];  /* of the tensor where it did; "": nowhere */
} tn_merged;

/* Writes a folder of a model with its adapters added to the weights, aside first, then renamed: W + s B A, or
 * DoRA's, computed in double and rounded once.
 * in: model with adapters of a folder; folder that is not there, or is empty; dtype of its weights, f32 or bf16,
 *     NULL: that of the base's; most bytes of a file of weights, 0: any
 * out: *merged
 * error: the model has none; the folder holds something; input or output
 * cost: reads and writes the weights, one tensor at a time
 * from: PEFT, merge_and_unload
 * see also: tn_model_adapter */
TN_API int tn_model_merge(tn_model *m, const char *folder, const char *dtype, int64_t shard, tn_merged *merged);

/* The tokens after which a text of the model ends.
 * in: model; room for `most` ids
 * out: ids[0 ..]; returned: how many there are, which may be more than `most`
 * error: none
 * cost: reads config.json's text again
 * from: config.json, eos_token_id
 * see also: tn_generator_next */
TN_API int tn_model_end(const tn_model *m, int most, int64_t *ids);

/* The tokens after which an answer of the model ends: those of generation_config.json, or where it says none
 * those of tn_model_end.
 * in: model; room for `most` ids
 * out: ids[0 ..]; returned: how many there are, which may be more than `most`
 * error: none
 * cost: reads the file
 * from: generation_config.json, eos_token_id
 * see also: tn_model_end, tn_chat_text */
TN_API int tn_model_stops(const tn_model *m, int most, int64_t *ids);

/* The forward and loss graph of a model for one batch of B rows of T tokens.
 * in: model; batch B; seq T; options (dropout; mesh, accumulate)
 * out: *graph with inputs input_ids, labels i64[B, T] and an output loss; run the pass grad on it. With
 *   options.mesh there are more rows where B does not fill its data ranks: labels of padding are -100
 * error: T beyond the model's context
 * cost: linear in the layers
 * from: `tenon plan M`
 * see also: tn_graph_passes */
TN_API int tn_model_graph(tn_model *m, int64_t batch, int64_t seq, const tn_options *options,
                          tn_graph **graph);

/* The logits graph of a model: the same without loss, output "logits" f32[B*T, vocab] (metric).
 * in: model; batch B; seq T
 * out: *graph with input input_ids i64[B, T]
 * error: T beyond the model's context
 * cost: linear in the layers
 * from: tn_model_graph
 * see also: tn_program_share */
TN_API int tn_model_logits(tn_model *m, int64_t batch, int64_t seq, tn_graph **graph);

/* The graph that a generator runs: the next `tokens` of one text, the keys and values of those before
 * in caches, so that a token costs one pass over the weights and not over the text.
 * in: model; tokens at once; capacity: the longest text
 * out: *graph with inputs input_ids i64[1, tokens], position i64[] of the first of them, and where
 *      tokens is over 1 last i64[1], the number of the token after which logits are wanted; inputs of
 *      role cache "layers.N.k" and "layers.N.v" f32[1, capacity, heads, size], extended by the run;
 *      output "logits" f32[1, vocab] (metric)
 * error: a capacity beyond the model's context; more tokens than that
 * cost: linear in the layers
 * from: the KV cache of other systems
 * see also: tn_generator_new */
TN_API int tn_model_decode(tn_model *m, int64_t tokens, int64_t capacity, tn_graph **graph);

/* A graph as a model that is trained: forward and loss, perhaps backward and update, with inputs of role batch (token
 * ids i64[B, T] that index a table, and perhaps labels i64[B, T]), param, const, seed, step. Its constants are saved
 * with the weights, the graph beside them, so that tn_model_open opens its checkpoints.
 * in: path of a graph's file; inputs: a safetensors file, or folder, with params and constants under the names of
 *     their roles or of their values
 * out: TN_GIVE *model
 * error: a file that cannot be read, a graph without loss or params, another batch input, a tensor that is missing or
 *        has another shape
 * cost: that of reading the graph; weights are read when a program is loaded
 * from: `tenon train GRAPH.tn`
 * see also: tn_model_open, tn_model_graph_batch */
TN_API int tn_model_open_graph(tn_context *ctx, const char *path, const char *inputs, TN_GIVE tn_model **model);

/* The batch of a model that is a graph.
 * in: model
 * out: 1 (a forward), 2 (with its backward) or 3 (with its update too), and *batch rows of *seq tokens; *labels: "none" where it reads none, "same" where it shifts them itself and
 *      takes the tokens of input_ids, "shifted" where it takes the next tokens, NULL where that does not follow from
 *      the graph; 0 where the model is no graph
 * error: none
 * cost: none
 * from: `tenon train GRAPH.tn --labels`
 * see also: tn_model_open_graph */
TN_API int tn_model_graph_batch(const tn_model *m, int64_t *batch, int64_t *seq, const char **labels);

/* Closes the files of a model's weights once they are loaded, so that a checkpoint that is removed meanwhile takes no
 * room on the disk. What is known of the model stays, and its tokenizer's files.
 * in: model; programs that loaded it may run
 * out: 0; loading from the model afterwards is an error
 * error: none
 * cost: none
 * from: `tenon train --resume --keep N`
 * see also: tn_program_load, tn_checkpoint_remove */
TN_API int tn_model_close_files(tn_model *m);

/* Frees a model.
 * in: model (TN_TAKE), NULL allowed
 * out: nothing
 * error: none
 * cost: none
 * from: tn_model_open
 * see also: tn_context_free */
TN_API void tn_model_free(TN_TAKE tn_model *m);

/* ---- data ---- */

/* Opens training data: text or token files.
 * in: npath paths of files or folders, or glob patterns; token_type "auto", "byte", "u16" or "u32"; val_fraction of all
 *     tokens, at the end, kept for validation; vocab: tokens must lie below it, 0: any
 * out: *data
 * error: the file and why
 * cost: 64 KiB of each file is read
 * from: formats.md, "Training data"
 * see also: tn_data_batch, tn_data_document */
TN_API int tn_data_open(tn_context *ctx, int npath, const char *const *path, const char *token_type,
                        double val_fraction, int64_t vocab, tn_data **data);

/* Data that is a mixture of others: each 10,000 rows of a run have as many of each as its weight says, in an order by
 * the seed, and each comes as it would alone. An epoch has as many rows as all parts together; held out are those of
 * all, one part after the other.
 * in: count parts, in use as long as the mixture; weights f64[count] above 0, whatever their sum
 * out: *mixed, for batches, windows, tn_data_part and tn_data_read_ahead
 * error: a weight below 1/10,000 of all
 * cost: the lists of files
 * from: `tenon train --data A --weight 3 --data B --weight 1`
 * see also: tn_data_open, tn_data_batch */
TN_API int tn_data_mix(tn_context *ctx, int count, tn_data *const *parts, const double *weights,
                       tn_data **mixed);

/* Tokens to train on and to validate with, and bytes of all files.
 * in: data
 * out: *ntrain, *nval, *nbytes
 * error: none
 * cost: none
 * from: tn_data_open
 * see also: tn_data_batch */
TN_API void tn_data_size(const tn_data *d, int64_t *ntrain, int64_t *nval, int64_t *nbytes);

/* A file of the data, by its place in the order in which they were opened.
 * in: data; i from 0
 * out: *path, valid as long as the data, *nbytes, *fingerprint of some of its bytes; returned: 1, or
 *     0 where there is no such file
 * error: none
 * cost: none
 * from: state.json, "data"
 * see also: tn_data_size */
TN_API int tn_data_file(const tn_data *d, int i, const char **path, int64_t *nbytes,
                        uint64_t *fingerprint);

/* Bytes of a token.
 * in: data
 * out: 1 (bytes), 2 or 4
 * error: none
 * cost: none
 * from: tn_data_open
 * see also: tn_data_not_text */
TN_API int tn_data_width(const tn_data *d);

/* The first file whose bytes do not look like text: of some of them, more than a tenth are control
 * characters or not UTF-8.
 * in: data
 * out: its path, valid as long as the data; NULL where all look like text
 * error: none
 * cost: none
 * from: formats.md, "Training data"
 * see also: tn_data_tokenize */
TN_API const char *tn_data_not_text(const tn_data *d);

/* Whether files of bytes are text, and not something that text would have to be made of first.
 * in: data, opened with token type "byte" or "auto"
 * out: nothing
 * error: a file that is compressed, a table, JSON, or text in another encoding: what it is, and the
 *        command that makes text of it
 * cost: 64 KiB of each file are read
 * from: formats.md, "Training data"
 * see also: tn_data_not_text */
TN_API int tn_data_check_text(tn_data *d);

/* The forms of data files: plain text; texts in records of JSON or CSV, or compressed; prompts and
 * answers, or chats, of which the answers are learned; texts in records that are to be rows, as the caller says. */
typedef enum tn_holds { TN_HOLDS_PLAIN, TN_HOLDS_TEXTS, TN_HOLDS_ROWS, TN_HOLDS_TEXT_ROWS } tn_holds;

/* Looks what the files hold, by the first record of each.
 * in: data, opened with token type "byte" or "auto"
 * out: *holds
 * error: a file that is neither text nor records: what it is, and the command that makes text of it; a
 *        record without the usual keys, with file and line; files of texts and of chats together
 * cost: 64 KiB of each file are read, and its first record
 * from: formats.md, "Records and chats"
 * see also: tn_data_tokenize */
TN_API int tn_data_holds(tn_data *d, tn_holds *holds);

/* How tn_data_tokenize works. */
typedef struct tn_text_options {
    const char *file;    /* the token file to be made; NULL: one without a name, gone with the data */
    int keep;            /* fail where it is there, made of other texts or by another tokenizer */
    int64_t between;     /* the id to put between two texts, and after a completion; -1: none */
    tn_holds holds;      /* what tn_data_holds says; TN_HOLDS_PLAIN takes the bytes of files as one text each;
                          * TN_HOLDS_TEXT_ROWS in the place of TN_HOLDS_TEXTS makes rows of each text */
    const char *chat;    /* of chats: the folder whose template makes texts of them; NULL: there is none */
    int64_t seq;         /* of rows: their labels at most, at least 1 */
    double val_fraction; /* as in tn_data_open; of rows: of their number */
    int64_t vocab;
    int (*progress)(void *arg, int64_t done, int64_t total); /* bytes; nonzero stops; may be NULL */
    void *progress_arg;
    void (*warn)(void *arg, const char *message); /* of what is not UTF-8; may be NULL */
    void *warn_arg;
} tn_text_options;

/* Makes one token file of texts and opens it. The ids are those of tn_tokenize, u16 where they all fit; of
 * TN_HOLDS_ROWS it is a file of rows, each of which is one document; of TN_HOLDS_TEXT_ROWS too, with as many
 * rows as a text takes.
 * in: text, opened with token type "byte" or "auto"; tokenizer; options
 * out: *tokens; the file and FILE.json, what it was made of; *made: 0 where the file was there
 *      already, made of the same texts by the same tokenizer and template
 * error: a token that the model does not have, with text and place; why the file cannot be written; a
 *        text that changed meanwhile; a damaged record, or a chat that the template refuses, with file and
 *        line; stopped; nothing is left of the file then
 * cost: as tn_tokenize; where the file is there, 64 KiB of it and of each text are read
 * from: formats.md, "Training data"
 * see also: tn_data_not_text, tn_tokenizer_open */
TN_API int tn_data_tokenize(tn_data *text, tn_tokenizer *t, const tn_text_options *options,
                            tn_data **tokens, int *made);

/* Counts of the documents of a file of rows. */
typedef struct tn_row_counts {
    int64_t rows, tokens, learned; /* learned: labels that count */
    int64_t cut, lost;             /* rows that were longer than T + 1 tokens; tokens that they had more */
    int64_t left_out;              /* documents of which nothing is learned */
} tn_row_counts;

/* The rows of data that tn_data_tokenize has made with TN_HOLDS_ROWS or TN_HOLDS_TEXT_ROWS.
 * in: data
 * out: *counts, zeros where it has no rows; returned: 1, or 0 there
 * error: none
 * cost: none
 * from: formats.md, "Records and chats"
 * see also: tn_data_holds */
TN_API int tn_data_row_counts(const tn_data *d, tn_row_counts *counts);

/* Says which token separates documents: the label after it, which is of another document, is -100.
 * in: data, before its first batch; token
 * out: data
 * error: token not in the vocabulary
 * cost: none
 * from: formats.md, "Training data"
 * see also: tn_data_batch */
TN_API int tn_data_document(tn_data *d, int64_t token);

/* Whether epochs are shuffled, as they are at first; else they take rows in the order of the files, of texts windows
 * from the first token on, of a mixture each source's in order, and the seed draws nothing but which source is next.
 * in: data, before its first batch and tn_data_windows; on 0 or 1
 * out: data
 * error: none
 * cost: none
 * from: tenon train --shuffle; a sequential sampler
 * see also: tn_data_batch */
TN_API int tn_data_shuffle(tn_data *d, int on);

/* From here on the documents of a file of rows share rows: of T labels each, filled by best fit. Windows are these rows.
 * in: data of rows, before its first batch; seq T, the T of every call that follows
 * out: data
 * error: data that is not of rows
 * cost: 24 bytes for each document
 * from: packing of sequences for fine-tuning
 * see also: tn_data_packed, tn_data_val_packed */
TN_API int tn_data_pack(tn_data *d, int64_t seq);

/* How many windows there are: of an epoch, or of the validation part.
 * in: data; val 0 or 1; seq T: the labels of a window, the first and last of a file may have fewer
 * out: *windows, *labels of all of them
 * error: val 0, and no file has T + 1 tokens to train on
 * cost: one pass over the list of files
 * from: formats.md, "Training data"
 * see also: tn_data_batch, tn_data_val */
TN_API int tn_data_windows(tn_data *d, int val, int64_t seq, int64_t *windows, int64_t *labels);

/* The batch of a step: rows (step - 1) B to step B - 1 of all epochs' shuffled windows, a function
 * of seed and step alone.
 * in: data; seed; step from 1; batch B; seq T
 * out: ids, labels i64[B, T], or of the rows of tn_data_part (label -100 where a window is shorter than T)
 * error: a file that cannot be read or has changed, a token outside of the vocabulary
 * cost: B reads, or waiting for those of tn_data_read_ahead; allocates nothing
 * from: formats.md, "Training data"
 * see also: tn_data_val, tn_data_windows */
TN_API int tn_data_batch(tn_data *d, uint64_t seed, uint32_t step, int64_t batch, int64_t seq,
                         int64_t *ids, int64_t *labels);

/* The batch of a step with where documents begin, for graphs with an input starts (tn_options.pack).
 * in: data, as tn_data_pack says, or any; seed; step from 1; batch B; seq T
 * out: ids, labels, starts i64[B, T], as tn_data_batch; starts: of each place the first place of its document, 0
 *      where a row has one; of padding its own
 * error: as tn_data_batch
 * cost: a read of each document
 * from: formats.md, "Records and chats"
 * see also: tn_data_pack, tn_data_batch */
TN_API int tn_data_packed(tn_data *d, uint64_t seed, uint32_t step, int64_t batch, int64_t seq,
                          int64_t *ids, int64_t *labels, int64_t *starts);

/* From now on tn_data_batch reads and gives only some rows of each batch, and so does tn_data_read_ahead,
 * which is called after it.
 * in: data; rows i64[count], or NULL: all; a row of B or more is padding, whose ids are 0 and labels -100
 * out: data
 * error: a negative row; no memory
 * cost: the list
 * from: the rows of a rank, as tn_plan_rows says
 * see also: tn_plan_rows, tn_data_batch */
TN_API int tn_data_part(tn_data *d, int64_t count, const int64_t *rows);

/* Starts a thread that reads the batches of a step and of those after it before tn_data_batch is
 * called for them, which gives the same as without it, and is quick where it is called in order.
 * in: data; seed; the first step; batch B; seq T
 * out: data
 * error: no thread, no memory; what goes wrong while reading is an error of tn_data_batch
 * cost: memory for two batches; the thread ends with the data
 * from: `tenon train`
 * see also: tn_data_batch */
TN_API int tn_data_read_ahead(tn_data *d, uint64_t seed, uint32_t step, int64_t batch, int64_t seq);

/* Windows first, first + stride, ... of the validation part, in order.
 * in: data; first; stride; batch B; seq T
 * out: ids, labels i64[B, T] (label -100 beyond the end); *count: labels that count, 0 at the end
 * error: as tn_data_batch
 * cost: B reads; allocates nothing
 * from: `tenon eval`
 * see also: tn_data_batch, tn_data_windows */
TN_API int tn_data_val(tn_data *d, int64_t first, int64_t stride, int64_t batch, int64_t seq,
                       int64_t *ids, int64_t *labels, int64_t *count);

/* The same with where documents begin.
 * in: data; first; stride; batch B; seq T
 * out: ids, labels, starts i64[B, T], as tn_data_packed; *count
 * error: as tn_data_batch
 * cost: a read of each document
 * from: `tenon eval --pack on`
 * see also: tn_data_val, tn_data_packed */
TN_API int tn_data_val_packed(tn_data *d, int64_t first, int64_t stride, int64_t batch, int64_t seq,
                              int64_t *ids, int64_t *labels, int64_t *starts, int64_t *count);

/* Reads one batch file: safetensors with input_ids and labels.
 * in: path; batch B; seq T as tn_batch_shape gave them
 * out: ids, labels i64[B, T]
 * error: the tensor that is missing, unexpected or misshapen
 * cost: one read
 * from: `tenon train --batch`
 * see also: tn_batch_shape */
TN_API int tn_batch_read(tn_context *ctx, const char *path, int64_t batch, int64_t seq, int64_t *ids,
                         int64_t *labels);

/* The shape of a batch file.
 * in: path, "-" for standard input, which can be read again
 * out: *batch, *seq
 * error: as tn_batch_read
 * cost: the header
 * from: `tenon train --batch`
 * see also: tn_batch_read */
TN_API int tn_batch_shape(tn_context *ctx, const char *path, int64_t *batch, int64_t *seq);

/* A hash by which files are told apart, as those of ranks, which should be alike: of all bytes up to 16 MiB, of
 * a longer file of 1024 blocks of 16 KiB that lie evenly in it.
 * in: path
 * out: *nbytes, *hash
 * error: the file cannot be read, or is no regular file
 * cost: reads at most 16 MiB
 * from: `tenon train --mesh`
 * see also: tn_gather, tn_model_file, tn_data_file */
TN_API int tn_file_hash(tn_context *ctx, const char *path, int64_t *nbytes, uint64_t *hash);

/* The CRC-32C (Castagnoli) of bytes, as records of TensorBoard's event files have it, masked.
 * in: data, nbytes of it
 * out: the checksum; 0 of nothing
 * error: none
 * cost: one pass
 * from: RFC 3720, B.4
 * see also: tn_file_hash */
TN_API uint32_t tn_crc32c(const void *data, int64_t nbytes);

/* The template by which a folder writes chats, rendered by a subset of Jinja. */
typedef struct tn_chat tn_chat;

/* Bytes [begin, end) of a chat's text that an assistant has said. */
typedef struct tn_span {
    size_t begin, end;
} tn_span;

/* Opens the chat template of a folder: chat_template.jinja, or that of tokenizer_config.json.
 * in: context; path of a folder
 * out: *chat (TN_GIVE)
 * error: no template there; what of it is not supported, with its line
 * cost: reading the files
 * from: formats.md, "Records and chats"
 * see also: tn_chat_text, tn_chat_free */
TN_API int tn_chat_open(tn_context *ctx, const char *path, TN_GIVE tn_chat **chat);

/* The text of a chat as the template writes it, the same as transformers' apply_chat_template, and the
 * parts of it that are learned.
 * in: chat; json, nbytes of a record as a line of JSON Lines has it, with "messages" or like keys; prompt 1:
 *     and what begins the next answer, without spans
 * out: *text, *size, *span, *nspan, valid until the next call
 * error: damaged JSON; a chat that the template refuses; a template without generation tags that rewrites
 *        earlier turns
 * cost: one rendering; without generation tags one more for each turn and answer
 * from: formats.md, "Records and chats"
 * see also: tn_data_tokenize */
TN_API int tn_chat_text(tn_chat *chat, const char *json, size_t nbytes, int prompt, const char **text,
                        size_t *size, const tn_span **span, int *nspan);

/* Frees a chat template.
 * in: chat (TN_TAKE), NULL allowed
 * out: nothing
 * error: none
 * cost: proportional to the template
 * from: tn_chat_open
 * see also: tn_chat_open */
TN_API void tn_chat_free(TN_TAKE tn_chat *chat);

/* Frees a data set.
 * in: data (TN_TAKE), NULL allowed
 * out: nothing
 * error: none
 * cost: none
 * from: tn_data_open
 * see also: tn_context_free */
TN_API void tn_data_free(TN_TAKE tn_data *d);

/* ---- tokenizers ---- */

/* Opens a tokenizer.
 * in: path: "bytes" (ids are the bytes), a tokenizer.json, or a folder with one, which
 *     may be a run's
 * out: *tokenizer
 * error: the file and place, and what in it is malformed or not supported
 * cost: one read of the file; memory about that of the file
 * from: formats.md, "Tokenizers"
 * see also: tn_tokenize, tn_tokenizer_encode */
TN_API int tn_tokenizer_open(tn_context *ctx, const char *path, tn_tokenizer **tokenizer);

/* The number that all ids of a tokenizer lie below: what a model's vocabulary must hold.
 * in: tokenizer
 * out: ids
 * error: none
 * cost: none
 * from: tn_tokenizer_open
 * see also: tn_model_shape */
TN_API int64_t tn_tokenizer_limit(const tn_tokenizer *t);

/* The id of the token with a text, as an added token is written ("<|endoftext|>").
 * in: tokenizer; text
 * out: id, or -1 where no token has this text
 * error: none
 * cost: linear in the vocabulary
 * from: tokenizer.json, added_tokens
 * see also: tn_tokenizer_decode */
TN_API int64_t tn_tokenizer_find(const tn_tokenizer *t, const char *text);

/* The bytes that each token adds to a text, not as its first: with the loss of tokens they give bits per byte.
 * in: tokenizer; count: of ids, from 0 on
 * out: bytes, i32[count]; special tokens as they are written; -1 where no token has the id
 * error: a decoder that makes too much of a token
 * cost: linear in count
 * from: bits per byte of language models
 * see also: tn_tokenizer_decode, tn_data_val */
TN_API int tn_tokenizer_bytes(tn_tokenizer *t, int64_t count, int32_t *bytes);

/* The ids of a text. Invalid UTF-8 counts as U+FFFD; added tokens in the text are found.
 * in: tokenizer; nbytes of text; special nonzero: with the special tokens before and after it
 * out: *ids, i64[*count], valid until the next call with this tokenizer
 * error: a word of the pre-tokenizer longer than 1 MiB; special tokens that are not supported
 * cost: tens of megabytes per second
 * from: tn_tokenizer_open
 * see also: tn_tokenize, tn_tokenizer_decode */
TN_API int tn_tokenizer_encode(tn_tokenizer *t, const char *text, size_t nbytes, int special,
                               const int64_t **ids, int64_t *count);

/* The text of ids; of byte-level tokens, bytes: a character may begin in one and end in another.
 * in: tokenizer; ids i64[count], a whole text: where the tokenizer puts a space before a text, that
 *     of the first token is left out
 * out: *text, *nbytes, NUL added, valid until the next call with this tokenizer
 * error: an id that no token has
 * cost: linear
 * from: tn_tokenizer_encode
 * see also: tn_detokenize, tn_tokenizer_decode_begin */
TN_API int tn_tokenizer_decode(tn_tokenizer *t, int64_t count, const int64_t *ids, const char **text,
                               size_t *nbytes);

/* The text of the first ids of a text whose tokens come one after the other, as of a generator.
 * in: tokenizer; ids i64[count], count 0 allowed
 * out: *text, *nbytes as tn_tokenizer_decode; bytes that later tokens may make a character of wait
 * error: an id that no token has
 * cost: linear
 * from: tn_tokenizer_encode
 * see also: tn_tokenizer_decode_next */
TN_API int tn_tokenizer_decode_begin(tn_tokenizer *t, int64_t count, const int64_t *ids,
                                     const char **text, size_t *nbytes);

/* What further ids add to the text.
 * in: tokenizer; ids i64[count]; count 0: the text ends, and what waits is given
 * out: *text, *nbytes as tn_tokenizer_decode
 * error: an id that no token has; the text can go on with another
 * cost: linear
 * from: tn_tokenizer_decode_begin
 * see also: tn_tokenizer_decode */
TN_API int tn_tokenizer_decode_next(tn_tokenizer *t, int64_t count, const int64_t *ids,
                                    const char **text, size_t *nbytes);

/* How tn_tokenize and tn_detokenize work; all zero are the defaults. */
typedef struct tn_tokenize_options {
    const char *token_type; /* "byte", "u16", "u32"; NULL, "auto": u16 where it holds every id, else u32 */
    int special;            /* with the tokenizer's special tokens before and after each text */
    const char *end;        /* the token to put after each text; NULL: none */
    int (*progress)(void *arg, int64_t done, int64_t total); /* bytes, total 0 where unknown; nonzero
                                                                stops; may be NULL */
    void *progress_arg;
    void (*warn)(void *arg, const char *message); /* of what is not UTF-8, empty texts; may be NULL */
    void *warn_arg;
} tn_tokenize_options;

/* Writes the tokens of text files to one token file, in constant memory. Of what is not UTF-8 each
 * maximal piece counts as U+FFFD, of which options->warn is told once: first place and how many.
 * in: tokenizer; npath texts ("-": standard input), one after the other; output ("-": standard output),
 *     written aside and renamed; options
 * out: the file, flat little-endian; *count tokens; *width bytes of each
 * error: the file and why; a token that does not fit the type; no token options->end; no token at
 *        all, as of an empty text; stopped
 * cost: tens of megabytes of text per second
 * from: `tenon tokenize`
 * see also: tn_detokenize, tn_data_open */
TN_API int tn_tokenize(tn_tokenizer *t, int npath, const char *const *path, const char *output,
                       const tn_tokenize_options *options, int64_t *count, int *width);

/* Writes the text of a token file, in constant memory.
 * in: tokenizer; path of a flat token file or llm.c shard, "-" for standard input; output as
 *     tn_tokenize; options (token_type, progress)
 * out: the text; *count tokens
 * error: the file and why; a token that the tokenizer does not have, with its place; stopped
 * cost: one read and one write
 * from: `tenon detokenize`
 * see also: tn_tokenize */
TN_API int tn_detokenize(tn_tokenizer *t, const char *path, const char *output,
                         const tn_tokenize_options *options, int64_t *count);

/* Frees a tokenizer.
 * in: tokenizer (TN_TAKE), NULL allowed
 * out: nothing
 * error: none
 * cost: none
 * from: tn_tokenizer_open
 * see also: tn_context_free */
TN_API void tn_tokenizer_free(TN_TAKE tn_tokenizer *t);

/* ---- plans ---- */

/* Plans a graph: order, kernels, and an address for every buffer.
 * in: graph as passes have left it; options (memory); reorder 0: keep the graph's order, but that
 *     options->overlap "on" moves collectives
 * out: *plan, immutable; with TN_CODE_FIT too, so that the breakdown can be printed
 * error: TN_CODE_FIT where plan and library reserve exceed options->memory, with the least that would
 *        do; or the node that cannot be lowered
 * cost: milliseconds per thousand nodes
 * from: `tenon plan`
 * see also: tn_plan_text, tn_program_new */
TN_API int tn_plan_new(tn_graph *g, const tn_options *options, int reorder, tn_plan **plan);

/* The plan as people read it: peak, bound, waste, what is alive at the peak, by scope, what is saved
 * for the backward, what is computed again, and what runs in slices.
 * in: plan; steps nonzero: every call with its addresses too
 * out: *text, valid until the plan is freed
 * error: no memory
 * cost: linear in the plan
 * from: `tenon plan`
 * see also: tn_plan_json */
TN_API int tn_plan_text(tn_plan *p, int steps, const char **text);

/* Writes what options.memory had decided of the values of the step, and tn_compile of its collectives, as text for
 * options.decided of the same step later: then it is taken, without a search. What was decided of slices is not in it.
 * in: plan
 * out: *text, valid until the plan is freed; empty where nothing was to be decided
 * error: no memory
 * cost: linear in what was decided
 * from: torch.utils.checkpoint's policies, of a graph
 * see also: tn_plan_explain */
TN_API int tn_plan_decided(tn_plan *p, const char **text);

/* What the passes decided about each value that has a policy, a line each: what was done, bytes, node
 * and scope, the policy that was asked for, or that is overruled, and why. Before them a line for each value that
 * holds the peak and runs in slices, or might: its region, what that takes and adds, and why it was taken or not.
 * in: plan, whose graph had options.chunk or options.explain for that
 * out: *text, valid until the plan is freed; empty where no pass decided anything
 * error: no memory
 * cost: linear in the graph
 * from: `tenon plan --explain`
 * see also: tn_plan_json, whose `decisions` are the same, but for values that the backward has no use for */
TN_API int tn_plan_explain(tn_plan *p, const char **text);

/* The planned graph as one JSON object: inputs, outputs, nodes with the bodies of regions, buffers with addresses,
 * calls, and as `plan` the object of tn_plan_json. docs/formats.md has the fields.
 * in: plan
 * out: *text, valid until the plan is freed
 * error: no memory
 * cost: linear in the graph and the plan
 * from: `tenon export json`
 * see also: tn_plan_json, tn_graph_export_fx */
TN_API int tn_plan_export_json(tn_plan *p, const char **text);

/* The simulated step in the trace-event format, for Perfetto: a track of what computes, of copies, of each group of
 * ranks, and of what is exposed; a counter of the bytes alive.
 * in: plan
 * out: *text, valid until the plan is freed
 * error: no memory
 * cost: linear in the calls, those in loops up to eight times for each loop
 * from: `tenon plan --trace`
 * see also: tn_plan_json, tn_plan_page */
TN_API int tn_plan_trace(tn_plan *p, const char **text);

/* The plan as one JSON object.
 * in: plan; fits 0: with least_feasible_bytes and peak_values
 * out: *text, valid until the plan is freed; the fields of formats.md, "Plans", and parameter_groups: optimizer
 *      and weight_decay (null: frozen), tensors, values; by_scope: scope, count (as many blocks in a row
 *      are alike), bytes_at_peak, bytes_saved, bytes_recomputed of each; saved_bytes, recomputed_bytes (of a loop: in one iteration);
 *      nflop of the step
 * error: no memory
 * cost: linear in the plan
 * from: `tenon plan --json`
 * see also: tn_plan_text */
TN_API int tn_plan_json(tn_plan *p, int fits, const char **text);

/* Two plans in the same numbers, and the differences: peak, bound, waste, what is alive at the peak, saved
 * and computed again, operations.
 * in: two plans of one context; side: what each has of its own, shown beside its letter; as_json nonzero:
 *     an object with `a`, `b` (tn_plan_json's, and options) and `difference` (B - A)
 * out: *text, valid until plans[0] is freed
 * error: no memory
 * cost: linear in the plans
 * from: `tenon plan --compare`
 * see also: tn_plan_page */
TN_API int tn_plan_compare(tn_plan *const *plans, const char *const *side, int as_json, const char **text);

/* One plan, or two side by side, as an HTML page to look at: bytes alive over the step by category, the
 * arena as a map of address against step, tables of the peak. It needs no network and nothing beside it.
 * in: count plans, 1 or 2; side: the options that tell each of two, NULL where count is 1; title: what was
 *     planned; command: the command line or call to be shown
 * out: *text, valid until plans[0] is freed; pictures of many calls or buffers are thinned out, as the page
 *      then says, and never the peak
 * error: no memory
 * cost: linear in the plan, but for sorting its buffers
 * from: `tenon plan --html`
 * see also: tn_plan_text, tn_plan_json */
TN_API int tn_plan_page(tn_plan *const *plans, const char *const *side, int count, const char *title,
                        const char *command, const char **text);

/* Bytes of the arena, of its persistent part (parameters and optimizer state), and of what the
 * libraries allocate by themselves.
 * in: plan
 * out: *peak, *persistent, *reserve
 * error: none
 * cost: none
 * from: tn_plan_new
 * see also: tn_plan_text */
TN_API void tn_plan_bytes(const tn_plan *p, int64_t *peak, int64_t *persistent, int64_t *reserve);

/* What a plan takes of the host's memory on a back end whose kernels have memory of their own: for values
 * that --offload moves there, and what ranks send and receive.
 * in: plan
 * out: bytes, in none of the figures of tn_plan_bytes; 0 where kernels compute in the host's memory
 * error: none
 * cost: none
 * from: `tenon plan --json`, spaces
 * see also: tn_program_high_host */
TN_API int64_t tn_plan_host(const tn_plan *p);

/* The persistent part of that: the optimizer's state with --offload state.
 * in: plan
 * out: bytes, for options.persistent_host of plans that share it; 0 where there is none
 * error: none
 * cost: none
 * from: `tenon plan --json`, spaces
 * see also: tn_plan_host, tn_plan_bytes */
TN_API int64_t tn_plan_host_persistent(const tn_plan *p);

/* The part of a plan's library reserve that each of its programs has of its own. Programs that live at
 * once need this of each of them, and of what their plans' reserves have beside it the most.
 * in: plan
 * out: bytes
 * error: none
 * cost: none
 * from: tn_plan_bytes
 * see also: tn_generator_handles */
TN_API int64_t tn_plan_handles(const tn_plan *p);

/* Floating-point operations of one step, and those of its matrix products.
 * in: plan
 * out: *all, *products
 * error: none
 * cost: linear in the plan
 * from: each op's cost rule
 * see also: tn_plan_json */
TN_API void tn_plan_flops(const tn_plan *p, double *all, double *products);

/* Estimated seconds of one step, and of what it computes again, by the machine of the options: by
 * which plans may be compared before any has run.
 * in: plan
 * out: *step, *added
 * error: none
 * cost: none
 * from: the table of machines, or a file
 * see also: tn_plan_json, tn_machine_here */
TN_API void tn_plan_sec(const tn_plan *p, double *step, double *added);

/* Whether collectives of a block are one call in a step that tn_compile has planned, and the seconds of the step so
 * and with all calls alone, the latter as a step of fewer blocks tells where it takes far longer.
 * in: plan
 * out: *taken, "block", "off" or the bytes that options.bucket has asked for, valid until the plan is freed; NULL:
 *      joining changes nothing, or nothing was compared; *joined, *apart, seconds, 0 where that was not planned
 * error: none
 * cost: none
 * from: options.bucket, tn_task
 * see also: tn_compile, tn_plan_sec */
TN_API int tn_plan_bucket(const tn_plan *p, const char **taken, double *joined, double *apart);

/* The machine that a plan was made by, as text in the form of a machine file, with the kernel of each of its
 * calls that has a choice. As options.machine it gives the same plan again, whatever machine files say
 * by then.
 * in: plan
 * out: *text, valid until the plan is freed
 * error: no memory
 * cost: linear in the plan and in the machine's file
 * from: state.json, "machine_file"
 * see also: tn_tune, tn_machine_here */
TN_API int tn_plan_machine(tn_plan *p, const char **text);

/* Whether a back end computes on a GPU. The emulated one does not: its kernels are the processor's.
 * in: backend, as in options; NULL: cpu
 * out: 1 or 0, which it also is where no back end has the name
 * error: none
 * cost: none
 * from: torch.device.type
 * see also: tn_machine_here */
TN_API int tn_backend_is_gpu(const char *backend);

/* Fails unless a machine is what runs plans of the back end: this processor; for cuda a GPU. By
 * others plans can be priced; a run should be planned by its own. For cuda it also needs a GPU to be there.
 * in: backend, as in options; name or file of a machine, likewise; NULL or "none": the back end's own
 * out: nothing
 * error: USAGE: it is another, or there is none of the name, with the nearest; FAIL: no GPU, or the
 *     text of a machine (tn_plan_machine) that no plan of the back end has
 * cost: reads the file
 * from: `tenon train --machine`
 * see also: tn_plan_sec */
TN_API int tn_machine_here(tn_context *ctx, const char *backend, const char *name);

/* What a plan's JSON has as machine_hash if it is made by that machine: of all that decides which kernels
 * a plan takes and how it is priced.
 * in: backend and name as for tn_machine_here
 * out: *hash
 * error: as tn_machine_here, but for a machine that is another
 * cost: reads the file
 * from: state.json, "plan"
 * see also: tn_plan_machine */
TN_API int tn_machine_hash(tn_context *ctx, const char *backend, const char *name, uint64_t *hash);

/* One shape of matrix product [m, k] x [k, n] in a plan and how many times a step runs it. */
typedef struct tn_product {
    int64_t batch, m, k, n;
    int64_t count;
    const char *dtype, *out_dtype; /* of the operands, of the result */
} tn_product;

/* The distinct products of a step, batch 1 but for bmm.
 * in: plan; room for `most` products
 * out: products[0 ..]; returned: how many distinct ones there are, which may be more than `most`
 * error: no memory: 0
 * cost: the square of their number
 * from: tn_program_calls, without a run
 * see also: tn_plan_flops */
TN_API int tn_plan_products(const tn_plan *p, int most, tn_product *products);

/* The rows of a step's batch that this rank has, of a graph of tn_model_graph: of options.mesh its share,
 * with options.accumulate its slice of each part of the batch in turn.
 * in: plan with the input "input_ids"
 * out: *rows i64[count], the rows of the whole batch that "input_ids" and "labels" have, in their order;
 *      one that the batch does not have is padding, of id 0 and label -100; valid as long as the plan
 * error: there is no such input
 * cost: linear in the batch, once
 * from: distributed samplers
 * see also: tn_data_part */
TN_API int tn_plan_rows(tn_plan *p, const int64_t **rows, int64_t *count);

/* Frees a plan.
 * in: plan (TN_TAKE), NULL allowed; its programs must have been freed before
 * out: nothing
 * error: none
 * cost: none
 * from: tn_plan_new
 * see also: tn_graph_free */
TN_API void tn_plan_free(TN_TAKE tn_plan *p);

/* ---- what fits ---- */

enum {
    TN_MOST_PARTS = 4, /* of a task */
    /* what may change where a task does not fit: */
    TN_VARY_RECOMPUTE = 1, /* recompute, to "auto"; but one that fits in microbatches stands, unless "none" */
    TN_VARY_ACCUMULATE = 2, /* how many microbatches there are; their number changes the last bits */
    TN_VARY_BATCH = 4       /* the rows of a step, where nothing else fits: that is another training */
};

/* The sorts of parts. */
typedef enum tn_part_kind {
    TN_PART_GRAPH,      /* a graph */
    TN_PART_STEP,       /* a model's graph, of the batch's rows, as tn_model_graph makes it */
    TN_PART_EVALUATION, /* the same of one microbatch's rows, without dropout and what else changes the loss */
    TN_PART_GENERATION  /* a model's generator */
} tn_part_kind;

/* A graph of a task. */
typedef struct tn_part {
    tn_part_kind kind;
    tn_model *model;    /* NULL of a graph */
    int64_t seq;        /* tokens of a sequence; of a generator its positions */
    tn_graph *graph;    /* as it is before passes, which leave it so; valid as long as the result */
    const char *passes; /* that run on it; NULL: none; of a generator, which has its own, ignored */
} tn_part;

/* What is to fit: start from zeros. The first part is the step; the others share its persistent part, and all
 * of them one arena. */
typedef struct tn_task {
    tn_part part[TN_MOST_PARTS];
    int nparts;
    int64_t batch; /* rows of a step of a model */
    int keep_order; /* nonzero: in the order of the graphs, as tn_plan_new with reorder 0 */
    int vary;       /* where it does not fit, what else is looked for: of TN_VARY_; 0: nothing */
    void (*tell)(void *arg, int count); /* before each plan of what is looked for; or NULL */
    void *tell_arg;
    int apart; /* nonzero: options.bucket joins collectives, and the step is planned without that too, for what
                * tn_plan_bucket and tn_plan_json say */
} tn_task;

/* One way to do a task, and what it comes to. */
typedef struct tn_setting {
    const char *recompute;     /* as in options; valid as long as these, or a constant */
    int64_t accumulate, batch; /* microbatches; rows */
    int64_t peak;              /* bytes of the arena of all parts */
    int64_t nbytes;            /* with the library's reserve; 0: there is no such setting */
    double sec;                /* that a step is estimated to take */
} tn_setting;

/* What tn_compile has made of a task, and what it has found beside it. */
typedef struct tn_compiled {
    tn_setting setting;                     /* of the plans */
    tn_graph *graph[TN_MOST_PARTS];         /* by part; NULL where it is the caller's, or a generator's */
    tn_plan *plan[TN_MOST_PARTS];           /* NULL of a generator */
    tn_generator *generator[TN_MOST_PARTS]; /* NULL of a plan */
    int64_t handles;                        /* of the reserve, see tn_plan_handles */
    /* where it does not fit */
    tn_setting found; /* the fastest that was found to fit */
    int fewer;        /* found has fewer rows, as nothing else fits */
    tn_setting least; /* of those that were planned, the one that needs the fewest bytes */
    int tried;        /* other settings that were planned */
} tn_compiled;

/* Plans the graphs of a task so that all of them together fit options.memory at the least time: chooses what
 * the step computes again and what runs in slices, where options leave that open ("auto"), and, where
 * options.accumulate is 0, the number of microbatches. Where that does not fit, it looks for settings that do.
 * in: task; options
 * out: *compiled, to be freed with tn_compiled_free; with TN_CODE_FIT too, where plans are those that do not fit
 * error: TN_CODE_FIT where the arena of all parts and the library's reserve exceed options.memory: tn_error_misfit
 *        has the numbers; what tn_model_graph, tn_graph_passes, tn_plan_new and tn_generator_new say
 * cost: that of tn_graph_passes and tn_plan_new for each part, up to seven times where parts beside the step need
 *       more than it; where it does not fit, some twenty times as much
 * from: tenon train, tenon plan
 * see also: tn_plan_new, tn_program_share */
TN_API int tn_compile(tn_context *ctx, const tn_task *task, const tn_options *options, tn_compiled *compiled);

/* Frees the generators, plans and graphs, but not those that were replaced by NULL.
 * in: compiled, whose programs were freed before; NULL allowed
 * out: *compiled, all NULL
 * error: none
 * cost: linear in the graphs
 * from: tn_compile
 * see also: tn_plan_free */
TN_API void tn_compiled_free(tn_compiled *compiled);

/* ---- meshes ---- */

enum { TN_MOST_MESHES = 10, TN_MOST_REASONS = 16 };

/* A mesh, and what a step on it comes to, by its plan. */
typedef struct tn_mesh {
    const char *mesh, *reshard, *recompute; /* as in options; mesh "none": one rank */
    const char *forms;                      /* "recipes"; with options.shardings auto also "solved" */
    const char *bucket;                     /* as in options; "block" or "off" where that was chosen */
    int64_t peak, nbytes;                   /* bytes of a rank's arena; with the library's reserve */
    double sec, comm_sec, exposed_sec;      /* of a step; of its collectives; what of them nothing hides */
    double bound_sec;                       /* no schedule of the step is faster */
} tn_mesh;

/* Why settings are refused, and how many. */
typedef struct tn_mesh_reason {
    const char *why;
    int count;
    int others; /* 1: of some the text has other numbers, as of ranks */
} tn_mesh_reason;

/* The outcome of a search; texts are valid until the context's next call that gives a text of its own. */
typedef struct tn_meshes {
    tn_mesh best[TN_MOST_MESHES]; /* that fit, the fastest first */
    int nbest;
    int settings; /* meshes with what is gathered again and computed again */
    int refused;  /* of these: that the model does not allow */
    int over;     /* that need more than the limit by a bound that every plan keeps */
    int slower;   /* that by such a bound are no faster than the last of the best */
    int saved;    /* that would choose what is computed again for a mesh that fits with all saved */
    int guessed;  /* that by an estimate from other plans are no faster than the last */
    int planned;  /* all others */
    int unfit;    /* of the planned: that need more than the limit */
    int64_t least; /* bytes with which the least of those that do not fit would do; 0: all fit */
    tn_mesh_reason reason[TN_MOST_REASONS];
    int nreason;
} tn_meshes;

/* A search for meshes: start from zeros. */
typedef struct tn_mesh_task {
    const char *model;  /* as tn_model_open takes it */
    const char *lora;   /* as tn_model_lora takes it, or */
    const char *adapter; /* as tn_model_adapter does; NULL: the model as it is */
    int64_t batch, seq; /* rows of a step on all ranks; tokens of each */
    int64_t ranks;
    const char *passes; /* that make the step; NULL: "default" */
    int workers;        /* threads that plan; 0: as many as kernels have. The outcome is the same */
    void (*tell)(void *arg, const char *what, int done, int all); /* what: "meshes" have bounds, then
                                                                   * "plans" are made; or NULL. From any
                                                                   * thread, one at a time */
    void *tell_arg;
} tn_mesh_task;

/* The fastest meshes for so many ranks that fit options.memory: all products of dp, fsdp and tp; gathered
 * parameters dropped or kept; computed again nothing, what is cheap, all, or what memory needs. Where
 * options.reshard or options.recompute is another word than "auto", only that.
 * in: task; options without a mesh, with rank 0 and a number of microbatches
 * out: *meshes, in any case
 * error: TN_CODE_FIT where none fits; TN_CODE_USAGE where the model allows none; what tn_model_open,
 *        tn_model_lora, tn_model_adapter and tn_compile say
 * cost: a quick plan of each setting, and tn_compile of those whose bounds do not leave them out
 * from: tenon plan --mesh auto
 * see also: tn_compile */
TN_API int tn_mesh_search(tn_context *ctx, const tn_mesh_task *task, const tn_options *options, tn_meshes *meshes);

/* ---- programs ---- */

/* Maps a plan's arena. Of a plan for several ranks, all of which call it: they compare what decides over
 * bits, and which collectives each is about to run in which order.
 * in: plan; options (check, reduce; of several ranks all)
 * out: *program
 * error: TN_CODE_FIT where the memory cannot be mapped; on all ranks: what failed on one of them; a mesh of
 *        another number of ranks than have joined; plans, options, versions, processors or threads that
 *        differ, with the rank and what it has
 * cost: address space; pages are touched when they are first used
 * from: `tenon run`
 * see also: tn_program_run */
TN_API int tn_program_new(tn_plan *p, const tn_options *options, tn_program **program);

/* A program in the arena of another: evaluation or generation beside training.
 * in: plan, made with options.persistent = the host plan's persistent bytes; host program, whose
 *     arena is large enough (options.arena) and which must outlive this one
 * out: *program; running it destroys everything in the arena but the persistent part: the host's inputs are to be
 *     written again, but for its seed, step and scalars, and so are its own after a run of the host
 * error: the parameter that lies elsewhere; TN_CODE_FIT where the arena is too small
 * cost: none
 * from: `tenon train --eval-every`
 * see also: tn_plan_bytes */
TN_API int tn_program_share(tn_plan *p, tn_program *host, tn_program **program);

/* An input or output of a program. */
typedef struct tn_port {
    const char *value; /* its name in the graph, without % */
    const char *role;  /* as in tn_graph_input and tn_graph_output; "" none */
    const char *dtype;
    int rank;
    int64_t shape[8];
    int64_t nbytes;
    int output; /* 0: an input */
    int host;   /* whether tn_program_data gives its memory */
} tn_port;

/* What an input or output is.
 * in: program; name: an input's value name ("input_ids"), or for roles with a name that name, or "seed", "step";
 *     outputs "loss", "grad.NAME", "new.NAME", "metric.NAME", "outN"
 * out: *port, whose texts are valid as long as the plan
 * error: no such name
 * cost: linear in the number of inputs and outputs
 * from: the graph's text
 * see also: tn_program_read, tn_program_write */
TN_API int tn_program_port(tn_program *x, const char *name, tn_port *port);

/* Copies into an input, wherever its memory is.
 * in: program; name as tn_program_port; data, row-major, of nbytes bytes, which must be the input's
 * out: the input
 * error: no such name; another size, with what was expected
 * cost: one copy
 * from: `tenon train`
 * see also: tn_program_read, tn_program_run */
TN_API int tn_program_write(tn_program *x, const char *name, const void *data, int64_t nbytes);

/* Copies an input or output, wherever its memory is.
 * in: program; name as tn_program_port; nbytes of data, which must be as many as it has
 * out: data, row-major
 * error: no such name; another size, with what was expected
 * cost: one copy
 * from: `tenon train`
 * see also: tn_program_write, tn_program_port */
TN_API int tn_program_read(tn_program *x, const char *name, void *data, int64_t nbytes);

/* The memory of an input or output, where the host can touch it: of every one if the program computes in
 * the host's memory, else of seed, step and scalars.
 * in: program; nbytes may be NULL; name as tn_program_port
 * out: *data (row-major, aligned to 64 bytes, valid as long as the program), *nbytes
 * error: no such name; memory of another device, which tn_program_read and tn_program_write copy
 * cost: linear in the number of inputs and outputs
 * from: `tenon run`
 * see also: tn_program_write, tn_program_run */
TN_API int tn_program_data(tn_program *x, const char *name, void **data, int64_t *nbytes);

/* Has runs find an input or output in memory of the caller's, in the place of its part of the arena, which
 * stays as it is. Reads, writes and tn_program_data follow.
 * in: program; name as tn_program_port: an input of the role param, state, const or cache, or an output that
 *     shares its memory with no other value; data, aligned to 64 bytes, of as many bytes as it has, row-major,
 *     the caller's, which must stay valid during each run; NULL: the arena again
 * out: nothing; a value that a step writes in place (new.NAME of NAME) is written there
 * error: no such name; a program on a device other than the host's processor, or in another's arena; another
 *     role, a shared output, or alignment
 * cost: linear in the number of inputs and outputs; copies nothing
 * from: torch.compile(backend="tenon")
 * see also: tn_program_data, tn_program_write */
TN_API int tn_program_bind(tn_program *x, const char *name, void *data);

/* Fills the parameters from a model's weights (or its seeded initial values) and the state with zeros.
 * in: program of a graph of that model; model; options (seed)
 * out: nothing
 * error: the tensor that cannot be read, or does not have the checksum that its file says
 * cost: one read of the weights, straight into the arena; each of several ranks reads or draws its own
 *     part, where these are short runs from blocks of at most 1 MiB that have others' too. Before the first
 *     of a model one more of those that have checksums, which ranks share out
 * from: tn_model_open
 * see also: tn_program_save */
TN_API int tn_program_load(tn_program *x, tn_model *m, const tn_options *options);

/* Writes a checkpoint folder: config.json, model.safetensors (or its shards, of at most
 * tn_options.shard bytes each, and their index), optimizer.safetensors, state.json.
 * in: program; model; folder, whose parents are made too; a JSON object's text for state.json, to which
 *     a checksum is added as the key crc32c
 * out: the folder, made aside, synced and renamed (a checkpoint that is there is exchanged as a whole);
 *      and the link `latest` beside it
 * error: parameters that are not the model's; a text that is no JSON object or has a key crc32c; a write that
 *     failed, and why. The folder is then as before. Several ranks call it together, and each says what failed on one
 * cost: one write of parameters and state. Several ranks write side by side, with three buffers of about
 *     4 MiB each, and read back what they wrote; but rank 0 writes all where ranks are on several hosts, or
 *     on a file system that is not known to be local, such as NFS
 * from: `tenon train --out`
 * see also: tn_program_load */
TN_API int tn_program_save(tn_program *x, tn_model *m, const char *folder, const char *state);

/* What a checkpoint of a plan's parameters and state takes on disk, without state.json.
 * in: plan of a step; model; options as for the program (shard); block: bytes that the file system hands out
 *     at once, 1 for the sum of the files' sizes
 * out: *nbytes, each file rounded up to whole blocks; *largest, the size of the largest file
 * error: a block below 1 or above 2^40; parameters that are not the model's; no memory
 * cost: headers only
 * from: `tenon train`, which sees that there is room before its first step
 * see also: tn_program_save */
TN_API int tn_plan_save_bytes(tn_plan *p, tn_model *m, const tn_options *options, int64_t block,
                              int64_t *nbytes, int64_t *largest);

/* Looks for values that are not finite among the parameters and the optimizer's state.
 * in: program
 * out: *count, how many the tensor has; returned: the name of the first such tensor, NULL where there is none
 * error: none
 * cost: one read of parameters and state
 * from: `tenon train`, which saves no such state
 * see also: tn_program_save, tn_program_fault */
TN_API const char *tn_program_unsound(const tn_program *x, int64_t *count);

/* Reads a checkpoint's optimizer state, bit for bit; the weights are those of the model opened there.
 * in: program with the parameters and optimizer that it was saved with; folder
 * out: the state of the program
 * error: the tensor that is missing, misshapen or not expected
 * cost: one read of the state, straight into the arena; of several ranks as tn_program_load
 * from: `tenon train --resume`
 * see also: tn_program_save, tn_program_load */
TN_API int tn_program_restore(tn_program *x, const char *folder);

/* Sees that a checkpoint is whole: every file is there, as long as it says, and of the model and step.
 * in: folder, named step-N
 * out: nothing
 * error: the file and what is wrong with it
 * cost: one read of all its files, whose checksums it looks at; a model of the context that is opened there is loaded
 *   without looking at them again. A rank but the first reads its share of the tensors
 * from: `tenon train --resume`
 * see also: tn_program_save */
TN_API int tn_checkpoint_check(tn_context *ctx, const char *folder);

/* Sees that a save may replace what has a checkpoint's name: nothing, an empty folder, or one with
 * state.json and no files but those that Tenon writes.
 * in: folder
 * out: nothing
 * error: the first entry that is not of a checkpoint
 * cost: one listing
 * from: the start of a run; tn_program_save and tn_checkpoint_remove do the same
 * see also: tn_program_save */
TN_API int tn_checkpoint_replaceable(tn_context *ctx, const char *folder);

/* Removes a checkpoint. It loses its name first, so that none is ever seen in part.
 * in: folder, with nothing but files that Tenon writes
 * out: nothing
 * error: the path and why
 * cost: a few system calls
 * from: `tenon train --keep`
 * see also: tn_checkpoint_clean */
TN_API int tn_checkpoint_remove(tn_context *ctx, const char *folder);

/* Names a checkpoint by a link beside it, as `latest` names the last one: an earlier link is replaced as a whole.
 * in: folder, a checkpoint; name of the link, without a slash
 * out: PARENT/name, a relative link to the folder
 * error: no checkpoint there; a folder that has the link's name; the path and why
 * cost: a few system calls
 * from: `best` of `tenon train`
 * see also: tn_program_save */
TN_API int tn_checkpoint_link(tn_context *ctx, const char *folder, const char *name);

/* Removes what saves that were killed have left in a folder of checkpoints. None may be under way.
 * in: folder
 * out: nothing
 * error: the path and why
 * cost: one listing
 * from: the start of a run
 * see also: tn_program_save */
TN_API int tn_checkpoint_clean(tn_context *ctx, const char *folder);

/* Reads the inputs of a program by name from a safetensors file.
 * in: program; path, "-" for standard input; every input must be there with the right type, under the value's name or
 *     that which belongs to its role, and nothing else; only one of role seed may be absent, and keeps its value
 * out: nothing
 * error: the tensor that is missing, unexpected or misshapen, or does not have the checksum that the file says
 * cost: one read; of tensors that have checksums two
 * from: `tenon run`
 * see also: tn_program_write_file, tn_program_write */
TN_API int tn_program_read_file(tn_program *x, const char *path);

/* Writes outputs to a safetensors file.
 * in: program; path, "-" for standard output; prefix: only outputs whose name begins with it, which is cut off ("" for all);
 *     with "grad." a parameter without a gradient is written as zeros
 * out: the file, written aside and renamed
 * error: why it cannot be written; an output of which each of several ranks has a term
 * cost: one write; of several ranks, which call it together, as tn_program_save
 * from: `tenon run`
 * see also: tn_program_read_file, tn_program_read */
TN_API int tn_program_write_file(tn_program *x, const char *path, const char *prefix);

/* Runs one step, with the number of threads that the plan was made for. Allocates nothing.
 * in: program whose inputs are written: batches anew for each run, which may use their memory; "lr", "step",
 *     "seed" and other scalars once, for they stay what they are until they are written again
 * out: its outputs are written; parameters and state are updated in place
 * error: the node and the reason (label or id out of range, no label counts); a scalar that was never written
 * cost: the step
 * from: `tenon run`
 * see also: tn_program_write, tn_program_error */
TN_API int tn_program_run(tn_program *x);

/* Why the last call on a program failed: of those that may run at once with others, see the head of
 * this file; other calls leave their message in tn_error.
 * in: program
 * out: text: one line; "" before the first failure; valid until the next
 * error: none
 * cost: none
 * from: tn_program_run, tn_program_read
 * see also: tn_error */
TN_API const char *tn_program_error(const tn_program *x);

/* Turns the checks of tn_options.check on or off for the runs to come.
 * in: program, not one that shares another's arena; on: 0 or 1
 * out: nothing
 * error: a program that shares an arena; no memory
 * cost: of a run with checks: a look at every result
 * from: --on-nan, which runs a step again to name its fault
 * see also: tn_program_fault */
TN_API int tn_program_check(tn_program *x, int on);

/* Under check: which node first gave a value that is not finite in the last run.
 * in: program
 * out: text "op %name @scope", or NULL
 * error: none
 * cost: none
 * from: tn_options.check
 * see also: tn_program_run */
TN_API const char *tn_program_fault(tn_program *x);

/* Where that node is in the run: of ranks, whose programs run the same calls, the one with the least found
 * it first, and the others have it from there.
 * in: program
 * out: a place in the order of calls, from 0; -1 where tn_program_fault names none
 * error: none
 * cost: linear in the calls
 * from: --on-nan with ranks
 * see also: tn_program_fault */
TN_API int64_t tn_program_fault_at(const tn_program *x);

/* Fills the arena but its persistent part with a pattern, before the inputs are written; seed, step and scalars stay set.
 * in: program; pattern byte
 * out: nothing
 * error: none
 * cost: one write of the arena
 * from: `tenon run --json`, measured_peak_bytes
 * see also: tn_program_high */
TN_API void tn_program_fill(tn_program *x, int pattern);

/* The end of the last 64-byte line of the arena that no longer has the pattern.
 * in: program; the pattern it was filled with
 * out: bytes from the arena's start
 * error: none
 * cost: one read of what still has the pattern
 * from: `tenon run --json`, measured_peak_bytes
 * see also: tn_program_fill */
TN_API int64_t tn_program_high(const tn_program *x, int pattern);

/* The same of the program's part of the host's memory, tn_plan_host, which tn_program_fill fills too.
 * in: program; the pattern it was filled with
 * out: bytes from that part's start; 0 where there is none
 * error: none
 * cost: one read of what still has the pattern
 * from: `tenon run --json`, measured_host_bytes
 * see also: tn_program_high */
TN_API int64_t tn_program_high_host(const tn_program *x, int pattern);

/* Bytes in use of the memory of the device that runs the program, by all processes: the arenas, and
 * what the device's own software takes beside them.
 * in: program
 * out: bytes; 0 where kernels compute in the host's memory
 * error: none
 * cost: a call of the device's software
 * from: `tenon train`, its last line
 * see also: tn_plan_bytes */
TN_API int64_t tn_program_used(const tn_program *x);

/* Takes memory to record what each call of some runs takes. Recording costs about 0.1 us a call.
 * in: program; nruns: how many runs will be recorded
 * out: nothing; what was recorded before is forgotten
 * error: no memory
 * cost: 40 bytes for each call, loop iteration and loop of a run; at most a million of them are recorded
 * from: --profile
 * see also: tn_program_trace_next, tn_program_trace_write */
TN_API int tn_program_trace(tn_program *x, int64_t nruns);

/* Records the next run.
 * in: program after tn_program_trace; number: its name in the record, as "step NUMBER"
 * out: nothing
 * error: none
 * cost: none
 * from: --profile
 * see also: tn_program_trace */
TN_API void tn_program_trace_next(tn_program *x, int64_t number);

/* Writes what was recorded in the trace-event format, which Perfetto and Chrome open: slices of runs,
 * of loops, their iterations and calls (scope, phase, result, kernel, operations, bytes, rates), and the
 * bytes alive.
 * in: program after tn_program_trace; path, "-" for standard output
 * out: the file, written aside and renamed
 * error: why it cannot be written
 * cost: about 500 bytes for each call
 * from: --profile; formats.md, "Traces"
 * see also: tn_program_trace */
TN_API int tn_program_trace_write(tn_program *x, const char *path);

/* The same with CPU seconds of the process for seconds: steadier than wall time where others use the
 * machine, of use with one thread.
 * in: program; nruns: how many runs will be recorded
 * out: nothing; what was recorded before is forgotten
 * error: no memory
 * cost: as tn_program_trace, and about 0.5 us a call
 * from: `tenon bench --clock cpu`
 * see also: tn_program_trace */
TN_API int tn_program_trace_cpu(tn_program *x, int64_t nruns);

/* Calls of one op by one kernel on operands of the same dtypes, shapes and strides. */
typedef struct tn_call {
    const char *op, *kernel;
    const char *tensors;  /* "f32[4, 6], f32[6, 5] strides [1, 6] -> f32[4, 5]" */
    const char *limit;    /* what bounds it: "product", "attention", or the stream of tn_streams
                           * that reads and writes as it does: "read", "copy", "add", "update" */
    const char *dtype;    /* of the first operand, of products those multiplied */
    double nflop, nbytes; /* of one call, by the op's cost rule */
    int64_t count;        /* calls in one run */
    int64_t ntimes;       /* recorded */
    double sec, min, max; /* of one call: the median of those recorded */
    int step;             /* of the plan, the first of them: for tn_program_ways */
} tn_call;

/* What was recorded, calls that are alike together, in the order of the plan.
 * in: program after tn_program_trace and runs that were recorded
 * out: *calls, *count of them; valid until the program is freed
 * error: no memory
 * cost: linear in what was recorded, but for sorting it
 * from: `tenon bench ops`
 * see also: tn_limit_product, tn_limit_streams */
TN_API int tn_program_calls(tn_program *x, const tn_call **calls, int *count);

/* A way of a call: a kernel that takes its operands as they lie. */
typedef struct tn_way {
    const char *kernel; /* NULL: the library's product in the fastest of plain, transposed and packed
                         * layouts, wherever its operands lie: a limit, no way */
    int taken;          /* nonzero: it is the plan's */
    int64_t runs;
    double sec; /* of one run, alone: the median; negative: it failed */
} tn_way;

/* Times the ways of a call, each alone, in turns, on operands of its own; of products in f32 or bf16
 * also the library's. Nothing of a call that has but one way and is neither product nor attention.
 * in: program; call, of tn_program_calls; seconds after which no turn begins; cpu nonzero: CPU seconds;
 *     room for `most` ways
 * out: ways[0 ..], as the op lists them; returned in *count: how many
 * error: USAGE: not a call of the plan; FAIL: no memory, or a kernel cannot be made
 * cost: the operands and workspaces of the call once more; at least one run of each way
 * from: `tenon bench step`
 * see also: tn_program_calls, tn_limit_product */
TN_API int tn_program_ways(tn_program *x, const tn_call *call, double most_sec, int cpu, int most,
                           tn_way *ways, int *count);

/* Fills the inputs of a program with random values as tn_graph_compare does.
 * in: program; seed
 * out: nothing
 * error: none
 * cost: about 20 ns a value, of large inputs 65,536: what follows repeats them
 * from: `tenon bench ops FILE.tn`
 * see also: tn_graph_compare */
TN_API void tn_program_random(tn_program *x, uint64_t seed);

/* Seconds that a product takes alone through the library, in the fastest of plain, transposed and
 * packed layouts: the median of some runs.
 * in: context; product (batch and count are not read), dtypes "f32" or "bf16"; cpu nonzero: CPU seconds
 * out: *sec
 * error: another dtype; no memory
 * cost: operands and result, some tens of runs of it
 * from: `tenon bench step`
 * see also: tn_plan_products */
TN_API int tn_limit_product(tn_context *ctx, const tn_product *p, int cpu, double *sec);

/* Bytes read and written per second, past the last-level cache. */
typedef struct tn_streams {
    double read;   /* of one array */
    double copy;   /* of one array to another */
    double add;    /* the sum of two arrays to a third */
    double update; /* one array, or three, each changed in place by another */
} tn_streams;

/* The fastest streams of each kind, results written through the caches or past them.
 * in: context; cpu nonzero: per CPU second
 * out: *rate
 * error: no memory
 * cost: four arrays, each of four times the last-level cache (at most 512 MiB), and 35 passes over them
 * from: `tenon bench ops`
 * see also: tn_limit_product */
TN_API int tn_limit_streams(tn_context *ctx, int cpu, tn_streams *rate);

/* tn_limit_product on the device of a program: on cpu the same; elsewhere by the fastest of the op's
 * kernels there.
 * in: program; product (batch, count and out_dtype are not read), dtype "f32" or "bf16"; cpu nonzero:
 *     CPU seconds
 * out: *sec
 * error: another dtype; no memory there
 * cost: operands and result in the device's memory, some tens of runs of it
 * from: `tenon bench step`
 * see also: tn_limit_product */
TN_API int tn_program_product(tn_program *x, const tn_product *p, int cpu, double *sec);

/* tn_limit_streams on the device of a program: on cpu the same; elsewhere the fastest kernels there
 * that sum up one array, copy one, add two, and add one to another in place.
 * in: program; cpu nonzero: per CPU second
 * out: *rate
 * error: no memory there
 * cost: two or three arrays of 16 MiB (cuda: 256 MiB) in the device's memory, some tens of passes over them
 * from: `tenon bench step`
 * see also: tn_limit_streams */
TN_API int tn_program_streams(tn_program *x, int cpu, tn_streams *rate);

/* ---- tuning ---- */

/* A training step whose calls are measured. */
typedef struct tn_tune_step {
    const char *model; /* as tn_model_open takes it */
    int64_t batch, seq;
    const tn_options *options; /* of its plan; machine and mesh are not read; all steps of a call have
                                * one backend and device */
} tn_tune_step;

/* What tn_tune does. */
typedef struct tn_tune_news {
    int step, nstep;    /* the step at hand, from 0 */
    const char *path;   /* of the file */
    int goes_on;        /* an earlier call that did not come to its end had measured some of it */
    const char *doing;  /* "plan", "ways": kernels of its calls; "load", "run": whole steps; "done" */
    int64_t done, count; /* of the calls or runs */
    const char *call;   /* of ways: the op; else "" */
    int known;          /* done: the file had all of it */
    double step_sec, est_sec; /* done: of the whole step, the median (0: it did not run); by the file */
} tn_tune_news;

typedef struct tn_tune_options {
    const char *path; /* of the file; NULL: tn_tune_path */
    int again;        /* measures also what the file has */
    int cpu;          /* CPU seconds of the process: of use with one thread, where others use the machine */
    const volatile int *stop; /* nonzero: end soon; NULL: never */
    void (*news)(void *arg, const tn_tune_news *news); /* NULL allowed */
    void (*warn)(void *arg, const char *message);      /* the same */
    void *arg;
} tn_tune_options;

/* Finds the fastest kernel for each call of some training steps, and how long each of their nodes
 * takes within the step, and writes a machine file of it, by which plans for this processor, library and
 * number of threads (for another backend: for it; for cuda: for this sort of GPU and version of cuBLASLt)
 * are made from then on, where options.machine is NULL. What a file of that path knows
 * is kept and not measured again. The file grows aside, PATH.part, with each call that was measured:
 * a process that ends before the end leaves it, and PATH as it was, and the next goes on from there.
 * in: context; count steps, each of which runs on its backend here; options
 * out: the file
 * error: FAIL: another process is measuring for the file (it holds PATH.lock), or the file cannot be
 *     written: what was measured before stays; or of cuda there is no GPU or no cuBLASLt; FIT: a step needs more memory than there is; USAGE: nothing
 *     says where the file should be, steps are for several devices, or CPU seconds are asked of a GPU; 130: *stop; as tn_model_open, tn_graph_passes and tn_plan_new
 * cost: minutes: each kernel of each call at least twice, each step at least four times
 * from: `tenon tune`; FFTW's wisdom
 * see also: tn_tune_path, tn_tune_path_for, tn_threads */
TN_API int tn_tune(tn_context *ctx, const tn_tune_step *steps, int count,
                   const tn_tune_options *options);

/* The file that plans are made by where options.machine is NULL and TENON_MACHINE is not set, by the
 * processor, the library's version and tn_threads_used(): in the folder TENON_CACHE, else
 * XDG_CACHE_HOME/tenon, else HOME/.cache/tenon. It need not be there.
 * in: context
 * out: *path, valid as long as the context; NULL: the environment has none of the three
 * error: no memory
 * cost: none
 * from: `tenon tune`
 * see also: tn_tune */
TN_API int tn_tune_path(tn_context *ctx, const char **path);

/* The same for the backend and device of options: for cuda by what the GPU calls itself and the version of
 * cuBLASLt.
 * in: context; options
 * out: *path, as of tn_tune_path
 * error: FAIL: for cuda: no GPU, or no cuBLASLt; USAGE: unknown backend
 * cost: for cuda it asks the driver
 * from: `tenon tune --backend`
 * see also: tn_tune_path */
TN_API int tn_tune_path_for(tn_context *ctx, const tn_options *options, const char **path);

/* Frees a program and unmaps its arena.
 * in: program (TN_TAKE), NULL allowed
 * out: nothing
 * error: none
 * cost: none
 * from: tn_program_new
 * see also: tn_plan_free */
TN_API void tn_program_free(TN_TAKE tn_program *x);

/* ---- generation ---- */

/* How a token is drawn from logits. */
typedef struct tn_sampling {
    double temperature; /* divides the logits; 0: the most likely token */
    int64_t top_k;      /* only the k most likely; 0: all */
    double top_p;       /* of those the fewest that are this likely together; 1: all */
    uint64_t seed;
} tn_sampling;

/* The defaults of sampling.
 * in: nothing
 * out: temperature 0.8, all tokens, seed 0, by value
 * error: none
 * cost: none
 * from: `tenon generate`
 * see also: tn_generator_next */
TN_API tn_sampling tn_sampling_default(void);

/* Plans the generation of text by a model: one pass for a token, one for many, in one arena.
 * in: model, which must outlive the generator; capacity: tokens of the window that the model sees;
 *     options (memory, persistent, check, param_dtype; dtype bf16 only where parameters are in bf16:
 *     to cast all weights for one token would cost more than it saves)
 * out: *generator
 * error: TN_CODE_FIT where arena and library reserve exceed options->memory; a capacity beyond the
 *        model's context
 * cost: two plans
 * from: `tenon generate`
 * see also: tn_generator_start */
TN_API int tn_generator_new(tn_model *m, int64_t capacity, const tn_options *options,
                            tn_generator **generator);

/* Bytes of the arena that a generator needs, and of what the libraries allocate by themselves.
 * in: generator
 * out: *peak, *reserve
 * error: none
 * cost: none
 * from: tn_plan_bytes
 * see also: tn_generator_new */
TN_API void tn_generator_bytes(const tn_generator *x, int64_t *peak, int64_t *reserve);

/* The part of a generator's library reserve that its two programs have of their own.
 * in: generator
 * out: bytes
 * error: none
 * cost: none
 * from: tn_generator_bytes
 * see also: tn_plan_handles */
TN_API int64_t tn_generator_handles(const tn_generator *x);

/* Gives a generator its memory, once.
 * in: generator; host: a program of a graph of the same model, whose parameters and arena are used
 *     (the generator made with options.persistent = its persistent bytes, the host's arena large
 *     enough, see tn_program_share), or NULL: an arena of its own and the model's weights
 * out: nothing
 * error: as tn_program_new and tn_program_load, or tn_program_share
 * cost: without a host, one read of the weights
 * from: `tenon train --sample-every`
 * see also: tn_generator_feed */
TN_API int tn_generator_start(tn_generator *x, tn_program *host);

/* Forgets the text: the next one begins. Needed after the host program has run.
 * in: generator
 * out: nothing
 * error: none
 * cost: none
 * from: tn_generator_new
 * see also: tn_generator_feed */
TN_API void tn_generator_reset(tn_generator *x);

/* Appends tokens to the text. They are run when logits are asked for. Where the window is full its
 * later half is kept, as if the text began there. If more tokens come at once than it holds, it keeps the last ones.
 * in: generator; count; ids i64[count]
 * out: nothing
 * error: an id outside of the vocabulary; those before it are appended, but for what the window does not hold
 * cost: none
 * from: a prompt
 * see also: tn_generator_next */
TN_API int tn_generator_feed(tn_generator *x, int64_t count, const int64_t *ids);

/* The logits of the token that comes next.
 * in: generator, started, with a text of at least one token
 * out: *logits f32[vocab], valid until the next call with this generator
 * error: no text; what tn_program_run says
 * cost: a run for each 64 tokens that were fed since, or one for a single token
 * from: tn_model_logits, whose logits these are within rounding
 * see also: tn_generator_next */
TN_API int tn_generator_logits(tn_generator *x, const float **logits);

/* Draws the next token and appends it to the text.
 * in: as tn_generator_logits; sampling, whose seed and the number of tokens drawn since the last
 *     reset are all that the draw depends on beside the logits
 * out: *id
 * error: as tn_generator_logits; logits that are not finite; sampling out of range
 * cost: tn_generator_logits, and one pass over the vocabulary
 * from: `tenon generate`
 * see also: tn_generator_feed */
TN_API int tn_generator_next(tn_generator *x, const tn_sampling *sampling, int64_t *id);

/* Frees a generator.
 * in: generator (TN_TAKE), NULL allowed
 * out: nothing
 * error: none
 * cost: none
 * from: tn_generator_new
 * see also: tn_context_free */
TN_API void tn_generator_free(TN_TAKE tn_generator *x);

/* ---- placement ---- */

/* A buffer in an arena. */
typedef struct tn_buffer {
    const char *id;       /* for messages; NULL: its number in the list */
    int64_t lower, upper; /* alive from position lower on and no longer at upper */
    int64_t size;         /* bytes */
    int64_t offset;       /* where it lies */
} tn_buffer;

typedef struct tn_placement {
    int64_t bound; /* the largest sum of sizes alive at once: no placement has a lower peak */
    int64_t least; /* proved by that or by search: no placement has a lower peak */
    int64_t peak;  /* the largest offset + size of what lives; the least possible if equal to `least` */
} tn_placement;

enum { TN_EFFORT = 10 }; /* for tn_place: some seconds at worst */

/* Gives buffers offsets, so that those alive at once do not overlap and the peak is small.
 * in: count of buffers, to 2^26; buffer[count]: lower and upper (-2^62 to 2^62, lower <= upper), size (0 or
 *     more, all together at most 2^62); capacity bytes, which is good enough, 0: the least is wanted;
 *     effort: how long is searched where greedy orders are not good enough, 0 (not at all) to 1000000, in
 *     units of 20 million steps: more never gives a higher peak, and the same gives the same offsets
 * out: buffer[].offset; *result. With TN_CODE_FIT these are the best that was found; that no placement fits
 *     is proved where result->least is above the capacity
 * error: TN_CODE_FIT where the peak is above the capacity; no memory
 * cost: near linear in the buffers and the pairs alive at once, up to a limit; with effort a step takes some ns
 * from: MiniMalloc; dynamic storage allocation; `tenon place`
 * see also: tn_place_check, tn_buffers_read */
TN_API int tn_place(tn_context *ctx, int64_t count, tn_buffer *buffer, int64_t capacity,
                    int64_t effort, tn_placement *result);

/* Checks offsets that anyone gave: that no two buffers overlap in address while both are alive. Shares no
 * code with tn_place.
 * in: count of buffers, to 2^26; buffer[count], as for tn_place, with offsets (0 to 2^62 less the size)
 * out: *result: its bound, also as its least, and its peak, of a wrong placement too
 * error: TN_CODE_FAIL where two overlap: which, the addresses of both, and when both are alive
 * cost: n log n
 * from: `tenon place --check`
 * see also: tn_place, tn_buffers_check */
TN_API int tn_place_check(tn_context *ctx, int64_t count, const tn_buffer *buffer,
                          tn_placement *result);

/* Reads buffers from a CSV file: a header with the columns id, lower, upper and size, and offset where there
 * are offsets, in any order; then a row for each buffer (formats.md, "Buffers").
 * in: path, "-" for standard input; warn(arg, message) is told of columns that are not read; NULL allowed
 * out: *buffers
 * error: file:line:column, what was expected and what was found; why the file cannot be read
 * cost: linear in the file
 * from: the files of MiniMalloc
 * see also: tn_buffers_list */
TN_API int tn_buffers_read(tn_context *ctx, const char *path,
                           void (*warn)(void *arg, const char *message), void *arg,
                           tn_buffers **buffers);

/* The buffers of a file, in its order, for tn_place.
 * in: buffers
 * out: *list, *count of them, which stay the object's; the caller may set their offsets, which are -1 where
 *     the file has none
 * error: none
 * cost: none
 * from: tn_buffers_read
 * see also: tn_place, tn_buffers_write */
TN_API int tn_buffers_list(tn_buffers *b, tn_buffer **list, int64_t *count);

/* tn_place_check of a file's buffers, whose errors name the place in the file.
 * in: buffers with offsets, read or set
 * out: *result, as tn_place_check
 * error: as tn_place_check, with file:line:column; a buffer without an offset
 * cost: n log n
 * from: `tenon place --check`
 * see also: tn_place_check */
TN_API int tn_buffers_check(tn_buffers *b, tn_placement *result);

/* Writes a file's rows as they were read, each with its offset in the column of that name, which is the last
 * where the file had none. What was not read of a row is written as it was.
 * in: buffers with offsets; path, "-" for standard output
 * out: the file, complete or not at all
 * error: a buffer without an offset; why the file cannot be written
 * cost: linear in the file
 * from: `tenon place --output`
 * see also: tn_buffers_read */
TN_API int tn_buffers_write(tn_buffers *b, const char *path);

/* Frees what was read.
 * in: buffers (TN_TAKE), NULL allowed
 * out: nothing
 * error: none
 * cost: none
 * from: tn_buffers_read
 * see also: tn_context_free */
TN_API void tn_buffers_free(TN_TAKE tn_buffers *b);

/* ---- sharding problems ---- */

/* What was found of a problem, and what is known of all other choices. */
typedef struct tn_sharding_result {
    double cost;    /* of the strategies, if they are feasible */
    double bound;   /* no choice within the limit costs less; not finite: nothing is known */
    int64_t peak;   /* the most that the strategies use at a time; 0: nothing was found */
    int64_t least;  /* proved: every choice uses at least as much at some time */
    int64_t steps;  /* of search */
    int feasible;   /* nothing is forbidden, and the limit holds */
    int proved;     /* feasible: no choice costs less; else: there is none */
    int64_t limit;  /* of the problem; 2^62: there is none */
} tn_sharding_result;

enum { TN_SHARDING_EFFORT = 10 }; /* for tn_sharding_solve: some ten seconds at worst */

/* Reads a sharding problem: nodes with strategies, edges with a cost for each pair of strategies, a limit on
 * what is used at a time; in Tenon's own form or the contest's (formats.md, "Sharding problems").
 * in: path, "-" for standard input
 * out: *sharding
 * error: file:line:column, what was expected and what was found; why the file cannot be read
 * cost: linear in the file
 * from: ASPLOS / EuroSys 2025 contest on intra-operator parallelism
 * see also: tn_sharding_solve */
TN_API int tn_sharding_read(tn_context *ctx, const char *path, tn_sharding **sharding);

/* Chooses one strategy for each node, so that the costs of nodes and edges are the least that is found.
 * in: sharding; effort: how long is searched once prices are known, 0 to 1000000, in units of 400 million
 *     steps: the same gives the same strategies; progress(arg, cost, bound) is called now and then, NULL
 *     allowed: costs that are not known yet are not finite
 * out: the strategies; *result, with TN_CODE_FIT too
 * error: TN_CODE_FIT where nothing was found that fits, and whether that is proved; no memory
 * cost: a second for a unit of effort, and for the prices up to some seconds
 * from: sequential tree-reweighted message passing, Lagrangian prices, bucket elimination; `tenon shard`
 * see also: tn_sharding_list, tn_sharding_write */
TN_API int tn_sharding_solve(tn_sharding *x, int64_t effort,
                             void (*progress)(void *arg, double cost, double bound), void *arg,
                             tn_sharding_result *result);

/* The strategies that were chosen, one for each node.
 * in: sharding
 * out: *strategy, *count of them, which stay the object's; zeros before it is solved
 * error: none
 * cost: none
 * from: tn_sharding_solve
 * see also: tn_sharding_write */
TN_API int tn_sharding_list(const tn_sharding *x, const int64_t **strategy, int64_t *count);

/* Writes the strategies: as a list, where the problem had the contest's form, else as an object with the cost
 * and the bound.
 * in: sharding, solved; path, "-" for standard output
 * out: the file, complete or not at all
 * error: it is not solved; why the file cannot be written
 * cost: linear in the nodes
 * from: `tenon shard --output`
 * see also: tn_sharding_read */
TN_API int tn_sharding_write(const tn_sharding *x, const char *path);

/* Frees what was read.
 * in: sharding (TN_TAKE), NULL allowed
 * out: nothing
 * error: none
 * cost: none
 * from: tn_sharding_read
 * see also: tn_context_free */
TN_API void tn_sharding_free(TN_TAKE tn_sharding *x);

#ifdef __cplusplus
}
#endif

#endif
