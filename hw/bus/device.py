# amaranth: UnusedElaboratable=no
# (a component is also created only to read its ports)
"""A block behind AXI as one Verilog text, for simulation and for packages alike."""

import dataclasses
import hashlib
import re
from typing import Any

from amaranth.lib import wiring

from hw.arith.datapath import Datapath
from hw.arith.streamed import Streamed
from hw.bus.accelerator import AcceleratorTop, BlockPorts, BusParameters
from hw.bus.device_map import VERSION, Device, device_of
from hw.catalogue import Block
from hw.emit import contracts
from hw.emit.export import Export, export, to_rtlil, to_verilog
from hw.parameters import ParameterError, Parameters
from hw.ports import CLOCKS, list_ports


@dataclasses.dataclass(frozen=True)
class DeviceDesign:
    """A block behind AXI.

    module, verilog
        The top, ``MODULE_axi``, and the text of everything.
    device
        Its streams and memories, from which its register map follows.
    payloads
        Shape of each stream's payload by name.
    """

    block: Block
    parameters: Parameters
    bus: BusParameters
    module: str
    verilog: str
    device: Device
    payloads: dict[str, Any]


def device_design(
    block: Block, parameters: Parameters, bus: BusParameters, exported: Export | None = None
) -> DeviceDesign:
    """Generate a block behind AXI. The same arguments always give the same text.

    exported
        The block's Verilog, if it has been generated before.
    :raises ParameterError: if the block has inputs that are not streams, or a memory whose rows do
        not fit the bus.
    """
    component = block.create(parameters)
    exported = exported or export(block, parameters)
    module, text = exported.name, exported.verilog
    if isinstance(component, Datapath):
        component, module = Streamed(component, module), f"{module}_streamed"
        text += "\n" + to_verilog(to_rtlil(component, module))
    payloads = _payloads(block, component)
    header = re.search(rf"^module \\?{re.escape(module)}\s*\(.*?^\);", text, re.M | re.S)
    assert header is not None
    clocks = [clock for clock in CLOCKS if re.search(rf"\b{clock}\b", header[0])]
    ports = list_ports(component, clocks)
    seed = repr((VERSION, dataclasses.astuple(bus), text)).encode()
    build = int.from_bytes(hashlib.sha256(seed).digest()[:8], "little")
    device = device_of(ports, parameters, build)
    inside = BlockPorts(module, tuple(clocks), payloads, contracts.memories(ports, parameters))
    name = f"{exported.name}_axi"
    top = AcceleratorTop(bus, device, inside)
    verilog = f"{text}\n{to_verilog(to_rtlil(top, name))}"
    return DeviceDesign(block, parameters, bus, name, verilog, device, payloads)


def _payloads(block: Block, component: wiring.Component) -> dict[str, Any]:
    """Payload shapes of the streams of a block, by name."""
    found = {}
    for path, member, _ in component.signature.flatten(component):
        if path[-1] == "payload":
            found["__".join(map(str, path[:-1]))] = member.shape
        elif path[-1] not in ("valid", "ready") and member.flow is wiring.In:
            raise ParameterError(f"{block.name} has inputs that are not streams")
    return found
