/*
 * A run can be repeated or trusted only if its data is known: the format, weight and digest of
 * every file, and for a text also how it was encoded.
 */
#include "lib/data/provenance.h"

#include <string.h>

#include "formats/json/json.h"

#define HELD_OUT "held_out"

static void add_ids(cJSON *o, const char *key, const int32_t *ids, int n)
{
    fm_json_add(o, key, cJSON_CreateIntArray(ids, n));
}

/* Record how a text was encoded, and the ids put around each document. */
static void add_corpus(cJSON *o, const struct fm_corpus *c)
{
    char hex[FM_DIGEST_HEX];
    fm_digest_hex(hex, &c->tokenizer);
    fm_json_add_uint(o, "documents", c->documents);
    fm_json_add_string(o, c->command ? "tokenizer_cmd" : "tokenizer", hex);
    if (c->command)
        return;
    if (c->dropped > 0)
        fm_json_add_uint(o, "dropped", c->dropped);
    add_ids(o, "before_each", c->front, c->fronts);
    add_ids(o, "behind_each", c->back, c->backs);
    if (c->separator.id >= 0)
        fm_json_add_uint(o, "separator", (uint64_t)c->separator.id);
    else
        fm_json_add_null(o, "separator");
}

/* Record an input, and how much of it was used. */
static void add_input(cJSON *sources, const struct fm_calib_input *s, int T)
{
    char hex[FM_DIGEST_HEX];
    cJSON *o = fm_json_add_object(sources, NULL);
    fm_digest_hex(hex, &s->digest);
    if (s->kind[0])
        fm_json_add_string(o, "kind", s->kind);
    fm_json_add_string(o, "format", s->format);
    fm_json_add_string(o, "packing", s->rows ? "rows" : "concatenated");
    fm_json_add_double(o, "weight", (double)s->weight / FM_WEIGHT_ONE);
    fm_json_add_uint(o, "tokens", s->tokens);
    fm_json_add_uint(o, "used", s->sequences * (uint64_t)T);
    fm_json_add_string(o, "digest", hex);
    if (s->corpus.documents > 0)
        add_corpus(o, &s->corpus);
}

static cJSON *add_calib(cJSON *entry, const char *key, const struct fm_calib *calib)
{
    char hex[FM_DIGEST_HEX];
    cJSON *o = fm_json_add_object(entry, key);
    fm_digest_hex(hex, &calib->digest);
    fm_json_add_string(o, "digest", hex);
    fm_json_add_uint(o, "sequences", (uint64_t)calib->count);
    fm_json_add_uint(o, "seq_len", (uint64_t)calib->T);
    return o;
}

static void add_sources(cJSON *o, const struct fm_calib *calib)
{
    cJSON *sources = fm_json_add_array(o, "sources");
    for (int s = 0; s < calib->inputs; s++)
        add_input(sources, &calib->input[s], calib->T);
}

void fm_provenance_tokens(cJSON *entry, const struct fm_calib *calib)
{
    add_sources(add_calib(entry, "tokens", calib), calib);
}

void fm_provenance_held_out(cJSON *entry, const struct fm_calib *held)
{
    cJSON *o = add_calib(entry, HELD_OUT, held);
    fm_json_add_uint(o, "positions", (uint64_t)held->count * (uint64_t)(held->T - 1));
    if (held->inputs)
        add_sources(o, held);
}

bool fm_provenance_is_held_out(const cJSON *entry, const struct fm_calib *held)
{
    const cJSON *o = cJSON_GetObjectItemCaseSensitive(entry, HELD_OUT);
    const char *digest = fm_json_string_value(o, "digest");
    const cJSON *T = cJSON_GetObjectItemCaseSensitive(o, "seq_len");
    char hex[FM_DIGEST_HEX];
    fm_digest_hex(hex, &held->digest);
    return digest && strcmp(digest, hex) == 0 && cJSON_IsNumber(T) && T->valuedouble == held->T;
}
