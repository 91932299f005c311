"""The rows that a top-k search selects, and their addresses (UniCAIM, section III-B3)."""

import dataclasses
import functools

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data

from hw.arith.population_count import PopulationCount, PopulationCountParameters
from hw.component import Component
from hw.layout import FLAG, count, index
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out
from hw.unicaim.array import lines_layout
from hw.unicaim.lowest_row import LowestRow


@dataclasses.dataclass(frozen=True)
class TopkSenseParameters(Parameters):
    """
    rows
        Sense lines, 2 or more.
    fill
        Select exactly k rows: of the last rows to drop, those with the lowest addresses fill up.
        Without it, as in the bare circuit, rows of equal scores drop together and fewer than k may
        be left.
    """

    rows: int = 64
    fill: bool = True

    def __post_init__(self):
        require(self.rows >= 2, "rows must be at least 2", self.rows)

    @classmethod
    def presets(cls) -> dict[str, "TopkSenseParameters"]:
        return {
            "small": cls(rows=8),
            "default": cls(),
            "paper": cls(rows=576),
            "bare": cls(rows=8, fill=False),
        }

    @property
    def latency(self) -> int:
        """Cycles from a search's last step to the first address."""
        return 1

    def cycles(self, steps: int, selected: int) -> int:
        """Cycles of a search of `steps` steps, with those to take k and to output addresses."""
        return 1 + steps + max(1, selected)

    @functools.cached_property
    def output_layout(self) -> data.StructLayout:
        """An address.

        ``row``: the row. ``present``: 0, and so is ``row``, if no row is selected. ``last``: on a
        search's last beat.
        """
        return data.StructLayout({"row": index(range(self.rows)), "present": FLAG, "last": FLAG})


