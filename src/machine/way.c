/* way: chooses the kernel of an op's list that runs a call: the one that a file names for exactly
 * this call, else the first row WAY of machine.def that fits, else the first that takes the call. A
 * choice depends on op, attributes, dtypes, shapes, strides and threads. Entries of files, kernels
 * and seconds, are found here too, by the hashes of their keys (key.c). */
#include "machine.h"

#include "../op/flash.h"

#include <string.h>

/* ---- what is known, by hash ---- */

static int slot_of(const MeasuredList *x, uint64_t hash)
{
    int i = (int)(hash & (uint64_t)(x->nslot - 1));
    while (x->slot[i] && x->row[x->slot[i] - 1].hash != hash)
        i = (i + 1) & (x->nslot - 1);
    return i;
}

static Measured *measured_find(const MeasuredList *x, uint64_t hash)
{
    int row = x->nslot ? x->slot[slot_of(x, hash)] : 0;
    return row ? &x->row[row - 1] : NULL;
}

static void measured_grow(Arena *a, MeasuredList *x)
{
    x->nslot = MAX(64, 4 * x->count);
    while (x->nslot & (x->nslot - 1)) /* up to a power of two */
        x->nslot += x->nslot & -x->nslot;
    x->slot = NEWN(a, int, x->nslot);
    for (int i = 0; i < x->count; i++)
        x->slot[slot_of(x, x->row[i].hash)] = i + 1;
}

/* The row of that hash, made if there is none. */
static Measured *measured_put(Arena *a, MeasuredList *x, uint64_t hash)
{
    Measured *row = measured_find(x, hash);
    if (row)
        return row;
    PUSH(a, x->row, x->count, x->cap, (Measured){.hash = hash});
    if (2 * x->count > x->nslot)
        measured_grow(a, x);
    else
        x->slot[slot_of(x, hash)] = x->count;
    return &x->row[x->count - 1];
}

/* ---- what a file says ---- */

/* A GPU's kernels are not known to a program without them. */
static bool has_kernel(const Machine *m, const Op *op, const char *name)
{
    for (int s = 0; s < NKERNELS; s++)
        for (const Kernel *k = op_kernels(op, (KernelSet)s); k && k->name; k++)
            if (!strcmp(k->name, name))
                return true;
    return m->gpu && !kernels_linked(KERNELS_CUDA);
}

bool machine_put_way(Machine *m, const char *key, const char *kernel, const char *title)
{
    const Op *op;
    uint64_t hash = key_hash(m->a, key, title, &op);
    if (!has_kernel(m, op, kernel))
        fail(arena_ctx(m->a), TN_FAIL, "%s: expected a kernel of %s, found \"%.40s\"", title,
             op->name, kernel);
    Measured *row = measured_put(m->a, &m->way, hash);
    bool again = row->key;
    row->key = arena_strdup(m->a, key);
    row->kernel = arena_strdup(m->a, kernel);
    return !again;
}

bool machine_put_sec(Machine *m, const char *key, double sec, const char *title)
{
    const Op *op;
    Measured *row = measured_put(m->a, &m->known, key_hash(m->a, key, title, &op));
    bool again = row->key;
    row->key = arena_strdup(m->a, key);
    row->sec = sec;
    return !again;
}

static void measured_here(Machine *m)
{
    if (!m->nthread && !m->gpu) /* which is used whole */
        m->nthread = m->cores;
    if (!m->library)
        m->library = m->gpu ? gpu_library(m->a, 0) : machine_library(m->a);
}

void machine_set_ways_for(Machine *m, int nthread, const char *library)
{
    m->nthread = nthread;
    m->library = library ? arena_strdup(m->a, library) : NULL;
}

void machine_set_way(Machine *m, const char *key, const char *kernel)
{
    measured_here(m);
    machine_put_way(m, key, kernel, "a way");
}

void machine_set_sec(Machine *m, const char *key, double sec)
{
    CHECK(sec >= SEC_LEAST && sec <= SEC_MOST);
    measured_here(m);
    machine_put_sec(m, key, sec, "seconds");
}

