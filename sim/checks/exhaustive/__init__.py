"""All pairs of 16-bit operands through a unit, against the arithmetic of the processor."""
