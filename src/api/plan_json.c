/* Plans as JSON: one, and two with what they differ by. */
#include "api.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *decision_name(const Decision *x)
{
    return x->offload ? "offload" : x->recompute ? "recompute" : "save";
}

/* Objects belong to one that is dropped with the arena, as soon as they exist. */
static void drop_json(void *slot)
{
    json_decref(*(json_t **)slot);
}

static json_t *new_object(Arena *a)
{
    json_t **slot = NEW(a, json_t *);
    arena_defer(a, drop_json, slot);
    return *slot = json_object();
}

static json_t *put(Arena *a, json_t *o, const char *name, json_t *value)
{
    if (json_object_set_new(o, name, value))
        fail(arena_ctx(a), TN_FAIL, "out of memory");
    return value;
}

/* A string; null where the text is not UTF-8, which graphs need not be. */
static json_t *text_json(const char *text)
{
    json_error_t e;
    json_t *t = json_pack_ex(&e, 0, "s", text);
    return t || json_error_code(&e) != json_error_invalid_utf8 ? t : json_null();
}

static void count_ops(Arena *a, json_t *counts, const Graph *g)
{
    for (const Node *n = g->first; n; n = n->next) {
        json_t *old = json_object_get(counts, n->op->name);
        put(a, counts, n->op->name, json_integer(1 + (old ? json_integer_value(old) : 0)));
        EACH_BODY(b, n)
            count_ops(a, counts, n->region->body[b]);
    }
}

static void fill_categories(Arena *a, json_t *o, const Plan *p)
{
    for (int c = 0; c < NCATEGORY; c++)
        put(a, o, category_name((Category)c), json_integer(p->by_category[c]));
}

static void append(Arena *a, json_t *list, json_t *value)
{
    if (json_array_append_new(list, value))
        fail(arena_ctx(a), TN_FAIL, "out of memory");
}

/* A new object at the end of a list. */
static json_t *put_last(Arena *a, json_t *list)
{
    append(a, list, json_object());
    return json_array_get(list, json_array_size(list) - 1);
}

static void fill_groups(Arena *a, json_t *list, const Plan *p)
{
    ParamGroup *group = NULL;
    int count = plan_groups(a, p, &group);
    for (int i = 0; i < count; i++) {
        const ParamGroup *x = &group[i];
        append(a, list,
               json_pack("{s:o, s:o, s:i, s:I}", "optimizer",
                         x->op ? json_string(x->op->name) : json_null(), "weight_decay",
                         x->op ? json_real(x->decay) : json_null(), "tensors", x->ntensor, "values",
                         (json_int_t)x->nelem));
    }
}

static void fill_scopes(Arena *a, json_t *list, const Breakdown *x)
{
    for (int i = 0; i < x->nrow; i++) {
        const ScopeBytes *y = &x->row[i];
        append(a, list,
               json_pack("{s:o, s:i, s:I, s:I, s:I}", "scope", text_json(scope_title(a, y)),
                         "count", y->count, "bytes_at_peak", (json_int_t)y->peak, "bytes_saved",
                         (json_int_t)y->saved, "bytes_recomputed", (json_int_t)y->recomputed));
    }
}

static int by_size(const void *s, const void *t)
{
    const Storage *x = *(const Storage *const *)s, *y = *(const Storage *const *)t;
    return x->nbytes != y->nbytes ? (x->nbytes < y->nbytes ? 1 : -1) : x->start - y->start;
}

/* The storages that hold the peak, largest first. */
static void fill_peak_values(Arena *a, json_t *list, const Plan *p)
{
    const Storage **s = NEWN(a, const Storage *, p->nstorage);
    int n = 0;
    for (int i = 0; i < p->nstorage; i++)
        if (p->storage[i].space == SPACE_MAIN &&
            storage_alive(&p->storage[i], p->space[SPACE_MAIN].peak_step))
            s[n++] = &p->storage[i];
    qsort(s, (size_t)n, sizeof *s, by_size);
    for (int i = 0; i < n && i < 64; i++)
        append(a, list,
               json_pack("{s:o, s:o, s:I}", "name", text_json(s[i]->name), "scope",
                         text_json(s[i]->scope), "bytes", (json_int_t)s[i]->nbytes));
}

