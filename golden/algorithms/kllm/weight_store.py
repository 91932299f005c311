"""Quantised weights in the project's cache folder: fitted once, then read in a second.

Two indices of up to four bits share a byte. A file's name has a hash of the float weights, of the
calibration tokens and of all settings.
"""

import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from golden.algorithms.kllm.quantize import QuantizedWeights
from golden.download import cache_folder
from golden.files import replacing
from golden.lm.model import Llama

VERSION = 5
"""Version of the files and of what is in them: a change of the quantisation makes it another one.
"""

_MATRICES = ("wq", "wk", "wv", "wo", "gate", "up", "down")


def weights_key(model: Llama, samples: Sequence[Sequence[int]], bits: int, part: str) -> str:
    """Name of a part of the weights of `model`, fitted to `samples`, or to none as in the paper.

    part
        ``layers``, which do not depend on the output matrix, or another word.
    """
    digest = hashlib.sha256(repr((VERSION, [list(s) for s in samples], bits, part)).encode())
    weights = model.weights
    for index in range(model.config.layers):
        layer = weights.layers[index]
        for name in (*_MATRICES, "attn_norm", "ffn_norm"):
            digest.update(np.ascontiguousarray(getattr(layer, name)).data)
        for bias in layer.biases.values():
            digest.update(np.ascontiguousarray(bias).data)
    for array in (weights.embedding, *([] if part == "layers" else [weights.norm, weights.output])):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:20]


def weights_path(key: str) -> Path:
    """Path of the file, which may not exist."""
    return cache_folder() / f"kllm_weights_{key}.npz"


def read_weights(key: str, bits: int) -> list[dict[str, QuantizedWeights]] | None:
    """Each layer's matrices by name, as kept; None if missing or damaged."""
    try:
        # NumPy does not close a file that it cannot read.
        with open(weights_path(key), "rb") as data, np.load(data, allow_pickle=False) as file:
            found: dict[int, dict[str, QuantizedWeights]] = {}
            for number in range(int(file["matrices"])):
                shape, place = file[f"{number}.shape"], str(file[f"{number}.place"])
                layer, name = place.split(".")
                index = unpacked(file[f"{number}.index"], bits)[: shape.prod()].reshape(shape)
                scale = file[f"{number}.scale"]
                matrix = QuantizedWeights(
                    index, file[f"{number}.codebook"], scale, np.zeros_like(scale)
                )
                found.setdefault(int(layer), {})[name] = matrix
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return list(found.values())


def write_weights(key: str, layers: Sequence[dict[str, QuantizedWeights]], bits: int) -> None:
    """Keep them; a folder that cannot be written is no error."""
    arrays, number = {}, 0
    for layer, matrices in enumerate(layers):
        for name, matrix in matrices.items():
            arrays[f"{number}.place"] = np.array(f"{layer}.{name}")
            arrays[f"{number}.shape"] = np.array(matrix.index.shape)
            arrays[f"{number}.index"] = packed(matrix.index, bits)
            arrays[f"{number}.codebook"] = matrix.codebook
            arrays[f"{number}.scale"] = matrix.scale
            number += 1
    path = weights_path(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            np.savez(file, allow_pickle=False, matrices=np.array(number), **arrays)
    except OSError:
        return


def packed(index: np.ndarray, bits: int) -> np.ndarray:
    """``uint8``: two indices in a byte, the first one low, if they have four bits or fewer."""
    flat = index.ravel()
    if bits > 4:
        return flat
    pairs = np.append(flat, flat[:0] if len(flat) % 2 == 0 else np.uint8(0)).reshape(-1, 2)
    return pairs[:, 0] | pairs[:, 1] << 4


def unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """The indices; one more than there are if their number is odd."""
    if bits > 4:
        return packed
    return np.stack([packed & 15, packed >> 4], axis=1).ravel()
