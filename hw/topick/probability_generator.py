"""Probabilities of the kept tokens, and requests for their values (Token-Picker, section 4.1)."""

import dataclasses
import functools

from amaranth.hdl import Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, memory

from hw.arith.exp2_fixed import Exp2Fixed, Exp2FixedParameters
from hw.component import Component
from hw.layout import FLAG, FixedPoint, count, index, position
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out, wire_out


@dataclasses.dataclass(frozen=True)
class ProbabilityGeneratorParameters(Parameters):
    """
    width, fraction
        Width of a binary logarithm, signed, and its fraction bits.
    bits, chunk_bits, d
        Width of an element of a value, and of its chunks; number of elements of a value.
    rows
        Entries: kept tokens that may wait.
    probability_bits
        Fraction bits of p.
    skip
        Whether the values of tokens whose probability rounds to 0 are not requested.
    whole
        Request whole values, too, for blocks of a prompt.
    waits
        Whether an entry may come while there is no room, and a start before its entries. False, in
        the core: neither does.
    """

    width: int = 32
    fraction: int = 10
    bits: int = 12
    chunk_bits: int = 4
    d: int = 64
    rows: int = 1024
    skip: bool = True
    probability_bits: int = 17
    whole: bool = False
    waits: bool = True

    def __post_init__(self):
        require(4 <= self.width <= 48, "width must be between 4 and 48", self.width)
        rule = f"fraction must be between 1 and {min(14, self.width - 2)}"
        require(1 <= self.fraction <= min(14, self.width - 2), rule, self.fraction)
        require(2 <= self.bits <= 16, "bits must be between 2 and 16", self.bits)
        divides = self.chunk_bits >= 1 and self.bits % self.chunk_bits == 0
        rule = f"chunk_bits must divide {self.bits} (bits) and be less"
        require(divides and self.chunk_bits < self.bits, rule, self.chunk_bits)
        require(self.d >= 1, "d must be at least 1", self.d)
        rule = "probability_bits must be between 1 and 21"
        require(1 <= self.probability_bits <= 21, rule, self.probability_bits)
        require(2 <= self.rows <= 1 << 20, "rows must be between 2 and 2^20", self.rows)

    @classmethod
    def presets(cls) -> dict[str, "ProbabilityGeneratorParameters"]:
        return {
            "small": cls(
                width=14, fraction=4, bits=6, chunk_bits=2, d=4, rows=16, probability_bits=11
            ),
            "default": cls(),
            "paper": cls(rows=128, probability_bits=18),
        }

    @property
    def latency(self) -> int:
        """Cycles from a head's start to its first request."""
        return 5

    @property
    def chunks(self) -> int:
        return self.bits // self.chunk_bits

    @property
    def row_bits(self) -> int:
        """Width of a row's number."""
        return (self.rows - 1).bit_length()

    @functools.cached_property
    def exp2(self) -> Exp2FixedParameters:
        precision = self.probability_bits + 3
        return Exp2FixedParameters(0, self.fraction, precision, precision)

    @property
    def logarithm(self) -> FixedPoint:
        return FixedPoint(signed(self.width), self.fraction)

    @functools.cached_property
    def kept_layout(self) -> data.StructLayout:
        """A kept token's ``row`` and score ``t``, a binary logarithm."""
        return data.StructLayout({"row": position(self.row_bits), "t": self.logarithm})

    @functools.cached_property
    def start_layout(self) -> data.StructLayout:
        """``log2`` of a head's denominator, and the ``count`` of its entries. ``whole``: a request
        is of a whole value, as its chunk 0, and p is not looked at."""
        fields = {"log2": self.logarithm, "count": count(range(self.rows + 1))}
        return data.StructLayout(fields | ({"whole": FLAG} if self.whole else {}))

    @functools.cached_property
    def request_layout(self) -> data.StructLayout:
        """A ``chunk`` of the value of a ``row``, and the row's probability ``p``."""
        chunk = index(range(self.chunks))
        p = FixedPoint(unsigned(self.probability_bits), self.probability_bits)
        return data.StructLayout({"row": position(self.row_bits), "chunk": chunk, "p": p})

    @functools.cached_property
    def response_layout(self) -> data.StructLayout:
        """``p`` and ``chunk`` as requested, the chunk's ``data``; the ``rest`` of a whole value."""
        fields = {name: self.request_layout[name].shape for name in ("p", "chunk")}
        chunk = data.ArrayLayout(self.chunk_bits, self.d)
        return data.StructLayout(fields | {"data": chunk} | self._rest_field)

    @property
    def _rest_field(self) -> dict:
        chunk = data.ArrayLayout(self.chunk_bits, self.d)
        return {"rest": data.ArrayLayout(chunk, self.chunks - 1)} if self.whole else {}

    @functools.cached_property
    def value_layout(self) -> data.StructLayout:
        """A chunk of a value, as the lane takes it, see :class:`hw.topick.pe_lane.PeLane`."""
        return data.StructLayout(
            {
                "p": self.request_layout["p"].shape,
                "data": data.ArrayLayout(self.chunk_bits, self.d),
                "chunk": index(range(self.chunks)),
                "last": FLAG,
            }
            | self._rest_field
        )


