/* Norms over groups of channels and over the batch, as compositions. A norm over the batch keeps
 * x's axes [N, C, ...], so that no view stands between its nodes and those that `fuse` joins with
 * them; a norm over groups brings x to [N, groups, R], where a group's channels lie together. With
 * n = (x - mean) rstd over the reduced axes the gradient of x is rstd (g - mean(g) - n mean(g n)),
 * g = dy weight. f16 and bf16 are computed in f32. */
#include "lower.h"

static DType wide(DType d)
{
    return dtype_float(d) && dtype_size(d) == 2 ? F32 : d;
}

static Value *operand(Site *s, const char *name)
{
    Value *x = site_find_tensor(s, name);
    return x ? lower_cast(s, x, wide(x->type.dtype)) : NULL;
}

/* x, of axes [N, C, ...] */
static Value *in_channels(Site *s, Value *x)
{
    if (x->type.rank < 2)
        site_fail(s, "expected axes [N, C, ...], found %s", type_text(s->im->a, &x->type));
    return x;
}

/* A value for each channel, beside one of `rank` axes [N, C, ...] */
static Value *by_channel(Site *s, Value *x, int rank)
{
    int64_t size[TN_RANK] = {1, type_nelem(&x->type)};
    for (int d = 2; d < rank; d++)
        size[d] = 1;
    return lower_reshape(s, x, rank, size);
}

static Value *vector(Site *s, Value *x)
{
    int64_t n = type_nelem(&x->type);
    return lower_reshape(s, x, 1, &n);
}

/* The forward's statistics have the widest dtype among input, weight, bias and statistics. */
static DType saved_type(const Site *s)
{
    DType d = NDTYPE;
    for (int k = 0; k < s->narg; k++)
        if (s->arg[k].kind == FX_TENSOR)
            d = promote(s->arg[k].t->type.dtype, d);
    return d;
}

static Value *scaled(Site *s, Value *x, const char *name)
{
    Value *w = operand(s, name);
    return w ? lower2(s, "mul", x, by_channel(s, w, x->type.rank)) : x;
}

static Value *shifted(Site *s, Value *x)
{
    Value *b = operand(s, "bias");
    return b ? lower2(s, "add", x, by_channel(s, b, x->type.rank)) : x;
}

static Value *normal(Site *s, Value *x, Value *mean, Value *rstd)
{
    return lower2(s, "mul", lower2(s, "sub", x, mean), rstd);
}

static Value *rstd_of(Site *s, Value *var)
{
    return lower1(s, "rsqrt", lower2(s, "add", var, lower_like(s, site_real(s, "eps"), var)));
}

/* The mean and variance over these axes, which are kept. */
static Value *moments(Site *s, Value *x, int naxes, const int64_t *axes, Value **var)
{
    Node *n =
        emit(s->b, "var_mean", IN(x),
             ATTRS(A_INTS("dim", naxes, axes), A_BOOL("keepdim", 1), A_FLOAT("correction", 0)));
    *var = n->out[0];
    return n->out[1];
}

static Value *as_input(Site *s, Value *y)
{
    const Type *t = site_type(s, "input");
    return lower_cast(s, lower_reshape(s, y, t->rank, t->dim), t->dtype);
}

/* The gradient through n and its moments, which g's axes `axes` were reduced for. */
static Value *normal_backward(Site *s, Value *g, Value *n, Value *rstd, int naxes,
                              const int64_t *axes)
{
    Value *mean = lower_reduce(s, "mean", g, naxes, axes, true);
    Value *slope = lower_reduce(s, "mean", lower2(s, "mul", g, n), naxes, axes, true);
    g = lower2(s, "sub", lower2(s, "sub", g, mean), lower2(s, "mul", n, slope));
    return lower2(s, "mul", g, rstd);
}

/* dy and dy n summed for each channel: the gradients of bias and weight. */
typedef struct ChannelSums {
    Value *dy, *dyn;
} ChannelSums;

/* The sums of [N, C, ...] over space: [N, C] */
static Value *space_sum(Site *s, Value *x)
{
    static const int64_t space[] = {2, 3, 4, 5, 6, 7};
    int naxes = x->type.rank - 2;
    return naxes ? lower_reduce(s, "sum", x, naxes, space, false) : x;
}

/* Adds sums over space over the batch. */
static ChannelSums batch_sums(Site *s, const ChannelSums *x)
{
    static const int64_t batch = 0;
    return (ChannelSums){lower_reduce(s, "sum", x->dy, 1, &batch, false),
                         lower_reduce(s, "sum", x->dyn, 1, &batch, false)};
}

