/* Verification for tests: an export of every layout of the bundle, and ways to corrupt a copy. */
#ifndef FM_TESTS_VERIFY_H
#define FM_TESTS_VERIFY_H

#include "tests/unit/exports.h"

/* Paths; verify_dir in the order of fm_layouts, verify_edited for a copy of the bundle. */
static char verify_dir[FM_LAYOUTS_MAX][600], verify_edited[512];

static inline int verify_make_all(void **unused)
{
    make_bundle(unused);
    snprintf(verify_edited, sizeof verify_edited, "%s", scratch("edited.fm"));
    for (int i = 0; fm_layouts[i]; i++) {
        snprintf(verify_dir[i], sizeof verify_dir[i], "%s-%s", bundle, fm_layouts[i]->name);
        struct fm_export_report made = export_as(
            verify_dir[i], (struct fm_export_options){.layout = fm_layouts[i], .budget = 0.24});
        assert_int_equal(made.index, 3);
    }
    return 0;
}

/* The export of a layout. */
static inline const char *verify_dir_of(const struct fm_layout *layout)
{
    int i = 0;
    while (fm_layouts[i] != layout)
        i++;
    return verify_dir[i];
}

static inline void verify_run(const char *fmt, ...) FM_PRINTF(1, 2);
static inline void verify_run(const char *fmt, ...)
{
    char command[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(command, sizeof command, fmt, ap);
    va_end(ap);
    assert_int_equal(system(command), 0);
}

static inline void verify_copy_file(const char *from, const char *to)
{
    verify_run("cp %s %s", from, to);
}

static inline void verify_copy_dir(const char *from, const char *to)
{
    verify_run("rm -rf %s && cp -r %s %s", to, from, to);
}

#endif
