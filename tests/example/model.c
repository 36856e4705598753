/* Trains a model from a Hugging Face folder, a checkpoint or a preset on one batch, and saves it.
 *
 *     cc model.c $(pkg-config --cflags --libs tenon) -o model
 *     ./model FOLDER BATCH.safetensors STEPS OUT */
#include <tenon.h>

#include <stdio.h>
#include <stdlib.h>

static tn_context *ctx;

static void need(int code)
{
    if (code == TN_CODE_OK)
        return;
    fprintf(stderr, "model: %s\n", tn_error(ctx));
    exit(code);
}

/* Programs have messages of their own: several may run at once. */
static void check(tn_program *x, int code)
{
    if (code == TN_CODE_OK)
        return;
    fprintf(stderr, "model: %s\n", tn_program_error(x));
    exit(code);
}

static void train(tn_program *x, const char *batch, int64_t B, int64_t T, int steps)
{
    int64_t nbytes = B * T * (int64_t)sizeof(int64_t);
    int64_t *ids = malloc((size_t)nbytes), *labels = malloc((size_t)nbytes);
    if (!ids || !labels)
        exit(1);
    need(tn_batch_read(ctx, batch, B, T, ids, labels));
    for (int64_t step = 1; step <= steps; step++) {
        float loss, lr = 1e-3f;
        check(x, tn_program_write(x, "input_ids", ids, nbytes));
        check(x, tn_program_write(x, "labels", labels, nbytes));
        check(x, tn_program_write(x, "lr", &lr, sizeof lr));
        check(x, tn_program_write(x, "step", &step, sizeof step));
        check(x, tn_program_run(x));
        check(x, tn_program_read(x, "loss", &loss, sizeof loss));
        printf("step %d loss %.9g\n", (int)step, (double)loss);
    }
    free(ids);
    free(labels);
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: model FOLDER BATCH.safetensors STEPS OUT\n");
        return TN_CODE_USAGE;
    }
    ctx = tn_context_new();
    if (!ctx)
        return 1;
    tn_options o = tn_options_default(); /* AdamW, clipping by a norm of 1 */
    tn_model *m;
    tn_graph *g;
    tn_plan *plan;
    tn_program *x;
    int64_t B, T;
    const char *text;
    need(tn_model_open(ctx, argv[1], &m));
    need(tn_batch_shape(ctx, argv[2], &B, &T));
    need(tn_model_graph(m, B, T, &o, &g));
    need(tn_graph_passes(g, "default", &o, NULL, NULL));
    need(tn_plan_new(g, &o, 1, &plan));
    need(tn_plan_text(plan, 0, &text));
    fputs(text, stderr);
    need(tn_program_new(plan, &o, &x));
    need(tn_program_load(x, m, &o));
    train(x, argv[2], B, T, atoi(argv[3]));
    need(tn_program_save(x, m, argv[4], "{}"));
    tn_context_free(ctx);
    return 0;
}
