/* libFuzzer entry for sharding problems: `make fuzz` builds it with clang. Any bytes either make a
 * problem whose strategies, where there are any, are a solution to the checker and not below the
 * bound, or fail by unwinding. */
#include "../../src/pick/pick.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 200 }; /* nodes and edges of problems that are solved here */

typedef struct Input {
    Arena *a;
    const char *text;
    size_t size;
} Input;

static void solve(Arena *a, const PickProblem *p)
{
    int *strategy = NEWN(a, int, p->n);
    PickResult r = pick(a, p, 0, NULL, NULL, strategy);
    PickCheck c = pick_check(a, p, strategy);
    CHECK(r.feasible == pick_fits(p, &c) && (!r.feasible || r.bound <= r.cost));
}

static void parse(void *arg)
{
    const Input *in = arg;
    const PickProblem *p = pick_parse(in->a, in->text, in->size, "fuzz");
    if (p->n <= MOST && p->nedge <= MOST)
        solve(in->a, p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Ctx ctx = {0};
    Input in = {.a = arena_new(&ctx), .size = size};
    CHECK(in.a);
    in.text = arena_strndup(in.a, (const char *)data, size);
    (void)ctx_try(&ctx, parse, &in);
    arena_free(in.a);
    return 0;
}
