"""Test the modelling file of exports on CUDA tensors.  libfm_clip computes experts eagerly, and in a
captured graph that is replayed at other budgets.  A first call in a capture is refused.  PyTorch computes
the experts if the library refuses.

    python3 tests/gpu/gpu_model.py LIBFM_CLIP.SO

Needs torch with CUDA, and transformers, which the file imports; status 77 without them.
"""
import os
import sys
from pathlib import Path

os.environ["FM_CLIP_LIBRARY"] = str(Path(sys.argv[1]).resolve())
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "formats" / "runtime"))
try:
    import torch
    import modeling_fm
except ImportError as missing:
    print(f"gpu_model.py: left out: {missing}")
    sys.exit(77)

failures = 0


def report(good, what, detail=""):
    global failures
    failures += not good
    print("ok  " if good else "FAIL", what + (f": {detail}" if detail else ""), flush=True)


def make_case(dtype, H=136, N=70, K=2):
    g = torch.Generator(device="cuda").manual_seed(1)
    normal = lambda *shape: torch.randn(shape, generator=g, device="cuda").to(dtype)
    cap = torch.tensor([70, 33, 1, 64, 200], dtype=torch.int32, device="cuda")
    widths = torch.stack((cap, cap // 2, cap // 5))
    logits = torch.rand((N, len(cap)), generator=g, device="cuda")
    weights, ids = torch.topk(logits.softmax(-1), K)
    channels = int(cap.sum())
    index = torch.zeros(1, dtype=torch.int64, device="cuda")
    return [normal(N, H), ids, weights, normal(2 * channels, H) / H**0.5, normal(channels, H) / 8,
            cap.cumsum(0) - cap, cap, widths, index]


def near(out, case, dtype):
    """Return whether the error is within the bound of the type, and the error as text: its root mean square
    relative to that of the definition in float64."""
    wide = [t.double() if t.is_floating_point() else t for t in case]
    x, ids, weights, gate_up, down, row0, cap, widths, index = wide
    want = torch.zeros_like(x)
    for e, (first, k) in enumerate(zip(row0.tolist(), widths[int(index)].tolist())):
        token, slot = torch.where(ids == e)
        both = x[token] @ gate_up[2 * first : 2 * (first + k)].T
        h = torch.nn.functional.silu(both[:, 0::2]) * both[:, 1::2]
        want.index_add_(0, token, (h @ down[first : first + k]) * weights[token, slot, None])
    rms = ((out.double() - want).pow(2).mean() / want.pow(2).mean()).sqrt().item()
    return rms <= {torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype], f"rms {rms:.2e}"


def captured(case):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = modeling_fm.experts_forward(*case)
    return graph, out


def with_library(dtype):
    name, case = str(dtype)[6:], make_case(dtype)
    try:
        captured(case)
        report(False, f"{name}, a capture before the first call", "it was not refused")
    except RuntimeError as error:
        report("before capturing" in str(error), f"{name}, a capture before the first call", str(error)[:90])
    report(*reordered(near(modeling_fm.experts_forward(*case), case, dtype), f"{name}, eager"))
    graph, out = captured(case)
    for budget in (0, 2, 1, 0):
        case[-1].fill_(budget)
        graph.replay()
        torch.cuda.synchronize()
        report(*reordered(near(out, case, dtype), f"{name}, replayed at budget {budget}"))
        same = torch.equal(out, modeling_fm.experts_forward(*case))
        report(same, f"{name}, a replay and a call give the same bits")


def reordered(found, what):
    return found[0], what, found[1]


def without_library(dtype, function):
    """Test the fallback for a library without CUDA, or a driver or GPU that is too old."""
    library, case = modeling_fm.CLIP, make_case(dtype)

    class Refusing:
        def __getattr__(self, name):
            return (lambda *_: 69) if name == function else getattr(library, name)

    modeling_fm.CLIP = Refusing()
    for kept in (modeling_fm.clip_kinds, modeling_fm.clip_layers):
        kept.clear()
    out = modeling_fm.experts_forward(*case)
    rms_of_loop = near(out, case, dtype)[1]
    same = torch.equal(out, modeling_fm.each_expert(*case))
    report(same, f"{str(dtype)[6:]}, {function} refuses: PyTorch's numbers", rms_of_loop)
    graph, out = captured(case)
    graph.replay()
    torch.cuda.synchronize()
    report(bool(out.isfinite().all()), f"{str(dtype)[6:]}, {function} refuses, captured")
    modeling_fm.CLIP = library
    for kept in (modeling_fm.clip_kinds, modeling_fm.clip_layers):
        kept.clear()


def main():
    if not torch.cuda.is_available():
        print("gpu_model.py: torch sees no GPU: left out")
        return 77
    if modeling_fm.CLIP is None:
        print(f"FAIL the library was not loaded from {sys.argv[1]}")
        return 1
    with torch.no_grad():
        for dtype in (torch.bfloat16, torch.float16):
            with_library(dtype)
        case = make_case(torch.float32)
        same = torch.equal(modeling_fm.experts_forward(*case), modeling_fm.each_expert(*case))
        report(same, "float32: PyTorch's numbers")
        for function in ("fm_clip_available", "fm_clip_prepare"):
            without_library(torch.bfloat16, function)
    print(f"{failures} failures")
    return failures != 0


if __name__ == "__main__":
    sys.exit(main())
