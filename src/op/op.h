/* op: the ops. op.def is their table; NAME.c has the rules and kernels of an op or a family. */
#ifndef TENON_OP_H
#define TENON_OP_H

#include "../base/device.def"
#include "../ir/ir.h"

/* The rows of op.def by name: OP_mm, OP_view. Each is a constant of its own, which op.c makes and
 * whoever names it declares: so a new row changes nothing that other files include. */
typedef struct OpId {
    int row;
} OpId;

/* ---- device.c: what runs steps, from device.def ---- */

/* The memory of a device. */
typedef enum {
    SPACE_MAIN, /* where kernels compute: --memory and a plan's figures mean this one */
    SPACE_HOST, /* the host's, where that is another */
    MAX_SPACE
} Space;

/* A queue runs its steps one after the other, beside the other queues. */
typedef enum {
    QUEUE_COMPUTE, /* kernels */
    QUEUE_OUT,     /* copies to the host */
    QUEUE_IN,      /* copies from the host */
    MAX_QUEUE
} Queue;

/* For whom kernels are written. */
typedef enum { KERNELS_CPU, KERNELS_CUDA, NKERNELS } KernelSet;

/* The rows of device.def by name. */
#define DEVICE_ID(n, ...) DEVICE_##n,
typedef enum { DEVICES(DEVICE_ID) NDEVICE } DeviceId;
#undef DEVICE_ID

typedef struct Device {
    DeviceId id;
    const char *name;
    const char *space[MAX_SPACE]; /* names; [SPACE_HOST] NULL: it computes in the host's memory */
    KernelSet kernels;
    int64_t align;       /* bytes of which rows of logits should be a multiple; 0: of any */
    const char *machine; /* by which it is priced, NULL: this processor */
} Device;

const Device *device_get(Ctx *ctx, const char *name); /* fails where unknown; NULL: cpu */
const Device *device_at(DeviceId id);
/* The GPU that runs kernels, and the version of the library of products, cuBLASLt. */
typedef struct GpuAbout {
    char name[256], library[24]; /* "NVIDIA H100 80GB HBM3", "13.0.2" */
} GpuAbout;
/* Describes the GPU of that number; false: there is none, or no library. matmul_cuda.c; absent
 * from programs that are linked without it: its address is then NULL. */
bool cuda_about(int number, GpuAbout *x) __attribute__((weak));

/* Whether kernels compute in the host's memory, in one queue. */
static inline bool device_is_host(const Device *d)
{
    return !d->space[SPACE_HOST];
}
/* Whether it is a GPU: what the processor's kernels run on is none, emulated or not. */
static inline bool device_is_gpu(const Device *d)
{
    return d->kernels != KERNELS_CPU;
}
static inline int device_nspace(const Device *d)
{
    return device_is_host(d) ? 1 : MAX_SPACE;
}

/* ---- rule arguments ---- */

/* A view of memory. Strides in elements; data is valid only while a kernel runs. */
typedef struct Tensor {
    char *data;
    DType dtype;
    int rank;
    int64_t dim[TN_RANK], stride[TN_RANK];
} Tensor;

/* A value's layout inside its storage: elements, not bytes. */
typedef struct Layout {
    int64_t offset;
    int64_t stride[TN_RANK];
} Layout;

typedef struct Cost {
    double nflop, nread, nwrite; /* floating-point operations; bytes */
} Cost;

/* diff() reads n, dy and need, and fills dx by emitting nodes through b. dy[k] is NULL where no
 * gradient reaches output k; need[i] is false where input i needs none (leave dx[i] NULL). A dx[i]
 * left NULL although needed means a gradient of zero. dx[i] has the type of in[i]. */
typedef struct Grad {
    Build *b;
    Node *n;
    Value **dy;
    const bool *need;
    Value **dx;
} Grad;

/* ---- factors: which axes of operands and results belong together ---- */

#define FACTOR_KINDS(X)                                                          \
    X(FACTOR_PARALLEL, "parallel")   /* results of the parts are concatenated */ \
    X(FACTOR_SUM, "sum")             /* results of the parts are added */        \
    X(FACTOR_MAX, "max")             /* elementwise maximum of the parts */      \
    X(FACTOR_LOGSUMEXP, "logsumexp") /* merged as log-sum-exp */                 \
    X(FACTOR_REPLICATE, "replicate") /* must stay whole */

#define X(id, ...) id,
typedef enum { FACTOR_KINDS(X) } FactorKind;
#undef X

