/* Programs: making, running and measuring, safetensors in and out. */
#include "api.h"

#include <stdlib.h>
#include <string.h>

/* A collective, or one that other ranks answer; NULL: the plan has none. How many ranks a group has
 * may be unknown where there is no mesh. */
static const Node *find_collective(const Plan *p, bool of_others)
{
    for (int i = 0; i < p->nstep; i++) {
        const Step *s = &p->step[i];
        if (s->kind == STEP_CALL && s->node->op->class == CLASS_COLLECTIVE &&
            (!of_others || group_ranks(p->g->mesh, s->node) != 1))
            return s->node;
    }
    return NULL;
}

/* Collectives whose groups have one rank, without others beside them. */
static bool joins_alone(const Plan *p)
{
    bool one = !p->g->mesh || mesh_nranks(p->g->mesh) == 1;
    return one && find_collective(p, false) && !find_collective(p, true);
}

static tn_program *new_program(tn_plan *p, Arena *call)
{
    tn_program *x = handle_new(p->h.owner, call, sizeof *x);
    x->plan = p;
    x->names = port_names(x->h.a, p->p);
    x->lacks = !ranks_run(p) && !joins_alone(p->p) && find_collective(p->p, false);
    return x;
}

/* Ends what makes a program, once it has its memory. */
static tn_program *start(tn_program *x)
{
    stage_make(x);
    scalars_start(x);
    if (!ranks_run(x->plan) && joins_alone(x->plan->p)) {
        program_join(x->x, x->h.a, comm_alone(x->h.a), x->fast);
        program_library(x->x, arena_ctx(x->h.a));
    }
    return x;
}

/* Gives a program that was made with `code`, 0 or this rank's failure. All ranks of a plan for
 * several have a program then, or none has. o NULL: options have been compared. */
static int give(tn_program *x, tn_plan *p, int code, const tn_options *o, tn_program **program)
{
    if (ranks_run(p))
        code = ranks_join(p, x, code, o);
    if (code)
        tn_program_free(x);
    else
        *program = x;
    return code;
}

static bool is_fast(Ctx *ctx, const char *reduce)
{
    bool fast = reduce && !strcmp(reduce, "fast");
    if (reduce && !fast && strcmp(reduce, "ordered") != 0)
        fail(ctx, TN_USAGE, "options.reduce: expected ordered or fast, found \"%.50s\"", reduce);
    return fast;
}

/* For debugging, TENON_HASHES=FILE: a rank of several has FILE.RANK. */
static void start_hashes(tn_program *x)
{
    const char *path = getenv("TENON_HASHES");
    const Mesh *m = x->x->plan->g->mesh;
    Arena *a = x->h.a;
    if (path && *path)
        program_hash(x->x, a, m ? arena_printf(a, "%s.%lld", path, (long long)mesh_rank(m)) : path);
}

static tn_program *make(tn_plan *p, Arena *call, const tn_options *o)
{
    tn_program *x = new_program(p, call);
    x->shard = o->shard;
    x->fast = is_fast(&p->h.owner->ctx, o->reduce);
    x->x = program_make(x->h.a, p->p, o->check, o->arena);
    start_hashes(x);
    return start(x);
}

int tn_program_new(tn_plan *p, const tn_options *options, tn_program **program)
{
    if (!GIVEN(args_owner(p), p, options, program) ||
        !args_options(args_owner(p), __func__, options))
        return TN_CODE_USAGE;
    tn_program *volatile x = NULL;
    TRY(t, &p->h.owner->ctx)
        x = handle_keep(make(p, try_arena(&t), options));
    int code = tried(&t);
    return give(x, p, code, options, program);
}

static tn_program *share(tn_plan *p, Arena *call, tn_program *host)
{
    tn_program *x = new_program(p, call);
    x->fast = host->fast;
    x->x = program_share(x->h.a, p->p, host->x);
    x->shares = true;
    return start(x);
}

int tn_program_share(tn_plan *p, tn_program *host, tn_program **program)
{
    if (!GIVEN(args_owner(p), p, host, program) || !args_kin(__func__, p, host))
        return TN_CODE_USAGE;
    tn_program *volatile x = NULL;
    TRY(t, &p->h.owner->ctx)
        x = handle_keep(share(p, try_arena(&t), host));
    int code = tried(&t);
    return give(x, p, code, NULL, program);
}

