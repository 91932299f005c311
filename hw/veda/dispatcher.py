"""Jobs of the core in their order: steps of attention, and matrix products (VEDA, section IV)."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream

from hw.component import Component
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out
from hw.stream.combine import copy, fork, join, merge, route
from hw.stream.memory_port import MemoryPort
from hw.veda.product_sequence import ProductParameters, ProductSequence
from hw.veda.shared_function_unit import turn_layout


class DispatcherLayouts:
    """Payloads of a dispatcher's streams, as the parts have them that it connects.

    step, step_run, step_lookup, step_request
        The scheduler's command, runs, look-ups and requests.
    command, run, lookup, request
        The core's, of products too.
    step_use, use
        What a run is, likewise.
    """

    def __init__(self, scheduler, command: data.StructLayout, run, use, memory: MemoryPort):
        self.step = scheduler.command.payload.shape()
        self.step_run = scheduler.run.payload.shape()
        self.step_use = scheduler.use.payload.shape()
        self.step_lookup = scheduler.lookup.payload.shape()
        self.step_request = scheduler.request.payload.shape()
        self.command, self.run, self.use = command, run, use
        self.lookup = memory.read_layout
        request = {name: field.shape for name, field in self.step_request}
        lookup = {name: field.shape for name, field in self.lookup}
        self.request = data.StructLayout(request | lookup)


class Dispatcher(Component[ProductParameters]):
    """Give steps to the scheduler and products to their own parts, one job after the other.

    ::

        command ─┬→ step ┄ scheduler ┄ step_run ─┬→ run ┄ reader ┄ lookup ─┬→ step_lookup ┄ map ─┐
                 └→ ProductSequence ─────────────┘                         └─────── request ←────┘

    A job's runs begin when the job before has none left, so results are in order of commands. A
    product's rows are where its addresses say; a step's are found by the scheduler's map.

    Errors: a product that does not fit is offered to the scheduler with `refuse`, whose report
    refuses it in turn.

    Parameters
    ----------
    parameters : :class:`ProductParameters`
    layouts : :class:`DispatcherLayouts`
    cached_rows : int
        Rows below it belong to steps.
    turns : int
        Number of vectors of a turn of the special function unit, at most.
    """

    def __init__(
        self,
        parameters: ProductParameters,
        layouts: DispatcherLayouts,
        cached_rows: int,
        turns: int,
    ):
        self._layouts, self._cached_rows, self._turns = layouts, cached_rows, turns
        # Whether steps may be of several tokens.
        self._block = "tokens" in layouts.run.members
        super().__init__(parameters)

    def ports(self) -> Ports:
        p, of = self.parameters, self._layouts
        settled = {"settled": wire_in(1, "`refused` does not change any more.")}
        return {
            "command": stream_in(of.command, "Jobs."),
            "step": stream_out(of.step, "Steps, and products that are refused."),
            "refuse": wire_out(1, "The step offered is a product that does not fit."),
            "refused": wire_in(1, "The scheduler refuses the step offered."),
            **(settled if self._block else {}),
            "reading": wire_in(1, "Runs of a step have not been accepted."),
            "job": stream_out(p.feed.job_layout, "Products, for their vectors."),
            "turn": stream_out(turn_layout(self._turns), "Turns of the special function unit."),
            "step_run": stream_in(of.step_run, "Runs of steps."),
            "step_use": stream_in(of.step_use, "What they are."),
            "run": stream_out(of.run, "Runs of rows."),
            "use": stream_out(of.use, "What they are."),
            "lookup": stream_in(of.lookup, "The reader's requests."),
            "step_lookup": stream_out(of.step_lookup, "Those for rows of steps."),
            "step_request": stream_in(of.step_request, "Rows of steps to write and to read."),
            "request": stream_out(of.request, "Rows to write and to read."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.sequence = sequence = ProductSequence(p)
        self._dispatch(m, sequence)
        self._merge_runs(m, sequence)
        # Rows of matrices are found without the map, which knows the caches' rows only; responses
        # need no order, as the reader tells them by their tags.
        lookup, request = self.lookup, self.request
        direct = stream.Signature(self._layouts.lookup).create()
        route(m, lookup, lookup.payload.address >= self._cached_rows, [self.step_lookup, direct])
        of_step = merge(m, self.step_request, direct, request)
        with m.If(of_step):
            m.d.comb += copy(request.payload, self.step_request.payload)
        with m.Else():
            m.d.comb += copy(request.payload, direct.payload)
        return m

    def _dispatch(self, m: Module, sequence: ProductSequence) -> None:
        """A command to its parts, to each as soon as it can take it."""
        command, turn = self.command, self.turn.payload
        offered = command.payload
        misfit = offered.product & self.parameters.misfits(offered)
        is_product = Signal()
        step = stream.Signature(self._layouts.command).create()
        product = stream.Signature(self._layouts.command).create()
        has_turn = Mux(is_product, offered.norm, ~self.refused)
        # A fork: vectors of a product are loaded, and normalised, while its runs still wait for
        # the job before.
        parts = [(step, ~is_product), (product, is_product), (self.job, is_product)]
        turns, vectors = self.turn, offered.heads
        if self._block:
            # A turn must not be given away while its step may still be refused.
            turns, vectors = stream.Signature(turn.shape()).create(), offered.heads * offered.tokens
            join(m, [turns], [self.turn], is_product | self.settled)
            m.d.comb += self.turn.payload.eq(turns.payload)
        sinks, to = zip(*parts, (turns, has_turn), strict=True)
        fork(m, "command", command, list(sinks), list(to))
        # A step begins when all runs of products have been accepted, and the other way round.
        join(m, [step], [self.step], sequence.command.ready)
        join(m, [product], [sequence.command], ~self.reading)
        m.d.comb += [
            is_product.eq(offered.product & ~misfit),
            self.refuse.eq(misfit),
            *copy(self.step.payload, offered),
            *copy(sequence.command.payload, offered),
            turn.norm.eq(is_product),
            turn.vectors.eq(Mux(is_product, offered.vectors, vectors)),
        ]

    def _merge_runs(self, m: Module, sequence: ProductSequence) -> None:
        """Runs of steps and of products, and what they are."""
        block = sequence.run.payload
        run, use = self.run, self.use
        block_run = stream.Signature(run.payload.shape()).create()
        block_use = stream.Signature(use.payload.shape()).create()
        fork(m, "block", sequence.run, [block_run, block_use])
        m.d.comb += [
            block_run.payload.words.eq(block.rows),
            block_run.payload.times.eq(block.vectors),
            *([block_run.payload.tokens.eq(1)] if self._block else []),
            block_use.payload.value.eq(1),
            block_use.payload.product.eq(1),
            block_use.payload.heads.eq(block.vectors),
        ]
        for of_step, of_block, merged in (
            (self.step_run, block_run, run),
            (self.step_use, block_use, use),
        ):
            with m.If(merge(m, of_step, of_block, merged)):
                m.d.comb += copy(merged.payload, of_step.payload)
            with m.Else():
                m.d.comb += copy(merged.payload, of_block.payload)
