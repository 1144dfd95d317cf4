/*
 * config.json as blocks read it: its tree, and the family's name for messages.  Sizes are checked
 * against named limits; a model with a larger size is not supported.
 */
#ifndef FM_KEYS_H
#define FM_KEYS_H

#include "formats/json/json.h"
#include "lib/base/err.h"

struct fm_keys {
    const cJSON *json;
    const char *family;
};

#define FM_LAYERS_MAX 1024
#define FM_EXPERTS_MAX 1024
#define FM_CHANNELS_MAX (1 << 20)
#define FM_HIDDEN_MAX (1 << 17)
#define FM_HEADS_MAX 1024
#define FM_VOCABULARY_MAX (1 << 23)
#define FM_POSITIONS_MAX (1 << 28)

/* Read a size from 1 to `limit`; a larger one means an unsupported model (FM_ECONFIG), not a broken
 * file.  *size is not changed on failure, so callers may calculate with it before they check the
 * status. */
int fm_keys_size(int *size, const cJSON *object, const char *key, int limit, struct fm_err *err);

/* As fm_keys_size, for a key that may be absent or null; then *size is not changed. */
int fm_keys_size_opt(int *size, const cJSON *object, const char *key, int limit,
                     struct fm_err *err);

/* A set of layers; one of zeros is empty. */
struct fm_layers {
    uint64_t bits[FM_LAYERS_MAX / 64];
};

static inline bool fm_layers_has(const struct fm_layers *layers, int l)
{
    return layers->bits[l / 64] >> l % 64 & 1;
}

static inline void fm_layers_add(struct fm_layers *layers, int l)
{
    layers->bits[l / 64] |= (uint64_t)1 << l % 64;
}

/* Find a list of any length, or one with an entry for each of L layers; NULL if the key is absent
 * or null. */
int fm_keys_array(const cJSON **list, const cJSON *object, const char *key, struct fm_err *err);
int fm_keys_list(const cJSON **list, const cJSON *object, const char *key, int L,
                 struct fm_err *err);

/* Read a list that has one of two words for each layer, and add each layer with the first one. */
int fm_keys_layers(struct fm_layers *layers, int L, const cJSON *object, const char *key,
                   const char *first, const char *second, struct fm_err *err);

/* FM_ECONFIG unless a list of fm_keys_list (NULL is fine) has 1 for the layers of the set if `in`,
 * else for all others, and 0 elsewhere.  `key` is what the set was read from. */
int fm_keys_agree(const cJSON *list, const struct fm_layers *layers, bool in, const char *key,
                  struct fm_err *err);

/* Read a string that must be one of `known`, one or two words and NULL; *which is its index,
 * unchanged if the key is absent or null.  FM_ECONFIG. */
int fm_keys_word(int *which, const struct fm_keys *keys, const char *key, const char *const *known,
                 struct fm_err *err);

/* A key that must have this value if it is present and not null; lists end with a row without a
 * key. */
struct fm_keys_only {
    const char *key;
    const char *value; /* "true", "1", "'sigmoid'" */
};

/* FM_ECONFIG, with the key, its value and the supported one, if one of the keys has a different
 * value.
 */
int fm_keys_only(const struct fm_keys *keys, const struct fm_keys_only *list, struct fm_err *err);

/* Keys of config.json with one meaning: FM_ECONFIG if two of a group are present, not null and have
 * different values, because programs differ in which of them they read.  Groups end with ';', and
 * their keys are separated by spaces: "moe_k num_experts_per_tok; ...;". */
int fm_keys_same(const cJSON *object, const char *groups, struct fm_err *err);

#endif