int64_t tn_rss_peak(void)
{
    return rss_peak_bytes();
}

void tn_program_free(tn_program *x)
{
    handle_free((Handle *)x);
}

const char *tn_program_error(const tn_program *x)
{
    return x ? x->error : "no program";
}

/* Fails because ranks are missing; without a mesh it is not known which. */
static int fail_alone(tn_program *x)
{
    const Plan *p = x->x->plan;
    const Node *n = find_collective(p, true);
    if (!p->g->mesh)
        return program_fail(x, TN_CODE_FAIL,
                            "%s %%%s: runs on several ranks (group \"%s\"), of which the graph has "
                            "no mesh",
                            n->op->name, n->out[0]->name, n->attr[attr_index(n->op, "group")].s);
    return program_fail(x, TN_CODE_USAGE,
                        "the plan is for %lld ranks, which have not joined: start them by mpirun "
                        "or srun and call tn_join, or call tn_ranks_run, before tn_program_new",
                        (long long)mesh_nranks(p->g->mesh));
}

int tn_program_run(tn_program *x)
{
    if (!GIVEN_TO(x, x))
        return TN_CODE_USAGE;
    const PlanPort *unset = scalars_unset(x);
    if (x->lacks)
        return fail_alone(x);
    if (unset)
        return program_fail(x, TN_CODE_USAGE,
                            "input \"%s\" was never set: tn_program_write sets it",
                            port_input_name(unset));
    return program_run(x->x) ? program_fail(x, TN_CODE_FAIL, "%s", x->x->message) : TN_CODE_OK;
}

int tn_program_check(tn_program *x, int on)
{
    if (!GIVEN(args_owner(x), x))
        return TN_CODE_USAGE;
    if (x->shares)
        return tn_context_fail(x->h.owner, TN_CODE_USAGE,
                               "%s: the program shares another's arena, which has no checks",
                               __func__);
    TRY(t, &x->h.owner->ctx)
        program_check(x->x, x->h.a, on);
    return tried(&t);
}

const char *tn_program_fault(tn_program *x)
{
    if (!x)
        return NULL;
    const Node *n = x->x->not_finite;
    if (!n)
        return NULL;
    snprintf(x->fault, sizeof x->fault, "%s %%%s%s%s", n->op->name, n->nout ? n->out[0]->name : "?",
             *n->scope ? " in " : "", n->scope);
    return x->fault;
}

int64_t tn_program_fault_at(const tn_program *x)
{
    const Node *n = x ? x->x->not_finite : NULL;
    for (int i = 0; n && i < x->x->plan->nstep; i++)
        if (x->x->plan->step[i].kind == STEP_CALL && x->x->plan->step[i].node == n)
            return i;
    return -1;
}

static int64_t count_bad(const tn_program *x, const PlanPort *p)
{
    int64_t nbytes = type_nbytes(&p->type), count = 0;
    for (int64_t at = 0, n; at < nbytes; at += n) {
        n = nbytes - at;
        const void *data = stage_bytes(x, p, at, &n);
        count += count_not_finite(p->type.dtype, data, n / dtype_size(p->type.dtype));
    }
    return count;
}

/* The first parameter or state with values that are not finite, *count of them; NULL: none. */
static const char *find_unsound(const tn_program *x, int64_t *count)
{
    const Plan *p = x->x->plan;
    for (int i = 0; i < p->nin; i++) {
        const PlanPort *in = &p->in[i];
        if ((in->role == ROLE_PARAM || in->role == ROLE_STATE) && (*count = count_bad(x, in)))
            return in->name;
    }
    return NULL;
}

/* Values that cannot be read count as finite: whoever saves them is told. */
const char *tn_program_unsound(const tn_program *x, int64_t *count)
{
    if (!GIVEN(args_owner(x), x, count))
        return NULL;
    const char *volatile name = NULL;
    *count = 0;
    TRY(t, &x->h.owner->ctx)
        name = find_unsound(x, count);
    tried(&t);
    return name;
}

/* ---- what calls took ---- */

