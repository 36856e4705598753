/* page: a plan as an HTML page. Sections name the file that implements them. */
#ifndef TENON_PAGE_H
#define TENON_PAGE_H

#include "../decide/decide.h"

enum {
    PAGE_COLUMNS = 1200, /* most columns of a picture: of more steps each column shows one */
    PAGE_BUFFERS =
        4000, /* most buffers that are drawn one by one, the largest by bytes times steps */
    PAGE_FINENESS = 1000, /* then: of the arena's height the part that can be seen */
    PAGE_LARGEST = 8,     /* values that the page names at each column */
    PAGE_PEAK = 20,       /* and at the peak */
};

/* A plan to be shown. */
typedef struct PageSide {
    const Plan *p;
    const ChunkReport *chunk;
    const ShardReport *sharded;
    const char *title; /* what it has of its own; "" where it is alone */
} PageSide;

/* Steps `first` and on, up to those of the next column. */
typedef struct Column {
    int first;
    int step;                       /* of them the first with the most bytes */
    Phase phase;                    /* of most of them */
    int64_t live[NCATEGORY], total; /* alive at that step */
} Column;

/* The picture of a plan. */
typedef struct Picture {
    const Plan *p;
    const ChunkReport *chunk;
    const ShardReport *sharded;
    const char *title; /* of its side, "" where it is alone */
    char id;           /* 'a', 'b' */
    int nstep;         /* at least 1 */
    Column *column;
    int ncolumn;
    int *rect, nrect; /* storages that are drawn one by one */
    int *named,
        nnamed; /* those that the page knows by name: they, and the largest of each column */
    int nsmall; /* storages that are drawn only together */
    int peak_step;
} Picture;

/* A scale of bytes: from lo to hi, a tick at each multiple of `tick`. */
typedef struct Scale {
    double lo, hi, tick;
} Scale;

/* The one unit that a column of numbers has. */
typedef struct PageUnit {
    const char *name;
    double one;
    int digits; /* after the point */
} PageUnit;

typedef struct Page {
    Arena *a;
    Buf *b;
    PageUnit bytes, sec; /* of all tables */
    Picture pic[2];
    int npic;
    Scale full, zoom; /* common to both pictures; zoom.lo 0: nothing to zoom in on */
    double unit;      /* bytes of 1 in coordinates of what is drawn: a power of two */
} Page;

/* ---- data.c: what is drawn ---- */

/* Whether a picture has the buffer: it is ever alive, in the memory where kernels compute. */
static inline bool storage_shown(const Storage *s)
{
    return s->end > s->start && s->space == SPACE_MAIN;
}

Picture picture_make(Arena *a, const PageSide *s, char id);
/* Names, sizes and lives of the named buffers and what each column is, for the page's script. */
void page_data(Page *x, const Picture *d);
/* The op of a step as people read it: "mm", "fused: add, gelu", "end of loop". */
const char *step_title(Arena *a, const Step *s);

/* ---- chart.c: the two pictures of a plan ---- */

extern const Category page_stack[NCATEGORY]; /* the order of the layers, bottom first */
Scale scale_make(double lo, double hi);
/* The round number, 1, 2 or 5 times a power of ten, of which at most `count` make up the range. */
double round_tick(double range, int count);
void page_live(Page *x, const Picture *d);  /* bytes alive over the step */
void page_arena(Page *x, const Picture *d); /* the arena: address against step */

/* ---- simulated.c: when what runs ---- */

typedef struct SimulatedStep {
    const Plan *p;
    double sec;
    PlanSpans spans;
    int64_t *live; /* by step: bytes alive in the memory where kernels compute */
    RankGroup *group;
    int ngroup;
} SimulatedStep;

SimulatedStep simulate(Arena *a, const Plan *p);
/* The group of a collective's span, or of what is exposed. */
int simulated_group(const SimulatedStep *s, const PlanSpan *x);
void plan_trace(Buf *b, const Plan *p); /* adds a file for Perfetto */

/* ---- queues.c ---- */

void page_queues(Page *x, const Picture *d); /* queues over time, with the memory beneath */

/* ---- shard_picture.c ---- */

void page_sharding(Page *x, const Picture *d); /* a choice of --shard auto that was solved */

/* ---- table.c ---- */

void page_comparison(Page *x);                   /* of the two plans */
void page_categories(Page *x, const Picture *d); /* what holds the peak */
void page_scopes(Page *x, const Picture *d);
void page_largest(Page *x, const Picture *d);
void page_collectives(Page *x, const Picture *d); /* and the mesh */
void page_chunks(Page *x, const Picture *d);      /* what runs in slices, or might */
void put_swatch(Buf *b, int category);            /* a category's colour and name */
void put_side(Page *x, const Picture *d);         /* a heading that says which of two plans it is */

/* ---- text.c: text for HTML ---- */

void put_escaped(Buf *b, const char *s);       /* as content of an element or quoted attribute */
void put_cut(Buf *b, const char *s, int most); /* the same, cut to so many characters */
void put_quoted(Buf *b, const char *s);        /* as a JSON string within a script */
void put_bytes(Buf *b, int64_t nbytes);        /* "1,899.36 MiB" */
void put_grouped(Buf *b, double x, int decimals);
/* The unit in which numbers up to `most` are read best. */
PageUnit unit_of_bytes(double most);
PageUnit unit_of_sec(double most);
/* A number in a unit, which its column names; "<0.01" where it is less than what is shown. */
void put_in(Buf *b, double x, const PageUnit *u);

