"""Verilog models of library cells, so that a mapped netlist can be simulated.

Without delays. A flip-flop holds an unknown value until it is clocked, set or cleared, as silicon
does; where set and clear meet, clear wins.
"""

import re

from sim.synth import SynthesisError, function
from sim.synth.liberty import Cell, Library
from sim.synth.netlist import Netlist


def models(netlist: Netlist, library: Library) -> str:
    """One module for each kind of cell the netlist uses.

    :raises SynthesisError: for a cell without a function.
    """
    kinds = sorted({cell.kind for cell in netlist.cells})
    return "\n".join(model(library.cells[kind]) for kind in kinds)


def model(cell: Cell) -> str:
    """The Verilog module of one cell."""
    ports = [pin for pin in cell.pins.values() if pin.direction in ("input", "output")]
    lines = [f"module {cell.name}({', '.join(pin.name for pin in ports)});"]
    lines += [f"  {pin.direction} {pin.name};" for pin in ports]
    if cell.register is not None and cell.state is not None:
        lines += _register(cell.register, cell.state)
    for pin in ports:
        if pin.direction == "output":
            if pin.function is None:
                raise SynthesisError(f"output {pin.name} of cell {cell.name} has no function")
            lines.append(f"  assign {pin.name} = {_verilog(pin.function)};")
    return "\n".join([*lines, "endmodule", ""])


def _verilog(text: str) -> str:
    return function.to_verilog(function.parse(text))


def _register(register: dict[str, str], state: tuple[str, str]) -> list[str]:
    """Declarations and the process of a flip-flop, from its ``ff`` group."""
    true, inverted = state
    clock, edges = _event(register.get("clocked_on", ""), "clock")
    lines = [f"  reg {true};", f"  wire {inverted} = ~{true};", *clock]
    steps = []
    for attribute, value in (("clear", "1'b0"), ("preset", "1'b1")):
        if attribute in register:
            wires, edge = _event(register[attribute], attribute)
            lines += wires
            edges += f" or {edge}"
            steps.append(f"if ({_verilog(register[attribute])}) {true} <= {value}; else")
    steps.append(f"{true} <= {_verilog(register['next_state'])};")
    return [*lines, f"  always @({edges})", *(f"    {step}" for step in steps)]


def _event(text: str, name: str) -> tuple[list[str], str]:
    """Declarations an event needs, and the event, when the function becomes true."""
    verilog = _verilog(text)
    plain = verilog.replace("~~", "").strip("()")
    # A pin itself, not a copy of it, so that no simulator sees it a moment later.
    if re.fullmatch(r"\w+", plain):
        return [], f"posedge {plain}"
    if re.fullmatch(r"~\w+", plain):
        return [], f"negedge {plain[1:]}"
    return [f"  wire {name}_event = {verilog};"], f"posedge {name}_event"
