"""A placement as a DEF file, which layout tools read beside the library's LEF files.

It has rows, placed cells, ports as pins at their places, nets with their pins, and tracks if the
core's layers are known. Cells are named ``u<number>`` and nets ``n<number>``, as in Yosys' netlist;
ports have their own names. Constants, power and fillers are left to the reader.
"""

from collections.abc import Iterator

from sim.synth.liberty import Library
from sim.synth.placement import Placement

UNITS = 2000
"""Units of length in a µm."""

MARGIN = 2
"""Rows between the core and the die's edge, where ports are."""


PORT = 0.07
"""Half the width of a port's square, in µm."""


def text(placement: Placement, library: Library) -> str:
    """The file's content; its design is named as the netlist."""
    return "\n".join([*_head(placement), *_cells(placement), *_nets(placement, library), ""])


def _units(um: float) -> int:
    return round(um * UNITS)


def _head(placement: Placement) -> Iterator[str]:
    core = placement.core
    margin = _units(MARGIN * core.height)
    width, height = _units(placement.width), _units(placement.height)
    yield from ("VERSION 5.8 ;", 'DIVIDERCHAR "/" ;', 'BUSBITCHARS "[]" ;')
    yield from (f"DESIGN {placement.netlist.name} ;", f"UNITS DISTANCE MICRONS {UNITS} ;")
    yield f"DIEAREA ( {-margin} {-margin} ) ( {width + margin} {height + margin} ) ;"
    sites, step = round(placement.width / core.width), _units(core.width)
    for row in range(placement.rows):
        turn, y = ("FS" if row % 2 else "N"), _units(row * core.height)
        yield f"ROW row{row} {core.site} 0 {y} {turn} DO {sites} BY 1 STEP {step} 0 ;"
    for name, axis, pitch, place in core.layers or ():
        length, step = width if axis == "X" else height, _units(pitch)
        # The first track inside the die.
        first = _units(place) - (_units(place) + margin) // step * step
        count = (length + margin - first) // step + 1
        yield f"TRACKS {axis} {first} DO {count} STEP {step} LAYER {name} ;"


def _cells(placement: Placement) -> Iterator[str]:
    cells = placement.netlist.cells
    yield f"COMPONENTS {len(cells)} ;"
    for number, (cell, turn) in enumerate(zip(cells, placement.turned, strict=True)):
        at = " ".join(str(_units(value)) for value in placement.corners[number])
        yield f"- u{number} {cell.kind} + PLACED ( {at} ) {turn} ;"
    yield "END COMPONENTS"
    yield f"PINS {len(placement.ports)} ;"
    margin, layers = MARGIN * placement.core.height / 2, placement.core.layers
    half = _units(PORT)
    for port in placement.ports:
        # In the middle between the core and the edge of the die.
        x = port.x + margin * ((port.x >= placement.width) - (port.x <= 0))
        y = port.y + margin * ((port.y >= placement.height) - (port.y <= 0))
        yield f"- {port.name} + NET n{port.net} + DIRECTION {port.direction}"
        if layers:
            yield f"  + LAYER {layers[2][0]} ( {-half} {-half} ) ( {half} {half} )"
        yield f"  + PLACED ( {_units(x)} {_units(y)} ) N ;"
    yield "END PINS"


def _nets(placement: Placement, library: Library) -> Iterator[str]:
    """A line for each pin: some readers stop at long lines."""
    pins: dict[int, list[str]] = {port.net: [] for port in placement.ports}
    for port in placement.ports:
        pins[port.net].append(f"  ( PIN {port.name} )")
    for number, cell in enumerate(placement.netlist.cells):
        for name, net in cell.connections.items():
            if net is not None:
                pins.setdefault(net, []).append(f"  ( u{number} {name} )")
    clocks = placement.netlist.clocks(library)
    yield f"NETS {len(pins)} ;"
    for net, connected in pins.items():
        yield f"- n{net}{' + USE CLOCK' if net in clocks else ''}"
        yield from connected
        yield "  ;"
    yield from ("END NETS", "END DESIGN")
