/* Errors that unwind: fail() stores one message and jumps out of the innermost ctx_try or TRY.
 * Memory belongs to arenas, which the caller of ctx_try drops. Bugs abort. */
#include "base.h"

#include <stdlib.h>
#include <string.h>

Code ctx_try(Ctx *ctx, void (*fn)(void *arg), void *arg)
{
    jmp_buf here;
    jmp_buf *outer = ctx->handler;
    if (setjmp(here)) {
        ctx->handler = outer;
        return ctx->code;
    }
    ctx->handler = &here;
    if (!outer)
        isa_check(ctx);
    fn(arg);
    ctx->handler = outer;
    return TN_OK;
}

static void nothing(void *arg)
{
    (void)arg;
}

bool try_begin(Attempt *t, Ctx *ctx)
{
    t->ctx = ctx;
    t->outer = ctx->handler;
    t->a = NULL;
    t->code = ctx->handler ? TN_OK : ctx_try(ctx, nothing, NULL); /* which may refuse TN_ISA */
    if (!t->code)
        ctx->handler = &t->here;
    return !t->code;
}

void try_failed(Attempt *t)
{
    t->code = t->ctx->code;
}

Arena *try_arena(Attempt *t)
{
    if (!t->a && !(t->a = arena_new(t->ctx)))
        fail(t->ctx, TN_FAIL, "out of memory");
    return t->a;
}

void try_end(Attempt *t)
{
    if (!t->ctx)
        return;
    t->ctx->handler = t->outer;
    arena_free(t->a);
    t->ctx = NULL;
}

Code tried(Attempt *t)
{
    try_end(t);
    return t->code;
}

_Noreturn static void unwind(Ctx *ctx)
{
    if (!ctx->handler) {
        fprintf(stderr, "tenon: %s\n", ctx->message);
        abort();
    }
    longjmp(*ctx->handler, 1);
}

static void store(Ctx *ctx, Code code, const char *format, va_list args)
{
    char text[sizeof ctx->message]; /* the arguments may point into the old message */
    vsnprintf(text, sizeof text, format, args);
    memcpy(ctx->message, text, sizeof text);
    ctx->code = code;
    ctx->misfit = (Misfit){0};
}

_Noreturn void vfail(Ctx *ctx, Code code, const char *format, va_list args)
{
    store(ctx, code, format, args);
    unwind(ctx);
}

_Noreturn void fail(Ctx *ctx, Code code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    store(ctx, code, format, args);
    va_end(args);
    unwind(ctx);
}

_Noreturn void fail_misfit(Ctx *ctx, const Misfit *m, const char *format, ...)
{
    const Misfit own = *m; /* it may be the context's */
    va_list args;
    va_start(args, format);
    store(ctx, TN_FIT, format, args);
    va_end(args);
    ctx->misfit = own;
    unwind(ctx);
}

_Noreturn void fail_again(Ctx *ctx, const char *prefix)
{
    if (ctx->code == TN_FIT)
        fail_misfit(ctx, &ctx->misfit, "%s%s", prefix, ctx->message);
    fail(ctx, ctx->code, "%s%s", prefix, ctx->message);
}

_Noreturn void bug(const char *file, int line, const char *what)
{
    fprintf(stderr, "tenon: bug at %s:%d: %s does not hold\n", file, line, what);
    abort();
}
