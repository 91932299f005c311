"""Testbench of the level converter: rows in, levels on the bit lines out.

A transaction is a key or a query with the means before it.
"""

import numpy as np

from golden.trace import Trace
from golden.unicaim.cells import query_planes
from golden.unicaim.level_converter import LevelConverter
from hw.unicaim.array import ArrayOp
from hw.unicaim.level_converter import LevelConverterParameters, RowKind
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.operands import numbers
from sim.testbenches.strategies import sometimes
from sim.testbenches.unicaim.operands import keys_and_queries, within_fp16


class LevelConverterTestbench:
    def default_vectors(self, parameters: LevelConverterParameters) -> int:
        return 256 if parameters.d <= 16 else 24

    def stimulus(
        self, parameters: LevelConverterParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        rng = np.random.default_rng(seed)
        if trace is None:
            return random_rows(parameters, vectors, rng).stimulus()
        return real_rows(parameters, trace, vectors).stimulus()


testbench = LevelConverterTestbench()


class Rows:
    """Rows in order, and the beats that they lead to."""

    def __init__(self, parameters: LevelConverterParameters, notes: list[str]):
        p = self.parameters = parameters
        seed = p.seed if p.rotate else None
        self.model = LevelConverter(p.key_bits, p.query_bits, p.contexts, seed)
        self.notes = notes
        self._rows: list[tuple] = []
        self._x: list[np.ndarray] = []
        self._beats: list[tuple] = []
        self._levels: list[np.ndarray] = []
        self._owners: list[int] = []

    def _row(self, kind: RowKind, context: int, row: int, divisor: float, x: np.ndarray) -> None:
        bits = int(np.float16(divisor).view(np.uint16))
        self._rows.append((context, kind, row, bits))
        self._x.append(x.view(np.uint16))

    def mean(self, context: int, x: np.ndarray, divisor: float) -> None:
        self.model.load(context, x, divisor)
        self._row(RowKind.MEAN, context, 0, divisor, x)

    def key(self, context: int, row: int, x: np.ndarray, unused: float = 1) -> None:
        self._row(RowKind.KEY, context, row, unused, x)
        self._beats.append((context, ArrayOp.WRITE, row, 0))
        self._levels.append(self.model.keys(context, x))
        self._owners.append(self.transactions)

    def clear(self, context: int, row: int, x: np.ndarray) -> None:
        self._row(RowKind.CLEAR, context, row, 1, x)
        self._beats.append((context, ArrayOp.CLEAR, row, 0))
        self._levels.append(self.model.keys(context, x))
        self._owners.append(self.transactions)

    def query(self, context: int, x: np.ndarray, divisor: float, row: int = 0) -> None:
        self._row(RowKind.QUERY, context, row, divisor, x)
        bits = self.parameters.query_bits
        planes = query_planes(self.model.query(x, divisor), bits)[::-1]
        self._beats += [(context, ArrayOp.QUERY, row, n == bits - 1) for n in range(bits)]
        self._levels += list(planes)
        self._owners += [self.transactions] * bits

    @property
    def transactions(self) -> int:
        return max(self._owners, default=-1) + 1

    def stimulus(self) -> Stimulus:
        p = self.parameters
        context, kind, row, divisor = np.array(self._rows).T
        fields = {"kind": kind, "row": row, "divisor": divisor, "x": np.array(self._x)}
        out_context, op, out_row, last = np.array(self._beats).T
        beats = {"op": op, "row": out_row, "last": last, "levels": np.array(self._levels)}
        if p.contexts > 1:
            fields["context"], beats["context"] = context, out_context
        return Stimulus(
            inputs={"i": payload.pack(p.input_layout, fields)},
            outputs={"o": payload.pack(p.array.input_layout, beats)},
            transaction_of={"o": np.array(self._owners)},
            transactions=self.transactions,
            cycles=p.cycles([RowKind(k) for k in kind]),
            notes=self.notes,
        )


def real_rows(p: LevelConverterParameters, trace: Trace, count: int) -> Rows:
    """Keys, less the mean of the first ones, and queries in turn."""
    *both, note = keys_and_queries(trace, p.d, count)
    k, q = (within_fp16(x).astype(np.float64) for x in both)
    rows = Rows(p, [f"{note}, limited to FP16's range."])
    scale = np.sqrt(p.d) if p.rotate else 1
    mean = k.mean(axis=0)

    def divisor(step: float) -> float:
        return min(max(step * scale, 2.0**-14), 65504)

    step = 2.5 / (1 << p.key_bits - 1) * np.sqrt(np.mean((k - mean) ** 2))
    for context in range(p.contexts):
        rows.mean(context, mean.astype(np.float16), divisor(step))
    for number in range(count):
        context = number % p.contexts
        if number % 2:
            rows.key(context, number % p.rows, k[number].astype(np.float16))
        else:
            step = p.query_bits / ((1 << p.query_bits) - 1) * np.sqrt(np.mean(q[number] ** 2))
            rows.query(context, q[number].astype(np.float16), divisor(step))
    return rows


def random_rows(p: LevelConverterParameters, count: int, rng: np.random.Generator) -> Rows:
    """Rows of like magnitude with divisors near theirs, and rows and divisors of any kind."""
    rows = Rows(p, [])

    def any_row() -> np.ndarray:
        if sometimes(rng, 0.25):
            return numbers(str(rng.choice(["any", "small", "special"])), p.d, rng)
        x = rng.standard_normal(p.d) * 2.0 ** rng.integers(-16, 8)
        x[rng.integers(p.d)] *= 2.0 ** rng.integers(0, 6)
        return np.round(x, int(rng.integers(0, 9))).astype(np.float16)

    def any_divisor(x: np.ndarray) -> float:
        if sometimes(rng, 0.25):
            return float(np.uint16(rng.integers(1 << 10, 31 << 10)).view(np.float16))
        finite = np.where(np.isfinite(x), x, 0).astype(np.float64)
        size = np.sqrt(np.sum(finite**2)) * 2.0 ** rng.uniform(-3, 1)
        return float(np.clip(size, 2.0**-14, 65504))

    for context in range(p.contexts):
        x = any_row()
        rows.mean(context, x, any_divisor(x))
    while rows.transactions < count:
        context, row, x = int(rng.integers(p.contexts)), int(rng.integers(p.rows)), any_row()
        if sometimes(rng, 0.1):
            rows.mean(context, any_row(), any_divisor(x))
        if sometimes(rng, 0.1):
            rows.clear(context, row, x)
        elif sometimes(rng, 0.5):
            rows.key(context, row, x, any_divisor(x))
        else:
            rows.query(context, x, any_divisor(x), row)
    return rows
