#!/usr/bin/env python3
"""Judge exports that keep codes by transformers and compressed-tensors.  Run by `make judge`.

Each format's small model is ranked, packed and exported at half its width with its codes.  The
float32 model of the export's values, as tests/cli decodes them, must give in transformers the
log-probabilities that the engine computes from the codes; and the experts that transformers holds
after it has loaded the export itself must be these values, or these rounded to bfloat16 where its
loader rounds.  Formats whose loader is wrong or missing on a CPU are named with what it says.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from judge import Judge, our_logprobs, tool

ROOT = Path(__file__).resolve().parents[2]
CLI, GOLDEN = ROOT / "tests/cli", ROOT / "golden"

EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
# How transformers 5.23 holds the experts of each on a CPU; None: wrong, or not at all.
HELD = {
    "fp8-channel": torch.float32, "fp8-block": None, "w4a16": torch.bfloat16, "nvfp4": None,
    "nvfp4-modelopt": None, "mxfp4": torch.bfloat16, "mxfp8": None, "deepseek": torch.float32,
    "gpt-oss": torch.float32,
}  # fmt: skip


def script(name, *args):
    subprocess.run([sys.executable, CLI / f"{name}.py", *map(str, args)], check=True)


def model_of(name, folder):
    """The checkpoint, and the script that decodes it."""
    if name == "deepseek":
        script("codes", "resize", GOLDEN / "odd-qwen3", folder / "wide", 64)
        script("fp8", "quantise", folder / "wide", folder / "model", 4, 4)  # which divide 44 and 64
        return folder / "model", ("fp8", "F32")
    if name == "gpt-oss":
        script("mxfp4", "make", GOLDEN / "odd-gptoss", folder / "model")
        return folder / "model", ("mxfp4",)
    return GOLDEN / "packed" / name, ("codes",)


def export(model, folder):
    stage = ["--model", model, "--tokens", model / "tokens.npy", "--precision", "f32", "--quiet"]
    tool("fm-rank", *stage, "-o", folder / "rank")
    tool("fm-train", *stage, "--method", "saliency", "--budget-step", "0.25", "-o", folder / "train",
         folder / "rank")  # fmt: skip
    tool("fm-pack", "--quiet", "--model", model, "-o", folder / "family.fm", folder / "train")
    tool("fm-pack", "--quiet", "--export", folder / "out", "--budget", "0.5", "--layout", "uniform",
         folder / "family.fm")  # fmt: skip
    return folder / "out"


def logprobs(model, ids):
    with torch.no_grad():
        logits = model(torch.tensor(ids.astype(np.int64))).logits.double()
    picked = logits[:, :-1].log_softmax(-1)
    return picked.gather(2, torch.tensor(ids[:, 1:, None].astype(np.int64)))[..., 0].float().numpy()


def experts(model):
    return {k: v for k, v in model.state_dict().items() if ".experts." in k and not k.endswith("bias")}


def judge_loaded(judge, name, out, twin):
    """What transformers makes of the export's own files."""
    try:
        loaded = experts(AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, **EAGER))
        same = loaded.keys() == twin.keys() and all(loaded[k].shape == twin[k].shape for k in twin)
        equal = same and all(torch.equal(loaded[k].float(), twin[k]) for k in twin)
        rounded = same and all(torch.equal(loaded[k].float(), twin[k].bfloat16().float()) for k in twin)
        says = "the values" if equal else "the values in bfloat16" if rounded else "other values"
    except Exception as error:
        equal = rounded = False
        says = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    good = {torch.float32: equal, torch.bfloat16: rounded, None: True}[HELD[name]]
    judge.say(good, f"{name}: transformers loads the export: {says}")


def main():
    judge = Judge()
    for name in HELD:
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            model, (decoder, *dtype) = model_of(name, folder)
            out = export(model, folder)
            script("codes", "export", model, folder / "family.fm", out)
            (out / "tokens.npy").write_bytes((model / "tokens.npy").read_bytes())
            script(decoder, "plain", out, folder / "twin", *dtype)
            twin = AutoModelForCausalLM.from_pretrained(folder / "twin", dtype=torch.float32, **EAGER)
            ids = np.load(model / "tokens.npy")
            have = our_logprobs(out, model / "tokens.npy", ids.shape[1])
            judge.close(f"{name}: log-probabilities of an export with codes", have, logprobs(twin, ids))
            judge_loaded(judge, name, out, experts(twin))
    print(f"codesjudge: {judge.made} judgements, {judge.failed} failed")
    sys.exit(judge.failed > 0)


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("FM_JUDGE_THREADS", "2")))
    main()
