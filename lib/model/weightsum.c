/*
 * All fine-tunes of a model have the same names, shapes, config.json and file sizes; only the
 * weights differ.  A stage reads all weights anyway, so they are hashed while they are read.
 */
#include "lib/model/weightsum.h"

#include <stdio.h>
#include <string.h>

#include "lib/base/pool.h"

static struct fm_digest of_shape(const struct fm_tensor *t)
{
    char text[32 + FM_ST_DIMS_MAX * 24];
    int n = snprintf(text, sizeof text, "%s", fm_dtype_name(t->dtype));
    for (int i = 0; i < t->dims; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, " %llu", (unsigned long long)t->shape[i]);
    return fm_digest_of(text, (size_t)n);
}

struct fm_digest fm_weightsum_join(const struct fm_tensor *t, const struct fm_digest *pieces)
{
    const struct fm_digest part[] = {fm_digest_of(t->name, strlen(t->name)), of_shape(t), *pieces};
    return fm_digest_of(part, sizeof part);
}

struct fm_digest fm_weightsum_piece(size_t index, const void *bytes, size_t size)
{
    const uint64_t place = index;
    struct fm_digest part[2] = {fm_digest_of(&place, sizeof place), fm_digest_of(bytes, size)};
    return fm_digest_of(part, sizeof part);
}

struct fm_digest fm_weightsum_tensor(const struct fm_tensor *t, const void *bytes, size_t shares)
{
    struct fm_digest pieces = {{0}};
    size_t most = shares ? (size_t)t->size / shares : FM_WEIGHTSUM_PIECE;
    for (size_t i = 0, at = 0; at < t->size; i++, at += most) {
        size_t left = (size_t)t->size - at;
        struct fm_digest piece =
            fm_weightsum_piece(i, (const char *)bytes + at, left < most ? left : most);
        fm_weightsum_add(&pieces, &piece);
    }
    return fm_weightsum_join(t, &pieces);
}

void fm_weightsum_add(struct fm_digest *sum, const struct fm_digest *digest)
{
    for (size_t i = 0; i < sizeof sum->byte; i++)
        sum->byte[i] ^= digest->byte[i];
}

int fm_weightsum_apart(struct fm_digest *sum, const struct fm_stored *s, float factor,
                       struct fm_err *err)
{
    struct fm_digest digest;
    if (s->factor) {
        digest = fm_weightsum_tensor(s->factor, &factor, 0);
        fm_weightsum_add(sum, &digest);
    }
    if (!s->zero)
        return FM_OK;
    struct fm_mark mark = fm_scratch_mark();
    void *bytes = fm_scratch((size_t)s->zero->size);
    int rc = fm_tensor_read(s->zero, s->zero_file, 0, bytes, (size_t)s->zero->size, err);
    if (!rc) {
        digest = fm_weightsum_tensor(s->zero, bytes, 0);
        fm_weightsum_add(sum, &digest);
    }
    fm_scratch_release(mark);
    return rc;
}

int fm_weightsum_place(const struct fm_config *config, const struct fm_stored *s)
{
    if (!s->weight || s->role > FM_STORED_FACTOR || fm_weights_is_carried(s->weight))
        return -1;
    return s->l < 0 ? config->L : s->l;
}

int fm_weightsum_check(const struct fm_weightsum *wanted, int l, const struct fm_digest *sum,
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
