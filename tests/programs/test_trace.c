/* trace: the file that --profile writes, read back: a slice for each call of each recorded run,
 * nested in iterations, loops and runs, with operations and bytes alive; runs that find no room are
 * counted. */
#include "../shared/test.h"

#include "../../src/api/api.h"

#include <jansson.h>
#include <math.h>
#include <unistd.h>

static tn_context *ctx;
static char path[] = "/tmp/tenon-test-trace-XXXXXX";

static tn_program *open_program(const char *file, const char *backend)
{
    tn_graph *g;
    tn_plan *p;
    tn_program *x = NULL;
    tn_options o = tn_options_default();
    o.backend = backend;
    EXPECT(!tn_graph_read(ctx, file, &g) && !tn_plan_new(g, &o, 0, &p) &&
           !tn_program_new(p, &o, &x));
    return x;
}

/* Records runs 7, 8, ... with room for `room` of them and reads the file. */
static json_t *record(tn_program *x, int64_t room, int runs)
{
    EXPECT(!tn_program_trace(x, room));
    EXPECT(!tn_program_run(x)); /* not asked for */
    for (int i = 0; i < runs; i++) {
        tn_program_trace_next(x, 7 + i);
        EXPECT(!tn_program_run(x));
        EXPECT(!tn_program_run(x));
    }
    EXPECT(!tn_program_trace_write(x, path));
    json_error_t error;
    json_t *root = json_load_file(path, 0, &error);
    EXPECT(root);
    return root;
}

/* Calls of a run, counted by running the plan's loops. */
static int count_calls(const Plan *p)
{
    int calls = 0;
    int64_t left[TN_MAX_DEPTH];
    for (int i = 0; i < p->nstep; i++) {
        const Step *s = &p->step[i];
        calls += s->kind == STEP_CALL || s->kind == STEP_ZERO;
        if (s->kind == STEP_LOOP)
            left[s->depth] = s->count;
        if (s->kind == STEP_END && --left[s->depth] > 0)
            i = s->end;
    }
    return calls;
}

static const char *name_of(json_t *event)
{
    return json_string_value(json_object_get(event, "name"));
}

static double number(json_t *event, const char *key)
{
    return json_number_value(json_object_get(event, key));
}

static int64_t nsec(json_t *event, const char *key)
{
    return llround(1e3 * number(event, key));
}

static bool is_slice(json_t *event, int track)
{
    return !strcmp(json_string_value(json_object_get(event, "ph")), "X") &&
           (int)number(event, "tid") == track;
}

/* Slices of the track of calls lie in the order of their starts and one in the other; names of
 * loops and iterations go to b. Returns how many are calls. */
static int check_nesting(json_t *events, Buf *b)
{
    int64_t until[16] = {0};
    int depth = 0, calls = 0;
    size_t i;
    json_t *e;
    json_array_foreach(events, i, e)
    {
        if (!is_slice(e, 2))
            continue;
        int64_t start = nsec(e, "ts"), end = start + nsec(e, "dur");
        bool call = json_object_get(json_object_get(e, "args"), "phase") != NULL;
        while (depth && until[depth - 1] <= start)
            depth--;
        EXPECT(end >= start && (!depth || end <= until[depth - 1]));
        until[depth++] = end;
        calls += call;
        if (!call)
            buf_printf(b, "%s ", name_of(e));
    }
    return calls;
}

