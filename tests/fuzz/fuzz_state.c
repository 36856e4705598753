/* libFuzzer entry for what --resume reads: `make fuzz` builds it with clang. The first byte says
 * whether the others are state.json or what `latest` points to. */
#include "../shared/state_case.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char said[2100];
    if (size)
        (*data == 'l' ? state_try_latest : state_try)((const char *)data + 1, size - 1, said,
                                                      sizeof said);
    return 0;
}
