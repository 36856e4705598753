/* Shared by the files of tn_tune. */
#ifndef TENON_RUN_TUNE_H
#define TENON_RUN_TUNE_H

#include "run.h"

/* ---- tune_file.c: the machine file that grows ---- */

/* Measurements go to PATH.part, which is replaced as a whole each time, so that it is good at any
 * moment, and becomes PATH at the end. PATH.lock is held meanwhile. */
typedef struct TuneFile {
    Arena *a, *tmp;
    TunedFor to;
    const char *path, *part, *aside, *lock_path;
    int lock; /* -1: none */
    Machine *machine;
    bool goes_on;        /* some of it was there */
    const char *warning; /* of a file that was there and could not be read; NULL: none */
} TuneFile;

/* The device that options name, NULL: the processor. Fails where it is not here. */
TunedFor tune_for(Ctx *ctx, const tn_options *o);
/* The same of all steps; one file is for one device. */
TunedFor tune_for_steps(Ctx *ctx, const tn_tune_step *steps, int count, const tn_tune_options *o);
/* Takes the file of that path (NULL: that of the cache) for what is measured, with what is there
 * already. Fails where another process has it, or it cannot be written. */
TuneFile *tune_open(Arena *a, const char *path, const TunedFor *to);
void tune_save(TuneFile *f);
void tune_end(TuneFile *f); /* saves, and gives it its name */

#endif
