"""Assumptions on a design's inputs in a proof of equivalence: rules of streams as solver terms."""

import dataclasses
from collections.abc import Iterator

from amaranth.hdl import Shape
from amaranth.lib import data
from bitwuzla import Kind, Term

from sim.checks.formal.transition import System


def remember_offers(system: System, sources: dict) -> tuple[System, Term]:
    """The system with registers for the beats stalled at its inputs, and the rule on its inputs.

    sources
        Input stream name to payload shape.
    """
    terms, manager = system.terms, system.terms.manager
    following, rules = dict(system.next), []
    for stream, shape in sources.items():
        valid, payload = (system.inputs[f"{stream}__{member}"] for member in ("valid", "payload"))
        waits, beat = terms.fresh(valid, f"{stream} waits"), terms.fresh(payload, f"{stream} beat")
        refused = manager.mk_term(Kind.BV_NOT, [system.outputs[f"{stream}__ready"]])
        following[waits] = manager.mk_term(Kind.BV_AND, [valid, refused])
        following[beat] = payload
        if "rst" in system.inputs:
            running = manager.mk_term(Kind.BV_NOT, [system.inputs["rst"]])
            following[waits] = manager.mk_term(Kind.BV_AND, [following[waits], running])
        kept = terms.all([terms.bit(valid, 0), terms.equal(payload, beat)])
        rules.append(terms.any([terms.negate(terms.bit(waits, 0)), kept]))
        for offset, width, limit in limits(shape):
            field = manager.mk_term(Kind.BV_EXTRACT, [payload], [offset + width - 1, offset])
            most = terms.value(field.sort(), limit - 1)
            rules.append(manager.mk_term(Kind.BV_ULE, [field, most]))
    return dataclasses.replace(system, next=following), terms.all(rules)


def limits(shape, offset: int = 0) -> Iterator[tuple[int, int, int]]:
    """Offset, width and end of the range, for each payload field that is a range from 0."""
    if isinstance(shape, range):
        width = Shape.cast(shape).width
        if shape.start == 0 and shape.step == 1 and 0 < shape.stop < 1 << width:
            yield offset, width, shape.stop
    elif isinstance(shape, data.Layout):
        for _, field in shape:
            yield from limits(field.shape, offset + field.offset)
