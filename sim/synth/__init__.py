"""Synthesis of blocks: mapping to gates or an FPGA, area, static timing."""

from sim.core.tools import ToolError


class SynthesisError(ToolError):
    """A library or design is not usable; the message is one sentence."""
