/*
 * A state machine over single bytes, because pieces from a pipe end anywhere, even inside a number
 * or at the end of a line.
 */
#include "formats/text/idlines.h"

#include <inttypes.h>
#include <stdio.h>

#include "formats/file/file.h"

static int flush(struct fm_idlines *l, struct fm_err *err)
{
    uint64_t at = (l->ids - l->held) * sizeof *l->chunk;
    int rc = fm_file_temp_write(l->fd, at, l->chunk, l->held * sizeof *l->chunk, err);
    l->held = 0;
    return rc;
}

static int refuse(const struct fm_idlines *l, unsigned char c, struct fm_err *err)
{
    static const char *const wanted[] = {
        [FM_IDLINES_LINE] = "'['",         [FM_IDLINES_FIRST] = "a token id or ']'",
        [FM_IDLINES_NEXT] = "a token id",  [FM_IDLINES_DIGITS] = "',' or ']'",
        [FM_IDLINES_COMMA] = "',' or ']'", [FM_IDLINES_END] = "the end of the line"};
    char name[8];
    snprintf(name, sizeof name, c > 0x20 && c < 0x7f ? "'%c'" : "0x%02x", c);
    return fm_fail(err, FM_EFORMAT, "line %" PRIu64 " of %s: %s where %s was expected",
                   l->lines + 1, l->name, name, wanted[l->place]);
}

static int parse_digit(struct fm_idlines *l, unsigned char c, struct fm_err *err)
{
    bool first = l->place != FM_IDLINES_DIGITS;
    if (!first && l->id == 0)
        return refuse(l, c, err); /* 01 is not a number */
    l->place = FM_IDLINES_DIGITS;
    l->id = (first ? 0 : l->id * 10) + (uint64_t)(c - '0');
    if (l->id > INT32_MAX)
        return fm_fail(err, FM_EFORMAT, "line %" PRIu64 " of %s: an id over %d", l->lines + 1,
                       l->name, INT32_MAX);
    return FM_OK;
}

/* End a number. */
static int keep_id(struct fm_idlines *l, struct fm_err *err)
{
    if (l->ids - l->before == FM_IDLINES_MAX)
        return fm_fail(err, FM_EFORMAT, "line %" PRIu64 " of %s has over %d ids", l->lines + 1,
                       l->name, FM_IDLINES_MAX);
    l->chunk[l->held++] = (int32_t)l->id;
    l->ids++;
    l->place = FM_IDLINES_COMMA;
    return l->held == FM_IDLINES_CHUNK ? flush(l, err) : FM_OK;
}

static void end_line(struct fm_idlines *l)
{
    l->place = FM_IDLINES_LINE;
    l->lines++;
    l->before = l->ids;
    l->done = l->enough && l->ids >= l->enough;
}

static int parse_sign(struct fm_idlines *l, unsigned char c, struct fm_err *err)
{
    if (c == '[' && l->place == FM_IDLINES_LINE)
        l->place = FM_IDLINES_FIRST;
    else if (c == ',' && l->place == FM_IDLINES_COMMA)
        l->place = FM_IDLINES_NEXT;
    else if (c == ']' && (l->place == FM_IDLINES_FIRST || l->place == FM_IDLINES_COMMA))
        l->place = FM_IDLINES_END;
    else if (c == '\n' && l->place == FM_IDLINES_END)
        end_line(l);
    else if (!(c == '\n' && l->place == FM_IDLINES_LINE))
        return refuse(l, c, err);
    return FM_OK;
}

static int parse_byte(struct fm_idlines *l, unsigned char c, struct fm_err *err)
{
    bool number = l->place == FM_IDLINES_FIRST || l->place == FM_IDLINES_NEXT ||
                  l->place == FM_IDLINES_DIGITS;
    if (number && c >= '0' && c <= '9')
        return parse_digit(l, c, err);
    bool blank = c == ' ' || c == '\t' || c == '\r';
    if (l->place == FM_IDLINES_DIGITS && (blank || c == ',' || c == ']')) {
        int rc = keep_id(l, err);
        if (rc)
            return rc;
    }
    return blank ? FM_OK : parse_sign(l, c, err);
}

int fm_idlines_feed(struct fm_idlines *l, const char *bytes, size_t n, struct fm_err *err)
{
    int rc = FM_OK;
    for (size_t i = 0; !rc && i < n && !l->done; i++)
        rc = parse_byte(l, (unsigned char)bytes[i], err);
    return rc;
}

int fm_idlines_end(struct fm_idlines *l, struct fm_err *err)
{
    if (l->place == FM_IDLINES_END)
        end_line(l);
    if (l->place != FM_IDLINES_LINE)
        return fm_fail(err, FM_EFORMAT, "%s ends in the middle of line %" PRIu64, l->name,
                       l->lines + 1);
    return flush(l, err);
}
