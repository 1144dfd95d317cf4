/*
 * Tables of tensors: from a name to its row and back, shapes, and numbers of parameters.  Names are
 * matched against patterns, so a table has about thirty rows however many layers and experts the
 * model has.
 */
#include "lib/family/family.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "formats/quant/quant.h"
#include "lib/block/experts.h"
#include "lib/block/norm.h"

void fm_weights_name(char name[FM_WEIGHT_NAME_BYTES], const char *pattern, int l, int e)
{
    size_t at = 0;
    for (const char *p = pattern; *p; p++) {
        int n = 1;
        if (*p == '{') {
            n = snprintf(name + at, FM_WEIGHT_NAME_BYTES - at, "%d", p[1] == 'l' ? l : e);
            p += 2;
        } else {
            name[at] = *p;
        }
        at += (size_t)n;
        assert(at < FM_WEIGHT_NAME_BYTES);
    }
    name[at] = '\0';
}

bool fm_weights_number(int *value, const char **name, int limit)
{
    const char *p = *name;
    int64_t n = 0;
    if (*p < '0' || *p > '9' || (p[0] == '0' && p[1] >= '0' && p[1] <= '9'))
        return false;
    for (; *p >= '0' && *p <= '9' && n < limit; p++)
        n = 10 * n + (*p - '0');
    *name = p;
    *value = (int)n;
    return n < limit && (*p < '0' || *p > '9');
}

/* Whether the name, which ends at `end`, ends with the pattern's text after its last number.  Most
 * patterns differ only in their ends, so this rejects most mismatches early. */
static bool match_end(const char *pattern, const char *name, const char *end)
{
    const char *p = pattern + strlen(pattern);
    while (p > pattern && end > name && p[-1] != '}')
        if (*--p != *--end)
            return false;
    return true;
}

static bool match(const char *pattern, const char *name, const struct fm_config *c, int *l, int *e)
{
    *l = *e = -1;
    for (; *pattern; pattern++) {
        if (*pattern != '{') {
            if (*pattern != *name++)
                return false;
            continue;
        }
        bool layer = pattern[1] == 'l';
        if (!fm_weights_number(layer ? l : e, &name, layer ? c->L : c->E))
            return false;
        pattern += 2;
    }
    return *name == '\0';
}

/* Features of layer l (-1: outside the layers) as bits of enum fm_weight_when. */
static unsigned features(const struct fm_config *c, int l)
{
    bool moe = l >= 0 && fm_config_moe(c, l) >= 0, dense = l >= 0 && !moe;
    return (c->tied ? 0 : FM_UNTIED) | (moe ? FM_MOE : 0) | (dense ? FM_DENSE : 0) |
           (c->fused ? FM_FUSED : FM_EACH) | (moe && c->shared > 0 ? FM_SHARED : 0) |
           (c->norm->bias ? FM_NORM_BIAS : 0) | (c->head_bias ? FM_HEAD_BIAS : 0) |
           (l >= 0 ? c->attention->has(c, l) : 0);
}

bool fm_weights_exists(const struct fm_config *c, const struct fm_weight *w, int l)
{
    return (w->when & ~features(c, l)) == 0;
}

bool fm_weights_biased_router(const struct fm_config *c)
{
    const struct fm_weight *w = c->family->weight;
    while (fm_weights_more(w) &&
           !(w->part == FM_PART_ROUTER && w->field == FM_LAYER_FIELD(router.bias)))
        w++;
    return fm_weights_more(w);
}

const struct fm_weight *fm_weights_find(const struct fm_config *c, enum fm_naming naming,
                                        const char *name, int *l, int *e)
{
    const char *end = name + strlen(name);
    for (const struct fm_weight *w = c->family->weight; fm_weights_more(w); w++) {
        const char *pattern = w->name[naming];
        if (pattern && match_end(pattern, name, end) && match(pattern, name, c, l, e) &&
            fm_weights_exists(c, w, *l))
            return w;
    }
    return NULL;
}

