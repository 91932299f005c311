"""The last stage of ToPick's lane: each decision to all who wait for it."""

from amaranth.hdl import Cat, Module, Signal

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
    outputs = [
        (write.valid, write.ready, chunk.valid, writing),
        (later.valid, later.ready, chunk.valid & chunk.request, asking),
        (lane.difference.valid, lane.difference.ready, chunk.valid & chunk.differs, None),
        (outcome.valid, outcome.ready, chunk.valid & ~chunk.request, None),
    ]
    if lane.parameters.observe:
        outputs.append((lane.observed.valid, lane.observed.ready, chunk.valid, None))
    # A decision goes to up to four places at their own pace: each flag is cleared when its output
    # is taken, so no beat is sent twice while another output still waits.
    for valid, ready, set_valid, register in outputs:
        # The ports of the lane are registers themselves.
        register = valid if register is None else register
        if register is not valid:
            m.d.comb += valid.eq(register)
        with m.If(advance):
            m.d.sync += register.eq(set_valid)
        with m.Elif(ready):
            m.d.sync += register.eq(0)
    m.d.comb += free.eq(Cat(~valid | ready for valid, ready, *_ in outputs).all())
    chunk = stage(m, advance, "result", chunk)
    m.d.comb += [
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
