"""A lane that reads every chunk in order, for comparison (Token-Picker, section 5.1.3)."""

import dataclasses

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import wiring

from hw.arith.adder_tree import AdderTree, AdderTreeParameters
from hw.component import Component
from hw.layout import position
from hw.ports import Ports, stream_in, stream_out
from hw.topick.chunk_multiplier import products as multiply_chunks
from hw.topick.chunk_pipeline import Chunk, stage
from hw.topick.pe_lane import PeLaneParameters
from hw.topick.pec import Pec
from hw.topick.weighted_sums import WeightedSums


class BaselineLane(Component[PeLaneParameters]):
    """The work of :class:`PeLane` without pruning: no margins, no scoreboard, no decisions.

    Each token's chunks are requested one after another, and their responses must come in that
    order, so that a score is a sum in one register. The term 2^t of each token goes to the
    denominator once; the softmax needs it with and without pruning.

    The members are :class:`PeLane`'s without ``log_denominator``; margins, threshold and
    `exempt` of a command are not used, and `slot` is 0. ``decided`` keeps every token.

    Latency: 8 cycles from a token's last response to its difference. Throughput: one chunk per
    cycle, of keys or values. Handshake: as in :class:`PeLane`.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "command": stream_in(p.command_layout),
            "token": stream_in(position(p.token_bits)),
            "request": stream_out(p.tag_layout),
            "response": stream_in(p.response_layout),
            "difference": stream_out(p.difference_layout),
            "decided": stream_out(p.decided_layout),
            "value": stream_in(p.value_layout),
            "o": stream_out(p.sum_layout),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.sums = sums = WeightedSums(p)
        wiring.connect(m, sums.o, wiring.flipped(self.o))
        command = Signal(p.command_layout, reset_less=True)
        undecided = Signal(p.token_bits + 1)  # tokens
        # Responses are accepted only while some are pending, so that a lane in reset takes none.
        pending = Signal(range((1 << p.token_bits) * p.chunks + 1))  # requests without response
        advance = Signal()  # all pipeline stages
        taking = Signal()  # a response
        taking_value = Signal()
        starting = Signal()
        done = Signal()
        requested = self._request(m, starting)
        value = self.value.payload
        m.d.comb += [
            self.response.ready.eq(advance & (pending != 0)),
            taking.eq(self.response.valid & self.response.ready),
            # One set of multipliers serves keys and values; keys go first, as values follow from
            # scores.
            self.value.ready.eq(advance & ~(self.response.valid & (pending != 0))),
            taking_value.eq(self.value.valid & self.value.ready),
            sums.advance.eq(advance),
            sums.take.eq(taking_value),
            sums.chunk.eq(value.chunk),
            sums.p.eq(value.p),
            sums.last.eq(value.last),
            self.command.ready.eq(undecided == 0),
            starting.eq(self.command.valid & self.command.ready),
        ]
        m.d.sync += pending.eq(pending + requested - taking)
        with m.If(starting):
            m.d.sync += [
                command.eq(self.command.payload),
                undecided.eq(self.command.payload.tokens),
            ]
        with m.Elif(done):
            m.d.sync += undecided.eq(undecided - 1)
        products = multiply_chunks(
            m,
            p,
            advance,
            taking,
            self.response.payload,
            self.value.payload,
            command.q,
        )
        m.d.comb += Cat(sums.products).eq(Cat(products))
        self._score(m, sums, advance, taking, products, command, undecided, done)
        return m

    def _request(self, m: Module, starting: Signal) -> Signal:
        """All chunks of a token, then all of the next one; returns whether one is requested."""
        p = self.parameters
        remaining = Signal(p.token_bits + 1)  # tokens
        chunk = Signal(range(p.chunks))
        requested = Signal()
        m.d.comb += [
            self.request.valid.eq(self.token.valid & (remaining != 0)),
            self.request.payload.token.eq(self.token.payload),
            self.request.payload.chunk.eq(chunk),
            requested.eq(self.request.valid & self.request.ready),
            self.token.ready.eq(requested & (chunk == p.chunks - 1)),
        ]
        with m.If(starting):
            m.d.sync += remaining.eq(self.command.payload.tokens)
        # Without pruning nothing depends on what a chunk holds, so requests run ahead of responses.
        with m.Elif(requested):
            m.d.sync += chunk.eq(chunk + 1)
            with m.If(chunk == p.chunks - 1):
                m.d.sync += [chunk.eq(0), remaining.eq(remaining - 1)]
        return requested

    def _score(self, m, sums, advance, taking, products, command, undecided, done) -> None:
        """The stages of :class:`PeLane`, in which only a token's last chunk is of use."""
        p = self.parameters
        # The stages are the pruning lane's, with the same arithmetic, so that a comparison of both
        # shows what pruning costs and gains, and not two ways to multiply.
        chunk = stage(m, advance, "product", Chunk(taking, self.response.payload.tag))
        m.submodules.tree = tree = AdderTree(
            AdderTreeParameters(p.d, "fixed", width=p.bits + p.chunk_bits, stages=1)
        )
        m.d.comb += [
            tree.enable.eq(advance),
            *(i.eq(product) for i, product in zip(tree.i, products, strict=True)),
        ]
        chunk = stage(m, advance, "dot", chunk)
        # s = | previous | 0 … 0 | + q . chunk: the previous chunk's is in the same register.
        score = Signal(signed(p.score_bits), reset_less=True)
        previous = Signal(signed(p.score_bits))
        m.d.comb += previous.eq(Mux(chunk.tag.chunk == 0, 0, score))
        with m.If(advance & chunk.valid):
            m.d.sync += score.eq((previous << p.chunk_bits) + tree.o)
        chunk = stage(m, advance, "score", chunk)
        scaled = Signal(signed(p.score_bits + p.scale_bits + 1), name="scaled_score")
        m.d.comb += scaled.eq(score * command.mantissa)
        chunk = stage(m, advance, "scaled", dataclasses.replace(chunk, scaled=scaled))
        t = Signal(signed(p.width), name="t_shifted")
        m.d.comb += t.eq(chunk.scaled >> (command.shift + p.base))
        chunk = stage(m, advance, "t", dataclasses.replace(chunk, scaled=None, t=t))

        m.submodules.pec = pec = Pec(p.pec)
        # Only a token's last chunk has its whole score; the denominator gets its term then.
        keep = Signal()
        m.d.comb += [
            keep.eq(chunk.valid & (chunk.tag.chunk == p.chunks - 1)),
            pec.enable.eq(advance),
            pec.t.eq(chunk.t),
            done.eq(advance & keep),
        ]
        chunk = Chunk(chunk.valid, chunk.tag, keep=keep, ended=undecided == 1, t=chunk.t)
        for name in ("decided", "term"):
            chunk = stage(m, advance, name, chunk)
        outputs = self.difference, self.decided
        for port in outputs:
            with m.If(advance):
                m.d.sync += port.valid.eq(chunk.valid & chunk.keep)
            with m.Elif(port.ready):
                m.d.sync += port.valid.eq(0)
        free = Cat(~port.valid | port.ready for port in outputs).all()
        m.d.comb += advance.eq(free & sums.free)
        chunk = stage(m, advance, "result", chunk)
        decided = self.decided.payload
        m.d.comb += [
            self.difference.payload.limb.eq(pec.limb),
            self.difference.payload.high.eq(pec.high),
            self.difference.payload.low.eq(pec.low),
            decided.token.eq(chunk.tag.token),
            decided.chunk.eq(chunk.tag.chunk),
            decided.t.eq(chunk.t),
            decided.kept.eq(1),
            decided.last.eq(chunk.ended),
        ]