static void fill_decisions(Arena *a, json_t *list, const Decisions *d)
{
    for (int i = 0; i < d->count; i++) {
        const Decision *x = &d->list[i];
        if (x->unused)
            continue;
        append(a, list,
               json_pack("{s:s, s:o, s:o, s:s, s:b, s:s, s:I, s:f}", "kind", decision_name(x),
                         "node", text_json(x->node), "scope", text_json(x->scope), "policy",
                         policy_name(x->policy), "honoured", x->honoured, "reason", x->reason,
                         "bytes", (json_int_t)x->nbytes, "sec", x->sec));
    }
}

/* Whether there was anything to decide: a region was asked for, or taken. */
static bool was_asked(const ChunkCandidate *c)
{
    return c->made.slices || c->region.slices > 1;
}

static void fill_chunk_decisions(Arena *a, json_t *list, const ChunkReport *r)
{
    for (int i = 0; i < r->ncandidate; i++) {
        const ChunkCandidate *c = &r->candidate[i];
        if (!was_asked(c))
            continue;
        const char *policy = arena_printf(a, "slices=%lld", (long long)c->region.slices);
        append(a, list,
               json_pack("{s:s, s:o, s:o, s:s, s:b, s:o, s:I, s:f}", "kind", "chunk", "node",
                         text_json(c->region.value), "scope", text_json(c->scope), "policy", policy,
                         "honoured", c->made.slices != 0, "reason", text_json(chunk_reason(c)),
                         "bytes", (json_int_t)c->nbytes, "sec", c->made.sec));
    }
}

/* A number, null where it is not known. */
static json_t *known(bool is, int64_t x)
{
    return is ? json_integer(x) : json_null();
}

static void fill_candidate(Arena *a, json_t *o, const ChunkCandidate *c)
{
    bool region = !c->why;
    put(a, o, "value", text_json(c->region.value));
    put(a, o, "scope", text_json(c->scope));
    put(a, o, "op", json_string(c->op));
    put(a, o, "axis", json_integer(c->region.cut.axis));
    put(a, o, "outer", json_integer(c->region.cut.outer));
    put(a, o, "units", json_integer(c->units));
    put(a, o, "unit_elements", json_integer(c->region.inner));
    put(a, o, "group", json_integer(c->group));
    put(a, o, "bytes_at_peak", json_integer(c->nbytes));
    put(a, o, "nodes", known(region, c->nnode));
    put(a, o, "loops", known(region, c->loops));
    put(a, o, "all_reached", json_boolean(c->region.all));
    put(a, o, "products_once", json_boolean(c->region.cheap));
    put(a, o, "scopes", region && c->scopes ? text_json(c->scopes) : json_null());
    put(a, o, "same_bits", region ? json_boolean(c->bits) : json_null());
    put(a, o, "slices_asked", json_integer(c->region.slices));
    put(a, o, "slices_made", json_integer(c->made.slices));
    put(a, o, "bytes_with_slices", known(region && was_asked(c), chunk_slice_nbytes(c)));
    put(a, o, "peak_bytes", known(c->made.peak != 0, c->made.peak));
    put(a, o, "added_sec", chunk_priced(c) ? json_real(c->made.sec) : json_null());
    put(a, o, "taken", json_boolean(c->made.slices));
    put(a, o, "reason", text_json(chunk_reason(c)));
}

static void fill_candidates(Arena *a, json_t *list, const ChunkReport *r)
{
    for (int i = 0; i < r->ncandidate; i++) {
        json_t *o = json_object();
        append(a, list, o);
        fill_candidate(a, o, &r->candidate[i]);
    }
}

