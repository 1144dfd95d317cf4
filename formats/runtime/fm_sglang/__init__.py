"""Model classes with which SGLang runs exports of fm-pack that it does not support by itself: the layout
`layer --for vllm`, in fused kernels; PhiMoE; and models whose attention has sinks, windows, or a number of
query heads that differs between layers.

This is an external model package: put the directory that contains it on PYTHONPATH and start the
server with SGLANG_EXTERNAL_MODEL_PACKAGE=fm_sglang.  The other layouts with a modelling file (`ragged`,
`elastic`, `layer`) need it only for PhiMoE and such attention; those with stock names (`uniform`,
`padded`) need it only for PhiMoE.  Written for SGLang 0.5.23.
"""
