"""A head's scores, estimated or exact, and the largest of them (LAD, section IV-B, part 2)."""

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data

from hw.arith.bits.order_key import NAN_KEY, to_key
from hw.arith.float_format import FP16
from hw.component import Component
from hw.lad.scores.score_source import score_layout
from hw.lad.tile_parameters import LadTileParameters
from hw.layout import index, mask
from hw.ports import Ports, wire_in, wire_out


class ScoreOutput(Component[LadTileParameters]):
    """Estimates where they count, exact scores otherwise; maximum = max(maximum, scores).

    ::

        estimate ─→ register ─→ not in M, not in the window ┬→ score ─→ larger ─→ maximum
        exact ──────────────────────────────────────────────┘

    Scores are compared as order keys, which are integers: NaN is below every number, so it is
    ignored unless all scores are NaN.

    Latency: 1 cycle from an estimate to its scores, 2 from scores to the maximum, a comparison in
    each, which keeps their paths short. Throughput: a pair of estimates, or an exact score, per
    cycle. Handshake: an exact score gives way to estimates, which cannot wait.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "restart": wire_in(1, "A new head: the maximum is below every number."),
            "old": wire_in(p.number, "Number of positions before the window."),
            "estimate": wire_in(score_layout(p), "Estimated scores of a pair of positions."),
            "bits_row": wire_out(index(range(max(2, p.table_rows))), "Row of M's bits to read."),
            "bits": wire_in(p.d, "These bits, in the cycle after `bits_row`."),
            "ready": wire_out(1, "An exact score can be output."),
            "exact_valid": wire_in(1, "An exact score is there; only with `ready`."),
            "exact_index": wire_in(p.position, "Position of `exact`."),
            "exact": wire_in(FP16, "Score of a whole key, valid with `exact_valid`."),
            "score_valid": wire_out(1),
            "score_index": wire_out(
                range(p.positions + 2), "Even position of the first score of the pair."
            ),
            "scores": wire_out(
                data.ArrayLayout(FP16, 2), "Scores of the pair, valid with `score_valid`."
            ),
            "score_keep": wire_out(mask(2), "Which of `scores` count."),
            "maximum": wire_out(FP16.width, "Order key of the largest score."),
            "pending": wire_out(1, "The scores of the cycle before are not in the maximum yet."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        # Estimates wait a cycle for M's bits.
        estimate = Signal(score_layout(p))
        m.d.sync += estimate.eq(self.estimate)
        bits = Signal(2)
        below = Signal(2)  # the window, whose positions have exact scores
        pairs = data.ArrayLayout(2, p.d // 2)(self.bits)
        m.d.comb += [
            self.bits_row.eq(self.estimate.index >> p.element_bits),
            bits.eq(Array(pairs)[estimate.index[1 : p.element_bits]]),
            # A position in M or in the window gets its exact score later or has had it: the
            # estimate of such a position must not reach the maximum, as it may be too large.
            below.eq(Cat(estimate.index + k < self.old for k in range(2))),
            self.ready.eq(~estimate.valid),
            self.score_valid.eq(estimate.valid | self.exact_valid),
        ]
        # An estimate comes with the scores of two positions, an exact score alone.
        place = self.exact_index
        with m.If(estimate.valid):
            m.d.comb += [
                self.score_index.eq(estimate.index),
                self.scores.eq(estimate.s),
                self.score_keep.eq(~bits & below),
            ]
        with m.Else():
            m.d.comb += [
                self.score_index.eq(Cat(0, place[1:])),
                *(score.eq(self.exact) for score in self.scores),
                self.score_keep.eq(Cat(~place[0], place[0])),
            ]
        changed = self._compare(m)
        m.d.comb += self.pending.eq(changed)
        return m

    def _compare(self, m: Module) -> Signal:
        """The larger one of a pair, then the largest one of all. Returns: a pair is between."""
        # m of equation (4) is a maximum over all positions, so pairs may come in any order. The two
        # comparisons, within the pair and with the maximum so far, are in different cycles.
        keys = [Signal(FP16.width, name=f"score_key_{k}") for k in range(2)]
        larger = Signal(FP16.width, init=NAN_KEY)
        changed = Signal()
        for number, key in enumerate(keys):
            kept = self.score_valid & self.score_keep[number]
            m.d.comb += key.eq(Mux(kept, to_key(self.scores[number]), NAN_KEY))
        m.d.sync += [
            larger.eq(Mux(keys[0] > keys[1], *keys)),
            changed.eq(self.score_valid),
        ]
        with m.If(larger > self.maximum):
            m.d.sync += self.maximum.eq(larger)
        # The parent restarts only when no score is pending, so no key of the last head can come
        # after.
        with m.If(self.restart):
            m.d.sync += self.maximum.eq(NAN_KEY)
        return changed
