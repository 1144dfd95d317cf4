"""Measure other implementations at the shapes of gpu_check's quick benchmark: PyTorch's grouped
product, and vLLM's Triton kernel for fused experts if vLLM is installed.  They support
only the full width.

    python3 tests/gpu/gpu_baselines.py QUICK.JSON [JSON]

QUICK.JSON is the benchmark's file.  Our speedups at full width and at the budgets are printed next to
their times.
Needs torch with CUDA; status 77 without it.
"""
import json
import sys

try:
    import torch
except ImportError:
    print("gpu_baselines.py: left out: no torch here")
    sys.exit(77)

H, I, E, K = 4096, 14336, 8, 2  # mixtral-8x7b
TOKENS = (16, 64, 256, 4096)


def seconds_of(work, rounds=9):
    """The median time of runs with a cold cache, as captured graphs if capturing works."""
    work()
    torch.cuda.synchronize()
    run = work
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        run = graph.replay
    except RuntimeError:
        torch.cuda.synchronize()
    other = torch.empty(64 << 20, dtype=torch.float32, device="cuda")
    clean = torch.zeros(64 << 20, dtype=torch.float32, device="cuda")
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        other.fill_(1)
        clean.sum()  # so that no dirty lines of the cache are written back during the measurement
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return sorted(times)[len(times) // 2]


def grouped(x, ids, weights, w1, w2):
    """torch._grouped_mm: rows sorted by expert, two products, weighted sums."""
    order = ids.flatten().argsort(stable=True)
    counts = torch.zeros(E, dtype=torch.int64, device="cuda")
    counts.scatter_add_(0, ids.flatten(), torch.ones_like(ids.flatten()))
    ends = counts.cumsum(0).to(torch.int32)
    rows = x[order // K]
    both = torch._grouped_mm(rows, w1.transpose(1, 2), offs=ends)
    h = torch.nn.functional.silu(both[:, :I]) * both[:, I:]
    y = torch._grouped_mm(h, w2.transpose(1, 2), offs=ends) * weights.flatten()[order, None].to(h.dtype)
    return torch.zeros_like(x).index_add_(0, order // K, y)


def triton():
    """The name of vLLM's fused experts, and a function of (x, ids, weights, w1, w2); or None, None."""
    try:
        from vllm.model_executor.layers.fused_moe import fused_experts
    except ImportError:
        return None, None
    return "vllm fused_experts", lambda x, ids, weights, w1, w2: fused_experts(
        x, w1, w2, weights, ids.to(torch.int32)
    )


def main():
    if not torch.cuda.is_available():
        print("gpu_baselines.py: torch sees no GPU: left out")
        return 77
    with open(sys.argv[1]) as f:
        ours = [row for row in json.load(f)["rows"] if row["model"] == "mixtral-8x7b"]
    kernels = {}
    if hasattr(torch, "_grouped_mm"):
        kernels["torch._grouped_mm"] = grouped
    name, fused = triton()
    if name:
        kernels[name] = fused
    g = torch.Generator(device="cuda").manual_seed(2)
    normal = lambda *shape: torch.randn(shape, generator=g, device="cuda", dtype=torch.bfloat16)
    w1, w2 = normal(E, 2 * I, H) / H**0.5, normal(E, H, I) / I**0.5
    rows = []
    for N in TOKENS:
        x = normal(N, H)
        weights, ids = torch.topk(torch.rand((N, E), generator=g, device="cuda").softmax(-1), K)
        for name, kernel in kernels.items():
            try:
                seconds = seconds_of(lambda: kernel(x, ids, weights, w1, w2))
            except Exception as error:  # a baseline that does not run is not a failure of the library
                print(f"{name}, {N} tokens: does not run: {str(error)[:100]}")
                continue
            rows.append({"kernel": name, "tokens": N, "seconds": seconds})
            best = sorted((r["budget"], r["seconds"]) for r in ours if r["tokens"] == N and r["kernel"] == "mma")
            beside = ", ".join(f"{seconds / s:.2f} at {b:.2f}" for b, s in best)
            print(f"{name}, {N} tokens: {seconds * 1e6:.1f} us; our speedup: {beside}", flush=True)
    if len(sys.argv) > 2:
        with open(sys.argv[2], "w") as f:
            json.dump(rows, f, indent=1)
    return 0 if rows else 77


if __name__ == "__main__":
    sys.exit(main())
