"""Checks of a user's Verilog before it is simulated: its ports, and what it may do outside."""

import json
import re
import tempfile
from pathlib import Path

from sim.core import processes, yosys
from sim.core.tools import VERILOG_2005, ToolError, UnusableFile, environment, verilator

# A port's direction, as in Verilog, and its width in bits.
Ports = dict[str, tuple[str, int]]

# A string, a comment or an escaped name.
TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/|\\\S+', re.S)
# Text of another file, and pasted tokens, by which a macro can make such text.
BEFORE_MACROS = re.compile(r"`include\b|``")

TASKS = (
    r"(?:f?(?:display|write|strobe|monitor)|swrite)[boh]?|monitoro(?:n|ff)|sformat|fflush|fclose"
    r"|time|stime|realtime|timeformat|printtimescale|finish|stop|fatal|error|warning|info"
    r"|random|urandom(?:_range)?|dist_\w+|signed|unsigned|bits|clog2|rtoi|itor|realtobits"
    r"|bitstoreal|ln|log10|exp|sqrt|pow|floor|ceil|a?(?:sin|cos|tan)h?|atan2|hypot|readmem[bh]"
    r"|(?:test|value)\$plusargs|setup|hold|setuphold|recovery|removal|recrem|skew|timeskew"
    r"|fullskew|width|period|nochange"
)
"""System tasks and functions that act within the simulation; `$readmemh` reads files."""
OUTSIDE = r"(?:systemf?|fopen\w*|writemem[bho]|dump\w+|c(?:pure)?\d*(?=\s*\())"
DIRECTIVES = (
    r"(?:end)?celldefine|default_nettype|timescale|resetall|(?:no)?unconnected_drive"
    r'|begin_keywords\s+"1364-\d+"|end_keywords'
)
PRAGMAS = r"lint_\w+|tracing_\w+|coverage_\w+|(?:no_)?inline_\w+|public\w*|(?:full|parallel)_case"
# What Verilog without macros and comments must not have, in strings too, as tools differ in what a
# string is. Icarus runs a task by its escaped name, and right behind a number.
UNSAFE = re.compile(
    rf"\${OUTSIDE}(?![\w$])"
    rf"|(?<![\w$])\$(?!(?:{TASKS})(?![\w$]))[A-Za-z_][\w$]*"
    r'|(?<![\w$])import(?![\w$])|(?<![\w$])export\s*"|"""'
    rf"|`(?!(?:{DIRECTIVES})(?!\w))\S*"
    rf"|/\*\s*verilator\b(?!\s+(?:{PRAGMAS})\b)\s*\w*"
    r"|[\x00-\x08\x0e-\x1f]"
)
# Within an escaped name, only the tasks that act outside are looked for.
ESCAPED = re.compile(rf'\\(?:(?!\${OUTSIDE}(?![\w$]))[^\s"])+')
LINE = re.compile(r'^`line (\d+) "(.*)" \d$')

DIRECTIVE = re.compile(r"^[ \t]*`[^\n]*(?<!\\)$", re.M)
DECLARATION = re.compile(
    rf"{DIRECTIVE.pattern}|(?:^|(?<=[\s;]))(?:input|output|inout|parameter|localparam)[\s\[][^;]*;",
    re.M,
)


def without_macros(path: Path, verilog: str) -> str:
    """What a user's Verilog-2005 says once its macros are expanded, for every tool alike.

    Refuses text that could do more than simulate; a check of what it says, not a sandbox.

    :raises UnusableFile: naming the first thing that could, and its line; or if Verilator cannot
        read the file.
    """

    def blank(match: re.Match) -> str:
        # Comments and escaped names go, newlines and strings are kept.
        return match[0] if match[0][0] == '"' else "\n" * match[0].count("\n") or " "

    text = TOKEN.sub(blank, verilog)
    if found := BEFORE_MACROS.search(text):
        raise _unsafe(path, text.count("\n", 0, found.start()) + 1, found[0])
    numbers, lines = [], []
    number = 0
    for line in _preprocessed(path, verilog).split("\n"):
        number += 1
        if place := LINE.match(line):
            number = int(place[1]) - 1
        else:
            numbers.append(number)
            lines.append(line)
    text = "\n".join(lines)
    plain = ESCAPED.sub(lambda match: " " * len(match[0]), text)
    if found := UNSAFE.search(plain):
        raise _unsafe(path, numbers[text.count("\n", 0, found.start())], found[0])
    return text


