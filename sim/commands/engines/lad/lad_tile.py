"""Attention of a language model on LAD's tile, one session a layer (LAD, section IV)."""

import dataclasses
from functools import partial
from typing import Any

import numpy as np

from golden.lm.weights import Config
from hw.lad.tile_parameters import LadTileParameters
from sim.commands.engines.attention import (
    AttentionEngine,
    Fp16Attention,
    LayerRun,
    require_head_size,
    require_heads,
    require_tokens,
)
from sim.core import payload
from sim.core.stimulus import Mismatch, Outcome, Stimulus, compare_memories
from sim.testbenches.lad.jobs import memory_rows, rows_of
from sim.testbenches.lad.lad_tile import Tokens

DRAIN = 8
"""Cycles after a token's last output: more than a write spends between its block and the port."""

Rows = tuple[np.ndarray, np.ndarray]
"""Addresses of rows, int[rows], and what they hold, uint32[rows, words]."""


class LadAttention(Fp16Attention):
    """One layer's attention, computed by RTL and compared with the bit-exact model on every bit.

    Compared are outputs, reports and, after each token, all rows of the memory. The ``votes`` of
    ``steps`` are the query heads for which a position was active.
    """

    block = "lad.lad_tile"

    def __init__(self, run: LayerRun):
        parameters: Any = run.design.parameters  # of this block
        self._p: LadTileParameters = parameters
        self._tokens = Tokens(parameters)
        self._memory = self._tokens.memory()
        super().__init__(run, {"memory": self._memory}, parameters.d)
        # What the memory must hold after the step whose RTL ran last; the model is ahead of it.
        self._expected = self._memory.contents.copy()
        names = [name for name, _ in parameters.report_layout]
        names += ["rows of dense attention", "invalid heads"]
        self._sums: dict[str, float] = dict.fromkeys(names, 0)

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        token, kv_heads = len(self.steps), len(k)
        operands = self._operands(q, k, v)
        o, votes = (self._modelled if self._check else self._unchecked)(token, *operands)
        self.rows = kv_heads * (token + 1)
        positions = np.repeat(np.arange(token + 1)[None], kv_heads, axis=0)
        return self._end(q, operands, o, positions, votes, [-1] * kv_heads)

    def _modelled(self, token: int, q: np.ndarray, k: np.ndarray, v: np.ndarray):
        """The step by the bit-exact model; by the RTL too, but perhaps later."""
        memory = self._tokens.model.memory
        before = memory.copy()
        heads = self._tokens.add(q, k, v, token + 1, restart=token == 0)
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
        job = {"n": token + 1, "heads": len(q), "group": len(q) // len(k), "restart": token == 0}
        inputs = {
            "command": payload.pack(
                p.command_layout, {n: np.array([int(v)]) for n, v in job.items()}
            ),
            "q": rows_of(p, q),
            "kv": rows_of(p, np.stack([k, v], axis=1).reshape(-1, p.d)),
        }
        outcome = self._rtl(token, inputs, {"o": len(q), "report": len(q)}, DRAIN)
        self._count(outcome)
        return self._outputs(outcome), np.full((len(k), token + 1), -1, np.int32)

    def _run(self, token: int, stimulus: Stimulus, changed: Rows) -> None:
        """A step on the RTL, compared."""
        outcome = self._compared(token, stimulus, DRAIN)
        self._refuse(token, self._compare_memory(stimulus, outcome, changed))
        self._count(outcome)

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


class LadEngine(AttentionEngine):
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
        require_heads(config, p.heads, p.kv_heads)
        require_head_size(config, p.d)
        require_tokens(tokens, "positions", p.positions)

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

    def attention(self, run: LayerRun, rows: int) -> LadAttention:
        return LadAttention(run)


engine = LadEngine()