static void drop(void *slot)
{
    free(*(char **)slot);
}

static json_t *hash_json(uint64_t hash)
{
    char text[20];
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    return json_string(text);
}

static void fill_estimate(Arena *a, json_t *o, const Plan *p)
{
    const Estimate *e = &p->est;
    put(a, o, "est_step_sec", json_real(e->step));
    put(a, o, "est_comm_sec",
        e->communicates ? json_real(e->by_class[CLASS_COLLECTIVE]) : json_null());
    put(a, o, "est_exposed_sec", e->communicates ? json_real(e->exposed) : json_null());
    put(a, o, "bound_sec", json_real(plan_step_bound(p, a, 0)));
    put(a, o, "memory_bound_sec", json_real(plan_memory_bound(p, a)));
    put(a, o, "added_sec", json_real(e->added));
    json_t *classes = put(a, o, "sec_by_class", json_object());
    for (int c = 0; c < NCLASS; c++)
        put(a, classes, class_name((OpClass)c), json_real(e->by_class[c]));
    put(a, o, "backend", json_string(p->device->name));
    put(a, o, "machine", json_string(machine_name(p->machine)));
    put(a, o, "machine_hash", hash_json(machine_hash(p->machine)));
}

static void fill_ways(Arena *a, json_t *list, const Plan *p)
{
    KernelRow *row = NULL;
    int count = plan_kernels(a, p, &row);
    for (int i = 0; i < count; i++)
        append(a, list,
               json_pack("{s:s, s:s, s:I, s:f}", "op", row[i].op->name, "kernel", row[i].kernel,
                         "calls", (json_int_t)row[i].calls, "sec", row[i].sec));
}

static void fill_rank_groups(Arena *a, json_t *list, const Plan *p)
{
    RankGroup *group = NULL;
    int count = plan_rank_groups(a, p, &group);
    for (int i = 0; i < count; i++)
        append(a, list,
               json_pack("{s:o, s:I, s:i, s:i}", "group", text_json(group[i].name), "ranks",
                         (json_int_t)group[i].ranks, "hosts", group[i].where.nodes,
                         "ranks_per_host", group[i].where.ranks_per_node));
}

static void fill_collectives(Arena *a, json_t *list, const Plan *p)
{
    CollectiveRow *row = NULL;
    int count = plan_collectives(a, p, &row);
    for (int i = 0; i < count; i++) {
        const CollectiveRow *x = &row[i];
        append(a, list,
               json_pack("{s:s, s:o, s:s, s:s, s:s, s:I, s:I, s:I, s:f, s:f}", "kind",
                         collective_name(x->kind), "group", text_json(x->group), "dtype",
                         dtype_name(x->dtype), "phase", phase_name(x->phase), "role",
                         collective_role(x->role), "count", (json_int_t)x->count, "calls",
                         (json_int_t)x->calls, "bytes", (json_int_t)x->nbytes, "sec", x->sec,
                         "exposed_sec", x->exposed));
    }
}

static void fill_mesh(Arena *a, json_t *o, const Plan *p)
{
    const Mesh *m = p->g->mesh;
    put(a, o, "mesh", m ? text_json(mesh_text(a, m)) : json_null());
    put(a, o, "ranks", json_integer(m ? mesh_nranks(m) : 1));
    put(a, o, "rank", json_integer(m ? mesh_rank(m) : 0));
    fill_rank_groups(a, put(a, o, "groups", json_array()), p);
    fill_collectives(a, put(a, o, "collectives", json_array()), p);
}

static void fill_spaces(Arena *a, json_t *list, const Plan *p)
{
    for (int s = 0; s < device_nspace(p->device); s++)
        append(a, list,
               json_pack("{s:s, s:I, s:I, s:I}", "name", p->device->space[s], "peak_bytes",
                         (json_int_t)p->space[s].peak, "lower_bound_bytes",
                         (json_int_t)p->space[s].bound, "persistent_bytes",
                         (json_int_t)p->space[s].persistent));
}

