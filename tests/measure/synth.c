/*
 * Blocks of a tensor are a function of (seed, tensor, block), so a checkpoint of any size is made
 * in little memory and is the same everywhere.  Values are scaled so that activations keep their
 * size through the layers: measurements of a model whose activations overflow would be meaningless.
 */
#include "lib/masks/methods.h"
#include "tests/measure/synth.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/file/file.h"
#include "formats/json/json.h"
#include "formats/tensor/carry.h"
#include "formats/tensor/safetensors.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "lib/bench/shapes.h"
#include "lib/family/family.h"
#include "lib/model/model.h"
#include "lib/stage/budgets.h"
#include "lib/stage/ranking.h"
#include "lib/stage/stage.h"

#define BLOCK (1 << 16) /* elements generated at a time */
enum { CONFIG_BYTES = 2048 };

static struct fm_synth named(const struct fm_shape *x, int layers)
{
    return (struct fm_synth){.H = x->H,
                             .I = x->I,
                             .E = x->E,
                             .K = x->K,
                             .L = layers > 0 ? layers
                                  : x->L < 2 ? x->L
                                             : 2,
                             .V = 4096,
                             .T = 512,
                             .Q = x->Q,
                             .G = x->G,
                             .C = x->C,
                             .dtype = FM_BF16};
}

/* Set heads: their width is the largest power of two up to 64 that divides H; four query heads
 * share a key head if their number is a multiple of four.  False if H is odd. */
static bool choose_heads(struct fm_synth *s)
{
    s->C = 64;
    while (s->H % s->C)
        s->C /= 2;
    if (s->C < 2)
        return false;
    s->Q = s->H / s->C;
    s->G = s->Q % 4 ? s->Q : s->Q / 4;
    return true;
}

int fm_synth_parse(struct fm_synth *s, const char *shape, int layers, struct fm_err *err)
{
    char rest, names[256];
    const struct fm_shape *known = fm_shapes_find(shape);
    *s = known ? named(known, layers) : (struct fm_synth){.dtype = FM_BF16};
    if (known && known->G == 0)
        return fm_fail(err, FM_EUSAGE, "shape '%s' has latent attention", shape);
    if (known)
        return FM_OK;
    if (sscanf(shape, "%d,%d,%d,%d,%d,%d,%d%c", &s->H, &s->I, &s->E, &s->K, &s->L, &s->V, &s->T,
               &rest) != 7)
        return fm_fail(err, FM_EUSAGE,
                       "shape '%s' is not seven numbers H,I,E,K,L,V,T, or one of %s", shape,
                       fm_shapes_names(names, sizeof names));
    if (layers)
        s->L = layers;
    const int value[] = {s->H, s->I, s->E, s->K, s->L, s->V, s->T};
    const int limit[] = {1 << 16, 1 << 20, 1 << 10, s->E, 1 << 10, 1 << 20, 1 << 20};
    for (int i = 0; i < 7; i++)
        if (value[i] < 1 || value[i] > limit[i])
            return fm_fail(err, FM_EUSAGE, "shape '%s': %c is %d (limit %d)", shape, "HIEKLVT"[i],
                           value[i], limit[i]);
    if (!choose_heads(s))
        return fm_fail(err, FM_EUSAGE, "shape '%s': H is odd; heads need an even width", shape);
    return FM_OK;
}

/* --- the tensors --- */

struct table {
    struct fm_tensor *tensor;
    size_t count;
    char (*name)[FM_WEIGHT_NAME_BYTES];
};

static void config_text(char text[CONFIG_BYTES], const struct fm_synth *s)
{
    snprintf(text, CONFIG_BYTES,
             "{\n  \"architectures\": [\"MixtralForCausalLM\"],\n  \"head_dim\": %d,\n"
             "  \"hidden_act\": \"silu\",\n  \"hidden_size\": %d,\n  \"intermediate_size\": %d,\n"
             "  \"max_position_embeddings\": %d,\n  \"model_type\": \"mixtral\",\n"
             "  \"num_attention_heads\": %d,\n  \"num_experts_per_tok\": %d,\n"
             "  \"num_hidden_layers\": %d,\n  \"num_key_value_heads\": %d,\n"
             "  \"num_local_experts\": %d,\n  \"rms_norm_eps\": 1e-05,\n"
             "  \"rope_theta\": 10000.0,\n  \"sliding_window\": null,\n"
             "  \"tie_word_embeddings\": false,\n  \"torch_dtype\": \"%s\",\n"
             "  \"vocab_size\": %d\n}\n",
             s->C, s->H, s->I, s->T, s->Q, s->K, s->L, s->G, s->E, fm_dtype_torch(s->dtype), s->V);
}

