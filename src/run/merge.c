/* Writes a model's folder with its adapters added to the weights: W + s B A, or of DoRA magnitude
 * times its rows over their norms. Each tensor is read, computed in double row by row, rounded once
 * to the dtype that it is written in, and written, so that one tensor is in memory at a time. What
 * rounding changes is measured, as in 16 bits it may be as large as what adapters add. */
#include "run.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A weight as it is stored, [rows, cols], and what is added to it: left[rows, r] right[r, cols]. */
typedef struct MergedWeight {
    const ModelParam *p;
    int64_t rows, cols, r;
    bool in_first;
    float *x;                /* the weight */
    double *left, *right;    /* NULL: nothing is added */
    double *factor;          /* of DoRA, by out; NULL: none */
    Tensor out;              /* the same in the dtype that is written */
    double *added, *rounded; /* by row: the largest of both */
} MergedWeight;

/* ---- reading ---- */

static float *read_floats(Arena *a, const TensorFile *f, const char *name)
{
    const TensorEntry *e = tensors_get(f, name);
    float *x = SPARSE(a, float, type_nelem(&e->type));
    tensors_read(f, e, F32, true, x);
    return x;
}

/* An adapter's part; new ones have their first values, by which nothing is added. */
static double *read_part(const tn_model *m, Arena *a, const ModelParam *p, bool turned,
                         double scale)
{
    int64_t rows = p->type.dim[0], cols = p->type.rank == 2 ? p->type.dim[1] : 1;
    float *x = read_floats(a, m->adapters, p->adapter);
    double *y = SPARSE(a, double, rows *cols);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < cols; k++)
            y[turned ? k * rows + i : i * cols + k] = scale * (double)x[i * cols + k];
    return y;
}

/* The part of the adapter of w whose name ends so; NULL: it has none. */
static const ModelParam *find_part(const tn_model *m, const ModelParam *w, const char *end)
{
    for (int i = 0; i < m->nparam; i++) {
        const ModelParam *p = &m->param[i];
        if (p->weight && !strcmp(p->weight, w->name) && ends_in(p->name, end))
            return p;
    }
    return NULL;
}

/* ---- computing ---- */

static void compute_row(const MergedWeight *w, int64_t i, double *row)
{
    const float *x = w->x + i * w->cols;
    for (int64_t k = 0; k < w->cols; k++)
        row[k] = x[k];
    for (int64_t q = 0; q < w->r; q++) {
        double l = w->left[i * w->r + q];
        const double *right = w->right + q * w->cols;
        for (int64_t k = 0; k < w->cols; k++)
            row[k] += l * right[k];
    }
}

/* Makes magnitudes the factors of rows, or of columns, by dividing them by the norms. */
static void divide_by_norms(Arena *a, MergedWeight *w)
{
    double *row = NEWN(a, double, w->cols);
    int64_t n = w->in_first ? w->cols : w->rows;
    double *sum = NEWN(a, double, n);
    for (int64_t i = 0; i < w->rows; i++) {
        compute_row(w, i, row);
        for (int64_t k = 0; k < w->cols; k++)
            sum[w->in_first ? k : i] += row[k] * row[k];
    }
    for (int64_t i = 0; i < n; i++)
        w->factor[i] /= sqrt(sum[i]);
}

typedef struct MergeRows {
    MergedWeight *w;
    double *row; /* of each row */
} MergeRows;

static void merge_row(MergedWeight *w, int64_t i, double *row)
{
    compute_row(w, i, row);
    for (int64_t k = 0; k < w->cols; k++) {
        double y = w->factor ? row[k] * w->factor[w->in_first ? k : i] : row[k];
        tensor_set(&w->out, i * w->cols + k, y);
        double stored = tensor_get(&w->out, i * w->cols + k);
        double added = fabs(y - (double)w->x[i * w->cols + k]);
        w->added[i] = isfinite(added) ? fmax(w->added[i], added) : INFINITY;
        w->rounded[i] = fmax(w->rounded[i], fabs(stored - y));
    }
}

static void merge_rows(void *arg, int64_t lo, int64_t hi)
{
    const MergeRows *m = arg;
    for (int64_t i = lo; i < hi; i++)
        merge_row(m->w, i, m->row + i * m->w->cols);
}

static void find_adapter(const tn_model *m, Arena *a, MergedWeight *w)
{
    const ModelParam *pa = find_part(m, w->p, ".lora_A.weight");
    const ModelParam *pb = find_part(m, w->p, ".lora_B.weight");
    const ModelParam *magnitude = find_part(m, w->p, ".lora_magnitude_vector");
    if (!pa)
        return;
    double s = lora_scale(a, m->config.lora, pa->adapter);
    w->r = pa->type.dim[0];
    w->left = read_part(m, a, w->in_first ? pa : pb, w->in_first, s);
    w->right = read_part(m, a, w->in_first ? pb : pa, w->in_first, 1);
    if (!magnitude)
        return;
    w->factor = read_part(m, a, magnitude, false, 1);
    divide_by_norms(a, w);
}

/* ---- writing ---- */

typedef struct MergeRun {
    const tn_model *m;
    Arena *tmp; /* for one tensor */
    tn_merged *merged;
} MergeRun;