/* The name of the node at the peak. */
static json_t *peak_node(const Plan *p)
{
    const Node *n =
        p->nstep ? p->step[MIN(p->space[SPACE_MAIN].peak_step, p->nstep - 1)].node : NULL;
    return n && n->nout ? text_json(n->out[0]->name) : json_null();
}

static void fill_json(Arena *a, json_t *o, const Plan *p)
{
    struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"peak_bytes", p->space[SPACE_MAIN].peak},
                   {"planned_peak_bytes", p->space[SPACE_MAIN].peak},
                   {"arena_bytes", p->space[SPACE_MAIN].peak},
                   {"lower_bound_bytes", p->space[SPACE_MAIN].bound},
                   {"order_bound_bytes", p->order_bound},
                   {"overlap_cap_bytes", p->overlap_cap},
                   {"waste_bytes", p->space[SPACE_MAIN].peak - p->space[SPACE_MAIN].bound},
                   {"persistent_bytes", p->space[SPACE_MAIN].persistent},
                   {"workspace_bytes", p->workspace},
                   {"library_reserve_bytes", p->reserve},
                   {"nodes", graph_count(p->g)}};
    for (int i = 0; i < LEN(numbers); i++)
        put(a, o, numbers[i].name, json_integer(numbers[i].value));
    fill_categories(a, put(a, o, "by_category", json_object()), p);
    fill_spaces(a, put(a, o, "spaces", json_array()), p);
    fill_groups(a, put(a, o, "parameter_groups", json_array()), p);
    put(a, o, "peak_node", peak_node(p));
    count_ops(a, put(a, o, "op_counts", json_object()), p->g);
    const Breakdown *x = plan_breakdown(a, p);
    fill_scopes(a, put(a, o, "by_scope", json_array()), x);
    put(a, o, "saved_bytes", json_integer(x->saved));
    put(a, o, "recomputed_bytes", json_integer(x->recomputed));
    put(a, o, "nflop", json_real(x->nflop));
    put(a, o, "added_nflop", json_real(x->added_nflop));
    fill_estimate(a, o, p);
    fill_ways(a, put(a, o, "ways", json_array()), p);
    fill_mesh(a, o, p);
    put(a, o, "plan_sec", json_real(p->sec));
    put(a, o, "plan_hash", hash_json(plan_hash(p)));
    put(a, o, "steps_hash", hash_json(plan_hash_steps(p)));
}

static void fill_planned(Arena *a, json_t *o, const Planned *x)
{
    put(a, o, "bytes", json_integer(x->need));
    put(a, o, "sec", json_real(x->sec));
}

/* What was decided to fit a limit, and the choices that are known whatever it is. */
static void fill_again(Arena *a, json_t *o, const AgainReport *r)
{
    put(a, o, "limit_bytes", json_integer(r->memory));
    put(a, o, "fits", json_boolean(r->fits));
    put(a, o, "policy", r->chosen.word ? json_string(r->chosen.word) : json_null());
    put(a, o, "values", json_integer(r->nagain));
    put(a, o, "offloaded", json_integer(r->naway));
    put(a, o, "gathers_kept", json_integer(r->nkept));
    put(a, o, "plans", json_integer(r->nplanned));
    put(a, o, "bound_sec", isnan(r->bound) ? json_null() : json_real(r->bound));
    fill_planned(a, put(a, o, "none", json_object()), &r->none);
    fill_planned(a, put(a, o, "chosen", json_object()), &r->chosen);
    json_t *front = put(a, o, "front", json_array());
    for (int i = 0; i < r->nfront; i++) {
        append(a, front, json_object());
        fill_planned(a, json_array_get(front, (size_t)i), &r->front[i]);
    }
}

/* Seconds; null where there are none. */
static json_t *seconds(double sec)
{
    return isfinite(sec) ? json_real(sec) : json_null();
}

