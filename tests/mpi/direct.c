/* The transport of a module of MPI by itself, started by a launcher: tests/scripts/mpi.sh.
 * Usage: direct messages|reduce|errors|memory|abort|leave|kill */
#include "../../src/comm/comm.h"
#include "../shared/test.h"

#include <signal.h>
#include <unistd.h>

enum { LONGEST = 70001, TIMES = 3 };

static Ctx ctx;
static const Transport *t;
static void *self;
static int rank, size, here;
static char message[COMM_MESSAGE];

typedef struct Handle {
    _Alignas(16) char room[COMM_ROOM];
    void *request;
    CommPart part, rest; /* the message in two pieces, where it has as many bytes */
} Handle;

static int begin_send(Handle *h, int to, int tag, const void *p, int64_t nbytes)
{
    int64_t first = nbytes / 3;
    h->request = h->room;
    h->rest = (CommPart){.send = (const char *)p + first, .nsend = nbytes - first};
    h->part = (CommPart){.send = p, .nsend = first, .next = &h->rest};
    return t->send(self, to, tag, first ? &h->part : &h->rest, &h->request, message);
}

static int begin_receive(Handle *h, int from, int tag, void *p, int64_t nbytes)
{
    int64_t first = nbytes / 3;
    h->request = h->room;
    h->rest = (CommPart){.receive = (char *)p + first, .nreceive = nbytes - first};
    h->part = (CommPart){.receive = p, .nreceive = first, .next = &h->rest};
    return t->receive(self, from, tag, first ? &h->part : &h->rest, &h->request, message);
}

/* Until a request is done; false: an error. */
static bool wait_for(const Handle *h)
{
    bool done = false;
    while (!done) {
        if (t->done(self, h->request, &done, message))
            return false;
        if (!done)
            usleep(20);
    }
    return true;
}

/* Byte i of message `time` from a rank to another, and how long it is: odd, of any size, also 0. */
static unsigned char byte_of(int from, int to, int time, int64_t i)
{
    return (unsigned char)(31 * from + 7 * to + 5 * time + i % 251);
}

static int64_t length_of(int from, int to, int time)
{
    static const int64_t length[] = {1, 999, 1000, 1001, 0, 4097, LONGEST, 3};
    return length[(3 * from + 5 * to + time) % LEN(length)];
}

/* Every rank to every rank, several messages of one tag on the way, sent before they are awaited.
 */
static void all_to_all(int tag)
{
    int n = size * TIMES;
    Handle *request = calloc((size_t)(2 * n), sizeof *request);
    unsigned char *out = malloc((size_t)n * LONGEST), *in = malloc((size_t)n * LONGEST);
    for (int i = 0; i < n; i++) {
        int other = i / TIMES, time = i % TIMES;
        int64_t nout = length_of(rank, other, time), nin = length_of(other, rank, time);
        for (int64_t j = 0; j < nout; j++)
            out[(int64_t)i * LONGEST + j] = byte_of(rank, other, time, j);
        EXPECT(!begin_receive(&request[i], other, tag, in + (int64_t)i * LONGEST, nin));
        EXPECT(!begin_send(&request[n + i], other, tag, out + (int64_t)i * LONGEST, nout));
    }
    for (int i = 2 * n; i-- > 0;)
        EXPECT(wait_for(&request[i]));
    for (int i = 0; i < n; i++) {
        int64_t nin = length_of(i / TIMES, rank, i % TIMES), same = 0;
        while (same < nin &&
               in[(int64_t)i * LONGEST + same] == byte_of(i / TIMES, rank, i % TIMES, same))
            same++;
        EXPECT(same == nin);
    }
    free(request);
    free(out);
    free(in);
}

static void wait_send(int to, const void *p, int64_t nbytes)
{
    Handle request;
    EXPECT(!begin_send(&request, to, 7, p, nbytes) && wait_for(&request));
}

static void wait_receive(int from, void *p, int64_t nbytes)
{
    Handle request;
    EXPECT(!begin_receive(&request, from, 7, p, nbytes) && wait_for(&request));
}

/* Once around, each rank adding one to what came. */
static void ring(void)
{
    unsigned char p[2001] = {0};
    if (rank)
        wait_receive(rank - 1, p, sizeof p);
    for (size_t i = 0; i < sizeof p; i++)
        p[i]++;
    if (size > 1)
        wait_send((rank + 1) % size, p, sizeof p);
    if (rank)
        return;
    if (size > 1)
        wait_receive(size - 1, p, sizeof p);
    for (size_t i = 0; i < sizeof p; i++)
        EXPECT(p[i] == size);
}

/* Messages of long and short parts, each in memory of its own, around all ranks: of a part that is
 * cut, the rest goes with the short ones that follow. */
