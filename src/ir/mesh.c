/* mesh: the ranks that run a graph, and what they have of its inputs and outputs. */
#include "ir.h"
