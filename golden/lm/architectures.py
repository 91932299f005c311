"""The architectures that can be run, and models of them read from GGUF files.

llama.cpp defines what a file of an architecture holds, in its conversion scripts and in
``src/models``. Sources: Llama, Touvron et al., arXiv:2302.13971, and GQA, arXiv:2305.13245; Qwen2,
arXiv:2407.10671; Gemma 3, arXiv:2503.19786, whose norms' gains are stored with the 1 added.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from golden import InputError
from golden.lm.gguf_file import GGUFFile
from golden.lm.weights import Config, Layer, LazyLayers, Local, Weights, matrix_shapes

_MATRICES = {
    "wq": "attn_q",
    "wk": "attn_k",
    "wv": "attn_v",
    "wo": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
_NORMS = {"attn_norm": "attn_norm", "ffn_norm": "ffn_norm"}
_OTHERS = ("token_embd", "output", "output_norm", "rope_freqs")
_SOFT_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")


@dataclass(frozen=True)
class Architecture:
    """How the layers of an architecture differ from Llama's.

    halves
        Whether files leave the columns of wq and wk as RoPE rotates element i of a head with
        i + rope_dims / 2 (as in GPT-NeoX). Llama's are stored in pairs of neighbours.
    biases
        Matrices whose products have a bias.
    norms
        GGUF names of the norms of products, by matrix.
    activation
        The gate's, as in :class:`golden.lm.weights.Config`.
    scaled_embedding
        Whether the embedding is multiplied by sqrt(dim).
    local_base
        RoPE base of layers that see a window of tokens only; None without such layers.
    period
        All layers but the last of each such run of layers see a window.
    """

    halves: bool = False
    biases: tuple[str, ...] = ()
    norms: Mapping[str, str] = field(default_factory=dict)
    activation: str = "silu"
    scaled_embedding: bool = False
    local_base: float | None = None
    period: int = 1


ARCHITECTURES = {
    "llama": Architecture(),
    "qwen2": Architecture(halves=True, biases=("wq", "wk", "wv")),
    "gemma3": Architecture(
        halves=True,
        norms={
            "wq": "attn_q_norm",
            "wk": "attn_k_norm",
            "wo": "post_attention_norm",
            "down": "post_ffw_norm",
        },
        activation="gelu",
        scaled_embedding=True,
        local_base=10000.0,
        period=6,
    ),
}
_LAYERS_OF_GEMMA_27B = 62


def read_weights(file: GGUFFile) -> Weights:
    """Weights of a GGUF file's model.

    Raises ``InputError`` when the file is of another architecture, lacks something, or holds
    something that this model does not compute (experts, other biases, YaRN's positions).
    """
    name = file.require("general.architecture")
    if name not in ARCHITECTURES:
        raise InputError(
            f"model {file.path}: its architecture is {name!r}; only"
            f" {', '.join(map(repr, ARCHITECTURES))} can be run"
        )
    architecture = ARCHITECTURES[name]
    config = _read_config(file, name, architecture)
    layers = _GGUFLayers(file, config, architecture, _query_scale(name, config))
    _reject_unknown_tensors(file, name, layers)
    embedding = file.tensor("token_embd.weight", (config.vocab, config.dim))
    tied = "output.weight" not in file.tensor_names
    output = embedding if tied else file.tensor("output.weight", (config.vocab, config.dim))
    return Weights(
        config=config,
        embedding=embedding,
        layers=layers,
        norm=file.tensor("output_norm.weight", (config.dim,)),
        output=output.T,
        rope_factors=_rope_factors(file, name, config),
    )


class _GGUFLayers(LazyLayers):
    """The layers of a GGUF file, dequantised at each access."""

    def __init__(
        self, file: GGUFFile, config: Config, architecture: Architecture, query_scale: float
    ) -> None:
        self._file, self._config, self._architecture = file, config, architecture
        self._query_scale = np.float32(query_scale)
        half = config.rope_dims // 2
        self._order = np.arange(config.d)
        if architecture.halves:
            self._order[: 2 * half].reshape(half, 2)[:] = np.arange(2 * half).reshape(2, half).T

    def __len__(self) -> int:
        return self._config.layers

    def tensor_names(self, number: int) -> list[str]:
        """What the file has of a layer."""
        architecture = self._architecture
        names = [f"{name}.weight" for name in [*_MATRICES.values(), *_NORMS.values()]]
        names += [f"{_MATRICES[name]}.bias" for name in architecture.biases]
        names += [f"{name}.weight" for name in architecture.norms.values()]
        return [f"blk.{number}.{name}" for name in names]

    def layer(self, number: int) -> Layer:
        c, architecture = self._config, self._architecture
        shapes = matrix_shapes(c)

        def tensor(name: str, *shape: int) -> np.ndarray:
            return self._file.tensor(f"blk.{number}.{name}", shape)

        matrices = {
            name: self._paired(name, tensor(f"{stored}.weight", *reversed(shapes[name]))).T
            for name, stored in _MATRICES.items()
        }
        biases = {
            name: self._paired(name, tensor(f"{_MATRICES[name]}.bias", shapes[name][1]))
            for name in architecture.biases
        }
        norms = {
            name: self._paired(name, tensor(f"{stored}.weight", c.d if name in "wq wk" else c.dim))
            for name, stored in architecture.norms.items()
        }
        if "wq" in norms:
            norms["wq"] = norms["wq"] * self._query_scale
        return Layer(
            **{name: tensor(f"{stored}.weight", c.dim) for name, stored in _NORMS.items()},
            **matrices,
            biases=biases,
            norms=norms,
        )

    def _paired(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Rows [heads * d, ...] of wq or wk in the order in which RoPE rotates neighbours."""
        if not self._architecture.halves or name not in ("wq", "wk"):
            return rows
        heads = rows.reshape(-1, self._config.d, *rows.shape[1:])
        return heads[:, self._order].reshape(rows.shape)


def _read_config(file: GGUFFile, name: str, architecture: Architecture) -> Config:
    heads = file.require(f"{name}.attention.head_count")
    if isinstance(heads, list) or isinstance(file.get(f"{name}.attention.head_count_kv"), list):
        raise InputError(f"model {file.path}: its layers differ in their number of heads")
    heads = file.count(f"{name}.attention.head_count")
    kv_heads = file.count(f"{name}.attention.head_count_kv", heads)
    dim = file.count(f"{name}.embedding_length")
    if heads % kv_heads:
        raise InputError(
            f"model {file.path}: {heads} query heads cannot share {kv_heads} kv heads evenly"
        )
    d = file.count(f"{name}.attention.key_length", dim // heads)
    if file.count(f"{name}.attention.value_length", d) != d:
        raise InputError(f"model {file.path}: its values are not as long as its keys, {d} elements")
    if caps := [cap for cap in _SOFT_CAPS if file.get(f"{name}.{cap}")]:
        raise InputError(f"model {file.path}: its {caps[0]} is not supported")
    rope_dims = file.count(f"{name}.rope.dimension_count", d)
    if rope_dims % 2 or rope_dims > d:
        raise InputError(f"model {file.path}: RoPE cannot rotate {rope_dims} of {d} elements")
    layers = file.count(f"{name}.block_count")
    if layers > len(file.tensor_names):
        raise InputError(
            f"model {file.path}: it names {layers} layers, but holds"
            f" {len(file.tensor_names)} tensors"
        )
    return Config(
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        d=d,
        dim=dim,
        ffn=file.count(f"{name}.feed_forward_length"),
        vocab=len(file.texts("tokenizer.ggml.tokens")),
        context=file.count(f"{name}.context_length"),
        rope_base=file.positive(f"{name}.rope.freq_base", 10000.0),
        rope_dims=rope_dims,
        norm_eps=file.positive(f"{name}.attention.layer_norm_rms_epsilon"),
        activation=architecture.activation,
        embedding_scale=dim**0.5 if architecture.scaled_embedding else 1.0,
        normed=tuple(architecture.norms),
        local=_read_local(file, name, architecture, layers),
    )


def _read_local(file: GGUFFile, name: str, architecture: Architecture, layers: int) -> Local | None:
    if architecture.local_base is None:
        return None
    period = file.count(f"{name}.attention.sliding_window_pattern", architecture.period)
    return Local(
        layers=frozenset(layer for layer in range(layers) if layer % period < period - 1),
        window=file.count(f"{name}.attention.sliding_window"),
        rope_base=file.positive(f"{name}.rope.freq_base_swa", architecture.local_base),
    )


def _query_scale(name: str, config: Config) -> float:
    """What queries are multiplied by, beside the usual 1 / sqrt(d).

    Gemma 3 27B alone divides by sqrt(dim / heads). Its files do not say so.
    """
    if name == "gemma3" and config.layers == _LAYERS_OF_GEMMA_27B:
        return (config.d * config.heads / config.dim) ** 0.5
    return 1.0


def _rope_factors(file: GGUFFile, name: str, config: Config) -> np.ndarray | None:
    pairs = config.rope_dims // 2
    scaling = file.get(f"{name}.rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        raise InputError(f"model {file.path}: RoPE scaling {scaling!r} is not supported")
    factors = None
    if "rope_freqs.weight" in file.tensor_names:
        factors = file.tensor("rope_freqs.weight", (pairs,))
    if scaling == "linear":
        factor = file.positive(f"{name}.rope.scaling.factor")
        factors = np.float32(factor) * (np.ones(pairs, np.float32) if factors is None else factors)
    return factors


def _reject_unknown_tensors(file: GGUFFile, name: str, layers: _GGUFLayers) -> None:
    known = {f"{other}.weight" for other in _OTHERS}
    known |= {tensor for layer in range(len(layers)) for tensor in layers.tensor_names(layer)}
    unknown = [tensor for tensor in file.tensor_names if tensor not in known]
    if unknown:
        raise InputError(
            f"model {file.path}: it holds the tensor {unknown[0]}, which the architecture"
            f" {name!r} does not have"
        )
