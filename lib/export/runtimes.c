/*
 * How other programs handle an export: over how many devices servers split it, which GPU has memory
 * for it, and whether llama.cpp computes the same function.  Everything follows from config.json
 * and the widths in the files; the rules of the programs are in the header.
 */
#include "lib/export/runtimes.h"

#include <stdio.h>

#include "lib/block/deltanet.h"
#include "lib/block/gqa.h"
#include "lib/block/mla.h"
#include "lib/block/shortconv.h"
#include "lib/block/softmax.h"
#include "lib/family/family.h"

/* ---- families ---- */

/* What other programs do with a family.  Defaults for a family without a row: servers find it by
 * class_name; llama.cpp has a different router or was not compared; cards have no note. */
struct family {
    const struct fm_model_family *family;
    const char *architecture;            /* fm_runtimes_architecture */
    const char *unequal;                 /* fm_runtimes_unequal */
    const struct fm_router *gguf_router; /* supported by llama.cpp */
};

static const struct family families[] = {
    {.family = &fm_mixtral, .gguf_router = &fm_softmax},
    {.family = &fm_qwen2_moe, .gguf_router = &fm_softmax_raw},
    {.family = &fm_qwen3_moe, .gguf_router = &fm_softmax},
    {.family = &fm_olmoe, .gguf_router = &fm_softmax_raw},
    {.family = &fm_phimoe, .architecture = "PhiMoEForCausalLM"},
    {.family = &fm_gpt_oss,
     .unequal = "with one width for all experts the loss increases much more than with learned "
                "widths"},
};

static const struct family *find_family(const struct fm_model_family *family)
{
    static const struct family usual;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (families[i].family == family)
            return &families[i];
    return &usual;
}

const char *fm_runtimes_architecture(const struct fm_model_family *family)
{
    return find_family(family)->architecture;
}

const char *fm_runtimes_unequal(const struct fm_model_family *family)
{
    return find_family(family)->unequal;
}

/* ---- attention ---- */

/* The cache of one sequence in one layer of a server. */
struct kept {
    uint64_t token;                   /* numbers per token, in the cache's type */
    int window;                       /* number of last tokens that are kept; 0: all */
    uint64_t short_state, long_state; /* numbers for a sequence of any length: in the cache's
                                         type, in F32 */
};

/* Keys and values of all key heads. */
static struct kept usual_kept(const struct fm_config *c, int l)
{
    (void)l;
    return (struct kept){.token = 2 * (uint64_t)c->G * (uint64_t)c->C};
}

static bool usual_divides(const struct fm_config *c, int d, bool copies)
{
    (void)copies;
    return c->Q % d == 0 && c->G % d == 0;
}

static struct kept gqa_kept(const struct fm_config *c, int l)
{
    uint64_t width = (uint64_t)c->C + (uint64_t)fm_gqa_value(c);
    uint64_t index = fm_gqa_indexed(c, l) ? (uint64_t)c->gqa->index_width : 0;
    return (struct kept){.token = (uint64_t)fm_gqa_groups(c, l) * width + index,
                         .window = fm_gqa_window(c, l)};
}

/* A norm over all key heads would count a copied head twice. */
static bool gqa_divides(const struct fm_config *c, int d, bool copies)
{
    bool whole = c->gqa->qk_norm == FM_QK_NORM_FULL, all = true;
    for (int l = 0; l < c->L && all; l++) {
        int G = fm_gqa_groups(c, l);
        bool repeats = copies && !whole && d > G && d % G == 0;
        all = fm_gqa_heads(c, l) % d == 0 && (G % d == 0 || repeats);
    }
    return all;
}

/* The latent of all heads and the rotated part of their key, and an indexer's key. */
static struct kept mla_kept(const struct fm_config *c, int l)
{
    int index = fm_mla_indexed(c, l) ? c->mla->index_width : 0;
    return (struct kept){.token = (uint64_t)(c->mla->c_rank + c->mla->R + index)};
}

/* Every device has the whole latents, and computes from them the part for its heads. */
static bool mla_divides(const struct fm_config *c, int d, bool copies)
{
    (void)copies;
    return c->Q % d == 0;
}

