/* Files of tensors that all ranks of a program write together, byte for byte what one rank with the
 * same weights would write.
 *
 * A file is cut into contiguous pieces of bounded size. Each is written by one rank, of those that
 * have elements of it; if several have, as ranks that share rows, they send theirs to the writer
 * first. This is done in rounds, in which each rank writes one piece at most. All ranks know all
 * pieces, so they go through the same rounds, and their messages follow from the cuts. Of ranks
 * with the same elements only the first counts; padding is in no piece. A rank that fails goes on
 * to the next round with messages, says so, and all stop there.
 *
 * On file systems where several processes may not write to one file at once, or whose name is not
 * known here, rank 0 writes all pieces, in their order in the file; so it does to pipes. Each rank
 * syncs and then compares the file with what it put there. Rank 0 begins the file and, when all
 * agree that it is whole, gives it its name. */
#include "run.h"

#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

enum {
    PIECE = 4 << 20,      /* most bytes of a piece */
    SMALL_PIECE = 1 << 16 /* so many are not divided among ranks that share them */
};

/* Elements [first, first + n) of a tensor. */
typedef struct FilePiece {
    int tensor, writer;
    int64_t base; /* what axis 0 adds to the numbers of the ranks that have it; -1: any may */
    int64_t first, n;
    bool alone; /* the writer has all of it */
} FilePiece;

/* The numbers that the axes after the first add to a rank. */
typedef struct Sharers {
    int64_t *rank;
    int count;
} Sharers;

typedef struct Bytes {
    char *p;
    int64_t n, cap;
} Bytes;

/* Bytes for other ranks and from them in a round. */
typedef struct Traffic {
    Bytes send, received, joined;
    CommPart *part;
    int64_t *cursor; /* by rank: in what it has sent */
} Traffic;

/* Bytes [at, at + n) of a port, where the host can read them. */
typedef struct PortWindow {
    const PlanPort *port;
    int64_t at, n;
    const char *data;
} PortWindow;

/* Rank 0's message on a file that it has begun. */
typedef struct Begun {
    int64_t process;  /* its own, by which the file is named until it is whole */
    int64_t parallel; /* whether ranks write side by side */
} Begun;

typedef struct Together {
    tn_program *x;
    Comm *comm; /* NULL: one rank */
    int rank, nranks;
    Arena *a;
    const char *path;
    int n;
    const TensorOut *t;
    bool summed;
    TensorLayout layout;
    uint32_t *sum; /* by tensor, of what this rank has put, or all have */
    Begun begun;
    TensorWriter *w; /* NULL: another rank writes */
    PartMap *map;    /* by tensor */
    Sharers *sharers;
    FilePiece *piece; /* by writer: from first[writer] to before first[writer + 1] */
    int npiece, cappiece, *first;
    PortWindow window;
    Traffic traffic;
    int *codes; /* by rank */
    Code code;  /* this rank has failed, its message is the context's */
} Together;

/* ---- where ranks may write side by side ---- */

/* Whether several processes of this host may write to one file there. */
static bool is_local(const char *folder)
{
    static const struct {
        int64_t magic;
        const char *name;
    } known[] = {{0xEF53, "ext2, ext3, ext4"}, {0x58465342, "xfs"},     {0x9123683E, "btrfs"},
                 {0x01021994, "tmpfs"},        {0x858458F6, "ramfs"},   {0x794C7630, "overlay"},
                 {0x2FC12FC1, "zfs"},          {0xF2F52010, "f2fs"},    {0xCA451A4E, "bcachefs"},
                 {0x3153464A, "jfs"},          {0x52654973, "reiserfs"}};
    struct statfs s;
    if (statfs(folder, &s))
        return false;
    for (int i = 0; i < LEN(known); i++)
        if ((uint32_t)s.f_type == (uint32_t)known[i].magic)
            return true;
    return false;
}

/* Whether ranks write the file side by side. */
static bool is_parallel(const Together *o)
{
    const char *how = getenv("TENON_SAVE"), *slash = strrchr(o->path, '/');
    if (!o->comm || tensors_in_order(o->w))
        return false;
    if (how && (!strcmp(how, "stream") || !strcmp(how, "parallel")))
        return !strcmp(how, "parallel");
    const char *folder = !slash ? "." : arena_strndup(o->a, o->path, (size_t)(slash + 1 - o->path));
    return comm_here(o->comm) == o->nranks && is_local(folder);
}

