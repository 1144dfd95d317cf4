#!/usr/bin/env python3
"""Check exports in which constants replace the outputs of removed experts, a format of vLLM 0.33.
Run by `make judge`.

A family that removes whole experts is made from each model, and exported with --drop-experts.  transformers
does not support this format.  So the removed experts are added again, with random weights, to a checkpoint
that the stock class loads, and its experts are called as vLLM calls its own
(ConstantExpertSubstitution.transform_routes): the router weights of removed experts are set to zero, and
the constants, multiplied by the original weights, are added to the output.  The log-probabilities must be
those that the engine computes from the export, with the export's constants (zeros or mean outputs) and with
random ones.  The mean outputs are compared with those of the stock class.

If FM_VLLM is the directory of an unpacked wheel of vLLM 0.33, which needs a GPU to run, vLLM's own
class reads config.json and the constants and transforms the routes.
"""

import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
import types
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from judge import Judge, our_logprobs, stock_model, their_logprobs, tokens, tool

HERE = Path(__file__).resolve().parents[2] / "golden"
MODELS = "odd-mixtral", "odd-qwen2", "odd-olmoe", "odd-phimoe", "odd-dsv3", "odd-glm4", "odd-minimax"
MODELS += "odd-afmoe", "odd-laguna"
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
END = ".approx_value"


def make_exports(model, folder):
    """Yield an export with zeros and one with means; also write ranking.safetensors to the folder."""
    stage = ["--model", model, "--tokens", model / "tokens.npy", "--precision", "f32", "--quiet"]
    masks = ["--method", "saliency", "--actions", "0,1", "--budget-step", "0.1", "--until", "0.4"]
    rank, train, family = (folder / f"{model.name}.{x}" for x in ("rank", "train", "fm"))
    tool("fm-rank", *stage, "--eval-tokens", model / "tokens.npy", "--means", "-o", rank)
    tool("fm-train", *stage, *masks, "-o", train, rank)
    tool("fm-pack", "--model", model, "--quiet", "-o", family, train)
    tool("tar", "xf", rank, "-C", folder, "ranking.safetensors")
    for constant in ("zero", "mean"):
        out = folder / f"{model.name}.{constant}"
        tool("fm-pack", "--quiet", "--export", out, "--layout", "uniform", "--drop-experts",
             "--substitute", constant, "--budget", "0.3", family)  # fmt: skip
        tool("fm-verify", "--quiet", out, "--against", family)
        yield constant, out


def judge_means(judge, name, model, ids, folder):
    """Compare the ranking's mean outputs with those of the stock class, whose experts are called once
    more with weight 1 for the tokens routed to them."""
    means = load_file(folder / "ranking.safetensors")
    stock = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, **EAGER).eval()
    worst = 0
    for layer in sorted(int(x.split(".")[1]) for x in means if x.endswith(".means")):
        module, want = stock.model.layers[layer].mlp.experts, means[f"layers.{layer}.means"]
        sums, counts = torch.zeros(want.shape, dtype=torch.float64), torch.zeros(len(want), 1)

        def forward(x, ids, weights, *rest, own=module.forward, sums=sums, counts=counts):
            for e in range(len(counts)):
                rows = x[(ids == e).any(-1)]
                alone = torch.full((len(rows), 1), e), torch.ones(len(rows), 1)
                sums[e] += own(rows, *alone, *rest).double().sum(0) if len(rows) else 0
                counts[e] += len(rows)
            return own(x, ids, weights, *rest)

        module.forward = forward
        their_logprobs(stock, ids)
        got = sums / counts.clamp(min=1)
        worst = max(worst, float((got - want).abs().max() / want.abs().max()))
    judge.say(worst <= 1e-4, f"{name}, mean outputs of experts: {worst:.1e} relative")


def make_whole(export, removed, folder):
    """Make a copy that transformers can load: removed experts have random weights instead of constants."""
    whole = folder / f"{export.name}.whole"
    shutil.copytree(export, whole)
    tensors = load_file(export / "model.safetensors")
    for name in [x for x in tensors if x.endswith(END)]:
        at = name.removesuffix(END)
        layer = at.rpartition(".")[0]
        kept = next(m[0] for x in tensors if not x.endswith(END) and (m := re.match(re.escape(layer) + r"\.\d+(?=\.)", x)))
        for like in [x for x in tensors if x.startswith(kept + ".")]:
            tensors[at + like[len(kept) :]] = torch.randn_like(tensors[like])
        del tensors[name]
    save_file(tensors, whole / "model.safetensors", {"format": "pt"})
    return whole