/* dx, and the gradients of weight and bias. Those whose bit of output_mask is clear are None. */
static void return_gradients(Site *s, Value *dx, const ChannelSums *sums)
{
    const Item *mask = site_arg(s, "output_mask");
    DType d = site_has(s, "weight") ? site_type(s, "weight")->dtype : sums->dyn->type.dtype;
    Value *out[3] = {0};
    if (mask->count != LEN(out))
        site_fail(s, "argument output_mask: expected %d bools", LEN(out));
    if (mask->item[0].i)
        out[0] = as_input(s, dx);
    if (mask->item[1].i)
        out[1] = lower_cast(s, sums->dyn, d);
    if (mask->item[2].i)
        out[2] = lower_cast(s, sums->dy, d);
    site_return_list(s, LEN(out), out);
}

/* ---- groups of channels ---- */

typedef struct ChannelGroups {
    int64_t n, channels, groups, rest; /* rest: of a channel */
} ChannelGroups;

static void check_groups(Site *s, const ChannelGroups *g)
{
    const Type *t = site_type(s, "input");
    if (g->groups < 1 || g->channels % g->groups || t->rank < 2 || t->dim[0] != g->n ||
        t->dim[1] != g->channels || type_nelem(t) != g->n * g->channels * g->rest)
        site_fail(s, "expected N, C and a divisor of C as groups of %s, found %lld, %lld and %lld",
                  type_text(s->im->a, t), (long long)g->n, (long long)g->channels,
                  (long long)g->groups);
}

static Value *in_groups(Site *s, Value *x, const ChannelGroups *g)
{
    return lower_reshape(s, x, 3, (int64_t[]){g->n, g->groups, g->channels / g->groups * g->rest});
}

static Value *group_channels(Site *s, Value *x, const ChannelGroups *g)
{
    return lower_reshape(s, x, 3, (int64_t[]){g->n, g->channels, g->rest});
}

static Value *group_norm(Site *s, const ChannelGroups *g, Value **mean, Value **rstd)
{
    static const int64_t last = 2;
    check_groups(s, g);
    Value *x = in_groups(s, operand(s, "input"), g), *var;
    *mean = moments(s, x, 1, &last, &var);
    *rstd = rstd_of(s, var);
    return as_input(
        s, shifted(s, scaled(s, group_channels(s, normal(s, x, *mean, *rstd), g), "weight")));
}

static ChannelGroups groups_given(Site *s)
{
    return (ChannelGroups){site_int(s, "N"), site_int(s, "C"), site_int(s, "group"),
                           site_int(s, "HxW")};
}

void row_native_group_norm(Site *s)
{
    ChannelGroups g = groups_given(s);
    Value *mean, *rstd, *y = group_norm(s, &g, &mean, &rstd);
    const int64_t size[] = {g.n, g.groups};
    DType d = saved_type(s);
    mean = lower_cast(s, lower_reshape(s, mean, 2, size), d);
    rstd = lower_cast(s, lower_reshape(s, rstd, 2, size), d);
    site_return_list(s, 3, (Value *[]){y, mean, rstd});
}

static ChannelGroups groups_of(Site *s, int64_t groups)
{
    const Type *t = site_type(s, "input");
    ChannelGroups g = {.groups = groups, .rest = 1};
    if (t->rank >= 2) {
        g.n = t->dim[0];
        g.channels = t->dim[1];
    }
    for (int d = 2; d < t->rank; d++)
        g.rest *= t->dim[d];
    return g;
}

void row_group_norm(Site *s)
{
    ChannelGroups g = groups_of(s, site_int(s, "num_groups"));
    Value *mean, *rstd;
    site_return(s, group_norm(s, &g, &mean, &rstd));
}

/* A group for each channel. */
void row_instance_norm(Site *s)
{
    ChannelGroups g = groups_of(s, 1);
    Value *mean, *rstd;
    if (site_has(s, "running_mean") || !site_bool(s, "use_input_stats"))
        site_fail(s, "argument running_mean: expected None, and use_input_stats True");
    g.groups = g.channels;
    site_return(s, group_norm(s, &g, &mean, &rstd));
}

void row_native_group_norm_backward(Site *s)
{
    static const int64_t last = 2;
    ChannelGroups g = groups_given(s);
    check_groups(s, &g);
    const int64_t size[] = {g.n, g.groups, 1};
    Value *mean = lower_reshape(s, operand(s, "mean"), 3, size);
    Value *rstd = lower_reshape(s, operand(s, "rstd"), 3, size);
    Value *n = normal(s, in_groups(s, operand(s, "input"), &g), mean, rstd);
    Value *dy = group_channels(s, operand(s, "grad_out"), &g);
    Value *slope = in_groups(s, scaled(s, dy, "weight"), &g);
    Value *dx = normal_backward(s, slope, n, rstd, 1, &last);
    ChannelSums sums = {space_sum(s, dy),
                        space_sum(s, lower2(s, "mul", dy, group_channels(s, n, &g)))};
    sums = batch_sums(s, &sums);
    return_gradients(s, dx, &sums);
}

