"""Mixture-of-experts models of transformers with experts of unequal width.

`fm-pack --export` puts this file into its `ragged`, `elastic` and `layer` directories.  It needs
transformers 5 or newer, and runs with trust_remote_code in transformers, vLLM and SGLang (their
Transformers backends).  Everything except the experts is the stock model, with the stock names: the
classes FmXConfig, FmXModel and FmXForCausalLM are made from those that transformers has for X when they
are first used.

config.json:
    fm_widths   one row per decoder layer: the resident channels of each expert ([] where the layer
                is dense)
    fm_budgets  `elastic`: the removed share of each member of the family, increasing
    fm_family   `elastic`: the widths of each member, rows as in fm_widths
    fm_budget   `elastic`: the budget to start with; the environment variable FM_BUDGET overrides it
    fm_load_cap `elastic`: [R, R2], the range of removed shares to serve; FM_LOAD_CAP=R or R:R2
                narrows it.  Members outside the range are refused, and of each expert only the
                channels that the widest remaining member uses are loaded
    fm_layout   "layer": stock three-dimensional experts, one width per layer; otherwise flat experts
    fm_codes    set if experts are stored as the codes and scales of a quantised checkpoint: the format
    fm_shared   the channels of the shared expert, if the stock class would read them from the key of
                the experts' width and that key holds a list

Flat experts are two matrices per layer, one expert after another, channels in order of rank, so
that a narrower expert is a prefix:
    gate_up  (2 * sum of fm_widths, hidden)   rows g0, u0, g1, u1, ... of each expert
    down     (sum of fm_widths, hidden)       the usual down matrix, transposed
    bias_gate_up (2 * sum of fm_widths)       gpt-oss: one bias per row of gate_up
    bias_down (experts, hidden)               gpt-oss: one row per expert, whatever its width
    budget   (1)   `elastic`: the index of the active member; if negative, the one to start with
With fm_codes the file has the following tensors instead, and each expert is decoded into the matrices
above when it is loaded: in memory it is as large as without codes.  Channels are in groups of G.
    gate_up        (2 * sum of fm_widths, bytes of a row of codes)
    gate_up_scale  the same rows in blocks, alternately of gate and of up
    down           (sum of fm_widths / G, hidden, bytes of G codes), without the last dimension if it is 1
    down_scale     the same in blocks; or (experts, hidden), one for each row of the usual matrix
    or both (experts, 2 or 1), one for each matrix (gate and up, or down)
    gate_up_factor, down_factor (experts, 2 or 1)    if the format has a second scale for the whole matrix
The matrices are two-dimensional on purpose: servers replace a child named `experts` with their own fused
layer if all its parameters are three-dimensional; they do not replace this one.

To switch an `elastic` model, write `budget`: with model.set_budget(0.4), or with budget_tensors() for
a server that accepts named tensors.  Keys and values cached at one budget are wrong at another.
"""

import base64
import ctypes
import os
import pickle
import re
import sys
import threading
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import List

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, modeling_utils
from transformers import initialization as init
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.core_model_loading import Concatenate, ConversionOps, WeightConverter
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES, model_type_to_module_name
from transformers.models.phimoe import modeling_phimoe

CHANNELS_AT_ONCE = 16384  # activations per token that every_expert() keeps at most

ATTENTION_PLAN = {f"layers.*.self_attn.{x}_proj": "colwise" for x in "qkv"}
ATTENTION_PLAN["layers.*.self_attn.gate_proj"] = "colwise"  # split like the heads that it gates, if there is one
ATTENTION_PLAN["layers.*.self_attn.o_proj"] = "rowwise"
# Every device has the whole latents; the projections from them are split by heads.
LATENT_PLAN = {f"layers.*.self_attn.{x}_proj": "colwise" for x in ("q", "q_b", "kv_b")}
LATENT_PLAN["layers.*.self_attn.o_proj"] = "rowwise"
GATHERED = ("colwise_gather_output", "rowwise_split_input")


# --- experts ----------------------------------------------------------------------------------
#
# hidden (N, H), ids (N, top_k), weights (N, top_k) -> (N, H); sums are float32 and rounded once.
# Expert e owns the channels [row0[e], row0[e] + cap[e]) and uses the first widths[index, e] of
# them; ids outside [0, E) add nothing.  row0 (E) int64, cap (E) int32, widths (B, E) int32 and
# index (1) int64 are tensors on the device, so that a graph can be replayed at another budget.
# Experts with biases have bias_gate_up and bias_down; an activation other than SwiGLU has its constants in one
# more tensor.  `biased` holds all three of these, only the last, or none.


def activation(both, act):
    """both (rows, 2 * channels): products with gate_up, whose columns alternate between gate and up.
    act: None for SwiGLU; (alpha, limit) of the clamped activation of gpt-oss and MiniMax-M3; the three bounds
    of Step's; or one number for Gemma's GELU by tanh.  Returns (rows, channels)."""
    gate, up = both[:, 0::2], both[:, 1::2]
    if act is None:
        return F.silu(gate) * up
    if len(act) == 1:
        return F.gelu(gate, approximate="tanh") * up
    if len(act) == 3:
        return F.silu(gate).clamp(max=act[0]) * up.clamp(act[1], act[2])
    gate, up = gate.clamp(max=act[1]), up.clamp(-act[1], act[1])
    return (up + 1) * (gate * torch.sigmoid(gate * act[0]))


