/* Collectives as jobs of the rank's comm. A collective's step starts its job and returns; the step
 * of its wait_tensor waits until the job has ended. Jobs are made when the program joins: which
 * bytes go where is known but for the addresses, which are those of the call, in this iteration of
 * the loops around, and are filled in where it starts.
 *
 *   all_gather       every rank's x to all, into their result
 *   all_to_all       by sizes, into the result
 *   broadcast        the source's x to all, into their result
 *   permute_tensor   every rank's x to one other, into its result
 *   reduce_scatter   every rank's parts to their ranks, into the workspace; each reduces its own
 *   all_reduce       likewise, of x's elements in row-major order, then a gather of the parts
 *
 * Several tensors each go so; a member gets its parts of all in one message.
 *
 * So reductions have one order, that of the group's ranks (op/collective.c). `fast` leaves them to
 * the library, where it has the op and the dtype. A group of one rank copies. */
#include "exec.h"

#include <string.h>

/* A tensor of the call, or its workspace. */
typedef enum { AT_IN, AT_OUT, AT_WORK, NMEMORY } Where;

/* Bytes from `at` on. */
typedef struct CallBytes {
    Where where;
    int64_t at, nbytes;
} CallBytes;

/* Bytes for a member of the group and from it. */
typedef struct MemberBytes {
    CallBytes from, to;
} MemberBytes;

enum {
    ROUNDS = 3,      /* or one for each tensor, by the library */
    SLICE = 1 << 17, /* elements that are reduced before comm looks at other groups */
};

/* A reduction by comm's thread: a part of each member, this rank's own among them. */
typedef struct LocalSum {
    const Node *node;
    int count;
    const void **x, **from; /* from: of a slice */
    int64_t nelem;
    void *y;
} LocalSum;

/* The reduction of a tensor: by member where its part is; the result. */
typedef struct CallSum {
    LocalSum sum;
    CallBytes *part, result;
} CallSum;

struct Collective {
    int start;      /* of a wait: the step for whose end it waits, or -1: no collective's */
    int left;       /* waits that have not come since it started: all of them while it runs */
    int ntensor, n; /* operands, of which each has its result; members */
    CommJob job;
    MemberBytes **path;       /* by round, of those that exchange: by tensor and member */
    CallSum *sum;             /* by tensor; NULL: it does not reduce, or the library does */
    const DeviceRanks *ranks; /* that move its bytes; NULL: comm does */
    void *group;              /* theirs */
    Event begun, ended;       /* on the device */
};

/* While a program's jobs are made. */
typedef struct Join {
    Program *x;
    Arena *a;
    const Mesh *mesh;
    bool fast;
    const char *name[COMM_GROUPS];
    CommGroup *group[COMM_GROUPS];
    int ngroup;
} Join;

/* One collective while its job is made. */
typedef struct CollectiveMake {
    Join *j;
    Collective *k;
    const Call *c;
    int n, me;    /* members, and which of them this rank is */
    int64_t work; /* bytes of the workspace that have their use */
} CollectiveMake;

/* ---- groups ---- */

static int member_rank(const Mesh *mesh, int naxes, const int *axes, int64_t i)
{
    Mesh m = *mesh;
    for (int c = naxes - 1; c >= 0; c--) {
        m.at[axes[c]] = i % m.size[axes[c]];
        i /= m.size[axes[c]];
    }
    return (int)mesh_rank(&m);
}

/* All ranks make them in the order in which the plan names them. Programs share those of the same
 * ranks. Without a mesh a group is of this rank alone. */
