"""Proof that what is changed about modules' bodies keeps every bit."""

import dataclasses
import itertools
import re
import tempfile
from collections.abc import Iterator, Mapping
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
{products}expose -evert c:*
techmap
simplemap
opt_clean
setundef -undriven -zero
zinit -all
dfflegalize -cell $_DFF_P_ 0
aigmap
opt_clean
write_aiger -ascii -symbols {side}.{module}.aag"""

# Two multipliers may be more than a solver compares in hours. A product is then any value: its
# operands are outputs, and it is an input.
CUT = """\
rename -enumerate -pattern product_% t:$mul
techmap -map products.v
expose w:product_*.a w:product_*.b
expose -cut w:product_*.y
"""
PRODUCTS = """\
(* techmap_celltype = "$mul" *)
module product(A, B, Y);
  parameter A_SIGNED = 0;
  parameter B_SIGNED = 0;
  parameter A_WIDTH = 1;
  parameter B_WIDTH = 1;
  parameter Y_WIDTH = 1;
  input [A_WIDTH-1:0] A;
  input [B_WIDTH-1:0] B;
  output [Y_WIDTH-1:0] Y;
  wire [Y_WIDTH-1:0] a = {{Y_WIDTH{A_SIGNED && A[A_WIDTH-1]}}, A};
  wire [Y_WIDTH-1:0] b = {{Y_WIDTH{B_SIGNED && B[B_WIDTH-1]}}, B};
  wire [Y_WIDTH-1:0] y = a ^ b;
  assign Y = y;
endmodule
"""

# Registers that correspond, then any nodes; without registers left, fraig does that.
BY = "lcorr;scorr -C 10000;fraig -C 10000"
SECONDS = 60
ORDERS = 120  # all of five products


def assert_same_hardware(rtlil: str) -> None:
    """Each module, as Yosys writes it and as it is after all changes, is proved equivalent.

    From the initial values on, every output agrees in every cycle. Of a sub-block the inputs are
    outputs of the module, and its outputs inputs; so are operands and product of a multiplication.

    :raises ToolError: if a bit of a port or of a sub-block's input differs, or may.
    """
    modules = [module for module in plain(yosys_verilog(rtlil)) if "\nendmodule" in module]
    inputs = inputs_of("".join(modules))
    after = []
    for module in modules:
        body = Body(module, inputs)
        lines = [*map(wrapped, readable_body(body))]
        after.append(body.head + "\n".join(lines) + "\n" + body.tail)
    assert_same_text("".join(modules), "".join(after))


def assert_same_text(before: str, after: str) -> None:
    """Each module of two texts is proved equivalent, as :func:`assert_same_hardware` has it.

    :raises ToolError: if a bit of a port or of a sub-block's input differs, or may.
    """
    names = re.findall(r"^module (\w+)", before, re.M)
    assert names == re.findall(r"^module (\w+)", after, re.M)
    with tempfile.TemporaryDirectory(prefix="same_hardware_") as folder:
        work = Path(folder)
        (work / "before.v").write_text(before)
        (work / "after.v").write_text(after)
        (work / "products.v").write_text(PRODUCTS)
        whole = _netlists(work, names, "")
        hard = [name for name in names if not _same(*whole[name])]
        for name, (one, other) in _netlists(work, hard, CUT).items():
            # The texts may have a module's products in another order.
            if not any(_same(one, ordered) for ordered in _orders(other)):
                raise ToolError(f"could not prove the texts of {name} equivalent")


def _netlists(work: Path, modules: list[str], products: str) -> dict[str, tuple[Netlist, Netlist]]:
    """Modules of both texts."""
    script = []
    for side in ("before", "after"):
        script.append(f"design -reset; read_verilog {side}.v; proc; design -stash {side}")
        script += [READ.format(side=side, module=name, products=products) for name in modules]
    yosys.yosys(script, work, "read the texts")

    def netlist(side: str, name: str) -> Netlist:
        return gates.parse((work / f"{side}.{name}.aag").read_text())

    return {name: (netlist("before", name), netlist("after", name)) for name in modules}


def _orders(netlist: Netlist) -> Iterator[Netlist]:
    """The netlist with its products numbered in every order, up to ORDERS, first as they are."""
    found = re.findall(r"product_(\d+)", " ".join(netlist.inputs))
    numbers = sorted({int(number) for number in found})
    for order in itertools.islice(itertools.permutations(numbers), ORDERS):
        new = dict(zip(numbers, order, strict=True))

        def renamed(ports: Mapping[str, list[int]], new: Mapping[int, int] = new):
            return {
                re.sub(r"(?<=^product_)\d+", lambda found: str(new[int(found[0])]), port): bits
                for port, bits in ports.items()
            }

        yield dataclasses.replace(
            netlist, inputs=renamed(netlist.inputs), outputs=renamed(netlist.outputs)
        )


def _sizes(netlist: Netlist) -> list[dict[str, int]]:
    ports = netlist.inputs, netlist.outputs
    return [{port: len(bits) for port, bits in of.items()} for of in ports]


def _same(before: Netlist, after: Netlist) -> bool:
    if _sizes(before) != _sizes(after):
        return False
    graph = Graph()
    graph.register()  # ABC compares designs with registers only
    ports = {port: [graph.input() for _ in bits] for port, bits in before.inputs.items()}
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
    return gate_equivalence.corresponds(graph, wrong, SECONDS, BY)
