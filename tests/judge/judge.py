#!/usr/bin/env python3
"""Check the suite with independent programs, on golden/tiny-mixtral.  Run by `make judge` (tests/judge/judge.sh).

The tools make a family and exports of it; then transformers, safetensors, tokenizers, tar, xxhsum
and zstd read them, and their results are compared with ours.  Prints one line per check; the
exit status is 1 if one fails.
"""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import decoded
import oracle

MODEL = Path(__file__).resolve().parents[2] / "golden/tiny-mixtral"
CALIB, HELDOUT, T = MODEL / "calib.npy", MODEL / "heldout.npy", 128
BUDGET = 0.40
TOLERANCE = 1e-4  # relative to the largest value
# transformers' default experts on a CPU (torch's grouped_mm) require rows of a multiple of 16 bytes in
# every dtype: a uniform width of, say, 154 loads and then stops with "strides should be multiple of 16".
ALIGNED = 8
TENFOLD = 10  # a wrong model must miss the tolerance by this factor


class Judge:
    """Counts the checks and prints their results."""

    def __init__(self):
        self.made = self.failed = 0

    def say(self, good, text):
        self.made += 1
        self.failed += not good
        print(f"{'ok  ' if good else 'FAIL'} {text}", flush=True)

    def close(self, what, got, want):
        """The values must be equal within the tolerance."""
        miss = distance(got, want)
        self.say(miss <= TOLERANCE, f"{what}: {miss:.1e} relative")

    def apart(self, what, got, want):
        """The values must differ by far more than the tolerance: a wrong model would be noticed."""
        miss = distance(got, want)
        self.say(miss >= TENFOLD * TOLERANCE, f"{what}: {miss:.1e} relative, different as required")

    @contextmanager
    def attempt(self, what):
        """Count an exception as a failed check, so that the other checks still run."""
        try:
            yield
        except Exception as error:
            self.say(False, f"{what} stopped: {type(error).__name__}: {error}")

    def runs(self, what, *command, cwd=None):
        """Check that the command succeeds; returns what it printed."""
        done = subprocess.run(command, check=False, cwd=cwd, capture_output=True, text=True)
        self.say(done.returncode == 0, what)
        if done.returncode != 0:
            print(done.stdout[-2000:] + done.stderr[-2000:])
        return done.stdout


def distance(got, want):
    """Largest difference divided by the largest value; infinite if shapes differ or there is a NaN."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if got.shape != want.shape or not np.isfinite(got).all():
        return float("inf")
    return float(np.abs(got - want).max() / np.abs(want).max())


# --- tools --------------------------------------------------------------------------------------


def tool(*command):
    """Run one of our tools; returns its standard output as bytes."""
    done = subprocess.run([str(x) for x in command], check=False, capture_output=True)
    if done.returncode != 0:
        raise SystemExit(f"judge: {' '.join(map(str, command))}: {done.stderr.decode()}")
    return done.stdout


def make_families(folder):
    """FM_JUDGE_FAMILY or, without it, two small families made quickly: saliency masks, and a few steps of
    recovery or solved down projections."""
    given = os.environ.get("FM_JUDGE_FAMILY")
    if given:
        return [Path(given).resolve()]
    stage = ["--model", MODEL, "--tokens", CALIB, "--seq-len", T, "--precision", "f32", "--quiet"]
    held = ["--eval-tokens", HELDOUT]
    family = ["--method", "saliency", "--until", "0.6", "--width-multiple", ALIGNED]
    rank, train = folder / "rank.fm", folder / "train.fm"
    tool("fm-rank", *stage, *held, "-o", rank)
    tool("fm-train", *stage, *held, *family, "--measure-step", "0.01", "-o", train, rank)
    families = []
    for name, options in (("family", ("--steps", 20)), ("solved", ("--train", "down"))):
        families.append(folder / f"{name}.fm")
        tool("fm-recover", *stage, *held, *options, "-o", folder / "recovered.fm", "--force", train)
        tool("fm-pack", "--model", MODEL, "--quiet", "-o", families[-1], folder / "recovered.fm")
    return families


def export(family, budget, layout, folder):
    """Export one member of the family; returns the directory."""
    out = folder / f"{family.stem}-{layout}-{budget:.4f}"
    tool("fm-pack", "--quiet", "--export", out, "--budget", budget, "--layout", layout, family)
    return out


def our_logprobs(path, ids=HELDOUT, length=T):
    """The engine's log-probabilities of the held-out sequences, (S, T - 1) (tests/judge/logprobs.c)."""
    return np.frombuffer(tool("logprobs", path, ids, length), np.float32).reshape(-1, length - 1)


