#!/usr/bin/env python3
"""Compare our encoder with the tokenizers library.  Run by `make judge`.

    textjudge.py [STRINGS [NAME]...]  train the tokenizers (all, or those named), encode STRINGS
                                      strings with each, using both encoders, and compare every id
                                      and the speed; fail if ours is slower
    textjudge.py --sample DIR         write the sample that `make check` uses (golden/text): the
                                      same pipelines with 1,000 entries, NAME.json, and NAME.ids:
                                      for each string its size, its bytes, the number of its ids
                                      and the ids, all numbers as little-endian u16; also
                                      rows.jsonl and its ids, rows.npy

Each pipeline has the normalizer, pre-tokenizer and so on of the model family it is named for, except
`flags`, which has all flags of added tokens, and `gaps`, whose vocabulary lacks bytes and has a token
for unknown characters.  Its vocabulary of at least 32,000 entries is trained
here, on text that this file generates.  Strings are generated from a seed: words of the training
text, random characters of every plane, runs of white space, digits, emoji, combining marks in any
order, code, and added tokens between them.
"""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers  # noqa: E402
from tokenizers import Regex  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
          r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# DeepSeek's patterns contain literal carriage returns and line feeds, not escapes.
DEEPSEEK3 = ["\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
             "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
             "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]
# Letters with case, as hexadecimal ranges.
CASED = """41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386
388-38a 38c 38e-3a1 3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba
1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57
1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3 1fd6-1fdb
1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 2126 2128 212a-212d
212f-2134 2139 213c-213f 2145-2149 214e 2183 2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2 2cf3
a640-a66d a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a
ff41-ff5a 10400-1044f 104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df
1e900-1e943"""
DEEPSEEK2 = ["[\r\n]",
             "\\s?[%s]+" % "".join("-".join(chr(int(c, 16)) for c in r.split("-")) for r in CASED.split()),
             "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", "\\s+$",
             "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"]
SCRIPTS = ["abcdefghiklmnoprstuvw", "абвгдежзийклмнопрст", "αβγδεζηθικλμνξοπρστ",
           "\u0621\u0627\u0628\u062a\u062b\u062c\u062d\u062e\u062f\u0631\u0633\u0634\u0639\u0641",
           "\u0905\u0915\u0916\u0917\u091a\u091c\u0924\u0926\u0928\u092a\u092e\u093e\u093f\u0940\u0947",
           "가나다라마바사아자차카타파하각난", "你好世界中国人民大学生的是不了在有我他这",
           "éèêëàâîïôöùûüçñáíóú"]


# --- text ---

def make_words(rng, n):
    words = []
    for i in range(n):
        script = SCRIPTS[0] if i % 2 else rng.choice(SCRIPTS)
        word = "".join(rng.choice(script) for _ in range(2 + int(rng.expovariate(0.25))))
        words.append(word.capitalize() if rng.random() < 0.1 else word)
    return words


def make_line(rng, words):
    line = []
    for _ in range(rng.randint(4, 30)):
        r = rng.random()
        word = words[min(int(rng.paretovariate(0.6)) - 1, len(words) - 1)]
        if r < 0.04:
            word = str(rng.randint(0, 10 ** rng.randint(1, 9)))
        elif r < 0.07:
            word += rng.choice(["'s", "'re", "'LL", "n't", ",", ".", "!", ");", " = {", "()", "\n    "])
        elif r < 0.08:
            word = rng.choice(["def ", "return ", "self.", "int ", "->", "::", "#include <"]) + word
        line.append(word)
    return " ".join(line)


MARKS = [c for c in range(0x300, 0x370)] + [0x591, 0x5b0, 0x5bc, 0x64b, 0x651, 0x93c, 0x94d, 0xe38,
                                             0x3099, 0x309a, 0x1dc0, 0x20d0, 0x302a, 0x1d165, 0x1e8d0]
SPACES = " \t\n\r\v\f\x1c\x85\xa0\u1680\u2003\u2028\u202f\u205f\u3000\u180e\u200b\ufeff"
ODD = "\u017f\u212a\u0130\u00df\ufb05'\u2019\u2581\u0120\u010a<>|_-0123456789\u0660\u00b2\u2167\u200d"


def any_point(rng):
    r = rng.random()
    if r < 0.25:
        c = rng.randrange(0x20, 0x250)
    elif r < 0.5:
        c = rng.randrange(0x250, 0x3400)
    elif r < 0.65:
        c = rng.randrange(0xA000, 0x10000)
    elif r < 0.85:
        c = rng.randrange(0x10000, 0x20000)
    else:
        c = rng.randrange(1, 0x110000)
    return chr(c) if not 0xD800 <= c < 0xE000 else "\ufffd"


def piece(rng, words, added):
    r = rng.random()
    if r < 0.30:
        return make_line(rng, words)[:rng.randint(1, 60)]
    if r < 0.42:
        return "".join(any_point(rng) for _ in range(rng.randint(1, 12)))
    if r < 0.54:
        return "".join(rng.choice(SPACES[:4] if rng.random() < 0.7 else SPACES)
                       for _ in range(rng.randint(1, 9)))
    if r < 0.62:
        return rng.choice("aeiouAnoç가각\u1100\u0928\u05e9\u0627\u0131\u1e0b") + "".join(
            chr(rng.choice(MARKS)) for _ in range(rng.randint(1, 5)))
    if r < 0.66:
        return rng.choice("\u1100\u1101\u1112") + rng.choice("\u1161\u1175") + rng.choice(
            ["", "\u11a8", "\u11c2", "\u11a7"])
    if r < 0.72:
        return rng.choice(["\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467",
                           "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "\U0001f44d\U0001f3fd"])
    if r < 0.78:
        return "".join(rng.choice(ODD) for _ in range(rng.randint(1, 6)))
    if r < 0.84:
        return rng.choice(["'", "x'"]) + rng.choice(["s", "S", "t", "RE", "ve", "lL", "d", "M", "\u017f", "x"])
    if r < 0.90:
        return "if (x[%d] != \"%s\") {\r\n\treturn 0x%x;\n}" % (rng.randint(0, 99), rng.choice(words),
                                                               rng.randint(0, 1 << 30))
    return rng.choice(["", " ", "a", "  \n"]) + rng.choice(added) + rng.choice(["", " ", "b", "\t "])


def cased_piece(rng, words):
    """Strings that the patterns of later families split by case, marks, scripts and punctuation."""
    r = rng.random()
    a, b = rng.choice(words), rng.choice(words)
    if r < 0.25:
        return a.capitalize() + rng.choice([b.upper(), b.capitalize(), b, "\u01c5" + b, "\u02b0" + b.upper()])
    if r < 0.45:
        return "".join(rng.choice("aBcD\u01c5\u02b0\u0915\u093f\u0301\u4e2d\u3042\u30ab\uac00\u00df\u1e9e\u0345")
                       for _ in range(rng.randint(1, 8)))
    if r < 0.60:
        return rng.choice([a, a.upper(), "\u4e2d", "x\u0301"]) + rng.choice(["'", "\u2019"]) + rng.choice(
            ["s", "LL", "Ve", "D", "\u017f", "tx", "RE\u0301"])
    if r < 0.75:
        return rng.choice(["/", "//", "!", "...", "(", "$", "\u3002", "\uff01", "\u201c", "\u20ac"]) + rng.choice(
            ["", a, "\n/", "\r\n//", "/\n\n", "\u0301", "1" + a])
    if r < 0.88:
        return rng.choice(["12345", "1\u0661\u00b2", "\u2167\u0967x", "3.14159", "\U0001d7d8\U0001d7d9", "\U00011de3"])
    return rng.choice(["\u200d", "\u0000", "\ue000", "\x7f", "\u00ad", "\u0378"]) + rng.choice(["", a, " ", "\u0301", "9"])


def make_strings(seed, n, words, added, cased=False):
    rng = random.Random(seed)
    return ["".join(cased_piece(rng, words) if cased and rng.random() < 0.4 else piece(rng, words, added)
                    for _ in range(rng.randint(1, 6))) for _ in range(n)]


# --- tokenizers ---

def token(i, content, **flags):
    t = dict(id=i, content=content, single_word=False, lstrip=False, rstrip=False, normalized=False,
             special=True)
    t.update(flags)
    return t


def template(front, known):
    sequence = [{"Sequence": {"id": "A", "type_id": 0}}]
    head = [{"SpecialToken": {"id": f, "type_id": 0}} for f in front]
    return {"type": "TemplateProcessing", "single": head + sequence,
            "pair": head + sequence + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {f: {"id": f, "ids": [known[f]], "tokens": [f]} for f in front}}


def byte_level(regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": regex, "use_regex": regex}


def split(pattern, matches=False):
    """Split text at the matches of a pattern; if `matches`, keep only the matches."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Removed" if matches else "Isolated",
            "invert": matches}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": [*steps, byte_level(False)]}


def split_then_bytes(pattern):
    return sequence(split(pattern))


def train_bytes(text, size, pre):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre
    t.train_from_iterator(text, trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return json.loads(t.to_str())


def train_sentence(text, size):
    """Train as sentencepiece does: an alphabet of characters, bytes for all others, merges of space runs."""
    t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    special = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
    t.train_from_iterator(text, trainers.BpeTrainer(
        vocab_size=size - 4, special_tokens=special, limit_alphabet=400, show_progress=False))
    j = json.loads(t.to_str())
    model = j["model"]
    for left in ("\u2581", "\u2581\u2581", "\u2581" * 4, "\u2581" * 8):
        if left in model["vocab"]:
            model["vocab"].setdefault(left * 2, len(model["vocab"]))
            model["merges"].append([left, left])
    return j


def as_lines(j):
    j["model"]["merges"] = [" ".join(m) if isinstance(m, list) else m for m in j["model"]["merges"]]


def finish(j, added, normalizer=None, pre=None, post=None, **model):
    j.update(added_tokens=added, normalizer=normalizer, pre_tokenizer=pre, post_processor=post)
    j["model"].update(model)
    return json.loads(json.dumps(j))


def train_pre(text, size, pre):
    """train_bytes with a pre-tokenizer in the form of tokenizer.json."""
    t = Tokenizer(models.BPE())
    return train_bytes(text, size, Tokenizer.from_str(
        json.dumps(dict(json.loads(t.to_str()), pre_tokenizer=pre))).pre_tokenizer)


def later_pipelines(text, size):
    """The pipelines whose strings also contain pieces from cased_piece()."""
    j = train_pre(text, size, split_then_bytes(LLAMA3))
    n = len(j["model"]["vocab"])
    glm = ["<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>",
           "<|assistant|>"]
    thought = ["<think>", "</think>", "<tool_call>", "</tool_call>", "/nothink"]
    glm = [token(n + i, t, special=i < 9) for i, t in enumerate(glm + thought)]
    yield "glm45", finish(j, glm, None, split_then_bytes(LLAMA3), byte_level(True))
    yield "glm4", finish(j, glm, None, split_then_bytes(LLAMA3), {"type": "Sequence", "processors": [
        byte_level(True), template(["[gMASK]", "<sop>"], {"[gMASK]": n + 2, "<sop>": n + 4})]}, ignore_merges=True)
    pre = sequence(*[split(p) for p in DEEPSEEK3])
    j = train_pre(text, size, pre)
    n = len(j["model"]["vocab"])
    names = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<｜User｜>", "<｜Assistant｜>",
             "<｜tool▁sep｜>", "<think>", "<｜place▁holder▁no▁0｜>"]
    flags = [token(n + i, t, special=i < 3, normalized=i > 4) for i, t in enumerate(names)]
    none = {"type": "Sequence", "normalizers": []}
    yield "deepseek3", finish(j, flags, none, pre, byte_level(True))
    pre = sequence(*[split(p) for p in DEEPSEEK2], {"type": "Digits", "individual_digits": True})
    j = train_pre(text, size, pre)
    n = len(j["model"]["vocab"])
    flags = [token(n + i, t, special=i < 2, normalized=True) for i, t in enumerate(names)]
    yield "deepseek2", finish(j, flags, none, pre, template([names[0]], {names[0]: n}))
    j = train_pre(text, size, split_then_bytes(O200K))
    n = len(j["model"]["vocab"])
    oss = [token(n + i, t) for i, t in enumerate(
        ["<|startoftext|>", "<|endoftext|>", "<|reserved_200000|>", "<|return|>", "<|constrain|>", "<|channel|>",
         "<|start|>", "<|end|>", "<|message|>", "<|call|>", "<|endofprompt|>"])]
    yield "gptoss", finish(j, oss, None, split_then_bytes(O200K), byte_level(True), ignore_merges=True)
    minimax = [token(n + i, t, special=i < 6) for i, t in enumerate(
        ["]!p~[", "<fim_prefix>", "]~!b[", "]~b]", "[e~[", "]!d~[", "<think>", "</think>",
         "<minimax:tool_call>"])]
    yield "minimax", finish(j, minimax, None, sequence(split(O200K, matches=True)), byte_level(True))
    j = train_pre(text, size, split_then_bytes(QWEN35))
    n = len(j["model"]["vocab"])
    qwen = [token(n + i, t, special=not t.startswith("<t")) for i, t in enumerate(
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|image_pad|>", "<tool_call>",
         "<think>", "</think>"])]
    yield "qwen35", finish(j, qwen, {"type": "NFC"}, split_then_bytes(QWEN35), byte_level(False),
                           continuing_subword_prefix="", end_of_word_suffix="")
    j = train_sentence(text, size)
    n = len(j["model"]["vocab"])
    ernie = [token(0, "<unk>"), token(1, "<s>"), token(2, "</s>")] + [token(n + i, t) for i, t in enumerate(
        ["<|begin_of_sentence|>", "<|end_of_sentence|>", "<mask:1>", "<mask:4>", "<|IMAGE_PLACEHOLDER|>"])]
    yield "ernie", finish(j, ernie, {"type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}, post=template([], {}))


    yield from pipelines_with_gaps(text, size)


# The bytes that have no entry in SmolLM2's vocabulary.
ABSENT = [0x04, 0x06, 0x13, 0x14, 0x16, 0x1d, 0xc0, 0xc1, 0xf1, 0xf2, *range(0xf5, 0x100)]


def without_bytes(j, absent):
    """Remove the entries of these bytes' characters, and all entries that contain them."""
    alphabet = sorted(c for c in pre_tokenizers.ByteLevel.alphabet())
    printable = [c for c in alphabet if ord(c) < 256]
    rest = [b for b in range(256) if chr(b) not in printable]
    gone = {chr(b) if chr(b) in printable else chr(256 + rest.index(b)) for b in absent}
    model = j["model"]
    kept = [k for k in model["vocab"] if not gone & set(k)]
    model["vocab"] = {k: i for i, k in enumerate(kept)}
    model["merges"] = [m for m in model["merges"] if not gone & set("".join(m))]


def pipelines_with_gaps(text, size):
    """Vocabularies without entries for some bytes, which are dropped unless there is a token for them."""
    first = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<jupyter_code>"]
    digits = {"type": "Digits", "individual_digits": True}
    pre = {"type": "Sequence", "pretokenizers": [digits, byte_level(True)]}
    j = train_pre(text, size, pre)
    without_bytes(j, ABSENT)
    j["model"]["vocab"] = {k: i for i, k in enumerate(first + list(j["model"]["vocab"]))}
    yield "smollm2", finish(j, [token(i, t) for i, t in enumerate(first)], None, pre, byte_level(True))
    pre = dict(byte_level(True), add_prefix_space=True)
    j = train_pre(text, size, pre)
    without_bytes(j, range(0x80, 0x100, 3))
    spelled = ["<unk>"] + ["<0x%02X>" % b for b in range(0xc2, 0xc6)] + ["<0x%02X>" % b for b in range(0x80, 0xb0)]
    for t in spelled + ["zqxjkvw", "\u0120zqxjkvw"]:
        j["model"]["vocab"].setdefault(t, len(j["model"]["vocab"]))
    yield "gaps", finish(j, [token(len(j["model"]["vocab"]), "<|end|>", special=True)], None, pre, byte_level(True),
                         unk_token="<unk>", byte_fallback=True, ignore_merges=True)


def pipelines(text, size):
    prepend = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
    three = [token(0, "<unk>"), token(1, "<s>"), token(2, "</s>")]
    j = train_sentence(text, size)
    n = len(j["model"]["vocab"])
    known = {"<s>": 1}
    yield "mistral", finish(j, three, pre={"type": "Metaspace", "replacement": "\u2581",
                                           "prepend_scheme": "first", "split": False},
                            post=template(["<s>"], known))
    phi = three[:2] + [token(2, "</s>", rstrip=True, special=False)] + [
        token(n + i, t, rstrip=True) for i, t in enumerate(
            ["<|endoftext|>", "<|assistant|>", "<|placeholder1|>", "<|system|>", "<|end|>", "<|user|>"])]
    yield "phi35", finish(j, phi, normalizer=prepend, post=template([], {}))
    # All flags of added tokens at once; a family uses only some of them.
    odd = three + [token(n, "wort", single_word=True, normalized=True, special=False),
                   token(n + 1, "<l>", lstrip=True), token(n + 2, "<r>", rstrip=True),
                   token(n + 3, "a b", normalized=True, special=False),
                   token(n + 4, "<s><s>", lstrip=True, rstrip=True),
                   token(n + 5, "\u00fcber", single_word=True, special=False)]
    yield "flags", finish(j, odd, normalizer=prepend, post=template(["<s>"], known))
    as_lines(j)
    yield "mixtral", finish(j, three, normalizer=prepend, post=template(["<s>"], known))
    j = train_bytes(text, size, pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]))
    n = len(j["model"]["vocab"])
    qwen = [token(n + i, t, special=not t.startswith("<t")) for i, t in enumerate(
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "<think>", "</think>"])]
    yield "qwen3", finish(j, qwen, {"type": "NFC"}, split_then_bytes(QWEN2), byte_level(False))
    as_lines(j)
    yield "qwen2", finish(j, qwen[:3], {"type": "NFC"}, split_then_bytes(QWEN2), byte_level(False),
                          continuing_subword_prefix="", end_of_word_suffix="")
    j = train_bytes(text, size, pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]))
    # With ignore_merges, whole words in the vocabulary are found although no merges produce them.
    for w in ("unmergedword", "zqxjkvw", "\u0120zqxjkvw"):
        j["model"]["vocab"].setdefault(w, len(j["model"]["vocab"]))
    n = len(j["model"]["vocab"])
    llama = [token(n, "<|begin_of_text|>"), token(n + 1, "<|end_of_text|>"), token(n + 2, "<|eot_id|>")]
    yield "llama3", finish(j, llama, None, split_then_bytes(LLAMA3), {
        "type": "Sequence", "processors": [byte_level(True), template(["<|begin_of_text|>"],
                                                                      {"<|begin_of_text|>": n})]},
        ignore_merges=True)
    j = train_bytes(text, size, pre_tokenizers.ByteLevel(False))
    n = len(j["model"]["vocab"])
    olmoe = [token(n, "<|endoftext|>"), token(n + 1, "<|padding|>")] + [
        token(n + 2 + i, t, special=False, normalized=True) for i, t in enumerate(
            [" " * k for k in range(24, 1, -1)] + ["|||IP_ADDRESS|||", "|||EMAIL_ADDRESS|||",
                                                   "caf\u0065\u0301"])]
    yield "olmoe", finish(j, olmoe, {"type": "NFC"}, byte_level(True), template([], {}))


