/* Trains a model on several ranks, which cut its parameters and its batch among them: on those that
 * a launcher has started, else on 4 that are threads. Rank 0 prints the losses; all save.
 *
 *     cc ranks.c $(pkg-config --cflags --libs tenon) -o ranks
 *     ./ranks FOLDER BATCH.safetensors STEPS OUT
 *     mpirun -n 4 ./ranks FOLDER BATCH.safetensors STEPS OUT */
#include <tenon.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a rank has, in its context. */
typedef struct Rank {
    tn_context *ctx;
    tn_options o;
    char mesh[40];
    tn_model *m;
    tn_plan *plan;
    tn_program *x;
    int64_t B, T;                 /* of the whole batch */
    int64_t count, *ids, *labels; /* of its rows */
} Rank;

/* What a rank does for itself: it may fail where others do not. */
static int make_plan(Rank *r, const char *model, const char *batch)
{
    tn_graph *g = NULL;
    r->o = tn_options_default();
    snprintf(r->mesh, sizeof r->mesh, "fsdp=%d", tn_ranks(r->ctx));
    r->o.mesh = r->mesh;
    r->o.rank = tn_rank(r->ctx);
    int code = tn_model_open(r->ctx, model, &r->m);
    if (!code)
        code = tn_batch_shape(r->ctx, batch, &r->B, &r->T);
    if (!code)
        code = tn_model_graph(r->m, r->B, r->T, &r->o, &g);
    if (!code)
        code = tn_graph_passes(g, "default", &r->o, NULL, NULL);
    return code ? code : tn_plan_new(g, &r->o, 1, &r->plan);
}

/* The rank's rows of the batch; a row that the batch does not have is padding. */
static int read_rows(Rank *r, const char *batch)
{
    const int64_t *rows;
    int code = tn_plan_rows(r->plan, &rows, &r->count);
    size_t nbytes = (size_t)r->T * sizeof(int64_t), whole = (size_t)r->B * nbytes;
    int64_t *ids = malloc(whole), *labels = malloc(whole);
    r->ids = malloc((size_t)r->count * nbytes);
    r->labels = malloc((size_t)r->count * nbytes);
    if (!code && (!ids || !labels || !r->ids || !r->labels))
        code = tn_context_fail(r->ctx, TN_CODE_FAIL, "no memory for the batch");
    if (!code)
        code = tn_batch_read(r->ctx, batch, r->B, r->T, ids, labels);
    for (int64_t i = 0; i < r->count && !code; i++) {
        int64_t from = rows[i] * r->T, to = i * r->T;
        for (int64_t t = 0; t < r->T; t++) {
            r->ids[to + t] = rows[i] < r->B ? ids[from + t] : 0;
            r->labels[to + t] = rows[i] < r->B ? labels[from + t] : -100;
        }
    }
    free(ids);
    free(labels);
    return code;
}

/* All do it together; the loss is that of the whole batch. */
static int run_step(Rank *r, int64_t step, float *loss)
{
    const float lr = 1e-3f;
    int64_t nbytes = r->count * r->T * (int64_t)sizeof(int64_t);
    int code = tn_program_write(r->x, "input_ids", r->ids, nbytes);
    if (!code)
        code = tn_program_write(r->x, "labels", r->labels, nbytes);
    if (!code)
        code = tn_program_write(r->x, "lr", &lr, sizeof lr);
    if (!code)
        code = tn_program_write(r->x, "step", &step, sizeof step);
    if (!code)
        code = tn_program_run(r->x);
    return code ? code : tn_program_read(r->x, "loss", loss, sizeof *loss);
}

static int train(Rank *r, int steps)
{
    for (int64_t step = 1; step <= steps; step++) {
        float loss;
        int code = run_step(r, step, &loss);
        if (code) { /* the others wait for this rank: it ends them */
            tn_context_fail(r->ctx, code, "%s", tn_program_error(r->x));
            tn_ranks_end(r->ctx, code);
            return code;
        }
        if (!tn_rank(r->ctx))
            printf("step %d loss %.9g\n", (int)step, (double)loss);
    }
    return TN_CODE_OK;
}

/* Called on every rank, with the arguments of the program. What one has failed at, all hear. */
static int run(tn_context *ctx, void *arg)
{
    char **argv = arg;
    Rank r = {.ctx = ctx};
    int code = tn_agree_code(ctx, make_plan(&r, argv[1], argv[2]));
    if (!code)
        code = tn_program_new(r.plan, &r.o, &r.x);
    if (!code)
        code = tn_agree_code(ctx, read_rows(&r, argv[2]));
    if (!code)
        code = tn_agree_code(ctx, tn_program_load(r.x, r.m, &r.o));
    if (!code)
        code = train(&r, atoi(argv[3]));
    if (!code)
        code = tn_program_save(r.x, r.m, argv[4], "{}");
    if (code && !tn_rank(ctx))
        fprintf(stderr, "ranks: %s\n", tn_error(ctx));
    free(r.ids);
    free(r.labels);
    return code;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: ranks FOLDER BATCH.safetensors STEPS OUT\n");
        return TN_CODE_USAGE;
    }
    if (!tn_launched())
        return tn_ranks_run(4, 60, run, argv);
    tn_context *ctx = tn_context_new();
    if (!ctx)
        return TN_CODE_FAIL;
    int code = tn_join(ctx, 60);
    if (code)
        fprintf(stderr, "ranks: %s\n", tn_error(ctx));
    else
        code = run(ctx, argv);
    tn_context_free(ctx);
    return code;
}
