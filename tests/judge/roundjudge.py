#!/usr/bin/env python3
"""Check exports whose experts fm-pack quantises, with compressed-tensors, ModelOpt and transformers.
Run by `make judge`; ModelOpt is used if nvidia-modelopt is installed.

A small Qwen3-MoE, in float32 and in bfloat16, with blocks of zeros and of very small and large numbers, is
ranked and packed.  The packages quantise each matrix of a uniform export with plain weights, and every code
and scale of our export in the same format must be equal to theirs.  For some formats the packages round
quotients of bfloat16 weights to bfloat16 first; there only the scales must be equal.  Our error must be at
most theirs, except for fp8-block, where it is not measured.  Last, transformers must load the decoded values
from the exports that it reads correctly on a CPU, and compute from the decoded checkpoint the
log-probabilities that the engine computes from the codes.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import packed
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from codesjudge import EAGER, experts, logprobs, script
from judge import Judge, our_logprobs, tool

packed.H, packed.I, packed.E, packed.HEADS, packed.HEAD = 128, 256, 2, 4, 32
packed.CT["fp8-block"][1]["block_structure"] = [128, 128]
packed.CT["w4a16:32"] = packed.CT["w4a16"]
packed.CT["w4a16:128"] = (*packed.CT["w4a16"][:1], packed.CT["w4a16"][1] | {"group_size": 128}, *packed.CT["w4a16"][2:])
# The name for --weights, the packages' name, and the type of the experts as transformers 5.23 loads them on a
# CPU (True: that of the scales; None: wrong values, or not loaded).
FORMATS = [("fp8", "fp8-channel", torch.float32), ("w4a16", "w4a16:128", True),
           ("w4a16:32", "w4a16:32", True), ("nvfp4:ct", "nvfp4", None), ("mxfp4", "mxfp4", torch.bfloat16),
           ("mxfp8", "mxfp8", None), ("nvfp4", "nvfp4-modelopt", None), ("fp8-block", "fp8-block", torch.float32)]  # fmt: skip


def checkpoint(out, dtype):
    """Write the checkpoint.  The blocks that are hard to round are in down, because gate and up share a scale
    in NVFP4."""
    tensors = {}
    for key, t in packed.base().items():
        t = t.to(dtype)
        if ".experts.1." in key and dtype == torch.float32:
            t = t * (1 + torch.rand(t.shape, generator=torch.Generator().manual_seed(len(key))) * 1e-3)
        if key.endswith("experts.0.down_proj.weight"):
            t[:, :32] = 0
            t[3] = 0
            t[5, 40:80] *= 1e-30
            t[6] *= 1e-38
            t[7, 100] = 3e4
            t[8, 64:96] = -0.0
        tensors[key] = t.contiguous()
    out.mkdir()
    config = packed.config(None) | {"torch_dtype": str(dtype)[6:]}
    del config["quantization_config"]
    (out / "config.json").write_text(json.dumps(config))
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    np.save(out / "tokens.npy", np.random.default_rng(91).integers(0, packed.V, (6, 17), dtype=np.int32))


def files(folder):
    return {k: v for f in sorted(folder.glob("*.safetensors")) for k, v in load_file(f).items()}


def raw(t):
    return t.contiguous().view(torch.uint8) if t.dim() else t.reshape(1).view(torch.uint8)


def same(a, b):
    return a.numel() == b.numel() and a.dtype == b.dtype and torch.equal(raw(a).flatten(), raw(b).flatten())


def decode(out, twin, tokens):
    """Decode an export to the checkpoint `twin` with tests/cli/recode.py; return its tensors."""
    shutil.rmtree(twin, ignore_errors=True)
    (out / "tokens.npy").write_bytes(tokens.read_bytes())
    script("recode", "plain", out, twin)
    (out / "tokens.npy").unlink()
    return files(twin)


def by_package(name, w, both):
    """The tensors that the package makes from a matrix, and their values.  NVFP4's second scale is computed
    from `both`: gate and up together, or down."""
    if name == "fp8-block":  # DeepSeek's scales are float32, so compressed-tensors must compute in float32
        made, back = packed.compress(name, w.float())
        return {"weight": made["weight"], "weight_scale_inv": made["weight_scale"]}, back
    if name == "nvfp4-modelopt":
        from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

        second = both.abs().amax().float() / (6 * 448)
        scale, _ = NVFP4QTensor.get_weights_scaling_factor(w.clone(), 16, second)
        q, scale, second = NVFP4QTensor.quantize(w.clone(), 16, scale, second)
        back = q.dequantize(dtype=torch.float32, scale=scale, double_scale=second, block_sizes={-1: 16})
        return {"weight": q._quantized_data, "weight_scale": scale, "weight_scale_2": second,
                "input_scale": torch.tensor(1.0)}, back  # fmt: skip
    if name == "nvfp4":
        generate = packed.generate_gparam
        packed.generate_gparam = lambda low, high: generate(both.amin(), both.amax())
        try:
            return packed.compress(name, w)
        finally:
            packed.generate_gparam = generate
    return packed.compress(name, w)


def judge_format(judge, dtype, weights, name, plain, out, ours):
    have, said, worst = files(out), {}, []
    for key, w in plain.items():
        if ".experts." not in key:
            continue
        base, last = key.removesuffix("weight"), key.split(".")[-2]
        both = w if last == "down_proj" else torch.cat(
            [plain[key.replace(last, other)] for other in ("gate_proj", "up_proj")])
        want, back = by_package(name, w, both)
        for part, t in want.items():
            equal = said.setdefault(part, [0, 0])
            equal[0] += same(have[base + part], t)
            equal[1] += 1
        if name != "fp8-block":
            error = [(x.double() - w.double()).square().mean().sqrt().item() for x in (ours[key], back)]
            worst.append(error[0] / error[1] if error[1] > 0 else 1.0)
    label = f"{weights} from {str(dtype)[6:]}"
    for part, (equal, n) in said.items():
        twice = dtype == torch.bfloat16 and weights in ("fp8", "w4a16", "w4a16:32")
        if equal == n or not twice or part not in ("weight", "weight_packed"):
            judge.say(equal == n, f"{label}: {part} equal to the package's: {equal} of {n}")
    if worst:
        judge.say(max(worst) <= 1 + 1e-6, f"{label}: our error divided by the package's, at most: {max(worst):.6f}")


def judge_loaded(judge, weights, held, out, twin, tokens):
    """transformers must load the decoded values from the export, and compute from the decoded checkpoint the
    log-probabilities that the engine computes from the codes."""
    model = AutoModelForCausalLM.from_pretrained(twin, dtype=torch.float32, **EAGER)
    ids = np.load(tokens)
    judge.close(f"{weights}: log-probabilities", our_logprobs(out, tokens, ids.shape[1]), logprobs(model, ids))
    want = experts(model)
    loaded = experts(AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, **EAGER))
    good = loaded.keys() == want.keys() and all(
        torch.equal(loaded[k].float(), want[k].to(held).float()) for k in want)  # fmt: skip
    judge.say(good, f"{weights}: transformers loads the values of the codes{' in bfloat16' * (held == torch.bfloat16)}")


def judge_flat(judge, weights, folder, tokens):
    """Our modelling file and the engine must decode a ragged export to the same values."""
    ids, out = np.load(tokens), folder / "ragged"
    tool("fm-pack", "--quiet", "--force", "--budget", "0.5", "--layout", "ragged", "--weights", weights, "--export",
         out, folder / "family.fm")  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, trust_remote_code=True)
    judge.close(f"{weights}, ragged: log-probabilities", our_logprobs(out, tokens, ids.shape[1]), logprobs(model, ids))


def main():
    judge = Judge()
    for dtype in (torch.float32, torch.bfloat16):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            model = folder / "model"
            checkpoint(model, dtype)
            stage = ["--model", model, "--tokens", model / "tokens.npy", "--precision", "f32", "--quiet"]
            tool("fm-rank", *stage, "-o", folder / "rank")
            tool("fm-train", *stage, "--method", "saliency", "--budget-step", "0.25", "-o", folder / "train",
                 folder / "rank")  # fmt: skip
            tool("fm-pack", "--quiet", "--model", model, "-o", folder / "family.fm", folder / "train")
            export = ["fm-pack", "--quiet", "--force", "--budget", "0.5", "--layout", "uniform", "--pad-multiple", "128"]
            tool(*export, "--export", folder / "plain", folder / "family.fm")
            plain = files(folder / "plain")
            for weights, name, held in FORMATS:
                if name == "nvfp4-modelopt" and not has_modelopt():
                    continue
                tool(*export, "--export", folder / "out", "--weights", weights, folder / "family.fm")
                judge_flat(judge, weights, folder, model / "tokens.npy")
                ours = decode(folder / "out", folder / "twin", model / "tokens.npy")
                judge_format(judge, dtype, weights, name, plain, folder / "out", ours)
                if held:
                    held = dtype if weights.startswith("w4a16") else held  # the scales have the model's dtype
                    judge_loaded(judge, weights, held, folder / "out", folder / "twin", model / "tokens.npy")
    print(f"roundjudge: {judge.made} checks, {judge.failed} failed")
    sys.exit(judge.failed > 0)


def has_modelopt():
    try:
        import modelopt.torch.quantization  # noqa: F401
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("FM_JUDGE_THREADS", "2")))
    main()