/* ---- pieces ---- */

/* x, but once. */
static void add_number(Arena *a, Sharers *s, int *cap, int64_t x)
{
    for (int i = 0; i < s->count; i++)
        if (s->rank[i] == x)
            return;
    PUSH(a, s->rank, s->count, *cap, x);
}

static Sharers find_sharers(Arena *a, const PartMap *m)
{
    int cap = 0;
    Sharers all = {0};
    add_number(a, &all, &cap, 0);
    for (int d = 1; d < m->whole.rank; d++) {
        Sharers of = {0}, sum = {0};
        int capof = 0, capsum = 0;
        for (int64_t k = 0; k < m->nspan[d]; k++)
            add_number(a, &of, &capof, m->span[d][k].rank);
        for (int i = 0; i < all.count; i++)
            for (int k = 0; k < of.count; k++)
                add_number(a, &sum, &capsum, all.rank[i] + of.rank[k]);
        all = sum;
    }
    return all;
}

static void add_pieces(Together *o, FilePiece p, int64_t most)
{
    const Sharers *s = &o->sharers[p.tensor];
    int64_t end = p.first + p.n;
    for (int k = p.tensor; p.first < end; k++, p.first += p.n) {
        p.n = MIN(most, end - p.first);
        p.writer = p.base < 0 ? 0 : (int)(p.base + s->rank[k % s->count]);
        PUSH(o->a, o->piece, o->npiece, o->cappiece, p);
    }
}

/* Adds pieces of rows that the same ranks have. */
static void add_rows(Together *o, int tensor, int64_t first, int64_t n, int64_t base)
{
    const Sharers *s = &o->sharers[tensor];
    int64_t size = dtype_size(o->t[tensor].type.dtype), share = (n + s->count - 1) / s->count;
    int64_t most = s->count == 1 ? PIECE / size : MAX(MIN(share, PIECE / size), SMALL_PIECE / size);
    add_pieces(o, (FilePiece){tensor, 0, base, first, n, s->count == 1}, most);
}

static void add_tensor(Together *o, int tensor)
{
    const PartMap *m = &o->map[tensor];
    int64_t n = type_nelem(&m->whole), row = n;
    if (!n)
        return;
    if (!o->begun.parallel) {
        bool alone = o->sharers[tensor].count == 1;
        for (int64_t k = 0; m->whole.rank && k < m->nspan[0]; k++)
            alone &= !m->span[0][k].rank;
        add_pieces(o, (FilePiece){tensor, 0, -1, 0, n, alone}, PIECE / dtype_size(m->whole.dtype));
        return;
    }
    if (!m->whole.rank) {
        add_rows(o, tensor, 0, 1, 0);
        return;
    }
    row /= m->whole.dim[0];
    for (int64_t k = 0, end; k < m->nspan[0]; k = end) {
        const PartSpan *s = &m->span[0][k];
        for (end = k + 1; end < m->nspan[0] && m->span[0][end].rank == s->rank; end++)
            ;
        add_rows(o, tensor, s->first * row, (m->span[0][end - 1].end - s->first) * row, s->rank);
    }
}

/* Those of each writer together, in the order in which they are. */
static void sort_pieces(Together *o)
{
    FilePiece *sorted = NEWN(o->a, FilePiece, o->npiece);
    o->first = NEWN(o->a, int, o->nranks + 2); /* one further for counting */
    for (int i = 0; i < o->npiece; i++)
        o->first[o->piece[i].writer + 2]++;
    for (int w = 2; w < o->nranks + 2; w++)
        o->first[w] += o->first[w - 1];
    for (int i = 0; i < o->npiece; i++)
        sorted[o->first[o->piece[i].writer + 1]++] = o->piece[i];
    o->piece = sorted;
}

static void make_pieces(void *arg)
{
    Together *o = arg;
    const Mesh *m = graph_mesh(o->x->x->plan->g);
    o->map = NEWN(o->a, PartMap, o->n);
    o->sharers = NEWN(o->a, Sharers, o->n);
    for (int k = 0; k < o->n; k++) {
        int i = o->layout.order[k];
        const PlanPort *p = o->t[i].data;
        const Type *whole = &o->t[i].type;
        o->map[i] = p ? part_map(o->a, &p->type, m, p->cut, whole)
                      : part_map(o->a, whole, NULL, NULL, whole);
        o->sharers[i] = find_sharers(o->a, &o->map[i]);
        add_tensor(o, i);
    }
    sort_pieces(o);
}

