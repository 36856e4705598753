/* Orders within a limit: in the bytes of the order that is found for the least peak there is one
 * too, in fewer than the bound for any order none, nor one that its judge refuses; then the nodes
 * stay as they were. */
#include "../shared/gen.h"
#include "../shared/test.h"

#include "../../src/flow/inside.h"
#include "../../src/plan/order.h"

#include <string.h>

static Ctx ctx;
static Arena *a; /* of one graph */

static const Device *device(void)
{
    return device_at(DEVICE_cpu);
}

static const Machine *here(void)
{
    return machine_for(a, device(), NULL);
}

static const char *print(const Graph *g)
{
    Buf b = {.a = a};
    graph_print(&b, g);
    return b.text;
}

static int64_t peak_of(Graph *g)
{
    return flow_peak(flow_new(g, device(), here(), a));
}

/* A judge that counts what it is asked, and what it says. */
typedef struct Judge {
    int asked;
    bool says;
} Judge;

static bool judge(Graph *g, void *arg)
{
    Judge *x = arg;
    x->asked += g->nnode > 0;
    return x->says;
}

static bool finds(Graph *g, int64_t most, Judge *x)
{
    x->asked = 0;
    return order_within(g, device(), here(), a, most, judge, x);
}

/* Bodies of loops stay as they are, so that the least of all may not be found there. */
static bool has_loops(const Graph *g)
{
    for (const Node *n = g->first; n; n = n->next)
        if (n->region)
            return true;
    return false;
}

static void test_graph(Library *lib, uint64_t seed, int *lowered)
{
    Rng rng = {seed, 0};
    Graph *g = gen_graph(a, lib, &rng, 4 + (int)(seed % 40), false)->b.g,
          *lowest = graph_clone(a, g);
    order_graph(lowest, device(), here(), a, false, NULL, NULL);
    const int64_t least = peak_of(lowest), before = peak_of(g),
                  bound = order_bound(flow_new(g, device(), here(), a), a);
    const char *text = print(g);
    Judge yes = {.says = true}, no = {.says = false};
    EXPECT(!finds(g, bound - 1, &yes) && yes.asked == 0);
    EXPECT(!finds(g, before, &no) && no.asked > 0);
    EXPECT(!strcmp(text, print(g)));
    EXPECT(finds(g, before, &yes) && yes.asked == 1 && !strcmp(text, print(g)));
    if (has_loops(g) || EXPECT(finds(g, least, &yes)))
        EXPECT(has_loops(g) || peak_of(g) <= least);
    else
        printf("  seed %llu: within %lld of %lld, at least %lld\n", (unsigned long long)seed,
               (long long)least, (long long)before, (long long)bound);
    graph_verify(g);
    *lowered += least < before && !has_loops(g);
    arena_reset(a);
}

int main(void)
{
    int lowered = 0;
    a = arena_new(&ctx);
    Arena *cases = arena_new(&ctx);
    Library lib = library_read(cases);
    for (uint64_t seed = 1; seed <= 200; seed++)
        test_graph(&lib, seed, &lowered);
    EXPECT(lowered > 20);
    printf("note: %d of 200 orders were lowered\n", lowered);
    arena_free(cases);
    arena_free(a);
    return test_report();
}
