"""Packets in frames: byte stuffing (SLIP, RFC 1055) around a body and its CRC-32.

::

    | END | body, escaped | CRC-32, 4 bytes, lowest first, escaped | END |

A byte END or ESC of the body or the CRC is sent as ESC and another one. The CRC is Ethernet's,
``zlib.crc32``.
"""

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import memory
from amaranth.lib.crc import catalog

from hw.component import Component
from hw.ports import Ports, stream_out, wire_in, wire_out

END, ESC, ESC_END, ESC_ESC = 0xC0, 0xDB, 0xDC, 0xDD
CRC_BYTES = 4
SHORTEST = 2 + CRC_BYTES
"""Bytes of the shortest packet, its CRC included: a sequence number and one byte."""


def crc_unit():
    """The CRC-32 of bytes."""
    return catalog.CRC32_ISO_HDLC(data_width=8).create()


class FrameReceiver(Component[None]):
    """Stores the packet of a frame, and offers it only when it is whole and its CRC is right.

    A frame with a wrong CRC or escape, with a byte whose stop bit was low, shorter than
    :data:`SHORTEST` or longer than the buffer is dropped and counted. While a packet is offered,
    bytes that arrive are dropped with their frame.

    Latency: `full` is high from the second cycle after the last byte, END; `read_data`
    is the byte at `read_address` of the cycle before.

    Parameters
    ----------
    size : int
        Bytes of the longest packet, its CRC included.
    """

    def __init__(self, size: int):
        self._size = size
        super().__init__()

    def ports(self) -> Ports:
        return {
            **{
                "data": wire_in(8, "As of :class:`hw.boards.uart.UartReceiver`."),
                "valid": wire_in(1, "`data` is a byte of the line, for one cycle."),
                "framing_error": wire_in(1, "The stop bit of that byte was low."),
            },
            **{"read_address": wire_in(range(self._size)), "read_data": wire_out(8)},
            **{
                "length": wire_out(range(self._size + 1), "Number of bytes of the body."),
                "full": wire_out(1, "A packet is offered."),
                "release": wire_in(1, "The offered packet has been read."),
            },
            **{
                "framing_errors": wire_out(16, "Low stop bits."),
                "dropped": wire_out(16, "Frames dropped for another reason. Both saturate."),
            },
        }

    def elaborate(self, platform):
        m = Module()
        m.submodules.crc = crc = crc_unit()
        m.submodules.buffer = buffer = memory.Memory(shape=unsigned(8), depth=self._size, init=[])
        write, read = buffer.write_port(), buffer.read_port()
        received = Signal(range(self._size + 1))
        escaped = Signal()
        bad = Signal()  # the frame that is being received
        framing = Signal()
        value = Signal(8)
        stored = Signal()
        ends = Signal()
        # After ESC only these two bytes have a meaning.
        known = (self.data == ESC_END) | (self.data == ESC_ESC)
        m.d.comb += [
            value.eq(Mux(escaped, Mux(self.data == ESC_END, END, ESC), self.data)),
            ends.eq(self.valid & (self.data == END)),
            stored.eq(self.valid & ~ends & (escaped | (self.data != ESC))),
            write.addr.eq(received),
            write.data.eq(value),
            write.en.eq(stored & (received < self._size) & ~self.full),
            # The CRC runs over the body and over itself, which leaves a known remainder.
            crc.data.eq(value),
            crc.valid.eq(stored),
            crc.start.eq(ends),
            read.addr.eq(self.read_address),
            self.read_data.eq(read.data),
        ]
        with m.If(self.release):
            m.d.sync += self.full.eq(0)
        # ESC is not stored; it changes the meaning of the byte after it.
        with m.If(self.valid):
            m.d.sync += escaped.eq(~ends & ~escaped & (self.data == ESC))
        with m.If(stored):
            with m.If(received != self._size):
                m.d.sync += received.eq(received + 1)
            # A packet that is offered must not be written over; a longer one has no room.
            wrong = (escaped & ~known) | self.full | (received == self._size)
            with m.If(wrong):
                m.d.sync += bad.eq(1)
        with m.If(self.framing_error):
            m.d.sync += [bad.eq(1), framing.eq(1)]
        # A frame that ends in ESC, is too short or has a wrong CRC is not offered; the host repeats
        # it.
        good = ~bad & ~escaped & (received >= SHORTEST) & crc.match_detected
        with m.If(ends):
            m.d.sync += [received.eq(0), bad.eq(0), framing.eq(0)]
            with m.If(good):
                m.d.sync += [self.full.eq(1), self.length.eq(received - CRC_BYTES)]
            # Between the END of one packet and the END of the next are frames of no bytes.
            with m.Elif(((received != 0) | bad) & ~framing & ~self.dropped.all()):
                m.d.sync += self.dropped.eq(self.dropped + 1)
        with m.If(self.framing_error & ~self.framing_errors.all()):
            m.d.sync += self.framing_errors.eq(self.framing_errors + 1)
        return m


