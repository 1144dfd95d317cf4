/* Helpers for tests of families: config.json texts, which must be accepted or refused. */
#ifndef FM_TESTS_CONFIGS_H
#define FM_TESTS_CONFIGS_H

#include "lib/family/family.h"
#include "tests/unit/owned.h"
#include "tests/unit/relaxed.h"
#include "tests/unit/test.h"

/* Parse the object {keys, more}, relaxed JSON; more may be NULL. */
static inline int config_parse(struct fm_config *c, const char *keys, const char *more,
                               struct fm_err *err)
{
    char relaxed[4096], text[5120];
    int n = snprintf(relaxed, sizeof relaxed, "{%s%s%s}", keys, more ? "," : "", more ? more : "");
    assert_in_range(n, 0, sizeof relaxed - 1);
    relaxed_json(text, sizeof text, relaxed);
    return fm_config_parse(c, text, strlen(text), err);
}

static inline struct fm_config must(const char *keys, const char *more)
{
    struct fm_config c;
    struct fm_err err = {0};
    assert_ok(config_parse(&c, keys, more, &err));
    return owned_config(&c);
}

static inline void refused(const char *keys, const char *more, int code, const char *says)
{
    struct fm_config c;
    struct fm_err err = {0};
    int rc = config_parse(&c, keys, more, &err);
    fm_config_release(&c);
    if (rc != code || !strstr(err.text, says))
        fail_msg("%s: status %d, '%s'; expected %d, '%s'", more ? more : "no more keys", rc,
                 err.text, code, says);
}

#endif
