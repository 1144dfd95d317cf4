"""Mixtral, PhiMoE, Qwen2-MoE, Qwen3-MoE and OLMoE with experts of unequal width.

`fm-pack --export` puts this file into its `ragged`, `elastic` and `layer` directories.  It needs
transformers 5 or newer, and runs in it, in vLLM and in SGLang (their Transformers backends) with
trust_remote_code.  Everything but the experts is the stock model, under the stock names.

config.json:
    fm_widths   one row per decoder layer: the resident channels of each expert ([] where the layer
                is dense)
    fm_budgets  `elastic`: the removed share of each member of the family, increasing
    fm_family   `elastic`: the widths of each member, rows as in fm_widths
    fm_budget   `elastic`: the budget to start with; the environment's FM_BUDGET wins
    fm_layout   "layer": stock three-dimensional experts, one width per layer; else flat ones

Flat experts are two matrices per layer, one expert after another, channels in order of rank, so
that a narrower expert is a prefix:
    gate_up  (2 * sum of fm_widths, hidden)   rows g0, u0, g1, u1, ... of each expert
    down     (sum of fm_widths, hidden)       the usual down matrix, transposed
    budget   (1)   `elastic`: the index of the member in force; below zero, the one to start with
They are two-dimensional on purpose: servers replace a child named `experts` by their own fused
layer where all its parameters are three-dimensional, and leave this one alone.

An `elastic` model is switched by writing `budget`: model.set_budget(0.4), or budget_tensors() for
a server that takes named tensors.  Keys and values cached at one budget are wrong at another.
"""

import base64
import os
import pickle
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization as init
from transformers.models.mixtral import configuration_mixtral, modeling_mixtral
from transformers.models.olmoe import configuration_olmoe, modeling_olmoe
from transformers.models.phimoe import configuration_phimoe, modeling_phimoe
from transformers.models.qwen2_moe import configuration_qwen2_moe, modeling_qwen2_moe
from transformers.models.qwen3_moe import configuration_qwen3_moe, modeling_qwen3_moe

CHANNELS_AT_ONCE = 16384  # bounds what every_expert() keeps: so many activations per token

ATTENTION_PLAN = {f"layers.*.self_attn.{x}_proj": "colwise" for x in "qkv"}
ATTENTION_PLAN["layers.*.self_attn.o_proj"] = "rowwise"


# --- experts ----------------------------------------------------------------------------------
#
# hidden (N, H), ids (N, top_k), weights (N, top_k) -> (N, H), float32 sums, one rounding.
# Expert e owns the channels [row0[e], row0[e] + cap[e]) and uses the first widths[index, e] of
# them; ids outside [0, E) add nothing.  row0 (E) int64, cap (E) int32, widths (B, E) int32 and
# index (1) int64 are tensors on the device, so that a graph can be replayed at another budget.


def each_expert(hidden, ids, weights, gate_up, down, row0, cap, widths, index):
    """Every expert on its own rows.  Reads the widths and the routing on the host."""
    out = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
    extents = torch.stack((row0, widths[index][0].to(row0.dtype)), 1).tolist()
    for e, (first, width) in enumerate(extents):
        row, slot = torch.where(ids == e)
        if row.numel() and width:
            both = F.linear(hidden[row], gate_up[2 * first : 2 * (first + width)])
            y = (F.silu(both[:, 0::2]) * both[:, 1::2]) @ down[first : first + width]
            out.index_add_(0, row, (y * weights[row, slot, None]).to(out.dtype))
    return out.to(hidden.dtype)


def every_expert(hidden, ids, weights, gate_up, down, row0, cap, widths, index):
    """Every expert on every row, what is not chosen times zero: E / top_k times the work, but
    nothing is read on the host, so that it compiles, and is captured, for all widths at once."""
    experts = torch.arange(row0.shape[0], device=ids.device)
    share = ((ids[..., None] == experts) * weights[..., None]).sum(1)
    channel = torch.arange(down.shape[0], device=row0.device)
    owner = torch.bucketize(channel, row0, right=True) - 1
    alive = channel - row0[owner] < widths[index][0][owner]
    out = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
    for first in range(0, down.shape[0], CHANNELS_AT_ONCE):
        part = slice(first, first + CHANNELS_AT_ONCE)
        both = F.linear(hidden, gate_up[2 * part.start : 2 * part.stop])
        inner = F.silu(both[:, 0::2]) * both[:, 1::2] * share[:, owner[part]] * alive[part]
        out = out + (inner.to(down.dtype) @ down[part]).to(out.dtype)
    return out.to(hidden.dtype)


