"""The other families' rows of odd.py's table; each model has the features particular to its family."""

import torch

from goldens import Recipe
from odd import Odd


# --- tensors: names on disk, each with shape and standard deviation -------------------------------


def head_dim(c):
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


def ends(c):
    V, H = c["vocab_size"], c["hidden_size"]
    return {
        "model.embed_tokens.weight": ((V, H), 0.4),
        "model.norm.weight": ((H,), 0.3),
        "lm_head.weight": ((V, H), 0.3),
    }


def attention(c, p, std=0.25):
    H, C = c["hidden_size"], head_dim(c)
    q, g = c["num_attention_heads"] * C, c["num_key_value_heads"] * C
    return {
        p + "input_layernorm.weight": ((H,), 0.3),
        p + "self_attn.q_proj.weight": ((q, H), std),
        p + "self_attn.k_proj.weight": ((g, H), std),
        p + "self_attn.v_proj.weight": ((g, H), 0.2),
        p + "self_attn.o_proj.weight": ((H, q), 0.1),
        p + "post_attention_layernorm.weight": ((H,), 0.3),
    }


def feed_forward(p, H, I, names=("gate_proj", "up_proj", "down_proj"), down=0.25):
    gate, up, back = (f"{p}{name}.weight" for name in names)
    return {gate: ((I, H), 0.25), up: ((I, H), 0.25), back: ((H, I), down)}


def experts(c, p, E, I, down):
    """Router and experts under Qwen's and OLMoE's names."""
    table = {p + "mlp.gate.weight": ((E, c["hidden_size"]), 0.3)}
    for e in range(E):
        table |= feed_forward(f"{p}mlp.experts.{e}.", c["hidden_size"], I, down=down)
    return table


def layers(c):
    return ((l, f"model.layers.{l}.") for l in range(c["num_hidden_layers"]))


def qwen3_shapes(c):
    table, C = ends(c), head_dim(c)
    for _, p in layers(c):
        table |= attention(c, p)
        table |= {p + f"self_attn.{x}_norm.weight": ((C,), 0.4) for x in "qk"}
        table |= experts(c, p, c["num_local_experts"], c["moe_intermediate_size"], 0.2)
    return table


def olmoe_shapes(c):
    table = ends(c)
    for _, p in layers(c):
        table |= attention(c, p)
        for x, heads in (("q", "num_attention_heads"), ("k", "num_key_value_heads")):
            table[p + f"self_attn.{x}_norm.weight"] = ((c[heads] * head_dim(c),), 0.4)
        table |= experts(c, p, c["num_experts"], c["intermediate_size"], 0.3)
    return table


def qwen2_shapes(c):
    table, H = ends(c), c["hidden_size"]
    for l, p in layers(c):
        table |= attention(c, p)
        for x, heads in (("q", "num_attention_heads"), ("k", "num_key_value_heads"),
                         ("v", "num_key_value_heads")):  # fmt: skip
            table[p + f"self_attn.{x}_proj.bias"] = ((c[heads] * head_dim(c),), 0.5)
        if l in c["mlp_only_layers"] or (l + 1) % c["decoder_sparse_step"] != 0:
            table |= feed_forward(p + "mlp.", H, c["intermediate_size"], down=0.1)
            continue
        table |= experts(c, p, c["num_experts"], c["moe_intermediate_size"], 0.4)
        wide = c["shared_expert_intermediate_size"]
        table |= feed_forward(p + "mlp.shared_expert.", H, wide, down=0.1)
        table[p + "mlp.shared_expert_gate.weight"] = ((1, H), 0.3)
    return table


def phimoe_shapes(c):
    H, V, C = c["hidden_size"], c["vocab_size"], head_dim(c)
    table = ends(c) | {"model.norm.bias": ((H,), 0.3), "lm_head.bias": ((V,), 0.5)}
    for _, p in layers(c):
        table |= attention(c, p, 0.2)
        for x, n in (("q", c["num_attention_heads"] * C), ("k", c["num_key_value_heads"] * C),
                     ("v", c["num_key_value_heads"] * C), ("o", H)):  # fmt: skip
            table[p + f"self_attn.{x}_proj.bias"] = ((n,), 0.4)
        for x in ("input", "post_attention"):
            table[p + f"{x}_layernorm.bias"] = ((H,), 0.3)
        table[p + "block_sparse_moe.gate.weight"] = ((c["num_local_experts"], H), 0.3)
        for e in range(c["num_local_experts"]):
            x = f"{p}block_sparse_moe.experts.{e}."
            table |= feed_forward(x, H, c["intermediate_size"], ("w1", "w3", "w2"), down=0.15)
    return table


def biases(c, p, std=0.5):
    """The biases of q, k and v."""
    heads = {"q": "num_attention_heads", "k": "num_key_value_heads", "v": "num_key_value_heads"}
    return {p + f"self_attn.{x}_proj.bias": ((c[n] * head_dim(c),), std) for x, n in heads.items()}


def glm4_shapes(c):
    table, H, E, I = ends(c), c["hidden_size"], c["n_routed_experts"], c["moe_intermediate_size"]
    for l, p in layers(c):
        table |= attention(c, p) | biases(c, p)
        table |= {p + f"self_attn.{x}_norm.weight": ((head_dim(c),), 0.4) for x in "qk"}
        if l < c["first_k_dense_replace"]:
            table |= feed_forward(p + "mlp.", H, c["intermediate_size"], down=0.1)
            continue
        table |= experts(c, p, E, I, 0.3)
        table[p + "mlp.gate.e_score_correction_bias"] = ((E,), 0.2)
        table |= feed_forward(p + "mlp.shared_experts.", H, c["n_shared_experts"] * I, down=0.1)
    return table


def dots1_shapes(c):
    table, H = glm4_shapes(c), c["hidden_size"]
    for _, p in layers(c):
        table[p + "self_attn.o_proj.bias"] = ((H,), 0.4)
    return table


def solar_shapes(c):
    """GLM-4.5's tensors without norms of q and k; every layer has experts."""
    table = glm4_shapes(c | {"first_k_dense_replace": 0})
    return {n: t for n, t in table.items() if not n.endswith(("q_norm.weight", "k_norm.weight"))}


HY_NAMES = (
    ("mlp.gate.weight", "mlp.router.gate.weight"),
    ("mlp.gate.e_score_correction_bias", "mlp.expert_bias"),
    ("mlp.shared_experts.", "mlp.shared_mlp."),
)


def renamed(table, names):
    for usual, own in names:
        table = {n.replace(usual, own): t for n, t in table.items()}
    return table


def hy_shapes(c):
    sizes = {"n_routed_experts": c["num_experts"], "n_shared_experts": c["num_shared_experts"]}
    sizes["first_k_dense_replace"] = c["mlp_layer_types"].index("sparse")
    return renamed(dots1_shapes(c | sizes), HY_NAMES)


def minimax_shapes(c):
    table, H, E, C = ends(c), c["hidden_size"], c["num_local_experts"], head_dim(c)
    for _, p in layers(c):
        table |= attention(c, p)
        for x, heads in (("q", "num_attention_heads"), ("k", "num_key_value_heads")):
            table[p + f"self_attn.{x}_norm.weight"] = ((c[heads] * C,), 0.4)
        table[p + "block_sparse_moe.gate.weight"] = ((E, H), 0.3)
        table[p + "block_sparse_moe.e_score_correction_bias"] = ((E,), 0.2)
        for e in range(E):
            x = f"{p}block_sparse_moe.experts.{e}."
            table |= feed_forward(x, H, c["intermediate_size"], ("w1", "w3", "w2"), down=0.3)
    return table


