/*
 * A wrong separator would shift every figure a little without being noticed.  So a value in a file
 * is either used or refused; documents have no separator only if the user asks for that, or if (no)
 * file names one.
 */
#include "lib/data/separator.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/bundle/bundle.h"
#include "formats/file/file.h"
#include "formats/file/genuine.h"
#include "formats/json/json.h"

#define CONFIG_BYTES_MAX (16 << 20)
#define CHOOSE "give --separator with a token, or none"

/* The text of dir/name or of a bundle's member; *text is NULL if there is no such file. */
static int read_text(char **text, size_t *size, const char *dir, const char *stream,
                     const char *name, struct fm_err *err)
{
    char member[64];
    void *data = NULL;
    struct fm_bundle b;
    struct fm_err mine = {0};
    *text = NULL;
    if (dir) {
        int rc = fm_file_slurp_in(dir, name, CONFIG_BYTES_MAX, text, size, &mine);
        if (rc && rc != FM_ENOENT)
            *err = mine;
        return rc == FM_ENOENT ? FM_OK : rc;
    }
    if (!stream || strcmp(stream, "-") == 0)
        return FM_OK;
    int rc = fm_bundle_open(&b, stream, err);
    if (rc)
        return rc;
    snprintf(member, sizeof member, FM_MEMBER_CARRIED "%s", name);
    const struct fm_member *m = fm_bundle_find(&b, member);
    if (m && m->size > CONFIG_BYTES_MAX)
        rc =
            fm_fail(err, FM_EFORMAT, "'%s': %s is over %d bytes", stream, member, CONFIG_BYTES_MAX);
    else if (m)
        rc = fm_bundle_read(&b, m, &data, size, err);
    *text = data;
    fm_bundle_close(&b);
    return rc;
}

/* Read "</s>" or {"content": "</s>", ...}; null or a missing key gives no token. */
static int take_name(struct fm_separator *s, const struct fm_tokenizer *t, const cJSON *config,
                     const char *key, struct fm_err *err)
{
    const cJSON *o = fm_json_value(config, key);
    if (!o)
        return FM_OK;
    const char *name = cJSON_GetStringValue(
        cJSON_IsObject(o) ? cJSON_GetObjectItemCaseSensitive(o, "content") : o);
    if (!name)
        return fm_fail(err, FM_EFORMAT, "%s is not the text of a token; " CHOOSE, key);
    s->id = fm_tokenizer_find(t, name);
    return s->id < 0 ? fm_fail(err, FM_ECONFIG,
                               "%s '%.80s' is not a token of the tokenizer; " CHOOSE, key, name)
                     : FM_OK;
}

/* Read a token id, or the first id of a list. */
static int take_id(struct fm_separator *s, const struct fm_tokenizer *t, const cJSON *config,
                   const char *key, struct fm_err *err)
{
    char text[FM_TOKENIZER_NAME];
    const cJSON *o = cJSON_GetObjectItemCaseSensitive(config, key);
    o = cJSON_IsArray(o) ? o->child : o;
    if (!o || cJSON_IsNull(o))
        return FM_OK;
    if (!cJSON_IsNumber(o) || !(o->valuedouble >= 0 && o->valuedouble < INT32_MAX) ||
        o->valuedouble != (double)(int32_t)o->valuedouble)
        return fm_fail(err, FM_EFORMAT, "%s is not a token id; " CHOOSE, key);
    if (!fm_tokenizer_name(t, (int32_t)o->valuedouble, text))
        return fm_fail(err, FM_ECONFIG, "%s %" PRId32 " is not a token of the tokenizer; " CHOOSE,
                       key, (int32_t)o->valuedouble);
    s->id = (int32_t)o->valuedouble;
    return FM_OK;
}

typedef int take(struct fm_separator *s, const struct fm_tokenizer *t, const cJSON *config,
                 const char *key, struct fm_err *err);

static int take_from(struct fm_separator *s, const struct fm_tokenizer *t, const char *dir,
                     const char *stream, const char *name, take *by, const char *key,
                     struct fm_err *err)
{
    char *text;
    size_t size = 0;
    cJSON *config = NULL;
    int rc = read_text(&text, &size, dir, stream, name, err);
    if (rc || !text)
        return rc;
    if (!(rc = fm_genuine_text(text, size, true, err)))
        rc = fm_json_tree(&config, text, size, err);
    if (!rc)
        rc = by(s, t, config, key, err);
    if (rc)
        fm_within(err, "%s: %s", dir ? dir : stream, name);
    cJSON_Delete(config);
    free(text);
    return rc;
}

/* Find "eos_token" of tokenizer_config.json; s->id is unchanged if it names none. */
static int find_named(struct fm_separator *s, const struct fm_tokenizer *t,
                      const struct fm_inputs *in, struct fm_err *err)
{
    char *beside = in->tokenizer ? fm_file_home(in->tokenizer, err) : NULL;
    if (in->tokenizer && !beside)
        return FM_ENOMEM;
    int rc = take_from(s, t, beside ? beside : in->model, in->stream, "tokenizer_config.json",
                       take_name, "eos_token", err);
    free(beside);
    return rc;
}

static int find_end(struct fm_separator *s, const struct fm_tokenizer *t,
                    const struct fm_inputs *in, struct fm_err *err)
{
    static const char *const configs[] = {"config.json", "generation_config.json"};
    int rc = find_named(s, t, in, err);
    for (int i = 0; !rc && s->id < 0 && i < 2; i++)
        rc = take_from(s, t, in->model, in->stream, configs[i], take_id, "eos_token_id", err);
    s->unknown = s->id < 0;
    return rc;
}

int fm_separator_choose(struct fm_separator *s, const struct fm_tokenizer *t,
                        const struct fm_run_options *run, struct fm_err *err)
{
    const char *asked = run->inputs.separator ? run->inputs.separator : "eos";
    int rc = FM_OK;
    *s = (struct fm_separator){.id = -1};
    if (strcmp(asked, "none") == 0)
        return FM_OK;
    if (strcmp(asked, "eos") == 0)
        rc = find_end(s, t, &run->inputs, err);
    else if ((s->id = fm_tokenizer_find(t, asked)) < 0)
        rc = fm_fail(err, FM_EUSAGE,
                     "--separator '%.80s' is not a token of the tokenizer; give one, eos or none",
                     asked);
    if (!rc && s->id >= 0)
        fm_tokenizer_name(t, s->id, s->token);
    return rc;
}
