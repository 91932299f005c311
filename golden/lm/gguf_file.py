"""Metadata and tensors of a GGUF file.

ggml's ``docs/gguf.md`` describes the file format and its names. The ``gguf`` package dequantises
tensors to float32.
"""

import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize

from golden import InputError


class _Reader(gguf.GGUFReader):
    """The package's reader on a plain array, whose many slices take a third of the time."""

    @property
    def data(self) -> Any:
        return self._data

    @data.setter
    def data(self, mapped: Any) -> None:
        self._data = np.asarray(mapped)


class GGUFFile:
    """Metadata and tensors of a GGUF file. Raises ``InputError`` when it cannot be read."""

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            what = "it is not a file" if self.path.exists() else "there is no such file"
            raise InputError(f"model {path}: {what}")
        try:
            reader = _Reader(self.path)
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
            values = dequantize(tensor.data, tensor.tensor_type)
            return values.astype(np.float32, copy=False)
        except NotImplementedError:
            raise InputError(
                f"model {self.path}: tensor {name} is stored as {tensor.tensor_type.name},"
                " which the gguf package cannot dequantise"
            ) from None


def _short(value: object) -> str:
    """A value in a message, shortened if it is long."""
    return repr(value) if len(repr(value)) <= 40 else f"a {type(value).__name__}"