def ernie_shapes(c):
    table, H, E, I = ends(c), c["hidden_size"], c["moe_num_experts"], c["moe_intermediate_size"]
    del table["lm_head.weight"]
    first, last = c["moe_layer_start_index"], c["moe_layer_end_index"]
    for l, p in layers(c):
        table |= attention(c, p)
        if (l + 1) % c["moe_layer_interval"] or not first <= l <= last:
            table |= feed_forward(p + "mlp.", H, c["intermediate_size"], down=0.1)
            continue
        table |= experts(c, p, E, I, 0.4)
        table[p + "mlp.moe_statics.e_score_correction_bias"] = ((1, E), 0.03)
        shared = c["moe_num_shared_experts"] * I
        table |= feed_forward(p + "mlp.shared_experts.", H, shared, down=0.1)
    return table


def latent_attention(c, p):
    H, Q, r, k = (c[x] for x in ("hidden_size", "num_attention_heads", "q_lora_rank", "kv_lora_rank"))
    A, R, D = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    a = p + "self_attn."
    table = {
        p + "input_layernorm.weight": ((H,), 0.3),
        a + "kv_a_proj_with_mqa.weight": ((k + R, H), 0.25),
        a + "kv_a_layernorm.weight": ((k,), 0.3),
        a + "kv_b_proj.weight": ((Q * (A + D), k), 0.3),
        a + "o_proj.weight": ((H, Q * D), 0.1),
        p + "post_attention_layernorm.weight": ((H,), 0.3),
    }
    if c["attention_bias"]:
        table |= {a + "kv_a_proj_with_mqa.bias": ((k + R,), 0.5), a + "o_proj.bias": ((H,), 0.3)}
    if r is None:
        return table | {a + "q_proj.weight": ((Q * (A + R), H), 0.25)}
    if c["attention_bias"]:
        table[a + "q_a_proj.bias"] = ((r,), 0.5)
    return table | {
        a + "q_a_proj.weight": ((r, H), 0.25),
        a + "q_a_layernorm.weight": ((r,), 0.3),
        a + "q_b_proj.weight": ((Q * (A + R), r), 0.3),
    }


def deepseek_shapes(c):
    table, H, E, I = ends(c), c["hidden_size"], c["n_routed_experts"], c["moe_intermediate_size"]
    for l, p in layers(c):
        table |= latent_attention(c, p)
        types = c.get("mlp_layer_types")
        if types[l] == "dense" if types else l < c["first_k_dense_replace"]:
            table |= feed_forward(p + "mlp.", H, c["intermediate_size"], down=0.1)
            continue
        table |= experts(c, p, E, I, 0.3)
        if c["model_type"] != "deepseek_v2":
            table[p + "mlp.gate.e_score_correction_bias"] = ((E,), 0.2)
        table |= feed_forward(p + "mlp.shared_experts.", H, c["n_shared_experts"] * I, down=0.1)
    return table


def indexed_shapes(c):
    """Layers with a sparse indexer, whose tensors get no gradient."""
    table, n, C = deepseek_shapes(c), c["index_n_heads"], c["index_head_dim"]
    for l, p in layers(c):
        if l > 1 and "index_topk_freq" in c and (l - 1) % c["index_topk_freq"]:
            continue  # index_skip_topk_offset 2
        x = p + "self_attn.indexer."
        table |= {
            x + "wq_b.weight": ((n * C, c["q_lora_rank"]), 0.3),
            x + "wk.weight": ((C, c["hidden_size"]), 0.25),
            x + "k_norm.weight": ((C,), 0.3),
            x + "k_norm.bias": ((C,), 0.3),
            x + "weights_proj.weight": ((n, c["hidden_size"]), 0.25),
        }
    return table


def axk1_shapes(c):
    """The norm after the experts is also in the dense layer, where nothing reads it."""
    norms = {p + "post_mlp_layernorm.weight": ((c["hidden_size"],), 0.3) for _, p in layers(c)}
    return deepseek_shapes(c) | norms


EXAONE_NAMES = (("mlp.gate.e_score_correction_bias", "mlp.e_score_correction_bias"),)


def exaone_shapes(c):
    sizes = {"n_routed_experts": c["num_experts"], "n_shared_experts": c["num_shared_experts"]}
    return renamed(without_biases(glm4_shapes(c | sizes)), EXAONE_NAMES)


def without_biases(table):
    return {n: t for n, t in table.items() if not n.endswith("_proj.bias")}


AFMOE_NAMES = HY_NAMES[:2]


def afmoe_shapes(c):
    sizes = {"n_routed_experts": c["num_experts"], "n_shared_experts": c["num_shared_experts"]}
    sizes["first_k_dense_replace"] = c["num_dense_layers"]
    table, H = renamed(dots1_shapes(c | sizes), AFMOE_NAMES), c["hidden_size"]
    for _, p in layers(c):
        table |= {p + f"{x}_mlp_layernorm.weight": ((H,), 0.3) for x in ("pre", "post")}
        table[p + "self_attn.gate_proj.weight"] = ((c["num_attention_heads"] * head_dim(c), H), 0.3)
    return table


LAGUNA_NAMES = (
    ("mlp.gate.e_score_correction_bias", "mlp.experts.e_score_correction_bias"),
    ("mlp.shared_experts.", "mlp.shared_expert."),
)


def laguna_shapes(c):
    """Each layer has its own number of query heads, and a gate for each head."""
    sizes = {"n_routed_experts": c["num_experts"], "n_shared_experts": 1}
    sizes["first_k_dense_replace"] = c["mlp_layer_types"].index("sparse")
    table, H = dots1_shapes(c | sizes), c["hidden_size"]
    for l, p in layers(c):
        heads = c["num_attention_heads_per_layer"][l]
        a, q = p + "self_attn.", heads * head_dim(c)
        table |= {
            a + "q_proj.weight": ((q, H), 0.25),
            a + "q_proj.bias": ((q,), 0.5),
            a + "o_proj.weight": ((H, q), 0.1),
            a + "g_proj.weight": ((heads, H), 0.3),
        }
        x, wide = p + "mlp.shared_experts.", c["shared_expert_intermediate_size"]
        if x + "up_proj.weight" in table:
            table |= feed_forward(x, H, wide, down=0.1)
    return renamed(table, LAGUNA_NAMES)


def mimo_shapes(c):
    """Layers with a window have sinks and twice the key heads; values are narrower than keys."""
    sizes = {"first_k_dense_replace": c["moe_layer_freq"].index(1), "n_shared_experts": 1}
    table, H, Q, D = glm4_shapes(c | sizes), c["hidden_size"], c["num_attention_heads"], c["v_head_dim"]
    table = {n: t for n, t in table.items() if "_norm.w" not in n and ".shared_experts." not in n}
    table |= {n: t for n, t in ends(c).items()}
    for l, p in layers(c):
        window = c["hybrid_layer_pattern"][l]
        G, a = c["num_key_value_heads"] * (1 + window), p + "self_attn."
        for x, width in (("k", G * head_dim(c)), ("v", G * D)):
            table |= {a + f"{x}_proj.weight": ((width, H), 0.25), a + f"{x}_proj.bias": ((width,), 0.5)}
        table[a + "o_proj.weight"] = ((H, Q * D), 0.15)
        if window:
            table[a + "attention_sink_bias"] = ((Q,), 1.0)
    return table


