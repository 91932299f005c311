"""First-in first-out buffer of any depth, as a stream component."""

import dataclasses

from amaranth.hdl import Module, Value, unsigned
from amaranth.lib import fifo

from hw.component import Component
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out


@dataclasses.dataclass(frozen=True)
class QueueParameters(Parameters):
    """
    width
        Payload bits, where the instantiating block gives no shape.
    depth
        Entries held, up to 2^20.
    """

    width: int = 32
    depth: int = 16

    def __post_init__(self):
        require(self.width >= 1, "width must be at least 1", self.width)
        require(self.width <= 1 << 15, "width must be at most 32768", self.width)
        require(self.depth >= 1, "depth must be at least 1", self.depth)
        require(self.depth <= 1 << 20, "depth must be at most 1048576", self.depth)

    @classmethod
    def presets(cls) -> dict[str, "QueueParameters"]:
        return {"small": cls(8, 4), "default": cls(), "large": cls(128, 64)}

    @property
    def latency(self) -> int:
        return 1

    def cycles(self, beats: int) -> int:
        """Cycles from the first beat offered to the last beat taken, when nothing stalls."""
        return 2 * beats if self.depth == 1 else beats + self.latency


class Queue(Component[QueueParameters]):
    """First-in first-out buffer (FIFO) of ``depth`` beats.

    Latency: 1 cycle through an empty queue. Throughput: one beat per cycle, but one beat every two
    cycles at depth 1, where a full queue must empty before it can accept.

    Handshake: ``i.ready`` is high exactly when fewer than ``depth`` beats are held and ``o.valid``
    exactly when at least one is; both depend on registers only, so neither handshake crosses the
    queue. Overflow: none, ``i.ready`` is low while the queue is full.

    The storage is read asynchronously: registers or LUT memory, not block RAM. A synchronously
    read memory with an output register would fit block RAM, but it cannot accept beats in the
    cycle in which the register refills, and a pipeline with a :class:`CreditCounter` needs every
    free entry to be writable in the next cycle. A depth of 1 is a single register.

    Parameters
    ----------
    parameters : :class:`QueueParameters`
    shape : shape-like
        Payload shape; by default ``unsigned(width)``.

    Examples
    --------
    A queue of FP16 numbers; the shape overrides `width`.

    >>> from hw.arith.float_format import FP16
    >>> from hw.stream.queue import Queue, QueueParameters
    >>> queue = Queue(QueueParameters(depth=4), shape=FP16)
    >>> queue.o.payload.shape()
    unsigned(16)
    >>> queue.parameters.latency
    1
    """

    summary = "First-in first-out buffer of any depth"
    source = "library"

    def __init__(self, parameters: QueueParameters, shape=None):
        self._shape = unsigned(parameters.width) if shape is None else shape
        super().__init__(parameters)

    def ports(self) -> Ports:
        return {
            "i": stream_in(self._shape, "Beats to store."),
            "o": stream_out(self._shape, "The oldest beat."),
        }

    def elaborate(self, platform):
        m = Module()
        payload = Value.cast(self.i.payload)
        depth = self.parameters.depth
        # SyncFIFOBuffered of depth 1 is a single register; SyncFIFO would make a memory of one row,
        # whose address has no bits.
        kind = fifo.SyncFIFOBuffered if depth == 1 else fifo.SyncFIFO
        m.submodules.fifo = queue = kind(width=len(payload), depth=depth)
        m.d.comb += [
            # The FIFO's flags are functions of registers, so a queue cuts the combinational paths
            # between producer and consumer in both directions.
            queue.w_data.eq(payload),
            queue.w_en.eq(self.i.valid),
            self.i.ready.eq(queue.w_rdy),
            Value.cast(self.o.payload).eq(queue.r_data),
            self.o.valid.eq(queue.r_rdy),
            queue.r_en.eq(self.o.ready),
        ]
        return m
