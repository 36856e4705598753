/* Objects behind tenon.h: made, listed by their context, freed. */
#include "run.h"

#include <stdlib.h>

static void drop(void *handle)
{
    if (!((Handle *)handle)->kept)
        handle_free(handle);
}

void *handle_new(tn_context *ctx, Arena *call, size_t size)
{
    Handle *h = calloc(1, size);
    Arena *a = arena_new(&ctx->ctx);
    if (!h || !a) {
        free(h);
        arena_free(a);
        fail(&ctx->ctx, TN_FAIL, "out of memory");
    }
    h->owner = ctx;
    h->a = a;
    h->next = ctx->live;
    if (h->next)
        h->next->prev = h;
    ctx->live = h;
    arena_defer(call, drop, h);
    return h;
}

void *handle_keep(void *handle)
{
    ((Handle *)handle)->kept = true;
    return handle;
}

void handle_free(Handle *h)
{
    if (!h)
        return;
    *(h->prev ? &h->prev->next : &h->owner->live) = h->next;
    if (h->next)
        h->next->prev = h->prev;
    arena_free(h->a);
    free(h);
}

int program_fail(tn_program *x, int code, const char *format, ...)
{
    va_list args;
    if (!x)
        return code;
    va_start(args, format);
    vsnprintf(x->error, sizeof x->error, format, args);
    va_end(args);
    return code;
}
