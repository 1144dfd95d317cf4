"""fm-rank's speed beside an autograd loop of PyTorch on the same checkpoint, in turn.

usage: tests/measure/speed.py [ROUNDS]     after make, in the environment of tests/judge/judge.sh --venv

`fm-bench engine` makes a checkpoint (H 1024, I 3584, 8 experts of which 2, 4 layers, float32) and
ranks its channels; the loop runs transformers' Mixtral on that checkpoint and those tokens, one
sequence of 512 a batch, and makes the same scores from the gradients of the experts.  Loading is
in fm-bench's time and not in the loop's; the loop's first batch, which warms up, does not count.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
from transformers import AutoModelForCausalLM

SHAPE, T, SEQUENCES, BATCHES = "1024,3584,8,2,4,4096,512", 512, 32, 4


def ours(folder):
    tool = pathlib.Path(__file__).resolve().parents[2] / "build/bin/fm-bench"
    command = [tool, "engine", "--shape", SHAPE, "--dtype", "f32", "--steps", "0", "--sequences"]
    command += [str(SEQUENCES), "--keep", "--dir", folder, "--json", "--quiet"]
    rank = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["rank"]
    return rank["tokens_per_second"], rank["share"]


def theirs(checkpoint):
    kwargs = {"dtype": torch.float32, "experts_implementation": "grouped_mm"}
    model = AutoModelForCausalLM.from_pretrained(checkpoint, **kwargs)
    tokens = np.load(checkpoint.parent / "tokens.npy").astype(np.int64).reshape(-1, T)
    for name, p in model.named_parameters():
        p.requires_grad_("experts" in name)
    experts = [p for p in model.parameters() if p.requires_grad]
    scores = [torch.zeros(p.shape[:-1], dtype=torch.float64) for p in experts]
    for batch in range(BATCHES + 1):
        if batch == 1:
            start = time.perf_counter()
        ids = torch.from_numpy(tokens[batch : batch + 1])
        model(input_ids=ids, labels=ids).loss.backward()
        with torch.no_grad():
            for p, score in zip(experts, scores):
                score += (p * p.grad).square().sum(-1)
                p.grad = None
    return BATCHES * T / (time.perf_counter() - start)


def main():
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:
            speed, share = ours(folder)
            other = theirs(next(pathlib.Path(folder).rglob("config.json")).parent)
        print(f"fm-rank {speed:.1f} tokens/s ({share:.2f} of its products alone), "
              f"PyTorch grouped_mm {other:.1f}: {speed / other:.2f} times", flush=True)


if __name__ == "__main__":
    main()
