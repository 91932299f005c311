"""The component of a device in IP-XACT, IEEE 1685-2014: buses, ports, registers and files."""

import re
from xml.etree import ElementTree as xml

from hw.bus.axi import CLOCK, INTERRUPT, RESET
from hw.bus.register_map import CLEAR, CONSTANT, PULSE, READ_ONLY, READ_WRITE, RegisterField, Word
from hw.emit.header import versions
from hw.package.description import Description

NAMESPACE = "http://www.accellera.org/XMLSchema/IPXACT/1685-2014"
SCHEMA = f"{NAMESPACE} {NAMESPACE}/index.xsd"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
ACCESS = {
    READ_WRITE: "read-write",
    READ_ONLY: "read-only",
    CLEAR: "read-write",
    PULSE: "write-only",
    CONSTANT: "read-only",
}
AMBA = ("amba.com", "AMBA4")
SIGNAL = ("accellera.org", "signal")


def ip_xact(description: Description) -> str:
    """The text of the ``.xml`` file."""
    xml.register_namespace("ipxact", NAMESPACE)
    xml.register_namespace("xsi", INSTANCE)
    root = xml.Element(_tag("component"), {f"{{{INSTANCE}}}schemaLocation": SCHEMA})
    _add(root, "vendor", "senbazuru")
    _add(root, "library", description.design.block.folder)
    _add(root, "name", description.module)
    _add(root, "version", versions()["senbazuru"])
    _buses(root, description)
    spaces = _add(root, "addressSpaces")
    for prefix, sizes in description.masters.items():
        space = _add(spaces, "addressSpace")
        _add(space, "name", prefix)
        _add(space, "range", str(1 << sizes.address))
        _add(space, "width", str(sizes.data))
    _registers(root, description)
    _model(root, description)
    files = _add(_add(root, "fileSets"), "fileSet")
    _add(files, "name", "verilog")
    file = _add(files, "file")
    _add(file, "name", f"{description.module}.v")
    _add(file, "fileType", "verilogSource")
    _add(root, "description", description.summary)
    xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + xml.tostring(root, "unicode") + "\n"


def _tag(name: str) -> str:
    return f"{{{NAMESPACE}}}{name}"


def _add(parent: xml.Element, tag: str, text: str | None = None, **attributes: str) -> xml.Element:
    element = xml.SubElement(parent, _tag(tag), attributes)
    element.text = text
    return element


def _buses(root: xml.Element, description: Description) -> None:
    """AXI4-Lite slave, AXI4 masters, clock, reset and interrupt."""
    interfaces = _add(root, "busInterfaces")

    def interface(name: str, kind: tuple, ports: dict[str, str], role: str) -> xml.Element:
        """Adds an interface; `ports` are names of the abstraction's ports to the module's."""
        bus = _add(interfaces, "busInterface")
        _add(bus, "name", name)
        vendor, library, bus_name, version = kind
        named = {"vendor": vendor, "library": library, "version": version}
        _add(bus, "busType", None, **named, name=bus_name)
        abstraction = _add(_add(bus, "abstractionTypes"), "abstractionType")
        _add(abstraction, "abstractionRef", None, **named, name=f"{bus_name}_rtl")
        maps = _add(abstraction, "portMaps")
        for logical, physical in ports.items():
            pair = _add(maps, "portMap")
            _add(_add(pair, "logicalPort"), "name", logical)
            _add(_add(pair, "physicalPort"), "name", physical)
        return _add(bus, role)

    def axi(prefix: str) -> dict[str, str]:
        names = [name for name, _, _ in description.ports if name.startswith(f"{prefix}_")]
        return {name.removeprefix(f"{prefix}_").upper(): name for name in names}

    slave = interface("s_axi", (*AMBA, "AXI4-Lite", "r0p0_0"), axi("s_axi"), "slave")
    _add(slave, "memoryMapRef", None, memoryMapRef="s_axi")
    for prefix in description.masters:
        master = interface(prefix, (*AMBA, "AXI4", "r0p0_0"), axi(prefix), "master")
        _add(master, "addressSpaceRef", None, addressSpaceRef=prefix)
    for name, kind, port, role in (
        (CLOCK, "clock", "CLK", "slave"),
        (RESET, "reset", "RST", "slave"),
        (INTERRUPT, "interrupt", "INTERRUPT", "master"),
    ):
        interface(name, (*SIGNAL, kind, "1.0"), {port: name}, role)


def _registers(root: xml.Element, description: Description) -> None:
    memory = _add(_add(root, "memoryMaps"), "memoryMap")
    _add(memory, "name", "s_axi")
    block = _add(memory, "addressBlock")
    _add(block, "name", "registers")
    _add(block, "baseAddress", "0")
    _add(block, "range", str(1 << description.registers.address_bits))
    _add(block, "width", "32")
    _add(block, "usage", "register")
    for word in description.registers.words:
        _register(block, word)
    _add(memory, "addressUnitBits", "8")


def _register(block: xml.Element, word: Word) -> None:
    register = _add(block, "register")
    _add(register, "name", word.name)
    _add(register, "description", word.register.words)
    _add(register, "addressOffset", f"'h{word.offset:x}")
    _add(register, "size", "32")
    for part in word.fields:
        _field(register, part)


def _field(register: xml.Element, part: RegisterField) -> None:
    field = _add(register, "field")
    _add(field, "name", part.name or "value")
    _add(field, "description", part.words)
    _add(field, "bitOffset", str(part.low))
    reset = _add(_add(field, "resets"), "reset")
    _add(reset, "value", f"'h{part.reset:x}")
    _add(field, "bitWidth", str(part.width))
    _add(field, "volatile", "true" if part.access in (READ_ONLY, CLEAR) else "false")
    _add(field, "access", ACCESS[part.access])
    if part.codes:
        values = _add(field, "enumeratedValues")
        for code in part.codes:
            value = _add(values, "enumeratedValue")
            _add(value, "name", code.name)
            _add(value, "value", str(code.value))
    if part.access == CLEAR:
        _add(field, "modifiedWriteValue", "oneToClear")


def _model(root: xml.Element, description: Description) -> None:
    """The Verilog's view and its ports."""
    model = _add(root, "model")
    view = _add(_add(model, "views"), "view")
    _add(view, "name", "rtl")
    _add(view, "envIdentifier", ":*Simulation:")
    _add(view, "envIdentifier", ":*Synthesis:")
    _add(view, "componentInstantiationRef", "verilog")
    instantiation = _add(_add(model, "instantiations"), "componentInstantiation")
    _add(instantiation, "name", "verilog")
    _add(instantiation, "language", "verilog")
    _add(instantiation, "moduleName", description.module)
    _add(_add(instantiation, "fileSetRef"), "localName", "verilog")
    ports = _add(model, "ports")
    for name, direction, width in description.ports:
        port = _add(ports, "port")
        _add(port, "name", name)
        wire = _add(port, "wire")
        _add(wire, "direction", re.sub("put$", "", direction))
        if width > 1:
            vector = _add(_add(wire, "vectors"), "vector")
            _add(vector, "left", str(width - 1))
            _add(vector, "right", "0")