static CommGroup *find_group(Join *j, const Node *n)
{
    const char *name = n->attr[attr_index(n->op, "group")].s;
    for (int k = 0; k < j->ngroup; k++)
        if (!strcmp(j->name[k], name))
            return j->group[k];
    int axes[MAX_MESH], naxes = j->mesh ? group_axes(j->mesh, name, axes) : 0;
    int64_t count = naxes < 0 ? 0 : group_nranks(j->mesh, naxes, axes);
    int *rank = NEWN(j->a, int, count);
    for (int64_t i = 0; i < count; i++)
        rank[i] = j->mesh ? member_rank(j->mesh, naxes, axes, i) : 0;
    int id = count ? comm_group_id(j->x->comm, (int)count, rank) : -1;
    if (id < 0)
        fail_node(j->x->plan->g, n, "group \"%s\": expected one of at most %d of the mesh", name,
                  COMM_GROUPS - 1);
    j->name[j->ngroup] = name;
    j->group[j->ngroup] = comm_group(j->x->comm, j->a, id, (int)count, rank);
    return j->group[j->ngroup++];
}

/* ---- rounds ---- */

static CommRound *add_round(CollectiveMake *m, RoundKind kind)
{
    CommRound *r = &m->k->job.round[m->k->job.nround++];
    r->kind = kind;
    return r;
}

/* Returns the paths, by tensor and member, to be filled. A member gets one message. */
static MemberBytes *add_exchange(CollectiveMake *m)
{
    int at = m->k->job.nround, count = m->k->ntensor * m->n;
    CommPart *part = add_round(m, ROUND_EXCHANGE)->part = NEWN(m->j->a, CommPart, count);
    for (int i = m->n; i < count; i++)
        part[i - m->n].next = &part[i];
    return m->k->path[at] = NEWN(m->j->a, MemberBytes, count);
}

static int64_t nbytes_of(const Tensor *t)
{
    return tensor_nelem(t) * dtype_size(t->dtype);
}

/* All of the operands to all members. */
static void make_gather(CollectiveMake *m)
{
    MemberBytes *path = add_exchange(m);
    m->k->job.round->gathers = true;
    for (int t = 0; t < m->k->ntensor; t++) {
        int64_t n = nbytes_of(&m->c->in[t]);
        for (int i = 0; i < m->n; i++)
            *path++ = (MemberBytes){{AT_IN, 0, n}, {AT_OUT, i * n, n}};
    }
}

static int64_t row_nbytes(const Tensor *t)
{
    int64_t n = dtype_size(t->dtype);
    for (int d = 1; d < t->rank; d++)
        n *= t->dim[d];
    return n;
}

/* Bytes of rows to or from member i, of `all` rows. */
static int64_t size_of(const CollectiveMake *m, const char *sizes, int64_t all, int i)
{
    const Attr *a = &m->c->node->attr[attr_index(m->c->node->op, sizes)];
    return row_nbytes(&m->c->in[0]) * (a->i ? a->ints[i] : all / m->n);
}

static void check_sizes(const CollectiveMake *m, const char *sizes, int64_t all)
{
    const Node *n = m->c->node;
    int64_t count = n->attr[attr_index(n->op, sizes)].i;
    if (count ? count != m->n : all % m->n)
        fail_node(m->j->x->plan->g, n, "%s: expected %d of them, or rows that %d divides", sizes,
                  m->n, m->n);
}

static void make_all_to_all(CollectiveMake *m)
{
    static const char in[] = "input_split_sizes", out[] = "output_split_sizes";
    int64_t sent = 0, received = 0, nin = m->c->in[0].dim[0], nout = m->c->out[0].dim[0];
    MemberBytes *path = add_exchange(m);
    check_sizes(m, in, nin);
    check_sizes(m, out, nout);
    for (int i = 0; i < m->n; i++) {
        path[i].from = (CallBytes){AT_IN, sent, size_of(m, in, nin, i)};
        path[i].to = (CallBytes){AT_OUT, received, size_of(m, out, nout, i)};
        sent += path[i].from.nbytes;
        received += path[i].to.nbytes;
    }
    if (path[m->me].from.nbytes != path[m->me].to.nbytes)
        fail_node(m->j->x->plan->g, m->c->node,
                  "rank %d of the group: expected as many rows sent to itself as received from "
                  "itself, found %lld and %lld bytes",
                  m->me, (long long)path[m->me].from.nbytes, (long long)path[m->me].to.nbytes);
}

