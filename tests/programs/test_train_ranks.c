/* Training on ranks that are threads, as a run sees it: the losses and checkpoints of one rank,
 * said once; what fails on one rank, a signal and a full disk are agreed on; any mesh goes on from
 * any checkpoint. */
#include "../../src/train/train.h"
#include "../shared/race.h"
#include "../shared/test.h"
#include "../shared/train_files.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_RANKS = 8, MOST_STEPS = 50, ROWS = 8, SEQ = 16, STEPS = 6, TEXT = 20000 };

Peak __wrap_peak_new(tn_context *ctx, const tn_options *o);
Peak __wrap_peak_new(tn_context *ctx, const tn_options *o)
{
    (void)ctx, (void)o;
    return (Peak){.flops = 0}; /* half a second for a number on the progress line */
}

/* Whether rank 1, this one, ends instead of saving, while others save. */
static _Thread_local tn_context *saves_not;

int __real_tn_program_save(tn_program *x, tn_model *m, const char *folder, const char *state);
int __wrap_tn_program_save(tn_program *x, tn_model *m, const char *folder, const char *state);
int __wrap_tn_program_save(tn_program *x, tn_model *m, const char *folder, const char *state)
{
    tn_context *ctx = saves_not;
    if (!ctx)
        return __real_tn_program_save(x, m, folder, state);
    tn_context_fail(ctx, TN_CODE_FAIL, "its disk is gone");
    tn_ranks_end(ctx, TN_CODE_FAIL);
    return TN_CODE_FAIL;
}

static char dir[] = "/tmp/tenon-ranks-XXXXXX";
static char model[100], text[100];

static const char *in_dir(const char *name)
{
    static char path[8][300];
    static int turn;
    turn = (turn + 1) % LEN(path);
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

/* ---- a run ---- */

typedef struct Run {
    const char *name, *mesh; /* mesh NULL: one rank */
    int nrank;
    TrainOptions t;
    bool resume;
    const char *wrong;            /* data of rank 1 alone; or NULL */
    const char *from;             /* the model; NULL: the described one */
    bool saves_not;               /* rank 1 */
    _Atomic(tn_context *) second; /* rank 1 */
    /* what came of it */
    int code[MOST_RANKS];
    char message[MOST_RANKS][500];
    char log[1 << 16]; /* standard output and error */
    double loss[MOST_STEPS], eval[MOST_STEPS];
    int last; /* step with a loss */
} Run;

static TrainOptions defaults(void)
{
    static const char *const data[] = {text};
    TrainOptions t = {.o = tn_options_default(),
                      .steps = STEPS,
                      .batch = ROWS,
                      .seq = SEQ,
                      .lr = 1e-2,
                      .min_lr = -1,
                      .schedule = "cosine",
                      .data = data,
                      .ndata = 1,
                      .token_type = "auto",
                      .val_fraction = 0.1,
                      .document_token = -1,
                      .save_sec = 600,
                      .model = model};
    t.o.dropout = 0.1;
    t.o.seed = 3;
    return t;
}

static int train_rank(tn_context *ctx, void *arg)
{
    Run *run = arg;
    TrainOptions t = run->t;
    int r = tn_rank(ctx);
    tn_model *m = NULL;
    if (r == 1)
        run->second = ctx;
    saves_not = run->saves_not && r == 1 ? ctx : NULL;
    Resume from = {.step = -1};
    json_t *described = json_object();
    tn_threads(1);
    t.o.mesh = run->mesh;
    t.o.rank = r;
    t.described = described;
    if (run->wrong && r == 1)
        t.data = &run->wrong;
    int code = run->resume ? resume_find(ctx, t.out, &from) : 0;
    if (!code && from.step >= 0)
        t.resume = &from;
    if (!code)
        code = tn_model_open(ctx, t.resume ? from.folder : run->from ? run->from : model, &m);
    if (!code)
        code = train(ctx, m, &t);
    run->code[r] = code;
    snprintf(run->message[r], sizeof run->message[r], "%s", code ? tn_error(ctx) : "");
    resume_drop(&from);
    json_decref(described);
    return code;
}

static void read_metrics(Run *run)
{
    char line[2000];
    FILE *f = fopen(run->t.metrics, "r");
    for (int i = 0; i < MOST_STEPS; i++)
        run->loss[i] = run->eval[i] = NAN;
    run->last = 0;
    while (f && fgets(line, sizeof line, f)) {
        json_t *o = json_loads(line, 0, NULL);
        int step = (int)json_integer_value(json_object_get(o, "step"));
        const json_t *loss = json_object_get(o, "loss"), *eval = json_object_get(o, "eval_loss");
        CHECK(o && step >= 0 && step < MOST_STEPS);
        if (loss)
            run->loss[step] = json_number_value(loss);
        if (eval)
            run->eval[step] = json_number_value(eval);
        run->last = loss ? step : run->last;
        json_decref(o);
    }
    if (f)
        fclose(f);
}

/* What it prints is read back from a file. */
static void run_all(Run *run)
{
    const char *path = in_dir("log");
    int to = open(path, O_CREAT | O_TRUNC | O_RDWR | O_APPEND, 0600), before[2];
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        before[i] = dup(STDOUT_FILENO + i);
        CHECK(before[i] >= 0 && to >= 0 && dup2(to, STDOUT_FILENO + i) >= 0);
    }
    if (run->mesh) {
        tn_ranks_run(run->nrank, 60, train_rank, run);
    } else {
        tn_context *ctx = tn_context_new();
        train_rank(ctx, run);
        tn_context_free(ctx);
    }
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        dup2(before[i], STDOUT_FILENO + i);
        close(before[i]);
    }
    ssize_t n = pread(to, run->log, sizeof run->log - 1, 0);
    run->log[n > 0 ? n : 0] = 0;
    close(to);
}

