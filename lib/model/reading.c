/* A whole tensor is hashed under its name; a share under its number, and added to the sum of the
 * tensor's shares, which fm_reading_join hashes under the name. */
#include "lib/model/reading.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/pool.h"

/* ---- digests ---- */

struct fm_digest fm_reading_digest(const struct fm_tensor *t, const struct fm_digest *pieces)
{
    char text[FM_TENSOR_TEXT];
    fm_tensor_describe(text, t);
    const struct fm_digest part[] = {fm_digest_of(t->name, strlen(t->name)),
                                     fm_digest_of(text, strlen(text)), *pieces};
    return fm_digest_of(part, sizeof part);
}

/* The digest of piece `index` of a tensor. */
static struct fm_digest piece_digest(size_t index, const void *bytes, size_t size)
{
    const uint64_t place = index;
    struct fm_digest part[2] = {fm_digest_of(&place, sizeof place), fm_digest_of(bytes, size)};
    return fm_digest_of(part, sizeof part);
}

/* The digest of a tensor from all its bytes. */
static struct fm_digest digest_of(const struct fm_tensor *t, const void *bytes)
{
    struct fm_digest pieces = {{0}};
    for (size_t i = 0, at = 0; at < t->size; i++, at += FM_READING_PIECE) {
        size_t left = (size_t)t->size - at,
               size = left < FM_READING_PIECE ? left : FM_READING_PIECE;
        struct fm_digest piece = piece_digest(i, (const char *)bytes + at, size);
        fm_reading_add(&pieces, &piece);
    }
    return fm_reading_digest(t, &pieces);
}

void fm_reading_add(struct fm_digest *sum, const struct fm_digest *digest)
{
    for (size_t i = 0; i < sizeof sum->byte; i++)
        sum->byte[i] ^= digest->byte[i];
}

int fm_reading_check(const struct fm_reading_sums *wanted, int l, const struct fm_digest *sum,
                     struct fm_err *err)
{
    char is[FM_DIGEST_HEX], was[FM_DIGEST_HEX], where[48] = "embedding, last norm or head";
    if (fm_digest_equal(&wanted->sum[l], sum))
        return FM_OK;
    fm_digest_hex(is, sum);
    fm_digest_hex(was, &wanted->sum[l]);
    if (l < wanted->L)
        snprintf(where, sizeof where, "layer %d", l);
    return fm_fail(err, FM_ECONFIG,
                   "%s: its weights are not those that were ranked (digest %s, was %s); give the "
                   "checkpoint that fm-rank read with --model",
                   where, is, was);
}

/* ---- reading ---- */

static const struct fm_tensor *tensor_of(const struct fm_reading *r, int plane)
{
    return plane == FM_PLANES ? r->at->factor : plane ? r->at->scale : r->at->tensor;
}

static void add(const struct fm_reading *r, struct fm_digest *sum, const struct fm_digest *digest)
{
    pthread_mutex_lock(r->lock);
    fm_reading_add(sum, digest);
    pthread_mutex_unlock(r->lock);
}

int fm_reading_bytes(void *dst, const struct fm_reading *r, int plane, uint64_t offset, size_t size,
                     struct fm_err *err)
{
    const struct fm_tensor *t = tensor_of(r, plane);
    assert(plane < FM_PLANES && offset + size <= t->size);
    if (fm_tensor_read(t, plane ? r->at->scale_file : r->at->file, offset, dst, size, err))
        return fm_within(err, "tensor '%s'", t->name);
    if (!r->sum)
        return FM_OK;
    struct fm_digest digest = r->e < 0 ? digest_of(t, dst) : piece_digest((size_t)r->e, dst, size);
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

int fm_reading_scales(const void **bytes, const struct fm_reading *r, struct fm_err *err)
{
    void *dst = fm_scratch(fm_reading_size(r, 1));
    *bytes = dst;
    return fm_reading_share(dst, r, 1, err);
}

void fm_reading_join(const struct fm_reading *r, int plane)
{
    if (!r->sum || !tensor_of(r, plane))
        return;
    struct fm_digest digest = fm_reading_digest(tensor_of(r, plane), &r->pieces[plane]);
    add(r, r->sum, &digest);
}

/* Add the digests of the factor of scales, which has been read, and of zero points, which are read
 * here, if codes have them. */
static int add_apart(const struct fm_reading *r, float factor, struct fm_err *err)
{
    const struct fm_stored *s = r->at;
    struct fm_digest digest;
    if (s->factor) {
        digest = r->e < 0 ? digest_of(s->factor, &factor)
                          : piece_digest((size_t)r->e, &factor, sizeof factor);
        add(r, r->e < 0 ? r->sum : &r->pieces[FM_PLANES], &digest);
    }
    if (!s->zero)
        return FM_OK;
    struct fm_mark mark = fm_scratch_mark();
    void *bytes = fm_scratch((size_t)s->zero->size);
    int rc = fm_tensor_read(s->zero, s->zero_file, 0, bytes, (size_t)s->zero->size, err);
    if (!rc) {
        digest = digest_of(s->zero, bytes);
        add(r, r->sum, &digest);
    }
    fm_scratch_release(mark);
    return rc;
}

int fm_reading_factor(float *factor, const struct fm_reading *r, bool summed, struct fm_err *err)
{
    if (fm_stored_factor(factor, r->at, r->e, err) ||
        (summed && r->sum && add_apart(r, *factor, err)))
        return err->code;
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
