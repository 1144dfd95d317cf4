"""The PyTorch program of `fm-bench kernels`: one layer of experts, as a loop and as grouped products.

fm-bench starts it with torch_channel.py prepended.  The two exchange lines:

    here        torch VERSION                   or: error SENTENCE
    fm-bench    H I E K B N TYPE THREADS        then raw: for each expert gate and up rows
                                                alternating (2 I, H); all down rows (E I, H); hidden (N, H);
                                                ids (N, K) int32, weights (N, K) f32, widths (B, E)
                                                int32
    here        ready
    fm-bench    KERNEL TOKENS BUDGET ROWS       repeated until it closes the socket
    here        SECONDS                         then raw: ROWS rows of the result; or: cannot SENTENCE

Both kernels compute what transformers computes with whole experts, but on the first channels of each:
gate, up and down are (E, I, H), so that a narrower expert is a slice.
"""

import ctypes
import time

TYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
OTHER_BYTES = 128 << 20  # written between two runs to empty the caches, as fm-bench does


class Layer:
    """The layer that fm-bench sent."""

    def __init__(self, torch, channel):
        *sizes, dtype, threads = channel.readline().split()
        H, I, E, self.K, B, N = map(int, sizes)
        torch.set_num_threads(int(threads))
        dtype = getattr(torch, TYPES[dtype.decode()])
        self.gate, self.up = torch.empty(E, I, H, dtype=dtype), torch.empty(E, I, H, dtype=dtype)
        for gate, up in zip(self.gate, self.up):
            both = receive(channel, torch.empty(I, 2, H, dtype=dtype))
            gate.copy_(both[:, 0])
            up.copy_(both[:, 1])
        self.down = receive(channel, torch.empty(E, I, H, dtype=dtype))
        self.hidden = receive(channel, torch.empty(N, H, dtype=dtype))
        self.ids = receive(channel, torch.empty(N, self.K, dtype=torch.int32)).long()
        self.weights = receive(channel, torch.empty(N, self.K, dtype=torch.float32))
        self.widths = receive(channel, torch.empty(B, E, dtype=torch.int32)).tolist()
        self.other = torch.empty(OTHER_BYTES, dtype=torch.uint8)


def run_loop(torch, layer, hidden, ids, weights, widths):
    """Run each expert on the rows routed to it; results are added in the type of the weights."""
    F, out = torch.nn.functional, torch.zeros_like(hidden)
    for e, k in enumerate(widths):
        row, slot = torch.where(ids == e)
        if not k or not row.numel():
            continue
        x = hidden[row]
        inner = F.silu(F.linear(x, layer.gate[e, :k])) * F.linear(x, layer.up[e, :k])
        y = (inner @ layer.down[e, :k]) * weights[row, slot, None]
        out.index_add_(0, row, y.to(out.dtype))
    return out


def run_grouped(torch, layer, hidden, ids, weights, widths):
    """Rows sorted by expert, one grouped product for all experts.  The product has one width for all:
    that of the widest expert with rows; the channels past a narrower expert's width are set to zero."""
    product = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    F, (N, K) = torch.nn.functional, ids.shape
    expert, order = torch.sort(ids.reshape(-1))
    rows = torch.bincount(expert, minlength=len(widths))
    ends = rows.cumsum(0, dtype=torch.int32)
    widest = max(width for width, n in zip(widths, rows.tolist()) if n)
    k = min(-(-widest // 8) * 8, layer.gate.shape[1])  # grouped_mm needs rows of a multiple of 16 bytes
    x = hidden[order // K]
    gate, up = (product(x, w[:, :k].transpose(1, 2), offs=ends) for w in (layer.gate, layer.up))
    inner = F.silu(gate) * up
    if min(widths) < k:
        inner *= torch.arange(k) < torch.tensor(widths)[expert][:, None]
    y = product(inner, layer.down[:, :k], offs=ends) * weights.reshape(-1)[order][:, None]
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order))
    return y[back].view(N, K, -1).sum(1).to(hidden.dtype)


KERNELS = {"torch-loop": run_loop, "torch-grouped": run_grouped}


def memory(tensor):
    size = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


def receive(channel, tensor):
    room = memory(tensor)
    while room:
        n = channel.readinto(room)
        if not n:
            raise EOFError("fm-bench closed the socket")
        room = room[n:]
    return tensor


def measure(torch, layer, request):
    """Returns the seconds and the result."""
    kernel, tokens, budget = request[0].decode(), int(request[1]), int(request[2])
    arguments = layer.hidden[:tokens], layer.ids[:tokens], layer.weights[:tokens]
    layer.other.fill_(tokens % 251)
    begin = time.perf_counter()
    out = KERNELS[kernel](torch, layer, *arguments, layer.widths[budget])
    return time.perf_counter() - begin, out


def serve(torch, channel):
    say(channel, f"torch {torch.__version__}")
    layer = Layer(torch, channel)

    def reply(line):
        request = line.split()
        with torch.inference_mode():
            seconds, out = measure(torch, layer, request)
        return f"{seconds:.9f}", bytes(memory(out[: int(request[3])].contiguous()))

    answer(channel, reply)


main(serve)
