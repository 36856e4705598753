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
    const char *name; /* with its "(" */
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

static void add_helpers(Buf *b, const char *functions)
{
    Helper h[MOST_HELPERS];
    int count = split_library(b->a, h);
    mark(h, count, functions);
    for (int i = 0; i < count; i++)
        if (h[i].used) {
            size_t len = h[i].text.len;
            while (len && h[i].text.text[len - 1] == '\n')
                len--;
            buf_addn(b, h[i].text.text, len);
            buf_add(b, "\n\n\n");
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

static const char ends[] =
    "\n\n"
    "def load(*paths):\n"
    "    \"\"\"The inputs that safetensors files have, under their own names or those of "
    "weights.\"\"\"\n"
    "    tensors = {}\n"
    "    for path in paths:\n"
    "        with open(path, 'rb') as f:\n"
    "            head = json.loads(f.read(int.from_bytes(f.read(8), 'little')))\n"
    "            data = bytearray(f.read())\n"
    "        for name, _, weight, dtype, shape in INPUTS:\n"
    "            entry = head.get(name) or head.get(weight)\n"
    "            if entry is None:\n"
    "                continue\n"
    "            if entry['shape'] != shape:\n"
    "                raise ValueError(f\"{path}: {name}: expected the shape {shape}, found "
    "{entry['shape']}\")\n"
    "            begin, end = entry['data_offsets']\n"
    "            x = torch.frombuffer(data[begin:end] or bytearray(8), "
    "dtype=SAVED[entry['dtype']])\n"
    "            tensors[name] = x[: prod(shape)].reshape(shape).to(device=DEVICE, dtype=dtype)\n"
    "    return tensors\n"
    "\n\n"
    "def run(tensors):\n"
    "    \"\"\"The results by name, of inputs by name.\"\"\"\n"
    "    missing = [name for name, *_ in INPUTS if name not in tensors]\n"
    "    if missing:\n"
    "        raise KeyError(f'inputs are missing: {missing}')\n"
    "    return dict(zip(OUTPUTS, forward(*(tensors[name] for name, *_ in INPUTS))))\n";

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
    if (x.bodies.len)
        buf_addn(&functions, x.bodies.text, x.bodies.len);
    buf_addn(&functions, forward.text, forward.len);
    add_helpers(&b, functions.text);
    buf_addn(&b, functions.text, functions.len);
    buf_add(&b, ends);
    return b.text;
}
