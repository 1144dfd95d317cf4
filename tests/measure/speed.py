"""fm-rank's and fm-train's speed beside autograd loops of PyTorch on the same checkpoint, in turn.

usage: tests/measure/speed.py [-p f32|bf16] [-s SHAPE] [-l LAYERS] [-k rank|train] [ROUNDS]
       after make, in the environment of tests/judge/judge.sh --venv

`fm-bench engine` makes a checkpoint of SHAPE (default H 1024, I 3584, 8 experts of which 2, 4 layers),
of the precision's type, ranks its channels, and makes training steps on it; the loops run
transformers' Mixtral on that checkpoint and those tokens, one sequence of 512 at a time, with each of
its implementations of experts, of which the fastest counts:
  rank    the same scores from the gradients of the experts' weights;
  train   what a step of masks needs: logits of the full model, those of a student whose channels are
          multiplied with masks, cross-entropy and divergence, the gradient at every mask.
Loading is in fm-bench's time of ranking and not in the loops'; a loop's first sequence, which warms
up, does not count.
"""

import getopt
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

T, SEQUENCES, TIMED = 512, 8, 3
EXPERTS = ("grouped_mm", "batched_mm", "eager")


def ours(folder, given, kind):
    tool = pathlib.Path(os.environ.get("FM_BIN", pathlib.Path(__file__).resolve().parents[2] / "build/bin")) / "fm-bench"
    precision, shape = given.get("-p", "f32"), given.get("-s", "1024,3584,8,2,4,4096,512")
    command = [tool, "engine", "--shape", shape, "--dtype", precision, "--precision", precision]
    command += ["--steps", str(int(kind == "train")), "--sequences", str(SEQUENCES), "--keep", "--dir", folder]
    command += ["--layers", given["-l"]] if "-l" in given else []
    done = json.loads(subprocess.run([*command, "--json", "--quiet"], check=True, stdout=subprocess.PIPE).stdout)
    return done[kind]["tokens_per_second"], done[kind]["share"]


class Mask(torch.nn.Module):
    """The gate of an experts' module, times a mask of every expert's channels."""

    def __init__(self, experts):
        super().__init__()
        self.mask = torch.nn.Parameter(torch.ones(experts.num_experts, experts.intermediate_dim, dtype=experts.down_proj.dtype))
        self.on, self.rows, self.act, self.plain = False, None, experts.act_fn, experts._apply_gate
        experts.register_forward_pre_hook(self.note, with_kwargs=True)
        experts._apply_gate = self.apply_gate

    def note(self, _, args, kwargs):
        index = kwargs["top_k_index"] if "top_k_index" in kwargs else args[1]
        self.rows = index.reshape(-1).sort().values

    def apply_gate(self, both):
        h = self.plain(both)
        return h * self.mask[self.rows] if self.on else h


def rank_step(model, ids, state):
    if "experts" not in state:
        for name, p in model.named_parameters():
            p.requires_grad_("experts" in name)
        state["experts"] = [p for p in model.parameters() if p.requires_grad]
        state["scores"] = [torch.zeros(p.shape[:-1], dtype=torch.float64) for p in state["experts"]]
    model(input_ids=ids, labels=ids).loss.backward()
    with torch.no_grad():
        for p, score in zip(state["experts"], state["scores"]):
            score += (p * p.grad).float().square().sum(-1)
            p.grad = None


def train_step(model, ids, state):
    if "masks" not in state:
        model.requires_grad_(False)
        state["masks"] = [Mask(m) for m in model.modules() if hasattr(m, "gate_up_proj")]
    masks = state["masks"]
    with torch.no_grad():
        teacher = model(input_ids=ids).logits[:, :-1].float().log_softmax(-1)
    for mask in masks:
        mask.on = True
    student = model(input_ids=ids).logits[:, :-1].float().log_softmax(-1)
    loss = F.nll_loss(student.flatten(0, 1), ids[0, 1:]) + F.kl_div(student, teacher, log_target=True, reduction="sum") / (T - 1)
    loss.backward()
    for mask in masks:
        mask.on, mask.mask.grad = False, None


def theirs(checkpoint, given, kind, experts):
    dtype = torch.bfloat16 if given.get("-p") == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype, experts_implementation=experts)
    tokens = np.load(checkpoint.parent / "tokens.npy").astype(np.int64).reshape(-1, T)
    state, start = {}, 0
    for i in range(TIMED + 1):
        start = time.perf_counter() if i == 1 else start
        (rank_step if kind == "rank" else train_step)(model, torch.from_numpy(tokens[i : i + 1]), state)
    return TIMED * T / (time.perf_counter() - start)


def main():
    options, rounds = getopt.getopt(sys.argv[1:], "p:s:l:k:e:")
    given = dict(options)
    kind = given.get("-k", "rank")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    # Masks are applied where rows are sorted by expert, which grouped_mm does alone.
    forms = given["-e"].split(",") if "-e" in given else EXPERTS if kind == "rank" else EXPERTS[:1]
    for _ in range(int(rounds[0]) if rounds else 3):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:
            speed, share = ours(folder, given, kind)
            checkpoint = next(pathlib.Path(folder).rglob("config.json")).parent
            others = {e: theirs(checkpoint, given, kind, e) for e in forms}
        best = max(others, key=others.get)
        print(f"fm-{kind} {given.get('-p', 'f32')} {speed:.1f} tokens/s ({share:.2f} of the peak); PyTorch",
              ", ".join(f"{e} {other:.1f}" for e, other in others.items()), f": {speed / others[best]:.2f} times {best}", flush=True)


if __name__ == "__main__":
    main()
