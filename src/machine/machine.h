/* machine: seconds, and ways. A table of processors and of the links of clusters, what a node, a
 * copy and a collective take there, and which kernel runs a call. Nothing is measured here: same
 * table or file, same graph, same seconds and kernels. */
#ifndef TENON_MACHINE_H
#define TENON_MACHINE_H

#include "../op/op.h"

typedef struct Machine Machine;

#define TUNED "tuned" /* the name of a machine in a file that was tuned */

/* ---- machine.c ---- */

/* The machine called `name`: a row of machine.def ("h100"), a file in the form of docs/formats.md,
 * a text as machine_print writes it, or NULL or "none": the row of this processor. nthread, at
 * least 1: cores of it that are used; a GPU is used whole. Fails with the nearest name, or the
 * file's line and column. */
const Machine *machine_get(Arena *a, const char *name, int nthread);
bool machine_is_file(const char *name); /* whether it would be looked for in a file */
bool machine_is_text(const char *name); /* whether it is a text as machine_print writes it */
/* The same of what runs on d: "none" is its own; NULL what the environment's TENON_MACHINE says,
 * else what was tuned here for d, or for the processor whose kernels d runs, else as "none". */
const Machine *machine_for(Arena *a, const Device *d, const char *name);
/* Whether it stands for the processor that runs this: by instruction set, not by speed. */
bool machine_is_here(const Machine *m);
bool machine_is_gpu(const Machine *m);
const char *machine_name(const Machine *m);
const char *machine_title(Arena *a, const Machine *m); /* "avx2, 4 cores"; "tuned, h100" */
uint64_t machine_hash(const Machine *m);               /* of its name and all figures used */
void machine_print(Buf *b, const Machine *m);          /* in the form of a file */
const char *machine_list(Arena *a);                    /* names of the rows, separated by spaces */

/* ---- key.c: names of calls and nodes in files ---- */

/* What a file calls a call: op, attributes, operands and results, with strides where these are not
 * row-major. */
const char *way_key(Arena *a, const Call *c);
/* The same of a node, which has no strides; NULL: its seconds are never known, as of a view, a loop
 * or what goes to other ranks or memories. */
const char *node_key(Arena *a, const Node *n);

/* ---- way.c: which kernel runs a call, and what a file knows of calls and nodes ---- */

/* The kernel of `list`, an op's, that should run c, which it takes as c lies; NULL: the first that
 * does. */
const Kernel *machine_way(const Machine *m, const Call *c, const Kernel *list);

/* A machine to which what was measured is added, for its number of cores and this library. */
Machine *machine_copy(Arena *a, const Machine *m);
/* Says which kernel runs the call of that key (way_key), or how long one run of a node (node_key),
 * or of a copy that a plan adds (way_key), takes; in place of what was said. Fails where the key or
 * the kernel is none. */
void machine_set_way(Machine *m, const char *key, const char *kernel);
void machine_set_sec(Machine *m, const char *key, double sec);
/* For how many threads (0: any) and which library, before or after; else for those in use. */
void machine_set_ways_for(Machine *m, int nthread, const char *library);
/* Fails where a processor's ways or seconds were measured with another number of threads, or
 * another library. Plans may be priced by those of a GPU that is not here. */
void machine_check_ways(const Machine *m, int nthread, const char *file);
/* What was said of a key: NULL, or less than 0: nothing. */
const char *machine_known_way(const Machine *m, const char *key);
double machine_known_sec(const Machine *m, const char *key);
/* What holds for a call or node with the number of cores: NULL or 0: nothing. */
const char *machine_call_way(const Machine *m, const Call *c);
double machine_node_sec(const Machine *m, const Node *n);
double machine_call_sec(const Machine *m, const Call *c);
/* Of which a processor's ways and seconds are measured: "onednn 2.6.3". */
const char *machine_library(Arena *a);

/* ---- gpu.c: the GPU at hand ---- */

/* Of which the ways and seconds of the GPU of that number are measured, and what it calls itself:
 * "cublaslt 13.1.0, NVIDIA H200"; NULL: there is none, or no library. */
