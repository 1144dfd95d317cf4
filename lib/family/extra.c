/*
 * A tensor's name decides whether it is extra.  The mark, a tensor that only extra layers have,
 * confirms it for the whole layer: if num_hidden_layers in config.json was reduced, the last
 * decoder layers would otherwise be taken for extra ones and not be ranked.
 */
#include "lib/family/extra.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lib/family/family.h"

const char *const fm_extra_nextn_names[] = {FM_EXTRA_AFTER, NULL};
const char *const fm_extra_nextn_counts[] = {"num_nextn_predict_layers", NULL};

static const struct fm_extra_draft nextn_draft = {
    FM_EXTRA_NEXTN_DRAFT,
    .norm = FM_EXTRA_AFTER "shared_head.norm.weight",
    .head = FM_EXTRA_AFTER "shared_head.head.weight",
    .embed = FM_EXTRA_AFTER "embed_tokens.weight",
};

const struct fm_extra_form fm_extra_nextn = {FM_EXTRA_NEXTN_FORM, .draft = &nextn_draft};

static const char *const mtp_names[] = {"mtp.", NULL};

const struct fm_extra_draft fm_extra_mtp_draft = {
    .block = "mtp.layers.0.",
    .enorm = "mtp.pre_fc_norm_embedding.weight",
    .hnorm = "mtp.pre_fc_norm_hidden.weight",
    .proj = "mtp.fc.weight",
    .norm = "mtp.norm.weight",
};

const struct fm_extra_form fm_extra_mtp = {.name = mtp_names, .draft = &fm_extra_mtp_draft};

static int first_of(const struct fm_config *c)
{
    return c->family->extra && c->family->extra->after ? c->L : 0;
}

static bool is_named(const struct fm_extra_form *form)
{
    return !strchr(form->name[0], '{');
}

/* The largest possible number of layers, or of names. */
static int most_of(const struct fm_extra_form *form)
{
    int n = 0;
    while (form->name[n])
        n++;
    return is_named(form) ? n : FM_EXTRA_LAYERS_MAX;
}

int fm_extra_index(const struct fm_config *c, int64_t number)
{
    int64_t i = c->family->extra ? number - first_of(c) : -1;
    return i >= 0 && i < most_of(c->family->extra) ? (int)i : -1;
}

int fm_extra_read(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    const struct fm_extra_form *form = c->family->extra;
    int64_t n = 0;
    bool any = true;
    for (const char *const *key = form ? form->count : NULL; key && *key && n == 0; key++) {
        int rc = fm_json_opt_int(keys->json, *key, 0, INT32_MAX, &n, err);
        if (rc)
            return rc;
        if (n > FM_EXTRA_LAYERS_MAX)
            return fm_fail(err, FM_ECONFIG, "%s is %" PRId64 " (limit %d)", *key, n,
                           FM_EXTRA_LAYERS_MAX);
    }
    int rc = form && form->flag ? fm_json_opt_bool(keys->json, form->flag, &any, err) : FM_OK;
    c->extra_layers = any ? (int)n : 0;
    return rc;
}

/* What follows the pattern in the name; NULL if the name does not begin with it.  Sets *layer if
 * the pattern has a number. */
static const char *follow(const struct fm_config *c, const char *pattern, const char *name,
                          int *layer)
{
    const char *number = strchr(pattern, '{');
    size_t before = number ? (size_t)(number - pattern) : strlen(pattern);
    int value;
    if (strncmp(name, pattern, before) != 0)
        return NULL;
    name += before;
    if (!number)
        return name;
    if (!fm_weights_number(&value, &name, FM_LAYERS_MAX + FM_EXTRA_LAYERS_MAX))
        return NULL;
    const char *rest = strchr(number, '}') + 1;
    size_t length = strlen(rest);
    *layer = fm_extra_index(c, value);
    return *layer >= 0 && strncmp(name, rest, length) == 0 ? name + length : NULL;
}

/* Whether the name begins with the pattern, or equals it if `whole`.  Sets *layer if the pattern
 * has a number. */
static bool match(const struct fm_config *c, const char *pattern, const char *name, bool whole,
                  int *layer)
{
    const char *rest = follow(c, pattern, name, layer);
    return rest && (*rest == '\0') == whole;
}

