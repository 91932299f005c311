"""Payloads of a lane's streams."""

import functools

from amaranth.hdl import signed, unsigned
from amaranth.lib import data

from hw.layout import FLAG, FixedPoint, count, index, integer, position
from hw.topick.chunk_requests import tag_layout
from hw.topick.pec import PecParameters
from hw.topick.scores import Scores


def sums_layout(places: int, bits: int, d: int, growth: int = 0) -> data.StructLayout:
    """Sums below 2 2^`growth` of probabilities of `places` fraction bits: ``total``, and ``o``,
    those times the d elements of values of `bits` bits."""
    total = FixedPoint(unsigned(places + 1 + growth), places)
    element = FixedPoint(signed(places + bits + 1 + growth), places)
    return data.StructLayout({"o": data.ArrayLayout(element, d), "total": total})


class LaneLayouts(Scores):
    """For the parameters of :class:`hw.topick.pe_lane.PeLane`."""

    fraction: int
    precision: int
    limb: int
    threshold_bits: int
    entries: int
    token_bits: int
    probability_bits: int
    whole: bool
    waits: bool

    @functools.cached_property
    def pec(self) -> PecParameters:
        margin, fraction = self.margin_bits, self.fraction
        return PecParameters(self.width, margin, fraction, self.precision, self.limb, stages=3)

    @property
    def sum_bits(self) -> int:
        """Width of an element of the weighted sum, signed."""
        return self.probability_bits + self.bits + 1

    @property
    def operand_bits(self) -> int:
        """Width of a multiplier's operand, an element of the query or a probability, signed."""
        return max(self.bits, self.probability_bits + 1)

    @property
    def multiplied_bits(self) -> int:
        """Bits of an element of a key or value that are multiplied at once."""
        return self.bits if self.whole else self.chunk_bits

    @property
    def product_bits(self) -> int:
        """Width of a product, signed. A chunk is the upper bits of what is multiplied."""
        return self.operand_bits + self.multiplied_bits

    @property
    def logarithm(self) -> FixedPoint:
        """A score's or the denominator's binary logarithm."""
        return FixedPoint(signed(self.width), self.fraction)

    @functools.cached_property
    def tag_layout(self) -> data.StructLayout:
        """``token``, ``chunk``, and the ``slot`` of the scoreboard that the token has."""
        return tag_layout(self.token_bits, self.chunks, self.entries)

    @functools.cached_property
    def chunk_layout(self) -> data.ArrayLayout:
        return data.ArrayLayout(self.chunk_bits, self.d)

    @property
    def rest_field(self) -> dict:
        """``rest``: the chunks after the first of a whole key or value, 0 beside a chunk alone."""
        if not self.whole:
            return {}
        return {"rest": data.ArrayLayout(self.chunk_layout, self.chunks - 1)}

    @functools.cached_property
    def command_layout(self) -> data.StructLayout:
        """A head.

        ``q``: the query. ``mantissa`` and ``shift``: the scale. ``most`` and ``least``: the margins
        of all chunks but the last. ``threshold``: -log2(thr), rounded up; all ones prunes nothing.
        ``tokens``: their number. ``exempt``: the last of them, token ``tokens`` - 1, is kept in any
        case. ``whole``: each response is a whole key, and all tokens are kept.
        """
        margin = FixedPoint(unsigned(self.margin_bits), self.fraction)
        margins = data.ArrayLayout(margin, self.chunks - 1)
        return data.StructLayout(
            {
                "q": data.ArrayLayout(integer(signed(self.bits)), self.d),
                "mantissa": integer(self.scale_bits),
                "shift": integer(self.shift_bits),
                "most": margins,
                "least": margins,
                "threshold": FixedPoint(unsigned(self.threshold_bits), self.fraction),
                "tokens": count(self.token_bits + 1),
                "exempt": FLAG,
            }
            | ({"whole": FLAG} if self.whole else {})
        )

    @functools.cached_property
    def response_layout(self) -> data.StructLayout:
        """``tag``: as requested. ``data``: the bits of each element. A whole key comes as chunk 0,
        with its other chunks as ``rest``."""
        fields = {"tag": self.tag_layout, "data": self.chunk_layout}
        return data.StructLayout(fields | self.rest_field)

    @functools.cached_property
    def denominator_layout(self) -> data.StructLayout:
        """``log2``: of the denominator, rounded down, if it is ``known``."""
        return data.StructLayout({"log2": self.logarithm, "known": FLAG})

    @functools.cached_property
    def difference_layout(self) -> data.StructLayout:
        """The output of :class:`hw.topick.pec.Pec`."""
        part = integer(signed(self.limb + 1))
        limb = integer(signed(self.pec.limb_bits))
        return data.StructLayout({"limb": limb, "high": part, "low": part})

    @functools.cached_property
    def decided_layout(self) -> data.StructLayout:
        """A token's last decision.

        ``token``; ``chunk``: the last one that was read; ``t``: its score as far as that chunk;
        ``kept``: otherwise it is pruned; ``last`` of the head.
        """
        return data.StructLayout(
            {
                "token": position(self.token_bits),
                "chunk": index(range(self.chunks)),
                "t": self.logarithm,
                "kept": FLAG,
                "last": FLAG,
            }
        )

    @functools.cached_property
    def observed_layout(self) -> data.StructLayout:
        """The ``tag`` of a chunk, and the ``denominator`` with which its token was decided."""
        return data.StructLayout({"tag": self.tag_layout, "denominator": self.denominator_layout})

    @functools.cached_property
    def value_layout(self) -> data.StructLayout:
        """A chunk of a value, or a whole one, as chunk 0.

        ``p``: the token's probability, below 1. ``data``: the bits of each element. ``chunk``: its
        number. ``last``: of the head. ``rest``: as of a response.
        """
        return data.StructLayout(
            {
                "p": FixedPoint(unsigned(self.probability_bits), self.probability_bits),
                "data": self.chunk_layout,
                "chunk": index(range(self.chunks)),
                "last": FLAG,
            }
            | self.rest_field
        )

    @functools.cached_property
    def sum_layout(self) -> data.StructLayout:
        """``o``: sums of p v, in units of v's codes. ``total``: the sum of p."""
        return sums_layout(self.probability_bits, self.bits, self.d)