/* All of the source's operand to all members, the source too. */
static void make_broadcast(CollectiveMake *m)
{
    const Node *n = m->c->node;
    int64_t src = n->attr[attr_index(n->op, "src")].i, nbytes = nbytes_of(&m->c->in[0]);
    MemberBytes *path = add_exchange(m);
    if (src < 0 || src >= m->n)
        fail_node(m->j->x->plan->g, n, "src: expected one of the %d ranks of the group, found %lld",
                  m->n, (long long)src);
    path[src].to = (CallBytes){AT_OUT, 0, nbytes};
    for (int i = 0; i < m->n && m->me == src; i++)
        path[i].from = (CallBytes){AT_IN, 0, nbytes};
}

/* All of the operand to the member `shift` places before, and that of the one after. */
static void make_permute(CollectiveMake *m)
{
    const Node *n = m->c->node;
    int shift = (int)(n->attr[attr_index(n->op, "shift")].i % m->n);
    int64_t nbytes = nbytes_of(&m->c->in[0]);
    MemberBytes *path = add_exchange(m);
    path[(m->me + m->n - shift) % m->n].from = (CallBytes){AT_IN, 0, nbytes};
    path[(m->me + m->n + shift) % m->n].to = (CallBytes){AT_OUT, 0, nbytes};
}

/* Elements from `at` on. */
static void reduce_some(const LocalSum *r, int64_t at, int64_t nelem)
{
    int64_t skip = at * dtype_size(r->node->in[0]->type.dtype);
    for (int i = 0; i < r->count; i++)
        r->from[i] = (const char *)r->x[i] + skip;
    collective_reduce(r->node, r->count, r->from, nelem, (char *)r->y + skip);
}

/* Slice i of all tensors' one after the other; each has one at least. */
static bool reduce(void *arg, int64_t i)
{
    const Collective *k = arg;
    for (int t = 0; t < k->ntensor; t++) {
        const LocalSum *r = &k->sum[t].sum;
        int64_t count = MAX(1, (r->nelem + SLICE - 1) / SLICE), at = i * SLICE;
        if (i < count) {
            reduce_some(r, at, MIN(SLICE, r->nelem - at));
            return t + 1 == k->ntensor && i + 1 == count;
        }
        i -= count;
    }
    return true;
}

/* The bytes of member i's part of operand t, which all have; the last parts may be shorter. */
static CallBytes part_of(const CollectiveMake *m, Where where, int t, int i)
{
    const Tensor *x = &m->c->in[t];
    int64_t n = nbytes_of(x), size = dtype_size(x->dtype);
    int64_t part = (tensor_nelem(x) + m->n - 1) / m->n * size, at = MIN(i * part, n);
    return (CallBytes){where, at, MIN(part, n - at)};
}

/* The others' parts of operand t come into the workspace. */
static void make_sum(CollectiveMake *m, int t, bool scatter, MemberBytes *path)
{
    CallSum *s = &m->k->sum[t];
    CallBytes own = part_of(m, AT_IN, t, m->me);
    int64_t slot = part_of(m, AT_IN, t, 0).nbytes; /* the longest */
    s->part = NEWN(m->j->a, CallBytes, m->n);
    for (int i = 0; i < m->n; i++) {
        bool other = i != m->me;
        CallBytes to = {AT_WORK, m->work, own.nbytes};
        s->part[i] = other ? to : own;
        if (other)
            path[i] = (MemberBytes){part_of(m, AT_IN, t, i), to};
        m->work += other ? slot : 0;
    }
    s->result = scatter ? (CallBytes){AT_OUT, 0, own.nbytes} : part_of(m, AT_OUT, t, m->me);
    s->sum = (LocalSum){m->c->node,
                        m->n,
                        NEWN(m->j->a, const void *, m->n),
                        NEWN(m->j->a, const void *, m->n),
                        own.nbytes / dtype_size(m->c->in[t].dtype),
                        NULL};
}

