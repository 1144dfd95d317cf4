/*
 * An adapter is one block of floats: experts one after another, with six thin matrices each, or
 * routers one after another.  Gradients and moments are blocks of the same layout, so the same
 * offset finds a part in each of them.
 */
#include "lib/engine/adapter.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/rng.h"

static size_t expert_index(const struct fm_adapter *a, int m, int e)
{
    assert(m >= 0 && m < a->M && e >= 0 && e < a->E);
    return (size_t)m * (size_t)a->E + (size_t)e;
}

/* Number of floats in a part of an expert with width k. */
static size_t part_count(const struct fm_adapter *a, uint32_t k, enum fm_lora part)
{
    size_t r = (size_t)a->r;
    switch (part) {
    case FM_GATE_A:
    case FM_UP_A:
    case FM_DOWN_B:
        return r * (size_t)a->H;
    case FM_GATE_B:
    case FM_UP_B:
    case FM_DOWN_A:
        return r * (size_t)k;
    case FM_LORA_PARTS:
        break;
    }
    assert(!"unknown part of an adapter");
    return 0;
}

/* Allocate memory for the sizes a->M, a->r and so on; widths (M, E), or NULL: all are `width`. */
static int take(struct fm_adapter *a, const uint32_t *widths, int width, struct fm_err *err)
{
    size_t E = (size_t)a->E, n = (size_t)a->M * E, H = (size_t)a->H, total = 0;
    a->widths = fm_alloc(n, sizeof *a->widths, "adapter widths", err);
    a->offset = fm_alloc(n + 1, sizeof *a->offset, "adapter offsets", err);
    if (!a->widths || !a->offset)
        goto out;
    for (size_t i = 0; i < n; i++) {
        a->widths[i] = widths ? widths[i] : (uint32_t)width;
        size_t per_rank = FM_LORA_PARTS / 2 * (H + a->widths[i]), floats = H + a->biased;
        if (a->down) /* whole layers */
            floats = (i + 1) % E
                         ? 0
                         : (E * a->widths[i] * H * (size_t)fm_dtype_bits(a->dtype) + 31) / 32;
        if ((!a->router && !a->down && !fm_mul(&floats, per_rank, (size_t)a->r)) ||
            !fm_add(&total, total, floats)) {
            fm_fail(err, FM_ENOMEM, "an adapter of rank %d is too large", a->r);
            goto out;
        }
        a->offset[i + 1] = total;
    }
    a->values = fm_alloc(total, sizeof *a->values, "the adapter", err);
    if (a->values)
        return FM_OK;
out:
    fm_adapter_release(a);
    return err->code;
}

int fm_adapter_init(struct fm_adapter *a, int M, int E, int H, int r, float alpha,
                    const uint32_t *widths, struct fm_err *err)
{
    *a = (struct fm_adapter){.M = M, .E = E, .H = H, .r = r, .alpha = alpha};
    return take(a, widths, 0, err);
}

int fm_adapter_init_routers(struct fm_adapter *a, int M, int E, int H, bool biased,
                            struct fm_err *err)
{
    *a = (struct fm_adapter){.router = true, .biased = biased, .M = M, .E = E, .H = H};
    return take(a, NULL, 0, err);
}

int fm_adapter_init_down(struct fm_adapter *a, int M, int E, int H, int I, enum fm_dtype dtype,
                         struct fm_err *err)
{
    *a = (struct fm_adapter){.down = true, .dtype = dtype, .M = M, .E = E, .H = H};
    return take(a, NULL, I, err);
}

void fm_adapter_release(struct fm_adapter *a)
{
    free(a->widths);
    free(a->offset);
    free(a->values);
    *a = (struct fm_adapter){0};
}

void fm_adapter_start(struct fm_adapter *a, uint64_t seed)
{
    memset(a->values, 0, (size_t)a->offset[(size_t)a->M * (size_t)a->E] * sizeof *a->values);
    for (int m = 0; m < a->M && a->r > 0; m++)
        for (int e = 0; e < a->E; e++)
            for (int part = FM_GATE_A; part < FM_LORA_PARTS; part += 2) {
                float *p = fm_adapter_part(a, a->values, m, e, (enum fm_lora)part);
                size_t n = part_count(a, a->widths[expert_index(a, m, e)], (enum fm_lora)part);
                uint64_t at = (uint64_t)(p - a->values);
                for (size_t i = 0; i < n; i++)
                    p[i] = (float)(fm_rng_normal(seed, FM_STREAM_LORA, at + i) / a->r);
            }
}

/* Offset of a part inside its expert's block. */
static size_t part_offset(const struct fm_adapter *a, uint32_t k, enum fm_lora part)
{
    size_t offset = 0;
    for (int p = 0; p < (int)part; p++)
        offset += part_count(a, k, (enum fm_lora)p);
    return offset;
}

float *fm_adapter_part(const struct fm_adapter *a, float *block, int m, int e, enum fm_lora part)
{
    size_t i = expert_index(a, m, e);
    return block + a->offset[i] + part_offset(a, a->widths[i], part);
}

void *fm_adapter_down(const struct fm_adapter *a, int m, int e)
{
    assert(a->down);
    size_t expert = (size_t)a->widths[0] * (size_t)a->H * (size_t)fm_dtype_bits(a->dtype) / 8;
    return (char *)(a->values + a->offset[expert_index(a, m, 0)]) + (size_t)e * expert;
}

const float *fm_adapter_router(const struct fm_adapter *a, int m)
{
    assert(a->router);
    return a->values + a->offset[expert_index(a, m, 0)];
}

void fm_adapter_merge(const struct fm_adapter *a, const struct fm_ops *ops, float *gate_up,
                      float *down, int m, int e)
{
    int k = (int)a->widths[expert_index(a, m, e)], r = a->r, H = a->H;
    if (a->down && down)
        fm_dtype_to_f32(down, fm_adapter_down(a, m, e), a->dtype, (size_t)k * (size_t)H);
    if (a->down || k == 0)
        return;
    float s = a->alpha / (float)r;
    const float *gate_A = fm_adapter_part(a, a->values, m, e, FM_GATE_A);
    const float *gate_B = fm_adapter_part(a, a->values, m, e, FM_GATE_B);
    const float *up_A = fm_adapter_part(a, a->values, m, e, FM_UP_A);
    const float *up_B = fm_adapter_part(a, a->values, m, e, FM_UP_B);
    const float *down_A = fm_adapter_part(a, a->values, m, e, FM_DOWN_A);
    const float *down_B = fm_adapter_part(a, a->values, m, e, FM_DOWN_B);
    /* Gate rows are every second row: a leading dimension of two rows selects them. */
    if (gate_up) {
        ops->gemm(false, false, k, H, r, s, fm_f32(gate_B), r, fm_f32(gate_A), H, 1, gate_up,
                  2 * H);
        ops->gemm(false, false, k, H, r, s, fm_f32(up_B), r, fm_f32(up_A), H, 1, gate_up + H,
                  2 * H);
    }
    if (down)
        ops->gemm(true, true, k, H, r, s, fm_f32(down_A), k, fm_f32(down_B), r, 1, down, H);
}
