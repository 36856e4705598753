/* What plans, explanations, JSON and pages say of chunking, by a report filled by hand: regions
 * that were taken, several layers in one line, what was not taken and why. */
#include "../../src/api/api.h"
#include "../shared/test.h"

#include <jansson.h>

static tn_context *ctx;

/* Twelve layers of which four are taken, a head, and what cannot be cut. */
enum { NLAYER = 12, TAKEN = 4, NCANDIDATE = NLAYER + 5 };
static ChunkCandidate candidate[NCANDIDATE];

static ChunkCandidate layer(int i)
{
    static char value[NLAYER][20], scope[NLAYER][40];
    snprintf(value[i], sizeof *value, "gelu_%d", i);
    snprintf(scope[i], sizeof *scope, "layers.%d.mlp", i);
    return (ChunkCandidate){
        .region = {.value = value[i], .cut = {CUT_SLICE, 1, 4}, .slices = i < TAKEN ? 2 : 0},
        .scope = scope[i],
        .op = "gelu",
        .group = 1,
        .units = 7,
        .nbytes = i == 1 ? 0 : 3 << 20, /* at the peak */
        .made.nbytes = i == 1 ? 0 : 2 << 20,
        .nnode = 9,
        .scopes = "layers.0.mlp",
        .bits = true,
        .made.slices = i < TAKEN ? 2 : 0,
        .made.sec = i < TAKEN ? 0.01 : 0,
        .made.reason = i < TAKEN ? "reaches the limit" : "not needed"};
}

static void fill(ChunkReport *r)
{
    for (int i = 0; i < NLAYER; i++) /* not in the order of layers */
        candidate[i + 1] = layer((i * 5 + 2) % NLAYER);
    candidate[0] =
        (ChunkCandidate){.region = {.value = "logits", .cut = {CUT_SLICE, 0, 1}, .slices = 8},
                         .scope = "lm_head",
                         .op = "mm",
                         .group = 0,
                         .units = 4096,
                         .nbytes = 823132160,
                         .made.nbytes = 102891520,
                         .nnode = 14,
                         .scopes = "lm_head, loss",
                         .made.slices = 8,
                         .made.peak = 2000000000,
                         .made.sec = 0.02,
                         .made.reason = "the knee of the curve"};
    candidate[NCANDIDATE - 2] = (ChunkCandidate){
        .region = {.value = "probabilities", .cut = {CUT_SLICE, 2, 1}, .slices = 4},
        .scope = "",
        .op = "amax",
        .group = 2,
        .units = 64,
        .nbytes = 1000,
        .why = "a maximum is not linear: <amax>"};
    candidate[NCANDIDATE - 1] =
        (ChunkCandidate){.region = {.value = "mask", .cut = {CUT_SLICE, 0, 1}},
                         .scope = "attn",
                         .op = "where",
                         .group = 3,
                         .units = 16,
                         .nnode = 3,
                         .scopes = "attn",
                         .nbytes = 500,
                         .made.peak = 77,
                         .made.sec = -0.001};
    candidate[NLAYER + 1] = (ChunkCandidate){
        .region = {.value = "x", .cut = {CUT_SLICE, 0, 1}, .inner = 256, .all = true, .slices = 3},
        .scope = "wte",
        .op = "embedding",
        .group = 4,
        .units = 4,
        .nbytes = 4000,
        .nnode = 472,
        .loops = 2,
        .scopes = "wte, layers.0.mlp, h.0, layers.2, layers.10, layers.1.a, loss",
        .made.slices = 2};
    candidate[NLAYER + 2] =
        (ChunkCandidate){.region = {.value = "idle", .cut = {CUT_SLICE, 1, 1}, .slices = 2},
                         .scope = "",
                         .op = "mul",
                         .group = 5,
                         .units = 4,
                         .scopes = "",
                         .made.slices = 2};
    r->candidate = candidate;
    r->ncandidate = NCANDIDATE;
}

