# amaranth: UnusedElaboratable=no
# (a component is also created only to read its ports)
"""A block behind AXI as one Verilog text, for simulation and for packages alike."""

import dataclasses
import hashlib
import re
from collections.abc import Callable
from typing import Any

from amaranth.lib import wiring

from hw.arith.datapath import Datapath
from hw.arith.streamed import Streamed
from hw.bus.accelerator import AcceleratorTop
from hw.bus.bus_parameters import BlockPorts, BusParameters
from hw.bus.device_map import VERSION, Device, device_of
from hw.catalogue import Block
from hw.emit import contracts
from hw.emit.export import export, module_name, to_rtlil, to_verilog
from hw.emit.verilog import waived
from hw.parameters import ParameterError, Parameters
from hw.ports import CLOCKS, list_ports


@dataclasses.dataclass(frozen=True)
class DeviceDesign:
    """A block behind AXI.

    module, verilog
        The top, and the text of everything.
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
    block: Block,
    parameters: Parameters,
    bus: BusParameters,
    keep: Callable[[str, Callable[[], str]], str] = lambda name, make: make(),
) -> DeviceDesign:
    """Generate a block behind AXI, the module ``FOLDER_BLOCK_PRESET_axi``.

    The same arguments always give the same text.

    keep
        Called with a name and a function that makes a text: may return one made before.
    :raises ParameterError: if the block has inputs that are not streams, or a memory whose rows do
        not fit the bus.
    """
    component = block.create(parameters)
    name = module = module_name(block, parameters)
    text = keep("design", lambda: export(block, parameters).verilog)
    if isinstance(component, Datapath):
        inner = component
        component, module = Streamed(inner, name), f"{name}_streamed"
        around = Streamed(inner, name)
        text += "\n" + keep("streams", lambda: to_verilog(to_rtlil(around, module)))
    payloads, wires = _ports(block, component)
    header = re.search(rf"^module \\?{re.escape(module)}\s*\(.*?^\);", text, re.M | re.S)
    assert header is not None
    clocks = [clock for clock in CLOCKS if re.search(rf"\b{clock}\b", header[0])]
    ports = list_ports(component, clocks)
    seed = repr((VERSION, dataclasses.astuple(bus), text)).encode()
    build = int.from_bytes(hashlib.sha256(seed).digest()[:8], "little")
    device = device_of(ports, parameters, build)
    inside = BlockPorts(
        module, tuple(clocks), payloads, contracts.memories(ports, parameters), wires
    )
    top = AcceleratorTop(bus, device, inside)
    whole = f"{name}_axi"
    wrapper = keep(f"axi_{bus.slug()}", lambda: waived(to_verilog(to_rtlil(top, whole))))
    return DeviceDesign(block, parameters, bus, whole, f"{text}\n{wrapper}", device, payloads)


def _ports(block: Block, component: wiring.Component) -> tuple[dict[str, Any], dict[str, Any]]:
    """Payload shapes of a block's streams and shapes of its other outputs, by name."""
    found, wires = {}, {}
    for path, member, _ in component.signature.flatten(component):
        if path[-1] == "payload":
            found["__".join(map(str, path[:-1]))] = member.shape
        elif path[-1] not in ("valid", "ready"):
            if member.flow is wiring.In:
                raise ParameterError(f"{block.name} has inputs that are not streams")
            wires["__".join(map(str, path))] = member.shape
    return found, wires
