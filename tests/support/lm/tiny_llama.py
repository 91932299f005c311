"""Tiny GGUF files with random weights: of Llama, and of other architectures."""

import gguf
import numpy as np

SIZES = {"layers": 3, "heads": 6, "kv_heads": 2, "d": 8, "dim": 48, "ffn": 40, "context": 64}
EPS = 1e-5
ROPE_BASE = 50.0


def byte_tokens():
    """GPT-2's printable characters for the 256 bytes, written out from its published table."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    shown += [*range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    table = {byte: chr(byte) for byte in shown}
    table |= {byte: chr(256 + index) for index, byte in enumerate(hidden)}
    return [table[byte] for byte in range(256)]


MERGES = ["t h", "th e", "Ġ the", "Ġ a"]
TOKENS = byte_tokens() + ["th", "the", "Ġthe", "Ġa"]


def random_tensors(seed=0, sizes=SIZES, arch="llama", tokens=TOKENS):
    """Float32 tensors by GGUF name, matrices [out, in] as GGUF files have them.

    Those that Llama has are the same for every architecture.
    """
    rng = np.random.default_rng(seed)
    dim, ffn = sizes["dim"], sizes["ffn"]
    q, kv = sizes["heads"] * sizes["d"], sizes["kv_heads"] * sizes["d"]
    shapes = {"token_embd": (len(tokens), dim), "output_norm": (dim,)}
    for layer in range(sizes["layers"]):
        per_layer = {
            "attn_norm": (dim,),
            "attn_q": (q, dim),
            "attn_k": (kv, dim),
            "attn_v": (kv, dim),
            "attn_output": (dim, q),
            "ffn_norm": (dim,),
            "ffn_gate": (ffn, dim),
            "ffn_up": (ffn, dim),
            "ffn_down": (dim, ffn),
        }
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in per_layer.items()}
    tensors = {
        f"{name}.weight": (rng.normal(size=shape) * (0.3 if len(shape) > 1 else 1.0)).astype("f4")
        for name, shape in shapes.items()
    }
    more = {}
    if arch == "qwen2":
        more = {"attn_q.bias": q, "attn_k.bias": kv, "attn_v.bias": kv}
    if arch == "gemma3":
        more = {"attn_q_norm.weight": sizes["d"], "attn_k_norm.weight": sizes["d"]}
        more |= {"post_attention_norm.weight": dim, "post_ffw_norm.weight": dim}
    for layer in range(sizes["layers"]):
        for name, size in more.items():
            tensors[f"blk.{layer}.{name}"] = rng.normal(size=size).astype("f4")
    return tensors


def write_gguf(
    path,
    tensors,
    *,
    sizes=SIZES,
    arch="llama",
    pre="gpt-2",
    kind="gpt2",
    tokens=TOKENS,
    merges=MERGES,
    bos=None,
    extra=None,
):
    """Write a GGUF file; ``extra`` is called with the writer for more metadata.

    The file gives the head size only if ``sizes`` has a ``key_length``, and a sliding window if it
    has that.
    """
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(sizes["layers"])
    writer.add_context_length(sizes["context"])
    writer.add_embedding_length(sizes["dim"])
    writer.add_feed_forward_length(sizes["ffn"])
    writer.add_head_count(sizes["heads"])
    writer.add_head_count_kv(sizes["kv_heads"])
    if "key_length" in sizes:
        writer.add_key_length(sizes["key_length"])
    if "sliding_window" in sizes:
        writer.add_sliding_window(sizes["sliding_window"])
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    if merges:
        writer.add_token_merges(merges)
    if bos is not None:
        writer.add_bos_token_id(bos)
        writer.add_add_bos_token(True)
    if extra:
        extra(writer)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
