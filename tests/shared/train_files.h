/* Files that tests of training make, or change. */
#ifndef TENON_TEST_TRAIN_FILES_H
#define TENON_TEST_TRAIN_FILES_H

#include <stdint.h>

/* Sets values of a tensor of a safetensors file, which loses its checksum. */
void train_values(const char *path, const char *name, int64_t first, int64_t count, float value);
/* A --batch: rows of ids 0, 1, 2, ... but for one that has `id` at one place. */
void train_batch(const char *path, int64_t rows, int64_t seq, int64_t row, int64_t column,
                 int64_t id);

#endif
