/* What a calibration took: time, and the largest resident size of this process meanwhile. */
#ifndef FM_SPENT_H
#define FM_SPENT_H

#include <stdint.h>

struct fm_spent {
    double began, seconds;
    uint64_t memory; /* bytes; 0: this system does not say */
};

/* The peak is forgotten here (Linux: /proc/self/clear_refs), so what earlier work left allocated
 * counts, and nothing else of it. */
void fm_spent_begin(struct fm_spent *spent);
void fm_spent_end(struct fm_spent *spent);

/* One calibration that needs another before it: seconds add up, the larger peak stays. */
void fm_spent_add(struct fm_spent *to, const struct fm_spent *more);

#endif
