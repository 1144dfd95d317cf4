/* Fuzz the reader of config.json: the family, its sizes and quantization_config.  Sizes that are
 * read must be positive and agree with each other. */
#include "tests/fuzz/fuzz.h"

#include "formats/quant/quant.h"
#include "lib/family/family.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fm_config config;
    struct fm_err err = {0};
    int rc = fm_config_parse(&config, (const char *)data, size, &err);
    must(rc == FM_OK || ((rc == FM_EFORMAT || rc == FM_ECONFIG) && err.text[0]));
    if (rc != FM_OK)
        return 0;
    must(config.L > 0 && config.L <= FM_LAYERS_MAX && config.M > 0 && config.M <= config.L);
    must(config.E > 0 && config.K > 0 && config.K <= config.E && config.H > 0 && config.I > 0);
    for (int m = 0; m < config.M; m++)
        must(config.moe[m] >= 0 && config.moe[m] < config.L);
    must(fm_config_params_active(&config, NULL) <= fm_config_params(&config, NULL));
    must(fm_scheme_group(&config.scheme) > 0);
    for (int l = 0; l < config.L; l += config.L - 1 ? config.L - 1 : 1)
        for (const struct fm_weight *w = config.family->weight; fm_weights_more(w); w++)
            (void)fm_weights_exists(&config, w, l);
    fm_config_release(&config);
    return 0;
}

FUZZ_MUTATOR(fuzz_json_or_bytes)
FUZZ_MAIN
