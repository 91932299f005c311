"""Attention of a language model on VEDA's core, one session a layer (VEDA, sections III and V)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from golden.algorithms.attention import DecodeAttention
from golden.lm.weights import Config
from golden.veda.voting_engine import weight
from hw.parameters import require
from hw.veda.veda_core import VedaCoreParameters
from sim.commands.engines.difference import Difference
from sim.commands.engines.record import LayerStep
from sim.commands.engines.workers import Submit, at_once
from sim.core import payload
from sim.core.design import Design
from sim.core.memory import FASTEST, MemoryTiming
from sim.core.stimulus import Outcome, Stimulus, compare
from sim.drivers.harness.session import Session
from sim.testbenches.veda.veda_core import Steps, inputs_of

BLOCK = "veda.veda_core"


class VedaAttention(DecodeAttention):
    """One layer's attention, computed by RTL and compared with the bit-exact model on every bit.

    design
        Of ``veda.veda_core``; layers share its compiled code.
    layer
        Its number, for messages.
    rows
        Tokens kept between steps, fewer than the core's capacity.
    reserved
        Tokens at the beginning that cast no vote and never leave.
    check
        False: there is no model; what the RTL gives goes on.
    submit
        Runs the RTL of a step and compares it; the model's results go on at once.

    ``cycles`` has those of each step; ``bits`` counts the output bits compared; ``steps`` has what
    went in and out. All three are complete once everything submitted has run.
    """

    def __init__(
        self,
        design: Design,
        layer: int,
        rows: int,
        reserved: int = 4,
        timing: MemoryTiming = FASTEST,
        check: bool = True,
        submit: Submit = at_once,
    ):
        super().__init__()
        self._design, self._layer = design, layer
        self._target, self._reserved = rows, min(reserved, rows)
        self._check, self._submit = check, submit
        parameters: Any = design.parameters  # of this block
        self._steps = Steps(parameters)
        self._session = Session(design, {"cache": self._steps.memory()}, timing)
        self._weights = {"a": weight(1.0), "b": weight(0.2)}
        self._positions: list[int] = []
        self.steps: list[LayerStep] = []
        self.cycles: list[int] = []
        self.bits = 0

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        token, lanes = len(self.steps), self._steps.parameters.array.lanes
        kv_heads, d = k.shape
        fill = ((0, 0), (0, lanes - d))
        rows = (np.asarray(q, np.float64) / np.sqrt(d), np.asarray(k), np.asarray(v))
        half = [np.pad(x, fill).astype(np.float16) for x in rows]
        slots = len(self._positions) + 1
        command = {"target": self._target, "protected": self._reserved, **self._weights}
        flags = {"restart": token == 0, "vote": token >= self._reserved, "evict": True}
        run = self._modelled if self._check else self._unchecked
        o, votes, evicted = run(token, half, flags | command)
        self.evicted += evicted
        self.rows = kv_heads * len(self._positions)
        self.traffic.read(kv_heads * slots, kv_heads * slots, d)
        self.traffic.dense(kv_heads * (token + 1), d)
        o = o[:, :d]
        self.steps.append(
            LayerStep(
                np.asarray(q, np.float32),
                half[1][:, :d],
                half[2][:, :d],
                o,
                np.array([self._positions]),
                votes[None],
                evicted or [-1],
            )
        )
        return o.astype(np.float32)

    def _modelled(self, token: int, rows: list[np.ndarray], command: dict):
        """The step by the bit-exact model; by the RTL too, but perhaps later."""
        result = self._steps.add(*rows, **command)
        self._submit(partial(self._run, token, self._steps.stimulus([], since=token)))
        self._positions = self._steps.core.engine.positions.tolist()
        votes = self._steps.core.engine.counts.astype(np.int32)
        return result.o, votes, [report.position for report in result.reports if report.evict]

    def _unchecked(self, token: int, rows: list[np.ndarray], command: dict):
        """The step by the RTL alone, which does not show its votes."""
        q, k, v = rows
        command |= {"heads": len(q), "group": len(q) // len(k)}
        fields = {name: np.array([int(value)]) for name, value in command.items()}
        kv = np.stack([k, v], axis=1).reshape(-1, k.shape[1])
        inputs = inputs_of(self._steps.parameters, fields, q, kv)
        outcome = self._step_of_rtl(token, inputs, {"o": len(q), "report": 1})
        if outcome.failure is not None:
            raise Difference(BLOCK, self._layer, token, outcome.failure)
        shapes, p = self._design.outputs, self._steps.parameters
        o = payload.unpack(shapes["o"], outcome.outputs["o"])
        report = payload.unpack(shapes["report"], outcome.outputs["report"])
        evicted, self._positions = [], [*self._positions, token]
        if report["evict"][0]:
            evicted = [int(report["position"][0])]
            # The last slot's row moves to the one that is evicted.
            last = self._positions.pop()
            if report["slot"][0] < len(self._positions):
                self._positions[int(report["slot"][0])] = last
        bits = np.stack([o[f"o[{lane}]"] for lane in range(p.array.lanes)], axis=1)
        votes = np.full(len(self._positions), -1, np.int32)
        return bits.astype(np.uint16).view(np.float16), votes, evicted

    def _run(self, token: int, stimulus: Stimulus) -> None:
        """A step on the RTL, compared."""
        outputs = self._design.outputs
        expected = {name: len(beats) for name, beats in stimulus.outputs.items()}
        outcome = self._step_of_rtl(token, stimulus.inputs, expected)
        found = compare(stimulus, outcome.outputs, outputs, outcome.cycles_of)
        if outcome.failure is not None or found:
            raise Difference(BLOCK, self._layer, token, outcome.failure or str(found[0]))
        self.bits += sum(len(b) * payload.width(outputs[n]) for n, b in stimulus.outputs.items())

    def _step_of_rtl(self, token: int, inputs: dict, expected: dict[str, int]) -> Outcome:
        outcome = self._session.step(inputs, expected)
        self.cycles.append(outcome.cycles)
        return outcome

    def bytes_moved(self) -> dict[str, int]:
        """Bytes that the core has read from and written to its cache."""
        use = self._session.uses()["cache"]
        return {"kv_read": use.bytes_read, "kv_written": use.bytes_written}

    def close(self) -> None:
        self._session.close()


class VedaEngine:
    """Attention of all layers of a model, each in a session of its own."""

    def parameters(self, config: Config, rows: int) -> VedaCoreParameters:
        """The core whose heads are the model's and whose capacity takes `rows` and a new one."""
        lanes = max(4, 1 << (config.d - 1).bit_length())
        side = 1 << (lanes.bit_length() - 1) // 2
        return VedaCoreParameters(
            side,
            lanes // side,
            1,
            capacity=max(256, 1 << rows.bit_length()),
            heads=config.heads,
            kv_heads=config.kv_heads,
        )

    def require_fit(self, p: VedaCoreParameters, config: Config, rows: int, tokens: int) -> None:
        """Refuse a core that the model, the rows it keeps or all tokens do not fit.

        :raises ParameterError: naming the parameter to change.
        """
        group = config.heads // config.kv_heads
        require(config.heads <= p.heads, f"heads must be at least {config.heads}", p.heads)
        least = -(-config.heads // group)
        require(least <= p.kv_heads, f"kv_heads must be at least {least}", p.kv_heads)
        lanes = p.array.lanes
        rule = f"rows times columns times arrays must be at least the head size, {config.d}"
        require(config.d <= lanes, rule, lanes)
        require(rows < p.capacity, f"capacity must be more than the {rows} rows kept", p.capacity)
        bits = (tokens - 1).bit_length()
        rule = f"position_bits must be at least {bits} for {tokens} tokens"
        require(bits <= p.position_bits, rule, p.position_bits)

    def attentions(
        self,
        design: Design,
        config: Config,
        rows: int,
        timing: MemoryTiming = FASTEST,
        check: bool = True,
        submit: Callable[[int], Submit] = lambda layer: at_once,
    ) -> list[VedaAttention]:
        """One for each layer, with the same compiled design inside; `submit` gives each its own."""
        return [
            VedaAttention(design, layer, rows, timing=timing, check=check, submit=submit(layer))
            for layer in range(config.layers)
        ]


engine = VedaEngine()
