/*
 * Fuzz the reader of segments.safetensors, the checksums by which exports are verified: an accepted
 * file has a digest for every segment, and can be written again.
 */
#include "tests/fuzz/fuzz.h"

#include "formats/json/json.h"
#include "lib/stage/volumes.h"

static const char config[] =
    "{\"model_type\":\"mixtral\",\"architectures\":[\"MixtralForCausalLM\"],\"hidden_size\":16,"
    "\"intermediate_size\":8,\"num_hidden_layers\":1,\"num_attention_heads\":2,"
    "\"num_key_value_heads\":1,\"num_local_experts\":2,\"num_experts_per_tok\":1,"
    "\"vocab_size\":32,\"rms_norm_eps\":1e-5,\"rope_theta\":1e4,\"hidden_act\":\"silu\","
    "\"max_position_embeddings\":64}";

static void keeps_its_promises(const struct fm_segments *seg)
{
    struct fm_err err = {0};
    void *bytes = NULL;
    size_t size = 0;
    must(seg->S >= 1 && seg->bound[0] == 0 && seg->bound[seg->S] == seg->I);
    for (int s = 0; s <= seg->S; s++)
        must(fm_segments_at(seg, (uint32_t)seg->bound[s]) == s);
    for (size_t i = 0; i < seg->tensors; i++)
        must(fm_segments_find(seg, seg->tensor[i].t.name) == &seg->tensor[i]);
    must(fm_segments_write(seg, &bytes, &size, &err) == FM_OK);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct fm_config model;
    static cJSON *manifest;
    static char name[] = FM_MEMBER_SEGMENTS;
    struct fm_member member = {.name = name,
                               .size = size,
                               .listed = true,
                               .known = true,
                               .digest = fm_digest_of(data, size)};
    struct fm_bundle b = {.member = &member, .members = 1};
    struct fm_segments seg;
    struct fm_err err = {0};
    if (!manifest) {
        static const char text[] = "{\"model\":{\"dtype\":\"BF16\"}}";
        must(fm_config_parse(&model, config, sizeof config - 1, &err) == FM_OK &&
             fm_json_tree(&manifest, text, sizeof text - 1, &err) == FM_OK);
    }
    b.manifest = manifest;
    must(fm_file_open(&b.file, fuzz_file(data, size), &err) == FM_OK);
    int rc = fm_segments_read(&seg, &b, &model, &err);
    must(rc == FM_OK || (rc == FM_EFORMAT && err.text[0]));
    if (rc == FM_OK) {
        keeps_its_promises(&seg);
        fm_segments_release(&seg);
    }
    fm_file_close(&b.file);
    return 0;
}

FUZZ_MUTATOR(fuzz_safetensors)
FUZZ_MAIN
