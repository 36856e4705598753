/* Every op against every line of its case file.
 *
 * Per line: inference, ref in double as the oracle, every kernel that accepts against it
 * (check_kernel.c), the gradient against finite differences (check_grad.c), the splits of factors
 * (check_factor.c), cost. A row of op.def without a case file fails, a case file without a row too;
 * regions have no lines: graphs test them. A kernel that no line reaches fails as well.
 *
 * Of another set than the processor's only kernels are asked, and lines that expect errors of
 * inference are left out. A line that no kernel takes fails, but of the ops that a file names. */
#include "check.h"

#include "interp.h"
#include "../../src/attention/attention.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CASES "tests/op"
enum { SHOWN = 4 };

static char now[200]; /* the running line, for a crash */

static bool of_processor(const Harness *h)
{
    return h->kernels == KERNELS_CPU;
}

static void crashed(int number)
{
    (void)!write(1, now, strlen(now));
    signal(number, SIG_DFL);
    raise(number);
}

void miss(Problem *p, const char *format, ...)
{
    char text[1000];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (p->nmiss++ < SHOWN)
        printf("%s:%d: %s\n", p->c->file, p->c->line, text);
}

typedef struct Step {
    Problem *p;
    void (*fn)(Problem *p);
} Step;

static void run_step(void *arg)
{
    Step *s = arg;
    s->fn(s->p);
}

void guard(Problem *p, const char *what, void (*fn)(Problem *p))
{
    Step s = {p, fn};
    if (ctx_try(arena_ctx(p->a), run_step, &s))
        miss(p, "%s: %s", what, arena_ctx(p->a)->message);
}

/* ---- one line ---- */

static void make_node(Problem *p)
{
    p->g = graph_new(p->a, "case");
    Build b = {.g = p->g};
    p->n = case_emit(&b, p->c);
}

static void make_operands(Problem *p)
{
    Node *n = p->n;
    Build b = {.g = p->g};
    Value **x = NEWN(p->a, Value *, n->nin);
    p->in = NEWN(p->a, Tensor, n->nin);
    p->in64 = NEWN(p->a, Tensor, n->nin);
    for (int i = 0; i < n->nin; i++) {
        char *mem;
        int64_t span;
        Tensor t = case_operand(p->a, p->c, i, 1, &mem, &span);
        Type wide = type_wide(&n->in[i]->type);
        p->in[i] = tensor_copy(p->a, &t, t.dtype);
        p->in64[i] = tensor_copy(p->a, &t, wide.dtype);
        x[i] = graph_input(p->g, "w", wide, ROLE_NONE, NULL);
    }
    p->wide = emit_wide(&b, n, x);
}

static void run_oracle(Problem *p)
{
    p->out64 = NEWN(p->a, Tensor, p->wide->nout);
    interp_node(p->a, p->g, p->wide, p->in64, p->out64);
}

static void check_inference(Problem *p)
{
    const Node *n = p->n, *w = p->wide;
    if (n->nout != w->nout || n->nout < 1)
        miss(p, "%d outputs, in f64 %d", n->nout, w->nout);
    for (int k = 0; k < MIN(n->nout, w->nout); k++) {
        Type t = type_wide(&n->out[k]->type);
        if (!type_equal(&t, &w->out[k]->type))
            miss(p, "output %d is %s, but of f64 operands %s", k, type_text(p->a, &n->out[k]->type),
                 type_text(p->a, &w->out[k]->type));
    }
}

static void check_cost(Problem *p)
{
    Cost c = node_cost(p->n);
    double nelem = 0, sum = c.nflop + c.nread + c.nwrite;
    for (int k = 0; k < p->n->nout; k++)
        nelem += (double)type_nelem(&p->n->out[k]->type);
    if (!isfinite(sum) || c.nflop < 0 || c.nread < 0 || c.nwrite < 0 ||
        (sum <= 0 && nelem > 0 && !p->c->op->view))
        miss(p, "cost is not positive: %g flops, %g bytes read, %g written", c.nflop, c.nread,
             c.nwrite);
}

