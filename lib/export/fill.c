/* The bytes of an export's tensors, from the bundle's. */
#include "lib/export/exporter.h"

#include <assert.h>
#include <string.h>

#include "lib/base/dtype.h"
#include "lib/base/pool.h"
#include "lib/model/layout.h"

static uint64_t row_bytes(const struct fm_exporter *x)
{
    return fm_volumes_channel_bytes(&x->volumes, FM_PART_DOWN_T);
}

/* Channels that files have room for. */
static uint32_t stored_of(const struct fm_exporter *x, const struct fm_export_tensor *t)
{
    return x->stored[(size_t)t->l * (size_t)x->config.E + (size_t)t->e];
}

static uint32_t width_of(const struct fm_exporter *x, const struct fm_export_tensor *t)
{
    return x->widths[(size_t)t->l * (size_t)x->config.E + (size_t)t->e];
}

/* Bytes of one expert's (H, k). */
static uint64_t fused_bytes(const struct fm_exporter *x, const struct fm_export_tensor *t)
{
    return t->t.shape[2] * row_bytes(x);
}

uint64_t fm_exporter_piece(const struct fm_exporter *x, const struct fm_export_tensor *t,
                           uint64_t limit)
{
    uint64_t row = row_bytes(x);
    switch (t->fill) {
    case FM_FILL_DOWN:
        return t->t.size;
    case FM_FILL_FUSED_DOWN:
        row = fused_bytes(x, t);
        return limit > row ? limit / row * row : row;
    case FM_FILL_GATE:
    case FM_FILL_UP:
    case FM_FILL_FUSED_UP:
        return limit > row ? limit / row * row : row;
    default:
        return limit;
    }
}

/* Prefix ranges of the layer's experts, as far as they overlap [from, from + size). */
static int fill_flat(const struct fm_exporter *x, const struct fm_export_tensor *t, uint64_t from,
                     uint64_t size, char *dst, struct fm_err *err)
{
    uint64_t channel = fm_volumes_channel_bytes(&x->volumes, t->part), begin = 0;
    const uint32_t *widths = x->widths + (size_t)t->l * (size_t)x->config.E;
    int rc = FM_OK;
    for (int e = 0; e < x->config.E && rc == FM_OK; e++) {
        uint64_t end = begin + widths[e] * channel;
        uint64_t lo = from > begin ? from : begin, hi = from + size < end ? from + size : end;
        if (lo < hi)
            rc = fm_file_read(&x->bundle.file,
                              fm_volumes_expert(&x->volumes, t->l, t->part, e) + (lo - begin),
                              dst + (lo - from), (size_t)(hi - lo), err);
        begin = end;
    }
    return rc;
}

/* `rows` rows of gate (which 0) or up (1) of an expert, from channel `first` on. */
static int read_rows(const struct fm_exporter *x, int l, int e, int which, uint64_t first,
                     uint64_t rows, char *dst, struct fm_err *err)
{
    uint64_t row = row_bytes(x);
    struct fm_mark mark = fm_scratch_mark();
    char *both = fm_scratch((size_t)(2 * rows * row) + 1);
    uint64_t at = fm_volumes_expert(&x->volumes, l, FM_PART_GATE_UP, e);
    int rc =
        fm_file_read(&x->bundle.file, at + 2 * first * row, both, (size_t)(2 * rows * row), err);
    if (rc == FM_OK)
        fm_layout_deinterleave(dst, both, which, (int)rows, x->config.H,
                               fm_dtype_bits(x->volumes.dtype) / 8);
    fm_scratch_release(mark);
    return rc;
}

static int fill_rows(const struct fm_exporter *x, const struct fm_export_tensor *t, uint64_t from,
                     uint64_t size, char *dst, struct fm_err *err)
{
    uint64_t row = row_bytes(x), first = from / row, end = first + size / row;
    uint64_t k = width_of(x, t), kept = k > first ? (end < k ? end : k) - first : 0;
    assert(from % row == 0 && size % row == 0);
    int rc = read_rows(x, t->l, t->e, t->fill == FM_FILL_UP, first, kept, dst, err);
    if (rc == FM_OK)
        memset(dst + kept * row, 0, (size_t)(size - kept * row));
    return rc;
}