/* Forgets the recording before, with its memory. */
static int make_trace(tn_program *x, int64_t nruns, double (*clock)(void))
{
    x->x->trace = NULL;
    x->calls = NULL;
    TRY(t, &x->h.owner->ctx) {
        if (!x->traced)
            x->traced = arena_tmp(x->h.a);
        arena_reset(x->traced);
        x->x->trace = trace_new(x->traced, x->x->plan, nruns, clock);
    }
    return tried(&t);
}

int tn_program_trace(tn_program *x, int64_t nruns)
{
    if (!GIVEN(args_owner(x), x) || !WITHIN(args_owner(x), 1, INT32_MAX, nruns))
        return TN_CODE_USAGE;
    return make_trace(x, nruns, now_sec);
}

int tn_program_trace_cpu(tn_program *x, int64_t nruns)
{
    if (!GIVEN(args_owner(x), x) || !WITHIN(args_owner(x), 1, INT32_MAX, nruns))
        return TN_CODE_USAGE;
    return make_trace(x, nruns, cpu_sec);
}

void tn_program_trace_next(tn_program *x, int64_t number)
{
    if (!GIVEN(args_owner(x), x))
        return;
    if (x->x->trace)
        trace_next(x->x->trace, number);
}

int tn_program_trace_write(tn_program *x, const char *path)
{
    if (!GIVEN(args_owner(x), x, path))
        return TN_CODE_USAGE;
    if (!args_traced(__func__, x))
        return TN_CODE_USAGE;
    TRY(t, &x->h.owner->ctx) {
        Buf b = {.a = try_arena(&t)};
        trace_print(&b, x->x->trace, x->x->plan);
        file_write(t.ctx, path, b.text, b.len);
    }
    return tried(&t);
}

/* ---- measuring memory ---- */

void tn_program_fill(tn_program *x, int pattern)
{
    if (!x)
        return;
    program_fill(x->x, (uint8_t)pattern);
}

int64_t tn_program_high(const tn_program *x, int pattern)
{
    if (!x)
        return 0;
    return program_high(x->x, SPACE_MAIN, (uint8_t)pattern);
}

int64_t tn_program_high_host(const tn_program *x, int pattern)
{
    if (!x)
        return 0;
    return program_high(x->x, SPACE_HOST, (uint8_t)pattern);
}

int64_t tn_program_used(const tn_program *x)
{
    if (!GIVEN(args_owner(x), x) || !x->x->driver->used)
        return 0;
    return x->x->driver->used(x->x->queues);
}

/* ---- safetensors ---- */

/* For messages that end in the tensors of a file, or in the inputs of a plan. */
static const char *file_names(Arena *a, const TensorFile *file, const char *word)
{
    enum { SIZE = 1000 };
    const char **names = NEWN(a, const char *, file->count);
    for (int k = 0; k < file->count; k++)
        names[k] = file->entry[k].name;
    return names_hint(word, names, file->count, NEWN(a, char, SIZE), SIZE);
}

static const char *input_names(Arena *a, const Plan *p, const char *word)
{
    enum { SIZE = 1000 };
    const char **names = NEWN(a, const char *, p->nin);
    for (int i = 0; i < p->nin; i++)
        names[i] = p->in[i].value;
    return names_hint(word, names, p->nin, NEWN(a, char, SIZE), SIZE);
}

static bool is_value(const Plan *p, const char *name)
{
    for (int i = 0; i < p->nin; i++)
        if (!strcmp(p->in[i].value, name))
            return true;
    return false;
}

/* An input's tensor: under the value's name, or that which belongs to its role and is no other
 * value's. */
static const TensorEntry *find_entry(const TensorFile *file, const Plan *plan, const PlanPort *p)
{
    const TensorEntry *e = tensors_find(file, p->value);
    const char *name = port_input_name(p);
    return e || !*name || is_value(plan, name) ? e : tensors_find(file, name);
}

