"""Test the wheel fm-runtime as pip installs it, without a network and without libfm_clip on the system.
Run by `make judge`.

The examples of fm-clip(3) and fm-guide(7) are run from the pages.  fm_clip.Layer and the operator, eager
and compiled, are compared with the definition in float64.  Each wrong argument must raise the right
exception.  Last, transformers loads a ragged export: the modelling file must find the library, and must
say how to get it if it is missing.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

PIPES = {"capture_output": True, "text": True}
ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "golden" / "tiny-mixtral"


def run(*command, **more):
    done = subprocess.run([str(x) for x in command], **PIPES, **more)
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        raise SystemExit(f"runtimejudge.py: {command[:4]}: status {done.returncode}")
    return done


def block(page, name):
    """The example of a page that is marked with the name of this program and `name`."""
    return run(sys.executable, "-B", ROOT / "tests/pages.py", "take", page, f"judge/runtimejudge.py {name}").stdout


def problem(torch, dtype, device="cpu", seed=1):
    """Arguments of a layer with odd sizes and an expert without channels, and arguments of a call."""
    draw = torch.Generator().manual_seed(seed)
    H, cap = 40, [24, 7, 0, 33, 16]
    C, E, N, K = sum(cap), len(cap), 19, 3
    cap = torch.tensor(cap, dtype=torch.int32)
    random = lambda *shape: torch.randn(*shape, generator=draw).to(dtype)
    layer = [random(2 * C, H), random(C, H), (cap.cumsum(0) - cap).long(), cap]
    layer += [torch.stack([cap, cap // 2, cap // 5]), torch.zeros(1, dtype=torch.int64)]
    ids = torch.randint(-1, E + 1, (N, K), generator=draw)
    return layer, [random(N, H), ids, torch.rand(N, K, generator=draw)]


def definition(torch, layer, call, budgets):
    """The result in float64, and the sums of absolute values to which errors are relative."""
    gate_up, down, row0, cap, widths, _ = layer
    hidden, ids, weights = call
    out = torch.zeros(2, *hidden.shape, dtype=torch.float64)
    for t, row in enumerate(ids.tolist()):
        for j, e in enumerate(row):
            if 0 <= e < len(cap):
                first, k = int(row0[e]), int(widths[int(budgets[t]), e])
                both = gate_up[2 * first : 2 * (first + k)].double() @ hidden[t].double()
                inner = torch.nn.functional.silu(both[0::2]) * both[1::2] * weights[t, j].double()
                y = inner[:, None] * down[first : first + k].double()
                out[:, t] += torch.stack([y.sum(0), y.abs().sum(0)])
    return out


def call():
    """Run in a separate process that has the wheel on its path."""
    import fm_clip
    import torch

    worst = {}
    for dtype, limit in ((torch.float32, 1e-5), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)):
        layer, arguments = problem(torch, dtype)
        prepared, N = fm_clip.Layer(*layer), len(arguments[0])
        assert prepared.name.startswith("cpu"), prepared.name
        for b in range(3):
            layer[5].fill_(b)
            want, size = definition(torch, layer, arguments, [b] * N)
            outs = [prepared(*arguments), torch.ops.fm_clip.experts(*arguments, *layer)]
            compiled = torch.compile(lambda *x: fm_clip.experts(*x) + 0, backend="aot_eager", fullgraph=True)
            outs.append(compiled(*arguments, *layer))
            wide = torch.full((N, 64), 7, dtype=dtype)[:, :40]
            outs.append(prepared(*arguments, out=wide))
            for out in outs:
                off = ((out.double() - want).abs() / (size + 1e-30)).max()
                worst[dtype] = max(worst.get(dtype, 0), float(off))
                assert torch.equal(out, outs[0]), "two ways to call it give different results"
            assert worst[dtype] <= limit, (dtype, worst)
        each = torch.arange(N, dtype=torch.int32) % 3
        want, size = definition(torch, layer, arguments, each)
        off = (prepared(*arguments, budgets=each).double() - want).abs() / (size + 1e-30)
        assert float(off.max()) <= limit
        assert prepared.faults() == []
        layer[5].fill_(9)
        prepared(*arguments)
        assert prepared.faults() == ["a budget outside the family"] and prepared.faults() == []
        prepared.close()
    layer, arguments = problem(torch, torch.float32)
    torch.library.opcheck(torch.ops.fm_clip.experts.default, (*arguments, *layer), test_utils="test_faketensor")
    assert torch.ops.fm_clip.experts(*[x[:0] for x in arguments], *layer).shape == (0, 40)
    print(" ".join(f"{str(dtype)[6:]} {off:.1e}" for dtype, off in worst.items()))


ERROR = "fm_clip.Error"  # a name, because this process does not import fm_clip
MISTAKES = [  # the mistake, the exception, a part of its text
    ("layer[0] = None", TypeError, "gate_up is a NoneType"),
    ("layer[0] = layer[0].double()", TypeError, "gate_up is float64, not float32"),
    ("layer[0] = layer[0][:-1]", ValueError, "gate_up has shape [159, 40], not [160, 40]"),
    ("layer[0] = layer[0].T.contiguous().T", ValueError, "gate_up is not contiguous"),
    ("layer[1] = layer[1].to('meta')", ValueError, "down is on meta"),
    ("layer[2] = layer[2].int()", TypeError, "row0 is int32, not int64"),
    ("layer[2] = layer[2] + 1", ERROR, "libfm_clip: "),
    ("layer[3] = layer[3][:4]", ValueError, "cap has shape [4], not [5]"),
    ("layer[4] = layer[4][0]", ValueError, "widths has shape [5], not [any, 5]"),
    ("layer[5] = torch.zeros(2)", ValueError, "budget has shape [2], not [1]"),
    ("call[0] = call[0].half()", TypeError, "hidden is float16, not float32"),
    ("call[0] = call[0][:, :8]", ValueError, "hidden has shape [19, 8], not [any, 40]"),
    ("call[1] = call[1].float()", TypeError, "ids is float32, not int32 or int64"),
    ("call[1] = call[1][1:]", ValueError, "ids has shape [18, 3], not [19, any]"),
    ("call[2] = call[2].bfloat16()", TypeError, "weights is bfloat16, not float32"),
    ("call[2] = call[2][:, :1]", ValueError, "weights has shape [19, 1], not [19, 3]"),
    ("call[0].requires_grad_()", ValueError, "hidden requires a gradient"),
    ("named['out'] = call[0]", ERROR, "libfm_clip: "),
    ("named['budgets'] = torch.zeros(19)", TypeError, "budgets is float32, not int32"),
    ("closed = True", ValueError, "this layer is closed"),
]


def mistakes():
    """Run in a separate process."""
    import fm_clip
    import torch

    for wrong, kind, text in MISTAKES:
        layer, call = problem(torch, torch.float32)
        here = {"torch": torch, "layer": layer, "call": call, "named": {}, "closed": False}
        exec(wrong, here)
        try:
            prepared = fm_clip.Layer(*layer)
            if here["closed"]:
                prepared.close()
            prepared(*call, **here["named"])
        except (TypeError, ValueError, fm_clip.Error) as error:
            ok = type(error) is (fm_clip.Error if kind == ERROR else kind) and text in str(error)
            assert ok, f"{wrong}: {type(error).__name__}: {error}"
        else:
            raise AssertionError(f"{wrong}: accepted")
    assert fm_clip.available("cpu") == "" and "mps" in fm_clip.available("mps")
    assert fm_clip.available("cuda") or torch.cuda.is_available()
    print(len(MISTAKES), "mistakes refused")


def load(folder):
    """Run in a separate process: print the loss of an export."""
    import numpy
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, dtype=torch.float32).eval()
    ids = torch.from_numpy(numpy.load(MODEL / "heldout.npy").astype(numpy.int64))[:4]
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits
    print(float(-logits.log_softmax(-1)[:, :-1].gather(2, ids[:, 1:, None]).mean()))


def export(folder):
    common = f"--quiet --model {MODEL} --tokens {MODEL}/calib.npy --seq-len 128 --max-tokens 4096 --precision f32"
    run(
        "bash", "-c",
        f"fm-rank {common} | fm-train {common} --method saliency --budget-step 0.2 --until 0.6 |"
        f" fm-pack --quiet --model {MODEL} -o {folder}/family.fm &&"
        f" fm-pack --quiet --export {folder}/out20 --budget 0.2 {folder}/family.fm",
    )  # fmt: skip
    return folder / "out20"


def main():
    build = os.environ.get("BUILD", "build")
    library = (ROOT / build / "libfm_clip.so.1").resolve()
    plain = {key: value for key, value in os.environ.items() if key not in ("FM_CLIP_LIBRARY", "PYTHONPATH")}
    with tempfile.TemporaryDirectory() as name:
        scratch, ok = Path(name), True
        target = scratch / "target"
        wheel = run(sys.executable, ROOT / "formats/runtime/wheel.py", library, "0.1.0", scratch).stdout.strip()
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        install = 'pip() { "$PYTHON" -m pip --disable-pip-version-check "$@" --target target; }; '
        run("bash", "-ec", install + block("fm-clip.3", "pip"), env=plain | {"PYTHON": sys.executable}, cwd=scratch)
        here = plain | {"PYTHONPATH": str(target)}
        said = run(*pip, "check", env=here).stdout
        print(f"{Path(wheel).name}: {said.strip()}")
        away = {"env": here, "cwd": scratch}
        said = run(sys.executable, "-c", block("fm-clip.3", "wheel"), **away).stdout
        print("example of fm-clip(3):", said.strip().replace("\n", "; "))
        for task in ("call", "mistakes"):
            print(f"fm_clip, {task}:", run(sys.executable, __file__, task, **away).stdout.strip())
        lost = subprocess.run(
            [sys.executable, "-c", "import fm_clip"], env=here | {"FM_CLIP_LIBRARY": "/nowhere/lib.so"}, **PIPES
        )
        ok = ok and lost.returncode == 1 and "ImportError: libfm_clip cannot be loaded: /nowhere" in lost.stderr
        folder, losses = export(scratch), []
        said = run(sys.executable, "-c", block("fm-guide.7", "transformers"), **away).stdout
        print("example of fm-guide(7):", said.strip())
        for name, environment, words in (
            ("with the wheel", here, "modeling_fm: experts by libfm_clip 0.1.0: cpu"),
            ("without", plain, "pip install fm_runtime-"),
        ):
            done = run(sys.executable, __file__, "load", folder, env=environment)
            said = {line for line in done.stderr.splitlines() if line.startswith("modeling_fm:")}
            losses.append(float(done.stdout))
            print(f"ragged export, {name}: loss {losses[-1]:.6f}; {'; '.join(said)}")
            ok = ok and len(said) == 1 and words in "".join(said)
        ok = ok and abs(losses[0] - losses[1]) <= 2e-6
    print("the wheel fm-runtime: " + ("ok" if ok else "WRONG"))
    return 0 if ok else 1


if __name__ == "__main__":
    if sys.argv[1:]:
        {"call": call, "mistakes": mistakes, "load": load}[sys.argv[1]](*sys.argv[2:])
    else:
        sys.exit(main())
