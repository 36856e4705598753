/* The CUDA kernels of every op against every line of its case file (check_op.c), on a GPU. Tensors,
 * work and faults lie in pinned memory of the host, which the GPU reaches by the same addresses;
 * each run is waited for. With arguments: only the named ops. TN_EVERY=10: each tenth line.
 *
 * The ops are run by a child process. Where it ends early, as behind an illegal address, which no
 * process survives, or hangs, another goes on with the next op. */
#include "../shared/check.h"

#include <cuda_runtime_api.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { POOL = 512 << 20, MOST_SEC = 60 };

/* What the processes share. */
typedef struct Progress {
    Total t;
    int at; /* of the names */
} Progress;

/* ---- memory: one pool, used from the start again when all of it is free ---- */

static struct {
    char *mem;
    size_t at, count;
} pool;

void *shared_alloc(size_t nbytes)
{
    CHECK(nbytes <= POOL - pool.at);
    void *p = pool.mem + pool.at;
    pool.at += (nbytes + 63) / 64 * 64;
    pool.count++;
    return p;
}

void shared_free(void *p)
{
    (void)p;
    if (!--pool.count)
        pool.at = 0;
}

/* ---- running ---- */

static void before(bool again)
{
    (void)again;
    alarm(MOST_SEC);
}

static int wait_for(Call *c)
{
    cudaError_t e = cudaStreamSynchronize(c->stream);
    if (e == cudaSuccess)
        return 0;
    printf("%s: %s; the rest of its lines is left out\n", c->node->op->name, cudaGetErrorString(e));
    _exit(1);
}

static void must(cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return;
    printf("%s: %s\n", what, cudaGetErrorString(e));
    _exit(2);
}

static void child(Progress *p, char *const *names, bool tell)
{
    cudaStream_t stream;
    const char *every = getenv("TN_EVERY");
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "no GPU");
    must(cudaHostAlloc((void **)&pool.mem, POOL, cudaHostAllocMapped), "pinned memory");
    const Harness h = {.kernels = KERNELS_CUDA,
                       .stream = stream,
                       .before = before,
                       .wait = wait_for,
                       .without = "tests/without_cuda.txt",
                       .tell = tell,
                       .every = every ? atoi(every) : 0};
    for (; names[p->at]; p->at++)
        check_ops(&h, (char *[]){names[p->at], NULL}, &p->t);
    exit(0);
}

/* All names of ops. */
static char **all_names(void)
{
    char **names = calloc((size_t)op_count + 1, sizeof *names);
    int count = 0;
    CHECK(names);
    for (int i = 0; i < op_count; i++)
        if (op_table[i].rules && !op_table[i].region)
            names[count++] = (char *)op_table[i].name;
    return names;
}

int main(int argc, char **argv)
{
    char **names = argc > 1 ? argv + 1 : all_names();
    Progress *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (names[p->at]) {
        int status;
        pid_t pid = fork();
        if (!pid)
            child(p, names, argc > 1);
        CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
            return 2;
        if (names[p->at]) {
            printf("%s: ended by %s %d\n", names[p->at], WIFSIGNALED(status) ? "signal" : "code",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
            p->t.failed++;
            p->at++;
        }
    }
    printf("%d passed, %d failed\n", p->t.passed, p->t.failed);
    return p->t.failed != 0;
}
