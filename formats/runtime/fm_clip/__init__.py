"""Call libfm_clip on PyTorch tensors: compute the experts of a mixture-of-experts layer at the
widths of any member of its family (fm-clip(3)).

    import torch
    import fm_clip

    layer = fm_clip.Layer(gate_up, down, row0, cap, widths, budget)
    out = layer(hidden, ids, weights)
    budget.fill_(2)                       # switch members; nothing is copied or prepared again
    out = layer(hidden, ids, weights)

Weights, widths and budget are not copied; every call reads them.  An argument of the wrong type, shape or
device raises a TypeError or a ValueError that names it.  An error of the library itself raises Error
with the library's code.  Gradients are not supported.

`experts` is also an operator of PyTorch, torch.ops.fm_clip.experts, with a fake implementation, so it
works with torch.compile and in CUDA graphs.

The library is the file that the environment variable FM_CLIP_LIBRARY names, else libfm_clip.so.1 next
to this file, else the one that the system's loader finds.
"""

import ctypes
import os
import threading
from pathlib import Path
from typing import NamedTuple, Optional, Union

import torch
from torch import Tensor

__all__ = ["Error", "Layer", "available", "experts", "library_path", "version"]

ABI = 1
ALIGN = 256
TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.int32: 3, torch.int64: 4}
WEIGHTS = (torch.float32, torch.float16, torch.bfloat16)
TOKENS = {"cpu": 2048, "cuda": 4096}  # computed at once; more are split into chunks, with the same result
FAULTS = {1: "a width outside [0, cap]", 2: "a budget outside the family"}
EDEVICE = 69


class Error(RuntimeError):
    """An error of libfm_clip: `code` is a code of fm_clip.h; the text is the library's message."""

    def __init__(self, code: int, text: str):
        super().__init__(f"libfm_clip: {text}")
        self.code = code


def _struct(name: str, fields: str) -> type:
    kinds = {"u": ctypes.c_uint32, "i": ctypes.c_int32, "l": ctypes.c_int64, "p": ctypes.c_void_p, "f": ctypes.c_float}
    pairs = [field.split(":") for field in fields.split()]
    return type(name, (ctypes.Structure,), {"_fields_": [(field, kinds[kind]) for field, kind in pairs]})


_Layer = _struct(
    "_Layer",
    "size:u device:i ordinal:i type:i activation:i H:i E:i e0:i B:i cap_max:i channels:l gate_up:p down:p row0:p"
    " cap:p widths:p budget:p budget_type:i threads:i path:i reserved:i gate_up_bias:p down_bias:p alpha:f limit:f",
)
_Call = _struct(
    "_Call",
    "size:u ids_type:i N:l K:i threads:i hidden:p hidden_stride:l ids:p weights:p budgets:p out:p out_stride:l"
    " workspace:p workspace_bytes:l stream:p budget:p budget_type:i reserved:i",
)


class _Sentence(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int32), ("text", ctypes.c_char * 1020)]


def library_path() -> str:
    """The path of the library, or a file name that the system's loader must find."""
    asked = os.environ.get("FM_CLIP_LIBRARY")
    if asked and asked != "none":
        return asked
    ours = Path(__file__).with_name("libfm_clip.so.1")
    return str(ours) if ours.exists() else ours.name


def _load() -> ctypes.CDLL:
    path = library_path()
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"libfm_clip cannot be loaded: {error}") from error
    if library.fm_clip_abi() != ABI:
        raise ImportError(f"{path} has another interface (ABI {library.fm_clip_abi()}, not {ABI})")
    library.fm_clip_workspace_bytes.restype = ctypes.c_uint64
    library.fm_clip_name.restype = library.fm_clip_version.restype = ctypes.c_char_p
    library.fm_clip_release.restype = None
    return library


_library = _load()
_rooms = threading.local()  # the workspace of each thread that computes on the CPU


def version() -> str:
    """The library's version, such as "0.1.0"."""
    return _library.fm_clip_version().decode()


def available(device: Union[str, torch.device] = "cpu") -> str:
    """The reason why the library cannot compute on this kind of device here; "" if it can."""
    kind = torch.device(device).type
    if kind not in TOKENS:
        return f"{kind} is not supported; cpu and cuda are"
    said = _Sentence()
    code = _library.fm_clip_available(int(kind == "cuda"), ctypes.byref(said))
    return said.text.decode() if code else ""


def _check(code: int, said: _Sentence) -> None:
    if code:
        raise Error(code, said.text.decode())


class _Want(NamedTuple):
    """The requirements of an argument; None in `shape` matches any length."""

    name: str
    tensor: Optional[Tensor]
    dtypes: tuple
    shape: tuple
    rows: bool = False  # each row must be contiguous, but not the whole tensor


