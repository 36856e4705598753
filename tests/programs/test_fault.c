/* The whole program against faults: allocation n fails, and system call n (writing, syncing,
 * renaming, opening, reading, ...) fails or moves half of the bytes, for n = 1, 2, 3, ... through
 * short runs of its commands. This test *is* the program: it has all its objects, takes the place
 * of its main, and forks a process for every fault, which then runs the real main. Allocations are
 * refused by malloc and its kin below, which libraries call too (under sanitizers only Tenon's
 * objects do, by the linker's --wrap, and no system call fails); system calls as inject.c says.
 *
 * Each must end by itself with code 0, having done everything, or with 1 (3 for memory) and a
 * message; leave nothing unfinished; and every checkpoint that is there must be whole and as in a
 * run without faults, so that the run can go on from it. Of faults with the same call stack one is
 * tried; with TN_LONG=1 all are. */
#define _GNU_SOURCE
#include "../../src/train/train.h"
#include "../shared/fault_files.h"
#include "../shared/inject.h"
#include "../shared/test.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int __real_main(int argc, char **argv);
int __wrap_main(int argc, char **argv);

/* ---- what fails ---- */

Peak __wrap_peak_new(tn_context *ctx, const tn_options *o);
Peak __wrap_peak_new(tn_context *ctx, const tn_options *o)
{
    (void)ctx, (void)o;
    return (Peak){.flops = 0}; /* as where it cannot be measured: half a second for a number on the
                                  progress line */
}

#ifdef TN_SANITIZE
#define REAL(name) __real_##name
#define FAKE(name) __wrap_##name
#else
#define REAL(name) __libc_##name
#define FAKE(name) name
#endif

/* For libraries too. */
#pragma GCC visibility push(default)

#define REFUSE(type, name, params, args, refusal)               \
    type REAL(name) params;                                     \
    type FAKE(name) params;                                     \
    type FAKE(name) params                                      \
    {                                                           \
        return inject_allocation() ? refusal : REAL(name) args; \
    }

REFUSE(void *, malloc, (size_t n), (n), NULL)
REFUSE(void *, calloc, (size_t n, size_t size), (n, size), NULL)
REFUSE(void *, realloc, (void *p, size_t n), (p, n), NULL)
#ifdef TN_SANITIZE
REFUSE(void *, aligned_alloc, (size_t align, size_t n), (align, n), NULL)
REFUSE(int, posix_memalign, (void **p, size_t align, size_t n), (p, align, n), ENOMEM)
REFUSE(char *, strdup, (const char *s), (s), NULL)
REFUSE(char *, strndup, (const char *s, size_t n), (s, n), NULL)
REFUSE(void *, mmap, (void *at, size_t n, int protection, int flags, int fd, off_t offset),
       (at, n, protection, flags, fd, offset), MAP_FAILED)
#else
void *__libc_memalign(size_t align, size_t n);

void *memalign(size_t align, size_t n)
{
    return inject_allocation() ? NULL : __libc_memalign(align, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    return inject_allocation() ? NULL : __libc_memalign(align, n);
}

int posix_memalign(void **p, size_t align, size_t n)
{
    void *q = inject_allocation() ? NULL : __libc_memalign(align, n);
    if (q)
        *p = q;
    return q ? 0 : ENOMEM;
}

void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    return inject_allocation() ? MAP_FAILED
                               : (void *)syscall(SYS_mmap, at, n, protection, flags, fd, offset);
}
#endif

#pragma GCC visibility pop

/* ---- the runs ---- */

/* Arguments in words; @ is the folder of the run, % the folder of the test. */
typedef struct Run {
    const char *name, *args;
    bool trains;        /* has checkpoints in @/o, and can go on from them */
    const char *before; /* what @ begins as a copy of, or NULL */
} Run;

#define TRAIN "train %/base/o/step-2 --threads 1 --out @/o --lr 1e-3 --metrics @/m.jsonl "
#define DATA  "--data %/text --batch-size 2 --seq-len 8 --steps 4 --save-every 2 "

