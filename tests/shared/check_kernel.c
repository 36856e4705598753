/* Kernels against the oracle. Each kernel that accepts runs with the line's layout, with contiguous
 * copies, in place where the op allows, into parts of larger tensors where the kernel does, those
 * of the processor with 1 and with 2 threads; twice each, at other addresses and over other
 * garbage, for equal bits. All memory lies between canaries; operands must not change, nor what
 * lies around a part. */
#include "check.h"

#include <math.h>
#include <string.h>

/* ---- comparing ---- */

/* Unit roundoff of a dtype: what rounding a correct result to it may change. */
static double roundoff(DType d)
{
    return d == BF16 ? 0x1p-8 : d == F16 ? 0x1p-11 : d == F32 ? 0x1p-24 : 0x1p-53;
}

static double largest(const Tensor *t)
{
    double most = 0;
    for (int64_t i = 0, n = tensor_nelem(t); i < n; i++) {
        double x = fabs(tensor_get(t, tensor_linear(t, i)));
        most = isfinite(x) ? fmax(most, x) : most;
    }
    return most;
}

static bool close_enough(double got, double want, double bound)
{
    if (isnan(want))
        return isnan(got);
    return got == want || fabs(got - want) <= bound;
}

const char *tensor_differs(Arena *a, const Tensor *got, const Tensor *want, double tol)
{
    bool exact = !dtype_float(got->dtype);
    double bound = exact ? 0 : (tol + 2 * roundoff(got->dtype)) * largest(want);
    for (int64_t i = 0, n = tensor_nelem(want); i < n; i++) {
        int64_t g = tensor_linear(got, i), w = tensor_linear(want, i);
        double x = tensor_get(got, g), y = tensor_get(want, w);
        bool same = exact ? tensor_int(got, g) == tensor_int(want, w) : close_enough(x, y, bound);
        if (got->dtype == BOOL && (unsigned char)got->data[g] > 1)
            same = false;
        if (!same)
            return arena_printf(a, "element %lld is %.9g, expected %.9g within %.3g", (long long)i,
                                x, y, bound);
    }
    return NULL;
}

/* f64 results are compared as exactly as sums in another order allow. */
static double tolerance(const Problem *p, DType d)
{
    return d == F64 ? MIN(p->c->tol, 1e-12) : p->c->tol;
}

/* ---- one run of one kernel ---- */

int count_kernels(const Problem *p)
{
    const Kernel *k = op_kernels(p->c->op, p->h->kernels);
    int count = 0;
    while (k && k[count].run)
        count++;
    CHECK(count < MAX_KERNELS);
    return count;
}

/* How many are to be run: the set's and, of the processor, ref. */
static int count_all(const Problem *p)
{
    return count_kernels(p) + (p->h->kernels == KERNELS_CPU);
}

/* Kernel i of the set; behind them ref. */
static Kernel get_kernel(const Problem *p, int i)
{
    if (i < count_kernels(p))
        return op_kernels(p->c->op, p->h->kernels)[i];
    return (Kernel){.name = "ref", .run = p->c->op->rules->ref};
}

static int noted(const Kernel *k, Call *c)
{
    const Fault *f = c->fault;
    int count = 0;
    while (k->faults && k->faults[count])
        count++;
    if (!f->noted)
        return 0;
    if (f->step != c->step || f->what < 0 || f->what >= count)
        return run_fail(c, "noted fault %d of %d, step %d of %d", f->what, count, f->step, c->step);
    return run_fail(c, k->faults[f->what], f->value[0], f->value[1], f->value[2], f->value[3]);
}

int kernel_run(const Problem *p, const Kernel *k, Call *c)
{
    if (p->h->kernels == KERNELS_CPU)
        return k->run(c);
    c->step = 7;
    c->stream = p->h->stream;
    c->fault = (Fault *)(void *)guarded_alloc(p->a, sizeof *c->fault, 0);
    int code = k->run(c);
    if (!code && p->h->wait)
        code = p->h->wait(c);
    return code ? code : noted(k, c);
}

enum { FIRST = 0xff, AGAIN = 0x3c }; /* with what memory is filled before a run */

typedef struct Operand {
    Tensor t;
    char *mem, *before; /* its storage and a copy of it */
    int64_t span;
} Operand;

typedef struct Trial {
    Problem *p;
    Kernel k;
    int index;          /* of the kernel, in Coverage */
    const char *layout; /* for messages */
    Operand *in;
    const int *over; /* over[k]: the operand that output k overwrites, or -1 */
    const int *cut;  /* cut[k]: output k is a part of a tensor cut along this axis; -1: whole */
    Call call;
    Arena *a;
} Trial;

