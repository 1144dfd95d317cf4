/*
 * What other programs make of an export.
 *
 * Tensor parallelism: over how many devices stock servers can split it, as vLLM and SGLang check it
 * when they load.  A device gets whole query heads and whole key/value heads; where there are fewer
 * of the latter than devices, stock code repeats them (devices must be a multiple of them); with
 * our modelling file vLLM does, SGLang does not, and what one of them does not is not listed; nor
 * does stock code that gathers the keys again for one norm over all heads (OLMoE: vLLM alone splits
 * it, SGLang norms a part by the weights of all and stops).  With our modelling file vLLM gives
 * every device the sinks of all heads, and stops; linear attention has no server.  Latents are
 * whole on every device, and heads are made of them.  Dense layers and shared experts are split by
 * their channels.  Where experts are split too (FM_SPLIT_EXPERTS) the width of each is a
 * multiple of the degree; where every device has them whole there are no more rules, and no less
 * memory.
 *
 * llama.cpp: its converter takes some keys of config.json and its graphs have the rest built in, so
 * a model whose config says otherwise would convert and run as another one, or not convert.  As of
 * the llama.cpp in llama-cpp-python 0.3.36:
 *
 *   PhiMoE                      another norm and another router
 *   routers that choose by score  (block "scored") known to it, but never compared with ours
 *   latent attention (block "mla")  the same; norms of latents take rms_norm_eps there
 *   Gated DeltaNet (block "deltanet")  the same
 *   Qwen with dense layers      no tensors for them: "Can not map tensor"
 *   norm_topk_prob              true for Mixtral and Qwen3-MoE, false for Qwen2-MoE and OLMoE,
 *                               whatever config.json says
 *   clip_qkv (OLMoE), sliding_window (Mixtral)      not converted
 *   OLMoE's rms_norm_eps        1e-5
 *   OLMoE's norm of keys        as wide as the hidden state: as many key heads as query heads
 */
#ifndef FM_RUNTIMES_H
#define FM_RUNTIMES_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/export/layouts.h"
#include "lib/model/model.h"

#define FM_TP_DEGREES_MAX 64

/* Bit d - 1 is set where degree d, up to FM_TP_DEGREES_MAX, is possible; stored (M, E) is how many
 * channels of each expert the files have, of which a device takes a multiple of `quantum`. */
uint64_t fm_runtimes_tp_degrees(const struct fm_config *config, const struct fm_layout *layout,
                                const uint32_t *stored, uint32_t quantum);

/*
 * Bytes that a server keeps of one sequence between two steps, all layers together, where its cache
 * has numbers of so many bits: `token` for each token, `window_token` for each of the last
 * `window`, `fixed` for any length.  A model has windows of one size.
 */
struct fm_runtimes_cache {
    uint64_t token, window_token, fixed;
    int window;
};
struct fm_runtimes_cache fm_runtimes_cache(const struct fm_config *config, int bits);
uint64_t fm_runtimes_cache_bytes(const struct fm_runtimes_cache *cache, uint64_t tokens);

/* "1, 2, 4" with that separator, "none" without any. */
#define FM_TP_DEGREES_TEXT 320
void fm_runtimes_print(char text[FM_TP_DEGREES_TEXT], uint64_t tp_degrees, const char *separator);

/*
 * Cards, by the size they are sold under.  A GB is 10^9 bytes here, which each of them has and some
 * more; nine tenths are for weights and cache, which is what vLLM takes unless told otherwise, and
 * the rest is for activations and the driver.
 */
#define FM_CARDS 3
extern const uint64_t fm_runtimes_cards[FM_CARDS]; /* bytes, the smallest first */
uint64_t fm_runtimes_card_space(uint64_t card);

/* The smallest card that has space for weights of so many bytes and the cache of one sequence of
 * `tokens`; -1: none of them. */
int fm_runtimes_card(uint64_t weights, const struct fm_runtimes_cache *cache, uint64_t tokens);

/*
 * Servers run a modelling file by their Transformers backends, which have attention of their own.
 * False: these have no linear attention (Gated DeltaNet); vLLM 0.32 and SGLang 0.5.23 say so.
 */
bool fm_runtimes_modeling(const struct fm_config *config);

/* Why SGLang 0.5.23 does not run it, by our modelling file (`code`) or by its own code, for model
 * cards; NULL: it does. */
const char *fm_runtimes_no_sglang(const struct fm_config *config, bool code);

/* Does SGLang need the suite's package fm_sglang for it: for the experts of that layout, for a bias
 * of the head, for sinks beside our modelling file? */
bool fm_runtimes_package(const struct fm_config *config, const struct fm_layout *layout);

/* The architecture by which servers know the family, where transformers 5 saves class_name
 * ForCausalLM and they do not know that; NULL: they do. */
const char *fm_runtimes_architecture(const struct fm_model_family *family);

/* Why its experts should have widths of their own, for model cards; NULL: it gains no
 * more from them than others. */
const char *fm_runtimes_unequal(const struct fm_model_family *family);

/* Does llama.cpp compute the same function from a checkpoint under stock names? */
bool fm_runtimes_llama(const struct fm_config *config);

#endif
