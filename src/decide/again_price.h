/* again_price: the seconds that no plan does without where it computes a node again. */
#ifndef TENON_AGAIN_PRICE_H
#define TENON_AGAIN_PRICE_H

#include "again_cut.h"

/* Lowers x's seconds to those. fused: nodes may be fused; joined: gathers of parameters may be
 * joined. */
void again_price(AgainGraph *x, const Machine *m, bool fused, bool joined);

#endif
