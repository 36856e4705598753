/* libFuzzer entry for records: `make fuzz` builds it with clang. Any bytes, as a file, are text,
 * records that become tokens or rows whose labels are tokens, or fail by unwinding. The first byte
 * says how the file is named, which its form hangs on. */
#define _GNU_SOURCE /* memfd_create */
#include "../../src/io/record.h"

#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { T = 20 };

typedef struct Input {
    Arena *a;
    int fd;
    uint8_t name;
} Input;

static void check_rows(const DataSet *s)
{
    int64_t nlabel, ids[T] = {0}, labels[T] = {0}, sum = 0,
                    rows = data_windows(s, true, T, &nlabel);
    for (int64_t k = 0; k < rows; k++) {
        int64_t count = data_val_batch(s, k, 1, 1, (DataRow){T, ids, labels, NULL});
        CHECK(!s->index || count > 0);
        sum += count;
        for (int i = 0; i < T; i++) {
            CHECK(ids[i] >= 0 && ids[i] < 256 && labels[i] >= -100 && labels[i] < 256);
            CHECK(i + 1 == T || labels[i] < 0 || labels[i] == ids[i + 1] || labels[i + 1] == -100);
        }
    }
    CHECK(!s->index || sum == nlabel);
}

static void read_records(void *arg)
{
    static const char *const names[] = {"a.jsonl", "a", "a.csv", "a.json", "a.tsv"};
    Input *in = arg;
    bool made;
    DataOptions o = {.type = TOKEN_BYTE, .val_fraction = 1, .vocab = 256};
    const DataSet *files = data_open_fd(in->a, in->fd, names[in->name % LEN(names)], &o);
    TextOptions how = {.holds = data_holds(in->a, files),
                       .chat = "tests/chat",
                       .between = -1,
                       .seq = T,
                       .val_fraction = 1,
                       .vocab = 256};
    check_rows(data_tokenize(in->a, in->a, files, tokenizer_open(in->a, "bytes"), &how, &made));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Ctx ctx = {0};
    if (size < 2)
        return 0;
    Input in = {.a = arena_new(&ctx), .fd = memfd_create("record", 0), .name = data[0]};
    CHECK(in.a && in.fd >= 0 && write(in.fd, data + 1, size - 1) == (ssize_t)size - 1);
    if (ctx_try(&ctx, read_records, &in) != TN_OK)
        CHECK(*ctx.message);
    arena_free(in.a);
    close(in.fd);
    ctx_end(&ctx);
    return 0;
}