/* ---- page.c ---- */

/* Adds an HTML page that needs nothing else, of one plan or of two side by side: what was planned,
 * and the command that did it. */
void plan_page(Buf *b, const PageSide *side, int count, const char *title, const char *command);

/* ---- curve.c ---- */

/* A step within a limit. */
typedef struct CurvePoint {
    int64_t limit, need;      /* bytes, with the library's reserve */
    double sec, none, bound;  /* of a step; with all values saved; of what is computed again, NAN:
                                 no bound is known */
    const char *word;         /* of --recompute; NULL: values by themselves */
    int nagain, naway, nkept; /* values computed again, without a word; in the host's memory;
                                 gathered parameters that are kept */
} CurvePoint;

/* Adds a page with the picture of at least one point, by limits upward, and the command that made
 * it. */
void curve_page(Buf *b, const CurvePoint *point, int count, const char *title, const char *command);

/* ---- report.c ---- */
void plan_print(Buf *b, const Plan *p); /* the breakdown people read */
/* Parameters that have the optimizer and the weight decay in common, or that are frozen. */
typedef struct ParamGroup {
    const Op *op; /* NULL: frozen */
    double decay;
    int ntensor;
    int64_t nelem;
} ParamGroup;

int plan_groups(Arena *a, const Plan *p, ParamGroup **groups); /* how many; the frozen ones last */

/* Calls that one kernel of an op runs, of ops that have several: the ways that were taken. */
typedef struct KernelRow {
    const Op *op;
    const char *kernel;
    int64_t calls; /* of a step, as often as loops run */
    double sec;    /* of these together, estimated */
} KernelRow;

/* How many; by first call. What the planner adds does not count. */
int plan_kernels(Arena *a, const Plan *p, KernelRow **rows);
/* Visits each call that counts there, which runs so many times a step. */
typedef void CallFn(void *arg, const Step *s, int64_t times);
void plan_each_call(const Plan *p, CallFn *fn, void *arg);
void plan_print_steps(Buf *b, const Plan *p); /* every call, copies and addresses */

/* ---- chunk_show.c ---- */

/* Candidates that are alike: of several layers, with the same outcome. */
typedef struct ChunkRow {
    const ChunkCandidate *c; /* the first of them */
    int count;
    const char *scope;            /* of all their values: "layers.0-11.mlp" */
    int64_t nbytes, nbytes_slice; /* of all: at the peak, and that with slices */
    double sec;                   /* that all add */
} ChunkRow;

int chunk_rows(Arena *a, const ChunkReport *r, ChunkRow **rows); /* how many */
/* The op of a row's values, to follow their scope: "::mm", " (mm)" after none. */
const char *chunk_op(Arena *a, const ChunkRow *row);
const char *chunk_axis(Arena *a, const ChunkCandidate *c);   /* "axis 0" */
const char *chunk_scopes(Arena *a, const ChunkCandidate *c); /* of its nodes, "layers.0-11, ln_f" */
int64_t chunk_slice_nbytes(const ChunkCandidate *c);         /* of its nbytes, with slices */
bool chunk_priced(const ChunkCandidate *c);                  /* its seconds are known */
const char *chunk_reason(const ChunkCandidate *c);           /* why it was taken or not */
/* The region that a loop runs in slices, by the names of its values; NULL: it runs none. */
const ChunkCandidate *chunk_of_loop(const ChunkReport *r, const Node *loop);
/* A line for each row of regions that run in slices; for every row of candidates. */
void chunk_print(Buf *b, const ChunkReport *r, const Estimate *e);
void chunk_explain(Buf *b, const ChunkReport *r);

/* ---- fuse_show.c ---- */

/* A line for each kind of node that is fused, or stays apart, and why. */
void fuse_explain(Buf *b, const Graph *g, const Decisions *d);

/* ---- kernel_show.c ---- */

/* A line for each kind of call of which an op has several kernels: the one taken, and the others.
 */
void kernels_explain(Buf *b, const Plan *p);

/* ---- again_show.c ---- */

void again_print(Buf *b, const AgainReport *r); /* a line, if --memory had something decided */

/* ---- shard_show.c ---- */

const char *shard_way(Arena *a, const ShardTry *t); /* "30 % exposed", "recipes" */
void shard_print(Buf *b, const ShardReport *r);     /* what --shard auto has chosen among */
void shard_explain(Buf *b, const ShardReport *r);   /* forms, their readers, other forms' prices */

/* ---- compare.c ---- */

typedef enum { UNIT_BYTES, UNIT_GFLOP, UNIT_SEC, UNIT_COUNT } FigureUnit;

/* A number in which plans are compared, of each of two. */
typedef struct Figure {
    const char *title;
    FigureUnit unit;
    double value[2];
} Figure;

/* Two plans beside each other; what is nothing in both is left out. Returns how many. */
int plan_figures(Arena *a, const Plan *const p[2], Figure **list);
/* The same as text, `side` says what each has of its own. */
void plan_compare(Buf *b, const Plan *const p[2], const char *const side[2]);

#endif
