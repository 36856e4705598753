/* Read by benchmarks of whole steps: tokens that are drawn, and errors that end the program. */
#ifndef BENCH_STEP_H
#define BENCH_STEP_H
#include "../src/api/api.h"

#include <stdlib.h>

static void ok(tn_context *ctx, int code)
{
    if (code) {
        fprintf(stderr, "%d: %s\n", code, tn_error(ctx));
        exit(EXIT_FAILURE);
    }
}

static void put_tokens(tn_context *ctx, tn_program *x, const char *name, int64_t vocab)
{
    void *data;
    int64_t nbytes;
    uint64_t z = 88172645463325252u;
    ok(ctx, tn_program_data(x, name, &data, &nbytes));
    for (int64_t i = 0; i < nbytes / 8; i++) {
        z = z * 6364136223846793005u + 1442695040888963407u;
        ((int64_t *)data)[i] = (int64_t)((z >> 33) % (uint64_t)vocab);
    }
}

/* Writes all that step `number`, from 1 on, reads. */
static void put_step(tn_context *ctx, tn_program *x, int64_t vocab, int64_t number)
{
    const float rate = 1e-4F;
    put_tokens(ctx, x, "input_ids", vocab);
    put_tokens(ctx, x, "labels", vocab);
    ok(ctx, tn_program_write(x, "lr", &rate, sizeof rate));
    ok(ctx, tn_program_write(x, "step", &number, sizeof number));
}

#endif
