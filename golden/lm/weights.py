"""Weights of a Llama-family model, read from a GGUF file.

ggml's ``docs/gguf.md`` describes the file format and its names. The ``gguf`` package dequantises
tensors to float32, one layer at a time on access, so that memory holds one layer.
"""

import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import gguf
import numpy as np
from gguf.quants import dequantize

from golden import InputError

_LAYER_TENSORS = {
    "attn_norm": "attn_norm",
    "wq": "attn_q",
    "wk": "attn_k",
    "wv": "attn_v",
    "wo": "attn_output",
    "ffn_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}


@dataclass(frozen=True)
class Config:
    """Sizes and constants of a Llama-family model."""

    layers: int
    heads: int
    kv_heads: int
    d: int
    """Elements of one head."""
    dim: int
    """Elements of the hidden state."""
    ffn: int
    vocab: int
    context: int
    """Most tokens the model was trained to see at once."""
    rope_base: float
    rope_dims: int
    """Leading elements of each head that are rotated."""
    norm_eps: float


@dataclass(frozen=True)
class Layer:
    """Float32 weights of one layer; matrices are [in, out], so activations multiply from the left.

    The columns of ``wq`` and ``wk`` are ordered so that RoPE rotates the pairs (2i, 2i + 1).
    """

    attn_norm: np.ndarray
    wq: np.ndarray
    wk: np.ndarray
    wv: np.ndarray
    wo: np.ndarray
    ffn_norm: np.ndarray
    gate: np.ndarray
    up: np.ndarray
    down: np.ndarray


def matrix_shapes(config: Config) -> dict[str, tuple[int, int]]:
    """(K, N) of a layer's matrices by name, in the order of their products."""
    q, kv = config.heads * config.d, config.kv_heads * config.d
    return {
        "wq": (config.dim, q),
        "wk": (config.dim, kv),
        "wv": (config.dim, kv),
        "wo": (q, config.dim),
        "gate": (config.dim, config.ffn),
        "up": (config.dim, config.ffn),
        "down": (config.ffn, config.dim),
    }


INPUTS = {
    "wq": "attn",
    "wk": "attn",
    "wv": "attn",
    "wo": "wo",
    "gate": "ffn",
    "up": "ffn",
    "down": "down",
}
"""The matrices of a layer, and the name of what each multiplies; some share it."""


class LazyLayers(Sequence[Layer]):
    """Layers that are made at each access, so that memory holds one of them."""

    @abstractmethod
    def layer(self, number: int) -> Layer:
        """Layer `number`, from 0 to the number of layers - 1."""

    @overload
    def __getitem__(self, index: int) -> Layer: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Layer]: ...
    def __getitem__(self, index: int | slice) -> Layer | Sequence[Layer]:
        chosen = range(len(self))[index]
        return self.layer(chosen) if isinstance(chosen, int) else [*map(self.layer, chosen)]


@dataclass(frozen=True)
class Weights:
    """All float32 weights: ``embedding`` [vocab, dim], ``norm`` [dim], ``output`` [dim, vocab].

    ``rope_factors`` [rope_dims / 2] divide the rotation frequencies (Llama 3); None means ones.
    """

    config: Config
    embedding: np.ndarray
    layers: Sequence[Layer]
    norm: np.ndarray
    output: np.ndarray
    rope_factors: np.ndarray | None = None


