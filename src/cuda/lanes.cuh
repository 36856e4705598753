/* The pointwise ops on CUDA whose element is one expression, a row each. lane.cuh makes a function
 * lane_NAME of a row, unary.cu and binary.cu a kernel, each by its own definition of the macros:
 *
 *     FLOAT1(name, fast, of floats)                 FLOAT2: of two operands
 *     NUMBER1(name, fast, of floats, of integers)   NUMBER2
 *
 * The operands are x, or a and b; floats have the type W, float or double, and T is the type in
 * memory; integers are long long. `fast` says what pointwise() makes of F32 and BF16. */
/* clang-format off */
NUMBER1(neg,        RUNS, -x,                  WRAPPED(0, -, x))
NUMBER1(abs,        RUNS, fabs(x),             x < 0 ? WRAPPED(0, -, x) : x)
NUMBER1(sign,       RUNS, (x > 0) - (x < 0),   (x > 0) - (x < 0))
FLOAT1( floor,      RUNS, floor(x))
FLOAT1( ceil,       RUNS, ceil(x))
FLOAT1( round,      RUNS, rint(x))
FLOAT1( trunc,      RUNS, trunc(x))
FLOAT1( exp,        RUNS, exp(x))
FLOAT1( expm1,      RUNS, expm1(x))
FLOAT1( exp2,       RUNS, exp2(x))
FLOAT1( log,        RUNS, log(x))
FLOAT1( log1p,      RUNS, log1p(x))
FLOAT1( log2,       RUNS, log2(x))
FLOAT1( sqrt,       RUNS, sqrt(x))
FLOAT1( rsqrt,      RUNS, 1 / sqrt(x))
FLOAT1( reciprocal, RUNS, 1 / x)
FLOAT1( sin,        0,    sin(x))
FLOAT1( cos,        0,    cos(x))
FLOAT1( erf,        RUNS, erf(x))
FLOAT1( erfc,       RUNS, erfc(x))
FLOAT1( erfinv,     0,    erfinv(x))
FLOAT1( tanh,       RUNS, tanh(x))
FLOAT1( sigmoid,    RUNS, logistic<T>(x))
FLOAT1( relu,       RUNS, x < 0 ? W(0) : x)
FLOAT1( silu,       RUNS, x * logistic<T>(x))

NUMBER2(add,              RUNS | TILES, a + b,                   WRAPPED(a, +, b))
NUMBER2(sub,              RUNS,         a - b,                   WRAPPED(a, -, b))
NUMBER2(mul,              RUNS | TILES, a * b,                   WRAPPED(a, *, b))
FLOAT2( div,              RUNS,         a / b)
NUMBER2(pow,              RUNS,         pow(a, b),               power(a, b))
FLOAT2( atan2,            0,            atan2(a, b))
NUMBER2(maximum,          RUNS,         a > b || a != a ? a : b, a > b ? a : b)
NUMBER2(minimum,          RUNS,         a < b || a != a ? a : b, a < b ? a : b)
FLOAT2( silu_backward,    RUNS,         a * silu_slope<T>(b))
FLOAT2( tanh_backward,    RUNS,         a * ((1 - b) * (1 + b)))
FLOAT2( sigmoid_backward, RUNS,         a * (1 - b) * b)
/* clang-format on */
#undef FLOAT1
#undef FLOAT2
#undef NUMBER1
#undef NUMBER2