static void read_input(tn_program *x, Arena *a, const TensorFile *file, int i)
{
    Ctx *ctx = arena_ctx(a);
    const PlanPort *p = &x->x->plan->in[i];
    Type *whole = &x->whole[i];
    const TensorEntry *e = find_entry(file, x->x->plan, p);
    bool drawn = p->role == ROLE_SEED || (p->role == ROLE_STEP && scalar_set(x, p));
    if (!e && (drawn || !type_nelem(whole)))
        return; /* it has one already, or no element to be read */
    if (!e)
        fail(ctx, TN_FAIL, "%s: input \"%s\": expected %s, found no such tensor%s", file->path,
             p->value, type_text(a, whole), file_names(a, file, p->value));
    if (!part_fits(x->x->plan, p, &e->type))
        fail(ctx, TN_FAIL, "%s: input \"%s\": expected %s, found %s", file->path, p->value,
             type_text(a, whole), type_text(a, &e->type));
    memcpy(whole->dim, e->type.dim, sizeof whole->dim);
    stage_tensor(x, a, p, file, e, false);
    arena_reset(a);
}

static void read_inputs(tn_program *x, Arena *a, const char *path)
{
    const Plan *p = x->x->plan;
    const TensorFile *file = tensors_open(a, path);
    tensors_verify(file, 0, 1);
    Map known = {.a = a};
    Arena *tmp = arena_tmp(a);
    for (int i = 0; i < p->nin; i++) {
        read_input(x, tmp, file, i);
        const TensorEntry *e = find_entry(file, p, &p->in[i]);
        map_put(&known, e ? e->name : p->in[i].value, x);
    }
    for (int k = 0; k < file->count; k++)
        if (!map_find(&known, file->entry[k].name))
            fail(arena_ctx(a), TN_FAIL, "%s: tensor \"%s\" is no input of the graph%s", file->path,
                 file->entry[k].name, input_names(a, p, file->entry[k].name));
}

int tn_program_read_file(tn_program *x, const char *path)
{
    if (!GIVEN(args_owner(x), x, path))
        return TN_CODE_USAGE;
    TRY(t, &x->h.owner->ctx)
        read_inputs(x, try_arena(&t), path);
    return tried(&t);
}

static void check_output(const Graph *g, const char *path, const char *name, const PlanPort *p)
{
    const Mesh *m = graph_mesh(g);
    for (int c = 0; p->cut && c < m->naxes; c++)
        if (cut_is_partial(p->cut[c]) && m->size[c] > 1)
            fail(g->ctx, TN_FAIL, "%s: output \"%s\": each rank of \"%s\" has a term of it", path,
                 name, m->name[c]);
}

static bool has_gradient(const Plan *p, const char *name)
{
    for (int i = 0; i < p->nout; i++)
        if (p->out[i].role == ROLE_GRAD && !strcmp(p->out[i].name, name))
            return true;
    return false;
}

/* A frozen parameter has no gradient in the plan, and zeros in the file. */
static int add_zeros(const tn_program *x, int n, TensorOut *out)
{
    const Plan *p = x->x->plan;
    for (int i = 0; i < p->nin; i++) {
        Type t = x->whole[i];
        if (p->in[i].role != ROLE_PARAM || has_gradient(p, p->in[i].name))
            continue;
        t.dtype = t.dtype == F64 ? F64 : F32;
        out[n++] = (TensorOut){p->in[i].name, t, NULL};
    }
    return n;
}

static void write_outputs(tn_program *x, Arena *a, const char *path, const char *prefix)
{
    const Plan *p = x->x->plan;
    TensorOut *out = NEWN(a, TensorOut, p->nout + p->nin);
    size_t cut = strlen(prefix);
    int n = 0;
    for (int i = 0; i < p->nout; i++) {
        const char *text = port_output_name(a, p, i);
        if (strncmp(text, prefix, cut) != 0)
            continue;
        check_output(p->g, path, text, &p->out[i]);
        Type whole = part_output(p, x->whole, &p->out[i]);
        out[n++] = (TensorOut){text + cut, whole, &p->out[i]};
    }
    if (!strcmp(prefix, "grad."))
        n = add_zeros(x, n, out);
    write_together(x, a, path, n, out, false);
}

int tn_program_write_file(tn_program *x, const char *path, const char *prefix)
{
    if (!GIVEN(args_owner(x), x, path, prefix))
        return TN_CODE_USAGE;
    TRY(t, &x->h.owner->ctx)
        write_outputs(x, try_arena(&t), path, prefix);
    return tried(&t);
}