class GGUFFile:
    """Metadata and tensors of a GGUF file. Raises ``InputError`` when it cannot be read."""

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            what = "it is not a file" if self.path.exists() else "there is no such file"
            raise InputError(f"model {path}: {what}")
        try:
            reader = gguf.GGUFReader(self.path)
        # The reader does not check the file: damage raises any of these.
        except (ValueError, IndexError, KeyError, OverflowError, MemoryError) as error:
            raise InputError(f"model {path}: it is not a whole GGUF file ({error})") from None
        self._fields = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}

    def get(self, key: str, default=None):
        """Value of a metadata key: a number, text or list; ``default`` when the file lacks it."""
        return self.require(key) if key in self._fields else default

    def require(self, key: str):
        """Value of a metadata key that the file must have."""
        if key not in self._fields:
            raise InputError(f"model {self.path}: it lacks the metadata {key}")
        try:
            return self._fields[key].contents()
        # Texts are decoded only here.
        except (ValueError, IndexError, KeyError, TypeError) as error:
            raise InputError(f"model {self.path}: metadata {key} is damaged ({error})") from None

    def count(self, key: str, default: int | None = None) -> int:
        """Value of a metadata key that must be a whole number from 1 to 2^31 - 1."""
        value = self.require(key) if default is None else self.get(key, default)
        if type(value) is not int or not 1 <= value < 1 << 31:
            raise InputError(
                f"model {self.path}: {key} must be a whole number from 1, not {_short(value)}"
            )
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        """Value of a metadata key that must be a finite number above zero."""
        value = self.require(key) if default is None else self.get(key, default)
        if not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise InputError(
                f"model {self.path}: {key} must be a number above zero, not {_short(value)}"
            )
        return float(value)

    def texts(self, key: str) -> list[str]:
        """Value of a metadata key that must be a list of texts."""
        value = self.require(key)
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise InputError(f"model {self.path}: {key} must be a list of texts")
        return value

    @property
    def tensor_names(self) -> list[str]:
        return list(self._tensors)

    def tensor(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """A tensor as float32 of the given shape (rows first, the reverse of GGUF's order)."""
        if name not in self._tensors:
            raise InputError(f"model {self.path}: it lacks the tensor {name}")
        tensor = self._tensors[name]
        found = tuple(int(n) for n in reversed(tensor.shape))
        if found != shape:
            raise InputError(
                f"model {self.path}: tensor {name} must have shape {shape}, not {found}"
            )
        try:
            # Plain arrays are quicker to slice than the file's memory map.
            values = dequantize(np.asarray(tensor.data), tensor.tensor_type)
            return values.astype(np.float32, copy=False)
        except NotImplementedError:
            raise InputError(
                f"model {self.path}: tensor {name} is stored as {tensor.tensor_type.name},"
                " which the gguf package cannot dequantise"
            ) from None


def _short(value: object) -> str:
    """A value in a message, shortened if it is long."""
    return repr(value) if len(repr(value)) <= 40 else f"a {type(value).__name__}"


class _GGUFLayers(LazyLayers):
    """The layers of a GGUF file, dequantised at each access."""

    def __init__(self, file: GGUFFile, config: Config) -> None:
        self._file = file
        self._config = config

    def __len__(self) -> int:
        return self._config.layers

    def layer(self, number: int) -> Layer:
        c = self._config
        shapes = {
            "attn_norm": (c.dim,),
            "wq": (c.heads * c.d, c.dim),
            "wk": (c.kv_heads * c.d, c.dim),
            "wv": (c.kv_heads * c.d, c.dim),
            "wo": (c.dim, c.heads * c.d),
            "ffn_norm": (c.dim,),
            "gate": (c.ffn, c.dim),
            "up": (c.ffn, c.dim),
            "down": (c.dim, c.ffn),
        }
        tensors = {
            name: self._file.tensor(f"blk.{number}.{_LAYER_TENSORS[name]}.weight", shape).T
            for name, shape in shapes.items()
        }
        return Layer(**tensors)


def read_weights(file: GGUFFile) -> Weights:
    """Weights of a Llama-family GGUF file.

    Raises ``InputError`` when the file is of another architecture, lacks something, or holds
    something that this model does not compute (experts, biases, stretched positions).
    """
    config = _read_config(file)
    _reject_unknown_tensors(file, config)
    embedding = file.tensor("token_embd.weight", (config.vocab, config.dim))
    tied = "output.weight" not in file.tensor_names
    output = embedding if tied else file.tensor("output.weight", (config.vocab, config.dim))
    factors = None
    if "rope_freqs.weight" in file.tensor_names:
        factors = file.tensor("rope_freqs.weight", (config.rope_dims // 2,))
    return Weights(
        config=config,
        embedding=embedding,
        layers=_GGUFLayers(file, config),
        norm=file.tensor("output_norm.weight", (config.dim,)),
        output=output.T,
        rope_factors=factors,
    )


def _read_config(file: GGUFFile) -> Config:
    architecture = file.require("general.architecture")
    if architecture != "llama":
        raise InputError(
            f"model {file.path}: its architecture is {architecture!r}; only 'llama' can be run"
        )
    scaling = file.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise InputError(f"model {file.path}: RoPE scaling {scaling!r} is not supported")
    heads = file.require("llama.attention.head_count")
    if isinstance(heads, list) or isinstance(file.get("llama.attention.head_count_kv"), list):
        raise InputError(f"model {file.path}: its layers differ in their number of heads")
    heads = file.count("llama.attention.head_count")
    kv_heads = file.count("llama.attention.head_count_kv", heads)
    dim = file.count("llama.embedding_length")
    if heads % kv_heads:
        raise InputError(
            f"model {file.path}: {heads} query heads cannot share {kv_heads} kv heads evenly"
        )
    d = file.count("llama.attention.key_length", dim // heads)
    rope_dims = file.count("llama.rope.dimension_count", d)
    if rope_dims % 2 or rope_dims > d:
        raise InputError(f"model {file.path}: RoPE cannot rotate {rope_dims} of {d} elements")
    layers = file.count("llama.block_count")
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
        ffn=file.count("llama.feed_forward_length"),
        vocab=len(file.texts("tokenizer.ggml.tokens")),
        context=file.count("llama.context_length"),
        rope_base=file.positive("llama.rope.freq_base", 10000.0),
        rope_dims=rope_dims,
        norm_eps=file.positive("llama.attention.layer_norm_rms_epsilon"),
    )


def _reject_unknown_tensors(file: GGUFFile, config: Config) -> None:
    known = {"token_embd.weight", "output.weight", "output_norm.weight", "rope_freqs.weight"}
    known |= {
        f"blk.{layer}.{name}.weight"
        for layer in range(config.layers)
        for name in _LAYER_TENSORS.values()
    }
    unknown = [name for name in file.tensor_names if name not in known]
    if unknown:
        raise InputError(
            f"model {file.path}: it holds the tensor {unknown[0]}, which the plain Llama"
            " architecture does not have"
        )
