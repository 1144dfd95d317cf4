"""SGLang: Engine.generate with return_logprob, a weight update for the switch.

The cache of prefixes is on: the update flushes it.
"""

import importlib
import json
import multiprocessing
import os
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

os.environ["SGLANG_USE_CPU_ENGINE"] = "1"

import torch  # noqa: E402

import client  # noqa: E402


def start_quickly():
    """An engine starts two processes, which import for a minute each: fork them, imported."""
    start = multiprocessing.set_start_method
    multiprocessing.set_start_method = lambda *_, **__: start("fork", force=True)
    importlib.import_module("sglang.srt.managers.scheduler")
    importlib.import_module("sglang.srt.models.transformers")


def budget_tensors(path, budget):
    """What a switch writes: the index of the member, in every layer that has experts."""
    config = json.loads((Path(path) / "config.json").read_text())
    shares = config["fm_budgets"]
    index = min(range(len(shares)), key=lambda b: abs(shares[b] - budget))
    layers = [i for i, row in enumerate(config["fm_widths"]) if row]
    return [
        (f"model.layers.{i}.mlp.experts.budget", torch.tensor([float(index)])) for i in layers
    ]


@contextmanager
def open_model(cell):
    import sglang

    engine = sglang.Engine(
        model_path=cell["path"],
        device="cpu",
        dtype="float32",
        attention_backend="torch_native",
        model_impl=cell.get("implementation", "auto"),
        skip_tokenizer_init=True,
        disable_cuda_graph=True,
        disable_overlap_schedule=True,
        grammar_backend="none",
        context_length=256,
        mem_fraction_static=0.6,  # of what is free, which others change; the tokens bound it
        max_total_tokens=8192,
        trust_remote_code=True,
        log_level="error",
    )

    def score(ids):
        length = {"max_new_tokens": 1, "temperature": 0}
        out = engine.generate(
            input_ids=ids, sampling_params=length, return_logprob=True, logprob_start_len=0
        )
        rows = (one["meta_info"]["input_token_logprobs"][1:] for one in out)
        return [at[0] for row in rows for at in row]

    def switch(budget):
        for done in (
            engine.begin_weight_update(),
            engine.update_weights_from_tensor(budget_tensors(cell["path"], budget)),
            engine.end_weight_update(),
        ):
            good, message = done[:2]
            if not good:
                raise RuntimeError(message)

    try:
        yield score, switch
    finally:
        engine.shutdown()


if __name__ == "__main__":
    start_quickly()
    client.run(version("sglang"), open_model, apart=True)
