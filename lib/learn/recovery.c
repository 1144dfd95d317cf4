/*
 * The list of what can be trained.  To add one, write a file with its descriptor in lib/methods,
 * and add a row to lib/learn/recovery.h.
 */
#include "lib/learn/recovery.h"

#include <stdio.h>

#define POINT(name) &fm_recovery_##name,
const struct fm_recovery *const fm_recoveries[] = {FM_RECOVERY_ROWS(POINT) NULL};

void fm_recovery_choices(char *text, size_t size)
{
    size_t used = 0;
    for (int i = 0; fm_recoveries[i] && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? "|" : "",
                                 fm_recoveries[i]->name);
}
