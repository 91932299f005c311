"""Accumulated scores of all rows, and the row that they say is to be evicted next."""

from amaranth.hdl import Module, Signal
from amaranth.lib import data, wiring

from hw.component import Component
from hw.layout import FLAG, index
from hw.ports import Ports, stream_in, stream_out
from hw.unicaim.charge_accumulator import AccumulatorOp, ChargeAccumulator
from hw.unicaim.command import CommandOp
from hw.unicaim.core_parameters import UnicaimCoreParameters
from hw.unicaim.eviction_sense import EvictionSense
from hw.unicaim.group_sum import GroupSum


class RowAccumulation(Component[UnicaimCoreParameters]):
    """What a command does to the accumulations of its kv head (UniCAIM, section III-B4).

    A STEP starts its new row, shares the sum of its heads' scores, and a PRESET starts its row from
    0. When all rows are in use, the search downwards finds the row to evict by the next command.
    """

    def ports(self) -> Ports:
        return accumulation_ports(self.parameters)

    def elaborate(self, platform):
        m = Module()
        p, job, evict = self.parameters, self.jobs.payload, self.evict
        m.submodules.group_sum = total = GroupSum(p.group_sum)
        m.submodules.accumulator = accumulator = ChargeAccumulator(p.accumulator)
        m.submodules.eviction_sense = sense = EvictionSense(p.eviction)
        wiring.connect(m, wiring.flipped(self.values), total.i)
        wiring.connect(m, accumulator.o, sense.i)

        beat = accumulator.i.payload
        found = Signal()
        m.d.comb += [
            beat.row.eq(job.row),
            beat.mean.eq((job.op == CommandOp.STEP) if p.start == "mean" else 0),
            beat.values.eq(total.o.payload),
            evict.payload.row.eq(sense.o.payload.row),
            evict.valid.eq(sense.o.valid),
            sense.o.ready.eq(evict.ready),
            found.eq(evict.valid & evict.ready),
        ]
        if p.kv_heads > 1:
            m.d.comb += [beat.context.eq(job.context), evict.payload.context.eq(job.context)]

        shares = (job.op == CommandOp.STEP) & job.shares
        with m.FSM():
            # The new row starts first, so that it takes part in the sharing of this step's scores.
            with m.State("START"):
                m.d.comb += [
                    accumulator.i.valid.eq(self.jobs.valid),
                    beat.op.eq(AccumulatorOp.START),
                ]
                with m.If(job.op == CommandOp.RESTART):
                    m.d.comb += beat.op.eq(AccumulatorOp.CLEAR)
                with m.If(self.jobs.valid & accumulator.i.ready):
                    m.next = "DONE"
                    with m.If(job.full):
                        m.next = "SEARCH"
                    with m.If(shares):
                        m.next = "SHARE"
            # Wait for the group's sum: the accumulations move once for each step, not for each
            # head.
            with m.State("SHARE"):
                m.d.comb += [
                    accumulator.i.valid.eq(total.o.valid),
                    total.o.ready.eq(accumulator.i.ready),
                    beat.op.eq(AccumulatorOp.SHARE),
                ]
                with m.If(total.o.valid & accumulator.i.ready):
                    m.next = "DONE"
                    with m.If(job.full):
                        m.next = "SEARCH"
            # Search ahead: the row to evict is known when the next job arrives, as no score comes
            # between.
            with m.State("SEARCH"):
                m.d.comb += [accumulator.i.valid.eq(1), beat.op.eq(AccumulatorOp.SEARCH)]
                with m.If(accumulator.i.ready):
                    m.next = "FOUND"
            # The job is done only when the row manager has the result, as the next job takes that
            # row.
            with m.State("FOUND"):
                with m.If(found):
                    m.next = "DONE"
            # Accepting the job here frees its kv head (`busy` of the sequence falls).
            with m.State("DONE"):
                m.d.comb += self.jobs.ready.eq(1)
                m.next = "START"
        return m


def accumulation_ports(p: UnicaimCoreParameters) -> Ports:
    """Ports of both kinds of accumulation: from registers, and from a memory."""
    return {
        "jobs": stream_in(accumulation_layout(p), "Accepted when they are done."),
        "values": stream_in(p.group_sum.input_layout, "Scores of a step's heads."),
        "evict": stream_out(p.manager.evict_layout),
    }


def accumulation_layout(p: UnicaimCoreParameters) -> data.StructLayout:
    """A command: the ``row`` that it writes, ``evicts`` if that was in use. ``full``: all are then
    in use. ``shares``: heads bring scores."""
    row = {"row": index(range(p.rows)), "evicts": FLAG, "full": FLAG, "shares": FLAG}
    return data.StructLayout({"op": CommandOp, "context": p.context, **row})