def each_expert(hidden, ids, weights, gate_up, down, row0, cap, widths, index, *biased):
    """Run each expert on the rows routed to it.  Reads the widths and the routing on the host."""
    bias_gate_up, bias_down, act = (None,) * (3 - len(biased)) + biased
    out = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
    extents = torch.stack((row0, widths[index][0].to(row0.dtype)), 1).tolist()
    for e, (first, width) in enumerate(extents):
        row, slot = torch.where(ids == e)
        if row.numel() and (width or bias_down is not None):
            part = slice(2 * first, 2 * (first + width))
            both = F.linear(hidden[row], gate_up[part], None if bias_gate_up is None else bias_gate_up[part])
            y = activation(both, act) @ down[first : first + width]
            y = y if bias_down is None else y + bias_down[e]
            out.index_add_(0, row, (y * weights[row, slot, None]).to(out.dtype))
    return out.to(hidden.dtype)


def every_expert(hidden, ids, weights, gate_up, down, row0, cap, widths, index, *biased):
    """Run every expert on every row and multiply by zero if it was not chosen: E / top_k times the work,
    but nothing is read on the host, so one compilation or one graph capture serves all widths."""
    bias_gate_up, bias_down, act = (None,) * (3 - len(biased)) + biased
    experts = torch.arange(row0.shape[0], device=ids.device)
    share = ((ids[..., None] == experts) * weights[..., None]).sum(1)
    channel = torch.arange(down.shape[0], device=row0.device)
    owner = torch.bucketize(channel, row0, right=True) - 1
    alive = channel - row0[owner] < widths[index][0][owner]
    out = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
    if bias_down is not None:
        out = out + share.float() @ bias_down.float()
    for first in range(0, down.shape[0], CHANNELS_AT_ONCE):
        part = slice(first, first + CHANNELS_AT_ONCE)
        rows = slice(2 * part.start, 2 * part.stop)
        both = F.linear(hidden, gate_up[rows], None if bias_gate_up is None else bias_gate_up[rows])
        inner = activation(both, act) * share[:, owner[part]] * alive[part]
        out = out + (inner.to(down.dtype) @ down[part]).to(out.dtype)
    return out.to(hidden.dtype)


# --- codes ------------------------------------------------------------------------------------------
#
# A value is its code times its scale, one float32 product.  transformers converts tensors to the dtype
# of the parameter; float32 holds every code and scale exactly.

POWERS = torch.tensor([2.0 ** (i - 127) for i in range(255)] + [float("nan")])  # E8M0, as bytes
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def nibbles(codes):
    """Unpack two 4-bit codes per byte, the first from the low half."""
    codes = codes.to(torch.uint8)
    return torch.stack((codes & 15, codes >> 4), -1).flatten(-2).int()


CODES = {
    "E4M3": lambda codes: codes.float(),
    "E2M1": lambda codes: E2M1.to(codes.device)[nibbles(codes)],
    "INT4": lambda codes: nibbles(codes).float() - 8,
}


def decoded(form, name, hidden, codes, scale, factor):
    """The float32 rows of gate_up or down of one expert.  factor: one number for each matrix (gate and
    up, or down), or None."""
    high, wide = form["block"]  # rows and columns of the usual matrix that share a scale; 0: all
    values = CODES[form["code"]](codes)
    scale = POWERS.to(scale.device)[scale.int()] if form["scales"] == "U8" else scale.float()
    if name == "gate_up":
        scale = scale.view(-1, 2, scale.shape[-1] if high else 1)
        factor = factor if factor is None else factor[:, None]
    else:  # (groups, hidden, G): for each row the columns of a group
        values = values.view(-1, hidden, form["group"])
        scale = scale if wide else scale.view(1, -1, 1)
    if factor is not None:
        scale = scale / factor if form["factor"] == "divides" else scale * factor
    if name == "gate_up":
        scale = scale.repeat_interleave(high or len(values) // 2, 0).flatten(0, 1)
        return values * (scale.repeat_interleave(wide, 1)[:, :hidden] if wide else scale)
    if wide:
        scale = scale.repeat_interleave(high, 1)[:, :hidden].repeat_interleave(wide, 2)
    return (values * scale).transpose(1, 2).flatten(0, 1)


def captures(tensor):
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def by_torch(hidden, *arguments):
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing() or captures(hidden)
    return (every_expert if traced else each_expert)(hidden, *arguments)


# libfm_clip does the same in C (fm-clip(3)), on the CPU and on CUDA devices, in one call that reads
# widths and budget from their tensors.  It is used if it is found: in the wheel fm-runtime, installed by
# pip, else as libfm_clip.so.1 by the system's loader.  If the environment variable FM_CLIP_LIBRARY is set,
# only that file is tried and must load ("none": use no library).  It computes no gradients.

CLIP_MISSING = "experts by PyTorch, without libfm_clip"
CLIP_WHERE = "; it is faster: `make wheel` of the fm suite, pip install fm_runtime-*.whl (fm-clip(3))"
CLIP_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.int32: 3, torch.int64: 4}
CLIP_TOKENS = {"cpu": 2048, "cuda": 4096}  # tokens that a workspace holds; more are computed in chunks


