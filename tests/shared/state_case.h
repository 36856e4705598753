/* state_case: state.json and the link `latest` as --resume reads them, for test_corrupt and
 * fuzz_state. */
#ifndef TENON_STATE_CASE_H
#define TENON_STATE_CASE_H

#include "../../include/tenon.h"

#include <stdbool.h>
#include <stddef.h>

/* A folder with one whole checkpoint, step-2, in memory where there is room for it. */
const char *state_folder(void);
void state_remove(void);
extern const char state_good[]; /* the text of its state.json */

/* Takes up the run with these bytes as state.json, or as what `latest` points to; `said` has room
 * for the message. Whether it was taken up. */
bool state_try(const char *text, size_t n, char *said, size_t size);
bool state_try_latest(const char *text, size_t n, char *said, size_t size);

#endif
