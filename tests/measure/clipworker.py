"""Load one export in one runtime, and time it.  tests/measure/clipspeed.py runs two such processes in the
runtime's environment, one with libfm_clip and one without.

    python clipworker.py RUNTIME MODE DIRECTORY    transformers | vllm, eager | compiled

Each line of standard input is a job, a JSON object: "budget" is the budget to switch to, null if there is
only one; "ids" has prompts of equal length.  If "tokens" is 0, the result is the loss of the prompts.  If it
is N, N tokens are generated after each prompt, all prompts in one batch, and the result is a list: the seconds
until every prompt has its first token, and until all have the last.  The answer is "FM-CELL " and a JSON
object, {"value": RESULT}.
"""

import json
import os
import sys
import time

from client import say, short


class Transformers:
    def __init__(self, folder, mode):
        import torch
        from transformers import AutoModelForCausalLM, StaticCache

        self.torch, self.cache, self.kept = torch, StaticCache, None
        load = AutoModelForCausalLM.from_pretrained
        self.model = load(folder, trust_remote_code=True, dtype=torch.float32).eval()
        self.forward = self.model.forward
        if mode == "compiled":
            how = {"backend": os.environ.get("FM_JUDGE_COMPILE", "inductor"), "dynamic": False}
            self.forward = torch.compile(self.forward, fullgraph=True, **how)

    def switch(self, budget):
        self.model.set_budget(budget)

    def loss(self, ids):
        x = self.torch.tensor(ids)
        with self.torch.no_grad():
            logits = self.forward(input_ids=x, use_cache=False).logits
        logprobs = logits.log_softmax(-1)[:, :-1]
        return -float(logprobs.gather(2, x[:, 1:, None]).mean())

    def generate(self, ids, tokens):
        """The cache has a fixed size, so that compiled code has one shape for all tokens."""
        x, length, first = self.torch.tensor(ids), len(ids[0]), None
        if self.kept is None:
            self.kept = self.cache(config=self.model.config, max_cache_len=length + tokens)
        self.kept.reset()
        begin = time.perf_counter()
        for at in range(tokens):
            places = self.torch.arange(x.shape[1])[None] + (length + at - 1 if at else 0)
            with self.torch.no_grad():
                logits = self.forward(input_ids=x, past_key_values=self.kept, position_ids=places,
                                      use_cache=True, logits_to_keep=1).logits
            x = logits.argmax(-1)
            first = first or time.perf_counter() - begin
        return first, time.perf_counter() - begin


class Vllm:
    def __init__(self, folder, mode):
        os.environ.update(
            VLLM_CPU_KVCACHE_SPACE="1",
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
            VLLM_LOGGING_LEVEL="ERROR",
            VLLM_NO_USAGE_STATS="1",
        )
        import vllm

        self.params, self.requests = vllm.SamplingParams, 0
        self.llm = vllm.LLM(
            model=folder,
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=160,
            max_num_batched_tokens=2048,
            enforce_eager=mode == "eager",
            trust_remote_code=True,
            enable_prefix_caching=False,
        )

    def switch(self, budget):
        self.llm.apply_model(lambda model: model.model.set_budget(budget))

    def loss(self, ids):
        prompts = [{"prompt_token_ids": row} for row in ids]
        params = self.params(temperature=0, max_tokens=1, prompt_logprobs=1)
        out = self.llm.generate(prompts, params, use_tqdm=False)
        logprobs = [
            at[token].logprob
            for row, one in zip(ids, out, strict=True)
            for token, at in zip(row[1:], one.prompt_logprobs[1:], strict=True)
        ]
        return -sum(logprobs) / len(logprobs)

    def generate(self, ids, tokens):
        engine, begun, first = self.llm.llm_engine, set(), None
        params = self.params(temperature=0, ignore_eos=True, max_tokens=tokens, detokenize=False)
        begin = time.perf_counter()
        for row in ids:
            self.requests += 1
            engine.add_request(str(self.requests), {"prompt_token_ids": row}, params)
        while engine.has_unfinished_requests():
            begun |= {one.request_id for one in engine.step() if one.outputs[0].token_ids}
            if first is None and len(begun) == len(ids):
                first = time.perf_counter() - begin
        return first, time.perf_counter() - begin


def answer(client, job):
    if job["budget"] is not None:
        client.switch(job["budget"])
    return client.generate(job["ids"], job["tokens"]) if job["tokens"] else client.loss(job["ids"])


def main():
    try:
        client = {"transformers": Transformers, "vllm": Vllm}[sys.argv[1]](sys.argv[3], sys.argv[2])
        say(ready=True)
        for line in sys.stdin:
            say(value=answer(client, json.loads(line)))
    except Exception as error:
        say(error=short(error))
        raise
    finally:
        sys.stderr.flush()
        os._exit(0)  # the servers' threads would keep this process running


if __name__ == "__main__":
    main()
