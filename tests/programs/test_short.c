/* A step of many equal blocks, and the short step that is planned in its place: what a plan of the
 * short one says of bytes and seconds, the same choice's plan of the whole step has too; for words,
 * places on ladders, and mixtures of two. What is decided by it names nodes of the forward that
 * may have the policy, and the plan that was made to decide is the plan of the step. TN_LONG=1:
 * larger models, and collectives. */
#include "../../src/decide/again.h"
#include "../../src/run/run.h"
#include "../shared/test.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

typedef struct Stepped {
    const char *model, *dtype, *machine, *mesh;
    int64_t batch, seq;
} Stepped;

static const Stepped steps[] = {
    {"gpt2", "f32", "avx512_bf16", NULL, 4, 1024},
    {"gpt2", "f32", "avx512_bf16", "fsdp=2", 4, 1024},
    {"llama3-1b", "bf16", "h100", NULL, 2, 2048},
    {"llama3-8b", "bf16", "h100", "fsdp=16,tp=8", 32, 8192},
    {"llama3-70b", "bf16", "h100", "fsdp=16,tp=8", 16, 4096},
};
enum { FEW = 1 };
#define MOST_GAP  0.1   /* of what is added */
#define MOST_LOST 0.005 /* of a step */

/* A step where decisions are made. */
typedef struct Deciding {
    tn_context *ctx;
    tn_model *model;
    tn_graph *g;
    PassOptions o;
    PassWalk w;
    ChunkAsked chunk;
    DecideTask t;
} Deciding;

static bool decision_begin(Deciding *x, const Stepped *c)
{
    tn_options o = tn_options_default();
    o.dtype = c->dtype;
    o.mesh = c->mesh;
    *x = (Deciding){.ctx = tn_context_new()};
    CHECK(x->ctx);
    if (!EXPECT(!tn_model_open(x->ctx, c->model, &x->model)) ||
        !EXPECT(!tn_model_graph(x->model, c->batch, c->seq, &o, &x->g)))
        return false;
    const Globs off = {0};
    x->o = pass_defaults();
    x->o.dtype = !strcmp(c->dtype, "bf16") ? BF16 : F32;
    x->o.machine = c->machine;
    x->o.mesh = c->mesh;
    pass_target(&x->o, x->g->h.a);
    x->chunk = chunk_asked(x->g->h.a, &off);
    x->w = passes_begin(x->g->g, "default", &x->o);
    x->t = (DecideTask){.to = {.device = x->o.device, .machine = x->o.prices, .overlap = true},
                        .ordered = true,
                        .keeps = true,
                        .fuses = true,
                        .joins = true,
                        .chunk = &x->chunk};
    return true;
}

/* ---- plans ---- */

/* Plans, and those of which the short step says the whole one's bytes, and its seconds but for how
 * they are summed. The others are orders that the search for one finds in one of the two alone, and
 * words that mean other things in every other block. */
typedef struct Compared {
    int n, exact;
} Compared;

static Planned quick_like(Decider *d, const Planned *x)
{
    return x->prefer ? plan_prefer(d, x) : plan_quick(d, x->level, x->word);
}

/* What the whole step needs for a choice of the short step is what that says, or near it. */
static void compare(const Stepped *c, Decider *d, Decider *e, const Planned *x, Compared *all)
{
    enum { MORE = 64, LESS = 10, SEC = 64 }; /* shares of what the short step says */
    const Planned like = again_whole(d, e, x), y = quick_like(d, &like);
    const bool near = y.need <= x->need + x->need / MORE && y.need >= x->need - x->need / LESS &&
                      fabs(y.sec - x->sec) <= x->sec / SEC;
    all->n++;
    all->exact += y.need == x->need && fabs(y.sec - x->sec) <= 1e-6 * y.sec;
    if (!EXPECT(near))
        printf("  %s, %s: short %lld bytes, %.9g s; whole %lld, %.9g s\n", c->model,
               x->word     ? x->word
               : x->weight ? "a mixture"
                           : "a set",
               (long long)x->need, x->sec, (long long)y.need, y.sec);
}

/* The words, and all that the search has planned of the short step for a limit. */
static void test_plans(const Stepped *c)
{
    static const char *const words[] = {"selective", "every=2", "full"};
    Deciding x;
    AgainReport r = {0};
    Compared all = {0};
    int nmixed = 0;
    if (!decision_begin(&x, c) || !EXPECT(passes_until(&x.w, "policies")))
        return;
    r.a = x.g->h.a;
    Decider d = again_new(&x.w, &x.t, &x.o, &r), *e = again_begin(&d) ? again_shorter(&d) : NULL;
    if (EXPECT(e)) {
        const Planned none = plan_quick(e, NULL, NULL);
        Planned full = none;
        compare(c, &d, e, &none, &all);
        for (int i = 0; i < LEN(words); i++) {
            full = plan_quick(e, levels_of_word(e, words[i]), words[i]);
            compare(c, &d, e, &full, &all);
        }
        EXPECT(full.need < none.need);
        x.t.memory = (none.need + full.need) / 2;
        again_search(e);
        for (int i = 0; i < e->r->nfront; i++)
            compare(c, &d, e, &e->r->front[i], &all);
        const Planned mixed = plan_mixed(e, e->r->chosen.level);
        nmixed += mixed.weight && mixed.need <= x.t.memory;
        compare(c, &d, e, &mixed, &all);
    }
    EXPECT(nmixed || c->mesh); /* where words may be faster */
    if (!EXPECT(4 * all.exact >= 3 * all.n))
        printf("  %s: %d of %d plans are exact\n", c->model, all.exact, all.n);
    tn_context_free(x.ctx);
}

