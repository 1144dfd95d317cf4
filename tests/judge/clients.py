#!/usr/bin/env python3
"""Load every layout of every family in transformers, vLLM and SGLang.  Run by `make clients`.

    clients.py PYTHON_OF_VLLM PYTHON_OF_SGLANG [FAMILY...]   (tests/judge/clients.sh gives the first two)

A small model of each family is made, ranked, trained and packed, and exported in every layout at one
budget.  Each client loads each directory (tests/judge/client_*.py) and prints the log-probability of
every next token.  The loss, their negative mean, is printed next to the loss that our engine computes
from the same directory.  The exit status is 1 if a cell that is not in KNOWN differs or fails.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from client import MARK
from judge import tool

HERE = Path(__file__).resolve().parent
BUDGET = 0.4
TOLERANCE = 1e-3  # of a loss; the losses of neighbouring members differ by more
TIMEOUT = 600  # seconds for one cell: a server may hang
ROUND = 32  # on a CPU, vLLM's fused experts require multiples of this; more channels are kept to reach one
T = 64

# Sizes that every server accepts.  Weights are random but large, so that the loss depends on the mask.
SIZES = {
    "vocab_size": 384,
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "intermediate_size": 192,
    "moe_intermediate_size": 192,
    "num_local_experts": 8,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "eos_token_id": 2,
}
# Latent attention with the widths of all published models: servers' kernels support no others.
LATENT = {
    "intermediate_size": 160,
    "num_key_value_heads": 4,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_layer_freq": 1,  # transformers does not read this; SGLang's own code requires it
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
    "original_max_position_embeddings": 128,
}
INDEXED = {  # sparse attention; in sequences this short it attends to all keys
    "q_lora_rank": 96,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
    "index_topk": 128,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}
GATED_DELTANET = {  # in every other layer; there is also a shared expert
    "shared_expert_intermediate_size": 96,
    "head_dim": 32,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}
GRANITE = {  # with multipliers like those of the published models
    "attention_bias": False,
    "attention_multiplier": 0.03125,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "logits_scaling": 6.0,
}
FAMILIES = {
    "phimoe": {  # like the published model: scaled positions, and a window longer than any text
        "num_experts_per_tok": 2,
        "attention_bias": True,
        "lm_head_bias": True,
        "sliding_window": 512,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1 + i / 20 for i in range(16)],
            "long_factor": [1.5 + i * 0.75 for i in range(16)],
            "short_mscale": 1.243163121016122,
            "long_mscale": 1.243163121016122,
            "original_max_position_embeddings": 256,
        },
    },
    "qwen2_moe": {
        "intermediate_size": 160,
        "shared_expert_intermediate_size": 96,
        "mlp_only_layers": [1],
    },
    "qwen3_moe": {"norm_topk_prob": True, "head_dim": 32},
    "olmoe": {"num_key_value_heads": 4},
    "glm4_moe": {
        "intermediate_size": 160,
        "n_routed_experts": 8,
        "head_dim": 32,
        "attention_bias": True,
        "use_qk_norm": True,
        "n_group": 1,
        "routed_scaling_factor": 1.5,
        "num_nextn_predict_layers": 0,
    },
    "dots1": {
        "intermediate_size": 160,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "head_dim": 32,
        "attention_bias": True,
        "norm_topk_prob": True,
        "first_k_dense_replace": 1,
        "sliding_window": None,
        "layer_types": ["full_attention"] * 3,
    },
    "solar_open": {
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "head_dim": 32,
        "attention_bias": True,
        "routed_scaling_factor": 1.5,
    },
    "hy_v3": {
        "intermediate_size": 160,
        "num_shared_experts": 1,
        "head_dim": 32,
        "first_k_dense_replace": 1,  # vLLM requires this and the next key; transformers reads neither
        "expert_hidden_dim": 192,
        "route_norm": True,  # servers' own code reads this and the next from published configs
        "qk_norm": True,
    },
    "exaone_moe": {
        "intermediate_size": 160,
        "num_shared_experts": 1,
        "head_dim": 32,
        "first_k_dense_replace": 1,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    },
    "afmoe": {  # with keys of the published models that vLLM's own code reads
        "intermediate_size": 160,
        "num_shared_experts": 1,
        "head_dim": 32,
        "num_dense_layers": 1,
        "mup_enabled": True,
        "route_scale": 2.448,
        "route_norm": True,
        "score_func": "sigmoid",
        "n_group": 1,
        "topk_group": 1,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "laguna": {
        "intermediate_size": 160,
        "shared_expert_intermediate_size": 96,
        "head_dim": 32,
        "num_attention_heads_per_layer": [4, 8, 4],
        "gating": "per-head",
        "moe_routed_scaling_factor": 2.5,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "sliding_window": 16,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {
                "rope_type": "default",
                "rope_theta": 500000.0,
                "partial_rotary_factor": 0.5,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
    "mimo_v2_flash": {
        "intermediate_size": 160,
        "n_routed_experts": 8,
        "head_dim": 32,
        "v_head_dim": 16,
        "hybrid_layer_pattern": [0, 1, 1],
        "moe_layer_freq": [0, 1, 1],
        "sliding_window_size": 15,
        "swa_num_key_value_heads": 4,
        "routed_scaling_factor": None,
    },
    "minimax_m2": {  # with keys of the published model that servers' own code reads
        "head_dim": 32,
        "rotary_dim": 16,
        "scoring_func": "sigmoid",
        "use_qk_norm": True,
        "use_routing_bias": True,
    },
    "minimax_m3_vl_text": {
        "dense_intermediate_size": 160,
        "shared_intermediate_size": 96,
        "head_dim": 32,
        "rotary_dim": 16,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
        "index_head_dim": 32,
    },
    "ernie4_5_moe": {
        "intermediate_size": 160,
        "moe_num_experts": 8,
        "moe_k": 3,
        "moe_num_shared_experts": 1,
        "tie_word_embeddings": False,
    },
    "deepseek_v2": LATENT
    | {
        "q_lora_rank": None,
        "topk_method": "group_limited_greedy",
        "first_k_dense_replace": 1,
        "rope_parameters": YARN,
        "scoring_func": "softmax",
    },
    "deepseek_v3": LATENT
    | {
        "q_lora_rank": 96,
        "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 0,
        "rope_parameters": YARN,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    },
    "glm4_moe_lite": LATENT
    | {
        "q_lora_rank": 96,
        "n_group": 1,
        "num_nextn_predict_layers": 0,
        "first_k_dense_replace": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    },
    "glm_moe_dsa": LATENT | INDEXED,
    "deepseek_v32": LATENT | INDEXED | {"rope_parameters": YARN},
    "axk1": LATENT
    | {
        "q_lora_rank": 96,
        "first_k_dense_replace": 1,
        "rope_parameters": YARN,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    },
    "granitemoe": GRANITE,
    "granitemoeshared": GRANITE | {"shared_intermediate_size": 96},
    "lfm2_moe": {
        "layer_types": ["conv", "full_attention", "conv"],
        "num_dense_layers": 1,
        "use_expert_bias": True,
    },
    "gpt_oss": {  # the layers around the one with full attention have a window shorter than the texts
        "head_dim": 32,
        "sliding_window": 16,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 4.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 128,
        },
    },
    "qwen3_next": GATED_DELTANET | {"intermediate_size": 160},
    "qwen3_5_moe_text": GATED_DELTANET,
}
# Families that fm-pack exports neither in the fused layout nor in a quantised format other than MXFP4.
UNFUSED = ("gpt_oss", "granitemoe", "granitemoeshared", "minimax_m3_vl_text")
CLIENTS = ("transformers", "vllm", "sglang", "sglang + fm_sglang")

# Exports: row of the table -> options of fm-pack.  `layer fused` is the one for fused kernels.
EXPORTS = {
    "uniform": ("--layout", "uniform", "--pad-multiple", ROUND),
    "padded": ("--layout", "padded"),
    "ragged": ("--layout", "ragged"),
    "ragged nvfp4": ("--layout", "ragged", "--weights", "nvfp4"),
    "elastic w4a16:32": ("--layout", "elastic", "--weights", "w4a16:32"),
    "layer": ("--layout", "layer", "--pad-multiple", ROUND),
    "layer fused": ("--layout", "layer", "--pad-multiple", ROUND, "--for", "vllm"),
    "elastic": ("--layout", "elastic"),
}
ROUNDED = ("ragged nvfp4", "elastic w4a16:32")  # stored as codes, which the modelling file decodes
CAPPED = "elastic capped"  # the elastic directory, loaded with a load cap
ROWS = ("original", *EXPORTS, "elastic compiled", CAPPED)
STOCK = ("original", "uniform", "padded")
DELTANETS = ("qwen3_next", "qwen3_5_moe_text")
WINDOWED = ("exaone_moe", "afmoe", "laguna", "mimo_v2_flash")
LATENTS = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "glm_moe_dsa", "deepseek_v32", "axk1")
SWITCHES = (0.0, BUDGET, 0.0)
CAP, FURTHER = 0.35, 0.55
SWITCHES_CAPPED = (BUDGET, FURTHER, BUDGET)

# (family, row, client): cells that the client cannot compute, or computes differently;
# tests/measure/RESULTS.md says why.  None means all.
KNOWN = {
    (None, "layer fused", "sglang"),  # SGLang's own code supports one width for all layers; fm_sglang, several
    # The servers' own PhiMoE code never adds the bias of the output head, and SGLang's Transformers
    # backend fails on such a head; fm_sglang supports it.
    *(("phimoe", row, "vllm") for row in STOCK),
    ("phimoe", None, "sglang"),
    # On a CPU vLLM's own routers do not support a selection bias without groups: ERNIE's bias is ignored,
    # and a sigmoid router with one is refused.
    *(("ernie4_5_moe", row, "vllm") for row in STOCK),
    *(("minimax_m2", row, "vllm") for row in STOCK),
    *(("minimax_m2", row, "sglang") for row in STOCK),  # SGLang's norm of q and k requires a GPU
    # vLLM's rotation kernel for CPUs is wrong if q and k have three dimensions.  SGLang has no latent
    # attention on a CPU, neither in its own code nor in its Transformers backend.
    *(("glm4_moe_lite", row, "vllm") for row in STOCK),
    *((name, None, client) for name in LATENTS for client in CLIENTS[2:]),
    # SGLang's attention for CPUs has no sinks.  Its Transformers backend has none on any device, so our
    # modelling file refuses to run.  With fm_sglang it runs; client_sglang.py then adds sinks to the
    # attention for CPUs.
    ("gpt_oss", None, "sglang"),
    # The modelling file refuses windows, which SGLang's Transformers backend makes one position wider,
    # and heads that differ between layers.  fm_sglang supports both, except MiMo's key heads.
    *((name, None, "sglang") for name in WINDOWED),
    ("mimo_v2_flash", None, "sglang + fm_sglang"),
    # MiMo's key heads differ between layers, so the modelling file also refuses to run in vLLM.
    ("mimo_v2_flash", None, "vllm"),
    ("laguna", None, "vllm"),  # its sigmoid router, and query heads that differ between layers
    *(("minimax_m3_vl_text", row, "vllm") for row in STOCK),  # its sigmoid router
    # SGLang's Transformers backend cannot split MiniMax-M3's stock class.
    *(("minimax_m3_vl_text", row, "sglang") for row in STOCK),
    # vLLM's own LFM2 code uses the rotation kernel named above, and SGLang's requires a kernel that its
    # CPU build lacks.  The Transformers backends have no short convolutions, so the modelling file refuses
    # to run.
    ("lfm2_moe", None, "vllm"),
    ("lfm2_moe", None, "sglang"),
    ("lfm2_moe", None, "sglang + fm_sglang"),
    # vLLM has no sparse attention on a CPU, and does not build the mask that the stock class needs for it.
    *((name, None, "vllm") for name in ("glm_moe_dsa", "deepseek_v32")),
    # Neither server's Transformers backend has linear attention.  On a CPU vLLM's own code supports only
    # bfloat16; SGLang's requires CUDA.
    *((name, None, client) for name in DELTANETS for client in ("vllm", "sglang")),
}


@dataclass
class Family:
    name: str
    model: Path
    ids: list
    paths: dict = field(default_factory=dict)  # row -> directory
    ours: dict = field(default_factory=dict)  # row -> one array per budget
    cells: dict = field(default_factory=dict)  # (row, client) -> arrays, or an error message
    channels: int = 0  # the sum over all experts, under the load cap


# --- models and exports -------------------------------------------------------------------------


def make_model(name, folder):
    """Write a random model of the family, in bfloat16, with save_pretrained."""
    torch.manual_seed(1)
    known = set(AutoConfig.for_model(name).to_dict()) | {"num_experts", "num_local_experts"}
    sizes = {key: value for key, value in SIZES.items() if key in known} | FAMILIES[name]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **sizes))
    for key, value in (*model.named_parameters(), *model.named_buffers()):
        if key.endswith("bias"):
            choice = key.endswith(("correction_bias", "expert_bias"))
            torch.nn.init.normal_(value, std=0.02 if choice else 0.3)
        if key.endswith("router.gate.weight"):  # transformers initialises AFMoE's to zero
            torch.nn.init.normal_(value, std=SIZES["initializer_range"])
    model.to(torch.bfloat16).save_pretrained(folder)
    if name == "axk1":  # as published: a norm after the dense MLP, which vLLM loads and no code applies
        file = folder / "model.safetensors"
        norm = {"model.layers.0.post_mlp_layernorm.weight": torch.ones(SIZES["hidden_size"]).bfloat16()}
        save_file(load_file(file) | norm, file, {"format": "pt"})
    file = folder / "config.json"  # the hub's checkpoint and the servers use this spelling
    file.write_text(file.read_text().replace('"PhimoeFor', '"PhiMoEFor'))


def open_family(name, folder):
    """Return the family, whose ids are the tokens for the clients, and the file of tokens for ranking."""
    if name == "mixtral":
        source, model = HERE.parents[1] / "golden/tiny-mixtral", folder / "model"
        model.mkdir()
        for file in ("config.json", "generation_config.json", "model.safetensors"):
            shutil.copy(source / file, model)  # not all files: vLLM would also load golden.safetensors
        ids = np.load(source / "heldout.npy").reshape(-1, T)[:8]
        return Family(name, model, ids.tolist()), source / "calib.npy"
    make_model(name, folder / "model")
    calib = np.random.default_rng(1).integers(3, SIZES["vocab_size"], (40, T), dtype=np.int32)
    np.save(folder / "calib.npy", calib)
    return Family(name, folder / "model", calib[-8:].tolist()), folder / "calib.npy"


def make_exports(family, calib, folder):
    stage = ["--model", family.model, "--tokens", calib, "--seq-len", T, "--precision", "f32", "--quiet"]
    rank, train, packed = (folder / f"{x}.fm" for x in ("rank", "train", "family"))
    np.save(folder / "ids.npy", np.array(family.ids, np.int32))
    stage += ["--eval-tokens", folder / "ids.npy"]
    masks = ["--method", "saliency", "--until", "0.6"]
    tool("fm-rank", *stage, "--max-tokens", 40 * T, "-o", rank)
    tool("fm-train", *stage, "--max-tokens", 40 * T, *masks, "-o", train, rank)
    tool("fm-pack", "--model", family.model, "--quiet", "-o", packed, train)

    def export(row, budget, *options):
        out = folder / row.replace(" ", "-").replace(":", "-")  # SGLang refuses a colon
        tool("fm-pack", "--quiet", "--export", out, "--budget", budget, *options, packed)
        return out

    family.paths = {"original": family.model, "native": export("native", BUDGET)}
    family.paths["further"] = export("further", FURTHER, "--layout", "native")
    capped = export("capped", BUDGET, "--layout", "elastic", "--load-cap", CAP)
    widths = json.loads((capped / "fm-export.json").read_text())["widths"]
    family.channels = sum(map(sum, widths))
    for row, options in EXPORTS.items():
        if row in ("layer fused", *ROUNDED) and family.name in UNFUSED:
            continue
        family.paths[row] = export(row, 0 if row.startswith("elastic") else BUDGET, *options)
    family.paths["elastic compiled"] = family.paths[CAPPED] = family.paths["elastic"]


def measure_ours(family, folder):
    def logprobs(row):
        got = tool("logprobs", family.paths[row], folder / "ids.npy", T)
        return np.frombuffer(got, np.float32)

    full, member = logprobs("original"), logprobs("native")
    for row in ("uniform", "layer"):
        family.ours[row] = [logprobs(row)]
    family.ours |= {"original": [full], "padded": [member], "ragged": [member]}
    if family.name not in UNFUSED:
        family.ours["layer fused"] = family.ours["layer"]
        family.ours[ROUNDED[0]] = [logprobs(ROUNDED[0])]
        family.ours[ROUNDED[1]] = [logprobs(ROUNDED[1])]
    family.ours["elastic"] = family.ours["elastic compiled"] = [full, member, full]
    family.ours[CAPPED] = [member, logprobs("further"), member]


# --- clients ------------------------------------------------------------------------------------


def cells_for(family, client):
    """The cells of one client's job."""
    rows = os.environ.get("FM_CLIENTS_ROWS", ",".join(ROWS)).split(",")
    for row in ROWS:
        if row not in rows or not asked(family.name, row, client):
            continue
        cell = {"name": row, "path": str(family.paths[row])}
        cell["budgets"] = list(SWITCHES) if row.startswith("elastic") else None
        if row in ROUNDED:
            cell["budgets"] = [0.0] if row.startswith("elastic") else None
        if row == "elastic compiled":
            cell["compiled"] = True
        if client == "sglang + fm_sglang" and family.name == "gpt_oss":
            cell["sinks"] = True
        if row == CAPPED:
            cell["budgets"] = SWITCHES_CAPPED
            cell["environment"] = {"FM_LOAD_CAP": str(CAP)}
            cell["channels"] = family.channels
        if client == "sglang" and row in STOCK and family.name == "qwen2_moe":
            # SGLang's own code fails on a CPU, in a Triton kernel of the shared expert's gate.
            cell["implementation"] = "transformers"
        yield cell


