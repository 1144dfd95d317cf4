"""Train small models on text from a Debian system; they are not stored in this repository.

The models of trained.py are calibrated and tested on text of one generator.  These are calibrated
on one kind of text and tested on other documents of that kind and on kinds of text that the
calibration does not contain.  The four kinds are manual pages in English, the Python library, C headers,
and messages of programs in German, French and Spanish.  All four are in the training text.  Text
sampled from the trained model, sampled.npy, is of the same kinds.

Which documents a machine has depends on its packages; the losses in tests/measure/RESULTS.md were measured on Debian
12 with libpython3.11-stdlib, manpages, manpages-dev, libc6-dev and linux-libc-dev.  Whether a
document is in the training text or in the sets of tokens depends on a digest of its text; no document is
in both.
"""

import glob
import gzip
import hashlib
import random
import re
import struct
from dataclasses import dataclass, field
from typing import Callable

import numpy as np
import torch
from transformers import MixtralConfig, OlmoeConfig, Qwen2MoeConfig

import oracle
import tiny

VOCABULARY = 1024
DOCUMENT = 24_000  # limit of characters per document, so that no file dominates its kind
TRAIN_CHARACTERS = 3_000_000  # of each kind
TEST_SEQUENCES = 256
STEPS = 3500
AUX = 0.004  # a small weight of the balancing loss, so that experts specialise and some are used rarely


def roff_text(text):
    """The words of a manual page's source, without its macros and escapes."""
    lines = []
    for line in text.splitlines():
        if line.startswith((".\\\"", "'", ".ie", ".if", ".el", ".de", ".ds", ".nr", ".\\}")):
            continue
        line = re.sub(r"^\.[A-Za-z]{1,3}\s*", "", line)
        line = re.sub(r"\\f(\[[A-Z]*\]|\([A-Z]{2}|.)", "", line)
        line = re.sub(r"\\(\([a-z]{2}|s[-+]?\d|[&/,|])", "", line)
        line = line.replace("\\-", "-").replace("\\e", "\\").replace('"', "")
        if line.strip():
            lines.append(line)
    return "\n".join(lines)


def read(path):
    with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as f:
        return f.read().decode("utf-8", "replace")


def files(*patterns):
    return sorted(p for pattern in patterns for p in glob.glob(pattern, recursive=True))


def manual():
    return (roff_text(read(p)) for p in files("/usr/share/man/man[2-8]/*.gz"))


def python():
    return map(read, files("/usr/lib/python3.[0-9]*/**/*.py"))


def headers():
    return map(read, files("/usr/include/linux/**/*.h", "/usr/include/*-linux-gnu/**/*.h", "/usr/include/*.h"))


def translations(path):
    """The translated texts of a GNU gettext catalogue, without its header, which is the first."""
    with open(path, "rb") as f:
        data = f.read()
    order = "<" if data[:4] == b"\xde\x12\x04\x95" else ">"
    count, _, table = struct.unpack_from(order + "3I", data, 8)
    for i in range(1, count):
        length, at = struct.unpack_from(order + "2I", data, table + 8 * i)
        yield data[at : at + length].decode("utf-8", "replace").replace("\0", "\n")


def messages():
    """Translations of programs' messages, one document for each program and language."""
    for path in files(*(f"/usr/share/locale/{x}/LC_MESSAGES/*.mo" for x in ("de", "fr", "es"))):
        yield "\n".join(translations(path))


KINDS = {"manual": manual, "python": python, "headers": headers, "messages": messages}


def documents(kinds=KINDS):
    """For each kind: documents for training and documents for the sets of tokens, both shuffled."""
    out, seen = {}, set()
    for kind, texts in kinds.items():
        train, rest = [], []
        for text in texts():
            text = text[:DOCUMENT]
            digest = hashlib.sha256(text.encode("utf-8", "replace")).digest()
            if len(text) < 400 or digest in seen:
                continue
            seen.add(digest)
            (rest if digest[0] < 64 else train).append(text)
        random.Random(1).shuffle(train)
        random.Random(2).shuffle(rest)
        out[kind] = train, rest
    return out