/* Rows of the experts one after another: k of gate, k of up. */
static int fill_fused_rows(const struct fm_exporter *x, const struct fm_export_tensor *t,
                           uint64_t from, uint64_t size, char *dst, struct fm_err *err)
{
    uint64_t row = row_bytes(x), k = t->t.shape[1] / 2, at = from / row, end = at + size / row;
    assert(from % row == 0 && size % row == 0);
    int rc = FM_OK;
    while (at < end && rc == FM_OK) {
        uint64_t block = at / k, first = at % k, rows = k - first;
        rows = rows < end - at ? rows : end - at;
        rc = read_rows(x, t->l, (int)(block / 2), (int)(block % 2), first, rows, dst, err);
        dst += rows * row;
        at += rows;
    }
    return rc;
}

/* (H, columns) of an expert: k columns, then zeros. */
static int read_down(const struct fm_exporter *x, int l, int e, uint32_t k, int columns, char *dst,
                     struct fm_err *err)
{
    size_t size = (size_t)k * (size_t)row_bytes(x);
    struct fm_mark mark = fm_scratch_mark();
    char *ranked = fm_scratch(size);
    int rc = fm_file_read(&x->bundle.file, fm_volumes_expert(&x->volumes, l, FM_PART_DOWN_T, e),
                          ranked, size, err);
    if (rc == FM_OK)
        fm_layout_scatter(dst, ranked, (int)k, columns, x->config.H,
                          fm_dtype_bits(x->volumes.dtype) / 8);
    fm_scratch_release(mark);
    return rc;
}

static int fill_fused_down(const struct fm_exporter *x, const struct fm_export_tensor *t,
                           uint64_t from, uint64_t size, char *dst, struct fm_err *err)
{
    uint64_t expert = fused_bytes(x, t), k = t->t.shape[2];
    assert(from % expert == 0 && size % expert == 0);
    int rc = FM_OK;
    for (uint64_t at = from; at < from + size && rc == FM_OK; at += expert)
        rc = read_down(x, t->l, (int)(at / expert), (uint32_t)k, (int)k, dst + (at - from), err);
    return rc;
}

/* "Start with what config.json or the environment says": an index is put there to switch. */
static int fill_index(const struct fm_export_tensor *t, uint64_t from, uint64_t size, char *dst)
{
    const float unset = -1;
    char value[sizeof unset];
    fm_dtype_from_f32(value, &unset, t->t.dtype, 1);
    memcpy(dst, value + from, (size_t)size);
    return FM_OK;
}

int fm_exporter_fill(const struct fm_exporter *x, const struct fm_export_tensor *t, uint64_t from,
                     uint64_t size, void *dst, struct fm_err *err)
{
    switch (t->fill) {
    case FM_FILL_COPY:
        return fm_file_read(&x->bundle.file, t->from + from, dst, (size_t)size, err);
    case FM_FILL_FLAT:
        return fill_flat(x, t, from, size, dst, err);
    case FM_FILL_GATE:
    case FM_FILL_UP:
        return fill_rows(x, t, from, size, dst, err);
    case FM_FILL_DOWN:
        assert(from == 0 && size == t->t.size);
        return read_down(x, t->l, t->e, width_of(x, t), (int)stored_of(x, t), dst, err);
    case FM_FILL_FUSED_UP:
        return fill_fused_rows(x, t, from, size, dst, err);
    case FM_FILL_FUSED_DOWN:
        return fill_fused_down(x, t, from, size, dst, err);
    case FM_FILL_INDEX:
        return fill_index(t, from, size, dst);
    }
    assert(!"a fill");
    return FM_EBUG;
}
