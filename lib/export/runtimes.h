/*
 * How other programs handle an export.
 *
 * Tensor parallelism: the numbers of devices over which stock servers can split an export, as vLLM
 * and SGLang check when they load it.  A degree is listed only if both support it; the exception is
 * OLMoE, which SGLang cannot split (it applies the weights of the norm over all heads to a part of
 * them, and stops).  A device gets whole query heads and whole key/value heads.  If there are fewer
 * key heads than devices, stock code repeats key heads (the number of devices must be a multiple of
 * the number of key heads); with our modelling file vLLM repeats them and SGLang does not.  One
 * norm over all key heads would count a repeated head twice, so heads with such a norm (OLMoE) are
 * never repeated.  With our modelling file only degree 1 is listed for models with attention sinks,
 * because vLLM gives every device the sinks of all heads and stops, and for attention that no
 * server runs with our modelling file (fm_runtimes_lacking).  Every device has the whole latents of
 * MLA and computes its heads from them.  Dense layers and shared experts are split by channels.  If
 * experts are split too (FM_SPLIT_EXPERTS), the width of each must be a multiple of the degree; if
 * every device has all experts whole, there are no further rules, and their memory is not divided.
 *
 * llama.cpp: its converter reads only some keys of config.json, and its graphs hard-code the rest,
 * so a model with other settings would run as a different model, or not be converted.  In the
 * llama.cpp of llama-cpp-python 0.3.36: PhiMoE has a different norm and a different router.
 * Routers that choose by score (block "scored"), latent attention (block "mla", whose norms of
 * latents use rms_norm_eps) and Gated DeltaNet (block "deltanet") are supported but were not
 * compared with ours.  Qwen with dense layers has no tensors for them: "Can not map tensor".
 * norm_topk_prob is true for Mixtral and Qwen3-MoE, false for Qwen2-MoE and OLMoE, whatever
 * config.json says. clip_qkv (OLMoE) and sliding_window (Mixtral) are not converted.  OLMoE's
 * rms_norm_eps is 1e-5, and its norm of keys has the width of the hidden state, so that it needs as
 * many key heads as query heads.
 */
#ifndef FM_RUNTIMES_H
#define FM_RUNTIMES_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/export/layouts.h"

#define FM_TP_DEGREES_MAX 64

/* Bit d - 1 is set if degree d, up to FM_TP_DEGREES_MAX, is possible; stored (M, E) is the
 * number of channels of each expert in the files, of which a device takes a multiple of
 * `quantum`. */
uint64_t fm_runtimes_tp_degrees(const struct fm_config *config, const struct fm_layout *layout,
                                const uint32_t *stored, uint32_t quantum);

/*
 * Bytes that a server keeps for one sequence between two steps, for all layers together, if its
 * cache has numbers of this many bits: `token` for each token, `window_token` for each of the last
 * `window`, `fixed` for any length.  A model has windows of one size.
 */
struct fm_runtimes_cache {
    uint64_t token, window_token, fixed;
    int window;
};
struct fm_runtimes_cache fm_runtimes_cache(const struct fm_config *config, int bits);
uint64_t fm_runtimes_cache_bytes(const struct fm_runtimes_cache *cache, uint64_t tokens);

/* "1, 2, 4" with that separator; "none" if no degree is possible. */
#define FM_TP_DEGREES_TEXT 320
void fm_runtimes_print(char text[FM_TP_DEGREES_TEXT], uint64_t tp_degrees, const char *separator);

/*
 * GPUs, by their nominal memory.  A GB is 10^9 bytes here, slightly less than they have; nine
 * tenths are for weights and cache, vLLM's default, and the rest is for activations and the driver.
 */
#define FM_CARDS 3
extern const uint64_t fm_runtimes_cards[FM_CARDS]; /* bytes, the smallest first */
uint64_t fm_runtimes_card_space(uint64_t card);

/* The smallest GPU with memory for this many bytes of weights and the cache of one sequence of
 * `tokens`; -1: none. */
int fm_runtimes_card(uint64_t weights, const struct fm_runtimes_cache *cache, uint64_t tokens);

/*
 * Servers run a modelling file in their Transformers backends, which have their own attention.  The
 * reason why the backends of vLLM 0.32 and SGLang 0.5.23 cannot run this model's attention, for
 * model cards ("have no linear attention"); NULL if they can.
 */
const char *fm_runtimes_lacking(const struct fm_config *config);

/* The reason why vLLM 0.32 or SGLang 0.5.23 does not run this model, with our modelling file
 * (`code`) or with the server's own code, for model cards; NULL if it does. */
const char *fm_runtimes_no_vllm(const struct fm_config *config, bool code);
const char *fm_runtimes_no_sglang(const struct fm_config *config, bool code);

/* True if SGLang needs the suite's package fm_sglang for the export: for the experts of that
 * layout, for a bias of the head, or with our modelling file for attention with sinks, windows or
 * different numbers of query heads in layers. */
bool fm_runtimes_package(const struct fm_config *config, const struct fm_layout *layout);

/* The architecture name that servers use for the family, if transformers 5 saves class_name
 * followed by ForCausalLM and servers do not accept that; else NULL. */
const char *fm_runtimes_architecture(const struct fm_model_family *family);

/* The reason to prefer individual widths for the family's experts, for model cards; NULL: none. */
const char *fm_runtimes_unequal(const struct fm_model_family *family);

/* True if llama.cpp computes the same function from a checkpoint under stock names. */
bool fm_runtimes_llama(const struct fm_config *config);

#endif
