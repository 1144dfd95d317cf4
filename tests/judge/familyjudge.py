#!/usr/bin/env python3
"""Check each family with transformers, on its model in golden/odd-*.  Run by `make judge`.

For each model:
- Its scores must agree with autograd.
- A bundle with budgets from 0 to 0.80 is made.  At five of them, every layout that transformers loads
  must give each next token the log-probability that the engine computes.
- Two elastic models with a load cap, one exported with it and one exported whole and loaded with it, must
  compute the same as the export without a cap, at every budget that the cap allows.

Prints one line per check; the exit status is 1 if one fails.  Models may be named as arguments.
"""

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import decoded
from judge import (
    Judge,
    export,
    judge_ranking,
    nearest,
    our_logprobs,
    stock_model,
    their_logprobs,
    tokens,
    tool,
)

HERE = Path(__file__).resolve().parents[2] / "golden"
ROWS = sorted(folder.name for folder in HERE.glob("odd-*"))
# Bytes of tensors of the published models that transformers' classes ignore.
IGNORED = {"odd-axk1": 36 * 2}  # the norm after the MLP of its dense layer, which no code applies
BUDGETS = (0.0, 0.2, 0.4, 0.6, 0.8)
LAYOUTS = ("padded", "uniform", "ragged", "layer", "elastic")
STOCK = ("padded", "uniform")  # transformers loads these with its own classes
WHOLE = ("odd-step",)  # transformers has no class for the text part alone, so no stock layout is loaded
CAP = 0.3
OTHER_WIDTHS = ("uniform", "layer")  # layouts whose widths differ from the mask's
# torch's grouped_mm, the default, requires rows of a multiple of 16 bytes, which no width here gives.
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}


@dataclass
class Row:
    """A model, its tokens, and where its files go."""

    model: Path
    folder: Path

    def __post_init__(self):
        self.tokens = self.model / "tokens.npy"
        self.T = np.load(self.tokens).shape[1]
        self.ids = tokens(self.tokens, self.T)
        config = json.loads((self.model / "config.json").read_text())
        self.dtype = getattr(torch, config.get("dtype") or config["torch_dtype"])
        self.own = {x: self.item_of(x) for x in ("A_log", "linear_attn.norm.weight")}
        biases = "correction_bias", "expert_bias", "router_bias"  # the names on disk and in the classes
        self.own |= {x: self.item_of(biases) for x in biases}

    def ours(self, path):
        return our_logprobs(path, self.tokens, self.T)

    def theirs(self, judge, path, size=None, **options):
        model = stock_model(judge, path, **EAGER, **options)
        if size is not None:
            held = self.held(model)
            judge.say(held == size, f"{path.name} holds {held} of {size} bytes")
        return their_logprobs(model, self.ids)

    def item_of(self, ending):
        """Bytes per element of the first tensor whose name ends with `ending`, a string or a tuple."""
        for path in self.model.glob("model*.safetensors"):
            with safe_open(path, "pt") as file:
                for name in file.keys():
                    if name.endswith(ending):
                        return file.get_tensor(name).element_size()
        return self.dtype.itemsize

    def held(self, model):
        """Bytes of a loaded model's tensors, counted in the types that they have on disk."""
        sizes = lambda name: (size for end, size in self.own.items() if name.endswith(end))
        item = lambda name: next(sizes(name), self.dtype.itemsize)
        kept = {x.data_ptr(): x.numel() * item(n) for n, x in model.state_dict().items()}
        return sum(kept.values()) + IGNORED.get(self.model.name, 0)


def make_family(row):
    """Make the ranking and the bundle, with saliency masks and without recovery."""
    stage = ["--model", row.model, "--tokens", row.tokens, "--seq-len", row.T, "--precision", "f32", "--quiet"]
    stage += ["--eval-tokens", row.tokens]  # given, so that none is held out from the ranking
    masks = ["--method", "saliency", "--until", "0.81"]
    rank, train, family = (row.folder / f"{name}.fm" for name in ("rank", "train", "family"))
    tool("fm-rank", *stage, "-o", rank)
    tool("fm-train", *stage, *masks, "--measure-step", "0.01", "-o", train, rank)
    tool("fm-pack", "--model", row.model, "--quiet", "-o", family, train)
    tool("tar", "xf", rank, "-C", row.folder, "ranking.safetensors")
    return family


def judge_budget(judge, row, family, here, beside):
    """Compare every layout at one budget with the engine, and its size with fm-pack --list.

    The member at the budget `beside` must differ clearly, so that a wrong member would be noticed."""
    budget = here["budget"]
    native = row.ours(export(family, budget, "native", row.folder))
    for layout in LAYOUTS:
        if layout in STOCK and row.model.name in WHOLE:
            continue
        path = export(family, budget, layout, row.folder)
        ours = row.ours(path) if layout in OTHER_WIDTHS else native
        options = {} if layout in STOCK else {"trust_remote_code": True}
        theirs = row.theirs(judge, path, here["layouts"][layout]["tensors"], **options)
        judge.close(f"log-probabilities, {path.name}", ours, theirs)
    other = row.ours(export(family, beside, "native", row.folder))
    judge.apart(f"the neighbour at {beside:.4f} is another model", native, other)


def neighbour(rows, here):
    """The next member with a different loss.  odd-mixtral has an expert that no token reaches, and its
    first members remove only channels of that expert."""
    loss = lambda row: row["quality"]["ce"]
    return next(x for x in rows if x["index"] > here["index"] and loss(x) != loss(here))