static void parts(void)
{
    static const int64_t length[][4] = {
        {1500, 300, 2, 0}, {1500, 0, 300, 2600}, {1, 2999, 1, 1000}, {999, 1001, 999, 1}};
    enum { NMESSAGE = LEN(length), NPART = LEN(length[0]), MOST = 3000 };
    static unsigned char out[NMESSAGE][NPART][MOST], in[NMESSAGE][NPART][MOST];
    static Handle request[2][NMESSAGE];
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    for (int m = 0; m < NMESSAGE; m++) {
        CommPart part[NPART];
        for (int k = 0; k < NPART; k++) {
            part[k] = (CommPart){out[m][k], in[m][k], length[m][k], length[m][k],
                                 k + 1 < NPART ? &part[k + 1] : NULL};
            for (int i = 0; i < length[m][k]; i++)
                out[m][k][i] = byte_of(rank, k, m, i);
        }
        for (int i = 0; i < 2; i++)
            request[i][m].request = request[i][m].room;
        EXPECT(!t->receive(self, before, 5, part, &request[0][m].request, message));
        EXPECT(!t->send(self, next, 5, part, &request[1][m].request, message));
        EXPECT(wait_for(&request[0][m]) && wait_for(&request[1][m]));
        int same = 0, nbytes = 0;
        for (int k = 0; k < NPART; k++)
            for (int i = 0; i < MOST; i++, nbytes++)
                same += in[m][k][i] == (i < length[m][k] ? byte_of(before, k, m, i) : 0);
        EXPECT(same == nbytes);
    }
}

static void messages(void)
{
    ring();
    parts();
    for (int tag = 0; tag < 3; tag++)
        all_to_all(16000 * tag);
}

/* ---- reductions: of the numbers (member + 1) * (i % 5 + 1), exact in any order ---- */

static double term(CommOp op, int n, int64_t i)
{
    double x = (double)(i % 5 + 1), all = op == COMM_PRODUCT;
    for (int m = 0; m < n; m++)
        all = op == COMM_SUM ? all + (m + 1) * x : op == COMM_PRODUCT ? all * (m + 1) * x : all;
    return op == COMM_MAX ? n * x : op == COMM_MIN ? x : all;
}

static void put(CommType type, void *p, int64_t i, double x)
{
    switch (type) {
    case COMM_F64: ((double *)p)[i] = x; return;
    case COMM_F32: ((float *)p)[i] = (float)x; return;
    case COMM_I64: ((int64_t *)p)[i] = (int64_t)x; return;
    default: ((int32_t *)p)[i] = (int32_t)x;
    }
}

static double get(CommType type, const void *p, int64_t i)
{
    switch (type) {
    case COMM_F64: return ((const double *)p)[i];
    case COMM_F32: return (double)((const float *)p)[i];
    case COMM_I64: return (double)((const int64_t *)p)[i];
    default: return ((const int32_t *)p)[i];
    }
}

static void reduce_one(void *group, int n, int member, CommType type, CommOp op, int64_t count)
{
    for (int scatter = 0; scatter < 2; scatter++) {
        int64_t all = scatter ? count * n : count, at = scatter ? count * member : 0, same = 0;
        void *in = calloc((size_t)all, 8), *out = calloc((size_t)count, 8);
        Handle h = {.request = h.room};
        for (int64_t i = 0; i < all; i++)
            put(type, in, i, (member + 1) * (double)(i % 5 + 1));
        EXPECT(!t->reduce(self, group, scatter, type, op, in, out, count, &h.request, message));
        EXPECT(wait_for(&h));
        while (same < count && get(type, out, same) == term(op, n, at + same))
            same++;
        EXPECT(same == count);
        free(in);
        free(out);
    }
}

/* Among all ranks, backwards, and among those that are odd or even. */
static void reduce_among(bool halves)
{
    int of[64], n = 0, member = 0;
    void *group;
    for (int i = size - 1; i >= 0; i--)
        if (!halves || i % 2 == rank % 2) {
            if (i == rank)
                member = n;
            of[n++] = i;
        }
    if (!EXPECT(!t->group(self, n, of, &group, message)))
        return;
    for (CommType type = 0; type < NCOMM_TYPE; type++)
        for (CommOp op = 0; op < NCOMM_OP; op++)
            for (int64_t count = 1; count < 4000; count = 3 * count + 998)
                reduce_one(group, n, member, type, op, count);
}

static void reduce(void)
{
    reduce_among(false);
    reduce_among(true);
}

/* ---- errors ---- */

static bool says(const char *text)
{
    if (strstr(message, text) && !strchr(message, '\n'))
        return true;
    printf("expected \"%s\", found \"%s\"\n", text, message);
    return false;
}

