#!/usr/bin/env python3
"""Answer prompts with transformers, as JSON lines for `fm-bench loops`.

usage: tests/measure/generate.py MODEL PROMPTS OUT [--sample SEED] [--tokens N] [--batch N] [--dtype NAME]

Each line of PROMPTS has a "prompt", which the tokenizer's chat template wraps.  Decoding is greedy;
with --sample, at temperature 0.7 and top-p 0.9.  On a CPU without instructions for bfloat16,
--dtype float32 is several times faster.
"""

import argparse
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path)
    p.add_argument("prompts", type=Path)
    p.add_argument("out", type=Path)
    p.add_argument("--sample", type=int)
    p.add_argument("--tokens", type=int, default=256)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    a = p.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(a.model, padding_side="left", trust_remote_code=True)
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=a.dtype, trust_remote_code=True,
                                                 experts_implementation="eager")  # fmt: skip
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    how = {"do_sample": False}
    if a.sample is not None:
        torch.manual_seed(a.sample)
        how = {"do_sample": True, "temperature": 0.7, "top_p": 0.9}
    prompts = [json.loads(line)["prompt"] for line in a.prompts.read_text().splitlines()]
    chats = [tokenizer.apply_chat_template([{"role": "user", "content": x}], tokenize=False,
                                           add_generation_prompt=True) for x in prompts]  # fmt: skip
    ends = {tokenizer.eos_token_id, *torch.tensor(model.generation_config.eos_token_id).flatten().tolist()}
    with open(a.out, "w") as out:
        for i in range(0, len(chats), a.batch):
            ids = tokenizer(chats[i : i + a.batch], return_tensors="pt", padding=True, add_special_tokens=False)
            answers = model.generate(**ids, max_new_tokens=a.tokens, pad_token_id=tokenizer.pad_token_id, **how)
            for answer in answers[:, ids.input_ids.shape[1] :].tolist():
                ended = next((n for n, x in enumerate(answer) if x in ends), None)
                text = tokenizer.decode(answer[:ended], skip_special_tokens=True)
                reason = "length" if ended is None else "stop"
                print(json.dumps({"text": text, "finish_reason": reason}), file=out, flush=True)


if __name__ == "__main__":
    main()