/* The config as the tools parse it; the caller releases it.  Parsing cannot fail, because the shape
 * was checked before. */
static struct fm_config config_of(const struct fm_synth *s)
{
    char text[CONFIG_BYTES];
    struct fm_config c;
    struct fm_err err = {0};
    config_text(text, s);
    int rc = fm_config_parse(&c, text, strlen(text), &err);
    assert(!rc);
    (void)rc;
    return c;
}

/* The tensors of layer l (-1: outside the layers) in the table's order; if `t` has no memory for
 * them, they are only counted. */
static void add_rows(struct table *t, const struct fm_config *c, enum fm_dtype dtype, int l)
{
    for (const struct fm_weight *w = c->family->weight; fm_weights_more(w); w++) {
        if (!w->name[FM_NAMING_STOCK] || (w->part == FM_PART_NONLAYER) != (l < 0) ||
            !fm_weights_exists(c, w, l))
            continue;
        int experts = fm_weights_per_expert(w, FM_NAMING_STOCK) ? c->E : 1;
        for (int e = 0; e < experts; e++, t->count++) {
            if (!t->name)
                continue;
            struct fm_tensor *x = &t->tensor[t->count];
            fm_weights_name(t->name[t->count], w->name[FM_NAMING_STOCK], l, e);
            *x = (struct fm_tensor){.name = t->name[t->count], .dtype = dtype};
            x->dims = fm_weights_shape(x->shape, c, w, l, (uint64_t)c->I);
        }
    }
}

static int list_tensors(struct table *t, const struct fm_config *c, enum fm_dtype dtype,
                        struct fm_err *err)
{
    for (int l = -1; l < c->L; l++)
        add_rows(t, c, dtype, l);
    t->tensor = fm_alloc(t->count, sizeof *t->tensor, "the synthetic tensors", err);
    t->name = t->tensor ? fm_alloc(t->count, sizeof *t->name, "the synthetic names", err) : NULL;
    if (!t->name)
        return err->code;
    t->count = 0;
    for (int l = -1; l < c->L; l++)
        add_rows(t, c, dtype, l);
    return FM_OK;
}

static int build_table(struct table *t, const struct fm_synth *s, struct fm_err *err)
{
    struct fm_config c = config_of(s);
    int rc = list_tensors(t, &c, s->dtype, err);
    fm_config_release(&c);
    return rc;
}

uint64_t fm_synth_bytes(const struct fm_synth *s)
{
    struct fm_config c = config_of(s);
    uint64_t bytes = fm_config_params(&c, NULL) * (uint64_t)fm_dtype_bits(s->dtype) / 8;
    fm_config_release(&c);
    return bytes;
}

/* --- their values --- */

/* Block `b` of tensor `t`: uniform, scaled so that a product keeps the size of its input; vectors,
 * such as norms, are 1. */
static void fill_block(float *x, const struct fm_tensor *tensor, uint64_t t, uint64_t b,
                       uint64_t seed)
{
    float scale = tensor->dims == 2 ? sqrtf(3.0f / (float)tensor->shape[1]) / 32768.0f : 0;
    for (uint64_t i = 0; i < BLOCK; i += 8) {
        uint32_t w[4];
        fm_rng_words(w, seed + t, FM_STREAM_BENCH, b * BLOCK + i);
        for (int j = 0; j < 4; j++) {
            x[i + 2 * (uint64_t)j] = (float)((int)(w[j] & 0xffff) - 32768) * scale;
            x[i + 2 * (uint64_t)j + 1] = (float)((int)(w[j] >> 16) - 32768) * scale;
        }
    }
    for (int i = 0; tensor->dims == 1 && i < BLOCK; i++)
        x[i] = 1;
}