enum { MAX_FACTOR = 24, MAX_MERGE = 8, NO_FACTOR = -1 };

/* An axis is the row-major product of its factors, major first; an axis of size 1 may have none.
 * Every operand axis of size over 1 must be listed. */
typedef struct Axes {
    int8_t n[TN_RANK];
    int8_t f[TN_RANK][MAX_MERGE];
} Axes;

enum { MAX_PARTIAL = 2 };

typedef struct Factor {
    FactorKind kind;
    int64_t size;
    int8_t offset; /* operand (i64[]) that takes the part's start in the whole, or NO_FACTOR */
    bool placed;   /* part() reads start, if only to add an operand: a part is one run */
    bool apart;    /* part() reads runs: a part may be many */
    /* Nonzero: part() makes that many values to be merged, each by its kind, and finish() makes the
     * results of them. Else results without this factor are merged by `kind`. */
    int npartial;
    FactorKind partial[MAX_PARTIAL];
    bool results; /* the partials are the results themselves: there is nothing to finish */
} Factor;

/* Whether part() makes partials along the factor, and finish() the results. */
static inline bool factor_finished(const Factor *x)
{
    return x->npartial && !x->results;
}

typedef struct Factors {
    int count;
    Factor factor[MAX_FACTOR];
    Axes *in, *out; /* one for each operand and result */
} Factors;

/* How one loop or mesh axis cuts a factor: of each `span` elements the part has `run`, from `start`
 * on (i64[]; NULL: 0). */
typedef struct FactorRun {
    int factor;
    int64_t run, span;
    Value *start;
} FactorRun;

/* Arguments and results of an op's part() and finish(). n is the whole node, all else the part's.
 */
typedef struct Part {
    Build *b; /* in n's phase and scope */
    const Node *n;
    const Factors *f;
    const int64_t *size; /* by factor: how much of it the part has */
    Value *const *start; /* by factor: where the part begins, i64[]; NULL: nowhere but at 0 */
    Value *const *in;    /* by operand */
    bool partials;       /* a factor that has partials is cut: part() is to make these */
    Value **out;         /* to fill: results, or partials */
    int nrun;            /* of the factors that are `apart`, from the shortest run to the longest */
    const FactorRun *run;
} Part;

/* part() of most ops: n's op on p->in with the attributes attr (NULL: n's own). Offset operands are
 * moved to where the part begins; of factors that are placed and cut this is one operand more. */
void part_same(Part *p, const Attr *attr);
/* n's op on the operands in[]. */
void part_with(Part *p, const Attr *attr, int nin, Value *const *in);
/* For the part() of a factor that is placed: where its run begins, a constant 0 where no start
 * says; NULL where the factor is not cut. */
Value *part_start(const Part *p, int factor);
void node_part(Part *p);        /* by the op's rule */
Attr *part_attr(const Part *p); /* a copy of n's attributes, to change */
/* The size of an axis that consists of factors of these sizes. */
int64_t part_size(const Axes *x, int axis, const int64_t *size);
int64_t *part_dims(const Part *p); /* the part's shape of result 0 */
/* part() of an op whose attribute `index` is the shape of result 0. */
void part_shape(Part *p, int index);

int factor_new(Factors *f, FactorKind kind, int64_t size); /* returns its index */
void axis_add(Axes *x, int axis, int factor);
/* Says that parts along the factor make `count` partials, merged as first and second. */
void factor_partials(Factors *f, int factor, int count, FactorKind first, FactorKind second);

/* Broadcasting pointwise rule over all operands and outputs; the default of elementwise ops. */
void factors_elementwise(const Node *n, Factors *f);
/* Everything is REPLICATE; the default of the others. */
void factors_whole(const Node *n, Factors *f);
/* All axes of operand i and of every output with the same rank and dims are PARALLEL, except those
 * in `whole` (bit mask), which are REPLICATE. */
void factors_rows(const Node *n, Factors *f, unsigned whole);
/* Axes of operand 0 before `lead` are of `kind`, the others REPLICATE. A letter for each operand
 * and result says which of them it has: x all, b those before lead, o the others, . none. */
void factors_split(const Node *n, Factors *f, int lead, FactorKind kind, const char *in,
                   const char *out);
/* All operands and the result have the axes from 1 on in common: these are PARALLEL, axis 0 of each
 * REPLICATE. */
