"""The PyTorch program of `fm-bench engine`: autograd loops over transformers' model of a checkpoint.

fm-bench starts it with torch_channel.py prepended.  The two exchange lines:

    here        torch VERSION                   or: error SENTENCE
    fm-bench    the checkpoint's directory; a file of tokens, rows of a .npy; THREADS
    here        ready
    fm-bench    WHAT PRECISION                  repeated until it closes the socket
    here        EXPERTS TOKENS_PER_SECOND       or: cannot SENTENCE

WHAT is the computation on each sequence:
    rank    scores of all channels, from the gradients of the experts' weights;
    train   a training step for masks: the logits of the full model, those of a student whose channels
            are multiplied by masks, cross-entropy and KL divergence, the gradient at every mask.
EXPERTS is the fastest of transformers' implementations of experts.  batched_mm, which copies an
expert's weights for every row, is not tried if the copies of a layer would not fit in memory.  The first
sequence warms up, the second one chooses the implementation, and the rest are measured.  Loading is
not measured.
"""

import time

TYPES = {"f32": "float32", "bf16": "bfloat16"}
EXPERTS = ("grouped_mm", "batched_mm", "eager")
TIMED = 3  # sequences


class Rank:
    experts = EXPERTS

    def __init__(self, torch, model):
        self.torch, self.model = torch, model
        for name, p in model.named_parameters():
            p.requires_grad_("experts" in name)
        self.weights = [p for p in model.parameters() if p.requires_grad]
        self.scores = [torch.zeros(p.shape[:-1], dtype=torch.float64) for p in self.weights]

    def step(self, ids):
        self.model(input_ids=ids, labels=ids).loss.backward()
        with self.torch.no_grad():
            for p, score in zip(self.weights, self.scores):
                score += (p * p.grad).float().square().sum(-1)
                p.grad = None


class Masked:
    """Multiplies the gated activations of an experts module by a mask of every expert's channels."""

    def __init__(self, torch, experts):
        size = experts.num_experts, experts.intermediate_dim
        self.mask = torch.ones(size, dtype=experts.down_proj.dtype, requires_grad=True)
        self.on, self.rows, self.plain = False, None, experts._apply_gate
        experts.register_forward_pre_hook(self.note, with_kwargs=True)
        experts._apply_gate = self.apply_gate

    def note(self, _, args, kwargs):
        index = kwargs["top_k_index"] if "top_k_index" in kwargs else args[1]
        self.rows = index.reshape(-1).sort().values

    def apply_gate(self, both):
        h = self.plain(both)
        return h * self.mask[self.rows] if self.on else h


class Train:
    experts = EXPERTS[:1]  # Masked needs rows sorted by expert, which only grouped_mm provides

    def __init__(self, torch, model):
        self.torch, self.model = torch, model
        model.requires_grad_(False)
        self.masks = [Masked(torch, m) for m in model.modules() if hasattr(m, "gate_up_proj")]

    def logits(self, ids, masked):
        for mask in self.masks:
            mask.on = masked
        return self.model(input_ids=ids).logits[:, :-1].float().log_softmax(-1)

    def step(self, ids):
        F = self.torch.nn.functional
        with self.torch.no_grad():
            teacher = self.logits(ids, False)
        student = self.logits(ids, True)
        loss = F.nll_loss(student.flatten(0, 1), ids[0, 1:])
        (loss + F.kl_div(student, teacher, log_target=True, reduction="sum") / ids.numel()).backward()
        for mask in self.masks:
            mask.mask.grad = None


def seconds(loop, rows):
    start = time.perf_counter()
    for ids in rows:
        loop.step(ids)
    return time.perf_counter() - start


def memory_left():
    with open("/proc/meminfo") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


def too_large(model, experts, rows):
    """Whether batched_mm's copies of the weights and of their gradients, those of two layers at once,
    would exceed the available memory."""
    if experts != "batched_mm":
        return False
    stacked = [p for name, p in model.named_parameters() if "experts" in name and p.dim() == 3]
    layers = model.config.num_hidden_layers
    row = sum(p[0].numel() * p.element_size() for p in stacked) // layers
    return 4 * rows * model.config.num_experts_per_tok * row > memory_left()


def measure(torch, checkpoint, tokens, what, precision):
    from transformers import AutoModelForCausalLM

    form = {"rank": Rank, "train": Train}[what]
    dtype = getattr(torch, TYPES[precision])
    row = [tokens[i % len(tokens) : i % len(tokens) + 1] for i in range(TIMED + 2)]
    best = None
    for experts in form.experts:
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype, experts_implementation=experts)
        if too_large(model, experts, row[0].numel()):
            continue
        loop = form(torch, model)
        seconds(loop, row[:1])
        took = seconds(loop, row[1:2])
        if best is None or took < best[0]:
            best = took, experts, loop
        del model, loop
    return best[1], TIMED * row[0].numel() / seconds(best[2], row[2:])


def serve(torch, channel):
    import numpy
    import transformers

    transformers.logging.set_verbosity_error()
    say(channel, f"torch {torch.__version__}")
    checkpoint, tokens, threads = (channel.readline().decode().rstrip("\n") for _ in range(3))
    torch.set_num_threads(int(threads))
    tokens = torch.from_numpy(numpy.load(tokens).astype(numpy.int64))

    def reply(line):
        experts, rate = measure(torch, checkpoint, tokens, *line.decode().split())
        return (f"{experts} {rate:.6g}",)

    answer(channel, reply)


main(serve)
