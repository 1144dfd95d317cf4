#!/usr/bin/env python3
"""Measure how many drafts of a layer for multi-token prediction the model accepts, before and after a cut.

usage: BUILD=build tests/measure/drafts.py DIR [--steps N] [--seed N]

A GLM-4.5 of three layers, with one such layer, is trained on the bytes of this repository's sources and
pages.  fm-rank --keep-extra ranks both, and `uniform --keep-extra` exports a few budgets.  A draft for position
t + 2 is accepted if it is the token that the model itself would choose there; both see the text up to t + 1
(teacher forcing).  Beside the exported layer, which has its best channels by rank, the same model is measured
with the layer's first channels, and with all of them.  The losses of the table are the layer's own.

Needs PyTorch and transformers 5.23 or newer.  What exists in DIR is not made again; the default takes about
ten minutes on one core.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM
from transformers.modeling_layers import MtpModel

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / os.environ.get("BUILD", "build") / "bin"
BUDGETS = (0.0, 0.25, 0.5, 0.75)
T, LAYERS = 64, 3
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager", "dtype": torch.float32}
CONFIG = {
    "vocab_size": 256, "hidden_size": 128, "intermediate_size": 256, "moe_intermediate_size": 64,
    "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "n_group": 1, "topk_group": 1, "use_qk_norm": True, "max_position_embeddings": 512, "num_nextn_predict_layers": 1,
    "tie_word_embeddings": False, "pad_token_id": 0, "eos_token_id": None, "bos_token_id": None,
}  # fmt: skip


def text():
    """Sequences of T bytes; every eighth is kept for the measurement."""
    paths = sorted(p for pattern in ("man/*.[157]", "lib/**/*.c", "formats/**/*.c", "cmd/*.c") for p in ROOT.glob(pattern))
    data = np.frombuffer(b"".join(p.read_bytes() for p in paths), np.uint8)
    rows = data[: len(data) // T * T].reshape(-1, T).astype(np.int32)
    held = np.arange(len(rows)) % 8 == 0
    return rows[~held], rows[held]


def logits_of(model, layer, ids):
    """Predictions of the model, and of the layer from its states and the tokens after them."""
    hidden = model.model(ids, use_cache=False).last_hidden_state
    positions = torch.arange(1, ids.shape[1])[None].expand(len(ids), -1)
    drafts = layer._project_to_logits(layer.forward_layer(0, hidden[:, :-1], positions, None, input_ids=ids[:, 1:]))
    return model.lm_head(hidden), drafts


def draft_loss(drafts, ids):
    return F.cross_entropy(drafts[:, :-1].flatten(0, 1), ids[:, 2:].flatten())


def names_of(state):
    """The layer's tensors under the names of published checkpoints."""
    of, out = f"model.layers.{LAYERS}.", {}
    for name, x in state.items():
        if not name.startswith("layers.0."):
            continue
        name = name.removeprefix("layers.0.").removeprefix("mtp_block.").replace("post_norm", "shared_head.norm")
        if name.endswith("experts.gate_up_proj"):
            for e, both in enumerate(x):
                for part, y in zip(("gate", "up"), both.chunk(2), strict=True):
                    out[f"{of}mlp.experts.{e}.{part}_proj.weight"] = y
        elif name.endswith("experts.down_proj"):
            out |= {f"{of}mlp.experts.{e}.down_proj.weight": y for e, y in enumerate(x)}
        else:
            out[of + name] = x
    return {name: x.contiguous().clone() for name, x in out.items()}


def train(folder, rows, steps, seed):
    torch.manual_seed(seed)
    model = Glm4MoeForCausalLM._from_config(Glm4MoeConfig(**CONFIG), **EAGER)
    layer = MtpModel(model, 1).float()
    layer.init_weights()
    for name, x in layer.named_parameters():
        if x.dim() > 1:  # MtpModel leaves the experts as they were allocated
            torch.nn.init.normal_(x, std=0.02)
    layer.tie_with_main_model(model)
    parameters = {id(p): p for m in (model, layer) for p in m.parameters()}.values()
    best = torch.optim.AdamW(parameters, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.01)
    plan = torch.optim.lr_scheduler.OneCycleLR(best, 3e-3, total_steps=steps, pct_start=0.1)
    choose = np.random.default_rng(seed)
    for step in range(steps):
        ids = torch.from_numpy(rows[choose.integers(0, len(rows), 16)].astype(np.int64))
        logits, drafts = logits_of(model, layer, ids)
        own = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss = own + 0.5 * draft_loss(drafts, ids)
        best.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        best.step()
        plan.step()
        if step % 25 == 24:
            print(f"step {step + 1}: {own.item():.3f}, {draft_loss(drafts, ids).item():.3f}", file=sys.stderr)
    model.save_pretrained(folder, save_original_format=True)
    tensors = load_file(folder / "model.safetensors") | names_of(layer.state_dict())
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def tool(*words):
    subprocess.run([str(TOOLS / words[0]), *map(str, words[1:]), "--quiet"], check=True, stdout=sys.stderr)


