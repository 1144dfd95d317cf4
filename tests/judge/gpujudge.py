"""Test the Python code for GPUs without a GPU.  Run by `make judge`.

    gpujudge.py LIBFM_CLIP_DOUBLE.SO      libfm_clip, linked to a fake CUDA runtime (tests/gpu/double.h)

The modelling file of exports runs on tensors in the fake device's memory.  Its first call into the library
allocates, so in a graph capture this call must be refused with a message, and the capture must stay valid.
After one call outside of captures, a call can be captured, and replays at other budgets must give the same
bits as direct calls.

must_serve of tests/gpu/gpu_check.py, which decides which paths the library may not refuse, is checked, too.
"""

import ctypes
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

ROOT = Path(__file__).resolve().parents[2]
TO_DEVICE, TO_HOST = 1, 2
POOL = 64 << 20  # bytes allocated before any capture, in place of the pool of PyTorch's allocator
GLOBAL = 0  # the mode of torch.cuda.graph: no thread may make a call that is unsafe in a capture

double = None  # the library; the fake runtime's functions are called through it
failures = 0


def report(good, what, detail=""):
    global failures
    failures += not good
    print("ok  " if good else "FAIL", what + (f": {detail}" if detail else ""), flush=True)


def must(code):
    if code:
        raise SystemExit(f"gpujudge.py: a call to the double failed: {code}")


