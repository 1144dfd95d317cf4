/* For people, a size has three digits and a time has two units; for options, a size has five digits
 * and is rounded up. */
#include "lib/base/units.h"

#include <math.h>
#include <stdio.h>

static const char *const size_unit[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};

void fm_units_bytes(char text[32], uint64_t bytes)
{
    double v = (double)bytes;
    int u = 0;
    while (v >= 999.5 && u < 6) {
        v /= 1000;
        u++;
    }
    snprintf(text, 32, u == 0 || v >= 99.5 ? "%.0f %s" : "%.3g %s", v, size_unit[u]);
}

void fm_units_option(char text[32], uint64_t bytes)
{
    double v = (double)bytes;
    int u = 0;
    for (; v >= 1000 && u < 6; u++)
        v /= 1000;
    int digits = u == 0 ? 0 : v >= 100 ? 2 : v >= 10 ? 3 : 4;
    double scale = pow(10, digits);
    snprintf(text, 32, "%.*f%s", digits, ceil(v * scale) / scale, size_unit[u]);
}

void fm_units_time(char text[32], double seconds)
{
    static const struct {
        const char *name;
        double seconds;
    } unit[] = {{"d", 86400}, {"h", 3600}, {"min", 60}, {"s", 1}};
    int u = 0;
    if (seconds < 9.95) {
        snprintf(text, 32, seconds < 0.95 ? "under 1 s" : "%.2g s", seconds);
        return;
    }
    /* Rounded to the smaller of the two units first, so that 59.7 min is 1 h and not 60 min. */
    for (u = 0; u < 3; u++)
        if (seconds + unit[u + 1].seconds / 2 >= unit[u].seconds)
            break;
    if (u == 3) {
        snprintf(text, 32, "%.0f s", seconds);
        return;
    }
    double small = unit[u + 1].seconds, per = unit[u].seconds / small;
    uint64_t n = (uint64_t)(fmin(seconds, 1e15) / small + 0.5), first = n / (uint64_t)per;
    uint64_t second = n - first * (uint64_t)per;
    if (second)
        snprintf(text, 32, "%llu %s %llu %s", (unsigned long long)first, unit[u].name,
                 (unsigned long long)second, unit[u + 1].name);
    else
        snprintf(text, 32, "%llu %s", (unsigned long long)first, unit[u].name);
}
