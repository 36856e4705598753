/* export_cases OUT EVERY [OP...]: lines of tests/op/OP.case, each EVERYth, as modules of PyTorch
 * with their operands and what the op's reference makes of them: OUT/OP.txt has the modules, each
 * after a line "### LINE", OUT/OP.safetensors the tensors LINE.NAME. tests/python/export_ops.py
 * runs them. */
#include "../../src/fx/export.h"
#include "../../src/io/io.h"
#include "../shared/case.h"
#include "../shared/interp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TENSORS = 20000 };

typedef struct Cases {
    Arena *a;
    const char *folder;
    const Op *op;
    int every;
    Buf text;
    int count;
    TensorOut *tensor;
} Cases;

static void keep(Cases *x, const char *name, const Tensor *t)
{
    Tensor copy = tensor_copy(x->a, t, t->dtype);
    CHECK(x->count < MOST_TENSORS);
    x->tensor[x->count++] =
        (TensorOut){name, type_make(copy.dtype, copy.rank, copy.dim), copy.data};
}

static void add_case(Cases *x, const Case *c)
{
    Graph *g = graph_new(x->a, "case");
    Build b = {.g = g};
    Node *n = case_emit(&b, c);
    Tensor *in = NEWN(x->a, Tensor, n->nin), *out = NEWN(x->a, Tensor, n->nout);
    for (int i = 0; i < n->nin; i++) {
        char *memory;
        int64_t span;
        Tensor t = case_operand(x->a, c, i, 1, &memory, &span);
        in[i] = tensor_copy(x->a, &t, t.dtype);
        keep(x, arena_printf(x->a, "%d.%s", c->line, n->in[i]->name), &in[i]);
    }
    interp_node(x->a, g, n, in, out);
    for (int k = 0; k < n->nout; k++) {
        graph_output(g, n->out[k], ROLE_NONE, NULL);
        keep(x, arena_printf(x->a, "%d.out%d", c->line, k), &out[k]);
    }
    buf_printf(&x->text, "### %d\n%s", c->line, fx_export(x->a, g, "0"));
}

static void add_op(void *arg)
{
    Cases *x = arg;
    int count;
    const Case *c =
        case_read(x->a, x->op, arena_printf(x->a, "tests/op/%s.case", x->op->name), &count);
    for (int i = 0; i < count; i++)
        if (!c[i].error && !c[i].runerror && i % x->every == 0)
            add_case(x, &c[i]);
    FILE *f = fopen(arena_printf(x->a, "%s/%s.txt", x->folder, x->op->name), "w");
    CHECK(f);
    fputs(x->text.len ? x->text.text : "", f);
    fclose(f);
    tensors_write(arena_ctx(x->a), arena_printf(x->a, "%s/%s.safetensors", x->folder, x->op->name),
                  x->count, x->tensor);
}

/* Ops that one rank and no other's code can run. */
static bool is_alone(const Op *op)
{
    return op->class != CLASS_COLLECTIVE && op->region == NO_REGION &&
           strcmp(op->name, "opaque") != 0;
}

static bool among(const Op *op, int argc, char **argv)
{
    for (int i = 3; i < argc; i++)
        if (!strcmp(argv[i], op->name))
            return true;
    return argc <= 3;
}

int main(int argc, char **argv)
{
    int failed = 0;
    for (int i = 0; argc > 2 && i < op_count; i++) {
        Ctx ctx = {0};
        Arena *a = arena_new(&ctx);
        Cases x = {.a = a, .folder = argv[1], .op = &op_table[i], .every = atoi(argv[2])};
        if (!is_alone(x.op) || !among(x.op, argc, argv))
            continue;
        x.text.a = a;
        x.tensor = NEWN(a, TensorOut, MOST_TENSORS);
        if (ctx_try(&ctx, add_op, &x)) {
            printf("%s: %s\n", x.op->name, ctx.message);
            failed++;
        }
        arena_free(a);
    }
    return argc > 2 ? failed > 0 : 2;
}
