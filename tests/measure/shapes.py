"""A checkpoint of random weights in a released model's shapes, and the pipeline on it under a memory
limit: rank, train, pack, export, verify, with the peak memory and the time of each tool beside what
its dry run says.  A measurement (moonlight.py, gptoss.py) has the config and the tensors of a layer.
Needs Python alone."""

import argparse
import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys
import time

DRAWN = 1048573  # values, or bytes of codes, that a tensor is a stretch of


def bf16(x):
    return struct.unpack("<I", struct.pack("<f", x))[0] >> 16


class Weights:
    """Normal values as bfloat16; bytes of codes, any, and of their scales, for values of about 1 / 64.
    Stretches of one long draw of each, from a place that differs each time."""

    def __init__(self, seed):
        self.place = random.Random(seed)
        draw = random.Random(seed + 1)
        self.values = struct.pack(f"<{DRAWN}H", *(bf16(draw.gauss(0, 1 / 64)) for _ in range(DRAWN)))
        self.bytes = {
            "_blocks": draw.randbytes(DRAWN),
            "_scales": bytes(draw.choice((119, 120, 121)) for _ in range(DRAWN)),
        }

    def is_bytes(self, name):
        return name[-7:] in self.bytes

    def write(self, out, name, count):
        if name.endswith("norm.weight"):
            out.write(struct.pack("<H", bf16(1.0)) * count)
            return
        size = 1 if self.is_bytes(name) else 2
        block = self.bytes.get(name[-7:], self.values)
        left, at = size * count, size * self.place.randrange(DRAWN)
        while left:
            piece = block[at:at + left]
            out.write(piece)
            left, at = left - len(piece), 0


def write_shard(path, tensors, weights):
    header, at = {}, 0
    for name, shape in tensors:
        codes = weights.is_bytes(name)
        size = (1 if codes else 2) * math.prod(shape)
        header[name] = {"dtype": "U8" if codes else "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors:
            weights.write(out, name, math.prod(shape))
    return at


def make(model, config, layer, layers):
    """layer(L) gives the names and shapes of a layer.  The bytes that were written."""
    os.makedirs(model)
    weights, names, total = Weights(11), {}, 0
    V, H = config["vocab_size"], config["hidden_size"]
    ends = [("model.embed_tokens.weight", (V, H)), ("model.norm.weight", (H,)), ("lm_head.weight", (V, H))]
    for i, tensors in enumerate([ends] + [list(layer(l)) for l in range(layers)]):
        shard = f"model-{i + 1:05d}-of-{layers + 1:05d}.safetensors"
        total += write_shard(os.path.join(model, shard), tensors, weights)
        names.update((name, shard) for name, _ in tensors)
    with open(os.path.join(model, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": names}, f)
    with open(os.path.join(model, "config.json"), "w") as f:
        json.dump(dict(config, num_hidden_layers=layers), f, indent=2)
    return total


def make_tokens(path, count, vocabulary):
    draw = random.Random(3)
    head = "{'descr': '<i4', 'fortran_order': False, 'shape': (%d,), }" % count
    head += " " * (-(len(head) + 11) % 64) + "\n"
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head.encode())
        f.write(struct.pack(f"<{count}i", *(draw.randrange(vocabulary) for _ in range(count))))


def size_of(path):
    if os.path.isfile(path):
        return os.path.getsize(path)
    return sum(os.path.getsize(os.path.join(d, f)) for d, _, files in os.walk(path) for f in files)


def high_water(pid):
    """kB that the process had resident at the most, so far."""
    try:
        with open(f"/proc/{pid}/status") as f:
            return next((int(line.split()[1]) for line in f if line.startswith("VmHWM")), 0)
    except OSError:
        return 0


def run(bin, tool, *args, made=None, dry=True):
    """Prints a row: what the dry run says, then what it took."""
    command = [os.path.join(bin, tool), *args]
    if dry:
        plan = subprocess.run(command + ["--dry-run"], stdout=subprocess.PIPE, check=True, text=True)
        print("".join("    " + line + "\n" for line in plan.stdout.splitlines()), end="", flush=True)
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0  # wait4's figure would begin with this interpreter's own
    while process.poll() is None:
        peak = max(peak, high_water(process.pid))
        time.sleep(0.05)
    seconds = time.monotonic() - began
    row = f"{tool}: {seconds:.0f} s, peak {1024 * peak / 1e9:.3f} GB"
    if made:
        row += f", {size_of(made) / 1e9:.2f} GB written"
    print(row, flush=True)
    if process.returncode:
        sys.exit(f"{tool} ended with status {process.returncode}")


def main(name, config, layer, layers):
    p = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--layers", type=int, default=layers)
    p.add_argument("--memory", default="8GiB")
    p.add_argument("--tokens", type=int, default=2048)
    p.add_argument("--precision", default="f32")
    p.add_argument("--budget", default="0.4")
    p.add_argument("--dir")
    p.add_argument("--keep", action="store_true")
    o = p.parse_args()
    build = os.environ.get("BUILD", "build")
    bin, where = os.path.join(build, "bin"), o.dir or os.path.join(build, name)
    os.makedirs(where)
    at = lambda file: os.path.join(where, file)
    try:
        print(f"checkpoint: {make(at('model'), config, layer, o.layers) / 1e9:.2f} GB, {o.layers} layers", flush=True)
        make_tokens(at("tokens.npy"), o.tokens, config["vocab_size"])
        common = ["--memory", o.memory, "--quiet"]
        run(bin, "fm-rank", "--model", at("model"), "--tokens", at("tokens.npy"), "--seq-len", "256",
            "--precision", o.precision, *common, "-o", at("ranking"), made=at("ranking"))
        run(bin, "fm-train", "--model", at("model"), "--tokens", at("tokens.npy"), "--seq-len", "256",
            "--precision", o.precision, "--method", "uniform",
            "--budget-step", "0.20", "--until", "0.40", *common, "-o", at("masks"), at("ranking"),
            made=at("masks"))
        for weights in ("keep", "bf16") if "quantization_config" in config else (None,):
            form = ["--weights", weights] if weights else []
            run(bin, "fm-pack", "--model", at("model"), "--quiet", "--force", *form, "-o", at("bundle.fm"), at("masks"),
                made=at("bundle.fm"))
            run(bin, "fm-pack", "--export", at("export"), "--layout", "uniform", "--budget", o.budget, "--quiet",
                "--force", at("bundle.fm"), made=at("export"))
            run(bin, "fm-verify", "--quiet", at("bundle.fm"), dry=False)
            run(bin, "fm-verify", "--quiet", at("export"), "--against", at("bundle.fm"), dry=False)
    finally:
        if not o.keep:
            shutil.rmtree(where)
