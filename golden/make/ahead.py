"""Layers for multi-token prediction (MTP): a checkpoint with one, and the scores of its experts.

A checkpoint is an odd model with one more layer, a changed copy of its last one, with what combines
a hidden state with the next token's embedding.  ahead-NAME.safetensors has only the tensors of that
layer, so that tests make the checkpoint from it and odd-NAME.  The scores are those of the layer's
own loss, on the token after the next one, with autograd and transformers' MtpModel, where it supports
the family, else with a model that has only that layer (Alone).
"""

import copy
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import AutoConfig
from transformers.modeling_layers import MtpModel

import oracle

# Whether the layer has its own embedding and head, with other values than the model's, as servers
# load them; transformers always takes the model's.
ROWS = {"odd-glm4": False, "odd-dsv3": True, "odd-dsv32": False, "odd-glm5": True, "odd-glm-lite": False,
        "odd-q3next": False, "odd-q35": False, "odd-hy3": False}


# Names of Qwen3-Next and Qwen3.5, and what other families call them in layer L; the rest follow mtp.layers.0.
QWEN = {"eh_proj": "fc", "enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "shared_head.norm": "norm"}


def config_of(source):
    """config.json, or the text_config of a wrapper."""
    config = json.loads((source / "config.json").read_text())
    return config.get("text_config", config)


def layers_of(tensors):
    """What comes before the number of a decoder layer in names: wrappers add a prefix."""
    return next(n for n in tensors if ".layers.0." in n and n.startswith("model.")).split("layers.")[0] + "layers."


def named(tensors, config):
    """The tensors with the family's names."""
    if config["model_type"] == "hy_v3":
        return {name.replace(".shared_head.norm.", ".final_layernorm."): x for name, x in tensors.items()}
    if not config["model_type"].startswith("qwen3"):
        return tensors
    of, out = f"model.layers.{config['num_hidden_layers']}.", {}
    for name, x in tensors.items():
        rest = name.removeprefix(of)
        end = rest.removesuffix(".weight")
        out[f"mtp.{QWEN[end]}.weight" if end in QWEN else f"mtp.layers.0.{rest}"] = x
    return out


def like(source):
    """The layer whose blocks the MTP layer has: the last one with full attention."""
    config = AutoConfig.from_pretrained(source).get_text_config()
    types = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    return max(l for l, x in enumerate(types) if x != "linear_attention")


def separate(name, fused):
    """The tensors of each expert that a tensor of all experts holds."""
    of, part = name.rsplit(".", 1)
    if part == "down_proj":
        return {f"{of}.{e}.down_proj.weight": x for e, x in enumerate(fused)}
    return {f"{of}.{e}.{p}_proj.weight": y for e, x in enumerate(fused) for p, y in zip(("gate", "up"), x.chunk(2), strict=True)}


def tensors_of(source, own):
    """The tensors of the layer, with DeepSeek's names."""
    config, have = config_of(source), {}
    for path in sorted(source.glob("model*.safetensors")):
        have |= load_file(path)
    for name in [n for n in have if n.endswith((".experts.gate_up_proj", ".experts.down_proj"))]:
        have |= separate(name, have.pop(name))
    layer, hidden = config["num_hidden_layers"], config["hidden_size"]
    random = torch.Generator().manual_seed(61)
    draw = lambda shape: torch.randn(shape, generator=random)
    dtype = have[layers_of(have).removesuffix("layers.") + "norm.weight"].dtype
    last, name, out = f"{layers_of(have)}{like(source)}.", f"model.layers.{layer}.", {}
    for key in sorted(key for key in have if key.startswith(last)):
        x = have[key]
        out[key.replace(last, name)] = (x.float() + 0.5 * x.float().std() * draw(x.shape)).to(x.dtype)
    out[name + "eh_proj.weight"] = (0.15 * draw((hidden, 2 * hidden))).to(dtype)
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        out[name + norm + ".weight"] = (1 + 0.3 * draw(hidden)).to(dtype)
    if own:
        for key, of in (("shared_head.head.weight", "lm_head.weight"), ("embed_tokens.weight", "model.embed_tokens.weight")):
            x = have[of]
            out[name + key] = (x.float() + 0.5 * x.float().std() * draw(x.shape)).to(x.dtype)
    return out


def checkpoint(source, tensors, to):
    """Write `source` with these tensors in a shard of their own to the new directory `to`."""
    to.mkdir()
    oracle.save(to / "ahead.safetensors", tensors)
    files, where = sorted(source.glob("model*.safetensors")), dict.fromkeys(tensors, "ahead.safetensors")
    for path in files:
        have = {n: x for n, x in load_file(path).items() if not n.startswith("mtp.")}
        oracle.save(to / f"a-{path.name}", have)
        where |= dict.fromkeys(have, f"a-{path.name}")
    config = json.loads((source / "config.json").read_text())
    config_of_layer = {} if "text_config" in config else {"num_nextn_predict_layers": 1}
    (to / "config.json").write_text(json.dumps(config | config_of_layer, indent=2))
    (to / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def load(path, tensors):
    """The model and its MTP layer, in float32; None if MtpModel does not support the family."""
    model = oracle.load(path)
    if not hasattr(model.config, "num_mtp_layers"):
        return model, None
    layer = model.config.num_hidden_layers
    # By default, transformers ignores an MTP layer only at its number in the published models.
    model._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{layer}\..*"]
    mtp = MtpModel.from_pretrained(model).float().eval()
    for key, module in (("shared_head.head", "shared_head"), ("embed_tokens", "embed_tokens")):
        weight = tensors.get(f"model.layers.{layer}.{key}.weight")
        if weight is not None:
            like = getattr(mtp, module)
            ours = torch.nn.Embedding if isinstance(like, torch.nn.Embedding) else torch.nn.Linear
            made = ours(*(weight.shape if ours is torch.nn.Embedding else weight.T.shape), **({} if ours is torch.nn.Embedding else {"bias": False}))
            made.weight.data = weight.float()
            setattr(mtp, module, made)
    return model, mtp


class AllTokens(torch.nn.Module):
    """For layers of GLM-5 that take the indices of an indexer before them: all tokens, as any indexer of
    these models chooses, because sequences are not longer than the number that it chooses."""

    def forward(self, hidden, *_args, **_kwargs):
        S, T, _ = hidden.shape
        return torch.arange(T).expand(S, T, T)


class Alone(torch.nn.Module):
    """The same as MtpModel, for other families: a model of transformers with a single layer, whose
    weights, last norm, head and embedding are those of the checkpoint's layer."""

    def __init__(self, source, tensors, folder):
        super().__init__()
        layer, have = config_of(source)["num_hidden_layers"], {}
        for path in sorted(source.glob("model*.safetensors")):
            have |= load_file(path)
        layers, own, last = layers_of(have), f"model.layers.{layer}.", like(source)
        part = layers.removesuffix("layers.")
        ends = {"shared_head.norm": f"{part}norm", "shared_head.head": "lm_head", "embed_tokens": f"{part}embed_tokens"}
        have = {n: x for n, x in have.items() if not n.startswith(f"{layers}{last}.")}
        for name, x in tensors.items():
            end = name.removeprefix(own).removesuffix(".weight")
            have[ends[end] + ".weight" if end in ends else name.replace(own, f"{layers}{last}.")] = x
        joint = [have.pop(f"{layers}{last}.{n}.weight").float() for n in ("eh_proj", "enorm", "hnorm")]
        folder.mkdir()
        oracle.save(folder / "model.safetensors", have)
        shutil.copy(source / "config.json", folder)
        self.lm = oracle.load(folder)
        self.lm.model.layers = self.lm.model.layers[last : last + 1]
        for key in ("layer_types", "mlp_layer_types", "indexer_types"):
            if getattr(self.lm.config, key, None):
                setattr(self.lm.config, key, getattr(self.lm.config, key)[last : last + 1])
        self.lm.config.num_hidden_layers = 1
        attention = getattr(self.lm.model.layers[0], "self_attn", None)
        if getattr(attention, "indexer", self) is None:
            attention.indexer = AllTokens()
        self.proj = torch.nn.Parameter(joint[0])
        self.norms = torch.nn.ModuleList(copy.deepcopy(self.lm.model.norm) for _ in range(2))
        for norm, x in zip(self.norms, joint[1:], strict=True):
            norm.weight.data = x

    def logits(self, hidden, ids):
        parts = self.norms[0](self.lm.model.embed_tokens(ids)), self.norms[1](hidden)
        return self.lm(inputs_embeds=torch.cat(parts, -1) @ self.proj.T, use_cache=False).logits


def logits_of(mtp, hidden, ids):
    """The predictions of the layer from the model's last hidden states and the tokens after them."""
    if isinstance(mtp, Alone):
        return mtp.logits(hidden, ids)
    positions = torch.arange(1, ids.shape[1] + 1)[None].expand(ids.shape[0], -1)
    return mtp._project_to_logits(mtp.forward_layer(0, hidden, positions, None, input_ids=ids))


def loss_of(model, mtp, ids):
    """The mean cross-entropy of the layer's predictions of the tokens after the next ones."""
    with torch.no_grad():
        hidden = model.model(ids, use_cache=False).last_hidden_state
    logits = logits_of(mtp, hidden[:, :-1], ids[:, 1:])
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 2:].flatten())