static tn_plan *plan_of(tn_graph **g)
{
    static const char text[] =
        "tenon 1\ngraph g(%a: f32[4]) { %y: f32[4] = neg(%a) forward return %y }";
    tn_options o = tn_options_default();
    tn_plan *p = NULL;
    CHECK(!tn_graph_parse(ctx, text, "text", g) && !tn_plan_new(*g, &o, 0, &p));
    return p;
}

static void has(const char *text, const char *part)
{
    if (!test_note(strstr(text, part), __FILE__, __LINE__, part))
        printf("  in: %s\n", text);
}

static void check_text(tn_plan *p)
{
    const char *text = "";
    p->p->est.step = 0.26; /* 0.2 without what slices add */
    CHECK(!tn_plan_text(p, 0, &text));
    has(text, "\nchunk: lm_head, loss (%logits): 8 slices of 512 rows, 785.00 MiB -> 98.12 MiB at "
              "the peak, "
              "+10.0 % time; "
              "bits may differ from the whole's\n");
    has(text,
        "\nchunk: layers.0-3.mlp (%gelu_2 and 3 alike): 2 slices of 4 along axis 1 within 4, 9.00 "
        "MiB -> 6.00 MiB at the peak, +20.0 % time; same bits as the whole\n");
    has(text, "\nchunk: wte, layers.0-2,10, h.0, loss (%x): 2 slices of 512 rows, 0.00 MiB -> 0.00 "
              "MiB at the peak; "
              "bits may differ from the whole's\n");
    has(text, "\nchunk: (%idle): 2 slices of 2 along axis 1, nothing of it at the peak; ");
    EXPECT(!strstr(text, "probabilities") && !strstr(text, "layers.4"));
}

static void check_explanation(tn_plan *p)
{
    const char *text = "";
    CHECK(!tn_plan_explain(p, &text));
    has(text,
        "chunk        823132160 bytes      20 ms  %logits @lm_head::mm  axis 0, 4096 units: a "
        "region of 14 nodes in lm_head, loss; 8 slices asked, 8 made, 102891520 bytes with them; "
        "peak with it 2000000000 bytes; bits may differ from the whole's; taken: the knee of the "
        "curve\n");
    has(text,
        "chunk          9437184 bytes      40 ms  %gelu_2 @layers.0-3.mlp::gelu (4 alike)  axis 1 "
        "within 4, 7 units: a region of 9 nodes");
    has(text,
        "unchunked     25165824 bytes          -  %gelu_7 @layers.4-11.mlp::gelu (8 alike)  axis 1 "
        "within 4, 7 units: a region of 9 nodes in layers.0.mlp; same bits as the whole; not "
        "taken: not needed\n");
    has(text,
        "unchunked         1000 bytes          -  %probabilities (amax)  axis 2, 64 units: no "
        "region: a maximum is not linear: <amax>\n");
    has(text,
        "unchunked          500 bytes      -1 ms  %mask @attn::where  axis 0, 16 units: a region "
        "of "
        "3 nodes in attn; peak with it 77 bytes; bits may differ from the whole's; not taken: not "
        "asked for\n");
}

static const char *string(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "(none)";
}