static int write_tensor(struct fm_output *o, const struct fm_tensor *tensor, uint64_t t,
                        uint64_t seed, float *x, void *bytes, struct fm_err *err)
{
    uint64_t left = fm_tensor_count(tensor);
    size_t width = (size_t)fm_dtype_bits(tensor->dtype) / 8;
    for (uint64_t b = 0; left > 0; b++) {
        size_t n = left < BLOCK ? (size_t)left : BLOCK;
        fill_block(x, tensor, t, b, seed);
        fm_dtype_from_f32(bytes, x, tensor->dtype, n);
        if (fm_output_write(o, bytes, n * width, err))
            return err->code;
        left -= n;
    }
    return FM_OK;
}

static int write_weights(struct fm_output *o, const struct fm_synth *s, struct table *t,
                         const struct fm_run_options *run, struct fm_err *err)
{
    char *header = NULL;
    uint64_t header_bytes, file_bytes, done;
    float *x = fm_alloc(BLOCK, 2 * sizeof *x, "a block of weights", err);
    if (!x)
        return err->code;
    int rc =
        fm_safetensors_plan(t->tensor, t->count, NULL, &header, &header_bytes, &file_bytes, err);
    if (!rc)
        rc = fm_output_reserve(o, file_bytes, err);
    if (!rc)
        rc = fm_output_write(o, header, header_bytes, err);
    done = header_bytes;
    for (size_t i = 0; !rc && i < t->count; i++) {
        rc = write_tensor(o, &t->tensor[i], i, s->seed, x, x + BLOCK, err);
        done += t->tensor[i].size;
        fm_run_report(run, "synthesise", done, file_bytes, "bytes");
        if (!rc && run->stop && *run->stop)
            rc = fm_fail(err, FM_ESAVED, "interrupted");
    }
    free(header);
    free(x);
    return rc;
}

/* Write config.json. */
static int write_config(struct fm_outdir *d, const struct fm_synth *s, struct fm_err *err)
{
    char text[CONFIG_BYTES];
    struct fm_output o;
    config_text(text, s);
    int rc = fm_outdir_file(d, &o, "config.json", err);
    return !rc ? fm_output_end(&o, fm_output_write(&o, text, strlen(text), err), err) : rc;
}

int fm_synth_model(const struct fm_synth *s, const char *path, const struct fm_run_options *run,
                   struct fm_err *err)
{
    struct table t = {0};
    struct fm_outdir d;
    struct fm_output o;
    int rc = fm_outdir_open(&d, path, NULL, err);
    if (rc)
        return rc;
    if (write_config(&d, s, err) || build_table(&t, s, err) ||
        fm_outdir_file(&d, &o, "model.safetensors", err) ||
        fm_output_end(&o, write_weights(&o, s, &t, run, err), err) || fm_outdir_commit(&d, err)) {
        rc = err->code;
        fm_outdir_abandon(&d);
    }
    free(t.tensor);
    free(t.name);
    return rc;
}

/* --- tokens and stages --- */

int fm_synth_tokens(const struct fm_synth *s, int sequences, const char *path, struct fm_err *err)
{
    char header[128];
    struct fm_output o;
    size_t count = (size_t)sequences * (size_t)s->T;
    int32_t *ids = fm_alloc(count, sizeof *ids, "the synthetic tokens", err);
    if (!ids)
        return err->code;
    for (size_t i = 0; i < count; i++)
        ids[i] = (int32_t)fm_rng_below(s->seed, FM_STREAM_BENCH, i, (uint64_t)s->V);
    memset(header, ' ', sizeof header);
    memcpy(header, "\x93NUMPY\x01\x00\x76\x00", 10);
    int n =
        snprintf(header + 10, 117, "{'descr': '<i4', 'fortran_order': False, 'shape': (%d, %d), }",
                 sequences, s->T);
    header[10 + n] = ' ';
    header[127] = '\n';
    int rc = fm_output_open(&o, path, false, false, err);
    if (!rc) {
        rc = fm_output_write(&o, header, sizeof header, err);
        if (!rc)
            rc = fm_output_write(&o, ids, count * sizeof *ids, err);
        rc = fm_output_end(&o, rc, err);
    }
    free(ids);
    return rc;
}

