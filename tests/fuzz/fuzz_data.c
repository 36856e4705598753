/* libFuzzer entry for token files: `make fuzz` builds it with clang. The first bytes say how the
 * file is opened, the others are the file, which may lose its second half later. It fails by
 * unwinding, or gives batches whose labels are the next tokens. */
#define _GNU_SOURCE /* memfd_create */
#include "../../src/io/io.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEAD = 8, B = 3, MOST = 40 };

typedef struct Input {
    Arena *a;
    const char *path;
    const uint8_t *head;
    DataSet *s;
} Input;

static void open_data(void *arg)
{
    Input *in = arg;
    const uint8_t *head = in->head;
    DataOptions o = {.type = head[0] % 4, .val_fraction = head[1] / 255.0, .vocab = head[2] * 256};
    in->s = data_open(in->a, 1, &in->path, &o);
    if (head[3])
        data_set_document(in->s, head[3]);
}

static int64_t check(const DataSet *s, int64_t T, const int64_t *ids, const int64_t *labels)
{
    int64_t count = 0;
    for (int64_t i = 0; i < B * T; i++) {
        CHECK(ids[i] >= 0 && (!s->vocab || ids[i] < s->vocab));
        CHECK(labels[i] == -100 || (labels[i] >= 0 && (!s->vocab || labels[i] < s->vocab)));
        bool last = i % T == T - 1 || labels[i + 1] == -100; /* what follows may be padding */
        CHECK(last || labels[i] == -100 || labels[i] == ids[i + 1]);
        count += labels[i] != -100;
    }
    return count;
}

static void read_batches(void *arg)
{
    Input *in = arg;
    int64_t T = 1 + in->head[4] % MOST, nlabel, ids[B * MOST], labels[B * MOST];
    int64_t windows = data_windows(in->s, true, T, &nlabel), first = in->head[5];
    int64_t count =
        data_val_batch(in->s, first, 1 + in->head[6], B, (DataRow){T, ids, labels, NULL});
    CHECK(count == check(in->s, T, ids, labels) && (count > 0) == (first < windows));
    data_train_batch(in->s, in->head[6], 1u + in->head[7], B, (DataRow){T, ids, labels, NULL});
    CHECK(check(in->s, T, ids, labels) >= B);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Ctx ctx = {0};
    char path[40];
    if (size < HEAD)
        return 0;
    Input in = {.a = arena_new(&ctx), .head = data, .path = path};
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    CHECK(in.a && fd >= 0);
    CHECK(write(fd, data + HEAD, size - HEAD) == (ssize_t)(size - HEAD));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (ctx_try(&ctx, open_data, &in) == TN_OK) {
        ctx_try(&ctx, read_batches, &in);
        if (in.head[0] & 4)
            CHECK(!ftruncate(fd, (off_t)(size / 2)));
        ctx_try(&ctx, read_batches, &in);
    }
    close(fd);
    arena_free(in.a);
    return 0;
}
