"""Floating-point formats as data: every width, limit and special encoding derives from here."""

import dataclasses

from amaranth.hdl import Shape, unsigned

from hw.layout import NumberFormat
from hw.parameters import require


@dataclasses.dataclass(frozen=True)
class FloatFormat(NumberFormat):
    """A binary floating-point format: sign, `exponent` bits, `mantissa` bits.

    It is also the shape of a number's bits, in a port or a payload: ``"value": FP16`` is 16
    unsigned bits that the sidecar lists as ``fp16``.

    infinities
        Whether the highest exponent means infinity and NaN, as in IEEE 754. Without infinities
        (the OCP 8-bit E4M3) that exponent holds numbers too, and only all ones is NaN.
    """

    exponent: int
    mantissa: int
    infinities: bool = True

    def __post_init__(self):
        require(self.exponent >= 2, "exponent width must be at least 2", self.exponent)
        require(self.mantissa >= 2, "mantissa width must be at least 2", self.mantissa)

    @property
    def format_name(self) -> str:
        """Its name in FORMATS; ``float_e4m7`` of a format without a name there."""
        for name, known in FORMATS.items():
            if known == self:
                return name
        finite = "" if self.infinities else "_finite"
        return f"float_e{self.exponent}m{self.mantissa}{finite}"

    def as_shape(self) -> Shape:
        return unsigned(self.width)

    @property
    def width(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def bias(self) -> int:
        """Exponent field minus exponent, for normal numbers."""
        return (1 << (self.exponent - 1)) - 1

    @property
    def precision(self) -> int:
        """Bits of the significand, the hidden one included."""
        return self.mantissa + 1

    @property
    def largest(self) -> int:
        """Bits of the largest finite number."""
        return self.overflow - 1

    @property
    def overflow(self) -> int:
        """Bits of a result that is too large: infinity, or NaN in a format without infinities."""
        return self.infinity if self.infinities else self.quiet_nan

    @property
    def infinity(self) -> int:
        """Bits of plus infinity.

        :raises ParameterError: in a format without infinities.
        """
        require(self.infinities, "format must have infinities", self)
        return ((1 << self.exponent) - 1) << self.mantissa

    @property
    def quiet_nan(self) -> int:
        """Bits of the NaN that hardware returns."""
        if not self.infinities:
            return (1 << (self.width - 1)) - 1
        return self.infinity | 1 << (self.mantissa - 1)


FP16 = FloatFormat(exponent=5, mantissa=10)
BF16 = FloatFormat(exponent=8, mantissa=7)
FP32 = FloatFormat(exponent=8, mantissa=23)
FP8_E4M3 = FloatFormat(exponent=4, mantissa=3, infinities=False)
FP8_E5M2 = FloatFormat(exponent=5, mantissa=2)

FORMATS = {
    "fp16": FP16,
    "bf16": BF16,
    "fp32": FP32,
    "fp8_e4m3": FP8_E4M3,
    "fp8_e5m2": FP8_E5M2,
}


def find_format(name: str) -> FloatFormat:
    """The format of that name.

    :raises ParameterError: for an unknown name.
    """
    require(name in FORMATS, f"format must be one of {', '.join(FORMATS)}", name)
    return FORMATS[name]
