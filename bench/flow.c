/* Edits of the flow of a large graph: clone, move, remove and rewire in equal parts, half of them
 * undone, each with the peak after it. Prints the graph, the median, the 99th percentile and the
 * longest edit, what a flow from scratch takes, and by how much memory grows by tries that are
 * undone. The choice of edits is not timed. Usage: flow [LAYERS [EDITS]] */
#include "../src/model/model.h"
#include "../src/pass/pass.h"
#include "../tests/shared/flow_edits.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

static const char *const kinds[] = {"clone", "move", "remove", "rewire"};

typedef struct Times {
    double *sec;
    int count, cap;
} Times;

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static void print_times(const char *what, Times *t)
{
    qsort(t->sec, (size_t)t->count, sizeof *t->sec, by_value);
    printf("%-8s %6d  median %8.2f us  p99 %8.2f us  max %8.2f us\n", what, t->count,
           t->sec[t->count / 2] * 1e6, t->sec[(int64_t)t->count * 99 / 100] * 1e6,
           t->sec[t->count - 1] * 1e6);
}

static void print_processor(void)
{
    char line[500];
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "model name", 10)) {
            printf("processor: %s", strchr(line, ':') + 2);
            break;
        }
    if (f)
        fclose(f);
}

static Graph *training_graph(Arena *a, int64_t nlayer)
{
    ModelConfig c = *config_preset("llama3-1b");
    c.nlayer = nlayer;
    Graph *g = model_graph(a, &c, 1, 128, NULL);
    PassOptions o = pass_defaults();
    passes_run(g, "grad,optimizer,canonicalize,cse,dce", &o, NULL, NULL);
    printf("graph: llama3-1b with %lld layers, a training step, %d nodes\n", (long long)nlayer,
           graph_count(g));
    return g;
}

/* One edit and, in half of the cases, its undo: each a time. */
static void edit(Flow *f, Rng *r, const Try *t, Times *times, Times *of_kind, Arena *a)
{
    int mark = flow_mark(f);
    bool back = rng_chance(r, 0.5);
    for (int k = 0; k <= back; k++) {
        double start = now_sec();
        if (k)
            flow_undo(f, mark);
        else
            try_make(t);
        flow_peak(f);
        double sec = now_sec() - start;
        PUSH(a, times->sec, times->count, times->cap, sec);
        PUSH(a, of_kind->sec, of_kind->count, of_kind->cap, sec);
    }
}

/* Bytes by which memory grows for each of many tries that are taken back; the first ones find room
 * that the others use again. */
static void print_growth(Flow *f, const Chooser *c, int tries)
{
    size_t before = 0;
    for (int k = 0; k < 2 * tries; k++) {
        Try t;
        int mark = flow_mark(f);
        if (k == tries)
            before = mallinfo2().uordblks + mallinfo2().hblkhd;
        for (int i = 0; i < 4; i++)
            if (try_choose(c, f, (TryKind)((k + i) % 4), &t))
                try_make(&t);
        flow_peak(f);
        flow_undo(f, mark);
        flow_peak(f);
    }
    size_t after = mallinfo2().uordblks + mallinfo2().hblkhd;
    printf("%d tries of up to 4 edits, undone: %.1f bytes more each\n", tries,
           (double)(after - before) / tries);
}

int main(int argc, char **argv)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx), *of_flow = arena_new(&ctx), *aside = arena_new(&ctx);
    print_processor();
    Graph *g = training_graph(a, argc > 1 ? atoll(argv[1]) : 1350);
    int edits = argc > 2 ? atoi(argv[2]) : 100000;
    double start = now_sec();
    Flow *f = flow_new(g, device_at(DEVICE_cpu), machine_for(of_flow, device_at(DEVICE_cpu), NULL),
                       of_flow);
    int64_t peak = flow_peak(f);
    printf("from scratch: %.0f us, peak %lld\n", (now_sec() - start) * 1e6, (long long)peak);
    Times all = {0}, of_kind[4] = {0};
    Rng r = {1, 0};
    Chooser c = {&r, 0.1};
    Try t;
    int made[4] = {0};
    for (int k = 0; k < 100 * edits; k++)
        if (made[k % 4] < edits / 4 && try_choose(&c, f, (TryKind)(k % 4), &t)) {
            edit(f, &r, &t, &all, &of_kind[k % 4], aside);
            made[k % 4]++;
        }
    for (int k = 0; k < 4; k++)
        print_times(kinds[k], &of_kind[k]);
    print_times("all", &all);
    print_growth(f, &c, edits);
    Flow *fresh = flow_new(edited_graph(a, f), device_at(DEVICE_cpu),
                           machine_for(a, device_at(DEVICE_cpu), NULL), a);
    printf("peak %lld, from scratch %lld\n", (long long)flow_peak(f), (long long)flow_peak(fresh));
    return flow_peak(f) != flow_peak(fresh);
}
