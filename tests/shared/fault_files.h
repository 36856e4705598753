/* fault_files: the folders that test_fault's runs read and write, below one of the test's own. */
#ifndef TENON_FAULT_FILES_H
#define TENON_FAULT_FILES_H

#include "../../src/base/base.h"

/* The test's folder, in memory where there is room for it; made by the first call. */
const char *top_folder(void);
/* "TOP/folder/name", until seven calls later. */
const char *path_in(const char *folder, const char *name);

void remove_all(const char *path);
void shell(const char *format, ...) __attribute__((format(printf, 1, 2))); /* must succeed */
/* Makes TOP/folder anew, empty or as a copy of TOP/before. */
void begin_folder(const char *folder, const char *before);

void put_text(const char *path, const char *text);
char *read_all(const char *path, size_t *n); /* of less than 1 MiB; NULL where it cannot be read */
/* Whether two files are the same, in state.json but for the time that a run took. */
bool same_file(const char *path, const char *other);

#endif
