/* What tests of training read: see train_files.h. */
#include "train_files.h"

#include "test.h"

#include <jansson.h>
#include <string.h>

void train_values(const char *path, const char *name, int64_t first, int64_t count, float value)
{
    uint64_t size;
    char key[100];
    FILE *f = fopen(path, "r+b");
    CHECK(f && fread(&size, sizeof size, 1, f) == 1);
    char *text_of = calloc(size + 1, 1);
    CHECK(text_of && fread(text_of, 1, size, f) == size);
    json_t *all = json_loadb(text_of, size, 0, NULL);
    const json_t *at = json_object_get(json_object_get(all, name), "data_offsets");
    CHECK(at);
    int64_t start = json_integer_value(json_array_get(at, 0));
    snprintf(key, sizeof key, "\"crc32c %s\"", name);
    const char *sum = strstr(text_of, key);
    if (sum) {
        fseek(f, (long)sizeof size + (sum + 1 - text_of), SEEK_SET);
        fputs("former", f);
    }
    fseek(f, (long)(sizeof size + size) + (long)(start + first * (int64_t)sizeof value), SEEK_SET);
    for (int64_t i = 0; i < count; i++)
        fwrite(&value, sizeof value, 1, f);
    json_decref(all);
    free(text_of);
    CHECK(!fclose(f));
}

void train_batch(const char *path, int64_t rows, int64_t seq, int64_t row, int64_t column,
                 int64_t id)
{
    char header[300];
    long long nbytes = (long long)(rows * seq * (int64_t)sizeof id);
    uint64_t size = (uint64_t)snprintf(
        header, sizeof header,
        "{\"input_ids\": {\"dtype\": \"I64\", \"shape\": [%d, %d], \"data_offsets\": [0, %lld]}, "
        "\"labels\": {\"dtype\": \"I64\", \"shape\": [%d, %d], \"data_offsets\": [%lld, %lld]}}",
        (int)rows, (int)seq, nbytes, (int)rows, (int)seq, nbytes, 2 * nbytes);
    FILE *f = fopen(path, "wb");
    CHECK(f);
    fwrite(&size, sizeof size, 1, f);
    fwrite(header, 1, size, f);
    for (int64_t i = 0; i < 2 * rows * seq; i++) {
        int64_t value = i == row * seq + column ? id : i % seq;
        fwrite(&value, sizeof value, 1, f);
    }
    CHECK(!fclose(f));
}
