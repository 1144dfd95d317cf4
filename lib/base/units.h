/* Numbers in a form that people can read. */
#ifndef FM_UNITS_H
#define FM_UNITS_H

#include <stdint.h>

/* "1.5 GB" into text (decimal units). */
void fm_units_bytes(char text[32], uint64_t bytes);

/* "1.5061GB", as an option takes it: five digits, rounded up. */
void fm_units_option(char text[32], uint64_t bytes);

/* "under 1 s", "45 s", "9 min 20 s", "9 h 18 min", "3 d 4 h" into text: two units, rounded. */
void fm_units_time(char text[32], double seconds);

#endif