/* A run in a folder of its name, with metrics beside it. */
static Run begin(const char *name, const char *mesh, int nrank)
{
    static char path[40][2][300];
    static int turn;
    char(*p)[300] = path[turn++ % LEN(path)];
    Run run = {.name = name, .mesh = mesh, .nrank = nrank, .t = defaults()};
    snprintf(p[0], sizeof p[0], "%s/%s", dir, name);
    snprintf(p[1], sizeof p[1], "%s/%s.jsonl", dir, name);
    run.t.out = p[0];
    run.t.metrics = p[1];
    return run;
}

static bool all_gave(const Run *run, int code)
{
    bool good = true;
    for (int i = 0; i < run->nrank; i++)
        good &= run->code[i] == code;
    if (!good)
        printf("%s: expected %d on all ranks; found %d and %d: %s\n", run->name, code, run->code[0],
               run->code[1], run->message[0]);
    return good;
}

static void run_well(Run *run)
{
    run_all(run);
    EXPECT(all_gave(run, 0));
    read_metrics(run);
    EXPECT(run->last == run->t.steps);
}

/* ---- what is compared ---- */

static double farthest(const Run *x, const Run *y, int from)
{
    double most = 0;
    for (int i = from; i <= y->last; i++)
        most = fmax(most, fabs(x->loss[i] - y->loss[i]) + (x->loss[i] != x->loss[i]));
    return most;
}

static bool same_bits(const Run *x, const Run *y)
{
    return !memcmp(x->loss + 1, y->loss + 1, sizeof *x->loss * (size_t)y->last);
}

static bool same_file(const Run *x, const Run *y, const char *name)
{
    char command[1000];
    snprintf(command, sizeof command, "cmp -s %s/latest/%s %s/latest/%s", x->t.out, name, y->t.out,
             name);
    return !system(command);
}

static bool there(const Run *run, int64_t step)
{
    char path[400];
    snprintf(path, sizeof path, "%s/step-%lld/state.json", run->t.out, (long long)step);
    return !access(path, F_OK);
}

static int occurrences(const char *all, const char *part)
{
    int n = 0;
    for (const char *at = all; (at = strstr(at, part)); at += strlen(part))
        n++;
    return n;
}

/* ---- the losses of one rank ---- */

static void test_meshes(void)
{
    static const struct {
        const char *mesh;
        int nrank;
    } meshes[] = {{"fsdp=2", 2}, {"fsdp=4", 4}, {"dp=2,tp=2", 4}, {"tp=2", 2}};
    Run one = begin("one", NULL, 1);
    one.t.eval_every = 3;
    run_well(&one);
    for (int i = 0; i < LEN(meshes); i++) {
        Run run = begin(meshes[i].mesh, meshes[i].mesh, meshes[i].nrank);
        run.t.eval_every = 3;
        run_well(&run);
        EXPECT(farthest(&one, &run, 1) <= 1e-5);
        EXPECT(fabs(one.eval[3] - run.eval[3]) <= 1e-5 && fabs(one.eval[6] - run.eval[6]) <= 1e-5);
        EXPECT(occurrences(run.log, "trained 6 steps") == 1 && !strstr(run.log, "rank 1: "));
        EXPECT(occurrences(run.log, "tokens to train on") == 1);
    }
}

