"""Measure what pruning costs the trained model: held-out losses of uniform widths, ranked and unranked.

Run it after training, before the model is committed.  If the loss does not rise at 0.4, or rises as much
with ranking as without, tests on this model cannot tell a good ranking from a bad one.
"""

import numpy as np
import torch

import oracle

BUDGETS = (0.0, 0.2, 0.4, 0.6, 0.8)


def heldout_loss(model, ids):
    with torch.no_grad():
        return np.mean([oracle.cross_entropy(oracle.logits_of(model, x), x) for x in ids.split(1)])


def uniform_losses(model, ids):
    """Loss at every budget with the leading channels of every expert."""
    E, I = model.config.num_local_experts, model.config.intermediate_size
    losses = []
    for budget in BUDGETS:
        mask = oracle.prefix_masks(torch.full((E,), round(I * (1 - budget))), I)
        oracle.open_experts(model, [mask] * model.config.num_hidden_layers)
        losses.append(heldout_loss(model, ids))
    oracle.open_experts(model)
    return losses


def study(folder, T):
    """Print the unigram entropy, the losses without and with ranking, and the tokens that each expert gets."""
    read = lambda name: torch.from_numpy(np.load(folder / name).astype(np.int64)).view(-1, T)
    heldout, calib = read("heldout.npy"), read("calib.npy")
    counts = torch.bincount(calib.flatten(), minlength=2).double()
    p = counts[counts > 0] / counts.sum()
    model = oracle.load(folder)
    print(f"unigram entropy {-(p * p.log()).sum():.3f}; budgets {BUDGETS}")
    show = lambda name, losses: print(name, *(f"{x:.4f}" for x in losses))
    show("unranked", uniform_losses(model, heldout))
    score, _ = oracle.scores(model, calib[:32].split(1))
    oracle.rank_in_place(model, oracle.order_of(score))
    show("ranked  ", uniform_losses(model, heldout))
    print(oracle.tokens_per_expert(model, calib))
