/* Meshes and cuts: names and sizes that are refused, rank numbers and coordinates, groups, the
 * types of parts and wholes, the text of cuts. */
#include "test.h"

#include "../src/ir/ir.h"

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

int main(void)
{
    a = arena_new(&ctx);
    test_parse();
    test_ranks();
    test_groups();
    test_cuts();
    arena_free(a);
    return test_report();
}
