/* --bucket auto by the clock: a step is planned with collectives of a block joined, and, where that
 * changes it and it runs beside computing, with each alone and all else as was decided. The faster
 * that fits is kept: one call takes less than several, but a block then waits for its last value,
 * and its values need more memory. Bits are the same.
 *
 * What was chosen is the first line of what a checkpoint keeps of a plan, "bucket WORD", before the
 * lines of decide/decided.c; what it does not know is chosen anew. */
#include "parts.h"

#include <string.h>

#define LINE "bucket "

static const char block[] = "block", off[] = "off";

static bool is_auto(const char *word)
{
    return !word || !strcmp(word, "auto");
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
    BucketAsked x = {.word = o->bucket ? o->bucket : "auto", .open = is_auto(o->bucket)};
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

/* Whether a plan with all calls alone may be another one, and is asked for. */
static bool is_tried(const Parts *x, const BucketAsked *asked, const tn_options *o)
{
    const char *passes = x->task->part[0].passes;
    return !asked->decided && (asked->open ? !x->quick : x->task->apart) &&
           strcmp(o->bucket, off) != 0 && runs_beside(x->task, o) && passes &&
           tn_passes_have(passes, "bucket") && x->to->graph[0]->g->mesh;
}

/* Plans the step that x has planned with o, with each call alone, into `to`. Leaves it without a
 * plan where that is the same graph. */
static int plan_apart(const Parts *x, const tn_options *o, tn_compiled *to)
{
    Parts one = *x;
    tn_graph *joined = x->to->graph[0];
    tn_options with = *o;
    one.to = to;
    with.bucket = off;
    with.decided = again_text(&joined->again, x->tmp);
    with.warn = NULL; /* it has warned */
    with.nwhat_if = 0;
    if (joined->sharded.ntried)
        with = shard_again(x->tmp, &with, &joined->sharded.tried[joined->sharded.taken]);
    int code = parts_graph(&one, &with);
    if (code || graph_hash(to->graph[0]->g) == graph_hash(joined->g))
        return code;
    code = parts_plan(&one, &with);
    if (!code)
        parts_take_report(joined, to->graph[0]);
    return code;
}

static double clock_sec(const tn_plan *p)
{
    return p->p->est.step;
}

int bucket_choose(Parts *x, const BucketAsked *asked, const tn_options *o)
{
    tn_compiled apart = {0};
    BucketChoice r = {.asked = asked->word, .taken = o->bucket, .chosen = asked->decided != NULL};
    int code = 0;
    if (is_tried(x, asked, o)) {
        r.joined = clock_sec(x->to->plan[0]);
        code = plan_apart(x, o, &apart);
        r.apart = apart.plan[0] ? clock_sec(apart.plan[0]) : 0;
        r.chosen = asked->open && r.apart > 0;
        if (r.chosen && parts_better(&apart, x->to, o->goal_memory))
            r.taken = off;
        parts_free_step(&apart);
    }
    tn_graph *g = x->to->graph[0];
    if (g && (r.chosen || r.apart > 0)) {
        r.asked = arena_strdup(g->h.a, r.asked);
        r.taken = arena_strdup(g->h.a, r.taken);
        g->bucket = r;
    }
    x->bucket = r.taken;
    return code;
}

void bucket_print(Buf *b, const BucketChoice *x)
{
    if (!x->chosen || strcmp(x->taken, off) != 0)
        return;
    buf_add(b, "bucket: auto takes off");
    if (x->apart > 0)
        buf_printf(b, ": a step takes %s, and %s with collectives of a block as one call",
                   sec_text(b->a, x->apart), sec_text(b->a, x->joined));
    else
        buf_add(b, ", as was decided before");
    buf_add(b, "\n");
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