static const Run runs[] = {
    {"train", TRAIN DATA "--eval-every 2 --sample-tokens 3 --prompt a --profile @/p.json", true,
     NULL},
    {"resume", TRAIN DATA "--eval-every 2 --sample-tokens 3 --prompt a --resume --keep 1", true,
     "half"},
    {"one batch", TRAIN "--batch %/batch --steps 2 --accumulate 2 --dropout 0.1 --check", true,
     NULL},
    {"grad", "grad %/base/o --batch %/batch --out @/grad --threads 1", false, NULL},
    {"eval", "eval %/base/o --data %/text --threads 1 --seq-len 8 --json", false, NULL},
    {"generate", "generate %/base/o --prompt ab --tokens 3 --threads 1", false, NULL},
    {"tokenize", "tokenize %/text -o @/tokens --tokenizer tests/tokenizer/gpt2.json", false, NULL},
    {"opt", "opt tests/ir/flat.tn --passes=canonicalize,cse,dce -o @/graph.tn", false, NULL},
    {"plan", "plan %/base/o --batch-size 2 --seq-len 8 --json", false, NULL},
    {"page", "plan tests/ir/flat.tn --html @/page.html --compare --seed=1 --seed=2", false, NULL},
    {"plot", "plot %/base/m.jsonl -o @/loss.svg", false, NULL},
    {"place", "place tests/seeds/place/plain.csv -o @/placed.csv", false, NULL},
    {"ops", "ops mm --show diff", false, NULL},
};

static Inject *inject;

/* The words of a run as an argument list, which lives until the next call. */
static int make_args(const char *args, const char *folder, char **argv)
{
    static char text[4000];
    size_t n = (size_t)snprintf(text, sizeof text, "tenon ");
    for (const char *s = args; *s && n < sizeof text - 200; s++)
        if (*s == '@')
            n += (size_t)snprintf(text + n, 200, "%s/%s", top_folder(), folder);
        else if (*s == '%')
            n += (size_t)snprintf(text + n, 200, "%s", top_folder());
        else
            text[n++] = *s;
    text[n] = 0;
    int argc = 0;
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    argv[argc] = NULL;
    return argc;
}

static void redirect(const char *path, int fd)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || dup2(file, fd) < 0)
        _exit(99);
    close(file);
}

enum { NO_FAULT = -1 };

/* Runs the program in a process of its own; returns what waitpid says. */
static int run(const char *args, const char *folder, InjectKind kind, int64_t at)
{
    char *argv[64];
    int status = -1, argc = make_args(args, folder, argv);
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        redirect(path_in(folder, "out"), STDOUT_FILENO);
        redirect(path_in(folder, "err"), STDERR_FILENO);
        alarm(60);
        if (at != NO_FAULT && !inject_start(inject, kind, at))
            _exit(98);
        exit(__real_main(argc, argv));
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    return status;
}

/* ---- what must hold after a fault ---- */

static char wrong[1200]; /* why it does not */

static bool blame(const char *format, ...) __attribute__((format(printf, 1, 2)));
static bool blame(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(wrong, sizeof wrong, format, args);
    va_end(args);
    return false;
}

static const char good[] = "good", bad[] = "run"; /* folders that are compared */
static bool may_litter;                           /* removing is what failed */

static bool timed(const char *path)
{
    const char *name = strrchr(path, '/') + 1;
    return !strcmp(name, "out") || !strcmp(name, "err") || strstr(name, ".jsonl") ||
           !strcmp(name, "p.json") || !strcmp(name, ".run") || !strcmp(name, ".evaluated");
}

/* A run that fails saves where it is: at steps that one without faults does not save. They are
 * whole as others are, and checked by going on from them. */
static bool saved_on_failure(const char *inner)
{
    return strstr(inner, "/step-1/") || strstr(inner, "/step-3/");
}

/* Each file of the folder after the fault is one of the run without, and the same. */
static int check_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)at;
    char other[700];
    const char *inner = path + strlen(path_in(bad, "")) - 1;
    if (strstr(inner, ".tmp"))
        return may_litter ? 0 : !blame("%s is left", inner);
    if (type != FTW_F || timed(path) || saved_on_failure(inner))
        return 0;
    snprintf(other, sizeof other, "%s/%s%s", top_folder(), good, inner);
    return same_file(path, other) ? 0 : !blame("%s differs", inner);
}

