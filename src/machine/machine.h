/* machine: the seconds of nodes, copies and collectives, and the kernel that runs a call.
 *
 * A machine is a table of figures: of a processor or GPU, and of the links of a cluster. It is a
 * row of machine.def, or a file that `tenon tune` has written. Nothing is measured here: the same
 * table or file and the same graph give the same seconds and kernels.
 *
 * A "way" is the variant of a kernel that runs a call where the first of its op's is not the best.
 */
#ifndef TENON_MACHINE_H
#define TENON_MACHINE_H

#include "../op/op.h"

typedef struct Machine Machine;

#define TUNED "tuned" /* the name of a machine in a file that was tuned */

/* ---- machine.c ---- */

/* The machine called `name`: a row of machine.def ("h100"), a file in the form of docs/formats.md,
 * a text that machine_print wrote, or, for NULL and "none", the row of this processor. nthread, at
 * least 1, is how many of its cores are used; a GPU is used whole. Fails with the nearest name, or
 * the file's line and column. */
const Machine *machine_get(Arena *a, const char *name, int nthread);
bool machine_is_file(const char *name); /* whether it would be looked for in a file */
bool machine_is_text(const char *name); /* whether it is a text as machine_print writes it */
/* The machine by which plans for d are made. "none": the row of device.def. NULL: the machine that
 * TENON_MACHINE names, else the file tuned here for d, or for the processor if d runs its kernels,
 * else as "none". */
const Machine *machine_for(Arena *a, const Device *d, const char *name);
/* Whether m is like the processor that runs this, by instruction set, not by speed. */
bool machine_is_here(const Machine *m);
bool machine_is_gpu(const Machine *m);
const char *machine_name(const Machine *m);
const char *machine_title(Arena *a, const Machine *m); /* "avx2, 4 cores"; "tuned, h100" */
uint64_t machine_hash(const Machine *m);               /* by name and all figures that are used */
void machine_print(Buf *b, const Machine *m);          /* in the form of a file */
const char *machine_list(Arena *a);                    /* names of the rows, separated by spaces */

/* ---- key.c: names of calls and nodes in files ---- */

/* The name of a call in a file: op, attributes, operands and results, with strides where these are
 * not row-major. */
const char *way_key(Arena *a, const Call *c);
/* The name of a node, which has no strides. NULL: a file never has its seconds, as it is a view, a
 * loop, or moves values to other ranks or memories. */
const char *node_key(Arena *a, const Node *n);

/* ---- way.c: the kernel that runs a call, and the entries of a file ---- */

/* The kernel of `list`, its op's, that is to run c; it takes c's strides. NULL: the first kernel
 * that takes them is. */
const Kernel *machine_way(const Machine *m, const Call *c, const Kernel *list);

/* A copy of m to which entries are added, measured with its number of cores and this library. */
Machine *machine_copy(Arena *a, const Machine *m);
/* Sets the kernel of the call of that key (way_key), or the seconds of one run of the node of that
 * key (node_key) or of a copy that a plan adds (way_key), in place of the old entry. Fails if there
 * is no such key or kernel. */
void machine_set_way(Machine *m, const char *key, const char *kernel);
void machine_set_sec(Machine *m, const char *key, double sec);
/* Sets the number of threads (0: any) and the library for which m's entries hold; without this call
 * they hold for those in use. */
void machine_set_ways_for(Machine *m, int nthread, const char *library);
/* Fails if a processor's ways or seconds were measured with another number of threads or another
 * library. A GPU's may be those of one that is not here. */
void machine_check_ways(const Machine *m, int nthread, const char *file);
/* The entry of a key; NULL, or less than 0: there is none. */
const char *machine_known_way(const Machine *m, const char *key);
double machine_known_sec(const Machine *m, const char *key);
/* The entry of a call or node that holds for m's number of cores; NULL or 0: there is none. */
const char *machine_call_way(const Machine *m, const Call *c);
double machine_node_sec(const Machine *m, const Node *n);
double machine_call_sec(const Machine *m, const Call *c);
/* The library whose kernels a processor's ways and seconds measure: "onednn 2.6.3". */
const char *machine_library(Arena *a);

