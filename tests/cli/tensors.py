"""Read and write safetensors files and checkpoints, in plain Python."""
import json
import shutil
import struct
import tarfile
from pathlib import Path

BITS = {"I8": 8, "I16": 16, "F8_E4M3": 8, "F8_E8M0": 8, "U8": 8, "BF16": 16, "F16": 16, "F32": 32, "F64": 64,
        "I32": 32, "I64": 64}  # fmt: skip


def unpack(data):
    """{name: (dtype, shape, bytes)}"""
    n = struct.unpack("<Q", data[:8])[0]
    table = json.loads(data[8 : 8 + n])
    table.pop("__metadata__", None)
    body = memoryview(data)[8 + n :]
    return {name: (t["dtype"], t["shape"], bytes(body[slice(*t["data_offsets"])])) for name, t in table.items()}


def span(data, name):
    """The first and the last offset of a tensor in a file, or exit with status 1 if it has no such tensor."""
    n = struct.unpack("<Q", data[:8])[0]
    table = json.loads(data[8 : 8 + n])
    if name not in table:
        raise SystemExit(1)
    return [8 + n + x for x in table[name]["data_offsets"]]


def pack(tensors):
    table, at, body = {}, 0, []
    for name, (dtype, shape, data) in sorted(tensors.items(), key=lambda x: (-BITS[x[1][0]], x[0])):
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
        body.append(data)
    text = json.dumps({"__metadata__": {"format": "pt"}} | table).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(body)


def members(bundle):
    """{name: bytes} of a bundle or stream"""
    with tarfile.open(bundle) as t:
        return {m.name: t.extractfile(m).read() for m in t if m.isfile()}


def read(model):
    """All tensors of a checkpoint or an export."""
    tensors, files = {}, Path(model).glob("*.safetensors")
    for file in sorted(f for f in files if f.name != "golden.safetensors"):
        tensors |= unpack(file.read_bytes())
    return tensors


def config_of(model):
    return json.loads((Path(model) / "config.json").read_text())


def write(model, out, tensors, edit=lambda config: None):
    """Write the tensors to one file; copy the model's tokens.npy and its config.json, changed by `edit`."""
    out, config = Path(out), config_of(model)
    out.mkdir()
    edit(config)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    shutil.copy(Path(model) / "tokens.npy", out)
    (out / "model.safetensors").write_bytes(pack(tensors))