def minimax_m3_shapes(c):
    """Tensors as transformers' text class saves them: gate and up of every MLP are fused; a sparse indexer
    gets no gradient."""
    table, H, E, I = ends(c), c["hidden_size"], c["num_local_experts"], c["intermediate_size"]
    both = lambda p, wide: {
        p + "gate_up_proj.weight": ((2 * wide, H), 0.25), p + "down_proj.weight": ((H, wide), 0.1)
    }  # fmt: skip
    for l, p in layers(c):
        table |= attention(c, p) | {p + f"self_attn.{x}_norm.weight": ((head_dim(c),), 0.4) for x in "qk"}
        if c["layer_types"][l] == "minimax_m3_sparse":
            x, C = p + "self_attn.indexer.", c["index_head_dim"]
            table |= {x + "q_proj.weight": ((c["index_n_heads"] * C, H), 0.25), x + "k_proj.weight": ((C, H), 0.25)}
            table |= {x + f"{y}_norm.weight": ((C,), 0.3) for y in "qk"}
        if c["mlp_layer_types"][l] == "dense":
            table |= both(p + "mlp.", c["dense_intermediate_size"])
            continue
        table |= both(p + "mlp.shared_experts.", c["shared_intermediate_size"]) | {
            p + "mlp.gate.weight": ((E, H), 0.3),
            p + "mlp.gate.e_score_correction_bias": ((E,), 0.2),
            p + "mlp.experts.gate_up_proj": ((E, 2 * I, H), 0.25),
            p + "mlp.experts.down_proj": ((E, H, I), 0.2),
        }
    return table