def asked(name, row, client):
    """Whether to run this cell.  fm_sglang is tested with what it adds to SGLang (fused experts whose width
    differs between layers, and some families) and with budget switches."""
    if row in ("layer fused", *ROUNDED) and name in UNFUSED:
        return False
    if name in DELTANETS and client != "transformers":
        return client != "sglang + fm_sglang" and row in (*STOCK, "ragged")
    if client == "sglang + fm_sglang":
        more = (*STOCK, "ragged", "layer") if name == "phimoe" else ()
        more += ("ragged", "layer") if name in ("gpt_oss", *WINDOWED) else ()
        return row in ("layer fused", "elastic", CAPPED, *more)
    return client == "vllm" or row != "elastic compiled"


def ask(python, client, job, log):
    """Run a client once; returns its answer for each cell, in order."""
    name, _, package = client.partition(" + ")
    command = [python, HERE / f"client_{name}.py", job]
    extra = {"SGLANG_EXTERNAL_MODEL_PACKAGE": package} if package else {}
    if name == "transformers" and "FM_CLIENTS_TRANSFORMERS" in os.environ:
        extra["PYTHONPATH"] = os.environ["FM_CLIENTS_TRANSFORMERS"] + ":" + os.environ["PYTHONPATH"]
    with log.open("wb") as out:
        streams = {"stdout": out, "stderr": out, "env": os.environ | extra}
        wait_for(subprocess.Popen(command, start_new_session=True, **streams), log)
    return list(read_answers(log.read_text(errors="replace").splitlines()))


