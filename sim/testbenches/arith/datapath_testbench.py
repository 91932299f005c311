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
    exact
        The same in ``float64`` without rounding, for the picture; None if `golden` is exact.
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
        exact: Callable[..., np.ndarray] | None = None,
        scale: float = 64.0,
        integers: Callable[..., np.ndarray] = draw.random_integers,
    ):
        self._operands, self._results, self._golden = operands, results, golden
        self._exact, self._scale, self._integers = exact, scale, integers

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

    def picture(self, parameters: "DatapathParameters", trace: "Trace", figure) -> str | None:
        """Results and errors on a trace's operands; if all are exact, results by their operands."""
        values, notes = self.draw(parameters, trace, 4000, seed=1)
        port, result = next(iter(self._golden(parameters, **values).items()))
        got = result.astype(np.float64)
        wide = {name: value.astype(np.float64) for name, value in values.items()}
        with np.errstate(all="ignore"):
            exact = got if self._exact is None else self._exact(parameters, **wide)
            error = (got - exact) / last_place(exact, self._results(parameters)[port])
        shown = np.isfinite(exact) & np.isfinite(error)
        error = error[shown]
        if not error.any():
            return self._picture_of_exact(port, got, wide, notes, figure)
        curve, histogram = figure.subplots(1, 2)
        first = next(iter(wide.items()))
        unary = len(wide) == 1 and first[1].ndim == 1
        name, against = first if unary else ("exact", exact)
        _plot(curve, (name, against[shown]), (port, got[shown]))
        histogram.hist(error, bins=60, range=np.quantile(error, [0.005, 0.995]) + [-1e-9, 1e-9])
        histogram.set_xlabel(f"error of {port}, units in the last place")
        histogram.set_ylabel("operations")
        worst = f"{float(f'{np.abs(error).max():.3g}'):g}"  # three digits, no exponent
        what = "its operand" if unary else "the exact result"
        caption = (
            f"On the left {port} against {what}; on the right its error, at most"
            f" {worst} units in the last place (the outermost 1 % are not drawn)."
            f" {np.count_nonzero(error == 0)} of {len(error)} results are exact."
        )
        return " ".join([caption, *notes])

    def _picture_of_exact(self, port, got, wide, notes, figure) -> str | None:
        pair = [(name, value) for name, value in wide.items() if value.ndim == 1][:2]
        axes = figure.subplots()
        if len(pair) == 2:
            image = _plot(axes, pair[0], pair[1], got)
            figure.colorbar(image, label=port)
            what = f"{port} (colour) of pairs of {pair[0][0]} and {pair[1][0]}, but for outliers"
        elif not pair:
            results, operations = np.unique(got, return_counts=True)
            axes.bar(results, operations)
            axes.set_xlabel(port)
            axes.set_ylabel("operations")
            what = f"How often {port} has each value"
        else:  # a straight line
            return None
        return " ".join([f"{what}; all {len(got)} results are exact.", *notes])


def last_place(values: np.ndarray, kind: "str | Shape | tuple[str | Shape, int]") -> np.ndarray:
    """The unit in the last place of numbers next to `values`; 1 for integers."""
    kind = kind[0] if isinstance(kind, tuple) else kind
    if not isinstance(kind, str):
        return np.ones_like(values)
    info = ml_dtypes.finfo(DTYPES[kind])
    exponent = np.maximum(np.frexp(values)[1] - 1, int(info.minexp))
    return np.ldexp(1.0, exponent - info.nmant)


def _plot(axes, x: tuple[str, np.ndarray], y: tuple[str, np.ndarray], colour=None):
    """Scatter plot as an image, since thousands of vector points would take megabytes."""
    axes.set_xlabel(x[0])
    axes.set_ylabel(y[0])
    if colour is not None:  # the middle, where most points are
        axes.set_xlim(np.quantile(x[1], [0.01, 0.99]))
        axes.set_ylim(np.quantile(y[1], [0.01, 0.99]))
        low, high = np.quantile(colour, [0.02, 0.98])
        options = {"c": colour, "cmap": "viridis", "vmin": low, "vmax": high}
        return axes.scatter(x[1], y[1], s=6, linewidths=0, rasterized=True, **options)
    for values, scale, axis in (
        (x[1], axes.set_xscale, axes.xaxis),
        (y[1], axes.set_yscale, axes.yaxis),
    ):
        typical = np.median(np.abs(values))
        if typical and np.abs(values).max() > 100 * typical:
            scale("symlog", linthresh=10.0 ** np.ceil(np.log10(typical)))
            axis.get_major_locator().set_params(numticks=7)
    return axes.scatter(x[1], y[1], s=4, linewidths=0, rasterized=True)


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
