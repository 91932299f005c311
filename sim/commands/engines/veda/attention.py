"""Attention of a language model on VEDA's core (VEDA, sections III and V).

A core of one context computes one layer, in a session; a core of as many contexts as there are
layers computes all of them.
"""

import numpy as np

from golden.algorithms.veda.half_model import HalfLlama
from golden.lm.model import Llama
from golden.lm.weights import Config
from golden.veda.voting_engine import weight
from hw.parameters import require
from hw.veda.veda_core_parameters import VedaCoreParameters
from sim.commands.engines.attention import AttentionEngine, require_heads
from sim.commands.engines.decode import CacheStep, DecodeAttention
from sim.commands.engines.part import LayerRun
from sim.core import payload
from sim.testbenches.veda.core_steps import Steps


def steps_of(p: VedaCoreParameters, model: Llama | None) -> Steps:
    """No steps yet; the matrices of the model are in the memory, if the core multiplies them."""
    steps = Steps(p)
    if isinstance(model, HalfLlama):
        first = 0
        for matrix in (matrix for layer in model.matrices for matrix in layer):
            rows = matrix.reshape(-1, p.d)
            steps.weights[first : first + len(rows)] = rows
            first += len(rows)
    return steps


class VedaAttention(DecodeAttention[VedaCoreParameters]):
    """One layer's attention; its votes are the bit-exact model's.

    rows
        Tokens kept between steps, fewer than the core's capacity.
    reserved
        Tokens at the beginning that cast no vote and never leave.

    ``weight_rows`` is the number of rows of matrices that the same core has read.
    """

    block, bench = "veda.veda_core", Steps
    _steps: Steps

    def __init__(self, run: LayerRun, rows: int, reserved: int = 4):
        super().__init__(run)
        self._context = 0 if run.beside is None else run.layer
        self._target, self._reserved = rows, min(reserved, rows)
        self._positions: list[int] = []
        self.weight_rows = 0

    def make_steps(self, run: LayerRun) -> Steps:
        return steps_of(run.parameters(VedaCoreParameters), run.quantised)

    def bytes_moved(self) -> dict[str, int]:
        found, row = super().bytes_moved(), 2 * self._p.d
        if self._opened and self._p.vector:
            weights = row * self.weight_rows
            found |= {"kv_read": found["kv_read"] - weights, "weights_read": weights}
        return found

    def sequence(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """A run of tokens, in blocks as far as none but a block's last evicts."""
        found, first = [], 0
        while first < q.shape[1]:
            end = first + self._tokens(q.shape[1] - first)
            rows = [x[:, first:end] for x in (q, k, v)]
            if end - first == 1:
                found.append(self.step(*(x[:, 0] for x in rows))[:, None])
            else:
                found.append(self._block(*rows))
            first = end
        return np.concatenate(found, axis=1)

    def _tokens(self, most: int) -> int:
        """Tokens of the next step: all vote or none, and only the last may evict."""
        number, room = len(self.steps), self._target + 1 - len(self._positions)
        alike = self._reserved - number if number < self._reserved else most
        return max(1, min(self._p.block, most, alike, room))

    def _block(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """A step of several tokens; ``cycles`` and votes count with the last of them."""
        heads, tokens, d = q.shape
        number = len(self.steps)
        operands = self._operands(q, k, v)
        command = self.command(number)
        self._submit(lambda: self.cycles.extend([0] * (tokens - 1)))
        run = self._modelled if self._check else self._unchecked
        o, reports = run(number + tokens - 1, operands, command)
        fields = payload.unpack(self._p.report_layout, reports)
        o, found = o.reshape(heads, tokens, -1), []
        for token in range(tokens):
            report = {name: values[token : token + 1] for name, values in fields.items()}
            cache, last = self.cached(number + token, report), token == tokens - 1
            self.evicted += cache.gone()
            self.traffic.dense(len(k) * (number + token + 1), d)
            rows = [x[:, token] for x in operands]
            votes = cache.votes if last else None
            found.append(self._end(q[:, token], rows, o[:, token], cache.positions, votes))
        self.rows = len(k) * cache.positions.shape[1]
        self.traffic.read(len(k) * cache.read, len(k) * cache.read, d)
        return np.stack(found, axis=1)

    def _unchecked(self, token: int, rows: list[np.ndarray], command: dict):
        tokens = rows[0].shape[1] if rows[0].ndim == 3 else 1
        field = {"tokens": tokens} if self._p.block > 1 else {}
        return super()._unchecked(token, rows, command | field)

    def command(self, token: int) -> dict[str, int]:
        flags = {"restart": token == 0, "vote": token >= self._reserved, "evict": True}
        limits = {"target": self._target, "protected": self._reserved}
        weights = {"a": weight(1.0), "b": weight(0.2)}
        return flags | limits | weights | {"context": self._context}

    def cached(self, token: int, report: dict[str, np.ndarray]) -> CacheStep:
        positions = self._positions
        positions.append(token)
        slots, evicted = len(positions), -1
        if report["evict"][0]:  # the last slot's row moves to the one that is evicted
            slot, evicted = int(report["slot"][0]), int(report["position"][0])
            last = positions.pop()
            if slot < len(positions):
                positions[slot] = last
        votes = (
            self._steps.core.contexts[self._context].engine.counts[None] if self._check else None
        )
        return CacheStep(slots, np.array([positions]), [evicted], votes)


class VedaEngine(AttentionEngine[VedaCoreParameters]):
    def parameters(self, config: Config, rows: int) -> VedaCoreParameters:
        """The core whose heads are the model's and whose capacity takes `rows` and a new one.

        It reads rows once for a group.
        """
        lanes = max(4, 1 << (config.d - 1).bit_length())
        side = 1 << (lanes.bit_length() - 1) // 2
        return VedaCoreParameters(
            side,
            lanes // side,
            1,
            capacity=max(256, 1 << rows.bit_length()),
            heads=config.heads,
            kv_heads=config.kv_heads,
            parallel=max(config.heads // config.kv_heads, min(2, config.heads)),
        )

    def require_fit(self, p: VedaCoreParameters, config: Config, rows: int, tokens: int) -> None:
        """Refuse a core that the model, the rows it keeps or all tokens do not fit.

        :raises ParameterError: naming the parameter to change.
        """
        require_heads(config, p.heads, p.kv_heads)
        lanes = p.d
        rule = f"rows times columns times arrays must be at least the head size, {config.d}"
        require(config.d <= lanes, rule, lanes)
        require(rows < p.capacity, f"capacity must be more than the {rows} rows kept", p.capacity)
        rule = f"contexts must be 1, for a core a layer, or at least {config.layers} for one core"
        require(p.contexts == 1 or p.contexts >= config.layers, rule, p.contexts)
        bits = (tokens - 1).bit_length()
        rule = f"position_bits must be at least {bits} for {tokens} tokens"
        require(bits <= p.position_bits, rule, p.position_bits)

    def together(self, p: VedaCoreParameters, config: Config) -> bool:
        return p.contexts >= config.layers

    def attention(self, run: LayerRun, rows: int) -> VedaAttention:
        return VedaAttention(run, rows)