static const Measured *find_key(const MeasuredList *x, const char *key)
{
    for (int i = 0; i < x->count; i++)
        if (!strcmp(x->row[i].key, key))
            return &x->row[i];
    return NULL;
}

const char *machine_known_way(const Machine *m, const char *key)
{
    const Measured *row = find_key(&m->way, key);
    return row ? row->kernel : NULL;
}

double machine_known_sec(const Machine *m, const char *key)
{
    const Measured *row = find_key(&m->known, key);
    return row ? row->sec : -1;
}

void machine_check_ways(const Machine *m, int nthread, const char *file)
{
    const char *here = machine_library(m->a);
    if (!m->gpu && m->library && strcmp(m->library, here) != 0)
        fail(arena_ctx(m->a), TN_FAIL,
             "%s: expected what was measured with %s, which this program uses, found %s", file,
             here, m->library);
    if (m->nthread && !m->gpu && m->nthread != nthread)
        fail(arena_ctx(m->a), TN_FAIL,
             "%s: expected what was measured with %d thread%s, found %d; give --threads %d, or "
             "measure again (tenon tune)",
             file, nthread, nthread > 1 ? "s" : "", m->nthread, m->nthread);
}

static MeasuredList measured_copy(Arena *a, const MeasuredList *from)
{
    MeasuredList x = {0};
    for (int i = 0; i < from->count; i++) {
        const Measured *r = &from->row[i];
        *measured_put(a, &x, r->hash) =
            (Measured){r->hash, arena_strdup(a, r->key),
                       r->kernel ? arena_strdup(a, r->kernel) : NULL, r->sec};
    }
    return x;
}

Machine *machine_copy(Arena *a, const Machine *m)
{
    Machine *x = NEW(a, Machine);
    *x = *m;
    x->a = a;
    x->name = arena_strdup(a, m->name);
    x->like = arena_strdup(a, m->like);
    x->library = m->library ? arena_strdup(a, m->library) : NULL;
    x->way = measured_copy(a, &m->way);
    x->known = measured_copy(a, &m->known);
    return x;
}

/* Whether what was measured holds for the threads in use. */
static bool holds(const Machine *m)
{
    return !m->nthread || m->nthread == m->cores;
}

uint64_t machine_hash_known(const Machine *m, uint64_t h)
{
    uint64_t sum = 0; /* whatever the order of lines */
    if (!holds(m) || !(m->way.count + m->known.count))
        return h;
    for (int i = 0; i < m->way.count; i++)
        sum += hash_bytes(m->way.row[i].kernel, strlen(m->way.row[i].kernel), m->way.row[i].hash);
    for (int i = 0; i < m->known.count; i++)
        sum += hash_bytes(&m->known.row[i].sec, sizeof(double), m->known.row[i].hash);
    return hash_bytes(&sum, sizeof sum, h);
}

const char *machine_call_way(const Machine *m, const Call *c)
{
    const Measured *row = m->way.count && holds(m) ? measured_find(&m->way, call_hash(c)) : NULL;
    return row ? row->kernel : NULL;
}

double machine_node_sec(const Machine *m, const Node *n)
{
    const Measured *row = m->known.count && holds(m) && node_has_key(n)
                              ? measured_find(&m->known, node_hash(n))
                              : NULL;
    return row ? row->sec : 0;
}

double machine_call_sec(const Machine *m, const Call *c)
{
    const Measured *row =
        m->known.count && holds(m) ? measured_find(&m->known, call_hash(c)) : NULL;
    return row ? row->sec : 0;
}

/* ---- rows WAY ---- */

/* Sides of a product or of what lies likewise, of the last axes of its first factor or operand x
 * and its first result y: rows and columns of y, columns of x, matrices of y; of attention those of
 * a head, and whether documents share its rows. */
typedef struct Sides {
    DType dtype;
    int64_t m, n, k, b;
    bool shared;
} Sides;

