"""Steps and products of VEDA's core with their results, operands and memory."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from golden.arith.formats import to_bits
from golden.attention.decode_core import StepResult
from golden.veda.state_places import StatePlaces, state_words
from golden.veda.veda_core import VedaCore
from golden.veda.voting_engine import VoteReport
from hw.arith.float_format import FP16
from hw.veda.core_work import MovedWork, OverflowWork, ProductWork, StepWork
from hw.veda.veda_core_parameters import VedaCoreParameters
from sim.core.stimulus import Stimulus
from sim.core.streams import Streams
from sim.testbenches.decode import DecodeBench, outputs_of, packed_rows


class Steps(DecodeBench[VedaCoreParameters]):
    """Steps and products of the core; ``core`` is its bit-exact model after them.

    kept
        Positions of the context's slots after each step.
    weights
        ``float16[weights, d]``: rows of matrices in the memory.
    state_rows
        Rows of contexts' state written and read.
    """

    def __init__(self, parameters: VedaCoreParameters):
        super().__init__(parameters)
        p = parameters
        self.core = VedaCore(
            p.capacity,
            accumulator=p.accumulator,
            add_stages=p.array.add_stages,
            tile=p.softmax.tile,
            count_bits=p.count_bits,
            tree=p.dataflow != "flexible",
            heads=p.heads,
            kv_heads=p.kv_heads,
            contexts=p.contexts,
            normed=p.normed,
            block=p.block,
        )
        self.weights = np.zeros((p.weights, p.d), np.float16)
        self.kept: list[np.ndarray] = []
        # The memory's row of each slot used in the sequence of a context.
        self._rows: list[list[int]] = [[] for _ in range(p.contexts)]
        heads = 1 << p.order.head_bits
        self._written = np.zeros((p.contexts, heads, 2, p.capacity, p.d), np.float16)
        # State of contexts in the memory, and what is moved before the next command.
        self._places = StatePlaces(p.resident) if p.resident else None
        rows = p.mover.rows if p.resident else 0
        # A row that was never written holds anything, and must not be taken for a state.
        shape = (p.contexts, rows, p.d)
        self._state = np.random.default_rng(1).integers(0, 1 << 16, shape, np.uint16)
        self._first_state = self._state.reshape(-1, p.d).copy()
        self._move: MovedWork | None = None
        self.state_rows = [0, 0]

    def length(self, restart: bool, context: int = 0) -> int:
        """Slots of the context's next step, the new one included."""
        return 1 if restart else self.core.contexts[context].length + 1

    def add(self, q, k, v, *, group: int | None = None, **command: Any) -> StepResult:
        p, tokens = self.parameters, q.shape[1] if q.ndim == 3 else 1
        field = {"tokens": tokens} if p.block > 1 else {}
        result = super().add(q, k, v, group=group, **field, **command)
        context, group = command.get("context", 0), -(-len(q) // len(k)) if group is None else group
        fits = p.schedule.order.fits(len(q), group, tokens) and context < p.contexts
        if result.refused and fits:
            self.work[-1] = OverflowWork(context)
        self._add_move()
        return result

    def _move_state(self, context: int) -> None:
        """Before a command for the `context`: its state gets a place in the core."""
        p, self._move = self.parameters, None
        move = self._places.command(context) if self._places and context < p.contexts else None
        if move is None:
            return
        stored = fetched = None
        if move.old is not None:
            cache, rows = self.core.contexts[move.old], self._rows[move.old]
            engine = cache.engine
            words = state_words(
                (cache.length, engine.tokens % (1 << p.position_bits)),
                (rows, engine.counts, engine.positions),
                (p.mover.slot_bits, p.count_bits, p.position_bits),
                16 * p.d,
            )
            self._state[move.old, : len(words)] = words
            self.state_rows[0] += len(words)
            stored = len(rows)
        if move.stored:
            fetched = len(self._rows[context])
            self.state_rows[1] += p.mover.moved_rows(fetched)
        self._move = MovedWork(None, move.old, stored, fetched)

    def _add_move(self) -> None:
        if self._move is not None:
            self.work[-1] = self._move._replace(work=self.work[-1])
            self._move = None

    def add_refused(self, heads: int, group: int, **command: Any) -> StepResult:
        """A command that does not fit; ``tokens`` of it, if that is why."""
        tokens = command.pop("tokens", None)
        if tokens is None:
            return super().add_refused(heads, group, **command)
        rows = np.ones((heads, tokens, self.parameters.d), np.float16)
        result = self.add(rows, rows, rows, group=group, **command)
        assert result.refused
        return result

    def model_step(self, q, k, v, group: int, **command: Any) -> StepResult:
        context = command.get("context", 0)
        self._move_state(context)
        vote = command.pop("vote")
        command.pop("tokens", None)
        result = self.core.step(q, k, v, group=group, vote_cast=vote, **command)
        if not result.refused:
            self._write(context, k, v, result)
        existing = self.core.contexts[context : context + 1]
        self.kept += [cache.engine.positions.copy() for cache in existing] or [np.empty(0)]
        return result

    def work_of(self, result: StepResult, heads: int, group: int, command: Mapping) -> StepWork:
        evictions = sum(report.evict for report in result.reports)
        votes: bool | tuple[bool, ...] = command["vote"] and not result.reports[0].invalid
        if command.get("tokens", 1) > 1:
            first = result.reports[: command["tokens"]]  # all of the last token's have its flag
            votes = tuple(bool(command["vote"] and not report.invalid) for report in first)
        context = command.get("context", 0)
        return StepWork(result.p.shape[1], heads, group, votes, evictions, context)

    def _write(self, context: int, k, v, result: StepResult) -> None:
        """New rows into the slot's row of the memory; evicted slots swap rows with the last."""
        rows, new = self._rows[context], np.stack([k, v], axis=1)
        new = new if new.ndim == 4 else new[:, :, None]  # [kv heads, K or V, tokens, d]
        last = result.p.shape[1]
        for slot, token in zip(range(last - new.shape[2], last), new.swapaxes(0, 2), strict=True):
            if slot == 0:
                rows.clear()
            if slot == len(rows):
                rows.append(slot)
            self._written[context, : len(k), :, rows[slot]] = token.swapaxes(0, 1)
        for report in result.reports:
            if report.evict:
                one, other = report.slot, report.length
                rows[one], rows[other] = rows[other], rows[one]

    def stored(self) -> np.ndarray:
        p = self.parameters
        if p.vector or p.resident:  # rows of matrices follow, and of contexts' state
            state = self._state.view(np.float16).reshape(-1, p.d)
            return np.concatenate([self._written.reshape(-1, p.d), self.weights, state])
        # There are no rows after the last kv head's of the last context.
        heads = self._written.reshape(-1, 2, p.capacity, p.d)
        return heads[: ((p.contexts - 1) << p.order.head_bits) + p.kv_heads]

    def initial(self, rows: int) -> np.ndarray:
        found = super().initial(rows)
        if len(self.weights):  # as `packed_rows` packs them, but these may be very many
            first = self.parameters.cached_rows
            found[first : first + len(self.weights)] = self.weights.view(np.uint32)
        if self.parameters.resident:
            state = packed_rows(self.parameters, self._first_state.view(np.float16))
            found[self.parameters.mover.first_row :] = state
        return found

    def stimulus(self, notes: list[str], since: int = 0, memory: bool = True) -> Stimulus:
        stimulus = super().stimulus(notes, since, memory)
        fewer, more = self.parameters.tolerance(self.work[since:])
        band = stimulus.cycles - fewer, stimulus.cycles + more
        return dataclasses.replace(stimulus, band=band)

    def input_streams(self) -> Streams:
        return input_streams(self.parameters)

    def add_product(
        self,
        x: np.ndarray,
        first: int,
        blocks: int,
        norm: tuple[np.float32, np.float32] | None = None,
    ) -> StepResult:
        """Vectors ``x`` [vectors, rows], float16, times a matrix in ``weights``.

        first
            Number of the matrix's first row of d elements; `blocks` of as many rows as a vector has
            elements follow each other.
        norm
            Normalise the vectors first, with 1 / rows and the epsilon.
        """
        p, number = self.parameters, len(self.results)
        vectors, rows = x.shape
        w = self.weights[first : first + blocks * rows].reshape(blocks, rows, p.d)
        result = self.core.product(x, w, norm)
        self.work.append(ProductWork(rows, vectors, blocks, norm is not None))
        offer_product(self._inputs, number, p, (rows, vectors, blocks), first, norm)
        self._inputs.add("x", number, {"payload": x.reshape(-1)})
        self._outputs.add("o", number, outputs_of(result))
        self.results.append(result)
        self.kept.append(np.empty(0))
        return result

    def add_refused_product(self, rows: int, vectors: int, blocks: int, norm: bool) -> None:
        """A product that does not fit; it is reported as context 0's, and has no elements."""
        number, length = len(self.results), self.core.contexts[0].length
        self._move_state(0)
        report = VoteReport(False, 0, 0, length, False, True, error=True)
        moments = (np.float32(1), np.float32(1)) if norm else None
        offer_product(self._inputs, number, self.parameters, (rows, vectors, blocks), 0, moments)
        self.work.append(None)
        self._add_move()
        fields = {name: [getattr(report, name)] for name, _ in self.parameters.report_layout}
        self._outputs.add("report", number, fields)
        self.results.append(StepResult.refusal(self.parameters.d, report))
        self.kept.append(np.empty(0))


def input_streams(p: VedaCoreParameters) -> Streams:
    """Streams of the core's inputs."""
    layouts = {"command": p.command_layout, "kv": p.row_layout, "q": p.row_layout}
    return Streams(layouts | ({"x": FP16} if p.vector else {}) | p.vector_path.inputs)


def offer_product(
    inputs: Streams,
    number: int,
    p: VedaCoreParameters,
    shape: tuple[int, int, int],
    first: int,
    norm: tuple[np.float32, np.float32] | None,
) -> None:
    """The command of a product of a `shape`: rows, vectors, blocks.

    first, norm
        As :meth:`Steps.add_product` has them.
    """
    fields: dict[str, Any] = dict.fromkeys(inputs.fields("command"), 0)
    inverse, eps = (int(to_bits(value)) for value in norm or np.zeros(2, np.float32))
    fields |= dict(zip(("rows", "vectors", "blocks"), shape, strict=True))
    fields |= {"product": 1, "address": p.cached_rows + first}
    fields |= {"norm": int(norm is not None), "inverse": inverse, "eps": eps}
    inputs.add("command", number, fields)
