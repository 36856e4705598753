/* Meshes and cuts: names and sizes that are refused, rank numbers and coordinates, groups, the
 * types of parts and wholes, the text of cuts; random shardings come back as they were printed. */
#include "../shared/test.h"

#include "../../src/ir/ir.h"

static Ctx ctx;
static Arena *a;

static void same(const char *found, const char *expected)
{
    if (!EXPECT(!strcmp(found, expected)))
        printf("  expected: %s\n  found: %s\n", expected, found);
}

typedef struct Job {
    const char *text;
    Mesh *m;
} Job;

static void parse(void *arg)
{
    Job *j = arg;
    j->m = mesh_parse(&ctx, a, j->text);
}

static Mesh *make(const char *text)
{
    Job j = {.text = text};
    EXPECT(ctx_try(&ctx, parse, &j) == TN_OK);
    return j.m;
}

static void refused(const char *text, const char *message)
{
    Job j = {.text = text};
    EXPECT_FAIL(&ctx, parse, &j, message);
    EXPECT(ctx.code == TN_USAGE);
}

static void test_parse(void)
{
    same(mesh_text(a, make("dp=2,fsdp=4")), "dp=2,fsdp=4");
    same(mesh_text(a, make("_x9=1048576,b=2047")), "_x9=1048576,b=2047");
    refused("", "mesh \"\": expected AXIS=SIZE, found \"\"");
    refused("dp=2,", "mesh \"dp=2,\": expected AXIS=SIZE, found \"\"");
    refused("=2", "mesh \"=2\": expected the name of an axis (letters, digits and _), found \"\"");
    refused("2dp=2", "mesh \"2dp=2\": expected the name of an axis (letters, digits and _), "
                     "found \"2dp\"");
    refused("dp=0", "mesh \"dp=0\": expected a size of \"dp\" from 1 to 1048576, found 0");
    refused("dp=1048577", "mesh \"dp=1048577\": expected a size of \"dp\" from 1 to 1048576, "
                          "found 1048577");
    refused("dp=-1", "mesh \"dp=-1\": expected a size of \"dp\" from 1 to 1048576, found \"-1\"");
    refused("dp=2 ,b=3", "mesh \"dp=2 ,b=3\": expected a size of \"dp\" from 1 to 1048576, "
                         "found \"2 \"");
    refused("dp=2,dp=2", "mesh \"dp=2,dp=2\": expected axes of different names, found \"dp\" "
                         "twice");
    refused("a=1,b=1,c=1,d=1,e=1", "mesh \"a=1,b=1,c=1,d=1,e=1\": expected at most 4 axes, found "
                                   "\"e\" after them");
    refused("a=1048576,b=2048", "mesh \"a=1048576,b=2048\": expected less than 2^31 ranks, found "
                                "2147483648");
}

static void test_ranks(void)
{
    Mesh *m = make("dp=2,fsdp=3,tp=4");
    EXPECT(mesh_nranks(m) == 24 && mesh_rank(m) == 0);
    for (int64_t rank = 0; rank < 24; rank++) {
        mesh_set_rank(m, rank);
        EXPECT(m->at[0] == rank / 12 && m->at[1] == rank / 4 % 3 && m->at[2] == rank % 4);
        EXPECT(mesh_rank(m) == rank);
    }
    EXPECT(mesh_axis(m, "tp") == 2 && mesh_axis(m, "t") < 0 && mesh_axis(m, "tpp") < 0);
}

static void test_groups(void)
{
    Mesh *m = make("dp=2,fsdp=3,tp=4");
    int axes[MAX_MESH];
    EXPECT(group_axes(m, "tp,fsdp", axes) == 2 && axes[0] == 2 && axes[1] == 1);
    same(group_name(a, m, 2, axes), "tp,fsdp");
    EXPECT(group_nranks(m, 2, axes) == 12);
    const char *const none[] = {"", "tp,", ",tp", "tp,tp", "tp, fsdp", "0", "fs"};
    for (int i = 0; i < LEN(none); i++)
        EXPECT(group_axes(m, none[i], axes) == -1);
}

static void test_cuts(void)
{
    Mesh *m = make("dp=2,fsdp=5,tp=4,one=1");
    const Cut slices[] = {
        {CUT_SUM, 0, 0}, {CUT_SLICE, 1, 12}, {CUT_SLICE, 1, 3}, {CUT_SLICE, 1, 12}};
    const Cut partials[] = {
        {CUT_MAX, 0, 0}, {CUT_LOGSUMEXP, 0, 0}, {CUT_SUM, 0, 0}, {CUT_MAX, 0, 0}};
    same(cuts_text(a, m, slices), "shard(1: 3, tp, one, fsdp) partial(sum: dp)");
    same(cuts_text(a, m, partials),
         "partial(sum: tp) partial(max: dp, one) partial(logsumexp: fsdp)");
    same(cuts_text(a, m, NULL), "");
    Type t = type_make(F32, 2, (int64_t[]){7, 120});
    Type local = cut_local_type(&t, m, slices), whole = cut_whole_type(&local, m, slices);
    same(type_text(a, &local), "f32[7, 6]");
    EXPECT(type_equal(&t, &whole));
    local = cut_local_type(&t, m, NULL);
    EXPECT(type_equal(&t, &local));
}

