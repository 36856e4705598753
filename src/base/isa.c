/* The instruction set in use: the most that the processor has, and no more than TN_ISA allows. It
 * is settled when the program or library is loaded, so that a kernel gives the same bits whenever
 * and from wherever it is called.
 *
 * AMX has registers of 8 KiB, which Linux keeps for a process only if asked to: ISA_AMX is not in
 * use where it refuses (before 5.16, or where a thread's stack for signals is too small for them),
 * and not asked for where TN_ISA excludes it. */
#define _GNU_SOURCE /* syscall */
#include "base.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"base", "avx2", "avx512", "bf16", "amx"};

/* ---- what the processor has, beside what the levels before need ---- */

#ifdef TN_X86
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool has_avx2(void)
{
#ifdef __clang__ /* knows features, but levels not before 19 */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
#else
    return __builtin_cpu_supports("x86-64-v3");
#endif
}

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

static bool has_bf16(void)
{
    return __builtin_cpu_supports("avx512bf16");
}

static bool has_amx(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    const unsigned needed = 1 << 22 | 1 << 24 | 1 << 25; /* AMX-BF16, AMX-TILE, AMX-INT8 */
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & needed) == needed &&
           !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA);
}

static Isa find(Isa most)
{
    static bool (*const has[])(void) = {NULL, has_avx2, has_avx512, has_bf16, has_amx};
    Isa level = ISA_BASE;
    __builtin_cpu_init();
    while (level < most && has[level + 1]())
        level++;
    return level;
}
#else
static Isa find(Isa most)
{
    (void)most;
    return ISA_BASE;
}
#endif

/* ---- what TN_ISA allows ---- */

Isa isa_used; /* written once, before anything reads it */

const char *isa_name(Isa level)
{
    return names[level];
}

int isa_asked(void)
{
    const char *text = getenv("TN_ISA");
    for (int i = 0; text && i < LEN(names); i++)
        if (!strcmp(text, names[i]))
            return i;
    return text && *text ? ISA_UNKNOWN : ISA_ANY;
}

void isa_check(Ctx *ctx)
{
    int asked = isa_asked();
    if (asked == ISA_UNKNOWN)
        fail(ctx, TN_USAGE, "TN_ISA: expected base, avx2, avx512, bf16 or amx, found \"%.100s\"",
             getenv("TN_ISA"));
    if (asked != ISA_ANY && (int)isa_used > asked)
        fail(ctx, TN_USAGE, "TN_ISA=%s: was set after the library was loaded, which uses %s",
             names[asked], names[isa_used]);
}

/* ---- whether products of bf16 pay ---- */

/* Intel's cores that have AMX (those with AVX512_FP16) run AVX512_BF16 at half of the rate at which
 * they multiply floats: where AMX is not to be had, as in many virtual machines, a product of bf16
 * took 2.0 times as long as that of f32, and 1.16 times once widened (family 6, model 207). AMD's
 * run it at twice f32's rate. */
static bool halves_bf16(void)
{
#ifdef TN_X86
    const unsigned fp16 = 1 << 23;
    unsigned a, b, c, d;
    return __builtin_cpu_is("intel") && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & fp16);
#else
    return false;
#endif
}

static bool bf16_pays; /* written once, as isa_used: cpuid is slow in virtual machines */

bool isa_bf16_pays(void)
{
    return bf16_pays;
}

/* Before those that need no priority. */
__attribute__((constructor(101))) static void settle(void)
{
    int asked = isa_asked();
    isa_used = find(asked < 0 ? ISA_AMX : (Isa)asked);
    bf16_pays =
        isa_used == ISA_AMX || (isa_used == ISA_BF16 && (asked == ISA_BF16 || !halves_bf16()));
}