# --- transformers -------------------------------------------------------------------------------


def tokens(path, length=T):
    return torch.from_numpy(np.load(path).astype(np.int64)).view(-1, length)


def stock_model(judge, path, **options):
    """Load a directory with from_pretrained; no tensor may be missing or unused, except of a vision part."""
    config = AutoConfig.from_pretrained(path, trust_remote_code=options.get("trust_remote_code"))
    kind = AutoModelForCausalLM if hasattr(config, "auto_map") else oracle.class_of(config)
    model, info = kind.from_pretrained(path, dtype=torch.float32, output_loading_info=True, **options)
    info["missing_keys"] = {key for key in info["missing_keys"] if ".vision" not in key}
    odd = {key: value for key, value in info.items() if value}
    judge.say(not odd, f"transformers loads {path.name} as {type(model).__name__} {odd or ''}")
    return model.eval()


def their_logprobs(model, ids=None):
    ids = tokens(HELDOUT) if ids is None else ids
    with torch.no_grad():
        rows = [oracle.log_probs(oracle.logits_of(model, x), x) for x in ids.split(8)]
    return torch.cat(rows).numpy()


# --- checks ---------------------------------------------------------------------------------------


def judge_container(judge, family, folder):
    """Read the bundle with GNU tar, xxhsum and zstd; it stays unpacked in the folder."""
    out = folder / "unpacked"
    out.mkdir()
    listed = judge.runs("tar lists the bundle", "tar", "tvf", family).splitlines()
    judge.runs("tar unpacks the bundle", "tar", "xf", family, "-C", out)
    manifest = json.loads((out / "manifest.json").read_text())
    named = {member["name"] for member in manifest["members"]}
    seen = {line.split(None, 5)[5] for line in listed}
    rest = {name for name in seen - named if not name.startswith(".pad/")}
    judge.say(
        named <= seen and rest <= {"manifest.json", "CHECKSUMS"},
        f"tar and the manifest name the same {len(named)} members",
    )
    judge.runs("xxhsum -c agrees with CHECKSUMS", "xxhsum", "-c", "CHECKSUMS", cwd=out)
    judge.runs("zstd -t accepts masks.zst", "zstd", "-q", "-t", "masks.zst", cwd=out)
    judge_masks(judge, out, manifest)


def judge_masks(judge, out, manifest):
    """Unpack the masks with the zstd program; each must remove as many channels as the manifest says."""
    raw = subprocess.run(["zstd", "-dcq", out / "masks.zst"], check=True, capture_output=True)
    m, rows = manifest["model"], manifest["budgets"]
    widths = np.frombuffer(raw.stdout, "<u4").reshape(-1, m["layers"], m["experts"])
    whole = m["layers"] * m["experts"] * m["channels"]
    removed = [row["removed"] for row in rows]
    sums = [whole - int(mask.sum()) for mask in widths]
    judge.say(sums == removed, f"{len(widths)} masks remove what the manifest says")


def judge_safetensors(judge, folder):
    """Read every tensor of every safetensors file with the reference library."""
    files = sorted(folder.rglob("*.safetensors"))
    count = 0
    for file in files:
        with safe_open(file, framework="pt") as f:
            count += sum(f.get_tensor(name).numel() > 0 for name in f.keys())
    judge.say(len(files) > 0, f"safetensors reads {count} tensors in {len(files)} files")


def judge_ranking(judge, file, path, ids):
    """Compare scores and order with autograd over the calibration sequences, one at a time."""
    ours, model = load_file(file), decoded.load(path)
    want, _ = oracle.scores(model, ids.split(1))
    counts = oracle.tokens_per_expert(model, ids)
    moved = 0
    for l, layer, count in zip(oracle.moe_layers(model), want.numpy(), counts, strict=True):
        judge.close(f"scores of layer {l}", ours[f"layers.{l}.scores"], layer)
        order = ours[f"layers.{l}.order"].astype(np.int64)
        falling = np.take_along_axis(layer, order, axis=1)
        rise = (falling[:, 1:] - falling[:, :-1]).max() / layer.max()
        permuted = (np.sort(order, axis=1) == np.arange(layer.shape[1])).all()
        judge.say(permuted and rise <= TOLERANCE, f"order of layer {l} has descending autograd scores")
        moved += np.abs(ours[f"layers.{l}.tokens"] - count.numpy()).sum()
    # If a token's second and third router weights are nearly equal, rounding in float32 decides between them.
    judge.say(moved <= 1e-4 * counts.sum(), f"tokens per expert: {moved} of {counts.sum()} differ")


