/* The results of chunking, as texts: the regions that run in slices, and every candidate with why
 * it was taken or not. Candidates of several layers that are alike, with the same outcome, are one
 * row: quadratic in the groups of candidates, of which there are few. */
#include "page.h"

#include <stdlib.h>
#include <string.h>

enum { MIB = 1 << 20 };

static double mib(int64_t nbytes)
{
    return (double)nbytes / MIB;
}

/* ---- rows ---- */

static const char *text_or_empty(const char *s)
{
    return s ? s : "";
}

static bool alike(const ChunkCandidate *x, const ChunkCandidate *y)
{
    return x->group == y->group && chunk_alike(&x->region, &y->region) &&
           x->region.slices == y->region.slices && x->made.slices == y->made.slices &&
           !strcmp(text_or_empty(x->why), text_or_empty(y->why)) &&
           !strcmp(text_or_empty(x->made.reason), text_or_empty(y->made.reason));
}

static int ascending(const void *x, const void *y)
{
    int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
    return a < b ? -1 : a > b;
}

/* "0-3,8": of n numbers, which it sorts. */
static const char *runs_text(Arena *a, int64_t *x, int n)
{
    Buf b = {.a = a};
    qsort(x, (size_t)n, sizeof *x, ascending);
    for (int i = 0, k; i < n; i = k) {
        for (k = i + 1; k < n && x[k] <= x[k - 1] + 1;)
            k++;
        buf_printf(&b, "%s%lld", i ? "," : "", (long long)x[i]);
        if (x[k - 1] > x[i])
            buf_printf(&b, "-%lld", (long long)x[k - 1]);
    }
    return b.text;
}

/* The scope of all candidates that are like c: "layers.0-11.mlp". */
static const char *scope_of_all(Arena *a, const ChunkReport *r, const ChunkCandidate *c, int count)
{
    Block block = block_of(c->scope);
    int64_t *number = NEWN(a, int64_t, count);
    int n = 0, len = block.len;
    if (count == 1 || !len)
        return c->scope;
    for (int i = 0; i < r->ncandidate; i++)
        if (alike(&r->candidate[i], c))
            number[n++] = block_of(r->candidate[i].scope).number;
    while (len && c->scope[len - 1] >= '0' && c->scope[len - 1] <= '9')
        len--;
    return arena_printf(a, "%.*s%s%s", len, c->scope, runs_text(a, number, n),
                        c->scope + block.len);
}

static int find_row(const ChunkRow *row, int n, const ChunkCandidate *c)
{
    int i = 0;
    while (i < n && !alike(row[i].c, c))
        i++;
    return i;
}

int chunk_rows(Arena *a, const ChunkReport *r, ChunkRow **rows)
{
    int n = 0;
    ChunkRow *row = *rows = NEWN(a, ChunkRow, r->ncandidate);
    for (int i = 0; i < r->ncandidate; i++) {
        const ChunkCandidate *c = &r->candidate[i];
        int k = find_row(row, n, c);
        if (k == n)
            row[n++].c = c;
        row[k].count++;
        row[k].nbytes += c->nbytes;
        row[k].nbytes_slice += chunk_slice_nbytes(c);
        row[k].sec += c->made.sec;
    }
    for (int k = 0; k < n; k++)
        row[k].scope = scope_of_all(a, r, row[k].c, row[k].count);
    return n;
}

/* ---- texts ---- */

/* Scopes in a list "a, b.c". */
typedef struct Scopes {
    char **text;
    int n, cap;
} Scopes;

/* "layers.0-11", of scopes from x on that lie in blocks of that name; takes them out. */
static const char *take_blocks(Arena *a, Scopes *s, int x)
{
    Block first = block_of(s->text[x]);
    int head = first.len, n = 0, kept = x;
    int64_t *number = NEWN(a, int64_t, s->n);
    while (head && strchr("0123456789", s->text[x][head - 1]))
        head--;
    char *name = arena_strndup(a, s->text[x], (size_t)head);
    for (int i = x; i < s->n; i++) {
        Block b = block_of(s->text[i]);
        if (b.len && !strncmp(s->text[i], name, (size_t)head) && b.len > head &&
            strspn(s->text[i] + head, "0123456789") == (size_t)(b.len - head))
            number[n++] = b.number;
        else
            s->text[kept++] = s->text[i];
    }
    s->n = kept;
    return arena_printf(a, "%s%s", name, runs_text(a, number, n));
}