LFM_NAMES = (
    ("input_layernorm", "operator_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    (".o_proj.", ".out_proj."),
    ("model.norm.", "model.embedding_norm."),
)


def lfm_shapes(c):
    """Tied embeddings; short convolutions in most layers, attention with norms of q and k in the others."""
    table, H, E = ends(c), c["hidden_size"], c["num_experts"]
    del table["lm_head.weight"]
    for l, p in layers(c):
        norms = {n: t for n, t in attention(c, p).items() if "layernorm" in n}
        if c["layer_types"][l] == "conv":
            table |= norms | {
                p + "conv.in_proj.weight": ((3 * H, H), 0.25),
                p + "conv.conv.weight": ((H, 1, c["conv_L_cache"]), 0.6),
                p + "conv.out_proj.weight": ((H, H), 0.1),
            }
        else:
            table |= attention(c, p)
            table |= {p + f"self_attn.{x}_layernorm.weight": ((head_dim(c),), 0.4) for x in "qk"}
        p, names = p + "feed_forward.", ("w1", "w3", "w2")
        if l < c["num_dense_layers"]:
            table |= feed_forward(p, H, c["intermediate_size"], names, down=0.1)
            continue
        table |= {p + "gate.weight": ((E, H), 0.3), p + "expert_bias": ((E,), 0.2)}
        for e in range(E):
            table |= feed_forward(f"{p}experts.{e}.", H, c["moe_intermediate_size"], names, down=0.2)
    return renamed(table, LFM_NAMES)


def granite_shapes(c):
    """Tied embeddings; gate and up are fused in the experts and in the shared expert."""
    table, H, E, I = ends(c), c["hidden_size"], c["num_local_experts"], c["intermediate_size"]
    del table["lm_head.weight"]
    wide = c.get("shared_intermediate_size")
    for _, p in layers(c):
        x = p + "block_sparse_moe."
        table |= attention(c, p) | biases(c, p) | {
            p + "self_attn.o_proj.bias": ((H,), 0.3),
            x + "router.layer.weight": ((E, H), 0.3),
            x + "input_linear.weight": ((E, 2 * I, H), 0.25),
            x + "output_linear.weight": ((E, H, I), 0.2),
        }
        if wide:
            table[p + "shared_mlp.input_linear.weight"] = ((2 * wide, H), 0.25)
            table[p + "shared_mlp.output_linear.weight"] = ((H, wide), 0.1)
    return table


def gpt_oss_shapes(c):
    table, H, E, I = ends(c), c["hidden_size"], c["num_local_experts"], c["intermediate_size"]
    for _, p in layers(c):
        table |= attention(c, p) | biases(c, p) | {p + "self_attn.o_proj.bias": ((H,), 0.3)}
        x = p + "mlp."
        table |= {
            p + "self_attn.sinks": ((c["num_attention_heads"],), 1.0),
            x + "router.weight": ((E, H), 0.3),
            x + "router.bias": ((E,), 0.3),
            x + "experts.gate_up_proj": ((E, H, 2 * I), 0.25),
            x + "experts.gate_up_proj_bias": ((E, 2 * I), 0.5),
            x + "experts.down_proj": ((E, I, H), 0.2),
            x + "experts.down_proj_bias": ((E, H), 0.2),
        }
    return table


def deltanet(c, p):
    """A layer of Gated DeltaNet: q, k, v, z are in one tensor, ordered by key head, and b, a in another."""
    H, G, Q = c["hidden_size"], c["linear_num_key_heads"], c["linear_num_value_heads"]
    k, v = G * c["linear_key_head_dim"], Q * c["linear_value_head_dim"]
    a = p + "linear_attn."
    return {
        p + "input_layernorm.weight": ((H,), 0.3),
        a + "in_proj_qkvz.weight": ((2 * k + 2 * v, H), 0.25),
        a + "in_proj_ba.weight": ((2 * Q, H), 0.25),
        a + "conv1d.weight": ((2 * k + v, 1, c["linear_conv_kernel_dim"]), 1.5),
        a + "A_log": ((Q,), 1.0),
        a + "dt_bias": ((Q,), 0.5),
        a + "norm.weight": ((c["linear_value_head_dim"],), 0.3),
        a + "out_proj.weight": ((H, v), 0.09),
        p + "post_attention_layernorm.weight": ((H,), 0.3),
    }


def gated_attention(c, p):
    table = attention(c, p)
    rows, H = table[p + "self_attn.q_proj.weight"][0]
    table[p + "self_attn.q_proj.weight"] = ((2 * rows, H), 0.25)
    return table | {p + f"self_attn.{x}_norm.weight": ((head_dim(c),), 0.4) for x in "qk"}


def qwen3_next_shapes(c):
    table, H, interval = ends(c), c["hidden_size"], c["full_attention_interval"]
    for l, p in layers(c):
        table |= deltanet(c, p) if (l + 1) % interval else gated_attention(c, p)
        if l in c["mlp_only_layers"]:
            table |= feed_forward(p + "mlp.", H, c["intermediate_size"], down=0.1)
            continue
        table |= experts(c, p, c["num_experts"], c["moe_intermediate_size"], 0.4)
        wide = c["shared_expert_intermediate_size"]
        table |= feed_forward(p + "mlp.shared_expert.", H, wide, down=0.1)
        table[p + "mlp.shared_expert_gate.weight"] = ((1, H), 0.3)
    return table


def qwen35_shapes(c):
    """Tensors as on the hub: experts are fused, the text part has a prefix, and there are parts not used for text."""
    table, H, I, E = {}, c["hidden_size"], c["moe_intermediate_size"], c["num_experts"]
    for l, p in layers(c):
        if c["layer_types"][l] == "linear_attention":
            table |= deltanet(c, p)
            del table[p + "linear_attn.in_proj_qkvz.weight"], table[p + "linear_attn.in_proj_ba.weight"]
            k, v = c["linear_num_key_heads"] * c["linear_key_head_dim"], c["linear_num_value_heads"]
            wide = v * c["linear_value_head_dim"]
            for x, rows in (("qkv", 2 * k + wide), ("z", wide), ("b", v), ("a", v)):
                table[p + f"linear_attn.in_proj_{x}.weight"] = ((rows, H), 0.25)
        else:
            table |= gated_attention(c, p)
        table |= {
            p + "mlp.gate.weight": ((E, H), 0.3),
            p + "mlp.experts.gate_up_proj": ((E, 2 * I, H), 0.25),
            p + "mlp.experts.down_proj": ((E, H, I), 0.4),
            p + "mlp.shared_expert_gate.weight": ((1, H), 0.3),
        }
        wide = c["shared_expert_intermediate_size"]
        table |= feed_forward(p + "mlp.shared_expert.", H, wide, down=0.1)
    table |= ends(c)
    named = lambda n: n if n.startswith("lm_head") else n.replace("model.", "model.language_model.", 1)
    table = {named(n): t for n, t in table.items()}
    return table | {
        "model.visual.patch_embed.proj.weight": ((16, 3, 2, 4, 4), 0.1),
        "model.visual.patch_embed.proj.bias": ((16,), 0.1),
        "mtp.fc.weight": ((H, 2 * H), 0.1),
        "mtp.layers.0.mlp.experts.down_proj": ((E, H, I), 0.1),
    }


def around_zero(tensors):
    """Norms multiply by 1 + w, except inside DeltaNets, where norms and the decay are float32."""
    for name, tensor in tensors.items():
        if name.endswith(("linear_attn.norm.weight", "A_log")):
            tensors[name] = tensor.float()
        elif name.endswith("norm.weight"):
            tensors[name] = tensor - 1


def keep_biases(tensors):
    """The biases by which experts are chosen are float32 on the hub, whatever the type of the weights."""
    for name in tensors:
        if name.endswith(("e_score_correction_bias", "expert_bias")):
            tensors[name] = tensors[name].float()


def around_zero_with_biases(tensors):
    around_zero(tensors)
    keep_biases(tensors)


# --- rows -----------------------------------------------------------------------------------------


QWEN3 = Odd(
    seed=30,
    T=21,
    own={  # as transformers 5 saves it: num_local_experts, dtype, rope_parameters
        "architectures": ["Qwen3MoeForCausalLM"],
        "attention_bias": False,
        "bos_token_id": None,
        "decoder_sparse_step": 1,
        "dtype": "bfloat16",
        "eos_token_id": None,
        "head_dim": 14,
        "hidden_size": 44,
        "intermediate_size": 61,  # of dense layers; this model has no dense layer
        "mlp_only_layers": [],
        "model_type": "qwen3_moe",
        "moe_intermediate_size": 29,
        "norm_topk_prob": True,
        "num_attention_heads": 6,
        "num_experts_per_tok": 3,
        "num_hidden_layers": 3,
        "num_local_experts": 7,
        "pad_token_id": None,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
        "sliding_window": None,
        "transformers_version": "5.23.0",
        "use_sliding_window": False,
        "vocab_size": 101,
    },
    shapes=qwen3_shapes,
    recipe=Recipe(seed=31, actions=(3, 12, 21, 29), gap_min=2e-4),
)

OLMOE = Odd(
    seed=41,
    T=19,
    own={
        "architectures": ["OlmoeForCausalLM"],
        "attention_bias": False,
        "clip_qkv": 1.25,
        "eos_token_id": 2,
        "hidden_size": 48,
        "intermediate_size": 23,
        "model_type": "olmoe",
        "norm_topk_prob": False,
        "num_attention_heads": 4,
        "num_experts": 9,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 2,
        "pad_token_id": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "router_aux_loss_coef": 0.01,
        "torch_dtype": "float32",
        "transformers_version": "4.45.0",
        "vocab_size": 89,
    },
    shapes=olmoe_shapes,
    dtype=torch.float32,
    recipe=Recipe(seed=41, actions=(3, 10, 17, 23), gap_min=2e-4),
)

QWEN2 = Odd(
    seed=52,
    T=22,
    own={
        "architectures": ["Qwen2MoeForCausalLM"],
        "bos_token_id": 1,
        "decoder_sparse_step": 2,  # layers 1, 3 and 5; mlp_only_layers removes 3
        "eos_token_id": 2,
        "hidden_size": 40,
        "intermediate_size": 51,
        "max_window_layers": 2,
        "mlp_only_layers": [3],
        "model_type": "qwen2_moe",
        "moe_intermediate_size": 27,
        "norm_topk_prob": False,
        "num_attention_heads": 4,
        "num_experts": 6,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 6,
        "qkv_bias": True,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "shared_expert_intermediate_size": 34,
        "sliding_window": 5,  # disabled by use_sliding_window
        "torch_dtype": "bfloat16",
        "transformers_version": "4.40.0",
        "use_sliding_window": False,
        "vocab_size": 103,
    },
    shapes=qwen2_shapes,
    shards=3,
    recipe=Recipe(seed=53, actions=(3, 11, 19, 27), gap_min=2e-4),
)

PHIMOE = Odd(
    seed=60,
    T=23,
    own={  # as transformers 5 saves it: the class's new name, rope_parameters
        "architectures": ["PhimoeForCausalLM"],
        "attention_bias": True,
        "bos_token_id": 1,
        "dtype": "float16",
        "eos_token_id": 2,
        "hidden_size": 56,
        "input_jitter_noise": 0.01,  # used in training, not in evaluation
        "intermediate_size": 33,
        "lm_head_bias": True,
        "max_position_embeddings": 128,
        "model_type": "phimoe",
        "num_attention_heads": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 3,
        "num_local_experts": 6,
        "original_max_position_embeddings": 32,
        "pad_token_id": None,
        "rms_norm_eps": 1e-05,
        "rope_parameters": {
            "long_factor": [1.5, 2.0, 3.5, 5.0, 8.0, 13.0, 21.0],
            "long_mscale": 1.6,
            "original_max_position_embeddings": 32,
            "rope_theta": 10000.0,
            "rope_type": "longrope",
            "short_factor": [1.0, 1.04, 1.1, 1.25, 1.3, 1.7, 2.2],
            "short_mscale": 1.243163121016122,
        },
        "router_jitter_noise": 0.2,  # so large that experts besides the first are kept
        "sliding_window": 11,
        "transformers_version": "5.23.0",
        "vocab_size": 83,
    },
    shapes=phimoe_shapes,
    dtype=torch.float16,
    recipe=Recipe(seed=61, actions=(4, 14, 24, 33), gap_min=2e-5),
)

GLM4 = Odd(
    seed=71,
    own={  # as transformers 5 saves it
        "architectures": ["Glm4MoeForCausalLM"],
        "attention_bias": True,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": None,
        "first_k_dense_replace": 2,
        "head_dim": 20,
        "hidden_size": 44,
        "intermediate_size": 53,
        "model_type": "glm4_moe",
        "moe_intermediate_size": 19,
        "n_group": 3,
        "n_routed_experts": 12,
        "n_shared_experts": 2,
        "norm_topk_prob": True,
        "num_attention_heads": 6,
        "num_experts_per_tok": 3,
        "num_hidden_layers": 4,
        "num_nextn_predict_layers": 0,
        "pad_token_id": None,
        "rms_norm_eps": 1e-05,
        "rope_parameters": {
            "partial_rotary_factor": 0.3,
            "rope_theta": 100000.0,
            "rope_type": "default",
        },
        "routed_scaling_factor": 2.5,
        "topk_group": 2,
        "transformers_version": "5.23.0",
        "use_qk_norm": True,
        "vocab_size": 97,
    },
    shapes=glm4_shapes,
    shards=2,
    recipe=Recipe(seed=71, actions=(2, 8, 14, 19), gap_min=2e-5),
    tweak=keep_biases,
)

DOTS1 = Odd(
    seed=172,
    T=21,
    own={  # as transformers 5 saves it
        "architectures": ["Dots1ForCausalLM"],
        "attention_bias": True,
        "dtype": "float16",
        "first_k_dense_replace": 1,
        "head_dim": 18,
        "hidden_size": 52,
        "intermediate_size": 49,
        "layer_types": ["full_attention"] * 3,
        "max_window_layers": 62,
        "model_type": "dots1",
        "moe_intermediate_size": 22,
        "n_group": 1,
        "n_routed_experts": 9,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "num_attention_heads": 4,
        "num_experts_per_tok": 3,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 50000.0, "rope_type": "default"},
        "routed_scaling_factor": 3.5,
        "sliding_window": 4096,
        "topk_group": 1,
        "transformers_version": "5.23.0",
        "vocab_size": 91,
    },
    shapes=dots1_shapes,
    dtype=torch.float16,
    recipe=Recipe(seed=172, actions=(3, 9, 16, 22), gap_min=2e-5),
    tweak=keep_biases,
)

