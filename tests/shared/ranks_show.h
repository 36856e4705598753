/* ranks_show: for looking at what ranks compute. */
#ifndef TENON_TEST_RANKS_SHOW_H
#define TENON_TEST_RANKS_SHOW_H

#include "ranks.h"

void ranks_print(const char *title, Arena *a, const Graph *g);

/* Prints the first node of the ranks' graph with a result that has the name and, cut in whatever
 * way, the type of a value of `whole`, but not its elements. */
void ranks_show(const Ranks *r, const Graph *whole, const Tensor *in);

#endif
