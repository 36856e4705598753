/* diff: how two graphs differ, as text. */
#ifndef TENON_DIFF_H
#define TENON_DIFF_H

#include "ir.h"

/* ---- print.c ---- */

void node_print(Buf *b, const Node *n); /* one line without its end; of a region its head */
void port_print(Buf *b, const Graph *g, const Port *p, bool in);

/* ---- diff.c ---- */

/* Says what was added, removed, changed and moved from one graph to another: a line with counts,
 * then a line or more for each. */
void graph_diff(Buf *b, const Graph *before, const Graph *after);

#endif