def clip(texts, characters):
    """The first documents, with at least this many characters in total."""
    out = []
    for text in texts:
        if characters <= 0:
            break
        out.append(text)
        characters -= len(text)
    return out


@dataclass
class Real:
    config: Callable
    sizes: dict
    seed: int
    kind: str  # kind of the calibration text
    tests: tuple = field(default_factory=tuple)  # other kinds to test on


SIZES = dict(
    vocab_size=VOCABULARY, max_position_embeddings=512, initializer_range=0.05, hidden_size=96,
    tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, num_attention_heads=4,
    num_key_value_heads=2,
)  # fmt: skip

ROWS = {
    "real-qwen2": Real(
        Qwen2MoeConfig,
        dict(num_hidden_layers=3, num_experts=16, num_experts_per_tok=4,
             moe_intermediate_size=96, shared_expert_intermediate_size=96,
             norm_topk_prob=False, decoder_sparse_step=1),
        23, "manual", ("python", "messages")),
    "real-mixtral": Real(
        MixtralConfig,
        dict(num_hidden_layers=4, num_local_experts=8, num_experts_per_tok=2,
             intermediate_size=192),
        29, "python", ("headers", "manual")),
    "real-olmoe": Real(
        OlmoeConfig,
        dict(num_hidden_layers=3, num_experts=24, num_experts_per_tok=4,
             intermediate_size=64, norm_topk_prob=False),
        31, "headers", ("manual", "messages")),
}  # fmt: skip


def save(folder, name, tokenizer, texts, sequences):
    ids = tiny.encode(tokenizer, texts)
    assert len(ids) >= sequences * tiny.T, f"{name}: {len(ids)} tokens"
    ids = ids[: sequences * tiny.T]
    np.save(folder / f"{name}.npy", ids.astype("<i4").reshape(sequences, tiny.T))


def make_sampled(row, folder):
    """Sequences that the model writes at temperature 1, each beginning after the end of a document."""
    model = oracle.load(folder)
    torch.manual_seed(row.seed)
    last, cache, ids = torch.full((tiny.CALIB_SEQUENCES, 1), model.config.eos_token_id), None, []
    with torch.no_grad():
        while len(ids) < tiny.T:
            out = model(last, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            last = torch.multinomial(out.logits[:, -1].double().softmax(-1), 1)
            ids.append(last)
    np.save(folder / "sampled.npy", torch.cat(ids, 1).numpy().astype("<i4"))


def make(row, folder, log=print):
    """Write weights, tokenizer and sets of tokens: calib.npy, heldout.npy and test.npy of the calibration's
    kind, test-KIND.npy of others, and sampled.npy."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = documents()
    mixture = [x for train, _ in texts.values() for x in clip(train, TRAIN_CHARACTERS)]
    random.Random(row.seed).shuffle(mixture)
    tokenizer = tiny.make_tokenizer(mixture[:1500], VOCABULARY)
    data = tiny.encode(tokenizer, mixture)
    log(f"{len(data)} training tokens")
    own = texts[row.kind][1]
    eighth = len(own) // 8
    save(folder, "heldout", tokenizer, own[:eighth], tiny.HELDOUT_SEQUENCES)
    save(folder, "test", tokenizer, own[eighth : 4 * eighth], TEST_SEQUENCES)
    save(folder, "calib", tokenizer, own[4 * eighth :], tiny.CALIB_SEQUENCES)
    for kind in row.tests:
        save(folder, f"test-{kind}", tokenizer, texts[kind][1], TEST_SEQUENCES)
    config = row.config(**SIZES, **row.sizes, output_router_logits=False)
    tiny.keep(folder, tiny.train(config, data, row.seed, STEPS, log, AUX), tokenizer)
    make_sampled(row, folder)
