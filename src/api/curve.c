/* Curves: what a step takes within several limits. */
#include "api.h"

#include "../decide/decide.h"
#include "../page/page.h"

#include <string.h>

enum { MOST_POINTS = 1000 };

typedef void TellFn(void *arg, int done, int all);

/* The word of --recompute, in memory that stays. */
static const char *static_word(const char *word)
{
    static const char *const words[] = {"none", "selective", "every=2", "full"};
    for (int i = 0; word && i < LEN(words); i++)
        if (!strcmp(word, words[i]))
            return words[i];
    return NULL;
}

static void fill_point(tn_curve_point *x, const AgainReport *r)
{
    bool none = !r->chosen.word && !r->nagain && !r->naway && !r->nkept;
    *x = (tn_curve_point){r->memory,
                          r->chosen.need,
                          r->chosen.peak,
                          r->chosen.sec,
                          r->none.sec,
                          r->bound,
                          static_word(none ? "none" : r->chosen.word),
                          r->nagain,
                          r->naway,
                          r->nkept};
}

static void make_curve(tn_graph *g, Arena *a, const char *names, const tn_options *o,
                       DecideCurve *c, TellFn *tell, void *arg)
{
    tn_graph copy = *g;
    PassOptions p;
    ChunkAsked asked;
    copy.h.a = a;
    copy.g = graph_clone(a, g->g);
    PassWalk w = begin_passes(&copy, names, o, &p, &asked);
    DecideTask t = {
        .to = plan_for(g->h.owner, o, p.device, p.prices), .ordered = g->rows > 0, .chunk = &asked};
    decide_curve(&w, &t, &p, a, c, tell, arg);
}

int tn_graph_curve(tn_graph *g, const char *names, const tn_options *options, int count,
                   tn_curve_point *point, TellFn *tell, void *arg)
{
    tn_context *ctx = args_owner(g);
    if (!GIVEN(ctx, g, names, options, point) || !args_options(ctx, __func__, options) ||
        !WITHIN(ctx, 2, MOST_POINTS, count))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx) {
        DecideCurve c = {.n = count};
        tn_options o = *options;
        o.memory = o.goal_memory = 0;
        make_curve(g, try_arena(&t), names, &o, &c, tell, arg);
        for (int i = 0; i < count; i++)
            fill_point(&point[i], &c.point[i]);
    }
    return tried(&t);
}

static CurvePoint point_of(const tn_curve_point *x)
{
    return (CurvePoint){x->limit, x->need,   x->sec,        x->none_sec, x->bound_sec,
                        x->word,  x->nvalue, x->noffloaded, x->ngathered};
}

int tn_curve_page(tn_context *ctx, const tn_curve_point *point, int count, const char *title,
                  const char *command, const char **text)
{
    if (!GIVEN(ctx, ctx, point, title, command, text) || !WITHIN(ctx, 1, MOST_POINTS, count))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx) {
        Buf b = {.a = text_arena(ctx)};
        CurvePoint *x = NEWN(try_arena(&t), CurvePoint, count);
        for (int i = 0; i < count; i++)
            x[i] = point_of(&point[i]);
        curve_page(&b, x, count, title, command);
        *text = b.text;
    }
    return tried(&t);
}
