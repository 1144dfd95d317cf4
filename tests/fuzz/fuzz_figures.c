/* Fuzz the reader of the figures for a page.  Our tools write them with --json, and they may belong
 * to a family other than the page's. */
#include "tests/fuzz/fuzz.h"

#include "formats/json/json.h"
#include "lib/page/pageresults.h"

static const char config[] =
    "{\"model_type\":\"mixtral\",\"architectures\":[\"MixtralForCausalLM\"],\"hidden_size\":16,"
    "\"intermediate_size\":8,\"num_hidden_layers\":2,\"num_attention_heads\":2,"
    "\"num_key_value_heads\":1,\"num_local_experts\":4,\"num_experts_per_tok\":2,"
    "\"vocab_size\":32,\"rms_norm_eps\":1e-5,\"rope_theta\":1e4,\"hidden_act\":\"silu\","
    "\"max_position_embeddings\":64}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct fm_pagefacts facts;
    static struct fm_list_row row[2] = {
        {.budget = 0, .bytes = 100000, .form = {{.tensors = 1000}}},
        {.budget = 0.25, .bytes = 90000, .form = {{.tensors = 800}}}};
    struct fm_err err = {0};
    if (!facts.list.rows) {
        must(fm_config_parse(&facts.opened.config, config, sizeof config - 1, &err) == FM_OK);
        facts.list.M = 2;
        facts.list.experts = 4;
        facts.list.channels = 8;
        facts.list.row = row;
        facts.list.rows = 2;
        facts.list.kinds = 1;
        facts.list.kind[0].name = "ragged";
        facts.opened.dtype = FM_BF16;
    }
    cJSON *array = cJSON_CreateArray();
    int rc = fm_pageresults_add(array, fuzz_file(data, size), &facts, &err);
    must(rc == FM_OK || ((rc == FM_EFORMAT || rc == FM_ECONFIG) && err.text[0]));
    if (rc == FM_OK) {
        char *text = fm_json_print(array);
        must(text != NULL);
        free(text);
    }
    cJSON_Delete(array);
    return 0;
}

FUZZ_MUTATOR(fuzz_json_or_bytes)
FUZZ_MAIN