def load_capped(judge, row, family, first):
    """Load three elastic models: the whole export, an export with a load cap that keeps the members
    from `first` on, and the whole export loaded with that cap.

    The capped models must hold as many bytes as fm-pack --list says, and refuse other members."""
    cap = repr(first["budget"])
    whole, capped = export(family, first["budget"], "elastic", row.folder), row.folder / "capped"
    tool("fm-pack", "--quiet", "--export", capped, "--layout", "elastic", "--load-cap", cap, family)
    options = EAGER | {"trust_remote_code": True}
    models = [stock_model(judge, path, **options) for path in (whole, capped)]
    os.environ["FM_LOAD_CAP"] = cap
    models.append(stock_model(judge, whole, **options))
    del os.environ["FM_LOAD_CAP"]
    size = first["layouts"]["load-cap"]["tensors"]
    whole, *held = (row.held(model) for model in models)
    for how, model, n in zip(("exported", "loaded"), models[1:], held):
        judge.say(n == size < whole, f"{how} with a load cap, it holds {n} of {size} bytes, not {whole}")
        judge.say(refuses(model, first["budget"] / 2), f"{how} with a load cap, it refuses other members")
    return models


def refuses(model, budget):
    try:
        model.set_budget(budget)
    except ValueError as error:
        return "is not loaded" in str(error)
    return False


def refuses_whole(model):
    """Whether load_weights, with which servers switch budgets, refuses budget 0 and then accepts -1."""
    experts = next(m for m in model.modules() if type(m).__name__ == "FmExperts")
    try:
        experts.load_weights([("budget", torch.zeros(1))])
    except ValueError:
        return experts.load_weights([("budget", -torch.ones(1))]) == {"budget"}
    return False


def judge_cap(judge, row, family, rows):
    """At every budget that the cap allows, both capped models must compute the same as the whole one."""
    kept = rows[nearest(rows, CAP)[0]["index"] :]
    models = load_capped(judge, row, family, kept[0])
    found = [[], [], []]
    for budget in (x["budget"] for x in kept):
        for model, logprobs in zip(models, found):
            model.set_budget(budget)
            logprobs.append(their_logprobs(model, row.ids[:2]))
    for how, logprobs in zip(("exported", "loaded"), found[1:]):
        same = np.array_equal(logprobs, found[0])
        judge.close(f"{len(kept)} budgets, {how} with a load cap" + ", same bits" * same, logprobs, found[0])
    judge.apart("the first and the last of these budgets differ", found[1][0], found[1][-1])
    judge.say(refuses_whole(models[2]), "a server's switch to a member that is not loaded is refused")


def attend_nothing(*_, **__):
    """A stand-in for SGLang's attention, which the modelling file looks up when it is loaded."""


def loads_in_sglang(path):
    try:
        AutoModelForCausalLM.from_pretrained(
            path, attn_implementation="sglang", trust_remote_code=True
        )
    except ValueError as error:
        return "Transformers backend" not in str(error)
    return True


def judge_sglang(judge, path):
    """SGLang's Transformers backend leaves out sinks, attends to one position too many, and takes all layers to
    have the same heads.  The modelling file of such a family must refuse to load there, unless the attention
    function is marked as correcting this, as fm_sglang's is.  Some families it refuses always."""
    c = AutoConfig.from_pretrained(path, trust_remote_code=True)
    kinds = getattr(c, "layer_types", None) or ["sliding_attention"]
    never = hasattr(c, "swa_num_key_value_heads") or "conv" in kinds or hasattr(c, "attention_k_eq_v")
    window = getattr(c, "sliding_window", None)
    with safe_open(path / "model.safetensors", "pt") as file:
        wrong = any("sink" in name for name in file.keys())
    wrong = wrong or getattr(c, "num_attention_heads_per_layer", None)
    wrong = wrong or window and window < c.max_position_embeddings and "sliding_attention" in kinds
    ALL_ATTENTION_FUNCTIONS["sglang"] = attend_nothing
    judge.say(loads_in_sglang(path) == (not never and not wrong), "it loads in SGLang if and only if it is right there")
    attend_nothing.fm_sinks = True
    judge.say(loads_in_sglang(path) == (not never), "it loads in SGLang if attention is corrected, or is refused always")
    del attend_nothing.fm_sinks, ALL_ATTENTION_FUNCTIONS["sglang"]


def judge_family(judge, row):
    with decoded.plain(row.model) as path:
        theirs = row.theirs(judge, path)
    judge.close(f"log-probabilities, {row.model.name}", row.ours(row.model), theirs)
    family = make_family(row)
    judge_ranking(judge, row.folder / "ranking.safetensors", row.model, row.ids)
    rows = json.loads(tool("fm-pack", "--list", "--json", family))["budgets"]
    for budget in BUDGETS:
        here = nearest(rows, budget)[0]
        judge_budget(judge, row, family, here, neighbour(rows, here)["budget"])
    judge_sglang(judge, next(row.folder.glob("*-ragged-*")))
    judge_cap(judge, row, family, rows)


def main(names):
    torch.set_num_threads(1)
    judge = Judge()
    for name in names:
        print(name)
        with tempfile.TemporaryDirectory(prefix="fm-judge-") as folder, judge.attempt(name):
            judge_family(judge, Row(HERE / name, Path(folder)))
    print(f"{judge.made} checks, {judge.failed} failed")
    return judge.failed != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ROWS))