def experts_forward(hidden, *arguments):
    """The one place that chooses how the experts are computed."""
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    if traced or hidden.is_cuda and torch.cuda.is_current_stream_capturing():
        return every_expert(hidden, *arguments)
    return each_expert(hidden, *arguments)


class FmExperts(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        cap = config.fm_widths[layer]
        self.fm_config, self.layer = config, layer
        self.gate_up = nn.Parameter(torch.empty(2 * sum(cap), config.hidden_size))
        self.down = nn.Parameter(torch.empty(sum(cap), config.hidden_size))
        if config.fm_family:
            self.budget = nn.Parameter(torch.empty(1), requires_grad=False)
        for name, table in self.tables().items():
            self.register_buffer(name, table, persistent=False)

    def tables(self):
        config = self.fm_config
        cap = torch.tensor(config.fm_widths[self.layer], dtype=torch.int32)
        family = [member[self.layer] for member in config.fm_family or [config.fm_widths]]
        return {
            "row0": cap.cumsum(0) - cap,
            "cap": cap,
            "widths": torch.tensor(family, dtype=torch.int32),
            "start": torch.tensor([starting_member(config)], dtype=torch.int64),
        }

    def reset(self):
        """What a loader left empty: the tables always, parameters where the file lacks them."""
        for name, table in self.tables().items():
            init.copy_(getattr(self, name), table)
        for weight in (self.gate_up, self.down):
            init.normal_(weight, mean=0.0, std=self.fm_config.initializer_range)
        if hasattr(self, "budget"):
            init.constant_(self.budget, -1)

    def forward(self, hidden_states, top_k_index, top_k_weights):
        index = self.start
        if hasattr(self, "budget"):
            index = torch.where(self.budget < 0, index, self.budget.to(index.dtype))
        weights = (self.gate_up, self.down, self.row0, self.cap, self.widths, index)
        return experts_forward(hidden_states, top_k_index, top_k_weights, *weights)


class FmPhimoeRouter(nn.Module):
    """The stock router computed by a plain module: as an nn.Linear it is, to a server, one more
    linear layer to put its own in place of."""

    def __init__(self, stock):
        super().__init__()
        self.weight = stock.weight
        self.noise, self.jitter = stock.input_jitter_noise, stock.router_jitter_noise

    def forward(self, hidden_states):
        if self.training and self.noise > 0:
            noise = torch.empty_like(hidden_states).uniform_(1.0 - self.noise, 1.0 + self.noise)
            hidden_states = hidden_states * noise
        logits = F.linear(hidden_states, self.weight)
        return logits, *modeling_phimoe.sparsemixer(logits, self.jitter, self.training)


# --- budgets ------------------------------------------------------------------------------------


def nearest_member(config, budget):
    """The index of the member whose removed share is nearest."""
    if not config.fm_family:
        raise ValueError("this directory holds one member of the family, not an elastic one")
    away = [abs(share - float(budget)) for share in config.fm_budgets]
    return away.index(min(away))


def starting_member(config):
    if not config.fm_family:
        return 0
    return nearest_member(config, os.environ.get("FM_BUDGET", config.fm_budget))


def budget_tensors(config, budget):
    """(name, tensor) of all that a switch to this budget writes, for a server's weight update."""
    index = torch.tensor([float(nearest_member(config, budget))])
    layers = [i for i, row in enumerate(config.fm_widths) if row]
    return [(f"model.layers.{i}.mlp.experts.budget", index.clone()) for i in layers]


def budget_message(config, budget):
    """The same for POST /update_weights_from_tensor of SGLang: pickled by value, so that it may
    come from another process or machine, base64."""

    class ByValue:
        def __init__(self, tensor):
            self.values = tensor.tolist()

        def __reduce__(self):
            return torch.FloatTensor, (self.values,)

    pairs = [(name, ByValue(tensor)) for name, tensor in budget_tensors(config, budget)]
    return base64.b64encode(pickle.dumps(pairs)).decode()


class FmWorker:
    """For `vllm serve --worker-extension-cls modeling_fm.FmWorker`: POST /collective_rpc with
    {"method": "set_budget", "args": [0.4]}."""

    def set_budget(self, budget):
        return self.get_model().model.set_budget(budget)


# --- families -------------------------------------------------------------------------------------


@contextmanager
def experts_of(config, width):
    """Stock classes take the width of all experts from the config: for a moment, this one."""
    usual = getattr(config, config.fm_width_key)
    vars(config)[config.fm_width_key] = width  # unchecked: it may have been a list
    try:
        yield
    finally:
        vars(config)[config.fm_width_key] = usual


class FmModel:
    """Mixed into a stock model, which is built with experts of no channels, then given these."""

    def __init__(self, config):
        if config.hidden_act != "silu":
            raise ValueError(f"hidden_act {config.hidden_act!r}: these experts know silu only")
        with experts_of(config, 0):
            super().__init__(config)
        if self.base_model is not self:
            self.base_model.__class__ = self.fm_base  # it initializes its own parts
        for index, layer in enumerate(self.base_model.layers):
            if hasattr(layer.mlp, "experts"):
                layer.mlp.experts = self.experts(config, index, layer.mlp.experts)
                if isinstance(getattr(layer.mlp, "router", None), nn.Linear):
                    layer.mlp.router = FmPhimoeRouter(layer.mlp.router)
        self.init_weights()

    def experts(self, config, layer, stock):
        widths = config.fm_widths[layer]
        if len(widths) != stock.num_experts:
            raise ValueError(f"fm_widths[{layer}] is {widths} for {stock.num_experts} experts")
        if config.fm_layout != "layer":
            return FmExperts(config, layer)
        with experts_of(config, widths[0]):
            return type(stock)(config)

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, FmExperts):
            module.reset()
        if isinstance(module, FmPhimoeRouter):
            init.normal_(module.weight, mean=0.0, std=self.config.initializer_range)

    def set_budget(self, budget):
        """Switch an elastic model to the member nearest to this removed share; returns its share.
        What was cached before (past_key_values, prefixes in a server) must not be used after."""
        index = nearest_member(self.config, budget)
        for module in self.modules():
            if isinstance(module, FmExperts):
                module.budget.data.fill_(index)
        return self.config.fm_budgets[index]