def wait_for(process, log):
    """Kill the client and its processes after TIMEOUT seconds without an answer."""
    answers, since = 0, time.monotonic()
    while process.poll() is None and time.monotonic() - since < TIMEOUT:
        time.sleep(0.5)
        now = log.read_bytes().count(MARK.encode())
        if now > answers:
            answers, since = now, time.monotonic()
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def read_answers(lines):
    """Return the answers in a client's output.  If a server process died, the cause is the first error
    that was printed."""
    cause = None
    for line in lines:
        if line.startswith(MARK):
            answer = json.loads(line.removeprefix(MARK))
            if cause and re.search("died|ended|exit code", answer.get("error", "")):
                answer["error"] = cause[:200]
            yield answer
            cause = None
        elif not cause and re.match(r"[A-Za-z.]*(Error|Exception)(: |$)", line):
            cause = line


def run_client(python, client, family, folder):
    """Run all cells of a family.  If a client fails or dies, a new one continues with the next cell."""
    cells, version = list(cells_for(family, client)), "?"
    job, log = folder / f"{client}.json", folder / f"{client}.log"
    while cells:
        job.write_text(json.dumps({"ids": family.ids, "cells": cells}))
        answers = ask(python, client, job, log)
        version = next((a["version"] for a in answers if "version" in a), version)
        answers = [a for a in answers if "name" in a]
        for answer in answers:
            rows = answer.get("logprobs")
            what = [np.array(x) for x in rows] if rows else answer["error"]
            family.cells[answer["name"], client] = what
        cells = cells[len(answers) :]
        if cells and not (answers and "error" in answers[-1]):
            family.cells[cells.pop(0)["name"], client] = "the process ended without an answer"
    return version


