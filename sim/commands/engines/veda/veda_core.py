"""Attention of a language model on VEDA's core, one session a layer (VEDA, sections III and V)."""

from functools import partial
from typing import Any

import numpy as np

from golden.lm.weights import Config
from golden.veda.voting_engine import weight
from hw.parameters import require
from hw.veda.veda_core import VedaCoreParameters
from sim.commands.engines.attention import (
    AttentionEngine,
    Fp16Attention,
    LayerRun,
    require_heads,
)
from sim.core import payload
from sim.testbenches.veda.veda_core import Steps, inputs_of


class VedaAttention(Fp16Attention):
    """One layer's attention, computed by RTL and compared with the bit-exact model on every bit.

    rows
        Tokens kept between steps, fewer than the core's capacity.
    reserved
        Tokens at the beginning that cast no vote and never leave.
    """

    block = "veda.veda_core"

    def __init__(self, run: LayerRun, rows: int, reserved: int = 4):
        parameters: Any = run.design.parameters  # of this block
        self._steps = Steps(parameters)
        super().__init__(run, {"cache": self._steps.memory()}, parameters.array.lanes)
        self._target, self._reserved = rows, min(reserved, rows)
        self._weights = {"a": weight(1.0), "b": weight(0.2)}
        self._positions: list[int] = []

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        token, (kv_heads, d) = len(self.steps), k.shape
        operands = self._operands(q, k, v)
        slots = len(self._positions) + 1
        command = {"target": self._target, "protected": self._reserved, **self._weights}
        flags = {"restart": token == 0, "vote": token >= self._reserved, "evict": True}
        run = self._modelled if self._check else self._unchecked
        o, votes, evicted = run(token, operands, flags | command)
        self.evicted += evicted
        self.rows = kv_heads * len(self._positions)
        self.traffic.read(kv_heads * slots, kv_heads * slots, d)
        self.traffic.dense(kv_heads * (token + 1), d)
        positions = np.array([self._positions])
        return self._end(q, operands, o, positions, votes[None], evicted or [-1])

    def _modelled(self, token: int, rows: list[np.ndarray], command: dict):
        """The step by the bit-exact model; by the RTL too, but perhaps later."""
        result = self._steps.add(*rows, **command)
        self._submit(partial(self._compared, token, self._steps.stimulus([], since=token)))
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
        outcome = self._rtl(token, inputs, {"o": len(q), "report": 1})
        report = payload.unpack(self._design.outputs["report"], outcome.outputs["report"])
        evicted, self._positions = [], [*self._positions, token]
        if report["evict"][0]:
            evicted = [int(report["position"][0])]
            # The last slot's row moves to the one that is evicted.
            last = self._positions.pop()
            if report["slot"][0] < len(self._positions):
                self._positions[int(report["slot"][0])] = last
        votes = np.full(len(self._positions), -1, np.int32)
        return self._outputs(outcome), votes, evicted


class VedaEngine(AttentionEngine):
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
        require_heads(config, p.heads, p.kv_heads)
        lanes = p.array.lanes
        rule = f"rows times columns times arrays must be at least the head size, {config.d}"
        require(config.d <= lanes, rule, lanes)
        require(rows < p.capacity, f"capacity must be more than the {rows} rows kept", p.capacity)
        bits = (tokens - 1).bit_length()
        rule = f"position_bits must be at least {bits} for {tokens} tokens"
        require(bits <= p.position_bits, rule, p.position_bits)

    def attention(self, run: LayerRun, rows: int) -> VedaAttention:
        return VedaAttention(run, rows)


engine = VedaEngine()
