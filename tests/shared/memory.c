/* Tensors in guarded memory: canaries at both ends, which AddressSanitizer, where it runs, also
 * keeps from being read. Strided layouts lie in storages that are larger than they need. */
#include "case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n)   ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

enum { GUARD = 192, ALIGN = 64, CANARY = 0xc5 };

/* The head of an allocation: malloc's pointer's first bytes. data lies at `at`. */
typedef struct Block {
    int64_t at, nbytes, size;
} Block;

static void block_free(void *p)
{
    const Block *b = p;
    ASAN_UNPOISON_MEMORY_REGION(p, (size_t)b->size);
    (shared_free ? shared_free : free)(p);
}

char *guarded_alloc(Arena *a, int64_t nbytes, int fill)
{
    int64_t size = (int64_t)sizeof(Block) + nbytes + 2 * GUARD + ALIGN;
    char *p = (shared_alloc ? shared_alloc : malloc)((size_t)size);
    CHECK(p);
    int64_t at = (int64_t)sizeof(Block) + GUARD;
    at += (ALIGN - (int64_t)(((uintptr_t)p + (uintptr_t)at) % ALIGN)) % ALIGN;
    *(Block *)(void *)p = (Block){at, nbytes, size};
    memset(p + at - GUARD, CANARY, GUARD);
    memset(p + at, fill, (size_t)nbytes);
    memset(p + at + nbytes, CANARY, GUARD);
    ASAN_POISON_MEMORY_REGION(p + at - GUARD, GUARD);
    ASAN_POISON_MEMORY_REGION(p + at + nbytes, GUARD);
    arena_defer(a, block_free, p);
    return p + at;
}

static bool canary_intact(const char *p)
{
    ASAN_UNPOISON_MEMORY_REGION(p, GUARD);
    bool same = true;
    for (int i = 0; i < GUARD; i++)
        same = same && (unsigned char)p[i] == CANARY;
    ASAN_POISON_MEMORY_REGION(p, GUARD);
    return same;
}

bool guarded_intact(const char *data, int64_t nbytes)
{
    return canary_intact(data - GUARD) && canary_intact(data + nbytes);
}

int64_t tensor_nbytes(const Tensor *t)
{
    return tensor_nelem(t) * dtype_size(t->dtype);
}

static Tensor shaped(const Type *t)
{
    Tensor x = {.dtype = t->dtype, .rank = t->rank};
    memcpy(x.dim, t->dim, sizeof x.dim);
    tensor_fill_strides(&x);
    return x;
}

Tensor tensor_new(Arena *a, const Type *t, int fill)
{
    Tensor x = shaped(t);
    x.data = guarded_alloc(a, tensor_nbytes(&x), fill);
    return x;
}

static void set_int(const Tensor *t, int64_t at, int64_t x)
{
    if (t->dtype == I64)
        ((int64_t *)(void *)t->data)[at] = x;
    else
        tensor_set(t, at, (double)x);
}

void tensor_assign(const Tensor *to, const Tensor *from)
{
    int64_t n = tensor_nelem(from);
    bool integers = !dtype_float(to->dtype) && !dtype_float(from->dtype);
    for (int64_t i = 0; i < n; i++) {
        int64_t x = tensor_linear(to, i), y = tensor_linear(from, i);
        if (integers)
            set_int(to, x, tensor_int(from, y));
        else
            tensor_set(to, x, tensor_get(from, y));
    }
}

Tensor tensor_copy(Arena *a, const Tensor *t, DType d)
{
    Type type = type_make(d, t->rank, t->dim);
    Tensor x = tensor_new(a, &type, 0);
    tensor_assign(&x, t);
    return x;
}

bool tensor_same_bits(const Tensor *s, const Tensor *t)
{
    return tensor_nbytes(s) == tensor_nbytes(t) &&
           !memcmp(s->data, t->data, (size_t)tensor_nbytes(s));
}

