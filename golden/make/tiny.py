"""The small trained Mixtral: large enough that ranking, masks and recovery mean something.

Trained from random weights on text of grammar.py with the router's balancing loss, rounded to
bf16 once, saved by transformers itself (so config.json has its current key names), with a
byte-level BPE made from the same text.
"""

import math
import time

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    MixtralConfig,
    PreTrainedTokenizerFast,
)
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

import goldens
import grammar
import oracle

SEED = 1
T = 128
STEPS, BATCH, LR, WARMUP = 1100, 12, 4e-3, 60
AUX = 0.02  # weight of the router's balancing loss
TRAIN_CHARACTERS = 6_000_000
CALIB_SEQUENCES, HELDOUT_SEQUENCES = 192, 32
SPECIAL = ["<unk>", "<s>", "</s>"]
VOCABULARY = 384

GRAD_LAYER, GRAD_EXPERTS = 2, (0, 3, 7)  # whose dW is stored: all would be 12 MB
SCORED = 8  # calibration sequences of the stored scores
RECIPE = goldens.Recipe(
    seed=SEED,
    actions=(26, 103, 180, 256),  # 0.1 0.4 0.7 1.0 of 256 channels, rounded up
    gap_min=1e-4,
    lora_alpha=4.0,
    lora_std=0.05,
    lr=1e-3,
    steps=2,
)
# Goldens that would be large, and that the odd models have.
LEFT_OUT = ("full.logits", "subnet.logits", "subnet.dx", "lora.logits")

LICENSE = """\
This model was made by a program from random numbers and from text that the same program
generated.  It contains no work of anybody.  To the extent that there are rights in it, it is
released under CC0 1.0: use it for any purpose, without condition and without warranty.
"""


def config():
    return MixtralConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=8, num_experts_per_tok=2,
        max_position_embeddings=512, rms_norm_eps=1e-5, router_aux_loss_coef=AUX,
        initializer_range=0.05, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip


# --- text and tokens ----------------------------------------------------------------------------


def make_tokenizer(documents, vocabulary=VOCABULARY):
    """Train a byte-level BPE, which can encode every text; documents begin with <s>."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=SPECIAL, show_progress=False,
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


def stream(tokenizer, seed, tokens, documents=grammar.documents):
    """Exactly `tokens` tokens of text that depends on the seed."""
    return encode(tokenizer, documents(seed, 6 * tokens))[:tokens]


# --- training -----------------------------------------------------------------------------------


def rate(step, steps):
    """A linear warm-up, then half a cosine down to a twentieth."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    done = (step - WARMUP) / (steps - WARMUP)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done))


def imbalance(router_logits, K):
    """The mean over layers of transformers' balancing loss, which is K for a balanced layer.  transformers
    itself averages over all layers at once, so a layer could starve an expert that other layers use."""
    E = router_logits[0].shape[-1]
    return sum(load_balancing_loss_func((x,), E, K) for x in router_logits) / len(router_logits)


def train(config, data, seed, steps, log, balance=AUX):
    """Train a float32 model on random crops of the stream."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", experts_implementation="eager"
    )
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: rate(step, steps)
    )
    started = time.time()
    for step in range(steps):
        at = rng.integers(0, len(data) - T, BATCH)
        ids = torch.from_numpy(np.stack([data[i : i + T] for i in at]))
        out = model(ids, output_router_logits=True, use_cache=False)
        loss, aux = oracle.cross_entropy(out.logits, ids), imbalance(
            out.router_logits, config.num_experts_per_tok
        )
        optimizer.zero_grad(set_to_none=True)
        (loss + balance * aux).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            took = time.time() - started
            log(f"step {step} loss {loss.item():.4f} aux {aux.item():.3f} {took:.0f} s")
    return model.eval()


def make(folder, log=print):
    """Make the tokenizer, tokens, weights and the other files of a checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = grammar.documents(SEED, TRAIN_CHARACTERS)
    tokenizer = make_tokenizer(documents[:2000])
    data = encode(tokenizer, documents)
    log(f"{len(data)} training tokens")
    calib = stream(tokenizer, SEED + 1, CALIB_SEQUENCES * T)
    heldout = stream(tokenizer, SEED + 2, HELDOUT_SEQUENCES * T)
    np.save(folder / "calib.npy", calib.astype("<u2"))
    np.save(folder / "heldout.npy", heldout.astype("<i4").reshape(HELDOUT_SEQUENCES, T))
    keep(folder, train(config(), data, SEED, STEPS, log), tokenizer)


def keep(folder, model, tokenizer):
    """Write the weights in bf16, and the other files."""
    model = model.to(torch.bfloat16)
    model.config.architectures = [type(model).__name__]
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


# --- goldens ------------------------------------------------------------------------------------


def heldout_goldens(model, ids):
    """Log-probabilities and mean cross-entropy of every held-out sequence."""
    with torch.no_grad():
        logprob = torch.cat([oracle.log_probs(oracle.logits_of(model, x), x) for x in ids.split(1)])
    losses = -logprob.double().mean(1)
    return {"heldout.logprob": logprob, "heldout.losses": losses, "heldout.ce": losses.mean()}


def far_from_ties(model, ids):
    """The first SCORED sequences whose routing does not depend on rounding."""
    safe = [x for x in ids if oracle.routing(model, x[None])[1] >= RECIPE.gap_min]
    return torch.stack(safe[:SCORED])


def make_goldens(folder):
    """Compute golden.safetensors from the model and tokens on disk."""
    read = lambda name: torch.from_numpy(np.load(folder / name).astype(np.int64)).view(-1, T)
    model = oracle.load(folder)
    ids = far_from_ties(model, read("calib.npy"))
    one = ids[:1]
    out = {"ids": ids.int()} | heldout_goldens(model, read("heldout.npy"))
    out |= goldens.outputs(model, ids) | goldens.ranking(model, ids, (1, 4))
    out |= goldens.gradients(model, one)
    for w, grad in oracle.expert_grads(model)[GRAD_LAYER].items():
        for e in GRAD_EXPERTS:
            out[f"grad.layers.{GRAD_LAYER}.experts.{e}.{w}"] = grad[e]
    oracle.rank_in_place(model, out["rank.order"].long())
    out |= goldens.subnet(model, one, RECIPE)
    out |= goldens.lora(model, one, out["subnet.widths"].long(), RECIPE)
    out = {name: tensor for name, tensor in out.items() if name not in LEFT_OUT}
    oracle.save(folder / "golden.safetensors", out)
