/* The verifier's rules that text cannot break, because the parser or the builder keeps them: each
 * is broken in a graph in memory, and the message must name the node and the rule. tests/ir/bad has
 * the others. */
#include "../shared/test.h"

#include "../../src/ir/ir.h"

static Ctx ctx;

static const char text[] =
    "tenon 1\n"
    "graph g mesh(dp=2, tp=4) at(1, 3) (%x: f32[8, 3] batch shard(0: tp), %w: f32[3, 3] param "
    "\"w\", %s0: f32[3]) {\n"
    "  %a = mm(%x, %w)\n"
    "  %b = _to_copy(%a, dtype=f64)\n"
    "  %c0, %c1 = split(%x, split_sizes=[1, 7]) after=%a\n"
    "  %y, %s = loop(n=2, slice %r: f32[3, 3] = %x axis 0, whole %w: f32[3, 3] = %w,\n"
    "      carry %s: f32[3] = %s0) -> (concat axis 0, carry %s) {\n"
    "    %m = mm(%r, %w)\n"
    "    yield %m, %s\n"
    "  } tail(%r, %w, %s) {\n"
    "    yield %r, %s\n"
    "  }\n"
    "  return metric \"y\" %y, %b\n"
    "}\n";

/* The graph of the text, its nodes, and another graph of the same text. */
typedef struct Subject {
    Graph *g, *other;
    Node *a, *b, *c, *y;
    Region *r;
    Mesh *mesh;
    Cut *cut; /* of the first input */
} Subject;

static Subject make_subject(Arena *arena)
{
    Subject s = {.g = graph_parse(arena, text, "t"), .other = graph_parse(arena, text, "t")};
    s.a = s.g->first;
    s.b = s.a->next;
    s.c = s.b->next;
    s.y = s.c->next;
    s.r = s.y->region;
    s.g->mesh = s.mesh = mesh_clone(arena, s.g->mesh);
    s.g->in[0].cut = s.cut = cuts_clone(arena, s.mesh, s.g->in[0].cut);
    return s;
}