class TopkSense(Component[TopkSenseParameters]):
    """Stop a search when k lines or fewer are high, and output the addresses of those rows.

        selected = the rows of the k largest scores in use

    ::

        i ─→ population count ─→ > k ─→ too_many
        └──→ winners, with_ties ─→ lowest row ─→ o

    One `k` is taken before each search. The high lines of every step `i` are counted, and
    `too_many` answers whether they are more than k. Two sets of rows are kept: ``winners``, the
    lines of the last step with k or fewer, and ``with_ties``, the lines of the last step with more.
    A search ends as :func:`hw.unicaim.array.lines_layout` says; all arrays end it where the rows
    in ``with_ties`` and not in ``winners`` have the next lower score, and so tie, but for a
    discharge by the clock, where they have dropped since the last step with too many. Steps may be
    in the order of a discharge or of a binary search.

    Then the selected rows leave in the order of their addresses, one per cycle: the winners, and
    with `fill` the lowest of the ties until there are k. If there were never more than k rows high,
    all are selected. If no row is selected (no used rows, k = 0, or too many ties without `fill`),
    one beat with ``present`` low says so.

    Timing: 1 cycle for k, 1 for each step, the first address in the cycle after the last step, then
    one address per cycle. For the digital array with 1025 possible scores the first address is
    in the 12th cycle from the first step, for any number of rows.

    Handshake: `too_many` is offered in the cycle in which a step is taken, so it depends
    combinationally on `i`, and is kept until it is taken. All other outputs depend on registers
    only. `k` is ready between searches, `i` from then to the search's last step unless an answer
    waits.

    Examples
    --------
    >>> from hw.unicaim.topk_sense import TopkSense, TopkSenseParameters
    >>> parameters = TopkSenseParameters(rows=576)
    >>> TopkSense(parameters).k.payload.shape()
    unsigned(10)
    >>> parameters.cycles(steps=11, selected=64)  # after the digital array
    76
    """

    summary = "Stop a top-k search when k lines are left, and output the rows' addresses"
    source = "UniCAIM, section III-B3"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "k": stream_in(count(range(p.rows + 1)), "Rows wanted."),
            "i": stream_in(lines_layout(p.rows), "Steps of a search."),
            "too_many": stream_out(1, "For each step, whether more than k lines are high."),
            "o": stream_out(p.output_layout, "Addresses, ascending."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        i, o = self.i.payload, self.o.payload
        m.submodules.counter = counter = PopulationCount(PopulationCountParameters(n=p.rows))
        m.submodules.lowest = lowest = LowestRow(p.rows)

        k = Signal(range(p.rows + 1), reset_less=True)
        winners = Signal(p.rows)
        with_ties = Signal(p.rows)
        exceeded = Signal(reset_less=True)  # more than k lines were high in some step
        room = Signal(range(p.rows + 1), reset_less=True)  # k minus the number of winners
        left = Signal(range(p.rows + 1), reset_less=True)  # addresses still to output
        spare = Signal(range(-p.rows, p.rows + 1))
        too_many = Signal()
        step = Signal()
        over = Signal()
        m.d.comb += [
            counter.i.eq(i.high),
            # The number of high lines decides, where the paper's sense lines race each other to a
            # reference (UniCAIM, Fig. 7): more than k are high, or not.
            spare.eq(k - counter.o),
            too_many.eq(spare < 0),
            step.eq(self.i.valid & self.i.ready),
            over.eq(step & (i.last | (i.stoppable & ~too_many))),
        ]
        held = self._answer(m, step, too_many)
        chosen, tie = self._next_row(m, lowest, winners, with_ties, room)
        m.d.comb += o.last.eq(left <= 1)
        with m.FSM():
            with m.State("IDLE"):
                # A search begins with its k.
                m.d.comb += self.k.ready.eq(1)
                m.d.sync += [
                    k.eq(self.k.payload),
                    room.eq(self.k.payload),
                    left.eq(0),
                    exceeded.eq(0),
                ]
                with m.If(self.k.valid):
                    m.next = "SEARCH"
            with m.State("SEARCH"):
                # The high lines of a step replace one of the two sets.
                m.d.comb += self.i.ready.eq(~held)
                with m.If(step):
                    # Too many: the next threshold is higher, and these rows are candidates for the
                    # last places.
                    with m.If(too_many):
                        m.d.sync += [with_ties.eq(i.high), exceeded.eq(1)]
                    with m.Else():
                        m.d.sync += [winners.eq(i.high), room.eq(spare), left.eq(counter.o)]
                with m.If(over):
                    if p.fill:
                        # With more than k candidates, ties fill up to exactly k addresses.
                        with m.If(exceeded | too_many):
                            m.d.sync += left.eq(k)
                    m.next = "ADDRESSES"
            with m.State("ADDRESSES"):
                # A row leaves the sets with its address; what is left of the ties is dropped.
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.d.sync += [
                        winners.eq(winners & ~chosen),
                        with_ties.eq(with_ties & ~chosen),
                        room.eq(room - tie),
                        left.eq(left - 1),
                    ]
                    with m.If(o.last):
                        m.d.sync += [winners.eq(0), with_ties.eq(0)]
                        m.next = "IDLE"
        return m

    def _answer(self, m: Module, step: Signal, too_many: Signal) -> Signal:
        """Answer a step; returns whether an answer is held.

        An answer that is not taken at once is held, and no step is taken until it is.
        """
        held = Signal()
        answer = Signal(reset_less=True)
        m.d.comb += [
            self.too_many.valid.eq(held | step),
            self.too_many.payload.eq(Mux(held, answer, too_many)),
        ]
        m.d.sync += held.eq(self.too_many.valid & ~self.too_many.ready)
        with m.If(step):
            m.d.sync += answer.eq(too_many)
        return held

    def _next_row(
        self, m: Module, lowest: LowestRow, winners: Signal, with_ties: Signal, room: Signal
    ) -> tuple[Signal, Signal]:
        """The next address: the lowest winner or, while there is room, the lowest tie.

        Returns the row, one-hot, and whether it is no winner.
        """
        p, o = self.parameters, self.o.payload
        tie = Signal()
        chosen = Signal(p.rows)
        fill = with_ties & room.any().replicate(p.rows)
        m.d.comb += [
            lowest.marked.eq(winners | fill if p.fill else winners),
            o.row.eq(lowest.row),
            o.present.eq(lowest.found),
            # A tie counts against `room`, so exactly k addresses leave where scores are equal.
            chosen.eq(1 << lowest.row),
            tie.eq(~(winners & chosen).any()),
        ]
        return chosen, tie
