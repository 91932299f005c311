"""Attention of a language model on the H2O core, one session a layer."""

import numpy as np

from golden.lm.weights import Config
from hw.baseline.h2o_core import H2oCoreParameters
from hw.parameters import require
from sim.commands.engines.attention import (
    AttentionEngine,
    require_head_size,
    require_heads,
)
from sim.commands.engines.decode import CacheStep, DecodeAttention, power_of_two
from sim.commands.engines.part import LayerRun
from sim.testbenches.baseline.h2o_core import H2oSteps


class H2oAttention(DecodeAttention[H2oCoreParameters]):
    """Keeps `rows` tokens, half of them the newest ones, as the algorithm does."""

    block, bench = "baseline.h2o_core", H2oSteps

    def __init__(self, run: LayerRun, rows: int):
        super().__init__(run)
        self._target = rows
        self._positions = np.full((self._p.kv_heads, self._p.capacity), -1)

    def command(self, token: int) -> dict[str, int]:
        return {"restart": token == 0, "target": self._target, "recent": -(-self._target // 2)}

    def cached(self, token: int, report: dict[str, np.ndarray]) -> CacheStep:
        heads = np.arange(self._p.kv_heads)
        rows = np.array([report[f"rows[{head}]"][-1] for head in heads], np.int64)
        length = int(report["length"][-1])
        evicted = self._positions[heads, rows].tolist()
        self._positions[heads, rows] = token
        return CacheStep(length, self._positions[:, :length].copy(), evicted)


class H2oEngine(AttentionEngine[H2oCoreParameters]):
    def parameters(self, config: Config, rows: int) -> H2oCoreParameters:
        """The core whose heads are the model's, and which keeps `rows` tokens and a new one."""
        d, capacity = power_of_two(config.d), power_of_two(max(256, rows + 1))
        return H2oCoreParameters(d, capacity, config.heads, config.kv_heads)

    def require_fit(self, p: H2oCoreParameters, config: Config, rows: int, tokens: int) -> None:
        require_heads(config, p.heads, p.kv_heads)
        require_head_size(config, p.d)
        require(rows < p.capacity, f"capacity must be more than the {rows} rows kept", p.capacity)
        bits = (tokens - 1).bit_length()
        rule = f"position_bits must be at least {bits} for {tokens} tokens"
        require(bits <= p.position_bits, rule, p.position_bits)

    def attention(self, run: LayerRun, rows: int) -> H2oAttention:
        return H2oAttention(run, rows)


engine = H2oEngine()
