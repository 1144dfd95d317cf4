/* One clock for the suite: CLOCK_MONOTONIC in seconds. */
#include "lib/base/clock.h"

#include <time.h>

double fm_clock_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
