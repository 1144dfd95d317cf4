"""SGLang's Transformers backend, extended with one expert width per layer, a bias of the output head, and
attention with sinks, windows of the size in the config, and a number of query heads for each layer; and
SGLang's own PhiMoE, extended with that bias."""

from contextlib import contextmanager
from functools import partial

from sglang.srt.configs import update_config
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead
from sglang.srt.models import phimoe
from sglang.srt.models import transformers as backend
from sglang.srt.runtime_context import get_parallel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


def round_up_widths(config, name, *arguments, stock=update_config.update_intermediate_size):
    """On a CPU, SGLang rounds the width in the config up, expecting one number.  Leave a list unchanged."""
    if isinstance(getattr(config.hf_config, name, None), list):
        return config
    return stock(config, name, *arguments)


update_config.update_intermediate_size = round_up_widths


def attend(module, query, key, value, attention_mask=None, s_aux=None, **more):
    """Attention with sinks, which the backend's own attention ignores.  Each device uses the sinks of its heads."""
    if s_aux is None:
        return backend.sglang_flash_attention_forward(module, query, key, value, attention_mask, **more)
    here = more["attention_instances"][module.layer_idx]
    here.scaling = float(more["scaling"])
    first = get_parallel().tp_rank * here.tp_q_head_num
    sinks = s_aux[first : first + here.tp_q_head_num]
    rows = (x.transpose(1, 2).reshape(query.shape[-2], -1) for x in (query, key, value))
    return here.forward(*rows, forward_batch=more["forward_batch"], sinks=sinks), None


attend.fm_sinks = True  # modeling_fm.py checks this
ALL_ATTENTION_FUNCTIONS["sglang"] = attend


class BiasedLogits(LogitsProcessor):
    def _compute_lm_head(self, hidden_states, lm_head, *args, **kwargs):
        return super()._compute_lm_head(hidden_states, lm_head, *args, **kwargs).add_(lm_head.bias)


@contextmanager
def widths_of_layers(widths):
    """Build each layer with its own width; the backend would use the config's one width for all."""
    stock = backend.TransformersFusedMoE

    def build(*, prefix, **options):
        layer = int(prefix.split(".layers.")[1].split(".")[0])
        return stock(prefix=prefix, **options | {"intermediate_size": widths[layer][0]})

    backend.TransformersFusedMoE = build
    try:
        yield
    finally:
        backend.TransformersFusedMoE = stock


def one_by_one(weights):
    """Split the three-dimensional tensors of fused experts into one per expert, as the backend's loader
    expects."""
    for name, tensor in weights:
        head, _, kind = name.rpartition(".")
        if kind == "gate_up_proj" and tensor.ndim == 3:
            for e, both in enumerate(tensor):
                gate, up = both.chunk(2)
                yield f"{head}.{e}.gate_proj.weight", gate
                yield f"{head}.{e}.up_proj.weight", up
        elif kind == "down_proj" and tensor.ndim == 3:
            for e, down in enumerate(tensor):
                yield f"{head}.{e}.down_proj.weight", down
        else:
            yield name, tensor


class FmForCausalLM(backend.TransformersMoEForCausalLM):
    def __init__(self, config, quant_config=None, prefix=""):
        with widths_of_layers(config.fm_widths):
            super().__init__(config, quant_config=quant_config, prefix=prefix)
        heads = getattr(config, "num_attention_heads_per_layer", None)
        window = getattr(config, "sliding_window", None) if not getattr(config, "layer_types", None) else None
        for layer, attention in self.attention_instances.items():
            if window:  # of every layer; the backend does not set it
                attention.sliding_window_size = window
            if attention.sliding_window_size > 0:
                # The window in the config includes the current token, SGLang's does not, and the backend
                # passes the config's value on unchanged.
                attention.sliding_window_size -= 1
            if heads:
                attention.tp_q_head_num = heads[layer] // get_parallel().tp_size
        if getattr(config, "lm_head_bias", False) and self.pp_group.is_last_rank:
            weight = self.lm_head.weight
            self.lm_head = ParallelLMHead(
                self.vocab_size, config.hidden_size, bias=True, quant_config=quant_config
            )
            if config.tie_word_embeddings:
                self.lm_head.weight = weight
            self.logits_processor = BiasedLogits(config)

    def load_weights(self, weights):
        return super().load_weights(one_by_one(weights))


def route(hidden_states, gating_output, topk, renormalize, threshold):
    return phimoe.sparsemixer(gating_output, threshold)


class PhiMoEForCausalLM(phimoe.PhiMoEForCausalLM):
    """SGLang's own class loads the bias of the output head but never adds it, and assumes a router
    threshold of 0.01.  It has no sliding-window attention."""

    def __init__(self, config, quant_config=None, prefix=""):
        if config.sliding_window and config.sliding_window < config.max_position_embeddings:
            raise ValueError(f"sliding_window {config.sliding_window}: SGLang's PhiMoE supports no window")
        super().__init__(config, quant_config=quant_config, prefix=prefix)
        if config.lm_head_bias:
            self.logits_processor = BiasedLogits(config)
        for layer in self.model.layers:
            layer.block_sparse_moe.topk.topk_config.custom_routing_function = partial(
                route, threshold=config.router_jitter_noise
            )


# The families: config.json has Fm<name>ForCausalLM under "architectures".
STOCK = (
    "Mixtral", "Phimoe", "Qwen2Moe", "Qwen3Moe", "Olmoe", "Glm4Moe", "MiniMaxM2", "Ernie4_5_Moe",
    "Glm4MoeLite", "DeepseekV2", "DeepseekV3", "GptOss", "Dots1", "SolarOpen", "HYV3", "DeepseekV32",
    "GlmMoeDsa", "ExaoneMoe", "AXK1", "Afmoe", "Laguna", "MiMoV2Flash", "MiniMaxM3VL",
    "GraniteMoe", "GraniteMoeShared",
)  # fmt: skip
EntryClass = [type(f"Fm{name}ForCausalLM", (FmForCausalLM,), {}) for name in STOCK]
EntryClass.append(PhiMoEForCausalLM)