class FrameTransmitter(Component[None]):
    """Sends a packet from a buffer as a frame, with its CRC.

    Throughput: a byte of the body or the CRC in three cycles, one more where it is escaped, and
    three cycles for both END, if `o` is ready. Handshake: ``o.valid`` depends on registers only.

    Parameters
    ----------
    size : int
        Bytes of the longest packet.
    """

    def __init__(self, size: int):
        self._size = size
        super().__init__()

    def ports(self) -> Ports:
        return {
            **{
                "start": wire_in(1, "Send the packet; `busy` must be low."),
                "length": wire_in(
                    range(self._size + 1),
                    "Number of bytes of the body, at least 1; constant while `busy`.",
                ),
                "busy": wire_out(1),
            },
            **{
                "read_address": wire_out(range(self._size)),
                "read_data": wire_in(8, "The byte at `read_address` of the cycle before."),
            },
            "o": stream_out(8),
        }

    def elaborate(self, platform):
        m = Module()
        m.submodules.crc = crc = crc_unit()
        position = Signal(range(self._size + 1))
        crc_left = Signal(range(CRC_BYTES + 1))
        remainder = Signal(32)
        held = Signal(8)
        escape = Signal()
        byte = Signal(8)
        m.d.comb += [
            self.read_address.eq(position),
            self.o.payload.eq(held),
            byte.eq(Mux(position == self.length, remainder[:8], self.read_data)),
            crc.data.eq(self.read_data),
        ]
        sent = self.o.valid & self.o.ready
        with m.FSM(name="transmit") as states:
            m.d.comb += self.busy.eq(~states.ongoing("IDLE"))
            with m.State("IDLE"):
                m.d.comb += crc.start.eq(self.start)
                with m.If(self.start):
                    m.d.sync += [position.eq(0), crc_left.eq(CRC_BYTES), held.eq(END)]
                    m.next = "MARK"
            with m.State("MARK"):
                # A leading END ends whatever noise the line had before.
                m.d.comb += self.o.valid.eq(1)
                with m.If(sent):
                    m.next = "FETCH"
            with m.State("FETCH"):
                # Address the next byte of the body or, behind it, choose a byte of the CRC, which
                # is complete once the body's last byte has been fed to it.
                with m.If((position == self.length) & (crc_left == 0)):
                    m.d.sync += held.eq(END)
                    m.next = "END"
                with m.Else():
                    with m.If((position == self.length) & (crc_left == CRC_BYTES)):
                        m.d.sync += remainder.eq(crc.crc)
                    m.next = "LOAD"
            with m.State("LOAD"):
                # The buffer's byte was addressed in FETCH.
                special = (byte == END) | (byte == ESC)
                m.d.sync += [held.eq(Mux(special, ESC, byte)), escape.eq(special)]
                with m.If(position == self.length):
                    m.d.sync += crc_left.eq(crc_left - 1)
                with m.Else():
                    m.d.comb += crc.valid.eq(1)
                m.next = "SEND"
            with m.State("SEND"):
                # Send the held byte; behind an ESC its replacement, before the position advances.
                m.d.comb += self.o.valid.eq(1)
                with m.If(sent):
                    m.d.sync += [held.eq(Mux(byte == END, ESC_END, ESC_ESC)), escape.eq(0)]
                    with m.If(~escape):
                        with m.If(position == self.length):
                            m.d.sync += remainder.eq(remainder >> 8)
                        with m.Else():
                            m.d.sync += position.eq(position + 1)
                        m.next = "FETCH"
            with m.State("END"):
                # The frame's closing END, never escaped.
                m.d.comb += self.o.valid.eq(1)
                with m.If(sent):
                    m.next = "IDLE"
        return m
