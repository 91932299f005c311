"""Attention of a language model on LAD's tile, one session a layer (LAD, section IV)."""

import dataclasses
from functools import partial

import numpy as np

from golden.algorithms.lad.tile_model import TileLlama, layer_rows
from golden.lm.weights import Config
from hw.lad.tile_parameters import LadTileParameters
from hw.parameters import ParameterError
from sim.commands.engines.attention import (
    AttentionEngine,
    require_head_size,
    require_heads,
    require_tokens,
)
from sim.commands.engines.part import LayerRun
from sim.commands.engines.stored import DRAIN, StoredAttention
from sim.core.stimulus import Stimulus
from sim.testbenches.decode import input_streams, offer, offer_rows
from sim.testbenches.lad.jobs import LadJobs
from sim.testbenches.lad.lad_tile import Tokens


class LadAttention(StoredAttention[LadTileParameters]):
    """One layer's attention, computed by RTL and compared with the bit-exact model on every bit.

    Compared are outputs, reports and, after each token, all rows of the memory. With ``prefetch``,
    rows that were active in the last step are loaded ahead of each step, while the layer's products
    are multiplied elsewhere (Fig. 6); these cycles are not among the step's. The ``votes`` of
    ``steps`` are the query heads for which a position was active. ``tokens`` are the tile's jobs,
    ``weight_rows`` the number of rows of matrices that it has read.
    """

    block = "lad.lad_tile"
    tokens: LadJobs

    def __init__(self, run: LayerRun):
        p = run.parameters(LadTileParameters)
        self.tokens, self.weight_rows = with_matrices(self.jobs(p), run), 0
        self._counted = [name for name, _ in p.report_layout if name not in ("error", "head")]
        sums = [*self._counted, "rows of dense attention", "invalid heads"]
        super().__init__(run, self.tokens.memories(), p.d, sums)

    def jobs(self, p: LadTileParameters) -> LadJobs:
        """No jobs yet."""
        return Tokens(p)

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        token, kv_heads = len(self.steps), len(k)
        operands = self._operands(q, k, v)
        o, votes = (self._modelled if self._check else self._unchecked)(token, *operands)
        self.rows = kv_heads * (token + 1)
        positions = np.repeat(np.arange(token + 1)[None], kv_heads, axis=0)
        return self._end(q, operands, o, positions, votes)

    def _modelled(self, token: int, q: np.ndarray, k: np.ndarray, v: np.ndarray):
        """The step by the bit-exact model; by the RTL too, but perhaps later."""
        if self._p.prefetch and token:
            self._ahead(token, len(q), len(q) // len(k))
        number = len(self.tokens.results)
        heads = self.tokens.add(q, k, v, token + 1, restart=token == 0)
        self._later(token, self.tokens.stimulus([], since=number))
        active = np.stack([head.active for head in heads]).reshape(len(k), -1, token + 1)
        return np.stack([head.o for head in heads]), active.sum(axis=1, dtype=np.int32)

    @property
    def _share(self) -> int:
        """Rows that are loaded ahead for each head at most."""
        return max(1, self._p.prefetch // self._heads_of_a_tile)

    @property
    def _heads_of_a_tile(self) -> int:
        return self._p.heads

    def _ahead(self, token: int, heads: int, group: int) -> None:
        """Load rows ahead of a step, by the model and, perhaps later, by the RTL."""
        number = len(self.tokens.results)
        self.tokens.prefetch(token, heads, group, self._share)
        stimulus = dataclasses.replace(self.tokens.stimulus([], since=number), memories={})
        self._submit(partial(self._load, token, stimulus))

    def _load(self, token: int, stimulus: Stimulus) -> None:
        self._compared(token, stimulus, DRAIN, "rows loaded ahead: ")
        self.cycles.pop()  # beside products, so they are not the step's

    def _unchecked(self, token: int, q: np.ndarray, k: np.ndarray, v: np.ndarray):
        """The step by the RTL alone, which does not show which positions are active."""
        inputs, group = input_streams(self._p), len(q) // len(k)
        if self._p.prefetch and token:
            load = {"n": token, "heads": len(q), "group": group, "prefetch": self._share}
            offer(ahead := input_streams(self._p), 0, load)
            self._rtl(token, ahead.packed(), {}, DRAIN)
            self.cycles.pop()
        flags = {"n": token + 1, "restart": token == 0}
        offer(inputs, 0, {"heads": len(q), "group": group, **flags})
        offer_rows(inputs, 0, q, k, v)
        outcome = self._alone(token, inputs.packed(), {"o": len(q), "report": len(q)})
        return self._outputs(outcome), np.full((len(k), token + 1), -1, np.int32)

    def count(self, report: dict[str, np.ndarray], o: dict[str, np.ndarray]) -> None:
        """The reports' fields, ``n`` being the positions in view; the rows of K and V that dense
        attention reads, each head its own; invalid heads."""
        for name in self._counted:
            self._sums[name] += int(report[name].sum())
        self._sums["rows of dense attention"] += 2 * int(report["n"].sum())
        self._sums["invalid heads"] += int(o["invalid"].sum())

    def bytes_moved(self) -> dict[str, int]:
        found = super().bytes_moved()
        weights = 2 * self._p.d * self.weight_rows
        if weights:
            found |= {"kv_read": found["kv_read"] - weights, "weights_read": weights}
        return found

    def figures(self) -> dict[str, float]:
        found = super().figures()
        return found | {"rows read": found["rows read"] - self.weight_rows}


def with_matrices(jobs: LadJobs, run: LayerRun) -> LadJobs:
    """The same; a layer's matrices are in the memory, if the tile multiplies them."""
    if jobs.parameters.weights and isinstance(run.quantised, TileLlama):
        rows = layer_rows(run.quantised.matrices[run.layer]).view(np.uint16)
        start = jobs.parameters.regions["weight"].base
        jobs.model.memory[start : start + len(rows)] = rows
        jobs.join()
    return jobs


class LadEngine(AttentionEngine[LadTileParameters]):
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
        """Refuse a tile that the model or all tokens do not fit, or that cannot load rows ahead.

        :raises ParameterError: naming the parameter to change.
        """
        require_heads(config, p.heads, p.kv_heads)
        require_head_size(config, p.d)
        require_tokens(tokens, "positions", p.positions)
        if p.prefetch and p.weights:
            raise ParameterError(
                f"prefetch must be 0, not {p.prefetch}, on a tile that multiplies too: a product"
                " reads a row in each cycle, so that nothing can be loaded beside it"
            )

    def note(self, figures: dict[str, float]) -> str:
        """What was saved, in words."""
        positions, dense = figures["n"], figures["rows of dense attention"]
        invalid, hits = int(figures["invalid heads"]), figures["hits"]
        return (
            f"{figures['active'] / positions:.1%} of positions active, "
            f"{figures['updated'] / positions:.1%} updated, "
            f"{figures['rows read'] / dense:.2f} times the rows that dense attention reads"
            + (f", {hits / figures['active']:.1%} of active ones loaded ahead" if hits else "")
            + (f", {invalid} outputs invalid" if invalid else "")
        )

    def attention(self, run: LayerRun, rows: int) -> LadAttention:
        return LadAttention(run)