def all_pipelines(text, size):
    """Yield (name, content of tokenizer.json, whether its strings use cased_piece)."""
    for name, j in pipelines(text, size):
        yield name, j, False
    for name, j in later_pipelines(text, size):
        yield name, j, True


def added_of(j):
    return [a["content"] for a in j["added_tokens"]] + ["unmergedword", " zqxjkvw", "zqxjkvw"]


# --- comparing ---

def records(strings):
    out = bytearray()
    for s in strings:
        b = s.encode()
        out += struct.pack("<I", len(b)) + b
    return bytes(out)


def encoder():
    """The path of our encoder, tests/judge/encode.c."""
    return os.path.abspath(os.path.join(os.environ.get("BUILD", "build"), "tests/judge/encode"))


def ours(encode, path, strings):
    done = subprocess.run([encode, path], input=records(strings), stdout=subprocess.PIPE, check=True).stdout
    at, ids = 0, []
    while at < len(done):
        n, = struct.unpack_from("<i", done, at)
        ids.append(list(struct.unpack_from(f"<{max(n, 0)}I", done, at + 4)) if n >= 0 else None)
        at += 4 + 4 * max(n, 0)
    return ids


def speed(encode, path, lines):
    """MB of text per second of processor time, ours and theirs, the best of three runs."""
    t = Tokenizer.from_file(path)
    size = sum(len(s.encode()) for s in lines)
    best_theirs = best_ours = 1e9
    for _ in range(3):
        began = time.process_time()
        for s in lines:
            t.encode(s)
        best_theirs = min(best_theirs, time.process_time() - began)
        out = subprocess.run([encode, path, "time"], input=records(lines), stdout=subprocess.PIPE, check=True)
        best_ours = min(best_ours, float(out.stdout.split()[0]))
    return size / best_ours / 1e6, size / best_theirs / 1e6