/* The last inputs of the convolution, and the state (Q, C, D). */
static struct kept deltanet_kept(const struct fm_config *c, int l)
{
    const struct fm_deltanet *m = c->deltanet;
    uint64_t values = (uint64_t)m->Q * (uint64_t)m->D;
    uint64_t columns = 2 * (uint64_t)m->G * (uint64_t)m->C + values;
    if (!fm_deltanet_layer(c, l))
        return gqa_kept(c, l);
    return (struct kept){.short_state = columns * (uint64_t)(m->W - 1),
                         .long_state = (uint64_t)m->C * values};
}

/* The last inputs of a convolution. */
static struct kept shortconv_kept(const struct fm_config *c, int l)
{
    if (!fm_shortconv_layer(c, l))
        return gqa_kept(c, l);
    return (struct kept){.short_state = (uint64_t)c->H * (uint64_t)(c->shortconv->W - 1)};
}

/* Devices have whole channels of convolutions. */
static bool shortconv_divides(const struct fm_config *c, int d, bool copies)
{
    return c->H % d == 0 && gqa_divides(c, d, copies);
}

/* The state of a head is not split over devices. */
static bool deltanet_divides(const struct fm_config *c, int d, bool copies)
{
    return c->deltanet->G % d == 0 && gqa_divides(c, d, copies);
}

/* How vLLM and SGLang cache attention and split it over devices.  Attention without a row caches
 * keys and values, and devices take whole query heads and whole key heads. */
struct attention {
    const struct fm_attention *block;
    struct kept (*kept)(const struct fm_config *config, int l);
    /* True if d devices can share its heads; with `copies` a key head may be on several devices. */
    bool (*divides)(const struct fm_config *config, int d, bool copies);
};

static const struct attention attention[] = {
    {&fm_gqa, gqa_kept, gqa_divides},
    {&fm_mla, mla_kept, mla_divides},
    {&fm_deltanet, deltanet_kept, deltanet_divides},
    {&fm_shortconv, shortconv_kept, shortconv_divides},
};

static const struct attention *find_attention(const struct fm_attention *block)
{
    static const struct attention usual = {NULL, usual_kept, usual_divides};
    for (size_t i = 0; i < sizeof attention / sizeof *attention; i++)
        if (attention[i].block == block)
            return &attention[i];
    return &usual;
}

/* ---- caches ---- */

struct fm_runtimes_cache fm_runtimes_cache(const struct fm_config *c, int bits)
{
    const struct attention *a = find_attention(c->attention);
    struct fm_runtimes_cache sum = {0};
    uint64_t bytes = (uint64_t)bits / 8;
    for (int l = 0; l < c->L; l++) {
        struct kept k = a->kept(c, l);
        *(k.window > 0 ? &sum.window_token : &sum.token) += k.token * bytes;
        sum.window = k.window > 0 ? k.window : sum.window;
        sum.fixed += k.short_state * bytes + k.long_state * sizeof(float);
    }
    return sum;
}

uint64_t fm_runtimes_cache_bytes(const struct fm_runtimes_cache *cache, uint64_t tokens)
{
    uint64_t seen = tokens < (uint64_t)cache->window ? tokens : (uint64_t)cache->window;
    return cache->token * tokens + cache->window_token * seen + cache->fixed;
}

/* ---- modelling files ---- */

const char *fm_runtimes_lacking(const struct fm_config *c)
{
    if (c->attention == &fm_deltanet)
        return "have no linear attention";
    if (c->attention == &fm_shortconv)
        return "have no short convolutions";
    if (c->attention == &fm_gqa && (c->gqa->window_groups > 0 || c->gqa->D > 0))
        return "assume that all layers have the same key heads";
    if (c->attention == &fm_mla && c->mla && c->mla->index_heads > 0)
        return "give sparse attention no mask";
    return NULL;
}

const char *fm_runtimes_no_vllm(const struct fm_config *c, bool code)
{
    bool differ = false;
    for (int l = 0; l < c->L && c->attention == &fm_gqa; l++)
        differ = differ || fm_gqa_heads(c, l) != c->Q;
    return code && differ
               ? "its Transformers backend assumes that all layers have the same query heads,\n"
                 "and stops"
               : NULL;
}