/* The piece that a rank writes in a round; NULL: none. */
static const FilePiece *piece_of(const Together *o, int writer, int round)
{
    int i = o->first[writer] + round;
    return i < o->first[writer + 1] ? &o->piece[i] : NULL;
}

static int count_rounds(const Together *o)
{
    int n = 0;
    for (int w = 0; w < o->nranks; w++)
        n = MAX(n, o->first[w + 1] - o->first[w]);
    return n;
}

/* ---- bytes ---- */

static void drop_bytes(void *b)
{
    free(((Bytes *)b)->p);
}

/* Room for n more. */
static char *more_bytes(Together *o, Bytes *b, int64_t n)
{
    if (!b->p || b->n + n > b->cap) {
        int64_t cap = MAX(MAX(b->n + n, SMALL_PIECE), MIN(2 * b->cap, b->cap + PIECE));
        char *p = realloc(b->p, (size_t)cap);
        if (!p)
            fail(arena_ctx(o->a), TN_FAIL, "out of memory");
        b->p = p;
        b->cap = cap;
    }
    b->n += n;
    return b->p + b->n - n;
}

/* A port's bytes from `at` on, at most *n; sets how many. NULL: zeros. */
static const char *look(Together *o, const PlanPort *p, int64_t at, int64_t *n)
{
    static const char zeros[1 << 16];
    PortWindow *w = &o->window;
    if (!p) {
        *n = MIN(*n, LEN(zeros));
        return zeros;
    }
    if (w->port != p || at < w->at || at >= w->at + w->n) {
        w->port = NULL;
        w->at = at;
        w->n = MIN(PIECE, type_nbytes(&p->type) - at);
        w->data = stage_bytes(o->x, p, at, &w->n);
        w->port = p;
    }
    *n = MIN(*n, w->at + w->n - at);
    return w->data + (at - w->at);
}

/* ---- a round ---- */

/* The arguments of a function that sees each part of a piece. */
typedef struct PieceWalk {
    Together *o;
    const PlanPort *port;
    int64_t size, first; /* bytes of an element; the first element */
    int64_t at;          /* of the tensor in the file */
} PieceWalk;

static void walk(Together *o, const FilePiece *p, SeePartPiece *see)
{
    const TensorOut *t = &o->t[p->tensor];
    PieceWalk k = {o, t->data, dtype_size(t->type.dtype), p->first, o->layout.begin[p->tensor]};
    part_each_piece(&o->map[p->tensor], p->first, p->n, see, &k);
}

static void put_piece(void *arg, PartPiece x)
{
    const PieceWalk *k = arg;
    int64_t from = x.local * k->size, to = k->at + x.whole * k->size, end = to + x.n * k->size;
    for (int64_t n; to < end; from += n, to += n) {
        n = end - to;
        const char *data = look(k->o, k->port, from, &n);
        tensors_put(k->o->w, to, data, n);
    }
}

static void copy_part(const PieceWalk *k, PartPiece x, char *to)
{
    int64_t from = x.local * k->size, end = from + x.n * k->size;
    for (int64_t n; from < end; from += n, to += n) {
        n = end - from;
        const char *data = look(k->o, k->port, from, &n);
        memcpy(to, data, (size_t)n);
    }
}

static void pack_piece(void *arg, PartPiece x)
{
    const PieceWalk *k = arg;
    if (x.rank == k->o->rank)
        copy_part(k, x, more_bytes(k->o, &k->o->traffic.send, x.n * k->size));
}

static void count_piece(void *arg, PartPiece x)
{
    const PieceWalk *k = arg;
    if (x.rank != k->o->rank)
        k->o->traffic.part[x.rank].nreceive += x.n * k->size;
}

static void join_piece(void *arg, PartPiece x)
{
    const PieceWalk *k = arg;
    Together *o = k->o;
    char *to = o->traffic.joined.p + (x.whole - k->first) * k->size;
    if (x.rank == o->rank) {
        copy_part(k, x, to);
        return;
    }
    memcpy(to, o->traffic.received.p + o->traffic.cursor[x.rank], (size_t)(x.n * k->size));
    o->traffic.cursor[x.rank] += x.n * k->size;
}

