/* TRY: failures in a block, nested and left early; memory that goes with it. */
#include "../shared/test.h"

static int ndropped;

static void note_drop(void *what)
{
    (void)what;
    ndropped++;
}

static Code set(Ctx *ctx, int x, int *result)
{
    TRY(t, ctx) {
        arena_defer(try_arena(&t), note_drop, &t);
        if (x < 0)
            fail(ctx, TN_USAGE, "%d is negative", x);
        *result = x;
    }
    return tried(&t);
}

static void test_results(Ctx *ctx)
{
    int result = 0;
    ndropped = 0;
    EXPECT(set(ctx, 5, &result) == TN_OK && result == 5 && ndropped == 1);
    EXPECT(set(ctx, -1, &result) == TN_USAGE && result == 5 && ndropped == 2);
    EXPECT(!strcmp(ctx->message, "-1 is negative") && !ctx->handler);
}

/* Returns from within the block, which then protects nothing any longer. */
static int leave(Ctx *ctx)
{
    TRY(t, ctx) {
        arena_defer(try_arena(&t), note_drop, &t);
        return 7;
    }
    return (int)tried(&t);
}

static void test_early(Ctx *ctx)
{
    ndropped = 0;
    EXPECT(leave(ctx) == 7 && ndropped == 1 && !ctx->handler);
}

static void test_nested(Ctx *ctx)
{
    int result = 0;
    volatile Code inner = TN_OK;
    TRY(t, ctx) {
        EXPECT(leave(ctx) == 7 && ctx->handler == &t.here);
        inner = set(ctx, -2, &result);
        EXPECT(ctx->handler == &t.here);
        fail_again(ctx, "outer: ");
    }
    EXPECT(tried(&t) == TN_USAGE && inner == TN_USAGE);
    EXPECT(!strcmp(ctx->message, "outer: -2 is negative") && !ctx->handler);
}

int main(void)
{
    Ctx ctx = {0};
    test_results(&ctx);
    test_early(&ctx);
    test_nested(&ctx);
    ctx_end(&ctx);
    return test_report();
}