def judge(n, only):
    encode = encoder()
    rng = random.Random(7)
    words = make_words(rng, 60000)
    text = [make_line(rng, words) for _ in range(150000)]
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, j, cased in all_pipelines(text, 32768):
            if only and name not in only:
                continue
            path = os.path.join(folder, name + ".json")
            with open(path, "w", encoding="utf-8") as f:
                json.dump(j, f, ensure_ascii=False)
            t = Tokenizer.from_file(path)
            strings = make_strings(name, n, words, added_of(j), cased)
            nfc = normalizers.NFC()
            changed = sum(nfc.normalize_str(s) != s for s in strings)
            assert changed * 10 >= n, changed
            got = ours(encode, path, strings)
            bad = 0
            for s, mine in zip(strings, got):
                theirs = t.encode(s).ids
                if theirs != mine:
                    bad += 1
                    if bad <= 5:
                        print(f"  {name}: {s!r}\n    theirs {theirs}\n    ours   {mine}")
            wrong += bad
            print(f"text {name}: {len(j['model']['vocab'])} entries, {n} strings ({changed} change in NFC),"
                  f" {bad} differ", flush=True)
            for what, some in ("plain text", text[:4000]), ("odd strings", strings[:4000]):
                mine, theirs = speed(encode, path, some)
                slow = mine < theirs
                wrong += slow
                print(f"text {name}: {what} {mine:.1f} MB/s, tokenizers {theirs:.1f} MB/s, ratio "
                      f"{mine / theirs:.2f}{': slower' if slow else ''}", flush=True)
    return wrong