/* ---- random shardings ---- */

enum { PORTS = 6 }; /* of a random graph */

static uint64_t state;

static int below(int n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)n);
}

static Mesh *random_mesh(void)
{
    static const char *const names[] = {"dp", "fsdp", "tp", "shard", "sum", "at", "x_1"};
    Mesh *m = NEW(a, Mesh);
    int naxes = 1 + below(MAX_MESH);
    while (m->naxes < naxes)
        mesh_add(a, m, names[below(LEN(names))], 1 + below(4));
    mesh_set_rank(m, below((int)mesh_nranks(m)));
    return m;
}

static void shuffle(int *x, int count)
{
    for (int i = count - 1; i > 0; i--) {
        int j = below(i + 1), y = x[i];
        x[i] = x[j];
        x[j] = y;
    }
}

/* Cuts by the mesh axes in random order, and in *t a type that can have them: each list ends in
 * what it leaves. */
static Cut *random_cuts(const Mesh *m, Type *t)
{
    Cut *cut = NEWN(a, Cut, m->naxes);
    int order[MAX_MESH] = {0, 1, 2, 3};
    int64_t above[TN_RANK], part[TN_RANK];
    *t = (Type){.dtype = below(2) ? F32 : BF16, .rank = below(4)};
    for (int d = 0; d < t->rank; d++)
        above[d] = part[d] = 1;
    shuffle(order, m->naxes);
    for (int k = 0; k < m->naxes; k++) {
        int i = order[k], d = t->rank ? below(t->rank) : 0;
        CutKind kind = (CutKind)below(CUT_LOGSUMEXP + 1);
        if (kind != CUT_SLICE) {
            cut[i].kind = kind;
        } else if (t->rank) {
            int64_t between = below(2) ? 1 : 1 + below(5);
            part[d] *= between;
            cut[i] = (Cut){CUT_SLICE, d, above[d] * between};
            above[d] = cut[i].outer * m->size[i];
        }
    }
    for (int d = 0; d < t->rank; d++)
        t->dim[d] = part[d] * below(5);
    return cut;
}

static Graph *random_graph(void)
{
    Graph *g = graph_new(a, "random");
    g->mesh = random_mesh();
    for (int i = 0; i < PORTS; i++) {
        Type t;
        const Cut *cut = random_cuts(g->mesh, &t);
        Value *v = graph_input(g, "v", t, below(2) ? ROLE_NONE : ROLE_BATCH, NULL);
        graph_output(g, v, ROLE_NONE, NULL);
        g->in[i].cut = below(8) ? cut : NULL;
        g->out[i].cut = below(8) ? cut : NULL;
    }
    return g;
}

static const char *print(const Graph *g)
{
    Buf b = {.a = a};
    graph_print(&b, g);
    return b.text;
}

static bool ports_equal(const Mesh *m, const Cut *x, const Cut *y)
{
    static const Cut whole[MAX_MESH];
    x = x ? x : whole;
    y = y ? y : whole;
    for (int i = 0; i < m->naxes; i++) {
        bool slice = x[i].kind == CUT_SLICE;
        if (x[i].kind != y[i].kind ||
            (slice && (x[i].axis != y[i].axis || x[i].outer != y[i].outer)))
            return false;
    }
    return true;
}

static bool graphs_equal(const Graph *g, const Graph *h)
{
    bool equal = !strcmp(mesh_text(a, g->mesh), mesh_text(a, h->mesh)) &&
                 mesh_rank(g->mesh) == mesh_rank(h->mesh) && graph_hash(g) == graph_hash(h);
    for (int i = 0; i < PORTS; i++)
        equal = equal && ports_equal(g->mesh, g->in[i].cut, h->in[i].cut) &&
                ports_equal(g->mesh, g->out[i].cut, h->out[i].cut);
    return equal;
}

/* Whether every value's type is that of a part of the whole's. */
static bool types_agree(const Graph *g)
{
    bool agree = true;
    for (int i = 0; i < PORTS; i++) {
        Type whole = cut_whole_type(&g->in[i].v->type, g->mesh, g->in[i].cut);
        Type local = cut_local_type(&whole, g->mesh, g->in[i].cut);
        agree = agree && type_equal(&local, &g->in[i].v->type);
    }
    return agree;
}

static void come_back(void *arg)
{
    const Graph *g = arg;
    graph_verify(g);
    const char *text = print(g);
    const Graph *h = graph_parse(a, text, "printed"), *copy = graph_clone(a, g);
    graph_verify(h);
    graph_verify(copy);
    if (!EXPECT(!strcmp(text, print(h)) && graphs_equal(g, h) && graphs_equal(g, copy) &&
                types_agree(h)))
        printf("%s", text);
}

static void test_random(int count)
{
    for (int i = 0; i < count; i++) {
        state = (uint64_t)i;
        if (!EXPECT(ctx_try(&ctx, come_back, random_graph()) == TN_OK))
            printf("graph %d: %s\n", i, ctx.message);
        arena_reset(a);
    }
}

int main(int argc, char **argv)
{
    a = arena_new(&ctx);
    test_parse();
    test_ranks();
    test_groups();
    test_cuts();
    test_random(argc > 1 ? atoi(argv[1]) : 2000);
    arena_free(a);
    return test_report();
}
