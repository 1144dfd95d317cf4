/*
 * The checks that one call makes, in order: of the options, of the target's bytes and contents, of
 * the checkpoint, of what the weights compute.  A later check begins only if no fault was found.
 */
#include "lib/verify/verify.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/stage/pack.h"
#include "lib/verify/verifier.h"

/* Set *directory; false for a target that does not exist: opening it gives the error. */
static int is_directory(bool *directory, const char *path, struct fm_err *err)
{
    struct stat st = {0};
    if (strcmp(path, "-") != 0 && stat(path, &st) != 0 && errno != ENOENT && errno != ENOTDIR)
        return fm_fail_errno(err, "cannot examine '%s'", path);
    *directory = S_ISDIR(st.st_mode);
    return FM_OK;
}

bool fm_verify_is_unpaired(const struct fm_verify_options *options)
{
    struct fm_err unused = {0};
    bool directory = false;
    return !options->against && !is_directory(&directory, options->target, &unused) && directory;
}

/* Set *directory as well. */
static int check_options(bool *directory, const struct fm_run_options *run,
                         const struct fm_verify_options *o, struct fm_err *err)
{
    int rc = is_directory(directory, o->target, err);
    if (rc)
        return rc;
    bool unpaired = *directory && !o->against;
    if (!*directory && o->against && strcmp(o->target, "-") != 0 && access(o->target, F_OK) != 0)
        return fm_fail_errno(err, "cannot open the directory '%s'", o->target);
    if (unpaired && (o->function || run->inputs.model))
        return fm_fail(err, FM_EUSAGE, "%s of the directory %s needs its bundle: --against",
                       o->function ? "--function" : "--model", o->target);
    if (!*directory && o->against)
        return fm_fail(
            err, FM_EUSAGE,
            "--against is for an exported directory, and '%s' is not a directory; omit it",
            o->target);
    if (o->function && !fm_inputs_first(&run->inputs))
        return fm_fail(err, FM_EUSAGE, "--function needs --text or --tokens");
    if (o->function && !*directory && !run->inputs.model)
        return fm_fail(err, FM_EUSAGE, "--function of a bundle needs the checkpoint: --model");
    return FM_OK;
}

int fm_verify_plan(const struct fm_run_options *run, const struct fm_verify_options *o,
                   struct fm_err *err)
{
    struct fm_verify_report report = {.index = -1};
    struct fm_verifier v = {.run = run, .options = o, .report = &report, .dir = -1};
    bool directory;
    int rc = check_options(&directory, run, o, err);
    return rc || !o->function ? rc : fm_verify_function(&v, true, err);
}

/* fm-pack --force renames a new export over an old one and removes the files of the old one.
 * Findings made in between are valid for neither. */
static int check_in_place(struct fm_verifier *v, int rc, struct fm_err *err)
{
    struct fm_err replaced = {0};
    if (!fm_file_same_directory(v->dir, v->options->target, &replaced))
        return rc;
    fm_verifier_forget(v);
    *err = replaced;
    return err->code;
}

static void note_difference(void *self, const char *item, const char *what)
{
    fm_verifier_find(self, 0, FM_EDIFF, item, "%s", what);
}

/* Compare the bundle, or that of an export, with the checkpoint (fm_pack_compare). */
static int compare_checkpoint(struct fm_verifier *v, struct fm_err *err)
{
    const struct fm_verify_options *o = v->options;
    struct fm_run_options run = *v->run;
    struct fm_pack_compared compared = {.differs = note_difference, .self = v};
    run.inputs.stream = o->against ? o->against : o->target;
    if (strcmp(run.inputs.stream, "-") == 0)
        return fm_fail(err, FM_EUSAGE, "--model reads the bundle twice: give it as a file");
    int rc = fm_pack_compare(&run, &compared, err);
    fm_verifier_count(v, compared.items, compared.bytes);
    return rc;
}

int fm_verify(const struct fm_run_options *run, const struct fm_verify_options *options,
              struct fm_verify_report *report, struct fm_err *err)
{
    double start = fm_clock_now();
    *report = (struct fm_verify_report){.index = -1};
    struct fm_verifier v = {.run = run, .options = options, .report = report, .dir = -1};
    bool directory;
    if (check_options(&directory, run, options, err) ||
        (directory && fm_file_open_directory(&v.dir, options->target, err)))
        return err->code;
    pthread_mutex_init(&v.lock, NULL);
    int rc = FM_OK;
    if ((!directory         ? fm_verify_bundle(&v, err)
         : options->against ? fm_verify_export(&v, err)
                            : fm_verify_table(&v, err)) ||
        (run->inputs.model && !options->function && report->failed == 0 &&
         compare_checkpoint(&v, err)) ||
        (options->function && report->failed == 0 && fm_verify_function(&v, false, err)))
        rc = err->code;
    if (directory && rc != FM_ESAVED)
        rc = check_in_place(&v, rc, err);
    fm_verifier_tell(&v);
    free(v.finding);
    free(v.served);
    if (v.dir >= 0)
        close(v.dir);
    pthread_mutex_destroy(&v.lock);
    report->seconds = fm_clock_now() - start;
    if (!rc && v.lost.code) {
        *err = v.lost;
        rc = v.lost.code;
    }
    if (!rc && report->failed)
        rc = fm_fail(err,
                     v.machine   ? v.machine
                     : v.differs ? FM_EDIFF
                                 : FM_EFORMAT,
                     "%s does not verify: %llu fault%s in %llu item%s", options->target,
                     (unsigned long long)report->failed, report->failed == 1 ? "" : "s",
                     (unsigned long long)report->items, report->items == 1 ? "" : "s");
    return rc;
}
