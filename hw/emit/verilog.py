"""Verilog text for people: plain names and one header with all ports.

Yosys prints names that Verilog does not allow as escaped ones, such as ``\\row$43`` and
``\\i__payload.last``, and declares each port three times. Here they become ``row_2`` and
``i__payload_last``, and the ports one list, in order of their numbers in the RTLIL.
"""

import itertools
import re
import textwrap

from hw.emit.verilog_body import START, Body, inputs_of, wrapped
from hw.emit.verilog_passes import readable_body
from hw.ports import CLOCKS

WAIVERS = (
    ("DECLFILENAME", "*", "a file holds a block and its sub-blocks; its name is the top's"),
    ("WIDTHEXPAND", "*", "Amaranth leaves zero extension in sums and comparisons to the language"),
    ("WIDTHTRUNC", "*Logical operator*", "a number as a condition is its comparison with zero"),
    ("UNUSEDPARAM", "*", "every member of an enumeration has its name, read or not"),
    ("CASEINCOMPLETE", "*", "every process assigns its defaults before the case statement"),
    ("PROCASSINIT", "*", "registers have an initial value as well as a reset"),
    ("UNUSEDSIGNAL", "*", "sliced intermediate results and named fields have unread bits"),
    ("INITIALDLY", "*", f"Verilator, which does without, may set {START} at once"),
    ("SYMRSVDWORD", "*", "names inside a design may be those of C++"),
)
"""Verilator's warnings that generated Verilog causes and that are harmless: rule, text, reason."""


def readable(verilog: str) -> str:
    """The Verilog of Yosys 0.50, made readable; the same hardware."""
    modules = plain(verilog)
    inputs = inputs_of("".join(modules))
    verilog = "".join(_readable_module(module, inputs) for module in modules)
    return re.sub(r'^\(\* source = "(.*)" \*\)\n', r"// \1\n", verilog, flags=re.M)


def plain(verilog: str) -> list[str]:
    """The text of each module with plain names and one header, the first behind what is above."""
    # Attributes that matter to Yosys only, of wires that are no registers.
    verilog = re.sub(r"^ *\(\* init = .*\*\)\n", "", verilog, flags=re.M)
    verilog = re.sub(r"\\\$auto\$verilog_backend\.cc:\d+:dump_module\$\d+ ", START, verilog)
    verilog = plain_names(verilog)
    return [_one_header(module) for module in re.split(r"^(?=module )", verilog, flags=re.M)]


def _readable_module(module: str, inputs: dict[str, set[str]]) -> str:
    if not module.startswith("module ") or "\n);\n" not in module:
        return module
    body = Body(module, inputs)
    lines = [*map(wrapped, readable_body(body))]
    return body.head + "".join(f"{line}\n" for line in lines) + body.tail


# A string, of which nothing is changed; or an escaped name and the space at its end.
ESCAPED = re.compile(r'"(?:\\.|[^"\\\n])*"|\\(\S+) ')
WORD = re.compile(r"[A-Za-z_]\w*")
# Names that several modules share: of modules, of their ports and of the ports of instances.
SHARED = re.compile(r"^module ([^;]*);$|^    \.(\\\S+) \(|^  (\\\S+)  \S+ \($", re.M)


def plain_names(verilog: str) -> str:
    """Replace escaped names by plain ones that nothing else in the text has."""
    # Words inside of escaped names, too: the row of \row$43 may be a keyword.
    taken = set(WORD.findall(verilog))
    shared = {name for parts in SHARED.findall(verilog) for name in ESCAPED.findall("".join(parts))}
    names = _plain(shared, taken, separator="__")
    taken.update(names.values())
    modules = re.split(r"^(?=module )", _replace(verilog, names), flags=re.M)
    return "".join(
        _replace(module, _plain(set(ESCAPED.findall(module)), taken)) for module in modules
    )


def _replace(verilog: str, names: dict[str, str]) -> str:
    return ESCAPED.sub(lambda match: names.get(match[1], match[0]), verilog)


def _plain(names: set[str], taken: set[str], separator: str = "_") -> dict[str, str]:
    """A plain name for each escaped one, different from each other and from those taken.

    separator
        Replacement for a dot or bracket.
    """
    # In a fixed order, so that the same design has the same names on every machine.
    chosen: dict[str, str] = {}
    numbers: dict[str, int] = {}
    given: set[str] = set()
    for name in sorted(filter(None, names), key=_in_natural_order):
        # A field or element is named after the signal it is part of: row$43.last, as row_2_last.
        whole = re.split(r"[.\[]", name, maxsplit=1)[0]
        part = name[len(whole) :]
        base = re.sub(r"\$\d+$", "", whole) if not part else chosen.get(whole, whole) + part
        base = re.sub(r"\W+", separator, base).strip("_") or "net"
        if base[0].isdigit():
            base = f"net_{base}"
        elif base == name:  # a keyword
            base = f"{base}_"
        free = base
        while free in taken or free in given:
            numbers[base] = numbers.get(base, 1) + 1
            free = f"{base}_{numbers[base]}"
        given.add(free)
        chosen[name] = free
    return chosen


def _in_natural_order(name: str) -> tuple:
    """Signals before their parts, and a$9 before a$10."""
    pieces = re.split(r"(\d+)", name)
    numbered = tuple((int(p), "") if p.isdigit() else (-1, p) for p in pieces)
    return bool(re.search(r"[.\[]", name)), numbered


PORT = re.compile(
    r"^  (input|output|inout) (\[-?\d+:\d+\] )?(\w+);\n"
    r"  (wire|reg) (signed )?(?:\[-?\d+:\d+\] )?\3( = [^;]+)?;\n",
    re.M,
)