static Call bare_call(Arena *a, const Node *n)
{
    Call c = {.node = n, .nin = n->nin, .nout = n->nout};
    c.in = NEWN(a, Tensor, n->nin);
    c.out = NEWN(a, Tensor, n->nout);
    for (int k = 0; k < n->nout; k++) {
        const Type *t = &n->out[k]->type;
        c.out[k] = (Tensor){.dtype = t->dtype, .rank = t->rank};
        memcpy(c.out[k].dim, t->dim, sizeof t->dim);
        tensor_fill_strides(&c.out[k]);
    }
    return c;
}

static void set_operands(Trial *t)
{
    t->call = bare_call(t->a, t->p->n);
    for (int i = 0; i < t->call.nin; i++) {
        t->call.in[i] = t->in[i].t;
        t->call.in[i].data = NULL;
    }
    for (int k = 0; k < t->call.nout && t->cut; k++)
        if (t->cut[k] >= 0)
            part_lay(&t->call.out[k], t->cut[k]);
}

static bool accepted(Trial *t)
{
    set_operands(t);
    return !t->k.accepts || t->k.accepts(&t->call);
}

static bool check_memory(Trial *t, const Call *c, int fill)
{
    const char *bad = NULL;
    for (int i = 0; i < c->nin; i++) {
        bool overwritten = false;
        for (int k = 0; k < c->nout; k++)
            overwritten |= t->over && t->over[k] == i;
        const Operand *x = &t->in[i];
        if (!guarded_intact(x->mem, x->span) ||
            (!overwritten && memcmp(x->mem, x->before, (size_t)x->span)))
            bad = "wrote over an operand or beside it";
    }
    for (int k = 0; k < c->nout; k++) {
        Tensor *y = &c->out[k], shape = *y;
        if (t->cut && t->cut[k] >= 0)
            bad = part_alone(t->a, y, part_lay(&shape, t->cut[k]), fill)
                      ? bad
                      : "wrote beside an output that is a part";
        else if (!(t->over && t->over[k] >= 0) && !guarded_intact(y->data, tensor_nbytes(y)))
            bad = "wrote beside an output";
    }
    if (!guarded_intact(c->work, c->nbytes_work))
        bad = "wrote beside its work";
    if (bad)
        miss(t->p, "kernel %s, %s: %s", t->k.name, t->layout, bad);
    return !bad;
}

/* Runs the prepared call over memory filled with `fill`. Results are in c->out. */
static bool run_once(Trial *t, Call *c, int fill)
{
    *c = bare_call(t->a, t->p->n);
    c->nbytes_work = t->call.nbytes_work;
    c->state = t->call.state;
    c->work = guarded_alloc(t->a, c->nbytes_work, fill);
    for (int i = 0; i < c->nin; i++) {
        c->in[i] = t->in[i].t;
        memcpy(t->in[i].mem, t->in[i].before, (size_t)t->in[i].span);
    }
    guarded_alloc(t->a, fill % 7 * 64, fill); /* other addresses in the other run */
    for (int k = 0; k < c->nout; k++) {
        Tensor *y = &c->out[k];
        int64_t size = dtype_size(y->dtype);
        if (t->over && t->over[k] >= 0)
            y->data = t->in[t->over[k]].mem;
        else if (t->cut && t->cut[k] >= 0)
            y->data = guarded_alloc(t->a, part_lay(y, t->cut[k]) * size, fill) + size;
        else
            y->data = guarded_alloc(t->a, tensor_nbytes(y), fill);
    }
    if (t->p->h->before)
        t->p->h->before(fill != FIRST);
    if (kernel_run(t->p, &t->k, c)) {
        miss(t->p, "kernel %s, %s: failed: %s", t->k.name, t->layout, c->message);
        return false;
    }
    return check_memory(t, c, fill);
}

static void keep_results(Trial *t, const Call *c, Tensor *to)
{
    for (int k = 0; k < c->nout; k++)
        to[k] = tensor_copy(t->a, &c->out[k], c->out[k].dtype);
}

/* ---- what must hold ---- */

static bool against_oracle(Trial *t, const Tensor *got)
{
    Problem *p = t->p;
    for (int k = 0; k < p->n->nout; k++) {
        const char *how = tensor_differs(p->a, &got[k], &p->out64[k], tolerance(p, got[k].dtype));
        if (how) {
            miss(p, "kernel %s, %s, %d threads: output %d: %s", t->k.name, t->layout, par_threads(),
                 k, how);
            return false;
        }
    }
    return true;
}

