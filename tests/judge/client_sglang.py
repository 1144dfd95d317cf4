"""The SGLang client: Engine.generate with return_logprob; a weight update switches the budget.

The prefix cache is enabled; a weight update flushes it.  SGLang's attention for CPUs does not support
attention sinks, so this script adds them for a cell with "sinks".
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
    """Make an engine fork its two processes after the imports, which would otherwise take a minute in each."""
    start = multiprocessing.set_start_method
    multiprocessing.set_start_method = lambda *_, **__: start("fork", force=True)
    importlib.import_module("sglang.srt.managers.scheduler")
    importlib.import_module("sglang.srt.models.transformers")


def add_sinks():
    """Make attention on a CPU use the argument `sinks`, as SGLang's other attention backends do."""
    from sglang.srt.layers.attention import torch_native_backend as native

    plain, here = native.scaled_dot_product_attention, {}

    def attend(q, k, v, attn_mask=None, enable_gqa=False, scale=None, is_causal=False):
        if here["sinks"] is None:
            return plain(q, k, v, attn_mask, enable_gqa=enable_gqa, scale=scale, is_causal=is_causal)
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
        seen = (seen.tril() if is_causal else seen) if attn_mask is None else attn_mask
        scores = (q @ k.transpose(-1, -2) * scale).masked_fill(~seen, -torch.inf)
        sinks = here["sinks"].to(scores.dtype)[None, :, None, None].expand(-1, -1, len(seen), -1)
        return torch.cat((scores, sinks), -1).softmax(-1)[..., :-1] @ v

    def taking(stock):
        def forward(self, *arguments, sinks=None, **options):
            here["sinks"] = sinks
            return stock(self, *arguments, **options)

        return forward

    native.scaled_dot_product_attention = attend
    for name in ("forward_extend", "forward_decode"):
        kind = native.TorchNativeAttnBackend
        setattr(kind, name, taking(getattr(kind, name)))


def budget_tensors(path, budget):
    """Return the tensors that switch the budget: the member's index, for every layer with experts."""
    config = json.loads((Path(path) / "config.json").read_text())
    shares = config["fm_budgets"]
    index = min(range(len(shares)), key=lambda b: abs(shares[b] - budget))
    layers = [i for i, row in enumerate(config["fm_widths"]) if row]
    block = "block_sparse_moe" if config["model_type"].startswith("fm_granite") else "mlp"
    return [
        (f"model.layers.{i}.{block}.experts.budget", torch.tensor([float(index)])) for i in layers
    ]


@contextmanager
def open_model(cell):
    import sglang

    if cell.get("sinks"):
        add_sinks()
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
        mem_fraction_static=0.6,  # of the free memory, which varies; max_total_tokens is the real limit
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