/* A checkpoint has all its files, and `latest` names one. */
static bool check_whole(void)
{
    static const char *const files[] = {"config.json", "model.safetensors", "optimizer.safetensors",
                                        "state.json"};
    char path[700], link[64];
    int count = 0;
    for (int step = 0; step <= 8; step++) {
        snprintf(path, sizeof path, "%s/%s/o/step-%d", top_folder(), bad, step);
        if (access(path, F_OK))
            continue;
        count++;
        for (int i = 0; i < LEN(files); i++) {
            snprintf(path, sizeof path, "%s/%s/o/step-%d/%s", top_folder(), bad, step, files[i]);
            if (access(path, F_OK))
                return blame("step-%d has no %s", step, files[i]);
        }
    }
    snprintf(path, sizeof path, "%s/%s/o/latest", top_folder(), bad);
    ssize_t n = readlink(path, link, sizeof link - 1);
    if (n > 0 && access(path, F_OK))
        return blame("latest leads nowhere");
    return true;
}

static bool finished(const Run *r)
{
    char a[64] = "", b[64] = "";
    if (!r->trains)
        return true;
    if (readlink(path_in(good, "o/latest"), a, sizeof a - 1) < 0 ||
        readlink(path_in(bad, "o/latest"), b, sizeof b - 1) < 0 || strcmp(a, b))
        return blame("it says that it has finished, but latest is \"%s\"", b);
    return true;
}

/* Files at the top that a run without faults writes are there. */
static bool wrote_all(const Run *r)
{
    static const char *const names[] = {"grad", "tokens", "graph.tn", "loss.svg", "page.html"};
    for (int i = 0; i < LEN(names); i++)
        if (!access(path_in(good, names[i]), F_OK) && access(path_in(bad, names[i]), F_OK))
            return blame("%s: %s is missing", r->name, names[i]);
    return true;
}

static bool said(const char *part)
{
    size_t n;
    char *text = read_all(path_in(bad, "err"), &n);
    bool found = text && strstr(text, part);
    free(text);
    return found;
}

static bool has_message(void)
{
    size_t n;
    char *text = read_all(path_in(bad, "err"), &n);
    bool found = false;
    for (char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL)
        found |= !strncmp(line, "tenon: ", 7) && strncmp(line, "tenon: warning", 14);
    free(text);
    return found;
}

/* Whether a library that is not ours could not go on without the memory, and died in its own code
 * or ended the process without asking. */
static bool foreign(int status)
{
    const InjectSite *s = &inject->failed;
    static const char *const names[] = {"libdnnl", "libgomp"};
    const char *killer = WIFSIGNALED(status) ? inject->death.owner : s->owner;
    bool died = WIFSIGNALED(status) || (WEXITSTATUS(status) == 1 && !has_message());
    for (int i = 0; i < LEN(names); i++)
        if (died && !strncmp(s->owner, names[i], 7) && !strncmp(killer, names[i], 7))
            return true;
    return false;
}

static bool check_files(const Run *r, bool all)
{
    wrong[0] = 0;
    if (nftw(path_in(bad, ""), check_one, 16, FTW_PHYS))
        return wrong[0] ? false : blame("the folder cannot be read");
    return check_whole() && (!all || (finished(r) && wrote_all(r)));
}

static bool check_fault(const Run *r, const InjectSite *s, InjectKind kind, int status)
{
    if (!inject->fired)
        return true; /* it took another way this time */
    may_litter = s->call == SYS_unlinkat || s->call == SYS_getdents64 || said("cannot remove");
#ifdef SYS_unlink
    may_litter |= s->call == SYS_unlink || s->call == SYS_rmdir;
#endif
    if (WIFSIGNALED(status))
        return blame("killed by signal %d", WTERMSIG(status));
    int code = WEXITSTATUS(status);
    if (code && kind == INJECT_SHORT)
        return blame("exit code %d: the rest of the bytes is not asked for", code);
    if (code != 0 && code != 1 && code != 3)
        return blame("exit code %d", code);
    bool silent = s->call == SYS_write && s->fd == STDERR_FILENO;
    if (code && !silent && !has_message())
        return blame("exit code %d, and no message", code);
    return check_files(r, !code);
}

/* ---- sweeps ---- */

static void show_site(const InjectSite *s)
{
    if (!s->nframe)
        return;
    for (int i = 2; i < MIN(s->nframe, 16); i++) {
        Dl_info info;
        if (dladdr(s->frame[i], &info) && info.dli_fname)
            printf("    %s+0x%zx %s\n", strrchr(info.dli_fname, '/') + 1,
                   (size_t)((char *)s->frame[i] - (char *)info.dli_fbase),
                   info.dli_sname ? info.dli_sname : "");
    }
}

static void show_fault(const InjectSite *s)
{
    show_site(s);
    printf("  it said:\n");
    fflush(stdout);
    shell("sed 's/^/    /' %s | head -5", path_in(bad, "err"));
    if (inject->death.nframe)
        printf("  it died in %s:\n", inject->death.owner);
    show_site(&inject->death);
}

