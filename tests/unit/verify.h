/*
 * Verification for tests: a bundle, its stage stream and an export of every layout in the scratch
 * directory, the findings of fm_verify, and ways to corrupt a copy.
 */
#ifndef FM_TESTS_VERIFY_H
#define FM_TESTS_VERIFY_H

#include "lib/export/export.h"
#include "lib/stage/pack.h"
#include "lib/verify/verify.h"
#include "tests/unit/given.h"
#include "tests/unit/test.h"

/* Paths; verify_dir in the order of fm_layouts, verify_edited for a copy. */
static char verify_bundle[512], verify_stage[512], verify_dir[FM_LAYOUTS_MAX][600],
    verify_edited[512];

/* Findings of the last run as text, one per line, and its result and report. */
static char verify_found[65536];
static struct fm_err verify_said;
static struct fm_verify_report verify_report;
static struct fm_progress verify_progress; /* of the runs; zero: no messages */

static inline void verify_keep(void *self, const char *item, const char *what)
{
    size_t used = strlen(verify_found);
    (void)self;
    snprintf(verify_found + used, sizeof verify_found - used, "%s: %s\n", item, what);
}

static inline int verify_as(const char *target, const char *against, bool function,
                            const char *model)
{
    struct fm_run_options run = {.inputs.model = model,
                                 .inputs.tokens = {{.path = GIVEN_MODEL "/tokens.npy"}},
                                 .machine.device = "ref",
                                 .progress = verify_progress,
                                 .machine.memory = (uint64_t)256 << 20};
    struct fm_verify_options options = {
        .target = target, .against = against, .function = function, .finding = verify_keep};
    verify_said = (struct fm_err){0};
    verify_found[0] = '\0';
    return fm_verify(&run, &options, &verify_report, &verify_said);
}

static inline int verify(const char *target, const char *against)
{
    return verify_as(target, against, false, NULL);
}

static inline void verify_export_to(const char *path, const struct fm_layout *layout)
{
    struct fm_run_options run = {
        .inputs.stream = verify_bundle, .outputs.path = path, .outputs.force = true};
    struct fm_export_options options = {.layout = layout, .budget = 0.24};
    struct fm_export_report made;
    GIVEN_TRY(fm_export(&run, &options, &made, &given_err));
    assert_int_equal(made.index, 3);
}

static inline int verify_make_all(void **unused)
{
    struct fm_pack_report made;
    (void)unused;
    snprintf(verify_bundle, sizeof verify_bundle, "%s", scratch("family.fm"));
    snprintf(verify_edited, sizeof verify_edited, "%s", scratch("edited.fm"));
    snprintf(verify_stage, sizeof verify_stage, "%s", given_stage("stage.fm", true));
    struct fm_run_options run = {.inputs.model = GIVEN_MODEL,
                                 .inputs.stream = verify_stage,
                                 .outputs.path = verify_bundle,
                                 .machine.device = "ref"};
    GIVEN_TRY(fm_pack(&run, &(struct fm_pack_options){0}, &made, &given_err));
    for (int i = 0; fm_layouts[i]; i++) {
        snprintf(verify_dir[i], sizeof verify_dir[i], "%s-%s", verify_bundle, fm_layouts[i]->name);
        verify_export_to(verify_dir[i], fm_layouts[i]);
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