static bool same_bits(Trial *t, const Tensor *got, const Tensor *want, const char *what)
{
    for (int k = 0; k < t->p->n->nout; k++)
        if (!tensor_same_bits(&got[k], &want[k])) {
            miss(t->p, "kernel %s, %s: output %d: %s", t->k.name, t->layout, k, what);
            return false;
        }
    return true;
}

/* Makes the call ready. Another context must say the same workspace of it, ready or not. */
static bool prepared(Trial *t)
{
    Ctx other = {0};
    int64_t before = kernel_workspace(&other, &t->k, &t->call);
    kernel_prepare(&t->k, &t->call, t->a);
    int64_t after = kernel_workspace(&other, &t->k, &t->call);
    ctx_end(&other);
    if (before == t->call.nbytes_work && after == before)
        return true;
    miss(t->p,
         "kernel %s, %s: prepared with %lld bytes of workspace, asked before and after: %lld "
         "and %lld",
         t->k.name, t->layout, (long long)t->call.nbytes_work, (long long)before, (long long)after);
    return false;
}

static bool run_twice(Trial *t, Tensor *result)
{
    Call c;
    Tensor *again = NEWN(t->a, Tensor, t->p->n->nout);
    set_operands(t);
    if (!prepared(t) || !run_once(t, &c, FIRST))
        return false;
    keep_results(t, &c, result);
    if (!run_once(t, &c, AGAIN))
        return false;
    keep_results(t, &c, again);
    return same_bits(t, again, result,
                     "another run gave other bits (or left elements unwritten)") &&
           against_oracle(t, result);
}

/* Operands in fresh guarded storages. */
static Operand *operands(Arena *a, const Problem *p, int step, bool contiguous)
{
    Operand *x = NEWN(a, Operand, p->n->nin);
    for (int i = 0; i < p->n->nin; i++) {
        if (contiguous) {
            x[i].t = tensor_copy(a, &p->in[i], p->in[i].dtype);
            x[i].mem = x[i].t.data;
            x[i].span = tensor_nbytes(&x[i].t);
        } else {
            x[i].t = case_operand(a, p->c, i, step, &x[i].mem, &x[i].span);
        }
        x[i].before = arena_alloc(a, (size_t)x[i].span);
        memcpy(x[i].before, x[i].mem, (size_t)x[i].span);
    }
    return x;
}

/* ---- in place ---- */

static bool may_overwrite(const Trial *t, int k, int i)
{
    bool over = k < 4 && i < 8 && node_inplace(t->p->n, k) >> i & 1;
    bool same = type_equal(&t->p->n->in[i]->type, &t->p->n->out[k]->type);
    t->p->cover->narrowed[t->index] |= over && !same && t->k.over_wider;
    return over && (same || t->k.over_wider);
}

static void one_in_place(Trial *t, const int *over, const Tensor *want)
{
    Tensor *got = NEWN(t->a, Tensor, t->p->n->nout);
    t->over = over;
    t->layout = "in place";
    for (int k = 0; k < t->p->n->nout && k < 4; k++)
        t->p->cover->inplace[k] |= (uint8_t)(over[k] >= 0 ? 1 << over[k] : 0);
    if (run_twice(t, got))
        same_bits(t, got, want, "other bits in place than apart");
    t->over = NULL;
}

/* Each pair alone, then every output over its first free operand. */
static void in_place(Trial *t, const Tensor *want)
{
    const Node *n = t->p->n;
    int *all = NEWN(t->a, int, n->nout), *one = NEWN(t->a, int, n->nout), count = 0;
    memset(all, -1, sizeof *all * (size_t)n->nout);
    for (int k = 0; k < n->nout; k++)
        for (int i = 0; i < n->nin; i++) {
            if (!may_overwrite(t, k, i))
                continue;
            bool used = false;
            for (int j = 0; j < k; j++)
                used |= all[j] == i;
            if (all[k] < 0 && !used) {
                all[k] = i;
                count++;
            }
            if (t->p->h->brief)
                continue;
            memset(one, -1, sizeof *one * (size_t)n->nout);
            one[k] = i;
            one_in_place(t, one, want);
        }
    if (count > !t->p->h->brief)
        one_in_place(t, all, want);
}

/* ---- parts ---- */

static void one_part(Trial *t, const int *cut, const Tensor *want)
{
    Call c;
    Tensor *got = NEWN(t->a, Tensor, t->p->n->nout);
    t->cut = cut;
    t->layout = "into parts of larger tensors";
    if (accepted(t)) {
        t->p->cover->parts[t->index] = true;
        if (prepared(t) && run_once(t, &c, FIRST)) {
            keep_results(t, &c, got);
            same_bits(t, got, want, "other bits as a part of a larger tensor than apart");
        }
    }
    t->cut = NULL;
}

