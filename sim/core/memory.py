"""Model of an external memory: tagged requests in, responses out after a latency, in any order.

A stimulus binds a :class:`Memory` to a pair of streams at a design's ports: its rows, and the
positions of address, tag and data in the payloads. Latency, bandwidth and order are a
:class:`MemoryTiming`, which the run chooses, as it chooses the stall pattern. :class:`MemoryModel`
here and ``memory.h`` in the compiled harness have the same schedule, cycle for cycle.
"""

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from hw.parameters import require
from sim.core import payload
from sim.core.schedules import FixedSchedule, Schedule

LONGEST = 10_000
"""Cycles of a latency or an interval at most; with more, a run would seem to hang."""

_MASK = (1 << 64) - 1


class MemoryFault(RuntimeError):
    """A request that the memory cannot answer; the message is one sentence."""


@dataclasses.dataclass(frozen=True)
class MemoryTiming:
    """How a memory answers reads. A write is done when it is accepted and gets no response.

    latency
        Shortest and longest number of cycles from the cycle in which a request is accepted to the
        first in which its response may be offered, LONGEST at most; drawn evenly for each request
        from `seed` and the request's number. 1 is the next cycle.
    interval
        Cycles from one response first offered to the next, at least: 1 / bandwidth. Responses that
        wait for it, for the consumer or for their turn take longer than `latency`.
    reorder
        Whether a response may overtake an earlier request's. Among responses that are due, the
        oldest request's goes first.
    """

    latency: tuple[int, int] = (1, 1)
    interval: int = 1
    reorder: bool = False
    seed: int = 0
    is_drawn: ClassVar[bool] = True
    """Whether a latency follows from the request's number, by `draw`."""

    def __post_init__(self):
        try:
            shortest, longest = map(operator.index, self.latency)
        except (TypeError, ValueError):
            shortest, longest = 0, 0
        require(
            1 <= shortest <= longest,
            "latency must be the shortest and the longest number of cycles, both at least 1",
            self.latency,
        )
        rule = f"latency must be at most {LONGEST} cycles"
        require(longest <= LONGEST, rule, longest)
        rule = f"interval must be between 1 and {LONGEST} cycles"
        require(1 <= self.interval <= LONGEST, rule, self.interval)
        require(0 <= self.seed <= _MASK, "seed must be an unsigned 64-bit number", self.seed)

    @classmethod
    def from_text(cls, text: str, seed: int = 0) -> "MemoryTiming":
        """A timing as typed: ``latency=1..80,order=any,interval=2,seed=3``, or a part of it.

        Settings left out are the fastest memory's, and `seed`.

        :raises ParameterError: for an unknown setting or a value out of range.
        """
        values = {"latency": "1", "order": "in", "interval": "1", "seed": str(seed)}
        for setting in text.split(","):
            name, _, value = setting.partition("=")
            known = f"a memory's setting must be one of {', '.join(values)}, each as NAME=VALUE"
            require(name in values and bool(value), known, setting)
            values[name] = value
        require(values["order"] in ("in", "any"), "order must be in or any", values["order"])
        latency = values["latency"].split("..")
        require(len(latency) <= 2, "latency must be a number or two, as 1..80", values["latency"])
        numbers = [("latency", latency[0]), ("latency", latency[-1]), *list(values.items())[2:]]
        for name, number in numbers:
            require(number.isdecimal(), f"{name} must be a whole number", number)
        shortest, longest, interval, seed = (int(number) for _, number in numbers)
        return cls((shortest, longest), interval, values["order"] == "any", seed)

    def __str__(self) -> str:
        shortest, longest = self.latency
        latency = f"{shortest}" if shortest == longest else f"{shortest}..{longest}"
        order = "any" if self.reorder else "in"
        return f"latency={latency},order={order},interval={self.interval},seed={self.seed}"

    @property
    def is_fastest(self) -> bool:
        """Whether each response is offered in the cycle after its request."""
        return self.latency == (1, 1) and self.interval == 1

    def schedule(self, row_bits: int) -> Schedule:
        """The schedule of one memory with rows of that width."""
        return FixedSchedule(self)

    def dram_numbers(self, row_bits: int) -> np.ndarray:
        """``int64[]`` for ``dram.h``; empty without banks."""
        return np.zeros(0, np.int64)

    def draw(self, number: int) -> int:
        """Latency of the request of that number, counted from 0 over reads and writes."""
        shortest, longest = self.latency
        z = (self.seed + 0x9E3779B97F4A7C15 * (number + 1)) & _MASK
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
        z ^= z >> 31
        return shortest + ((z >> 32) * (longest - shortest + 1) >> 32)


FASTEST = MemoryTiming()

