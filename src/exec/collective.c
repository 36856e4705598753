/* Collectives as jobs of the rank's comm. A collective's step starts its job and returns; the step
 * of its wait_tensor waits until the job has ended. Jobs are made when the program joins: which
 * bytes go where is known but for the addresses, which are those of the call, in this iteration of
 * the loops around, and are filled in where it starts.
 *
 *   all_gather       every rank's x to all, into their result
 *   all_to_all       by sizes, into the result
 *   broadcast        the source's x to all, into their result
 *   reduce_scatter   every rank's parts to their ranks, into the workspace; each reduces its own
 *   all_reduce       likewise, of x's elements in row-major order, then a gather of the parts
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

enum { ROUNDS = 3 };

/* A reduction by comm's thread: a part of each member, this rank's own among them. */
typedef struct LocalSum {
    const Node *node;
    int count;
    const void **x;
    int64_t nelem;
    void *y;
} LocalSum;

struct Collective {
    int start; /* of a wait: the step for whose end it waits, or -1: no collective's */
    bool runs; /* it has started and not been waited for */
    CommJob job;
    CommRound round[ROUNDS];
    MemberBytes *path[ROUNDS]; /* by member, of the rounds that exchange */
    LocalSum sum;
    CallBytes *part, result; /* of the reduction: by member where its part is; the result */
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
    int n, me; /* members, and which of them this rank is */
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
    j->group[j->ngroup] = comm_group(j->x->comm, j->a, id, (int)count, rank, j->fast);
    return j->group[j->ngroup++];
}

/* ---- rounds ---- */

static CommRound *add_round(CollectiveMake *m, RoundKind kind)
{
    CommRound *r = &m->k->round[m->k->job.nround++];
    r->kind = kind;
    return r;
}

/* Returns the paths, by member, to be filled. */
static MemberBytes *add_exchange(CollectiveMake *m)
{
    int at = m->k->job.nround;
    add_round(m, ROUND_EXCHANGE)->part = NEWN(m->j->a, CommPart, m->n);
    return m->k->path[at] = NEWN(m->j->a, MemberBytes, m->n);
}

static int64_t nbytes_of(const Tensor *t)
{
    return tensor_nelem(t) * dtype_size(t->dtype);
}