const char *gpu_library(Arena *a, int number);
/* The row that its name says, else that by which d is priced. */
const char *gpu_row(Arena *a, const Device *d, int number);
/* Fails where ways or seconds of m were measured on another sort of GPU (TN_USAGE) or with another
 * version of the library (TN_FAIL) than are here. */
void gpu_check(const Machine *m, int number, const char *file);

/* ---- cache.c: the file of what was tuned here ---- */

/* What a file is tuned for: a device; of GPUs its number, of the processor how many threads. */
typedef struct TunedFor {
    const Device *device;
    int number, nthread;
} TunedFor;

/* name, or of NULL what TENON_MACHINE says; NULL where that is not set either. */
const char *machine_asked(const char *name);
/* Where it is; NULL: the environment names no folder, or there is no GPU. */
const char *cache_path(Arena *a, const TunedFor *to);
/* Its machine, which a context reads once; NULL: there is none that holds. Of GPUs that of the
 * first. */
const Machine *machine_tuned(Ctx *ctx, const Device *d, int nthread);
void machine_forget(Ctx *ctx); /* it is read again: there is a new one */
/* Why a file was left alone, said once; NULL: nothing is to be said. */
const char *machine_warning(Ctx *ctx);
/* A machine of a regular file that stands for what is here; else fails. */
Machine *machine_of_file(Arena *a, const char *path, const TunedFor *to);

/* ---- node.c: seconds of computing ---- */

/* One run of n by its op's cost and class, its dtypes and shapes. A view or a wait takes 0. A fused
 * node has the arithmetic of its body, the memory traffic of its operands and results; a loop its
 * bodies' seconds for all iterations, and adding up its sums. mesh: that of its graph, or NULL:
 * then a group fills one host after the other, and one of an unknown size a single host. */
double node_sec(const Machine *m, const Mesh *mesh, const Node *n);

/* What the planner adds to the graph: copies (MOVEMENT), zeros (CREATION). */
double cost_sec(const Machine *m, OpClass class, DType d, const Cost *c);
/* A copy between the memory of the host and that of the device. */
double copy_sec(const Machine *m, double nbytes);

/* ---- link.c: seconds of communicating ---- */

#define COLLECTIVES(X)                  \
    X(ALL_GATHER, "all_gather")         \
    X(REDUCE_SCATTER, "reduce_scatter") \
    X(ALL_REDUCE, "all_reduce")         \
    X(ALL_TO_ALL, "all_to_all")         \
    X(BROADCAST, "broadcast")

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
/* nbytes: of all_gather the gathered tensor, of reduce_scatter and all_reduce the one that is
 * reduced, of all_to_all and broadcast what one rank holds. 0 for a single rank. */
double collective_sec(const Machine *m, CollectiveKind k, Group group, double nbytes);

/* ---- what the files of this folder share ---- */

enum { NCLASS = CLASS_REGION + 1 };

typedef enum {
#define FIGURE(id, ...) FIGURE_##id,
#include "machine.def"
    NFIGURE
} FigureId;

/* Of the rates of a machine what an op class reaches, and the arithmetic for each element that its
 * cost does not count. */
typedef struct Share {
    double arithmetic, memory, each;
} Share;

/* What was measured of a call or node: its kernel, or seconds of a run. */
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
    const char *library; /* of which they were measured, and on which GPU; NULL: none is said */
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
/* That of a key, and its op. Fails where it is none. title: for messages. */
uint64_t key_hash(Arena *a, const char *key, const char *title, const Op **op);
/* cache.c: letters and digits in lower case; all else between them becomes one hyphen. */
char *plain_words(Arena *a, const char *text);
/* way.c: as machine_set_way and _sec, of a file; false: in place of another. title: where the key
 * stands. */
bool machine_put_way(Machine *m, const char *key, const char *kernel, const char *title);
bool machine_put_sec(Machine *m, const char *key, double sec, const char *title);
uint64_t machine_hash_known(const Machine *m, uint64_t h); /* h with what holds */
uint64_t machine_hash_rows(const Machine *m, uint64_t h);  /* h with the rows WAY for it */
/* file.c: a machine from the text of a file. */
Machine *machine_parse(Arena *a, const char *text, size_t len, const char *file);

#endif
