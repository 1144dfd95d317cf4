/* Sizes from config.json.  What cannot be a size is a broken file; what is too large is refused as
 * a model that is not supported, which is another exit status. */
#include "lib/block/keys.h"

#include <inttypes.h>

#define EXACT_MAX (((int64_t)1 << 53) - 1)

int fm_keys_size(int *size, const cJSON *object, const char *key, int limit, struct fm_err *err)
{
    int64_t value = 0;
    int rc = fm_json_get_int(object, key, 1, EXACT_MAX, &value, err);
    if (rc)
        return rc;
    if (value > limit)
        return fm_fail(err, FM_ECONFIG, "key '%s' is %" PRId64 " (limit %d)", key, value, limit);
    *size = (int)value;
    return FM_OK;
}

int fm_keys_size_opt(int *size, const cJSON *object, const char *key, int limit, struct fm_err *err)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);
    return !value || cJSON_IsNull(value) ? FM_OK : fm_keys_size(size, object, key, limit, err);
}
