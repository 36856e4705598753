/* option: the texts of --chunk. One of them may ask something of the whole graph (off, auto, N);
 * any number of PATTERN=N stand beside it. */
#include "chunk.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_SLICES = 1000000000 };

_Noreturn static void refuse(Arena *a, const char *text, const char *why)
{
    fail(
        arena_ctx(a), TN_USAGE,
        "chunk: expected off, auto, N or PATTERN=N (N: slices, from 1 to %d), found \"%.300s\"%s%s",
        MOST_SLICES, text, *why ? ": " : "", why);
}

/* The number of slices that s says; 0: it says none. */
static int64_t parse_slices(const char *s)
{
    size_t n = strlen(s);
    int64_t x = n && n < 11 && strspn(s, "0123456789") == n ? atoll(s) : 0;
    return x <= MOST_SLICES ? x : 0;
}

static ChunkPattern parse_pattern(Arena *a, const char *text)
{
    const char *equals = strrchr(text, '=');
    if (!equals)
        refuse(a, text, "");
    ChunkPattern p = {.pattern = arena_strndup(a, text, (size_t)(equals - text)),
                      .slices = parse_slices(equals + 1),
                      .text = text};
    size_t n = strlen(p.pattern);
    if (!n)
        refuse(a, text, "no pattern");
    if (n >= 2 && !strcmp(p.pattern + n - 2, "::"))
        refuse(a, text, "no op behind ::");
    if (!p.slices)
        refuse(a, text, "no such number");
    return p;
}

/* Reads what a text asks of the whole graph; false: it is a pattern. */
static bool parse_mode(const char *text, ChunkMode *mode, int64_t *slices)
{
    *slices = parse_slices(text);
    *mode = *slices ? CHUNK_N : !strcmp(text, "auto") ? CHUNK_AUTO : CHUNK_OFF;
    return *mode != CHUNK_OFF || !strcmp(text, "off");
}

ChunkAsked chunk_asked(Arena *a, const Globs *texts)
{
    ChunkAsked x = {.pattern = NEWN(a, ChunkPattern, texts->count)};
    const char *whole = NULL;
    for (int i = 0; i < texts->count; i++) {
        const char *text = texts->pattern[i];
        ChunkMode mode;
        int64_t slices;
        if (!parse_mode(text, &mode, &slices)) {
            x.pattern[x.npattern++] = parse_pattern(a, text);
            continue;
        }
        if (whole)
            fail(arena_ctx(a), TN_USAGE,
                 "chunk: expected one of off, auto and N, found \"%.100s\" and \"%.100s\"", whole,
                 text);
        whole = text;
        x.mode = mode;
        x.slices = slices;
    }
    return x;
}

bool chunk_narrow(Ctx *ctx, const char *accumulate)
{
    bool same = accumulate && !strcmp(accumulate, "same");
    if (accumulate && !same && strcmp(accumulate, "f32") != 0)
        fail(ctx, TN_USAGE, "chunk-accumulate: expected f32 or same, found \"%.50s\"", accumulate);
    return same;
}
