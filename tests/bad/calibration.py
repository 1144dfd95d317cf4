"""Calibration input that must be refused: cd-* token files, tk-* tokenizer.json, tx-* text."""
import json
import struct

from checkpoints import LFS
from put import put


def npy(descr, shape, data, version=1, length=None, order="False"):
    text = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    size = 2 if version == 1 else 4
    text += b" " * (-(8 + size + len(text) + 1) % 64) + b"\n"
    n = len(text) if length is None else length
    return b"\x93NUMPY" + bytes([version, 0]) + n.to_bytes(size, "little") + text + data


def tokens():
    def u16(*ids):
        return struct.pack(f"<{len(ids)}H", *ids)

    four = u16(1, 2, 3, 4)
    put("cd-empty.npy", b"")
    put("good-cd-one-token.npy", npy("<u2", "(1,)", u16(7)))
    put("good-cd-rows.npy", npy("<u2", "(2, 2)", four))
    put("cd-no-tokens.npy", npy("<u2", "(0,)", b""))
    put("cd-id-100-of-100.npy", npy("<u2", "(4,)", u16(1, 2, 100, 3)))
    put("cd-id-negative.npy", npy("<i4", "(2,)", struct.pack("<2i", 1, -1)))
    put("cd-id-2-40.npy", npy("<i8", "(2,)", struct.pack("<2q", 1, 2**40)))
    put("cd-pickle.npy", npy("|O", "(4,)", four))
    put("cd-floats.npy", npy("<f4", "(2,)", four))
    put("cd-big-endian.npy", npy(">u2", "(4,)", four))
    put("cd-fortran-order.npy", npy("<u2", "(2, 2)", four, order="True"))
    put("cd-version-3.npy", npy("<u2", "(4,)", four, version=3))
    put("cd-header-2-32-less-1.npy", npy("<u2", "(4,)", four, version=2, length=2**32 - 1))
    put("cd-header-past-the-end.npy", npy("<u2", "(4,)", b"", length=600))
    put("cd-magic-alone.npy", b"\x93NUMPY")
    put("cd-three-dimensions.npy", npy("<u2", "(1, 2, 2)", four))
    put("cd-no-dimension.npy", npy("<u2", "()", four))
    put("cd-shape-overflows.npy", npy("<u2", "(4294967296, 4294967296)", four))
    put("cd-shape-larger.npy", npy("<u2", "(5,)", four))
    put("cd-shape-smaller.npy", npy("<u2", "(3,)", four))
    put("cd-git-lfs.u16", LFS + " " * (len(LFS) % 2))
    put("cd-git-lfs.npy", LFS)
    put("cd-odd-bytes.u16", four[:-1])
    put("cd-odd-bytes.u32", four[:-1])
    put("good-cd-raw.u16", four)
    put("cd-id-too-large.u32", struct.pack("<2I", 1, 2**32 - 1))
    put("cd-llmc.u16", struct.pack("<3i", 20240520, 1, 4) + bytes(1012) + four)
    put("cd-llmc.u32", struct.pack("<3i", 20240801, 7, 2) + bytes(1012) + four)
    put("good-cd-npy-called-raw.u16", npy("<u2", "(4,)", four))
    tokenizers()
    texts_of_people()


