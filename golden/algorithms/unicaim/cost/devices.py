"""Devices of the array and of its sense lines (sections III-B2 to III-B4, Fig. 10)."""

import dataclasses

from golden.algorithms.unicaim.cost.counts import Pruning


@dataclasses.dataclass(frozen=True)
class ArrayShape:
    """The paper's array by default (section IV-A).

    heavy, reserved
        Rows for the prompt's tokens and for generated ones, with static pruning.
    d
        Elements of a key.
    key_bits, cell_bits
        Number of bits of an element, and of bits that one cell stores. An element of more bits
        takes several cells: its slices, each slice of a row on a separate sense line, because one
        line cannot weigh its cells differently.
    """

    heavy: int = 512
    reserved: int = 64
    d: int = 128
    key_bits: int = 3
    cell_bits: int = 3

    def __post_init__(self) -> None:
        for name in ("d", "key_bits", "cell_bits"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if min(self.heavy, self.reserved) < 0 or self.rows < 1:
            raise ValueError("heavy and reserved must be at least 0, and their sum at least 1")

    @property
    def rows(self) -> int:
        """Rows with static pruning."""
        return self.heavy + self.reserved

    @property
    def slices(self) -> int:
        """Cells of an element and sense lines of a row."""
        return -(-self.key_bits // self.cell_bits)


@dataclasses.dataclass(frozen=True)
class Devices:
    """FeFETs, transistors, and capacitors apart from the lines' own."""

    fefets: int = 0
    transistors: int = 0
    capacitors: int = 0

    @property
    def total(self) -> int:
        """FeFETs and transistors: the paper's "device count", which its text does not define."""
        return self.fefets + self.transistors

    def __add__(self, other: "Devices") -> "Devices":
        return Devices(
            self.fefets + other.fefets,
            self.transistors + other.transistors,
            self.capacitors + other.capacitors,
        )

    def __mul__(self, factor: int) -> "Devices":
        return Devices(self.fefets * factor, self.transistors * factor, self.capacitors * factor)


CELL = Devices(fefets=2, transistors=2)
"""Two units of one transistor and one FeFET (section III-B2, Fig. 5a)."""

PRECHARGE = Devices(transistors=1)
"""One p-type transistor for each sense line (section III-B3). Both searches need it."""

TOP_K = Devices(transistors=4, fefets=1)
"""One buffer and F_dyn for each line (section III-B3); two inverters as the buffer are assumed."""

EVICTION = Devices(transistors=3, fefets=2, capacitors=1)
"""The switch S1, the FeFET-based inverter, F_sta, the discharge transistor and C_Acc for each line
(section III-B4). S1 as one transistor and FE-INV as one FeFET and one transistor are assumed."""


def line_devices(pruning: Pruning) -> Devices:
    """Periphery of one sense line.

    Left out as the text does not count them: multiplexer, converters, drivers of bit lines and the
    registers of selected addresses. All but the last are needed without pruning too.
    """
    made = Devices()
    if pruning.static or pruning.dynamic:
        made += PRECHARGE
    if pruning.dynamic:
        made += TOP_K
    if pruning.static:
        made += EVICTION
    return made


def array_rows(shape: ArrayShape, pruning: Pruning, prompt: int, generated: int) -> int:
    """Rows that the array must have: all tokens, or with static pruning its fixed number."""
    return shape.rows if pruning.static else prompt + generated


def devices(shape: ArrayShape, pruning: Pruning, rows: int) -> Devices:
    """Devices of an array of ``rows`` tokens, with the periphery of its sense lines."""
    if rows < 0:
        raise ValueError(f"rows must be at least 0, not {rows}")
    return (CELL * shape.d + line_devices(pruning)) * (rows * shape.slices)