def sample(folder, n=250):
    rng = random.Random(8)
    words = make_words(rng, 400)
    os.makedirs(folder, exist_ok=True)
    for name, j, cased in all_pipelines([make_line(rng, words) for _ in range(2000)], 1000):
        path = os.path.join(folder, name)
        with open(path + ".json", "w", encoding="utf-8") as f:
            json.dump(j, f, ensure_ascii=name != "mixtral", separators=(",", ":"))
        t = Tokenizer.from_file(path + ".json")
        with open(path + ".ids", "wb") as f:
            for s in make_strings("sample " + name, n, words, added_of(j), cased) + ["", " ", "<s>"]:
                ids = t.encode(s).ids
                b = s.encode()
                f.write(struct.pack("<H", len(b)) + b + struct.pack(f"<H{len(ids)}H", len(ids), *ids))


def rows(folder):
    """Write rows.jsonl, and rows.npy with the ids of its texts in golden/tiny-mixtral's tokenizer."""
    t = Tokenizer.from_file(os.path.join(ROOT, "golden/tiny-mixtral/tokenizer.json"))
    rng, ids = random.Random(9), []
    words = make_words(rng, 300)
    with open(os.path.join(folder, "rows.jsonl"), "w", encoding="utf-8") as f:
        for i in range(24):
            text = "\n".join(make_line(rng, words) for _ in range(rng.randint(1, 4)))
            f.write(json.dumps({"id": i, "text": text}, ensure_ascii=i % 2 == 0) + "\n")
            ids += t.encode(text).ids
    with open(os.path.join(folder, "rows.npy"), "wb") as f:
        head = "{'descr': '<u2', 'fortran_order': False, 'shape': (%d,), }" % len(ids)
        head += " " * (-(10 + len(head) + 1) % 64) + "\n"
        f.write(b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head.encode()
                + struct.pack(f"<{len(ids)}H", *ids))


