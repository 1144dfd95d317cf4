/*
 * The first records are in one block of memory; the others are in a file, at offsets that follow
 * from their numbers.  There is no eviction and no search: callers give low numbers to the records
 * they use most.
 */
#include "lib/state/store.h"

#include <assert.h>
#include <stdlib.h>
#include <unistd.h>

#include "formats/file/file.h"
#include "lib/base/mem.h"

int fm_store_init(struct fm_store *s, const struct fm_ops *ops, size_t record_bytes, size_t count,
                  uint64_t memory, struct fm_err *err)
{
    size_t all = 0;
    *s = (struct fm_store){.count = count, .ops = ops, .fd = -1};
    if (!fm_add(&s->record, record_bytes, FM_ALIGN - 1) ||
        !fm_mul(&all, s->record -= s->record % FM_ALIGN, count))
        return fm_fail(err, FM_ENOMEM, "%zu records of %zu bytes are too many", count,
                       record_bytes);
    s->resident = s->record && memory / s->record < count ? (size_t)(memory / s->record) : count;
    if (s->resident > 0) {
        s->block = fm_alloc_large(s->resident * s->record, "records", err);
        if (!s->block)
            return err->code;
    }
    return s->resident < count ? fm_file_temp(&s->fd, err) : FM_OK;
}

void fm_store_release(struct fm_store *s)
{
    free(s->block);
    if (s->resident < s->count && s->fd >= 0)
        close(s->fd);
    *s = (struct fm_store){.fd = -1};
}

void *fm_store_place(const struct fm_store *s, size_t i, void *spare)
{
    assert(i < s->count);
    return i < s->resident ? s->block + i * s->record : spare;
}

static uint64_t offset_of(const struct fm_store *s, size_t i)
{
    return (uint64_t)(i - s->resident) * s->record;
}

int fm_store_get(const struct fm_store *s, size_t i, size_t offset, size_t size, void **data,
                 void *spare, struct fm_err *err)
{
    assert(i < s->count && offset <= s->record && size <= s->record - offset);
    *data = spare;
    if (i >= s->resident)
        return fm_file_temp_read(s->fd, offset_of(s, i) + offset, spare, size, err);
    *data = s->block + i * s->record + offset;
    return FM_OK;
}

int fm_store_put(const struct fm_store *s, size_t i, size_t offset, size_t size, const void *data,
                 struct fm_err *err)
{
    assert(i < s->count && offset <= s->record && size <= s->record - offset);
    if (i >= s->resident)
        return fm_file_temp_write(s->fd, offset_of(s, i) + offset, data, size, err);
    char *place = s->block + i * s->record + offset;
    if (place != data)
        s->ops->copy(place, data, size);
    return FM_OK;
}
