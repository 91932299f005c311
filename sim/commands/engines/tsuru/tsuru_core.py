"""Attention of a language model on the sixth design's core, one session a layer."""

import numpy as np

from golden.lm.weights import Config
from golden.tsuru.row_search import FRACTION
from hw.tsuru.tsuru_core import TsuruCoreParameters
from sim.commands.engines.attention import (
    AttentionEngine,
    require_head_size,
    require_heads,
    require_tokens,
)
from sim.commands.engines.decode import CacheStep, DecodeAttention, power_of_two
from sim.commands.engines.part import LayerRun
from sim.core.streams import Streams
from sim.testbenches.tsuru.row_search import rotated
from sim.testbenches.tsuru.tsuru_core import TsuruSteps, offer_codes

ABOVE = 3e-4


class TsuruAttention(DecodeAttention[TsuruCoreParameters]):
    """One layer's attention. The host rotates q, k, v and o, makes the rows' codes, and keeps the
    mean of V; it subtracts nothing from K.

    above
        The least estimated probability of a row that is read.
    """

    block, bench = "tsuru.tsuru_core", TsuruSteps
    _steps: TsuruSteps

    def __init__(self, run: LayerRun, above: float = ABOVE):
        super().__init__(run)
        self._sums = dict.fromkeys(("rows in view", "rows read"), 0.0)
        self.settings["above"] = above
        most = (1 << self._p.command_layout["threshold"].width) - 1
        self._threshold = min(most, round(-np.log2(above) * (1 << FRACTION)))

    def command(self, token: int) -> dict[str, int]:
        return {"restart": token == 0, "threshold": self._threshold}

    def cached(self, token: int, report: dict[str, np.ndarray]) -> CacheStep:
        length, p = int(report["length"][-1]), self._p
        batches = sum(-(-heads // p.parallel) for heads in self._groups)
        read = int(report["chosen"][-1]) + batches * min(length, p.sinks)
        self._sums["rows in view"] += batches * length
        self._sums["rows read"] += read
        return CacheStep(-(-read // batches), np.arange(length)[None])

    def figures(self) -> dict[str, float]:
        """Sums over steps and batches of heads: rows in view, and rows read in full."""
        return dict(self._sums)

    def _operands(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> list[np.ndarray]:
        self._groups = [len(q) // len(k)] * len(k)
        return [rotated(x) for x in super()._operands(q, k, v)]

    def _offer(self, inputs: Streams, token: int, q, k, v) -> None:
        offer_codes(inputs, 0, q, self._steps.model.rows.write(token, k, v))

    def _end(self, q: np.ndarray, operands: list[np.ndarray], o: np.ndarray, *cache) -> np.ndarray:
        back = [rotated(x) for x in (*operands, o)]
        return super()._end(q, back[:3], back[3], *cache)


class TsuruEngine(AttentionEngine[TsuruCoreParameters]):
    def parameters(self, config: Config, rows: int) -> TsuruCoreParameters:
        """The core whose heads are the model's, a lane for each head of a group."""
        group = config.heads // config.kv_heads
        d = power_of_two(max(8, config.d))
        # Sinks take a few rows of the capacity.
        capacity = power_of_two(max(256, rows + 8))
        return TsuruCoreParameters(d, capacity, config.heads, config.kv_heads, min(group, d))

    def require_fit(self, p: TsuruCoreParameters, config: Config, rows: int, tokens: int) -> None:
        require_heads(config, p.heads, p.kv_heads)
        require_head_size(config, p.d)
        require_tokens(tokens, "capacity, less 3 a sink,", p.tokens)

    def note(self, figures: dict[str, float]) -> str:
        read, view = figures["rows read"], figures["rows in view"]
        return f"{read / max(view, 1):.1%} of rows read in full"

    def attention(self, run: LayerRun, rows: int, above: float = ABOVE) -> TsuruAttention:
        return TsuruAttention(run, above)


engine = TsuruEngine()
