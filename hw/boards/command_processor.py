"""Executes the operations of a request packet, byte by byte, and makes the reply."""

from amaranth.hdl import Array, Cat, Module, Mux, Value

from hw.boards.frames import CRC_BYTES
from hw.boards.protocol import ARGUMENTS, ROWS, Channels, Operation, Outcome
from hw.boards.request import Request
from hw.component import Component
from hw.ports import Ports, wire_in, wire_out


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
                "length": wire_in(
                    range(c.packet + 1),
                    "Number of bytes of the request, its CRC left out; valid with `full`.",
                ),
                "release": wire_out(1),
            },
            **{
                "read_address": wire_out(range(c.packet)),
                "read_data": wire_in(8, "Byte of the request at the last cycle's `read_address`."),
            },
            **{
                "write": wire_out(1, "To the buffer of the reply."),
                "write_address": wire_out(
                    range(c.packet), "Position of the byte in the reply, from 0."
                ),
                "write_data": wire_out(8, "Byte of the reply, valid with `write`."),
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
                "loads": wire_out(
                    1, "Direction of the rows: to the memory (LOAD, FILL), or else from it (DUMP)."
                ),
                "clear": wire_out(1, "RESET: queues and memories drop what they hold."),
            },
        }

    def elaborate(self, platform):
        m = Module()
        r = Request(self._channels)
        self._read_request(m, r)
        self._find_operand(m, r)
        self._append(m, r)
        with m.FSM(name="process"):
            self._begin(m, r)
            self._parse(m, r)
            with m.State("EXECUTE"):
                self._execute(m, r)
            self._send_status(m, r)
            self._write_beats(m, r)
            self._read_beats(m, r)
            with m.State("ROWS"):
                self._move_rows(m, r)
            self._answer(m, r)
        return m

    def _read_request(self, m: Module, r: Request) -> None:
        """The request's bytes, one after the other, and the fields of the arguments."""
        m.d.comb += [
            # The byte at `position` is there in the next cycle.
            self.read_address.eq(Mux(r.consume, r.position + 1, r.position)),
            r.present.eq(r.position < self.length),
            self.data.eq(self.read_data),
        ]
        with m.If(r.consume):
            m.d.sync += r.position.eq(r.position + 1)
        # Arguments in the packet's order: stream, count; or memory, row, count.
        m.d.comb += [
            r.stated.eq(r.arguments[40:56]),
            self.row.eq(r.arguments[8:40]),
            self.loads.eq(r.operation != Operation.DUMP),
        ]

    def _find_operand(self, m: Module, r: Request) -> None:
        """What the stream or memory of an operation is: its bytes, and whether it exists."""
        c = self._channels
        kinds = {
            Operation.WRITE: c.inputs,
            Operation.READ: c.outputs,
            **dict.fromkeys(ROWS, tuple(size for size, _ in c.memories)),
        }
        for kind, sizes in kinds.items():
            with m.If(r.operation == kind):
                for n, bytes_ in enumerate(sizes):
                    with m.If(r.number == n):
                        m.d.comb += [r.size.eq(bytes_), r.exists.eq(1)]
        for n, (_, most) in enumerate(c.memories):
            with m.If(r.number == n):
                m.d.comb += r.rows.eq(most)

    def _append(self, m: Module, r: Request) -> None:
        """Append a byte to the reply.

        A reply must leave room for its CRC; what does not fit ends the packet with an outcome.
        """
        m.d.comb += r.reply_full.eq(self.reply_length == self._channels.packet - CRC_BYTES)
        with m.If(r.emit):
            m.d.comb += [
                self.write.eq(1),
                self.write_address.eq(self.reply_length),
                self.write_data.eq(r.reply),
            ]
            m.d.sync += self.reply_length.eq(self.reply_length + 1)

    @staticmethod
    def _fail(m: Module, r: Request, why: Outcome) -> None:
        """End the packet: later operations may depend on the one that fails."""
        m.d.sync += r.outcome.eq(why)
        m.next = "FINISH"

    @staticmethod
    def _select(m: Module, r: Request, port: Value) -> None:
        """Set the bit of `push`, `pop`, `load`, … that the operation's stream or memory has."""
        m.d.comb += port.eq(1 << r.number)

    def _begin(self, m: Module, r: Request) -> None:
        """From a packet to its first operation, or to the reply that it had before."""
        byte = self.read_data
        with m.State("IDLE"):
            # Wait for a packet with a good CRC, whose first byte then is at the read port.
            m.d.sync += [r.position.eq(0), r.outcome.eq(Outcome.DONE)]
            with m.If(self.full & (r.position == 0)):
                m.next = "SEQUENCE"
        with m.State("SEQUENCE"):
            # A packet with the number of the last one is a repetition, because its reply was
            # lost: the reply is sent again and nothing is executed twice. Number 0 is never
            # taken for one.
            m.d.comb += r.consume.eq(1)
            m.d.sync += [r.sequence.eq(byte), r.known.eq(byte != 0)]
            with m.If(r.known & (byte == r.sequence)):
                m.next = "SEND"
            with m.Else():
                m.d.comb += [
                    self.write.eq(1),
                    self.write_address.eq(0),
                    self.write_data.eq(byte),
                ]
                m.d.sync += self.reply_length.eq(2)
                m.next = "OPERATION"

    def _parse(self, m: Module, r: Request) -> None:
        """An operation's code and arguments."""
        byte = self.read_data
        with m.State("OPERATION"):
            # The code of the next operation; the end of the packet ends the reply.
            m.d.sync += r.operation.eq(byte)
            with m.If(~r.present):
                m.next = "FINISH"
            with m.Else():
                m.d.comb += r.consume.eq(1)
                m.next = "EXECUTE"
                for kind, bytes_ in ARGUMENTS.items():
                    with m.If(byte == kind):
                        m.d.sync += r.missing.eq(bytes_)
                        m.next = "ARGUMENTS"
        with m.State("ARGUMENTS"):
            # Bytes arrive lowest first and are shifted in from the top, so the last one of any
            # number of arguments is always in the highest byte.
            with m.If(r.missing == 0):
                m.next = "EXECUTE"
            with m.Elif(~r.present):
                self._fail(m, r, Outcome.TRUNCATED)
            with m.Else():
                m.d.comb += r.consume.eq(1)
                m.d.sync += [
                    r.arguments.eq(Cat(r.arguments[8:], byte)),
                    r.missing.eq(r.missing - 1),
                ]

    def _execute(self, m: Module, r: Request) -> None:
        """Check the operation before anything is changed, and load its counters."""
        level = self._chosen(r.number, self.levels, 16)
        m.d.sync += [r.count.eq(r.stated), r.snapshot.eq(self.status)]
        with m.Switch(r.operation):
            with m.Case(Operation.STATUS):
                m.d.sync += r.count.eq(self._channels.status_bytes)
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
                with m.If(~r.exists):
                    self._fail(m, r, Outcome.NO_SUCH_STREAM)
            with m.Case(Operation.READ):
                # At most the beats that wait are read; the reply says how many.
                with m.If(r.stated > level):
                    m.d.sync += r.count.eq(level)
                m.next = "COUNT"
                with m.If(~r.exists):
                    self._fail(m, r, Outcome.NO_SUCH_STREAM)
            with m.Case(*ROWS):
                self._select(m, r, self.begin)
                m.d.sync += r.filled.eq(0)
                m.next = "ROWS"
                with m.If(~r.exists):
                    self._fail(m, r, Outcome.NO_SUCH_STREAM)
                # Rows beyond the memory are refused before the first one is moved.
                with m.Elif(self.row + r.stated > r.rows):
                    self._fail(m, r, Outcome.NO_SUCH_ROW)
            with m.Default():
                self._fail(m, r, Outcome.UNKNOWN_OPERATION)
        m.d.sync += r.remaining.eq(0)

    def _send_status(self, m: Module, r: Request) -> None:
        """STATUS, one byte a cycle, the lowest first."""
        with m.State("STATUS"):
            with m.If(r.count == 0):
                m.next = "OPERATION"
            with m.Elif(r.reply_full):
                self._fail(m, r, Outcome.REPLY_TOO_LONG)
            with m.Else():
                m.d.comb += [r.emit.eq(1), r.reply.eq(r.snapshot[:8])]
                m.d.sync += [r.snapshot.eq(r.snapshot >> 8), r.count.eq(r.count - 1)]

    def _write_beats(self, m: Module, r: Request) -> None:
        """WRITE: a beat's bytes to the stream's shift register.

        A full queue is an error, because the host knows the room from STATUS.
        """
        room = self._chosen(r.number, self.rooms, 16)
        with m.State("WRITE"):
            with m.If((r.remaining == 0) & (r.count == 0)):
                m.next = "OPERATION"
            with m.Elif(r.remaining == 0):
                # Between beats: the next one needs room before its first byte.
                m.d.sync += [r.remaining.eq(r.size), r.count.eq(r.count - 1)]
                with m.If(room == 0):
                    self._fail(m, r, Outcome.NO_ROOM)
            with m.Elif(~r.present):
                self._fail(m, r, Outcome.TRUNCATED)
            with m.Else():
                m.d.comb += r.consume.eq(1)
                m.d.sync += r.remaining.eq(r.remaining - 1)
                self._select(m, r, self.push)

    def _read_beats(self, m: Module, r: Request) -> None:
        """READ: the number of beats, then the beats' bytes."""
        with m.State("COUNT"):
            # Two bytes; `remaining` counts them.
            with m.If(r.reply_full):
                self._fail(m, r, Outcome.REPLY_TOO_LONG)
            with m.Else():
                m.d.comb += [
                    r.emit.eq(1),
                    r.reply.eq(Mux(r.remaining == 0, r.count[:8], r.count[8:])),
                ]
                m.d.sync += r.remaining.eq(r.remaining ^ 1)
                with m.If(r.remaining != 0):
                    m.next = "READ"
        with m.State("READ"):
            # The bytes of each beat, lowest first; the last one pops the beat off its queue.
            with m.If((r.remaining == 0) & (r.count == 0)):
                m.next = "OPERATION"
            with m.Elif(r.remaining == 0):
                m.d.sync += [r.remaining.eq(r.size), r.count.eq(r.count - 1)]
            with m.Elif(r.reply_full):
                self._fail(m, r, Outcome.REPLY_TOO_LONG)
            with m.Else():
                m.d.comb += [r.emit.eq(1), r.reply.eq(self._chosen(r.number, self.popped, 8))]
                m.d.sync += r.remaining.eq(r.remaining - 1)
                self._select(m, r, self.pop)

    def _move_rows(self, m: Module, r: Request) -> None:
        """LOAD, DUMP and FILL.

        LOAD takes a row's bytes from the packet, FILL the first row's only, DUMP appends a row's
        bytes to the reply when the memory has read it. FILL stores its row again for each further
        one, which has no bytes.
        """
        allows = self._chosen(r.number, self.present, 1)
        with m.If((r.remaining == 0) & (r.count == 0)):
            # The last row is stored before anything else begins.
            with m.If(allows | ~self.loads):
                m.next = "OPERATION"
        # Once FILL's row is collected, it is stored for each further one.
        with m.Elif((r.remaining == 0) & r.filled):
            with m.If(allows):
                m.d.sync += r.count.eq(r.count - 1)
                self._select(m, r, self.repeat)
        with m.Elif(r.remaining == 0):
            m.d.sync += [r.remaining.eq(r.size), r.count.eq(r.count - 1)]
            m.d.sync += r.filled.eq(r.operation == Operation.FILL)
        # LOAD, and FILL's first row: from the packet to the memory.
        with m.Elif(self.loads):
            with m.If(~r.present):
                self._fail(m, r, Outcome.TRUNCATED)
            with m.Elif(allows):
                m.d.comb += r.consume.eq(1)
                m.d.sync += r.remaining.eq(r.remaining - 1)
                self._select(m, r, self.load)
        with m.Elif(r.reply_full):
            self._fail(m, r, Outcome.REPLY_TOO_LONG)
        with m.Elif(allows):
            m.d.comb += [r.emit.eq(1), r.reply.eq(self._chosen(r.number, self.dumped, 8))]
            m.d.sync += r.remaining.eq(r.remaining - 1)
            self._select(m, r, self.dump)

    def _answer(self, m: Module, r: Request) -> None:
        """The reply's status byte, and the reply to the sender."""
        with m.State("FINISH"):
            # Byte 1 of the reply: the outcome, and whether the block is running.
            m.d.comb += [
                self.write.eq(1),
                self.write_address.eq(1),
                self.write_data.eq(Cat(r.outcome, self.running)),
            ]
            m.next = "SEND"
        with m.State("SEND"):
            # The packet is released with its reply's start, so the next one may arrive while
            # this reply leaves.
            with m.If(~self.busy):
                m.d.comb += [self.send.eq(1), self.release.eq(1)]
                m.d.sync += r.position.eq(0)
                m.next = "SENT"
        with m.State("SENT"):
            # The reply's buffer must not change before it has been sent.
            with m.If(~self.busy):
                m.next = "IDLE"

    @staticmethod
    def _chosen(number: Value, values: Value, width: int) -> Value:
        """Value `number` of the values side by side in a signal."""
        return Array(values.word_select(n, width) for n in range(len(values) // width))[number]