SOLAR = Odd(
    seed=181,
    own={  # as its authors write it
        "architectures": ["SolarOpenForCausalLM"],
        "attention_bias": True,
        "bos_token_id": 1,
        "dtype": "bfloat16",
        "eos_token_id": 2,
        "first_k_dense_replace": 0,
        "head_dim": 18,
        "hidden_size": 36,
        "intermediate_size": 51,  # of dense layers; this model has no dense layer
        "model_type": "solar_open",
        "moe_intermediate_size": 17,
        "n_group": 2,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 4,
        "num_experts_per_tok": 3,
        "num_hidden_layers": 2,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 8.0,
            "beta_slow": 1.0,
            "factor": 2.0,
            "original_max_position_embeddings": 16,
            "type": "yarn",
        },
        "rope_theta": 100.0,
        "routed_scaling_factor": 1.75,
        "topk_group": 1,
        "transformers_version": "4.57.1",
        "use_qk_norm": False,
        "vocab_size": 89,
    },
    shapes=solar_shapes,
    recipe=Recipe(seed=180, actions=(2, 7, 12, 17), gap_min=2e-5),
    tweak=keep_biases,
)

HY3 = Odd(
    seed=200,
    T=19,
    own={  # as its authors write it
        "architectures": ["HYV3ForCausalLM"],
        "attention_bias": True,
        "dtype": "float16",
        "enable_lm_head_fp32": True,
        "enable_moe_fp32_combine": False,
        "expert_hidden_dim": 19,
        "first_k_dense_replace": 1,
        "head_dim": 14,
        "hidden_size": 40,
        "intermediate_size": 47,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "model_type": "hy_v3",
        "moe_intermediate_size": 19,
        "moe_router_enable_expert_bias": True,
        "moe_router_use_sigmoid": True,
        "num_attention_heads": 6,
        "num_experts": 7,
        "num_experts_per_tok": 3,
        "num_hidden_layers": 3,
        "num_nextn_predict_layers": 0,
        "num_shared_experts": 2,
        "qk_norm": True,
        "rms_norm_eps": 1e-05,
        "rope_parameters": {"rope_theta": 11158840.0, "rope_type": "default"},
        "route_norm": True,
        "router_scaling_factor": 2.826,
        "transformers_version": "5.6.0",
        "vocab_size": 97,
    },
    shapes=hy_shapes,
    dtype=torch.float16,
    recipe=Recipe(seed=191, actions=(2, 8, 14, 19), gap_min=2e-5),
    tweak=keep_biases,
)

MINIMAX = Odd(
    seed=82,
    T=22,
    own={  # as its authors write it
        "architectures": ["MiniMaxM2ForCausalLM"],
        "attn_type_list": [1, 1, 1],
        "bos_token_id": None,
        "eos_token_id": None,
        "head_dim": 14,
        "hidden_size": 48,
        "intermediate_size": 25,
        "layernorm_full_attention_beta": 1.0,
        "model_type": "minimax_m2",
        "num_attention_heads": 4,
        "num_experts_per_tok": 3,
        "num_hidden_layers": 3,
        "num_local_experts": 11,
        "qk_norm_type": "per_layer",
        "rms_norm_eps": 1e-06,
        "rope_theta": 5000000,
        "rotary_dim": 6,
        "router_jitter_noise": 0.0,
        "scoring_func": "sigmoid",
        "shared_intermediate_size": 0,
        "sliding_window": None,
        "torch_dtype": "float16",
        "transformers_version": "4.46.1",
        "use_qk_norm": True,
        "use_routing_bias": True,
        "vocab_size": 101,
    },
    shapes=minimax_shapes,
    dtype=torch.float16,  # the bias, too
    recipe=Recipe(seed=81, actions=(3, 10, 18, 25), gap_min=2e-5),
)

ERNIE = Odd(
    seed=90,
    T=21,
    own={
        "architectures": ["Ernie4_5_MoeForCausalLM"],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_size": 48,
        "intermediate_size": 57,
        "model_type": "ernie4_5_moe",
        "moe_capacity": [10, 10, 10],
        "moe_intermediate_size": 21,
        "moe_k": 3,
        "moe_layer_end_index": 4,
        "moe_layer_interval": 2,  # layers 1 and 3
        "moe_layer_start_index": 1,
        "moe_norm_min": 0.6,  # some sums are larger, some smaller
        "moe_num_experts": 10,
        "moe_num_shared_experts": 2,
        "moe_use_aux_free": True,
        "num_attention_heads": 4,
        "num_hidden_layers": 6,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "transformers_version": "4.54.0",
        "use_bias": False,
        "vocab_size": 103,
    },
    shapes=ernie_shapes,
    dtype=torch.float32,
    recipe=Recipe(seed=91, actions=(2, 8, 15, 21)),
)

