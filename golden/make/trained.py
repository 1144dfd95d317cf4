"""Small trained models of other shapes, made on request and not kept in this tree.

Defaults are chosen on tiny-mixtral and the two whose names begin with `choose`, and confirmed once
on the two that begin with `confirm`: other shapes and seeds, another grammar.  The two that begin with
`groups` have wide experts and are measured by scripts in tests/measure.  Each comes with sets of tokens that
share no text: calib.npy to work on, heldout.npy for choices, test.npy, which is read only by the final
measurement, and test-long.npy, a larger set for the same purpose.  make_test makes the last two for
tiny-mixtral.  (The constants of --method exchange were chosen on an earlier test set; these sets were drawn
afterwards.)
"""

from dataclasses import dataclass
from typing import Callable

import numpy as np
from tokenizers import Tokenizer
from transformers import MixtralConfig, OlmoeConfig, PhimoeConfig, Qwen2MoeConfig

import grammar
import grammar2
import tiny

TEST_SEQUENCES = 64
# With TEST_SEQUENCES, the difference in loss between two masks has a noise of a few thousandths.
LONG_SEQUENCES = 512
TRAIN_CHARACTERS = 3_000_000


@dataclass
class Trained:
    config: Callable
    sizes: dict
    seed: int
    documents: Callable
    steps: int = 700


SIZES = dict(
    vocab_size=tiny.VOCABULARY, max_position_embeddings=512, initializer_range=0.05,
    tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, num_attention_heads=4,
    num_key_value_heads=2,
)  # fmt: skip

ROWS = {
    "choose-qwen2": Trained(
        Qwen2MoeConfig,
        dict(hidden_size=64, num_hidden_layers=3, num_experts=12, num_experts_per_tok=3,
             moe_intermediate_size=64, shared_expert_intermediate_size=64,
             norm_topk_prob=False, decoder_sparse_step=1),
        3, grammar.documents),
    "choose-phimoe": Trained(
        PhimoeConfig,
        dict(hidden_size=80, num_hidden_layers=3, num_local_experts=6, num_experts_per_tok=2,
             intermediate_size=160, lm_head_bias=True, attention_bias=True),
        5, grammar.documents),
    "confirm-mixtral": Trained(
        MixtralConfig,
        dict(hidden_size=80, num_hidden_layers=4, num_local_experts=6, num_experts_per_tok=2,
             intermediate_size=120),
        11, grammar2.documents),
    "confirm-olmoe": Trained(
        OlmoeConfig,
        dict(hidden_size=64, num_hidden_layers=3, num_experts=16, num_experts_per_tok=4,
             intermediate_size=60, norm_topk_prob=False),
        13, grammar2.documents),
    "groups-mixtral": Trained(
        MixtralConfig,
        dict(hidden_size=64, num_hidden_layers=3, num_local_experts=6, num_experts_per_tok=2,
             intermediate_size=512),
        17, grammar.documents),
    "groups-olmoe": Trained(
        OlmoeConfig,
        dict(hidden_size=64, num_hidden_layers=3, num_experts=6, num_experts_per_tok=2,
             intermediate_size=512, norm_topk_prob=False),
        19, grammar2.documents),
}  # fmt: skip


def make(row, folder, log=print):
    """Write weights, tokenizer and sets of tokens to the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = row.documents(row.seed, TRAIN_CHARACTERS)
    tokenizer = tiny.make_tokenizer(documents[:2000])
    data = tiny.encode(tokenizer, documents)
    log(f"{len(data)} training tokens")
    T = tiny.T
    for i, (name, sequences) in enumerate(
        (
            ("calib", tiny.CALIB_SEQUENCES),
            ("heldout", tiny.HELDOUT_SEQUENCES),
        )
    ):
        ids = tiny.stream(tokenizer, row.seed + 1000 * (i + 1), sequences * T, row.documents)
        np.save(folder / f"{name}.npy", ids.astype("<i4").reshape(sequences, T))
    save_test(folder, tokenizer, row.seed, row.documents)
    config = row.config(**SIZES, **row.sizes, output_router_logits=False)
    model = tiny.train(config, data, row.seed, row.steps, log)
    tiny.keep(folder, model, tokenizer)


def make_test(model, folder):
    """Write the test sets of tiny-mixtral; calib.npy and heldout.npy are next to its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    save_test(folder, tokenizer, tiny.SEED, grammar.documents)


def save_test(folder, tokenizer, seed, documents):
    for name, more, sequences in ("test", 3000, TEST_SEQUENCES), ("test-long", 4000, LONG_SEQUENCES):
        ids = tiny.stream(tokenizer, seed + more, sequences * tiny.T, documents)
        np.save(folder / f"{name}.npy", ids.astype("<i4").reshape(sequences, tiny.T))
