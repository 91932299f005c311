"""Widths of scores, margins and binary logarithms, common to ToPick's blocks.

Keys of `bits` bits arrive in chunks of `chunk_bits`, most significant chunk first. With r bits of
them unknown, the partial score q . k of the known bits is an integer in units of 2^r:

    k  | chunk 0 | chunk 1 | chunk 2 |      bits = 12, chunk_bits = 4
       | known             | r = 4   |      after chunk 1

A score s represents the binary logarithm t = s c with the scale c = mantissa 2^-(base + shift), in
units of the last bit of t.
"""

from hw.parameters import require


class Scores:
    """Derived widths, for parameters with d, bits, chunk_bits, scale_bits, shift_bits and width.

    d
        Elements of a query and a key, 2 or more.
    bits
        Width of an element, two's complement.
    chunk_bits
        Bits of an element that are read together; divides `bits`.
    scale_bits, shift_bits
        Widths of a scale's mantissa and shift.
    width
        Width of a binary logarithm, signed; it holds every score's.
    """

    d: int
    bits: int
    chunk_bits: int
    scale_bits: int
    shift_bits: int
    width: int

    def check_scores(self) -> None:
        require(self.d >= 2, "d must be at least 2", self.d)
        require(2 <= self.bits <= 16, "bits must be between 2 and 16", self.bits)
        divides = self.chunk_bits >= 1 and self.bits % self.chunk_bits == 0
        rule = f"chunk_bits must divide {self.bits} (bits) and be less"
        require(divides and self.chunk_bits < self.bits, rule, self.chunk_bits)
        rule = "scale_bits must be between 1 and 24"
        require(1 <= self.scale_bits <= 24, rule, self.scale_bits)
        require(0 <= self.shift_bits <= 5, "shift_bits must be between 0 and 5", self.shift_bits)
        most = self.score_bits + self.scale_bits - self.unknown(0)
        rule = f"width must be between {self.bits + 2} and {most}"
        require(self.bits + 2 <= self.width <= most, rule, self.width)

    @property
    def chunks(self) -> int:
        return self.bits // self.chunk_bits

    def unknown(self, chunk: int) -> int:
        """Bits of an element that are still unknown once `chunk`, counted from 0, has arrived."""
        return self.bits - self.chunk_bits * (chunk + 1)

    @property
    def growth(self) -> int:
        """Bits by which a sum of d numbers is wider than a number."""
        return (self.d - 1).bit_length()

    @property
    def score_bits(self) -> int:
        """Width of a score, signed."""
        return 2 * self.bits + self.growth

    @property
    def base(self) -> int:
        """Bits by which every scaled score is shifted right, besides its scale's shift."""
        return self.score_bits + self.scale_bits - self.width

    @property
    def margin_bits(self) -> int:
        """Width of a margin as a binary logarithm, unsigned."""
        return self.width - 1 - self.chunk_bits
