"""An arithmetic unit between two streams."""

from amaranth.hdl import ClockSignal, Instance, Module, Signal
from amaranth.lib import data

from hw.arith.datapath import Datapath
from hw.component import Component
from hw.ports import Ports, stream_in, stream_out


class Streamed(Component[None]):
    """Wraps a unit with a stream of operands and a stream of results, in order.

    Latency: the unit's `stages`. Throughput: one result per cycle.

    Handshake: without stages, valid and ready are wires. With stages, each pipeline stage has a
    valid bit; all stages advance together in every cycle in which the last one is empty or is
    read, so ``i.ready`` follows ``o.ready`` combinationally. Overflow: none.

    Parameters
    ----------
    datapath : :class:`Datapath`
        The unit.
    module : str or None
        Name of a Verilog module with the unit's ports to instantiate instead of the unit itself,
        such as a synthesized netlist.
    """

    def __init__(self, datapath: Datapath, module: str | None = None):
        self._datapath = datapath
        self._module = module
        super().__init__()

    def ports(self) -> Ports:
        members = self._datapath.signature.members
        operands = {name: members[name].shape for name in self._datapath.operands}
        results = {name: members[name].shape for name in self._datapath.results}
        return {
            "i": stream_in(
                data.StructLayout(operands),
                "One field for each operand port of the unit, in their order.",
            ),
            "o": stream_out(data.StructLayout(results), "One field for each result port."),
        }

    def elaborate(self, platform):
        m = Module()
        unit = self._datapath
        ports = {name: self.i.payload[name] for name in unit.operands}
        results = {name: self.o.payload[name] for name in unit.results}
        if not unit.parameters.stages:
            m.d.comb += [self.o.valid.eq(self.i.valid), self.i.ready.eq(self.o.ready)]
        else:
            # One valid bit for each stage, shifted along with the unit's registers.
            valid = Signal(unit.parameters.stages)
            enable = Signal()
            # All stages stop together; a bubble before a stalled result is not closed, which one
            # enable for all registers is worth.
            m.d.comb += enable.eq(~valid[-1] | self.o.ready)
            m.d.comb += [self.o.valid.eq(valid[-1]), self.i.ready.eq(enable)]
            with m.If(enable):
                m.d.sync += valid.eq(valid << 1 | self.i.valid)
            ports["enable"] = enable

        if self._module is None:
            m.submodules.unit = unit
            m.d.comb += [getattr(unit, name).eq(value) for name, value in ports.items()]
            m.d.comb += [value.eq(getattr(unit, name)) for name, value in results.items()]
            return m
        inputs = {f"i_{name}": value for name, value in ports.items()}
        if unit.parameters.stages:
            inputs["i_clk"] = ClockSignal()
        outputs = {f"o_{name}": value for name, value in results.items()}
        m.submodules.unit = Instance(self._module, **inputs, **outputs)
        return m
