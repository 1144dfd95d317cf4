"""Models stored as FP8 in blocks of 128 x 128, and the decoding of their values.

The definition: value = code * scale of its block, in float32, blocks counted from the first row and
column and cut at the far edges.  transformers 5.23 computes the block's height as rows / scale rows,
which gives wrong values or an error if a block is cut.  So models are dequantised here before
transformers loads them.
"""

import json
import tempfile
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import oracle

BLOCK = 128
CODES = torch.float8_e4m3fn
SCALE = "_scale_inv"


def spread(scale, shape):
    """The scale of every element."""
    wide = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return wide[: shape[0], : shape[1]]


def scales_of(tensor):
    if tensor.dtype == torch.uint8:
        return torch.exp2(tensor.float() - 127)
    return tensor.float()


def dequantised(tensors):
    """A copy of the tensors with codes decoded to float32."""
    out = {}
    for name, t in tensors.items():
        if name.endswith(SCALE):
            continue
        if t.dtype == CODES:
            t = t.float() * spread(scales_of(tensors[name + SCALE]), t.shape)
        out[name] = t
    return out


def read(folder):
    """All tensors of a checkpoint, dequantised."""
    tensors = {}
    for file in sorted(Path(folder).glob("model*.safetensors")):
        tensors |= load_file(file)
    return dequantised(tensors)


@contextmanager
def plain(folder):
    """The folder, or a float32 copy without quantization_config if it has codes."""
    folder = Path(folder)
    config = json.loads((folder / "config.json").read_text())
    if not config.pop("quantization_config", None):
        yield folder
        return
    with tempfile.TemporaryDirectory() as parent:
        copy = Path(parent) / folder.name
        copy.mkdir()
        (copy / "config.json").write_text(json.dumps(config))
        tensors = {n: t.float().contiguous() for n, t in read(folder).items()}
        save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
        yield copy


def load(folder):
    with plain(folder) as path:
        return oracle.load(path)