static int64_t integer(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

static void check_candidates(const json_t *list)
{
    const json_t *head = json_array_get(list, 0), *none = json_array_get(list, NCANDIDATE - 2);
    EXPECT(json_array_size(list) == NCANDIDATE);
    EXPECT(!strcmp(string(head, "value"), "logits") && !strcmp(string(head, "op"), "mm"));
    EXPECT(integer(head, "units") == 4096 && integer(head, "axis") == 0 &&
           integer(head, "outer") == 1);
    EXPECT(integer(head, "bytes_at_peak") == 823132160 &&
           integer(head, "bytes_with_slices") == 102891520);
    EXPECT(integer(head, "slices_asked") == 8 && integer(head, "slices_made") == 8);
    EXPECT(integer(head, "nodes") == 14 && integer(head, "peak_bytes") == 2000000000);
    EXPECT(json_is_false(json_object_get(head, "same_bits")) &&
           json_is_true(json_object_get(head, "taken")));
    EXPECT(json_real_value(json_object_get(head, "added_sec")) == 0.02);
    EXPECT(!strcmp(string(head, "scopes"), "lm_head, loss"));
    const json_t *rows = json_array_get(list, NLAYER + 1);
    EXPECT(integer(rows, "unit_elements") == 256 && integer(rows, "loops") == 2 &&
           json_is_true(json_object_get(rows, "all_reached")));
    EXPECT(integer(rows, "bytes_with_slices") == 2000 && integer(rows, "slices_asked") == 3);
    EXPECT(!strcmp(string(none, "reason"), "a maximum is not linear: <amax>"));
    EXPECT(json_is_null(json_object_get(none, "nodes")) &&
           json_is_null(json_object_get(none, "same_bits")) &&
           json_is_null(json_object_get(none, "added_sec")) &&
           json_is_null(json_object_get(none, "peak_bytes")));
}

/* Those that were asked for, or taken. */
static void check_decisions(const json_t *list)
{
    const json_t *head = json_array_get(list, 0), *none = json_array_get(list, TAKEN + 3);
    EXPECT(json_array_size(list) == TAKEN + 4);
    EXPECT(!strcmp(string(head, "kind"), "chunk") && !strcmp(string(head, "node"), "logits"));
    EXPECT(!strcmp(string(head, "scope"), "lm_head") &&
           !strcmp(string(head, "policy"), "slices=8"));
    EXPECT(!strcmp(string(head, "reason"), "the knee of the curve"));
    EXPECT(json_is_true(json_object_get(head, "honoured")) && integer(head, "bytes") == 823132160);
    EXPECT(json_is_false(json_object_get(none, "honoured")));
}

static void check_json(tn_plan *p)
{
    const char *text = "";
    CHECK(!tn_plan_json(p, 1, &text));
    json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    check_candidates(json_object_get(o, "chunk_candidates"));
    check_decisions(json_object_get(o, "decisions"));
    json_decref(o);
}

static void check_page(tn_plan *p)
{
    const char *text = "";
    CHECK(!tn_plan_page(&p, NULL, 1, "g", "tenon", &text));
    has(text, "<h2>Slices</h2>");
    has(text, "at the peak, bytes</th>");
    has(text, "added time, ms</th>");
    has(text, "<th scope=\"row\">logits</th><td>lm_head::mm</td><td class=\"number\">1</td><td "
              "class=\"number\">823,132,160</td><td class=\"number\">102,891,520</td><td "
              "class=\"number\">8</td><td class=\"number\">8</td><td "
              "class=\"number\">20.000</td><td class=\"number\">2,000,000,000</td><td>may "
              "differ</td><td>taken: the knee of the curve</td><td>0</td><td "
              "class=\"number\">4,096</td><td class=\"number\">14</td><td>lm_head, "
              "loss</td></tr>");
    has(text, "<td>layers.4-11.mlp::gelu</td><td class=\"number\">8</td>");
    has(text, "no region: a maximum is not linear: &lt;amax&gt;");
}

/* A plan for which nothing was looked at says nothing. */
static void check_none(tn_plan *p)
{
    const char *text = "";
    CHECK(!tn_plan_text(p, 0, &text));
    EXPECT(!strstr(text, "chunk"));
    CHECK(!tn_plan_explain(p, &text));
    EXPECT(!*text);
    CHECK(!tn_plan_json(p, 1, &text));
    has(text, "\"chunk_candidates\": []");
    CHECK(!tn_plan_page(&p, NULL, 1, "g", "tenon", &text));
    EXPECT(!strstr(text, "<h2>Slices</h2>"));
}

int main(void)
{
    tn_graph *g;
    ctx = tn_context_new();
    tn_plan *p = plan_of(&g);
    check_none(p);
    fill(&g->chunk);
    check_text(p);
    check_explanation(p);
    check_json(p);
    check_page(p);
    tn_context_free(ctx);
    return test_report();
}
