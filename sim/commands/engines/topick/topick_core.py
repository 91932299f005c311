"""Attention of a language model on ToPick's core, one session a layer (Token-Picker, section 4)."""

from functools import partial
from typing import Any

import numpy as np

from golden.algorithms.topick.quantise import quantise, scale_for
from golden.lm.weights import Config
from hw.topick.topick_core import TopickCoreParameters
from sim.commands.engines.attention import (
    AttentionEngine,
    LayerRun,
    RtlAttention,
    require_head_size,
    require_heads,
    require_tokens,
)
from sim.commands.engines.record import LayerStep
from sim.core import payload
from sim.core.stimulus import Outcome
from sim.testbenches.topick.core_jobs import CoreStimulus, Jobs
from sim.testbenches.topick.pe_lane import coded_head
from sim.testbenches.topick.topick_core import HeadDecisions, decisions_of, sums_of
from sim.testbenches.topick.topick_core import mismatches as find_mismatches

THRESHOLD = 1e-3
HEADROOM = 1.25
"""Largest code of K and V over the largest magnitude in the prompt."""


class TopickAttention(RtlAttention):
    """One layer's attention, computed by RTL.

    What is pruned depends on timing, so the RTL goes first; from its decisions the bit-exact model
    computes what its sums must be, and which tokens must not have been pruned.

    threshold
        Probability up to which tokens are pruned; 0 prunes nothing.

    The first tokens, a prompt's, fix the scales of K and V; later rows saturate. The ``votes`` of
    ``steps`` are the query heads that kept a token.
    """

    block = "topick.topick_core"

    def __init__(self, run: LayerRun, threshold: float = THRESHOLD):
        parameters: Any = run.design.parameters  # of this block
        self._p: TopickCoreParameters = parameters
        self._jobs = Jobs(parameters)
        super().__init__(run, self._jobs.memories())
        self._threshold = self.settings["threshold"] = threshold
        self._scales: np.ndarray | None = None  # [K or V, kv heads]
        self._counts: dict[str, float] = {}
        shortest, longest = run.timing.latency
        self._latency = (shortest + longest) // 2
        self._unpruned = 0

    def sequence(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        if self._scales is None:
            peaks = [np.abs(x).max(axis=(1, 2)) for x in (k, v)]
            self._scales = scale_for(HEADROOM * np.stack(peaks), self._p.bits)
        return super().sequence(q, k, v)

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        if self._scales is None:
            return self.sequence(q[:, None], k[:, None], v[:, None])[:, 0]
        p, bits = self._p, self._p.bits
        token, (kv_heads, d) = len(self.cycles), k.shape
        group = len(q) // kv_heads
        fill = ((0, 0), (0, p.d - d))
        k_scale, v_scale = self._scales
        k_codes, v_codes = (
            np.pad(quantise(x, scale[:, None], bits), fill)
            for x, scale in zip((k, v), self._scales, strict=True)
        )
        q_scale = scale_for(np.abs(q).max(axis=1), bits)
        q_codes = np.pad(quantise(q, q_scale[:, None], bits), fill)
        c = q_scale * np.repeat(k_scale, group) / np.sqrt(d)
        heads = [
            coded_head(p.lane, codes, float(each), self._threshold, token + 1)
            for codes, each in zip(q_codes, c, strict=True)
        ]
        self._jobs.add(heads, k_codes, v_codes)
        self._unpruned += p.cycles(token + 1, len(q), kv_heads, self._latency)
        stimulus = self._jobs.stimulus([], since=token)
        expected = {name: len(beats) for name, beats in stimulus.outputs.items()}
        outcome = self._rtl(token, stimulus.inputs, expected)
        codes = self._sums(outcome, len(q))[:, :d]
        o = codes * 2.0 ** -(bits - 1) * np.repeat(v_scale, group)[:, None]
        rows = [np.asarray(q, np.float32)]
        rows += [x[:, :d] * s[:, None] for x, s in ((k_codes, k_scale), (v_codes, v_scale))]
        self.rows = kv_heads * (token + 1)
        self._submit(partial(self._finish, token, stimulus, outcome, [*rows, o]))
        return o.astype(np.float32)

    def _sums(self, outcome: Outcome, heads: int) -> np.ndarray:
        """The RTL's sums by head, as integers."""
        p = self._p
        beats = payload.unpack(self._design.outputs["o"], outcome.outputs["o"])
        o = np.empty((heads, p.d), np.int64)
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
        self._refuse(token, found)
        if self._check:
            self.bits += len(outcome.outputs["o"]) * payload.width(layouts["o"])
        [job] = decisions
        self._count(job)
        q, k, v, o = rows
        kv_heads = len(k)
        kept = np.stack([head.kept for head in job]).reshape(kv_heads, -1, token + 1)
        self.steps.append(
            LayerStep(
                q,
                k.astype(np.float16),
                v.astype(np.float16),
                o.astype(np.float16),
                np.repeat(np.arange(token + 1)[None], kv_heads, axis=0),
                kept.sum(axis=1),
                [-1] * kv_heads,
            )
        )

    def _count(self, job: list[HeadDecisions]) -> None:
        tokens = sum(len(head.read) for head in job)
        counts = {
            "tokens in view": tokens,
            "chunks of all keys": tokens * self._p.lane.chunks,
            "chunks of keys read": sum(int(head.read.sum()) for head in job),
            "tokens kept": sum(int(head.kept.sum()) for head in job),
        }
        for name, count in counts.items():
            self._counts[name] = self._counts.get(name, 0) + count

    def figures(self) -> dict[str, float]:
        """Sums over steps and query heads: tokens in view, chunks of all their keys and of those
        read, tokens kept. Chunks read from memory, of keys and values. Cycles, and those of the
        core without pruning by its formula, for the memories' mean latency.
        """
        uses = self._session.uses().values()
        return self._counts | {
            "chunks read": sum(use.rows_read for use in uses),
            "cycles": sum(self.cycles),
            "cycles without pruning": self._unpruned,
        }


class TopickEngine(AttentionEngine):
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
            f"{everything / max(values, 1):.1f} of V, {faster:.2f} times fewer cycles"
        )

    def attention(self, run: LayerRun, rows: int, threshold: float = THRESHOLD) -> TopickAttention:
        return TopickAttention(run, threshold)


engine = TopickEngine()