DSV2 = Odd(
    seed=108,
    T=21,
    own={  # as its authors write it
        "architectures": ["DeepseekV2ForCausalLM"],
        "attention_bias": False,
        "aux_loss_alpha": 0.001,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "first_k_dense_replace": 1,
        "hidden_size": 44,
        "intermediate_size": 53,
        "kv_lora_rank": 12,  # transformers fails if this plus qk_rope_head_dim is odd
        "model_type": "deepseek_v2",
        "moe_intermediate_size": 21,
        "moe_layer_freq": 1,
        "n_group": 3,
        "n_routed_experts": 12,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "num_attention_heads": 4,
        "num_experts_per_tok": 3,
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "pretraining_tp": 1,
        "q_lora_rank": None,
        "qk_nope_head_dim": 10,
        "qk_rope_head_dim": 6,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 4,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 16,
            "type": "yarn",
        },
        "rope_theta": 30,
        "routed_scaling_factor": 1.75,
        "scoring_func": "softmax",
        "seq_aux": True,
        "topk_group": 2,
        "topk_method": "group_limited_greedy",
        "torch_dtype": "bfloat16",
        "transformers_version": "4.33.1",
        "v_head_dim": 7,
        "vocab_size": 97,
    },
    shapes=deepseek_shapes,
    recipe=Recipe(seed=101, actions=(2, 9, 15, 21), gap_min=5e-6),
)

DSV3 = Odd(
    seed=110,
    own={  # as transformers 5 saves it
        "architectures": ["DeepseekV3ForCausalLM"],
        "attention_bias": True,
        "bos_token_id": 0,
        "dtype": "bfloat16",
        "eos_token_id": 1,
        "first_k_dense_replace": 1,
        "head_dim": 10,
        "hidden_size": 48,
        "intermediate_size": 57,
        "kv_lora_rank": 15,
        "model_type": "deepseek_v3",
        "moe_intermediate_size": 17,
        "n_group": 4,
        "n_routed_experts": 12,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 6,
        "num_experts_per_tok": 3,
        "num_hidden_layers": 3,
        "num_key_value_heads": 6,
        "num_nextn_predict_layers": 0,
        "pretraining_tp": 1,
        "q_lora_rank": 17,
        "qk_head_dim": 18,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 10,
        "rms_norm_eps": 1e-06,
        "rope_interleave": True,
        "rope_parameters": {
            "beta_fast": 8,
            "beta_slow": 1,
            "factor": 4.0,
            "mscale": 1.0,
            "mscale_all_dim": 0.8,
            "original_max_position_embeddings": 16,
            "rope_theta": 100.0,
            "rope_type": "yarn",
        },
        "routed_scaling_factor": 2.5,
        "topk_group": 2,
        "transformers_version": "5.23.0",
        "v_head_dim": 9,
        "vocab_size": 101,
    },
    shapes=deepseek_shapes,
    shards=2,
    recipe=Recipe(seed=111, actions=(2, 7, 12, 17)),
    tweak=keep_biases,
)

MOONLIGHT = Odd(
    seed=122,
    T=22,
    own={  # as its authors write it
        "architectures": ["DeepseekV3ForCausalLM"],
        "attention_bias": False,
        "aux_loss_alpha": 0.001,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "first_k_dense_replace": 1,
        "hidden_size": 40,
        "intermediate_size": 51,
        "kv_lora_rank": 14,
        "model_type": "deepseek_v3",
        "moe_intermediate_size": 23,
        "moe_layer_freq": 1,
        "n_group": 1,
        "n_routed_experts": 9,
        "n_shared_experts": 2,
        "norm_topk_prob": True,
        "num_attention_heads": 5,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 3,
        "num_key_value_heads": 5,
        "num_nextn_predict_layers": 0,
        "q_lora_rank": None,
        "qk_nope_head_dim": 9,
        "qk_rope_head_dim": 4,
        "rms_norm_eps": 1e-05,  # not used by the latents' norms
        "rope_scaling": None,
        "rope_theta": 50000.0,
        "routed_scaling_factor": 2.446,
        "scoring_func": "sigmoid",
        "seq_aux": True,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "torch_dtype": "bfloat16",
        "transformers_version": "4.48.3",
        "v_head_dim": 11,
        "vocab_size": 103,
    },
    shapes=deepseek_shapes,
    recipe=Recipe(seed=121, actions=(3, 10, 16, 23)),
    tweak=keep_biases,
)

GLM_LITE = Odd(
    seed=135,
    T=19,
    own={  # as transformers 5 saves it
        "architectures": ["Glm4MoeLiteForCausalLM"],
        "attention_bias": True,
        "bos_token_id": None,
        "dtype": "float16",
        "eos_token_id": None,
        "hidden_size": 44,
        "intermediate_size": 55,
        "kv_lora_rank": 16,
        "mlp_layer_types": ["dense", "sparse", "dense", "sparse"],
        "model_type": "glm4_moe_lite",
        "moe_intermediate_size": 19,
        "n_group": 1,
        "n_routed_experts": 10,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "num_nextn_predict_layers": 0,
        "q_lora_rank": 13,
        "qk_nope_head_dim": 7,
        "qk_rope_head_dim": 8,
        "rms_norm_eps": 1e-05,
        "rope_interleave": False,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
        "routed_scaling_factor": 1.8,
        "topk_group": 1,
        "transformers_version": "5.23.0",
        "v_head_dim": 12,
        "vocab_size": 89,
    },
    shapes=deepseek_shapes,
    dtype=torch.float16,
    recipe=Recipe(seed=131, actions=(2, 8, 14, 19)),
    tweak=keep_biases,
)

YARN = {  # as its authors write it
    "beta_fast": 8,
    "beta_slow": 1,
    "factor": 4,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16,
    "type": "yarn",
}
LATENT = {
    "attention_bias": False,
    "first_k_dense_replace": 1,
    "hidden_size": 36,
    "intermediate_size": 47,
    "kv_lora_rank": 14,
    "moe_intermediate_size": 17,
    "moe_layer_freq": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "q_lora_rank": 13,
    "qk_nope_head_dim": 7,
    "qk_rope_head_dim": 6,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "v_head_dim": 9,
}

DSV32 = Odd(
    seed=210,
    own=LATENT
    | {  # as its authors write it
        "architectures": ["DeepseekV32ForCausalLM"],
        "index_head_dim": 10,
        "index_n_heads": 3,
        "index_topk": 24,
        "model_type": "deepseek_v32",
        "n_group": 2,
        "num_nextn_predict_layers": 0,
        "rms_norm_eps": 1e-06,
        "rope_scaling": YARN,
        "rope_theta": 100,
        "topk_group": 1,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.44.2",
        "vocab_size": 89,
    },
    shapes=indexed_shapes,
    recipe=Recipe(seed=211, actions=(2, 7, 12, 17)),
    tweak=keep_biases,
)

GLM5 = Odd(
    seed=230,
    T=19,
    own=LATENT
    | {  # as its authors write it
        "architectures": ["GlmMoeDsaForCausalLM"],
        "head_dim": 192,  # not used: the widths are those of LATENT
        "index_head_dim": 12,
        "index_n_heads": 2,
        "index_skip_topk_offset": 2,
        "index_topk": 19,
        "index_topk_freq": 2,
        "indexer_rope_interleave": True,
        "model_type": "glm_moe_dsa",
        "n_group": 1,
        "num_nextn_predict_layers": 0,
        "rms_norm_eps": 1e-05,
        "rope_interleave": True,
        "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
        "topk_group": 1,
        "torch_dtype": "float16",
        "transformers_version": "5.0.2.dev0",
        "v_head_dim": 11,
        "vocab_size": 91,
    },
    shapes=indexed_shapes,
    dtype=torch.float16,
    recipe=Recipe(seed=231, actions=(2, 7, 12, 17)),
    tweak=keep_biases,
)

