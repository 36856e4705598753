/* decide: chooses what a step computes again, and what runs in slices, so that its plan fits a
 * limit at the least time. Sections name the file that implements them. */
#ifndef TENON_DECIDE_H
#define TENON_DECIDE_H

#include "chunk_choose.h"

#include <string.h>

static inline bool is_auto(const char *word) /* of an option */
{
    return !word || !strcmp(word, "auto");
}

/* ---- blocks.c: parts of the forward that can be computed again by themselves ---- */

enum { NO_BLOCK = -1 };

typedef struct Blocks {
    int *of;     /* by node id: the number of its block; NO_BLOCK: it is in none */
    bool scoped; /* scopes name them; then a block's recomputation begins with what is saved */
} Blocks;

/* They live in tmp. */
Blocks find_blocks(const Graph *g, Arena *tmp);

/* ---- ladder.c: what is computed again, in the order in which it pays ---- */

/* Values that the backward computes again, of one block or of no block. */
typedef struct LadderStep {
    const char **value; /* names of the nodes' first results */
    int n, cap;
} LadderStep;

/* How the backward gets a value of the forward: it is saved, computed again, or comes back from the
 * host's memory. A parameter that ranks gather is kept, or gathered again. */
typedef enum Level { SAVED, AGAIN, AWAY } Level;

/* The first k steps together are a choice, for each k; with k it takes more time, and fewer bytes
 * but for what several blocks share. */
typedef struct Ladder {
    Level level;       /* that the values of steps get */
    const Level *base; /* by number of the step's values: that of all others; NULL: all are saved */
    LadderStep *step;
    int n, cap;
} Ladder;

/* The ladder of g, in which forward and backward stand, before chunk and remat; it lives in a, its
 * names are g's. block: by node id; NULL: all nodes are one. weight: by value id, the bytes that
 * count of each value; NULL: all. hidden: collectives take no seconds. */
Ladder ladder_new(Arena *a, const Graph *g, const Machine *m, const int *block,
                  const int64_t *weight, bool hidden);

/* ---- again.c: what is saved, computed again, or kept in the host's memory ---- */

/* A choice that was planned. */
typedef struct Planned {
    const Level *level; /* by number of the step's values; NULL: all are saved */
    const char *word;   /* of --recompute, which has the same computed again; NULL: no word does */
    const Ladder *ladder; /* of whose first `steps` the set is made; NULL: of none's */
    int steps;
    const int *weight; /* of a short step (short.h): how many blocks each kept one stands for; NULL:
                          as usual */
    int room;          /* in which collectives are moved (plan.h); 0: as the limit says */
    bool prefer;       /* the set is preferred, not demanded: a block may begin at what is saved */
    int64_t need;      /* bytes of the plan with its library's reserve; -1: it cannot be planned */
    int64_t peak;      /* bytes of it without the reserve */
    int64_t least;     /* need, wherever its buffers lie */
    int64_t memory;    /* the limit within which they were to lie */
    bool loose;        /* it took no fewer seconds than were to beat: no addresses were sought */
    double sec;        /* of the step, estimated */
    double shown;      /* of these, for which it stands still for collectives */
    double
        crowd; /* in how many of its places about as much is alive as at its peak; 0: not known */
    const int64_t *alive; /* by number: the value's bytes at the peak; NULL: not asked for */
} Planned;

/* A node, by the name of its first result, and what was decided of it. */
typedef struct NodePolicy {
    const char *node;
    Policy policy;
} NodePolicy;

/* A plan that was made to decide, for who plans the same after the passes. */
typedef struct PlanMade {
    Arena *a;       /* its own; NULL: there is none */
    const Graph *g; /* that was planned */
    PlanFor to;
    bool ordered; /* by plan_ordered(); else by plan_make() */
    Plan *p;
} PlanMade;

