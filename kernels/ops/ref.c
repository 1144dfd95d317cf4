#include "kernels/ops/ops.h"

static const struct fm_ops ref = {
    .name = "ref",
    .gemm = ref_gemm,
    .norm = ref_norm,
    .norm_back = ref_norm_back,
    .rope = ref_rope,
    .attention = ref_attention,
    .attention_back = ref_attention_back,
    .route = ref_route,
    .route_back = ref_route_back,
    .route_raw = ref_route_raw,
    .route_raw_back = ref_route_raw_back,
    .sparsemixer = ref_sparsemixer,
    .sparsemixer_back = ref_sparsemixer_back,
    .add_rows = ref_add_rows,
    .clamp = ref_clamp,
    .clamp_back = ref_clamp_back,
    .gate_rows = ref_gate_rows,
    .gate_rows_back = ref_gate_rows_back,
    .gather = ref_gather,
    .combine = ref_combine,
    .swiglu = ref_swiglu,
    .swiglu_back = ref_swiglu_back,
    .dot_rows = ref_dot_rows,
    .channel_sums = ref_channel_sums,
    .channel_scores = ref_channel_scores,
    .embed = ref_embed,
    .loss = ref_loss,
    .adamw = ref_adamw,
    .add = ref_add,
};

const struct fm_ops *fm_ops_ref(void)
{
    return &ref;
}
