"""Quantised models, kept in the project's cache folder: made once, then read in a second.

A file holds all that :meth:`golden.algorithms.kllm.model.QuantizedLlama.from_parts` needs, with two
indices of up to four bits in a byte. Its name has a hash of the model's file and of all settings.
"""

import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from golden.algorithms.kllm.attention import Codebooks
from golden.algorithms.kllm.fold import FoldedLlama
from golden.algorithms.kllm.model import (
    INPUTS,
    ActivationQuantizer,
    QuantizedLlama,
    calibration_samples,
)
from golden.algorithms.kllm.quantize import QuantizedWeights
from golden.download import cache_folder
from golden.files import replacing
from golden.lm.model import Llama
from golden.lm.text import DEFAULT_SHA256
from golden.lm.tokenizer import Tokenizer
from golden.lm.weights import Config

_SAMPLES, _LENGTH = 16, 128
SHARE = 0.01
"""Of outliers, both ends together."""
ROTATE = False
"""Whether the residual stream is rotated."""
VERSION = 2
"""Of the files and of what is in them: a change of the quantisation makes it another one."""


def quantized_model(
    model: Llama,
    tokenizer: Tokenizer,
    sha256: str,
    *,
    weight_bits: int,
    activation_bits: int,
    rows: int,
    progress: Callable[[str], None] = lambda text: None,
) -> QuantizedLlama:
    """The bit-exact quantised model, from its file in the cache; otherwise made and kept there.

    sha256
        Of the model's file.
    rows
        Most values of a vector in a product; longer ones are in parts.
    progress
        Called with a line of text for people, such as which layer is quantised.
    :raises ValueError: for bits that no index has.
    """
    path = store_path(sha256, weight_bits, activation_bits, rows)
    exact = FoldedLlama(model, ROTATE)
    if path.is_file():
        try:
            return _read(path, exact, weight_bits, activation_bits, rows)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            progress(f"{path} is damaged and is made again")
    layers = model.config.layers
    made = QuantizedLlama(
        model,
        calibration_samples(tokenizer, _SAMPLES, _LENGTH),
        weight_bits=weight_bits,
        activation_bits=activation_bits,
        norms="fused",
        rotate=ROTATE,
        attention="quantised",
        head=True,
        rows=rows,
        bit_exact=True,
        cached=True,
        progress=lambda index: progress(f"quantising layer {index + 1} of {layers}, once …"),
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            np.savez(file, allow_pickle=False, **_arrays(made, weight_bits))
    except OSError as error:
        progress(f"the quantised model is not kept: {error}")
    return made


def store_path(sha256: str, weight_bits: int, activation_bits: int, rows: int) -> Path:
    """Path of a quantised model's file, which may not exist."""
    calibration = (DEFAULT_SHA256, _SAMPLES, _LENGTH)
    settings = (VERSION, sha256, weight_bits, activation_bits, rows, ROTATE, calibration)
    key = hashlib.sha256(repr(settings).encode()).hexdigest()[:20]
    return cache_folder() / f"kllm_{key}.npz"


def _arrays(model: QuantizedLlama, weight_bits: int) -> dict[str, np.ndarray]:
    """Each array of all layers by its name, the layer first."""
    arrays = {"norms": np.array(model.norms)}
    for name in INPUTS:
        matrices = [layer[name] for layer in model.matrices]
        arrays[f"{name}.index"] = np.array([_packed(m.index, weight_bits) for m in matrices])
        arrays[f"{name}.codebook"] = np.array([m.codebook for m in matrices])
        arrays[f"{name}.scale"] = np.array([m.scale for m in matrices])
    for into in {*INPUTS.values()}:
        arrays[f"input.{into}"] = np.array([layer[into].codebook for layer in model.activations])
    for name in "qkv":
        arrays[f"attention.{name}"] = np.array([getattr(c, name) for c in model.codebooks])
    assert model.head is not None
    matrix, quantizer = model.head
    arrays["head.index"] = _packed(matrix.index, weight_bits)
    arrays |= {"head.codebook": matrix.codebook, "head.scale": matrix.scale}
    return arrays | {"input.output": quantizer.codebook}


def _read(
    path: Path, exact: Llama, weight_bits: int, activation_bits: int, rows: int
) -> QuantizedLlama:
    # NumPy does not close a file that it cannot read.
    with open(path, "rb") as data, np.load(data, allow_pickle=False) as file:
        arrays = dict(file)
    config = exact.config
    matrices: list[dict[str, QuantizedWeights]] = [{} for _ in range(config.layers)]
    activations: list[dict[str, ActivationQuantizer]] = [{} for _ in range(config.layers)]
    norms = _shaped(arrays["norms"], config.layers, 2, config.dim)
    for name, (k, n) in matrix_shapes(config).items():
        packed = _shaped(arrays[f"{name}.index"], config.layers, _bytes(k * n, weight_bits))
        codebook = _shaped(arrays[f"{name}.codebook"], config.layers, 1 << weight_bits)
        scale = _shaped(arrays[f"{name}.scale"], config.layers, n)
        for layer, matrix in enumerate(matrices):
            index = _unpacked(packed[layer], weight_bits)[: k * n].reshape(k, n)
            zero = np.zeros_like(scale[layer])
            matrix[name] = QuantizedWeights(index, codebook[layer], scale[layer], zero)
    for into in {*INPUTS.values()}:
        codebook = _shaped(arrays[f"input.{into}"], config.layers, 1 << activation_bits)
        for layer, quantizers in enumerate(activations):
            quantizers[into] = ActivationQuantizer(codebook[layer], SHARE, rows=rows)
    qkv = [_shaped(arrays[f"attention.{name}"], config.layers, 16) for name in "qkv"]
    codebooks = [Codebooks(*own) for own in zip(*qkv, strict=True)]
    packed = _shaped(arrays["head.index"], _bytes(config.dim * config.vocab, weight_bits))
    index = _unpacked(packed, weight_bits)[: config.dim * config.vocab]
    scale = _shaped(arrays["head.scale"], config.vocab)
    codebook = _shaped(arrays["head.codebook"], 1 << weight_bits)
    head = QuantizedWeights(index.reshape(config.dim, -1), codebook, scale, np.zeros_like(scale))
    own = _shaped(arrays["input.output"], 1 << activation_bits)
    quantizer = ActivationQuantizer(own, SHARE, rows=rows)
    gains = [(a, b) for a, b in norms]
    return QuantizedLlama.from_parts(
        exact, gains, matrices, activations, codebooks, (head, quantizer)
    )


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


def _shaped(array: np.ndarray, *shape: int) -> np.ndarray:
    if array.shape != shape:
        raise ValueError(f"an array of shape {shape} has {array.shape}")
    return array


def _bytes(indices: int, bits: int) -> int:
    return indices if bits > 4 else -(-indices // 2)


def _packed(index: np.ndarray, bits: int) -> np.ndarray:
    """``uint8``: two indices in a byte, the first one low, if they have four bits or fewer."""
    flat = index.ravel()
    if bits > 4:
        return flat
    pairs = np.append(flat, flat[:0] if len(flat) % 2 == 0 else np.uint8(0)).reshape(-1, 2)
    return pairs[:, 0] | pairs[:, 1] << 4


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """The indices; one more than there are if their number is odd."""
    if bits > 4:
        return packed
    return np.stack([packed & 15, packed >> 4], axis=1).ravel()
