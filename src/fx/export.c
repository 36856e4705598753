/* export: the module around a graph's functions: its imports, tables of inputs and outputs, the
 * functions of export.py that it needs, and `load` and `run`. */
#include "export.h"

#include <string.h>

static const char *const library[] = {
#include "export.py.inc"
};

/* ---- functions of export.py ---- */

enum { MOST_HELPERS = 100 };

typedef struct Helper {
    const char *name;
    Buf text;
    bool used;
} Helper;

/* The functions of export.py; returns how many. */
static int split_library(Arena *a, Helper *h)
{
    int count = 0;
    for (int i = 0; i < LEN(library); i++) {
        const char *line = library[i];
        if (!strncmp(line, "def ", 4)) {
            CHECK(count < MOST_HELPERS);
            h[count++] =
                (Helper){.name = arena_printf(a, "%.*s", (int)strcspn(line + 4, "("), line + 4),
                         .text = {.a = a}};
        }
        if (count)
            buf_add(&h[count - 1].text, line);
    }
    return count;
}

/* Marks the functions that the text names, and those that these name. */
static void mark(Helper *h, int count, const char *text)
{
    for (const char *at = strstr(text, "tenon_"); at; at = strstr(at + 1, "tenon_")) {
        size_t len = strspn(at, "abcdefghijklmnopqrstuvwxyz_");
        for (int i = 0; i < count; i++)
            if (!h[i].used && strlen(h[i].name) == len && !strncmp(h[i].name, at, len)) {
                h[i].used = true;
                mark(h, count, h[i].text.text);
            }
    }
}

static void add_helper(Buf *b, const Helper *h)
{
    size_t len = h->text.len;
    while (len && h->text.text[len - 1] == '\n')
        len--;
    buf_addn(b, h->text.text, len);
    buf_add(b, "\n");
}

/* The functions, between those that they need and those that all modules have. */
static void add_functions(Buf *b, const char *functions)
{
    Helper h[MOST_HELPERS];
    int count = split_library(b->a, h);
    mark(h, count, functions);
    for (int i = 0; i < count; i++)
        if (h[i].used) {
            add_helper(b, &h[i]);
            buf_add(b, "\n\n");
        }
    buf_add(b, functions);
    for (int i = 0; i < count; i++)
        if (strncmp(h[i].name, "tenon_", 6) != 0) {
            buf_add(b, "\n\n");
            add_helper(b, &h[i]);
        }
}

/* ---- tables ---- */

static void add_inputs(Buf *b, const Graph *g)
{
    buf_add(b, "# name, role, name of the weight or scalar, dtype, shape\nINPUTS = [\n");
    for (int i = 0; i < g->nin; i++) {
        const Port *p = &g->in[i];
        buf_add(b, "    (");
        export_string(b, p->v->name);
        buf_printf(b, ", '%s', ", role_name(p->role));
        export_string(b, p->name);
        buf_printf(b, ", %s, %s),\n", export_dtype(p->v->type.dtype),
                   export_shape(b->a, &p->v->type));
    }
    buf_add(b, "]\n");
}

/* Names as `tenon run` gives them. */
static void add_outputs(Buf *b, const Graph *g)
{
    buf_add(b, "OUTPUTS = [\n");
    for (int i = 0; i < g->nout; i++) {
        const Port *p = &g->out[i];
        const char *role = role_name(p->role);
        buf_add(b, "    ");
        export_string(b, p->role == ROLE_NONE ? arena_printf(b->a, "out%d", i)
                         : p->name            ? arena_printf(b->a, "%s.%s", role, p->name)
                                              : role);
        buf_add(b, ",\n");
    }
    buf_add(b, "]\n");
}

static void add_mesh(Buf *b, const Mesh *m)
{
    if (!m)
        return;
    buf_add(b, "\n# the ranks that run it, and which of them runs this file; process groups by the "
               "axes they span\nMESH = [");
    for (int i = 0; i < m->naxes; i++)
        buf_printf(b, "%s('%s', %lld)", i ? ", " : "", m->name[i], (long long)m->size[i]);
    buf_add(b, "]\nAT = [");
    for (int i = 0; i < m->naxes; i++)
        buf_printf(b, "%s%lld", i ? ", " : "", (long long)m->at[i]);
    buf_add(b, "]\nGROUPS = {}\n");
}

/* ---- the module ---- */

static const char starts[] =
    "import json\n"
    "from math import ceil, inf, nan, prod\n"
    "\n"
    "import torch\n"
    "\n"
    "aten = torch.ops.aten\n"
    "c10d = torch.ops._c10d_functional\n"
    "DEVICE = torch.device('cpu')\n"
    "SAVED = {'F64': torch.float64, 'F32': torch.float32, 'F16': torch.float16, 'BF16': "
    "torch.bfloat16,\n"
    "         'I64': torch.int64, 'I32': torch.int32, 'U8': torch.uint8, 'BOOL': torch.bool}\n"
    "\n";

const char *fx_export(Arena *a, const Graph *g, const char *version)
{
    Exporter x = {.a = a, .g = g, .bodies = {.a = a}};
    Buf b = {.a = a}, forward = {.a = a};
    export_function(&x, &forward, "forward", g);
    buf_printf(&b,
               "# The graph %s, written by `tenon export fx` (Tenon %s). forward(...) takes the "
               "tensors of INPUTS in\n"
               "# order and returns those of OUTPUTS; run({name: tensor}) does so by name; "
               "load(path, ...)\n"
               "# reads what of INPUTS safetensors files have.\n",
               g->name, version);
    buf_add(&b, starts);
    add_inputs(&b, g);
    add_outputs(&b, g);
    add_mesh(&b, g->mesh);
    buf_add(&b, "\n\n");
    Buf functions = {.a = a};
    buf_add(&functions, x.bodies.len ? x.bodies.text : "");
    buf_add(&functions, forward.text);
    add_functions(&b, functions.text);
    return b.text;
}
