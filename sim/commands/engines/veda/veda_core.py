"""Attention of a language model on VEDA's core, one session a layer (VEDA, sections III and V)."""

from typing import Any

import numpy as np

from golden.algorithms.attention import DecodeAttention
from golden.lm.weights import Config
from golden.veda.voting_engine import weight
from hw.parameters import require
from hw.veda.veda_core import VedaCoreParameters
from sim.commands.engines.difference import Difference
from sim.core import payload
from sim.core.design import Design
from sim.core.memory import FASTEST, MemoryTiming
from sim.core.stimulus import compare
from sim.drivers.harness.session import Session
from sim.testbenches.veda.veda_core import Steps

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

    ``cycles`` has those of each step; ``bits`` counts the output bits compared.
    """

    def __init__(
        self,
        design: Design,
        layer: int,
        rows: int,
        reserved: int = 4,
        timing: MemoryTiming = FASTEST,
    ):
        super().__init__()
        self._design, self._layer = design, layer
        self._target, self._reserved = rows, min(reserved, rows)
        parameters: Any = design.parameters  # of this block
        self._steps = Steps(parameters)
        self._session = Session(design, {"cache": self._steps.memory()}, timing)
        self._weights = {"a": weight(1.0), "b": weight(0.2)}
        self.cycles: list[int] = []
        self.bits = 0

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        token, lanes = len(self.cycles), self._steps.parameters.array.lanes
        (kv_heads, d), slots = k.shape, self._steps.length(token == 0)
        fill = ((0, 0), (0, lanes - d))
        rows = (np.asarray(q, np.float64) / np.sqrt(d), np.asarray(k), np.asarray(v))
        result = self._steps.add(
            *(np.pad(x, fill).astype(np.float16) for x in rows),
            restart=token == 0,
            vote=token >= self._reserved,
            evict=True,
            target=self._target,
            protected=self._reserved,
            **self._weights,
        )
        self._run(token)
        self.evicted += [report.position for report in result.reports if report.evict]
        self.rows = kv_heads * len(self._steps.core.engine.positions)
        self.traffic.read(kv_heads * slots, kv_heads * slots, d)
        self.traffic.dense(kv_heads * (token + 1), d)
        return result.o[:, :d].astype(np.float32)

    def _run(self, token: int) -> None:
        """The latest step on the RTL, compared."""
        stimulus, outputs = self._steps.stimulus([], since=token), self._design.outputs
        expected = {name: len(beats) for name, beats in stimulus.outputs.items()}
        outcome = self._session.step(stimulus.inputs, expected)
        found = compare(stimulus, outcome.outputs, outputs, outcome.cycles_of)
        if outcome.failure is not None or found:
            raise Difference(BLOCK, self._layer, token, outcome.failure or str(found[0]))
        self.cycles.append(outcome.cycles)
        self.bits += sum(len(b) * payload.width(outputs[n]) for n, b in stimulus.outputs.items())

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

    def require_fit(self, p: VedaCoreParameters, config: Config, rows: int) -> None:
        """Refuse a core that the model or its rows do not fit.

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

    def attentions(
        self, design: Design, layers: int, rows: int, timing: MemoryTiming = FASTEST
    ) -> list[VedaAttention]:
        """One for each layer, with the same compiled design inside."""
        return [VedaAttention(design, layer, rows, timing=timing) for layer in range(layers)]


engine = VedaEngine()
