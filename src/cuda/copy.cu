/* Copies and fills of strided tensors on CUDA, as pointwise kernels of the widest unit, up to 16
 * bytes, of which the innermost axis, the strides and the places of both sides are multiples; where
 * only the result's are, a thread collects 16 bytes of it. */
#include "copy.cuh"

#include "pointwise.cuh"

struct Same {
    template <typename T> __device__ T operator()(T x) const
    {
        return x;
    }
};

template <typename T> struct Constant {
    T x;
    __device__ T operator()() const
    {
        return x;
    }
};

/* Makes w, of elements of `size` bytes, one of units of up to 16; returns the bytes of a unit. */
static int64_t widen(Walk *w, int64_t size, const char *const *place)
{
    for (int64_t unit = 16; unit > size; unit /= 2) {
        bool fits = true;
        for (int k = 0; k < w->count; k++)
            fits = fits && w->stride[k][w->rank - 1] && run_fits(w, k, unit / size, size, place[k]);
        if (!fits)
            continue;
        walk_by(w, unit / size);
        for (int k = 0; k < w->count; k++)
            for (int d = 0; d < w->rank; d++)
                w->stride[k][d] /= unit / size;
        return unit;
    }
    return size;
}

/* Runs of 16 bytes of y from elements of x that are apart, or not where runs could be read. */
template <int V, typename T>
__global__ void __launch_bounds__(BLOCK) collect(Positions s, T *y, const T *x)
{
    int64_t i = thread_number(), at[2];
    if (i >= s.nelem || stopped(s.stop))
        return;
    locate(s, i, at);
    int64_t step = s.stride[1][s.rank - 1] / V;
    RunOf<T, V> p;
#pragma unroll
    for (int v = 0; v < V; v++)
        p.v[v] = x[at[1] + v * step];
    *(RunOf<T, V> *)(y + at[0]) = p;
}

template <typename T> static int copy_units(Call *c, Walk w, char *to, const char *from)
{
    constexpr int V = 16 / sizeof(T);
    int inner = w.rank - 1;
    bool across = false;
    for (int d = 0; d < inner; d++)
        across = across || lies_along(&w, 1, d);
    if (V > 1 && w.nelem && !across && run_fits(&w, 0, V, sizeof(T), to)) {
        walk_by(&w, V);
        return LAUNCH(c, (collect<V, T>), grid_for(w.nelem, BLOCK), BLOCK, 0, positions_of(c, &w),
                      (T *)(void *)to, (const T *)(const void *)from);
    }
    return walk_run<TILES>(c, w, Same(), (T *)(void *)to, (const T *)(const void *)from);
}

extern "C" int cuda_copy(Call *c, const Tensor *to, const Tensor *from)
{
    Walk w;
    if (to->data == from->data)
        return 0;
    walk_make(&w, to, 1, from);
    const char *place[] = {to->data, from->data};
    switch (w.nelem ? widen(&w, dtype_size(to->dtype), place) : 1) {
    case 1: return copy_units<uint8_t>(c, w, to->data, from->data);
    case 2: return copy_units<uint16_t>(c, w, to->data, from->data);
    case 4: return copy_units<uint32_t>(c, w, to->data, from->data);
    case 8: return copy_units<uint64_t>(c, w, to->data, from->data);
    default: return copy_units<Unit16>(c, w, to->data, from->data);
    }
}

template <typename T> static int fill_units(Call *c, const Walk &w, char *to, const char *bits)
{
    Constant<T> f;
    memcpy(&f.x, bits, sizeof f.x);
    return walk_run<0>(c, w, f, (T *)(void *)to);
}

extern "C" int cuda_fill(Call *c, const Tensor *to, double x)
{
    Walk w;
    char bits[16];
    int size = dtype_size(to->dtype);
    Tensor one = {.data = bits, .dtype = to->dtype};
    for (int i = 0; i < 16; i += size)
        tensor_set(&one, i / size, x);
    walk_make(&w, to, 0, NULL);
    const char *place[] = {to->data};
    switch (w.nelem ? widen(&w, size, place) : 1) {
    case 1: return fill_units<uint8_t>(c, w, to->data, bits);
    case 2: return fill_units<uint16_t>(c, w, to->data, bits);
    case 4: return fill_units<uint32_t>(c, w, to->data, bits);
    case 8: return fill_units<uint64_t>(c, w, to->data, bits);
    default: return fill_units<Unit16>(c, w, to->data, bits);
    }
}
