/* api: the public interface of include/tenon.h over the layers below. Its objects lie in run.h. */
#ifndef TENON_API_H
#define TENON_API_H

#include "../../include/tenon.h"

#include "../page/page.h"
#include "../pick/pick.h"
#include "../run/run.h"

struct tn_data {
    Handle h;
    DataSet *set;
    DataReader *ahead; /* NULL: each batch is read when it is asked for */
};

struct tn_tokenizer {
    Handle h;
    Tokenizer *t;
    Encoder *e; /* NULL: not used yet */
    Decoder *d; /* the same */
    int64_t *ids;
    int count, cap;
    Buf text;
};

struct tn_buffers {
    Handle h;
    PlaceTable *table;
    tn_buffer *list; /* the table's, whose offsets may have been set since */
};

struct tn_sharding {
    Handle h;
    PickProblem *problem;
    bool solved; /* result and strategies are those of a solution */
    PickResult result;
    int64_t *strategy;
};

/* ---- plan.c ---- */

/* A plan's device, its machine and its limits; fails where the options do not agree with the
 * device. */
PlanFor plan_for(tn_context *ctx, const tn_options *o, const Device *device,
                 const Machine *machine);
/* Says once why a file of what was tuned here is left alone. */
void warn_machine(tn_context *ctx, const tn_options *o);

/* ---- graph.c ---- */

/* A walk of g that has just begun, and the options of its passes, which it borrows, and what was
 * asked of slices. */
PassWalk begin_passes(tn_graph *g, const char *names, const tn_options *o, PassOptions *p,
                      ChunkAsked *asked);

/* ---- model.c ---- */

/* As tn_model_graph; drop: the inputs of adapters are dropped with the probability that they have.
 */
int step_graph(tn_model *m, int64_t batch, int64_t seq, const tn_options *o, bool drop,
               tn_graph **graph);

/* ---- convert.c ---- */

/* Fails where a folder has weights that are not safetensors, with the line of Python that makes
 * them so. */
void convert_check(Arena *a, const char *folder);

/* ---- bucket_ways.c ---- */

/* A choice as a line for options.decided; "": there is none to keep. */
const char *bucket_line(Arena *a, const BucketChoice *x);
void bucket_print(Buf *b, const BucketChoice *x); /* a line, if there was a choice */

/* ---- port.c: inputs and outputs by name ---- */

const char *port_input_name(const PlanPort *p); /* seed and step have that of their role */
const PlanPort *port_find(const Plan *p, const char *name); /* NULL where there is none */
const char **port_names(Arena *a, const Plan *p);           /* of inputs, then of outputs */
/* The name under which output i is found and written: loss, grad.NAME, metric.NAME, outN. */
const char *port_output_name(Arena *a, const Plan *p, int i);

/* ---- scalar.c ---- */

void scalars_start(tn_program *x); /* none of them is set */
bool scalar_set(const tn_program *x, const PlanPort *in);
const PlanPort *scalars_unset(const tn_program *x); /* the first that is not set, or NULL */

/* ---- sampling.c ---- */

typedef struct Candidate {
    double p; /* not normalised */
    int64_t id;
} Candidate;

/* A token by the logits of n; index is how many were drawn before; c has room for n. -1 where a
 * logit is not finite. */
int64_t sampling_draw(const tn_sampling *s, const float *logits, int64_t n, uint64_t index,
                      Candidate *c);
double sampling_uniform(uint64_t seed, uint64_t index); /* in [0, 1), 53 bits */

/* ---- generate.c ---- */

/* The graph that decodes `tokens` at once, and its ports. */
typedef struct GeneratorPass {
    tn_graph *graph;
    tn_plan *plan;
    tn_program *program;
    int64_t tokens;
    const PlanPort *ids, *position, *last, *logits; /* last is NULL for one token */
} GeneratorPass;

struct tn_generator {
    Handle h;
    tn_model *model;
    tn_options o;
    int64_t capacity, vocab, peak, reserve;
    int64_t handles; /* of the reserve: of both programs */
    GeneratorPass one, many;
    int64_t *text;         /* the window: count tokens, of which the first are in the caches */
    int64_t count, cached; /* with their keys and values */
    uint64_t drawn;
    int64_t *ids;  /* of a pass */
    float *logits; /* after the last token in the caches */
    Candidate *candidate;
};

/* ---- plan.c ---- */

/* The words around the numbers of a Misfit. */
typedef struct FitText {
    const char *what;   /* needs so much: "needs ", "evaluation needs " */
    const char *beside; /* what the least has counted with it; NULL: nothing */
    const char *holds;  /* lines, see fit_holds */
    const char *unit;   /* of tn_bytes_text */
    const char
        *others; /* other options, "--recompute full", and their least; NULL: it is not less */
} FitText;

void plan_limit(tn_plan *plan, int64_t limit); /* 0: none */
/* Fails because what is needed exceeds the limit. Returns TN_CODE_FIT. */
int fit_fail(tn_context *ctx, const Misfit *m, const FitText *t);
/* The holders of a plan's peak, as lines of a message: those that it has room for. */
const char *fit_holds(Arena *a, const Plan *p);

/* ---- shardings.c ---- */

bool shardings_auto(const tn_options *o); /* whether "auto" is among options.shardings */
/* options.shardings without "auto". */
const char **shardings_given(Arena *a, const tn_options *o, int *count);
enum { SHARD_SHARES = 3 };
/* Shares of the seconds of gathers and reductions that count, in the first choices of forms. */
extern const double shard_shares[SHARD_SHARES];
/* Options of a step whose forms are solved for, with the share of what computing may hide that
 * counts; share 0: of the recipes' forms. */
tn_options shard_try(Arena *a, const tn_options *asked, double exposed);
/* The rule that says how ranks have a parameter of a rank's graph. */
const char *sharding_rule(Arena *a, const Mesh *m, const Port *p);
/* options.shardings, and after them those rules for all parameters of a rank's graph. */
const char **shardings_of(Arena *a, const Graph *g, const tn_options *o, int *count);

/* ---- plan_json.c ---- */

const char *decision_name(const Decision *x); /* "save", "recompute", "offload" */
/* As tn_plan_json and tn_plan_compare give them; in the memory of the (first) plan. */
const char *plan_json(Arena *a, tn_plan *plan, bool fits);
const char *plans_json(tn_plan *const *plans, const char *const *side, Arena *a);

/* ---- op_tables.c: aligned columns ---- */

/* The memory of a text that a call gives: that of the call before goes. */
Arena *text_arena(tn_context *ctx);
/* A text in a handle's memory: the one that was given before, *said, where it is the same, so that
 * who asks again and again takes no more memory. */
const char *text_kept(Arena *a, const char **said, const char *text);

typedef struct Table {
    Arena *a;
    int ncol;
    const char **cell; /* row by row */
    int count, cap;
} Table;

void table_row(Table *t, ...); /* ncol texts, borrowed */
void table_print(Buf *b, const Table *t);

/* ---- show_rule.c ---- */

/* Prints what a rule of op ("infer", "diff", "cost", "factors") gives for the op's example. */
void show_rule(Buf *b, const Op *op, const char *rule);

#endif
