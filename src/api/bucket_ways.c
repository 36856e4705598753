/* --bucket auto by the clock: a step is planned with collectives of a block joined, and, where that
 * changes it and it runs beside computing, with each alone: what is computed again is chosen for
 * each of the two (but with --shard auto), all else is as was decided. The faster that fits is
 * kept: one call takes less than several, but a block then waits for its last value, and its values
 * need more memory. Bits are the same. Where deciding has found by a short step that calls alone
 * are slower by far, the whole is not planned for them.
 *
 * What was chosen is the first line of what a checkpoint keeps of a plan, "bucket WORD", before the
 * lines of decide/decided.c; what it does not know is chosen anew. */
#include "parts.h"

#include <math.h>
#include <string.h>

#define LINE "bucket "

static const char block[] = "block", off[] = "off";

/* The times of the joined step's seconds that a short step must tell of calls alone, so that the
 * whole is not planned. */
#define FAR 1.06

enum { MOST_GROUPS = 16 }; /* whose seconds are added up; those of others count nothing */

bool bucket_open(const tn_options *o)
{
    return !o->bucket || !strcmp(o->bucket, "auto");
}

const char *bucket_line(Arena *a, const BucketChoice *x)
{
    return x->chosen ? arena_printf(a, LINE "%s\n", x->taken) : "";
}

/* Takes the line off o->decided. The word of it; NULL: there is none. */
static const char *take_line(tn_options *o)
{
    static const char *const words[] = {block, off};
    const char *text = o->decided;
    if (!text || strncmp(text, LINE, strlen(LINE)) != 0)
        return NULL;
    const size_t n = strcspn(text, "\n");
    o->decided = text + n + (text[n] == '\n');
    for (int i = 0; i < LEN(words); i++)
        if (n == strlen(LINE) + strlen(words[i]) &&
            !strncmp(text + strlen(LINE), words[i], strlen(words[i])))
            return words[i];
    return NULL;
}

BucketAsked bucket_begin(tn_options *o)
{
    const char *word = take_line(o);
    BucketAsked x = {.word = o->bucket ? o->bucket : "auto", .open = bucket_open(o)};
    if (x.open) {
        x.decided = word;
        o->bucket = word ? word : block;
    }
    return x;
}

/* Whether collectives run beside computing; else one call takes less, as bucket joins no others. */
static bool runs_beside(const tn_task *task, const tn_options *o)
{
    return o->overlap ? strcmp(o->overlap, off) != 0 : !task->keep_order;
}

/* Whether --bucket may change the step, and what it does is left to choose, or to be told. */
static bool is_open(const Parts *x, const BucketAsked *asked, const tn_options *o)
{
    const char *passes = x->task->part[0].passes;
    return !asked->decided && (asked->open ? !x->quick : x->task->apart) &&
           strcmp(o->bucket, off) != 0 && passes && tn_passes_have(passes, "bucket") &&
           x->to->graph[0]->g->mesh;
}

/* ---- what calls alone take at least ---- */

/* Seconds of a group's calls, each operand by its own. */
typedef struct GroupSec {
    const char *group;
    double sec;
} GroupSec;

typedef struct GroupSecs {
    GroupSec of[MOST_GROUPS];
    int n;
    bool joins; /* some call has several operands */
} GroupSecs;

static double *sec_of(GroupSecs *s, const char *group)
{
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->of[i].group, group))
            return &s->of[i].sec;
    if (s->n == MOST_GROUPS)
        return NULL;
    s->of[s->n] = (GroupSec){group, 0};
    return &s->of[s->n++].sec;
}

/* A loop's body counts once. */
static void add_groups(GroupSecs *s, const Graph *g, const Machine *m)
{
    for (const Node *n = g->first; n; n = n->next) {
        EACH_LOOP_BODY(b, n)
            add_groups(s, n->region->body[b], m);
        const int at = n->op->class == CLASS_COLLECTIVE ? attr_index(n->op, "group") : -1;
        double *sec = at < 0 ? NULL : sec_of(s, n->attr[at].s);
        s->joins |= at >= 0 && n->nin > 1;
        for (int i = 0; sec && i < n->nin; i++)
            *sec += collective_sec(
                m, node_collective(n), node_group(m, graph_mesh(g), n),
                (double)MAX(type_nbytes(&n->in[i]->type), type_nbytes(&n->out[i]->type)));
    }
}

/* Seconds that no step with all calls alone is below, as those of a group run one after the other.
 * INFINITY: no call is joined. */
static double least_apart(const tn_plan *p)
{
    GroupSecs s = {0};
    double least = 0;
    add_groups(&s, p->p->g, p->p->machine);
    for (int i = 0; i < s.n; i++)
        least = fmax(least, s.of[i].sec);
    return s.joins ? least : INFINITY;
}

/* ---- the other plan ---- */

static bool misses(const tn_plan *p, int64_t goal)
{
    return goal && plan_least(p->p) > goal;
}

/* Plans the step that x has planned with o, with each call alone, into `to`; decided: all else, as
 * text; NULL: it is decided anew. Leaves it without a plan where that is the same graph. */
