#!/usr/bin/env python3
"""Check exports that keep quantised weights, with transformers and compressed-tensors.  Run by `make judge`.

A small model in each format is ranked, packed and exported at half its width with its codes.  The
scripts of tests/cli decode the export to a float32 checkpoint, and transformers must compute from it
the log-probabilities that the engine computes from the codes.  Checkpoints with codes in tensors of all
experts are also compared before they are pruned, wrapper included.  The experts of the export itself,
loaded by transformers, must have the decoded values, rounded to bfloat16 if its loader rounds.  For
formats whose loader is wrong or missing on a CPU, the result is only printed.

Then the layouts with our modelling file are loaded.  In float32 the log-probabilities must be the
engine's.  In bfloat16 the parameters must be equal to those of the same export with `--weights bf16`
when transformers loads them, with and without a load cap, when they are loaded in several calls of
load_weights as in servers, and when they are loaded again after transformers saved them.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

import decoded
import oracle
from judge import Judge, our_logprobs, tool

ROOT = Path(__file__).resolve().parents[2]
CLI, GOLDEN = ROOT / "tests/cli", ROOT / "golden"

EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
# For each format, the type of the experts as transformers 5.23 loads them on a CPU; None: wrong, or not loaded.
HELD = {
    "fp8-channel": torch.float32, "fp8-block": None, "w4a16": torch.bfloat16, "nvfp4": None,
    "nvfp4-modelopt": None, "mxfp4": torch.bfloat16, "mxfp8": None, "mixed": None, "modelopt-mixed": None, "deepseek": torch.float32,
    "gpt-oss": torch.float32, "fp8-static": torch.float32, "mistral4": None, "mistral4-blocks": None, "q35-blocks": torch.float32,
}  # fmt: skip
# Tensors of all experts, in blocks that the sizes of the published models would cut, too.
FUSED = {
    "odd-step": ("fp8-experts:16x24", "fp8:16x24", "fp8-static"),
    "odd-mistral4": ("fp8:16x24", "fp8-static"),
    "odd-q35": ("fp8-experts:16x24", "fp8:16x24"),
}


def script(name, *args):
    subprocess.run([sys.executable, CLI / f"{name}.py", *map(str, args)], check=True)


def model_of(name, folder):
    """Return the checkpoint."""
    if name == "deepseek":
        script("recode", "resize", GOLDEN / "odd-qwen3", folder / "wide", 64)
        script("recode", "quantise", folder / "wide", folder / "model", "fp8:4x4")  # blocks that divide 44 and 64
    elif name == "gpt-oss":
        script("recode", "gptoss", GOLDEN / "odd-gptoss", folder / "model")
    elif name.startswith(("mistral4", "q35")):
        script("recode", "inner", GOLDEN / f"odd-{name.removesuffix('-blocks')}", folder / "inner")
        script("recode", "resize", folder / "inner", folder / "wide", 24)
        kind = "fp8-experts:4x4" if name.endswith("-blocks") else "fp8-static"
        script("recode", "quantise", folder / "wide", folder / "model", kind)
    else:
        return GOLDEN / "packed" / name
    return folder / "model"


def export(model, folder):
    stage = ["--model", model, "--tokens", model / "tokens.npy", "--precision", "f32", "--quiet"]
    tool("fm-rank", *stage, "-o", folder / "rank")
    tool("fm-train", *stage, "--method", "saliency", "--budget-step", "0.25", "-o", folder / "train",
         folder / "rank")  # fmt: skip
    tool("fm-pack", "--quiet", "--model", model, "-o", folder / "family.fm", folder / "train")
    tool("fm-pack", "--quiet", "--export", folder / "out", "--budget", "0.5", "--layout", "uniform",
         folder / "family.fm")  # fmt: skip
    return folder / "out"


def stock(path):
    return oracle.class_of(AutoConfig.from_pretrained(path)).from_pretrained(path, dtype=torch.float32, **EAGER)


def logprobs(model, ids):
    with torch.no_grad():
        logits = model(torch.tensor(ids.astype(np.int64))).logits.double()
    picked = logits[:, :-1].log_softmax(-1)
    return picked.gather(2, torch.tensor(ids[:, 1:, None].astype(np.int64)))[..., 0].float().numpy()


def experts(model):
    return {k: v for k, v in model.state_dict().items() if ".experts." in k and not k.endswith("bias")}


def judge_loaded(judge, name, out, twin):
    """Load the export itself in transformers and compare its experts with the decoded ones."""
    try:
        loaded = experts(stock(out))
        same = loaded.keys() == twin.keys() and all(loaded[k].shape == twin[k].shape for k in twin)
        equal = same and all(torch.equal(loaded[k].float(), twin[k]) for k in twin)
        rounded = same and all(torch.equal(loaded[k].float(), twin[k].bfloat16().float()) for k in twin)
        says = "the same values" if equal else "the same values in bfloat16" if rounded else "other values"
    except Exception as error:
        equal = rounded = False
        says = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    good = {torch.float32: equal, torch.bfloat16: rounded, None: True}[HELD[name]]
    judge.say(good, f"{name}: transformers loads the export: {says}")


def ours(directory, dtype, cap=""):
    os.environ["FM_LOAD_CAP"] = cap
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, trust_remote_code=True)
    del os.environ["FM_LOAD_CAP"]
    return model


def same(model, want):
    have = model.state_dict()
    equal = all(k in have and have[k].dtype == t.dtype and torch.equal(have[k], t) for k, t in want.items())
    return equal and have.keys() == want.keys()


def hand_over(model, directory):
    """Load the export's tensors as servers do, in several calls of each module's load_weights.  The
    parameters are overwritten first, so that a missing tensor is noticed."""
    tensors = {k: t for f in directory.glob("*.safetensors") for k, t in load_file(f).items()}
    for name, module in model.named_modules():
        if not hasattr(module, "load_weights"):
            continue
        for p in module.parameters():
            p.data.fill_(7)
        mine = [(k.removeprefix(f"{name}."), t) for k, t in sorted(tensors.items()) if k.startswith(f"{name}.")]
        done = module.load_weights(mine[1:3]) | module.load_weights(mine[3:]) | module.load_weights(mine[:1])
        assert done == {n for n, _ in module.named_parameters()}, done


def judge_ours(judge, name, folder, tokens):
    """Test the layouts with our modelling file."""
    ids = np.load(tokens)
    for layout in ("ragged", "elastic", "layer"):
        out, plain, saved = folder / layout, folder / f"{layout}-values", folder / "saved"
        form = ["fm-pack", "--quiet", "--layout", layout, "--budget", "0.5", folder / "family.fm", "--export"]
        tool(*form, out)
        tool(*form, plain, "--weights", "bf16")
        model = ours(out, torch.float32)
        if layout == "elastic":  # the engine uses all channels of the directory
            model.set_budget(0)
        judge.close(f"{name}: log-probabilities, {layout}", our_logprobs(out, tokens, ids.shape[1]),
                    logprobs(model, ids))  # fmt: skip
        model, want = ours(out, torch.bfloat16), ours(plain, torch.bfloat16).state_dict()
        good = {"loaded": same(model, want)}
        hand_over(model, out)
        good["handed over"] = same(model, want)
        model.save_pretrained(saved)
        shutil.copy(out / "modeling_fm.py", saved)
        good["saved"] = same(ours(saved, torch.bfloat16), want)
        shutil.rmtree(saved)
        if layout == "elastic":
            want = ours(plain, torch.bfloat16, "0.2:0.6").state_dict()
            good["capped"] = same(ours(out, torch.bfloat16, "0.2:0.6"), want)
        wrong = [how for how, well in good.items() if not well]
        judge.say(not wrong, f"{name}: {layout}, parameters equal those of --weights bf16: {', '.join(wrong or good)}")


def judge_fused(judge):
    for name, kinds in FUSED.items():
        for kind in kinds:
            with tempfile.TemporaryDirectory() as folder:
                model = Path(folder) / "model"
                script("recode", "quantise", GOLDEN / name, model, kind)
                ids = np.load(model / "tokens.npy")
                have = our_logprobs(model, model / "tokens.npy", ids.shape[1])
                judge.close(f"{name}, {kind}: log-probabilities of the checkpoint", have, logprobs(decoded.load(model), ids))


def main():
    judge = Judge()
    judge_fused(judge)
    for name in HELD:
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            model = model_of(name, folder)
            out = export(model, folder)
            if name != "q35-blocks":  # its export has a tensor for each expert
                script("compare", "export", model, folder / "family.fm", out)
            (out / "tokens.npy").write_bytes((model / "tokens.npy").read_bytes())
            script("recode", "plain", out, folder / "twin")
            twin = stock(folder / "twin")
            ids = np.load(model / "tokens.npy")
            have = our_logprobs(out, model / "tokens.npy", ids.shape[1])
            judge.close(f"{name}: log-probabilities of an export with codes", have, logprobs(twin, ids))
            judge_loaded(judge, name, out, experts(twin))
            judge_ours(judge, name, folder, model / "tokens.npy")
    print(f"codesjudge: {judge.made} checks, {judge.failed} failed")
    sys.exit(judge.failed > 0)


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("FM_JUDGE_THREADS", "2")))
    main()
