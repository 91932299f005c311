"""Registers of a row that passes a few lanes and comes back behind."""

from collections.abc import Sequence

from amaranth.hdl import Module, Value


def connect_ring(
    m: Module,
    elements: Sequence[Value],
    row: Sequence[Value],
    back: Sequence[Value],
    load: Value,
    move: Value,
    other: tuple[Value, Sequence[Value]] | None = None,
) -> None:
    """Drive the registers `elements`: by a new `row` at `load`; by those behind them at `move`.

    back
        What comes in behind the last ones: a result of each lane, which are at the first elements.
    other
        A third flag, and what the elements become then. Flags are one-hot or 0.
    """
    # A lane's results move to their places while the elements after them reach the lanes.
    behind = [*elements[len(back) :], *back]
    for number, element in enumerate(elements):
        with m.If(load):
            m.d.sync += element.eq(row[number])
        with m.Elif(move):
            m.d.sync += element.eq(behind[number])
        if other is not None:
            flag, values = other
            with m.Elif(flag):
                m.d.sync += element.eq(values[number])