/* ---- gpu.c: the GPU at hand ---- */

/* The library whose kernels run on the GPU of that number, and that GPU's name: "cublaslt 13.1.0,
 * NVIDIA H200"; NULL: there is no such GPU, or no library. */
const char *gpu_library(Arena *a, int number);
/* The row of machine.def for that GPU by its name, else the row by which d is priced. */
const char *gpu_row(Arena *a, const Device *d, int number);
/* Fails if ways or seconds of m were measured on another sort of GPU than is here (TN_USAGE), or
 * with another version of the library (TN_FAIL). */
void gpu_check(const Machine *m, int number, const char *file);

/* ---- cache.c: the file that was tuned here ---- */

/* A file is tuned for a device: for a GPU by its number, for the processor with so many threads. */
typedef struct TunedFor {
    const Device *device;
    int number, nthread;
} TunedFor;

/* name; if that is NULL, the value of TENON_MACHINE; NULL if that is not set either. */
const char *machine_asked(const char *name);
/* The file's path; NULL: the environment names no folder, or there is no GPU. */
const char *cache_path(Arena *a, const TunedFor *to);
/* The file's machine, which a context reads once; NULL: there is none that holds. For GPUs it is
 * the first one's. */
const Machine *machine_tuned(Ctx *ctx, const Device *d, int nthread);
void machine_forget(Ctx *ctx); /* there is a new file, which is then read */
/* The reason why a file was left alone, told once; NULL: there is none to tell. */
const char *machine_warning(Ctx *ctx);
/* The machine of a regular file; fails if it was not tuned for what is here. */
Machine *machine_of_file(Arena *a, const char *path, const TunedFor *to);

/* ---- node.c: seconds of computing ---- */

/* One run of n by its op's cost and class, its dtypes and shapes. A view or a wait takes 0. A fused
 * node has the arithmetic of its body, the memory traffic of its operands and results; a loop its
 * bodies' seconds for all iterations, and adding up its sums. mesh: that of its graph, or NULL:
 * then a group fills one host after the other, and one of an unknown size a single host. */
double node_sec(const Machine *m, const Mesh *mesh, const Node *n);
/* Adding an iteration's part to a sum of type t, as a loop does. */
double sum_sec(const Machine *m, const Type *t);

/* Seconds of a call that the planner adds to the graph: a copy (MOVEMENT) or zeros (CREATION). */
double cost_sec(const Machine *m, OpClass class, DType d, const Cost *c);
/* A copy between the memory of the host and that of the device. */
double copy_sec(const Machine *m, double nbytes);

/* ---- link.c: seconds of communicating ---- */

#define COLLECTIVES(X)                  \
    X(ALL_GATHER, "all_gather")         \
    X(REDUCE_SCATTER, "reduce_scatter") \
    X(ALL_REDUCE, "all_reduce")         \
    X(ALL_TO_ALL, "all_to_all")         \
    X(BROADCAST, "broadcast")           \
    X(PERMUTE, "permute")

typedef enum {
#define X(id, name) id,
    COLLECTIVES(X)
#undef X
        NCOLLECTIVE
} CollectiveKind;

const char *collective_name(CollectiveKind k);

/* Ranks that communicate: on how many hosts, and how many of them on each. */
typedef struct Group {
    int nodes, ranks_per_node;
} Group;

/* The group of the axes of a mesh that `axes` marks. A mesh is laid on hosts with its last axis
 * innermost, as many ranks on each as the machine's link says. */
Group mesh_group(const Machine *m, const int64_t *mesh, int naxes, const bool *axes);
/* The group of a collective node; mesh as for node_sec. */
Group node_group(const Machine *m, const Mesh *mesh, const Node *n);
/* Which collective it is. */
CollectiveKind node_collective(const Node *n);
/* nbytes: for all_gather the gathered tensor's, for reduce_scatter and all_reduce the reduced
 * one's, for all others those of one rank. 0 for a single rank. */
