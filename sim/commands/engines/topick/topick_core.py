"""Attention of a language model on ToPick's core, one session a layer (Token-Picker, section 4)."""

from functools import partial

import numpy as np

from golden.algorithms.topick.quantise import QuantisedCache, quantise, scale_for
from golden.lm.weights import Config
from hw.topick.core_parameters import TokenWork, TopickCoreParameters
from sim.commands.engines.attention import (
    AttentionEngine,
    RtlAttention,
    require_head_size,
    require_heads,
    require_tokens,
)
from sim.commands.engines.difference import Difference
from sim.commands.engines.part import LayerRun
from sim.core import payload
from sim.core.stimulus import Outcome
from sim.drivers.board.shared import DesignOnBoard
from sim.testbenches.topick.core_jobs import CoreStimulus, Jobs
from sim.testbenches.topick.pe_lane import coded_head
from sim.testbenches.topick.prediction import CorePrediction
from sim.testbenches.topick.topick_core import (
    HeadDecisions,
    decisions_of,
    pruned_late,
    sums_of,
    unexpected,
)
from sim.testbenches.topick.topick_core import mismatches as find_mismatches

THRESHOLD = 1e-3
CALIBRATION, HEADROOM = 64, 1.25
"""Of :class:`golden.algorithms.topick.quantise.QuantisedCache`, as the algorithm's defaults."""


class TopickAttention(RtlAttention[TopickCoreParameters]):
    """One layer's attention, computed by RTL.

    What is pruned depends on timing, so the RTL goes first; from its decisions the bit-exact model
    computes what its sums must be, and which tokens must not have been pruned.

    threshold
        Probability up to which tokens are pruned; 0 prunes nothing.

    The host quantises K and V as the algorithm does (``QuantisedCache``): where that changes the
    codes of earlier rows, it writes them to the memories again before the step. In a simulation the
    decisions, their order and the cycles are those predicted. The ``votes`` of ``steps`` are the
    query heads that kept a token.
    """

    block = "topick.topick_core"

    def __init__(self, run: LayerRun, threshold: float = THRESHOLD):
        parameters = run.parameters(TopickCoreParameters)
        self._jobs = Jobs(parameters)
        sums = "tokens in view", "chunks of all keys", "chunks of keys read", "tokens kept"
        super().__init__(run, self._jobs.memories(), sums)
        self._threshold = self.settings["threshold"] = threshold
        self._cache = QuantisedCache(parameters.bits, CALIBRATION, HEADROOM)
        on_board = isinstance(run.design, DesignOnBoard)
        drawn = run.timing.is_drawn and not on_board
        self._prediction = CorePrediction(parameters, run.timing) if drawn else None
        shortest, longest = run.timing.latency
        self._latency = (shortest + longest) // 2
        self._unpruned = 0

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        p, bits, cache = self._p, self._p.bits, self._cache
        token, (kv_heads, d) = len(self.cycles), k.shape
        group = len(q) // kv_heads
        fill = ((0, 0), (0, p.d - d))
        cache.append(k[:, None], v[:, None])
        codes = np.pad(np.stack([cache.k, cache.v]), ((0, 0), (0, 0), *fill))
        if cache.rewritten:
            self._jobs.rewrite(*codes[:, :, :-1])
            for name, words in self._jobs.contents().items():
                self._session.write_rows(name, 0, words)
        k_codes, v_codes = codes[:, :, -1]
        k_scale, v_scale = cache.k_scale, cache.v_scale
        q_scale = scale_for(np.abs(q).max(axis=1), bits)
        q_codes = np.pad(quantise(q, q_scale[:, None], bits), fill)
        c = q_scale * np.repeat(k_scale, group) / np.sqrt(d)
        heads = [
            coded_head(p.lane, codes, float(each), self._threshold, token + 1)
            for codes, each in zip(q_codes, c, strict=True)
        ]
        self._jobs.add(heads, k_codes, v_codes)
        self._unpruned += p.cycles([TokenWork(token + 1, len(q), kv_heads)], self._latency)
        stimulus = self._jobs.stimulus([], since=token)
        expected = {name: len(beats) for name, beats in stimulus.outputs.items()}
        outcome = self._rtl(token, stimulus.inputs, expected)
        sums = self._attended(outcome, len(q))
        total = np.maximum(sums[:, -1:], 1)
        o = sums[:, :d] / total * np.repeat(v_scale, group)[:, None]
        rows = [q]
        rows += [x[:, :d] * s[:, None] for x, s in ((k_codes, k_scale), (v_codes, v_scale))]
        self.rows = kv_heads * (token + 1)
        self._submit(partial(self._finish, token, stimulus, outcome, [*rows, o]))
        return o.astype(np.float32)

    def _attended(self, outcome: Outcome, heads: int) -> np.ndarray:
        """The RTL's sums by head, as integers, ``total`` the last."""
        p = self._p
        beats = payload.unpack(self._design.outputs["o"], outcome.outputs["o"])
        o = np.empty((heads, p.d + 1), np.int64)
        o[beats["head"].astype(int)] = sums_of(p, beats)
        return o

    def _finish(
        self, token: int, stimulus: CoreStimulus, outcome: Outcome, rows: list[np.ndarray]
    ) -> None:
        """Check a step, and count what it read."""
        layouts = self._design.outputs
        found, decisions = decisions_of(stimulus, outcome.outputs, layouts, outcome.cycles_of)
        if self._check and not found:
            found = find_mismatches(
                stimulus, decisions, outcome.outputs, layouts, outcome.cycles_of
            )
        if self._check and not found and self._prediction is not None:
            predicted = self._prediction.run(stimulus.work)
            self._prediction.wait(outcome.simulated - outcome.cycles)
            found = unexpected(stimulus, predicted, outcome.outputs, layouts, outcome.cycles_of)
            if not found and outcome.cycles != predicted.cycles:
                wrong = f"took {outcome.cycles} cycles where {predicted.cycles} are predicted"
                raise Difference(self.block, self._layer, token, wrong)
        elif self._check and not found:
            found = pruned_late(stimulus, decisions)
        self._refuse(token, found)
        if self._check:
            self.bits += len(outcome.outputs["o"]) * payload.width(layouts["o"])
        [job] = decisions
        self._count(job)
        kv_heads = len(rows[1])
        kept = np.stack([head.kept for head in job]).reshape(kv_heads, -1, token + 1)
        positions = np.repeat(np.arange(token + 1)[None], kv_heads, axis=0)
        self._record(rows, positions, kept.sum(axis=1))

    def _count(self, job: list[HeadDecisions]) -> None:
        tokens = sum(len(head.read) for head in job)
        counts = {
            "tokens in view": tokens,
            "chunks of all keys": tokens * self._p.lane.chunks,
            "chunks of keys read": sum(int(head.read.sum()) for head in job),
            "tokens kept": sum(int(head.kept.sum()) for head in job),
        }
        for name, count in counts.items():
            self._sums[name] += count

    def figures(self) -> dict[str, float]:
        """Sums over steps and query heads.

        Tokens in view, chunks of all their keys and of the keys read, tokens kept. Chunks read from
        memory, of keys and values. Cycles, and the cycles of the core without pruning by its
        formula, for the memories' mean latency. Tokens whose rows were written to memory again with
        another scale; elements of K and V that saturated.
        """
        uses = self._session.uses(contents=False).values()
        return self._sums | {
            "chunks read": sum(use.rows_read for use in uses),
            "cycles": sum(self.cycles),
            "cycles without pruning": self._unpruned,
            "tokens stored again": self._cache.stored_again,
            "elements saturated": self._cache.saturated,
        }