def tokenizers():
    """A small tokenizer.json with one fault."""
    def tk(why, prefix="tk-", cut=None, text=None, **changes):
        model = dict(type="BPE", dropout=None, unk_token="<unk>", continuing_subword_prefix=None,
                     end_of_word_suffix=None, fuse_unk=True, byte_fallback=False,
                     vocab={"<unk>": 0, "a": 1, "b": 2, "ab": 3}, merges=[["a", "b"]])
        j = dict(version="1.0", truncation=None, padding=None, added_tokens=[], normalizer=None,
                 pre_tokenizer=None, post_processor=None, decoder=None, model=model)
        for key, value in changes.items():
            (model if key in model or key == "ignore_merges" else j)[key] = value
        put(f"{prefix}{why}.json", (json.dumps(j) if text is None else text)[:cut])

    def split(regex, behavior="Isolated", invert=False, times=1, **more):
        return {"type": "Sequence", "pretokenizers": times * [
            dict(type="Split", pattern={"Regex": regex}, behavior=behavior, invert=invert)] + [
            dict(dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True,
                      use_regex=False), **more)]}

    def added(content, id, **flags):
        return dict(id=id, content=content, **flags)

    def template(*single, tokens=None):
        return {"type": "TemplateProcessing", "single": list(single), "pair": [],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}
                if tokens is None else tokens}

    text, start = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<s>", "type_id": 0}}
    qwen = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+"
            "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
    tk("plain", prefix="good-tk-")
    tk("merge-as-text", prefix="good-tk-", merges=["#version: 0.2", "a b"])
    tk("template", prefix="good-tk-", post_processor=template(start, text))
    tk("cut", cut=200)
    tk("empty", text="")
    tk("git-lfs", text=LFS)
    tk("html", text="<html><body>Log in</body></html>")
    tk("not-found", text="Entry not found")
    tk("not-an-object", text="[]")
    tk("no-model", text='{"version": "1.0"}')
    tk("version-2", version="2.0")
    tk("key-unknown", surprise=1)
    tk("model-key-twice", text='{"model": {"vocab": {}, "vocab": {}, "merges": []}}')
    tk("truncation", truncation={"max_length": 512})
    tk("model-unigram", type="Unigram")
    tk("dropout", dropout=0.1)
    tk("subword-prefix", continuing_subword_prefix="##")
    tk("vocabulary-empty", vocab={}, merges=[], unk_token=None)
    tk("id-twice", vocab={"<unk>": 0, "a": 1, "b": 1}, merges=[])
    tk("id-2-31", vocab={"<unk>": 0, "a": 2**31}, merges=[])
    tk("id-negative", vocab={"<unk>": 0, "a": -1}, merges=[])
    tk("token-twice", text='{"model": {"vocab": {"a": 0, "a": 1}, "merges": []}}')
    tk("merge-names-an-absent-token", merges=[["a", "c"]])
    tk("merge-makes-an-absent-token", merges=[["b", "a"]])
    tk("merge-of-three", merges=["a b a"])
    tk("merge-is-a-number", merges=[1])
    tk("unknown-absent", unk_token="<nope>")
    tk("fuse-is-a-number", fuse_unk=1)
    tk("normalizer-unknown", normalizer={"type": "BertNormalizer"})
    tk("normalizer-replaces-a-pattern", normalizer={
        "type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""})
    tk("pre-tokenizer-unknown", pre_tokenizer={"type": "Whitespace"})
    tk("pattern-that-backtracks", pre_tokenizer=split("(a+)+$"))
    tk("pattern-of-one-space-more", pre_tokenizer=split(qwen + " "))
    tk("split-removed", pre_tokenizer=split(qwen, "Removed"))
    tk("split-keeps-some", pre_tokenizer=split("\\p{N}{1,3}", "Removed", invert=True))
    tk("split-inverted", pre_tokenizer=split(qwen, invert=True))
    tk("split-9", pre_tokenizer=split("\\p{N}", times=9))
    tk("class-negated", pre_tokenizer=split("[^a]+"))
    tk("class-less-another", pre_tokenizer=split("[a-z&&[^b]]+"))
    tk("class-cut", pre_tokenizer=split("[a-"))
    tk("class-backwards", pre_tokenizer=split("[b-a]"))
    tk("class-counted", pre_tokenizer=split("[ab]{2}"))
    tk("class-of-161", pre_tokenizer=split("[a" + "".join(map(chr, range(200, 520, 2))) + "]"))
    tk("property-unknown", pre_tokenizer=split("\\p{Han}+"))
    tk("byte-level-space-behind-split", pre_tokenizer=split(qwen, add_prefix_space=True))
    tk("digits-in-runs", pre_tokenizer={"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": False}]})
    tk("sequence-of-others", pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Punctuation"}]})
    tk("sequence-without-byte-level", pre_tokenizer={"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": True}]})
    tk("digits-behind-byte-level", pre_tokenizer={"type": "Sequence", "pretokenizers":
       split(qwen)["pretokenizers"] + [{"type": "Digits", "individual_digits": True}]})
    tk("byte-without-character", prefix="good-tk-", pre_tokenizer={
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True})
    tk("metaspace-scheme", pre_tokenizer={"type": "Metaspace", "replacement": "_",
                                          "prepend_scheme": "sometimes", "split": True})
    tk("post-processor-unknown", post_processor={"type": "RobertaProcessing"})
    tk("template-names-an-absent-token", post_processor=template(start, text, tokens={}))
    tk("template-without-a-text", post_processor=template(start))
    tk("template-id-of-no-token", post_processor=template(
        start, text, tokens={"<s>": {"id": "<s>", "ids": [99], "tokens": ["<s>"]}}))
    tk("added-id-of-another", added_tokens=[added("ab", 2)])
    tk("added-leaves-a-gap", added_tokens=[added("<x>", 9)])
    tk("added-twice", added_tokens=[added("ab", 3), added("ab", 3)])
    tk("added-empty", added_tokens=[added("", 4)])
    tk("added-flag-unknown", added_tokens=[added("<x>", 4, magic=True)])


