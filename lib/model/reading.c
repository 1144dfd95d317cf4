/* A whole tensor is hashed under its name; a share under its number, and added to the sum of the
 * tensor's shares, which fm_reading_join hashes under the name. */
#include "lib/model/reading.h"

#include "lib/base/pool.h"

static const struct fm_tensor *tensor_of(const struct fm_reading *r, int plane)
{
    return plane ? r->at->scale : r->at->tensor;
}

static void add(const struct fm_reading *r, struct fm_digest *sum, const struct fm_digest *digest)
{
    pthread_mutex_lock(r->lock);
    fm_weightsum_add(sum, digest);
    pthread_mutex_unlock(r->lock);
}

int fm_reading_bytes(void *dst, const struct fm_reading *r, int plane, uint64_t offset, size_t size,
                     struct fm_err *err)
{
    const struct fm_tensor *t = tensor_of(r, plane);
    if (fm_tensor_read(t, plane ? r->at->scale_file : r->at->file, offset, dst, size, err))
        return fm_within(err, "tensor '%s'", t->name);
    if (!r->sum)
        return FM_OK;
    struct fm_digest digest =
        r->e < 0 ? fm_weightsum_tensor(t, dst, 0) : fm_weightsum_piece((size_t)r->e, dst, size);
    add(r, r->e < 0 ? r->sum : &r->pieces[plane], &digest);
    return FM_OK;
}

size_t fm_reading_size(const struct fm_reading *r, int plane)
{
    return (size_t)tensor_of(r, plane)->size / (size_t)(r->e < 0 ? 1 : r->E);
}

int fm_reading_share(void *dst, const struct fm_reading *r, int plane, struct fm_err *err)
{
    size_t size = fm_reading_size(r, plane);
    return fm_reading_bytes(dst, r, plane, r->e < 0 ? 0 : (uint64_t)r->e * size, size, err);
}

int fm_reading_plane(const void **bytes, const struct fm_reading *r, int plane, struct fm_err *err)
{
    void *dst = fm_scratch(fm_reading_size(r, plane));
    *bytes = dst;
    return fm_reading_share(dst, r, plane, err);
}

void fm_reading_join(const struct fm_reading *r, int plane)
{
    if (!r->sum || !tensor_of(r, plane))
        return;
    struct fm_digest digest = fm_weightsum_join(tensor_of(r, plane), &r->pieces[plane]);
    add(r, r->sum, &digest);
}

int fm_reading_factor(float *factor, const struct fm_reading *r, bool summed, struct fm_err *err)
{
    struct fm_digest digest = {{0}};
    if (fm_stored_factor(factor, r->at, err) ||
        (summed && r->sum && fm_weightsum_apart(&digest, r->at, *factor, err)))
        return err->code;
    if (summed && r->sum)
        add(r, r->sum, &digest);
    return FM_OK;
}

int fm_reading_widen(struct fm_scales *scales, const struct fm_reading *r, const void *raw,
                     float factor, struct fm_err *err)
{
    *scales = (struct fm_scales){0};
    if (!r->at->scale)
        return FM_OK;
    size_t n = (size_t)fm_tensor_count(r->at->scale) / (size_t)(r->e < 0 ? 1 : r->E);
    float *wide = fm_scratch(n * sizeof *wide);
    return fm_stored_widen(scales, wide, r->at, raw, r->e < 0 ? 0 : (size_t)r->e * n, n, factor,
                           err);
}
