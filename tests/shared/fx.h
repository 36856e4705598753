/* fx: what tests of the importer of PyTorch's graphs share. */
#ifndef TENON_TEST_FX_H
#define TENON_TEST_FX_H

#include "../../src/fx/fx.h"
#include "test.h"

typedef struct Input {
    Arena *a;
    const char *text;
    FxOptions o;
    const char *names[8];
    Type types[8];
    Graph *g;
    const char *summary, *printed;
} Input;

static inline void import(void *arg)
{
    Input *in = arg;
    in->g = fx_import(in->a, in->text, "test.fx", &in->o, &in->summary);
    Buf b = {.a = in->a};
    graph_print(&b, in->g);
    in->printed = b.text;
}

/* x: f32[2, 4], y: f32[4], i: i64[3], s: f32[] */
static inline Input input(Arena *a, const char *text)
{
    Input in = {.a = a, .text = text};
    static const struct Known {
        const char *name;
        Type t;
    } known[] = {
        {"x", {F32, 2, {2, 4}}}, {"y", {F32, 1, {4}}}, {"i", {I64, 1, {3}}}, {"s", {F32, 0, {0}}}};
    for (int k = 0; k < LEN(known); k++) {
        in.names[k] = known[k].name;
        in.types[k] = known[k].t;
    }
    in.o.ninput = LEN(known);
    in.o.origin = "the test";
    return in;
}

static inline void point(Input *in)
{
    in->o.name = in->names;
    in->o.type = in->types;
}

#define HEAD "def forward(self, x, y, i, s):\n"

#endif
