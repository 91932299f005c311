"""Columns of KLLM's lanes: sums and beats that the counting and the multiplying lane share."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from golden.arith.formats import to_bits
from golden.kllm.column_scale import column_sum
from golden.kllm.outlier_list import OutlierRows, outlier_rows
from hw.kllm.pe_lane import ColumnVector, Result
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.kllm.exact_sums import outliers_of_sum

SPECIAL = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, 2**-24, 65504], np.float16)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LaneProduct(ABC):
    """Columns that share a vector, as the model accepts them.

    activation, value, outlier
        ``[K]``.
    weight, s_b
        ``[columns, K]`` and ``[columns]``.
    codebook
        ``[2^nW]``: FP16 centroids of the weights.
    s_a, r
        Scalars, or arrays of no dimension.
    kept
        ``float32[columns]``: sums of the products before, which are added; None without.
    """

    activation: np.ndarray
    value: np.ndarray
    outlier: np.ndarray
    weight: np.ndarray
    codebook: np.ndarray
    s_a: np.float16 | np.ndarray
    r: np.float16 | np.ndarray
    s_b: np.ndarray
    kept: np.ndarray | None = None

    @abstractmethod
    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        """``float32[columns]``: the dense and the sparse sum of each."""

    @abstractmethod
    def results(self) -> tuple[np.ndarray, np.ndarray]:
        """``float16[columns]`` and ``bool[columns]``: each result, and whether it is invalid."""

    def total(self) -> np.ndarray:
        """``float32[columns]``: sums that are kept for the next product."""
        return column_sum(*self.sums(), np.asarray(self.s_a), self.kept)


def cancelling(
    product: LaneProduct, outlier: np.ndarray, total: Any, kind: int, rng: np.random.Generator
) -> dict[str, Any]:
    """Fields with outliers whose sum is `total`, or near it so that low bits show.

    kind
        0: all but its lowest bits; 1: a tie exactly; others: `total`.
    """
    codebook = product.codebook
    if kind == 0:
        total *= 1 + rng.choice([-1, 1]) * 2.0 ** -int(rng.integers(8, 30))
    elif kind == 1 and total:
        rounded = np.float32(total)
        total = float(rounded) + float(np.spacing(rounded)) * rng.choice([-0.5, 0.5, 1.5])
        power = 2.0 ** np.clip(np.frexp(total)[1] - 8, -14, 15)
        codebook = np.full_like(codebook, power)
    value = outliers_of_sum(codebook[product.weight[0]], outlier, total)
    return {"outlier": outlier, "value": value, "codebook": codebook}


def rows_of(p, product: LaneProduct) -> OutlierRows:
    """Steps of each of the product's columns."""
    return outlier_rows(product.value, product.outlier, p.segment, p.entries, p.k)


def step_fields(
    p, product: LaneProduct, rows: OutlierRows, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Fields of all steps that do not depend on the kind of lane: ``[columns, steps, ...]``."""
    steps = len(rows.segment)
    shape = len(product.weight), steps
    last = np.broadcast_to(np.arange(steps) == steps - 1, shape)
    fields = {
        "codebook": np.broadcast_to(to_bits(product.codebook), (*shape, len(product.codebook))),
        "scale": np.where(last, to_bits(product.s_b)[:, None], rng.integers(0, 1 << 16, shape)),
        "advance": np.broadcast_to(rows.advance, shape),
        "last": last,
    }
    stray = rng.integers(0, 1 << 16, rows.valid.shape).astype(np.uint16)
    entries = {
        "valid": rows.valid,
        "position": np.where(rows.valid, rows.position, stray % p.segment),
        "value": np.where(rows.valid, to_bits(rows.value), stray),
    }
    for name, array in entries.items():
        for entry in range(p.entries):
            fields[f"entries[{entry}].{name}"] = np.broadcast_to(array[:, entry], shape)
    return fields


def columns_stimulus(
    p,
    products: Sequence[LaneProduct],
    steps: Sequence[dict[str, np.ndarray]],
    arrays: Collection[str],
    **other: Any,
) -> Stimulus:
    """The stimulus of columns, of which a transaction is one.

    steps
        Fields of each product's steps, ``[columns, steps, ...]``; those in `arrays` have elements.
    other
        Other fields of the stimulus; `inputs` is added to.
    """
    flat = [
        {name: a.reshape(a.shape[0] * a.shape[1], -1) for name, a in part.items()} for part in steps
    ]
    joined = {name: np.concatenate([part[name] for part in flat]) for name in flat[0]}
    beats = {name: array if name in arrays else array[:, 0] for name, array in joined.items()}
    runs = [len(product.weight) for product in products]
    vectors = {
        name: np.repeat([to_bits(np.asarray(getattr(of, name))) for of in products], runs)
        for name in ("s_a", "r")
    }
    vectors["add"] = np.repeat([product.kept is not None for product in products], runs)
    vectors["first"] = np.concatenate([np.arange(run) == 0 for run in runs])
    y, invalid = (np.concatenate(a) for a in zip(*(of.results() for of in products), strict=True))
    inputs = {
        "i": payload.pack(p.input_layout, beats),
        "vector_scale": payload.pack(ColumnVector, vectors),
    }
    return Stimulus(
        inputs=inputs | other.pop("inputs", {}),
        outputs={"o": payload.pack(Result, {"y": to_bits(y), "invalid": invalid})},
        transaction_of={"o": np.arange(len(y))},
        transactions=len(y),
        **other,
    )
