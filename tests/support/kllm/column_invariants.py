"""Invariants of queues and exact sums: registers agree with the number of columns inside."""

from amaranth.hdl import Assert, Module, Mux, Signal

from sim.checks.formal.specs import Internals


def level_of(m: Module, internals: Internals, queue: str, depth: int) -> Signal:
    """The level of a queue; asserts that its pointers agree with it."""
    names = ("level", "produce", "consume")
    level, produce, consume = (internals.signal(f"{queue}.fifo.{name}") for name in names)
    place = consume + level
    m.d.comb += [
        Assert((level <= depth) & (produce < depth) & (consume < depth)),
        Assert(produce == Mux(place < depth, place, place - depth)),
    ]
    return level


def stages_of(internals: Internals, name: str, valid: list[str], last: list[str]) -> list:
    """For each pipeline stage of an exact sum, whether it holds the end of a column.

    valid, last
        Names of the registers of the stages before it.
    """
    pairs = zip(valid, last, strict=True)
    ends = [internals.signal(f"{name}.{v}") & internals.signal(f"{name}.{w}") for v, w in pairs]
    rows = internals.signal(f"{name}.sum.control_rows")
    ends += [rows[0] & rows[1], internals.signal(f"{name}.sum.done")]
    return [*ends, internals.signal(f"{name}.sum.control_normal")[0]]


def columns_in(
    m: Module, internals: Internals, name: str, most: int, valid: list[str], last: list[str]
) -> Signal:
    """Number of columns in an exact sum; asserts that it equals its lent credits, of `most`."""
    inside = Signal(5, name=f"inside_{name}")
    level = level_of(m, internals, f"{name}.sum.queue", most)
    m.d.comb += [
        inside.eq(sum(stages_of(internals, name, valid, last)) + level),
        Assert(internals.signal(f"{name}.sum.credits.free") + inside == most),
    ]
    return inside