static void make_reduction(CollectiveMake *m, bool scatter)
{
    Collective *k = m->k;
    MemberBytes *path = add_exchange(m);
    k->sum = NEWN(m->j->a, CallSum, k->ntensor);
    for (int t = 0; t < k->ntensor; t++)
        make_sum(m, t, scatter, path + (ptrdiff_t)t * m->n);
    CommRound *r = add_round(m, ROUND_CALL);
    r->call = reduce;
    r->arg = k;
}

/* Each member's reduced parts to all. */
static void make_sharing(CollectiveMake *m)
{
    MemberBytes *path = add_exchange(m);
    for (int t = 0; t < m->k->ntensor; t++, path += m->n)
        for (int i = 0; i < m->n; i++)
            if (i != m->me)
                path[i] = (MemberBytes){part_of(m, AT_OUT, t, m->me), part_of(m, AT_OUT, t, i)};
}

/* ---- reductions of the library ---- */

static bool comm_type(DType d, CommType *t)
{
    static const DType of[NCOMM_TYPE] = {F64, F32, I64, I32};
    int i = 0;
    while (i < NCOMM_TYPE && of[i] != d)
        i++;
    *t = (CommType)i;
    return i < NCOMM_TYPE;
}

static bool comm_op(const Node *n, CommOp *op)
{
    static const char *const of[NCOMM_OP] = {"sum", "max", "min", "product"};
    int i = 0;
    while (i < NCOMM_OP && strcmp(of[i], n->attr[attr_index(n->op, "reduce_op")].s))
        i++;
    *op = (CommOp)i;
    return i < NCOMM_OP;
}

/* Whether the library can do it: one tensor after the other. */
static bool make_fast(CollectiveMake *m, bool scatter)
{
    CommRound r = {.kind = ROUND_REDUCE, .scatter = scatter};
    if (!m->j->fast || !(m->k->ranks || comm_reduces(m->k->job.group)) ||
        !comm_op(m->c->node, &r.op) || !comm_type(m->c->in[0].dtype, &r.type))
        return false;
    for (int t = 0; t < m->k->ntensor; t++) {
        r.count = tensor_nelem(&m->c->out[t]);
        *add_round(m, ROUND_REDUCE) = r;
    }
    return true;
}

/* ---- making ---- */

static void make_rounds(CollectiveMake *m)
{
    CollectiveKind kind = node_collective(m->c->node);
    bool scatter = kind == REDUCE_SCATTER;
    if (m->n == 1 || kind == ALL_GATHER) {
        make_gather(m);
    } else if (kind == ALL_TO_ALL) {
        make_all_to_all(m);
    } else if (kind == BROADCAST) {
        make_broadcast(m);
    } else if (kind == PERMUTE) {
        make_permute(m);
    } else if (!make_fast(m, scatter)) {
        make_reduction(m, scatter);
        if (!scatter)
            make_sharing(m);
    }
}

/* The numbers of bytes, which no run changes. */
static void fill_sizes(Collective *k)
{
    for (int r = 0; r < k->job.nround; r++)
        for (int i = 0; k->path[r] && i < k->ntensor * k->n; i++) {
            k->job.round[r].part[i].nsend = k->path[r][i].from.nbytes;
            k->job.round[r].part[i].nreceive = k->path[r][i].to.nbytes;
        }
}

/* Whether the host reads and writes what the step does, as comm does; else it all is the device's.
 * A space without bytes has no memory. */
static bool is_on_host(const Program *x, const Step *s)
{
    int here = 0, there = 0;
    for (int k = 0; k <= s->narg; k++) {
        int storage = k < s->narg ? s->arg[k].storage : s->work;
        const Memory *m = storage < 0 ? NULL : x->memory[x->plan->storage[storage].space];
        here += m && m->on_host;
        there += m && !m->on_host;
    }
    CHECK(!here || !there);
    return !there;
}

