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

static void *data(tn_program *x, const char *name)
{
    void *p;
    need(tn_program_data(x, name, &p, NULL));
    return p;
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

    for (int step = 1; step <= atoi(argv[3]); step++) {
        need(tn_batch_read(ctx, argv[2], B, T, data(x, "input_ids"), data(x, "labels")));
        *(float *)data(x, "lr") = 1e-3f;
        *(int64_t *)data(x, "step") = step;
        need(tn_program_run(x));
        printf("step %d loss %.9g\n", step, (double)*(float *)data(x, "loss"));
    }
    need(tn_program_save(x, m, argv[4], "{}"));
    tn_context_free(ctx);
    return 0;
}