class Pool:
    def __init__(self):
        self.base, self.used = ctypes.c_void_p(), 0
        must(double.cudaMalloc(ctypes.byref(self.base), ctypes.c_size_t(POOL)))

    def take(self, size):
        at = self.base.value + self.used
        self.used += -(-size // 512) * 512
        assert self.used <= POOL
        return at


class OnDouble:
    """A tensor in the fake device's memory, with the attributes that the modelling file uses."""

    is_cuda, device = True, SimpleNamespace(type="cuda", index=0)

    def __init__(self, numbers, fill=True):
        self.dtype, self.shape = numbers.dtype, numbers.shape
        self.at = pool.take(numbers.numel() * numbers.element_size())
        if fill:
            self.write(numbers)

    def write(self, numbers):
        size = numbers.numel() * numbers.element_size()
        must(double.cudaMemcpy(ctypes.c_void_p(self.at), ctypes.c_void_p(numbers.data_ptr()),
                               ctypes.c_size_t(size), TO_DEVICE))
        must(double.cudaDeviceSynchronize())

    def read(self):
        numbers = torch.empty(self.shape, dtype=self.dtype)
        size = numbers.numel() * numbers.element_size()
        must(double.cudaDeviceSynchronize())
        must(double.cudaMemcpy(ctypes.c_void_p(numbers.data_ptr()), ctypes.c_void_p(self.at),
                               ctypes.c_size_t(size), TO_HOST))
        return numbers

    def data_ptr(self):
        return self.at

    def contiguous(self):
        return self

    def float(self):
        assert self.dtype == torch.float32
        return self

    def max(self):
        return self.read().max()

    def __len__(self):
        return self.shape[0]


class Stream:
    def __init__(self):
        self.handle = ctypes.c_void_p()
        must(double.cudaStreamCreateWithFlags(ctypes.byref(self.handle), 1))  # non-blocking, as PyTorch's are
        self.cuda_stream = self.handle.value

    def is_capturing(self):
        status = ctypes.c_int()
        must(double.cudaStreamIsCapturing(self.handle, ctypes.byref(status)))
        return status.value != 0

    def begin(self):
        must(double.cudaStreamBeginCapture(self.handle, GLOBAL))

    def end(self):
        """End the capture; returns a graph that can be launched, or None if the capture was broken."""
        graph, run = ctypes.c_void_p(), ctypes.c_void_p()
        if double.cudaStreamEndCapture(self.handle, ctypes.byref(graph)):
            return None
        must(double.cudaGraphInstantiate(ctypes.byref(run), graph, ctypes.c_ulonglong(0)))
        return run


class TorchOnDouble:
    """torch, except that the current stream and new tensors are on the fake device."""

    def __init__(self, stream):
        self.cuda = SimpleNamespace(
            is_current_stream_capturing=stream.is_capturing, current_stream=lambda device: stream
        )

    def __getattr__(self, name):
        return getattr(torch, name)

    def empty(self, size, dtype, device):
        return OnDouble(torch.empty(size, dtype=dtype), fill=False)

    def empty_like(self, tensor):
        return OnDouble(torch.empty(tensor.shape, dtype=tensor.dtype), fill=False)


class PlainOperator:
    """Replaces a torch operator, which accepts only torch's tensors, by its plain function."""

    def __init__(self, function):
        self.function = function

    def register_fake(self, function):
        return function

    def __call__(self, *arguments):
        return self.function(*arguments)


def load_modelling_file():
    sys.path.insert(0, str(ROOT / "formats" / "runtime"))
    real = torch.library.custom_op
    torch.library.custom_op = lambda name, *rest, **more: (
        PlainOperator if name.startswith("fm::") else real(name, *rest, **more)
    )
    import modeling_fm

    torch.library.custom_op = real
    return modeling_fm


def make_case(dtype, H=136, N=70, K=2):
    g = torch.Generator().manual_seed(1)
    normal = lambda *shape: torch.randn(shape, generator=g).to(dtype)
    cap = torch.tensor([70, 33, 1, 64, 200], dtype=torch.int32)
    weights, ids = torch.topk(torch.rand((N, len(cap)), generator=g).softmax(-1), K)
    channels = int(cap.sum())
    return [normal(N, H), ids, weights, normal(2 * channels, H) / H**0.5, normal(channels, H) / 8,
            cap.cumsum(0) - cap, cap, torch.stack((cap, cap // 2, cap // 5)), torch.zeros(1, dtype=torch.int64)]


def near(out, case, budget):
    """Compare with the loop over experts in float64; returns whether they agree, and the error as text."""
    wide = [t.double() if t.is_floating_point() else t for t in case[:8]]
    want = modeling.each_expert(*wide, torch.tensor([budget]))
    rms = ((out.double() - want).pow(2).mean() / want.pow(2).mean()).sqrt().item()
    return rms <= {torch.bfloat16: 2**-7, torch.float32: 1e-5}[out.dtype], f"rms {rms:.1e}"


def captures(dtype, stream):
    name, case = str(dtype)[6:], make_case(dtype)
    there = [OnDouble(t) for t in case]
    call = lambda: modeling.clip_experts(*there, [])
    stream.begin()
    try:
        call()
        report(False, f"{name}, a first call in a capture", "it was not refused")
    except RuntimeError as error:
        report("before capturing" in str(error), f"{name}, a first call in a capture", str(error))
    report(stream.end() is not None, f"{name}, that capture stays valid")
    good, detail = near(call().read(), case, 0)
    report(good, f"{name}, a call", detail)
    stream.begin()
    out = call()
    run = stream.end()
    report(run is not None, f"{name}, a capture after a call")
    for budget in (0, 2, 1, 0) if run else ():
        there[-1].write(torch.tensor([budget]))
        must(double.cudaGraphLaunch(run, stream.handle))
        replayed = out.read()
        good, detail = near(replayed, case, budget)
        report(good and torch.equal(replayed, call().read()), f"{name}, replayed at budget {budget}", detail)


def judge_skips():
    """Check must_serve, which returns False for paths that gpu_check.py may skip if they are refused."""
    sys.path.insert(0, str(ROOT / "tests" / "gpu"))
    import gpu_check

    for path, capability, wanted in (("hopper", (9, 0), True), ("hopper", (8, 0), False),
                                     ("hopper", (10, 0), False), ("mma", (8, 0), True), ("plain", (8, 6), True)):
        good = gpu_check.must_serve(path, capability) == wanted
        report(good, f"gpu_check.py: {path} on {capability[0]}.{capability[1]} {'must' if wanted else 'need not'} serve")


def main():
    stream = Stream()
    modeling.torch = TorchOnDouble(stream)
    with torch.no_grad():
        for dtype in (torch.bfloat16, torch.float32):
            captures(dtype, stream)
    judge_skips()
    print(f"the modelling file on a fake CUDA runtime: {failures} failures")
    sys.stdout.flush()
    os._exit(failures != 0)  # skips the fake's check for leaks: the modelling file keeps its layers


if __name__ == "__main__":
    os.environ["FM_CLIP_LIBRARY"] = str(Path(sys.argv[1]).resolve())
    modeling = load_modelling_file()
    double = modeling.CLIP
    pool = Pool()
    main()
