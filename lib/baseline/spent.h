/* Cost of a calibration: time, and the largest resident size of this process. */
#ifndef FM_SPENT_H
#define FM_SPENT_H

#include <stdint.h>

struct fm_spent {
    double began, seconds;
    uint64_t memory; /* bytes; 0: not available on this system */
};

/* The peak is reset here (Linux: /proc/self/clear_refs), so memory that earlier work has already
 * freed does not count. */
void fm_spent_begin(struct fm_spent *spent);
void fm_spent_end(struct fm_spent *spent);

#endif