def family(stock, config, name, width_key="moe_intermediate_size"):
    """Fm<name>Config, Fm<name>Model and Fm<name>ForCausalLM of a stock family."""

    base = getattr(config, f"{name}Config")

    def start(self, fm_widths=None, fm_layout=None, fm_family=None, **stock):
        budgets = {key: stock.pop(key, None) for key in ("fm_budget", "fm_budgets")}
        if stock.get("sliding_window") == 0 and "use_sliding_window" not in stock:
            stock["sliding_window"] = None  # both mean: no window
        # vLLM reads one width per layer here; the stock class takes no list.
        lists = {width_key: stock.pop(width_key)} if isinstance(stock.get(width_key), list) else {}
        base.__init__(self, **stock)
        vars(self).update(lists, **budgets)
        vars(self).update(fm_widths=fm_widths, fm_layout=fm_layout, fm_family=fm_family)

    def make(kind, bases, **members):
        members |= {"__module__": __name__, "__qualname__": f"Fm{name}{kind}"}
        return type(f"Fm{name}{kind}", bases, members)

    # Attention and dense parts split over devices as in the stock model; experts stay whole.
    plan = (base.base_model_tp_plan or {}).items()
    plan = {key: how for key, how in plan if ".experts" not in key}
    members = {
        "__init__": start,
        "model_type": f"fm_{base.model_type}",
        "fm_width_key": width_key,
        "base_model_tp_plan": plan or ATTENTION_PLAN,
        "base_model_ep_plan": {},
    }
    ours = make("Config", (base,), **members)
    model = make("Model", (FmModel, getattr(stock, f"{name}Model")), config_class=ours)
    causal = (FmModel, getattr(stock, f"{name}ForCausalLM"))
    return ours, model, make("ForCausalLM", causal, config_class=ours, fm_base=model)


FmMixtralConfig, FmMixtralModel, FmMixtralForCausalLM = family(
    modeling_mixtral, configuration_mixtral, "Mixtral", "intermediate_size"
)
FmPhimoeConfig, FmPhimoeModel, FmPhimoeForCausalLM = family(
    modeling_phimoe, configuration_phimoe, "Phimoe", "intermediate_size"
)
FmOlmoeConfig, FmOlmoeModel, FmOlmoeForCausalLM = family(
    modeling_olmoe, configuration_olmoe, "Olmoe", "intermediate_size"
)
FmQwen2MoeConfig, FmQwen2MoeModel, FmQwen2MoeForCausalLM = family(
    modeling_qwen2_moe, configuration_qwen2_moe, "Qwen2Moe"
)
FmQwen3MoeConfig, FmQwen3MoeModel, FmQwen3MoeForCausalLM = family(
    modeling_qwen3_moe, configuration_qwen3_moe, "Qwen3Moe"
)
