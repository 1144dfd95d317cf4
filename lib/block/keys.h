/*
 * config.json as blocks read it: its tree, and the family's name for messages.  Sizes are checked
 * against named limits: a model beyond those is a broken file, or one that nobody has thought
 * about.
 */
#ifndef FM_KEYS_H
#define FM_KEYS_H

#include "formats/json/json.h"
#include "lib/base/err.h"

struct fm_keys {
    const cJSON *json;
    const char *family;
};

#define FM_EXPERTS_MAX 1024
#define FM_CHANNELS_MAX (1 << 20)
#define FM_HIDDEN_MAX (1 << 17)
#define FM_HEADS_MAX 1024
#define FM_VOCABULARY_MAX (1 << 23)
#define FM_POSITIONS_MAX (1 << 28)

/* A size from 1 to `limit`; one that is larger is not a broken file but a model we do not take
 * (FM_ECONFIG).  A refused number is not stored: callers may calculate with *size before they look
 * at the status. */
int fm_keys_size(int *size, const cJSON *object, const char *key, int limit, struct fm_err *err);

/* The same for a key that may be absent or null: *size stays. */
int fm_keys_size_opt(int *size, const cJSON *object, const char *key, int limit,
                     struct fm_err *err);

/* A key whose value is one that we compute wherever it is there and not null; lists end with a row
 * without a key. */
struct fm_keys_only {
    const char *key;
    const char *value; /* "true", "1", "'sigmoid'" */
};

/* FM_ECONFIG, with the key, its value and the one that is supported, where the value of one of the
 * keys is another. */
int fm_keys_only(const struct fm_keys *keys, const struct fm_keys_only *list, struct fm_err *err);

#endif
