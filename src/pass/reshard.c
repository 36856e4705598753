/* reshard: from one form of a value to another. */
#include "pass.h"