/* Each rank computes what an iteration does. */
static void test_bits(void)
{
    Run one = begin("accumulate", NULL, 1), dp = begin("dp", "dp=4", 4);
    Run fsdp = begin("fsdp", "fsdp=4", 4);
    one.t.o.accumulate = 4;
    one.t.o.clip = dp.t.o.clip = fsdp.t.o.clip = 0.5;
    run_well(&one);
    run_well(&dp);
    run_well(&fsdp);
    EXPECT(same_bits(&one, &dp) && same_bits(&one, &fsdp));
    EXPECT(same_file(&one, &dp, "model.safetensors"));
    EXPECT(same_file(&one, &fsdp, "model.safetensors"));
    EXPECT(same_file(&one, &fsdp, "optimizer.safetensors"));
    /* held-out losses: of passes of all ranks' rows, and of a microbatch's */
    EXPECT(dp.eval[6] > 0 && dp.eval[6] == fsdp.eval[6] && fabs(one.eval[6] - dp.eval[6]) <= 1e-5);
}

/* Rows that no rank has enough of, in a step, a microbatch and an evaluation. */
static void test_padding(void)
{
    Run one = begin("rows", NULL, 1), run = begin("padded", "fsdp=4", 4);
    one.t.batch = run.t.batch = 7;
    one.t.o.accumulate = run.t.o.accumulate = 2;
    one.t.o.dropout = run.t.o.dropout = 0;
    run_well(&one);
    run_well(&run);
    EXPECT(farthest(&one, &run, 1) <= 1e-5 && fabs(one.eval[6] - run.eval[6]) <= 1e-5);
}

/* ---- what is said ---- */

static void test_log(void)
{
    Run run = begin("spoken", "fsdp=2", 2);
    run.t.log_ranks = true;
    run_well(&run);
    EXPECT(strstr(run.log, "rank 1: trained 6 steps") && !strstr(run.log, "rank 0: "));
    EXPECT(occurrences(run.log, "\ntrained 6 steps") == 1);
}

/* ---- what goes wrong on one rank ---- */

static void test_one_fails(void)
{
    Run run = begin("wrong", "fsdp=2", 2);
    run.wrong = in_dir("nothing");
    run_all(&run);
    EXPECT(all_gave(&run, TN_CODE_FAIL));
    EXPECT(strstr(run.message[0], "rank 1: ") && strstr(run.message[1], "nothing"));
    EXPECT(access(run.t.out, F_OK));
}

/* Rank 1 has other texts than those of rank 0's tokens, and makes none of its own. */
static void test_other_text(void)
{
    Run run = begin("texts", "fsdp=2", 2);
    char command[1000];
    run.wrong = in_dir("other");
    snprintf(command, sizeof command, "tail -c 900 LICENSE >%s", run.wrong);
    CHECK(!system(command));
    run_all(&run);
    EXPECT(all_gave(&run, TN_CODE_FAIL));
    EXPECT(strstr(run.message[0], "rank 1: ") &&
           strstr(run.message[0], "texts/tokens.bin: expected rank 0's tokens of the texts"));
}

/* Of a device that is full rank 0 alone knows; all save what they have. */
static void test_full(void)
{
    Run run = begin("full", "fsdp=2", 2);
    run.t.metrics = "/dev/full";
    run_all(&run);
    EXPECT(all_gave(&run, TN_CODE_FAIL));
    EXPECT(strstr(run.message[1], "/dev/full: cannot write") && strstr(run.message[0], "is saved"));
    EXPECT(there(&run, 2) || there(&run, 1));
}

/* Where a file is cut while it is read, and the metrics by which that is known to be the time. */
typedef struct Cut {
    const char *file, *metrics;
} Cut;

/* Once the run has done some steps. */
static void wait_for_steps(const char *metrics)
{
    struct stat st = {0};
    for (int i = 0; i < 20000 && (stat(metrics, &st) || st.st_size < 1000); i++)
        usleep(1000);
}

static void *cut(void *arg)
{
    const Cut *c = arg;
    wait_for_steps(c->metrics);
    CHECK(!truncate(c->file, 100));
    return NULL;
}