# Default timing under each stall pattern. Cycle formulas hold for the fastest; the others show
# errors that depend on latency, order or bandwidth.
TIMINGS = {
    "none": FASTEST,
    "random": MemoryTiming((1, 20), reorder=True),
    "bursts": MemoryTiming((2, 40), interval=2),
    # Many responses are on their way as a stream stalls, and then come one in each cycle.
    "long": MemoryTiming((12, 12)),
}


@dataclasses.dataclass(frozen=True)
class Bits:
    """A contiguous part of a payload; absent if it has no width."""

    offset: int = 0
    width: int = 0

    def read(self, beat: int) -> int:
        return beat >> self.offset & (1 << self.width) - 1


@dataclasses.dataclass(frozen=True)
class MemoryPort:
    """Positions of a memory's fields in the payloads of its two streams."""

    address: Bits
    request_tag: Bits
    write: Bits
    write_data: Bits
    response_tag: Bits
    data: Bits

    def request(self, beat: int) -> tuple[int, int, int | None]:
        """Tag, address and, for a write, the row to write, of a request beat."""
        data = self.write_data.read(beat) if self.write.read(beat) else None
        return self.request_tag.read(beat), self.address.read(beat), data

    def response(self, tag: int, row: int) -> int:
        """Response beat."""
        return tag << self.response_tag.offset | self.data.read(row << self.data.offset) << (
            self.data.offset
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Memory:
    """Rows behind a pair of streams of the design.

    contents
        ``uint32[rows, words]``: row by row what the data field returns, packed by
        :func:`sim.core.payload.pack`. Never changed; a run works on a copy.
    request, response
        The design's output stream of requests and its input stream of responses.
    address, tag
        Fields of the request, as dotted paths of :func:`sim.core.payload.fields`; a path to a
        struct or an array means all of it, and ``payload`` all of a payload that has no such field.
    response_tag, data
        Fields of the response; its tag has the name of the request's by default. If `tag` is None,
        there are no tags and responses are in order.
    write, write_data
        Fields of the request that turn it into a write of one row; None for a read-only memory.
    in_order
        The design needs its responses in the order of the requests, in spite of the tags.
    after
        Contents that the run must leave, like `contents`; None if they are not checked.
    """

    contents: np.ndarray
    request: str
    response: str
    address: str = "address"
    tag: str | None = "tag"
    response_tag: str | None = None
    data: str = "data"
    write: str | None = None
    write_data: str | None = None
    in_order: bool = False
    after: np.ndarray | None = None

    def __post_init__(self):
        shape = np.shape(self.contents)
        require(
            len(shape) == 2 and min(shape) > 0, "contents must have the shape [rows, words]", shape
        )
        require(
            (self.write is None) == (self.write_data is None),
            "write and write_data must be given together",
            (self.write, self.write_data),
        )

    def port(self, outputs: Mapping, inputs: Mapping) -> MemoryPort:
        """Find the fields in the design's streams, name to payload shape.

        :raises ParameterError: if a stream or field is missing or of the wrong width.
        """
        require(self.request in outputs, "request must be an output of the design", self.request)
        require(self.response in inputs, "response must be an input of the design", self.response)
        request, response = outputs[self.request], inputs[self.response]
        response_tag = self.tag if self.response_tag is None else self.response_tag
        port = MemoryPort(
            address=_find(request, self.address),
            request_tag=_find(request, self.tag),
            write=_find(request, self.write),
            write_data=_find(request, self.write_data),
            response_tag=_find(response, None if self.tag is None else response_tag),
            data=_find(response, self.data),
        )
        width, words = port.data.width, np.shape(self.contents)[1]
        require(
            words == -(-width // 32), f"contents must have rows of {width} bits in words", words
        )
        require(
            port.address.width <= 64, "address must be at most 64 bits wide", port.address.width
        )
        require(
            port.request_tag.width == port.response_tag.width,
            f"the response's tag must be as wide as the request's, {port.request_tag.width} bits",
            port.response_tag.width,
        )
        if self.write is not None:
            require(port.write.width == 1, "write must be 1 bit wide", port.write.width)
            require(
                port.write_data.width == width,
                f"write_data must be as wide as data, {width} bits",
                port.write_data.width,
            )
        return port


def _find(shape, path: str | None) -> Bits:
    if path is None:
        return Bits()
    leaves = payload.fields(shape)
    parts = [
        leaf for leaf in leaves if leaf[0] == path or leaf[0].startswith((f"{path}.", f"{path}["))
    ]
    if path == "payload" and not parts:
        parts = leaves
    names = ", ".join(name for name, _, _ in leaves)
    require(bool(parts), f"a memory's field must be one of {names}", path)
    start = min(offset for _, offset, _ in parts)
    end = max(offset + width for _, offset, width in parts)
    return Bits(start, end - start)


@dataclasses.dataclass
class MemoryUse:
    """Accesses of one run to a memory.

    contents
        ``uint32[rows, words]`` after the run.
    row_bits
        Bits of a row, the width of the data field.
    accepted, offered
        ``int64[requests]``: the cycle in which each request was accepted, and the one in which its
        response was first offered; -1 for a write and for a response still outstanding at the end.
    rows
        ``int64[requests]``: the row of each of these requests, ~row of a write; None if unknown.
    dram
        :class:`sim.core.dram.timing.DramUse` of a DRAM, else None.
    """

    contents: np.ndarray
    row_bits: int
    rows_read: int
    rows_written: int
    accepted: np.ndarray
    offered: np.ndarray
    rows: np.ndarray | None = None
    dram: Any = None

    @property
    def bytes_read(self) -> int:
        return self.rows_read * self.row_bits // 8

    @property
    def bytes_written(self) -> int:
        return self.rows_written * self.row_bits // 8


class MemoryModel:
    """Cycle-level model of one memory.

    For each cycle, call `response` unless an earlier response still waits to be accepted, then
    `request` if one is accepted in it. Any number of requests may be outstanding, with equal tags
    too. A read returns the row as it was when the read was accepted, after all earlier writes.
    """

    def __init__(
        self,
        contents: np.ndarray,
        timing: MemoryTiming,
        row_bits: int | None = None,
        name: str = "memory",
    ):
        self._rows = payload.to_ints(contents)
        self._words = np.shape(contents)[1]
        self._row_bits = 32 * self._words if row_bits is None else row_bits
        self._schedule, self._name = timing.schedule(self._row_bits), name
        self.ready = self._schedule.ready  # whether a request may be accepted in a cycle
        self._accepted, self._offered, self._rows_of = (list[int]() for _ in range(3))
        self._rows_read = self._rows_written = 0
        self._outstanding: dict[int, tuple[int, int]] = {}  # number to tag and row

    def store(self, first: int, rows: np.ndarray) -> None:
        """Set rows from `first` on, without a request."""
        self._rows[first : first + len(rows)] = payload.to_ints(rows)

    def request(self, cycle: int, tag: int, address: int, data: int | None = None) -> None:
        """Accept a read, or with `data` a write.

        :raises MemoryFault: if there is no such row.
        """
        number = len(self._accepted)
        self._accepted.append(cycle)
        self._offered.append(-1)
        self._rows_of.append(address if data is None else ~address)
        if not 0 <= address < len(self._rows):
            rows, write = len(self._rows), data is not None
            raise MemoryFault(fault(self._name, number, write, address, rows, cycle))
        if data is not None:
            self._rows[address] = data
            self._rows_written += 1
            self._schedule.write(cycle, number, address)
            return
        self._rows_read += 1
        self._outstanding[number] = tag, self._rows[address]
        self._schedule.read(cycle, number, address)

    def response(self, cycle: int) -> tuple[int, int] | None:
        """Tag and row of the response to offer from `cycle` on; None if no response is due."""
        number = self._schedule.answer(cycle)
        if number is None:
            return None
        self._offered[number] = cycle
        return self._outstanding.pop(number)

    @property
    def use(self) -> MemoryUse:
        raw = b"".join(row.to_bytes(4 * self._words, "little") for row in self._rows)
        return MemoryUse(
            contents=np.frombuffer(raw, "<u4").reshape(-1, self._words).astype(np.uint32),
            row_bits=self._row_bits,
            rows_read=self._rows_read,
            rows_written=self._rows_written,
            accepted=np.array(self._accepted, np.int64),
            offered=np.array(self._offered, np.int64),
            rows=np.array(self._rows_of, np.int64),
            dram=self._schedule.use(),
        )


def fault(name: str, number: int, write: bool, address: int, rows: int, cycle: int) -> str:
    """The message for a request out of range."""
    request = f"request {number} {'writes' if write else 'reads'} row {address}"
    return f"memory {name}: {request} in cycle {cycle}, but there are {rows} rows"


def timing_of(timing: MemoryTiming | Mapping[str, MemoryTiming], memory: str) -> MemoryTiming:
    """One memory's timing, from one timing for all memories or from one for each by name."""
    return timing if isinstance(timing, MemoryTiming) else timing[memory]


def timings_of(memories: Mapping[str, Memory], timing: MemoryTiming) -> dict[str, MemoryTiming]:
    """One timing for all of a stimulus's memories; those without tags answer in order."""
    in_order = dataclasses.replace(timing, reorder=False)
    return {
        name: in_order if m.tag is None or m.in_order else timing for name, m in memories.items()
    }


def described(timings: Mapping[str, MemoryTiming]) -> str:
    """The timings of a run's memories in words: one for all, or one for each by name."""
    texts = {name: str(timing) for name, timing in timings.items()}
    if len({*texts.values()}) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{name} {text}" for name, text in texts.items())
