/* sharding: what ranks have of a graph's inputs and outputs. */
#include "pass.h"
