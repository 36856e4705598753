/* fx: graphs as PyTorch prints them. lex.c and parse.c read the Python subset of a GraphModule's
 * code, import.c runs it statement by statement and builds the graph, aten.def lists the ATen
 * overloads that are understood beyond those whose name an op has as its alias. Sections name the
 * file that implements them; docs/formats.md has the accepted grammar. */
#ifndef TENON_FX_H
#define TENON_FX_H

#include "../op/op.h"

/* ---- lex.c: tokens of Python ---- */

/* LINE ends a statement: a line's end outside of brackets, or a semicolon. */
typedef enum { PY_END, PY_LINE, PY_NAME, PY_INT, PY_FLOAT, PY_STRING, PY_PUNCT } PyKind;

enum { PY_MAX_NAME = 1000 }; /* bytes, with its dots */

typedef struct PyToken {
    PyKind kind;
    const char *begin; /* in the text, len bytes */
    int len, line, column;
    const char *s; /* NAME, PUNCT: itself; STRING: its content */
    int64_t i;     /* INT; 2^63, which is in range after a minus, is INT64_MIN */
    double f;      /* INT, FLOAT */
} PyToken;

typedef struct PyOpen { /* an open bracket */
    int line, column;
    char bracket;
} PyOpen;

typedef struct PyLexer {
    Arena *a;
    const char *file;
    const char *part; /* of the file, for messages; NULL: all of it */
    const char *at, *line_begin;
    int line, depth, cap; /* depth of open brackets */
    PyOpen *open;         /* the brackets, the innermost last */
    int nested;           /* expr.c: how deep the expression is */
    const char *remark;   /* the last comment, without #; "" before the first */
    const Map *symbols;   /* symbols.c: sizes by name; NULL: left open */
    PyToken t;            /* the current token */
} PyLexer;

/* t is the first token; line: the number of the text's first. */
void py_start(PyLexer *x, Arena *a, const char *text, const char *file, int line);
void py_next(PyLexer *x);
/* The text from the current token to before one of , ) = ; : or a line's end outside of brackets
 * and strings: an annotation, which need not be Python. t is what follows it. */
