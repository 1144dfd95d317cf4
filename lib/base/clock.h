/* The clock for measuring and waiting. */
#ifndef FM_CLOCK_H
#define FM_CLOCK_H

/* Seconds since an unspecified start.  Monotonic: changes of the system date do not affect it. */
double fm_clock_now(void);

#endif