/* What was chosen, and among what. */
typedef struct AgainReport {
    Arena *a;         /* in which the rest lives */
    PlanMade made[2]; /* of the best choice, as a rule what was chosen; of another */
    bool searched;  /* the step did not fit with all values saved */
    bool replayed;  /* it was decided before */
    bool drops;     /* its text is for steps that may lack some of its nodes */
    bool fits;      /* what was chosen does */
    bool hoisted;   /* all gathered parameters are kept, and gathered before the loop of
                       microbatches */
    int64_t memory; /* the limit */
    Planned none;   /* all values saved */
    Planned chosen;
    double bound;     /* seconds: no choice that fits has less computed again (again_bound.c); NAN:
                         none is known */
    NodePolicy *node; /* what is not saved, but for a word's, and gathers that are kept */
    int nnode, capnode;
    int nagain, naway, nkept; /* of these: computed again, in the host's memory, kept */
    Planned *front; /* by seconds upward and bytes downward, `none` first; for all limits the
                       same */
    int nfront, capfront;
    int nplanned;
    double apart; /* times of its seconds that the step would take with each collective alone, as a
                     short step tells; 0: not known */
} AgainReport;

/* Plans that were tried, for other limits of the same step; they live in `of`'s arena. */
typedef struct AgainKnown {
    Map of; /* by the set, as text: what its plan came to */
} AgainKnown;

enum { NO_MEMORY = 1 }; /* bytes of a limit that nothing keeps */

/* The plan that is to fit. */
typedef struct DecideTask {
    PlanFor to;
    bool ordered;   /* it is made by plan_ordered; else by plan_make */
    bool keeps;     /* the plan of what is chosen is kept */
    int64_t memory; /* bytes of it with its library's reserve; 0: no limit */
    const ChunkAsked *chunk;
    AgainKnown *known;   /* NULL: none */
    const char *decided; /* again_text() of the same step, which is taken; NULL: none */
    /* whether the passes offload, fuse, bucket are among those to come; decide() and decide_curve()
     * find that */
    bool offload, fuses, joins;
} DecideTask;

/* Chooses for the step of w, which stands before the first pass that reads policies, and has the
 * options o, what needs the least seconds and fits t->memory; if nothing does, what needs the
 * fewest bytes. r->a is given. */
void again_choose(const PassWalk *w, const DecideTask *t, const PassOptions *o, AgainReport *r);
/* Takes the plan that plan_ordered(), or plan_make(), would make of g, if it was made; it lives as
 * long as r->a. NULL: it was not. */
Plan *again_made(AgainReport *r, const Graph *g, const PlanFor *to, bool ordered);
/* Gives g's nodes the policies of what was chosen, or o the word. */
void again_apply(const AgainReport *r, Graph *g, PassOptions *o);

/* ---- decided.c ---- */

/* By name: the nodes whose policy is the choice's. They live in a. */
Map again_names(const AgainReport *r, Arena *a);
/* What was decided, for a checkpoint; "": nothing was asked. It lives in a. */
const char *again_text(const AgainReport *r, Arena *a);
/* Whether the text is of a step whose gathered parameters are all kept before its loop. */
bool again_hoisted(const char *text);
/* Fills `to` with what the text says, if g has all nodes that it names, or need not have them. */
bool again_replay(const char *text, const Graph *g, AgainReport *to);

/* ---- decide.c ---- */

/* What was decided, for reports. */
typedef struct Decided {
    ChunkReport *chunk;
    AgainReport *again;
} Decided;

/* What was decided for several limits. */
typedef struct DecideCurve {
    int n;
    int64_t least, most; /* bytes: the fewest that are found to do; with all values saved */
    AgainReport *point;  /* for each limit, evenly from the least to the most */
} DecideCurve;

/* Fills n points of c, which live in a. w is as for decide, and stays where decisions are made;
 * slices are those that were asked for by number or pattern. Fails where nothing is chosen. tell:
 * called after each point; NULL: nobody is told. */
void decide_curve(PassWalk *w, const DecideTask *t, PassOptions *o, Arena *a, DecideCurve *c,
                  void (*tell)(void *arg, int done, int all), void *arg);

/* Runs the passes of w, which has just begun, up to where decisions are made, if there are any to
 * make, and makes them: w and its options o have them then. */
void decide(PassWalk *w, const DecideTask *t, PassOptions *o, const Decided *to);

#endif
