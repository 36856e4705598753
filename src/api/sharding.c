/* Sharding problems, by themselves: read, solved, written. */
#include "api.h"

_Static_assert((int)TN_SHARDING_EFFORT == (int)PICK_EFFORT, "one default");

int tn_sharding_read(tn_context *ctx, const char *path, tn_sharding **sharding)
{
    if (!GIVEN(ctx, ctx, path, sharding))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx) {
        tn_sharding *x = handle_new(ctx, try_arena(&t), sizeof *x);
        x->problem = pick_read(x->h.a, path);
        x->strategy = NEWN(x->h.a, int64_t, x->problem->n);
        *sharding = handle_keep(x);
    }
    return tried(&t);
}

_Noreturn static void fail_fit(Ctx *ctx, const PickProblem *p, const PickResult *r)
{
    long long limit = p->limit, least = r->least, found = r->found;
    if (r->forbidden)
        fail(ctx, TN_FIT, "does not fit: every choice %shas a forbidden strategy or pair",
             r->proved ? "" : "that was found ");
    if (least == found)
        fail(ctx, TN_FIT, "does not fit: needs a limit of %lld, which is proved; the limit is %lld",
             found, limit);
    if (least > limit)
        fail(ctx, TN_FIT,
             "does not fit: needs a limit of at least %lld, which is proved; the best that was "
             "found needs %lld; the limit is %lld",
             least, found, limit);
    fail(ctx, TN_FIT,
         "does not fit as far as was searched, which proves nothing: the best that was found needs "
         "a limit of %lld, at least %lld is needed; the limit is %lld",
         found, least, limit);
}

static void solve(tn_sharding *x, Arena *tmp, int effort, PickProgress *progress, void *arg,
                  tn_sharding_result *result)
{
    int *strategy = NEWN(tmp, int, x->problem->n);
    PickResult r = pick(tmp, x->problem, effort, progress, arg, strategy);
    x->result = r;
    x->solved = r.feasible;
    for (int i = 0; i < x->problem->n; i++)
        x->strategy[i] = strategy[i];
    *result = (tn_sharding_result){r.cost,  r.bound,    r.found,  r.least,
                                   r.steps, r.feasible, r.proved, x->problem->limit};
    if (!r.feasible)
        fail_fit(arena_ctx(tmp), x->problem, &r);
}

int tn_sharding_solve(tn_sharding *x, int64_t effort,
                      void (*progress)(void *arg, double cost, double bound), void *arg,
                      tn_sharding_result *result)
{
    if (!GIVEN(args_owner(x), x, result) || !WITHIN(args_owner(x), 0, MOST_EFFORT, effort))
        return TN_CODE_USAGE;
    TRY(t, &x->h.owner->ctx)
        solve(x, try_arena(&t), (int)effort, progress, arg, result);
    return tried(&t);
}

int tn_sharding_list(const tn_sharding *x, const int64_t **strategy, int64_t *count)
{
    if (!GIVEN(args_owner(x), x, strategy, count))
        return TN_CODE_USAGE;
    *strategy = x->strategy;
    *count = x->problem->n;
    return 0;
}

static void write_solution(const tn_sharding *x, Arena *tmp, const char *path)
{
    Buf text = {.a = tmp};
    if (!x->solved)
        fail(arena_ctx(tmp), TN_USAGE, "tn_sharding_write: expected a solved problem, found none");
    int *strategy = NEWN(tmp, int, x->problem->n);
    for (int i = 0; i < x->problem->n; i++)
        strategy[i] = (int)x->strategy[i];
    pick_print(&text, x->problem, &x->result, strategy);
    file_write(arena_ctx(tmp), path, text.text, text.len);
}

int tn_sharding_write(const tn_sharding *x, const char *path)
{
    if (!GIVEN(args_owner(x), x, path))
        return TN_CODE_USAGE;
    TRY(t, &x->h.owner->ctx)
        write_solution(x, try_arena(&t), path);
    return tried(&t);
}

void tn_sharding_free(tn_sharding *x)
{
    handle_free((Handle *)x);
}
