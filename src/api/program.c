/* Programs: making, running and measuring, safetensors in and out. */
#include "api.h"

#include <stdlib.h>
#include <string.h>

typedef struct ProgramArgs {
    tn_plan *plan;
    const tn_options *o;
    tn_program *program;
} ProgramArgs;

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

static tn_program *new_program(tn_plan *p)
{
    tn_program *x = handle_new(p->h.owner, sizeof *x);
    x->plan = p;
    x->names = port_names(x->h.a, p->p);
    x->lacks = !ranks_run(p) && !joins_alone(p->p) && find_collective(p->p, false);
    return x;
}

static void join_alone(void *arg)
{
    tn_program *x = arg;
    program_join(x->x, x->h.a, comm_alone(x->h.a), x->fast);
}

/* Ends what makes a program, whose `code` is that so far: of a plan for several ranks all of them
 * have made theirs, or none has. */
static int end_making(tn_program *x, tn_plan *p, int code, const tn_options *o,
                      tn_program **program)
{
    if (ranks_run(p))
        code = ranks_join(p, x, code, o);
    else if (!code && joins_alone(p->p))
        code = (int)ctx_try(&p->h.owner->ctx, join_alone, x);
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

static void make(void *arg)
{
    ProgramArgs *x = arg;
    x->program = new_program(x->plan);
    x->program->shard = x->o->shard;
    x->program->fast = is_fast(&x->plan->h.owner->ctx, x->o->reduce);
    x->program->x = program_make(x->program->h.a, x->plan->p, x->o->check, x->o->arena);
    start_hashes(x->program);
    stage_make(x->program);
    scalars_start(x->program);
}

int tn_program_new(tn_plan *p, const tn_options *options, tn_program **program)
{
    if (!GIVEN(args_owner(p), p, options, program) ||
        !args_options(args_owner(p), __func__, options))
        return TN_CODE_USAGE;
    ProgramArgs x = {p, options, NULL};
    int code = (int)ctx_try(&p->h.owner->ctx, make, &x);
    return end_making(x.program, p, code, options, program);
}

typedef struct ShareArgs {
    tn_plan *plan;
    tn_program *host, *program;
} ShareArgs;

static void share(void *arg)
{
    ShareArgs *x = arg;
    x->program = new_program(x->plan);
    x->program->fast = x->host->fast;
    x->program->x = program_share(x->program->h.a, x->plan->p, x->host->x);
    x->program->shares = true;
    stage_make(x->program);
    scalars_start(x->program);
}

int tn_program_share(tn_plan *p, tn_program *host, tn_program **program)
{
    if (!GIVEN(args_owner(p), p, host, program) || !args_kin(__func__, p, host))
        return TN_CODE_USAGE;
    ShareArgs x = {p, host, NULL};
    int code = (int)ctx_try(&p->h.owner->ctx, share, &x);
    return end_making(x.program, p, code, NULL, program);
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

/* That ranks are missing; of a graph without a mesh it is not known which. */
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

typedef struct CheckArgs {
    tn_program *x;
    int on;
} CheckArgs;

static void check(void *arg)
{
    CheckArgs *c = arg;
    program_check(c->x->x, c->x->h.a, c->on);
}

int tn_program_check(tn_program *x, int on)
{
    if (!GIVEN(args_owner(x), x))
        return TN_CODE_USAGE;
    if (x->shares)
        return tn_context_fail(x->h.owner, TN_CODE_USAGE,
                               "%s: the program shares another's arena, which has no checks",
                               __func__);
    CheckArgs c = {x, on};
    return (int)ctx_try(&x->h.owner->ctx, check, &c);
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

typedef struct UnsoundArgs {
    const tn_program *x;
    int64_t count;
    const char *name;
} UnsoundArgs;

static void find_unsound(void *arg)
{
    UnsoundArgs *u = arg;
    const Plan *p = u->x->x->plan;
    for (int i = 0; i < p->nin && !u->count; i++) {
        const PlanPort *in = &p->in[i];
        if (in->role != ROLE_PARAM && in->role != ROLE_STATE)
            continue;
        u->count = count_bad(u->x, in);
        u->name = u->count ? in->name : NULL;
    }
}

/* What cannot be read is not found: whoever saves it is told. */
const char *tn_program_unsound(const tn_program *x, int64_t *count)
{
    if (!GIVEN(args_owner(x), x, count))
        return NULL;
    UnsoundArgs u = {x, 0, NULL};
    ctx_try(&x->h.owner->ctx, find_unsound, &u);
    *count = u.count;
    return u.name;
}

/* ---- what calls took ---- */

typedef struct TraceArgs {
    tn_program *x;
    int64_t nruns;
    double (*clock)(void);
    Arena *a;
    const char *path;
} TraceArgs;

static void make_trace(void *arg)
{
    TraceArgs *t = arg;
    t->x->x->trace = trace_new(t->x->h.a, t->x->x->plan, t->nruns, t->clock);
}

int tn_program_trace(tn_program *x, int64_t nruns)
{
    if (!GIVEN(args_owner(x), x) || !WITHIN(args_owner(x), 1, INT32_MAX, nruns))
        return TN_CODE_USAGE;
    TraceArgs t = {.x = x, .nruns = nruns, .clock = now_sec};
    return (int)ctx_try(&x->h.owner->ctx, make_trace, &t);
}

int tn_program_trace_cpu(tn_program *x, int64_t nruns)
{
    if (!GIVEN(args_owner(x), x) || !WITHIN(args_owner(x), 1, INT32_MAX, nruns))
        return TN_CODE_USAGE;
    TraceArgs t = {.x = x, .nruns = nruns, .clock = cpu_sec};
    return (int)ctx_try(&x->h.owner->ctx, make_trace, &t);
}

void tn_program_trace_next(tn_program *x, int64_t number)
{
    if (!GIVEN(args_owner(x), x))
        return;
    if (x->x->trace)
        trace_next(x->x->trace, number);
}

static void write_trace(void *arg)
{
    TraceArgs *t = arg;
    Buf b = {.a = t->a};
    trace_print(&b, t->x->x->trace, t->x->x->plan);
    file_write(arena_ctx(t->a), t->path, b.text, b.len);
}

int tn_program_trace_write(tn_program *x, const char *path)
{
    if (!GIVEN(args_owner(x), x, path))
        return TN_CODE_USAGE;
    if (!args_traced(__func__, x))
        return TN_CODE_USAGE;
    TraceArgs t = {.x = x, .path = path};
    return try_aside(x->h.owner, &t.a, write_trace, &t);
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

typedef struct FileArgs {
    tn_program *x;
    Arena *a;
    const char *path, *prefix;
} FileArgs;

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

static void read_input(const FileArgs *f, Arena *tmp, const TensorFile *file, int i)
{
    Ctx *ctx = arena_ctx(f->a);
    const PlanPort *p = &f->x->x->plan->in[i];
    Type *whole = &f->x->whole[i];
    const TensorEntry *e = tensors_find(file, p->value);
    if (!e && p->role == ROLE_SEED)
        return;
    if (!e)
        fail(ctx, TN_FAIL, "%s: input \"%s\": expected %s, found no such tensor%s", file->path,
             p->value, type_text(f->a, whole), file_names(f->a, file, p->value));
    if (!part_fits(f->x->x->plan, p, &e->type))
        fail(ctx, TN_FAIL, "%s: input \"%s\": expected %s, found %s", file->path, p->value,
             type_text(f->a, whole), type_text(f->a, &e->type));
    memcpy(whole->dim, e->type.dim, sizeof whole->dim);
    stage_tensor(f->x, tmp, p, file, e, false);
    arena_reset(tmp);
}

static void read_inputs(void *arg)
{
    FileArgs *f = arg;
    const Plan *p = f->x->x->plan;
    const TensorFile *file = tensors_open(f->a, f->path);
    Map known = {.a = f->a};
    Arena *tmp = arena_tmp(f->a);
    for (int i = 0; i < p->nin; i++) {
        read_input(f, tmp, file, i);
        map_put(&known, p->in[i].value, f);
    }
    for (int k = 0; k < file->count; k++)
        if (!map_find(&known, file->entry[k].name))
            fail(arena_ctx(f->a), TN_FAIL, "%s: tensor \"%s\" is no input of the graph%s",
                 file->path, file->entry[k].name, input_names(f->a, p, file->entry[k].name));
}

int tn_program_read_file(tn_program *x, const char *path)
{
    if (!GIVEN(args_owner(x), x, path))
        return TN_CODE_USAGE;
    FileArgs f = {x, NULL, path, NULL};
    return try_aside(x->h.owner, &f.a, read_inputs, &f);
}

static void check_output(const FileArgs *f, const char *name, const PlanPort *p)
{
    const Mesh *m = graph_mesh(f->x->x->plan->g);
    for (int c = 0; p->cut && c < m->naxes; c++)
        if (cut_is_partial(p->cut[c]) && m->size[c] > 1)
            fail(arena_ctx(f->a), TN_FAIL,
                 "%s: output \"%s\": each rank of \"%s\" has a term of it", f->path, name,
                 m->name[c]);
}

static bool has_gradient(const Plan *p, const char *name)
{
    for (int i = 0; i < p->nout; i++)
        if (p->out[i].role == ROLE_GRAD && !strcmp(p->out[i].name, name))
            return true;
    return false;
}

/* A frozen parameter has no gradient in the plan, and zeros in the file. */
static int add_zeros(const FileArgs *f, int n, TensorOut *out)
{
    const Plan *p = f->x->x->plan;
    for (int i = 0; i < p->nin; i++) {
        Type t = f->x->whole[i];
        if (p->in[i].role != ROLE_PARAM || has_gradient(p, p->in[i].name))
            continue;
        t.dtype = t.dtype == F64 ? F64 : F32;
        out[n++] = (TensorOut){p->in[i].name, t, NULL};
    }
    return n;
}

static void write_outputs(void *arg)
{
    FileArgs *f = arg;
    const Plan *p = f->x->x->plan;
    TensorOut *out = NEWN(f->a, TensorOut, p->nout + p->nin);
    size_t cut = strlen(f->prefix);
    int n = 0;
    for (int i = 0; i < p->nout; i++) {
        const char *text = port_output_name(f->a, p, i);
        if (strncmp(text, f->prefix, cut) != 0)
            continue;
        check_output(f, text, &p->out[i]);
        Type whole = part_output(p, f->x->whole, &p->out[i]);
        out[n++] = (TensorOut){text + cut, whole, &p->out[i]};
    }
    if (!strcmp(f->prefix, "grad."))
        n = add_zeros(f, n, out);
    write_together(f->x, f->a, f->path, n, out);
}

int tn_program_write_file(tn_program *x, const char *path, const char *prefix)
{
    if (!GIVEN(args_owner(x), x, path, prefix))
        return TN_CODE_USAGE;
    FileArgs f = {x, NULL, path, prefix};
    return try_aside(x->h.owner, &f.a, write_outputs, &f);
}