bool fm_weights_fused_name(char name[FM_WEIGHT_NAME_BYTES], const struct fm_config *c, int l)
{
    const struct fm_weight *w = c->family->weight;
    while (fm_weights_more(w) && !(w->when & FM_FUSED))
        w++;
    if (!fm_weights_more(w) || c->family->wrapper_form)
        return false;
    fm_weights_name(name, w->name[FM_NAMING_STOCK], l, -1);
    return true;
}

bool fm_weights_is_field(const struct fm_weight *w)
{
    return w->part >= FM_PART_NORM && w->part <= FM_PART_DOWN_BIAS;
}

bool fm_weights_is_carried(const struct fm_weight *w)
{
    return w->part == FM_PART_CARRIED || w->part == FM_PART_SPARE;
}

bool fm_weights_is_expert(const struct fm_weight *w)
{
    return w->part >= FM_PART_GATE;
}

bool fm_weights_per_expert(const struct fm_weight *w, enum fm_naming naming)
{
    return strstr(w->name[naming], "{e}") != NULL;
}

bool fm_weights_is_stray(const struct fm_config *c, const char *name)
{
    static const char layers[] = "model.layers.";
    if (strstr(name, ".experts."))
        return true;
    if (strncmp(name, layers, sizeof layers - 1) != 0)
        return false;
    int l;
    name += sizeof layers - 1;
    return !fm_weights_number(&l, &name, c->L) || *name != '.';
}

bool fm_weights_is_off(const struct fm_config *c, const char *name, int *l)
{
    int e;
    for (const struct fm_weight *w = c->family->weight; fm_weights_more(w); w++)
        if (w->name[FM_NAMING_STOCK] && match(w->name[FM_NAMING_STOCK], name, c, l, &e) &&
            *l >= 0 && !fm_weights_exists(c, w, *l))
            return true;
    return false;
}

static uint64_t size_of(const struct fm_config *c, char letter, int l, uint64_t channels)
{
    switch (letter) {
    case '1':
        return 1;
    case 'V':
        return (uint64_t)c->V;
    case 'H':
        return (uint64_t)c->H;
    case 'E':
        return (uint64_t)c->E;
    case 'I':
        return (uint64_t)c->I;
    case 'J':
        return (uint64_t)c->expert->rows * (uint64_t)c->I;
    case 'D':
        return (uint64_t)fm_config_mlp(c, l);
    case 'F':
        return 2 * (uint64_t)fm_config_mlp(c, l);
    case 'S':
        return (uint64_t)c->expert->rows * channels;
    case 's':
        return channels;
    default:
        return c->attention->size(c, l, letter);
    }
}

int fm_weights_shape(uint64_t shape[FM_ST_DIMS_MAX], const struct fm_config *c,
                     const struct fm_weight *w, int l, uint64_t channels)
{
    int dims = (int)strlen(w->shape);
    for (int d = 0; d < dims; d++)
        shape[d] = size_of(c, w->shape[d], l, channels);
    return dims;
}

uint64_t fm_weights_count(const struct fm_config *c, const struct fm_weight *w, int l)
{
    uint64_t count = 1;
    for (const char *letter = w->shape; *letter; letter++)
        count *= size_of(c, *letter, l, 0);
    return count;
}

void fm_weights_print_shape(char *text, size_t size, const uint64_t *shape, int dims)
{
    size_t at = 0;
    for (int d = 0; d < dims && at < size; d++)
        at += (size_t)snprintf(text + at, size - at, "%s%" PRIu64, d ? ", " : "(", shape[d]);
    if (at < size)
        snprintf(text + at, size - at, dims ? ")" : "()");
}

int fm_weights_check_shape(const struct fm_tensor *t, const uint64_t *want, int dims,
                           const char *who, struct fm_err *err)
{
    if (fm_tensor_shaped(t, want, dims))
        return FM_OK;
    char has[192], needs[96];
    fm_weights_print_shape(has, sizeof has, t->shape, t->dims);
    fm_weights_print_shape(needs, sizeof needs, want, dims);
    return fm_fail(err, FM_EFORMAT, "tensor '%s' has shape %s, but %s %s", t->name, has, who,
                   needs);
}