AXK1 = Odd(
    seed=250,
    own=LATENT
    | {
        "architectures": ["AXK1ForCausalLM"],
        "model_type": "axk1",
        "n_group": 2,
        "rms_norm_eps": 1e-06,
        "rope_interleave": True,
        "rope_scaling": YARN | {"mscale_all_dim": 0.8},
        "rope_theta": 100,
        "topk_group": 1,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.57.3",
        "vocab_size": 89,
    },
    shapes=axk1_shapes,
    recipe=Recipe(seed=251, actions=(2, 7, 12, 17)),
    tweak=keep_biases,
)

GROUPED = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 18,
    "hidden_size": 36,
    "intermediate_size": 47,
    "moe_intermediate_size": 17,
    "num_attention_heads": 4,
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 4,
    "num_shared_experts": 1,
    "rms_norm_eps": 1e-05,
    "sliding_window": 6,
    "transformers_version": "5.3.0",
}

EXAONE = Odd(
    seed=270,
    own=GROUPED
    | {  # as its authors write it
        "architectures": ["ExaoneMoeForCausalLM"],
        "dtype": "bfloat16",
        "first_k_dense_replace": 1,
        "is_moe_layer": [False, True, True, True],
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        "model_type": "exaone_moe",
        "n_group": 1,
        "norm_topk_prob": True,
        "num_nextn_predict_layers": 0,
        "rope_parameters": {"rope_theta": 1000, "rope_type": "default"},
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "sliding_window_pattern": "LG",
        "topk_group": 1,
        "vocab_size": 91,
    },
    shapes=exaone_shapes,
    recipe=Recipe(seed=271, actions=(2, 7, 12, 17)),
    tweak=keep_biases,
)

AFMOE = Odd(
    seed=290,
    own=GROUPED
    | {  # as its authors write it
        "architectures": ["AfmoeForCausalLM"],
        "attention_bias": True,
        "dtype": "bfloat16",
        "global_attn_every_n_layers": 3,  # layer 2
        "load_balance_coeff": 0.00005,
        "model_type": "afmoe",
        "mup_enabled": True,
        "n_group": 1,
        "num_dense_layers": 1,
        "num_expert_groups": 1,
        "num_limited_groups": 1,
        "rope_theta": 1000,
        "route_norm": True,
        "route_scale": 2.448,
        "score_func": "sigmoid",
        "topk_group": 1,
        "vocab_size": 89,
    },
    shapes=afmoe_shapes,
    recipe=Recipe(seed=291, actions=(2, 7, 12, 17)),
    tweak=keep_biases,
)

LAGUNA = Odd(
    seed=310,
    own={k: v for k, v in GROUPED.items() if k != "num_shared_experts"}
    | {  # as its authors write it
        "architectures": ["LagunaForCausalLM"],
        "attention_bias": True,
        "dtype": "bfloat16",
        "gating": "per-head",
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        "model_type": "laguna",
        "moe_apply_router_weight_on_input": False,
        "moe_routed_scaling_factor": 2.5,
        "moe_router_logit_softcapping": 0.0,
        "num_attention_heads_per_layer": [4, 6, 8, 2],
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {
            "full_attention": {
                "attention_factor": 1.0,
                "beta_fast": 8.0,
                "beta_slow": 1.0,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "partial_rotary_factor": 0.45,  # 8 of 18
                "rope_theta": 500.0,
                "rope_type": "yarn",
            },
            "sliding_attention": {
                "partial_rotary_factor": 1.0,
                "rope_theta": 100.0,
                "rope_type": "default",
            },
        },
        "shared_expert_intermediate_size": 23,
        "vocab_size": 91,
    },
    shapes=laguna_shapes,
    recipe=Recipe(seed=311, actions=(2, 7, 12, 17)),
    tweak=keep_biases,
)

MIMO = Odd(
    seed=330,
    own={k: v for k, v in GROUPED.items() if k not in ("num_experts", "num_shared_experts", "sliding_window")}
    | {  # as its authors write it
        "add_full_attention_sink_bias": False,
        "add_swa_attention_sink_bias": True,
        "architectures": ["MiMoV2FlashForCausalLM"],
        "attention_bias": True,
        "attention_value_scale": 0.707,
        "dtype": "bfloat16",
        "hybrid_layer_pattern": [0, 1, 1, 1],
        "layernorm_epsilon": 1e-05,
        "model_type": "mimo_v2_flash",
        "moe_layer_freq": [0, 1, 1, 1],
        "n_group": 1,
        "n_routed_experts": 7,
        "n_shared_experts": None,
        "norm_topk_prob": True,
        "partial_rotary_factor": 0.334,
        "rope_theta": 5000000,
        "routed_scaling_factor": None,
        "scoring_func": "sigmoid",
        "sliding_window_size": 5,
        "swa_head_dim": 18,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4,
        "swa_rope_theta": 10000,
        "swa_v_head_dim": 10,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "v_head_dim": 10,
        "vocab_size": 89,
    },
    shapes=mimo_shapes,
    recipe=Recipe(seed=331, actions=(2, 7, 12, 17)),
    tweak=keep_biases,
)

MINIMAX_M3 = Odd(
    seed=350,
    own={  # as transformers' text class saves it
        "architectures": ["MiniMaxM3VLForCausalLM"],
        "bos_token_id": 1,
        "dense_intermediate_size": 47,
        "dtype": "bfloat16",
        "eos_token_id": 2,
        "head_dim": 18,
        "hidden_size": 36,
        "index_block_size": 3,
        "index_head_dim": 10,
        "index_local_blocks": 1,
        "index_n_heads": 2,
        "index_topk_blocks": 8,  # of 3 positions
        "intermediate_size": 17,
        "layer_types": ["full_attention", "minimax_m3_sparse", "full_attention", "minimax_m3_sparse"],
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        "model_type": "minimax_m3_vl_text",
        "num_attention_heads": 4,
        "num_experts_per_tok": 3,
        "num_hidden_layers": 4,
        "num_local_experts": 7,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {
            "partial_rotary_factor": 0.45,  # 8 of 18
            "rope_theta": 500.0,
            "rope_type": "default",
        },
        "rotary_dim": 8,
        "routed_scaling_factor": 2.0,
        "router_jitter_noise": 0.0,
        "shared_intermediate_size": 23,
        "swiglu_alpha": 1.5,
        "swiglu_limit": 1.25,
        "transformers_version": "5.23.0",
        "vocab_size": 93,
    },
    shapes=minimax_m3_shapes,
    recipe=Recipe(seed=351, actions=(2, 7, 12, 17)),
    tweak=around_zero_with_biases,
)