static void test_slices(const char *backend)
{
    tn_program *x = open_program("tests/ir/tail.tn", backend);
    Arena *a = arena_new(&ctx->ctx);
    Buf b = {.a = a};
    json_t *root = record(x, 2, 2), *events = json_object_get(root, "traceEvents"), *e;
    EXPECT(check_nesting(events, &b) == 2 * count_calls(x->plan->p));
    EXPECT(!strcmp(b.text, "loop iteration 2 loop iteration 1 iteration 0 loop iteration 0 "
                           "iteration 1 loop iteration 2 "
                           "loop iteration 2 loop iteration 1 iteration 0 loop iteration 0 "
                           "iteration 1 loop iteration 2 "));
    double nflop = 0, products = 0;
    int64_t run_end = -1;
    int runs = 0;
    size_t i;
    json_array_foreach(events, i, e)
    {
        json_t *args = json_object_get(e, "args");
        if (is_slice(e, 1)) {
            char name[20];
            snprintf(name, sizeof name, "step %d", 7 + runs++);
            EXPECT(!strcmp(name_of(e), name) && nsec(e, "ts") >= run_end);
            run_end = nsec(e, "ts") + nsec(e, "dur");
        } else if (is_slice(e, 2)) {
            EXPECT(nsec(e, "ts") + nsec(e, "dur") <= run_end);
            if (strcmp(name_of(e), "mm"))
                continue;
            nflop += number(args, "nflop");
            products++;
            EXPECT(!strcmp(json_string_value(json_object_get(args, "phase")), "forward"));
            EXPECT(number(args, "nbytes") > 0 && number(args, "gflop_per_sec") > 0);
        } else if (!strcmp(name_of(e), "live bytes")) {
            double bytes = number(args, "bytes");
            EXPECT(bytes > 0 && bytes <= (double)x->plan->p->space[SPACE_MAIN].peak);
        }
    }
    EXPECT(runs == 2 && products == 6);
    EXPECT(nflop ==
           2 * (2 * 54 + 18)); /* two iterations of [3, 3] and a tail of [1, 3] by [3, 3] */
    EXPECT(number(json_object_get(root, "otherData"), "events_not_recorded") == 0);
    json_decref(root);
    arena_free(a);
}

static void test_room(void)
{
    tn_program *x = open_program("tests/ir/tail.tn", "cpu");
    Arena *a = arena_new(&ctx->ctx);
    Buf b = {.a = a};
    json_t *one = record(x, 1, 1);
    double each = (double)(json_array_size(json_object_get(one, "traceEvents")) - 3);
    each -= check_nesting(json_object_get(one, "traceEvents"), &b); /* counters of live bytes */
    json_t *root = record(x, 1, 3);
    EXPECT(json_array_size(json_object_get(root, "traceEvents")) ==
           json_array_size(json_object_get(one, "traceEvents")));
    EXPECT(number(json_object_get(root, "otherData"), "events_not_recorded") == 2 * each);
    json_decref(one);
    json_decref(root);
    arena_free(a);
}

/* Copies between memories have tracks of their own, and lie in the run. */
static void test_queues(void)
{
    static const char text[] = "tenon 1\n"
                               "graph g(%x: f32[8, 8]) {\n"
                               "  %a = tanh(%x)\n"
                               "  %h = offload(%a)\n"
                               "  %b = mm(%a, %a)\n"
                               "  %hw = wait_tensor(%h, %a)\n"
                               "  %r = reload(%hw)\n"
                               "  %rw = wait_tensor(%r, %hw)\n"
                               "  %c = add(%b, %rw)\n"
                               "  return %c\n"
                               "}\n";
    char file[] = "/tmp/tenon-test-trace-XXXXXX";
    int fd = mkstemp(file);
    EXPECT(fd >= 0 && write(fd, text, sizeof text - 1) == sizeof text - 1);
    close(fd);
    tn_program *x = open_program(file, "emulated");
    json_t *root = record(x, 2, 2), *events = json_object_get(root, "traceEvents"), *e;
    int runs = 0, count[5] = {0};
    int64_t from[2], until[2];
    size_t i;
    json_array_foreach(events, i, e)
    {
        int track = (int)number(e, "tid");
        if (strcmp(json_string_value(json_object_get(e, "ph")), "X"))
            continue;
        int64_t start = nsec(e, "ts"), end = start + nsec(e, "dur");
        CHECK(track >= 1 && track < LEN(count));
        if (track == 1) {
            from[runs] = start;
            until[runs++] = end;
        }
        int run = count[track]++ / (track == 2 ? 5 : 1);
        EXPECT(run < 2 && from[run] <= start && end <= until[run]);
        EXPECT(track < 3 || !strcmp(name_of(e), track == 3 ? "offload" : "reload"));
    }
    EXPECT(count[1] == 2 && count[2] == 10 && count[3] == 2 && count[4] == 2);
    json_decref(root);
    unlink(file);
}

static void test_errors(void)
{
    tn_program *x = open_program("tests/ir/flat.tn", "cpu");
    EXPECT(!tn_program_trace(x, 1));
    EXPECT(tn_program_trace_write(x, "/none/there") == 1);
    EXPECT(strstr(tn_error(ctx), "/none/there: cannot create"));
}

int main(void)
{
    ctx = tn_context_new();
    int fd = mkstemp(path);
    CHECK(ctx && fd >= 0);
    close(fd);
    test_slices("cpu");
    test_slices("emulated");
    test_queues();
    test_room();
    test_errors();
    unlink(path);
    tn_context_free(ctx);
    return test_report();
}