double collective_sec(const Machine *m, CollectiveKind k, Group group, double nbytes);

/* ---- clock.c: when what queues run begins and ends ---- */

typedef struct Clock Clock;

Clock *clock_new(Arena *a);               /* at 0, with nothing to do; lives in a */
double clock_at(const Clock *c, Queue q); /* when what q was given has ended */
double clock_last(const Clock *c);        /* the latest of the queues */
/* Gives an item to a queue, which begins when the queue is free, but not before `after`; returns
 * when it ends. */
double clock_run(Clock *c, Queue q, double after, double sec);
bool clock_idle(Clock *c, double at); /* whether no collective is under way then */
/* Starts a collective that takes `sec` alone on its link, in the queue of its group; returns its
 * number. Starts are told in the order of `after`. */
int clock_start(Clock *c, const char *group, const Group *where, double after, double sec);
/* When it begins and ends, if nothing more were started before. */
double clock_begin(Clock *c, int job);
double clock_end(Clock *c, int job);
/* The same of a wait that begins at `from`: what is done on the job's link meanwhile is seen, by
 * job, itself and those that it has to wait for or that share its link; all together as long as the
 * wait. */
double clock_wait(Clock *c, int job, double from, void (*see)(void *arg, int job, double sec),
                  void *arg);

/* ---- shared by the files of this folder ---- */

enum { NCLASS = CLASS_REGION + 1 };

typedef enum {
#define FIGURE(id, ...) FIGURE_##id,
#include "machine.def"
    NFIGURE
} FigureId;

/* The share of a machine's rates that an op class reaches, and the operations for each element that
 * costs do not count. */
typedef struct Share {
    double arithmetic, memory, each;
} Share;

/* An entry of a file, on a call or node: its kernel, or the seconds of a run. */
typedef struct Measured {
    uint64_t hash;
    const char *key; /* NULL: nothing yet */
    const char *kernel;
    double sec;
} Measured;

typedef struct MeasuredList {
    Measured *row;
    int count, cap;
    int *slot, nslot; /* by hash: 1 + the row; 0: none */
} MeasuredList;

/* Seconds that a file may say. */
#define SEC_LEAST 1e-9
#define SEC_MOST  1e6

struct Machine {
    Arena *a;
    const char *name, *like; /* like: the row that says what sort of processor it is */
    bool gpu;
    int cores; /* in use */
    double figure[NFIGURE];
    Share share[NCLASS];
    int nthread;         /* for which `way` and `known` hold; 0: any number */
    const char *library; /* whose kernels they measure, and on which GPU; NULL: any */
    MeasuredList way, known;
};

typedef struct MachineFigure {
    const char *key, *unit;
    double least, most;
} MachineFigure;

extern const MachineFigure figure_table[];
/* A copy of a row, or NULL. */
Machine *machine_row(Arena *a, const char *name);
/* The figures of the link called `name` into m; false where there is none. */
bool machine_link(Machine *m, const char *name);
const char *link_list(Arena *a); /* names of the links */
/* key.c: hashes of what keys say. */
uint64_t call_hash(const Call *c);
uint64_t node_hash(const Node *n);
bool node_has_key(const Node *n); /* whether its seconds may be known */
/* The hash of a key, and its op. Fails if it is no key. title: for messages. */
uint64_t key_hash(Arena *a, const char *key, const char *title, const Op **op);
/* cache.c: letters and digits in lower case; all else between them becomes one hyphen. */
char *plain_words(Arena *a, const char *text);
/* way.c: as machine_set_way and _sec, of a file; false: in place of another. title: where the key
 * stands. */
bool machine_put_way(Machine *m, const char *key, const char *kernel, const char *title);
bool machine_put_sec(Machine *m, const char *key, double sec, const char *title);
uint64_t machine_hash_known(const Machine *m, uint64_t h); /* h with the entries that hold */
uint64_t machine_hash_rows(const Machine *m, uint64_t h);  /* h with the rows WAY for it */
/* machine_text.c: a machine from the text of a file. */
Machine *machine_parse(Arena *a, const char *text, size_t len, const char *file);

#endif
