"""Checks of a user's Verilog before it is simulated: its ports, and what it may do outside."""

import json
import re
import tempfile
from pathlib import Path

from sim.core import processes, yosys
from sim.core.tools import ToolError

# A port's direction, as in Verilog, and its width in bits.
Ports = dict[str, tuple[str, int]]

TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/|\\\S+', re.S)
# System tasks that run commands or write files, C++ code and functions, text that is not in this
# file, and pasted tokens, by which a macro can make any of these.
UNSAFE = re.compile(
    r"\$(?:systemf?|fopen\w*|writemem[bho]|dump(?:file|ports)|c(?:pure)?\d*(?=\s*\())(?![\w$])"
    r'|\bimport\s*"DPI[^"]*"|`include\b|`systemc_\w+|``'
)

DIRECTIVE = re.compile(r"^[ \t]*`[^\n]*(?<!\\)$", re.M)
DECLARATION = re.compile(
    rf"{DIRECTIVE.pattern}|(?:^|(?<=[\s;]))(?:input|output|inout|parameter|localparam)[\s\[][^;]*;",
    re.M,
)


def refuse_unsafe(path: Path, verilog: str) -> None:
    """Refuse text that could do more than simulate; a check of what it says, not a sandbox.

    :raises ToolError: naming the first such call and its line.
    """

    def blank(match: re.Match) -> str:
        # Comments and escaped names go, newlines and strings stay.
        return match[0] if match[0][0] == '"' else "\n" * match[0].count("\n") or " "

    text = TOKEN.sub(blank, verilog)
    found = UNSAFE.search(text)
    if found:
        line = text.count("\n", 0, found.start()) + 1
        raise ToolError(
            f"{path}:{line}: {found[0]} can act outside of the simulation, with your rights: "
            "read the file, then add --trust"
        )


def generated_ports(verilog: str, module: str) -> Ports:
    """Ports of a module of Verilog that this project generated."""
    header = re.search(rf"^module {re.escape(module)}\(.*?^\);", verilog, re.M | re.S)
    port = r"^  (input|output) (?:reg )?(?:signed )?(?:\[(\d+):0\] )?(\w+)"
    found = re.findall(port, header[0], re.M) if header else []
    return {name: (direction, int(top or 0) + 1) for direction, top, name in found}


def user_ports(path: Path, verilog: str, module: str) -> Ports:
    """Ports of a module in whatever style somebody wrote it, as Yosys reads it.

    :raises ToolError: if Yosys cannot read the module.
    """
    with tempfile.TemporaryDirectory(prefix="senbazuru_") as scratch:
        (Path(scratch) / "user.v").write_text(_declarations(verilog, module))
        script = "read_verilog -sv -lib user.v; write_json ports.json"
        run = processes.run(yosys.command(yosys.YOSYS, "-q", "-p", script), cwd=scratch)
        if run.returncode:
            last = (run.stderr.strip().splitlines() or ["no reason given"])[-1]
            said = last.partition("ERROR: ")[2]
            if not said:  # a home that cannot be written, a full disk
                raise ToolError(f"Yosys did not run: {last}")
            raise ToolError(f"{path}: Yosys cannot read the ports of {module}: {said.rstrip('.')}")
        modules = json.loads((Path(scratch) / "ports.json").read_text())["modules"]
    return {
        name: (port["direction"], len(port["bits"]))
        for name, port in modules[module]["ports"].items()
    }


def _declarations(verilog: str, module: str) -> str:
    """A module's header and declarations alone, as its body may be large and beyond Yosys."""

    def blank(match: re.Match) -> str:
        return " " if match[0].startswith(("//", "/*")) else match[0]

    text = TOKEN.sub(blank, verilog)
    name = rf"\b(?:macro)?module\s+\\?{re.escape(module)}(?![\w$])"
    before, head, after = re.split(rf"({name}[^;]*;?)", text, maxsplit=1)
    body, *rest = re.split(r"\bendmodule\b", after, maxsplit=1)
    body = re.sub(r"\b(function|task)\b.*?\bend\1\b", "", body, flags=re.S)
    parts = [*DIRECTIVE.findall(before), head, *DECLARATION.findall(body), "endmodule"]
    return "\n".join([*parts, *DIRECTIVE.findall("".join(rest)), ""])


def compare_ports(path: Path, module: str, wanted: Ports, found: Ports) -> None:
    """Compare names, directions and widths of all ports.

    :raises ToolError: naming the first port that differs.
    """
    for name, (direction, width) in wanted.items():
        if name not in found:
            raise ToolError(f"{path}: {module} lacks port {name}, {_described(direction, width)}")
        if found[name] != (direction, width):
            raise ToolError(
                f"{path}: port {name} of {module} must be {_described(direction, width)}, "
                f"not {_described(*found[name])}"
            )
    for name in found:
        if name not in wanted:
            raise ToolError(f"{path}: {module} has a port {name}, which the block has not")


def _described(direction: str, width: int) -> str:
    article = "a" if direction == "bidirectional" else "an"
    return f"{article} {direction} of {width} bit{'s' * (width != 1)}"
