/*
 * A run can only be repeated, and trusted, where its data is known: format, weight and digest of
 * every file, and of a text also what turned it into ids.
 */
#include "lib/data/provenance.h"

#include "formats/json/json.h"
#include "lib/data/mixture.h"

static bool add_ids(cJSON *o, const char *key, const int32_t *ids, int n)
{
    cJSON *list = cJSON_CreateIntArray(ids, n);
    return list && cJSON_AddItemToObject(o, key, list);
}

/* Of a text: what made its ids, and which ids were put around each document. */
static bool add_corpus(cJSON *o, const struct fm_corpus *c)
{
    char hex[FM_DIGEST_HEX];
    fm_digest_hex(hex, &c->tokenizer);
    return fm_json_add_uint(o, "documents", c->documents) &&
           cJSON_AddStringToObject(o, c->command ? "tokenizer_cmd" : "tokenizer", hex) &&
           (c->command || (add_ids(o, "before_each", c->front, c->fronts) &&
                           add_ids(o, "behind_each", c->back, c->backs)));
}

static bool add_input(cJSON *sources, const struct fm_calib_input *s, int T)
{
    char hex[FM_DIGEST_HEX];
    cJSON *o = cJSON_CreateObject();
    fm_digest_hex(hex, &s->digest);
    if (!o || !cJSON_AddItemToArray(sources, o)) {
        cJSON_Delete(o);
        return false;
    }
    return cJSON_AddStringToObject(o, "format", s->format) &&
           cJSON_AddStringToObject(o, "packing", s->rows ? "rows" : "concatenated") &&
           fm_json_add_double(o, "weight", (double)s->weight / FM_WEIGHT_ONE) &&
           fm_json_add_uint(o, "tokens", s->tokens) &&
           fm_json_add_uint(o, "used", s->sequences * (uint64_t)T) &&
           cJSON_AddStringToObject(o, "digest", hex) &&
           (s->corpus.documents == 0 || add_corpus(o, &s->corpus));
}

/* What each input is, and what was taken of it. */
static bool add_sources(cJSON *tokens, const struct fm_calib *calib)
{
    cJSON *sources = cJSON_AddArrayToObject(tokens, "sources");
    bool ok = sources != NULL;
    for (int s = 0; ok && s < calib->inputs; s++)
        ok = add_input(sources, &calib->input[s], calib->T);
    return ok;
}

cJSON *fm_provenance_tokens(const struct fm_calib *calib)
{
    char hex[FM_DIGEST_HEX];
    cJSON *tokens = cJSON_CreateObject();
    fm_digest_hex(hex, &calib->digest);
    if (tokens && cJSON_AddStringToObject(tokens, "digest", hex) &&
        fm_json_add_uint(tokens, "sequences", (uint64_t)calib->count) &&
        fm_json_add_uint(tokens, "seq_len", (uint64_t)calib->T) && add_sources(tokens, calib))
        return tokens;
    cJSON_Delete(tokens);
    return NULL;
}
