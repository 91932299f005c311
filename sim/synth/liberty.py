"""Cells and tables of a Liberty library, as far as area, function and delay need them.

Times are picoseconds and capacitances femtofarads, whatever units the file uses; areas are in the
file's own unit. Read are: pins (direction, capacitance, function), ``ff`` and ``latch`` groups,
timing arcs with delay, transition and constraint tables. Noise and wire loads are skipped; power is
read by :mod:`sim.synth.power`.
"""

import bisect
import dataclasses
import math
import re
from pathlib import Path

from sim.synth import SynthesisError, UnusableLibrary


@dataclasses.dataclass(frozen=True)
class Table:
    """A look-up table over input slew (ps) and load (fF), or over data and clock slew (ps).

    A constant, or a table over one of the two, has a single point on the missing axes.
    """

    rows: tuple[float, ...]
    columns: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]

    def __call__(self, row: float, column: float) -> float:
        """Bilinear interpolation; beyond the table, extrapolation from its outermost points."""
        i, u = _position(self.rows, row)
        j, v = _position(self.columns, column)
        upper = self.values[i]
        value = upper[j] + v * (upper[j + 1] - upper[j]) if v else upper[j]
        if not u:
            return value
        lower = self.values[i + 1]
        below = lower[j] + v * (lower[j + 1] - lower[j]) if v else lower[j]
        return value + u * (below - value)


def _position(axis: tuple[float, ...], at: float) -> tuple[int, float]:
    """The segment of an axis to use for a value, and the place within (or beyond) it."""
    if len(axis) == 1:
        return 0, 0.0
    i = min(max(bisect.bisect_right(axis, at) - 1, 0), len(axis) - 2)
    return i, (at - axis[i]) / (axis[i + 1] - axis[i])


@dataclasses.dataclass(frozen=True)
class Arc:
    """One timing group, from a related pin to the pin that holds it.

    kind
        Liberty's ``timing_type``; ``combinational`` when the file gives none.
    sense
        ``positive_unate``, ``negative_unate`` or ``non_unate``.
    delay, slew, constraint
        Tables by the edge of the pin that holds the arc, 0 for rising and 1 for falling;
        None where the file has none.
    """

    related: str
    kind: str
    sense: str
    delay: tuple[Table | None, Table | None]
    slew: tuple[Table | None, Table | None]
    constraint: tuple[Table | None, Table | None]


@dataclasses.dataclass(frozen=True)
class Pin:
    """A signal pin.

    capacitance
        fF at a rising and at a falling edge.
    three_state
        Whether the output can be off.
    """

    name: str
    direction: str
    capacitance: tuple[float, float]
    function: str | None
    three_state: bool
    arcs: tuple[Arc, ...]


@dataclasses.dataclass(frozen=True)
class Cell:
    """A library cell. `register` holds the attributes of its ``ff`` group, `state` its two names.

    is_latch
        Whether the cell keeps its state while its clock is at one level.
    dont_use
        Whether the library asks tools to leave it out.
    """

    name: str
    area: float
    pins: dict[str, Pin]
    register: dict[str, str] | None
    state: tuple[str, str] | None
    is_latch: bool
    dont_use: bool

    @property
    def gate(self) -> tuple[tuple[str, ...], str] | None:
        """Input names and function of a cell that is one gate, fit for mapping; else None."""
        outputs = [pin for pin in self.pins.values() if pin.direction == "output"]
        inputs = tuple(pin.name for pin in self.pins.values() if pin.direction == "input")
        if self.register is not None or self.is_latch or self.dont_use or not inputs:
            return None
        if len(outputs) != 1 or outputs[0].three_state or not outputs[0].function:
            return None
        return inputs, outputs[0].function

    @property
    def data_pins(self) -> list[Pin]:
        """Input pins that a register's next state depends on."""
        names = re.findall(r"\w+", (self.register or {}).get("next_state", ""))
        pins = self.pins.values()
        return [pin for pin in pins if pin.direction == "input" and pin.name in names]


@dataclasses.dataclass(frozen=True)
class Library:
    """All cells of a Liberty file."""

    name: str
    path: Path
    cells: dict[str, Cell]