const char *chunk_scopes(Arena *a, const ChunkCandidate *c)
{
    enum { FEW = 6 };
    Scopes s = {0};
    Buf b = {.a = a};
    char *list = arena_strdup(a, c->scopes ? c->scopes : ""), *one;
    while ((one = strsep(&list, ",")))
        PUSH(a, s.text, s.n, s.cap, one + strspn(one, " "));
    if (s.n <= FEW)
        return c->scopes ? c->scopes : "";
    for (int i = 0; i < s.n;) {
        bool block = block_of(s.text[i]).len;
        buf_printf(&b, "%s%s", b.len ? ", " : "", block ? take_blocks(a, &s, i) : s.text[i]);
        i += !block;
    }
    return b.text;
}

const char *chunk_axis(Arena *a, const ChunkCandidate *c)
{
    const Cut *cut = &c->region.cut;
    return cut->outer > 1 ? arena_printf(a, "axis %d within %lld", cut->axis, (long long)cut->outer)
                          : arena_printf(a, "axis %d", cut->axis);
}

/* Units of all but the last slice, which may be shorter. */
static int64_t units_each(const ChunkCandidate *c)
{
    int64_t slices = MAX(c->made.slices ? c->made.slices : c->region.slices, 1);
    return (c->units + slices - 1) / slices;
}

int64_t chunk_slice_nbytes(const ChunkCandidate *c)
{
    if (c->made.nbytes || c->made.peak || !c->units) /* with a peak it is known */
        return c->made.nbytes;
    return (int64_t)((double)c->nbytes / (double)c->units * (double)units_each(c));
}

bool chunk_priced(const ChunkCandidate *c)
{
    return c->made.peak || c->made.sec != 0;
}

const char *chunk_reason(const ChunkCandidate *c)
{
    return c->why           ? c->why
           : c->made.reason ? c->made.reason
           : c->made.slices ? "asked for"
                            : "not asked for";
}

/* "8 slices of 512 rows" */
static const char *slices_text(Arena *a, const ChunkCandidate *c)
{
    int64_t each = units_each(c) * MAX(c->region.inner, 1);
    bool rows = c->region.cut.axis == 0 && c->region.cut.outer <= 1;
    const char *part = rows ? arena_count(a, each, "row")
                            : arena_printf(a, "%lld along %s", (long long)each, chunk_axis(a, c));
    return arena_printf(a, "%s of %s", arena_count(a, c->made.slices, "slice"), part);
}

static const char *bits_text(const ChunkCandidate *c)
{
    return c->bits ? "same bits as the whole" : "bits may differ from the whole's";
}

/* Whether a node of g, or of a fused node in it, makes the value. */
static bool makes(const Graph *g, const char *value)
{
    const Value *v = map_find(&g->names, value);
    bool found = v && v->def;
    for (const Node *n = g->first; n && !found; n = n->next)
        found = n->op->region == FUSED && makes(n->region->body[MAIN], value);
    return found;
}

static bool runs(const ChunkCandidate *c, const Graph *body)
{
    bool found = makes(body, c->region.value);
    for (int i = 0; i < c->nvalue && !c->member && !found; i++)
        found = makes(body, c->values[i]);
    return found;
}

const ChunkCandidate *chunk_of_loop(const ChunkReport *r, const Node *loop)
{
    for (int i = 0; i < r->ncandidate; i++)
        if (r->candidate[i].made.slices && runs(&r->candidate[i], loop->region->body[MAIN]))
            return &r->candidate[i];
    return NULL;
}

