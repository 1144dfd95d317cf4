#include "lib/mixture.h"

#include <assert.h>
#include <string.h>

#define DECIMALS 6

/* Digits with at most one point, and nothing else. */
static bool looks_like_a_number(const char *text)
{
    size_t digits = strspn(text, "0123456789"), more = 0;
    const char *end = text + digits;
    if (*end == '.') {
        more = strspn(end + 1, "0123456789");
        end += 1 + more;
    }
    return *end == '\0' && digits + more > 0;
}

static bool take_weight(uint64_t *weight, const char *text)
{
    uint64_t v = 0;
    size_t whole = strcspn(text, "."), decimals = text[whole] ? strlen(text) - whole - 1 : 0;
    if (whole > 7 || decimals > DECIMALS)
        return false;
    for (const char *p = text; *p; p++)
        v = *p == '.' ? v : v * 10 + (uint64_t)(*p - '0');
    for (size_t i = decimals; i < DECIMALS; i++)
        v *= 10;
    *weight = v;
    return v > 0 && v <= (uint64_t)1000000 * FM_WEIGHT_ONE;
}

int fm_mixture_spec(const char *spec, size_t *length, uint64_t *weight, struct fm_err *err)
{
    const char *colon = strrchr(spec, ':');
    *length = strlen(spec);
    *weight = FM_WEIGHT_ONE;
    if (!colon || !looks_like_a_number(colon + 1))
        return FM_OK;
    *length = (size_t)(colon - spec);
    if (*length == 0 || !take_weight(weight, colon + 1))
        return fm_fail(err, FM_EUSAGE,
                       "'%s': a weight is above 0, at most a million, with at most %d decimals",
                       spec, DECIMALS);
    return FM_OK;
}

int fm_mixture_next(struct fm_mixture *m)
{
    uint64_t i = 0, sum = 0;
    assert(m->sources > 0 && m->sources <= FM_SOURCES_MAX);
    for (int s = 0; s < m->sources; s++) {
        i += m->taken[s];
        sum += m->weight[s];
    }
    int best = 0;
    __int128 most = 0;
    for (int s = 0; s < m->sources; s++) {
        __int128 behind = (__int128)m->weight[s] * (i + 1) - (__int128)sum * m->taken[s];
        if (s > 0 && behind <= most)
            continue;
        best = s;
        most = behind;
    }
    if (m->taken[best] == m->all[best])
        return -1;
    m->taken[best]++;
    return best;
}
