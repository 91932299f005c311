"""Operations on vectors beside a core's products: sums, gated products, positions, norms."""

import dataclasses
import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring

from hw.attention.rotary_encoding import RotaryEncoding, RotaryEncodingParameters
from hw.attention.special_function_unit import SpecialFunctionUnit, SpecialFunctionUnitParameters
from hw.attention.vector_unit import VectorUnit, VectorUnitParameters
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out

ELEMENTS = {"element_command": "command", "operands": "i", "elements": "o"}
"""The core's streams of the vector unit, and the unit's own names for them."""

PAIRS = {"turns": "turns", "position_command": "command", "pairs": "i", "turned": "o"}
"""The same of the rotary encoding."""

NORMS = {"norm_command": "command", "norm_x": "i", "normalised": "o"}
"""The same of the norms."""


@dataclasses.dataclass(frozen=True)
class VectorPathParameters(Parameters):
    """Sizes of the units; one of size 0 is not there.

    lanes
        Elements that are added or multiplied in a cycle, 0 to 64.
    pairs
        Pairs of elements in the longest head that is turned by its position, 0 to 512.
    length
        Elements of the longest vector that is normalised, 0 or 2 to 8192.
    """

    lanes: int = 0
    pairs: int = 0
    length: int = 0

    def __post_init__(self):
        require(0 <= self.lanes <= 64, "vector_lanes must be between 0 and 64", self.lanes)
        require(0 <= self.pairs <= 512, "rotary_pairs must be between 0 and 512", self.pairs)
        fits = self.length == 0 or 2 <= self.length <= 8192
        require(fits, "normed must be 0 or between 2 and 8192", self.length)

    @cached_property
    def vector_unit(self) -> VectorUnitParameters:
        return VectorUnitParameters(self.lanes)

    @cached_property
    def rotary_encoding(self) -> RotaryEncodingParameters:
        # A pair has two elements, so both units take about as many in a cycle; all beats of the
        # longest head are full.
        lanes = math.gcd(self.pairs, max(1, self.lanes // 2))
        return RotaryEncodingParameters(self.pairs, lanes)

    @cached_property
    def norms(self) -> SpecialFunctionUnitParameters:
        return SpecialFunctionUnitParameters(self.length)

    @property
    def inputs(self) -> dict[str, Any]:
        """Payloads of the streams that go in, by name."""
        return self._payloads(wiring.In)

    @property
    def outputs(self) -> dict[str, Any]:
        """Payloads of the streams that come out, by name."""
        return self._payloads(wiring.Out)

    def _payloads(self, flow: wiring.Flow) -> dict[str, Any]:
        members = {name: port.member for name, port in self.ports().items()}
        return {
            name: member.signature.members["payload"].shape
            for name, member in members.items()
            if member.flow == flow
        }

    def ports(self) -> Ports:
        """Streams of the units that there are; each has its own, so that none waits."""
        # No unit shares a stream with another or with the core: a beat that waits for a unit would
        # hold up beats behind it that are for the others.
        ports: Ports = {}
        if self.lanes:
            unit = self.vector_unit
            ports |= {
                "element_command": stream_in(unit.command_layout, "Operations of two vectors."),
                "operands": stream_in(unit.input_layout, "Their elements in pairs."),
                "elements": stream_out(unit.output_layout, "Their results."),
            }
        if self.pairs:
            rotary = self.rotary_encoding
            ports |= {
                "turns": stream_in(
                    rotary.turns_layout, "Turns of pairs from one position to the next."
                ),
                "position_command": stream_in(rotary.command_layout, "Positions of heads."),
                "pairs": stream_in(rotary.pairs_layout, "Heads to turn, in pairs of elements."),
                "turned": stream_out(rotary.pairs_layout, "The same heads, turned."),
            }
        if self.length:
            norms = self.norms
            ports |= {
                "norm_command": stream_in(norms.command_layout, "Norms, a beat for each vector."),
                "norm_x": stream_in(norms.input_layout, "Elements to be normalised."),
                "normalised": stream_out(norms.output_layout, "The same elements, normalised."),
            }
        return ports

    def add_to(self, m: Module, core: wiring.Component) -> None:
        """Put the units between the core's streams of :meth:`ports`."""
        # Each unit keeps the rules of its streams by itself, so that nothing is added in between.
        if self.lanes:
            m.submodules.vector_unit = unit = VectorUnit(self.vector_unit)
            _connect(m, core, unit, ELEMENTS)
        if self.pairs:
            m.submodules.rotary_encoding = rotary = RotaryEncoding(self.rotary_encoding)
            _connect(m, core, rotary, PAIRS)
        if self.length:
            m.submodules.norms = norms = SpecialFunctionUnit(self.norms)
            _connect(m, core, norms, NORMS)


def _connect(m: Module, core: Any, unit: Any, names: Mapping[str, str]) -> None:
    """Streams of the core and of a unit, by the core's names."""
    # The table of names has inputs first, and the unit's only output last.
    *inputs, output = names.items()
    for outer, inner in inputs:
        wiring.connect(m, wiring.flipped(getattr(core, outer)), getattr(unit, inner))
    outer, inner = output
    wiring.connect(m, getattr(unit, inner), wiring.flipped(getattr(core, outer)))
