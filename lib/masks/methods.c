/*
 * The list of methods.  To add a method, write a file with its descriptor in lib/methods, and add a
 * row to lib/masks/methods.h.
 */
#include "lib/masks/methods.h"

#include <assert.h>
#include <string.h>

#define POINT(name) &fm_method_##name,
const struct fm_method *const fm_methods[] = {FM_METHOD_ROWS(POINT) NULL};
_Static_assert(sizeof fm_methods / sizeof *fm_methods <= FM_METHODS_MAX + 1, "FM_METHODS_MAX");

const struct fm_method *fm_methods_find(const char *name)
{
    const struct fm_method *const *method = fm_methods;
    while (*method && strcmp((*method)->name, name) != 0)
        method++;
    return *method;
}

int fm_methods_index(const struct fm_method *method)
{
    int i = 0;
    while (fm_methods[i] != method) {
        assert(fm_methods[i]);
        i++;
    }
    return i;
}
