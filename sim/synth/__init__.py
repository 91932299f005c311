"""Synthesis: mapping to gates or an FPGA, area, timing, placement, wires, energy."""

from sim.core.tools import ToolError, UnusableFile


class SynthesisError(ToolError):
    """A library or design is not usable; the message is one sentence."""


class UnusableLibrary(SynthesisError, UnusableFile):
    """A file that the user has named is no library."""