static Sides sides_of(const Call *c)
{
    const Tensor *y = &c->out[0],
                 *x = c->node->op->class == CLASS_PRODUCT ? &c->in[c->nin - 2] : &c->in[0];
    Sides s = {.dtype = x->dtype, .m = 1, .n = 1, .k = 1, .b = 1};
    s.k = x->rank ? x->dim[x->rank - 1] : 1;
    int rows = y->rank - (c->node->op->class == CLASS_ATTENTION ? 3 : 2); /* [B, T, H, D] */
    for (int d = 0; d < y->rank; d++)
        *(d == y->rank - 1 ? &s.n : d == rows ? &s.m : &s.b) *= y->dim[d];
    s.shared = c->node->op->class == CLASS_ATTENTION && flash_has_starts(c->node, c->nin - 1);
    return s;
}

/* n: rows lie one after the other, perhaps with gaps; t: columns do; s: neither. */
static char layout_of(const Tensor *t)
{
    int r = t->rank;
    return r < 1 || t->dim[r - 1] == 1 || t->stride[r - 1] == 1     ? 'n'
           : r < 2 || (t->dim[r - 2] != 1 && t->stride[r - 2] != 1) ? 's'
                                                                    : 't';
}

/* layouts: a letter for each of the last operands, "." for any. */
static bool lies(const Call *c, const char *layouts)
{
    int count = (int)strlen(layouts), first = c->nin - count;
    for (int i = 0; i < count; i++)
        if (first + i >= 0 && layouts[i] != '.' && layouts[i] != layout_of(&c->in[first + i]))
            return false;
    return true;
}

static const Kernel *kernel_named(const Kernel *list, const char *name, const Call *c)
{
    for (const Kernel *k = list; k->name; k++)
        if (!strcmp(k->name, name))
            return kernel_takes(k, c) ? k : NULL;
    return NULL;
}

extern const OpId OP_mm, OP_addmm, OP_flash_attention, OP_flash_attention_backward;

typedef struct Way {
    const char *processor;
    const OpId *op;
    DType dtype;
    const char *layouts, *when, *kernel;
} Way;

static const Way ways[] = {
#define WAY(processor, op, dtype, layouts, when, kernel) \
    {#processor, &OP_##op, dtype, layouts, #when, kernel},
#include "machine.def"
    {0}};

uint64_t machine_hash_rows(const Machine *m, uint64_t h)
{
    for (const Way *w = ways; w->kernel; w++) {
        if (strcmp(w->processor, m->like) != 0)
            continue;
        const char *text[] = {op_table[w->op->row].name, w->layouts, w->when, w->kernel};
        h = hash_bytes(&w->dtype, sizeof w->dtype, h);
        for (int i = 0; i < LEN(text); i++)
            h = hash_bytes(text[i], strlen(text[i]) + 1, h);
    }
    return h;
}

static const Kernel *shipped_way(const Machine *machine, const Call *c, const Kernel *list)
{
    const Sides s = sides_of(c);
    const int64_t m = s.m, n = s.n, k = s.k, b = s.b;
    const bool shared = s.shared;
    const int threads = machine->cores;
    const bool holds_here[] = {
#define WAY(processor, op, dtype, layouts, when, kernel) (when),
#include "machine.def"
        false};
    (void)threads, (void)m, (void)n, (void)k, (void)b,
        (void)shared; /* perhaps no row asks for one */
    for (int i = 0; ways[i].kernel; i++) {
        const Way *w = &ways[i];
        if (holds_here[i] && node_of(c->node, w->op) && s.dtype == w->dtype &&
            !strcmp(machine->like, w->processor) && lies(c, w->layouts)) {
            const Kernel *found = kernel_named(list, w->kernel, c);
            if (found)
                return found;
        }
    }
    return NULL;
}

const Kernel *machine_way(const Machine *m, const Call *c, const Kernel *list)
{
    if (!list || !list[0].name || !list[1].name || !c->nin || !c->nout)
        return NULL; /* there is no choice */
    const char *known = machine_call_way(m, c);
    const Kernel *found = known ? kernel_named(list, known, c) : NULL;
    return found ? found : shipped_way(m, c, list);
}