typedef struct Round {
    Together *o;
    int number;
} Round;

static bool is_sharer(const Together *o, const FilePiece *p)
{
    const Sharers *s = &o->sharers[p->tensor];
    for (int i = 0; i < s->count; i++)
        if (p->base + s->rank[i] == o->rank)
            return true;
    return p->base < 0;
}

/* Packs this rank's parts of the others' pieces. */
static void pack(void *arg)
{
    const Round *r = arg;
    Together *o = r->o;
    o->traffic.send.n = 0;
    more_bytes(o, &o->traffic.send, 0);
    for (int w = 0; w < o->nranks; w++) {
        const FilePiece *p = piece_of(o, w, r->number);
        int64_t before = o->traffic.send.n;
        if (p && w != o->rank && !p->alone && is_sharer(o, p))
            walk(o, p, pack_piece);
        o->traffic.part[w].nsend = o->traffic.send.n - before;
    }
    int64_t at = 0;
    for (int w = 0; w < o->nranks; at += o->traffic.part[w++].nsend)
        o->traffic.part[w].send = o->traffic.send.p + at;
}

/* Makes room for others' parts of this rank's piece. */
static void make_room(void *arg)
{
    const Round *r = arg;
    Together *o = r->o;
    const FilePiece *p = piece_of(o, o->rank, r->number);
    int64_t at = 0;
    pack(arg);
    for (int q = 0; q < o->nranks; q++)
        o->traffic.part[q].nreceive = 0;
    if (p && !p->alone)
        walk(o, p, count_piece);
    for (int q = 0; q < o->nranks; at += o->traffic.part[q++].nreceive)
        o->traffic.cursor[q] = at;
    o->traffic.received.n = o->traffic.joined.n = 0;
    more_bytes(o, &o->traffic.received, at);
    for (int q = 0; q < o->nranks; q++)
        o->traffic.part[q].receive = o->traffic.received.p + o->traffic.cursor[q];
    if (p && !p->alone)
        more_bytes(o, &o->traffic.joined, p->n * dtype_size(o->t[p->tensor].type.dtype));
}

static void put(void *arg)
{
    const Round *r = arg;
    Together *o = r->o;
    const FilePiece *p = piece_of(o, o->rank, r->number);
    if (!p)
        return;
    if (p->alone) {
        walk(o, p, put_piece);
        return;
    }
    walk(o, p, join_piece);
    int64_t size = dtype_size(o->t[p->tensor].type.dtype);
    tensors_put(o->w, o->layout.begin[p->tensor] + p->first * size, o->traffic.joined.p,
                o->traffic.joined.n);
}

/* fn, unless this rank has failed. */
static void attempt(Together *o, void (*fn)(void *arg), void *arg)
{
    if (!o->code)
        o->code = ctx_try(arena_ctx(o->a), fn, arg);
}

/* Whether a rank has failed. Disks may be slow: nobody is late. */
static bool has_failed(Together *o)
{
    char message[COMM_MESSAGE] = "";
    int code = (int)o->code;
    bool failed = false;
    if (comm_gather(o->comm, &code, sizeof code, o->codes, true, message))
        fail(arena_ctx(o->a), TN_FAIL, "%s", message);
    for (int q = 0; q < o->nranks; q++)
        failed |= o->codes[q] != 0;
    return failed;
}

static void exchange(Together *o)
{
    char message[COMM_MESSAGE] = "";
    if (comm_exchange(o->comm, o->traffic.part, true, message))
        fail(arena_ctx(o->a), TN_FAIL, "%s", message);
}

/* False: a rank has failed. */
static bool do_round(Together *o, int number)
{
    Round r = {o, number};
    bool alone = true;
    for (int w = 0; w < o->nranks && alone; w++) {
        const FilePiece *p = piece_of(o, w, number);
        alone = !p || p->alone;
    }
    if (!alone) {
        attempt(o, make_room, &r);
        if (has_failed(o))
            return false;
        exchange(o);
    }
    attempt(o, put, &r);
    return true;
}

/* ---- a file ---- */

