/* plot: what plot.c (reading, the command) and plot_svg.c (the picture) share. */
#ifndef TENON_PLOT_H
#define TENON_PLOT_H

#include <stdint.h>
#include <stdio.h>

typedef struct Point {
    double step, value; /* NaN: null in the file */
    int64_t order;      /* in the file */
} Point;

typedef struct Series {
    Point *point;
    int64_t count, cap;
} Series;

typedef struct Plot {
    Series train, part, full; /* steps ascending, each once; held out: part of it, all */
    const char *title;
    int64_t smooth; /* steps of the mean; 0: a fortieth of the run */
    int64_t tokens; /* trained on at the end, 0: not in the file */
} Plot;

/* Adds a point; 0, or -1 without memory. */
int series_add(Series *s, double step, double value, int64_t order);

/* Writes the picture; 0, or -1 without memory. */
int plot_write(const Plot *p, FILE *f);

#endif