/* Rank 1 can no longer read its rows: all save the step before. */
static void test_unread(void)
{
    Run run = begin("unread", "fsdp=2", 2);
    const char *data[] = {in_dir("tokens")};
    char own[300], command[1000];
    snprintf(own, sizeof own, "%s", in_dir("own"));
    snprintf(command, sizeof command, "cp %s/one/tokens.bin %s && cp %s %s", dir, data[0], data[0],
             own);
    CHECK(!system(command));
    run.t.data = data;
    run.t.token_type = "u16";
    run.t.steps = MOST_STEPS * 1000;
    run.wrong = own;
    Cut c = {own, run.t.metrics};
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, cut, &c));
    run_all(&run);
    pthread_join(thread, NULL);
    EXPECT(all_gave(&run, TN_CODE_FAIL));
    EXPECT(strstr(run.message[0], "rank 1: ") && strstr(run.message[0], own) &&
           strstr(run.message[0], "is saved in"));
}

/* ---- values that are not finite ---- */

/* A sum beyond f32 in the row that rank 2 has: what it gives reaches all of them. */
static void test_not_finite(void)
{
    enum { WIDTH = 32, TOKEN = 500, PLACE = 3, ROW = 2 };
    const float huge = 3e38f;
    char command[1000], file[400], batch[300], folder[300];
    snprintf(folder, sizeof folder, "%s", in_dir("huge"));
    snprintf(batch, sizeof batch, "%s", in_dir("batch"));
    snprintf(command, sizeof command, "cp -rL %s/one/latest %s", dir, folder);
    CHECK(!system(command));
    snprintf(file, sizeof file, "%s/model.safetensors", folder);
    train_values(file, "wte.weight", TOKEN * WIDTH, WIDTH, huge);
    train_values(file, "wpe.weight", PLACE * WIDTH, WIDTH, huge);
    train_batch(batch, 4, SEQ, ROW, PLACE, TOKEN);
    for (int skip = 0; skip < 2; skip++) {
        Run run = begin(skip ? "skipped" : "stopped", "fsdp=4", 4);
        run.from = folder;
        run.t.batch_file = batch;
        run.t.ndata = 0;
        run.t.batch = 4;
        run.t.o.dropout = 0;
        run.t.o.seed = 1;
        run.t.skip_bad = skip;
        run.t.steps = 2;
        run_all(&run);
        EXPECT(all_gave(&run, skip ? 0 : TN_CODE_FAIL));
        EXPECT(strstr(skip ? run.log : run.message[0], ", on rank 2"));
        EXPECT(!skip || occurrences(run.log, "is skipped") == 2);
        EXPECT(!skip || occurrences(run.log, "step 2 loss nan") == 1);
    }
}

/* ---- one batch, and the clock ---- */

static void test_batch(void)
{
    Run one = begin("batch1", NULL, 1), run = begin("batch2", "fsdp=2", 2);
    const char *batch = in_dir("batch");
    train_batch(batch, 3, SEQ, 1, 2, 9);
    one.t.batch_file = run.t.batch_file = batch;
    one.t.ndata = run.t.ndata = 0;
    one.t.batch = run.t.batch = 3;
    one.t.o.dropout = run.t.o.dropout = 0;
    run_well(&one);
    run_well(&run);
    EXPECT(farthest(&one, &run, 1) <= 1e-5);
    EXPECT(occurrences(run.log, "step 6 loss ") == 1);
}

/* All save and stop after the same step, by rank 0's clock. Slow saving takes a longer run. */
static void test_clock(void)
{
    int saved = 0;
    for (double sec = 0.7; sec < 20 && saved < 3; sec *= 16) {
        Run run = begin(sec < 1 ? "clock" : "longer", "dp=2", 2);
        run.t.steps = MOST_STEPS * 1000;
        run.t.max_sec = sec;
        run.t.save_sec = 0.05;
        run_all(&run);
        EXPECT(all_gave(&run, 0) && occurrences(run.log, "\ntrained ") == 1);
        saved = occurrences(run.log, "is saved in");
    }
    EXPECT(saved >= 3);
}

/* ---- a rank that is lost ---- */

/* Rank 1 ends, and then a launcher would ask the others to. */
static void *lose(void *arg)
{
    Run *run = arg;
    wait_for_steps(run->t.metrics);
    tn_ranks_end(run->second, TN_CODE_FAIL);
    kill(getpid(), SIGTERM);
    return NULL;
}

static void test_lost(void)
{
    Run run = begin("lost", "fsdp=4", 4);
    pthread_t thread;
    run.t.steps = MOST_STEPS * 1000;
    signal(SIGTERM, SIG_IGN); /* which comes when the run may be over */
    CHECK(!pthread_create(&thread, NULL, lose, &run));
    run_all(&run);
    pthread_join(thread, NULL);
    EXPECT(all_gave(&run, TN_CODE_FAIL) && strstr(run.message[0], "rank 1"));
    EXPECT(!strstr(run.log, "is saved in") && access(in_dir("lost/latest"), F_OK));
}

