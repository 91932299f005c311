"""The core's operations on vectors beside its products: sums, gated products, positions."""

from amaranth.hdl import Module
from amaranth.lib import wiring

from hw.attention.rotary_encoding import RotaryEncoding
from hw.kllm.core.core_parameters import CoreParameters
from hw.kllm.vector_unit import VectorUnit
from hw.ports import Ports, stream_in, stream_out

ELEMENTS = {"element_command": "command", "operands": "i", "elements": "o"}
"""The core's streams of the vector unit, and the unit's own names for them."""

PAIRS = {"turns": "turns", "position_command": "command", "pairs": "i", "turned": "o"}
"""The same of the rotary encoding."""


def vector_ports(p: CoreParameters) -> Ports:
    """Streams of the units that the core has; each unit has its own, so that none waits."""
    ports: Ports = {}
    if p.vector_lanes:
        unit = p.vector_unit
        ports |= {
            "element_command": stream_in(unit.command_layout, "Operations of two vectors."),
            "operands": stream_in(unit.input_layout, "Their elements in pairs."),
            "elements": stream_out(unit.output_layout, "Their results."),
        }
    if p.rotary_pairs:
        rotary = p.rotary_encoding
        ports |= {
            "turns": stream_in(rotary.turns_layout, "Turns of pairs from position to position."),
            "position_command": stream_in(rotary.command_layout, "Positions of heads."),
            "pairs": stream_in(rotary.pairs_layout, "Heads to turn, in pairs of elements."),
            "turned": stream_out(rotary.pairs_layout, "The same heads, turned."),
        }
    return ports


def add_vector_units(m: Module, p: CoreParameters, core: wiring.Component) -> None:
    """The units between the core's streams of :func:`vector_ports`."""
    if p.vector_lanes:
        m.submodules.vector_unit = unit = VectorUnit(p.vector_unit)
        _connect(m, core, unit, ELEMENTS)
    if p.rotary_pairs:
        m.submodules.rotary_encoding = rotary = RotaryEncoding(p.rotary_encoding)
        _connect(m, core, rotary, PAIRS)


def _connect(m: Module, core, unit, names: dict[str, str]) -> None:
    """Streams of the core and of a unit, by the core's names."""
    # The table of names has inputs first, and the unit's only output last.
    *inputs, output = names.items()
    for outer, inner in inputs:
        wiring.connect(m, wiring.flipped(getattr(core, outer)), getattr(unit, inner))
    outer, inner = output
    wiring.connect(m, getattr(unit, inner), wiring.flipped(getattr(core, outer)))
