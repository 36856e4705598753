/* tn_tune: what it tells on the way, that it ends when it is asked to and goes on from there, that
 * a step which does not fit is left out, and that a context makes plans by the new file; the same
 * on a device whose memory the host cannot touch. What ends the process, and folders:
 * tests/scripts/tune.sh. */
#include "../../include/tenon.h"
#include "../shared/test.h"

#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/tenon_tune_XXXXXX";
static char path[300];
static tn_options o;

typedef struct Heard {
    int plans, ways, runs, done, known, goes_on, warned, order;
    int stop; /* set once that many calls were told of; 0: never */
    volatile int stopping;
    double step_sec, est_sec;
    char warning[1000];
} Heard;

static void hear(void *arg, const tn_tune_news *n)
{
    Heard *h = arg;
    h->plans += !strcmp(n->doing, "plan");
    h->ways += !strcmp(n->doing, "ways");
    h->runs += !strcmp(n->doing, "run");
    h->done += !strcmp(n->doing, "done");
    h->order += (n->done < 0 || n->done > n->count || n->step >= n->nstep || !n->call);
    h->goes_on = n->goes_on;
    if (!strcmp(n->doing, "done")) {
        h->known = n->known;
        h->step_sec = n->step_sec;
        h->est_sec = n->est_sec;
    }
    if (h->stop && !strcmp(n->doing, "run"))
        h->stopping = 1;
}

static void hear_warning(void *arg, const char *message)
{
    Heard *h = arg;
    h->warned++;
    snprintf(h->warning, sizeof h->warning, "%s", message);
}

static int tune(tn_context *ctx, const tn_tune_step *step, int count, Heard *h)
{
    tn_tune_options t = {
        .path = path, .cpu = 1, .stop = &h->stopping, .news = hear, .warn = hear_warning, .arg = h};
    return tn_tune(ctx, step, count, &t);
}

static bool is_there(const char *end)
{
    char name[400];
    struct stat st;
    snprintf(name, sizeof name, "%s%s", path, end);
    return !stat(name, &st);
}

/* The line of the plan of the small model that names its machine. */
static bool planned_by(tn_model *m, const char *machine)
{
    tn_graph *g = NULL;
    tn_plan *p = NULL;
    const char *text = "";
    int code = tn_model_graph(m, 2, 16, &o, &g);
    if (!code)
        code = tn_graph_passes(g, "default", &o, NULL, NULL);
    if (!code)
        code = tn_plan_new(g, &o, 1, &p);
    if (!code)
        code = tn_plan_text(p, 0, &text);
    bool found = !code && strstr(text, machine);
    tn_plan_free(p);
    tn_graph_free(g);
    return found;
}

static void test_stop(tn_context *ctx, const tn_tune_step *step)
{
    Heard h = {.stop = 1};
    EXPECT(tune(ctx, step, 1, &h) == 130);
    EXPECT(strstr(tn_error(ctx), "interrupted") && h.ways >= 1 && h.runs >= 1 && !h.done);
    EXPECT(!is_there("") && is_there(".part") && !is_there(".lock") && !is_there(".part.new"));
    Heard now = {.stopping = 1};
    EXPECT(tune(ctx, step, 1, &now) == 130 && now.goes_on && now.plans <= 1);
}

static void test_whole(tn_context *ctx, const tn_tune_step *step)
{
    Heard h = {0}, again = {0};
    EXPECT(!tune(ctx, step, 1, &h));
    EXPECT(h.goes_on && h.plans == 1 && h.runs >= 3 && h.done == 1 && !h.known && !h.order);
    EXPECT(h.step_sec > 0 && h.est_sec > 0.6 * h.step_sec && h.est_sec < 1.1 * h.step_sec);
    EXPECT(is_there("") && !is_there(".part") && !is_there(".lock") && !is_there(".part.new"));
    EXPECT(!tune(ctx, step, 1, &again));
    EXPECT(again.known && !again.ways && !again.runs && !again.goes_on && again.est_sec > 0);
}

static void test_misfit(tn_context *ctx, const tn_tune_step *small)
{
    tn_tune_step steps[] = {{"gpt2", 4096, 1024, &o}, *small};
    Heard h = {0}, alone = {0};
    EXPECT(!tune(ctx, steps, 2, &h));
    EXPECT(h.done == 1 && h.warned == 1 && strstr(h.warning, "left out: does not fit"));
    EXPECT(tune(ctx, steps, 1, &alone) == TN_CODE_FIT && !alone.warned);
    EXPECT(is_there("") && is_there(".part"));
    char part[400];
    snprintf(part, sizeof part, "%s.part", path);
    unlink(part);
}

/* The device has a file of its own; where there is none plans for it are made by the processor's.
 */
static void test_device(tn_context *ctx, tn_model *m)
{
    char cpu_path[300];
    const char *found;
    snprintf(cpu_path, sizeof cpu_path, "%s", path);
    o.backend = "emulated";
    EXPECT(planned_by(m, "(tuned, 1 core)"));
    EXPECT(!tn_tune_path_for(ctx, &o, &found) && strstr(found, "/emulated-") && !is_there(".part"));
    snprintf(path, sizeof path, "%s", found);
    tn_tune_step step = {"tests/ref/llama-tiny", 2, 16, &o};
    test_stop(ctx, &step);
    unlink(cpu_path);
    EXPECT(planned_by(m, "(tuned, 1 core)")); /* as it was read */
    Heard h = {0}, again = {0};
    EXPECT(!tune(ctx, &step, 1, &h));
    EXPECT(h.goes_on && h.runs >= 8 && h.done == 1 && !h.known && !h.order);
    EXPECT(h.step_sec > 0 && h.est_sec > 0.6 * h.step_sec && h.est_sec < 1.4 * h.step_sec);
    EXPECT(!tune(ctx, &step, 1, &again) && again.known && !again.ways && !again.runs);
    EXPECT(planned_by(m, "(tuned, 1 core)"));
    o.backend = "cpu";
    EXPECT(!planned_by(m, "(tuned, 1 core)")); /* the processor's is gone, and this is not its */
}

int main(void)
{
    tn_context *ctx = tn_context_new();
    tn_model *m;
    const char *found;
    CHECK(ctx && mkdtemp(folder) && !setenv("TENON_CACHE", folder, 1) &&
          !unsetenv("TENON_MACHINE"));
    tn_threads(1);
    o = tn_options_default();
    o.fuse = 0;
    tn_tune_step step = {"tests/ref/llama-tiny", 2, 16, &o};
    EXPECT(!tn_tune_path(ctx, &found) && !strncmp(found, folder, strlen(folder)) &&
           strstr(found, "-1-thread.machine"));
    snprintf(path, sizeof path, "%s", found);
    CHECK(!tn_model_open(ctx, step.model, &m));
    EXPECT(!planned_by(m, "(tuned, 1 core)"));
    test_stop(ctx, &step);
    test_whole(ctx, &step);
    EXPECT(planned_by(m, "(tuned, 1 core)"));
    test_misfit(ctx, &step);
    test_device(ctx, m);
    tn_context_free(ctx);
    unlink(path);
    rmdir(folder);
    return test_report();
}
