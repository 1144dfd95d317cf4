#!/usr/bin/env python3
"""Time packing, exporting and verifying of random weights, and cp and xxhsum on the same bytes, in the same rounds, so
that a disturbance affects all of them.  The best round counts, because a disturbance only makes things slower.

usage: BUILD=build tests/measure/files.py [--size MB] [--repeat N] [--dir DIR] [--threads N]

The checkpoint is a narrow Mixtral with at least four layers.  pack, export and cp end with a sync."""

import argparse
import math
import os
import subprocess
import tempfile
import time

import fullsize


def shape(size):
    """The widest Mixtral of a few that has at least four layers in `size` bytes."""
    for hidden in 1024, 512, 256, 128, 64:
        c = {**fullsize.SHAPES["mixtral"], "vocab_size": 1024, "hidden_size": hidden, "num_hidden_layers": 1,
             "intermediate_size": 7 * hidden // 2, "num_attention_heads": hidden // 64, "num_key_value_heads": 1}
        rest, layer = (sum(2 * math.prod(s) for _, _, s in shard) for shard in fullsize.tensors(c))
        if size >= rest + 4 * layer:
            break
    return {**c, "num_hidden_layers": max(1, (size - rest) // layer)}


def run(tool, *words):
    command = [fullsize.tool(tool), "-q", *words] if tool.startswith("fm-") else [tool, *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def measure(o, at):
    model, stage, bundle, out = (os.path.join(at, name) for name in ("model", "trained", "family.fm", "out"))
    fullsize.make(model, shape(1000000 * o.size), False)
    fullsize.make_tokens(at + "/tokens.npy", 128, 1024)
    data = ["-m", model, "-t", at + "/tokens.npy", "--seq-len", "32", "-T", o.threads]
    run("fm-rank", *data, "-o", at + "/ranked")
    run("fm-train", *data, "--method", "saliency", "--budget-step", "0.1", "-o", stage, at + "/ranked")
    steps = {
        "cp + fsync": [["cp", bundle, at + "/copy"], ["sync", at + "/copy"]],
        "pack": [["fm-pack", "-T", o.threads, "-m", model, "-f", "-o", bundle, stage]],
        "export native": [["fm-pack", "-T", o.threads, "-x", out, "-f", "--layout", "native", "-b", "0.4", bundle]],
        "xxhsum": [["xxhsum", "-q", "-H2", bundle]],
        "verify bundle": [["fm-verify", "-T", o.threads, bundle]],
        "verify export": [["fm-verify", "-T", o.threads, out, "--against", bundle]],
    }
    best = dict.fromkeys(steps, math.inf)
    run(*steps["pack"][0])
    for _ in range(o.repeat):
        for name, commands in steps.items():
            began = time.monotonic()
            for command in commands:
                run(*command)
            best[name] = min(best[name], time.monotonic() - began)
    size = {name: fullsize.size_of(out if "export" in name else bundle) for name in steps}
    print(f"best of {o.repeat}\n{'':14} {'bytes':>9} {'seconds':>9} {'GB/s':>10} {'share':>8}")
    for name, seconds in best.items():
        beside = {"pack": "cp + fsync", "export native": "cp + fsync", "verify bundle": "xxhsum", "verify export": "xxhsum"}.get(name)
        rate = size[name] / seconds
        share = f" {rate * best[beside] / size[beside]:7.2f}x" if beside else ""
        print(f"{name:14} {fullsize.amount(size[name]):>9} {seconds:9.3f} {rate / 1e9:10.3f}{share}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--size", type=int, default=256, help="MB of weights")
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--dir", default="/var/tmp")
    p.add_argument("--threads", default="0")
    o = p.parse_args()
    with tempfile.TemporaryDirectory(dir=o.dir) as at:
        measure(o, at)


if __name__ == "__main__":
    main()