static void fill_form(Arena *a, json_t *o, const ShardForm *f)
{
    put(a, o, "node", text_json(f->node));
    put(a, o, "scope", text_json(f->scope));
    put(a, o, "port", json_boolean(f->port));
    put(a, o, "count", json_integer(f->count));
    put(a, o, "form", text_json(f->form));
    put(a, o, "uncut", json_boolean(f->uncut));
    put(a, o, "sec", json_real(f->sec));
    json_t *readers = put(a, o, "readers", json_array());
    for (int i = 0; i < f->nreading; i++) {
        const ShardReading *y = &f->reading[i];
        append(a, readers,
               json_pack("{s:o, s:o, s:o, s:o, s:o, s:f, s:f}", "reader",
                         *y->reader ? text_json(y->reader) : json_null(), "scope",
                         text_json(y->scope), "from", text_json(y->from), "form",
                         text_json(y->form), "steps", text_json(y->steps), "bytes", y->nbytes,
                         "sec", y->sec));
    }
    json_t *others = put(a, o, "others", json_array());
    for (int i = 0; i < f->nother; i++)
        append(a, others,
               json_pack("{s:o, s:o}", "form", text_json(f->other[i].form), "added_sec",
                         seconds(f->other[i].sec)));
}

/* The choice of --shard auto. */
static void fill_sharding(Arena *a, json_t *o, const ShardReport *r)
{
    json_t *tried = put(a, o, "tried", json_array());
    for (int i = 0; i < r->ntried; i++) {
        const ShardTry *t = &r->tried[i];
        if (t->sec > 0)
            append(a, tried,
                   json_pack("{s:o, s:f, s:o, s:I, s:b}", "exposed",
                             t->exposed > 0 ? json_real(t->exposed) : json_null(), "sec", t->sec,
                             "objective_sec",
                             t->objective > 0 ? json_real(t->objective) : json_null(), "bytes",
                             (json_int_t)t->nbytes, "taken", i == r->taken));
    }
    put(a, o, "objective_sec", r->solved ? json_real(r->sec) : json_null());
    put(a, o, "emitted_sec", r->solved ? json_real(r->emitted - r->rest) : json_null());
    put(a, o, "rest_sec", r->solved ? json_real(r->rest) : json_null());
    put(a, o, "gap", r->solved ? json_real(r->gap) : json_null());
    json_t *forms = put(a, o, "forms", json_array());
    for (int i = 0; i < r->nform; i++)
        fill_form(a, put_last(a, forms), &r->form[i]);
    json_t *what_if = put(a, o, "what_if", json_array());
    for (int i = 0; i < r->nwhat_if; i++) {
        const ShardWhatIf *y = &r->what_if[i];
        append(a, what_if,
               json_pack("{s:o, s:o, s:o}", "pin", text_json(y->pin), "objective_sec",
                         seconds(y->objective), "sec", seconds(y->sec > 0 ? y->sec : INFINITY)));
    }
}

/* The step with collectives of a block as one call, and with all of them alone. */
static void fill_bucket(Arena *a, json_t *o, const BucketChoice *x)
{
    put(a, o, "asked", text_json(x->asked));
    put(a, o, "taken", text_json(x->taken));
    put(a, o, "why", x->why ? text_json(x->why) : json_null());
    put(a, o, "joined_sec", x->joined > 0 ? json_real(x->joined) : json_null());
    put(a, o, "apart_sec", x->apart > 0 ? json_real(x->apart) : json_null());
}

/* What is said of a plan that is larger than its limit. */
static void fill_refusal(Arena *a, json_t *o, const tn_plan *plan)
{
    const tn_setting *x = &plan->others;
    const Plan *p = plan->p;
    put(a, o, "limit_bytes", known(plan->limit, plan->limit));
    put(a, o, "need_bytes", json_integer(plan_least(p)));
    put(a, o, "peak_node", peak_node(p));
    put(a, o, "other_options",
        x->nbytes ? json_pack("{s:s, s:I, s:o, s:I}", "recompute", x->recompute, "accumulate",
                              (json_int_t)x->accumulate, "batch_size",
                              known(x->batch > 0, x->batch), "need_bytes", (json_int_t)x->nbytes)
                  : json_null());
}

