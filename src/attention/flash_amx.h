/* The products of flash_panel.h by tiles of AMX. A tile is 16 rows of 64 bytes: of a 32 numbers of
 * each of 16 rows, of b as many pairs of rows, 16 columns each, of c 16 sums in f32. */
#ifndef TENON_FLASH_AMX_H
#define TENON_FLASH_AMX_H

#include "flash_panel.h"

bool amx_has(void); /* whether this machine has the instructions and Linux grants them */

void amx_begin(void); /* of a thread, before amx_multiply(); it owns the tiles until amx_end() */
void amx_multiply(const PanelProduct *x);
void amx_end(void);

#endif