def _need(want: _Want, device: torch.device) -> None:
    name, tensor = want.name, want.tensor
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}, not a tensor")
    if tensor.dtype not in want.dtypes:
        names = " or ".join(str(dtype).removeprefix("torch.") for dtype in want.dtypes)
        raise TypeError(f"{name} is {str(tensor.dtype).removeprefix('torch.')}, not {names}")
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}, not on {device}")
    shape = tuple(tensor.shape)
    if len(shape) != len(want.shape) or any(w is not None and w != s for s, w in zip(shape, want.shape)):
        wanted = ", ".join("any" if w is None else str(w) for w in want.shape)
        raise ValueError(f"{name} has shape {list(shape)}, not [{wanted}]")
    packed = (not shape[0] or tensor.stride(-1) == 1 or shape[-1] == 1) if want.rows else tensor.is_contiguous()
    if not packed:
        raise ValueError(f"{name} is not contiguous")


def _no_gradient(**tensors: Optional[Tensor]) -> None:
    for name, tensor in tensors.items():
        if torch.is_grad_enabled() and tensor is not None and tensor.requires_grad:
            raise ValueError(f"{name} requires a gradient, which is not supported: call under torch.no_grad()")


def _data(tensor: Optional[Tensor]) -> Optional[int]:
    return None if tensor is None else tensor.data_ptr()