static void use_device(Join *j, Collective *k)
{
    const Driver *d = j->x->driver;
    CHECK(d->ranks);
    k->ranks = d->ranks;
    d->event(j->a, &k->begun);
    d->event(j->a, &k->ended);
}

static void make_job(Join *j, int i)
{
    const Call *c = &j->x->call[i];
    Collective *k = &j->x->collective[i];
    CommGroup *g = find_group(j, c->node);
    CollectiveMake m = {j, k, c, comm_group_size(g), comm_member(g), 0};
    for (int t = 0; t < c->nin; t++)
        CHECK(tensor_contiguous(&c->in[t]) && tensor_contiguous(&c->out[t]));
    k->ntensor = c->nin;
    k->n = m.n;
    k->path = NEWN(j->a, MemberBytes *, MAX(ROUNDS, c->nin));
    k->job.round = NEWN(j->a, CommRound, MAX(ROUNDS, c->nin));
    k->job.group = g;
    k->job.what = arena_printf(j->a, "%s %%%s", c->node->op->name, c->node->out[0]->name);
    if (!is_on_host(j->x, &j->x->plan->step[i]))
        use_device(j, k);
    make_rounds(&m);
    fill_sizes(k);
    comm_prepare(j->a, &k->job);
}

static void check_mesh(const Join *j)
{
    Ctx *ctx = arena_ctx(j->a);
    int n = comm_size(j->x->comm), rank = comm_rank(j->x->comm);
    const char *text = j->mesh ? mesh_text(j->a, j->mesh) : "none";
    int64_t want = j->mesh ? mesh_nranks(j->mesh) : 1;
    if (want != n)
        fail(ctx, TN_USAGE, "the plan is for %lld ranks (mesh %s), found %d", (long long)want, text,
             n);
    if (j->mesh && mesh_rank(j->mesh) != rank)
        fail(ctx, TN_USAGE, "the plan is for rank %lld, found rank %d",
             (long long)mesh_rank(j->mesh), rank);
    if (device_is_gpu(j->x->plan->device) && n > 1 && comm_is_threads(j->x->comm))
        fail(ctx, TN_USAGE,
             "ranks on device %s are processes, found threads of one: start them by mpirun or srun",
             j->x->plan->device->name);
}

static bool is_collective(const Step *s)
{
    return s->kind == STEP_CALL && s->node->op->class == CLASS_COLLECTIVE;
}

/* How many steps wait for result t of the collective of a step. */
static int count_waits(const Join *j, int start, int t)
{
    int count = 0;
    for (int i = start + 1; i < j->x->plan->nstep; i++)
        count += j->x->collective[i].start == start && j->x->plan->step[i].node->in[0]->index == t;
    return count;
}

/* Each result has one wait: without it a run would return while messages still move. */
static void check_waits(const Join *j)
{
    const Plan *p = j->x->plan;
    for (int i = 0; i < p->nstep; i++)
        for (int t = 0; is_collective(&p->step[i]) && t < p->step[i].node->nout; t++) {
            const Node *n = p->step[i].node;
            int count = count_waits(j, i, t);
            const char *what = n->nout == 1 ? "it" : arena_printf(j->a, "%%%s", n->out[t]->name);
            if (count != 1)
                fail_node(p->g, n, "expected one wait_tensor that waits for %s, found %d", what,
                          count);
        }
}

void program_join(Program *x, Arena *a, Comm *c, bool fast)
{
    const Plan *p = x->plan;
    Join *j = NEW(a, Join);
    *j = (Join){.x = x, .a = a, .mesh = p->g->mesh, .fast = fast};
    x->comm = c;
    check_mesh(j);
    x->collective = NEWN(a, Collective, p->nstep);
    for (int i = 0; i < p->nstep; i++) {
        const Step *s = &p->step[i];
        x->collective[i].start =
            s->kind == STEP_CALL && s->node->op->wait ? plan_find_start(p, i) : -1;
        if (is_collective(s))
            make_job(j, i);
    }
    check_waits(j);
    late_prepare(x, a);
}