/* All outputs cut along each axis that they have and one beyond; of several, each alone along one
 * in the middle. */
static void as_parts(Trial *t, const Tensor *want)
{
    const Node *n = t->p->n;
    int *cut = NEWN(t->a, int, n->nout), most = 0;
    for (int k = 0; k < n->nout; k++)
        most = MAX(most, n->out[k]->type.rank);
    bool brief = t->p->h->brief || t->p->h->one_axis;
    for (int axis = brief ? most / 2 : 0; axis <= (brief ? most / 2 : most); axis++) {
        for (int k = 0; k < n->nout; k++)
            cut[k] = MIN(axis, n->out[k]->type.rank);
        one_part(t, cut, want);
    }
    for (int k = 0; k < n->nout && n->nout > 1 && !brief; k++) {
        memset(cut, -1, sizeof *cut * (size_t)n->nout);
        cut[k] = (n->out[k]->type.rank + 1) / 2;
        one_part(t, cut, want);
    }
}

/* ---- over all kernels, layouts and thread counts ---- */

/* Apart, and with `more` in place and as parts. */
static bool all_ways(Trial *t, bool more, Tensor *result)
{
    const char *layout = t->layout;
    bool good = run_twice(t, result);
    if (good && more)
        in_place(t, result);
    if (good && more && t->k.strided_out)
        as_parts(t, result);
    t->layout = layout;
    return good;
}

static void with_threads(Trial *t, bool contiguous)
{
    Tensor *one = NEWN(t->a, Tensor, t->p->n->nout), *two = NEWN(t->a, Tensor, t->p->n->nout);
    par_set_threads(1);
    bool good = all_ways(t, contiguous, one);
    if (t->p->h->kernels != KERNELS_CPU)
        return;
    par_set_threads(2);
    contiguous &= !t->p->h->one_axis || t->p->c->line % 8 == 0; /* some lines in all ways */
    good = good && all_ways(t, contiguous, two);
    for (int k = 0; good && k < t->p->n->nout; k++)
        if (!tensor_same_bits(&one[k], &two[k]))
            t->p->cover->by_threads[t->index] = true;
}

static bool with_layout(Problem *p, int step, bool contiguous)
{
    bool any = false;
    for (int i = 0; i < count_all(p); i++) {
        Trial t = {.p = p, .k = get_kernel(p, i), .index = i, .a = p->a};
        t.layout = contiguous ? "contiguous" : step > 1 ? "stepped layout" : "given layout";
        t.in = operands(p->a, p, step, contiguous);
        if (accepted(&t)) {
            any = p->cover->ran[i] = true;
            with_threads(&t, contiguous);
        }
    }
    return any;
}

/* ref also writes through strides: here axes lie in memory in the opposite order. */
static void ref_strided(Problem *p)
{
    Call c = bare_call(p->a, p->wide);
    for (int i = 0; i < c.nin; i++)
        c.in[i] = p->in64[i];
    for (int k = 0; k < c.nout; k++) {
        Tensor *y = &c.out[k];
        y->data = guarded_alloc(p->a, tensor_nbytes(y), 0xff);
        for (int64_t d = 0, stride = 1; d < y->rank; stride *= y->dim[d++])
            y->stride[d] = stride;
    }
    if (p->c->op->rules->ref(&c))
        miss(p, "ref with strided outputs failed: %s", c.message);
    else
        for (int k = 0; k < c.nout; k++) {
            Tensor y = tensor_copy(p->a, &c.out[k], c.out[k].dtype);
            if (!tensor_same_bits(&y, &p->out64[k]))
                miss(p, "ref: output %d differs where its strides are not contiguous", k);
        }
}

/* By the first kernel that accepts; there is one. */
static int run_first(Problem *p, Call *c)
{
    int i = 0;
    Kernel k = get_kernel(p, 0);
    while (k.accepts && !k.accepts(c))
        k = get_kernel(p, ++i);
    kernel_prepare(&k, c, p->a);
    c->work = guarded_alloc(p->a, c->nbytes_work, FIRST);
    return kernel_run(p, &k, c);
}