/* ---- the batch ---- */

/* The results of one call: y, what the backward reads, and the running statistics after it. */
typedef struct BatchNorm {
    Value *y, *mean, *rstd, *running_mean, *running_var;
} BatchNorm;

enum { MOST_RESULTS = 6 };

/* (x - mean) (rstd weight) + bias */
static Value *normal_channels(Site *s, Value *x, Value *mean, Value *rstd)
{
    return as_input(s, shifted(s, normal(s, x, mean, scaled(s, rstd, "weight"))));
}

/* running (1 - momentum) + new momentum, in f32 where running is narrower. */
static Value *moved(Site *s, Value *running, Value *x)
{
    double momentum = site_real(s, "momentum");
    DType d = wide(running->type.dtype);
    x = lower_times(s, lower_cast(s, vector(s, x), d), momentum);
    return lower2(s, "add", lower_times(s, lower_cast(s, running, d), 1 - momentum), x);
}

/* Elements of [N, C, ...] for each channel. */
static double channel_size(const Value *x)
{
    double n = (double)x->type.dim[0];
    for (int d = 2; d < x->type.rank; d++)
        n *= (double)x->type.dim[d];
    return n;
}

static BatchNorm with_batch(Site *s, Value *running_mean, Value *running_var)
{
    static const int64_t axes[] = {0, 2, 3, 4, 5, 6, 7};
    Value *x = in_channels(s, operand(s, "input")), *var;
    double n = channel_size(x);
    BatchNorm r = {.mean = moments(s, x, x->type.rank - 1, axes, &var)};
    r.rstd = rstd_of(s, var);
    r.y = normal_channels(s, x, r.mean, r.rstd);
    if (running_mean)
        r.running_mean = moved(s, running_mean, r.mean);
    if (running_var)
        r.running_var = moved(s, running_var, lower_times(s, var, n / (n - 1)));
    r.mean = lower_cast(s, vector(s, r.mean), saved_type(s));
    r.rstd = lower_cast(s, vector(s, r.rstd), saved_type(s));
    return r;
}

/* Normalizes by the running statistics; saves nothing. */
static BatchNorm with_running(Site *s)
{
    Value *x = in_channels(s, operand(s, "input"));
    Value *mean = by_channel(s, site_tensor(s, "running_mean"), x->type.rank);
    Value *rstd = rstd_of(s, by_channel(s, site_tensor(s, "running_var"), x->type.rank));
    const Type none = {.dtype = saved_type(s), .rank = 1};
    BatchNorm r = {.mean = lower_full(s, 0, &none), .rstd = lower_full(s, 0, &none)};
    mean = lower_cast(s, mean, x->type.dtype);
    rstd = lower_cast(s, rstd, x->type.dtype);
    r.y = normal_channels(s, x, mean, rstd);
    return r;
}

static void write_running(Site *s, const char *name, Value *v)
{
    if (v)
        fx_write(s->im, site_storage(s, name), lower_cast(s, v, site_type(s, name)->dtype));
}

/* Writes the running statistics in training. */
static BatchNorm batch_norm(Site *s, bool training)
{
    if (!training)
        return with_running(s);
    BatchNorm r =
        with_batch(s, site_find_tensor(s, "running_mean"), site_find_tensor(s, "running_var"));
    write_running(s, "running_mean", r.running_mean);
    write_running(s, "running_var", r.running_var);
    return r;
}

/* cuDNN's reserve, which nothing uses: u8[0] */
static Value *reserve(Site *s)
{
    return lower_full(s, 0, &(Type){.dtype = U8, .rank = 1});
}

void row_native_batch_norm(Site *s)
{
    BatchNorm r = batch_norm(s, site_bool(s, "training"));
    site_return_list(s, 3, (Value *[]){r.y, r.mean, r.rstd});
}

void row_batch_norm(Site *s)
{
    site_return(s, batch_norm(s, site_bool(s, "training")).y);
}

void row_batch_norm_no_stats(Site *s)
{
    if (!site_bool(s, "training"))
        site_fail(s, "argument training: expected True without running statistics");
    BatchNorm r = with_batch(s, NULL, NULL);
    site_return_list(s, 3, (Value *[]){r.y, r.mean, r.rstd});
}

