"""The transformers client: from_pretrained, forward, set_budget."""

from contextlib import contextmanager

import torch
import transformers
from transformers import AutoModelForCausalLM

import client

torch.set_num_threads(1)


@contextmanager
def open_model(cell):
    model, info = AutoModelForCausalLM.from_pretrained(
        cell["path"], dtype=torch.float32, trust_remote_code=True, output_loading_info=True
    )
    if any(info.values()):
        raise ValueError(f"tensors do not match: {({k: v for k, v in info.items() if v})}")

    client.check_channels(cell, model)

    def score(ids):
        x = torch.tensor(ids)
        with torch.no_grad():
            rows = model.eval()(input_ids=x, use_cache=False).logits.log_softmax(-1)
        return rows[:, :-1].gather(-1, x[:, 1:, None]).flatten().tolist()

    yield score, lambda budget: model.set_budget(budget)


if __name__ == "__main__":
    client.run(transformers.__version__, open_model)
