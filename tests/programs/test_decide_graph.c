/* Decisions for a graph that is no model's are made in the order in which it is planned.
 * There %c alone is the peak, but as the text has it %a and %b together are: slices of %a lower
 * nothing. */
#include "../../include/tenon.h"
#include "../shared/test.h"

static const char *const text = "tenon 1\n"
                                "graph g(%x: f32[64, 64] batch, %w: f32[64, 4096] param \"w\", %v: "
                                "f32[64, 6144] param \"v\") {\n"
                                "  %y: f32[64, 64] = mul(%x, %x)\n"
                                "  %a: f32[64, 4096] = mm(%x, %w)\n"
                                "  %b: f32[64, 4096] = mm(%y, %w)\n"
                                "  %sa: f32[] = sum(%a)\n"
                                "  %sb: f32[] = sum(%b)\n"
                                "  %c: f32[64, 6144] = mm(%x, %v)\n"
                                "  %sc: f32[] = sum(%c)\n"
                                "  %ab: f32[] = add(%sa, %sb)\n"
                                "  %abc: f32[] = add(%ab, %sc)\n"
                                "  return loss %abc\n"
                                "}\n";

static tn_context *ctx;

/* The bytes of the graph's plan with so many slices. */
static int64_t peak_of(tn_graph *g, const char *slices)
{
    tn_options o = tn_options_default();
    tn_task t = {.nparts = 1,
                 .part = {{.kind = TN_PART_GRAPH, .graph = g, .passes = "chunk,fuse"}}};
    tn_compiled c;
    int64_t peak = 0;
    o.chunk = &slices;
    o.nchunk = 1;
    if (EXPECT(tn_compile(ctx, &t, &o, &c) == TN_CODE_OK)) {
        peak = c.setting.nbytes;
        tn_compiled_free(&c);
    }
    return peak;
}

int main(void)
{
    tn_graph *g;
    ctx = tn_context_new();
    if (EXPECT(tn_graph_parse(ctx, text, "ordered", &g) == TN_CODE_OK)) {
        EXPECT(peak_of(g, "off") - peak_of(g, "2") > 256 << 10);
        tn_graph_free(g);
    }
    tn_context_free(ctx);
    return test_report();
}
