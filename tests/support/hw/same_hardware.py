"""Proof that what is changed about modules' bodies keeps every bit."""

import re
import tempfile
from pathlib import Path

from hw.emit.export import yosys_verilog
from hw.emit.verilog import plain
from hw.emit.verilog_body import Body, inputs_of, wrapped
from hw.emit.verilog_passes import readable_body
from sim.checks.formal import gate_equivalence, gates
from sim.checks.formal.gates import Graph, Netlist
from sim.core import yosys
from sim.core.tools import ToolError

# Registers begin with their initial values; what a text leaves open is 0.
READ = """\
design -load {side}
blackbox =* {module} %d
hierarchy -top {module}
opt_clean
memory_map
opt_clean
expose -evert c:*
techmap
simplemap
opt_clean
setundef -undriven -zero
zinit -all
dfflegalize -cell $_DFF_P_ 0
aigmap
opt_clean
write_aiger -ascii -symbols {side}.{module}.aag"""

# Registers that correspond, then any nodes; without registers left, fraig does that.
BY = "lcorr;scorr -C 10000;fraig -C 10000"
SECONDS = 300


def assert_same_hardware(rtlil: str) -> None:
    """Each module, as Yosys writes it and as it is after all changes, is proved equivalent.

    From the initial values on, every output agrees in every cycle. Of a sub-block the inputs are
    outputs of the module, and its outputs inputs.

    :raises ToolError: if a bit of a port or of a sub-block's input differs, or may.
    """
    modules = [module for module in plain(yosys_verilog(rtlil)) if "\nendmodule" in module]
    inputs = inputs_of("".join(modules))
    names, after = [], []
    for module in modules:
        found = re.search(r"^module (\w+)", module, re.M)
        assert found
        names.append(found[1])
        body = Body(module, inputs)
        lines = [*map(wrapped, readable_body(body))]
        after.append(body.head + "\n".join(lines) + "\n" + body.tail)
    with tempfile.TemporaryDirectory(prefix="same_hardware_") as folder:
        work = Path(folder)
        (work / "before.v").write_text("".join(modules))
        (work / "after.v").write_text("".join(after))
        sides = "before", "after"
        script = [f"read_verilog {side}.v; proc; design -stash {side}" for side in sides]
        script += [READ.format(side=side, module=name) for name in names for side in sides]
        yosys.yosys(script, work, "read the texts")
        for name in names:
            before, changed = ((work / f"{side}.{name}.aag").read_text() for side in sides)
            _assert_same(name, gates.parse(before), gates.parse(changed))


def _assert_same(name: str, before: Netlist, after: Netlist) -> None:
    graph = Graph()
    graph.register()  # ABC compares designs with registers only
    ports = {port: [graph.input() for _ in bits] for port, bits in before.inputs.items()}
    if not sorted(ports) == sorted(after.inputs) or sorted(before.outputs) != sorted(after.outputs):
        raise ToolError(f"the texts of {name} differ in ports")
    copies = []
    for netlist in (before, after):
        values = {
            literal: ports[port][bit]
            for port, bits in netlist.inputs.items()
            for bit, literal in enumerate(bits)
        }
        values |= {literal: graph.register() for literal, _ in netlist.registers}
        copy = netlist.copy(graph, values)
        for literal, following in netlist.registers:
            graph.connect(values[literal], copy(following))
        copies.append({port: [*map(copy, bits)] for port, bits in netlist.outputs.items()})
    one, other = copies
    wrong = graph.any(
        graph.differ(*bits) for port in one for bits in zip(one[port], other[port], strict=True)
    )
    if not gate_equivalence.corresponds(graph, wrong, SECONDS, BY):
        raise ToolError(f"could not prove the texts of {name} equivalent")
