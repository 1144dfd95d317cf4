#include "lib/family.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ENDS(f) FM_PART_ENDS, offsetof(struct fm_ends, f)
#define LAYER(f) FM_PART_LAYER, offsetof(struct fm_layer, f)
#define SAME(n)                                                                                    \
    {                                                                                              \
        n, n, n                                                                                    \
    }
#define STOCK(n)                                                                                   \
    {                                                                                              \
        n, NULL, NULL                                                                              \
    }

/* Stock, online and ragged names; ragged ones are those of transformers 5 in memory. */
const struct fm_weight fm_weights_mixtral[] = {
    {SAME("model.embed_tokens.weight"), ENDS(embed), "VH", false},
    {SAME("model.norm.weight"), ENDS(norm), "H", false},
    {SAME("lm_head.weight"), ENDS(head), "VH", true},
    {SAME("model.layers.{l}.input_layernorm.weight"), LAYER(input_norm), "H", false},
    {SAME("model.layers.{l}.self_attn.q_proj.weight"), LAYER(q), "qH", false},
    {SAME("model.layers.{l}.self_attn.k_proj.weight"), LAYER(k), "gH", false},
    {SAME("model.layers.{l}.self_attn.v_proj.weight"), LAYER(v), "gH", false},
    {SAME("model.layers.{l}.self_attn.o_proj.weight"), LAYER(o), "Hq", false},
    {SAME("model.layers.{l}.post_attention_layernorm.weight"), LAYER(post_norm), "H", false},
    {{"model.layers.{l}.block_sparse_moe.gate.weight",
      "model.layers.{l}.block_sparse_moe.gate.weight", "model.layers.{l}.mlp.gate.weight"},
     LAYER(router),
     "EH",
     false},
    {STOCK("model.layers.{l}.block_sparse_moe.experts.{e}.w1.weight"), FM_PART_GATE, 0, "IH",
     false},
    {STOCK("model.layers.{l}.block_sparse_moe.experts.{e}.w3.weight"), FM_PART_UP, 0, "IH", false},
    {STOCK("model.layers.{l}.block_sparse_moe.experts.{e}.w2.weight"), FM_PART_DOWN, 0, "HI",
     false},
    {{NULL, "layers.{l}.gate_up", "model.layers.{l}.mlp.experts.gate_up"},
     FM_PART_GATE_UP,
     0,
     "SH",
     false},
    {{NULL, "layers.{l}.down", "model.layers.{l}.mlp.experts.down"},
     FM_PART_DOWN_T,
     0,
     "sH",
     false},
    {{NULL}, FM_PART_ENDS, 0, "", false},
};

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

/* A decimal number below `limit` without leading zeros; *name moves behind it. */
static bool read_number(int *value, const char **name, int limit)
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
        if (!read_number(layer ? l : e, &name, layer ? c->L : c->E))
            return false;
        pattern += 2;
    }
    return *name == '\0';
}

const struct fm_weight *fm_weights_find(const struct fm_config *c, enum fm_source source,
                                        const char *name, int *l, int *e)
{
    for (const struct fm_weight *w = c->family->weight; fm_weights_more(w); w++) {
        if (!w->name[source] || (w->untied && c->tied))
            continue;
        if (match(w->name[source], name, c, l, e))
            return w;
    }
    return NULL;
}

bool fm_weights_is_expert(const struct fm_weight *w)
{
    return w->part == FM_PART_GATE || w->part == FM_PART_UP || w->part == FM_PART_DOWN;
}

static uint64_t size_of(const struct fm_config *c, char letter, uint64_t channels)
{
    switch (letter) {
    case 'V':
        return (uint64_t)c->V;
    case 'H':
        return (uint64_t)c->H;
    case 'E':
        return (uint64_t)c->E;
    case 'I':
        return (uint64_t)c->I;
    case 'q':
        return (uint64_t)c->Q * (uint64_t)c->C;
    case 'g':
        return (uint64_t)c->G * (uint64_t)c->C;
    case 'S':
        return 2 * channels;
    case 's':
        return channels;
    default:
        assert(!"a letter of a shape");
        return 0;
    }
}

/* "(14336, 4096)" */
static void print_shape(char *text, size_t size, const uint64_t *shape, int dims)
{
    size_t at = 0;
    for (int d = 0; d < dims && at < size; d++)
        at += (size_t)snprintf(text + at, size - at, "%s%" PRIu64, d ? ", " : "(", shape[d]);
    if (at < size)
        snprintf(text + at, size - at, dims ? ")" : "()");
}

int fm_weights_check(const struct fm_config *c, const struct fm_weight *w,
                     const struct fm_tensor *t, uint64_t channels, struct fm_err *err)
{
    uint64_t want[4] = {0};
    int dims = (int)strlen(w->shape);
    for (int d = 0; d < dims; d++)
        want[d] = size_of(c, w->shape[d], channels);
    bool flat = w->part == FM_PART_GATE_UP || w->part == FM_PART_DOWN_T;
    bool same = t->dims == dims;
    for (int d = 0; same && d < dims; d++)
        same = t->shape[d] == want[d];
    /* A bundle's experts are all of one width and have a dimension of their own. */
    if (flat && t->dims == dims + 1)
        same = t->shape[0] == (uint64_t)c->E && t->shape[1] == want[0] / (uint64_t)c->E &&
               want[0] % (uint64_t)c->E == 0 && t->shape[2] == want[1];
    if (!same) {
        char has[192], needs[64];
        print_shape(has, sizeof has, t->shape, t->dims);
        print_shape(needs, sizeof needs, want, dims);
        return fm_fail(err, FM_EFORMAT, "tensor '%s' has shape %s, config.json wants %s", t->name,
                       has, needs);
    }
    if (!fm_dtype_is_weight(t->dtype))
        return fm_fail(err, FM_ECONFIG,
                       "tensor '%s' is %s; weights must be BF16, F16 or F32: convert the "
                       "checkpoint first",
                       t->name, fm_dtype_name(t->dtype));
    return FM_OK;
}
