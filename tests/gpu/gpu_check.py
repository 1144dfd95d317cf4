"""Compare the errors of libfm_clip on a GPU and of PyTorch, both against float64, on the same inputs.

    python3 tests/gpu/gpu_check.py LIBFM_CLIP.SO [JSON]

PyTorch's side is the per-expert loop of transformers: linear layers in the weights' type, results
weighted and added in that type.  The library's error (root mean square, and largest) may be at most
twice that.  Needs torch with CUDA; status 77 without it.
"""
import ctypes
import json
import sys

try:
    import torch
except ImportError:
    print("gpu_check.py: no torch here: not compared")
    sys.exit(77)

TYPES = {torch.float16: 1, torch.bfloat16: 2}
CUDA, I32 = 1, 3
PATH = 18  # FM_CLIP_MMA


class Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int32), ("text", ctypes.c_char * 1020)]


class Layer(ctypes.Structure):  # the first 112 bytes of struct fm_clip_layer, kernels/clip/clip.h
    _fields_ = [("size", ctypes.c_uint32)] + [
        (n, ctypes.c_int32) for n in
        "device ordinal type activation H E e0 B cap_max".split()] + [
        ("channels", ctypes.c_int64)] + [
        (n, ctypes.c_void_p) for n in "gate_up down row0 cap widths budget".split()] + [
        (n, ctypes.c_int32) for n in "budget_type threads path reserved".split()]


class Call(ctypes.Structure):  # struct fm_clip_call
    _fields_ = [
        ("size", ctypes.c_uint32), ("ids_type", ctypes.c_int32), ("N", ctypes.c_int64),
        ("K", ctypes.c_int32), ("threads", ctypes.c_int32), ("hidden", ctypes.c_void_p),
        ("hidden_stride", ctypes.c_int64), ("ids", ctypes.c_void_p),
        ("weights", ctypes.c_void_p), ("budgets", ctypes.c_void_p), ("out", ctypes.c_void_p),
        ("out_stride", ctypes.c_int64), ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_uint64), ("stream", ctypes.c_void_p),
        ("budget", ctypes.c_void_p), ("budget_type", ctypes.c_int32),
        ("reserved", ctypes.c_int32)]


assert ctypes.sizeof(Layer) == 112 and ctypes.sizeof(Call) == 120


def ffn(x, gate_up, down, dtype):
    """Apply one expert to its rows: gate and up rows are interleaved, down is (k, H)."""
    gu = x.to(dtype) @ gate_up.to(dtype).T
    return (torch.nn.functional.silu(gu[:, 0::2]) * gu[:, 1::2]) @ down.to(dtype)


def loop(case, dtype):
    """The layer as a loop over experts, in dtype."""
    x, ids, weights = case["x"], case["ids"], case["weights"]
    out = torch.zeros(x.shape, dtype=dtype, device=x.device)
    for e, (first, k) in enumerate(zip(case["row0"], case["widths"])):
        token, slot = torch.where(ids == e)
        if k == 0 or token.numel() == 0:
            continue
        y = ffn(x[token], case["gate_up"][2 * first:2 * (first + k)],
                case["down"][first:first + k], dtype)
        out.index_add_(0, token, (y * weights[token, slot, None].to(dtype)).to(dtype))
    return out


