"""ToPick's algorithm (Token-Picker), in floating point and integer codes."""

from golden.algorithms.topick.decide import (
    Decisions,
    arrival_order,
    decide,
    leading_bits,
    margins,
    request_order,
)
from golden.algorithms.topick.quantise import QuantisedCache, quantise, scale_for
from golden.algorithms.topick.token_picker import TokenPickerAttention

__all__ = [
    "Decisions",
    "QuantisedCache",
    "TokenPickerAttention",
    "arrival_order",
    "decide",
    "leading_bits",
    "margins",
    "quantise",
    "request_order",
    "scale_for",
]