/* Whether the name is in the module of the pattern, a child of "model" or of the whole model. */
static bool shares_module(const char *pattern, const char *name)
{
    size_t n = strncmp(pattern, "model.", 6) == 0 ? 6 : 0;
    n += strcspn(pattern + n, ".") + 1;
    return strncmp(name, pattern, n) == 0;
}

/* Whether the tensor is outside of all modules of the family's table, in any naming. */
static bool is_outside(const struct fm_config *c, const char *name)
{
    for (const struct fm_weight *w = c->family->weight; fm_weights_more(w); w++)
        for (size_t i = 0; i < sizeof w->name / sizeof *w->name; i++)
            if (w->name[i] && shares_module(w->name[i], name))
                return false;
    return true;
}

int fm_extra_layer(const struct fm_config *c, const char *name)
{
    const struct fm_extra_form *form = c->family->extra;
    for (int i = 0; form && form->name[i]; i++) {
        int layer = i;
        if (match(c, form->name[i], name, false, &layer))
            return layer;
    }
    return c->part && is_outside(c, name) ? FM_EXTRA_PARTS : -1;
}

int fm_extra_number(const struct fm_config *c)
{
    return first_of(c);
}

int fm_extra_twin_layer(const struct fm_config *c)
{
    int m = c->M - 1;
    while (m > 0 && fm_attention_of(c, c->moe[m])->full)
        m--;
    return c->moe[m];
}

