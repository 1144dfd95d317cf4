/* The clock of everything that measures a time or waits for one. */
#ifndef FM_CLOCK_H
#define FM_CLOCK_H

/* Seconds since some fixed moment; never goes back, whatever is done to the date. */
double fm_clock_now(void);

#endif