void factors_inner(const Node *n, Factors *f);
/* Factors of n in arena a (elementwise default, or everything REPLICATE where the op has no rule).
 */
Factors *node_factors(Arena *a, const Node *n);

/* ---- kernels ---- */

/* A fault of data that only a device has seen: the first that a kernel notes in a run. It
 * lies where the host and the device reach it. */
typedef struct Fault {
    int noted, step, what; /* Call.step; which of Kernel.faults */
    long long value[4];
    int *stop; /* in the device's memory, 1 once it is noted; NULL: nobody asks */
} Fault;

/* One call of one kernel on one node's tensors. */
typedef struct Call {
    const Node *node;
    const Mesh *mesh; /* of the graph's ranks, NULL: one */
    Tensor *in, *out;
    int nin, nout;
    char *work; /* nbytes_work bytes, aligned to 64; undefined contents */
    int64_t nbytes_work;
    void *state;       /* what prepare() made */
    char message[200]; /* why run() returned nonzero */
    /* On a device that computes after run() has returned: */
    void *stream;    /* the queue, a cudaStream_t */
    Fault *fault;    /* where kernels note what is wrong */
    const int *stop; /* of a call that renews what outlives the run: not 0, it leaves that as it is;
                        NULL: it need not look */
    int step;        /* of the plan */
} Call;

typedef struct Kernel {
    const char *name;
    /* Whether it takes these dtypes, shapes and strides with par_threads(). Outputs are contiguous
     * (but strided_out). data is not set yet. An operand may share memory with an output only as
     * the op's `inplace` says. */
    bool (*accepts)(const Call *c);
    /* Bytes of workspace of a call that it accepts, by attributes, dtypes, shapes, strides and
     * par_threads() alone; NULL: none. Makes no primitive, and no stream or memory of a library:
     * what only a library knows is asked once and remembered in ctx. */
    int64_t (*workspace)(Ctx *ctx, const Call *c);
    /* Optional, once for each program, with nbytes_work set: sets state; handles are registered
     * with a. par_threads() is what it will be when run() is called. */
    void (*prepare)(Call *c, Arena *a);
    /* Whether this kernel runs a call that prepare() has made ready; false: the first one of the
     * list stands in, as the library has no more to offer; NULL: always. */
    bool (*own)(const Call *c);
    /* Bytes of a library's handles that prepare() makes, beside the workspace; NULL: none, of a
     * product those of one. */
    int64_t (*handles)(const Call *c);
    /* Whether the library's packed gemm runs it, which allocates buffers (onednn.h); NULL: no. */
    bool (*gemm)(const Call *c);
    /* Allocates nothing. Returns 0, or run_fail(c, ...). Same call, same bits, for any data address
     * aligned to 64 bytes and a given thread count. */
    int (*run)(Call *c);
    /* Optional: runs n calls, none of which writes what another reads or writes, in fewer launches,
     * to the bits of run() of each; a message is the first one's. */
    int (*run_all)(Call *const *c, int n);
    /* Whether a result may be a part of a larger tensor, as what a cat joins: aligned to an element
     * only, the axes from some axis on a row-major block, those before it at even, larger steps.
     * accepts() is asked with these strides and may refuse them. The bits are those of a whole
     * result; a part shares memory with no operand. */
    bool strided_out;
    /* Whether a result of fewer bytes an element than the operand that it may overwrite may lie
     * over the first bytes of that. */
    bool over_wider;
    /* On a device that computes after run() has returned: formats of what it may note, for the four
     * values of a Fault; NULL: nothing. */
    const char *const *faults;
} Kernel;

/* The kernels of an op in that set, best first, up to one without a name; NULL: none. */
const Kernel *op_kernels(const Op *op, KernelSet set);
bool kernels_linked(KernelSet set); /* whether this program has it */

