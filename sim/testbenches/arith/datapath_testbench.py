"""Testbench of the arithmetic units: operands in, the bit-exact model's results out."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from amaranth.hdl import Shape, unsigned
from amaranth.lib import data

from golden.arith.formats import DTYPES, to_bits
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.arith import operands as draw
from sim.testbenches.strategies import picks, select, sometimes

if TYPE_CHECKING:
    from golden.trace import Trace
    from hw.arith.datapath import DatapathParameters

Kinds = Mapping[str, "str | Shape | tuple[str | Shape, int]"]
"""Port name to the name of a floating-point format or to an integer shape, or for an array port to
(element, number of elements). An array of ``unsigned(1)`` is a port of single bits, which may be
wider than an integer of NumPy.
"""


class DatapathTestbench:
    """Every result must equal the bit-exact model's; a transaction is one operation.

    Parameters
    ----------
    operands, results
        Functions from the unit's parameters to :data:`Kinds`, in the order of the unit's ports.
    golden
        ``golden(parameters, **operands)`` gives the results by port name. Floating-point arrays
        have their format's dtype, integers are ``int64``; an array port has one row for each
        operation.
    scale
        Factor for values of a trace before they are rounded to integer operands.
    integers
        Draws random integer operands, like :func:`sim.testbenches.arith.operands.random_integers`.
    """

    def __init__(
        self,
        operands: Callable[[Any], Kinds],
        results: Callable[[Any], Kinds],
        golden: Callable[..., dict[str, np.ndarray]],
        scale: float = 64.0,
        integers: Callable[..., np.ndarray] = draw.random_integers,
    ):
        self._operands, self._results, self._golden = operands, results, golden
        self._scale, self._integers = scale, integers

    def default_vectors(self, parameters: "DatapathParameters") -> int:
        return 1000

    def stimulus(
        self, parameters: "DatapathParameters", trace: "Trace | None", vectors: int, seed: int
    ) -> Stimulus:
        values, notes = self.draw(parameters, trace, vectors, seed)
        expected = self._golden(parameters, **values)
        return Stimulus(
            inputs={"i": pack(self._operands(parameters), values)},
            outputs={"o": pack(self._results(parameters), expected)},
            transaction_of={"o": np.arange(vectors)},
            transactions=vectors,
            cycles=parameters.cycles(vectors),
            notes=notes,
        )

    def draw(
        self, parameters: Any, trace: "Trace | None", vectors: int, seed: int
    ) -> tuple[dict[str, np.ndarray], list[str]]:
        """Operands by port name, from a trace or random, and what was done to the trace.

        `parameters` are of the unit's own class.
        """
        rng = np.random.default_rng(seed)
        values, notes = {}, []
        for number, (port, kind) in enumerate(self._operands(parameters).items()):
            kind, elements = kind if isinstance(kind, tuple) else (kind, None)
            count = vectors * (elements or 1)
            if trace is not None and (isinstance(kind, str) or kind.width > 1):
                real, name = draw.trace_values(trace, count, number)
                if isinstance(kind, str):
                    values[port] = draw.cast(real, kind)
                    notes.append(f"{port} is {name} as {kind}.")
                else:
                    low, high = limits(kind)
                    scaled = np.rint(real.astype(np.float64) * self._scale)
                    values[port] = np.clip(scaled, low, high).astype(np.int64)
                    notes.append(f"{port} is {name} times {self._scale:g}, rounded.")
            elif not isinstance(kind, str):
                values[port] = self._integers(kind.width, kind.signed, count, rng)
            elif elements is not None:
                values[port] = random_vectors(kind, vectors, elements, rng)
            else:
                same = [v for v in values.values() if v.dtype.kind not in "iu" and v.ndim == 1]
                values[port] = draw.random_floats(kind, vectors, same, rng)
            if elements is not None:
                values[port] = values[port].reshape(vectors, elements)
        return values, notes


def random_vectors(name: str, count: int, elements: int, rng) -> np.ndarray:
    """Vectors of a format whose sums and products are mostly finite.

    Magnitudes are equal in a vector, any, or about 1. All vectors of the last kind and a quarter of
    the others have one or two elements with special values or random bits.
    """
    info = ml_dtypes.finfo(DTYPES[name])
    spread = 2.0 ** rng.integers(int(info.minexp) // 2, int(info.maxexp) // 2, (count, 1))
    any_size = 2.0 ** rng.integers(int(info.minexp) // 2, int(info.maxexp) // 2, (count, elements))
    kind = picks(rng, (count, 1), {"equal": 5, "any": 2, "special": 3})
    magnitudes = select(kind, {"equal": spread, "any": any_size, "special": 1.0})
    values = draw.cast(rng.standard_normal((count, elements)) * magnitudes, name)
    special = (kind == "special") | sometimes(rng, 1 / 4, (count, 1))
    chosen = special & sometimes(rng, 1.5 / elements, (count, elements))
    values[chosen] = draw.random_floats(name, int(np.count_nonzero(chosen)), [], rng)
    return values


def limits(shape: Shape) -> tuple[int, int]:
    """The smallest and the largest integer of a shape."""
    if shape.signed:
        return -(1 << shape.width - 1), (1 << shape.width - 1) - 1
    return 0, (1 << shape.width) - 1


def pack(kinds: Kinds, values: dict[str, np.ndarray]) -> np.ndarray:
    """Operands or results as a stream payload, ``uint32[operations, words]``."""
    bits, shapes = {}, {}
    for port, kind in kinds.items():
        array = values[port]
        kind, elements = kind if isinstance(kind, tuple) else (kind, None)
        if isinstance(kind, str):
            bits[port] = to_bits(array).astype(np.int64)
            element = unsigned(8 * array.dtype.itemsize)
        else:
            bits[port] = np.asarray(array).astype(np.int64)
            element = kind
        shapes[port] = element if elements is None else data.ArrayLayout(element, elements)
    return payload.pack(data.StructLayout(shapes), bits)
