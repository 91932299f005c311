"""The testbench of all arrays: rows written, queries, answers in; searches and scores out.

A transaction is a query with the rows written before it. Answers come from a top-k sense, so that
every search ends as it does in a design.
"""

from collections.abc import Callable, Sequence

import numpy as np
from amaranth.hdl import unsigned

from golden.trace import Trace
from golden.unicaim.cell_array import Search
from golden.unicaim.cells import key_limit, query_planes
from hw.unicaim.array import ArrayOp, ArrayParameters
from sim.core import payload
from sim.core.stimulus import ShownRun, Stimulus
from sim.testbenches.strategies import sometimes
from sim.testbenches.unicaim.operands import pack_bits, real_levels


class ArrayTestbench:
    """
    search
        ``search(parameters, scores, used, k)``: the steps of a search.
    scores
        ``scores(parameters, keys, planes, context)``: of all rows for a query of planes.
    """

    def __init__(self, search: Callable[..., Search], scores: Callable[..., np.ndarray]):
        self.search, self.scores = search, scores

    def default_vectors(self, parameters: ArrayParameters) -> int:
        return 48 if parameters.rows <= 16 else 12

    def stimulus(
        self, parameters: ArrayParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        if trace is not None:
            return self.real(parameters, trace, vectors).stimulus()
        return random_steps(
            Steps(self, parameters), vectors, np.random.default_rng(seed)
        ).stimulus()

    def real(self, p: ArrayParameters, trace: Trace, vectors: int) -> "Steps":
        """Tokens fill three quarters of the rows; then each one overwrites a row and queries."""
        filled = p.rows * 3 // 4
        keys, queries, notes = real_levels(trace, p.d, p.key_bits, p.query_bits, filled + vectors)
        steps = Steps(self, p, notes)
        for token in range(filled + vectors):
            steps.write(token % p.rows, keys[token])
            if token >= filled:
                steps.query(query_planes(queries[token], p.query_bits), max(1, p.rows // 8))
        return steps

    def shown(self, run: ShownRun, figure) -> str:
        """The longest search: lines of the array that are high in each step."""
        lines, rows = run.outputs["lines"], run.parameters.rows
        stopped = lines["stoppable"] & (run.inputs["too_many"]["payload"] == 0)
        ends = [0, *(np.flatnonzero(lines["last"] | stopped) + 1)]
        longest = int(np.diff(ends).argmax())
        steps = int(ends[longest + 1] - ends[longest])
        masks = lines["high"][ends[longest] : ends[longest + 1]][-16:]  # may exceed 64 bits
        high = np.array([[int(mask) >> row & 1 for row in range(rows)] for mask in masks])
        values = run.outputs["values"]
        scores, search = figure.subplots(1, 2, sharey=True)
        bits = np.array([values[f"[{row}]"][longest] for row in range(rows)]).astype(int)
        sign = 1 << run.parameters.score.width - 1  # of two's complement
        scores.barh(range(rows), (bits ^ sign) - sign, color="0.6")
        scores.set_xlabel("score")
        scores.set_ylabel("row")
        search.imshow(
            high.T,
            interpolation="nearest",
            cmap="Blues",
            vmin=0,
            vmax=1.4,
            aspect="auto",
            origin="lower",
        )
        shown = range(0, len(high), 1 + len(high) // 9)
        search.set_xticks(shown, [steps - len(high) + 1 + step for step in shown])
        search.set_xlabel("step of the search")
        return (
            f"One query over {rows} rows: their scores, and the lines that were high (blue) in the"
            f" last {len(high)} of the search's {steps} steps."
        )


class BitLines:
    """Beats on the bit lines of an array, and the keys that they write."""

    def __init__(self, parameters: ArrayParameters):
        self.parameters = parameters
        sizes = parameters.contexts, parameters.rows
        self._keys = np.zeros((*sizes, parameters.d), np.int64)
        self._used = np.zeros(sizes, bool)
        self.context = 0
        """Context of the beats to come."""
        self._beats: list[tuple] = []
        self.writes = 0
        """Rows written."""

    @property
    def keys(self) -> np.ndarray:
        return self._keys[self.context]

    @property
    def used(self) -> np.ndarray:
        return self._used[self.context]

    def write(self, row: int, levels: np.ndarray) -> None:
        self.keys[row], self.used[row] = levels, True
        self.writes += 1
        self._beat(ArrayOp.WRITE, row, 0, levels)

    def clear(self) -> None:
        self.used[:] = False
        self._beat(ArrayOp.CLEAR, 0, 0, np.zeros(self.parameters.d, int))

    def apply(self, planes: np.ndarray) -> None:
        """A query: ``planes`` [any, d] of digits, the least significant plane first."""
        for number, digits in reversed(list(enumerate(planes))):
            self._beat(ArrayOp.QUERY, 0, int(number == 0), digits)

    def _beat(self, *beat) -> None:
        self._beats.append((self.context, *beat))

    def payloads(self) -> np.ndarray:
        columns = [np.array(column) for column in zip(*self._beats, strict=True)]
        names = ("context", "op", "row", "last", "levels")
        fields = dict(zip(names, columns, strict=True))
        if self.parameters.contexts == 1:
            del fields["context"]
        return payload.pack(self.parameters.input_layout, fields)


class Steps(BitLines):
    """Beats on the bit lines in order, and the searches and scores that they lead to."""

    def __init__(
        self, testbench: ArrayTestbench, parameters: ArrayParameters, notes: Sequence[str] = ()
    ):
        super().__init__(parameters)
        self.testbench, self.notes = testbench, list(notes)
        self.searches: list[Search] = []
        self.values: list[np.ndarray] = []

    def query(self, planes: np.ndarray, k: int) -> None:
        p = self.parameters
        self.apply(planes)
        scores = np.where(self.used, self.testbench.scores(p, self.keys, planes, self.context), 0)
        self.searches.append(self.testbench.search(p, scores, self.used, k))
        self.values.append(scores)

    def stimulus(self) -> Stimulus:
        p = self.parameters
        beats = self.payloads()
        lines = [
            np.column_stack([search.high, search.last, search.stoppable])
            for search in self.searches
        ]
        answers = np.concatenate([search.too_many for search in self.searches])
        steps = [len(search.high) for search in self.searches]
        owners = np.arange(len(self.searches))
        return Stimulus(
            inputs={
                "i": beats,
                "too_many": payload.pack(unsigned(1), {"payload": answers}),
            },
            outputs={
                "lines": pack_bits(np.concatenate(lines)),
                "values": payload.pack(p.values_layout, {"": np.array(self.values)}),
            },
            transaction_of={
                "lines": np.repeat(owners, steps),
                "values": owners,
            },
            transactions=len(self.searches),
            cycles=p.cycles(len(beats) + self.writes * (p.write_cycles - 1), sum(steps)),
            notes=self.notes,
        )


def random_steps(steps: Steps, vectors: int, rng: np.random.Generator) -> Steps:
    """Any rows and queries, with ties, few rows in use, k of all sizes, and the extreme scores."""
    p = steps.parameters
    limit = key_limit(p.key_bits)
    largest = {"zero": 0, "ternary": 1, "any": limit, "extreme": limit}
    for _ in range(vectors):
        steps.context = int(rng.integers(p.contexts))
        if sometimes(rng, 0.15):
            steps.clear()
        kind = list(largest)[rng.integers(len(largest))]
        most = largest[kind]
        for _ in range(rng.choice([0, 1, 2, p.rows if p.rows <= 64 else 8])):
            levels = rng.integers(-most, most + 1, p.d)
            if kind == "extreme":
                levels = np.where(sometimes(rng, 0.95, p.d), limit, -limit)
            steps.write(int(rng.integers(p.rows)), levels)
        bits = int(rng.integers(1, p.query_bits + 1))
        planes = rng.integers(-1, 2, (bits, p.d))
        if kind == "extreme":
            planes[:] = rng.choice([-1, 1])
        steps.query(planes, int(rng.choice([1, p.rows, int(rng.integers(0, p.rows + 1))])))
    return steps
