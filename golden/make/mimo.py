"""MiMo-V2.5 and V2.6, which transformers does not have: transformers' MiMo-V2-Flash with the attention of the
model's own code, written anew.  Importing this module makes the model_type known to transformers' Auto classes.
"""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, MiMoV2FlashConfig, MiMoV2FlashForCausalLM
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping


class MiMoV2Config(MiMoV2FlashConfig):
    """The authors' keys, and from them those that transformers' classes read."""

    model_type = "mimo_v2"

    def __post_init__(self, **own):
        kinds = "full_attention", "sliding_attention"
        self.layer_types = [kinds[x] for x in own["hybrid_layer_pattern"]]
        self.mlp_layer_types = [("dense", "sparse")[x] for x in own["moe_layer_freq"]]
        thetas = own["rope_theta"], own["swa_rope_theta"]
        rotation = {"rope_type": "default", "partial_rotary_factor": own["partial_rotary_factor"]}
        self.rope_parameters = {k: rotation | {"rope_theta": float(t)} for k, t in zip(kinds, thetas)}
        self.rms_norm_eps = own["layernorm_epsilon"]
        super().__post_init__(**{k: v for k, v in own.items() if k != "sliding_window_size"})


class Attention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        window = config.layer_types[layer] == "sliding_attention"
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        if window:
            self.groups = config.swa_num_key_value_heads
        self.window = config.sliding_window if window else None
        self.scale, self.turned = config.attention_value_scale or 1.0, config.rope_parameters[config.layer_types[layer]]
        C, D, H = config.head_dim, config.v_head_dim, config.hidden_size
        self.q_proj = nn.Linear(H, self.heads * C, bias=config.attention_bias)
        self.k_proj = nn.Linear(H, self.groups * C, bias=config.attention_bias)
        self.v_proj = nn.Linear(H, self.groups * D, bias=config.attention_bias)
        self.o_proj = nn.Linear(self.heads * D, H, bias=False)
        self.sinks = nn.Parameter(torch.zeros(self.heads)) if window else None

    def rotated(self, x):
        """x (S, T, heads, C); halves of the first elements are pairs."""
        T, C = x.shape[1], x.shape[-1]
        R = int(C * self.turned["partial_rotary_factor"])
        frequency = self.turned["rope_theta"] ** (-torch.arange(0, R, 2).double() / R)
        angle = (torch.arange(T)[:, None] * frequency)[:, None, :]
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b, stays = x[..., : R // 2], x[..., R // 2 : R], x[..., R:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, stays], -1)

    def forward(self, hidden_states, **_):
        S, T, _ = hidden_states.shape
        each = self.heads // self.groups
        q = self.rotated(self.q_proj(hidden_states).view(S, T, self.heads, -1))
        k = self.rotated(self.k_proj(hidden_states).view(S, T, self.groups, -1)).repeat_interleave(each, 2)
        v = (self.scale * self.v_proj(hidden_states)).view(S, T, self.groups, -1).repeat_interleave(each, 2)
        score = torch.einsum("sqhc,skhc->shqk", q, k) / q.shape[-1] ** 0.5
        age = torch.arange(T)[:, None] - torch.arange(T)
        hidden = (age < 0) | (age >= (self.window or T))
        score = score.masked_fill(hidden, -torch.inf)
        if self.sinks is not None:
            score = torch.cat([score, self.sinks[:, None, None].expand(S, self.heads, T, 1)], -1)
        weight = F.softmax(score, -1)[..., :T]
        return self.o_proj(torch.einsum("shqk,skhd->sqhd", weight, v).flatten(2)), weight


class MiMoV2ForCausalLM(MiMoV2FlashForCausalLM):
    config_class = MiMoV2Config
    _keys_to_ignore_on_load_unexpected = [r"^(model\.mtp|visual|audio_encoder|speech_embeddings)\."]

    def __init__(self, config):
        super().__init__(config)
        for index, layer in enumerate(self.model.layers):
            layer.self_attn = Attention(config, index)


AutoConfig.register("mimo_v2", MiMoV2Config)
AutoModelForCausalLM.register(MiMoV2Config, MiMoV2ForCausalLM)
register_checkpoint_conversion_mapping("mimo_v2", get_checkpoint_conversion_mapping("mimo_v2_flash"))