/* While the others save: no next save is tried. */
static void test_lost_saving(void)
{
    Run run = begin("unsaved", "fsdp=4", 4);
    run.saves_not = true;
    run.t.save_every = 2;
    run_all(&run);
    EXPECT(all_gave(&run, TN_CODE_FAIL) && strstr(run.message[0], "rank 1: its disk is gone"));
    EXPECT(!strstr(run.log, "tries again") && !there(&run, 2));
}

/* ---- on another mesh ---- */

static void test_resume(void)
{
    Run one = begin("whole", NULL, 1), run = begin("moved", "fsdp=4", 4);
    run_well(&one);
    run.t.save_every = 3;
    run_well(&run);
    char command[1000];
    snprintf(command, sizeof command, "cd %s && rm -r step-6 && ln -sfn step-3 latest", run.t.out);
    CHECK(!system(command));
    Run more = run;
    more.mesh = "dp=2";
    more.nrank = 2;
    more.resume = true;
    run_well(&more);
    EXPECT(farthest(&one, &more, 1) <= 1e-5);
    CHECK(!system(command));
    more.mesh = NULL;
    more.nrank = 1;
    run_well(&more);
    EXPECT(farthest(&one, &more, 1) <= 1e-5);
}

/* ---- signals ---- */

static void *interrupt(void *path)
{
    wait_for_steps(path);
    kill(getpid(), SIGUSR1);
    return NULL;
}

static void test_interrupt(void)
{
    Run run = begin("interrupt", "fsdp=4", 4);
    pthread_t thread;
    run.t.steps = MOST_STEPS * 1000;
    CHECK(!pthread_create(&thread, NULL, interrupt, (void *)(uintptr_t)run.t.metrics));
    run_all(&run);
    pthread_join(thread, NULL);
    EXPECT(all_gave(&run, 130));
    EXPECT(occurrences(run.log, "interrupted after step") == 1);
    json_t *state = json_load_file(in_dir("interrupt/latest/state.json"), 0, NULL);
    EXPECT(json_integer_value(json_object_get(state, "step")) > 1);
    json_decref(state);
    Run again = begin("ended", "fsdp=2", 2); /* the signal is there already: no tokens are made */
    run_all(&again);
    EXPECT(all_gave(&again, 130) && occurrences(again.log, "while text was tokenized") == 1);
    EXPECT(access(in_dir("ended/tokens.bin"), F_OK));
}

/* A process keeps count of signals, so that each test that sends some has its own. No thread of a
 * library is there yet. */
static void in_child(void (*test)(void))
{
    int status = -1;
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        interrupt_watch();
        test();
        fflush(stdout);
        _exit(test_nfail != 0);
    }
    waitpid(child, &status, 0);
    EXPECT(WIFEXITED(status) && !WEXITSTATUS(status));
}

/* ---- all of it ---- */

/* A model that is described, not given, with a tokenizer; and a text. */
static void make_inputs(void)
{
    static const char config[] =
        "{\"model_type\": \"gpt2\", \"activation_function\": \"gelu_new\", "
        "\"layer_norm_epsilon\": 1e-05, \"n_embd\": 32, \"n_head\": 4, \"n_layer\": 2, "
        "\"n_positions\": 32, \"vocab_size\": 512}";
    char command[500];
    CHECK(mkdtemp(dir));
    snprintf(model, sizeof model, "%s/config.json", dir);
    snprintf(text, sizeof text, "%s/text", dir);
    FILE *f = fopen(model, "w");
    CHECK(f && fputs(config, f) >= 0 && !fclose(f));
    snprintf(command, sizeof command,
             "head -c %d LICENSE >%s && cp tests/tokenizer/gpt2.json %s/tokenizer.json", TEXT, text,
             dir);
    CHECK(!system(command));
}

int main(void)
{
    static void (*const tests[])(void) = {
        test_meshes, test_bits,   test_padding,    test_log,        test_one_fails,
        test_full,   test_unread, test_not_finite, test_other_text, test_lost_saving,
        test_batch,  test_clock,  test_resume};
    make_inputs();
    in_child(test_interrupt);
    in_child(test_lost);
    for (int i = 0; i < LEN(tests); i++)
        tests[i]();
    char command[100];
    snprintf(command, sizeof command, "rm -r %s", dir);
    CHECK(!system(command));
    return test_report();
}