/* The bytes of a merged tensor, in tmp. */
static const void *merge_tensor(const MergeRun *g, const ModelParam *p, DType d)
{
    const tn_model *m = g->m;
    Arena *tmp = g->tmp;
    int64_t n = type_nelem(&p->type);
    bool matrix = p->type.rank == 2;
    MergedWeight w = {.p = p,
                      .rows = matrix ? p->type.dim[0] : 1,
                      .cols = matrix ? p->type.dim[1] : n,
                      .in_first = matrix && lora_in_first(&m->config, p),
                      .out = {.dtype = d}};
    w.x =
        p->adapter ? read_floats(tmp, m->adapters, p->adapter) : read_floats(tmp, m->file, p->name);
    w.out.data = arena_sparse(tmp, (size_t)(n * dtype_size(d)));
    w.added = NEWN(tmp, double, w.rows);
    w.rounded = NEWN(tmp, double, w.rows);
    if (matrix && !p->adapter)
        find_adapter(m, tmp, &w);
    MergeRows rows = {&w, SPARSE(tmp, double, n)};
    par_for(w.rows, 1, merge_rows, &rows);
    g->merged->modules += w.r > 0;
    for (int64_t i = 0; i < w.rows; i++) {
        if (w.r && isinf(w.added[i]))
            fail(arena_ctx(tmp), TN_FAIL,
                 "merge: \"%s\": its sum with the adapter is not finite in row %lld", p->name,
                 (long long)i);
        g->merged->added = fmax(g->merged->added, w.r ? w.added[i] : 0);
        if (w.rounded[i] > g->merged->rounded) {
            g->merged->rounded = w.rounded[i];
            snprintf(g->merged->name, sizeof g->merged->name, "%s", p->name);
        }
    }
    return w.out.data;
}

static void write_shard(const MergeRun *g, Arena *a, const TensorShard *s)
{
    TensorLayout l = tensors_layout(a, s->path, s->n, s->t, false);
    TensorWriter *w = tensors_begin(a, s->path, &l, false);
    for (int k = 0; k < s->n; k++) {
        const TensorOut *t = &s->t[l.order[k]];
        const void *data = merge_tensor(g, t->data, t->type.dtype);
        tensors_put(w, l.begin[l.order[k]], data, type_nbytes(&t->type));
        arena_reset(g->tmp);
    }
    tensors_sync(w);
    tensors_end(w);
}

/* The weights of the base, each with the parameter that it is; *same: all keep their dtype. */
static TensorOut *list_base(const tn_model *m, Arena *a, const char *dtype, int *n, bool *same)
{
    TensorOut *t = NEWN(a, TensorOut, m->nparam);
    *n = 0;
    *same = true;
    for (int i = 0; i < m->nparam; i++) {
        const ModelParam *p = &m->param[i];
        if (p->weight)
            continue;
        DType had = tensors_get(m->file, p->name)->type.dtype;
        t[*n] = (TensorOut){p->name, p->type, p};
        t[*n].type.dtype = !dtype ? had : strcmp(dtype, "bf16") ? F32 : BF16;
        *same &= t[*n].type.dtype == had;
        ++*n;
    }
    return t;
}

static void write_config(const tn_model *m, Arena *a, const char *folder, const char *dtype,
                         bool same)
{
    const char *text = config_text(a, &m->config);
    if (!same)
        text = config_text_of(a, &m->config, strcmp(dtype, "bf16") ? F32 : BF16);
    file_write(arena_ctx(a), arena_printf(a, "%s/config.json", folder), text, strlen(text));
    companions_write(m, a, folder);
}

static void check_merge(const tn_model *m, Arena *a, const char *folder, const char *dtype)
{
    Ctx *ctx = arena_ctx(a);
    struct stat st;
    if (!m->config.lora || !m->adapters)
        fail(
            ctx, TN_USAGE,
            "merge: the model has no adapters: expected a run that trained some, or --adapter DIR");
    if (!m->file)
        fail(ctx, TN_USAGE, "merge: the model has no weights to which adapters could be added");
    if (dtype && strcmp(dtype, "f32") != 0 && strcmp(dtype, "bf16") != 0)
        fail(ctx, TN_USAGE, "merge: dtype: expected f32 or bf16, found \"%.50s\"", dtype);
    tensors_verify(m->file, 0, 1); /* a damaged base would be written with checksums of its own */
    tensors_verify(m->adapters, 0, 1);
    if (!lstat(folder, &st) && (!S_ISDIR(st.st_mode) || rmdir(folder)))
        fail(ctx, TN_USAGE, "%s: is there already: a merged model is written to a new folder",
             folder);
}

static const char *parent_of(Arena *a, const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? arena_strndup(a, path, (size_t)MAX(slash - path, 1)) : ".";
}

void merge_write(const tn_model *m, Arena *a, const char *folder, const char *dtype, int64_t shard,
                 tn_merged *merged)
{
    int n, nshard;
    bool same;
    size_t len = strlen(folder);
    while (len > 1 && folder[len - 1] == '/')
        len--;
    folder = arena_strndup(a, folder, len);
    check_merge(m, a, folder, dtype);
    folders_make(a, parent_of(a, folder));
    char *aside = arena_printf(a, "%s.tmp%ld", folder, (long)getpid());
    folder_remove(aside);
    if (mkdir(aside, 0777))
        fail(arena_ctx(a), TN_FAIL, "%s: cannot create: %s", folder, strerror(errno));
    arena_defer(a, folder_drop, aside);
    const TensorOut *t = list_base(m, a, dtype, &n, &same);
    TensorShard *s = tensors_shards(a, aside, shard, n, t, &nshard);
    MergeRun g = {m, arena_tmp(a), merged};
    for (int i = 0; i < nshard; i++)
        write_shard(&g, a, &s[i]);
    tensors_write_index(a, aside, shard, n, t);
    write_config(m, a, aside, dtype, same);
    folder_sync(arena_ctx(a), aside);
    folder_put(a, aside, folder);
    folder_sync(arena_ctx(a), parent_of(a, folder));
}
