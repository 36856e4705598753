/* Contexts, what belongs to them, versions, threads and defaults. */
#include "api.h"
#include "../comm/comm.h"
#include "../io/record.h"
#include "../product/onednn.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

static char version_text[400];

/* A line for each back end, and for each module of MPI. */
static void list_backends(char *text, size_t size)
{
    const char *mpi[COMM_MODULES];
    int len = 0, nmpi = comm_modules(mpi);
    for (int i = 0; i < NDEVICE; i++)
        if (kernels_linked(device_at(i)->kernels))
            len += snprintf(text + len, size - (size_t)len, "\nbackend %s", device_at(i)->name);
    for (int i = 0; i < nmpi; i++)
        len += snprintf(text + len, size - (size_t)len, "\nmpi %s", mpi[i]);
}

__attribute__((constructor)) static void fill_version(void)
{
    char pcre2[64] = "", backends[200] = "", onednn[ONE_VERSION];
    list_backends(backends, sizeof backends);
    pcre2_config(PCRE2_CONFIG_VERSION, pcre2);
    snprintf(version_text, sizeof version_text,
             "tenon %s%s\nonednn %s\njansson %s\npcre2 %.*s\nutf8proc %s%s\nisa %s", TN_VERSION,
             backends, onednn_version(onednn), JANSSON_VERSION, (int)strcspn(pcre2, " "), pcre2,
             utf8proc_version(), bytes_libraries(), isa_name(isa_level()));
}

const char *tn_version(void)
{
    return version_text;
}

tn_context *tn_context_new(void)
{
    tn_context *ctx = calloc(1, sizeof *ctx);
    if (!ctx)
        return NULL;
    TRY(t, &ctx->ctx) { /* says what no call will do with, a wrong TN_ISA */
    }
    return ctx;
}

void tn_context_free(tn_context *ctx)
{
    if (!ctx)
        return;
    while (ctx->live) /* the newest first: programs before plans before graphs */
        handle_free(ctx->live);
    arena_free(ctx->a);
    ranks_leave(ctx); /* programs have left their groups */
    stream_free(ctx->stream);
    ctx_end(&ctx->ctx);
    free(ctx);
}

const char *tn_error(const tn_context *ctx)
{
    return ctx ? ctx->ctx.message : "no context";
}

int tn_error_misfit(const tn_context *ctx, tn_misfit *misfit)
{
    const Misfit *m = ctx && ctx->ctx.code == TN_FIT ? &ctx->ctx.misfit : NULL;
    if (!m || !misfit || !m->least)
        return 0;
    const char *holds = strchr(ctx->ctx.message, '\n');
    *misfit = (tn_misfit){.limit = m->limit,
                          .mapped = m->mapped,
                          .peak = m->peak,
                          .reserve = m->reserve,
                          .least = m->least,
                          .holds = holds ? holds + 1 : ""};
    return 1;
}

int tn_context_fail(tn_context *ctx, int code, const char *format, ...)
{
    va_list args;
    char text[sizeof ctx->ctx.message]; /* the arguments may point into the old message */
    if (!ctx)
        return code;
    if (!format)
        format = "no message was given";
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    memcpy(ctx->ctx.message, text, sizeof text);
    ctx->ctx.code = (Code)code;
    ctx->ctx.misfit = (Misfit){0};
    return code;
}

const char *tn_version_number(void)
{
    return TN_VERSION;
}

int tn_threads_used(void)
{
    return par_threads();
}

void tn_threads(int count)
{
    par_set_threads(MIN(count, MOST_THREADS));
}

/* clang-format off */
#define DEFAULT_FLAG(x)   x
#define DEFAULT_SWITCH(x) (strcmp(x, "off") != 0)
#define DEFAULT_INT(x)    x
#define DEFAULT_AUTO(x)   x
#define DEFAULT_SEED(x)   x
#define DEFAULT_BYTES(x)  x
#define DEFAULT_MEMORY(x) x
#define DEFAULT_REAL(x)   x
#define DEFAULT_WORD(x)   x
#define DEFAULT_DTYPE(x)  x
#define DEFAULT_TEXT(x)   x
#define DEFAULT_IN(x)     x
#define DEFAULT_LIST(x)   x
#define DEFAULT_RULES(x)  x
/* clang-format on */

tn_options tn_options_default(void)
{
    return (tn_options){
#define CALL_OPTION(name, field, kind, resume, value, ...) .field = DEFAULT_##kind(value),
#define PASS_OPTION                                        CALL_OPTION
#include "../base/options.def"
    };
}