class Layer:
    """A prepared layer.

    gate_up (2 channels, H), down (channels, H)    float32 (only on the CPU), float16 or bfloat16: alternating
                      rows of gate and up, and the usual down matrix transposed, of all experts, channels in
                      order of rank
    row0 (E) int64, cap (E) int32    the first channel of each expert, and its number of channels
    widths (B, E) int32, budget (1)  the number of channels that each member uses, and the index of the
                      current member: int32, int64 or a float type; every call reads both
    first_expert      the id of the first of these experts; ids outside their range add nothing
    gate_up_bias (2 channels), down_bias (E, H), alpha, limit    for gpt-oss's experts, only on the CPU
    threads           the most threads that a call may use on the CPU; 0: all available

    All tensors are on one device.  The layer keeps references to them; their storage must not move
    while it exists.
    """

    def __init__(
        self, gate_up: Tensor, down: Tensor, row0: Tensor, cap: Tensor, widths: Tensor, budget: Tensor, *,
        first_expert: int = 0, gate_up_bias: Optional[Tensor] = None, down_bias: Optional[Tensor] = None,
        alpha: float = 0.0, limit: float = 0.0, threads: int = 0,
    ):  # fmt: skip
        self._handle = None
        _need(_Want("down", down, WEIGHTS, (None, None)), getattr(down, "device", None))
        if down.device.type not in TOKENS:
            raise ValueError(f"down is on {down.device}, not on a cpu or cuda device")
        (channels, H), kind = down.shape, (down.dtype,)
        wants = [
            _Want("gate_up", gate_up, kind, (2 * channels, H)),
            _Want("row0", row0, (torch.int64,), (None,)),
            _Want("cap", cap, (torch.int32,), tuple(getattr(row0, "shape", (None,)))),
            _Want("widths", widths, (torch.int32,), (None, *getattr(row0, "shape", (None,)))),
            _Want("budget", budget, tuple(TYPES), (1,)),
        ]
        if (gate_up_bias is None) != (down_bias is None):
            raise ValueError("gate_up_bias and down_bias must be given together")
        if gate_up_bias is not None:
            wants.append(_Want("gate_up_bias", gate_up_bias, kind, (2 * channels,)))
            wants.append(_Want("down_bias", down_bias, kind, (len(row0), H)))
        for want in wants:
            _need(want, down.device)
        self._tensors = gate_up, down, row0, cap, widths, budget, gate_up_bias, down_bias
        layer = _Layer(ctypes.sizeof(_Layer), int(down.is_cuda), down.device.index or 0, TYPES[down.dtype])
        layer.H, layer.E, layer.e0, layer.B = H, len(row0), first_expert, len(widths)
        layer.cap_max, layer.channels = (int(cap.max()) if len(cap) else 0), channels
        layer.gate_up, layer.down, layer.row0, layer.cap, layer.widths, layer.budget = map(_data, self._tensors[:6])
        layer.budget_type, layer.threads = TYPES[budget.dtype], threads
        if gate_up_bias is not None:
            layer.activation, layer.alpha, layer.limit = 1, alpha, limit
            layer.gate_up_bias, layer.down_bias = map(_data, self._tensors[6:])
        handle, said = ctypes.c_void_p(), _Sentence()
        _check(_library.fm_clip_prepare(ctypes.byref(handle), ctypes.byref(layer), ctypes.byref(said)), said)
        self._handle, self._layer, self.H = handle, layer, H

    @property
    def name(self) -> str:
        """The implementation in use, such as "cpu avx512 f32" or "cuda mma bf16"."""
        return _library.fm_clip_name(self._open()).decode()

    def __call__(
        self, hidden: Tensor, ids: Tensor, weights: Tensor, *, budgets: Optional[Tensor] = None, out: Optional[Tensor] = None
    ) -> Tensor:
        """hidden (N, H) in the dtype of the expert matrices, ids (N, K) int32 or int64, weights (N, K) float32
        -> (N, H).  budgets (N) int32: the member to use for each token instead of the layer's.  out: where
        to write the result; it must not overlap hidden."""
        handle, down = self._open(), self._tensors[1]
        _need(_Want("hidden", hidden, (down.dtype,), (None, self.H), rows=True), down.device)
        _need(_Want("ids", ids, (torch.int32, torch.int64), (len(hidden), None)), down.device)
        _need(_Want("weights", weights, (torch.float32,), tuple(ids.shape)), down.device)
        if budgets is not None:
            _need(_Want("budgets", budgets, (torch.int32,), (len(hidden),)), down.device)
        if out is None:
            out = torch.empty(hidden.shape, dtype=down.dtype, device=down.device)
        _need(_Want("out", out, (down.dtype,), tuple(hidden.shape), rows=True), down.device)
        _no_gradient(hidden=hidden, weights=weights, down=down, gate_up=self._tensors[0], out=out)
        (N, K), said = ids.shape, _Sentence()
        if not N or not self.H:
            return out
        call = _Call(ctypes.sizeof(_Call), TYPES[ids.dtype], N, K)
        tensors = hidden, ids, weights, budgets, out
        call.hidden, call.ids, call.weights, call.budgets, call.out = map(_data, tensors)
        call.hidden_stride, call.out_stride = (max(t.stride(0), self.H) if N == 1 else t.stride(0) for t in (hidden, out))
        tokens = min(N, TOKENS[down.device.type])
        size = _library.fm_clip_workspace_bytes(ctypes.byref(self._layer), ctypes.c_int64(tokens), K)
        room = _room(size, down.device)
        call.workspace, call.workspace_bytes = -(-room.data_ptr() // ALIGN) * ALIGN, size
        if down.is_cuda:
            call.stream = torch.cuda.current_stream(down.device).cuda_stream
        _check(_library.fm_clip_forward(handle, ctypes.byref(call), ctypes.byref(said)), said)
        return out

    def faults(self) -> list:
        """Return, as sentences, the kinds of invalid widths and budgets in calls since the last call of
        faults().  On CUDA this waits for the device."""
        said = _Sentence()
        bits = _library.fm_clip_status(self._open(), ctypes.byref(said))
        if bits < 0:
            raise Error(said.code, said.text.decode())
        return [text for bit, text in FAULTS.items() if bits & bit]

    def close(self) -> None:
        """Release the library's handle.  The tensors still belong to the caller."""
        handle, self._handle = self._handle, None
        if handle is not None:
            _library.fm_clip_release(handle)

    def _open(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise ValueError("this layer is closed")
        return self._handle

    def __del__(self):
        if getattr(self, "_handle", None) is not None:
            self.close()


def _room(size: int, device: torch.device) -> Tensor:
    """A workspace of size bytes plus ALIGN for alignment.  On the CPU it is kept between calls, because new
    pages cost more than the computation."""
    if device.type == "cuda":
        return torch.empty(size + ALIGN, dtype=torch.uint8, device=device)
    if getattr(_rooms, "room", None) is None or _rooms.room.numel() < size + ALIGN:
        _rooms.room = torch.empty(size + ALIGN, dtype=torch.uint8)
    return _rooms.room


_layers: dict = {}  # the operator's layers by the addresses of their tensors, which a layer keeps alive


@torch.library.custom_op("fm_clip::experts", mutates_args=())
def experts(
    hidden: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, row0: Tensor, cap: Tensor,
    widths: Tensor, budget: Tensor,
) -> Tensor:  # fmt: skip
    """Layer(gate_up, down, row0, cap, widths, budget)(hidden, ids, weights), computed with PyTorch's
    number of threads.  Prepared layers are kept.  The first call of a layer allocates, so make it before capturing
    a graph."""
    tensors = gate_up, down, row0, cap, widths, budget
    threads = 0 if down.is_cuda else torch.get_num_threads()
    key = (*(t.data_ptr() for t in tensors), down.dtype, down.shape, widths.shape, threads)
    if key not in _layers:
        _layers[key] = Layer(*tensors, threads=threads)
    return _layers[key](hidden.contiguous(), ids, weights)


@experts.register_fake
def _(hidden, *others):
    return torch.empty_like(hidden, memory_format=torch.contiguous_format)