static void check_error(Problem *p)
{
    Step s = {p, make_node};
    Ctx *ctx = arena_ctx(p->a);
    if (!ctx_try(ctx, run_step, &s))
        miss(p, "expected the error \"%s\", found none: %s", p->c->error,
             type_text(p->a, &p->n->out[0]->type));
    else if (!strstr(ctx->message, p->c->error))
        miss(p, "expected the error \"%s\", found \"%s\"", p->c->error, ctx->message);
}

/* What has nothing to do with kernels. */
static void check_rules(Problem *p)
{
    guard(p, "view", check_view);
    guard(p, "gradient", check_grad);
    guard(p, "factors", check_factors);
    guard(p, "linear", check_linear);
    guard(p, "cost", check_cost);
}

static void run_case(Problem *p)
{
    if (p->c->error) {
        check_error(p);
        return;
    }
    guard(p, "inference", make_node);
    if (!p->nmiss)
        guard(p, "in f64", make_operands);
    if (!p->nmiss)
        check_inference(p);
    if (!p->nmiss && p->c->runerror) {
        guard(p, "run error", check_runerror);
        return;
    }
    if (!p->nmiss)
        guard(p, "ref in f64", run_oracle);
    if (p->nmiss)
        return;
    guard(p, "kernels", check_kernels);
    if (of_processor(p->h))
        check_rules(p);
}

/* ---- one op ---- */

static void check_inplace_coverage(const Op *op, const Coverage *cover, Total *t)
{
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 8; i++)
            if ((op->rules->inplace[k] & ~cover->inplace[k]) >> i & 1) {
                printf(CASES "/%s.case: no line can put output %d over operand %d\n", op->name, k,
                       i);
                t->failed++;
            }
}

/* Whether this processor can run it, as far as TN_ISA allows. */
static bool is_here(const Kernel *k)
{
    return strcmp(k->name, "panels") || (panel_has() && isa_bf16_pays());
}

static void check_reached(const Op *op, const Kernel *k, const Coverage *cover, Total *t)
{
    for (int i = 0; k && k[i].run; i++) {
        if (!is_here(&k[i]))
            continue;
        if (!cover->ran[i])
            printf(CASES "/%s.case: no line reaches kernel %s\n", op->name, k[i].name);
        if (cover->by_threads[i])
            printf("note: %s: the bits of kernel %s depend on the thread count\n", op->name,
                   k[i].name);
        if (k[i].strided_out && !cover->parts[i])
            printf(CASES "/%s.case: no line puts what kernel %s makes into a larger tensor\n",
                   op->name, k[i].name);
        if (k[i].over_wider && !cover->narrowed[i])
            printf(CASES "/%s.case: no line puts a narrower result of kernel %s over its operand\n",
                   op->name, k[i].name);
        t->failed += !cover->ran[i] || (k[i].strided_out && !cover->parts[i]) ||
                     (k[i].over_wider && !cover->narrowed[i]);
    }
}

/* How many lines of an op the file allows to be without a kernel: those of "OP COUNT", any of "OP".
 */
static int may_lack(Arena *a, const char *path, const Op *op)
{
    size_t len, name = strlen(op->name);
    for (char *text = path ? file_read(a, path, &len) : NULL, *line; (line = strsep(&text, "\n"));)
        if (!strncmp(line, op->name, name) && strchr(" ", line[name]))
            return line[name] ? atoi(line + name) : INT_MAX;
    return 0;
}

static void check_without(Arena *a, const Harness *h, const Op *op, const Coverage *cover, Total *t)
{
    int may = may_lack(a, h->without, op);
    bool good = cover->nwithout <= may;
    if (cover->nwithout)
        printf("%s" CASES "/%s.case: no kernel takes %d lines, first line %d\n",
               good ? "note: " : "", op->name, cover->nwithout, cover->without);
    else if (may)
        printf("note: %s: %s has kernels for all lines now\n", h->without, op->name);
    t->failed += !good;
}

static void check_coverage(const Harness *h, const Op *op, const Coverage *cover, Total *t)
{
    check_reached(op, op_kernels(op, h->kernels), cover, t);
    if (!of_processor(h))
        return;
    check_inplace_coverage(op, cover, t);
    t->failed += check_linear_coverage(op, cover);
    if (!op->rules->diff && cover->differs && !cover->nograd) {
        printf(CASES "/%s.case: the op has no diff, but no line says nograd and why\n", op->name);
        t->failed++;
    }
}

