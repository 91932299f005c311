"""Attention of a language model on the sixth design's core, one session a layer."""

import numpy as np

from golden.algorithms.tsuru import prompt_constants
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

ABOVE, SMOOTH = 3e-4, "smooth"


class TsuruAttention(DecodeAttention[TsuruCoreParameters]):
    """One layer's attention. The host rotates q, k, v and o, makes the rows' codes, and keeps the
    mean of V. Before that it subtracts the prompt's mean from K, multiplies K's channels by the
    prompt's balance, and divides q by it: scores of a row differ by one number then.

    above
        The least estimated probability of a row that is read.
    constants
        ``none``, the ``mean`` alone, or ``smooth``: both.
    """

    block, bench = "tsuru.tsuru_core", TsuruSteps
    _steps: TsuruSteps

    def __init__(self, run: LayerRun, above: float = ABOVE, constants: str = SMOOTH):
        super().__init__(run)
        self._sums = dict.fromkeys(("rows in view", "rows read"), 0.0)
        self.settings |= {"above": above, "constants": constants}
        # By kv head and channel; none before there is a prompt.
        self._mean: np.ndarray | float = 0.0
        self._balance: np.ndarray | float = 1.0
        most = (1 << self._p.command_layout["threshold"].width) - 1
        self._threshold = min(most, round(-np.log2(above) * (1 << FRACTION)))

    def sequence(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """As of other cores; the first run of tokens is the prompt, which has the constants."""
        which = self.settings["constants"]
        if not self.steps and which != "none":
            of = prompt_constants(q, k)
            self._mean = of.mean.astype(np.float64)
            if which == SMOOTH:
                self._balance = of.balance().astype(np.float64)
        return super().sequence(q, k, v)

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
        """Sums over steps and batches of heads: rows in view, and rows read in full. Channels of K
        that are less a mean, and that are balanced."""
        channels = {
            "channels less a mean": np.count_nonzero(self._mean),
            "channels balanced": np.count_nonzero(self._balance != 1.0),
        }
        return self._sums | {name: float(count) for name, count in channels.items()}

    def _operands(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> list[np.ndarray]:
        group = len(q) // len(k)
        self._groups = [group] * len(k)
        of_query = np.repeat(np.broadcast_to(self._balance, k.shape), group, axis=0)
        rows = q / of_query, (k - self._mean) * self._balance, v
        return [rotated(x) for x in super()._operands(*rows)]

    def _offer(self, inputs: Streams, token: int, q, k, v) -> None:
        offer_codes(inputs, 0, q, self._steps.model.rows.write(token, k, v))

    def _end(self, q: np.ndarray, operands: list[np.ndarray], o: np.ndarray, *cache) -> np.ndarray:
        back = [rotated(x) for x in (*operands, o)]
        d = q.shape[1]
        back[1] = back[1][:, :d] / self._balance + self._mean
        return super()._end(q, back[:3], back[3], *cache)


class TsuruEngine(AttentionEngine[TsuruCoreParameters]):
    def parameters(self, config: Config, rows: int) -> TsuruCoreParameters:
        """The core whose heads are the model's, a lane for each head of a group."""
        group = config.heads // config.kv_heads
        d = power_of_two(max(8, config.d))
        capacity = power_of_two(max(256, rows))
        return TsuruCoreParameters(d, capacity, config.heads, config.kv_heads, min(group, d))

    def require_fit(self, p: TsuruCoreParameters, config: Config, rows: int, tokens: int) -> None:
        require_heads(config, p.heads, p.kv_heads)
        require_head_size(config, p.d)
        require_tokens(tokens, "capacity", p.capacity)

    def note(self, figures: dict[str, float]) -> str:
        read, view = figures["rows read"], figures["rows in view"]
        mean, balanced = figures["channels less a mean"], figures["channels balanced"]
        return (
            f"{read / max(view, 1):.1%} of rows read in full"
            f"{', K less its mean in the prompt' if mean else ''}"
            f"{', its channels balanced with the queries' if balanced else ''}"
        )

    def attention(
        self, run: LayerRun, rows: int, above: float = ABOVE, constants: str = SMOOTH
    ) -> TsuruAttention:
        return TsuruAttention(run, above, constants)


engine = TsuruEngine()
