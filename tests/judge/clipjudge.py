"""`make judge`: libfm_clip on PyTorch's tensors.

The example of fm-clip(3), word for word; PyTorch's rows of `fm-bench kernels`, whose results
must be right; then an elastic export in transformers, the experts by PyTorch and by libfm_clip,
eager and compiled, switched while it runs: the same loss at every budget; a library that refuses
the machine, whose experts PyTorch then computes; and, in one process, that
export and one with a load cap: the same loss to the bit.  Their speeds on a model large enough to
matter: `make judge-clip`.

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
BUDGETS = (0, 0.4, 0.6, 0)
TOLERANCE = 2e-6  # of a mean of 508 log-probabilities in float32


def library():
    return (ROOT / os.environ.get("BUILD", "build") / "libfm_clip.so.1").resolve()


def example():
    """The last literal block of the man page is the Python one."""
    page = (ROOT / "man" / "fm-clip.3").read_text()
    text = page.rsplit(".Bd -literal -offset indent\n", 1)[1].split("\n.Ed", 1)[0]
    text = text.replace("libfm_clip.so.1", str(library()))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    print(f"example of fm-clip(3): {done.stdout.strip().replace(chr(10), '; ')}")
    return done.returncode == 0 or sys.stderr.write(done.stderr) * 0


def kernels(folder):
    """PyTorch's two kernels at odd and even sizes, each type, beside ours; run where a file has
    PyTorch's name, which must not be taken for it."""
    ok = True
    (folder / "torch.py").write_text("raise SystemExit('this is not PyTorch')\n")
    for shape, dtype, limit in (("64,96,8,2", "f32", 1e-6), ("72,88,5,3", "bf16", 0.01), ("64,96,8,2", "f16", 0.002)):
        command = ["fm-bench", "kernels", "--python", sys.executable, "--shape", shape, "--dtype", dtype]
        command += ["--rows", "1,33", "--budgets", "0,0.3,0.6", "--repeat", "1", "--json"]
        said = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=folder).stdout)
        rows = [row for row in said["rows"] if row["kernel"].startswith("torch-")]
        worst = max((row["error"] for row in rows), default=0)
        print(f"fm-bench kernels, {shape} {dtype}: {len(rows)} rows of PyTorch {said.get('pytorch')}, error {worst:.1e}")
        ok = ok and len(rows) == 12 and worst <= limit and "pytorch_missing" not in said
    return ok


def export(folder):
    """Elastic exports, whole and capped: of FM_JUDGE_FAMILY, or of a family made in seconds."""
    family = os.environ.get("FM_JUDGE_FAMILY")
    if not family:
        family = folder / "family.fm"
        common = f"--quiet --model {MODEL} --tokens {MODEL}/calib.npy --seq-len 128"
        subprocess.run(
            f"fm-rank {common} --max-tokens 4096 |"
            f" fm-train {common} --method saliency --max-tokens 4096 --budget-step 0.2 --until 0.6 |"
            f" fm-pack --quiet --model {MODEL} -o {family} >/dev/null",
            shell=True,
            check=True,
        )
    for name, cap in (("elastic", ()), ("capped", ("--load-cap", str(BUDGETS[1] - 0.1)))):
        command = ["fm-pack", "--quiet", "--export", folder / name, "--layout", "elastic", *cap, family]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / "elastic", folder / "capped"


def load(folder):
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, dtype=torch.float32).eval()


def some_ids():
    import numpy
    import torch

    return torch.from_numpy(numpy.load(MODEL / "heldout.npy").astype(numpy.int64))[:4]


def mean_loss(logits, ids):
    return float(-logits.log_softmax(-1)[:, :-1].gather(2, ids[:, 1:, None]).mean())


def compare(*folders):
    """In a process of its own: losses at the budgets of the last of them, all loaded, as JSON."""
    import torch

    models, ids = [load(folder) for folder in folders], some_ids()
    rows = []
    with torch.no_grad():
        for budget in models[-1].config.fm_budgets:
            for model in models:
                model.set_budget(budget)
            rows.append([mean_loss(model(input_ids=ids, use_cache=False).logits, ids) for model in models])
    print(json.dumps(rows))


def measure(folder, how):
    """In a process of its own: losses as JSON."""
    import torch

    model, ids = load(folder), some_ids()
    forward = model.forward
    if how != "eager":
        forward = torch.compile(forward, backend=how, fullgraph=True)
    rows = []
    with torch.no_grad():
        for budget in BUDGETS:
            model.set_budget(budget)
            logits = forward(input_ids=ids, use_cache=False).logits
            rows.append(mean_loss(logits, ids))
    print(json.dumps(rows))


def refuse(folder, function):
    """In a process of its own: losses where the library's `function` says that this machine cannot,
    as it does on a GPU without CUDA in the library, with an old driver, or too old."""
    import torch

    model, ids = load(folder), some_ids()
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


def main():
    ok = example()
    with tempfile.TemporaryDirectory() as scratch:
        ok = kernels(Path(scratch)) and ok
        folder, capped = export(Path(scratch))
        said, plain = run(False, "measure", folder, "eager")
        print(f"{said}\n  losses {' '.join(f'{loss:.6f}' for loss in plain)}")
        ok = ok and plain[0] == plain[3] and plain[0] < plain[1] < plain[2]
        compiled = os.environ.get("FM_JUDGE_COMPILE", "aot_eager")
        for how, clip in (("eager", True), (compiled, True), (compiled, False)):
            said, rows = run(clip, "measure", folder, how)
            worst = max(abs(a - b) for a, b in zip(plain, rows))
            print(f"{said}; {how}: losses off by {worst:.1e}")
            ok = ok and worst <= TOLERANCE
        for function in ("fm_clip_available", "fm_clip_prepare"):
            said, rows = run(False, "refuse", folder, function)
            print(f"{function} refuses: {said}; losses off by {abs(rows[0] - plain[0]):.1e}")
            ok = ok and rows[0] == plain[0]
        said, rows = run(True, "compare", folder, capped)
        print(f"{said}; load cap: losses {' '.join(f'{a:.6f}' for _, a in rows)}")
        ok = ok and len(rows) > 1 and all(a == b for a, b in rows)
    print("libfm_clip in transformers: " + ("ok" if ok else "WRONG"))
    return 0 if ok else 1


if __name__ == "__main__":
    if sys.argv[1:]:
        {"measure": measure, "compare": compare, "refuse": refuse}[sys.argv[1]](*sys.argv[2:])
    else:
        sys.exit(main())
