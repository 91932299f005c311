"""How far scores may be from partial scores, from the query alone (Token-Picker, section 4)."""

import dataclasses
from typing import ClassVar

from amaranth.hdl import Cat, Module, Signal, signed, unsigned
from amaranth.lib import data

from hw.arith.adder_tree import AdderTree, AdderTreeParameters
from hw.arith.datapath import Datapath, DatapathParameters
from hw.ports import Ports, wire_in, wire_out
from hw.topick.scores import Scores


@dataclasses.dataclass(frozen=True)
class MarginGeneratorParameters(Scores, DatapathParameters):
    """d, bits, chunk_bits, scale_bits, shift_bits and width as in
    :class:`hw.topick.scores.Scores`."""

    d: int = 64
    bits: int = 12
    chunk_bits: int = 4
    scale_bits: int = 16
    shift_bits: int = 4
    width: int = 32

    CUTS: ClassVar = ((), ("result",), ("sums", "result"), ("sums", "scaled", "result"))

    def __post_init__(self):
        super().__post_init__()
        self.check_scores()

    @classmethod
    def presets(cls) -> dict[str, "MarginGeneratorParameters"]:
        return {
            "small": cls(d=2, bits=4, chunk_bits=2, scale_bits=4, shift_bits=2, width=10),
            "default": cls(),
            "paper": cls(stages=3),
        }


class MarginGenerator(Datapath[MarginGeneratorParameters]):
    """M_max = (2^r - 1) sum of the positive q, M_min = (2^r - 1) sum of the negative, times c.

    With r bits of every element of k unknown, q . k is at least s + M_min and at most s + M_max, s
    being the score with zeros for the unknown bits. The outputs are the margins of binary
    logarithms, c M_max and -c M_min with c = mantissa 2^-(base + shift), both rounded up, that is,
    away from the score.

    The margins of the last chunk are 0, because no bit is unknown then, and have no port.

    Latency: `stages`. Throughput: one query per cycle. Errors and overflow: none. Source:
    Token-Picker, section 4 (1); there the margins belong to scores and are not scaled.

    Examples
    --------
    >>> from hw.topick.margin_generator import MarginGenerator, MarginGeneratorParameters
    >>> parameters = MarginGeneratorParameters(d=64, bits=12, chunk_bits=4)
    >>> parameters.chunks, [parameters.unknown(chunk) for chunk in range(3)]
    (3, [8, 4, 0])
    >>> MarginGenerator(parameters).most.shape()
    ArrayLayout(unsigned(27), 2)
    """

    summary = "Margins between partial and exact scores, from the query alone"
    source = "Token-Picker, section 4"

    def operation(self) -> Ports:
        p = self.parameters
        margins = data.ArrayLayout(unsigned(p.margin_bits), p.chunks - 1)
        return {
            "q": wire_in(data.ArrayLayout(signed(p.bits), p.d), "The query."),
            "mantissa": wire_in(unsigned(p.scale_bits), "Mantissa of the scale c."),
            "shift": wire_in(unsigned(p.shift_bits), "Shift of the scale c."),
            "most": wire_out(
                margins,
                "For each chunk but the last: c M_max and -c M_min, in units of the last bit of t.",
            ),
            "least": wire_out(margins, "For each chunk but the last: -c M_min, in the same unit."),
        }

    def elaborate(self, platform):
        m = Module()
        p, cut = self.parameters, self.registers(m)
        # Sum of the positive and of the negative elements of q.
        positive = self._sum(m, "positive", p.bits - 1, False)
        negative = self._sum(m, "negative", p.bits, True)
        size = p.bits + p.growth
        sums = {"most": Signal(size, name="positives"), "least": Signal(size, name="negatives")}
        m.d.comb += [sums["most"].eq(positive.o), sums["least"].eq(-negative.o)]
        # Unknown bits of k are 0 or more: they raise the score only through positive elements of q,
        # and lower it only through negative ones.
        for q, plus, minus in zip(self.q, positive.i, negative.i, strict=True):
            sign = q[-1]
            m.d.comb += [
                plus.eq(q[:-1] & ~sign.replicate(p.bits - 1)),
                minus.eq(q & sign.replicate(p.bits)),
            ]
        # Scale both sums: product = sum mantissa.
        *both, mantissa, shift = cut("sums", **sums, mantissa=self.mantissa, shift=self.shift)
        scaled = {}
        for name, total in zip(sums, both, strict=True):
            scaled[name] = Signal(size + p.scale_bits, name=f"scaled_{name}")
            m.d.comb += scaled[name].eq(total * mantissa)
        # A margin for each chunk: product (2^r - 1) 2^-(base + shift), rounded up.
        *both, shift = cut("scaled", **scaled, shift=shift)
        for name, product in zip(sums, both, strict=True):
            # The margins of all chunks are one product with different shifts, computed once for a
            # query.
            margins = [
                self._margin(m, name, chunk, product, shift) for chunk in range(p.chunks - 1)
            ]
            m.d.comb += getattr(self, name).as_value().eq(cut("result", **{name: Cat(margins)}))
        return m

    def _sum(self, m: Module, name: str, width: int, is_signed: bool) -> AdderTree:
        p = self.parameters
        tree = AdderTree(AdderTreeParameters(p.d, "fixed", width=width, signed=is_signed))
        m.submodules[name] = tree
        return tree

    def _margin(self, m: Module, name: str, chunk: int, product: Signal, shift) -> Signal:
        p = self.parameters
        unknown = p.unknown(chunk)
        # product (1 - 2^r), so that its shift rounds down and the margin, its negative, up.
        reach = Signal(signed(len(product) + unknown + 1), name=f"reach_{name}_{chunk}")
        margin = Signal(p.margin_bits, name=f"margin_{name}_{chunk}")
        m.d.comb += [
            reach.eq(product - (product << unknown)),
            margin.eq(-(reach >> p.base >> shift)),
        ]
        return margin
