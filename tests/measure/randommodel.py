"""Make a Mixtral checkpoint with random weights, DIR/model, and token ids for it, DIR/tokens.npy.
They are used to measure sizes: values do not matter, but no two parts may be equal.

    python3 -B tests/measure/randommodel.py DIR [--layers L] [--experts E] [--channels I] [--hidden H]
"""

import argparse
import array
import json
import math
import os
import random
import struct

VOCABULARY, HEADS, KEYS, HEAD = 256, 8, 2, 64
HIGH = bytes(0x3C if i & 1 else 0xBC for i in range(256))  # high bytes of bfloat16: about 1 / 64, of both signs


def tensors(L, E, I, H):
    yield "lm_head.weight", [VOCABULARY, H]
    yield "model.embed_tokens.weight", [VOCABULARY, H]
    yield "model.norm.weight", [H]
    for layer in range(L):
        name = f"model.layers.{layer}."
        yield name + "input_layernorm.weight", [H]
        yield name + "post_attention_layernorm.weight", [H]
        yield name + "self_attn.q_proj.weight", [HEADS * HEAD, H]
        yield name + "self_attn.k_proj.weight", [KEYS * HEAD, H]
        yield name + "self_attn.v_proj.weight", [KEYS * HEAD, H]
        yield name + "self_attn.o_proj.weight", [H, HEADS * HEAD]
        yield name + "block_sparse_moe.gate.weight", [E, H]
        for expert in range(E):
            for matrix, shape in ("w1", [I, H]), ("w2", [H, I]), ("w3", [I, H]):
                yield f"{name}block_sparse_moe.experts.{expert}.{matrix}.weight", shape


def values(name, count, draw):
    if name.endswith("norm.weight"):
        return struct.pack("<H", 0x3F80) * count
    out = bytearray(2 * count)
    out[0::2] = draw.randbytes(count)
    out[1::2] = draw.randbytes(count).translate(HIGH)
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dir")
    for option, default in ("layers", 2), ("experts", 16), ("channels", 768), ("hidden", 2048):
        parser.add_argument("--" + option, type=int, default=default)
    args = parser.parse_args()
    model = os.path.join(args.dir, "model")
    os.makedirs(model)
    config = {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_act": "silu",
        "hidden_size": args.hidden, "intermediate_size": args.channels, "num_hidden_layers": args.layers,
        "num_local_experts": args.experts, "num_experts_per_tok": 2, "num_attention_heads": HEADS,
        "num_key_value_heads": KEYS, "head_dim": HEAD, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "max_position_embeddings": 512, "sliding_window": None,
        "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
        "router_aux_loss_coef": 0.001,
    }
    with open(os.path.join(model, "config.json"), "w") as f:
        json.dump(config, f, indent=2)
    header, at = {"__metadata__": {"format": "pt"}}, 0
    listed = list(tensors(args.layers, args.experts, args.channels, args.hidden))
    for name, shape in listed:
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    draw = random.Random(33)
    with open(os.path.join(model, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, shape in listed:
            f.write(values(name, math.prod(shape), draw))
    ids = array.array("H", ((7 * i + i * i % 13) % VOCABULARY for i in range(8 * 64)))
    head = "{'descr': '<u2', 'fortran_order': False, 'shape': (8, 64), }"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    with open(os.path.join(args.dir, "tokens.npy"), "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + ids.tobytes())


main()
