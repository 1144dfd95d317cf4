"""The vLLM client: LLM.generate with prompt_logprobs; LLM.apply_model switches the budget.

Prefix caching is enabled, to detect a switch that does not reset the cache.
"""

import gc
import os
from contextlib import contextmanager

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_MLA_DISABLE="1",  # vLLM's latent attention on a CPU does not support float32
    VLLM_NO_USAGE_STATS="1",
)

import vllm  # noqa: E402
from vllm.distributed import cleanup_dist_env_and_memory  # noqa: E402

import client  # noqa: E402

LENGTH = vllm.SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=1)


@contextmanager
def open_model(cell):
    llm = None
    try:
        llm = vllm.LLM(
            model=cell["path"],
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=256,
            enforce_eager=not cell.get("compiled"),
            trust_remote_code=True,
            enable_prefix_caching=True,
        )

        llm.apply_model(lambda model: client.check_channels(cell, model))

        def score(ids):
            prompts = [{"prompt_token_ids": row} for row in ids]
            out = llm.generate(prompts, LENGTH, use_tqdm=False)
            return [
                at[token].logprob
                for row, one in zip(ids, out, strict=True)
                for token, at in zip(row[1:], one.prompt_logprobs[1:], strict=True)
            ]

        def switch(budget):
            llm.apply_model(lambda model: model.model.set_budget(budget))
            llm.reset_prefix_cache()

        yield score, switch
    finally:
        llm = None
        gc.collect()
        cleanup_dist_env_and_memory()


if __name__ == "__main__":
    client.run(vllm.__version__, open_model)