typedef struct OpRun {
    const Harness *h;
    const Op *op;
    Arena *a, *tmp;
    Total *t;
} OpRun;

/* The letters of the columns linear and bf16. */
static void check_columns(const Op *op, Total *t)
{
    bool linear = !strcmp(op->linear, "-") || !strcmp(op->linear, "*") ||
                  (isdigit((unsigned char)*op->linear) &&
                   strspn(op->linear, "0123456789+ ") == strlen(op->linear));
    if (linear && *op->bf16 && strspn(op->bf16, "ncwksr") == strlen(op->bf16))
        return;
    printf("op.def: %s: linear \"%s\" or bf16 \"%s\" is not as its head says\n", op->name,
           op->linear, op->bf16);
    t->failed++;
}

static void run_op(void *arg)
{
    OpRun *run = arg;
    const Op *op = run->op;
    Arena *a = run->a, *tmp = run->tmp;
    Total *t = run->t;
    const char *path = arena_printf(a, CASES "/%s.case", op->name);
    if (of_processor(run->h))
        check_columns(op, t);
    if (access(path, R_OK))
        fail(arena_ctx(a), TN_FAIL, "%s: op.def has this row, but the file is missing", path);
    int count;
    Coverage cover = {0};
    const Case *c = case_read(a, op, path, &count);
    for (int i = 0; i < count; i++) {
        snprintf(now, sizeof now, "%s:%d: crashed here\n", c[i].file, c[i].line);
        Problem p = {.h = run->h, .c = &c[i], .a = tmp, .cover = &cover};
        if ((c[i].error && !of_processor(run->h)) || (run->h->every && i % run->h->every))
            continue;
        run_case(&p);
        arena_reset(tmp);
        *(p.nmiss ? &t->failed : &t->passed) += 1;
    }
    if (!count)
        fail(arena_ctx(a), TN_FAIL, "%s: no problems in it", path);
    if (!run->h->every)
        check_coverage(run->h, op, &cover, t);
    if (!of_processor(run->h))
        check_without(a, run->h, op, &cover, t);
}

static void run_guarded(const Harness *h, const Op *op, Ctx *ctx, Total *t)
{
    OpRun run = {h, op, arena_new(ctx), arena_new(ctx), t};
    CHECK(run.a && run.tmp);
    if (ctx_try(ctx, run_op, &run)) {
        printf("%s\n", ctx->message);
        t->failed++;
    }
    arena_free(run.tmp);
    arena_free(run.a);
}

/* ---- all ops ---- */

static bool has_row(const char *name, size_t len)
{
    for (int i = 0; i < op_count; i++)
        if (strlen(op_table[i].name) == len && !strncmp(op_table[i].name, name, len))
            return true;
    return false;
}

static void check_files(Total *t)
{
    DIR *dir = opendir(CASES);
    if (!dir)
        return;
    for (struct dirent *e; (e = readdir(dir));) {
        const char *dot = strrchr(e->d_name, '.');
        if (dot && !strcmp(dot, ".case") && !has_row(e->d_name, (size_t)(dot - e->d_name))) {
            printf(CASES "/%s: no row of op.def has this name\n", e->d_name);
            t->failed++;
        }
    }
    closedir(dir);
}

static bool wanted(const char *name, char *const *names)
{
    for (int i = 0; names[i]; i++)
        if (!strcmp(names[i], name))
            return true;
    return !*names;
}

void check_ops(const Harness *h, char *const *names, Total *t)
{
    Ctx ctx = {0};
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGABRT, crashed);
    signal(SIGSEGV, crashed);
    signal(SIGFPE, crashed);
    if (of_processor(h))
        check_files(t);
    for (int i = 0; i < op_count; i++)
        if (op_table[i].rules && !op_table[i].region && wanted(op_table[i].name, names))
            run_guarded(h, &op_table[i], &ctx, t);
    ctx_end(&ctx);
}