/* Messages longer and shorter than what is expected, and a rank that there is not. */
static void errors(void)
{
    char p[64] = "";
    Handle request;
    EXPECT(begin_send(&request, size, 1, p, 1) && says("MPI: sending 1 bytes to rank"));
    EXPECT(begin_receive(&request, -5, 1, p, 1) && says("MPI: receiving 1 bytes from rank -5"));
    for (int tag = 1; tag < 3; tag++)
        if (rank == 1) {
            EXPECT(!begin_send(&request, 0, tag, p, tag == 1 ? 33 : 31));
            EXPECT(wait_for(&request));
        } else if (!rank) {
            EXPECT(!begin_receive(&request, 1, tag, p, 32));
            EXPECT(!wait_for(&request));
            EXPECT(tag == 1 ? says("MPI: receiving 32 bytes from rank 1: ")
                            : says("MPI: expected 32 bytes from rank 1, found 31"));
        }
}

/* ---- memory ---- */

/* Kilobytes of a line of /proc/self/status. */
static long status_of(const char *name)
{
    char line[200];
    long n = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, name, strlen(name)))
            n = atol(line + strlen(name));
    if (f)
        fclose(f);
    return n;
}

/* Resident, but what is of the test itself. */
static void show_memory(const char *when, long own)
{
    printf("memory rank %d %s: anon %ld file %ld shmem %ld, at most %ld KiB\n", rank, when,
           status_of("RssAnon:") - own, status_of("RssFile:"), status_of("RssShmem:"),
           status_of("VmHWM:") - own);
}

/* Each 8 MiB to every rank, and sums of all of it. */
static void exchange_much(void)
{
    enum { NBYTES = 8 << 20 };
    static Handle request[2][64];
    void *group;
    int all[64];
    char *out = malloc((size_t)size * NBYTES), *in = malloc((size_t)size * NBYTES);
    memset(out, 1, (size_t)size * NBYTES);
    memset(in, 1, (size_t)size * NBYTES);
    for (int i = 0; i < size; i++) {
        all[i] = i;
        EXPECT(!begin_receive(&request[0][i], i, 1, in + (int64_t)i * NBYTES, NBYTES));
        EXPECT(!begin_send(&request[1][i], i, 1, out, NBYTES));
    }
    for (int i = 0; i < 2 * size; i++)
        EXPECT(wait_for(&request[i / size][i % size]));
    show_memory("with large messages", size * (NBYTES >> 9));
    EXPECT(!t->group(self, size, all, &group, message));
    for (int scatter = 0; scatter < 2; scatter++) {
        request[0][0].request = request[0][0].room;
        EXPECT(!t->reduce(self, group, scatter, COMM_F32, COMM_SUM, out, in, NBYTES / 4,
                          &request[0][0].request, message));
        EXPECT(wait_for(&request[0][0]));
    }
    show_memory("with sums", size * (NBYTES >> 9));
    free(out);
    free(in);
}

static void memory(void)
{
    show_memory("after open", 0);
    all_to_all(1);
    show_memory("after messages", 0);
    exchange_much();
}

/* ---- the end ---- */

/* Others wait for a message that does not come. */
static void await_nothing(void)
{
    char p = 0;
    if (rank != 1)
        wait_receive(1, &p, 1);
}

static void abort_all(void)
{
    if (rank == 1)
        t->abort(self, 3, "says why");
    await_nothing();
}

static void leave(void)
{
    if (rank == 1)
        _exit(3);
    await_nothing();
}

static void kill_one(void)
{
    if (rank == 1)
        raise(SIGKILL);
    await_nothing();
}

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
    {"messages", messages}, {"reduce", reduce}, {"errors", errors}, {"memory", memory},
    {"abort", abort_all},   {"leave", leave},   {"kill", kill_one},
};

static void find_transport(void *arg)
{
    (void)arg;
    t = comm_mpi(&ctx);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 0; i < LEN(tests); i++) {
        if (argc != 2 || strcmp(argv[1], tests[i].name))
            continue;
        if (tests[i].run == memory)
            show_memory("at first", 0);
        if (ctx_try(&ctx, find_transport, NULL)) {
            printf("%s\n", ctx.message);
            return 1;
        }
        CommPlace p = {0};
        EXPECT(!t->open(&self, &p, message) && p.size == comm_launched());
        rank = p.rank, size = p.size, here = p.here;
        EXPECT(p.local == rank && comm_launched_local() == rank); /* all are on this host */
        if (!rank)
            printf("%s: %d ranks, %d here\n", t->name, size, here);
        tests[i].run();
        t->close(self, false);
        return test_report();
    }
    printf("usage: direct messages|reduce|errors|memory|abort|leave|kill\n");
    return 2;
}