DECLARED = re.compile(r"  (?:input|output|inout) (?:reg )?(?:signed )?(?:\[-?\d+:\d+\] )?(\w+)")


def _one_header(module: str) -> str:
    """Declare a module's ports in its header."""
    # Yosys declares a port three times: in the header, by direction, and as a wire or register.
    header = re.match(r"module (\w+)\(([^;]*)\);\n", module)
    if header is None or not header[2]:
        return module
    # Amaranth's own modules have their clock anywhere.
    names = sorted(re.findall(r"\w+", header[2]), key=lambda name: name not in CLOCKS)
    declared = {}

    def take(match: re.Match) -> str:
        direction, width, name, kind, signed, start = match.groups("")
        kind = "reg " if kind == "reg" else ""
        declared[name] = f"{direction} {kind}{signed}{width}{name}{start}"
        return ""

    body = PORT.sub(take, module[header.end() :])
    lines = ",\n".join(f"  {declared[name]}" for name in names)
    return f"module {header[1]}(\n{lines}\n);\n{body}"


def with_comments(
    verilog: str, head: list[str], titles: dict[str, str], comments: dict[str, list[str]]
) -> str:
    """Add comments above the first module and in its header.

    titles
        By name of a port: a line above it, set off by an empty one.
    comments
        By name of a port: the comment beside it (may be empty), and lines below it.
    """
    top, rest = verilog[: (end := verilog.index("\n);\n"))], verilog[end:]
    lines = [f"// {line}".rstrip() for line in head]
    for line in ["", *top.split("\n")]:
        port = DECLARED.match(line)
        name = port[1] if port else ""
        beside, *below = comments.get(name, [""])
        if name in titles:
            title = [f"  // {part}" for part in textwrap.wrap(titles[name], 96)]
            lines += [""] * (not lines[-1].endswith("(")) + title
        lines.append(f"{line}  // {beside}" if beside else line)
        lines += [f"  //   {comment}" for comment in below]
    return "\n".join(lines) + rest


def waived(verilog: str) -> str:
    """Verilog at which Verilator gives no warning that is a waiver's, whoever compiles it."""
    found = re.search(r"^(?:// .*\n)?module ", verilog, re.M)
    assert found, "Verilog without a module"
    start = found.start()
    off = "".join(f"// verilator lint_off {rule}\n" for rule, *_ in WAIVERS)
    lines = ("// verilator lint_save\n", off, verilog[start:], "// verilator lint_restore\n")
    return verilog[:start] + "".join(lines)


def unwaived(verilog: str) -> str:
    """The same Verilog without these comments."""
    return re.sub(r"^// verilator lint_\w+.*\n", "", verilog, flags=re.M)


# Amaranth names a memory's ports after the variable that holds them; where none does, so.
NAMELESS = re.compile(r"^  wire width \d+ (\\\$signature__(\w+?)(?:\$\d+)?)$", re.M)
MEMORY_CELL = re.compile(r'^  cell \$mem(rd|wr)_v2 .*\n    parameter \\MEMID "\\\\(\S+)"\n', re.M)


def name_memory_ports(rtlil: str) -> str:
    r"""Name the nameless ports of memories in RTLIL text: ``\$signature__addr$51`` of a memory
    ``rows`` becomes ``\rows_read_addr``."""
    if "\\$signature__" not in rtlil:
        return rtlil
    return "".join(map(_name_memory_ports, re.split(r"(?<=^end\n)", rtlil, flags=re.M)))


def _name_memory_ports(module: str) -> str:
    ports: list[list[tuple[str, str]]] = []
    seen: set[str] = set()
    for name, member in NAMELESS.findall(module):
        if not ports or member in seen:  # the next port begins
            ports.append([])
            seen = set()
        ports[-1].append((name, member))
        seen.add(member)
    aliases = dict(re.findall(r"^connect (\\\S+) (.+)$", module, re.M))
    taken = set(re.findall(r"\\(\w+)", module))
    names: dict[str, str] = {}
    for port in ports:
        base = _memory_of(module, port, aliases) or "memory"
        prefix = base
        for number in itertools.count(2):
            if not any(f"{prefix}_{member}" in taken for _, member in port):
                break
            prefix = f"{base}_{number}"
        names |= {name: f"\\{prefix}_{member}" for name, member in port}
        taken |= {f"{prefix}_{member}" for _, member in port}
    pattern = re.compile(r"\\\$signature__\w+(?:\$\d+)?")
    return pattern.sub(lambda match: names.get(match[0], match[0]), module)


def _memory_of(module: str, port: list, aliases: dict[str, str]) -> str:
    """``MEMORY_read`` or ``MEMORY_write`` of a port's signals, by the cell they are wired to."""
    pins = {"addr": "ADDR", "data": "DATA", "en": "EN"}
    cells = []
    for match in MEMORY_CELL.finditer(module):
        cell = module[match.end() : module.index("\n  end\n", match.end())]
        kind = "read" if match[1] == "rd" else "write"
        wired = dict(re.findall(r"^    connect \\(\w+) (.+)$", cell, re.M))
        cells.append((f"{re.sub(r'[^A-Za-z0-9]+', '_', match[2])}_{kind}", wired))
    # What the cell names itself is surer than an equal source.
    for source in (lambda name: name, aliases.get):
        for (label, wired), (name, member) in itertools.product(cells, port):
            value = wired.get(pins.get(member, ""), "")
            if value and source(name) in (value, value.split()[0]):
                return label
    return ""
