"""Credit-based flow control for a pipeline that cannot stall."""

import dataclasses

from amaranth.hdl import Module, Signal

from hw.component import Component
from hw.parameters import Parameters, require
from hw.ports import Ports, wire_in, wire_out


@dataclasses.dataclass(frozen=True)
class CreditCounterParameters(Parameters):
    """
    credits
        Entries of the queue at the pipeline's output.
    """

    credits: int = 8

    def __post_init__(self):
        require(self.credits >= 1, "credits must be at least 1", self.credits)

    @classmethod
    def presets(cls) -> dict[str, "CreditCounterParameters"]:
        return {"small": cls(2), "default": cls(), "large": cls(64)}

    @classmethod
    def for_pipeline(cls, latency: int) -> "CreditCounterParameters":
        """The fewest credits that let a pipeline of `latency` cycles run at full rate.

        A credit is available again `latency` + 2 cycles after it was taken: the pipeline, one
        cycle in the queue, and one for the counter's register.
        """
        require(latency >= 0, "latency must be at least 0", latency)
        return cls(latency + 2)


class CreditCounter(Component[CreditCounterParameters]):
    """Accept work for a fixed-latency pipeline only while its output queue has a free entry.

    ::

        i --> [pipeline, no stalls] --> [queue of `credits` entries] --> o
          take |                                            give |
               +----------- credit counter <---------------------+

    Every beat that enters the pipeline takes a credit; every beat that leaves the queue returns
    one. The beats in the pipeline and in the queue together never exceed ``credits``, so the queue
    is never full when a result arrives and the pipeline needs no enable. The wiring is
    ``take = i.valid & i.ready``, ``i.ready = available``, ``give = o.valid & o.ready``.

    Latency: a returned credit is available in the next cycle, so no ready signal crosses the
    pipeline combinationally. Throughput: one credit per cycle in each direction; a pipeline of
    ``latency`` cycles in front of a :class:`Queue` runs at full rate with ``latency + 2`` credits
    (:meth:`CreditCounterParameters.for_pipeline`), and at ``credits / (latency + 2)`` with fewer.

    Overflow: `take` without a credit and `give` beyond ``credits`` are ignored; the counter does
    not wrap.

    Examples
    --------
    >>> CreditCounterParameters.for_pipeline(latency=4)  # full rate through four stages
    CreditCounterParameters(credits=6)
    """

    def ports(self) -> Ports:
        return {
            "take": wire_in(1, "A beat enters the pipeline. Does nothing unless `available`."),
            "give": wire_in(1, "A beat left the queue."),
            "available": wire_out(1, "At least one credit is left. Depends on registers only."),
        }

    def elaborate(self, platform):
        m = Module()
        # Credits are places in the queue behind a pipeline: what enters the pipeline has its place
        # already, so the pipeline never stalls and needs no enable.
        credits = self.parameters.credits
        free = Signal(range(credits + 1), init=credits)
        m.d.comb += self.available.eq(free != 0)
        taken = self.take & self.available
        # A credit taken and one returned in the same cycle cancel.
        with m.If(taken & ~self.give):
            m.d.sync += free.eq(free - 1)
        # Saturating: a credit too many would let the queue overflow later, where its cause is hard
        # to find.
        with m.Elif(self.give & ~taken & (free != credits)):
            m.d.sync += free.eq(free + 1)
        return m
