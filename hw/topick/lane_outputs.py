"""The last stage of ToPick's lane: each decision to all who wait for it."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Signal

from hw.topick.chunk_pipeline import Chunk, stage
from hw.topick.pec import Pec


def deliver(m: Module, lane, advance: Signal, chunk: Chunk, pec: Pec, write, later) -> Signal:
    """Stage "result": each of the outputs of a decision has a separate valid bit.

    It is set as the lane advances and cleared when the output is taken. Returns whether the lane
    may advance: when all outputs are free or are taken in this cycle.

    lane
        The :class:`hw.topick.pe_lane.PeLane` with the ports.
    chunk
        The decision in stage "term".
    write, later
        To the scoreboard, and the request for the token's next chunk.
    """
    writing = Signal()
    asking = Signal()
    free = Signal(name="outputs_free")
    outcome = lane.decided
    # A slot is the token's, and has no entry and no request; so both take it at once, unless a
    # response has come before its request.
    waits = lane.parameters.waits
    ports = [(lane.difference, chunk.differs), (outcome, ~chunk.request)]
    if lane.parameters.observe:
        ports.append((lane.observed, Const(1)))
    outputs: list[tuple[Any, Any, Any]] = [
        (writing, write.ready if waits else Const(1), chunk.valid),
        (asking, later.ready if waits else Const(1), chunk.valid & chunk.request),
        *((port.valid, port.ready, chunk.valid & wanted) for port, wanted in ports),
    ]
    # A decision goes to several places at their own pace: each flag is cleared when its output is
    # taken, so no beat is sent twice while another output still waits. The ports are registers.
    for register, ready, set_valid in outputs:
        with m.If(advance):
            m.d.sync += register.eq(set_valid)
        with m.Elif(ready):
            m.d.sync += register.eq(0)
    m.d.comb += free.eq(Cat(~register | ready for register, ready, _ in outputs).all())
    chunk = stage(m, advance, "result", chunk)
    m.d.comb += [
        write.valid.eq(writing),
        later.valid.eq(asking),
        lane.difference.payload.limb.eq(pec.limb),
        lane.difference.payload.high.eq(pec.high),
        lane.difference.payload.low.eq(pec.low),
        outcome.payload.token.eq(chunk.tag.token),
        outcome.payload.chunk.eq(chunk.tag.chunk),
        outcome.payload.t.eq(chunk.t),
        outcome.payload.kept.eq(chunk.keep),
        outcome.payload.last.eq(chunk.ended),
        write.payload.slot.eq(chunk.tag.slot),
        write.payload.park.eq(chunk.request),
        write.payload.entry.score.eq(chunk.score),
        write.payload.entry.shift.eq(pec.shift),
        write.payload.entry.significand.eq(pec.significand),
        later.payload.token.eq(chunk.tag.token),
        later.payload.chunk.eq(chunk.tag.chunk + 1),
        later.payload.slot.eq(chunk.tag.slot),
    ]
    if lane.parameters.observe:
        m.d.comb += [
            lane.observed.payload.tag.eq(chunk.tag),
            lane.observed.payload.denominator.eq(chunk.denominator),
        ]
    return free
