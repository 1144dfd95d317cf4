/* Helpers for tests of families: config.json texts, which must be accepted or refused. */
#ifndef FM_TESTS_CONFIGS_H
#define FM_TESTS_CONFIGS_H

#include "lib/family/family.h"
#include "tests/unit/owned.h"
#include "tests/unit/test.h"

/* Parse the object {keys, more}; more may be NULL. */
static inline int config_parse(struct fm_config *c, const char *keys, const char *more,
                               struct fm_err *err)
{
    char text[4096];
    int n = snprintf(text, sizeof text, "{%s%s%s}", keys, more ? "," : "", more ? more : "");
    assert_in_range(n, 0, sizeof text - 1);
    return fm_config_parse(c, text, (size_t)n, err);
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
