#!/usr/bin/env python3
"""Make golden/bad/: small files and directories that must be refused (or, named good-, read).

    python3 golden/bad.py        from the root; needs nothing but Python

Each is named by what is wrong with it; the classes are those of the test list: st safetensors, ix
checkpoint directories, cf config.json, js JSON, cd token files, tk tokenizer.json, tx text, tr the tar of a stream, mf its
manifest, zs the frame of masks.  golden/bad/EXPECT, kept by hand,
says for each which reader it is for, the exit code and the sentence; tests/test_bad.c holds the
readers to it.  Large files (a header of 100 MB, 8 TB of hole, a million tensors), FIFOs and links
are made by the tests themselves while they run.
"""
import json
import os
import shutil
import struct

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bad")


def put(name, data):
    path = os.path.join(ROOT, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data if isinstance(data, bytes) else data.encode())


def header(text, data=b"", n=None):
    """A safetensors file: N, the header's text, the data."""
    text = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(text) if n is None else n) + text + data


def st(why, text, data=b"", n=None, prefix="st-"):
    put(f"{prefix}{why}.safetensors", header(text, data, n))


def one(shape="[4]", span="[0,4]", dtype='"U8"', name="w"):
    return f'{{"{name}":{{"dtype":{dtype},"shape":{shape},"data_offsets":{span}}}}}'


def many(*spans, names="abcdefgh"):
    return "{" + ",".join(
        f'"{n}":{{"dtype":"U8","shape":[{e - b}],"data_offsets":[{b},{e}]}}'
        for n, (b, e) in zip(names, spans)) + "}"


