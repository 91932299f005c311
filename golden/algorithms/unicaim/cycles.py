"""Cycles of the selection and of the conversions of one decode step (sections III-B3, IV-A)."""

CONVERTERS = 64
"""Sense lines that are converted in parallel (section IV-A3)."""

CONVERSION_CYCLES = 10
"""Cycles of one conversion: one for each bit of the 10-bit SAR ADC."""

SELECTION_CYCLES = 1
"""One discharge of all sense lines, whatever the number of rows (section III-B3)."""


def conversion_cycles(
    rows: int, converters: int = CONVERTERS, cycles: int = CONVERSION_CYCLES
) -> int:
    """Cycles to convert the scores of ``rows`` rows for one query: rows / converters, rounded up.

    10 for the 64 selected rows, 90 for all 576, so the selection saves a factor of nine.
    """
    return -(-rows // converters) * cycles


def step_cycles(rows: int, top_k: int) -> int:
    """Cycles from a query to its exact scores with ``rows`` in use: selection, conversions."""
    return SELECTION_CYCLES + conversion_cycles(min(top_k, rows))