class ProbabilityGenerator(Component[ProbabilityGeneratorParameters]):
    """p = 2^(t - log2 denominator), and the token's value, for the kept tokens of a head.

    ::

        kept ─→ memory ─→ log2 - t ─→ 2^-fraction ─→ p ─→ request ┄ (memory) ┄ response ─→ value
                                                                                      end ↗

    Entries are stored while the head's scores are computed. A ``start`` makes the oldest `count`
    entries the head of step 1; the next head's may already be stored behind them. Each
    entry's value is requested chunk by chunk. A request carries p, which the memory brings back
    with the data, so nothing is looked up when a response comes. After the last response there is a
    beat of zeros with ``last``, which ends the lane's sums; a head without entries has only this.

    p has b = `probability_bits` fraction bits, rounded to nearest, half up; at most 1 - 2^-b::

        log2 - t = | n (integer) | f (fraction) |       p = 1 - 2^-b if this is 0 or less
        2^-f     =         0.1xxxxxxxxxxxxx             b + 3 fraction bits, rounded down
        p        = 0.000001xxxxx                        2^-f shifted right by n, b of them

    With `skip`, a token whose p rounds to 0 is not requested. A head that is ``whole`` has one
    request for each entry, whatever p is.

    Latency: 5 cycles from a head's start to its first request, 1 to the end of a head without
    entries. Throughput: a request per cycle; an entry that is not requested takes a cycle.

    Handshake: ``start.ready`` is high when the beat that ends a head has been accepted.
    ``value.valid`` depends on ``response.valid``, ``response.ready`` on ``value.ready``. A response
    without a request waits. Overflow: ``kept.ready`` is low while `rows` entries are held, or is
    always high without `waits`.

    Examples
    --------
    >>> from hw.topick.probability_generator import ProbabilityGeneratorParameters
    >>> parameters = ProbabilityGeneratorParameters(bits=12, chunk_bits=4, rows=1024)
    >>> parameters.latency, parameters.chunks
    (5, 3)
    >>> [(name, field.width) for name, field in parameters.request_layout]
    [('row', 10), ('chunk', 2), ('p', 17)]
    """

    summary = "Probabilities of kept tokens, requests for their values, and the end of a sum"
    source = "Token-Picker, section 4.1"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "kept": stream_in(p.kept_layout, "Kept tokens with their scores."),
            "level": wire_out(count(range(p.rows + 1)), "Entries held."),
            "start": stream_in(
                p.start_layout, "Entries of the head that are not yet stored are waited for."
            ),
            "request": stream_out(p.request_layout, "Rows of V to read."),
            "response": stream_in(p.response_layout, "One for each request, in any order."),
            "value": stream_out(p.value_layout, "Probabilities, with the row of V of each."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        # Entries of the next head are stored while this one's are read: the ring belongs to both.
        busy = Signal()  # a head is in step 1
        left = Signal(range(p.rows + 1))  # its entries in the memory
        log2 = Signal(p.logarithm)
        whole = Signal()
        # The head has ended when all entries are read, all requests are out and all responses have
        # come.
        pending = Signal(range(p.rows * p.chunks + 1))  # requests without a response
        starting, reading, requested, passed, ending = (
            Signal(name=name) for name in ("starting", "reading", "requested", "passed", "ending")
        )
        m.d.comb += [self.start.ready.eq(~busy), starting.eq(self.start.valid & ~busy)]
        # A head's entries are the oldest ones of the ring.
        with m.If(starting):
            m.d.sync += [
                busy.eq(1),
                left.eq(self.start.payload.count),
                log2.eq(self.start.payload.log2),
            ]
            if p.whole:
                m.d.sync += whole.eq(self.start.payload.whole)
        with m.Elif(reading):
            m.d.sync += left.eq(left - 1)
        with m.If(ending):
            m.d.sync += busy.eq(0)

        entry = self._entries(m, reading)
        idle = self._request(m, left, log2, whole, entry, reading)
        m.d.comb += requested.eq(self.request.valid & self.request.ready)
        m.d.sync += pending.eq(pending + requested - passed)

        # Responses pass to the lane; then the end of the sums.
        response, value = self.response, self.value
        end = Signal()
        m.d.comb += [
            end.eq(busy & (left == 0) & idle & (pending == 0)),
            # A response that was not requested is not taken.
            value.valid.eq(end | (response.valid & (pending != 0))),
            value.payload.last.eq(end),
            response.ready.eq(value.ready & (pending != 0)),
            passed.eq(response.valid & response.ready),
            ending.eq(end & value.ready),
        ]
        with m.If(~end):
            m.d.comb += [
                value.payload.p.eq(response.payload.p),
                value.payload.data.eq(response.payload.data),
                value.payload.chunk.eq(response.payload.chunk),
            ]
            if p.whole:
                m.d.comb += value.payload.rest.eq(response.payload.rest)
        return m

    def _entries(self, m: Module, reading: Signal):
        """The memory of entries, a ring; returns the one read in the cycle before."""
        p = self.parameters
        entries = memory.Memory(shape=p.kept_layout, depth=p.rows, init=[])
        m.submodules.entries = entries
        read, write = entries.read_port(), entries.write_port()
        storing = Signal()
        m.d.comb += [
            self.kept.ready.eq((self.level != p.rows) if p.waits else 1),
            # Full when as many entries are stored as there are rows, of this head and the next
            # together.
            storing.eq(self.kept.valid & self.kept.ready),
            write.data.eq(self.kept.payload),
            write.en.eq(storing),
            read.en.eq(reading),
        ]
        m.d.sync += self.level.eq(self.level + storing - reading)
        for port, moves in ((read, reading), (write, storing)):
            with m.If(moves):
                m.d.sync += port.addr.eq(Mux(port.addr == p.rows - 1, 0, port.addr + 1))
        # The ports' addresses are pointers, which begin at 0.
        return read.data

    def _request(self, m: Module, left, log2, whole: Signal, entry, reading: Signal) -> Value:
        """Stages from an entry to its requests; returns whether they are empty."""
        p = self.parameters
        m.submodules.exp2 = exp2 = Exp2Fixed(p.exp2)
        valid = {name: Signal(name=f"{name}_valid") for name in ("entry", "minus", "power")}
        valid["p"] = self.request.valid
        # Stages advance one by one, so a bubble closes while a request waits for the memory.
        free = {name: Signal(name=f"{name}_free") for name in valid}
        stored = (self.level != 0) if p.waits else 1
        m.d.comb += [
            reading.eq((left != 0) & stored & free["entry"]),
            # A stage advances when it is empty or the next one does, from the requests backwards.
            free["entry"].eq(~valid["entry"] | free["minus"]),
            free["minus"].eq(~valid["minus"] | free["power"]),
        ]
        with m.If(free["entry"]):
            m.d.sync += valid["entry"].eq(reading)

        # Stage "minus": log2 - t.
        row = {
            name: Signal(position(p.row_bits), name=f"{name}_row", reset_less=True)
            for name in ("minus", "power")
        }
        minus = Signal(signed(p.width + 1), reset_less=True)
        with m.If(free["minus"]):
            m.d.sync += [
                valid["minus"].eq(valid["entry"]),
                minus.eq(log2 - entry.t),
                row["minus"].eq(entry.row),
            ]

        # Stage "power": 2^-f, and n as far as p is not 0.
        power = Signal(p.probability_bits + 3, reset_less=True)
        most = Signal(
            reset_less=True
        )  # 2^(t - log2) is above 1; of 1 the power is rounded up to it
        shift = Signal(range(p.probability_bits + 3), reset_less=True)
        n = Signal(signed(p.width + 1 - p.fraction))
        m.d.comb += [exp2.x.eq(minus[: p.fraction]), n.eq(minus >> p.fraction)]
        with m.If(free["power"]):
            m.d.sync += [
                valid["power"].eq(valid["minus"]),
                power.eq(exp2.y),
                most.eq(minus < 0),
                # Shifts beyond the last bit all give 0, so the distance is limited.
                shift.eq(Mux(n > p.probability_bits + 1, p.probability_bits + 2, n)),
                row["power"].eq(row["minus"]),
            ]

        # Stage "p": power has probability_bits + 3 fraction bits; p is rounded by the one below it.
        half = Signal(p.probability_bits + 1)  # with the bit below
        rounded = Signal(p.probability_bits + 1)
        found = Signal(p.probability_bits)
        m.d.comb += [
            half.eq(power >> shift >> 2),
            rounded.eq((half >> 1) + half[0]),
            found.eq(Mux(most | rounded[-1], (1 << p.probability_bits) - 1, rounded)),
        ]
        request = self.request.payload
        last = Signal()
        none = Signal()  # a probability of 0
        m.d.comb += [
            last.eq(request.chunk == p.chunks - 1),
            free["p"].eq(~self.request.valid | (self.request.ready & last)),
            # A probability of 0 needs no value: its entry leaves without a request.
            none.eq((found == 0) & p.skip),
            free["power"].eq(~valid["power"] | free["p"] | none),
        ]
        if p.whole:
            # The whole value at once, whatever p is: cycles of a prompt do not depend on data.
            with m.If(whole):
                m.d.comb += [last.eq(1), none.eq(0)]
        # One entry is requested chunk by chunk and blocks the stages before it.
        with m.If(free["p"]):
            m.d.sync += [self.request.valid.eq(valid["power"] & ~none), request.chunk.eq(0)]
            with m.If(valid["power"]):
                m.d.sync += [request.p.eq(found), request.row.eq(row["power"])]
        with m.Elif(self.request.ready):
            m.d.sync += request.chunk.eq(request.chunk + 1)
        return ~(valid["entry"] | valid["minus"] | valid["power"] | valid["p"])
