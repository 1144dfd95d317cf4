#!/usr/bin/env python3
"""Check the gradient of fm-recover --train router with autograd, on each family's model in golden/odd-*.
Run by `make judge`; arguments name models.

tests/judge/routergrad.c runs one step of the trainer on a model with half of each expert's channels and
router weights that differ a little from the checkpoint's.  It prints the differences, and the gradient of
CE + KL to the full model with respect to the routers' weights and the biases of their logits.
transformers computes the same in float32.  A bias used only to choose experts has no gradient and is not
included.
"""

import subprocess
import sys

import numpy as np
import torch

import decoded
import oracle
from familyjudge import HERE, ROWS
from judge import Judge


def router_of(mixture):
    router = mixture.router if hasattr(mixture, "router") else mixture.gate
    return router if hasattr(router, "weight") else router.gate


def parameters_of(model):
    """The weight of each router, and its bias if the logits have one, in the order of routergrad's output."""
    routers = [router_of(x) for x in oracle.mixtures_of(model)]
    bias = lambda x: [x.bias] if isinstance(getattr(x, "bias", None), torch.nn.Parameter) else []
    return [p for x in routers for p in [x.weight, *bias(x)]]


def autograd(model, ids, differences):
    """The gradient as one vector, for router weights with `differences` added."""
    M, E, I = oracle.shape_of(model)
    oracle.open_experts(model)
    with torch.no_grad():
        teacher = oracle.logits_of(model, ids)
    own = parameters_of(model)
    with torch.no_grad():
        for p, change in zip(own, torch.split(differences, [p.numel() for p in own])):
            p += change.view(p.shape)
    oracle.open_experts(model, mask=oracle.prefix_masks(torch.full((M, E), I // 2), I))
    model.zero_grad(set_to_none=True)
    logits = oracle.logits_of(model, ids)
    (oracle.cross_entropy(logits, ids) + oracle.divergence(logits, teacher)).backward()
    return torch.cat([p.grad.flatten() for p in own])


def judge_model(judge, name):
    path = HERE / name
    ids = np.load(path / "tokens.npy")
    done = subprocess.run(["routergrad", path, path / "tokens.npy", str(ids.shape[1])], check=True,
                          capture_output=True)  # fmt: skip
    differences, ours = torch.from_numpy(np.frombuffer(done.stdout, np.float32).copy()).chunk(2)
    with decoded.plain(path) as plain:
        theirs = autograd(oracle.load(plain), torch.from_numpy(ids[:2].astype(np.int64)), differences)
    judge.close(f"{name}: gradient of {len(ours)} router weights", ours, theirs)
    judge.apart(f"{name}: the gradient shifted by one weight", ours, theirs.roll(1))


def main():
    judge = Judge()
    for name in sys.argv[1:] or ROWS:
        with judge.attempt(name):
            judge_model(judge, name)
    print(f"routerjudge: {judge.made} checks, {judge.failed} failed")
    return judge.failed > 0


if __name__ == "__main__":
    sys.exit(main())
