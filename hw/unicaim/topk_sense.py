"""Which rows win a race of sense lines, and their addresses (UniCAIM, section III-B3)."""

import dataclasses

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from hw.arith.population_count import PopulationCount, PopulationCountParameters
from hw.component import Component
from hw.parameters import Parameters, require
from hw.unicaim.array import lines_layout
from hw.unicaim.lowest_row import LowestRow


@dataclasses.dataclass(frozen=True)
class TopkSenseParameters(Parameters):
    """
    rows
        Sense lines, 2 or more.
    fill
        Take exactly k rows, of the last ones to drop those with the lowest addresses. Without it,
        as in the bare circuit, rows of equal scores drop together and fewer may be left.
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
        """Cycles from a race's last step to the first address."""
        return 1

    def cycles(self, steps: int, selected: int) -> int:
        """Cycles of a race of `steps` steps, with those to take k and to give out addresses."""
        return 1 + steps + max(1, selected)

    @property
    def output_layout(self) -> data.StructLayout:
        """An address.

        ``row``; ``present`` is 0, and so is ``row``, if no row is selected; ``last`` on a race's
        last beat.
        """
        return data.StructLayout({"row": range(self.rows), "present": 1, "last": 1})


class TopkSense(Component):
    """Stops a race when k lines or fewer are high, and gives out their addresses.

        selected = the rows of the k largest scores in use

    ::

        i ─→ population count - k ─→ more
        └──────→ few, many ─→ lowest ─→ o

    One `k` is taken before each race. Of every step `i` the high lines are counted, and `more`
    answers whether they are more than k. The lines of the last step with k or fewer are kept as
    ``few``, those of the last step with more as ``many``. A race ends as
    :func:`hw.unicaim.array.lines_layout` says; both arrays end it where the rows in ``many`` and
    not in ``few`` are those that drop next to the winners, with one score among them. So it is all
    the same whether steps come in the order of a discharge or of a search.

    Then the rows leave in the order of their addresses, one a cycle: those in ``few``, and with
    `fill` the lowest in ``many`` until there are k. If there were never more than k rows high, all
    are selected. With none selected, for want of used rows or with k = 0 or because too many are
    equal without `fill`, one beat says so.

    Timing: k in 1 cycle, each step in 1, the first address the cycle after the last step:
    for the digital array with 1025 possible scores that is the 12th cycle from the first step, for
    any number of rows. Then an address a cycle.

    Handshake: `more` is offered in the cycle in which a step is taken, so it depends on `i` at
    once, and is kept until it is taken. All other outputs depend on registers only. `k` is ready
    between races, `i` from then to the race's last step unless an answer waits.

    Members
    -------
    k : :py:`In(stream.Signature(range(rows + 1)))`
        Rows wanted.
    i : :py:`In(stream.Signature(lines_layout(rows)))`
        Steps of a race.
    more : :py:`Out(stream.Signature(1))`
        Answers.
    o : :py:`Out(stream.Signature(parameters.output_layout))`
        Addresses, rising.
    """

    summary = "Stops a race when k lines are left, and gives out their addresses"
    source = "UniCAIM, section III-B3"

    def __init__(self, parameters: TopkSenseParameters):
        self._parameters = p = parameters
        super().__init__(
            {
                "k": In(stream.Signature(range(p.rows + 1))),
                "i": In(stream.Signature(lines_layout(p.rows))),
                "more": Out(stream.Signature(1)),
                "o": Out(stream.Signature(p.output_layout)),
            }
        )

    @property
    def parameters(self) -> TopkSenseParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        i, o = self.i.payload, self.o.payload
        m.submodules.counter = count = PopulationCount(PopulationCountParameters(n=p.rows))
        m.submodules.lowest = lowest = LowestRow(p.rows)

        k = Signal(range(p.rows + 1), reset_less=True)
        few = Signal(p.rows)
        many = Signal(p.rows)
        crowded = Signal(reset_less=True)  # more than k lines were high in some step
        room = Signal(range(p.rows + 1), reset_less=True)  # k less the rows in `few`
        left = Signal(range(p.rows + 1), reset_less=True)  # addresses to come
        spare = Signal(range(-p.rows, p.rows + 1))
        too_many = Signal()
        step = Signal()
        over = Signal()
        m.d.comb += [
            count.i.eq(i.high),
            spare.eq(k - count.o),
            too_many.eq(spare < 0),
            step.eq(self.i.valid & self.i.ready),
            over.eq(step & (i.last | (i.stoppable & ~too_many))),
        ]

        # An answer that is not taken at once is held, and no step is taken until it is.
        held = Signal()
        answer = Signal(reset_less=True)
        m.d.comb += [
            self.more.valid.eq(held | step),
            self.more.payload.eq(Mux(held, answer, too_many)),
        ]
        m.d.sync += held.eq(self.more.valid & ~self.more.ready)
        with m.If(step):
            m.d.sync += answer.eq(too_many)

        tie = Signal()
        chosen = Signal(p.rows)
        m.d.comb += [
            lowest.marked.eq(few | (many & room.any().replicate(p.rows)) if p.fill else few),
            o.row.eq(lowest.row),
            o.present.eq(lowest.found),
            o.last.eq(left <= 1),
            chosen.eq(1 << lowest.row),
            tie.eq(~(few & chosen).any()),
        ]
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.k.ready.eq(1)
                m.d.sync += [
                    k.eq(self.k.payload),
                    room.eq(self.k.payload),
                    left.eq(0),
                    crowded.eq(0),
                ]
                with m.If(self.k.valid):
                    m.next = "RACE"
            with m.State("RACE"):
                m.d.comb += self.i.ready.eq(~held)
                with m.If(step):
                    with m.If(too_many):
                        m.d.sync += [many.eq(i.high), crowded.eq(1)]
                    with m.Else():
                        m.d.sync += [few.eq(i.high), room.eq(spare), left.eq(count.o)]
                with m.If(over):
                    if p.fill:
                        with m.If(crowded | too_many):
                            m.d.sync += left.eq(k)
                    m.next = "ADDRESSES"
            with m.State("ADDRESSES"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.d.sync += [
                        few.eq(few & ~chosen),
                        many.eq(many & ~chosen),
                        room.eq(room - tie),
                        left.eq(left - 1),
                    ]
                    with m.If(o.last):
                        m.d.sync += [few.eq(0), many.eq(0)]
                        m.next = "IDLE"
        return m