def experts_of(mtp):
    return oracle.mlp_of(mtp.lm.model.layers[0] if isinstance(mtp, Alone) else mtp.layers[0].mtp_block).experts


def scores(model, mtp, batches):
    """As oracle.scores, for the layer: (E, I), and the batch losses."""
    total, losses = 0.0, []
    for ids in batches:
        mtp.zero_grad(set_to_none=True)
        loss = loss_of(model, mtp, ids)
        loss.backward()
        losses.append(loss.detach().double())
        with torch.no_grad():
            total = total + oracle.channel_squares(experts_of(mtp))
    return total / len(batches), torch.stack(losses)


def counts(model, mtp, ids):
    """Token slots routed to each expert, (E)."""
    chosen, experts = [], experts_of(mtp)
    keep = lambda _module, args: chosen.append(args[1])
    with oracle.hooked([experts.register_forward_pre_hook(keep)]), torch.no_grad():
        loss_of(model, mtp, ids)
    return torch.cat(chosen).flatten().bincount(minlength=experts.num_experts)


def make(source, to):
    """Write the layer's tensors and the goldens of an odd model to the folder `to`."""
    name = source.name.removeprefix("odd-")
    tensors = tensors_of(source, ROWS[source.name])
    ids = torch.from_numpy(np.load(source / "tokens.npy").astype(np.int64))
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(source)
        checkpoint(source, named(tensors, config), Path(folder) / "model")
        model, mtp = load(Path(folder) / "model", tensors)
        mtp = mtp or Alone(source, tensors, Path(folder) / "alone")
        out = {}
        for batch in (1, 2):
            score, losses = scores(model, mtp, ids.split(batch))
            out |= {f"rank{batch}.scores": score, f"rank{batch}.losses": losses}
        out["rank.tokens"] = counts(model, mtp, ids)
    to.mkdir(exist_ok=True)
    oracle.save(to / f"{name}.safetensors", named(tensors, config))
    oracle.save(to / f"{name}.golden.safetensors", out)