def exports(a, rows):
    """Export every budget; yield its directory."""
    np.save(a.dir / "calib.npy", rows[:: len(rows) // 256][:256])
    data = ["--model", a.dir / "model", "--tokens", a.dir / "calib.npy", "--seq-len", T, "--precision", "f32"]
    stream = [a.dir / name for name in ("ranked.fm", "trained.fm", "family.fm")]
    if not stream[2].exists():
        tool("fm-rank", *data, "--keep-extra", "--force", "-o", stream[0])
        tool("fm-train", *data, "--method", "uniform", "--budget-step", "0.25",
             "--width-multiple", "8", "--force", "-o", stream[1], stream[0])  # fmt: skip
        tool("fm-pack", "--model", a.dir / "model", "--force", "-o", stream[2], stream[1])
    for budget in BUDGETS:
        out = a.dir / f"uniform-{budget:g}"
        if not out.exists():
            tool("fm-pack", "--export", out, "--layout", "uniform", "--keep-extra", "--budget", budget, stream[2])
        yield budget, out


def load(folder):
    Glm4MoeForCausalLM._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{LAYERS}\..*"]
    return Glm4MoeForCausalLM.from_pretrained(folder, **EAGER).eval()


def layers_of(model, source):
    """The exported layer; the source's, with its first channels; and with all."""
    exported = MtpModel.from_pretrained(model).float().eval()
    first = MtpModel(model, 1).float()
    state, width = dict(source.state_dict()), model.config.moe_intermediate_size
    gate_up, down = (state[f"layers.0.mtp_block.mlp.experts.{x}_proj"] for x in ("gate_up", "down"))
    state["layers.0.mtp_block.mlp.experts.gate_up_proj"] = torch.cat([x[:, :width] for x in gate_up.chunk(2, 1)], 1)
    state["layers.0.mtp_block.mlp.experts.down_proj"] = down[:, :, :width]
    shared = "layers.0.mtp_block.mlp.shared_experts."
    state |= {n: x for n, x in exported.state_dict().items() if n.startswith(shared)}  # padded with zeros
    first.load_state_dict(state)
    source.tie_with_main_model(model)
    for layer in (first, source):
        layer.tie_with_main_model(model)
    return {"by rank": exported, "first channels": first.eval(), "all channels": source}


@torch.no_grad()
def measure(model, layer, rows):
    accepted, losses, n = 0, 0.0, 0
    for ids in torch.from_numpy(rows.astype(np.int64)).split(32):
        logits, drafts = logits_of(model, layer, ids)
        same = drafts[:, :-1].argmax(-1) == logits[:, 1:-1].argmax(-1)
        accepted, n = accepted + int(same.sum()), n + same.numel()
        losses += float(draft_loss(drafts, ids)) * same.numel()
    return accepted / n, losses / n


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("dir", type=Path)
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--seed", type=int, default=0)
    a = p.parse_args()
    a.dir.mkdir(parents=True, exist_ok=True)
    rows, held = text()
    held = held[:: max(1, len(held) // 256)][:256]
    if not (a.dir / "model/config.json").exists():
        train(a.dir / "model", rows, a.steps, a.seed)
    found = {}
    for budget, out in exports(a, rows):
        whole = load(a.dir / "model")
        model = load(out)
        for name, layer in layers_of(model, MtpModel.from_pretrained(whole).float().eval()).items():
            found.setdefault(name, []).append(measure(model, layer, held))
    print(f"| layer's experts | {' | '.join(f'{b:g}' for b in BUDGETS)} |\n| :-- | {'--: | ' * len(BUDGETS)}")
    for name, cells in found.items():
        print(f"| {name} | {' | '.join(f'{x:.3f} ({y:.3f})' for x, y in cells)} |")
    (a.dir / "drafts.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
