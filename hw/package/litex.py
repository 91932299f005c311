"""The LiteX module of a device: an Instance of its Verilog and how it joins a SoC."""

from hw.bus.axi import INTERRUPT
from hw.emit.header import LICENCE
from hw.package.description import Description

TEXT = '''\
# SPDX-License-Identifier: LICENCE
"""SUMMARY.

A module for LiteX; of MODULE.v, which must lie beside this file::

    from MODULE_litex import CLASS

    class SoC(SoCCore):
        def __init__(self, platform, **kwargs):
            ...
            self.NAME = CLASS(platform)
            self.NAME.add_to(self)

"""

from pathlib import Path

from litex.soc.integration.soc import SoCRegion
from litex.soc.interconnect import axi
from litex.soc.interconnect.csr_eventmanager import EventManager, EventSourceLevel
from migen import ClockSignal, Instance, Module, ResetSignal, Signal

VERILOG = Path(__file__).with_name("MODULE.v")
SIZE = 0xSIZE
"""Bytes of the registers."""


class CLASS(Module):
    """The device.

    registers
        AXI4-Lite slave of 32 bits.
    masters
        AXI4 masters by the prefix of their ports.
    interrupt
        Level, active high: a line to a processor, or `ev` of LiteX.
    """

    def __init__(self, platform):
        self.registers = axi.AXILiteInterface(data_width=32, address_width=32)
        self.masters = {
MASTER_INTERFACES        }
        self.interrupt = Signal()
        # The device masks and clears its causes itself.
        self.submodules.ev = _Interrupt(self.interrupt)
        self.specials += Instance(
            "MODULE",
            i_aclk=ClockSignal("sys"),
            i_aresetn=~ResetSignal("sys"),
            o_interrupt=self.interrupt,
            **_ports("s_axi", self.registers),
            **{
                name: signal
                for prefix, bus in self.masters.items()
                for name, signal in _ports(prefix, bus).items()
            },
        )
        platform.add_source(str(VERILOG))

    def add_to(self, soc, name="NAME", origin=None, dram=False):
        """Join a SoC: registers at `origin` (None: where there is room), masters, interrupt.

        dram
            Whether the masters get ports of the SoC's LiteDRAM, past the SoC's bus. Addresses then
            count from the beginning of the DRAM.
        """
        # Registers must not be cached.
        region = SoCRegion(origin=origin, size=SIZE, cached=False)
        soc.bus.add_slave(name=name, slave=self.registers, region=region)
        for prefix, bus in self.masters.items():
            if dram:
                port = soc.sdram.crossbar.get_port(data_width=bus.data_width)
                self.submodules += _dram(bus, port)
            else:
                soc.bus.add_master(name=f"{name}_{prefix}", master=bus)
        if soc.irq.enabled:
            soc.irq.add(name, use_loc_if_exists=True)


class _Interrupt(Module):
    """What LiteX expects of a source of interrupts, for a level that the device itself clears."""

    def __init__(self, interrupt):
        self.irq = interrupt


def _dram(bus, port):
    from litedram.frontend.axi import LiteDRAMAXI2Native

    return LiteDRAMAXI2Native(axi=bus, port=port)


PORTS = TABLE
"""Ports of each bus: channel, field, width, input or output."""


def _ports(prefix, bus):
    """Ports of the instance by name, with their directions."""
    found = {}
    for channel, name, width, direction in PORTS[prefix]:
        # The registers' addresses are narrower than the bus's.
        signal = getattr(getattr(bus, channel), name)[:width]
        found[f"{direction}_{prefix}_{channel}{name}"] = signal
    return found
'''


def litex(description: Description) -> str:
    """The text of the module's file."""
    ports: dict[str, list[str]] = {prefix: [] for prefix in ("s_axi", *description.masters)}
    for name, direction, width in description.ports:
        prefix, _, rest = name.rpartition("_")
        if prefix in ports:
            channel = rest[:2] if rest[:2] in ("aw", "ar") else rest[:1]
            field = rest[len(channel) :]
            ports[prefix].append(f'        ("{channel}", "{field}", {width}, "{direction[0]}"),\n')
    tables = "".join(
        f'    "{prefix}": [\n{"".join(rows)}    ],\n' for prefix, rows in ports.items()
    )
    masters = "".join(
        f'            "{prefix}": axi.AXIInterface('
        f"data_width={sizes.data}, address_width={sizes.address}, id_width={sizes.id}),\n"
        for prefix, sizes in description.masters.items()
    )
    name = "".join(part.capitalize() for part in description.name.split("_"))
    address = description.registers.address_bits
    text = TEXT.replace("MASTER_INTERFACES", masters)
    text = text.replace("TABLE", "{\n" + tables + "}").replace("0xSIZE", hex(1 << address))
    text = text.replace("LICENCE", LICENCE)
    text = text.replace("SUMMARY", description.summary).replace("CLASS", name)
    text = text.replace("o_interrupt", f"o_{INTERRUPT}")
    return text.replace("MODULE", description.module).replace("NAME", description.name)
