"""The small trained Mixtral: large enough that ranking, masks and recovery mean something.

Trained from random numbers on text of grammar.py with the router's balancing loss, rounded to
bf16 once, saved by transformers itself (so config.json has its present spelling), with a
byte-level BPE made from the same text.
"""

import json
import math
import time

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GenerationConfig, MixtralConfig, MixtralForCausalLM
from transformers import PreTrainedTokenizerFast

import grammar
import oracle

SEED = 1
T = 128
STEPS, BATCH, LR, WARMUP = 2000, 16, 3e-3, 60
TRAIN_CHARACTERS = 6_000_000
CALIB_SEQUENCES, HELDOUT_SEQUENCES = 128, 32
SPECIAL = ["<unk>", "<s>", "</s>"]
VOCABULARY = 384

LICENSE = """\
This model was made by a program from random numbers and from text that the same program
generated.  It contains no work of anybody.  To the extent that there are rights in it, it is
released under CC0 1.0: use it for any purpose, without condition and without warranty.
"""


def config():
    return MixtralConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=8, num_experts_per_tok=2,
        max_position_embeddings=512, rms_norm_eps=1e-5, router_aux_loss_coef=0.02,
        initializer_range=0.05, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip


# --- text and tokens ----------------------------------------------------------------------------


def make_tokenizer(documents):
    """Byte-level BPE: every text can be encoded, and a document begins with <s>."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def encode(tokenizer, documents):
    """One stream: <s> document </s> <s> document ..."""
    ids = [encoding.ids + [2] for encoding in tokenizer.encode_batch(documents)]
    return np.concatenate([np.asarray(x, dtype=np.int64) for x in ids])


def stream(tokenizer, seed, tokens):
    """Exactly so many tokens of text that no other seed has."""
    documents = grammar.documents(seed, characters=6 * tokens)
    return encode(tokenizer, documents)[:tokens]


# --- training -----------------------------------------------------------------------------------


def rate(step):
    """Warm up, then half a cosine to a twentieth."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    done = (step - WARMUP) / (STEPS - WARMUP)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done))


def train(data, log):
    """A float32 model after STEPS steps on random crops of the stream."""
    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    model = MixtralForCausalLM._from_config(
        config(), attn_implementation="eager", experts_implementation="eager"
    )
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    started = time.time()
    for step in range(STEPS):
        at = rng.integers(0, len(data) - T, BATCH)
        ids = torch.from_numpy(np.stack([data[i : i + T] for i in at]))
        out = model(ids, labels=ids, output_router_logits=True, use_cache=False)
        optimizer.zero_grad(set_to_none=True)
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == STEPS - 1:
            aux = out.aux_loss.item()
            log(f"step {step} loss {out.loss.item() - 0.02 * aux:.4f} aux {aux:.3f} "
                f"{time.time() - started:.0f} s")  # fmt: skip
    return model.eval()


def make(folder, log=print):
    """Tokenizer, tokens, weights, and the small files that a checkpoint carries along."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = grammar.documents(SEED, TRAIN_CHARACTERS)
    tokenizer = make_tokenizer(documents[:2000])
    data = encode(tokenizer, documents)
    log(f"{len(data)} training tokens")
    calib = stream(tokenizer, SEED + 1, CALIB_SEQUENCES * T)
    heldout = stream(tokenizer, SEED + 2, HELDOUT_SEQUENCES * T)
    np.save(folder / "calib.npy", calib.astype("<u2"))
    np.save(folder / "heldout.npy", heldout.astype("<i4").reshape(HELDOUT_SEQUENCES, T))
    model = train(data, log).to(torch.bfloat16)
    model.config.architectures = ["MixtralForCausalLM"]
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, do_sample=False)
    model.save_pretrained(folder)
    save_tokenizer(folder, tokenizer)
    (folder / "LICENSE").write_text(LICENSE)
    for path in folder.iterdir():
        path.chmod(0o644)


def save_tokenizer(folder, tokenizer):
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>",
        model_max_length=512,
    ).save_pretrained(folder)  # fmt: skip