def texts_of_people():
    """Text files; in rows of JSON, the text is in the field `text`."""
    def tx(why, data, ext="jsonl", prefix="tx-"):
        put(f"{prefix}{why}.{ext}", data)

    tx("rows", '{"id": 1, "text": "one"}\r\n\n{"text": "two", "meta": {"a": [1]}}', prefix="good-tx-")
    tx("plain", "one\r\ntwo\n\nthree", "txt", prefix="good-tx-")
    tx("empty", "", "txt")
    tx("no-rows", "\n  \r\n")
    tx("no-text", '{"text": "a"}\n{"body": "b"}\n')
    tx("messages", '{"messages": [{"role": "user", "content": "a"}]}\n')
    tx("text-is-a-list", '{"text": ["a"]}\n')
    tx("text-twice", '{"text": "a", "text": "b"}\n')
    tx("row-is-an-array", '["a"]\n')
    tx("git-lfs", LFS)
    tx("html", "<!doctype html>\n<p>a</p>\n", "txt", prefix="good-tx-")
    tx("cut", '{"text": "a"}\n{"text": "b')
    tx("two-in-a-line", '{"text": "a"}{"text": "b"}\n')
    tx("not-utf8", b'{"text": "a\xff"}\n')
    tx("lone-surrogate", '{"text": "\\ud800"}\n')
    tx("escaped-nul", '{"text": "a\\u0000"}\n')
    tx("raw-nul", '{"text": "a\0"}\n')
    tx("not-utf8", b"abc\xe2\x28", "txt")
    tx("nul", b"ab\0c", "txt")
    tx("utf-16", "{}".encode("utf-16"))
    tx("gzip", b"\x1f\x8b\x08\0\0\0", "txt")
    tx("zstd", b"\x28\xb5\x2f\xfd\0", "jsonl")
    tx("parquet", b"PAR1\0\0", "json")
    tx("array", '[{"text": "a"}]\n', "json")
    tx("null", '{"text": null}\n')
    tx("nested-1024", '{"x": ' + 1024 * "[" + 1024 * "]" + ', "text": "a"}\n', prefix="good-tx-")
    tx("nested-1025", '{"x": ' + 1025 * "[" + 1025 * "]" + ', "text": "a"}\n')
    tx("infinity", '{"text": "a", "x": [1, {"y": -Infinity}]}\n')
    tx("pretty", '{\n  "text": "a"\n}\n')
    tx("not-a-number", '{"text": "a", "x": NaN}\n')
    tx("surrogates-swapped", '{"text": "\\ude00\\ud83d"}\n')
    tx("byte-order-mark", b'\xef\xbb\xbf{"text": "a"}\n', prefix="good-tx-")
    tx("blank-lines", '\n\r\n \n{"text": "a"}\n\n\n{"text": ""}', prefix="good-tx-")
    tx("odd-keys", '{"%s": 1, "a\\nb": {"c\\td": 2}, "": 3, "x": 4, "x": 5, "text": "a"}\n' %
       (300 * "k"), "json", prefix="good-tx-")