bool fm_extra_twin(char twin[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *c, const char *name)
{
    const struct fm_extra_draft *d = c->family->extra ? c->family->extra->draft : NULL;
    int layer = 0;
    if (!d)
        return false;
    const struct {
        const char *from, *to;
    } end[] = {{d->norm, "model.norm.weight"},
               {d->head, "lm_head.weight"},
               {d->embed, "model.embed_tokens.weight"}};
    for (size_t i = 0; i < sizeof end / sizeof *end; i++)
        if (end[i].from && match(c, end[i].from, name, true, &layer) && layer == 0)
            return snprintf(twin, FM_ST_NAME_BYTES_MAX + 1, "%s", end[i].to) > 0;
    const char *rest = follow(c, d->block, name, &layer);
    return rest && layer == 0 &&
           snprintf(twin, FM_ST_NAME_BYTES_MAX + 1, "model.layers.%d.%s", fm_extra_twin_layer(c),
                    rest) <= FM_ST_NAME_BYTES_MAX;
}

const char *fm_extra_of_twin(char name[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *c,
                             const char *twin)
{
    char block[FM_WEIGHT_NAME_BYTES], layer[FM_WEIGHT_NAME_BYTES];
    fm_weights_name(block, c->family->extra->draft->block, -1, fm_extra_number(c));
    fm_weights_name(layer, "model.layers.{l}.", fm_extra_twin_layer(c), -1);
    snprintf(name, FM_ST_NAME_BYTES_MAX + 1, "%s%s", block, twin + strlen(layer));
    return name;
}

/* Bits of `seen` that stand for other parts. */
static unsigned parts_of(const struct fm_extra *x)
{
    return 1u << FM_EXTRA_PARTS | (x->form ? x->form->parts : 0);
}

int fm_extra_can_draft(const struct fm_extra *x, const struct fm_config *c, struct fm_err *err)
{
    int layers = 0;
    for (unsigned seen = x->seen & ~parts_of(x); seen; seen &= seen - 1)
        layers++;
    if (layers == 0)
        return fm_fail(err, FM_ECONFIG,
                       "the model has no layer for multi-token prediction; omit the option");
    if (!x->form->draft)
        return fm_fail(err, FM_ECONFIG,
                       "layers for multi-token prediction of family '%s' are not computed, so they "
                       "cannot be ranked; omit the option",
                       c->family->name);
    if (layers > 1)
        return fm_fail(err, FM_ECONFIG,
                       "the model has %d layers for multi-token prediction, and only a single one "
                       "can be ranked; omit the option",
                       layers);
    return FM_OK;
}

bool fm_extra_add(struct fm_extra *x, const struct fm_config *c, const struct fm_tensor *t)
{
    int layer = fm_extra_layer(c, t->name), marked = layer;
    const char *mark = c->family->extra ? c->family->extra->mark : NULL;
    if (layer < 0)
        return false;
    x->form = c->family->extra;
    x->first = first_of(c);
    x->tensors++;
    x->bytes += t->size;
    x->seen |= 1u << layer;
    x->experts = x->experts || (strstr(t->name, ".experts.") && !(parts_of(x) >> layer & 1));
    if (!mark || match(c, mark, t->name, true, &marked))
        x->marked |= 1u << layer;
    return true;
}

int fm_extra_check(const struct fm_extra *x, const struct fm_config *c, struct fm_err *err)
{
    for (int i = 0; i < FM_EXTRA_LAYERS_MAX; i++) {
        char mark[FM_WEIGHT_NAME_BYTES];
        if ((x->seen & ~x->marked) >> i & 1) {
            fm_weights_name(mark, c->family->extra->mark, -1, x->first + i);
            return fm_fail(err, FM_EFORMAT,
                           "tensors of layer %d can only be for multi-token prediction, as "
                           "config.json has %d decoder layers, and '%s' is missing",
                           x->first + i, c->L, mark);
        }
    }
    return FM_OK;
}

int fm_extra_layers(const struct fm_extra *x)
{
    int n = 0;
    for (int i = 0; i < FM_EXTRA_LAYERS_MAX; i++)
        n += (int)(x->seen >> i & 1);
    return n;
}

bool fm_extra_parts(const struct fm_extra *x)
{
    return x->seen >> FM_EXTRA_PARTS & 1;
}

bool fm_extra_others(const struct fm_extra *x)
{
    return x->seen & parts_of(x);
}

bool fm_extra_named(const struct fm_extra *x)
{
    return (x->form && is_named(x->form)) || fm_extra_layers(x) == 0;
}

void fm_extra_print(char text[FM_EXTRA_TEXT], const struct fm_extra *x)
{
    size_t at = 0;
    text[0] = '\0';
    for (int i = 0; i < FM_EXTRA_LAYERS_MAX; i++)
        if (x->seen >> i & 1 && fm_extra_named(x))
            at += (size_t)snprintf(text + at, FM_EXTRA_TEXT - at, "%s%s", at ? ", " : "",
                                   x->form->name[i]);
        else if (x->seen >> i & 1)
            at += (size_t)snprintf(text + at, FM_EXTRA_TEXT - at, "%s%d", at ? ", " : "",
                                   x->first + i);
    if (fm_extra_parts(x) && fm_extra_named(x) && at > 0)
        snprintf(text + at, FM_EXTRA_TEXT - at, ", others");
}

void fm_extra_json(cJSON *object, const struct fm_extra *x)
{
    if (x->tensors == 0)
        return;
    cJSON *extra = fm_json_add_object(object, "extra");
    cJSON *layers = fm_json_add_array(extra, "layers");
    for (int i = 0; i < FM_EXTRA_LAYERS_MAX; i++)
        if (x->seen >> i & 1)
            fm_json_add_uint(layers, NULL, (uint64_t)(x->first + i));
    if (fm_extra_parts(x))
        fm_json_add_bool(extra, "parts", true);
    fm_json_add_uint(extra, "tensors", x->tensors);
    fm_json_add_uint(extra, "bytes", x->bytes);
}

void fm_extra_note(char text[FM_EXTRA_NOTE], const struct fm_extra *x, const struct fm_config *c)
{
    int n = fm_extra_layers(x);
    text[0] = '\0';
    bool named = x->form && is_named(x->form);
    if (n != c->extra_layers && !named)
        snprintf(text, FM_EXTRA_NOTE,
                 "config.json lists %d layer%s for multi-token prediction, but the checkpoint "
                 "has %d",
                 c->extra_layers, c->extra_layers == 1 ? "" : "s", n);
}

int fm_extra_refuse(const struct fm_config *c, const char *name, struct fm_err *err)
{
    if (c->family->indexed || !strstr(name, ".indexer."))
        return FM_OK;
    return fm_fail(err, FM_ECONFIG,
                   "tensor '%s' belongs to a sparse indexer, whose attention is not supported",
                   name);
}