/* Whether a state of the folder of checkpoints has not been seen before. */
static bool new_state(void)
{
    static uint64_t seen[200];
    static int nseen;
    char text[400] = "", link[64] = "";
    for (int step = 0; step <= 8; step++) {
        char path[700];
        snprintf(path, sizeof path, "%s/%s/o/step-%d", top_folder(), bad, step);
        snprintf(text + strlen(text), 8, "%d ", !access(path, F_OK));
    }
    if (readlink(path_in(bad, "o/latest"), link, sizeof link - 1) < 0)
        link[0] = 0;
    snprintf(text + strlen(text), 100, "%s %d", link, !access(path_in(bad, "m.jsonl"), F_OK));
    uint64_t hash = hash_bytes(text, strlen(text), 0);
    for (int i = 0; i < nseen; i++)
        if (seen[i] == hash)
            return false;
    if (nseen < LEN(seen))
        seen[nseen++] = hash;
    return true;
}

/* That the run can go on, and ends as it would have. */
static void check_going_on(const Run *r)
{
    char args[1000];
    snprintf(args, sizeof args, "%s --resume", r->args);
    may_litter = false;
    int status = run(args, bad, INJECT_CALL, NO_FAULT);
    bool ok = !status ? check_files(r, true) : blame("status %#x", (unsigned)status);
    if (!EXPECT(ok)) {
        printf("  %s: going on after a fault: %s\n", r->name, wrong);
        fflush(stdout);
        shell("cat %s", path_in(bad, "err"));
    }
}

static void check_site(const Run *r, InjectKind kind, const InjectSite *s, int64_t n, int *nforeign)
{
    static const char *const kinds[] = {"allocation", "call", "half of call"};
    begin_folder(bad, r->before);
    int status = run(r->args, bad, kind, n);
    if (inject->fired && foreign(status)) {
        ++*nforeign;
        return;
    }
    if (!EXPECT(check_fault(r, s, kind, status))) {
        printf("  %s: %s %lld (system call %d, in %s): %s\n", r->name, kinds[kind], (long long)n,
               s->call, s->owner, wrong);
        show_fault(inject->fired ? &inject->failed : s);
    } else if (r->trains && new_state()) {
        check_going_on(r);
    }
}

static const InjectSite *site_of(int64_t n)
{
    const InjectSite *s = inject->site;
    while (s < inject->site + inject->nsite - 1 && s[1].first <= n)
        s++;
    return s;
}

/* Whether no run before had this site; of those in oneDNN, which dies of each, a few are enough.
 * A sixth of all, with TN_QUICK=1 a twelfth. */
static bool is_new(const InjectSite *s, InjectKind kind)
{
    static Map seen;
    static int nforeign, nseen;
    char key[40];
    if (!seen.a)
        seen.a = arena_new(NULL);
    snprintf(key, sizeof key, "%d %016llx", kind, (unsigned long long)s->hash);
    if (map_find(&seen, key))
        return false;
    map_put(&seen, arena_strdup(seen.a, key), &seen);
    if (nseen++ % (getenv("TN_QUICK") ? 12 : 6))
        return false;
    return strncmp(s->owner, "libdnnl", 7) || s->call >= 0 || nforeign++ % 20 == 0;
}

/* Returns how many faults were tried. */
static int64_t sweep(const Run *r, InjectKind kind, int *nforeign)
{
    begin_folder(bad, r->before);
    int status = run(r->args, bad, kind, 0);
    if (!EXPECT(!status))
        shell("cat %s", path_in(bad, "err"));
    EXPECT(check_files(r, true) && inject->nsite > 0 && inject->nsite < INJECT_SITES);
    bool all = getenv("TN_LONG");
    int64_t ntried = 0, n = all ? inject->count : inject->nsite;
    for (int64_t i = 0; i < n && test_nfail < 20; i++) {
        const InjectSite *s = all ? site_of(i + 1) : &inject->site[i];
        if (all || is_new(s, kind)) {
            check_site(r, kind, s, all ? i + 1 : s->first, nforeign);
            ntried++;
        }
    }
    return ntried;
}

/* ---- all of it ---- */

