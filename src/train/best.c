/* The best evaluation of a run: the one with the least held-out loss, whose checkpoint the link
 * `best` names and --keep leaves, and how many evaluations came after it, which --patience limits.
 * Both are functions of the evaluations alone and lie in state.json, so that a run that goes on has
 * them to the bit. A checkpoint does not have the evaluation of its own step, whichever came first:
 * a run that goes on from there sees it again. An end by --max-sec or a signal looks at
 * other windows, and does not count. */
#include "trainer.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

json_t *best_state(const BestStep *b)
{
    return json_pack("{s:I, s:f, s:I, s:I, s:I}", "step", (json_int_t)b->step, "eval_loss", b->loss,
                     "windows", (json_int_t)b->windows, "waited", (json_int_t)b->waited, "seen",
                     (json_int_t)b->seen);
}

/* Makes the link name the best checkpoint, and returns whether that is there. A link that fails is
 * told of: the checkpoint itself is whole. */
static bool link_best(const Trainer *r)
{
    char folder[CHECKPOINT_PATH], state[CHECKPOINT_PATH];
    int n = snprintf(folder, sizeof folder, "%s/step-%" PRId64, r->t->out, r->best.step);
    int k =
        snprintf(state, sizeof state, "%s/step-%" PRId64 "/state.json", r->t->out, r->best.step);
    if (n >= (int)sizeof folder || k >= (int)sizeof state || access(state, F_OK))
        return false;
    if (!r->rank && tn_checkpoint_link(r->ctx, folder, "best"))
        fprintf(r->log, "%stenon: warning: %s\n", show_line_start(r), tn_error(r->ctx));
    return true;
}

static bool exhausted(const Trainer *r)
{
    return r->t->patience && r->best.waited >= r->t->patience;
}

int best_resume(Trainer *r)
{
    const Resume *x = r->t->resume;
    const json_t *o = x ? json_object_get(x->state, "best") : NULL;
    json_int_t step, windows, waited, seen;
    if (!o)
        return 0;
    if (json_unpack((json_t *)(uintptr_t)o, "{s:I, s:F, s:I, s:I, s:I}", "step", &step, "eval_loss",
                    &r->best.loss, "windows", &windows, "waited", &waited, "seen", &seen) ||
        step < 1 || seen < step || seen > x->step || windows < 1 || waited < 0 ||
        !isfinite(r->best.loss))
        return tn_context_fail(r->ctx, TN_CODE_FAIL,
                               "%s/state.json: \"best\": expected step, eval_loss, windows, waited "
                               "and seen, of steps up to %" PRId64,
                               x->folder, x->step);
    r->best.step = step;
    r->best.windows = windows;
    r->best.waited = waited;
    r->best.seen = seen;
    r->ending.exhausted = exhausted(r);
    int64_t named = link_best(r) ? r->best.step : folder_linked(r->t->out, "best");
    r->best.kept = named < 0 ? 0 : named;
    return 0;
}

int best_see(Trainer *r, int64_t step)
{
    const Evaluation *e = &r->heldout.last;
    BestStep *b = &r->best;
    if (b->seen >= step || e->late || e->stopped || (!r->t->eval_every && !b->step))
        return 0;
    if (b->step && b->windows != e->planned) {
        fprintf(r->log,
                "tenon: note: step %" PRId64 " is evaluated on %" PRId64 " windows, step %" PRId64
                ", the best so far, was on %" PRId64 ": the best is looked for anew\n",
                step, e->planned, b->step, b->windows);
        *b = (BestStep){.kept = b->kept};
    }
    bool better = !b->step || e->loss < b->loss;
    int code = better ? checkpoint_best(r, step) : 0; /* as if it were saved before */
    b->seen = step;
    b->waited = better ? 0 : b->waited + 1;
    r->ending.exhausted = exhausted(r);
    if (!better)
        return 0;
    b->step = step;
    b->loss = e->loss;
    b->windows = e->planned;
    if (!code && r->saves.saved == step) {
        b->kept = step;
        link_best(r);
    }
    return code;
}

void best_tell(const Trainer *r, int64_t last)
{
    const BestStep *b = &r->best;
    if (r->ending.exhausted)
        fprintf(r->log,
                "stopped after step %" PRId64 ", by --patience: %" PRId64
                " evaluations in a row have not bettered the held-out loss\n",
                last, b->waited);
    if (b->step && b->kept == b->step)
        fprintf(r->log, "best held-out loss %.4f, after step %" PRId64 ": %s/best\n", b->loss,
                b->step, r->t->out);
    else if (b->step)
        fprintf(r->log,
                "best held-out loss %.4f, after step %" PRId64 ", which could not be saved%s%s%s\n",
                b->loss, b->step, b->kept ? ": the best that was saved is " : "",
                b->kept ? r->t->out : "", b->kept ? "/best" : "");
}