const char *fm_runtimes_no_sglang(const struct fm_config *c, bool code)
{
    if (code && c->attention == &fm_mla)
        return "its Transformers backend assumes that values are as wide as the rotated part of\n"
               "keys, and stops.  Its own code for this architecture serves `--layout uniform` of "
               "the same bundle";
    if (!code && c->family == &fm_qwen3_moe && c->tied)
        return "its own Qwen3-MoE code gives the same output for every input if the output head "
               "is\n"
               "tied to the embeddings.  Export `--layout ragged`";
    return NULL;
}

/* True if it has attention sinks. vLLM's backend supports them, but SGLang 0.5.23's ignores
 * them. */
static bool has_sinks(const struct fm_config *c)
{
    return c->attention == &fm_gqa && c->gqa->sinks;
}

/* True if layers have windows or different numbers of query heads. The backend of SGLang 0.5.23
 * attends to one position more than the window and gives all layers the same heads. */
static bool layers_differ(const struct fm_config *c)
{
    bool differ = false;
    for (int l = 0; l < c->L && c->attention == &fm_gqa; l++)
        differ = differ || fm_gqa_window(c, l) > 0 || fm_gqa_heads(c, l) != c->Q;
    return differ;
}

bool fm_runtimes_package(const struct fm_config *c, const struct fm_layout *layout)
{
    bool own = layout->sglang_package || has_sinks(c) || layers_differ(c);
    return c->head_bias || (layout->code && own);
}

/* ---- tensor parallelism ---- */

/* True if every width is a multiple of `part`. */
static bool splits_experts(const struct fm_config *c, const uint32_t *stored, uint32_t part)
{
    for (size_t i = 0; i < (size_t)c->M * (size_t)c->E; i++)
        if (stored[i] % part != 0)
            return false;
    return true;
}

uint64_t fm_runtimes_tp_degrees(const struct fm_config *c, const struct fm_layout *layout,
                                const uint32_t *stored, uint32_t quantum)
{
    bool stock = !layout->code;
    int shared = fm_layouts_shared(layout, c, fm_layouts_widest(c, stored));
    int most = stock || (!fm_runtimes_lacking(c) && !has_sinks(c)) ? FM_TP_DEGREES_MAX : 1;
    const struct attention *a = find_attention(c->attention);
    uint64_t tp_degrees = 0;
    if (layout->split == FM_SPLIT_NONE)
        return 0;
    for (int d = 1; d <= most; d++)
        if (a->divides(c, d, stock) && c->dense % d == 0 && shared % d == 0 &&
            (layout->split == FM_SPLIT_HEADS || splits_experts(c, stored, (uint32_t)d * quantum)))
            tp_degrees |= (uint64_t)1 << (d - 1);
    return tp_degrees;
}

void fm_runtimes_print(char text[FM_TP_DEGREES_TEXT], uint64_t tp_degrees, const char *separator)
{
    size_t at = 0;
    snprintf(text, FM_TP_DEGREES_TEXT, "none");
    for (int d = 1; d <= FM_TP_DEGREES_MAX; d++)
        if (tp_degrees >> (d - 1) & 1)
            at += (size_t)snprintf(text + at, FM_TP_DEGREES_TEXT - at, "%s%d", at ? separator : "",
                                   d);
}

/* ---- cards ---- */

const uint64_t fm_runtimes_cards[FM_CARDS] = {24000000000, 48000000000, 80000000000};

uint64_t fm_runtimes_card_space(uint64_t card)
{
    return card / 10 * 9;
}

int fm_runtimes_card(uint64_t weights, const struct fm_runtimes_cache *cache, uint64_t tokens)
{
    uint64_t need = weights + fm_runtimes_cache_bytes(cache, tokens);
    for (int i = 0; i < FM_CARDS; i++)
        if (need <= fm_runtimes_card_space(fm_runtimes_cards[i]))
            return i;
    return -1;
}

/* ---- llama.cpp ---- */

bool fm_runtimes_llama(const struct fm_config *c)
{
    const struct fm_gqa *g = c->gqa;
    if (c->attention != &fm_gqa || find_family(c->family)->gguf_router != c->router ||
        c->M < c->L || g->clip > 0 || g->window > 0 || g->rope.scale != 1 ||
        g->rope.factor[g->rope.R / 2 - 1] != 1)
        return false;
    return g->qk_norm != FM_QK_NORM_FULL || (c->G == c->Q && c->eps == 1e-5F);
}
