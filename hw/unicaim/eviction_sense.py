"""Which row has the smallest accumulation: the downward race (UniCAIM, section III-B4)."""

import dataclasses

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from hw.component import Component
from hw.parameters import Parameters, require
from hw.unicaim.lowest_row import LowestRow


def planes_layout(rows: int) -> data.StructLayout:
    """One step of a downward race.

    ``high`` the lines that are high, those of unused rows among them; ``last`` on the last step.
    """
    return data.StructLayout({"high": rows, "last": 1})


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
        """Cycles from a race's last step to its result."""
        return 1

    @property
    def output_layout(self) -> data.StructLayout:
        """``row`` that won, and ``present``: 0, and so is ``row``, if no line went low."""
        return data.StructLayout({"row": range(self.rows), "present": 1})


class EvictionSense(Component):
    """The row whose line goes low first, of several the one with the lowest address.

        row = argmin over used rows of accumulation

    Every row is a candidate. After each step, if lines of candidates are low, only these remain
    candidates. That finds the smallest of numbers that come as planes of bits, the highest place
    first, after a plane in which the unused rows are high (:class:`ChargeAccumulator` sends them
    so). It finds as well which line of a discharge reaches V_S first: there a line stays high until
    it has, and from the first step in which some are low nothing changes any more. With either, a
    race's length does not depend on the number of rows.

    Timing: a step a cycle, the result the cycle after the last one, the next race the cycle after
    that is taken. All outputs depend on registers only.

    Members
    -------
    i : :py:`In(stream.Signature(planes_layout(rows)))`
        Steps of a race.
    o : :py:`Out(stream.Signature(parameters.output_layout))`
        A beat for each race.
    """

    summary = "Row of the smallest accumulation, by a downward race"
    source = "UniCAIM, section III-B4"

    def __init__(self, parameters: EvictionSenseParameters):
        self._parameters = p = parameters
        super().__init__(
            {
                "i": In(stream.Signature(planes_layout(p.rows))),
                "o": Out(stream.Signature(p.output_layout)),
            }
        )

    @property
    def parameters(self) -> EvictionSenseParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        m.submodules.lowest = lowest = LowestRow(p.rows)
        out = Signal(p.rows)  # rows that are no candidates
        found = Signal()
        over = Signal()
        low = Signal(p.rows)
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
            with m.If(low.any()):
                m.d.sync += [out.eq(~low), found.eq(1)]
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += [over.eq(0), out.eq(0), found.eq(0)]
        return m
