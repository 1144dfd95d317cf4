/* Numbers as people read them. */
#ifndef FM_UNITS_H
#define FM_UNITS_H

#include <stdint.h>

/* "1.5 GB" into text (decimal units, as disks and registries count). */
void fm_units_bytes(char text[32], uint64_t bytes);

#endif