TOKEN = re.compile(
    r"""\s+|/\*.*?\*/|//[^\n]*|\\\s*\n        # skipped: blanks, comments, continued lines
    |"((?:[^"\\]|\\.)*)"                       # 1: string
    |([^\s"(){}:;,]+)                          # 2: word
    |([(){}:;,])                               # 3: sign
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclasses.dataclass
class Group:
    """A Liberty group: its kind, arguments, simple and complex attributes, and subgroups."""

    kind: str
    arguments: list[str]
    attributes: dict[str, str] = dataclasses.field(default_factory=dict)
    complex: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    groups: list["Group"] = dataclasses.field(default_factory=list)

    def of(self, *kinds: str) -> list["Group"]:
        return [group for group in self.groups if group.kind in kinds]


def _parse(text: str, path: Path) -> Group:
    # Strings and other tokens are told apart by nothing later: no string is a single sign.
    tokens = [m[2] or m[3] or m[1] for m in TOKEN.finditer(text) if m.lastindex]
    root = Group("", [])
    stack = [root]
    at = 0
    try:
        while at < len(tokens):
            name = tokens[at]
            if name == "}":
                stack.pop()
                at += 1
            elif name == ";":
                at += 1
            elif tokens[at + 1] == ":":
                at += 2
                words: list[str] = []
                # Where a writer forgot the semicolon, a value ends before the next name.
                while tokens[at] not in (";", "}") and not (words and tokens[at + 1] in (":", "(")):
                    words.append(tokens[at])
                    at += 1
                stack[-1].attributes[name] = " ".join(words)
            elif tokens[at + 1] == "(":
                end = tokens.index(")", at)
                arguments = [token for token in tokens[at + 2 : end] if token != ","]
                at = end + 1
                if at < len(tokens) and tokens[at] == "{":
                    stack[-1].groups.append(Group(name, arguments))
                    stack.append(stack[-1].groups[-1])
                    at += 1
                else:
                    stack[-1].complex[name] = arguments
            else:
                raise IndexError
        if len(stack) != 1:
            raise IndexError
        return root.of("library")[0]
    except (IndexError, ValueError):
        raise UnusableLibrary(f"{path} is not a Liberty file") from None


def _number(text: str) -> float:
    """:raises ValueError: unless it is a finite number; ``float`` takes ``nan``, too."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no finite number")
    return value


def _numbers(texts: list[str]) -> tuple[float, ...]:
    return tuple(_number(word) for text in texts for word in text.replace(",", " ").split())


TIME_UNITS = {"s": 1e12, "ms": 1e9, "us": 1e6, "ns": 1e3, "ps": 1.0, "fs": 1e-3}
LOAD_UNITS = {"ff": 1.0, "pf": 1e3, "nf": 1e6}
SLEWS = ("input_net_transition", "input_transition_time", "constrained_pin_transition")
LOADS = ("total_output_net_capacitance", "related_pin_transition")