def safetensors():
    put("st-empty.safetensors", b"")
    put("st-seven-bytes.safetensors", b"\2\0\0\0\0\0\0")
    st("header-of-no-bytes", "")
    st("header-of-one-brace", "{")
    st("nothing", "{}", prefix="good-st-")
    for why, n in (("one-over-the-limit", 10**8 + 1), ("of-the-limit", 10**8), ("2-63", 2**63),
                   ("2-64-less-1", 2**64 - 1), ("2-64-less-4", 2**64 - 4)):
        st("length-" + why, "{}", n=n)
    st("length-one-past-the-file", "{}", n=3)
    st("not-utf8", b'{"w\xff":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', b"0123")
    st("overlong-utf8", b'{"w\xc0\xaf":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', b"0123")
    st("leading-space", " " + one(), b"0123")
    st("trailing-white-space", one() + " \t\r\n ", b"0123", prefix="good-st-")
    st("trailing-nul", one() + "\0\0\0", b"0123")
    st("byte-order-mark", b"\xef\xbb\xbf" + one().encode(), b"0123")
    st("array", "[]")
    st("number", "12345678")
    st("unterminated-string", '{"w')
    st("unterminated-object", one()[:-1], b"0123")
    st("two-objects", "{}{}")
    st("trailing-comma", one()[:-1] + ",}", b"0123")
    st("deep", '{"w":' + "[" * 1000)
    st("deep-in-shape", one(shape="[[[4]]]"), b"0123")
    st("name-with-escaped-nul", one(name="w\\u0000x"), b"0123")
    st("name-with-nul", one(name="w\0x"), b"0123")
    st("name-with-line-feed", one(name="w\\nx"), b"0123")
    st("name-with-escape-byte", one(name="w\\u001b[2J"), b"0123")
    st("name-with-c1-control", one(name="w\u009b2J"), b"0123")
    st("name-climbs", one(name="../../etc/w"), b"0123")
    st("name-absolute", one(name="/etc/w"), b"0123")
    st("name-empty", one(name=""), b"0123")
    st("name-of-513-bytes", one(name="n" * 513), b"0123")
    st("name-of-512-bytes", one(name="n" * 512), b"0123", prefix="good-st-")
    st("name-twice-same-range", many((0, 4), (0, 4), names="ww"), b"0123")
    st("name-twice-other-range", many((0, 2), (2, 4), names="ww"), b"0123")
    st("name-twice-unescaped", many((0, 2), (2, 4), names=("a", "\\u0061")), b"0123")
    st("names-differ-in-case", many((0, 2), (2, 4), names="wW"), b"0123", prefix="good-st-")
    for key in ("dtype", "shape", "data_offsets"):
        entry = json.loads(one())
        del entry["w"][key]
        st("without-" + key.replace("_", "-"), json.dumps(entry), b"0123")
    st("entry-empty", '{"w":{}}')
    st("entry-null", '{"w":null}')
    st("key-unknown", '{"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"strides":[1]}}', b"0123")
    st("key-twice", '{"w":{"dtype":"U8","shape":[4],"shape":[4],"data_offsets":[0,4]}}', b"0123")
    st("dtype-unknown", one(dtype='"F7"'), b"0123")
    st("dtype-lower-case", one(dtype='"u8"'), b"0123")
    st("dtype-number", one(dtype="8"), b"0123")
    st("shape-wraps-to-4", one(shape="[4194305,4194305,211106198978564]", span="[0,16]",
                               dtype='"F32"'), b"0" * 16)
    st("shape-2-64-less-2", one(shape="[2,18446744073709551614]"), b"0123")
    st("shape-2-63-less-1", one(shape="[2,9223372036854775807]"), b"0123")
    st("shape-negative", one(shape="[-4]"), b"0123")
    st("shape-minus-zero", one(shape="[-0]", span="[0,0]"))
    st("shape-with-point", one(shape="[4.0]"), b"0123")
    st("shape-with-exponent", one(shape="[4e0]"), b"0123")
    st("shape-leading-zero", one(shape="[04]"), b"0123")
    st("shape-string", one(shape='["4"]'), b"0123")
    st("shape-null", one(shape="[null]"), b"0123")
    st("shape-not-array", one(shape="4"), b"0123")
    st("shape-of-33-dimensions", one(shape="[4" + ",1" * 32 + "]"), b"0123")
    st("shape-larger-than-span", one(shape="[5]"), b"0123")
    st("shape-smaller-than-span", one(shape="[3]"), b"0123")
    st("scalar", one(shape="[]", dtype='"F32"'), b"0123", prefix="good-st-")
    st("zero-dimension", one(shape="[3,0]", span="[0,0]"), prefix="good-st-")
    st("zero-times-huge", one(shape="[0,9223372036854775807]", span="[0,0]"))
    st("half-a-byte", one(shape="[7]", dtype='"F4"'), b"0123")
    st("offsets-one", one(span="[4]"), b"0123")
    st("offsets-three", one(span="[0,4,4]"), b"0123")
    st("offsets-backwards", one(span="[4,0]"), b"0123")
    st("offsets-empty-span", one(span="[4,4]"), b"0123")
    st("offsets-negative", one(span="[-4,0]"), b"0123")
    st("offsets-past-2-53", one(shape="[9007199254740993]", span="[0,9007199254740993]"), b"0123")
    st("offsets-past-2-63", one(span="[9223372036854775808,9223372036854775812]"), b"0123")
    st("offsets-past-the-end", one(shape="[8]", span="[0,8]"), b"0123")
    st("hole-of-one-byte", many((0, 2), (3, 5)), b"01234")
    st("overlap-of-one-byte", many((0, 3), (2, 5)), b"01234")
    st("all-in-one-place", many((0, 4), (0, 4), (0, 4)), b"0123")
    st("empty-inside-another", many((0, 4), (2, 2)), b"0123")
    st("begins-late", many((1, 5)), b"01234")
    st("ends-one-early", many((0, 4)), b"01234")
    st("ends-one-late", many((0, 4)), b"012")
    st("zip-appended", many((0, 4)), b"0123" + b"PK\5\6" + bytes(18))
    for why, value in (("null", "null"), ("array", "[]"), ("of-integers", '{"a":1}'),
                       ("of-objects", '{"a":{}}'), ("key-twice", '{"a":"1","a":"2"}'),
                       ("is-a-tensor", '{"dtype":"U8","shape":[4],"data_offsets":[0,4]}')):
        st("metadata-" + why, f'{{"__metadata__":{value}}}')
    st("metadata-twice", '{"__metadata__":{},"__metadata__":{}}')


# A Mixtral of one layer, as small as its rules allow.
CONFIG = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_act": "silu",
          "hidden_size": 4, "num_attention_heads": 2, "num_key_value_heads": 1,
          "intermediate_size": 3, "num_local_experts": 2, "num_experts_per_tok": 1,
          "num_hidden_layers": 1, "vocab_size": 5, "max_position_embeddings": 16,
          "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "sliding_window": None,
          "tie_word_embeddings": False, "torch_dtype": "float32"}


def tensors():
    t = {"model.embed_tokens.weight": [5, 4], "model.norm.weight": [4], "lm_head.weight": [5, 4]}
    layer = "model.layers.0."
    t |= {layer + "input_layernorm.weight": [4], layer + "post_attention_layernorm.weight": [4],
          layer + "self_attn.q_proj.weight": [4, 4], layer + "self_attn.k_proj.weight": [2, 4],
          layer + "self_attn.v_proj.weight": [2, 4], layer + "self_attn.o_proj.weight": [4, 4],
          layer + "block_sparse_moe.gate.weight": [2, 4]}
    for e in range(2):
        expert = layer + f"block_sparse_moe.experts.{e}."
        t |= {expert + "w1.weight": [3, 4], expert + "w2.weight": [4, 3],
              expert + "w3.weight": [3, 4]}
    return t


