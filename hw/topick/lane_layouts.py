"""Payloads of a lane's streams."""

from amaranth.hdl import signed, unsigned
from amaranth.lib import data

from hw.topick.chunk_requests import tag_layout
from hw.topick.pec import PecParameters
from hw.topick.scores import Scores


class LaneLayouts(Scores):
    """For the parameters of :class:`hw.topick.pe_lane.PeLane`."""

    @property
    def pec(self) -> PecParameters:
        margin, fraction = self.margin_bits, self.fraction
        return PecParameters(self.width, margin, fraction, self.precision, self.limb, stages=3)

    @property
    def sum_bits(self) -> int:
        """Of an element of the weighted sum, signed."""
        return 2 * self.bits

    @property
    def tag_layout(self) -> data.StructLayout:
        """``token``, ``chunk``, and the ``slot`` of the scoreboard that the token has."""
        return tag_layout(self.token_bits, self.chunks, self.entries)

    @property
    def chunk_layout(self) -> data.ArrayLayout:
        return data.ArrayLayout(self.chunk_bits, self.d)

    @property
    def job_layout(self) -> data.StructLayout:
        """What a head needs.

        ``q``; the scale's ``mantissa`` and ``shift``; the margins ``most`` and ``least`` of all
        chunks but the last; ``threshold``, -log2(thr) in units of 2^-fraction, rounded up, of which
        all ones prunes nothing; the number of ``tokens``.
        """
        margins = data.ArrayLayout(unsigned(self.margin_bits), self.chunks - 1)
        return data.StructLayout(
            {
                "q": data.ArrayLayout(signed(self.bits), self.d),
                "mantissa": self.scale_bits,
                "shift": self.shift_bits,
                "most": margins,
                "least": margins,
                "threshold": self.threshold_bits,
                "tokens": self.token_bits + 1,
            }
        )

    @property
    def response_layout(self) -> data.StructLayout:
        """``tag`` as requested; ``data``, an element's bits each."""
        return data.StructLayout({"tag": self.tag_layout, "data": self.chunk_layout})

    @property
    def denominator_layout(self) -> data.StructLayout:
        """``log2`` of the denominator, rounded down, if it is ``known``."""
        return data.StructLayout({"log2": signed(self.width), "known": 1})

    @property
    def difference_layout(self) -> data.StructLayout:
        """As :class:`hw.topick.pec.Pec` gives it."""
        part = signed(self.limb + 1)
        return data.StructLayout({"limb": signed(self.pec.limb_bits), "high": part, "low": part})

    @property
    def kept_layout(self) -> data.StructLayout:
        """``token`` and its score ``t``, if one was ``kept``; ``last`` of the head."""
        return data.StructLayout(
            {"token": self.token_bits, "t": signed(self.width), "kept": 1, "last": 1}
        )

    @property
    def value_layout(self) -> data.StructLayout:
        """Probability ``p``, below 1 in units of 2^-(bits - 1); ``data``, a ``chunk`` of the value;
        ``last`` of the head."""
        return data.StructLayout(
            {
                "p": signed(self.bits),
                "data": self.chunk_layout,
                "chunk": range(self.chunks),
                "last": 1,
            }
        )

    @property
    def sum_layout(self) -> data.ArrayLayout:
        return data.ArrayLayout(signed(self.sum_bits), self.d)