static void begin(void *arg)
{
    Together *o = arg;
    o->layout = tensors_layout(o->a, o->path, o->n, o->t, o->summed);
    o->traffic.part = NEWN(o->a, CommPart, o->nranks);
    o->traffic.cursor = NEWN(o->a, int64_t, o->nranks);
    o->codes = NEWN(o->a, int, o->nranks);
    arena_defer(o->a, drop_bytes, &o->traffic.send);
    arena_defer(o->a, drop_bytes, &o->traffic.received);
    arena_defer(o->a, drop_bytes, &o->traffic.joined);
    if (o->rank)
        return;
    o->w = tensors_begin(o->a, o->path, &o->layout, o->comm != NULL);
    o->begun = (Begun){getpid(), is_parallel(o)};
}

static void join(void *arg)
{
    Together *o = arg;
    if (o->rank && o->begun.parallel)
        o->w = tensors_join(o->a, o->path, &o->layout, o->begun.process);
}

/* Adds up the ranks' sums, which all of them have then; one without a writer has put nothing. */
static void join_sums(Together *o)
{
    char message[COMM_MESSAGE] = "";
    const uint32_t *own = o->w ? tensors_sums(o->w) : NULL;
    o->sum = NEWN(o->a, uint32_t, o->n);
    if (own)
        memcpy(o->sum, own, sizeof *own * (size_t)o->n);
    if (!o->comm)
        return;
    uint32_t *all = NEWN(o->a, uint32_t, (size_t)o->n * (size_t)o->nranks);
    if (comm_gather(o->comm, o->sum, (int64_t)sizeof *all * o->n, all, true, message))
        fail(arena_ctx(o->a), TN_FAIL, "%s", message);
    for (int q = 0; q < o->nranks; q++)
        for (int i = 0; q != o->rank && i < o->n; i++)
            o->sum[i] ^= all[q * o->n + i];
}

static void seal(void *arg)
{
    Together *o = arg;
    if (!o->rank)
        tensors_seal(o->w, o->sum);
}

static void sync_own(void *arg)
{
    Together *o = arg;
    if (o->w)
        tensors_sync(o->w);
}

static void write_pieces(void *arg)
{
    Together *o = arg;
    attempt(o, join, o);
    int n = count_rounds(o);
    for (int i = 0; i < n; i++)
        if (!do_round(o, i))
            break;
    if (o->summed)
        join_sums(o);
    if (o->summed)
        attempt(o, seal, o);
    attempt(o, sync_own, o);
    if (o->code)
        fail_again(arena_ctx(o->a), "");
}

static void check_own(void *arg)
{
    Together *o = arg;
    if (o->w && o->comm)
        tensors_check(o->w);
}

static void end(void *arg)
{
    Together *o = arg;
    if (!o->rank)
        tensors_end(o->w);
}

static void write_alone(void *arg)
{
    begin(arg);
    make_pieces(arg);
    write_pieces(arg);
}

/* A file of each rank: none gets its name before all are whole. */
static void write_own(Together *o)
{
    tn_context *owner = o->x->h.owner;
    Comm *all = o->comm;
    o->comm = NULL;
    o->nranks = 1;
    ranks_do(owner, all, write_alone, o);
    ranks_do(owner, all, end, o);
    arena_reset(o->a);
}

void write_together(tn_program *x, Arena *with, const char *path, int n, const TensorOut *t,
                    bool summed)
{
    tn_context *owner = x->h.owner;
    Arena *a = arena_tmp(with);
    Together *o = NEW(with, Together);
    *o = (Together){.x = x, .comm = write_ranks(x), .a = a, .path = path, .n = n, .t = t};
    o->summed = summed;
    if (x->plan->graph->own) {
        write_own(o);
        return;
    }
    o->rank = o->comm ? comm_rank(o->comm) : 0;
    o->nranks = o->comm ? comm_size(o->comm) : 1;
    ranks_do(owner, o->comm, begin, o);
    ranks_share(owner, o->comm, &o->begun, sizeof o->begun);
    ranks_do(owner, o->comm, make_pieces, o);
    ranks_do(owner, o->comm, write_pieces, o);
    ranks_do(owner, o->comm, check_own, o);
    ranks_do(owner, o->comm, end, o);
    arena_reset(a);
}
