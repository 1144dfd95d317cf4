/*
 * Questions about the options that every tool asks: which table of operations, how much memory,
 * and whether an output would overwrite one of the inputs, by any of its names.
 */
#include "lib/run/run.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/file/file.h"
#include "formats/file/screen.h"
#include "formats/tensor/hfcache.h"
#include "lib/base/units.h"

#define DECIMALS 6 /* of a weight */

/* What --precision auto means here. */
static enum fm_precision find_precision(const struct fm_run_options *run, enum fm_dtype stored)
{
    const struct fm_ops *ops;
    struct fm_err none = {0};
    bool may = run->machine.precision_auto && (stored == FM_BF16 || stored == FM_F16);
    return may && !fm_ops_cpu(&ops, FM_PRECISION_BF16, &none) ? FM_PRECISION_BF16
                                                              : run->machine.precision;
}

int fm_run_ops(const struct fm_ops **ops, const struct fm_run_options *run, enum fm_dtype stored,
               struct fm_err *err)
{
    const char *device = run->machine.device ? run->machine.device : "auto";
    if (run->machine.ops) {
        *ops = run->machine.ops;
        return FM_OK;
    }
    if (strcmp(device, "ref") == 0) {
        if (run->machine.precision != FM_PRECISION_F32)
            return fm_fail(err, FM_EUSAGE, "--device ref computes in f32 only; use --device cpu");
        *ops = fm_ops_ref();
        return FM_OK;
    }
    if (strcmp(device, "auto") == 0 || strcmp(device, "cpu") == 0)
        return fm_ops_cpu(ops, find_precision(run, stored), err);
    return fm_fail(err, FM_EUSAGE, "unknown device '%s'; use auto, ref or cpu", device);
}

const char *fm_run_precision(const struct fm_ops *ops)
{
    return ops->operand == FM_BF16 ? "bf16" : "f32";
}

const char *fm_run_first_input(const struct fm_run_options *run)
{
    return run->inputs.tokens ? run->inputs.tokens : run->inputs.texts[0];
}

int fm_run_find_model(struct fm_run_options *run, struct fm_err *err)
{
    static char path[PATH_MAX];
    if (!run->inputs.model || access(run->inputs.model, F_OK) == 0 ||
        !fm_hfcache_is_name(run->inputs.model))
        return FM_OK;
    int rc = fm_hfcache_find(path, sizeof path, run->inputs.model, err);
    if (!rc)
        run->inputs.model = path;
    return rc;
}

bool fm_run_evaluates(const struct fm_run_options *run)
{
    return run->inputs.eval_tokens || run->inputs.eval_text;
}

uint64_t fm_run_memory(const struct fm_run_options *run)
{
    if (run->machine.memory)
        return run->machine.memory;
    int nth;
    uint64_t ranks = (uint64_t)fm_comm_beside(run->machine.comm, &nth);
    long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && bytes > 0 ? (uint64_t)pages / 2 / ranks * (uint64_t)bytes
                                  : (uint64_t)4 << 30;
}

int fm_run_check_stream(const struct fm_run_options *run, struct fm_err *err)
{
    if (strcmp(run->outputs.path, "-") != 0 || !fm_screen_is_output())
        return FM_OK;
    return fm_fail(err, FM_EUSAGE,
                   "standard output is a terminal; name an output file or use a pipe");
}

/* Digits with at most one point, and nothing else. */
static bool looks_like_a_number(const char *text)
{
    size_t digits = strspn(text, "0123456789"), more = 0;
    const char *end = text + digits;
    if (*end == '.') {
        more = strspn(end + 1, "0123456789");
        end += 1 + more;
    }
    return *end == '\0' && digits + more > 0;
}

static bool take_weight(uint64_t *weight, const char *text)
{
    uint64_t v = 0;
    size_t whole = strcspn(text, "."), decimals = text[whole] ? strlen(text) - whole - 1 : 0;
    if (whole > 7 || decimals > DECIMALS)
        return false;
    for (const char *p = text; *p; p++)
        v = *p == '.' ? v : v * 10 + (uint64_t)(*p - '0');
    for (size_t i = decimals; i < DECIMALS; i++)
        v *= 10;
    *weight = v;
    return v > 0 && v <= (uint64_t)1000000 * FM_WEIGHT_ONE;
}

int fm_run_parse_input(const char *spec, size_t *length, uint64_t *weight, struct fm_err *err)
{
    const char *colon = strrchr(spec, ':');
    *length = strlen(spec);
    *weight = FM_WEIGHT_ONE;
    if (!colon || !looks_like_a_number(colon + 1))
        return FM_OK;
    *length = (size_t)(colon - spec);
    if (*length == 0 || !take_weight(weight, colon + 1))
        return fm_fail(err, FM_EUSAGE,
                       "'%s': a weight is above 0, at most a million, with at most %d decimals",
                       spec, DECIMALS);
    return FM_OK;
}

int fm_run_space(const char *path, const char *what, uint64_t bytes, uint64_t *free_bytes,
                 struct fm_err *err)
{
    char needed[32], has[32];
    int rc = fm_file_free_space(path, free_bytes, err);
    if (rc || *free_bytes >= bytes)
        return rc;
    fm_units_bytes(needed, bytes);
    fm_units_bytes(has, *free_bytes);
    return fm_fail(err, FM_ECREATE, "%s: the %s takes %s, %s are free there", path, what, needed,
                   has);
}

int fm_run_announce(const struct fm_run_options *run, struct fm_err *err)
{
    return run->announce.say ? run->announce.say(run->announce.self, err) : FM_OK;
}

void fm_run_abandon(void)
{
    fm_file_remove_temporaries();
}

void fm_run_report(const struct fm_run_options *run, const char *stage, uint64_t done,
                   uint64_t total, const char *unit)
{
    if (run->progress.report)
        run->progress.report(run->progress.self, stage, done, total, unit);
}

void fm_run_phase(const struct fm_run_options *run, double work, double after)
{
    if (run->progress.phase)
        run->progress.phase(run->progress.self, work, after);
}

static void tell(void (*to)(void *self, const char *text), void *self, const char *fmt, va_list ap)
{
    char text[FM_ERR_TEXT_BYTES];
    if (!to)
        return;
    vsnprintf(text, sizeof text, fmt, ap);
    to(self, text);
}

void fm_run_warn(const struct fm_run_options *run, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    tell(run->progress.warn, run->progress.self, fmt, ap);
    va_end(ap);
}

void fm_run_note(const struct fm_run_options *run, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    tell(run->progress.note, run->progress.self, fmt, ap);
    va_end(ap);
}