class TopickEngine(AttentionEngine[TopickCoreParameters]):
    def parameters(self, config: Config, rows: int) -> TopickCoreParameters:
        """A lane for each kv head. The core keeps all tokens, whatever `rows` is."""
        return TopickCoreParameters(
            d=max(2, config.d),
            lanes=config.kv_heads,
            lanes_per_head=1,
            heads=config.heads,
            kv_heads=config.kv_heads,
        )

    def require_fit(self, p: TopickCoreParameters, config: Config, rows: int, tokens: int) -> None:
        """Refuse a core that the model or all tokens do not fit.

        :raises ParameterError: naming the parameter to change.
        """
        require_heads(config, p.heads, p.kv_heads)
        require_head_size(config, p.d)
        require_tokens(tokens, "tokens", p.tokens)

    def note(self, figures: dict[str, float]) -> str:
        """What was saved, in words."""
        view, kept = figures["tokens in view"], figures["tokens kept"]
        everything, keys = figures["chunks of all keys"], figures["chunks of keys read"]
        values = figures["chunks read"] - keys  # with a buffer less, as it answers for some
        faster = figures["cycles without pruning"] / figures["cycles"]
        return (
            f"{kept / view:.1%} of tokens kept, {everything / keys:.2f} times fewer bytes of K, "
            f"{everything / max(values, 1):.1f} of V, {faster:.2f} times fewer cycles; "
            f"{figures['elements saturated']:.0f} elements of K and V saturated, rows of "
            f"{figures['tokens stored again']:.0f} tokens written again with a larger scale"
        )

    def attention(self, run: LayerRun, rows: int, threshold: float = THRESHOLD) -> TopickAttention:
        return TopickAttention(run, threshold)


engine = TopickEngine()
