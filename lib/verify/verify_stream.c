/* The beginning of a bundle that is read from a pipe. */
#include <string.h>

#include <cjson/cJSON.h>

#include "lib/verify/verifier.h"

/* Where the weights begin according to the manifest; 0 if it has no weights. */
static uint64_t weights_begin(const struct fm_bundle *b)
{
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(b->manifest, "members"), *entry;
    cJSON_ArrayForEach(entry, array)
    {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "name"));
        double offset = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(entry, "offset"));
        if (name && strncmp(name, FM_MEMBER_WEIGHTS, strlen(FM_MEMBER_WEIGHTS)) == 0)
            return offset > 0 && offset < 1e15 ? (uint64_t)offset : 0;
    }
    return 0;
}

int fm_verifier_open_stream(struct fm_bundle *b, struct fm_spool *s, struct fm_err *err)
{
    struct fm_err unused = {0};
    uint64_t begin = 0;
    uint64_t most = FM_BUNDLE_MANIFEST_BYTES_MAX + FM_BUNDLE_ALIGN, first = FM_BUNDLE_ALIGN;
    bool known = false;
    int rc = fm_spool_keep(s, first, err);
    while (!rc && !s->ended && !known && first < most) {
        first = 4 * first < most ? 4 * first : most;
        rc = fm_spool_keep(s, first, err);
        known = !rc && !fm_bundle_open_file(b, &s->file, true, &unused);
    }
    if (known) {
        begin = weights_begin(b);
        fm_bundle_close(b);
    }
    if (!rc)
        rc = fm_spool_keep(s, begin ? begin : UINT64_MAX, err);
    bool head = !rc && begin && !s->ended && s->file.size >= begin &&
                !fm_bundle_open_file(b, &s->file, true, &unused);
    if (head && !fm_bundle_expect(b, &unused))
        return FM_OK;
    if (head)
        fm_bundle_close(b);
    if (!rc)
        rc = fm_spool_keep(s, UINT64_MAX, err);
    return rc ? rc : fm_bundle_open_file(b, &s->file, false, err);
}
