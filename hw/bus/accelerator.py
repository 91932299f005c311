# amaranth: UnusedElaboratable=no
# (a component is also created only to read its ports)
"""Any block as a memory-mapped device behind AXI."""

import dataclasses
from typing import Any

from amaranth.hdl import (
    Cat,
    ClockSignal,
    Const,
    Instance,
    Module,
    ResetSignal,
    Shape,
    Signal,
    Value,
)
from amaranth.lib.wiring import In

from hw.bus.axi import (
    AXI4,
    INTERRUPT,
    AXI4Lite,
    AxiSizes,
    clock_domain,
    clock_ports,
    connect_flat,
    flat_ports,
)
from hw.bus.axi_memory import AxiMemory
from hw.bus.axi_memory_parameters import AxiMemoryParameters
from hw.bus.bursts import EngineParameters
from hw.bus.bus_parameters import BlockPorts, BusParameters
from hw.bus.device_map import Device, DeviceMemory, DeviceStream, descriptor_bytes, device_map
from hw.bus.interconnect import Interconnect, InterconnectParameters
from hw.bus.read_engine import ReadEngine
from hw.bus.registers import Registers
from hw.bus.run_control import ControlParameters, RunControl
from hw.bus.write_engine import WriteEngine
from hw.component import Component
from hw.layout import layout_of
from hw.ports import Ports, wire_out


@dataclasses.dataclass(frozen=True)
class Master:
    """A channel's access to memory: an engine or an :class:`AxiMemory`.

    part
        Component with the ports idle, stop, error, error_decode, error_address.
    read, write
        Object with ar and r; with aw, w and b. None where it has none.
    """

    part: Any
    read: Any = None
    write: Any = None


