/* Elements of 16 bits on CUDA: their types, and to and from what kernels compute in. Part of what
 * is compiled at run time too: it includes nothing. */
#ifndef TENON_ELEMENT_CUH
#define TENON_ELEMENT_CUH

struct bf16 {
    unsigned short bits;
};
struct f16 {
    unsigned short bits;
};

/* The type in which kernels compute: float for 16 bits. */
template <typename T> struct Wide {
    typedef T type;
};
template <> struct Wide<bf16> {
    typedef float type;
};
template <> struct Wide<f16> {
    typedef float type;
};
template <typename T> using wide_t = typename Wide<T>::type;

template <typename T> constexpr bool is_floating = false;
template <> constexpr bool is_floating<double> = true;
template <> constexpr bool is_floating<float> = true;
template <> constexpr bool is_floating<bf16> = true;
template <> constexpr bool is_floating<f16> = true;

__host__ __device__ inline float wide(bf16 x)
{
    return __builtin_bit_cast(float, (unsigned)x.bits << 16);
}

/* The conversions that the processor's functions (tensor.c) stand for where it runs the kernels. */
#ifdef TN_SIMT
extern "C" float f16_to_f32(unsigned short x);
extern "C" unsigned short f32_to_f16(float x);
extern "C" unsigned short f32_to_bf16(float x);
#define CONVERT(name, code, To, to, From, from, function) \
    __device__ inline To name(From x)                     \
    {                                                     \
        return function(x);                               \
    }
#else
#define CONVERT(name, code, To, to, From, from, function)  \
    __device__ inline To name(From x)                      \
    {                                                      \
        To y;                                              \
        asm("cvt." code " %0, %1;" : "=" to(y) : from(x)); \
        return y;                                          \
    }
#endif
CONVERT(from_f16, "f32.f16", float, "f", unsigned short, "h", f16_to_f32)
CONVERT(to_f16, "rn.f16.f32", unsigned short, "h", float, "f", f32_to_f16)
CONVERT(to_bf16, "rn.bf16.f32", unsigned short, "h", float, "f", f32_to_bf16)
#undef CONVERT

__device__ inline float wide(f16 x)
{
    return from_f16(x.bits);
}

template <typename T> __host__ __device__ inline T wide(T x)
{
    return x;
}

/* x rounded to T, to nearest even. */
template <typename T> struct Narrow {
    template <typename W> __device__ static T of(W x)
    {
        return (T)x;
    }
};
template <> struct Narrow<bf16> {
    __device__ static bf16 of(float x)
    {
        return {to_bf16(x)};
    }
};
template <> struct Narrow<f16> {
    __device__ static f16 of(float x)
    {
        return {to_f16(x)};
    }
};
template <typename T, typename W> __device__ inline T narrow(W x)
{
    return Narrow<T>::of(x);
}

/* a b + c, rounded once. */
__device__ inline float fma_of(float a, float b, float c)
{
    return fmaf(a, b, c);
}
__device__ inline double fma_of(double a, double b, double c)
{
    return fma(a, b, c);
}

#endif
