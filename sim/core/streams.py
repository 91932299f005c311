"""Beats of streams by the names of their fields, packed once from the payloads' layouts."""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

import numpy as np

from sim.core import payload


class Streams:
    """Beats of several streams, added transaction by transaction.

    layouts
        Stream name to payload shape.
    """

    def __init__(self, layouts: Mapping[str, Any]):
        self._layouts = dict(layouts)
        self._owners: dict[str, list[int]] = {name: [] for name in layouts}
        self._beats: dict[str, list[dict[str, np.ndarray]]] = {name: [] for name in layouts}

    def add(self, stream: str, transaction: int, fields: Mapping[str, Any]) -> None:
        """Beats of a transaction, which is not before the stream's last one.

        fields
            Path to ``[beats]``, or ``[beats, elements]`` for an array, as :func:`payload.pack`
            takes them; numbers are of one beat, floating-point numbers become their bits.
        """
        self._owners[stream].append(transaction)
        columns = {name: np.atleast_1d(value) for name, value in fields.items()}
        self._beats[stream].append(columns)

    def fields(self, stream: str) -> list[str]:
        """Names of the fields of a stream's structure."""
        return [name for name, _ in self._layouts[stream]]

    def packed(self, since: int = 0) -> dict[str, np.ndarray]:
        """Beats of each stream, of the transactions from number `since` on."""
        return {name: self._packed(name, since) for name in self._layouts}

    def owners(self, since: int = 0) -> dict[str, np.ndarray]:
        """Transaction of each of these beats, `since` counting as 0."""
        found = {}
        for name, owners in self._owners.items():
            first = bisect_left(owners, since)
            lengths = [len(next(iter(fields.values()))) for fields in self._beats[name][first:]]
            found[name] = np.repeat(np.array(owners[first:], np.int64) - since, lengths)
        return found

    def _packed(self, name: str, since: int) -> np.ndarray:
        layout = self._layouts[name]
        beats = self._beats[name][bisect_left(self._owners[name], since) :]
        if not beats:
            return np.zeros((0, payload.words(layout)), np.uint32)
        columns = {field: np.concatenate([of[field] for of in beats]) for field in beats[0]}
        return payload.pack(layout, {field: as_bits(column) for field, column in columns.items()})


def as_bits(column: np.ndarray) -> np.ndarray:
    """Integers as they are, flags as integers, floating-point numbers as their bits."""
    if column.dtype.kind == "f":
        return column.view(f"u{column.dtype.itemsize}")
    return column.astype(np.int64) if column.dtype.kind == "b" else column


def last_of(counts: Any) -> np.ndarray:
    """Which beats are the last of their transaction, of each one's number of beats."""
    last = np.zeros(sum(counts), bool)
    last[np.cumsum([count for count in counts if count], dtype=np.intp) - 1] = True
    return last