LFM2 = Odd(
    seed=390,
    own={  # as its authors write it
        "architectures": ["Lfm2MoeForCausalLM"],
        "bos_token_id": 1,
        "conv_L_cache": 3,
        "conv_bias": False,
        "dtype": "bfloat16",
        "eos_token_id": 2,
        "hidden_size": 56,
        "intermediate_size": 47,
        "layer_types": ["conv", "full_attention", "conv", "conv", "full_attention"],
        "model_type": "lfm2_moe",
        "moe_intermediate_size": 17,
        "norm_eps": 1e-05,
        "norm_topk_prob": True,
        "num_attention_heads": 4,
        "num_dense_layers": 1,
        "num_experts": 7,
        "num_experts_per_tok": 3,
        "num_hidden_layers": 5,
        "pad_token_id": 0,
        "rope_theta": 1000.0,
        "routed_scaling_factor": 1.5,
        "tie_embedding": True,  # this key decides, not tie_word_embeddings
        "transformers_version": "4.57.0",
        "use_expert_bias": True,
        "vocab_size": 94,
    },
    shapes=lfm_shapes,
    recipe=Recipe(seed=391, actions=(2, 7, 12, 17)),
    tweak=keep_biases,
)

GRANITE_KEYS = {  # as its authors write it
    "attention_bias": True,
    "attention_multiplier": 0.11,
    "bos_token_id": 0,
    "embedding_multiplier": 3.0,
    "eos_token_id": 0,
    "hidden_size": 40,
    "intermediate_size": 19,
    "logits_scaling": 1.7,
    "num_attention_heads": 4,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 3,
    "num_local_experts": 7,
    "pad_token_id": 0,
    "residual_multiplier": 0.35,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.46.0",
    "vocab_size": 95,
}

GRANITE = Odd(
    seed=370,
    own=GRANITE_KEYS | {"architectures": ["GraniteMoeForCausalLM"], "model_type": "granitemoe"},
    shapes=granite_shapes,
    recipe=Recipe(seed=371, actions=(2, 8, 14, 19)),
)

GRANITE_SHARED = Odd(
    seed=380,
    own=GRANITE_KEYS
    | {
        "architectures": ["GraniteMoeSharedForCausalLM"],
        "model_type": "granitemoeshared",
        "shared_intermediate_size": 23,
    },
    shapes=granite_shapes,
    recipe=Recipe(seed=381, actions=(2, 8, 14, 19)),
)

GPTOSS = Odd(
    seed=140,
    T=21,
    own={  # as transformers 5 saves it
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": 1,
        "head_dim": 14,
        "hidden_size": 44,
        "intermediate_size": 27,
        "layer_types": [
            "sliding_attention",
            "full_attention",
            "sliding_attention",
            "sliding_attention",
        ],
        "model_type": "gpt_oss",
        "num_attention_heads": 6,
        "num_experts_per_tok": 3,
        "num_hidden_layers": 4,
        "num_local_experts": 7,
        "pad_token_id": None,
        "rms_norm_eps": 1e-05,
        "rope_parameters": {
            "beta_fast": 8.0,
            "beta_slow": 1.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "rope_theta": 150.0,
            "rope_type": "yarn",
            "truncate": False,
        },
        "sliding_window": 6,
        "swiglu_limit": 2.5,  # so low that gates and ups reach it
        "transformers_version": "5.23.0",
        "vocab_size": 97,
    },
    shapes=gpt_oss_shapes,
    shards=2,
    recipe=Recipe(seed=141, actions=(3, 11, 19, 27), gap_min=2e-5),
)

QWEN3_NEXT = Odd(
    seed=141,
    T=70,  # more than a chunk of DeltaNet (64)
    own={  # as its authors write it
        "architectures": ["Qwen3NextForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 1,
        "decoder_sparse_step": 1,
        "eos_token_id": 2,
        "full_attention_interval": 3,
        "head_dim": 14,
        "hidden_size": 44,
        "intermediate_size": 53,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 19,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_value_head_dim": 11,
        "max_position_embeddings": 128,
        "mlp_only_layers": [1],
        "model_type": "qwen3_next",
        "moe_intermediate_size": 19,
        "norm_topk_prob": True,
        "num_attention_heads": 6,
        "num_experts": 9,
        "num_experts_per_tok": 3,
        "num_hidden_layers": 4,
        "partial_rotary_factor": 0.3,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 10000,
        "shared_expert_intermediate_size": 31,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.57.0.dev0",
        "use_sliding_window": False,
        "vocab_size": 101,
    },
    shapes=qwen3_next_shapes,
    shards=2,
    recipe=Recipe(seed=147, actions=(2, 8, 14, 19), gap_min=5e-6),
    tweak=around_zero,
)

QWEN35 = Odd(
    seed=169,
    T=67,  # more than a chunk of DeltaNet (64)
    own={  # of text_config
        "attention_bias": False,
        "attn_output_gate": True,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": 2,
        "full_attention_interval": 4,
        "head_dim": 20,
        "hidden_size": 48,
        "layer_types": [
            "linear_attention", "full_attention", "linear_attention",
        ],
        "linear_conv_kernel_dim": 3,
        "linear_key_head_dim": 18,
        "linear_num_key_heads": 3,
        "linear_num_value_heads": 6,
        "linear_value_head_dim": 10,
        "max_position_embeddings": 128,
        "model_type": "qwen3_5_moe_text",
        "moe_intermediate_size": 21,
        "mtp_num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "num_hidden_layers": 3,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [1, 1, 0],
            "partial_rotary_factor": 0.2,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
        "shared_expert_intermediate_size": 27,
        "vocab_size": 97,
    },
    shapes=qwen35_shapes,
    shards=2,
    recipe=Recipe(seed=155, actions=(2, 9, 15, 21), gap_min=5e-6),
    tweak=around_zero,
    wrapper={  # as its authors write it
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "image_token_id": 90,
        "model_type": "qwen3_5_moe",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.57.0.dev0",
        "video_token_id": 91,
        "vision_config": {
            "depth": 1, "hidden_size": 16, "intermediate_size": 16, "model_type": "qwen3_5_moe",
            "num_heads": 2, "num_position_embeddings": 16, "out_hidden_size": 48, "patch_size": 4,
        },
        "vision_end_token_id": 93,
        "vision_start_token_id": 92,
    },
)

ROWS = {
    "odd-qwen3": QWEN3, "odd-olmoe": OLMOE, "odd-qwen2": QWEN2, "odd-phimoe": PHIMOE,
    "odd-glm4": GLM4, "odd-minimax": MINIMAX, "odd-ernie": ERNIE,
    "odd-dsv2": DSV2, "odd-dsv3": DSV3, "odd-moonlight": MOONLIGHT, "odd-glm-lite": GLM_LITE,
    "odd-gptoss": GPTOSS,
    "odd-q3next": QWEN3_NEXT, "odd-q35": QWEN35, "odd-dots1": DOTS1,
    "odd-solar": SOLAR, "odd-hy3": HY3, "odd-dsv32": DSV32, "odd-glm5": GLM5,
    "odd-exaone": EXAONE, "odd-axk1": AXK1, "odd-afmoe": AFMOE, "odd-laguna": LAGUNA,
    "odd-mimo": MIMO, "odd-m3": MINIMAX_M3, "odd-granite": GRANITE,
    "odd-granite-shared": GRANITE_SHARED, "odd-lfm2": LFM2,
}  # fmt: skip