static void fill_plan(Arena *a, json_t *o, const tn_plan *plan, bool fits)
{
    const Plan *p = plan->p;
    const AgainReport *again = &plan->graph->again;
    put(a, o, "status", json_string(fits ? "planned" : "refused"));
    if (!fits)
        fill_refusal(a, put(a, o, "refusal", json_object()), plan);
    fill_json(a, o, p);
    json_t *decisions = put(a, o, "decisions", json_array());
    fill_decisions(a, decisions, &plan->graph->decisions);
    fill_chunk_decisions(a, decisions, &plan->graph->chunk);
    fill_candidates(a, put(a, o, "chunk_candidates", json_array()), &plan->graph->chunk);
    if (again->searched || (again->nkept && !again->replayed))
        fill_again(a, put(a, o, "recompute_auto", json_object()), again);
    if (plan->graph->sharded.ntried || plan->graph->sharded.solved)
        fill_sharding(a, put(a, o, "sharding", json_object()), &plan->graph->sharded);
    if (plan->graph->bucket.taken)
        fill_bucket(a, put(a, o, "bucket", json_object()), &plan->graph->bucket);
    if (fits)
        return;
    put(a, o, "least_feasible_bytes", json_integer(plan_least(p)));
    fill_peak_values(a, put(a, o, "peak_values", json_array()), p);
}

static const char *object_text(Arena *a, const json_t *o)
{
    char **text = NEW(a, char *);
    arena_defer(a, drop, text);
    *text = json_dumps(o, JSON_INDENT(1) | JSON_REAL_PRECISION(15));
    if (!*text)
        fail(arena_ctx(a), TN_FAIL, "out of memory");
    return *text;
}

const char *plan_json(Arena *a, tn_plan *plan, bool fits)
{
    json_t *o = new_object(a);
    fill_plan(a, o, plan, fits);
    return object_text(a, o);
}

/* ---- two plans ---- */

/* B - A of all numbers that either has, objects within objects; what is not there is 0. */
static void fill_difference(Arena *a, json_t *d, json_t *x, json_t *y)
{
    json_t *u, *v;
    const char *key;
    json_object_foreach(x, key, u)
    {
        v = json_object_get(y, key);
        if (json_is_object(u))
            fill_difference(a, put(a, d, key, json_object()), u, v);
        else if (json_is_integer(u))
            put(a, d, key, json_integer(json_integer_value(v) - json_integer_value(u)));
        else if (json_is_real(u) && strcmp(key, "plan_sec") != 0)
            put(a, d, key, json_real(json_number_value(v) - json_real_value(u)));
    }
    json_object_foreach(y, key, v)
    {
        if (json_object_get(x, key))
            continue;
        if (json_is_object(v))
            fill_difference(a, put(a, d, key, json_object()), NULL, v);
        else if (json_is_integer(v))
            put(a, d, key, json_integer(json_integer_value(v)));
        else if (json_is_real(v) && strcmp(key, "plan_sec") != 0)
            put(a, d, key, json_real(json_real_value(v)));
    }
}

const char *plans_json(tn_plan *const *plans, const char *const *side, Arena *a)
{
    static const char *const names[] = {"a", "b"};
    json_t *o = new_object(a), *one[2];
    for (int i = 0; i < 2; i++) {
        one[i] = put(a, o, names[i], json_object());
        put(a, one[i], "options", text_json(side[i]));
        fill_plan(a, one[i], plans[i], plans[i]->fits);
    }
    fill_difference(a, put(a, o, "difference", json_object()), one[0], one[1]);
    return object_text(a, o);
}