const char *py_annotation(PyLexer *x);
const char *py_plain(Arena *a, const char *text); /* without a terminal's colours */
/* "FILE:LINE:COLUMN: message", at t. */
_Noreturn void py_fail(const PyLexer *x, const PyToken *t, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void py_expected(const PyLexer *x, const char *what);

/* Whether the current token is this name or punctuation; take goes past it, need fails where it is
 * another. */
bool py_at(const PyLexer *x, const char *s);
bool py_take(PyLexer *x, const char *s);
void py_need(PyLexer *x, const char *s);
const char *py_name(PyLexer *x, const char *what); /* a name; what: for messages */
void py_skip_lines(PyLexer *x);
void py_end_line(PyLexer *x); /* of a statement */

/* ---- expr.c: expressions as a tree ---- */

/* clang-format off */
typedef enum {
    EX_NONE, EX_BOOL, EX_INT, EX_FLOAT, EX_STRING,
    EX_NAME,  /* s: a dotted name: x, torch.float32, inf */
    EX_SELF,  /* s: what follows self. */
    EX_LIST,  /* item: also a tuple; the values of a dict, key: its keys that are strings */
    EX_CALL,  /* s: the dotted name called; item: arguments, key: their keywords or NULL */
    EX_INDEX, /* item: what is indexed, the index */
    EX_MODULE, /* module: one inside of this, which the call that has it runs */
} ExprKind;
/* clang-format on */

typedef struct Expr {
    ExprKind kind;
    int line, column;
    int height; /* of the tree below it */
    const char *s;
    int64_t i;
    double f;
    int count, cap;
    struct Expr **item;
    const char **key;
    struct FxModule *module;
} Expr;

Expr *py_expression(PyLexer *x);
Expr *py_tuple(PyLexer *x); /* also a, b: without parentheses */

/* An annotation such as "f32[2, 4][4, 1]cpu"; without dtype it says nothing. */
typedef struct Annotation {
    const char *other; /* a dtype that is none of ours */
    bool known, has_stride;
    bool complex; /* `type` is that of pairs: of the parts, with a last axis of 2 */
    Type type;
    int64_t stride[TN_RANK];
} Annotation;

/* ---- annotation.c ---- */

/* Reads the text that py_annotation gave; `where` is for messages. */
Annotation annotation_parse(const PyLexer *x, const PyToken *where, const char *s);
/* The dtype of "torch.float32", of torch.complex64 that of its parts; -1: none of ours. */
int annotation_dtype(const char *name, bool *complex);
/* Makes of the sizes and strides of a complex tensor those of pairs; false: too many axes. */
bool annotation_pairs(Annotation *a);

/* ---- not_code.c: texts that are no code of ATen calls ---- */

typedef enum {
    FOREIGN_GRAPH,
    FOREIGN_SYMBOLIC,
    FOREIGN_SCRIPT,
    FOREIGN_LAYERS,
    FOREIGN_MODULE,
    FOREIGN_METHOD,
    FOREIGN_FUNCTION,
    FOREIGN_NESTED,
    FOREIGN_AUTOCAST,
    FOREIGN_CODE,
    FOREIGN_SOURCE,
    FOREIGN_SIGNATURE,
    FOREIGN_TABLE,
} Foreign;

_Noreturn void fx_foreign(const PyLexer *x, const PyToken *t, Foreign what);
Foreign fx_foreign_graph(const char *text); /* which one a text is that begins with "graph(" */
/* Describe a call that is none of torch.ops (NULL: it is one), and a call of a module inside. */
const char *fx_foreign_call(const char *name);
const char *fx_foreign_nested(const char *call);

/* ---- parse.c: the module's code ---- */

typedef struct FxStatement {
    int line, column;
    int ntarget, cap;
    const char **target; /* several: unpacked, or given the same (chain) */
    bool unpack;
    Annotation annotation; /* of the only target */
    Expr *value;           /* NULL: `x: "f32[2]"` alone */
    const char *remark;    /* the last comment above it */
} FxStatement;

typedef struct FxInput {
    const char *name;
    int line, column;
    Annotation annotation;
    const struct Item
        *given;       /* a number or None, by a repro file or a bound size; NULL: not known */
    const char *size; /* "Sym(s0)": it is a size; NULL: it is none */
} FxInput;

/* A process group, as a repro file has it. */
typedef struct FxGroup {
    const char *name;
    int64_t size, rank; /* rank: whose graph it is, in the group */
} FxGroup;

typedef struct FxModule {
    const char *file;
    int nin, capin, nstatement, cap;
    FxInput *in;
    FxStatement *statement;
    Expr *result;          /* of return */
    const char *signature; /* from "Graph signature:" on; NULL: none follows */
    const char *name;      /* of one inside of another */
    int line, column;
    bool inlined;
    bool called; /* by flex_attention, which runs it */
    bool wraps;  /* such were inside of it, as torch.export shows them */
    int ngroup, capgroup;
    FxGroup *group; /* of a repro file, in its order */
    const char
        *untyped; /* why the rest of a repro file tells no type of an input; NULL: it is none */
} FxModule;

FxModule *fx_parse(Arena *a, const char *text, const char *file, const Map *symbols);

/* ---- exported.c, listing.c, place.c: texts of which code is made ---- */

/* The graph of an archive of torch.export.save, as JSON with a NUL after its len bytes. */
char *fx_graph_json(const Zip *z, size_t *len);
/* The code of a file's data: of the JSON of a program; of a list of nodes; else the text as it is.
 * `data` has a 0 after its len bytes. */
const char *fx_code(Arena *a, const char *data, size_t len, const char *file);
/* Whether nobody sees that code: it is of a program, whose nodes have places in comments. */
bool fx_is_program(const char *data);
#define FX_NODE "# at " /* begins the comment that has a node's place, above its statement */
/* The place of a statement that stands at a line of a program's code; "": it is of no node. */
const char *fx_place(Arena *a, const char *code, int line);
/* Fails again with the node's place instead of the line of a program's code. */
_Noreturn void fx_fail_again(Ctx *ctx, Arena *a, const char *code, const char *file);
/* The code of a graph's list of nodes, str(gm.graph), line by line; another text as it is. */
const char *fx_listing(Arena *a, const char *text, const char *file);

/* ---- repro.c: files that PyTorch writes to be attached to reports ---- */

/* A file's parts, as text, with the line on which each begins. */
typedef struct FxPart {
    const char *text; /* NULL: the file has no such part */
    int line;
} FxPart;

/* The function of `class Repro`; no text: it is no repro file. */
FxPart fx_repro_forward(Arena *a, const char *text, const char *file);
/* Fills types of inputs, and groups, by the rest of the file. */
void fx_repro_fill(Arena *a, const char *text, FxModule *m);

/* ---- inline.c ---- */

typedef struct InnerModules {
    FxModule **module;
    int count, cap;
} InnerModules;

#define FX_SET_GRAD "torch._C._set_grad_enabled"

/* Puts the statements of modules inside of m where they are called. */
void fx_inline(Arena *a, const PyLexer *x, FxModule *m, const InnerModules *inner);

/* ---- import.c: what names stand for ---- */

/* A tensor in PyTorch's sense: memory that others may share. `v` is what it holds as of `version`
 * of its storage; where that is older, it is made anew from what it is a view of. */
typedef struct FxTensor {
    Value *v;
    Type type;
    struct FxStorage *storage;
    int version;
    struct FxTensor *base; /* it is a view of this one; NULL: it has the storage whole */
    Node **step;           /* view nodes from base to v, nstep of them */
    int *output;           /* which output of each */
    int nstep;
    const int64_t *stride; /* in PyTorch, of a tensor that fills its memory; NULL: not known */
    int side;              /* of its storage */
    bool optional;         /* ATen keeps all, a part or nothing of it, as its annotation says */
    struct FxTensor *elsewhere; /* of another dtype, if an annotation says it is; or NULL */
} FxTensor;

/* A part of a storage's tensors that PyTorch may have copied from the rest: the graph does not tell
 * whether what is written to the one is seen in the other. Side 0 is the whole. */
typedef struct FxSide {
    int parent, line; /* the side that it was made of, and where */
    int since;        /* the storage's version then */
    int written;      /* ... after the last write to one of its tensors */
} FxSide;

typedef struct FxStorage {
    int version;       /* how often it was written in place */
    int input;         /* of the graph; -1: none */
    int line;          /* of an empty tensor: where it was made */
    uint8_t *written;  /* one for each element, once a part of an empty tensor was written */
    int64_t unwritten; /* how many are not */
    int nside, capside;
    FxSide *side; /* none before one is in doubt */
} FxStorage;

/* clang-format off */
typedef enum {
    FX_NONE, FX_BOOL, FX_INT, FX_FLOAT, FX_STRING,
    FX_WORD,   /* s: torch.float32, torch.strided, cpu of a device */
    FX_TENSOR, FX_LIST,
    FX_SELECTED, /* what a mask selects, as many rows as data says; t: of all rows, 0 in the others */
    FX_COMPLEX,  /* item: its real and its imaginary part, tensors or numbers */
} ItemKind;
/* clang-format on */

/* The value of an expression. */
typedef struct Item {
    ItemKind kind;
    int64_t i; /* BOOL, INT; SELECTED: the axis of the rows */
    double f;  /* INT, FLOAT */
    const char *s;
    FxTensor *t;
    int count;
    struct Item *item;
} Item;

typedef struct FxOptions {
    int ninput; /* types of inputs and constants: from a file, or from --shapes */
    const char *const *name;
    const Type *type;
    const char *origin; /* where they are from, for messages */
    bool all;           /* each must be an input or a constant of the module */
    const char *loss;   /* name of the loss; NULL: found by its tangent */
    const char
        *params; /* patterns of inputs that are parameters, separated by commas; NULL: none */
    const char *backward; /* name of the first node of the backward; NULL: found */
    const char *alias;    /* what aten.alias is to gradients: pass, stop; NULL: by the form */
    const Map *tied;      /* exported_tied's, of an archive; NULL: of none */
    bool barriers;        /* unknown calls are barriers; else they are refused */
    const Mesh *mesh;     /* of the ranks that ran the graph; NULL: one, or not known */
    int ngroup;
    const char *const *group; /* "NAME=AXIS": which mesh axes a process group spans */
} FxOptions;

/* ---- symbols.c ---- */

/* Symbols of sizes (name -> int64_t *) that the annotations of inputs with known types say. */
Map *symbols_bind(Arena *a, const char *text, const char *file, const FxOptions *o);
/* The size that an expression at *s has, which it goes past; false: a symbol is not known. */
bool symbols_size(Arena *a, const Map *known, const char **s, int64_t *size);

/* The meaning of names of the code. */
typedef struct FxNames {
    Map env;   /* name -> Item * */
    Map known; /* name -> Type *, of the options */
    Map used;  /* names in the code */
} FxNames;

/* The nodes that each statement makes. */
typedef struct FxProgress {
    const FxStatement *at;       /* the statement in work */
    int mark;                    /* the first node id of that statement */
    const FxStatement **made_by; /* by node id */
    int nmade, capmade;
} FxProgress;

/* Ones made like another tensor; NULL: a scalar, like none. */
typedef struct Tangent {
    Value *like, *ones;
} Tangent;

/* A write that autograd does not see; what its whole tensor was. */
typedef struct Unrecorded {
    const FxStatement *at;
    Value *old;
} Unrecorded;

/* Facts that decide where gradients begin and stop. */
typedef struct FxGradients {
    Tangent *tangent;
    int ntangent, captangent;
    Unrecorded *unrecorded;
    int nunrecorded, capunrecorded;
    bool off;          /* what is computed now has no gradient */
    const char *alias; /* of aten.alias: pass, stop, unknown */
    int nalias;        /* how many there are */
} FxGradients;

/* Collectives and their process groups. */
typedef struct FxGroups {
    Map wait;    /* a collective's id -> the wait_tensor for it */
    Map known;   /* names of the groups so far */
    Buf names;   /* the same as text, for messages */
    bool *given; /* by option: whether it was used */
} FxGroups;

typedef struct Importer {
    Arena *a;
    Graph *g;
    Build b;
    const FxModule *m;
    const FxOptions *o;
    FxNames names;
    FxProgress progress;
    FxGradients gradients;
    FxGroups groups;
    int nstream; /* random nodes so far */
    int nnone;   /* results of None, which are left out */
    int nopaque; /* calls that are barriers */
    Buf summary;
} Importer;

Item fx_evaluate(Importer *im, const Expr *e);
Item *fx_find(const Importer *im,
              const char *name); /* what a name of the code stands for, or NULL */
void fx_assign(Importer *im, const char *name, const Item *x);
/* Nodes that the statement made: the builder's names go, as these are values between. */
void fx_name_nodes(Importer *im, const char *target);
void fx_name_item(Importer *im, const Item *x, const char *name);

/* Reads the module and builds its graph; *summary says what was found. */
Graph *fx_import(Arena *a, const char *text, const char *file, const FxOptions *o,
                 const char **summary);

/* ---- ports.c: inputs, constants, results ---- */

void fx_find_names(Importer *im); /* fails for names of the options that stand for nothing */
bool fx_is_used(const Importer *im, const char *name); /* a value of the code reads it */
void fx_add_inputs(Importer *im);                      /* constants too */
void fx_add_results(Importer *im, const Item *x);

/* ---- alias_gradient.c ---- */

/* The attribute `gradient` of what aten.alias becomes: pass where surely so, or unknown. */
const char *fx_alias_gradient(const FxModule *m);

/* ---- unknown.c ---- */

/* "torch.return_types.max": a tuple with names, whose fields are its arguments; classes begin with
 * a capital letter, functions do not. */
bool fx_named_tuple(const char *s);
void fx_check_calls(Arena *a, const FxModule *m); /* fails where the graph is of another kind */
/* The calls of the module that are not known, a line for each name; NULL where all are. */
const char *fx_unknown(Arena *a, const char *text, const char *file, bool program);

/* ---- functionalize.c: memory that is shared and written in place ---- */

FxTensor *fx_fresh(Importer *im, Value *v);                /* of its own storage */
FxTensor *fx_view(Importer *im, FxTensor *base, Value *v); /* v was made from fx_read(base) */
FxTensor *fx_empty(Importer *im, Value *zeros);            /* to be written before it is read */
/* A copy of a tensor of which a part was not written, nor is of the copy; NULL where all was. */
FxTensor *fx_copy_empty(Importer *im, const FxTensor *t);
Value *fx_read(Importer *im, FxTensor *t);
Value *fx_peek(Importer *im, FxTensor *t);          /* the same, never written or not */
void fx_write(Importer *im, FxTensor *t, Value *v); /* fails where v is not of t's type */
/* How PyTorch lays it out; strides with gaps or overlaps are as if not known. */
void fx_set_strides(Importer *im, FxTensor *t, const int64_t *stride);
void fx_set_row_major(Importer *im, FxTensor *t);
/* t's strides in PyTorch, and whether they are known; whether they say that it lies row by row. */
bool fx_layout(const FxTensor *t, Layout *at);
bool fx_row_major(const FxTensor *t);
void fx_doubt(Importer *im, FxTensor *t); /* t is a view, or a copy */
/* A whole tensor with its axes in the order of memory; NULL where that is not known. */
Value *fx_memory(Importer *im, FxTensor *t);
int64_t fx_offset(Importer *im, const FxTensor *t); /* of its first element in its storage */
/* The row-major positions of a tensor, in its shape; and x with y put (op: scatter) or added
 * (scatter_add) at such positions. */
Value *fx_positions(Importer *im, const Type *t);
Value *fx_scatter(Importer *im, const char *op, Value *x, Value *at, Value *y);

/* ---- unrecorded.c: writes that autograd does not record ---- */

void fx_note_write(Importer *im, FxTensor *t); /* before t is written */
void fx_check_writes(Importer *im);            /* of a forward that is to be differentiated */

/* ---- site.c: one call of an ATen overload, its arguments bound to the schema ---- */

enum { FX_MAX_ARG = 24 };

typedef struct Site {
    Importer *im;
    Build *b;
    const char *name; /* aten.add.Tensor */
    const struct AtenRow *row;
    Item arg[FX_MAX_ARG];
    const char *arg_name[FX_MAX_ARG];
    bool arg_keyword[FX_MAX_ARG]; /* only by its name */
    int narg;
    bool viewed; /* the schema says that results are views of the first argument */
    bool copied; /* whatever it says, they are not: X_copy */
    Item result;
} Site;

/* A row of aten.def. */
typedef struct AtenRow {
    const char *name; /* add.Tensor */
    const char *schema;
    void (*lower)(Site *s); /* NULL: refused, schema says why */
    const char *each;       /* FOREACH, SAME: the overload that is called */
} AtenRow;

const AtenRow *aten_find(const char *name); /* "add.Tensor"; NULL where unknown */
const Op *aten_alias(const char *name);     /* the op with this alias, "aten.mm.default" */
const char *aten_nearest(Arena *a, const char *name);

/* Binds positional and keyword arguments; fails naming the argument, expected and found. */
void site_bind(Site *s, const Expr *call, const Item *arg);
const char *item_text(const Item *x); /* "a tensor", for messages */

_Noreturn void site_fail(const Site *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

const char *site_stem(Site *s); /* what the overload is named after: "add" of add.Tensor */
const Item *site_arg(const Site *s, const char *name);
int64_t site_times(const Site *s, int64_t n, int64_t times); /* n * times; fails beyond 2^63 */
/* How many parts of `each` elements n elements have, the last maybe smaller. */
static inline int64_t site_parts(int64_t n, int64_t each)
{
    return n / each + (n % each != 0);
}
bool site_has(const Site *s, const char *name); /* it is not None */
Value *site_tensor(Site *s, const char *name);
FxTensor *site_storage(const Site *s, const char *name); /* fails where it is a number */
const Type *site_type(Site *s, const char *name);        /* of a tensor; a number is refused */
Value *site_find_tensor(Site *s, const char *name);      /* NULL for None */
int64_t site_int(const Site *s, const char *name);
double site_real(const Site *s, const char *name);
bool site_bool(const Site *s, const char *name);
const char *site_text(const Site *s, const char *name);
int site_ints(const Site *s, const char *name,
              int64_t *out); /* at most TN_RANK; one int is a list */
/* Number k of a list, which has `count` of them or the call fails. */
double site_list_real(const Site *s, const char *name, int count, int k);
Value **site_tensors(const Site *s, const char *name, int *count);
DType site_dtype(const Site *s, const char *name, DType otherwise);
int site_axis(const Site *s, const char *name, int rank);

void site_return(Site *s, Value *v);                                /* one tensor */
void site_return_views(Site *s, const Item *list, Value *const *v); /* v[i]: of list's i-th */
void site_return_all(Site *s, Node *n);                             /* a tuple: all outputs of n */
void site_return_list(Site *s, int count, Value *const *v);         /* a tuple; NULL: None */

/* ---- lower.c: numbers as items; lower.h has the rest ---- */

Item item_int(int64_t i);
Item item_ints(Site *s, int n, const int64_t *i);

/* ---- call.c ---- */

/* The result of a call of e->s with these arguments. */
Item fx_call(Importer *im, const Expr *call, const Item *arg);
/* Why a call of this name cannot be understood; NULL where it can. */
const char *fx_call_unknown(Arena *a, const char *s);

/* ---- flex.c ---- */

bool fx_is_flex(const Expr *e);
/* The result of flex_attention, whose modules stand in the call. */
Item fx_flex(Importer *im, const Expr *call);

/* ---- groups.c ---- */

/* Makes a mesh of a repro file's groups where none is given. Checks the options'. */
void fx_check_groups(Importer *im);      /* before the first call */
void fx_check_groups_used(Importer *im); /* fails where the module has none of that name */
/* The name of a call's group, and the number of its ranks; 0: it does not say. */
const char *fx_group(Site *s, int64_t *ranks);

/* ---- lower_opaque.c ---- */

/* Lowers a call that is not known; writes: its name says that it writes to its first argument. */
Item fx_opaque_call(Site *s, const Expr *call, const Item *arg, bool writes);

/* ---- lower_collective.c ---- */

/* v, or what a wait_tensor for it makes, if a collective began it. */
Value *fx_waited(Importer *im, Value *v);

/* ---- complex.c ---- */

bool item_complex(const Item *x); /* it is, or is a list with one that is */
/* The result of a call with such arguments; view: of a view op, writes: in place. */
Item fx_complex_call(Site *s, const Expr *call, const Item *arg, bool view, bool writes);
Item fx_complex_of_pairs(Importer *im, FxTensor *pairs); /* whose last axis has 2 elements */
FxTensor *fx_pairs_of_complex(Importer *im, const Item *x);
bool fx_pairs_type(const Item *x, Type *t); /* false: x is no complex tensor */
bool item_complex_dtype(const Item *x);     /* torch.complex64 */

/* ---- lower_fourier.c ---- */

/* The result of a transform of a complex tensor, arg[0]. */
Item fx_fourier(Site *s, const Item *x, int narg, const Item *arg);

/* ---- complex.c: the rest ---- */

/* The result of a call with real tensors that asks for such a dtype. */
Item fx_complex_of_real(Site *s, const Expr *call, const Item *arg);
Item fx_complex_number(Importer *im, int n, const Item *arg); /* complex(0., 1.) */

/* ---- promote.c: PyTorch's type promotion ---- */

DType promote(DType s, DType t);
/* The type of a result of tensors and numbers, by their categories: tensors with axes, tensors
 * without, Python's numbers. */
DType result_type(Site *s, int count, const Item *const *arg);
DType result_type_of(Site *s, int count); /* of the first arguments */
/* The argument as a value of dtype d: a tensor is cast, a number made. */
Value *promoted(Site *s, const Item *arg, DType d);
Value **promoted_all(Site *s, int count, const Item *arg); /* in the dtype of all of them */
DType float_type(DType d);  /* what a float function makes of it: f32 of integers */
DType opmath_type(DType d); /* what ATen's kernels work in: f32 for 16 bits */
DType sum_type(DType d);    /* i64 of integers */
/* torch.float32 and such to a DType; -1 where it is none of ours. */
int torch_dtype(const char *name);

/* ---- phase.c: forward and backward, roles ---- */

/* Sets the nodes' phases and policies and the roles of inputs and outputs; writes the summary. */
void fx_finish(Importer *im);

/* ---- baked.c ---- */

/* Refuses a gradient that reads values of the traced step as constants. */
void fx_check_baked(Importer *im);
/* Refuses, in a forward that is to be differentiated, a gradient that reads detached results. */
void fx_check_saved(Importer *im);

/* ---- signature.c ---- */

/* Gives inputs the roles that the signature of an exported program says; tied parameters become
 * one. Returns how many are params. */
int fx_sign(Importer *im);

/* ---- optimizer.c ---- */
/* Gives the optimizer's nodes their phase; dependent: on the tangent, by value id. */
void fx_find_optimizer(Importer *im, const bool *dependent);

/* ---- again.c ---- */

/* Gives backward nodes that repeat a forward one an origin; returns how many. */
int fx_mark_again(Importer *im);

#endif
