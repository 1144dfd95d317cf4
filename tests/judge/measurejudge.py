#!/usr/bin/env python3
"""Check the figures of fm-bench quality for tokens with transformers and numpy.  Run by `make judge`.

transformers computes the logits of golden/tiny-mixtral and of a uniform export of it at half its width for
the held-out sequences, in float32; numpy computes every figure from them in float64.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from judge import CALIB, HELDOUT, MODEL, Judge, tool

T, SEQUENCES = 128, 32
AT = [0, 0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1]
STUDENT = 2.0395134  # 0.975 quantile, 31 degrees of freedom


def make_export(folder):
    tokens = ["--model", MODEL, "--tokens", CALIB, "--seq-len", T, "--max-tokens", 4096, "--quiet"]
    tool("fm-rank", *tokens, "-o", folder / "rank")
    tool("fm-train", *tokens, "--method", "uniform", "-o", folder / "train", folder / "rank")
    tool("fm-pack", "--quiet", "--model", MODEL, "-o", folder / "family.fm", folder / "train")
    tool("fm-pack", "--quiet", "--export", folder / "out", "--budget", "0.5", "--layout", "uniform",
         folder / "family.fm")  # fmt: skip
    return folder / "out"


def logits_of(path, ids):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager",
                                                 experts_implementation="eager")  # fmt: skip
    with torch.no_grad():
        return np.concatenate([model(torch.tensor(x[None])).logits.numpy() for x in ids])


def log_softmax(logits):
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def half(values):
    """Half the width of the 95 % interval of the mean, from the means of the rows, which have equal lengths."""
    means = values.mean(1)
    return STUDENT * means.std(ddof=1) / np.sqrt(len(means))


def figures(ours, theirs, target):
    """All figures, in float64, from log-probabilities (sequences, positions, V)."""
    pick = lambda x: np.take_along_axis(x, target[..., None], -1)[..., 0]
    five = lambda x: np.argsort(-x, axis=-1, kind="stable")[..., :5]
    shared = (five(ours)[..., :, None] == five(theirs)[..., None, :]).sum((-1, -2))
    ce, kl = -pick(ours), (np.exp(theirs) * (theirs - ours)).sum(-1)
    change = np.exp(pick(ours)) - np.exp(pick(theirs))
    return {
        "ce": ce.mean(), "kl": kl.mean(), "original_ce": -pick(theirs).mean(), "perplexity": np.exp(ce.mean()),
        "agree": (ours.argmax(-1) == theirs.argmax(-1)).mean(), "agree_five": shared.mean() / 5,
        "ce_interval": [ce.mean() - half(ce), ce.mean() + half(ce)],
        "kl_interval": [kl.mean() - half(kl), kl.mean() + half(kl)],
        "kl_tokens": np.quantile(kl, AT), "dp_tokens": np.quantile(change, AT),
        "dp_mean": change.mean(), "dp_rms": np.sqrt((change**2).mean()),
    }  # fmt: skip


def compare(judge, what, report, want, tolerance):
    for key, value in want.items():
        got, value = np.asarray(report[key], float), np.asarray(value, float)
        miss = np.abs(got - value).max() / np.abs(value).max()
        judge.say(miss <= tolerance, f"{what}: {key}: {miss:.1e} of the largest")


def main():
    judge = Judge()
    ids = np.load(HELDOUT).reshape(-1)[: SEQUENCES * T].reshape(SEQUENCES, T).astype(np.int64)
    with tempfile.TemporaryDirectory() as folder:
        out = make_export(Path(folder))
        ours, theirs = (log_softmax(logits_of(model, ids)[:, :-1]) for model in (out, MODEL))
        got = json.loads(tool("fm-bench", "quality", "--quiet", "--model", MODEL, "--eval-tokens", HELDOUT, "--seq-len", T,
                              "--precision", "f32", "--json", out))  # fmt: skip
        target = ids[:, 1:]
        judge.say(got["tokens"] == target.size, f"{got['tokens']} tokens")
        compare(judge, "quality", got, figures(ours, theirs, target), 1e-4)
        wrong = figures(ours[:, T // 2:], theirs[:, T // 2:], target[:, T // 2:])
        judge.apart("the second halves of the sequences", torch.tensor(got["ce"]), torch.tensor(wrong["ce"]))
    print(f"measurejudge.py: {judge.made} checks, {judge.failed} failed")
    sys.exit(judge.failed > 0)


if __name__ == "__main__":
    main()