/* ---- a peak within a block's backward ---- */

static const char small[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 256, \"hidden_size\": 256, "
    "\"intermediate_size\": 1024, \"num_hidden_layers\": 16, \"num_attention_heads\": 4, "
    "\"max_position_embeddings\": 512, \"tie_word_embeddings\": true}";

/* All but the first block is computed again, so the peak lies in the backward of the next one,
 * where the blocks that it stands for have what they leave for the updates, which is more than what
 * they save. Their bytes must not be counted too low. */
static void test_inner(void)
{
    char path[] = "/tmp/tenon-short-XXXXXX.json";
    const int fd = mkstemps(path, (int)strlen(".json"));
    const Stepped c = {path, "f32", "avx512_bf16", NULL, 8, 256};
    Deciding x;
    AgainReport r = {0};
    CHECK(fd >= 0 && write(fd, small, sizeof small - 1) == sizeof small - 1 && !close(fd));
    if (!decision_begin(&x, &c) || !EXPECT(passes_until(&x.w, "policies")))
        return;
    r.a = x.g->h.a;
    Decider d = again_new(&x.w, &x.t, &x.o, &r), *e = again_begin(&d) ? again_shorter(&d) : NULL;
    if (EXPECT(e)) {
        Level *level = NEWN(e->keep, Level, e->v.n);
        const Planned full = {.level = levels_of_word(e, "full")};
        for (int i = 0; i < e->v.n; i++) {
            const Twin *t = map_find(&e->s->node, e->v.name[i]);
            level[i] = t && !strcmp(t->name[0], e->v.name[i]) ? SAVED : level_at(&full, i);
        }
        const Planned y = plan_quick(e, level, NULL), like = again_whole(&d, e, &y),
                      whole = plan_quick(&d, like.level, NULL);
        if (!EXPECT(whole.need <= y.need + y.need / 64))
            printf("  short %lld bytes, whole %lld\n", (long long)y.need, (long long)whole.need);
    }
    tn_context_free(x.ctx);
    unlink(path);
}

/* ---- decisions ---- */

static bool is_forward(const Graph *g, const char *name)
{
    for (const Node *n = g->first; n; n = n->next)
        if (n->nout && !strcmp(n->out[0]->name, name))
            return n->phase < BACKWARD && !node_aliases(n);
    return false;
}

/* The choice for half of the range is of the forward's nodes, fits, and adds little more than
 * the bound, where there is one; the plan that was made for it is the step's, and is handed on
 * once, for the same limit. */
static void test_decision(const Stepped *c)
{
    Deciding x;
    AgainReport r = {0};
    if (!decision_begin(&x, c) || !EXPECT(passes_until(&x.w, "policies")))
        return;
    r.a = x.g->h.a;
    for (int i = 0; i < 2; i++) {
        x.t.memory = i ? (r.none.need + r.chosen.need) / 2 : NO_MEMORY;
        again_choose(&x.w, &x.t, &x.o, &r);
    }
    PlanFor to = x.t.to, other = to;
    to.room = r.chosen.room;
    to.limit = to.room ? 0 : x.t.memory;
    to.enough = to.room ? x.t.memory : 0;
    other.limit = to.limit + 1;
    EXPECT(r.fits && r.searched && r.chosen.need <= x.t.memory && r.chosen.need > 0);
    for (int i = 0; i < r.nnode; i++)
        EXPECT(is_forward(x.w.g, r.node[i].node));
    const double added = r.chosen.sec - r.none.sec, gap = added - r.bound;
    if (!EXPECT(isnan(r.bound) || gap <= MAX(MOST_GAP * added, MOST_LOST * r.none.sec)))
        printf("  %s: %.9g s are added, at least %.9g\n", c->model, added, r.bound);
    again_apply(&r, x.w.g, &x.o);
    passes_until(&x.w, NULL);
    AgainReport same = r;
    const Plan *made = again_made(&r, x.w.g, &to, true), *p = plan_ordered(r.a, x.w.g, &to);
    if (EXPECT(made) && !EXPECT(plan_hash(made) == plan_hash(p) && plan_least(p) == r.chosen.need &&
                                p->est.step == r.chosen.sec))
        printf("  %s: decided %lld bytes, %.9g s, planned %lld, %.9g\n", c->model,
               (long long)r.chosen.need, r.chosen.sec, (long long)plan_least(p), p->est.step);
    EXPECT(!again_made(&r, x.w.g, &to, true));
    EXPECT(!again_made(&same, x.w.g, &other, true));
    tn_context_free(x.ctx);
}

int main(void)
{
    const bool more = getenv("TN_LONG");
    for (int i = 0; i < (more ? LEN(steps) : FEW); i++) {
        test_plans(&steps[i]);
        test_decision(&steps[i]);
    }
    test_inner();
    return test_report();
}
