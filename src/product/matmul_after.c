/* Steps after a product that oneDNN does not do: a bias that is neither a row nor of y's type,
 * and a transposed product into its place. */
#include "../op/matmul.h"

typedef struct Add {
    float *y;
    Matrix bias;
} Add;

static void add_rows(void *arg, int64_t lo, int64_t hi)
{
    const Add *x = arg;
    for (int64_t i = lo; i < hi; i++) {
        const float *bias = (const float *)x->bias.t->data + i * x->bias.stride[1];
        for (int64_t j = 0; j < x->bias.cols; j++)
            x->y[i * x->bias.cols + j] += bias[j * x->bias.stride[2]];
    }
}

void matmul_add_bias(const Call *c)
{
    Matrix y = matrix(&c->out[0]);
    Add x = {(float *)c->out[0].data, bias_matrix(&c->in[0], &y)};
    par_for(y.rows, MAX(1, 16384 / MAX(y.cols, 1)), add_rows, &x);
}

enum { BLOCK = 16 };

typedef struct Turning {
    float *y;
    const float *turned;
    int64_t rows, cols; /* of y */
} Turning;

/* y += the transposed of `turned`, BLOCK rows and columns at a time: lines of both are then in the
 * nearest cache. */
KERNEL(void, add_turned, (void *arg, int64_t lo, int64_t hi), (arg, lo, hi))
{
    const Turning *x = arg;
    int64_t end = MIN(hi * BLOCK, x->rows);
    for (int64_t i = lo * BLOCK; i < end; i += BLOCK)
        for (int64_t j = 0; j < x->cols; j += BLOCK)
            for (int64_t r = i; r < MIN(i + BLOCK, end); r++)
                for (int64_t k = j; k < MIN(j + BLOCK, x->cols); k++)
                    x->y[r * x->cols + k] += x->turned[k * x->rows + r];
}

void matmul_turn_back(const Call *c, bool adds, char *from)
{
    const Tensor *y = &c->out[0];
    Tensor t = *y;
    t.data = from;
    t.stride[0] = 1;
    t.stride[1] = y->dim[0];
    Turning x = {(float *)y->data, (const float *)(void *)from, y->dim[0], y->dim[1]};
    if (adds)
        par_for((x.rows + BLOCK - 1) / BLOCK, MAX(1, 16384 / BLOCK / MAX(x.cols, 1)), add_turned,
                &x);
    else
        strided_copy(y, &t);
}