class Reader:
    """Turns groups into cells, in picoseconds and femtofarads."""

    def __init__(self, library: Group):
        time_unit = library.attributes.get("time_unit", "1ns")
        found = re.fullmatch(r"([\d.]+)\s*(\w+)", time_unit)
        if found is None:
            raise ValueError(f"time_unit {time_unit}")
        self.time = float(found[1]) * TIME_UNITS[found[2].lower()]
        number, unit = library.complex.get("capacitive_load_unit", ["1", "pf"])
        self.load = float(number) * LOAD_UNITS[unit.lower()]
        self.default_load = library.attributes.get("default_input_pin_cap", "0")
        self.templates = {
            g.arguments[0]: g for g in library.of("lu_table_template", "power_lut_template")
        }
        self.axes: dict[tuple[float, ...], tuple[float, ...]] = {}
        self.library = library

    def axis(self, numbers: tuple[float, ...], scale: float) -> tuple[float, ...]:
        # Tables share few axes; one tuple each keeps the parsed library small.
        axis = tuple(x * scale for x in numbers)
        return self.axes.setdefault(axis, axis)

    def table(self, group: Group | None, unit: float | None = None) -> Table | None:
        """A group's table, its values times `unit`; of times if that is None."""
        if group is None or "values" not in group.complex:
            return None
        name = group.arguments[0] if group.arguments else "scalar"
        scale = self.time if unit is None else unit
        numbers = tuple(x * scale for x in _numbers(group.complex["values"]))
        if len(numbers) == 1:
            return Table((0.0,), (0.0,), ((numbers[0],),))
        template = self.templates.get(name)
        if template is None:
            raise SynthesisError(f"table template {name} is not in the library")
        axes = {}
        for n in (1, 2):
            variable = template.attributes.get(f"variable_{n}")
            if variable is None:
                continue
            index = group.complex.get(f"index_{n}") or template.complex[f"index_{n}"]
            if variable not in SLEWS + LOADS:
                raise SynthesisError(f"table template {name} varies over {variable}, unsupported")
            scale = self.load if variable == LOADS[0] else self.time
            axes[variable in LOADS] = (n, self.axis(_numbers(index), scale))
        rows, columns = (axes[k][1] if k in axes else (0.0,) for k in (False, True))
        if len(numbers) != len(rows) * len(columns):
            sizes = f"{len(rows)} by {len(columns)}"
            raise SynthesisError(f"a table of {name} has {len(numbers)} values, not {sizes}")
        if False in axes and True in axes and axes[False][0] == 2:
            numbers = tuple(
                numbers[c * len(rows) + r] for r in range(len(rows)) for c in range(len(columns))
            )
        width = len(columns)
        return Table(
            rows, columns, tuple(numbers[r * width : (r + 1) * width] for r in range(len(rows)))
        )

    def arc(self, group: Group, related: str) -> Arc:
        def pair(rise: str, fall: str):
            return tuple(self.table(next(iter(group.of(kind)), None)) for kind in (rise, fall))

        return Arc(
            related,
            group.attributes.get("timing_type", "combinational"),
            group.attributes.get("timing_sense", "non_unate"),
            pair("cell_rise", "cell_fall"),
            pair("rise_transition", "fall_transition"),
            pair("rise_constraint", "fall_constraint"),
        )

    def pin(self, group: Group, name: str) -> Pin:
        attributes = group.attributes
        plain = attributes.get("capacitance", self.default_load)
        rise, fall = (attributes.get(f"{edge}_capacitance", plain) for edge in ("rise", "fall"))
        kept = ("combinational", "rising_edge", "falling_edge", "setup_rising", "setup_falling")
        return Pin(
            name,
            attributes.get("direction", "internal"),
            (_number(rise) * self.load, _number(fall) * self.load),
            attributes.get("function"),
            "three_state" in attributes,
            tuple(
                self.arc(timing, related)
                for timing in group.of("timing")
                if timing.attributes.get("timing_type", "combinational").startswith(kept)
                for related in timing.attributes.get("related_pin", "").split()
            ),
        )

    def cell(self, group: Group) -> Cell:
        flip_flops = group.of("ff", "ff_bank")
        area = _number(group.attributes.get("area", "0"))
        if area < 0:
            raise ValueError(f"cell {group.arguments[0]} has an area of {area:g}")
        return Cell(
            group.arguments[0],
            area,
            {name: self.pin(pin, name) for pin in group.of("pin") for name in pin.arguments},
            flip_flops[0].attributes if flip_flops else None,
            (flip_flops[0].arguments[0], flip_flops[0].arguments[1]) if flip_flops else None,
            bool(group.of("latch", "latch_bank", "statetable")),
            group.attributes.get("dont_use", "false").lower() == "true",
        )


def read_group(path: Path) -> Group:
    """A Liberty file's groups and attributes as they are.

    :raises SynthesisError: if it is not a Liberty file.
    :raises OSError: if it cannot be read.
    """
    return _parse(path.read_text(encoding="latin-1"), path)


def read(path: Path) -> Library:
    """Read a Liberty file.

    :raises SynthesisError: if it is not a Liberty file or uses what this reader does not know.
    :raises OSError: if it cannot be read.
    """
    group = read_group(path)
    try:
        reader = Reader(group)
        cells = {cell.arguments[0]: reader.cell(cell) for cell in group.of("cell")}
    except (ValueError, KeyError, IndexError, AttributeError) as error:
        raise UnusableLibrary(f"{path} has a part that cannot be read ({error})") from None
    if not cells:
        raise UnusableLibrary(f"{path} has no cells")
    for cell in cells.values():
        _check_slews(cell, path)
    return Library(group.arguments[0] if group.arguments else path.stem, path, cells)


def _check_slews(cell: Cell, path: Path) -> None:
    """Check that cells with delays have transition times; without, their loads look too fast.

    :raises SynthesisError: if a cell that may be mapped to has one.
    """
    for pin in cell.pins.values() if cell.gate or cell.register else ():
        for arc in pin.arcs:
            for edge, delay, slew in zip(("rise", "fall"), arc.delay, arc.slew, strict=True):
                if delay is not None and slew is None:
                    raise SynthesisError(
                        f"{path}: cell {cell.name} has a cell_{edge} table from {arc.related} to"
                        f" {pin.name}, but no {edge}_transition"
                    )