static void write_batch(void)
{
    static const char head[] = "{\"input_ids\":{\"dtype\":\"I64\",\"shape\":[2,4],\"data_offsets\":"
                               "[0,64]},\"labels\":{\"dtype\":\"I64\",\"shape\":[2,4],"
                               "\"data_offsets\":[64,128]}}";
    uint64_t n = sizeof head - 1;
    int64_t token[16] = {1, 2, 3, 4, 5, 6, 7, 8, 2, 3, 4, 5, 6, 7, 8, 9};
    FILE *f = fopen(path_in(".", "batch"), "wb");
    CHECK(f && fwrite(&n, 8, 1, f) && fwrite(head, n, 1, f) && fwrite(token, sizeof token, 1, f) &&
          !fclose(f));
}

/* A small model with its weights in a checkpoint, and a run that was ended half-way. */
static void prepare(void)
{
    CHECK(!mkdir(path_in(".", "model"), 0700) && !mkdir(path_in(".", "base"), 0700));
    put_text(path_in("model", "config.json"),
             "{\"model_type\": \"llama\", \"hidden_size\": 8, \"num_attention_heads\": 2, "
             "\"num_key_value_heads\": 1, \"num_hidden_layers\": 1, \"intermediate_size\": 16, "
             "\"vocab_size\": 256, \"hidden_act\": \"silu\", \"max_position_embeddings\": 64, "
             "\"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"tie_word_embeddings\": false}");
    char text[900];
    for (int i = 0; i < (int)sizeof text; i++)
        text[i] = "the quick brown fox jumps over the lazy dog\n"[i * 7 % 44];
    text[sizeof text - 1] = 0;
    put_text(path_in(".", "text"), text);
    write_batch();
    int status = run(
        "train %/model/config.json --threads 1 --data %/text --batch-size 2 --seq-len 8 --steps 2 "
        "--out @/o --metrics @/m.jsonl",
        "base", INJECT_CALL, NO_FAULT);
    if (status) {
        shell("cat %s", path_in("base", "err"));
        exit(1);
    }
}

static void run_well(const char *args)
{
    begin_folder(bad, NULL);
    if (!EXPECT(!run(args, bad, INJECT_CALL, NO_FAULT)))
        shell("cat %s", path_in(bad, "err"));
}

/* What a run gives without faults, in the same place, since state.json has the paths. One that goes
 * on is given as one without interruption, and begins with the first half of another. */
static void run_good(const Run *r)
{
    char args[1000];
    const char *own = strstr(r->args, "--resume"), *last = strrchr(r->args, '-');
    snprintf(args, sizeof args, "%s", r->args);
    if (own)
        args[own - r->args] = 0;
    run_well(args);
    remove_all(path_in("good", ""));
    if (own) {
        remove_all(path_in("half", ""));
        shell("cp -a %s %s && cd %s/o && rm -r step-4 && ln -sfn step-2 latest", path_in(bad, ""),
              path_in("half", ""), path_in("half", ""));
        strncat(args, last - 1, sizeof args - strlen(args) - 1); /* --keep */
        run_well(args);
        shell("cp -a %s %s", path_in("half", "o/step-2"), path_in(bad, "o"));
    }
    shell("mv %s %s", path_in(bad, ""), path_in(good, ""));
}

/* The search for leaks at the end of a process stands still where its calls are caught. */
#ifdef TN_SANITIZE
enum { LAST_KIND = INJECT_ALLOC };
#else
enum { LAST_KIND = INJECT_SHORT };
#endif

int __wrap_main(int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : NULL;
    long long nfault = 0;
    int nforeign = 0;
    setenv("OMP_WAIT_POLICY", "passive", 1); /* or the program starts itself anew */
    CHECK((inject = inject_new()));
    prepare();
    for (int i = 0; i < LEN(runs); i++) {
        long long n[3] = {0};
        if (only && strcmp(only, runs[i].name))
            continue;
        double start = now_sec();
        run_good(&runs[i]);
        for (int kind = INJECT_ALLOC; kind <= LAST_KIND; kind++) {
            n[kind] = sweep(&runs[i], (InjectKind)kind, &nforeign);
            nfault += n[kind];
        }
        printf("%-10s %6lld allocations, %4lld calls fail, %4lld half done  %.1f s\n", runs[i].name,
               n[0], n[1], n[2], now_sec() - start);
    }
    printf(
        "note: test_fault: %lld faults; %d of them ended the process inside oneDNN, which does not "
        "look at what its allocations give\n",
        nfault, nforeign);
    remove_all(top_folder());
    return test_report();
}
