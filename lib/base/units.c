/* Three digits are what a glance takes in. */
#include "lib/base/units.h"

#include <stdio.h>

void fm_units_bytes(char text[32], uint64_t bytes)
{
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    double v = (double)bytes;
    int u = 0;
    while (v >= 999.5 && u < 6) {
        v /= 1000;
        u++;
    }
    snprintf(text, 32, u == 0 || v >= 99.5 ? "%.0f %s" : "%.3g %s", v, unit[u]);
}