def clip_struct(name, fields):
    sizes = {"u": ctypes.c_uint32, "i": ctypes.c_int32, "l": ctypes.c_int64, "p": ctypes.c_void_p}
    sizes["f"] = ctypes.c_float
    pairs = [field.split(":") for field in fields.split()]
    return type(name, (ctypes.Structure,), {"_fields_": [(f, sizes[t]) for f, t in pairs]})


ClipLayer = clip_struct(
    "ClipLayer",
    "size:u device:i ordinal:i type:i activation:i H:i E:i e0:i B:i cap_max:i channels:l gate_up:p down:p"
    " row0:p cap:p widths:p budget:p budget_type:i threads:i path:i reserved:i"
    " gate_up_bias:p down_bias:p alpha:f limit:f",
)
ClipCall = clip_struct(
    "ClipCall",
    "size:u ids_type:i N:l K:i threads:i hidden:p hidden_stride:l ids:p weights:p budgets:p out:p"
    " out_stride:l workspace:p workspace_bytes:l stream:p budget:p budget_type:i reserved:i",
)


class ClipError(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int32), ("text", ctypes.c_char * 1020)]


def clip_say(text, said=set()):
    if text not in said:
        said.add(text)
        print(f"modeling_fm: {text}", file=sys.stderr, flush=True)


def clip_places():
    asked = os.environ.get("FM_CLIP_LIBRARY")
    if asked:
        return [asked] if asked != "none" else []
    package = find_spec("fm_clip")
    folders = package.submodule_search_locations if package else ()
    return [os.path.join(folder, "libfm_clip.so.1") for folder in folders or ()] + ["libfm_clip.so.1"]


def clip_load():
    asked = os.environ.get("FM_CLIP_LIBRARY")
    for name in clip_places():
        try:
            library = ctypes.CDLL(name)
        except OSError as error:
            if asked:
                raise ImportError(f"FM_CLIP_LIBRARY={asked} cannot be loaded: {error}") from error
            if os.path.exists(name):
                clip_say(f"{error}: not used")
            continue
        if library.fm_clip_abi() == 1:
            library.fm_clip_workspace_bytes.restype = ctypes.c_uint64
            library.fm_clip_name.restype = library.fm_clip_version.restype = ctypes.c_char_p
            return library
        if asked:
            raise ImportError(f"FM_CLIP_LIBRARY={asked} has another interface (ABI {library.fm_clip_abi()}, not 1)")
        clip_say(f"{name} has another interface (ABI {library.fm_clip_abi()}, not 1): not used")
    return None


CLIP = clip_load()
clip_kinds = {}  # device type -> whether the library supports it on this machine
clip_layers = {}  # prepared layers by the addresses of their arrays; entries keep the small tables alive
clip_rooms = threading.local()  # the workspace of a thread that computes on the CPU


def clip_check(code, error):
    if code:
        raise RuntimeError(f"libfm_clip: {error.text.decode()}")


def clip_here(kind):
    """Whether the library supports this device type: it may be built without CUDA, or the driver or GPU
    may be too old.  Checked at the first call, not at import, because servers fork in between."""
    if kind not in clip_kinds:
        error = ClipError()
        clip_kinds[kind] = CLIP.fm_clip_available(int(kind == "cuda"), ctypes.byref(error)) == 0
        if not clip_kinds[kind]:
            clip_say(f"experts by PyTorch on {kind}: libfm_clip: {error.text.decode()}")
    return clip_kinds[kind]


def clip_prepare(gate_up, down, row0, cap, widths, biases):
    """The layer's handle and descriptor; None if the library does not support the layer."""
    if not clip_here(down.device.type):
        return None
    threads = 0 if down.is_cuda else torch.get_num_threads()
    arrays = (gate_up, down, row0, cap, widths, *biases)
    key = tuple(t.data_ptr() for t in arrays) + (down.dtype, down.shape, threads)
    if key not in clip_layers:
        if captures(down):
            raise RuntimeError("libfm_clip: a layer's first call allocates: call the model before capturing it")
        error, handle = ClipError(), ctypes.c_void_p()
        layer = ClipLayer(ctypes.sizeof(ClipLayer), int(down.is_cuda), down.device.index or 0)
        layer.type, layer.H, layer.E, layer.B = CLIP_TYPES[down.dtype], down.shape[1], len(row0), len(widths)
        layer.cap_max, layer.channels = int(cap.max()), len(down)
        layer.gate_up, layer.down, layer.row0, layer.cap, layer.widths = key[:5]
        if biases:
            layer.alpha, layer.limit = biases[-1].tolist()
            layer.activation = 1
        if len(biases) > 1:
            layer.gate_up_bias, layer.down_bias = key[5:7]
        layer.budget, layer.budget_type, layer.threads = row0.data_ptr(), CLIP_TYPES[torch.int64], threads
        code = CLIP.fm_clip_prepare(ctypes.byref(handle), ctypes.byref(layer), ctypes.byref(error))
        if code == 69:  # FM_CLIP_EDEVICE: this library or machine cannot serve that device or shape
            clip_say(f"experts by PyTorch: libfm_clip: {error.text.decode()}")
            return clip_layers.setdefault(key)
        clip_check(code, error)
        version, name = CLIP.fm_clip_version().decode(), CLIP.fm_clip_name(handle).decode()
        clip_say(f"experts by libfm_clip {version}: {name}")
        clip_layers[key] = handle, layer, (row0, cap, widths, *biases[-1:])
    return clip_layers[key] and clip_layers[key][:2]


