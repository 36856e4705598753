/* libFuzzer entry for event files: `make fuzz` builds it with clang. Any bytes are a file of
 * records, which end or are damaged, and, as sums seldom match, a message too. */
#include "../../src/train/trainer.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_file(const uint8_t *data, size_t size)
{
    FILE *f = fmemopen((void *)(uintptr_t)data, size, "r");
    EventMessage m;
    MetricsKey k;
    while (f && event_read(f, &m) > 0)
        event_key(m.byte, m.n, &k);
    if (f)
        fclose(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    MetricsKey k;
    if (size)
        read_file(data, size);
    event_key(data, size, &k);
    return 0;
}
