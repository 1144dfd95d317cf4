/* Time from the clock, memory from the kernel's high-water mark of the process. */
#include "lib/baseline/spent.h"

#include <stdio.h>

#include "lib/base/clock.h"

void fm_spent_begin(struct fm_spent *spent)
{
    *spent = (struct fm_spent){0};
    FILE *f = fopen("/proc/self/clear_refs", "w"); /* 5: reset the peak */
    if (f) {
        fputs("5\n", f);
        fclose(f);
    }
    spent->began = fm_clock_now();
}

void fm_spent_end(struct fm_spent *spent)
{
    char line[128];
    long kib = 0;
    spent->seconds = fm_clock_now() - spent->began;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %ld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    spent->memory = kib > 0 ? (uint64_t)kib * 1024 : 0;
}