def substitute(model, removed, constants):
    """Apply vLLM's rule to every layer with removed experts."""
    for layer, experts in removed.items():
        module = model.model.layers[int(layer)].mlp.experts
        values = torch.stack([constants[int(layer), e] for e in experts]).float()

        def forward(x, ids, weights, *rest, own=module.forward, experts=experts, values=values):
            hit = ids[..., None] == torch.tensor(experts)
            constant = torch.einsum("nk,nke,eh->nh", weights.float(), hit.float(), values)
            weights = weights.masked_fill(hit.any(-1), 0)
            ids = ids.masked_fill(hit.any(-1), next(e for e in range(10**6) if e not in experts))
            return own(x, ids, weights, *rest) + constant

        module.forward = forward


def open_vllm(folder):
    """Import vLLM's module with stubs for the classes that it imports; only GPU classes derive from these."""
    for name, kind in (("moe_output", "UnfinalizedMoEOutput"), ("routed_experts", "RoutedExperts"),
                       ("unquantized_fused_moe_method", "UnquantizedFusedMoEMethod")):  # fmt: skip
        whole = "vllm.model_executor.layers.fused_moe." + name
        sys.modules[whole] = types.ModuleType(whole)
        setattr(sys.modules[whole], kind, type(kind, (), {}))
    file = Path(folder) / "vllm/model_executor/layers/fused_moe/expert_substitution.py"
    spec = importlib.util.spec_from_file_location("expert_substitution", file)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def substitute_by_vllm(model, removed, constants):
    vllm = open_vllm(os.environ["FM_VLLM"])
    said = types.SimpleNamespace(hf_config=types.SimpleNamespace(approximate_experts=removed))
    size = len(next(iter(constants.values())))
    for layer in removed:
        module, name = model.model.layers[int(layer)].mlp.experts, f"model.layers.{layer}.mlp.experts"
        own = vllm.make_expert_substitution(said, name, module.num_experts, size, torch.float32)
        for (l, e), value in constants.items():
            if l == int(layer):
                own.weight_loader(own.values, value, e)
        own.validate_loaded_values("values")
        kept = [e for e in range(own.num_logical_experts) if own.physical_expert_id(e) >= 0]

        def forward(x, ids, weights, *rest, stock=module.forward, own=own, kept=kept):
            ids, weights = ids.clone(), weights.clone()
            constant = own.transform_routes(x, weights, ids)
            return stock(x, torch.tensor(kept)[ids], weights, *rest) + constant

        module.forward = forward


def refuses(export):
    try:
        AutoModelForCausalLM.from_pretrained(export)
    except RuntimeError:
        return True
    return False


def judge_export(judge, what, export, model, ids, length):
    removed = json.loads((export / "config.json").read_text())["approximate_experts"]
    own = load_file(export / "model.safetensors")
    numbers = lambda name: (int(name.split(".layers.")[1].split(".")[0]), int(name.split(".")[-2]))
    constants = {numbers(name): x for name, x in own.items() if name.endswith(END)}
    wanted = {(int(l), e) for l, experts in removed.items() for e in experts}
    judge.say(wanted and set(constants) == wanted, f"{what}: {len(wanted)} removed experts have constants")
    read = AutoConfig.from_pretrained(export).approximate_experts
    judge.say(read == removed, f"{what}: AutoConfig reads the list of removed experts")
    judge.say(refuses(export), f"{what}: transformers does not load it")
    with tempfile.TemporaryDirectory() as top:
        stock = stock_model(judge, make_whole(export, removed, Path(top)), **EAGER)
    (substitute_by_vllm if "FM_VLLM" in os.environ else substitute)(stock, removed, constants)
    judge.close(f"log-probabilities, {what}", our_logprobs(export, model / "tokens.npy", length),
                their_logprobs(stock, ids))  # fmt: skip


def main():
    judge = Judge()
    torch.manual_seed(1)
    for name in sys.argv[1:] or MODELS:
        model = HERE / name
        length = np.load(model / "tokens.npy").shape[1]
        ids = tokens(model / "tokens.npy", length)
        with tempfile.TemporaryDirectory() as top:
            for constant, export in make_exports(model, Path(top)):
                judge_export(judge, f"{name}, {constant}", export, model, ids, length)
            judge_means(judge, name, model, ids, Path(top))
            tensors = load_file(export / "model.safetensors")
            some = {x: torch.randn_like(t) if x.endswith(END) else t for x, t in tensors.items()}
            save_file(some, export / "model.safetensors", {"format": "pt"})
            judge_export(judge, f"{name}, random", export, model, ids, length)
    print(f"{judge.made} checks, {judge.failed} failed")
    return 1 if judge.failed else 0


if __name__ == "__main__":
    sys.exit(main())
