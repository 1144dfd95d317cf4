#!/usr/bin/env python3
"""Change every value of a manifest, one at a time, and run fm-verify.

    mutate.py FILE            a bundle or stream; all digests and sizes are corrected (forge.py)
    mutate.py DIR BUNDLE      fm-export.json of an exported directory, checked against its bundle

Prints the values whose change fm-verify does not find, one pattern per line; budgets[].step stands for that
value in all budgets.  The number of patterns goes to standard error.  The exit status is 1 if fm-verify was
ended by a signal.
"""
import copy
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import forge


# Each valid word with another that is valid in its place, which is harder to find than an unknown one.
WORDS = {"saliency": "uniform", "uniform": "saliency", "learned": "exchange", "f32": "bf16", "bf16": "f32",
         "cpu": "ref", "score": "reached", "expert": "layer", "single": "joint", "joint": "single",
         "F16": "BF16", "BF16": "F16", "mixtral": "qwen3_moe", "npy": "raw", "rows": "concatenated",
         "ragged": "layer", "any": "vllm", "rank": "train", "train": "rank", "recover": "train",
         "pack": "recover"}


def others(value):
    """Other values of the same type, close to the right one and far from it."""
    if value is None:
        return [0]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, 2 * value + 7] + ([value - 1] if value else [])
    if isinstance(value, float):
        return [value * 1.001, value + 1]
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value):
        return [("1" if value[0] == "0" else "0") + value[1:]]
    if isinstance(value, str) and re.fullmatch(r"[0-9.]+", value):
        return [value + "1", "7"]
    if isinstance(value, str):
        return [value + "x"] + [WORDS[v] for v in [value] if v in WORDS]
    return []


def leaves(tree, path=()):
    if isinstance(tree, (dict, list)) and tree:
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(value, path + (key,))
    else:
        yield path, tree


def put(tree, path, value):
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = value


def pattern(path):
    text = ""
    for key in path:
        text += "[]" if isinstance(key, int) else ("." if text else "") + key
    return text


class Liar(forge.Bundle):
    """The bundle with its list of members changed by `lie`, and everything else correct."""

    def __init__(self, path):
        super().__init__(path)
        self.lie = lambda manifest: None

    def _lay_out(self):
        order = super()._lay_out()
        size = len(order[0][1])
        self.lie(self.manifest)
        text = json.dumps(self.manifest, indent=2, ensure_ascii=False).encode()
        order[0][1] = text + b" " * (size - len(text) - 1) + b"\n"
        return order


def verify(*arguments):
    r = subprocess.run(["fm-verify", "-q", *arguments], stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, check=False, timeout=60)
    return r.returncode


def try_bundle(path, truth, where, value):
    with tempfile.TemporaryDirectory(dir=".") as folder:
        b = copy.deepcopy(truth)
        b.lie = lambda manifest: put(manifest, where, value)
        if where[0] != "members":
            b.lie(b.manifest)
            b.lie = lambda manifest: None
        b.write(folder + "/lie.fm")
        return verify(folder + "/lie.fm")


def try_export(directory, bundle, truth, where, value):
    with tempfile.TemporaryDirectory(dir=".") as folder:
        shutil.copytree(directory, folder + "/out")
        lie = copy.deepcopy(truth)
        put(lie, where, value)
        with open(folder + "/out/fm-export.json", "w", encoding="utf-8") as f:
            json.dump(lie, f, indent=2)
        return verify(folder + "/out", "--against", bundle)


def main():
    target = sys.argv[1]
    if os.path.isdir(target):
        with open(target + "/fm-export.json", encoding="utf-8") as f:
            truth = json.load(f)
        tree, attempt = truth, lambda w, v: try_export(target, sys.argv[2], truth, w, v)
    else:
        truth = Liar(target)
        truth.write("same.fm")
        assert verify("same.fm") == 0
        tree, attempt = copy.deepcopy(truth.manifest), lambda w, v: try_bundle(target, truth, w, v)
    cases = [(where, value) for where, now in leaves(tree) for value in others(now)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        status = list(pool.map(lambda case: attempt(*case), cases))
    unseen = {}
    for (where, value), code in zip(cases, status):
        unseen.setdefault(pattern(where), []).append(code == 0)
    print(f"{target}: {len(unseen)} values", file=sys.stderr)
    for name, passed in unseen.items():
        if any(passed):
            print(name)
    return any(code < 0 or code > 128 for code in status)


if __name__ == "__main__":
    sys.exit(main())
