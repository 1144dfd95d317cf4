/*
 * Writes the sentence into the caller's memory: reporting an error allocates nothing, so it works
 * when memory has run out.  The text of every error passes through here on its way to a terminal,
 * so control bytes are replaced here: names in files and on command lines may be hostile.
 */
#include "lib/base/err.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/printable.h"

static void set_text(struct fm_err *err, const char *fmt, va_list ap)
{
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    fm_printable(err->text, false);
    err->advice = FM_ADVISE_NONE;
}

int fm_fail(struct fm_err *err, int code, const char *fmt, ...)
{
    assert(err && code);
    va_list ap;
    va_start(ap, fmt);
    set_text(err, fmt, ap);
    va_end(ap);
    err->code = code;
    return code;
}

static int code_of_errno(int e)
{
    switch (e) {
    case ENOENT:
    case ENOTDIR:
        return FM_ENOENT;
    case EACCES:
    case EPERM:
    case EROFS:
        return FM_EPERM;
    case ENOMEM:
        return FM_ENOMEM;
    case EPIPE:
        return FM_EPIPE;
    case EEXIST:
        return FM_ECREATE;
    default:
        return FM_EIO;
    }
}

int fm_fail_errno(struct fm_err *err, const char *fmt, ...)
{
    int saved = errno;
    va_list ap;
    va_start(ap, fmt);
    set_text(err, fmt, ap);
    va_end(ap);
    size_t used = strlen(err->text);
    snprintf(err->text + used, sizeof err->text - used, ": %s", strerror(saved));
    err->code = code_of_errno(saved);
    return err->code;
}

int fm_advise(struct fm_err *err, enum fm_advice advice)
{
    assert(err->code);
    err->advice = advice;
    return err->code;
}

int fm_within(struct fm_err *err, const char *fmt, ...)
{
    char context[FM_ERR_TEXT_BYTES];
    char inner[FM_ERR_TEXT_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(context, sizeof context, fmt, ap);
    va_end(ap);
    memcpy(inner, err->text, sizeof inner);
    size_t left = sizeof err->text - 1;
    size_t head = strnlen(context, left / 2);
    snprintf(err->text, sizeof err->text, "%.*s: %.*s", (int)head, context, (int)(left - head - 2),
             inner);
    fm_printable(err->text, false); /* cleans the context, and a character cut in half */
    return err->code;
}