def judge_model(judge, what, path, ours, **options):
    """Compare transformers' log-probabilities and mean loss of one directory with the engine's."""
    theirs = their_logprobs(stock_model(judge, path, **options))
    judge.close(f"log-probabilities, {what}", ours, theirs)
    judge.close(f"held-out loss, {what} ({-theirs.mean():.6f})", ours.mean(), theirs.mean())
    return theirs


def stock_experts(path):
    """Options for from_pretrained: none, except for a width that grouped_mm refuses."""
    width = json.loads((path / "config.json").read_text())["intermediate_size"]
    return {} if width % ALIGNED == 0 else {"experts_implementation": "eager"}


def judge_tokenizer(judge, path, **options):
    """Check with two libraries that the exported tokenizer equals the checkpoint's."""
    text = "The zoukus 12+30=42; def f(x): ünïcode"
    want = Tokenizer.from_file(str(MODEL / "tokenizer.json")).encode(text).ids
    for name, ids in (
        ("tokenizers", Tokenizer.from_file(str(path / "tokenizer.json")).encode(text).ids),
        ("transformers", AutoTokenizer.from_pretrained(path, **options)(text)["input_ids"]),
    ):
        judge.say(ids == want, f"{name} loads the tokenizer of {path.name}")


def nearest(rows, budget):
    """The row of fm-pack --list nearest to a budget, and one of its neighbours."""
    at = min(range(len(rows)), key=lambda i: abs(rows[i]["budget"] - budget))
    return rows[at], rows[at + 1 if at + 1 < len(rows) else at - 1]


def make_members(family, folder):
    """Export every layout at one budget, the full model and a neighbour.  Returns the directories,
    and the rows of fm-pack --list for the budget and the neighbour."""
    rows = json.loads(tool("fm-pack", "--list", "--json", family))["budgets"]
    row, neighbour = nearest(rows, BUDGET)
    layouts = ("native", "ragged", "uniform", "padded", "elastic")
    members = {name: export(family, row["budget"], name, folder) for name in layouts}
    members["full"] = export(family, rows[0]["budget"], "padded", folder)
    members["neighbour"] = export(family, neighbour["budget"], "padded", folder)
    return members, row, neighbour


def judge_functions(judge, family, members, row, neighbour):
    """Compare what transformers computes from the directories with what the engine computes from the
    bundle (the full model) and from the native export (the member)."""
    judge_model(judge, "the original", MODEL, our_logprobs(MODEL))
    judge_model(judge, "the packed full model", members["full"], our_logprobs(family))
    ours, uniform = our_logprobs(members["native"]), members["uniform"]
    theirs = judge_model(judge, "padded", members["padded"], ours)
    judge_model(judge, "ragged", members["ragged"], ours, trust_remote_code=True)
    judge_model(judge, "uniform", uniform, our_logprobs(uniform), **stock_experts(uniform))
    judge_model(judge, "elastic", members["elastic"], ours, trust_remote_code=True)
    listed = f"held-out loss, fm-pack --list at {row['budget']:.4f}"
    judge.close(listed, row["quality"]["ce"], -theirs.mean())
    beside = their_logprobs(stock_model(judge, members["neighbour"]))
    judge.apart(f"the neighbour at {neighbour['budget']:.4f} is another model", ours, beside)


def judge_tokenizers(judge, members):
    """Check that the exported tokenizers load."""
    judge_tokenizer(judge, members["padded"])
    judge_tokenizer(judge, members["uniform"])
    judge_tokenizer(judge, members["ragged"], trust_remote_code=True)


def main():
    torch.set_num_threads(1)  # threads that wait for each other are slower on a busy machine
    judge = Judge()
    with tempfile.TemporaryDirectory(prefix="fm-judge-") as name:
        folder = Path(name)
        families = make_families(folder)
        family = families[0]
        members, row, neighbour = make_members(family, folder)
        with judge.attempt("the container"):
            judge_container(judge, family, folder)
        with judge.attempt("safetensors"):
            judge_safetensors(judge, folder)
        with judge.attempt("the tokenizers"):
            judge_tokenizers(judge, members)
        with judge.attempt("transformers"):
            judge_functions(judge, family, members, row, neighbour)
        for solved in families[1:]:
            with judge.attempt("solved down projections"):
                judge_functions(judge, solved, *make_members(solved, folder))
        with judge.attempt("the ranking"):
            judge_ranking(judge, folder / "unpacked/ranking.safetensors", MODEL, tokens(CALIB))
    print(f"{judge.made} checks, {judge.failed} failed")
    return judge.failed != 0


if __name__ == "__main__":
    sys.exit(main())