/* Whether k takes c as it lies, results that are parts of larger tensors included. */
bool kernel_takes(const Kernel *k, const Call *c);
/* Bytes of workspace that k needs for c; k NULL: the reference, which needs none. */
int64_t kernel_workspace(Ctx *ctx, const Kernel *k, const Call *c);
/* Makes c ready to be run by k: nbytes_work and state. */
void kernel_prepare(const Kernel *k, Call *c, Arena *a);
int run_fail(Call *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- lanes: what pointwise kernels and bodies of `fused` share ---- */

/* One row of a pointwise op: y[i] = f(in[0][i * s[0]], in[1][i * s[1]], ...). y may be the memory
 * of an operand. An element's bits depend on nothing but its operands: not on n, i or s. */
typedef void RowFn(int64_t n, void *y, const void *const *in, const int64_t *s, const void *arg);

/* The same for an op whose elements also depend on where they are: `at` is the row-major position
 * of the first in the result. An operand of as many elements lies likewise; of any other, in[] has
 * the first element. */
typedef void PlacedFn(int64_t n, void *y, const void *const *in, const void *arg, int64_t at);

/* The row function of an op for given dtypes, and what its attributes are to it. */
typedef struct LaneFn {
    RowFn *row; /* or */
    PlacedFn *placed;
    /* Checks operands of one element, `in`, before the first element; NULL: nothing to check.
     * Returns 0, or c's failed run. */
    int (*check)(Call *c, const Node *n, const void *const *in);
    union {
        double f64[2];
        int64_t i64[2];
        char bytes[16];
        const Node *node;
    } arg;
} LaneFn;

/* n's row function, or false where a body of `fused` cannot hold n: it is not pointwise, or has
 * none for its dtypes. */
bool node_lane(const Node *n, LaneFn *l);
enum { LANE_OPERANDS = 4 }; /* at most, of a node with a lane */

/* ---- rows: what kernels along rows and bodies of `fused` share ---- */

/* How a row of the work reads an operand or writes a result: the letters of RowKernel. */
enum {
    ROW_ELEMENTS = 'r', /* a row of as many elements */
    ROW_ELEMENT = 'e',  /* one element */
    ROW_ALL = 'a',      /* operand: all of it; no row changes it */
    ROW_FINISH = 'f',   /* result: not at all, finish() makes it from c->work */
};

/* The part of an op's first kernel that goes row by row, over the last axes. run() sees contiguous
 * tensors whose `r` and `e` begin where row 0 would lie, though only rows [lo, hi) are there;
 * start() and finish() see `a` and `f` only. */
typedef struct RowKernel {
    const char *in, *out; /* a letter for each operand and result */
    /* Number of axes of the first `r` operand before those of a row, from contiguous tensors
     * without data; -1: this call is not row by row. */
    int (*lead)(const Call *c);
    void (*run)(void *call, int64_t lo, int64_t hi);
    int (*start)(Call *c), (*finish)(Call *c); /* before all rows and after; return as run() */
} RowKernel;

enum { ROW_OPERANDS = 8, ROW_RESULTS = 4 }; /* at most, of a node that has such a kernel */

/* The nodes of a body of `fused` compute values of nelem elements and, where it has ops along
 * rows of `row` elements (else 0), of one element for each row. */
typedef struct FusedShape {
    int64_t nelem, row;
} FusedShape;

/* n's kernel along rows where operands are contiguous, and its shape; NULL: it has none. */
const RowKernel *node_rows(const Node *n, FusedShape *s);

/* The most nodes of a body of `fused`, and bytes that these may hand each other for one row: the
 * processor's kernel has them on its stack (fused_tiles.c). */
enum { FUSED_MOST = 48, FUSED_ROOM = 1 << 18 };
/* Whether n may stand in a body of `fused` of that shape (fused.c) ... */
bool node_fusible(const Node *n, const FusedShape *s);
/* ... and its operand i then be a value that the body computes. */
bool operand_fusible(const Node *n, int i, const FusedShape *s);
/* Whether a body would have v only after its last row, as a loss: it is then a result of it, read
 * or not. */
bool fused_made_last(const Value *v);
/* Whether there is a text of n for bodies that are compiled when a program is made (fused_text.c).
 */
bool node_has_text(const Node *n);
/* How many bytes for each row of so many elements the nodes of such a body may hand on. */
int64_t text_room(int64_t row);
/* Whether a body of these nodes, in order, may put the value y that one of them computes in the
 * place of x, which is none of theirs. */
bool fused_overwrites(Node *const *node, int count, const Value *y, const Value *x);

/* ---- the op ---- */

enum { REDUCE_NONE, REDUCE_MEAN, REDUCE_SUM }; /* the attribute `reduction` of losses, as in ATen */

typedef struct OpRules {
    const char *math; /* one line, for `tenon ops` */
    /* A small problem on which `tenon ops NAME --show RULE` shows the rules: operand types, then
     * attributes and, of random ops, the stream, as in tests/op; of a region a whole graph. */
    const char *example;
    const AttrField *attrs;                                 /* ends with {0}; NULL: none */
    int (*infer)(const Graph *g, const Node *n, Type *out); /* returns the number of outputs */
    void (*diff)(Grad *d);                                  /* NULL: cannot be differentiated */
    Cost (*cost)(const Node *n);                            /* NULL: one flop per output element */
    void (*factors)(const Node *n, Factors *f); /* NULL: elementwise, or all REPLICATE */
    void (*part)(Part *p);                      /* emits the node of a part; NULL: part_same() */
    /* The results of merged partials; for factors that have such. */
    void (*finish)(Part *p, Value *const *merged);
    Value *(*fold)(Build *b, Node *n); /* what replaces out[0], or NULL */
    /* View ops: output k's layout from operand 0's (types are in n); false: needs a copy. */
    bool (*view)(const Node *n, int k, const Layout *in, Layout *out);
    uint8_t inplace[4]; /* bit i of [k]: output k may overwrite operand i (same type, contiguous) */
    /* By the node, for a region by its body: the same bits for output k. */
    unsigned (*overwrites)(const Node *n, int k);
    /* Pointwise ops of one result, by attributes and dtypes alone (no tensor of c has data): their
     * row function, which their kernel calls and bodies of `fused` do. False: none. */
    bool (*lane)(const Call *c, LaneFn *l);
    const RowKernel *rows; /* the first of `kernels` some rows at a time; NULL: it has no rows */
    const Kernel *kernels; /* of the processor, best first, ends with {0}; NULL: none but ref */
    int (*ref)(Call *c); /* plain loops in double, any dtype and strides: oracle and last resort */
    const char *alias;   /* "aten.mm.default", space separated */
} OpRules;

extern const Op op_table[];
extern const int op_count;
/* Whether n, which may be NULL, is of an op: node_is(n, OP_mm), or node_of(n, &OP_mm) where OP_mm
 * is declared. */
bool node_of(const Node *n, const OpId *op);
#define node_is(n, op)        \
    __extension__({           \
        extern const OpId op; \
        node_of(n, &op);      \
    })
bool node_is_full(const Node *n, double value); /* a `full` of that value; n may be NULL */
/* Whether n moves values between memories or waits for what other queues do. */
static inline bool node_transfers(const Node *n)
{
    return n->op->async || n->op->wait;
}
/* The collective that n waits for; NULL: none. */
static inline const Node *node_waits_for(const Node *n)
{
    const Node *from = n->op->wait ? n->in[0]->def : NULL;
    return from && from->op->class == CLASS_COLLECTIVE ? from : NULL;
}
/* The operand of which a node that starts something makes v, one of its results. */
static inline Value *started_from(const Value *v)
{
    return v->def->in[v->index];
}
/* Whether n's results lie in operand 0's memory: a view, or a wait. */
static inline bool node_aliases(const Node *n)
{
    return n->op->view || n->op->wait;
}
/* Whether n copies between memories, beside the kernels. */
static inline bool node_copies_memory(const Node *n)
{
    return n->op->async && n->op->class != CLASS_COLLECTIVE;
}
/* The same, or whether it waits for such a copy. */
static inline bool node_moves(const Node *n)
{
    return node_copies_memory(n) ||
           (n->op->wait && n->in[0]->def && node_copies_memory(n->in[0]->def));
}
Queue node_queue(const Node *n); /* that runs it, on devices with several */
Space node_space(
    const Node *n); /* where its results lie, likewise; a collective's where it reads */
/* Whether n's results (those of bool are whole) are the sums of what it gives for parts, in exact
 * arithmetic, where the operands i of bit i are given as sums of parts and the others whole to
 * each. For an op with more than 64 operands UINT64_MAX means all of them, and no other set is
 * asked for. */
bool op_linear(const Node *n, uint64_t partial);
int op_nattr(const Op *op);
int attr_index(const Op *op, const char *name); /* -1 where absent */
Cost node_cost(const Node *n);
unsigned node_inplace(const Node *n, int k); /* bit i: output k may overwrite operand i */
/* How many ranks a collective has, by its attributes or the graph's mesh; 0: not known. */
int64_t group_ranks(const Mesh *mesh, const Node *n); /* collective.c */
/* Reduces the elements x[0], x[1], ... of `count` members, in that order, as n says; y may be one
 * of them. In one thread. */
void collective_reduce(const Node *n, int count, const void *const *x, int64_t nelem, void *y);
/* For kernels of collectives: bytes of the workspace into which others' parts come; run(), which
 * fails, as the ranks have not joined. */
int64_t collective_received(Ctx *ctx, const Call *c);
int collective_alone(Call *c);
int cat_axis(const Node *n); /* along which n, a cat, lays its operands; -1: it is none (cat.c) */
int64_t cat_start(const Node *n, int i); /* of its operand i on that axis */
/* Whether n is its operand, but no gradient passes, or none is known to (view.c). */
bool ends_gradient(const Node *n);
bool stops_gradient(const Node *n); /* ... for certain: not where that is unknown */

/* ---- help for rules (rule.c) ---- */

/* Broadcast of the operands' shapes by numpy's rule, dtypes equal; fails naming the operands. */
Type infer_broadcast(const Graph *g, const Node *n, int first, int count);
void need_float(const Graph *g, const Node *n, int i); /* operand i is f64, f32, f16, bf16 */
void need_rank(const Graph *g, const Node *n, int i, int least, int most);
void need_dtype(const Graph *g, const Node *n, int i, DType d);
void need_type(const Graph *g, const Node *n, int i, const Type *t);
/* Whether `to` is `from`, or f32 where that has 16 bits: what a sum, or a weight beside 16-bit
 * values, may be in. */
bool widens(DType from, DType to);
/* The dtype that attribute `name` asks for a result made of `from`: that itself where it names
 * none, else one to which it widens. */
DType need_out_dtype(const Graph *g, const Node *n, const char *name, DType from);
/* That attribute `name` is a number that d has: for integers a whole one in their range, which for
 * u8 has negative ones too, modulo 256, as in PyTorch. */
/* An attribute that is at least 0, and neither NaN nor infinite. */
void need_positive(const Graph *g, const Node *n, const char *name, double x);
void need_number(const Graph *g, const Node *n, const char *name, double x, DType d);
/* A dim attribute in [-rank, rank) as a non-negative axis; fails otherwise. */
int need_axis(const Graph *g, const Node *n, int64_t dim, int rank);
/* Sum dy over the axes that broadcasting to it from t had added or stretched. */
Value *grad_reduce(Build *b, Value *dy, const Type *t);
/* A 0-dimensional constant by the op `full`. */
Value *emit_full(Build *b, double x, DType d);
/* Zeros of type t. */
Value *emit_zeros(Build *b, const Type *t);
/* v in dtype d: v itself where it has it, else by the op `_to_copy`. */
Value *emit_cast(Build *b, Value *v, DType d);
/* v / x in v's dtype, rounded once: 16 bits may not have x. */
Value *emit_quotient(Build *b, Value *v, double x);
/* No flops; every operand read once, every output written once. */
Cost cost_bytes(const Node *n);

/* ---- help for kernels (tensor.c) ---- */

int64_t tensor_nelem(const Tensor *t);
bool tensor_contiguous(const Tensor *t);
void tensor_fill_strides(Tensor *t);                      /* row-major */
int64_t tensor_index(const Tensor *t, const int64_t *ix); /* element offset */
int64_t tensor_linear(const Tensor *t, int64_t i);  /* element offset of row-major position i */
double tensor_get(const Tensor *t, int64_t offset); /* element at an offset, any dtype */
void tensor_set(const Tensor *t, int64_t offset, double x); /* rounded to the dtype */
int64_t tensor_int(const Tensor *t, int64_t offset);        /* integer dtypes, exact */
bool next_index(int rank, const int64_t *dim,
                int64_t *ix); /* row-major odometer; false at the end */

float bf16_to_f32(uint16_t x);
uint16_t f32_to_bf16(float x); /* to nearest even, NaN stays NaN */
float f16_to_f32(uint16_t x);
uint16_t f32_to_f16(float x);

/* Moves the bits of every element of `from` to `to`: same shape and dtype, any strides, no overlap
 * (copy.c). In parallel; for kernels that materialise, join or fill. */
void strided_copy(const Tensor *to, const Tensor *from);
int copy_ref(Call *c); /* the reference of ops whose result is operand 0, row-major */
/* The same of n elements of `size` bytes in a row, ts and fs bytes apart; on this thread. */
void copy_run(char *to, const char *from, int64_t n, int64_t ts, int64_t fs, int64_t size);

/* Whether this processor multiplies matrices of dtype d in its own hardware (matmul_onednn.c). */
bool matmul_fast(DType d);

/* Common accepts(): every operand and output is f32 (or as said), contiguous. */
bool accepts_f32_contiguous(const Call *c);

#endif