def judge_chat():
    """Compare our ids of the text from fm-chat2text with those of apply_chat_template."""
    import shutil
    from transformers import AutoTokenizer
    encode = encoder()
    chat = [{"role": "user", "content": "how  many é?"}, {"role": "assistant", "content": "17"}]
    with tempfile.TemporaryDirectory() as model:
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            shutil.copy(os.path.join(ROOT, "golden/tiny-mixtral", name), model)
        with open(os.path.join(model, "chat_template.jinja"), "w") as f:
            f.write("{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}"
                    "{{ eos_token }}{% endfor %}")
        out = subprocess.run([sys.executable, os.path.join(ROOT, "cmd", "fm-chat2text"), model],
                             input=json.dumps({"messages": chat}).encode(), stdout=subprocess.PIPE,
                             check=True).stdout
        mine = ours(encode, os.path.join(model, "tokenizer.json"), [json.loads(out)["text"]])[0]
        theirs = AutoTokenizer.from_pretrained(model).apply_chat_template(chat, return_dict=False)
        print(f"text: fm-chat2text gives {len(mine)} ids, transformers {len(theirs)}")
        return mine != list(theirs)


def judge_commands():
    """Run the commands for --tokenizer-cmd from fm(7); they must print our ids for each JSON string."""
    import shutil

    here = os.environ | {"PATH": os.path.dirname(sys.executable) + ":" + os.environ["PATH"]}
    texts, wrong = ["how  many é?", "17\n", "x = (1, 2)"], 0
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(os.path.join(ROOT, "golden/tiny-mixtral"), os.path.join(folder, "MODEL"))
        shutil.copy(os.path.join(folder, "MODEL/tokenizer.json"), folder)
        mine = ours(encoder(), os.path.join(folder, "tokenizer.json"), texts)
        for name in ("tokenizers", "transformers"):
            command = subprocess.run([sys.executable, "-B", os.path.join(ROOT, "tests/pages.py"), "take", "fm.7",
                                      f"judge/textjudge.py {name}"], stdout=subprocess.PIPE, check=True).stdout
            out = subprocess.run(["bash", "-c", command.decode()], cwd=folder, env=here, stdout=subprocess.PIPE,
                                 check=True, input="".join(json.dumps(text) + "\n" for text in texts).encode()).stdout
            theirs = [json.loads(line) for line in out.splitlines()]
            wrong += theirs != [list(ids) for ids in mine]
    print(f"text: {wrong} of the 2 commands in fm(7) give different ids")
    return wrong


