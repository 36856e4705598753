/* simt.h's own kernels against plain loops: shuffles, barriers and votes, also after some threads
 * have ended; that a missing barrier shows in one of the orders, and an endless wait ends. */
#include "../shared/simt.h"
#include "../shared/test.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

void cuda_try_scan(int *to, int blocks, int threads, int n);
void cuda_try_halves(int *to);
void cuda_try_races(int *to);
void cuda_try_waits(int *to);

static void check_scan(int blocks, int threads, int n)
{
    int *to = malloc(sizeof *to * (size_t)(blocks * n)), wrong = 0;
    cuda_try_scan(to, blocks, threads, n);
    for (int i = 0; i < blocks * n; i++) {
        int last = n - 1 - i % n;
        wrong += to[i] != last * (last + 1) / 2;
    }
    EXPECT(wrong == 0);
    free(to);
}

static void check_halves(void)
{
    int to[64], wrong = 0;
    cuda_try_halves(to);
    for (int i = 0; i < 64; i++)
        wrong += to[i] != i / 16 * 16 + 15 + 1000 * 22 + 100000 * 16;
    EXPECT(wrong == 0);
}

static int races(int order)
{
    int to[64], wrong = 0;
    simt_order(order);
    cuda_try_races(to);
    for (int i = 0; i < 64; i++)
        wrong += to[i] != (i ? i - 1 : 0);
    return wrong;
}

/* Ends with a message in a process of its own. */
static void check_waits(void)
{
    int status, to = 0, ends[2];
    char text[500] = "";
    EXPECT(!pipe(ends));
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        dup2(ends[1], 1);
        cuda_try_waits(&to);
        _exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    EXPECT(read(ends[0], text, sizeof text - 1) > 0);
    EXPECT(strstr(text, "kernel waits, block (0, 0, 0): of 5 threads 2 wait for ever at "
                        "__syncthreads(), 3 for lanes"));
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int order = SIMT_FORWARD; order <= SIMT_SHUFFLED; order++) {
        simt_order(order);
        check_scan(3, 1024, 1024);
        check_scan(1, 128, 77);
        check_scan(2, 40, 40);
        check_halves();
    }
    EXPECT(races(SIMT_FORWARD) == 0);
    EXPECT(races(SIMT_BACKWARD) == 63);
    check_waits();
    return test_report();
}
