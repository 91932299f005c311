"""A block behind a serial line: streams, memories, counters and reset by packets."""

import dataclasses
import operator
from collections.abc import Callable
from functools import reduce

from amaranth.hdl import (
    Cat,
    ClockSignal,
    Const,
    Instance,
    Module,
    ResetSignal,
    Signal,
    Value,
    unsigned,
)
from amaranth.lib import memory

from hw.boards.block_memory import BlockMemory, BoardMemory, ServedMemory
from hw.boards.command_processor import CommandProcessor
from hw.boards.frames import FrameReceiver, FrameTransmitter
from hw.boards.protocol import VERSION, Channels
from hw.boards.sdram_controller import sdram_pins
from hw.boards.sdram_controller_parameters import SdramControllerParameters
from hw.boards.sdram_memory import SdramMemory
from hw.boards.stream_ports import InputPort, OutputPort, bytes_of
from hw.boards.uart import UartReceiver, UartTransmitter
from hw.component import Component
from hw.ports import Ports, wire_in, wire_out

COUNTER_BITS = 48


@dataclasses.dataclass(frozen=True)
class TopParameters:
    """What the top around a block is made of.

    module, clocks
        The block's Verilog module, and which of ``clk`` and ``rst`` it has.
    inputs, outputs
        Names and widths of the streams that the cable carries.
    memories
        Those on the board.
    sdram
        What holds the rows of the only one of them; None: block memory.
    build
        Number that tells this design from others, of 64 bits.
    divisor, packet, stream_bytes
        As of :class:`hw.boards.design.BoardParameters`.
    """

    module: str
    clocks: tuple[str, ...]
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]
    memories: tuple[BoardMemory, ...]
    sdram: SdramControllerParameters | None
    build: int
    divisor: int
    packet: int
    stream_bytes: int

    @property
    def status_bytes(self) -> int:
        """version, build, flags, three counters, errors; and six or eight for each channel."""
        fixed = 1 + 8 + 1 + 3 * COUNTER_BITS // 8 + 2 * 2
        return fixed + 6 * len(self.inputs + self.outputs) + 8 * len(self.memories)

    @property
    def channels(self) -> Channels:
        return Channels(
            inputs=tuple(bytes_of(width) for _, width in self.inputs),
            outputs=tuple(bytes_of(width) for _, width in self.outputs),
            memories=tuple((bytes_of(memory.row_bits), memory.rows) for memory in self.memories),
            status_bytes=self.status_bytes,
            packet=self.packet,
        )