/* ---- parts of larger tensors ---- */

int64_t part_lay(Tensor *y, int axis)
{
    enum { GAP = 3 }; /* no axis of the part need divide it */
    tensor_fill_strides(y);
    int64_t block = axis == y->rank ? 1 : axis ? y->stride[axis - 1] : tensor_nelem(y);
    int64_t stride = block + GAP;
    for (int d = axis - 1; d >= 0; stride *= y->dim[d--])
        y->stride[d] = stride;
    return 1 + stride;
}

bool part_alone(Arena *a, const Tensor *y, int64_t nelem, int fill)
{
    int64_t size = dtype_size(y->dtype), n = tensor_nelem(y);
    const char *mem = y->data - size;
    char *rest = arena_alloc(a, (size_t)(nelem * size));
    memcpy(rest, mem, (size_t)(nelem * size));
    for (int64_t i = 0; i < n; i++)
        memset(rest + (1 + tensor_linear(y, i)) * size, fill, (size_t)size);
    for (int64_t i = 0; i < nelem * size; i++)
        if ((unsigned char)rest[i] != fill)
            return false;
    return guarded_intact(mem, nelem * size);
}

/* ---- layouts of cases ---- */

/* Strides and the offset of the first element; returns the storage's elements. */
static int64_t lay_out(const CaseOperand *x, int step, Tensor *t, int64_t *first)
{
    int64_t stride = 1;
    *first = 0;
    for (int j = t->rank - 1; j >= 0; j--) {
        int d = x->layout == LAYOUT_SWAPPED && j >= t->rank - 2 ? 2 * t->rank - 3 - j : j;
        bool sliced = x->layout == LAYOUT_SLICED;
        int64_t each = sliced && j == t->rank - 1 ? step : 1;
        t->stride[d] = x->layout == LAYOUT_EXPANDED && d == x->axis ? 0 : stride * each;
        if (sliced)
            *first += stride;
        if (t->stride[d] != 0 || t->dim[d] == 0)
            stride *= sliced ? (t->dim[d] + 1) * each + 1 : t->dim[d];
    }
    return stride;
}

/* Documents of 1 to 2 / 5 of a row and 2 more. */
static void fill_documents(const Case *c, int i, const Tensor *t)
{
    for (int64_t b = 0; b < t->dim[0]; b++)
        for (int64_t at = 0, start = 0, left = 0; at < t->dim[1]; at++, left--) {
            double u = random_uniform(c->seed, (uint32_t)i, (uint32_t)b, (uint64_t)at);
            if (!left) {
                start = at;
                left = 1 + (int64_t)(u * (double)(2 * t->dim[1] / 5 + 2));
            }
            tensor_set(t, b * t->stride[0] + at * t->stride[1], (double)start);
        }
}

static void fill(const Case *c, int i, const Tensor *t)
{
    const CaseOperand *x = &c->in[i];
    int64_t n = tensor_nelem(t);
    if (x->documents) {
        fill_documents(c, i, t);
        return;
    }
    for (int64_t e = 0; e < n; e++) {
        double u = random_uniform(c->seed, (uint32_t)i, 0, (uint64_t)e);
        if (dtype_float(t->dtype))
            u = x->lo == x->hi ? x->lo : x->lo + (x->hi - x->lo) * u;
        else
            u = x->lo + floor((x->hi - x->lo + 1) * u);
        tensor_set(t, tensor_linear(t, e), u);
    }
}

Tensor case_operand(Arena *a, const Case *c, int i, int step, char **mem, int64_t *span)
{
    Tensor t = shaped(&c->in[i].type);
    int64_t first;
    *span = lay_out(&c->in[i], step, &t, &first) * dtype_size(t.dtype);
    *mem =
        guarded_alloc(a, *span, 0x7b); /* what lies between the elements is finite in any dtype */
    t.data = *mem + first * dtype_size(t.dtype);
    fill(c, i, &t);
    return t;
}
