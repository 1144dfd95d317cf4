/*
 * The list of families, and lookup by name.
 *
 * fm-hacking(7) describes how to add a family.
 *
 * In every family, only channels of routed experts are pruned.  Routers, shared experts, dense
 * layers, norms and biases are read, used in computation, and copied (an adapter can change
 * routers).
 */
#include "lib/family/family.h"

#include <stdio.h>
#include <string.h>

#include "lib/family/extra.h"

#define POINT(name) &fm_##name,
static const struct fm_model_family *const families[] = {FM_FAMILY_ROWS(POINT)};
#define FAMILIES (sizeof families / sizeof *families)

const struct fm_model_family *fm_families_find(const char *name)
{
    for (size_t i = 0; i < FAMILIES; i++)
        if (strcmp(name, families[i]->name) == 0 ||
            (families[i]->alias && strcmp(name, families[i]->alias) == 0))
            return families[i];
    return NULL;
}

/* Keys that any family may have: those of transformers' base class, and those that most families'
 * classes share. */
static const char usual_keys[] =
    "architectures attention_bias attention_dropout bos_token_id chunk_size_feed_forward "
    "compression_config dtype eos_token_id head_dim hidden_act hidden_dropout hidden_size id2label "
    "initializer_range intermediate_size is_encoder_decoder label2id layer_types "
    "max_position_embeddings max_window_layers model_type moe_intermediate_size norm_topk_prob "
    "num_attention_heads num_experts num_experts_per_tok num_hidden_layers num_key_value_heads "
    "num_local_experts original_max_position_embeddings output_attentions output_hidden_states "
    "output_router_logits pad_token_id partial_rotary_factor pretraining_tp problem_type "
    "quantization_config return_dict rms_norm_eps rope_parameters rope_scaling rope_theta "
    "router_aux_loss_coef sep_token_id sliding_window tie_word_embeddings torch_dtype "
    "transformers_version use_cache use_sliding_window vocab_size";

/* Whether `key` is one of the words of a list. */
static bool has_word(const char *list, const char *key)
{
    size_t n = strlen(key);
    for (const char *at = list; *at;) {
        size_t word = strcspn(at, " ");
        if (word == n && memcmp(at, key, n) == 0)
            return true;
        at += word;
        at += *at == ' ';
    }
    return false;
}

static bool is(const char *key, const char *name)
{
    return name && strcmp(key, name) == 0;
}

bool fm_families_knows(const struct fm_model_family *f, const char *key)
{
    if (has_word(usual_keys, key) || has_word(f->keys, key) || is(key, f->width_key) ||
        is(key, f->width_twin) || is(key, f->experts_key) || is(key, f->chosen_key) ||
        is(key, f->shared_key))
        return true;
    for (const struct fm_keys_only *only = f->only; only && only->key; only++)
        if (is(key, only->key))
            return true;
    if (!f->extra)
        return false;
    for (const char *const *count = f->extra->count; count && *count; count++)
        if (is(key, *count))
            return true;
    return is(key, f->extra->flag);
}

void fm_families_list(char *text, size_t size)
{
    size_t at = 0;
    for (size_t i = 0; i < FAMILIES && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%s%s%s", i ? ", " : "", families[i]->name,
                               families[i]->alias ? ", " : "",
                               families[i]->alias ? families[i]->alias : "");
}