/* clang-format off */
/* name of the broken rule, how it is broken, what the message has */
#define BREAKS(X)                                                                                  \
    X(node_id_range, s->a->id = 99, "mm %a: expected an id of its own below 4, found 99")          \
    X(node_id_negative, s->a->id = -1, "mm %a: expected an id of its own below 4, found -1")       \
    X(node_id_twice, s->b->id = s->a->id, "_to_copy %b: expected an id of its own")                \
    X(list_prev, s->b->prev = NULL, "mm %a: expected a consistent list")                           \
    X(list_last, s->g->last = s->b, "loop %y: expected a consistent list")                         \
    X(phase_range, s->b->phase = NPHASE, "_to_copy %b: expected a phase, a policy and a scope")    \
    X(policy_range, s->b->policy = NPOLICY, "%b: expected a phase, a policy and a scope")          \
    X(scope_absent, s->b->scope = NULL, "%b: expected a phase, a policy and a scope")              \
    X(origin_name, s->b->origin = "a b", "%b: expected an origin of characters [A-Za-z0-9_.]")     \
    X(origin_empty, s->b->origin = "", "%b: expected an origin of characters")                     \
    X(operand_count, s->a->nin = 1, "mm %a: takes 2 operands, found 1")                            \
    X(stream, s->a->stream = 3, "mm %a: expected no stream: the op is not random, found stream 3") \
    X(region_absent, s->y->region = NULL, "loop %y: expected a body, found none")                  \
    X(region_extra, s->a->region = s->r, "mm %a: expected no body, found one")                     \
    X(operand_other, s->b->in[0] = s->other->first->out[0],                                        \
      "%b: operand 0: expected a value defined earlier in the same graph, found %a")               \
    X(operand_absent, s->b->in[0] = NULL, "%b: operand 0: expected a value defined earlier")       \
    X(operand_order, node_move(s->g, s->a, s->c),                                                  \
      "%b: operand 0: expected a value defined earlier in the same graph, found %a")               \
    X(operand_body, s->b->in[0] = s->r->body[MAIN]->first->out[0],                                 \
      "%b: operand 0: expected a value")                                                           \
    X(after_order, s->b->after = &s->c; s->b->nafter = 1,                                          \
      "%b: after: expected nodes that come earlier in the same graph")                             \
    X(after_itself, s->c->after[0] = s->c, "%c0: after: expected nodes that come earlier")         \
    X(attr_absent, s->b->attr = NULL, "_to_copy %b: dtype: expected a value of its kind")          \
    X(attr_dtype, s->b->attr[0].i = NDTYPE, "_to_copy %b: dtype: expected a value of its kind")    \
    X(attr_ints, s->c->attr[0].ints = NULL, "split %c0: split_sizes: expected a value")            \
    X(result_type, s->a->out[0]->type.dim[1] = 4,                                                  \
      "mm %a: result 0: expected f32[8, 3] by inference, found f32[8, 4]")                         \
    X(result_count, s->c->nout = 1, "split %c0: expected 2 results by inference")                  \
    X(result_none, s->a->nout = 0, "mm: expected 1 results by inference (at least 1), found 0")    \
    X(result_def, s->c->out[1]->def = s->a, "split %c0: result 1: expected def and index")         \
    X(result_index, s->c->out[1]->index = 0, "split %c0: result 1: expected def and index")        \
    X(value_id_range, s->a->out[0]->id = 99, "%a: result 0: expected a consistent value, found an id") \
    X(value_id_twice, s->a->out[0]->id = 0, "found an id that another value has")                  \
    X(value_name, s->a->out[0]->name = "a b", "found a name of other characters")                  \
    X(value_name_twice, s->a->out[0]->name = "b", "found a name that is not its own")              \
    X(value_renamed, s->a->out[0]->name = "aa", "found a name that is not its own")                \
    X(names_stale, map_put(&s->g->names, "old", s->a->out[0]),                                     \
      "expected a table of the graph's names alone, found")                                        \
    X(input_index, s->g->in[1].v->index = 0, "param %w: expected a consistent input, found another def") \
    X(input_def, s->g->in[1].v->def = s->a, "param %w: expected a consistent input")               \
    X(input_size, s->g->in[1].v->type.dim[0] = -1, "param %w: expected a consistent input, found a neg") \
    X(input_rank, s->g->in[1].v->type.rank = 9, "found a dtype or rank out of range")              \
    X(input_huge, s->g->in[2].v->type.dim[0] = INT64_MAX, "found more than 2^56 bytes")            \
    X(input_role, s->g->in[0].role = ROLE_LOSS, "loss %x: expected a role of an input")            \
    X(output_none, s->g->nout = 0, "graph g: expected at least one output, found none")            \
    X(output_other, s->g->out[0].v = s->other->out[0].v,                                           \
      "expected outputs that are values of the graph, found another at position 0")                \
    X(output_role, s->g->out[0].role = ROLE_PARAM, "param %y: expected a role of an output")       \
    X(output_name, s->g->out[0].name = NULL, "metric %y: expected a name of the role, found none") \
    X(output_no_name, s->g->out[1].name = "b", "%b: expected no name of the role, found b")        \
    X(body_parent, s->r->body[MAIN]->parent = s->other,                                            \
      "loop %y: expected a body whose parent is this")                                             \
    X(body_absent, s->r->body[MAIN] = NULL, "loop %y: expected a body whose parent is this graph") \
    X(body_inside, s->r->body[MAIN]->first->in[0] = s->a->out[0],                                  \
      "mm %m: operand 0: expected a value defined earlier in the same graph, found %a")            \
    X(body_input, graph_input(s->r->body[MAIN], "z", s->g->in[0].v->type, ROLE_NONE, NULL),        \
      "loop %y: input of the body 3: expected one port of its own, found 0")                       \
    X(tail_input, s->r->in[0].at[TAIL] = 1, "loop %y: input of the tail 0: expected one port")     \
    X(body_output, graph_output(s->r->body[MAIN], s->r->body[MAIN]->in[0].v, ROLE_NONE, NULL),     \
      "loop %y: output of the body 2: expected one port of its own, found 0")                      \
    X(port_operand, s->r->in[1].arg = 0, "loop %y: operand 1: expected one port of its own, found 0") \
    X(port_operand_range, s->r->in[1].arg = 7, "loop %y: operand 1: expected one port")            \
    X(port_body, s->r->in[1].at[MAIN] = 9, "loop %y: input of the body 1: expected one port")      \
    X(iterations, s->r->n = 0, "loop %y: n: expected at least 1, found 0")                         \
    X(depth, s->g->parent = graph_body(graph_body(graph_body(s->other))); s->g->mesh = NULL;       \
      s->g->in[0].cut = NULL,                                                                      \
      "loop %y: expected loops at most 4 deep")                                                    \
    X(mesh_none, s->mesh->naxes = 0, "graph g: expected a mesh with an axis, found none")          \
    X(mesh_name, s->mesh->name[1] = "dp", "graph g: expected axes of different names, found \"dp\"") \
    X(mesh_size, s->mesh->size[1] = 0, "graph g: expected a size of \"tp\" from 1 to 1048576")     \
    X(mesh_at, s->mesh->at[0] = 2, "graph g: expected a coordinate of dp from 0 to 1, found 2")    \
    X(mesh_body, s->r->body[MAIN]->mesh = s->mesh, "expected a body without a mesh and shardings") \
    X(cut_body_in, s->r->body[TAIL]->in[0].cut = s->cut, "expected a body without a mesh and")     \
    X(cut_body_out, s->r->body[MAIN]->out[1].cut = s->cut, "expected a body without a mesh and")   \
    X(cut_without_mesh, s->g->mesh = NULL, "batch %x: expected no sharding, as the graph has no mesh") \
    X(cut_kind, s->cut[0].kind = CUT_LOGSUMEXP + 1, "batch %x: expected a kind of cut by dp")      \
    X(cut_axis, s->cut[1].axis = -1, "%x: expected a shard of one of 2 axes by tp, found axis -1") \
    X(cut_outer, s->cut[1].outer = 0, "%x: expected 1 or more units above the cut by tp, found 0") \
    X(cut_huge, s->cut[1].outer = INT64_MAX, "%x: expected parts of axis 0 that are at most 2^56") \
    X(cut_across, s->cut[0] = ((Cut){CUT_SLICE, 0, 2}),                                            \
      "%x: expected nested cuts of axis 0, found that of dp across another")
/* clang-format on */

static void verify(void *g)
{
    graph_verify(g);
}

#define X(name, action, message)         \
    static void break_##name(Subject *s) \
    {                                    \
        action;                          \
    }
BREAKS(X)
#undef X

static const struct {
    void (*action)(Subject *s);
    const char *message;
} breaks[] = {
#define X(name, action, message) {break_##name, message},
    BREAKS(X)
#undef X
};

int main(void)
{
    for (int i = 0; i < LEN(breaks); i++) {
        Arena *a = arena_new(&ctx);
        Subject s = make_subject(a);
        EXPECT(ctx_try(&ctx, verify, s.g) == TN_OK);
        breaks[i].action(&s);
        EXPECT_FAIL(&ctx, verify, s.g, breaks[i].message);
        arena_free(a);
    }
    return test_report();
}
