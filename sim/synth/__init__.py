"""Synthesis of blocks: mapping to gates or an FPGA, area, static timing."""


class SynthesisError(RuntimeError):
    """A library, tool or design is not usable; the message is one sentence."""