int fm_weights_check(const struct fm_config *c, const struct fm_weight *w,
                     const struct fm_tensor *t, const struct fm_storage *storage, int l,
                     uint64_t channels, struct fm_err *err)
{
    uint64_t want[FM_ST_DIMS_MAX] = {0};
    int dims = fm_weights_shape(want, c, w, l, channels);
    /* In a bundle all experts have the same width, and the expert index is a separate dimension. */
    bool bundled = w->part >= FM_PART_GATE_UP && t->dims == dims + 1 &&
                   t->shape[0] == (uint64_t)c->E && t->shape[1] == want[0] / (uint64_t)c->E &&
                   want[0] % (uint64_t)c->E == 0 && (dims == 1 || t->shape[2] == want[1]);
    if (!bundled && fm_weights_check_shape(t, want, dims, "config.json requires", err))
        return err->code;
    if (fm_dtype_is_weight(t->dtype) || (storage && t->dtype == storage->codes))
        return FM_OK;
    bool codes = storage && strcmp(storage->weight, storage->codes_end) == 0;
    return fm_fail(err, FM_ECONFIG,
                   "tensor '%s' is %s; weights must be BF16, F16%s F32%s%s: convert the checkpoint "
                   "first",
                   t->name, fm_dtype_name(t->dtype), codes ? "," : " or", codes ? " or " : "",
                   codes ? fm_dtype_name(storage->codes) : "");
}

/* ---- parameters ---- */

/* Parameters outside the experts. */
static uint64_t params_fixed(const struct fm_config *c)
{
    uint64_t sum = 0;
    for (const struct fm_weight *w = c->family->weight; fm_weights_more(w); w++) {
        bool end = w->part == FM_PART_NONLAYER;
        if (!w->name[FM_NAMING_STOCK] || fm_weights_is_expert(w) || w->part == FM_PART_SPARE)
            continue;
        for (int l = end ? -1 : 0; l < (end ? 0 : c->L); l++)
            sum += fm_weights_exists(c, w, l) ? fm_weights_count(c, w, l) : 0;
    }
    return sum;
}

/* Sum of widths over all experts of a layer. */
static uint64_t channels_of(const struct fm_config *c, const uint32_t *widths, int m)
{
    uint64_t sum = 0;
    for (int e = 0; e < c->E; e++)
        sum += widths ? widths[(size_t)m * (size_t)c->E + (size_t)e] : (uint32_t)c->I;
    return sum;
}

uint64_t fm_config_params(const struct fm_config *c, const uint32_t *widths)
{
    uint64_t sum = params_fixed(c), channel = fm_expert_channel_params(c->expert, c->H);
    for (int m = 0; m < c->M; m++)
        sum += channel * channels_of(c, widths, m);
    return sum;
}

uint64_t fm_config_params_active(const struct fm_config *c, const uint32_t *widths)
{
    uint64_t sum = params_fixed(c), channel = fm_expert_channel_params(c->expert, c->H);
    for (int m = 0; m < c->M; m++)
        sum += channel * channels_of(c, widths, m) * (uint64_t)c->K / (uint64_t)c->E;
    return sum;
}

void fm_weights_name_of(char name[FM_WEIGHT_NAME_BYTES], const struct fm_config *config,
                        enum fm_naming naming, enum fm_weight_part part, int l, int e)
{
    const struct fm_weight *w = config->family->weight;
    while (fm_weights_more(w) &&
           !(w->part == part && w->name[naming] && fm_weights_exists(config, w, l)))
        w++;
    assert(fm_weights_more(w));
    fm_weights_name(name, w->name[naming], l, e);
}

void fm_weights_rename(char name[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *config,
                       enum fm_naming naming, const char *stock)
{
    int l, e;
    const struct fm_weight *w = fm_weights_find(config, FM_NAMING_STOCK, stock, &l, &e);
    if (w && w->name[naming])
        fm_weights_name(name, w->name[naming], l, e);
    else
        snprintf(name, FM_ST_NAME_BYTES_MAX + 1, "%s", stock);
}