void program_library(Program *x, Ctx *ctx)
{
    for (int i = 0; i < x->plan->nstep; i++) {
        Collective *k = &x->collective[i];
        const CommJob *job = &k->job;
        if (k->ranks && !x->ranks)
            x->ranks = k->ranks->open(x->comm, x->plan->number);
        if (k->ranks)
            k->group = k->ranks->group(x->ranks, job->group);
        for (int r = 0; r < job->nround && !k->ranks; r++)
            if (job->round[r].kind == ROUND_REDUCE)
                comm_library(job->group, ctx);
    }
}

/* ---- running ---- */

static void *address_of(const Call *c, int t, const CallBytes *b)
{
    char *const base[NMEMORY] = {c->in[t].data, c->out[t].data, c->work};
    return base[b->where] + b->at;
}

static void fill_sum(CallSum *s, const Call *c, int t)
{
    for (int i = 0; i < s->sum.count; i++)
        s->sum.x[i] = address_of(c, t, &s->part[i]);
    s->sum.y = address_of(c, t, &s->result);
}

static void fill_addresses(Collective *k, const Call *c)
{
    for (int r = 0; r < k->job.nround; r++) {
        CommRound *x = &k->job.round[r];
        for (int i = 0; k->path[r] && i < k->ntensor * k->n; i++) {
            x->part[i].send = address_of(c, i / k->n, &k->path[r][i].from);
            x->part[i].receive = address_of(c, i / k->n, &k->path[r][i].to);
        }
        if (x->kind == ROUND_REDUCE) {
            x->from = c->in[r].data;
            x->to = c->out[r].data;
        }
    }
    for (int t = 0; k->sum && t < k->ntensor; t++)
        fill_sum(&k->sum[t], c, t);
}

/* The collective of a step, or that for which it waits; NULL: none. */
static Collective *collective_of(const Program *x, int i)
{
    int start = x->collective[i].start;
    return &x->collective[start < 0 ? i : start];
}

bool collective_on_device(const Program *x, int i)
{
    return collective_of(x, i)->ranks;
}

/* The sums of all its tensors. */
static int sum_on(void *arg, void *stream, char *message)
{
    const Collective *k = arg;
    int bad = 0;
    for (int t = 0; t < k->ntensor && !bad; t++) {
        const LocalSum *r = &k->sum[t].sum;
        bad = k->ranks->sum(stream, r->node, r->count, r->x, r->nelem, r->y, message);
    }
    return bad;
}

static int device_step(const Program *x, int i, const Call *c, char *message)
{
    Collective *k = collective_of(x, i);
    if (k != &x->collective[i])
        return k->ranks->wait(c->stream, &k->ended, message);
    CHECK(k->group);
    fill_addresses(k, c);
    return k->ranks->start(x->ranks, k->group, c->stream, &k->job, sum_on, &k->begun, &k->ended,
                           message);
}

int collective_step(Program *x, int i, const Call *c, char *message)
{
    Collective *k = &x->collective[i];
    if (collective_on_device(x, i))
        return device_step(x, i, c, message);
    if (k->start < 0) {
        if (k->left == k->ntensor) { /* comm's thread still reads its addresses */
            snprintf(message, RUN_MESSAGE, "%s still runs, of a run that has failed", k->job.what);
            return -1;
        }
        fill_addresses(k, c);
        k->left = k->ntensor;
        comm_start(x->comm, &k->job);
        return 0;
    }
    k = &x->collective[k->start];
    CHECK(k->left > 0 && c->out[0].data == c->in[0].data);
    bool first = k->left-- == k->ntensor;
    return first ? comm_wait(x->comm, &k->job, message) : 0;
}
