"""Attention of a language model on ToPick's core, one session a layer (Token-Picker, section 4)."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

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
from sim.testbenches.topick.predicted_parts import HeadWork
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


@dataclasses.dataclass(frozen=True, eq=False)
class Command:
    """A command in the jobs of a core, and whose it is.

    token, new
        Number of its first token, and of new ones.
    q, k, v
        Queries ``[heads, new, d]``; codes of all rows ``[kv heads, tokens, d]``.
    k_scale, v_scale
        Scale of each kv head's codes.
    """

    of: "TopickAttention"
    token: int
    new: int
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    k_scale: np.ndarray
    v_scale: np.ndarray


class TopickAttention(RtlAttention[TopickCoreParameters]):
    """One layer's attention, computed by RTL.

    What is pruned depends on timing, so the RTL goes first; from its decisions the bit-exact model
    computes what its sums must be, and which tokens must not have been pruned.

    threshold
        Probability up to which tokens are pruned; 0 prunes nothing.

    The host quantises K and V as the algorithm does (``QuantisedCache``): where that changes the
    codes of earlier rows, it writes them to the memories again before the step. In a simulation the
    decisions, their order and the cycles are those predicted. The ``votes`` of ``steps`` are the
    query heads that kept a token; in a block of a prompt all do.

    Several texts may be contexts of one core: their tokens of a step are commands that overlap, and
    the step's cycles count with the first of them.
    """

    block = "topick.topick_core"

    def __init__(self, run: LayerRun, threshold: float = THRESHOLD):
        parameters = run.parameters(TopickCoreParameters)
        beside = cast("TopickAttention | None", run.beside)
        # Texts on the same core share its jobs; `_texts` is how many there are.
        self._texts: list[TopickAttention] = [] if beside is None else beside._texts
        self._context = len(self._texts)
        self._texts.append(self)
        self._jobs: Jobs = Jobs(parameters) if beside is None else beside._jobs
        sums = ["tokens in view", "chunks of all keys", "chunks of keys read", "tokens kept"]
        if parameters.block > 1:
            sums += ["chunks of blocks by tokens", "chunks read by blocks"]
        super().__init__(run, self._jobs.memories(), sums)
        self._threshold = self.settings["threshold"] = threshold
        self._cache = QuantisedCache(parameters.bits, CALIBRATION, HEADROOM)
        on_board = isinstance(run.design, DesignOnBoard)
        drawn = run.timing.is_drawn and not on_board
        self._prediction = CorePrediction(parameters, run.timing) if drawn else None
        if beside is not None:
            self._prediction = beside._prediction
        shortest, longest = run.timing.latency
        self._latency = (shortest + longest) // 2
        self._unpruned = self._stored_again = 0

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        return self._run([self._command(q[:, None], k[:, None], v[:, None])])[0][:, 0]

    def sequence(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """A run of tokens, in blocks as long as the core takes them."""
        block = self._p.block
        parts = [
            self._run([self._command(*(x[:, first : first + block] for x in (q, k, v)))])[0]
            for first in range(0, q.shape[1], block)
        ]
        return np.concatenate(parts, axis=1)

    def steps_of(
        self, others: Sequence[RtlAttention], q: np.ndarray, k: np.ndarray, v: np.ndarray
    ) -> np.ndarray:
        """A step of each text, as commands one after the other where they are on the same core."""
        texts = [self, *cast("Sequence[TopickAttention]", others)]
        found: list[np.ndarray] = []
        while len(found) < len(texts):
            first, core = len(found), texts[len(found)]._texts
            last = first + 1
            while last < len(texts) and texts[last]._texts is core:
                last += 1
            commands = [
                texts[n]._command(*(x[:, n, None] for x in (q, k, v))) for n in range(first, last)
            ]
            found += [o[:, 0] for o in texts[first]._run(commands)]
        return np.stack(found, axis=1)

    def _command(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Command:
        """The next job: a token, or a block of a prompt; q, k and v [heads, tokens, d]."""
        p, bits = self._p, self._p.bits
        token, (kv_heads, new, d) = len(self.cycles), k.shape
        group = len(q) // kv_heads
        self._store(k, v)
        fill = ((0, 0), (0, 0), (0, p.d - d))
        k_codes, v_codes = (np.pad(x[:, token:], fill) for x in (self._cache.k, self._cache.v))
        q_scale = scale_for(np.abs(q).max(axis=2), bits)
        q_codes = np.pad(quantise(q, q_scale[..., None], bits), fill)
        c = q_scale * np.repeat(self._cache.k_scale, group)[:, None] / np.sqrt(d)
        heads = [
            [
                coded_head(p.lane, codes, float(each), self._threshold, token + n + 1)
                for codes, each in zip(q_codes[:, n], c[:, n], strict=True)
            ]
            for n in range(new)
        ]
        if new > 1:
            self._jobs.add_block(heads, k_codes, v_codes)
        else:
            self._jobs.add(heads[0], k_codes[:, 0], v_codes[:, 0], context=self._context)
        work = [TokenWork(token + n + 1, len(q), kv_heads) for n in range(new)]
        self._unpruned += p.cycles(work, self._latency)
        self.rows = kv_heads * (token + new)
        scales = self._cache.k_scale.copy(), self._cache.v_scale.copy()
        return Command(self, token, new, q, k_codes[..., :d], v_codes[..., :d], *scales)

    def _run(self, commands: Sequence[Command]) -> list[np.ndarray]:
        """The last jobs: commands of this text and of others on the core; o [heads, tokens, d] of
        each."""
        stimulus = self._jobs.stimulus([], since=len(self._jobs.work) - len(commands))
        expected = {name: len(beats) for name, beats in stimulus.outputs.items()}
        # A block's cycles count with its last token, a step of several texts with the first.
        self.cycles += [0] * (commands[0].new - 1)
        outcome = self._rtl(commands[0].token, stimulus.inputs, expected)
        for command in commands[1:]:
            command.of.cycles.append(0)
        beats = payload.unpack(self._design.outputs["o"], outcome.outputs["o"])
        made = [command.of._attended(beats, command) for command in commands]
        self._submit(partial(self._finish, commands, stimulus, outcome, made))
        return [o.astype(np.float32) for o in made]

    def _store(self, k: np.ndarray, v: np.ndarray) -> None:
        """Quantise new rows [kv heads, tokens, d], a block's with the scale that it ends with.

        Where that changes the codes of earlier rows, write these to the memories again.
        """
        cache, first = self._cache, len(self._cache)
        changed = False
        while (done := len(cache) - first) < k.shape[1]:
            cache.append(k[:, done:], v[:, done:])
            changed |= bool(cache.rewritten)
        if not (changed and first):
            return
        fill = ((0, 0), (0, 0), (0, self._p.d - k.shape[2]))
        k, v = (np.pad(x[:, :first], fill) for x in (cache.k, cache.v))
        self._jobs.rewrite(k, v, self._context)
        for name, words in self._jobs.contents().items():
            self._session.write_rows(name, 0, words)
        self._stored_again += first

    def _attended(self, beats: dict[str, Any], command: Command) -> np.ndarray:
        """A command's o [heads, tokens, d], from the RTL's sums."""
        p, (heads, new, d) = self._p, command.q.shape
        mine = slice(None) if p.contexts == 1 else beats["context"] == self._context
        tokens = beats["token"].astype(int) - command.token if p.block > 1 else 0
        sums = np.empty((heads, new, p.d + 1), np.int64)
        sums[beats["head"][mine].astype(int), tokens] = sums_of(p, beats)[mine]
        o = sums[..., :d] / np.maximum(sums[..., -1:], 1)
        return o * np.repeat(command.v_scale, heads // len(command.k))[:, None, None]

    def _finish(
        self,
        commands: Sequence[Command],
        stimulus: CoreStimulus,
        outcome: Outcome,
        made: Sequence[np.ndarray],
    ) -> None:
        """Check a step, and count what it read."""
        layouts, token = self._design.outputs, commands[0].token
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
        for command, work, job, o in zip(commands, stimulus.work, decisions, made, strict=True):
            command.of._recorded(command, work, job, o)

    def _recorded(
        self,
        command: Command,
        work: Sequence[HeadWork],
        job: Sequence[HeadDecisions],
        o: np.ndarray,
    ) -> None:
        """A command's decisions, and its o."""
        token, new, (heads, *_) = command.token, command.new, command.q.shape
        kv_heads = len(command.k)
        rows = [command.q]
        for codes, scale in ((command.k, command.k_scale), (command.v, command.v_scale)):
            rows.append(codes * scale[:, None, None])
        rows.append(o)
        for n in range(new):
            of_token = [
                (head.kv_head, made)
                for head, made in zip(work, job, strict=True)
                if head.head.tokens == token + n + 1
            ]
            if new == 1:
                self._count([made for _, made in of_token])
            kept = np.zeros((kv_heads, token + n + 1), np.int64)
            for kv_head, made in of_token:
                kept[kv_head] += made.kept
            positions = np.repeat(np.arange(token + n + 1)[None], kv_heads, axis=0)
            self._record([x[:, n] for x in rows], positions, kept)
        if new > 1:
            self._count_block(heads, kv_heads, token + 1, token + new)

    def _count_block(self, heads: int, kv_heads: int, first: int, last: int) -> None:
        """A block of the tokens `first` to `last`, counted from 1: each row is read once."""
        chunks = 2 * self._p.lane.chunks
        in_view = heads * (first + last) * (last - first + 1) // 2
        self._sums["chunks of blocks by tokens"] += chunks * in_view
        self._sums["chunks read by blocks"] += chunks * kv_heads * last

    def _count(self, job: Sequence[HeadDecisions]) -> None:
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

        Tokens in view, chunks of all their keys and of the keys read, tokens kept, all of steps of
        one token. Of blocks of a prompt, chunks that steps of a token without pruning read, and
        chunks read. Chunks read from memory in all, of keys and values. Cycles, and those of the
        core without pruning by its formula, a token a step, for the memories' mean latency. Tokens
        whose rows were written to memory again with another scale; elements of K and V that
        saturated. Texts on one core: chunks read by all count as the first's.
        """
        uses = self._session.uses(contents=False).values() if self._opened else ()
        return self._sums | {
            "chunks read": sum(use.rows_read for use in uses),
            "cycles": sum(self.cycles),
            "cycles without pruning": self._unpruned,
            "tokens stored again": self._stored_again,
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

    def texts(self, p: TopickCoreParameters) -> int:
        return p.contexts

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
        blocks = figures.get("chunks read by blocks", 0)
        # Fewer than are needed with a buffer, as it answers for some.
        values = figures["chunks read"] - blocks - keys
        faster = figures["cycles without pruning"] / figures["cycles"]
        prompt = f"blocks of the prompt read {blocks:.0f} chunks in place of "
        prompt += f"{figures.get('chunks of blocks by tokens', 0):.0f}; "
        if not view:
            return f"{prompt if blocks else ''}{faster:.2f} times fewer cycles"
        return (
            f"{prompt if blocks else ''}"
            f"{kept / view:.1%} of tokens kept, {everything / keys:.2f} times fewer bytes of K, "
            f"{everything / max(values, 1):.1f} of V, {faster:.2f} times fewer cycles; "
            f"{figures['elements saturated']:.0f} elements of K and V saturated, rows of "
            f"{figures['tokens stored again']:.0f} tokens written again with a larger scale"
        )

    def attention(self, run: LayerRun, rows: int, threshold: float = THRESHOLD) -> TopickAttention:
        return TopickAttention(run, threshold)


engine = TopickEngine()