void row_batch_norm_no_training(Site *s)
{
    BatchNorm r = with_running(s);
    site_return_list(s, 3, (Value *[]){r.y, r.mean, r.rstd});
}

/* Result k, new running statistics: in the dtype of what they were, but f32 where PyTorch traced it
 * without data. */
static void narrow_running(Site *s, int k, Value *v, const char *name)
{
    DType d = site_type(s, name)->dtype;
    if (v->type.dtype == d)
        return;
    Item *x = &s->result.item[k];
    FxTensor *wide_one = x->t;
    x->t = fx_fresh(s->im, lower_cast(s, v, d));
    x->t->elsewhere = wide_one;
}

void row_batch_norm_functional(Site *s)
{
    Value *mean = site_tensor(s, "running_mean"), *var = site_tensor(s, "running_var");
    BatchNorm r = site_bool(s, "training") ? with_batch(s, mean, var) : with_running(s);
    Value *next_mean = r.running_mean ? r.running_mean : mean;
    Value *next_var = r.running_var ? r.running_var : var;
    site_return_list(s, 5, (Value *[]){r.y, r.mean, r.rstd, next_mean, next_var});
    narrow_running(s, 3, next_mean, "running_mean");
    narrow_running(s, 4, next_var, "running_var");
}

void row_batch_norm_with_update(Site *s)
{
    BatchNorm r = batch_norm(s, true);
    site_return_list(s, 4, (Value *[]){r.y, r.mean, r.rstd, reserve(s)});
}

void row_batch_norm_with_update_functional(Site *s)
{
    BatchNorm r = with_batch(s, site_tensor(s, "running_mean"), site_tensor(s, "running_var"));
    site_return_list(s, MOST_RESULTS,
                     (Value *[]){r.y, r.mean, r.rstd, reserve(s), r.running_mean, r.running_var});
    narrow_running(s, 4, r.running_mean, "running_mean");
    narrow_running(s, 5, r.running_var, "running_var");
}

void row_batch_norm_no_update(Site *s)
{
    BatchNorm r = with_running(s);
    site_return_list(s, 4, (Value *[]){r.y, r.mean, r.rstd, reserve(s)});
}

/* The mean over all of x but channels, of which this is the sum. */
static Value *channel_mean(Site *s, Value *sum, const Value *x)
{
    return by_channel(s, lower_times(s, sum, 1 / channel_size(x)), x->type.rank);
}

/* n = (x - mean) rstd is multiplied by rstd only where it is summed or reduced to a channel's.
 * saved_rstd: the name of what the forward kept.
 *
 * Nodes come in the order in which `fuse` joins them: sums over space with what makes dy, and dx in
 * one body. x - mean is made for each of both, of opposite sign lest `cse` make it one that is
 * written. */
static void batch_norm_backward(Site *s, bool training, const char *saved_rstd)
{
    Value *x = in_channels(s, operand(s, "input")), *mean, *rstd;
    Value *dy = in_channels(s, operand(s, "grad_out")), *dx = dy;
    DType d = x->type.dtype;
    int rank = x->type.rank;
    if (training) {
        mean = by_channel(s, site_tensor(s, "save_mean"), rank);
        rstd = by_channel(s, site_tensor(s, saved_rstd), rank);
    } else {
        mean = by_channel(s, site_tensor(s, "running_mean"), rank);
        rstd = rstd_of(s, by_channel(s, site_tensor(s, "running_var"), rank));
    }
    mean = lower_cast(s, mean, d);
    rstd = lower_cast(s, rstd, d);
    ChannelSums sums = {.dy = space_sum(s, dy)};
    sums.dyn = space_sum(s, lower2(s, "mul", dy, lower2(s, "sub", x, mean)));
    sums = batch_sums(s, &sums);
    sums.dyn = lower2(s, "mul", sums.dyn, vector(s, rstd));
    Value *by_weight = scaled(s, rstd, "weight");
    if (training) {
        Value *slope = lower2(s, "mul", channel_mean(s, sums.dyn, x), rstd);
        dx = lower2(s, "sub", dy, channel_mean(s, sums.dy, x));
        dx = lower2(s, "add", dx, lower2(s, "mul", lower2(s, "sub", mean, x), slope));
    }
    dx = lower2(s, "mul", dx, by_weight);
    return_gradients(s, dx, &sums);
}

void row_native_batch_norm_backward(Site *s)
{
    batch_norm_backward(s, site_bool(s, "train"), "save_invstd");
}

void row_batch_norm_backward(Site *s)
{
    batch_norm_backward(s, site_bool(s, "update"), "save_var");
}