# --- the table ------------------------------------------------------------------------------------


def losses(rows):
    return " -> ".join(f"{-np.mean(x):.5f}" for x in rows)


def off(ours, theirs):
    """Return the largest difference in loss, and in the log-probability of a token."""
    if any(a.shape != b.shape for a, b in zip(ours, theirs, strict=True)):
        return np.inf, np.inf
    pairs = list(zip(ours, theirs, strict=True))
    loss = max(abs(float(a.mean() - b.mean())) for a, b in pairs)
    return loss, max(float(np.abs(a - b).max()) for a, b in pairs)


@dataclass
class Table:
    notes: list = field(default_factory=list)
    wrong: int = 0
    furthest: float = 0.0

    def note(self, text):
        if text not in self.notes:
            self.notes.append(text)
        return f"[{self.notes.index(text) + 1}]"

    def cell(self, family, row, client):
        what = family.cells.get((row, client))
        if what is None:
            return "-"
        name = family.name
        known = KNOWN & {(name, row, client), (None, row, client), (name, None, client)}
        if isinstance(what, str):
            self.wrong += not known
            return self.note(f"{client}: {what}")
        loss, token = off(family.ours[row], what)
        if loss <= TOLERANCE:
            self.furthest = max(self.furthest, token)
            return losses(what)
        self.wrong += not known
        return f"{losses(what)} (!)"

    def lines(self, families):
        yield ("family", "layout", "ours", *CLIENTS)
        for family in families:
            for row in ROWS:
                if row in family.ours:
                    cells = (self.cell(family, row, client) for client in CLIENTS)
                    yield (family.name, row, losses(family.ours[row]), *cells)

    def show(self, families, versions):
        lines = list(self.lines(families))
        wide = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        for line in lines:
            print("  ".join(x.ljust(w) for x, w in zip(line, wide, strict=True)).rstrip())
        for i, text in enumerate(self.notes):
            print(f"[{i + 1}] {text}")
        print("versions: " + ", ".join(f"{name} {v}" for name, v in versions.items()))
        print(f"largest difference in a token's log-probability where losses agree: {self.furthest:.1e}")
        print(f"cells that differ or fail and are not in KNOWN: {self.wrong}")


def main(vllm, sglang, names):
    torch.set_num_threads(1)
    pythons = dict(zip(CLIENTS, (sys.executable, vllm, sglang, sglang), strict=True))
    for client in set(CLIENTS) - set(os.environ.get("FM_CLIENTS", ",".join(CLIENTS)).split(",")):
        del pythons[client]
    families, versions, table = [], {}, Table()
    with tempfile.TemporaryDirectory(prefix="fm-clients-") as top:
        for name in names or ("mixtral", *FAMILIES):
            folder = Path(top) / name
            folder.mkdir()
            family, calib = open_family(name, folder)
            make_exports(family, calib, folder)
            measure_ours(family, folder)
            families.append(family)
            for client, python in pythons.items():
                print(f"clients: {name}, {client}", file=sys.stderr, flush=True)
                versions[client] = run_client(python, client, family, folder)
            if os.environ.get("FM_CLIENTS_LOGS"):
                kept = Path(os.environ["FM_CLIENTS_LOGS"]) / name
                shutil.copytree(folder, kept, dirs_exist_ok=True)
            Table().show(families[-1:], versions)  # a long run shows its results so far
    print()
    table.show(families, versions)
    return table.wrong != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