static int draw_ranking(struct fm_ranking *r, const struct fm_config *config, uint64_t seed,
                        struct fm_err *err)
{
    if (fm_ranking_init(r, config->M, 0, config->E, config->I, err))
        return err->code;
    size_t experts = (size_t)r->M * (size_t)r->E;
    for (size_t i = 0; i < experts * (size_t)r->I; i++)
        r->scores[i] = fm_rng_uniform(seed, FM_STREAM_BENCH, i);
    for (size_t i = 0; i < experts; i++)
        r->tokens[i] = 1;
    return fm_ranking_sort(r, err);
}

struct stage {
    struct fm_hfdir dir;
    struct fm_config config;
    struct fm_ranking ranking;
    struct fm_actions actions;
    struct fm_masks masks;
    cJSON *manifest;
    void *data[2]; /* ranking, masks */
    size_t size[2];
};

static int make_family(struct stage *g, uint64_t seed, struct fm_err *err)
{
    const struct fm_decimal step = {1, 10}, until = {8, 10};
    const struct fm_config *c = &g->config;
    int rc = draw_ranking(&g->ranking, c, seed, err);
    if (!rc)
        rc = fm_actions_parse(&g->actions, "0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1", c->I, 1, err);
    fm_masks_init(&g->masks, c->M, c->E, c->I);
    if (!rc)
        rc = fm_masks_full(&g->masks, &fm_method_saliency, err);
    return rc ? rc
              : fm_masks_saliency(&g->masks, &g->actions, g->ranking.scores, g->ranking.order,
                                  &step, &until, FM_PER_EXPERT, err);
}

static int make_manifest(struct stage *g, const atomic_int *stop, struct fm_err *err)
{
    char dropped[FM_STAGE_DROPPED_BYTES];
    cJSON *model = NULL;
    /* All weights have the same type, so any tensor gives it. */
    enum fm_dtype dtype = g->dir.shard[0].st.tensor[0].dtype;
    struct fm_reading_sums sums;
    struct fm_model *weights = NULL;
    int rc = fm_model_open_dir(&weights, &g->dir, 0, err);
    if (!rc)
        rc = fm_model_sums(weights, &sums, stop, err);
    fm_model_close(weights);
    if (!rc)
        rc = fm_stage_model_identity(&model, &g->dir, &g->config, dtype, &sums, err);
    if (rc)
        return rc;
    g->manifest = fm_stage_manifest(FM_STAGE_TRAIN, NULL, model, dropped);
    fm_json_add_object(fm_stage_history(g->manifest, "fm-rank"), "options");
    fm_json_add_object(fm_stage_history(g->manifest, "fm-train"), "options");
    rc = fm_ranking_pack(&g->ranking, g->config.moe, g->config.L, &g->data[0], &g->size[0], err);
    return rc ? rc
              : fm_budgets_pack(&g->masks, &g->actions, &g->config,
                                fm_stage_tensor_bytes(&g->dir, &g->config), dtype, g->manifest,
                                &g->data[1], &g->size[1], err);
}

int fm_synth_stage(const char *model, const char *path, uint64_t seed, const atomic_int *stop,
                   struct fm_err *err)
{
    struct stage g = {0};
    int rc = fm_hfdir_open(&g.dir, model, err);
    if (rc)
        return rc;
    if (fm_carry_list(&g.dir, NULL, err) ||
        fm_config_parse(&g.config, g.dir.config, g.dir.config_bytes, err) ||
        make_family(&g, seed, err) || make_manifest(&g, stop, err)) {
        rc = err->code;
        goto out;
    }
    const struct fm_stage_member member[] = {
        {FM_MEMBER_RANKING, g.data[0], g.size[0]},
        {FM_MEMBER_MASKS, g.data[1], g.size[1]},
    };
    rc = fm_stage_write(&(struct fm_run_options){.outputs.path = path}, FM_STAGE_TRAIN, g.manifest,
                        NULL, &g.dir, member, 2, err);
    g.manifest = NULL;
out:
    cJSON_Delete(g.manifest);
    free(g.data[0]);
    free(g.data[1]);
    fm_masks_release(&g.masks);
    fm_ranking_release(&g.ranking);
    fm_hfdir_close(&g.dir);
    fm_config_release(&g.config);
    return rc;
}
