"""Mixtral with experts of unequal width, as `fm-pack --export --layout ragged` writes it.

Needs transformers 5 or newer.  config.json carries the widths, fm_widths[layer][expert];
each layer keeps its experts in two flat matrices, one expert after another:

    gate_up  (2 * sum of widths, hidden)   rows g0, u0, g1, u1, ... of each expert
    down     (sum of widths, hidden)       the usual down matrix, transposed

Everything else is the stock Mixtral of transformers, under the same names.  The two flat
matrices are two-dimensional on purpose: servers that replace a child named `experts` by
their own fused layer do so for three-dimensional parameters only, and leave this one alone.
"""

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.mixtral import modeling_mixtral as stock
from transformers.models.mixtral.configuration_mixtral import MixtralConfig


class FmMixtralConfig(MixtralConfig):
    model_type = "fm_mixtral"
    # Attention splits over devices as in the stock model; the experts stay whole.
    base_model_tp_plan = {
        "layers.*.self_attn.q_proj": "colwise",
        "layers.*.self_attn.k_proj": "colwise",
        "layers.*.self_attn.v_proj": "colwise",
        "layers.*.self_attn.o_proj": "rowwise",
    }
    base_model_ep_plan = {}

    def __init__(self, fm_widths=None, **kwargs):
        if kwargs.get("sliding_window") == 0:
            kwargs["sliding_window"] = None  # both mean: no window
        super().__init__(**kwargs)
        self.fm_widths = fm_widths


class FmExperts(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.widths = [int(k) for k in config.fm_widths[layer_idx]]
        if len(self.widths) != config.num_local_experts:
            raise ValueError(f"fm_widths[{layer_idx}] does not have {config.num_local_experts} widths")
        rows = sum(self.widths)
        self.gate_up = nn.Parameter(torch.empty(2 * rows, config.hidden_size))
        self.down = nn.Parameter(torch.empty(rows, config.hidden_size))
        self.act_fn = ACT2FN[config.hidden_act]

    def expert(self, x, first, width):
        """x (n, hidden) through the expert whose channels are [first, first + width)."""
        gate_up = nn.functional.linear(x, self.gate_up[2 * first : 2 * (first + width)])
        hidden = self.act_fn(gate_up[..., 0::2]) * gate_up[..., 1::2]
        return hidden @ self.down[first : first + width]

    def forward(self, hidden_states, top_k_index, top_k_weights):
        out = torch.zeros_like(hidden_states)
        # A graph cannot depend on which rows an expert gets: there, every expert sees every
        # row and the weight of the rows that are not its own is zero.
        traced = torch.compiler.is_compiling()
        first = 0
        for e, width in enumerate(self.widths):
            chosen = top_k_index == e
            if traced:
                weight = (top_k_weights * chosen).sum(dim=-1, keepdim=True)
                out = out + (self.expert(hidden_states, first, width) * weight).to(out.dtype)
            else:
                row, slot = torch.where(chosen)
                if row.numel():
                    y = self.expert(hidden_states[row], first, width)
                    y = y * top_k_weights[row, slot, None]
                    out.index_add_(0, row, y.to(out.dtype))
            first += width
        return out


class FmSparseMoeBlock(stock.MixtralSparseMoeBlock):
    def __init__(self, config, layer_idx):
        nn.Module.__init__(self)
        self.top_k = config.num_experts_per_tok
        self.jitter_noise = config.router_jitter_noise
        self.gate = stock.MixtralTopKRouter(config)
        self.experts = FmExperts(config, layer_idx)


class FmMixtralDecoderLayer(stock.MixtralDecoderLayer):
    def __init__(self, config, layer_idx):
        GradientCheckpointingLayer.__init__(self)
        self.hidden_size = config.hidden_size
        self.self_attn = stock.MixtralAttention(config, layer_idx)
        self.mlp = FmSparseMoeBlock(config, layer_idx)
        self.input_layernorm = stock.MixtralRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = stock.MixtralRMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class FmMixtralPreTrainedModel(stock.MixtralPreTrainedModel):
    config_class = FmMixtralConfig
    _no_split_modules = ["FmMixtralDecoderLayer"]
    _can_record_outputs = {
        **stock.MixtralPreTrainedModel._can_record_outputs,
        "hidden_states": FmMixtralDecoderLayer,
    }

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, FmExperts):
            for weight in (module.gate_up, module.down):
                stock.init.normal_(weight, mean=0.0, std=self.config.initializer_range)


class FmMixtralModel(FmMixtralPreTrainedModel, stock.MixtralModel):
    def __init__(self, config):
        stock.PreTrainedModel.__init__(self, config)
        self.padding_idx = config.pad_token_id
        self.vocab_size = config.vocab_size
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, self.padding_idx)
        self.layers = nn.ModuleList(FmMixtralDecoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.norm = stock.MixtralRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = stock.MixtralRotaryEmbedding(config=config)
        self.gradient_checkpointing = False
        self.post_init()


class FmMixtralForCausalLM(FmMixtralPreTrainedModel, stock.MixtralForCausalLM):
    def __init__(self, config):
        stock.PreTrainedModel.__init__(self, config)
        self.model = FmMixtralModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.router_aux_loss_coef = config.router_aux_loss_coef
        self.num_experts = config.num_local_experts
        self.num_experts_per_tok = config.num_experts_per_tok
        self.post_init()