/* cat leaves operands that lie in their places of its result: one of them, then all. */
static void check_joined(Problem *p)
{
    int axis = (int)p->n->attr[0].i, rank = p->n->out[0]->type.rank, nin = p->n->nin;
    axis += axis < 0 ? rank : 0;
    for (int one = 0; one <= nin; one++) {
        Call c = bare_call(p->a, p->n);
        Tensor *y = &c.out[0];
        y->data = guarded_alloc(p->a, tensor_nbytes(y), 0xff);
        char *to = y->data;
        for (int i = 0; i < nin; i++) {
            c.in[i] = p->in[i];
            if (i == one || one == nin) {
                c.in[i].data = to;
                memcpy(c.in[i].stride, y->stride, sizeof y->stride);
                tensor_assign(&c.in[i], &p->in[i]);
            }
            to += c.in[i].dim[axis] * y->stride[axis] * dtype_size(y->dtype);
        }
        const char *how = run_first(p, &c) ? c.message : tensor_differs(p->a, y, &p->out64[0], 0);
        if (how)
            miss(p, "operand %d (%d: all) in its place of the result: %s", one, nin, how);
    }
}

static void without_kernel(Problem *p)
{
    if (p->h->tell)
        printf("note: %s:%d: no kernel takes this\n", p->c->file, p->c->line);
    if (!p->cover->nwithout++)
        p->cover->without = p->c->line;
}

void check_kernels(Problem *p)
{
    bool plain = true, sliced = false;
    for (int i = 0; i < p->c->nin; i++) {
        plain = plain && p->c->in[i].layout == LAYOUT_PLAIN;
        sliced = sliced || p->c->in[i].layout == LAYOUT_SLICED;
    }
    bool any = with_layout(p, 1, true);
    if (!plain)
        with_layout(p, 1, false);
    if (sliced)
        with_layout(p, 2, false);
    if (p->h->kernels == KERNELS_CPU)
        ref_strided(p);
    if (!any)
        without_kernel(p);
    else if (node_is(p->n, OP_cat))
        check_joined(p);
}

/* ---- what must fail ---- */

static bool expect_runerror(Problem *p, Call *c, const Kernel *k)
{
    for (int i = 0; i < c->nin; i++)
        c->in[i].data = NULL;
    if (k->accepts && !k->accepts(c))
        return false;
    kernel_prepare(k, c, p->a);
    c->work = guarded_alloc(p->a, c->nbytes_work, 0xff);
    for (int i = 0; i < c->nin; i++)
        c->in[i].data = p->in[i].data;
    for (int j = 0; j < c->nout; j++)
        c->out[j].data = guarded_alloc(p->a, tensor_nbytes(&c->out[j]), 0xff);
    if (!kernel_run(p, k, c))
        miss(p, "kernel %s: expected a failure with \"%s\", found success", k->name,
             p->c->runerror);
    else if (!strstr(c->message, p->c->runerror))
        miss(p, "kernel %s: expected a failure with \"%s\", found \"%s\"", k->name, p->c->runerror,
             c->message);
    return true;
}

void check_runerror(Problem *p)
{
    bool any = false;
    for (int i = 0; i < count_all(p); i++) {
        Kernel k = get_kernel(p, i);
        Call c = bare_call(p->a, p->n);
        for (int j = 0; j < c.nin; j++)
            c.in[j] = p->in[j];
        bool ran = expect_runerror(p, &c, &k);
        p->cover->ran[i] |= ran && (p->n->op->barrier || p->n->op->class == CLASS_COLLECTIVE);
        any |= ran;
    }
    if (!any)
        without_kernel(p);
}

/* ---- views ---- */

static void view_of(Problem *p, const Tensor *x, bool must)
{
    Layout in = {0}, out;
    memcpy(in.stride, x->stride, sizeof in.stride);
    for (int k = 0; k < p->n->nout; k++) {
        memset(&out, 0, sizeof out);
        if (!p->c->op->rules->view(p->n, k, &in, &out)) {
            if (must)
                miss(p, "view: output %d of a contiguous operand is refused", k);
            continue;
        }
        Tensor y = bare_call(p->a, p->n).out[k];
        y.data = x->data + out.offset * dtype_size(x->dtype);
        memcpy(y.stride, out.stride, sizeof y.stride);
        const char *how = tensor_differs(p->a, &y, &p->out64[k], 0);
        if (how)
            miss(p, "view: output %d of %s: %s", k, must ? "a contiguous operand" : "the layout",
                 how);
    }
}

void check_view(Problem *p)
{
    char *mem;
    int64_t span;
    if (p->c->op->view != (p->c->op->rules->view != NULL))
        miss(p, "the view column of op.def and the op's rules disagree");
    if (!p->c->op->rules->view)
        return;
    view_of(p, &p->in[0], true);
    for (int step = 1; step < 3; step++) {
        Tensor x = case_operand(p->a, p->c, 0, step, &mem, &span);
        view_of(p, &x, false);
    }
}
