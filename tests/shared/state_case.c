/* A checkpoint of a small model, and what `tenon train --resume` does with its state.json: finds
 * the checkpoint, reads it, takes the options. */
#define _GNU_SOURCE
#include "state_case.h"

#include "../../src/base/base.h"
#include "../../src/train/train.h"
#undef LEN
#include "../../src/cli/cli.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char state_good[] =
    "{\"step\": 2, \"data_position\": 32, \"seed\": 0, \"threads\": 1, \"batch_size\": 2, "
    "\"seq_len\": 8, \"elapsed_sec\": 0.5, \"version\": \"0.1.0\", \"model\": \"demo\", "
    "\"options\": "
    "{\"data\": [\"text\", \"other\"], \"steps\": 4, \"lr\": 0.001, \"out\": \"o\", \"schedule\": "
    "\"cosine\", \"memory\": 0, \"check\": false, \"metrics\": null}, \"data\": [{\"path\": "
    "\"text\", "
    "\"nbytes\": 900}], \"plan\": {\"plan_hash\": \"0123456789abcdef\", \"peak_bytes\": 102208, "
    "\"nodes\": 98}, \"decisions\": [], \"skipped_steps\": 3, \"skipped_in_a_row\": 0}";

static const char config[] =
    "{\"model_type\": \"llama\", \"hidden_size\": 8, \"num_attention_heads\": 2, "
    "\"num_key_value_heads\": 1, \"num_hidden_layers\": 1, \"intermediate_size\": 16, "
    "\"vocab_size\": "
    "16, \"hidden_act\": \"silu\", \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-5, "
    "\"rope_theta\": 10000.0, \"tie_word_embeddings\": false}";

static char folder[64];
static tn_context *ctx;

static const char *inside(const char *name)
{
    static char path[2][300];
    static int turn;
    snprintf(path[turn ^= 1], sizeof path[0], "%s/%s", folder, name);
    return path[turn];
}

static void put(const char *path, const char *text, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, text, n) == (ssize_t)n && !close(fd));
}

const char *state_folder(void)
{
    tn_options o = tn_options_default();
    tn_model *m;
    tn_graph *g;
    tn_plan *p;
    tn_program *x;
    if (*folder)
        return folder;
    snprintf(folder, sizeof folder, "%s/tenon_state_XXXXXX",
             access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    CHECK(mkdtemp(folder) && (ctx = tn_context_new()));
    put(inside("config.json"), config, strlen(config));
    CHECK(!tn_model_open(ctx, inside("config.json"), &m) && !tn_model_logits(m, 1, 1, &g) &&
          !tn_plan_new(g, &o, 1, &p) && !tn_program_new(p, &o, &x) && !tn_program_load(x, m, &o) &&
          !tn_program_save(x, m, inside("step-2"), state_good));
    tn_program_free(x);
    tn_plan_free(p);
    tn_graph_free(g);
    stderr = fopen("/dev/null", "w"); /* warnings, one for each try */
    CHECK(stderr);
    return folder;
}

void state_remove(void)
{
    char command[100];
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK(!system(command));
    tn_context_free(ctx);
}

static bool take_up(char *said, size_t size)
{
    Texts data = {.count = 0};
    int64_t steps = 0, memory = 0;
    double lr = 0;
    const char *out = NULL, *schedule = "linear", *metrics = NULL;
    int check = 0;
    Option table[] = {{.name = "data", .kind = OPT_LIST, .resume = RESUME_OWN, .into = &data},
                      {.name = "steps",
                       .kind = OPT_INT,
                       .resume = RESUME_END,
                       .into = &steps,
                       .lo = 1,
                       .hi = 1e12},
                      {.name = "lr", .kind = OPT_REAL, .into = &lr, .hi = 1e6},
                      {.name = "out", .kind = OPT_TEXT, .resume = RESUME_OWN, .into = &out},
                      {.name = "schedule",
                       .kind = OPT_WORD,
                       .into = &schedule,
                       .words = "cosine|linear|constant"},
                      {.name = "memory", .kind = OPT_BYTES, .resume = RESUME_OWN, .into = &memory},
                      {.name = "check", .kind = OPT_FLAG, .resume = RESUME_OWN, .into = &check},
                      {.name = "metrics", .kind = OPT_TEXT, .resume = RESUME_OWN, .into = &metrics},
                      {0}};
    Resume from;
    int code = resume_find(ctx, folder, &from);
    snprintf(said, size, "%s", code ? tn_error(ctx) : "");
    CHECK(!code || (code == TN_CODE_FAIL && *said));
    bool there = !code && from.step >= 0;
    CHECK(!there || from.step == 2);
    if (there)
        there = state_check(from.state, from.folder) < 0 &&
                options_resume(table, json_object_get(from.state, "options"), from.folder) < 0;
    CHECK(!there || ((steps == 0 || (steps >= 1 && steps <= 1000000000000)) && memory >= 0 &&
                     lr >= 0 && lr <= 1e6 && data.count >= 0));
    resume_drop(&from);
    return there;
}

static void point_latest(const char *to)
{
    unlink(inside("latest"));
    CHECK(!*to || !symlink(to, inside("latest")));
}

bool state_try(const char *text, size_t n, char *said, size_t size)
{
    state_folder();
    point_latest("step-2");
    put(inside("step-2/state.json"), text, n);
    return take_up(said, size);
}

bool state_try_latest(const char *text, size_t n, char *said, size_t size)
{
    char to[400];
    state_folder();
    put(inside("step-2/state.json"), state_good, strlen(state_good));
    snprintf(to, sizeof to, "%.*s", (int)MIN(n, sizeof to - 1), text);
    point_latest(to);
    return take_up(said, size);
}
