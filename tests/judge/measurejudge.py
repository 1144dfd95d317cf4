#!/usr/bin/env python3
"""Check the figures of fm-bench quality for tokens with transformers and numpy.  Run by `make judge`.

transformers computes the logits of golden/tiny-mixtral and of a uniform export of it at half its width for
the held-out sequences, in float32; numpy computes every figure from them in float64.  Figures of the
llama.cpp convention are also compared with the formulas of llama-perplexity, in float32 and with its
percentiles, as in tools/perplexity/perplexity.cpp of llama.cpp 050fc7f3; the program itself is not run.  The
file that --kl-base-out writes is parsed as kl_divergence() in perplexity.cpp parses it, and a file written
here is passed to --kl-base.
"""

import json
import struct
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
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


def encode(base):
    """Scale, lowest log-probability and 16-bit codes of one row of logits, as in llama.cpp's log_softmax."""
    f = np.float32
    most = base.max()
    least = max(base.min(), most - f(16))
    width = f(np.log(np.exp(base - most, dtype=f).sum(dtype=np.float64)))
    scale = f((most - least) / f(65535))
    codes = np.where(base > least, np.rint((base - least) * f(1 / scale)), 0).astype(np.uint16)
    return scale, f(least - most - width), codes


def read_base(path):
    """n_ctx, tokens (chunks, n_ctx) and log-probabilities (rows, n_vocab) of a base-logits file, as
    kl_divergence() reads it."""
    data = path.read_bytes()
    assert data[:8] == b"_logits_"
    n_ctx, n_vocab, n_chunk = struct.unpack("<3i", data[8:20])
    tokens = np.frombuffer(data, "<i4", n_chunk * n_ctx, 20).reshape(n_chunk, n_ctx)
    nv = 2 * ((n_vocab + 1) // 2) + 4
    rows = np.frombuffer(data, "<u2", offset=20 + tokens.nbytes).reshape(n_chunk * (n_ctx - 1 - n_ctx // 2), nv)
    head = np.ascontiguousarray(rows[:, :4]).view("<f4")
    return n_ctx, tokens, head[:, :1] * rows[:, 4 : 4 + n_vocab].astype(np.float32) + head[:, 1:]


def write_base(path, tokens, logits):
    """Write a base-logits file from logits (rows, n_vocab)."""
    n_vocab = logits.shape[-1]
    with path.open("wb") as file:
        file.write(b"_logits_" + struct.pack("<3i", tokens.shape[1], n_vocab, tokens.shape[0]))
        file.write(tokens.astype("<i4").tobytes())
        for row in logits.reshape(-1, n_vocab):
            scale, low, codes = encode(row)
            file.write(struct.pack("<2f", scale, low) + codes.astype("<u2").tobytes() + bytes(n_vocab % 2 * 2))


def judge_base(judge, out, folder, asked, ours, theirs, target):
    """Read a base-logits file written by fm-bench, and make fm-bench read one written here."""
    written, read, report = folder / "base.kld", folder / "numpy.kld", folder / "base.json"
    tool("fm-bench", "quality", "--quiet", "--model", MODEL, "--eval-tokens", HELDOUT, "--seq-len", T,
         "--precision", "f32", "--kl-base-out", written, out)  # fmt: skip
    n_ctx, tokens, have = read_base(written)
    judge.say(n_ctx == T and (tokens == asked).all(), "--kl-base-out: the tokens are those of --eval-tokens")
    want = log_softmax(theirs).reshape(have.shape)
    counts = have > -16
    miss = np.abs(have - want)[counts].max()
    judge.say(miss <= 8 / 65535 + 1e-4, f"--kl-base-out: log-probabilities off by {miss:.1e}, half a step is 1.2e-4")
    judge.say((want[~counts] < -15.9).all(), f"--kl-base-out: {(~counts).sum()} values are at the floor")
    write_base(read, asked, theirs)
    for path in written, read:
        tool("fm-bench", "quality", "--quiet", "--precision", "f32", "--kl-base", path, "--report", report, out)
        got = json.loads(report.read_text())
        compare(judge, f"--kl-base {path.name}", got, llama(ours, theirs, target), 1e-4)
    wrong = llama(ours, np.roll(theirs, 1, axis=1), target)
    judge.apart("a base with its rows shifted by one", torch.tensor(got["kl"]), torch.tensor(wrong["kl"]))


def llama(ours, theirs, target):
    """The figures that llama-perplexity --kl-divergence prints, from logits; the base is rounded to 16 bits."""
    f = np.float32
    kl, change, same, nll = [], [], 0, []
    for logits, base, t in zip(ours.reshape(-1, ours.shape[-1]), theirs.reshape(-1, ours.shape[-1]), target.ravel()):
        scale, low, codes = encode(base)
        log_base = scale * codes.astype(f) + low
        norm = f(logits.max() + f(np.log(np.exp(logits - logits.max(), dtype=f).sum(dtype=np.float64))))
        counts = log_base > f(-16)
        kl.append((np.exp(log_base[counts]) * (log_base[counts] - logits[counts] + norm)).sum(dtype=np.float64))
        change.append(np.exp(logits[t] - norm) - np.exp(log_base[t]))
        nll.append(norm - logits[t])
        same += logits.argmax() == log_base.argmax()
    kl, change = np.sort(f(kl)), np.sort(f(change))
    percentile = lambda x, at: x[int(at * (len(x) - 1))] + (at * (len(x) - 1) % 1) * (
        x[min(int(at * (len(x) - 1)) + 1, len(x) - 1)] - x[int(at * (len(x) - 1))])  # fmt: skip
    return {"ce": np.mean(nll, dtype=np.float64), "perplexity": np.exp(np.mean(nll, dtype=np.float64)),
            "kl": kl.mean(dtype=np.float64), "agree": same / len(kl), "dp_mean": change.mean(dtype=np.float64),
            "dp_rms": np.sqrt((change.astype(np.float64) ** 2).mean()),
            "kl_tokens": [percentile(kl, a) for a in AT], "dp_tokens": [percentile(change, a) for a in AT]}  # fmt: skip


def compare(judge, what, report, want, tolerance):
    for key, value in want.items():
        got, value = np.asarray(report[key], float), np.asarray(value, float)
        miss = np.abs(got - value).max() / np.abs(value).max()
        judge.say(miss <= tolerance, f"{what}: {key}: {miss:.1e} of the largest")


def main():
    judge = Judge()
    asked = np.load(HELDOUT).reshape(-1)[: SEQUENCES * T].reshape(SEQUENCES, T).astype(np.int64)
    ids = asked.copy()
    with tempfile.TemporaryDirectory() as folder:
        out = make_export(Path(folder))
        front = Tokenizer.from_file(str(MODEL / "tokenizer.json")).encode("").ids[0]
        for convention, first in ("papers", 0), ("llama.cpp", T // 2):
            if first:
                ids[:, 0] = front
            ours, theirs = logits_of(out, ids), logits_of(MODEL, ids)
            report = Path(folder) / "report.json"
            tool("fm-bench", "quality", "--quiet", "--model", MODEL, "--eval-tokens", HELDOUT, "--seq-len", T,
                 "--precision", "f32", "--convention", convention, "--report", report, out)  # fmt: skip
            got = json.loads(report.read_text())
            target, rows = ids[:, first + 1:], (slice(None), slice(first, T - 1))
            judge.say(got["tokens"] == target.size, f"{convention}: {got['tokens']} tokens")
            compare(judge, convention, got, figures(log_softmax(ours[rows]), log_softmax(theirs[rows]), target), 1e-4)
            if first:  # llama-perplexity's base has 16 bits: each log-probability is off by up to 1.2e-4
                compare(judge, "llama-perplexity's formulas", got, llama(ours[rows], theirs[rows], target), 5e-4)
                wrong = figures(log_softmax(ours[:, :-1]), log_softmax(theirs[:, :-1]), ids[:, 1:])
                judge.apart("another convention", torch.tensor(got["ce"]), torch.tensor(wrong["ce"]))
                judge_base(judge, out, Path(folder), asked, ours[rows], theirs[rows], target)
    print(f"measurejudge.py: {judge.made} checks, {judge.failed} failed")
    sys.exit(judge.failed > 0)


if __name__ == "__main__":
    main()
