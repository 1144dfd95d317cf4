"""Test libfm_clip with PyTorch tensors and in transformers.  Run by `make judge`.

- transformers loads an elastic export.  Experts computed by PyTorch and by libfm_clip, eager and compiled,
  must give the same losses at several budgets.
- If the library refuses the machine, PyTorch must compute the experts.
- An export with a load cap must have the same losses as the whole export.
- Losses are also compared for gpt-oss, whose experts have biases and a different activation, with an
  elastic and a ragged export.

`make judge-clip` measures speeds.

FM_JUDGE_COMPILE names the backend of torch.compile (default aot_eager, which traces without
generating code; inductor takes minutes).
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "golden" / "tiny-mixtral"
BIASED = ROOT / "golden" / "odd-gptoss"
BUDGETS = (0, 0.4, 0.6, 0)
TOLERANCE = 2e-6  # of a mean of 508 log-probabilities in float32


def library():
    return (ROOT / os.environ.get("BUILD", "build") / "libfm_clip.so.1").resolve()


def make_family(model, family, tokens, T):
    common = f"--quiet --model {model} --tokens {tokens} --seq-len {T} --precision f32"
    subprocess.run(
        f"fm-rank {common} --max-tokens 4096 |"
        f" fm-train {common} --method saliency --max-tokens 4096 --budget-step 0.2 --until 0.6 |"
        f" fm-pack --quiet --model {model} -o {family} >/dev/null",
        shell=True,
        check=True,
    )


def export(family, folder, *options):
    command = ["fm-pack", "--quiet", "--export", folder, *options, family]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


def export_elastic(family, folder):
    """Make two elastic exports: of the whole family, and with a load cap."""
    whole = export(family, folder / "elastic", "--layout", "elastic")
    cap = ("--load-cap", str(BUDGETS[1] - 0.1))
    return whole, export(family, folder / "capped", "--layout", "elastic", *cap)


def load(folder):
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, dtype=torch.float32).eval()


def some_ids(folder):
    """Tokens for the model from which the export was made."""
    import numpy
    import torch

    biased = json.loads((Path(folder) / "config.json").read_text())["model_type"] == "fm_gpt_oss"
    tokens = BIASED / "tokens.npy" if biased else MODEL / "heldout.npy"
    return torch.from_numpy(numpy.load(tokens).astype(numpy.int64))[:4]


def mean_loss(logits, ids):
    return float(-logits.log_softmax(-1)[:, :-1].gather(2, ids[:, 1:, None]).mean())


def compare(*folders):
    """Run in a separate process: print the losses of all exports at the budgets of the last one, as JSON."""
    import torch

    models, ids = [load(folder) for folder in folders], some_ids(folders[0])
    rows = []
    with torch.no_grad():
        for budget in models[-1].config.fm_budgets:
            for model in models:
                model.set_budget(budget)
            rows.append([mean_loss(model(input_ids=ids, use_cache=False).logits, ids) for model in models])
    print(json.dumps(rows))


def measure(folder, how):
    """Run in a separate process: print the loss as JSON, for an elastic export at each of BUDGETS."""
    import torch

    model, ids = load(folder), some_ids(folder)
    forward = model.forward
    if how != "eager":
        forward = torch.compile(forward, backend=how, fullgraph=True)
    rows = []
    with torch.no_grad():
        for budget in BUDGETS if model.config.fm_family else (None,):
            if budget is not None:
                model.set_budget(budget)
            logits = forward(input_ids=ids, use_cache=False).logits
            rows.append(mean_loss(logits, ids))
    print(json.dumps(rows))


def refuse(folder, function):
    """Run in a separate process: print the loss when the library's `function` fails with FM_CLIP_EDEVICE,
    as it does if the library has no CUDA code or the driver or the GPU is too old."""
    import torch

    model, ids = load(folder), some_ids(folder)
    code = sys.modules[type(model.model.layers[0].mlp.experts).__module__]

    class Refusing:
        def __getattr__(self, name):
            return (lambda *_: 69) if name == function else getattr(library, name)

    library, code.CLIP = code.CLIP, Refusing()
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits
    print(json.dumps([mean_loss(logits, ids)]))


def run(clip, task, *arguments):
    found = clip or task == "refuse"
    environment = os.environ | {"FM_CLIP_LIBRARY": str(library()) if found else "none"}
    command = [sys.executable, __file__, task, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if line.startswith("modeling_fm:")]
    if done.returncode or len(set(said)) != 1 or ("libfm_clip 0" in said[0]) != clip:
        sys.stderr.write(done.stderr)
        raise SystemExit(f"clipjudge.py: {task}, {'with' if clip else 'without'} libfm_clip: failed")
    return said[0], json.loads(done.stdout.splitlines()[-1])


def judge_clip(folder, *hows):
    """Return the losses with PyTorch's experts, and whether every pair (backend, whether libfm_clip is
    used) in `hows` has the same losses."""
    said, plain = run(False, "measure", folder, "eager")
    print(f"{folder.name}: {said}\n  losses {' '.join(f'{loss:.6f}' for loss in plain)}")
    ok = True
    for how, clip in hows:
        said, rows = run(clip, "measure", folder, how)
        worst = max(abs(a - b) for a, b in zip(plain, rows, strict=True))
        print(f"{said}; {how}: losses off by {worst:.1e}")
        ok = ok and worst <= TOLERANCE
    return plain, ok


def judge_elastic(family, folder):
    """Switch the budget between calls and compare losses; back at budget 0, the loss must equal the first."""
    whole, capped = export_elastic(family, folder)
    compiled = os.environ.get("FM_JUDGE_COMPILE", "aot_eager")
    plain, ok = judge_clip(whole, ("eager", True), (compiled, True), (compiled, False))
    ok = ok and plain[0] == plain[3] and len(set(plain)) == 3
    said, rows = run(True, "compare", whole, capped)
    print(f"{said}; load cap: losses {' '.join(f'{a:.6f}' for _, a in rows)}")
    return whole, plain, ok and len(rows) > 1 and all(a == b for a, b in rows)


def judge_refusals(folder, loss):
    ok = True
    for function in ("fm_clip_available", "fm_clip_prepare"):
        said, rows = run(False, "refuse", folder, function)
        print(f"{function} refuses: {said}; losses off by {abs(rows[0] - loss):.1e}")
        ok = ok and rows[0] == loss
    return ok


def judge_biased(folder):
    family = folder / "family.fm"
    folder.mkdir()
    make_family(BIASED, family, BIASED / "tokens.npy", 21)
    _, plain, ok = judge_elastic(family, folder)
    ragged = export(family, folder / "ragged", "--layout", "ragged", "--budget", str(BUDGETS[1]))
    widths = sum(json.loads((ragged / "config.json").read_text())["fm_widths"], [])
    print(f"experts of {min(widths)} to {max(widths)} channels, {widths.count(0)} without channels")
    (loss,), same = judge_clip(ragged, ("eager", True))
    return ok and same and abs(loss - plain[1]) <= TOLERANCE


def main():
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        family = os.environ.get("FM_JUDGE_FAMILY")
        if not family:
            family = scratch / "family.fm"
            make_family(MODEL, family, MODEL / "calib.npy", 128)
        folder, plain, same = judge_elastic(family, scratch)
        ok = judge_refusals(folder, plain[0]) and same and plain[0] < plain[1] < plain[2]
        ok = judge_biased(scratch / "biased") and ok
    print("libfm_clip in transformers: " + ("ok" if ok else "WRONG"))
    return 0 if ok else 1


if __name__ == "__main__":
    if sys.argv[1:]:
        {"measure": measure, "compare": compare, "refuse": refuse}[sys.argv[1]](*sys.argv[2:])
    else:
        sys.exit(main())
