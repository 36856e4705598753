/* AMX in software, so that its kernels are tested everywhere: in programs linked with
 * --wrap=amx_has there is AMX. A processor without it raises SIGILL, whose handler decodes the
 * instruction and runs it on tiles of the thread's own. Only what amx.c is made of:
 * LDTILECFG, TILERELEASE, TILEZERO, TILELOADD, TILESTORED and TDPBF16PS, after Intel's Software
 * Developer's Manual, volume 2. What is not allowed ends the program. */
#define _GNU_SOURCE
#include <stdbool.h>

bool __wrap_amx_has(void);

#if defined(__x86_64__)

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

typedef struct Tiles {
    uint8_t config[64];
    uint8_t tile[8][16][64];
} Tiles;

static _Thread_local Tiles tiles;

static void wrong(const char *what)
{
    fprintf(stderr, "AMX: %s\n", what);
    abort();
}

static int rows_of(int t)
{
    return tiles.config[48 + t];
}

static int bytes_of(int t)
{
    return tiles.config[16 + 2 * t] | tiles.config[17 + 2 * t] << 8;
}

static void check_tile(int t)
{
    if (t > 7 || tiles.config[0] != 1 || !rows_of(t) || !bytes_of(t))
        wrong("a tile that is not configured");
}

static void load_config(const uint8_t *from)
{
    memcpy(tiles.config, from, sizeof tiles.config);
    memset(tiles.tile, 0, sizeof tiles.tile);
    for (int t = 0; t < 8 && tiles.config[0]; t++)
        if (tiles.config[0] != 1 || rows_of(t) > 16 || bytes_of(t) > 64)
            wrong("a configuration that faults");
}

static void load(int t, const char *from, int64_t stride)
{
    check_tile(t);
    memset(tiles.tile[t], 0, sizeof tiles.tile[t]);
    for (int i = 0; i < rows_of(t); i++)
        memcpy(tiles.tile[t][i], from + i * stride, (size_t)bytes_of(t));
}

static void store(int t, char *to, int64_t stride)
{
    check_tile(t);
    for (int i = 0; i < rows_of(t); i++)
        memcpy(to + i * stride, tiles.tile[t][i], (size_t)bytes_of(t));
}

static float bf16_at(const uint8_t *x)
{
    uint32_t bits = (uint32_t)(x[0] | x[1] << 8) << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

/* c += a b, pairs along the rows of a */
static void multiply(int c, int a, int b)
{
    check_tile(a);
    check_tile(b);
    check_tile(c);
    if (rows_of(c) != rows_of(a) || bytes_of(a) != 4 * rows_of(b) || bytes_of(b) != bytes_of(c))
        wrong("a product of tiles that do not fit");
    for (int i = 0; i < rows_of(c); i++) {
        float sum[2][16] = {0}, old[16];
        for (int p = 0; p < rows_of(b); p++)
            for (int e = 0; e < 2; e++) {
                float x = bf16_at(&tiles.tile[a][i][4 * p + 2 * e]);
                for (int j = 0; j < bytes_of(c) / 4; j++)
                    sum[e][j] += x * bf16_at(&tiles.tile[b][p][4 * j + 2 * e]);
            }
        memcpy(old, tiles.tile[c][i], sizeof old);
        for (int j = 0; j < 16; j++)
            old[j] += sum[0][j] + sum[1][j];
        memcpy(tiles.tile[c][i], old, sizeof old);
    }
}

/* ---- decoding ---- */

static int64_t get_register(const ucontext_t *u, int r)
{
    static const int number[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                 REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                 REG_R12, REG_R13, REG_R14, REG_R15};
    return u->uc_mcontext.gregs[number[r]];
}

/* An operand in memory behind the opcode: where it begins and, of tiles, the stride of its rows.
 * Returns the end of the instruction. */
static const uint8_t *address(const ucontext_t *u, const uint8_t *x, int vex, char **at,
                              int64_t *stride)
{
    int mod = x[0] >> 6, base = x[0] & 7, index = -1, scale = 0, high = vex & 0x20 ? 0 : 8;
    bool sib = base == 4;
    x++;
    *stride = 0;
    if (sib) {
        base = x[0] & 7;
        index = (x[0] >> 3 & 7) + (vex & 0x40 ? 0 : 8);
        scale = x[0] >> 6;
        x++;
    }
    int64_t to = 0;
    int32_t far = 0;
    bool none = mod == 0 && base == 5; /* 32 bits alone, or after the instruction */
    int nbytes = mod == 1 ? 1 : mod == 2 || none ? 4 : 0;
    memcpy(&far, x, (size_t)nbytes);
    to += nbytes == 1 ? (int8_t)x[0] : far;
    x += nbytes;
    if (!none)
        to += get_register(u, base + high);
    else if (!sib)
        to += (int64_t)(intptr_t)x;
    if (index >= 0 && index != 4)
        *stride = get_register(u, index) * ((int64_t)1 << scale);
    *at = (char *)(intptr_t)to;
    return x;
}

enum { NONE, P66, F3, F2 }; /* the prefix that a VEX stands for */

/* Runs the instruction at x; returns the next, NULL where it is none of these. */
static const uint8_t *run(const ucontext_t *u, const uint8_t *x)
{
    if (x[0] != 0xc4 || (x[1] & 0x1f) != 2)
        return NULL;
    int vex = x[1], prefix = x[2] & 3, third = ~x[2] >> 3 & 15, opcode = x[3], reg = x[4] >> 3 & 7;
    bool registers = x[4] >> 6 == 3;
    char *at;
    int64_t stride;
    if (opcode == 0x5c && registers && prefix == F3) {
        multiply(reg, x[4] & 7, third);
        return x + 5;
    }
    if (opcode == 0x49 && registers && prefix == NONE) {
        memset(&tiles, 0, sizeof tiles);
        return x + 5;
    }
    if (opcode == 0x49 && registers && prefix == F2) {
        check_tile(reg);
        memset(tiles.tile[reg], 0, sizeof tiles.tile[reg]);
        return x + 5;
    }
    const uint8_t *next = registers ? NULL : address(u, x + 4, vex, &at, &stride);
    if (next && opcode == 0x49 && prefix == NONE)
        load_config((const uint8_t *)at);
    else if (next && opcode == 0x4b && prefix == F2)
        load(reg, at, stride);
    else if (next && opcode == 0x4b && prefix == F3)
        store(reg, at, stride);
    else
        return NULL;
    return next;
}

static void trap(int signal, siginfo_t *info, void *context)
{
    ucontext_t *u = context;
    (void)signal, (void)info;
    const uint8_t *next = run(u, (const uint8_t *)(intptr_t)u->uc_mcontext.gregs[REG_RIP]);
    if (!next)
        wrong("an instruction that is not known here");
    u->uc_mcontext.gregs[REG_RIP] = (greg_t)(intptr_t)next;
}

static void install(void)
{
    struct sigaction s = {.sa_sigaction = trap, .sa_flags = SA_SIGINFO};
    if (sigaction(SIGILL, &s, NULL))
        wrong("no handler of SIGILL");
}

bool __wrap_amx_has(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
    return true;
}

#else

bool __wrap_amx_has(void)
{
    return false;
}

#endif