def clipped(lib, case):
    """The library's result for the same inputs."""
    x = case["x"]
    E, H = len(case["widths"]), x.shape[1]
    on = lambda values, dtype: torch.tensor(values, dtype=dtype, device=x.device)
    row0, cap = on(case["row0"], torch.int64), on(case["caps"], torch.int32)
    widths, budget = on(case["widths"], torch.int32), on([0], torch.int32)
    ids, weights = case["ids"].to(torch.int32).contiguous(), case["weights"].contiguous()
    out = torch.full_like(x, float("nan"))
    layer = Layer(size=112, device=CUDA, type=TYPES[x.dtype], H=H, E=E, B=1,
                  cap_max=max(case["caps"]), channels=case["down"].shape[0],
                  gate_up=case["gate_up"].data_ptr(), down=case["down"].data_ptr(),
                  row0=row0.data_ptr(), cap=cap.data_ptr(), widths=widths.data_ptr(),
                  budget=budget.data_ptr(), budget_type=I32, path=PATH)
    clip, error = ctypes.c_void_p(), Error()
    code = lib.fm_clip_prepare(ctypes.byref(clip), ctypes.byref(layer), ctypes.byref(error))
    if code != 0:
        raise SystemExit("gpu_check.py: prepare: %s" % error.text.decode())
    size = lib.fm_clip_workspace_bytes(ctypes.byref(layer), x.shape[0], ids.shape[1])
    workspace = torch.empty(size + 256, dtype=torch.uint8, device=x.device)
    start = (workspace.data_ptr() + 255) // 256 * 256
    call = Call(size=120, ids_type=I32, N=x.shape[0], K=ids.shape[1], hidden=x.data_ptr(),
                hidden_stride=H, ids=ids.data_ptr(), weights=weights.data_ptr(),
                out=out.data_ptr(), out_stride=H, workspace=start, workspace_bytes=size,
                stream=torch.cuda.current_stream().cuda_stream)
    if lib.fm_clip_forward(clip, ctypes.byref(call), ctypes.byref(error)) != 0:
        raise SystemExit("gpu_check.py: forward: %s" % error.text.decode())
    torch.cuda.synchronize()
    lib.fm_clip_release(clip)
    return out


def make_case(H, E, K, N, widths, caps, dtype, seed):
    g = torch.Generator(device="cuda").manual_seed(seed)
    rows, row0 = sum(caps), [sum(caps[:e]) for e in range(E)]
    normal = lambda *shape: torch.randn(shape, generator=g, device="cuda")
    logits = normal(N, E)
    weights, ids = torch.topk(torch.softmax(logits, -1), K)
    return {"x": normal(N, H).to(dtype), "gate_up": (normal(2 * rows, H) / H ** 0.5).to(dtype),
            "down": (normal(rows, H) / max(caps) ** 0.5).to(dtype), "row0": row0, "caps": caps,
            "widths": widths, "ids": ids, "weights": weights / weights.sum(-1, keepdim=True)}


def errors(got, want):
    off = got.double() - want
    return (off.pow(2).mean() / want.pow(2).mean()).sqrt().item(), off.abs().max().item()


def main():
    if not torch.cuda.is_available():
        print("gpu_check.py: torch sees no GPU: not compared")
        return 77
    torch.backends.cuda.matmul.allow_tf32 = False
    lib = ctypes.CDLL(sys.argv[1])
    lib.fm_clip_workspace_bytes.restype = ctypes.c_uint64
    lib.fm_clip_workspace_bytes.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32]
    rows, bad = [], 0
    pattern = [1.0, 0.7, 0.4, 0.4, 0.4, 0.1, 0.1, 0.1]
    shapes = [("odd", 136, 200, 5, 2), ("mixtral", 4096, 14336, 8, 2), ("qwen3", 2048, 768, 128, 8)]
    for name, H, I, E, K in shapes:
        for dtype in (torch.bfloat16, torch.float16):
            for N in (7, 64, 1024):
                widths = [-(-int(1000 * pattern[e % 8]) * I // 1000) for e in range(E)]
                case = make_case(H, E, K, N, widths, [I] * E, dtype, 1000 + N)
                want = loop(case, torch.float64)
                theirs, ours = errors(loop(case, dtype), want), errors(clipped(lib, case), want)
                good = ours[0] <= 2 * theirs[0] and ours[1] <= 2 * theirs[1]
                bad += not good
                rows.append({"model": name, "type": str(dtype)[6:], "tokens": N, "rms": ours[0],
                             "rms_torch": theirs[0], "max": ours[1], "max_torch": theirs[1]})
                print("%s %-8s %-9s N %-5d rms %.2e (torch %.2e)  max %.2e (torch %.2e)" % (
                    "ok  " if good else "FAIL", name, str(dtype)[6:], N, ours[0], theirs[0], ours[1],
                    theirs[1]), flush=True)
    if len(sys.argv) > 2:
        with open(sys.argv[2], "w") as f:
            json.dump(rows, f, indent=1)
    print("%d comparisons, %d over twice torch's error" % (len(rows), bad))
    return 1 if bad or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
