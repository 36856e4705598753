/* base: errors, arenas, text, maps, threads and work on them, random numbers, files: used by every
 * layer. Sections name the file that implements them. */
#ifndef TENON_BASE_H
#define TENON_BASE_H

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define LEN(a)    ((int)(sizeof(a) / sizeof((a)[0])))
#define MIN(x, y) ((x) < (y) ? (x) : (y))
#define MAX(x, y) ((x) > (y) ? (x) : (y))

/* The greatest common divisor of what is not negative; of 0 and b it is b. */
static inline int64_t gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Whether a text has `end` as its end. */
static inline bool ends_in(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

/* ---- error.c: a user's mistake unwinds, a bug aborts ---- */

typedef enum {
    TN_OK = 0,
    TN_FAIL = 1,  /* bad file, I/O, numerical fault */
    TN_USAGE = 2, /* wrong option or argument */
    TN_FIT = 3,   /* does not fit: memory, capacity */
} Code;

typedef struct Arena Arena;

/* Answers that a context remembers (memo.c). */
typedef struct Memo {
    Arena *a; /* NULL: nothing yet */
    struct Remembered *entry;
    int count, cap; /* cap is a power of two */
} Memo;

/* Why something does not fit, for those who look for what would, in bytes. */
typedef struct Misfit {
    int64_t limit;         /* 0: nothing is known */
    bool mapped;           /* it is what could be mapped, or what a device had free */
    int64_t peak, reserve; /* that are needed: the arena, and what libraries take beside it */
    int64_t least;         /* the least that would do with the same settings */
} Misfit;

/* One chain of protected calls, the last message, and what is remembered from call to call. Not
 * shared between threads. Zeros at first. */
typedef struct Ctx {
    jmp_buf *handler; /* innermost ctx_try or TRY, NULL outside of any */
    Code code;
    char message[2000]; /* one line, then optional lines that begin with two spaces */
    Misfit misfit;      /* of the message; zeros: it is of something else */
    Memo memo;
    struct ArenaBlock *spare; /* what arenas have left, while keepers want it */
    int keepers;
    struct Share *share; /* of answers with other threads; NULL: there are none here */
} Ctx;

/* Frees what the context remembers. Every arena of the context must have been freed before. */
void ctx_end(Ctx *ctx);

/* Runs fn(arg); returns TN_OK, or the code of the fail() that unwound it. Calls nest. */
Code ctx_try(Ctx *ctx, void (*fn)(void *arg), void *arg);

/* The same for a statement or block that stands after it:
 *     TRY(t, ctx)
 *         *text = print(try_arena(&t), x);
 *     return tried(&t);
 * After a failure a local variable that the block has changed is undefined, unless it is volatile:
 * so the block writes its results through pointers, last of all (gcc's -Wclobbered warns). */
#define TRY(t, context)                               \
    Attempt t __attribute__((cleanup(try_end)));      \
    if (!try_begin(&t, (context))) { /* t has code */ \
    } else if (setjmp(t.here))                        \
        try_failed(&t);                               \
    else

typedef struct Attempt {
    Ctx *ctx; /* NULL: it has ended */
    jmp_buf here, *outer;
    Arena *volatile a;
    Code code;
} Attempt;

bool try_begin(Attempt *t, Ctx *ctx);
void try_failed(Attempt *t);
Arena *try_arena(Attempt *t); /* the block's own memory, freed by tried(); fails without memory */
Code tried(Attempt *t);       /* ends it: TN_OK, or the code of the fail() that ended the block */
void try_end(Attempt *t);

/* Stores the formatted message and unwinds to the innermost ctx_try or TRY. */
_Noreturn void fail(Ctx *ctx, Code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void vfail(Ctx *ctx, Code code, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));

/* The same with code FIT, and what is known of why. */
_Noreturn void fail_misfit(Ctx *ctx, const Misfit *m, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Adds "FILE:LINE:COLUMN: " or other text before the stored message and unwinds further. */
_Noreturn void fail_again(Ctx *ctx, const char *prefix);

_Noreturn void bug(const char *file, int line, const char *what);
#define CHECK(cond) ((cond) ? (void)0 : bug(__FILE__, __LINE__, #cond))

/* ---- arena.c: memory owned by phases ---- */

/* An empty arena whose failed allocations call fail(ctx, ...). Returns NULL without memory. */
Arena *arena_new(Ctx *ctx);
/* The same, freed with another one; fails without memory. */
Arena *arena_tmp(Arena *with);

/* Zeroed memory, aligned to 16 bytes, valid until the arena is reset or freed. */
void *arena_alloc(Arena *a, size_t nbytes);
/* The same for an array of which little is written: what is not takes no time to clear. */
void *arena_sparse(Arena *a, size_t nbytes);
char *arena_strdup(Arena *a, const char *s);
char *arena_strndup(Arena *a, const char *s, size_t n);
char *arena_printf(Arena *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *arena_count(Arena *a, int64_t n, const char *noun); /* as count_text says it */

/* Until `with` is reset, the context's arenas keep the large blocks that they have no more need of,
 * for each other: fresh ones would have to be cleared by the system first. */
void arena_keep_blocks(Arena *with);

/* Calls drop(what) when the arena is reset or freed, last registered first. */
void arena_defer(Arena *a, void (*drop)(void *), void *what);

void arena_reset(Arena *a); /* runs the deferred calls, keeps the arena usable */
void arena_free(Arena *a);  /* runs the deferred calls; NULL is allowed */
Ctx *arena_ctx(const Arena *a);

#define NEW(a, T)       ((T *)arena_alloc((a), sizeof(T)))
#define NEWN(a, T, n)   ((T *)arena_alloc((a), sizeof(T) * (size_t)(n)))
#define SPARSE(a, T, n) ((T *)arena_sparse((a), sizeof(T) * (size_t)(n)))

/* Grows an arena array to hold one more element; amortised. cap is updated. */
void *arena_grow(Arena *a, void *array, int count, int *cap, size_t size);
#define PUSH(a, array, count, cap, x) \
    ((array) = arena_grow((a), (array), (count), &(cap), sizeof *(array)), (array)[(count)++] = (x))

/* ---- buf.c: growing text, in an arena ---- */

typedef struct Buf {
    Arena *a;
    char *text; /* always ends in NUL once anything was added */
    size_t len, cap;
    size_t most;        /* bytes of text at most; 0: any number */
    const char *beyond; /* the message with which it fails where there would be more */
} Buf;

void buf_add(Buf *b, const char *s);
void buf_addn(Buf *b, const char *s, size_t n);
void buf_printf(Buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Whether the text is valid UTF-8. */
bool text_utf8(const char *text);

/* ---- map.c: string keys to pointers, in an arena ---- */

typedef struct Map {
    Arena *a;
    const char **key;
    void **val;
    int count, cap; /* cap is a power of two */
} Map;

void *map_find(const Map *m, const char *key); /* NULL where absent */
void map_put(Map *m, const char *key, void *val);
void map_del(Map *m, const char *key);
uint64_t hash_bytes(const void *p, size_t n, uint64_t seed);

/* The number of letters inserted, deleted, changed or swapped with the next, from s to t; if wild,
 * * in s stands for any text and ? for any letter. */
int edit_distance(const char *s, const char *t, bool wild);
/* The most edits at which a word still counts as a misspelling: one letter in four, at most two. */
int near_edits(const char *word, bool wild);
/* The candidate that a misspelled word or pattern probably means: the one at the fewest edits, if
 * these are few, or one with a part that begins with the word; else NULL. */
const char *nearest(const char *word, const char *const *candidates, int n);
const char *glob_nearest(const char *pattern, const char *const *candidates, int n);
/* For the end of a message that found no such word: the nearest candidate and the first ones, each
 * once, in text; "" where there are none. */
const char *names_hint(const char *word, const char *const *candidates, int n, char *text,
                       size_t size);

/* ---- memo.c: what a context remembers until it ends, by keys of bytes ---- */

void *memo_find(const Ctx *ctx, const void *key, size_t nbytes);     /* NULL where absent */
void memo_put(Ctx *ctx, const void *key, size_t nbytes, void *what); /* a key that is absent */
Arena *memo_arena(Ctx *ctx); /* for what is remembered; freed by ctx_end */

/* ---- share.c: answers that threads of one process find once, by keys of bytes ---- */

typedef struct Share Share;

Share *share_new(Arena *a); /* it ends with the arena */
/* Fills value by fill(arg), or with what another thread's context of the same share has filled for
 * that key. Waits where another thread is about to; a failure is told to the caller alone. */
void share_once(Ctx *ctx, const void *key, size_t nkey, void *value, size_t size,
                void (*fill)(void *arg), void *arg);
/* Copies the answer of that key and size; false: there is none, and the caller is the one that
 * finds it and calls _put. Waits where another thread does. */
bool share_get(Share *s, const void *key, size_t nkey, void *value, size_t size);
/* value NULL: it was not found, and others look for it. */
void share_put(Share *s, const void *key, size_t nkey, const void *value, size_t size);
/* How many were found, and how often one was taken. */
void share_count(Share *s, int *found, int *taken);

/* ---- glob.c: names chosen by shell patterns ---- */

typedef struct Globs {
    const char *const *pattern;
    int count;
} Globs;

bool globs_match(const Globs *p, const char *name); /* whether any does, over the whole name */
/* Fails where a pattern matches none of the names, with `what` (an option) and the nearest name. */
void globs_check(Arena *a, const Globs *p, const char *what, const char *const *name, int count);

/* ---- par.c: fixed partition of work over OpenMP threads ---- */

/* Calls fn(arg, lo, hi) for disjoint parts of [0, n), as many as there are threads but none much
 * shorter than grain. A kernel's result must not depend on where the parts begin. */
void par_for(int64_t n, int64_t grain, void (*fn)(void *arg, int64_t lo, int64_t hi), void *arg);
int par_threads(void);
void par_set_threads(int n); /* 0: the cores that the process may use */

/* ---- thread.c: threads of the library's own ---- */

/* pthread_create, with all signals blocked but for those that an instruction causes. */
int thread_new(pthread_t *thread, void *(*run)(void *arg), void *arg);
/* The same; fails with "WHOSE: cannot start a thread". */
void thread_begin(Ctx *ctx, const char *whose, pthread_t *thread, void *(*run)(void *arg),
                  void *arg);
/* Before kernels are called, with as many threads as par_set_threads has set: blocks the signals
 * that have a handler, but for those that an instruction causes, in this thread and in OpenMP's.
 * Nothing in between unwinds. */
void signals_hold(sigset_t *before);
void signals_release(const sigset_t *before); /* gives this thread its mask back */
/* USEC[,SEED] from the environment, for tests; false where it is not set, fails where malformed. */
bool delay_read(Ctx *ctx, const char *name, int64_t *usec, uint64_t *seed);

/* ---- stream.c: stores past the caches ---- */

bool stream_worth(int64_t nbytes); /* whether a result of that size should bypass the caches */
/* Copies; no overlap. Fastest to aligned lines of 64 bytes. */
void stream_store(void *to, const void *from, int64_t nbytes);
void stream_end(void); /* a fence after a thread's last store, before others read what it stored */

/* ---- isa.c: the instruction set in use ---- */

#if defined(__x86_64__) && defined(__GNUC__)
#define TN_X86 1
#endif

/* Each has what the ones before have: x86-64, -v3, -v4, AVX512_BF16, and AMX where Linux grants it.
 * Other processors have only the first. */
typedef enum { ISA_BASE, ISA_AVX2, ISA_AVX512, ISA_BF16, ISA_AMX } Isa;
enum { ISA_ANY = -1, ISA_UNKNOWN = -2 };

extern Isa isa_used __attribute__((visibility("hidden"))); /* of isa_level() alone */

/* The most that the processor has and TN_ISA allows, the same in the whole life of a process. All
 * that chooses code by the processor asks this. */
static inline Isa isa_level(void)
{
    return isa_used;
}
/* Whether instructions for bf16 multiply faster than those for f32, or TN_ISA asks for them. */
bool isa_bf16_pays(void);
const char *isa_name(Isa level); /* as in TN_ISA */
int isa_asked(void);             /* TN_ISA: an Isa, ISA_ANY where not set, ISA_UNKNOWN */
void isa_check(Ctx *ctx);        /* fails where TN_ISA is wrong or came too late */

#define INLINE static inline __attribute__((always_inline))

/* KERNEL(result, name, (parameters), (their names)) { body } is a static function that is compiled
 * for several instruction sets; a call runs the one for isa_level(). KERNEL_FMA also lets
 * a * b + c become one fma. The result is a type with a RETURN_; no OpenMP pragmas inside. */
#if defined(TN_X86) && !defined(TN_SANITIZE)
#define KERNEL(...)     KERNEL_TABLE(noinline, __VA_ARGS__)
#define KERNEL_FMA(...) KERNEL_TABLE(CONTRACT, __VA_ARGS__)
#ifdef __clang__
#define CONTRACT noinline /* not by functions */
#else
#define CONTRACT optimize("fp-contract=fast")
#endif

#define KERNEL_TABLE(how, result, name, parameters, names)                           \
    INLINE result name##_body parameters;                                            \
    KERNEL_LEVEL(how, noinline, result, name, base, parameters, names)               \
    KERNEL_LEVEL(how, target("arch=x86-64-v3"), result, name, v3, parameters, names) \
    KERNEL_LEVEL(how, target("arch=x86-64-v4"), result, name, v4, parameters, names) \
    static result(*const name##_of[]) parameters = {                                 \
        [ISA_BASE] = name##_base, [ISA_AVX2] = name##_v3, [ISA_AVX512] = name##_v4,  \
        [ISA_BF16] = name##_v4,   [ISA_AMX] = name##_v4,                             \
    };                                                                               \
    static result name parameters                                                    \
    {                                                                                \
        RETURN_##result name##_of[isa_level()] names;                                \
    }                                                                                \
    INLINE result name##_body parameters

#define KERNEL_LEVEL(how, target, result, name, level, parameters, names) \
    __attribute__((how, target)) static result name##_##level parameters  \
    {                                                                     \
        RETURN_##result name##_body names;                                \
    }

#define RETURN_void
#define RETURN_int     return
#define RETURN_int64_t return
#define RETURN_float   return
#define RETURN_double  return
#else
#define KERNEL(result, name, parameters, names) static result name parameters
#define KERNEL_FMA                              KERNEL
#endif

/* Before a loop whose iterations do not depend on each other, though an output may be the very
 * memory of an operand: without it compilers guard against overlap and fall back to scalar code. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* ---- random.c: Philox4x32-10 (Salmon et al., SC'11), counter based ---- */

/* Four words from a 128-bit counter and a 64-bit key. */
void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* A uniform number in [0, 1) with 24 bits: key = seed, counter = (position/4, stream, step),
 * word position%4. Depends on nothing else. */
float random_uniform(uint64_t seed, uint32_t stream, uint32_t step, uint64_t position);

/* A standard normal by Box-Muller from two uniform numbers of the same counter. */
float random_normal(uint64_t seed, uint32_t stream, uint32_t step, uint64_t position);

/* ---- file.c ---- */

/* The whole file (or standard input for "-") in an arena, NUL added; fails with the path. What is
 * longer than 256 MiB, or never ends, is refused: this is for texts. */
char *file_read(Arena *a, const char *path, size_t *len);
/* The same of a regular file alone, as everything in a model's or a run's folder is: anything else,
 * such as a pipe, which may never be written to, is refused at once. */
char *file_read_regular(Arena *a, const char *path, size_t *len);
/* Opens such a file; fails with the path. */
FILE *file_stream(Ctx *ctx, const char *path);
int file_open_regular(Ctx *ctx, const char *path, int64_t *nbytes);

/* Fails where the path is a link that leads nowhere, or back to itself: nobody made one in order
 * that the file be taken for one that is not there. */
void file_check_link(Ctx *ctx, const char *path);

/* Opens a regular file to be read at any position, with its size; fails with the path. "-" is
 * standard input: a pipe is first read to its end into memory, which then takes its place. */
int file_open(Ctx *ctx, const char *path, int64_t *nbytes);
const char *file_title(const char *path); /* for messages: the path, or "standard input" */

/* ---- zip.c ---- */

typedef struct ZipMember {
    const char *name;
    int64_t at, nbytes; /* of its header in the archive; of its data */
    uint32_t crc;
    bool stored, packed64; /* packed64: the size of what is packed is a zip64 field */
} ZipMember;

/* An archive that is read by read(from, to, n, at): n bytes at a position, or a failure. */
typedef struct Zip {
    Arena *a;
    const char *file; /* for messages */
    int64_t nbytes;
    void (*read)(void *from, void *to, int64_t n, int64_t at);
    void *from;
    int count, cap;
    ZipMember *member;
} Zip;

enum { ZIP_BEGINS = 4 };
bool zip_begins(const char *data); /* whether ZIP_BEGINS bytes are a zip archive's first */
/* The list of an archive's members. */
Zip *zip_open(Arena *a, const char *file, int64_t nbytes,
              void (*read)(void *, void *, int64_t, int64_t), void *from);
/* Where a member's data is; fails where it is compressed, or its checksum says that it is damaged.
 */
int64_t zip_data(const Zip *z, const ZipMember *m);

/* A hash of a regular file, of all its bytes up to 16 MiB, else of 1024 blocks that lie evenly in
 * it; and its size. Fails with the path. */
uint64_t file_hash(Ctx *ctx, const char *path, int64_t *nbytes);

/* Creates the file that is to be renamed into place, new, so that nothing is written through a link
 * of that name: a descriptor, or -1 with errno. */
int file_create_aside(const char *path);
/* Writes the whole buffer to path ("-": standard output) by a temporary file and rename. */
void file_write(Ctx *ctx, const char *path, const void *data, size_t len);

/* A number of things: "1 value", "2 values", "3 copies"; noun is the word for one. Returns text. */
const char *count_text(int64_t n, const char *noun, char *text, size_t size);
/* Bytes as text in a unit such as "MiB", rounded up to hundredths; plain bytes where it is NULL. */
const char *bytes_text(int64_t nbytes, const char *unit, char *text, size_t size);
/* "12", "3GiB", "1.5 MB" to bytes; -1 where malformed or negative. */
int64_t parse_bytes(const char *text);

double now_sec(void); /* monotonic wall clock */
double cpu_sec(void); /* CPU time of the process */

#endif
