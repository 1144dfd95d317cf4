"""One elastic export loaded by one runtime, to be timed.  Run by tests/measure/clipspeed.py, twice at once
in the runtime's environment: with libfm_clip and without it.

    python clipworker.py RUNTIME MODE DIRECTORY    transformers | vllm, eager | compiled

Each line of standard input is a job in JSON: {"budget"} to switch to, null where there is one alone,
{"ids"}, sequences of equal length, and {"steps"}: 0 asks for the loss of the ids, N for the seconds of
N steps.  A step of transformers is a forward pass over all of ids; vLLM takes ids in one step, or generates N tokens
after each where they are single tokens.  The answer is "FM-CELL " and JSON, {"value"}.
"""

import json
import os
import sys
import time

from client import say, short


class Transformers:
    def __init__(self, folder, mode):
        import torch
        from transformers import AutoModelForCausalLM

        self.torch = torch
        load = AutoModelForCausalLM.from_pretrained
        self.model = load(folder, trust_remote_code=True, dtype=torch.float32).eval()
        self.forward = self.model.forward
        if mode == "compiled":
            how = {"backend": os.environ.get("FM_JUDGE_COMPILE", "inductor"), "dynamic": False}
            self.forward = torch.compile(self.forward, fullgraph=True, **how)

    def switch(self, budget):
        self.model.set_budget(budget)

    def logits(self, ids):
        with self.torch.no_grad():
            return self.forward(input_ids=ids, use_cache=False).logits

    def loss(self, ids):
        x = self.torch.tensor(ids)
        logprobs = self.logits(x).log_softmax(-1)[:, :-1]
        return -float(logprobs.gather(2, x[:, 1:, None]).mean())

    def run(self, ids, steps):
        x = self.torch.tensor(ids)
        for _ in range(steps):
            self.logits(x)


class Vllm:
    def __init__(self, folder, mode):
        os.environ.update(
            VLLM_CPU_KVCACHE_SPACE="1",
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
            VLLM_LOGGING_LEVEL="ERROR",
            VLLM_NO_USAGE_STATS="1",
        )
        import vllm

        self.params = vllm.SamplingParams
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

    def generate(self, ids, **params):
        prompts = [{"prompt_token_ids": row} for row in ids]
        params = self.params(temperature=0, ignore_eos=True, **params)
        return self.llm.generate(prompts, params, use_tqdm=False)

    def loss(self, ids):
        out = self.generate(ids, max_tokens=1, prompt_logprobs=1)
        logprobs = [
            at[token].logprob
            for row, one in zip(ids, out, strict=True)
            for token, at in zip(row[1:], one.prompt_logprobs[1:], strict=True)
        ]
        return -sum(logprobs) / len(logprobs)

    def run(self, ids, steps):
        for _ in range(1 if len(ids[0]) == 1 else steps):
            self.generate(ids, max_tokens=steps if len(ids[0]) == 1 else 1)


def answer(client, job):
    if job["budget"] is not None:
        client.switch(job["budget"])
    if not job["steps"]:
        return client.loss(job["ids"])
    begin = time.perf_counter()
    client.run(job["ids"], job["steps"])
    return time.perf_counter() - begin


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
        os._exit(0)  # servers leave threads behind that would keep this process


if __name__ == "__main__":
    main()