def _unsafe(path: Path, line: int, what: str) -> UnusableFile:
    return UnusableFile(
        f"{path}:{line}: {what!a} may act outside of the simulation, with your rights: "
        "read the file, then add --trust"
    )


def _preprocessed(path: Path, verilog: str) -> str:
    with tempfile.TemporaryDirectory(prefix="senbazuru_") as scratch:
        (Path(scratch) / "user.v").write_text(verilog)
        command = [str(verilator()), "-E", *VERILOG_2005["verilator"], "user.v"]
        run = processes.run(command, cwd=scratch, env=environment())
    if run.returncode:
        said = (run.stderr.strip().splitlines() or ["no reason given"])[0]
        said = said.removeprefix("%Error: ").removeprefix("user.v:")
        raise UnusableFile(f"{path}: Verilator cannot expand its macros: {said.rstrip('.')}")
    return run.stdout


def generated_ports(verilog: str, module: str) -> Ports:
    """Ports of a module of Verilog that this project generated."""
    header = re.search(rf"^module {re.escape(module)}\(.*?^\);", verilog, re.M | re.S)
    port = r"^  (input|output) (?:reg )?(?:signed )?(?:\[(\d+):0\] )?(\w+)"
    found = re.findall(port, header[0], re.M) if header else []
    return {name: (direction, int(top or 0) + 1) for direction, top, name in found}


def user_ports(path: Path, verilog: str, module: str, *, systemverilog: bool = False) -> Ports:
    """Ports of a module in whatever style somebody wrote it, as Yosys reads it.

    :raises UnusableFile: if Yosys cannot read the module.
    """
    with tempfile.TemporaryDirectory(prefix="senbazuru_") as scratch:
        (Path(scratch) / "user.v").write_text(_declarations(verilog, module))
        read = f"read_verilog {'-sv ' * systemverilog}-lib user.v"
        script = f"{read}; write_json ports.json"
        run = processes.run(yosys.command(yosys.YOSYS, "-q", "-p", script), cwd=scratch)
        if run.returncode:
            last = (run.stderr.strip().splitlines() or ["no reason given"])[-1]
            said = last.partition("ERROR: ")[2]
            if not said:  # a home that cannot be written, a full disk
                raise ToolError(f"Yosys did not run: {last}")
            said = said.rstrip(".")
            raise UnusableFile(f"{path}: Yosys cannot read the ports of {module}: {said}")
        modules = json.loads((Path(scratch) / "ports.json").read_text())["modules"]
    return {
        name: (port["direction"], len(port["bits"]))
        for name, port in modules[module]["ports"].items()
    }


def _declarations(verilog: str, module: str) -> str:
    """A module's header and declarations alone, because its body may be large and beyond Yosys."""

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

    :raises UnusableFile: naming the first port that differs.
    """
    for name, (direction, width) in wanted.items():
        if name not in found:
            described = _described(direction, width)
            raise UnusableFile(f"{path}: {module} lacks port {name}, {described}")
        if found[name] != (direction, width):
            raise UnusableFile(
                f"{path}: port {name} of {module} must be {_described(direction, width)}, "
                f"not {_described(*found[name])}"
            )
    for name in found:
        if name not in wanted:
            raise UnusableFile(f"{path}: {module} has a port {name}, which the block has not")


def _described(direction: str, width: int) -> str:
    article = "a" if direction == "bidirectional" else "an"
    return f"{article} {direction} of {width} bit{'s' * (width != 1)}"