/* All of the operand to all members. */
static void make_gather(CollectiveMake *m)
{
    MemberBytes *path = add_exchange(m);
    int64_t n = nbytes_of(&m->c->in[0]);
    for (int i = 0; i < m->n; i++)
        path[i] = (MemberBytes){{AT_IN, 0, n}, {AT_OUT, i * n, n}};
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

static void reduce(void *arg)
{
    const LocalSum *r = arg;
    collective_reduce(r->node, r->count, r->x, r->nelem, r->y);
}

/* The bytes of member i's part of a tensor that all have; the last parts may be shorter. */
static CallBytes part_of(const CollectiveMake *m, Where where, int i)
{
    const Tensor *t = &m->c->in[0];
    int64_t n = nbytes_of(t), size = dtype_size(t->dtype);
    int64_t part = (tensor_nelem(t) + m->n - 1) / m->n * size, at = MIN(i * part, n);
    return (CallBytes){where, at, MIN(part, n - at)};
}

static void make_reduction(CollectiveMake *m, bool scatter)
{
    Collective *k = m->k;
    MemberBytes *path = add_exchange(m);
    CallBytes own = part_of(m, AT_IN, m->me);
    int64_t slot = part_of(m, AT_IN, 0).nbytes; /* the longest */
    k->part = NEWN(m->j->a, CallBytes, m->n);
    for (int i = 0; i < m->n; i++) {
        bool other = i != m->me;
        CallBytes to = {AT_WORK, (i - (i > m->me)) * slot, own.nbytes};
        k->part[i] = other ? to : own;
        if (other)
            path[i] = (MemberBytes){part_of(m, AT_IN, i), to};
    }
    k->result = scatter ? (CallBytes){AT_OUT, 0, own.nbytes} : part_of(m, AT_OUT, m->me);
    k->sum = (LocalSum){m->c->node, m->n, NEWN(m->j->a, const void *, m->n),
                        own.nbytes / dtype_size(m->c->in[0].dtype), NULL};
    CommRound *r = add_round(m, ROUND_CALL);
    r->call = reduce;
    r->arg = &k->sum;
}

/* Each member's reduced part to all. */
static void make_sharing(CollectiveMake *m)
{
    MemberBytes *path = add_exchange(m);
    for (int i = 0; i < m->n; i++)
        if (i != m->me)
            path[i] = (MemberBytes){part_of(m, AT_OUT, m->me), part_of(m, AT_OUT, i)};
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

/* Whether the library can do it. */
static bool make_fast(CollectiveMake *m, bool scatter)
{
    CommRound r = {.kind = ROUND_REDUCE, .scatter = scatter};
    r.count = tensor_nelem(&m->c->out[0]);
    if (!m->j->fast || !comm_reduces(m->k->job.group) || !comm_op(m->c->node, &r.op) ||
        !comm_type(m->c->in[0].dtype, &r.type))
        return false;
    *add_round(m, ROUND_REDUCE) = r;
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
    } else if (!make_fast(m, scatter)) {
        make_reduction(m, scatter);
        if (!scatter)
            make_sharing(m);
    }
}

/* The numbers of bytes, which no run changes. */
static void fill_sizes(Collective *k, int n)
{
    for (int r = 0; r < k->job.nround; r++)
        for (int i = 0; k->path[r] && i < n; i++) {
            k->round[r].part[i].nsend = k->path[r][i].from.nbytes;
            k->round[r].part[i].nreceive = k->path[r][i].to.nbytes;
        }
}

/* Messages are read and written by the host alone. A space without bytes has no memory. */
static void check_reach(const Program *x, const Step *s)
{
    for (int k = 0; k <= s->narg; k++) {
        int storage = k < s->narg ? s->arg[k].storage : s->work;
        const Memory *m = storage < 0 ? NULL : x->memory[x->plan->storage[storage].space];
        CHECK(!m || m->on_host);
    }
}

static void make_job(Join *j, int i)
{
    const Call *c = &j->x->call[i];
    Collective *k = &j->x->collective[i];
    CommGroup *g = find_group(j, c->node);
    CollectiveMake m = {j, k, c, comm_group_size(g), comm_member(g)};
    CHECK(tensor_contiguous(&c->in[0]) && tensor_contiguous(&c->out[0]));
    check_reach(j->x, &j->x->plan->step[i]);
    k->job.group = g;
    k->job.what = arena_printf(j->a, "%s %%%s", c->node->op->name, c->node->out[0]->name);
    k->job.round = k->round;
    make_rounds(&m);
    fill_sizes(k, m.n);
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
    if (device_is_gpu(j->x->plan->device))
        fail(ctx, TN_USAGE, "ranks run on cpu, found device %s", j->x->plan->device->name);
}

/* Each collective has one wait: without it a run would return while messages still move. */
static void check_waits(const Join *j)
{
    const Plan *p = j->x->plan;
    int *count = NEWN(j->a, int, p->nstep);
    for (int i = 0; i < p->nstep; i++)
        if (j->x->collective[i].start >= 0)
            count[j->x->collective[i].start]++;
    for (int i = 0; i < p->nstep; i++) {
        const Step *s = &p->step[i];
        if (s->kind == STEP_CALL && s->node->op->class == CLASS_COLLECTIVE && count[i] != 1)
            fail_node(p->g, s->node, "expected one wait_tensor that waits for it, found %d",
                      count[i]);
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
        x->collective[i].start = s->kind == STEP_CALL && s->node->op->wait ? plan_find_start(p, i) : -1;
        if (s->kind == STEP_CALL && s->node->op->class == CLASS_COLLECTIVE)
            make_job(j, i);
    }
    check_waits(j);
}

/* ---- running ---- */

static void fill_addresses(Collective *k, const Call *c)
{
    char *const base[NMEMORY] = {c->in[0].data, c->out[0].data, c->work};
    int n = comm_group_size(k->job.group);
    for (int r = 0; r < k->job.nround; r++)
        for (int i = 0; k->path[r] && i < n; i++) {
            const MemberBytes *path = &k->path[r][i];
            k->round[r].part[i].send = base[path->from.where] + path->from.at;
            k->round[r].part[i].receive = base[path->to.where] + path->to.at;
        }
    for (int i = 0; i < k->sum.count; i++)
        k->sum.x[i] = base[k->part[i].where] + k->part[i].at;
    k->sum.y = base[k->result.where] + k->result.at;
    k->round[0].from = c->in[0].data;
    k->round[0].to = c->out[0].data;
}

int collective_step(Program *x, int i, const Call *c, char *message)
{
    Collective *k = &x->collective[i];
    if (k->start < 0) {
        if (k->runs) { /* comm's thread still reads its addresses */
            snprintf(message, RUN_MESSAGE, "%s still runs, of a run that has failed", k->job.what);
            return -1;
        }
        fill_addresses(k, c);
        k->runs = true;
        comm_start(x->comm, &k->job);
        return 0;
    }
    k = &x->collective[k->start];
    CHECK(k->runs && c->out[0].data == c->in[0].data);
    k->runs = false;
    return comm_wait(x->comm, &k->job, message);
}