def clip_room(size, device):
    """A workspace of size bytes plus 256 for alignment.  On the CPU it is kept between calls, because new
    pages cost more than the computation."""
    if device.type == "cuda":
        return torch.empty(size + 256, dtype=torch.uint8, device=device)
    if getattr(clip_rooms, "room", None) is None or clip_rooms.room.numel() < size + 256:
        clip_rooms.room = torch.empty(size + 256, dtype=torch.uint8)
    return clip_rooms.room


def clip_operator(name="clip_experts"):
    """An unused operator name.  A process that loads two directories runs this file twice, and
    registering an operator again under the same name would destroy the first one."""
    while hasattr(torch.ops.fm, name):
        name += "_again"
    return f"fm::{name}"


@torch.library.custom_op(clip_operator(), mutates_args=())
def clip_experts(
    hidden: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, row0: Tensor,
    cap: Tensor, widths: Tensor, index: Tensor, biases: List[Tensor],
) -> Tensor:
    prepared = clip_prepare(gate_up, down, row0, cap, widths, biases)
    if prepared is None:
        return by_torch(hidden, ids, weights, gate_up, down, row0, cap, widths, index, *biases)
    handle, layer = prepared
    hidden, ids, weights = hidden.contiguous(), ids.contiguous(), weights.float().contiguous()
    out, (N, K) = torch.empty_like(hidden), ids.shape
    size = CLIP.fm_clip_workspace_bytes(ctypes.byref(layer), ctypes.c_int64(min(N, CLIP_TOKENS[hidden.device.type])), K)
    room, error = clip_room(size, hidden.device), ClipError()
    call = ClipCall(ctypes.sizeof(ClipCall), CLIP_TYPES[ids.dtype], N, K)
    call.hidden, call.ids, call.weights, call.out = (t.data_ptr() for t in (hidden, ids, weights, out))
    call.hidden_stride = call.out_stride = layer.H
    call.workspace, call.workspace_bytes = -(-room.data_ptr() // 256) * 256, size
    call.budget, call.budget_type = index.data_ptr(), CLIP_TYPES[index.dtype]
    if hidden.is_cuda:
        call.stream = torch.cuda.current_stream(hidden.device).cuda_stream
    clip_check(CLIP.fm_clip_forward(handle, ctypes.byref(call), ctypes.byref(error)), error)
    return out


@clip_experts.register_fake
def _(hidden, *arguments):
    return torch.empty_like(hidden, memory_format=torch.contiguous_format)


def clip_serves(hidden, weights, gate_up, biased):
    """Whether libfm_clip can compute this call: a supported activation, dtype and device (with biases only the
    CPU), and no gradient requested."""
    if biased and len(biased[-1]) != 2:
        return False
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in (hidden, weights, gate_up))
    known = gate_up.dtype in (torch.float32, torch.float16, torch.bfloat16) and hidden.dtype == gate_up.dtype
    devices = ("cpu",) if biased else ("cpu", "cuda")
    return CLIP is not None and not wanted and known and hidden.device.type in devices


def experts_forward(hidden, *arguments):
    """Compute the experts by libfm_clip if possible, else by PyTorch."""
    plain, biases = arguments[:8], list(arguments[8:])
    if clip_serves(hidden, arguments[1], arguments[2], biases):
        return clip_experts(hidden, *plain, biases)
    return by_torch(hidden, *arguments)


