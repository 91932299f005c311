"""Which row has the smallest accumulation: the minimum search (UniCAIM, section III-B4)."""

import dataclasses
import functools

from amaranth.hdl import Module, Signal
from amaranth.lib import data

from hw.component import Component
from hw.layout import FLAG, index, mask
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out
from hw.unicaim.lowest_row import LowestRow


def planes_layout(rows: int) -> data.StructLayout:
    """One step of a minimum search.

    ``high``: the lines that are high, unused rows' lines among them. ``last``: the last step.
    """
    return data.StructLayout({"high": mask(rows), "last": FLAG})


@dataclasses.dataclass(frozen=True)
class EvictionSenseParameters(Parameters):
    """
    rows
        Lines, 2 or more.
    """

    rows: int = 64

    def __post_init__(self):
        require(self.rows >= 2, "rows must be at least 2", self.rows)

    @classmethod
    def presets(cls) -> dict[str, "EvictionSenseParameters"]:
        return {"small": cls(rows=8), "default": cls(), "paper": cls(rows=576)}

    @property
    def latency(self) -> int:
        """Cycles from a search's last step to its result."""
        return 1

    def cycles(self, steps: int) -> int:
        """Cycles of a search of `steps` steps, with the one to take its result."""
        return steps + 1

    @functools.cached_property
    def output_layout(self) -> data.StructLayout:
        """``row``: the row found. ``present``: 0, and so is ``row``, if no line went low."""
        return data.StructLayout({"row": index(range(self.rows)), "present": FLAG})


class EvictionSense(Component[EvictionSenseParameters]):
    """The row whose line goes low first; of several, the one with the lowest address.

        row = argmin over used rows of accumulation

    Every row is a candidate. In each step, if lines of candidates are low, only these rows remain
    candidates. This finds the smallest of numbers that arrive as bit planes, the most significant
    plane first, after a plane in which the unused rows are high
    (:class:`hw.unicaim.charge_accumulator.ChargeAccumulator` sends them so). Example with
    accumulations 6, 2, 3 and an unused row:

        plane    high        candidates
        unused   0 0 0 1     rows 0, 1, 2
        bit 2    1 0 0 1     rows 1, 2
        bit 1    1 1 1 1     rows 1, 2 (no candidate is low)
        bit 0    0 0 1 1     row 1

    It also finds which line of a discharge reaches V_S first: there a line is high until it does,
    and from the first step in which some are low nothing changes any more. With either, the number
    of steps does not depend on the number of rows.

    Latency: the result in the cycle after the last step. Throughput: one step per cycle; the next
    search starts in the cycle after the result is taken. All outputs depend on registers only.

    Examples
    --------
    >>> from hw.unicaim.eviction_sense import EvictionSenseParameters
    >>> parameters = EvictionSenseParameters(rows=576)
    >>> parameters.output_layout
    StructLayout({'row': Integer(meaning='index', shape=unsigned(10)), 'present': \
Integer(meaning='flag', shape=unsigned(1))})
    >>> parameters.cycles(steps=19)  # an accumulation of 18 bits
    20
    """

    summary = "Row of the smallest accumulation, by a search over bit planes"
    source = "UniCAIM, section III-B4"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "i": stream_in(planes_layout(p.rows), "Steps of a search."),
            "o": stream_out(p.output_layout, "One beat for each search."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        # The least charge is found without reading a row: lines fall in the order of their charge
        # (UniCAIM, Fig. 8), here in the order of bits.
        m.submodules.lowest = lowest = LowestRow(p.rows)
        out = Signal(p.rows)  # rows that are no longer candidates
        found = Signal()  # some line went low
        over = Signal()  # the result waits to be taken
        low = Signal(p.rows)  # candidates whose line is low
        m.d.comb += [
            self.i.ready.eq(~over),
            low.eq(~out & ~self.i.payload.high),
            lowest.marked.eq(~out & found.replicate(p.rows)),
            self.o.valid.eq(over),
            self.o.payload.row.eq(lowest.row),
            self.o.payload.present.eq(found),
        ]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += over.eq(self.i.payload.last)
            # A plane in which no candidate is low decides nothing, and all remain.
            with m.If(low.any()):
                m.d.sync += [out.eq(~low), found.eq(1)]
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += [over.eq(0), out.eq(0), found.eq(0)]
        return m
