"""A key's chunk in the pipeline of the lane, and one more stage of registers for it."""

import dataclasses
from typing import Any

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import data


@dataclasses.dataclass(frozen=True)
class Chunk:
    """A chunk of a key in a pipeline stage. Numbers that the stage does not hold are None.

    The stages of a lane, one cycle apart, and what each one's registers hold::

        product   q k of each element; the scoreboard's entry: previous score, earlier term
        dot       sum of the products
        score     s = previous 2^chunk_bits + dot
        scaled    s mantissa, without its lowest bits
        t         t, by a right shift                 (log_denominator is taken here)
        decided   prune, request or keep;  Pec: exponent of the term
        term                               Pec: significand of the term
        result                             Pec: difference to the earlier term

    previous
        Partial score before this chunk.
    shift, significand
        The token's earlier term.
    score, scaled, t
        Partial score with this chunk; times the scale's mantissa; as a binary logarithm.
    request, keep, differs, ended
        The decision: request the next chunk; keep the token; there is a difference for the
        denominator; it was the head's last decision.
    denominator
        With which the decision was made, where it is observed.
    """

    valid: Value
    tag: data.View
    # Values, or None.
    previous: Any = None
    shift: Any = None
    significand: Any = None
    score: Any = None
    scaled: Any = None
    t: Any = None
    request: Any = None
    keep: Any = None
    differs: Any = None
    ended: Any = None
    denominator: Any = None


def stage(m: Module, advance: Signal, name: str, chunk: Chunk) -> Chunk:
    """The chunk one pipeline stage later, in registers ``valid_name``, ``tag_name``, ...

    They change in the cycles in which `advance` is high. Only ``valid`` is reset.
    """
    # Fields that a stage no longer needs are None and cost no register.
    registers: dict[str, Any] = {"valid": Signal(name=f"valid_{name}")}
    for field in dataclasses.fields(chunk):
        value = getattr(chunk, field.name)
        if value is not None and field.name != "valid":
            named = f"{field.name}_{name}"
            registers[field.name] = Signal.like(value, name=named, reset_less=True, init=None)
    with m.If(advance):
        m.d.sync += [
            Value.cast(register).eq(Value.cast(getattr(chunk, key)))
            for key, register in registers.items()
        ]
    return Chunk(**registers)
