"""What the command processor keeps of a request in progress."""

from amaranth.hdl import Mux, Signal

from hw.boards.protocol import ROWS, Channels, Outcome


class Request:
    """Registers of a request in progress, and what is known of its operation.

    position, present
        Index of the packet's next byte, and whether there is one; `consume` takes it.
    outcome
        What the reply's status byte says of the packet.
    operation, arguments, missing
        Code and arguments of an operation, the last ones uppermost, and the number of bytes of
        them that are still to come.
    number, stated
        Number of the stream or memory, and of beats or rows, that the arguments say.
    size, exists, rows
        Bytes of a beat or row, whether there is such a stream or memory, and a memory's rows.
    count, remaining
        Number of beats or rows still to move, and of bytes of the present one.
    filled
        The row that FILL repeats has come.
    sequence, known
        Number of the last request, if it is known.
    snapshot
        STATUS is sent byte by byte while the counters go on, so all of it is copied first.
    emit, reply, reply_full
        Append the byte `reply` to the reply; there is no room for it.
    """

    def __init__(self, c: Channels):
        self.position = Signal(range(c.packet + 1))
        self.consume = Signal()
        self.present = Signal()
        self.outcome = Signal(Outcome)
        self.operation = Signal(8)
        self.arguments = Signal(56)
        self.missing = Signal(range(8))
        self.number = Mux(self.operation.matches(*ROWS), self.arguments[:8], self.arguments[32:40])
        self.stated = Signal(16)
        self.count = Signal(16)
        sizes = (*c.inputs, *c.outputs, *(size for size, _ in c.memories))
        self.remaining = Signal(range(max(1, *sizes) + 1))
        self.size = Signal.like(self.remaining, name="size")
        self.exists = Signal()
        self.rows = Signal(33)
        self.filled = Signal()
        self.sequence = Signal(8)
        self.known = Signal()
        self.snapshot = Signal(8 * c.status_bytes)
        self.emit = Signal()
        self.reply = Signal(8)
        self.reply_full = Signal()
