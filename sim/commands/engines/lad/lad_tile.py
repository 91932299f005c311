"""Attention of a language model on LAD's tile, one session a layer (LAD, section IV)."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from golden.algorithms.attention import DecodeAttention
from golden.lm.weights import Config
from hw.lad.tile_parameters import LadTileParameters
from hw.parameters import require
from sim.commands.engines.difference import Difference
from sim.commands.engines.record import LayerStep
from sim.commands.engines.workers import Submit, at_once
from sim.core import payload
from sim.core.design import Design
from sim.core.memory import FASTEST, MemoryTiming
from sim.core.stimulus import Mismatch, Outcome, Stimulus, compare, compare_memories
from sim.drivers.harness.session import Session
from sim.testbenches.lad.lad_tile import Tokens, memory_rows, rows_of

BLOCK = "lad.lad_tile"
DRAIN = 8
"""Cycles after a token's last output: more than a write spends between its block and the port."""

Rows = tuple[np.ndarray, np.ndarray]
"""Addresses of rows, int[rows], and what they hold, uint32[rows, words]."""


class LadAttention(DecodeAttention):
    """One layer's attention, computed by RTL and compared with the bit-exact model on every bit.

    design
        Of ``lad.lad_tile``; layers share its compiled code.
    layer
        Its number, for messages.
    check
        False: there is no model; what the RTL gives goes on.
    submit
        Runs the RTL of a step and compares it; the model's results go on at once.

    Compared are outputs, reports and, after each token, all rows of the memory. ``cycles`` has
    those of each step; ``bits`` counts the output bits compared; ``steps`` has what went in and
    out, its ``votes`` the query heads for which a position was active. All three are complete once
    everything submitted has run.
    """

    def __init__(
        self,
        design: Design,
        layer: int,
        timing: MemoryTiming = FASTEST,
        check: bool = True,
        submit: Submit = at_once,
    ):
        super().__init__()
        self._design, self._layer = design, layer
        self._check, self._submit = check, submit
        parameters: Any = design.parameters  # of this block
        self._p: LadTileParameters = parameters
        self._tokens = Tokens(parameters)
        self._memory = self._tokens.memory()
        self._session = Session(design, {"memory": self._memory}, timing)
        # What the memory must hold after the step whose RTL ran last; the model is ahead of it.
        self._expected = self._memory.contents.copy()
        names = [name for name, _ in parameters.report_layout]
        names += ["rows of dense attention", "invalid heads"]
        self._sums: dict[str, float] = dict.fromkeys(names, 0)
        self.steps: list[LayerStep] = []
        self.cycles: list[int] = []
        self.bits = 0

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        token, p = len(self.steps), self._p
        kv_heads, d = k.shape
        fill = ((0, 0), (0, p.d - d))
        rows = (np.asarray(q, np.float64) / np.sqrt(d), np.asarray(k), np.asarray(v))
        half = [np.pad(x, fill).astype(np.float16) for x in rows]
        o, votes = (self._modelled if self._check else self._unchecked)(token, *half)
        o = o[:, :d]
        self.rows = kv_heads * (token + 1)
        self.steps.append(
            LayerStep(
                np.asarray(q, np.float32),
                half[1][:, :d],
                half[2][:, :d],
                o,
                np.repeat(np.arange(token + 1)[None], kv_heads, axis=0),
                votes,
                [-1] * kv_heads,
            )
        )
        return o.astype(np.float32)

    def _modelled(self, token: int, q: np.ndarray, k: np.ndarray, v: np.ndarray):
        """The step by the bit-exact model; by the RTL too, but perhaps later."""
        memory = self._tokens.model.memory
        before = memory.copy()
        heads = self._tokens.add(q, k, v, token + 1, clear=token == 0)
        changed = np.flatnonzero((memory != before).any(axis=1))
        rows = changed, memory_rows(self._p, memory[changed])
        # Whole images of the memory would wait with the stimulus; the changed rows are enough.
        stimulus = dataclasses.replace(self._tokens.stimulus([], since=token), memories={})
        self._submit(partial(self._run, token, stimulus, rows))
        active = np.stack([head.active for head in heads]).reshape(len(k), -1, token + 1)
        return np.stack([head.o for head in heads]), active.sum(axis=1, dtype=np.int32)

    def _unchecked(self, token: int, q: np.ndarray, k: np.ndarray, v: np.ndarray):
        """The step by the RTL alone, which does not show which positions are active."""
        p = self._p
        job = {"n": token + 1, "heads": len(q), "group": len(q) // len(k), "clear": token == 0}
        inputs = {
            "job": payload.pack(p.job_layout, {n: np.array([int(v)]) for n, v in job.items()}),
            "q": rows_of(p, q),
            "kv": rows_of(p, np.stack([k, v], axis=1).reshape(-1, p.d)),
        }
        outcome = self._step_of_rtl(token, inputs, {"o": len(q), "report": len(q)})
        if outcome.failure is not None:
            raise Difference(BLOCK, self._layer, token, outcome.failure)
        self._count(outcome)
        o = payload.unpack(self._design.outputs["o"], outcome.outputs["o"])
        bits = np.stack([o[f"o[{element}]"] for element in range(p.d)], axis=1)
        votes = np.full((len(k), token + 1), -1, np.int32)
        return bits.astype(np.uint16).view(np.float16), votes

    def _run(self, token: int, stimulus: Stimulus, changed: Rows) -> None:
        """A step on the RTL, compared."""
        outputs = self._design.outputs
        expected = {name: len(beats) for name, beats in stimulus.outputs.items()}
        outcome = self._step_of_rtl(token, stimulus.inputs, expected)
        found = compare(stimulus, outcome.outputs, outputs, outcome.cycles_of)
        if outcome.failure is None and not found:
            found = self._compare_memory(stimulus, outcome, changed)
        if outcome.failure is not None or found:
            raise Difference(BLOCK, self._layer, token, outcome.failure or str(found[0]))
        self._count(outcome)
        self.bits += sum(len(b) * payload.width(outputs[n]) for n, b in stimulus.outputs.items())

    def _compare_memory(
        self, stimulus: Stimulus, outcome: Outcome, changed: Rows
    ) -> list[Mismatch]:
        """The first row of the memory that differs after a step in which the model changed some."""
        addresses, rows = changed
        self._expected[addresses] = rows
        after = dataclasses.replace(self._memory, after=self._expected)
        return compare_memories(
            dataclasses.replace(stimulus, memories={"memory": after}),
            dataclasses.replace(outcome, memories=self._session.uses()),
        )

    def _step_of_rtl(self, token: int, inputs: dict, expected: dict[str, int]) -> Outcome:
        outcome = self._session.step(inputs, expected, drain=DRAIN)
        self.cycles.append(outcome.cycles)
        return outcome

    def _count(self, outcome: Outcome) -> None:
        report = payload.unpack(self._design.outputs["report"], outcome.outputs["report"])
        for name, values in report.items():
            self._sums[name] += int(values.sum())
        o = payload.unpack(self._design.outputs["o"], outcome.outputs["o"])
        self._sums["rows of dense attention"] += 2 * int(report["n"].sum())
        self._sums["invalid heads"] += int(o["invalid"].sum())

    def figures(self) -> dict[str, float]:
        """Sums over steps and query heads: the reports' fields, ``n`` being the positions in view;
        the rows of K and V that dense attention reads, each head its own; invalid heads. Rows read
        from and written to memory, cycles.
        """
        use = self._session.uses()["memory"]
        return self._sums | {
            "rows read": use.rows_read,
            "rows written": use.rows_written,
            "cycles": sum(self.cycles),
        }

    def bytes_moved(self) -> dict[str, int]:
        """Bytes that the tile has read from and written to its memory, all tables included."""
        use = self._session.uses()["memory"]
        return {"kv_read": use.bytes_read, "kv_written": use.bytes_written}

    def close(self) -> None:
        self._session.close()


class LadEngine:
    """Attention of all layers of a model, each in a session of its own."""

    def parameters(self, config: Config, rows: int) -> LadTileParameters:
        """A tile of the model's heads. It keeps all tokens: 1024, or more if `rows` is more."""
        default = LadTileParameters()
        return LadTileParameters(
            d=max(8, 1 << (config.d - 1).bit_length()),
            positions=max(default.positions, 1 << (rows - 1).bit_length()),
            heads=config.heads,
            kv_heads=config.kv_heads,
        )

    def require_fit(self, p: LadTileParameters, config: Config, rows: int, tokens: int) -> None:
        """Refuse a tile that the model or all tokens do not fit.

        :raises ParameterError: naming the parameter to change.
        """
        require(config.heads <= p.heads, f"heads must be at least {config.heads}", p.heads)
        least = config.kv_heads
        require(least <= p.kv_heads, f"kv_heads must be at least {least}", p.kv_heads)
        require(config.d <= p.d, f"d must be at least the head size, {config.d}", p.d)
        rule = f"positions must be at least {tokens}, the prompt's and those to make"
        require(tokens <= p.positions, rule, p.positions)

    def note(self, figures: dict[str, float]) -> str:
        """What was saved, in words."""
        positions, dense = figures["n"], figures["rows of dense attention"]
        invalid = int(figures["invalid heads"])
        return (
            f"{figures['active'] / positions:.1%} of positions active, "
            f"{figures['updated'] / positions:.1%} updated, "
            f"{figures['rows read'] / dense:.2f} times the rows that dense attention reads"
            + (f", {invalid} outputs invalid" if invalid else "")
        )

    def attentions(
        self,
        design: Design,
        config: Config,
        rows: int,
        timing: MemoryTiming = FASTEST,
        check: bool = True,
        submit: Callable[[int], Submit] = lambda layer: at_once,
    ) -> list[LadAttention]:
        """One for each layer, with the same compiled design inside; `submit` gives each its own."""
        return [
            LadAttention(design, layer, timing, check, submit(layer))
            for layer in range(config.layers)
        ]


engine = LadEngine()