static int plan_apart(const Parts *x, const tn_options *o, const char *decided, tn_compiled *to)
{
    Parts one = *x;
    tn_graph *joined = x->to->graph[0];
    tn_options with = *o;
    one.to = to;
    one.unpriced = true;
    with.bucket = off;
    with.decided = decided;
    with.warn = NULL; /* it has warned */
    with.nwhat_if = 0;
    if (joined->sharded.ntried)
        with = shard_again(x->tmp, &with, &joined->sharded.tried[joined->sharded.taken]);
    int code = parts_graph(&one, &with);
    if (code || graph_hash(to->graph[0]->g) == graph_hash(joined->g))
        return code;
    if (!misses(x->to->plan[0], o->goal_memory))
        to->graph[0]->rival = x->to->plan[0]->p->est.step;
    code = parts_plan(&one, &with);
    if (!code)
        parts_take_report(joined, to->graph[0]);
    return code;
}

/* ---- the choice ---- */

/* Why calls are joined or not, of a plan that may have been planned both ways; least: what calls
 * alone take at least. */
static const char *reason(Arena *a, const BucketChoice *r, double least)
{
    const bool apart = !strcmp(r->taken, off);
    const char *joined = sec_text(a, r->joined), *alone = sec_text(a, r->apart);
    if (r->told)
        return arena_printf(a, "a step takes %s, and about %s with all calls alone", joined, alone);
    if (r->apart <= 0)
        return arena_printf(a, "a step takes %s, and with all calls alone at least %s", joined,
                            sec_text(a, least));
    if (apart == (r->apart < r->joined))
        return apart
                   ? arena_printf(a,
                                  "a step takes %s, and %s with collectives of a block as one call",
                                  alone, joined)
                   : arena_printf(a, "a step takes %s, and %s with all calls alone", joined, alone);
    return arena_printf(a, "a step takes %s instead of %s, in less memory", apart ? alone : joined,
                        apart ? joined : alone);
}

/* Takes over how long the step would take with all calls alone, where deciding has found by a short
 * step that this is slower by far. */
static bool take_told(const Parts *x, BucketChoice *r)
{
    const AgainReport *again = &x->to->graph[0]->again;
    r->told = again->apart > FAR;
    r->apart = r->told ? again->apart * r->joined : 0;
    return r->told;
}

/* Whether it was searched for what the step computes again. */
static bool searched_again(const Parts *x, const tn_options *o)
{
    const tn_graph *g = x->to->graph[0];
    return o->goal_memory && g->again.searched && !g->sharded.ntried;
}

/* Plans the step with all calls alone, where it may take less or need less memory, and leaves the
 * better one in x. */
static int try_apart(Parts *x, const tn_options *o, bool open, double least, BucketChoice *r)
{
    tn_compiled apart = {0};
    r->joined = x->to->plan[0]->p->est.step;
    r->chosen = open;
    const bool fits = !misses(x->to->plan[0], o->goal_memory);
    if (fits && (least >= r->joined || take_told(x, r)))
        return 0;
    const AgainReport *again = &x->to->graph[0]->again;
    int code = plan_apart(x, o, searched_again(x, o) ? NULL : again_text(again, x->tmp), &apart);
    r->apart = apart.plan[0] ? apart.plan[0]->p->est.step : 0;
    r->chosen &= r->apart > 0;
    if (r->chosen && parts_better(&apart, x->to, o->goal_memory))
        r->taken = off;
    parts_free_step(&apart);
    return code;
}

int bucket_choose(Parts *x, const BucketAsked *asked, const tn_options *o)
{
    BucketChoice r = {.asked = asked->word, .taken = o->bucket, .chosen = asked->decided != NULL};
    const double least = is_open(x, asked, o) ? least_apart(x->to->plan[0]) : INFINITY;
    const bool beside = runs_beside(x->task, o);
    int code = 0;
    if (isfinite(least) && beside)
        code = try_apart(x, o, asked->open, least, &r);
    tn_graph *g = x->to->graph[0];
    if (g && r.chosen)
        r.why = r.joined > 0 ? reason(g->h.a, &r, least) : "as was decided before";
    else if (g && asked->open && isfinite(least) && !beside)
        r.why = "nothing runs beside computing, and one call takes less than several";
    if (g && (r.why || r.joined > 0)) {
        r.asked = arena_strdup(g->h.a, r.asked);
        r.taken = arena_strdup(g->h.a, r.taken);
        g->bucket = r;
    }
    x->bucket = r.taken; /* for what is beside the step */
    return code;
}

void bucket_print(Buf *b, const BucketChoice *x)
{
    if (x->why)
        buf_printf(b, "bucket: auto takes %s: %s\n", x->taken, x->why);
}

int tn_plan_bucket(const tn_plan *p, const char **taken, double *joined, double *apart)
{
    if (!GIVEN(args_owner(p), p, taken, joined, apart))
        return TN_CODE_USAGE;
    const BucketChoice *x = &p->graph->bucket;
    *taken = x->taken;
    *joined = x->joined;
    *apart = x->apart;
    return TN_CODE_OK;
}