class BoardTop(Component[TopParameters]):
    """The link: serial line, packets, and a port or memory for each stream of the block.

    ::

        rx ─→ UartReceiver ─→ FrameReceiver ─→ CommandProcessor ─→ InputPort ─→ block
        tx ←─ UartTransmitter ←─ FrameTransmitter ←─ reply ←─┘ ←─ OutputPort ←─┤
                                                            BlockMemory ⇄──────┘

    Streams wait while the block is in reset, so that no beat reaches it too early.
    """

    def ports(self) -> Ports:
        return {
            "rx": wire_in(1),
            "tx": wire_out(1),
            "running": wire_out(1, "The block is out of reset."),
            "error": wire_out(1, "A frame was damaged, or a request went beyond a memory."),
            **{f"sdram_{name}": port for name, port in self._pins().items()},
        }

    def _pins(self) -> Ports:
        return sdram_pins(self.parameters.sdram) if self.parameters.sdram else {}

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.receiver = receiver = UartReceiver(p.divisor)
        m.submodules.transmitter = transmitter = UartTransmitter(p.divisor)
        m.submodules.frames = frames = FrameReceiver(p.packet)
        m.submodules.replies = replies = FrameTransmitter(p.packet)
        m.submodules.processor = processor = CommandProcessor(p.channels)
        m.submodules.reply = reply = memory.Memory(shape=unsigned(8), depth=p.packet, init=[])
        write, read = reply.write_port(), reply.read_port()
        m.d.comb += [
            # The line's bytes become frames, the processor reads a frame and writes its reply.
            receiver.rx.eq(self.rx),
            self.tx.eq(transmitter.tx),
            *(
                getattr(frames, n).eq(getattr(receiver, n))
                for n in ("data", "valid", "framing_error")
            ),
            *(
                getattr(processor, n).eq(getattr(frames, n))
                for n in ("full", "length", "read_data")
            ),
            frames.read_address.eq(processor.read_address),
            frames.release.eq(processor.release),
            write.en.eq(processor.write),
            write.addr.eq(processor.write_address),
            write.data.eq(processor.write_data),
            read.addr.eq(replies.read_address),
            replies.read_data.eq(read.data),
            replies.start.eq(processor.send),
            replies.length.eq(processor.reply_length),
            processor.busy.eq(replies.busy),
            transmitter.i.valid.eq(replies.o.valid),
            transmitter.i.payload.eq(replies.o.payload),
            replies.o.ready.eq(transmitter.i.ready),
            self.running.eq(processor.running),
        ]
        # The block itself, with queues and memories at its ports.
        self._block(m, frames, processor)
        return m

    def _block(self, m: Module, frames: FrameReceiver, processor: CommandProcessor) -> None:
        """The block, its ports and memories, and the result of STATUS."""
        p = self.parameters
        connections: dict = {}
        if "clk" in p.clocks:
            connections["i_clk"] = ClockSignal()
        if "rst" in p.clocks:
            # RESET and the time before START are the block's reset, so that each run begins alike.
            connections["i_rst"] = ResetSignal() | ~processor.running
        moved: list[Value] = []

        def attach(name: str, port, into_block: bool) -> None:
            """Connect a stream, while the block is running."""
            valid, ready = Signal(name=f"{name}_valid"), Signal(name=f"{name}_ready")
            payload = Signal(len(Value.cast(port.payload)), name=f"{name}_payload")
            forth, back = "io" if into_block else "oi"
            connections[f"{forth}_{name}__valid"] = valid
            connections[f"{forth}_{name}__payload"] = payload
            connections[f"{back}_{name}__ready"] = ready
            # Before START the block sees no valid and no ready, and its outputs are ignored.
            pairs = [(valid, port.valid), (payload, port.payload), (port.ready, ready)]
            for to, of in pairs if into_block else [(of, to) for to, of in pairs]:
                m.d.comb += to.eq(of & processor.running.replicate(len(Value.cast(of))))
            moved.append(valid & ready & processor.running)

        # STATUS lists room and beats of each input, level and beats of each output, reads and
        # writes of each memory, in the order of the block's ports.
        counts = self._streams(m, processor, attach)
        accesses, fault = self._memories(m, processor, attach)
        # The block is instantiated by its module's name: its Verilog comes from the exporter.
        m.submodules.block = Instance(p.module, **connections)
        errors = [frames.framing_errors, frames.dropped]
        m.d.comb += [
            processor.status.eq(
                Cat(
                    Const(VERSION, 8),
                    Const(p.build, 64),
                    Cat(fault, Const(0, 7)),
                    *self._cycles(m, processor, reduce(operator.or_, moved)),
                    *errors,
                    *counts,
                    *accesses,
                )
            ),
            self.error.eq(fault | Cat(errors).any()),
        ]

    def _streams(self, m: Module, processor: CommandProcessor, attach: Callable) -> list[Value]:
        """A queue for each stream; returns what STATUS says of them."""
        p = self.parameters
        counts: list[Value] = []
        for n, (name, width) in enumerate(p.inputs):
            m.submodules[f"input_{name}"] = port = InputPort(width, p.stream_bytes)
            attach(name, port.o, True)
            m.d.comb += [
                port.clear.eq(processor.clear),
                port.push.eq(processor.push[n]),
                port.data.eq(processor.data),
                processor.rooms.word_select(n, 16).eq(port.room),
            ]
            counts += [port.room, port.beats]
        for n, (name, width) in enumerate(p.outputs):
            m.submodules[f"output_{name}"] = queue = OutputPort(width, p.stream_bytes)
            attach(name, queue.i, False)
            m.d.comb += [
                queue.clear.eq(processor.clear),
                queue.pop.eq(processor.pop[n]),
                processor.popped.word_select(n, 8).eq(queue.data),
                processor.levels.word_select(n, 16).eq(queue.level),
            ]
            counts += [queue.level, queue.beats]
        return counts

    def _memories(
        self, m: Module, processor: CommandProcessor, attach: Callable
    ) -> tuple[list[Value], Value]:
        """The block's memories; returns what STATUS says of them, and whether one has a fault."""
        counts: list[Value] = []
        # A request beyond a memory's rows is a fault of the block or of the host's map.
        faults: list[Value] = [Const(0, 1)]
        for n, described in enumerate(self.parameters.memories):
            rows = self._memory(m, described)
            m.submodules[f"memory_{described.request}"] = rows
            attach(described.request, rows.request, False)
            attach(described.response, rows.response, True)
            m.d.comb += [
                rows.clear.eq(processor.clear),
                rows.start.eq(processor.begin[n]),
                rows.loads.eq(processor.loads),
                rows.row.eq(processor.row),
                rows.push.eq(processor.load[n]),
                rows.repeat.eq(processor.repeat[n]),
                rows.pop.eq(processor.dump[n]),
                rows.given.eq(processor.data),
                processor.present[n].eq(rows.present),
                processor.dumped.word_select(n, 8).eq(rows.data),
            ]
            counts += [rows.reads, rows.writes]
            faults.append(rows.fault)
        return counts, reduce(operator.or_, faults)

    def _memory(self, m: Module, described: BoardMemory) -> ServedMemory:
        """A memory in block memory, or in the SDRAM at the pins."""
        if self.parameters.sdram is None:
            return BlockMemory(described)
        rows = SdramMemory(described, self.parameters.sdram)
        for name in self._pins():
            inner, outer = getattr(rows, name), getattr(self, f"sdram_{name}")
            m.d.comb += inner.eq(outer) if name == "read_data" else outer.eq(inner)
        return rows

    @staticmethod
    def _cycles(m: Module, processor: CommandProcessor, moves: Value) -> list[Signal]:
        """Cycles since START, and in which of them a stream first and last moved."""
        cycles, first, last = (
            Signal(COUNTER_BITS, name=name) for name in ("cycles", "first", "last")
        )
        with m.If(processor.running):
            m.d.sync += cycles.eq(cycles + 1)
        # Cycles are counted from 1, so that 0 says that nothing has moved yet.
        with m.If(moves):
            m.d.sync += last.eq(cycles + 1)
            with m.If(first == 0):
                m.d.sync += first.eq(cycles + 1)
        with m.If(processor.clear):
            m.d.sync += [cycles.eq(0), first.eq(0), last.eq(0)]
        return [cycles, first, last]
