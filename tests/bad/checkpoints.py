"""Checkpoints that must be refused: st-* safetensors, ix-* directories, cf-* config.json, js-* JSON."""
import json
import struct

from put import put


def header(text, data=b"", n=None):
    """A safetensors file: the header's length, the header, the data."""
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


LFS = """version https://git-lfs.github.com/spec/v1
oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
size 4976698672
"""


def safetensors():
    put("st-empty.safetensors", b"")
    put("st-git-lfs.safetensors", LFS)
    put("st-git-annex.safetensors", "/annex/objects/SHA256E-s4976698672--0123.safetensors\n")
    put("st-git-xet.safetensors", "# xet version 0\nfilesize = 4976698672\n")
    put("st-html.safetensors", "\r\n<!DOCTYPE html>\n<html></html>\n")
    put("st-html-short.safetensors", "<html>")
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


# The smallest valid Mixtral with one layer.
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
    """A file with these names and shapes; all values are 0."""
    entries, at = {}, 0
    for name, shape in t.items():
        size = {"F32": 4, "I32": 4, "F16": 2, "BF16": 2, "U8": 1, "F8_E4M3": 1}[dtype(name)]
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
    index("git-lfs", LFS, two)
    put(model("config-git-lfs") + "config.json", LFS)
    put(model("config-html") + "config.json", "<!DOCTYPE html>\n")
    put(model("config-void") + "config.json", "")
    d = model("quant-git-lfs")
    put(d + "hf_quant_config.json", LFS)
    put(d + "model.safetensors", weights(tensors()))
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
            ("norm-missing", {k: s for k, s in t.items() if k != "model.norm.weight"}),
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
    put(model("layer-behind-the-last") + "model.safetensors",
        weights(t | {"model.layers.1.eh_proj.weight": [4, 8]}))
    for n in (480, 481):
        put(model(f"name-of-{n}-bytes", prefix="good-ix-" if n == 480 else "ix-")
            + "model.safetensors", weights(t | {"n" * n: [2]}))
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 1 << 20}
    put(model("gptq-zero-points-overflow", quantization_config=gptq) + "model.safetensors",
        weights({"x.qzeros": [1 << 57, 0]}, lambda name: "I32"))
    put(model("codes-empty", quantization_config={"quant_method": "fp8"}) + "model.safetensors",
        weights(t | {"x.weight": [0, 1 << 59], "x.weight_scale_inv": []},
                lambda name: "F8_E4M3" if name == "x.weight" else "F32"))
    put(model("indexer") + "model.safetensors",
        weights(t | {"model.layers.0.self_attn.indexer.wk.weight": [2, 4]}))


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
        cf("quantized-" + method, quantization_config={"quant_method": method, "fmt": "e5m2"})
    cf("mixtral-with-biases", attention_bias=True)
    cf("mixtral-clamped", clip_qkv=8.0)
    cf("indexer", index_topk=2048)
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