/* Seconds of the step without what slices add. */
static double whole_sec(const ChunkReport *r, const Estimate *e)
{
    double sec = e->step;
    for (int i = 0; i < r->ncandidate; i++)
        sec -= r->candidate[i].made.slices ? r->candidate[i].made.sec : 0;
    return sec;
}

static void print_taken(Buf *b, const ChunkRow *row, double whole)
{
    const ChunkCandidate *c = row->c;
    const char *of = row->count == 1 ? chunk_scopes(b->a, c) : row->scope;
    buf_printf(b, "chunk: %s%s(%%%s", of, *of ? " " : "", c->region.value);
    if (row->count > 1)
        buf_printf(b, " and %d alike", row->count - 1);
    buf_printf(b, "): %s, ", slices_text(b->a, c));
    if (row->nbytes)
        buf_printf(b, "%.2f MiB -> %.2f MiB at the peak", mib(row->nbytes), mib(row->nbytes_slice));
    else
        buf_add(b, "nothing of it at the peak");
    if (whole > 0 && chunk_priced(c))
        buf_printf(b, ", %+.1f %% time", 100 * row->sec / whole);
    buf_printf(b, "; %s\n", bits_text(c));
}

void chunk_print(Buf *b, const ChunkReport *r, const Estimate *e)
{
    ChunkRow *row;
    int n = chunk_rows(b->a, r, &row);
    double whole = whole_sec(r, e);
    for (int i = 0; i < n; i++)
        if (row[i].c->made.slices)
            print_taken(b, &row[i], whole);
}

const char *chunk_op(Arena *a, const ChunkRow *row)
{
    return arena_printf(a, *row->scope ? "::%s" : " (%s)", row->c->op);
}

static void explain_region(Buf *b, const ChunkRow *row)
{
    const ChunkCandidate *c = row->c;
    const char *in = chunk_scopes(b->a, c);
    buf_printf(b, ": a region of %s%s%s%s%s; ", arena_count(b->a, c->nnode, "node"),
               c->region.all     ? ", all that the cut reaches"
               : c->region.cheap ? " that makes no product twice"
                                 : "",
               !*in                               ? ""
               : c->region.all || c->region.cheap ? ", in "
                                                  : " in ",
               in, c->loops > 1 ? ", a loop of the forward and one of the backward" : "");
    if (c->region.slices > 1 || c->made.slices)
        buf_printf(b, "%s asked, %lld made, %lld bytes with them; ",
                   arena_count(b->a, c->region.slices, "slice"), (long long)c->made.slices,
                   (long long)row->nbytes_slice);
    if (c->made.peak)
        buf_printf(b, "peak with it %lld bytes; ", (long long)c->made.peak);
    buf_printf(b, "%s; %s: %s\n", bits_text(c), c->made.slices ? "taken" : "not taken",
               chunk_reason(c));
}

static void explain_row(Buf *b, const ChunkRow *row)
{
    const ChunkCandidate *c = row->c;
    buf_printf(b, "%-9s  %11lld bytes  %9s  %%%s%s%s%s", c->made.slices ? "chunk" : "unchunked",
               (long long)row->nbytes, chunk_priced(c) ? sec_text(b->a, row->sec) : "-",
               c->region.value, *row->scope ? " @" : "", row->scope, chunk_op(b->a, row));
    if (row->count > 1)
        buf_printf(b, " (%d alike)", row->count);
    buf_printf(b, "  %s, %s", chunk_axis(b->a, c), arena_count(b->a, c->units, "unit"));
    if (c->region.inner > 1)
        buf_printf(b, " of %lld", (long long)c->region.inner);
    if (c->why)
        buf_printf(b, ": no region: %s\n", c->why);
    else
        explain_region(b, row);
}

void chunk_explain(Buf *b, const ChunkReport *r)
{
    ChunkRow *row;
    int n = chunk_rows(b->a, r, &row);
    for (int i = 0; i < n; i++)
        explain_row(b, &row[i]);
}
