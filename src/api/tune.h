/* What the files of tn_tune share. */
#ifndef TENON_API_TUNE_H
#define TENON_API_TUNE_H

#include "api.h"

/* ---- tune_file.c: the machine file that grows ---- */

/* Measurements go to PATH.part, which is replaced as a whole each time, so that it is good at any
 * moment, and becomes PATH at the end. PATH.lock is held meanwhile. */
typedef struct TuneFile {
    Arena *a, *tmp;
    const char *path, *part, *aside, *lock_path;
    int lock; /* -1: none */
    Machine *machine;
    bool goes_on;        /* some of it was there */
    const char *warning; /* of a file that was there and could not be read; NULL: none */
} TuneFile;

/* Takes the file of that path (NULL: that of the cache) for this process's number of threads, with
 * what is there already. Fails where another process has it, or it cannot be written. */
TuneFile *tune_open(Arena *a, const char *path);
void tune_save(TuneFile *f);
void tune_end(TuneFile *f); /* saves, and gives it its name */

#endif
