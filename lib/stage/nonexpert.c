/* Elements are counted by type: a reader compares the sums and needs no list of tensors. */
#include "lib/stage/nonexpert.h"

#include <inttypes.h>
#include <string.h>

#include "formats/json/json.h"
#include "lib/block/experts.h"
#include "lib/model/stored.h"

#define EXACT_MAX (((int64_t)1 << 53) - 1)

/* Count a tensor with its type, shape and size in bundles; `w` is its row in the family's table. */
static int add(struct fm_nonexpert *o, const struct fm_config *c, const struct fm_stored *s,
               const struct fm_weight *w, const struct fm_tensor *t, struct fm_err *err)
{
    int l;
    bool spare = w && w->part == FM_PART_SPARE, known = w && !spare && !fm_weights_is_expert(w);
    if ((spare || known) && fm_weights_check(c, w, t, s->scheme.storage, s->l, 0, err))
        return err->code;
    if (known) {
        o->elements[t->dtype] += fm_tensor_count(t);
        return FM_OK;
    }
    if (!spare && (w || fm_weights_is_stray(c, t->name) || fm_weights_is_off(c, t->name, &l)))
        return fm_fail(err, FM_EFORMAT,
                       "tensor '%s' belongs to a layer or expert; it must not be in this file",
                       t->name);
    o->unread_tensors++;
    o->unread_bytes += t->size;
    return FM_OK;
}

int fm_nonexpert_add(struct fm_nonexpert *o, const struct fm_config *c, const struct fm_tensor *t,
                     struct fm_err *err)
{
    struct fm_stored s = {.tensor = t};
    fm_stored_see(&s, c, FM_NAMING_STOCK);
    return add(o, c, &s, fm_weights_find(c, FM_NAMING_STOCK, t->name, &s.l, &s.e), t, err);
}

int fm_nonexpert_add_stored(struct fm_nonexpert *o, const struct fm_config *c,
                            const struct fm_tensor *t, struct fm_err *err)
{
    char name[FM_ST_NAME_BYTES_MAX + 1];
    struct fm_stored s = {.tensor = t};
    struct fm_tensor as;
    fm_stored_see(&s, c, FM_NAMING_STOCK);
    if (fm_stored_is_expert(&s) || fm_stored_belongs(&s))
        return FM_OK;
    fm_stored_values(&as, name, &s);
    return add(o, c, &s, s.weight, &as, err);
}

void fm_nonexpert_json(cJSON *model, const struct fm_nonexpert *o, enum fm_dtype dtype)
{
    struct fm_nonexpert rest = *o;
    rest.elements[dtype] = 0;
    if (fm_nonexpert_equal(&rest, &(struct fm_nonexpert){0}))
        return;
    cJSON *nonexpert = fm_json_add_object(model, "others");
    for (int i = 0; i < FM_DTYPES; i++)
        if (rest.elements[i])
            fm_json_add_uint(nonexpert, fm_dtype_name((enum fm_dtype)i), rest.elements[i]);
    if (rest.unread_tensors == 0)
        return;
    cJSON *unread = fm_json_add_object(nonexpert, "unread");
    fm_json_add_uint(unread, "tensors", rest.unread_tensors);
    fm_json_add_uint(unread, "bytes", rest.unread_bytes);
}

int fm_nonexpert_read(struct fm_nonexpert *o, const cJSON *model, enum fm_dtype dtype,
                      uint64_t elements, struct fm_err *err)
{
    const cJSON *nonexpert = cJSON_GetObjectItemCaseSensitive(model, "others");
    const cJSON *unread = cJSON_GetObjectItemCaseSensitive(nonexpert, "unread");
    int64_t tensors = 0, bytes = 0;
    *o = (struct fm_nonexpert){0};
    for (int i = 0; i < FM_DTYPES; i++) {
        int64_t n = 0;
        if (fm_json_opt_int(nonexpert, fm_dtype_name((enum fm_dtype)i), 0, EXACT_MAX, &n, err))
            return fm_within(err, "others");
        bool possible =
            n == 0 || ((enum fm_dtype)i != dtype && fm_dtype_is_weight((enum fm_dtype)i));
        if (!possible || (uint64_t)n > elements)
            return fm_fail(err, FM_EFORMAT,
                           "others: %" PRId64 " elements are %s, but at most %" PRIu64 " can be", n,
                           fm_dtype_name((enum fm_dtype)i), possible ? elements : 0);
        o->elements[i] = (uint64_t)n;
        elements -= (uint64_t)n;
    }
    o->elements[dtype] = elements;
    if (unread && (fm_json_get_int(unread, "tensors", 1, EXACT_MAX, &tensors, err) ||
                   fm_json_get_int(unread, "bytes", 0, EXACT_MAX, &bytes, err)))
        return fm_within(err, "others");
    o->unread_tensors = (uint64_t)tensors;
    o->unread_bytes = (uint64_t)bytes;
    return FM_OK;
}

uint64_t fm_nonexpert_elements(const struct fm_config *c)
{
    return fm_config_params(c, NULL) - (uint64_t)c->M * (uint64_t)c->E * (uint64_t)c->I *
                                           fm_expert_channel_params(c->expert, c->H);
}

uint64_t fm_nonexpert_bytes(const struct fm_nonexpert *o)
{
    uint64_t bytes = o->unread_bytes;
    for (int i = 0; i < FM_DTYPES; i++)
        bytes += o->elements[i] * ((uint64_t)fm_dtype_bits((enum fm_dtype)i) / 8);
    return bytes;
}

bool fm_nonexpert_equal(const struct fm_nonexpert *a, const struct fm_nonexpert *b)
{
    return memcmp(a->elements, b->elements, sizeof a->elements) == 0 &&
           a->unread_tensors == b->unread_tensors && a->unread_bytes == b->unread_bytes;
}
