"""Executes the operations of a request packet, byte by byte, and makes the reply."""

import dataclasses

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import enum

from hw.boards.frames import CRC_BYTES
from hw.component import Component
from hw.ports import Ports, wire_in, wire_out

VERSION = 1
"""Version of the protocol."""


class Operation(enum.IntEnum, shape=8):
    STATUS = 0
    RESET = 1
    START = 2
    WRITE = 3
    READ = 4
    LOAD = 5
    DUMP = 6
    FILL = 7


class Outcome(enum.IntEnum, shape=7):
    """The low bits of a reply's status byte; the highest says that the block runs."""

    DONE = 0
    UNKNOWN_OPERATION = 1
    NO_ROOM = 2
    NO_SUCH_STREAM = 3
    REPLY_TOO_LONG = 4
    TRUNCATED = 5
    NO_SUCH_ROW = 6


ROWS = (Operation.LOAD, Operation.DUMP, Operation.FILL)
"""Operations on a memory's rows."""
ARGUMENTS = {Operation.WRITE: 3, Operation.READ: 3, **dict.fromkeys(ROWS, 7)}
"""Bytes after an operation: stream and count, or memory, row and count."""


@dataclasses.dataclass(frozen=True)
class Channels:
    """What a request can reach.

    inputs, outputs
        Bytes of a beat of each stream.
    memories
        Bytes of a row and rows, of each memory.
    status_bytes
        Bytes of the result of STATUS.
    packet
        Bytes of the longest packet.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    memories: tuple[tuple[int, int], ...]
    status_bytes: int
    packet: int


class CommandProcessor(Component[None]):
    """Requests in a buffer to replies in a buffer.

    A request is a sequence number and operations, a reply the number, a status byte and results. A
    request with the number of the last one is a repetition: the reply is sent again, and nothing
    executed. Number 0 is always executed, and forgets the last one. The first operation that fails
    is the last.

    Latency: a cycle for each byte of request and reply, two for each operation, a few for each row
    that is read, and one for each that is filled.
    """

    def __init__(self, channels: Channels):
        self._channels = channels
        super().__init__()

    def ports(self) -> Ports:
        c = self._channels
        counts = (len(kind) for kind in (c.inputs, c.outputs, c.memories))
        inputs, outputs, memories = (max(1, count) for count in counts)
        return {
            **{
                "full": wire_in(
                    1,
                    "Of :class:`hw.boards.frames.FrameReceiver`; `read_address` and `release` to "
                    "it.",
                ),
                "length": wire_in(range(c.packet + 1), "See `full`."),
                "release": wire_out(1),
            },
            **{"read_address": wire_out(range(c.packet)), "read_data": wire_in(8, "See `full`.")},
            **{
                "write": wire_out(1, "To the buffer of the reply."),
                "write_address": wire_out(range(c.packet), "See `write`."),
                "write_data": wire_out(8, "See `write`."),
            },
            **{
                "send": wire_out(1),
                "reply_length": wire_out(range(c.packet + 1)),
                "busy": wire_in(1),
            },
            **{
                "status": wire_in(8 * c.status_bytes, "The result of STATUS, taken in one cycle."),
                "running": wire_out(
                    1,
                    "The block is not in reset: low from power-up to START. Everything is to be "
                    "dropped.",
                ),
                "data": wire_out(
                    8,
                    "The byte for the stream or memory of the bit that is set in `push` or `load`.",
                ),
            },
            **{"push": wire_out(inputs), "rooms": wire_in(16 * inputs)},
            **{
                "pop": wire_out(outputs),
                "levels": wire_in(16 * outputs),
                "popped": wire_in(8 * outputs),
            },
            **{name: wire_out(memories) for name in ("begin", "load", "repeat", "dump")},
            **{"present": wire_in(memories), "dumped": wire_in(8 * memories)},
            **{
                "row": wire_out(32, "With `begin`."),
                "loads": wire_out(1, "See `row`."),
                "clear": wire_out(1, "See `running`."),
            },
        }

    def elaborate(self, platform):
        m = Module()
        c = self._channels
        position = Signal(range(c.packet + 1))
        # `consume` takes the byte of the packet at `position`; `present` says that there is one.
        consume, present = Signal(), Signal()
        outcome = Signal(Outcome)
        operation = Signal(8)
        arguments, missing = Signal(56), Signal(range(8))
        count = Signal(16)  # beats or rows left
        left = Signal(range(max(1, *c.inputs, *c.outputs, *(m[0] for m in c.memories)) + 1))
        sequence, known = Signal(8), Signal()  # of the last request, if it is known
        # STATUS is sent byte by byte while the counters go on, so all of it is copied first.
        snapshot = Signal(8 * c.status_bytes)
        byte = self.read_data
        m.d.comb += [
            # The byte at `position` is there in the next cycle.
            self.read_address.eq(Mux(consume, position + 1, position)),
            present.eq(position < self.length),
            self.data.eq(byte),
        ]
        with m.If(consume):
            m.d.sync += position.eq(position + 1)
        # Arguments in the packet's order: stream, count; or memory, row, count.
        on_rows = operation.matches(*ROWS)
        number = Mux(on_rows, arguments[:8], arguments[32:40])
        stated = Signal(16)
        m.d.comb += [
            stated.eq(arguments[40:56]),
            self.row.eq(arguments[8:40]),
            self.loads.eq(operation != Operation.DUMP),
        ]
        kinds = {
            Operation.WRITE: c.inputs,
            Operation.READ: c.outputs,
            **dict.fromkeys(ROWS, tuple(size for size, _ in c.memories)),
        }
        # What the stream or memory is: its bytes, whether it exists, and what it offers.
        size = Signal.like(left)
        exists = Signal()
        for kind, sizes in kinds.items():
            with m.If(operation == kind):
                for n, bytes_ in enumerate(sizes):
                    with m.If(number == n):
                        m.d.comb += [size.eq(bytes_), exists.eq(1)]
        room = self._chosen(number, self.rooms, 16)
        level = self._chosen(number, self.levels, 16)
        rows = Signal(33)
        for n, (_, most) in enumerate(c.memories):
            with m.If(number == n):
                m.d.comb += rows.eq(most)
        # FILL sends one row, which is then stored again for each further row without bytes.
        filled = Signal()  # the row to fill others with has come
        # A reply must leave room for its CRC; what does not fit ends the packet with an outcome.
        reply_full = Signal()
        reply = Signal(8)
        emit = Signal()
        m.d.comb += reply_full.eq(self.reply_length == c.packet - CRC_BYTES)
        with m.If(emit):
            m.d.comb += [
                self.write.eq(1),
                self.write_address.eq(self.reply_length),
                self.write_data.eq(reply),
            ]
            m.d.sync += self.reply_length.eq(self.reply_length + 1)

        # An operation that fails ends the packet: later operations may depend on it.
        def fail(why: Outcome) -> None:
            m.d.sync += outcome.eq(why)
            m.next = "FINISH"

        # Streams and memories listen to one bit each of push, pop, load and dump.
        def one_hot(port: Value) -> None:
            m.d.comb += port.eq(1 << number)

        with m.FSM(name="process"):
            with m.State("IDLE"):
                # Wait for a packet with a good CRC, whose first byte then is at the read port.
                m.d.sync += [position.eq(0), outcome.eq(Outcome.DONE)]
                with m.If(self.full & (position == 0)):
                    m.next = "SEQUENCE"
            with m.State("SEQUENCE"):
                # A packet with the number of the last one is a repetition, because its reply was
                # lost: the reply is sent again and nothing is executed twice. Number 0 is never
                # taken for one.
                m.d.comb += consume.eq(1)
                m.d.sync += [sequence.eq(byte), known.eq(byte != 0)]
                with m.If(known & (byte == sequence)):
                    m.next = "SEND"
                with m.Else():
                    m.d.comb += [
                        self.write.eq(1),
                        self.write_address.eq(0),
                        self.write_data.eq(byte),
                    ]
                    m.d.sync += self.reply_length.eq(2)
                    m.next = "OPERATION"
            with m.State("OPERATION"):
                # The code of the next operation; the end of the packet ends the reply.
                m.d.sync += operation.eq(byte)
                with m.If(~present):
                    m.next = "FINISH"
                with m.Else():
                    m.d.comb += consume.eq(1)
                    m.next = "EXECUTE"
                    for kind, bytes_ in ARGUMENTS.items():
                        with m.If(byte == kind):
                            m.d.sync += missing.eq(bytes_)
                            m.next = "ARGUMENTS"
            with m.State("ARGUMENTS"):
                # Bytes arrive lowest first and are shifted in from the top, so the last one of any
                # number of arguments is always in the highest byte.
                with m.If(missing == 0):
                    m.next = "EXECUTE"
                with m.Elif(~present):
                    fail(Outcome.TRUNCATED)
                with m.Else():
                    m.d.comb += consume.eq(1)
                    m.d.sync += [
                        arguments.eq(Cat(arguments[8:], byte)),
                        missing.eq(missing - 1),
                    ]
            with m.State("EXECUTE"):
                # Check the operation before anything is changed, and load its counters.
                m.d.sync += [count.eq(stated), snapshot.eq(self.status)]
                with m.Switch(operation):
                    with m.Case(Operation.STATUS):
                        m.d.sync += count.eq(c.status_bytes)
                        m.next = "STATUS"
                    with m.Case(Operation.RESET):
                        m.d.comb += self.clear.eq(1)
                        m.d.sync += self.running.eq(0)
                        m.next = "OPERATION"
                    with m.Case(Operation.START):
                        m.d.sync += self.running.eq(1)
                        m.next = "OPERATION"
                    with m.Case(Operation.WRITE):
                        m.next = "WRITE"
                        with m.If(~exists):
                            fail(Outcome.NO_SUCH_STREAM)
                    with m.Case(Operation.READ):
                        # At most the beats that wait are read; the reply says how many.
                        with m.If(stated > level):
                            m.d.sync += count.eq(level)
                        m.next = "COUNT"
                        with m.If(~exists):
                            fail(Outcome.NO_SUCH_STREAM)
                    with m.Case(*ROWS):
                        one_hot(self.begin)
                        m.d.sync += filled.eq(0)
                        m.next = "ROWS"
                        with m.If(~exists):
                            fail(Outcome.NO_SUCH_STREAM)
                        # Rows beyond the memory are refused before the first one is moved.
                        with m.Elif(self.row + stated > rows):
                            fail(Outcome.NO_SUCH_ROW)
                    with m.Default():
                        fail(Outcome.UNKNOWN_OPERATION)
                m.d.sync += left.eq(0)
            with m.State("STATUS"):
                # One byte a cycle, the lowest first.
                with m.If(count == 0):
                    m.next = "OPERATION"
                with m.Elif(reply_full):
                    fail(Outcome.REPLY_TOO_LONG)
                with m.Else():
                    m.d.comb += [emit.eq(1), reply.eq(snapshot[:8])]
                    m.d.sync += [snapshot.eq(snapshot >> 8), count.eq(count - 1)]
            with m.State("WRITE"):
                # A beat's bytes go to the stream's shift register; a full queue is an error,
                # because the host knows the room from STATUS.
                with m.If((left == 0) & (count == 0)):
                    m.next = "OPERATION"
                with m.Elif(left == 0):
                    m.d.sync += [left.eq(size), count.eq(count - 1)]
                    with m.If(room == 0):
                        fail(Outcome.NO_ROOM)
                with m.Elif(~present):
                    fail(Outcome.TRUNCATED)
                with m.Else():
                    m.d.comb += consume.eq(1)
                    m.d.sync += left.eq(left - 1)
                    one_hot(self.push)
            with m.State("COUNT"):
                # Two bytes; `left` counts them.
                with m.If(reply_full):
                    fail(Outcome.REPLY_TOO_LONG)
                with m.Else():
                    m.d.comb += [emit.eq(1), reply.eq(Mux(left == 0, count[:8], count[8:]))]
                    m.d.sync += left.eq(left ^ 1)
                    with m.If(left != 0):
                        m.next = "READ"
            with m.State("READ"):
                # The bytes of each beat, lowest first; the last one pops the beat off its queue.
                with m.If((left == 0) & (count == 0)):
                    m.next = "OPERATION"
                with m.Elif(left == 0):
                    m.d.sync += [left.eq(size), count.eq(count - 1)]
                with m.Elif(reply_full):
                    fail(Outcome.REPLY_TOO_LONG)
                with m.Else():
                    m.d.comb += [emit.eq(1), reply.eq(self._chosen(number, self.popped, 8))]
                    m.d.sync += left.eq(left - 1)
                    one_hot(self.pop)
            with m.State("ROWS"):
                # LOAD takes a row's bytes from the packet, FILL the first row's only, DUMP appends
                # a row's bytes to the reply when the memory has read it.
                there = self._chosen(number, self.present, 1)
                with m.If((left == 0) & (count == 0)):
                    m.next = "OPERATION"
                with m.Elif((left == 0) & filled):
                    m.d.sync += count.eq(count - 1)
                    one_hot(self.repeat)
                with m.Elif(left == 0):
                    m.d.sync += [left.eq(size), count.eq(count - 1)]
                    m.d.sync += filled.eq(operation == Operation.FILL)
                with m.Elif(self.loads):
                    with m.If(~present):
                        fail(Outcome.TRUNCATED)
                    with m.Else():
                        m.d.comb += consume.eq(1)
                        m.d.sync += left.eq(left - 1)
                        one_hot(self.load)
                with m.Elif(reply_full):
                    fail(Outcome.REPLY_TOO_LONG)
                with m.Elif(there):
                    m.d.comb += [emit.eq(1), reply.eq(self._chosen(number, self.dumped, 8))]
                    m.d.sync += left.eq(left - 1)
                    one_hot(self.dump)
            with m.State("FINISH"):
                # Byte 1 of the reply: the outcome, and whether the block is running.
                m.d.comb += [
                    self.write.eq(1),
                    self.write_address.eq(1),
                    self.write_data.eq(Cat(outcome, self.running)),
                ]
                m.next = "SEND"
            with m.State("SEND"):
                # The packet is released with its reply's start, so the next one may arrive while
                # this reply leaves.
                with m.If(~self.busy):
                    m.d.comb += [self.send.eq(1), self.release.eq(1)]
                    m.d.sync += position.eq(0)
                    m.next = "SENT"
            with m.State("SENT"):
                # The reply's buffer must not change before it has been sent.
                with m.If(~self.busy):
                    m.next = "IDLE"
        return m

    @staticmethod
    def _chosen(number: Value, values: Value, width: int) -> Value:
        """Value `number` of the values side by side in a signal."""
        return Array(values.word_select(n, width) for n in range(len(values) // width))[number]