def weights(t, dtype=lambda name: "F32"):
    """The file for these names and shapes; the values do not matter."""
    entries, at = {}, 0
    for name, shape in t.items():
        size = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1, "F8_E4M3": 1}[dtype(name)]
        for d in shape:
            size *= d
        entries[name] = {"dtype": dtype(name), "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return header(json.dumps(entries, separators=(",", ":")), bytes(at))


def model(why, config=None, prefix="ix-", **changes):
    put(f"{prefix}{why}/config.json", json.dumps(config or CONFIG | changes))
    return f"{prefix}{why}/"


def directories():
    put(model("complete", prefix="good-ix-") + "model.safetensors", weights(tensors()))
    a, b = {"a": [2, 2]}, {"b": [3]}

    def index(why, weight_map, shards, prefix="ix-", **more):
        d = model(why, prefix=prefix)
        text = weight_map
        if not isinstance(text, str):
            text = json.dumps({"weight_map": weight_map} | more)
        put(d + "model.safetensors.index.json", text)
        for name, t in shards.items():
            put(d + name, weights(t))

    two = {"a.safetensors": a, "b.safetensors": b}
    index("shard-climbs", {"a": "../a.safetensors"}, {})
    index("shard-absolute", {"a": "/tmp/a.safetensors"}, {})
    index("shard-hidden", {"a": ".a.safetensors"}, {})
    index("shard-of-other-kind", {"a": "pytorch_model.bin"}, {})
    index("shard-name-with-escape", {"a": "a\x1b.safetensors"}, {})
    index("shard-is-a-number", '{"weight_map":{"a":1}}', {})
    index("shard-absent", {"a": "a.safetensors", "b": "b.safetensors"}, {"a.safetensors": a})
    index("tensor-in-two-shards", {"a": "a.safetensors", "b": "b.safetensors"},
          {"a.safetensors": a, "b.safetensors": a | b})
    index("tensor-in-no-shard",
          {"a": "a.safetensors", "b": "b.safetensors", "c": "b.safetensors"}, two)
    index("tensor-not-in-index", {"a": "a.safetensors"}, {"a.safetensors": a | b})
    pair = '"a":"a.safetensors"'
    index("tensor-twice", '{"weight_map":{%s,%s}}' % (pair, pair), two)
    index("tensor-twice-unescaped",
          '{"weight_map":{%s,"\\u0061":"a.safetensors"}}' % pair, two)
    index("map-twice", '{"weight_map":{%s},"weight_map":{%s}}' % (pair, pair), two)
    index("map-empty", '{"weight_map":{}}', two)
    index("map-absent", '{"metadata":{}}', two)
    index("map-is-an-array", '{"weight_map":[]}', two)
    index("map-cut", '{"weight_map":{"a":"a.safetensors"', two)
    index("metadata-deep", '{"metadata":' + "[" * 100 + '}', two)
    index("two-models", {"a": "a.safetensors"}, {"a.safetensors": a, "model.safetensors": a})
    index("total-size-lies", {"a": "a.safetensors", "b": "b.safetensors"}, two, prefix="good-ix-",
          metadata={"total_size": 1})
    model("no-weights")

    t = tensors()
    w1 = "model.layers.0.block_sparse_moe.experts.1.w1.weight"
    for why, changed in (
            ("expert-missing", {k: s for k, s in t.items() if ".experts.1." not in k}),
            ("matrix-missing", {k: s for k, s in t.items() if k != w1}),
            ("shape-transposed", t | {w1: [4, 3]}),
            ("gate-narrower-than-up", t | {w1: [2, 4]}),
            ("norm-too-long", t | {"model.norm.weight": [5]}),
            ("embedding-too-short", t | {"model.embed_tokens.weight": [4, 4]})):
        put(model(why) + "model.safetensors", weights(changed))
    put(model("dtypes-differ-between-experts") + "model.safetensors",
        weights(t, lambda name: "F16" if ".experts.1." in name else "F32"))
    put(model("weights-are-bytes") + "model.safetensors",
        weights(t, lambda name: "U8" if name == w1 else "F32"))
    put(model("weights-are-fp8") + "model.safetensors",
        weights(t, lambda name: "F8_E4M3" if ".experts." in name else "F32"))
    put(model("experts-fused") + "model.safetensors", weights(
        {k: s for k, s in t.items() if ".experts." not in k}
        | {"model.layers.0.mlp.experts.gate_up_proj": [2, 6, 4],
           "model.layers.0.mlp.experts.down_proj": [2, 4, 3]}))
    for why, name in (("expert-1073741824", "experts.1073741824.w1"),
                      ("expert-007", "experts.007.w1"), ("expert-negative", "experts.-1.w1")):
        put(model(why) + "model.safetensors",
            weights(t | {f"model.layers.0.block_sparse_moe.{name}.weight": [3, 4]}))
    put(model("layer-negative") + "model.safetensors",
        weights(t | {"model.layers.-1.norm.weight": [4]}))


def configs():
    def cf(why, **changes):
        put(f"cf-{why}.json", json.dumps(CONFIG | changes))

    put("good-cf-mixtral.json", json.dumps(CONFIG))
    for n, why in ((0, "none"), (2**31, "2-31"), (10**9, "1e9"), (-1, "negative")):
        cf("experts-" + why, num_local_experts=n)
    cf("experts-half", num_local_experts=1.5)
    cf("experts-string", num_local_experts="8")
    cf("chooses-more-than-there-are", num_experts_per_tok=3)
    cf("chooses-none", num_experts_per_tok=0)
    cf("width-times-hidden-overflows", hidden_size=2**31 - 2, intermediate_size=2**31 - 1)
    cf("heads-none", num_attention_heads=0)
    cf("heads-not-a-multiple", num_attention_heads=3, num_key_value_heads=2, head_dim=2)
    cf("head-dim-odd", head_dim=3)
    cf("vocabulary-none", vocab_size=0)
    cf("layers-none", num_hidden_layers=0)
    cf("epsilon-negative", rms_norm_eps=-1.0)
    cf("activation-other", hidden_act="gelu")
    cf("family-unknown", model_type="llama")
    for method in ("fp8", "mxfp4", "gptq", "awq"):
        cf("quantized-" + method, quantization_config={"quant_method": method})
    cf("mixtral-with-biases", attention_bias=True)
    cf("mixtral-clamped", clip_qkv=8.0)
    qwen = CONFIG | {"model_type": "qwen2_moe", "moe_intermediate_size": 3,
                     "shared_expert_intermediate_size": 5}
    put("good-cf-qwen2.json", json.dumps(qwen))
    for why, change in (("step-0", {"decoder_sparse_step": 0}),
                        ("step-past-the-layers", {"decoder_sparse_step": 2**40}),
                        ("all-dense", {"mlp_only_layers": [0]}),
                        ("dense-layer-negative", {"mlp_only_layers": [-1]}),
                        ("dense-layers-a-number", {"mlp_only_layers": 0}),
                        ("window", {"use_sliding_window": True, "sliding_window": 8}),
                        ("sliding-layers", {"layer_types": ["sliding_attention"]}),
                        ("shared-width-0", {"shared_expert_intermediate_size": 0}),
                        ("shared-width-2-31", {"shared_expert_intermediate_size": 2**31})):
        put(f"cf-qwen-{why}.json", json.dumps(qwen | change))
    put("cf-hidden-absent.json", json.dumps({k: v for k, v in CONFIG.items() if k != "hidden_size"}))
    put("cf-key-twice.json", json.dumps(CONFIG)[:-1] + ',"num_local_experts":4}')
    put("cf-number-infinite.json", json.dumps(CONFIG).replace("10000.0", "1e999"))
    put("cf-not-an-object.json", "[]")
    put("cf-cut.json", json.dumps(CONFIG)[:60])
    put("good-cf-auto-map.json", json.dumps(CONFIG | {"auto_map": {"AutoModel": "evil.Model"}}))


def texts():
    for why, text in {
            "empty": b"", "byte-order-mark": b"\xef\xbb\xbf{}", "leading-zero": b"[0123]",
            "point-without-digits": b"[1.]", "number-1e400": b"[1E400]",
            "number-of-200-digits": b"[" + b"1" * 200 + b"]", "not-a-number": b"[NaN]",
            "hexadecimal": b"[0x10]", "plus-sign": b"[+1]", "trailing-comma": b"[1,]",
            "comment": b"[1]//", "single-quotes": b"{'a':1}", "raw-control-byte": b'["a\x01b"]',
            "vertical-tab": b"[1,\x0b2]", "nul-between": b"[1,\x002]",
            "nul-in-string": b'["a\x00b"]',
            "escaped-nul": b'{"a\\u0000b":1}', "invalid-utf8": b'["\xff"]',
            "overlong-utf8": b'["\xc0\xaf"]', "utf8-surrogate": b'["\xed\xa0\x80"]',
            "lone-surrogate": b'["\\ud800"]', "split-surrogates": b'["\\ud83d x\\ude00"]',
            "trailing-garbage": b"{}x", "two-values": b"{} {}", "key-twice": b'{"a":1,"a":2}',
            "key-twice-unescaped": b'{"a":1,"\\u0061":2}', "depth-17": b"[" * 17 + b"]" * 17,
            "depth-100000": b"[" * 100000, "unterminated": b'{"a":"b', "scalar": b"42",
    }.items():
        put(f"js-{why}.json", text)
    put("good-js-minus-zero.json", "[-0]")
    put("good-js-keys-differ-in-case.json", '{"a":1,"A":2}')
    put("good-js-depth-16.json", "[" * 16 + "]" * 16)
    put("good-js-key-of-64-kb.json", '{"' + "k" * 65536 + '":1}')


def npy(descr, shape, data, version=1, length=None, order="False"):
    text = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    size = 2 if version == 1 else 4
    text += b" " * (-(8 + size + len(text) + 1) % 64) + b"\n"
    n = len(text) if length is None else length
    return b"\x93NUMPY" + bytes([version, 0]) + n.to_bytes(size, "little") + text + data


def tokens():
    def u16(*ids):
        return struct.pack(f"<{len(ids)}H", *ids)

    def llmc(magic, version, count, data):
        return struct.pack("<256i", *([magic, version, count] + [0] * 253)) + data

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
    put("good-cd-gpt2.llmc", llmc(20240520, 1, 4, four))
    put("cd-llmc-version-2.llmc", llmc(20240520, 2, 4, four))
    put("cd-llmc-count-larger.llmc", llmc(20240520, 1, 5, four))
    put("cd-llmc-count-negative.llmc", llmc(20240801, 7, -4, four))
    put("cd-llmc-cut.llmc", llmc(20240520, 1, 4, four)[:900])
    put("cd-llmc-magic-wrong.llmc", llmc(20240521, 1, 4, four))
    put("cd-odd-bytes.u16", four[:-1])
    put("cd-odd-bytes.u32", four[:-1])
    put("good-cd-raw.u16", four)
    put("cd-id-too-large.u32", struct.pack("<2I", 1, 2**32 - 1))
    put("cd-npy-called-raw.u16", npy("<u2", "(4,)", four))
    pairs()
    tokenizers()
    texts_of_people()


def pairs():
    """Token files with an index beside them; EXPECT names the file that the user would name."""
    def megatron(why, named="bin", words=None, prefix="cd-megatron-", tail=b"", cut=None, **fields):
        f = dict(magic=b"MMIDIDX\0\0", version=1, type=8, sizes=[3, 1], pointers=[0, 6],
                 documents=[0, 1, 2])
        f.update(fields)
        idx = f["magic"] + struct.pack("<QBQQ", f["version"], f["type"],
                                       f.get("sequences", len(f["sizes"])),
                                       f.get("bounds", len(f["documents"])))
        idx += struct.pack(f"<{len(f['sizes'])}i", *f["sizes"])
        idx += struct.pack(f"<{len(f['pointers'])}q", *f["pointers"])
        idx += struct.pack(f"<{len(f['documents'])}q", *f["documents"]) + tail
        put(f"{prefix}{why}/t.idx", idx[:cut])
        if words != b"":
            put(f"{prefix}{why}/t.bin", struct.pack("<4H", 1, 2, 3, 4) if words is None else words)

    def datatrove(why, index, words=struct.pack("<4H", 1, 2, 3, 4), prefix="cd-datatrove-"):
        put(f"{prefix}{why}/t.ds", words)
        put(f"{prefix}{why}/t.ds.index", index)

    megatron("u16", prefix="good-cd-megatron-")
    megatron("modes", prefix="good-cd-megatron-", tail=b"\0\0")
    megatron("i32", prefix="good-cd-megatron-", type=4, sizes=[1, 1], pointers=[0, 4],
             words=struct.pack("<2i", 5, 6))
    megatron("bytes", prefix="good-cd-megatron-", type=1, sizes=[0, 8], pointers=[0, 0])
    megatron("negative-i8", type=2, sizes=[8], pointers=[0], documents=[0, 1],
             words=bytes([1, 2, 3, 4, 5, 6, 7, 0xfe]))
    megatron("magic-wrong", magic=b"MMIDIDX\0\1")
    megatron("version-2", version=2)
    megatron("floats", type=6)
    megatron("type-9", type=9)
    megatron("type-0", type=0)
    megatron("size-negative", sizes=[3, -1])
    megatron("pointers-decrease", pointers=[0, -2])
    megatron("pointer-past-the-end", pointers=[0, 2**40])
    megatron("hole", sizes=[2, 1])
    megatron("past-the-end", sizes=[3, 2**31 - 1])
    megatron("words-cut", words=b"\1\0\2\0\3\0\4")
    megatron("words-too-many", words=struct.pack("<5H", 1, 2, 3, 4, 5))
    megatron("no-words", words=b"")
    megatron("documents-end-early", documents=[0, 1])
    megatron("documents-decrease", documents=[0, 2, 1, 2])
    megatron("documents-begin-late", documents=[1, 2])
    megatron("document-past-the-end", documents=[0, 3])
    megatron("no-documents", documents=[])
    megatron("sequences-2-63", sequences=2**63)
    megatron("bounds-2-62", bounds=2**62)
    megatron("cut", cut=60)
    megatron("header-cut", cut=20)
    megatron("images", tail=b"\0\1")
    datatrove("u16", struct.pack("<2Q", 3, 4), prefix="good-cd-datatrove-")
    datatrove("u32", struct.pack("<2Q", 0, 2), struct.pack("<2I", 7, 8), prefix="good-cd-datatrove-")
    datatrove("index-empty", b"")
    datatrove("index-odd", b"\4\0\0\0")
    datatrove("ends-decrease", struct.pack("<3Q", 3, 2, 4))
    datatrove("end-past-the-end", struct.pack("<2Q", 2**63, 4))
    datatrove("words-too-many", struct.pack("<1Q", 3))
    datatrove("no-tokens", struct.pack("<1Q", 0))


def tokenizers():
    """A small tokenizer.json with one thing wrong."""
    def tk(why, prefix="tk-", cut=None, text=None, **changes):
        model = dict(type="BPE", dropout=None, unk_token="<unk>", continuing_subword_prefix=None,
                     end_of_word_suffix=None, fuse_unk=True, byte_fallback=False,
                     vocab={"<unk>": 0, "a": 1, "b": 2, "ab": 3}, merges=[["a", "b"]])
        j = dict(version="1.0", truncation=None, padding=None, added_tokens=[], normalizer=None,
                 pre_tokenizer=None, post_processor=None, decoder=None, model=model)
        for key, value in changes.items():
            (model if key in model or key == "ignore_merges" else j)[key] = value
        put(f"{prefix}{why}.json", (json.dumps(j) if text is None else text)[:cut])

    def split(regex, behavior="Isolated", **more):
        return {"type": "Sequence", "pretokenizers": [
            dict(type="Split", pattern={"Regex": regex}, behavior=behavior, invert=False),
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
    tk("byte-level-regex-behind-split", pre_tokenizer=split(qwen, use_regex=True))
    tk("byte-without-character", pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False,
                                                "trim_offsets": True, "use_regex": True})
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
    """Text files; the field is `text`."""
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
    tx("nested-17", '{"x": ' + 17 * "[" + 17 * "]" + ', "text": "a"}\n')
    tx("not-a-number", '{"text": "a", "x": NaN}\n')
    tx("surrogates-swapped", '{"text": "\\ude00\\ud83d"}\n')
    tx("byte-order-mark", b'\xef\xbb\xbf{"text": "a"}\n', prefix="good-tx-")
    tx("blank-lines", '\n\r\n \n{"text": "a"}\n\n\n{"text": ""}', prefix="good-tx-")
    tx("odd-keys", '{"%s": 1, "a\\nb": {"c\\td": 2}, "": 3, "x": 4, "x": 5, "text": "a"}\n' %
       (300 * "k"), "json", prefix="good-tx-")


def tar_header(name, size, type=b"0", mode=b"000644 \0", zero=b"000000 \0", octal=None, **fields):
    """One ustar header as libarchive writes it; fields put bytes at an offset: at157=b"x"."""
    h = bytearray(512)
    h[0:len(name)] = name.encode()
    h[100:124] = mode + zero + zero
    h[124:148] = (b"%011o " % size if octal is None else octal) + b"00000000000 "
    h[156:157] = type
    h[257:265] = b"ustar\0" + b"00"
    h[329:345] = zero + zero
    for key, value in fields.items():
        at = int(key[2:])
        h[at:at + len(value)] = value
    h[148:156] = b" " * 8
    h[148:156] = b"%06o\0 " % sum(h)
    return bytes(h)


def padded(data):
    return data + b"\0" * (-len(data) % 512)


def stream(edit=lambda m: None, members=None, head=None, end=b"\0" * 1024, text=None):
    """A stream of one carried file; no digest in it is right, which is found last."""
    files = {"build.json": b"{}\n", "carried/config.json": b"{}\n", "CHECKSUMS": b"x" * 150}
    order = ["build.json", "carried/config.json", "CHECKSUMS"] if members is None else members
    zero = "0" * 32
    size = 1500
    at, entries = 512 + len(padded(b"x" * size)), []
    entries.append({"name": "manifest.json", "size": size, "offset": 512})
    for name in ["build.json", "carried/config.json", "CHECKSUMS"]:
        entries.append({"name": name, "size": len(files[name]), "offset": at + 512, "digest": zero})
        at += 512 + len(padded(files[name]))
    del entries[-1]["digest"]
    manifest = {"schema": 1, "suite": "fm", "stage": "rank", "history": [], "members": entries}
    edit(manifest)
    body = (json.dumps(manifest) if text is None else text).encode()
    body += b" " * (size - len(body))
    out = [tar_header("manifest.json", size) + padded(body)]
    for name in order:
        data = files.get(name, b"")
        h = (head or {}).get(name) or tar_header(name, len(data))
        out.append(h + padded(data))
    return b"".join(out) + end


def tars():
    config = "carried/config.json"

    def one(why, **kw):
        put(f"tr-{why}.fm", stream(head={config: tar_header(config, 3, **kw)}))

    def named(why, name):
        put(f"tr-name-{why}.fm", stream(head={config: tar_header(name, 3)}))

    for why, type in (("hard-link", b"1"), ("symbolic-link", b"2"), ("character-device", b"3"),
                      ("directory", b"5"), ("fifo", b"6"), ("global-pax", b"g"), ("long-name", b"L"),
                      ("long-link", b"K"), ("sparse", b"S"), ("unknown-type", b"Z"),
                      ("old-style-type", b"\0")):
        one(why, type=type)
    for why, name in (("up", "../../etc/x"), ("absolute", "/etc/x"), ("empty", ""),
                      ("double-slash", "a//b"), ("dot", "a/./b"), ("ends-in-slash", "a/"),
                      ("newline", "a\nb"), ("escape", "a\x1b[2J")):
        named(why, name)
    one("setuid", mode=b"006755 \0")
    one("owner", zero=b"001750 \0")
    one("owner-name", at265=b"root")
    one("link-name-of-a-file", at157=b"/etc/passwd")
    one("name-prefix", at345=b"..")
    one("time", at136=b"00000000001 ")
    one("size-base-256", octal=b"\x80" + b"\0" * 10 + b"\3")
    one("size-base-256-negative", octal=b"\xff" * 11 + b"\xfd")
    one("size-led-by-spaces", octal=b"          3 ")
    one("size-8-gib-without-pax", octal=b"100000000000")
    one("size-past-the-end", octal=b"00000100000 ")
    one("gnu-magic", at257=b"ustar  \0")
    wrong = bytearray(tar_header(config, 3))
    wrong[148:156] = b"000001\0 "
    put("tr-checksum.fm", stream(head={config: bytes(wrong)}))
    for why, record in (("size-of-a-small-file", b"9 size=3\n"), ("path", b"11 path=x\n"),
                        ("length-0", b"0 size=3\n"), ("length-too-long", b"99 size=3\n"),
                        ("length-no-digit", b"x size=3\n"), ("size-negative", b"11 size=-3\n"),
                        ("two-records", b"9 size=3\n9 size=4\n")):
        pax = tar_header("PaxHeader/x", len(record), type=b"x") + padded(record)
        put(f"tr-pax-{why}.fm", stream(head={config: pax + tar_header(config, 3)}))
    good = stream()
    put("tr-padding-not-zero.fm", good[:512 + 1500] + b"x" + good[512 + 1501:])
    put("tr-twice.fm", stream(members=["build.json", config, config, "CHECKSUMS"]))
    put("tr-no-end.fm", stream(end=b""))
    put("tr-one-zero-block.fm", stream(end=b"\0" * 512))
    put("tr-byte-behind-the-end.fm", stream(end=b"\0" * 1024 + b"x"))
    put("tr-second-archive.fm", good + good)
    put("tr-odd-length.fm", good[:-1])
    put("tr-zero-block-in-the-middle.fm", stream(head={config: b"\0" * 512}))
    put("tr-cut-in-a-header.fm", good[:2300])
    put("tr-cut-in-padding.fm", good[:2600])
    put("tr-cut-in-data.fm", good[:1000])
    put("tr-cut-at-a-member.fm", stream(members=["build.json", config]))
    put("tr-empty.fm", b"")
    put("tr-no-members.fm", b"\0" * 1024)
    put("tr-other-tar.fm", good[2048:])
    put("tr-no-tar.fm", good[2560:])


def manifests():
    def mf(why, edit):
        put(f"mf-{why}.fm", stream(edit))

    def member(why, i, **keys):
        mf(why, lambda m: m["members"][i].update(keys))

    for why, schema in (("0", 0), ("2", 2), ("text", "1"), ("half", 0.5)):
        mf("schema-" + why, lambda m: m.update(schema=schema))
    mf("suite-other", lambda m: m.update(suite="gm"))
    mf("stage-unknown", lambda m: m.update(stage="bake"))
    mf("no-members", lambda m: m.pop("members"))
    mf("member-gone", lambda m: m["members"].pop(2))
    mf("member-more", lambda m: m["members"].append(
        {"name": "masks.zst", "size": 1, "offset": 512, "digest": "0" * 32}))
    mf("members-swapped", lambda m: m["members"].insert(1, m["members"].pop(2)))
    member("member-renamed", 1, name="built.json")
    member("size-off-by-one", 1, size=4)
    member("size-negative", 1, size=-1)
    member("size-2-53", 1, size=2**53)
    member("size-half", 1, size=3.5)
    member("offset-off-by-one", 1, offset=2561)
    member("offset-outside", 1, offset=10**9)
    member("offset-inside-another", 1, offset=600)
    member("digest-short", 1, digest="0" * 31)
    member("digest-long", 1, digest="0" * 33)
    member("digest-upper-case", 1, digest="A" * 32)
    member("digest-not-hex", 1, digest="g" * 32)
    member("digest-number", 1, digest=0)
    member("digest-of-itself", 0, digest="0" * 32)
    mf("digest-missing", lambda m: m["members"][1].pop("digest"))
    put("mf-not-json.fm", stream(text="{"))
    put("mf-array.fm", stream(text="[]"))
    put("mf-key-twice.fm", stream(text='{"schema": 1, "schema": 1}'))
    put("mf-checksums-junk.fm", stream())
    put("mf-manifest-second.fm", tar_header("build.json", 3) + padded(b"{}\n") + stream(
        members=["carried/config.json", "CHECKSUMS"]))
    listed = ["build.json", "carried/config.json", "extra", "CHECKSUMS"]
    put("mf-member-not-listed.fm", stream(members=listed))
    put("mf-member-unknown.fm", stream(add_extra, members=listed))


def add_extra(manifest):
    members = manifest["members"]
    at = members[-1]["offset"]
    members[-1]["offset"] += 512
    members.insert(-1, {"name": "extra", "size": 0, "offset": at, "digest": "0" * 32})


# 128, 256, 384, 512 twice, by zstd -19 --check.
FRAME = bytes.fromhex("28b52ffd2420b500008080000000000100008001000000020000010006994bcbca0c7b")


def frames():
    put("good-zs-eight-widths.zst", FRAME)
    for why, data in (("empty", b""), ("cut", FRAME[:-1]), ("junk-behind", FRAME + b"x"),
                      ("two-frames", FRAME + FRAME), ("magic", b"x" + FRAME[1:]),
                      ("legacy-v0.7", b"\x27" + FRAME[1:]),
                      ("skippable-alone", b"\x50\x2a\x4d\x18\4\0\0\0abcd"),
                      ("skippable-first", b"\x50\x2a\x4d\x18\4\0\0\0abcd" + FRAME),
                      ("skippable-last", FRAME + b"\x50\x2a\x4d\x18\4\0\0\0abcd"),
                      ("checksum", FRAME[:-1] + bytes([FRAME[-1] ^ 1])),
                      ("size-2-62", FRAME[:4] + b"\xe4" + struct.pack("<Q", 2**62) + FRAME[6:]),
                      ("size-31", FRAME[:5] + b"\x1f" + FRAME[6:]),
                      ("no-size", FRAME[:4] + b"\x04\x58" + FRAME[6:]),
                      ("no-checksum", FRAME[:4] + b"\x20" + FRAME[5:-4]),
                      ("dictionary", FRAME[:4] + b"\x25\1" + FRAME[5:]),
                      ("window-2-31", FRAME[:4] + b"\x84\xa8" + struct.pack("<I", 32) + FRAME[6:])):
        put(f"zs-{why}.zst", data)


def main():
    for name in os.listdir(ROOT):
        path = os.path.join(ROOT, name)
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif name != "EXPECT":
            os.remove(path)
    for make in (safetensors, directories, configs, texts, tokens, tars, manifests, frames):
        make()


if __name__ == "__main__":
    main()
