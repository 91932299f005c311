"""Attention of a language model on the dense core, one session a layer."""

import numpy as np

from golden.lm.weights import Config
from hw.baseline.dense_core import DenseCoreParameters
from sim.commands.engines.attention import (
    AttentionEngine,
    require_head_size,
    require_heads,
    require_tokens,
)
from sim.commands.engines.decode import CacheStep, DecodeAttention, power_of_two
from sim.commands.engines.part import LayerRun
from sim.testbenches.baseline.dense_core import DenseSteps


class DenseAttention(DecodeAttention[DenseCoreParameters]):
    block, bench = "baseline.dense_core", DenseSteps

    def command(self, token: int) -> dict[str, int]:
        return {"restart": token == 0}

    def cached(self, token: int, report: dict[str, np.ndarray]) -> CacheStep:
        length = int(report["length"][-1])
        return CacheStep(length, np.arange(length)[None])


class DenseEngine(AttentionEngine[DenseCoreParameters]):
    def parameters(self, config: Config, rows: int) -> DenseCoreParameters:
        """The core whose heads are the model's; it keeps all tokens."""
        d, capacity = power_of_two(config.d), power_of_two(max(256, rows))
        return DenseCoreParameters(d, capacity, config.heads, config.kv_heads)

    def require_fit(self, p: DenseCoreParameters, config: Config, rows: int, tokens: int) -> None:
        require_heads(config, p.heads, p.kv_heads)
        require_head_size(config, p.d)
        require_tokens(tokens, "capacity", p.capacity)

    def attention(self, run: LayerRun, rows: int) -> DenseAttention:
        return DenseAttention(run)


engine = DenseEngine()
