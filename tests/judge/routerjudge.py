#!/usr/bin/env python3
"""Judge the gradient of fm-recover --train router by autograd, on each family's model in golden/odd-*.
Run by `make judge`.

tests/judge/routergrad.c takes one step of the trainer: the gradient of CE + KL of the model with half of
each expert's channels, to the full model, by the routers' weights and the biases of their logits, at
weights that differ a little from the checkpoint's.  transformers computes the same in float32.  A bias
that serves only the choice of experts has no gradient and no place.  Models may be named as arguments.
"""

import subprocess
import sys

import numpy as np
import torch

import fp8
import oracle
from familyjudge import HERE, ROWS
from judge import Judge


def router_of(mixture):
    router = mixture.router if hasattr(mixture, "router") else mixture.gate
    return router if hasattr(router, "weight") else router.gate


def parameters_of(model):
    """Weight, and bias if the logits have one, of each mixture, in the order of routergrad's numbers."""
    routers = [router_of(x) for x in oracle.mixtures_of(model)]
    bias = lambda x: [x.bias] if isinstance(getattr(x, "bias", None), torch.nn.Parameter) else []
    return [p for x in routers for p in [x.weight, *bias(x)]]


def autograd(model, ids, differences):
    """The gradient, flat; it ends where the differences do."""
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
    with fp8.plain(path) as plain:
        theirs = autograd(oracle.load(plain), torch.from_numpy(ids[:2].astype(np.int64)), differences)
    judge.close(f"{name}: gradient of {len(ours)} weights of routers", ours, theirs)
    judge.apart(f"{name}: that of the next weight", ours, theirs.roll(1))


def main():
    judge = Judge()
    for name in sys.argv[1:] or ROWS:
        with judge.attempt(name):
            judge_model(judge, name)
    print(f"routerjudge: {judge.made} judgements, {judge.failed} failed")
    return judge.failed > 0


if __name__ == "__main__":
    sys.exit(main())
