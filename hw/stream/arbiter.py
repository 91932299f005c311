"""Round-robin merge of several streams into one."""

import dataclasses

from amaranth.hdl import Module, Signal, unsigned
from amaranth.lib import data

from hw.component import Component
from hw.layout import index
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out


@dataclasses.dataclass(frozen=True)
class ArbiterParameters(Parameters):
    """
    width
        Payload bits of every input, where the instantiating block gives no shape.
    inputs
        Streams merged. The grant is found by a chain of two multiplexers per input.
    """

    width: int = 32
    inputs: int = 4

    def __post_init__(self):
        require(self.width >= 1, "width must be at least 1", self.width)
        require(self.width <= 1 << 15, "width must be at most 32768", self.width)
        require(self.inputs >= 1, "inputs must be at least 1", self.inputs)

    @classmethod
    def presets(cls) -> dict[str, "ArbiterParameters"]:
        return {"small": cls(8, 2), "default": cls(), "large": cls(64, 16)}

    @property
    def latency(self) -> int:
        return 1

    def cycles(self, beats: int) -> int:
        """Cycles from the first beat offered to the last beat taken, when nothing stalls."""
        return beats + self.latency

    def output_layout(self, shape=None) -> data.StructLayout:
        """The merged payload: the input's ``data`` and ``source``, the number of the input.

        With a single input `source` is one bit that is always 0: a field of zero width would be
        left out of the Verilog.
        """
        shape = unsigned(self.width) if shape is None else shape
        return data.StructLayout({"data": shape, "source": index(range(max(2, self.inputs)))})


class Arbiter(Component[ArbiterParameters]):
    """Merge ``inputs`` streams beat by beat in round-robin order.

    After a beat from input s, the priority order is s + 1, ..., ``inputs`` - 1, 0, ..., s, and the
    first input with a valid beat is granted; after reset input 0 has the highest priority. The
    merge is fair: at most ``inputs`` - 1 beats of other inputs are accepted while an input waits.
    It is work-conserving: in every cycle in which some input is valid and the output register is
    empty or being read, a beat is accepted.

    Latency: 1 cycle. Throughput: one beat per cycle over all inputs.

    Handshake: ``o.valid`` and ``o.payload`` are registers, so a granted beat is held until it is
    accepted. ``i[s].ready`` depends combinationally on ``o.ready`` and on every ``i[..].valid``;
    put a :class:`SkidBuffer` after the arbiter where that path is too long. Overflow: none.

    Parameters
    ----------
    parameters : :class:`ArbiterParameters`
    shape : shape-like
        Payload shape of each input; by default ``unsigned(width)``.

    Examples
    --------
    >>> from hw.stream.arbiter import Arbiter, ArbiterParameters
    >>> parameters = ArbiterParameters(width=16, inputs=3)
    >>> parameters.cycles(beats=100)
    101
    >>> Arbiter(parameters).o.payload.source.shape()
    unsigned(2)
    """

    summary = "Round-robin merge of several streams into one"
    source = "library"

    def __init__(self, parameters: ArbiterParameters, shape=None):
        self._shape = shape
        super().__init__(parameters)

    def ports(self) -> Ports:
        p = self.parameters
        layout = p.output_layout(self._shape)
        return {
            "i": stream_in(layout["data"].shape, "Streams to merge.").array(p.inputs),
            "o": stream_out(layout, "Merged beats: ``data`` and ``source``."),
        }

    def elaborate(self, platform):
        m = Module()
        inputs = self.parameters.inputs
        last = Signal(range(max(2, inputs)), init=inputs - 1)  # source of the last accepted beat
        # Round robin: search from the input after the last one served, so each waits for every
        # other one at most once and none starves.
        granted = Signal.like(last, init=0)
        free = Signal()  # the output register can be written in this cycle
        m.d.comb += free.eq(~self.o.valid | self.o.ready)

        # Two priority encoders in one chain of multiplexers. The last assignment has priority, so
        # inputs are listed from the highest number down: first the lowest valid input at all,
        # which is overridden by the lowest valid input above `last`.
        for s in reversed(range(inputs)):
            with m.If(self.i[s].valid):
                m.d.comb += granted.eq(s)
        for s in reversed(range(1, inputs)):
            with m.If(self.i[s].valid & (last < s)):
                m.d.comb += granted.eq(s)

        # An accepted output beat leaves the register empty, unless a new one is written below.
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        # Only the granted input is ready; its beat goes to the output register.
        with m.Switch(granted):
            for s, port in enumerate(self.i):
                with m.Case(s) if s < inputs - 1 else m.Default():
                    m.d.comb += port.ready.eq(free)
                    with m.If(port.valid & free):
                        m.d.sync += [
                            self.o.valid.eq(1),
                            self.o.payload.data.eq(port.payload),
                            self.o.payload.source.eq(s),
                            last.eq(s),
                        ]
        return m