class FmExperts(nn.Module):
    def __init__(self, config, layer, biased, limit):
        super().__init__()
        cap = loaded_widths(config, layer)
        self.fm_config, self.layer, self.pending = config, layer, {}
        self.limit = limit
        if CLIP is None:
            clip_say(CLIP_MISSING + ("" if os.environ.get("FM_CLIP_LIBRARY") else CLIP_WHERE))
        self.gate_up = nn.Parameter(torch.empty(2 * sum(cap), config.hidden_size))
        self.down = nn.Parameter(torch.empty(sum(cap), config.hidden_size))
        self.biased = biased
        if biased:
            self.bias_gate_up = nn.Parameter(torch.empty(2 * sum(cap)))
            self.bias_down = nn.Parameter(torch.empty(len(cap), config.hidden_size))
        if config.fm_family:
            self.budget = nn.Parameter(torch.empty(1), requires_grad=False)
        for name, table in self.tables().items():
            self.register_buffer(name, table, persistent=False)

    def tables(self):
        config = self.fm_config
        cap = torch.tensor(loaded_widths(config, self.layer), dtype=torch.int32)
        family = [member[self.layer] for member in config.fm_family or [config.fm_widths]]
        return {
            "row0": cap.cumsum(0) - cap,
            "cap": cap,
            "widths": torch.tensor(family, dtype=torch.int32).minimum(cap),
            "start": torch.tensor([starting_member(config)], dtype=torch.int64),
        } | ({"act": torch.tensor(self.constants())} if self.constants() else {})

    def constants(self):
        """The constants of activation(); none for SwiGLU."""
        config = self.fm_config
        if hasattr(config, "hidden_activation"):
            return [0.044715]  # of the approximation of GELU, which has no other
        if self.limit:
            return [self.limit, -self.limit, self.limit]
        return [config.swiglu_alpha, config.swiglu_limit] if hasattr(type(config), "swiglu_limit") else []

    def reset(self):
        """Initialise what a loader left empty: always the tables, and parameters missing from the file."""
        for name, table in self.tables().items():
            init.copy_(getattr(self, name), table)
        for weight in self.weights():
            init.normal_(weight, mean=0.0, std=self.fm_config.initializer_range)
        if hasattr(self, "budget"):
            init.constant_(self.budget, -1)

    def weights(self):
        biases = (self.bias_gate_up, self.bias_down) if self.biased else ()
        return self.gate_up, self.down, *biases

    def parts(self, name):
        """The names of the tensors in the file from which a parameter is made."""
        codes = self.fm_config.fm_codes
        if not codes or name not in ("gate_up", "down"):
            return [name]
        return [name, f"{name}_scale"] + [f"{name}_factor"] * (codes["factor"] != "none")

    def decoded(self, name, codes, scale, factor=None):
        """Decode gate_up or down, expert by expert, without the rows that fm_load_cap leaves out."""
        config, out = self.fm_config, getattr(self, name)
        out = torch.empty(out.shape, dtype=out.dtype, device=codes.device)
        (high, wide), group = config.fm_codes["block"], config.fm_codes["group"]
        rows = 2 if name == "gate_up" else 1
        first = to = 0
        for e, (k, stored) in enumerate(zip(loaded_widths(config, self.layer), config.fm_widths[self.layer])):
            end = first + k
            if rows == 2:
                mine = codes[2 * first : 2 * end], scale[2 * first // high : 2 * end // high] if high else scale[e]
            else:
                part = slice(first // group, end // group)
                mine = codes[part], scale[part] if wide else scale[e]
            values = decoded(config.fm_codes, name, config.hidden_size, *mine, None if factor is None else factor[e])
            out[rows * to : rows * (to + k)] = values
            first, to = first + stored, to + k
        return out

    def loaded(self, name, tensor):
        """A tensor of the file without the rows that fm_load_cap leaves out."""
        stored, cap = self.fm_config.fm_widths[self.layer], loaded_widths(self.fm_config, self.layer)
        rows = 1 if name == "down" else 2
        if tensor.shape != getattr(self, name).shape and len(tensor) == rows * sum(stored):
            experts = zip(tensor.split([rows * k for k in stored]), cap)
            tensor = torch.cat([expert[: rows * k] for expert, k in experts])
        return tensor

    def load_weights(self, weights):
        """Called by vLLM and SGLang with pairs (name relative to this module, tensor)."""
        names = set()
        for name, tensor in weights:
            whole = name.removesuffix("_scale").removesuffix("_factor")
            parts = self.parts(whole)
            if len(parts) > 1:  # they may arrive in several calls
                self.pending[name] = tensor
                if not all(part in self.pending for part in parts):
                    continue
                name, tensor = whole, self.decoded(whole, *(self.pending.pop(part) for part in parts))
            room, tensor = getattr(self, name), self.loaded(name, tensor)
            if tensor.shape != room.shape:
                raise ValueError(f"experts.{name} is {list(tensor.shape)}, not {list(room.shape)}")
            if name == "budget" and not (tensor < 0 or int(tensor) in loaded_members(self.fm_config)):
                raise ValueError(f"budget {int(tensor)} is not among the members that are loaded")
            room.data.copy_(tensor)
            names.add(name)
        return names

    def forward(self, hidden_states, top_k_index, top_k_weights):
        index = self.start
        if hasattr(self, "budget"):
            index = torch.where(self.budget < 0, index, self.budget.to(index.dtype))
        gate_up, down, *biases = self.weights()
        weights = (gate_up, down, self.row0, self.cap, self.widths, index)
        weights += (*biases, self.act) if self.constants() else ()
        return experts_forward(hidden_states, top_k_index, top_k_weights, *weights)


class FmPhimoeRouter(nn.Module):
    """The stock router as a module that is not an nn.Linear: servers replace every nn.Linear with their
    own linear layer."""

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


class FmPhimoeRotaryEmbedding(modeling_phimoe.PhimoeRotaryEmbedding):
    """The stock rotation: always the short factors, and a scale that depends on the largest position.
    The stock code branches on that position, which torch.compile cannot trace; here it stays a tensor."""

    @torch.no_grad()
    def forward(self, x, position_ids=None):
        angles = position_ids[..., None].float() * self.inv_freq.to(x.device, torch.float)
        angles = torch.cat((angles, angles), dim=-1)
        rope, scale = self.config.rope_parameters, self.attention_scaling
        if rope["rope_type"] != "default":
            long = position_ids.max() >= rope["original_max_position_embeddings"]
            scale = torch.full_like(angles[..., :1], rope["short_mscale"])
            scale = scale.masked_fill(long, rope["long_mscale"])
        return (angles.cos() * scale).to(x.dtype), (angles.sin() * scale).to(x.dtype)


# --- budgets ------------------------------------------------------------------------------------


def load_cap(given):
    """The intersection of fm_load_cap and FM_LOAD_CAP as [low, high]; None: everything is loaded."""
    text = os.environ.get("FM_LOAD_CAP", "")
    if not text:
        return given
    low, colon, high = text.partition(":")
    low, high = float(low or "nan"), float(high if colon else 1)
    if not 0 <= low <= high <= 1:
        raise ValueError(f"FM_LOAD_CAP={text}: R or R:R2 with 0 <= R <= R2 <= 1 is needed")
    first, last = given or (0.0, 1.0)
    return [max(first, low), min(last, high)]


def is_loaded(config, budget):
    low, high = config.fm_load_cap or (0.0, 1.0)
    return not config.fm_load_cap or low - 1e-9 <= float(budget) <= high + 1e-9


def loaded_members(config):
    members = [i for i, share in enumerate(config.fm_budgets) if is_loaded(config, share)]
    if not members:
        raise ValueError(f"no budget of {config.fm_budgets} is within the load cap {config.fm_load_cap}")
    return members


def loaded_widths(config, layer):
    """The width of each expert of a layer in memory."""
    if not config.fm_load_cap:
        return config.fm_widths[layer]
    members = [config.fm_family[i][layer] for i in loaded_members(config)]
    return [max(widths) for widths in zip(*members)]


class LoadedRows(ConversionOps):
    """The conversion that transformers applies when it loads a parameter of FmExperts from the file."""

    def convert(self, input_dict, source_patterns, target_patterns, full_layer_name, model, **others):
        tensors = {k: v[0] if isinstance(v, list) else v for k, v in input_dict.items()}
        module, _, name = full_layer_name.rpartition(".")
        experts, pattern = model.get_submodule(module), target_patterns[0]
        tensor = tensors[pattern]
        if len(tensors) > 1:
            parts = experts.parts(name)
            tensor = experts.decoded(name, *(tensors[pattern.replace(name, part)] for part in parts))
        return {pattern: experts.loaded(name, tensor).to(getattr(experts, name).dtype)}

    @property
    def reverse_op(self):
        return self  # a saved model has only the loaded rows, decoded


def converters_of(model):
    """Converters for tensors of the file that differ from the parameters."""
    config, converters = model.config, []
    if config.fm_load_cap or config.fm_codes:
        for name in ("gate_up", "down", "bias_gate_up"):
            parts = [f"{config.fm_experts}.{name}{end}" for end in ("", "_scale", "_factor")]
            converters.append(WeightConverter(parts, parts[0], [LoadedRows()], force_cpu=True))
    if any(name.endswith(".gate_up_proj") for name, _ in model.named_modules()):  # fused in every MLP
        parts = [rf"\.{x}_proj.weight" for x in ("gate", "up")]
        converters.append(WeightConverter(parts, r"\.gate_up_proj.weight", [Concatenate(dim=0)]))
    if getattr(config, "num_mtp_layers", None):  # layers for multi-token prediction have stock names
        converters += get_checkpoint_conversion_mapping(config.model_type.removeprefix("fm_")) or []
    return converters


def nearest_member(config, budget):
    """The index of the loaded member whose removed share is nearest."""
    if not config.fm_family:
        raise ValueError("this directory holds one member of the family, not an elastic one")
    if not is_loaded(config, budget):
        low, high = config.fm_load_cap
        raise ValueError(f"budget {budget} is not loaded: the load cap is {low:g} to {high:g}")
    return min(loaded_members(config), key=lambda i: abs(config.fm_budgets[i] - float(budget)))


def starting_member(config):
    if not config.fm_family:
        return 0
    low, high = config.fm_load_cap or (0.0, 1.0)
    usual = min(max(config.fm_budget, low), high)
    return nearest_member(config, os.environ.get("FM_BUDGET", usual))


def budget_tensors(config, budget):
    """The (name, tensor) pairs that switch a model to this budget, for a server's weight update."""
    index = torch.tensor([float(nearest_member(config, budget))])
    layers = [i for i, row in enumerate(config.fm_widths) if row]
    return [(f"model.layers.{i}.{config.fm_experts}.budget", index.clone()) for i in layers]


def budget_message(config, budget):
    """The same, serialised for SGLang's POST /update_weights_from_tensor."""
    return base64.b64encode(pickle.dumps(budget_tensors(config, budget))).decode()


class FmWorker:
    """For `vllm serve --worker-extension-cls modeling_fm.FmWorker`: POST /collective_rpc with
    {"method": "set_budget", "args": [0.4]}."""

    def set_budget(self, budget):
        return self.get_model().model.set_budget(budget)


# --- families -------------------------------------------------------------------------------------


@contextmanager
def experts_of(config, width):
    """Set the width of all experts in the config to `width` while a stock class reads it."""
    usual = getattr(config, config.fm_width_key)
    vars(config)[config.fm_width_key] = width  # unchecked: it may have been a list
    try:
        yield
    finally:
        vars(config)[config.fm_width_key] = usual


def shared_width(config):
    """The channels of the shared expert.  Laguna and MiniMax-M3 have a key for them (so has Step, whose class
    needs no help); the others have the number of shared experts, under a key that GLM and DeepSeek, ERNIE, and
    Hy3 name differently."""
    if config.fm_shared is not None:
        return config.fm_shared
    for key in ("shared_expert_intermediate_size", "shared_intermediate_size"):
        if getattr(config, key, None) is not None:
            return getattr(config, key)
    for key in ("n_shared_experts", "moe_num_shared_experts", "num_shared_experts"):
        if getattr(config, key, None) is not None:
            return getattr(config, key) * getattr(config, config.fm_width_key)
    raise ValueError("config.json does not say how wide the shared expert is")


def check_attention(config, layers):
    """Refuse to run in servers' Transformers backends where they would silently compute something else."""
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
    if config._attn_implementation in ("vllm", "sglang"):
        backends = "the Transformers backends of vLLM and SGLang"
        if hasattr(config, "swa_num_key_value_heads"):
            raise ValueError(f"{backends} assume the same key heads in all layers")
        if "conv" in kinds:
            raise ValueError(f"{backends} have no short convolutions")
        if hasattr(config, "attention_k_eq_v"):
            raise ValueError(f"{backends} assume heads of the same width in all layers")
    server = ALL_ATTENTION_FUNCTIONS["sglang"] if config._attn_implementation == "sglang" else None
    if not server:
        return
    window = getattr(config, "sliding_window", None) or config.max_position_embeddings
    closes = window < config.max_position_embeddings and "sliding_attention" in kinds
    sinks = any(hasattr(getattr(layer, "self_attn", None), "sinks") for layer in layers)
    does = "leaves out attention sinks" if sinks else None
    does = does or ("attends to one position more than the window" if closes else None)
    if getattr(config, "num_attention_heads_per_layer", None) or hasattr(config, "num_sliding_attention_heads"):
        does = does or "takes all layers to have the same query heads"
    if does and not hasattr(server, "fm_sinks"):
        raise ValueError(f"SGLang's Transformers backend {does}; the package fm_sglang corrects that")


class FmModel:
    """Mixed into a stock model: the model is built with experts of zero channels, which are then replaced."""

    def __init__(self, config):
        own = "gelu_pytorch_tanh" if hasattr(config, "hidden_activation") else "silu"
        act = getattr(config, "hidden_activation", getattr(config, "hidden_act", "silu"))
        if act != own:
            raise ValueError(f"activation {act!r}: these experts support only {own}")
        with experts_of(config, 0):
            super().__init__(config)
        check_attention(config, self.base_model.layers)
        if self.base_model is not self:
            self.base_model.__class__ = self.fm_base  # it initializes its own parts
            # transformers records hidden states only of classes that it has constructed.
            recorded = getattr(modeling_utils, "_CAN_RECORD_REGISTRY", {})
            dict.__setitem__(recorded, str(self.fm_base), self.base_model._can_record_outputs)
        for index, layer in enumerate(self.base_model.layers):
            block = layer.get_submodule(config.fm_experts.rpartition(".")[0])
            if hasattr(config, "swa_num_key_value_heads") and layer.self_attn.sinks is not None:
                fit_heads(layer.self_attn, config, config.swa_num_key_value_heads)
            if hasattr(block, "experts"):
                block.experts = self.experts(config, index, block.experts)
                if isinstance(getattr(block, "router", None), nn.Linear):
                    block.router = FmPhimoeRouter(block.router)
                if hasattr(block, "e_score_correction_bias"):
                    # vLLM would replace gate and experts with its own router, which ignores this bias
                    # of MiniMax's block.  It does not replace a gate that has more than a weight.
                    block.gate.register_buffer("fm_own", torch.zeros(1), persistent=False)
                if getattr(block, "shared_experts", None) is not None and not hasattr(config, "share_expert_dim"):
                    stock = type(block.shared_experts)
                    block.shared_experts = stock(config, intermediate_size=shared_width(config))
        converters = converters_of(self)
        if converters:
            register_checkpoint_conversion_mapping(config.model_type, converters, overwrite=True)
        if config.fm_codes:  # codes and scales stay float32 until they are decoded
            self._keep_in_fp32_modules_strict |= {rf"{config.fm_experts}.{x}$" for x in ("gate_up", "down")}
        rotary = getattr(self.base_model, "rotary_emb", None)
        if isinstance(rotary, modeling_phimoe.PhimoeRotaryEmbedding):
            rotary.__class__ = FmPhimoeRotaryEmbedding
        self.init_weights()

    def experts(self, config, layer, stock):
        widths = config.fm_widths[layer]
        if len(widths) != stock.num_experts:
            raise ValueError(f"fm_widths[{layer}] is {widths} for {stock.num_experts} experts")
        limits = getattr(config, "swiglu_limits", None)
        limit = limits[layer] if limits else None
        if config.fm_layout != "layer":
            return FmExperts(config, layer, hasattr(stock, "gate_up_proj_bias"), limit)
        with experts_of(config, widths[0]):
            return type(stock)(config, limit) if limit else type(stock)(config)

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, FmExperts):
            module.reset()
        if isinstance(module, FmPhimoeRouter):
            init.normal_(module.weight, mean=0.0, std=self.config.initializer_range)

    def set_budget(self, budget):
        """Switch an elastic model to the member nearest to this removed share; returns that member's
        share.  Discard what was cached before the switch (past_key_values, a server's prefix cache)."""
        index = nearest_member(self.config, budget)
        for module in self.modules():
            if isinstance(module, FmExperts):
                module.budget.data.fill_(index)
        return self.config.fm_budgets[index]


def fit_heads(attention, config, heads):
    """Give the attention of a layer this number of key heads."""
    attention.num_key_value_groups = config.num_attention_heads // heads
    for name, width in (("k_proj", config.head_dim), ("v_proj", config.v_head_dim)):
        setattr(attention, name, nn.Linear(config.hidden_size, heads * width, bias=config.attention_bias))


def mimo_v2_of(base):
    """The configuration of MiMo-V2.5, which transformers does not have, as one of MiMo-V2-Flash."""

    class MiMoV2Config(base):
        model_type = "mimo_v2"

        def __init__(self, **own):
            kinds, mlps = ("full_attention", "sliding_attention"), ("dense", "sparse")
            if "hybrid_layer_pattern" in own:
                window = own.pop("sliding_window_size", None)
                thetas = own["rope_theta"], own.get("swa_rope_theta") or own["rope_theta"]
                turned = {"rope_type": "default", "partial_rotary_factor": own.get("partial_rotary_factor", 1.0)}
                own |= {
                    "attention_value_scale": own.get("attention_value_scale"),
                    "layer_types": [kinds[x] for x in own["hybrid_layer_pattern"]],
                    "mlp_layer_types": [mlps[x] for x in own["moe_layer_freq"]],
                    "rms_norm_eps": own.get("layernorm_epsilon", 1e-6),
                    "rope_parameters": {k: turned | {"rope_theta": float(x)} for k, x in zip(kinds, thetas)},
                    "sliding_window": own.get("sliding_window") or window,
                }
            super().__init__(**own)

    return MiMoV2Config


def causal_of(stock, name, model):
    """XForCausalLM around the text model of X, where transformers has only a multimodal class."""

    class Causal(getattr(stock, f"{name}PreTrainedModel"), GenerationMixin):
        _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

        def __init__(self, config):
            super().__init__(config)
            self.model, self.vocab_size = model(config), config.vocab_size
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            self.post_init()

        def forward(self, input_ids=None, labels=None, logits_to_keep=0, **others):
            out = self.model(input_ids, **others)
            keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits = self.lm_head(out.last_hidden_state[:, keep])
            loss = None if labels is None else self.loss_function(logits, labels, self.vocab_size)
            return CausalLMOutputWithPast(loss, logits, out.past_key_values)

    return Causal


def stock_of(name):
    """The classes XConfig (or XTextConfig), XModel and XForCausalLM that transformers has for the name X."""
    if name == "MiMoV2":
        base, *others = stock_of("MiMoV2Flash")
        return mimo_v2_of(base), *others
    for config in (f"{name}TextConfig", f"{name}Config"):
        for model_type, known in CONFIG_MAPPING_NAMES.items():
            if known == config:
                directory = model_type_to_module_name(model_type)
                place = f"transformers.models.{directory}"
                stock = import_module(f"{place}.modeling_{directory}")
                base = getattr(import_module(f"{place}.configuration_{directory}"), config)
                model = getattr(stock, config.replace("Config", "Model"))
                return base, model, getattr(stock, f"{name}ForCausalLM", None) or causal_of(stock, name, model)
    raise AttributeError(f"this version of transformers has no {name}Config")


@lru_cache(maxsize=None)
def family(name):
    """Fm<name>Config, Fm<name>Model and Fm<name>ForCausalLM."""
    base, stock_model, stock_causal = stock_of(name)
    width_key = "moe_intermediate_size" if hasattr(base, "moe_intermediate_size") else "intermediate_size"

    def start(self, fm_widths=None, fm_layout=None, fm_family=None, **stock):
        own = "fm_budget", "fm_budgets", "fm_codes", "fm_load_cap", "fm_shared"
        budgets = {key: stock.pop(key, None) for key in own}
        if fm_family:
            budgets["fm_load_cap"] = load_cap(budgets["fm_load_cap"])
        if stock.get("sliding_window") == 0 and "use_sliding_window" not in stock:
            stock["sliding_window"] = None  # both mean: no window
        # vLLM reads one width per layer from this key; the stock class does not accept a list.
        lists = {width_key: stock.pop(width_key)} if isinstance(stock.get(width_key), list) else {}
        base.__init__(self, **stock)
        vars(self).update(lists, **budgets)
        vars(self).update(fm_widths=fm_widths, fm_layout=fm_layout, fm_family=fm_family)

    def make(kind, bases, **members):
        members |= {"__module__": __name__, "__qualname__": f"Fm{name}{kind}"}
        return type(f"Fm{name}{kind}", bases, members)

    # Attention and dense parts are split over devices as in the stock model.  Experts are not split,
    # nor is what would have to be gathered again (OLMoE's attention), which SGLang refuses.
    plan = base.base_model_tp_plan or {}
    places = [key[: key.index("experts") + 7].split(".", 2)[2] for key in plan if ".experts" in key]
    split = {k: how for k, how in plan.items() if ".experts" not in k and how not in GATHERED}
    attends = any(".self_attn." in key for key in plan)
    if hasattr(base, "kv_lora_rank"):
        split = {k: how for k, how in split.items() if ".self_attn." not in k} | LATENT_PLAN
        attends = True
    members = {
        "__init__": start,
        "model_type": f"fm_{base.model_type}",
        "fm_width_key": width_key,
        "fm_experts": places[0] if places else "mlp.experts",
        "base_model_tp_plan": split if attends else ATTENTION_PLAN,
        "base_model_ep_plan": {},
    }
    if hasattr(base, "logits_scaling"):  # the servers' Transformers backends know only this key, and multiply
        members["logit_scale"] = property(lambda self: 1 / self.logits_scaling)
    ours = make("Config", (base,), **members)
    model = make("Model", (FmModel, stock_model), config_class=ours)
    return ours, model, make("ForCausalLM", (FmModel, stock_causal), config_class=ours, fm_base=model)


def __getattr__(name):
    """The classes of the module that config.json names; each family is made when one of them is used."""
    parts = re.fullmatch(r"Fm(\w+?)(Config|Model|ForCausalLM)", name)
    if not parts:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals().update({made.__name__: made for made in family(parts[1])})
    return globals()[name]