def judge_numpy():
    """Run the command of fm-guide(7) that converts a token file of llm.c."""
    import numpy
    command = subprocess.run([sys.executable, "-B", os.path.join(ROOT, "tests/pages.py"), "take", "fm-guide.7",
                              "judge/textjudge.py numpy"], stdout=subprocess.PIPE, check=True).stdout.decode()
    here = os.environ | {"PATH": os.path.dirname(sys.executable) + ":" + os.environ["PATH"]}
    ids = numpy.arange(7, dtype="<u2") * 9000
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "train.bin"), "wb") as f:
            f.write(struct.pack("<256i", 20240520, 1, len(ids), *([0] * 253)) + ids.tobytes())
        subprocess.run(["bash", "-c", command], cwd=folder, env=here, check=True)
        got = numpy.load(os.path.join(folder, "tokens.npy"))
    wrong = got.dtype != ids.dtype or not numpy.array_equal(got, ids)
    print("text: the command of fm-guide(7) " + ("gives other ids" if wrong else "converts a token file"))
    return int(wrong)


def main():
    if sys.argv[1:2] == ["--sample"]:
        sample(sys.argv[2])
        rows(sys.argv[2])
        return 0
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 100000
    wrong = judge_chat() + judge_commands() + judge_numpy() + judge(n, sys.argv[2:])
    print(f"text: {wrong} failed" if wrong else "text: ok")
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main())