class Accelerator(Component[BusParameters]):
    """A block between engines, memories' masters, and registers; with ``clk`` and ``rst``.

    ::

        s_axi ── registers ── run control ─────────────┐ start, stop
                                                       ↓
        m_axi ─┬─ read engine of descriptors      ┌─────────┐
        (one,  ├─ read engine of each input ────→ │         │
        or m0… ├─ write engine of each output ←── │  block  │
        each)  └─ AxiMemory of each memory ─────→ └─────────┘

    :class:`hw.bus.run_control.RunControl` says how a run goes. An input with 0 beats offers none;
    an output with 0 beats is read and dropped. Beats of an output behind its number wait for the
    next run. The block keeps its state from run to run; a bus error or a reset by software resets
    it.
    """

    def __init__(self, parameters: BusParameters, device: Device, block: BlockPorts):
        self.device, self.block = device, block
        self.map = device_map(device)
        super().__init__(parameters)

    def ports(self) -> Ports:
        words = "Registers, of 32 bits."
        ports = flat_ports("s_axi", AXI4Lite(self.map.address_bits), words)
        for prefix, sizes in self.buses().items():
            ports |= flat_ports(prefix, AXI4(sizes), "Memory.")
        return ports | {INTERRUPT: wire_out(1, "Level, active high.")}

    def buses(self) -> dict[str, AxiSizes]:
        """Sizes of the AXI4 masters by the prefix of their ports."""
        p = self.parameters
        if p.masters == "one":
            return {"m_axi": self._interconnect.outer}
        count = len(self.device.channels) + 1
        return {f"m{n}_axi": self._interconnect.inner for n in range(count)}

    @property
    def _interconnect(self) -> InterconnectParameters:
        """All masters on one bus; the first reader is the descriptors'."""
        p, streams = self.parameters, self.device.streams
        inputs = sum(stream.direction == "input" for stream in streams)
        memories = len(self.device.memories)
        readers, writers = 1 + inputs + memories, len(streams) - inputs + memories
        return InterconnectParameters(readers, writers, p.data, p.address, p.id)

    def elaborate(self, platform):
        m = Module()
        p, device = self.parameters, self.device
        m.submodules.registers = registers = Registers(self.map)
        control = RunControl(ControlParameters(device, p.address))
        # One state machine starts and stops all masters; they know nothing of runs.
        m.submodules.control = control
        connect_flat(m, self, "s_axi", registers.bus)
        masters = self._masters(m, registers, control)
        self._status(m, registers, control)
        self._collect(m, control, masters)
        self._bus(m, masters)
        return m

    def _masters(self, m: Module, registers: Registers, control: RunControl) -> list[Master]:
        """An engine or memory for each channel, connected to the block; then the descriptors'."""
        p, block = self.parameters, self.block
        connections: dict[str, Any] = {}
        if "clk" in block.clocks:
            connections["i_clk"] = ClockSignal()
        if "rst" in block.clocks:
            # The block's reset is a port of its own Verilog, so software can reset it without the
            # bus side.
            connections["i_rst"] = ResetSignal() | control.block_reset
        masters = []
        waits: dict[str, list[Value]] = {"input": [], "output": [], "memory": []}
        for n, channel in enumerate(self.device.channels):
            if isinstance(channel, DeviceStream):
                master = self._stream(m, registers, control, n, channel)
            else:
                master = self._memory(m, registers, control, n, channel)
            masters.append(master)
            self._connect(m, connections, waits, channel, master.part)
        for name, shape in block.wires.items():
            connections[f"o_{name}"] = Signal(Shape.cast(shape).width, name=f"{name}_unused")
        m.submodules.block = Instance(block.module, **connections)
        for kind, flags in waits.items():
            stalls = Signal(64, name=f"{kind}_stalls")
            # Counters begin anew with each run and keep their value after it, for software to read.
            with m.If(control.begin):
                m.d.sync += stalls.eq(0)
            with m.Elif(control.running & Cat(flags).any()):
                m.d.sync += stalls.eq(stalls + 1)
            m.d.comb += getattr(registers, f"{kind}_stalls").eq(stalls)

        entry = EngineParameters(128, p.data, p.address, p.burst, p.bursts)
        m.submodules.descriptors = reader = ReadEngine(entry)
        m.d.comb += [
            reader.start.eq(control.fetch),
            reader.base.eq(control.current),
            # Descriptors come through the same engine as data: 16 bytes a channel are its beats.
            reader.beats.eq(descriptor_bytes(self.device) // 16),
            control.entry.valid.eq(reader.o.valid),
            control.entry.payload.eq(reader.o.payload),
            reader.o.ready.eq(control.entry.ready),
        ]
        return [*masters, Master(reader, read=reader)]

    def _stream(
        self, m: Module, registers: Any, control: RunControl, n: int, stream: DeviceStream
    ) -> Master:
        """The engine of a stream."""
        p = self.parameters
        sizes = EngineParameters(stream.width, p.data, p.address, p.burst, p.bursts)
        reads = stream.direction == "input"
        engine = ReadEngine(sizes) if reads else WriteEngine(sizes)
        m.submodules[stream.channel] = engine
        m.d.comb += [
            control.base[n].eq(getattr(registers, f"{stream.channel}_base")),
            control.beats[n].eq(getattr(registers, f"{stream.channel}_beats")),
            getattr(registers, f"{stream.channel}_moved").eq(engine.moved),
            engine.start.eq(control.begin),
            engine.base.eq(control.run_base[n]),
            engine.beats.eq(control.run_beats[n]),
        ]
        if reads:
            return Master(engine, read=engine)
        unused = Signal(name=f"{stream.channel}_unused")
        with m.If(control.begin):
            # An output that the host does not want must still be read, or the block would wait for
            # it.
            m.d.sync += unused.eq(control.run_beats[n] == 0)
        m.d.comb += engine.discard.eq(unused)
        return Master(engine, write=engine)

    def _memory(
        self, m: Module, registers: Any, control: RunControl, n: int, described: DeviceMemory
    ) -> Master:
        """The master of a memory, and its registers."""
        p = self.parameters
        found = self.block.memories[n - len(self.device.streams)]
        tag = found["tag"]
        request = layout_of(self.block.payloads[described.request])
        assert request is not None
        sizes = AxiMemoryParameters(
            described.row_bits,
            described.address_bits,
            Shape.cast(request[tag].shape).width if tag else 1,
            *(p.reads, p.writes, found["order"] == "requests", p.data, p.address),
        )
        m.submodules[described.channel] = part = AxiMemory(sizes)
        counts = []
        moves = part.request.valid & part.request.ready
        for kind, writes in (("reads", 0), ("writes", 1)):
            count = Signal(32, name=f"{described.channel}_{kind}")
            with m.If(control.begin):
                m.d.sync += count.eq(0)
            with m.Elif(moves & (part.request.payload.write == writes)):
                m.d.sync += count.eq(count + 1)
            counts.append(getattr(registers, f"{described.channel}_{kind}").eq(count))
        # The base is fixed for the run, whatever software writes to the register meanwhile.
        with m.If(control.begin):
            m.d.sync += part.base.eq(control.run_base[n])
        m.d.comb += [*counts, control.base[n].eq(getattr(registers, f"{described.channel}_base"))]
        return Master(part, part.bus, part.bus)

    def _connect(self, m: Module, connections: dict, waits: dict, channel: Any, part: Any) -> None:
        """A channel's streams to the block's ports, and when the block waits for it."""
        if isinstance(channel, DeviceMemory):
            self._connect_memory(m, connections, waits, channel, part)
            return
        into = channel.direction == "input"
        port = part.o if into else part.i
        valid, ready, payload = self._wires(connections, channel.name, channel.width, into)
        if into:
            m.d.comb += [valid.eq(port.valid), payload.eq(port.payload), port.ready.eq(ready)]
            # A stall is a cycle in which the block could go on and the memory side is late; cycles
            # after an input's last beat do not count.
            waits["input"].append(ready & ~valid & ~part.idle)
        else:
            m.d.comb += [port.valid.eq(valid), port.payload.eq(payload), ready.eq(port.ready)]
            waits["output"].append(valid & ~ready)

    def _wires(self, connections: dict, name: str, shape: Any, into: bool) -> tuple:
        """Valid, ready and payload of a stream of the block, as its Instance's connections."""
        valid, ready = Signal(name=f"{name}_valid"), Signal(name=f"{name}_ready")
        payload: Any = Signal(shape, name=f"{name}_payload")
        forth, back = "io" if into else "oi"
        connections[f"{forth}_{name}__valid"] = valid
        connections[f"{forth}_{name}__payload"] = Value.cast(payload)
        connections[f"{back}_{name}__ready"] = ready
        return valid, ready, payload

    def _connect_memory(
        self, m: Module, connections: dict, waits: dict, described: DeviceMemory, part: Any
    ) -> None:
        number = self.device.memories.index(described)
        found, payloads = self.block.memories[number], self.block.payloads
        layouts = [layout_of(payloads[name]) for name in (described.request, described.response)]
        valid, ready, asked = self._wires(connections, described.request, layouts[0], False)
        request, response = part.request, part.response
        fields = request.payload
        m.d.comb += [
            request.valid.eq(valid),
            ready.eq(request.ready),
            fields.address.eq(Value.cast(asked[found["address"]])),
        ]
        if found["tag"]:
            m.d.comb += fields.tag.eq(Value.cast(asked[found["tag"]]))
        if found["write"]:
            m.d.comb += [
                fields.write.eq(Value.cast(asked[found["write"]])),
                fields.data.eq(Value.cast(asked[found["data"]])),
            ]
        waits["memory"].append(valid & ~ready)
        valid, ready, answer = self._wires(connections, described.response, layouts[1], True)
        m.d.comb += [
            valid.eq(response.valid),
            response.ready.eq(ready),
            Value.cast(answer[found["data"]]).eq(response.payload.data),
        ]
        if found["tag"]:
            m.d.comb += Value.cast(answer[found["tag"]]).eq(response.payload.tag)

    def _status(self, m: Module, registers: Any, control: RunControl) -> None:
        """Control, errors and interrupts."""
        status = []
        for name in ("done", "ready", "error"):
            status.append(
                getattr(registers, f"interrupt_status_{name}")
                & getattr(registers, f"interrupt_mask_{name}")
            )
            pulse = getattr(control, f"{name}_set")
            m.d.comb += getattr(registers, f"interrupt_status_{name}_set").eq(pulse)
        m.d.comb += [
            self.interrupt.eq(registers.interrupt_enable & Cat(status).any()),
            control.start.eq(registers.control_start),
            control.reset.eq(registers.control_reset),
            control.next.eq(registers.descriptor_next),
            registers.control_done.eq(control.done),
            registers.control_idle.eq(control.idle),
            registers.control_ready.eq(control.idle),
            registers.error_code.eq(Value.cast(control.code)),
            registers.error_channel.eq(control.channel),
            registers.error_address.eq(control.address),
            registers.descriptor_current.eq(control.current),
            registers.descriptor_count.eq(control.count),
            registers.cycles.eq(control.cycles),
        ]

    @staticmethod
    def _collect(m: Module, control: RunControl, masters: list[Master]) -> None:
        """What the masters tell the control, and its stop to all of them."""
        for n, master in enumerate(masters):
            part = master.part
            write = getattr(part, "error_write", Const(int(master.read is None)))
            m.d.comb += [
                part.stop.eq(control.stop),
                control.idle_masters[n].eq(part.idle),
                control.failed[n].eq(part.error),
                control.failed_write[n].eq(write),
                control.failed_decode[n].eq(part.error_decode),
                control.failed_address[n].eq(part.error_address),
            ]

    def _bus(self, m: Module, masters: list[Master]) -> None:
        """The masters to one bus, or to one each."""
        if self.parameters.masters == "each":
            for n, (prefix, sizes) in enumerate(self.buses().items()):
                bus: Any = AXI4(sizes).create(path=(prefix,))
                connect_flat(m, self, prefix, bus)
                for channels, names in ((masters[n].read, "ar r"), (masters[n].write, "aw w b")):
                    for name in names.split() if channels is not None else ():
                        _join(m, getattr(channels, name), getattr(bus, name), name in ("r", "b"))
            return
        m.submodules.interconnect = join = Interconnect(self._interconnect)
        for kind, names in (("read", "ar r"), ("write", "aw w b")):
            found = [getattr(master, kind) for master in masters]
            found = [channels for channels in found if channels is not None]
            for n, channels in enumerate(found):
                for name in names.split():
                    port = getattr(join, name)[n]
                    _join(m, getattr(channels, name), port, name in ("r", "b"))
        connect_flat(m, self, "m_axi", join.bus)


def _join(m: Module, inner: Any, outer: Any, back: bool) -> None:
    """Connect a channel whose IDs may be narrower inside."""
    to, of = (inner, outer) if back else (outer, inner)
    m.d.comb += [to.valid.eq(of.valid), of.ready.eq(to.ready)]
    for name, _ in to.payload.shape():
        m.d.comb += Value.cast(to.payload[name]).eq(Value.cast(of.payload[name]))


class AcceleratorTop(Component[BusParameters]):
    """An :class:`Accelerator` with the clock ``aclk`` and the reset ``aresetn``."""

    def __init__(self, parameters: BusParameters, device: Device, block: BlockPorts):
        self.inner = Accelerator(parameters, device, block)
        super().__init__(parameters)

    def ports(self) -> Ports:
        return clock_ports() | self.inner.ports()

    def elaborate(self, platform):
        m = Module()
        clock_domain(m, self)
        m.submodules.accelerator = self.inner
        for name, member in self.inner.signature.members.items():
            outer, inner = getattr(self, name), getattr(self.inner, name)
            m.d.comb += inner.eq(outer) if member.flow is In else outer.eq(inner)
        return m
