"""A proof that a component's outputs keep the rules of streams, for all time."""

from amaranth.hdl import Cover, Elaboratable, Fragment, Module

from sim.checks.formal.proof import prove
from sim.checks.formal.specs import drive, reset_first, watch


class RulesSpec(Elaboratable):
    """Arbitrary beats go into the named inputs, and the named outputs are stalled arbitrarily."""

    def __init__(self, dut, outputs: list[str], inputs: list[str]):
        self._dut = dut
        self._outputs = [getattr(dut, name) for name in outputs]
        self._inputs = [getattr(dut, name) for name in inputs]

    def elaborate(self, platform):
        m = Module()
        m.submodules.dut = Fragment.get(self._dut, None)
        first = reset_first(m)
        for port in self._inputs:
            drive(m, first, port)
        for port in self._outputs:
            watch(m, first, port)
            m.d.comb += Cover(~first & port.valid & ~port.ready, "a stalled beat")
        return m


def check_rules(dut, name: str, outputs: str, inputs: list[str], cover: int = 12) -> None:
    """Prove it of all outputs (names with spaces between), and that a beat of each can be stalled.

    cover
        Cycles within which that happens.
    """
    for mode, depth in (("prove", 2), ("cover", cover)):
        result = prove(RulesSpec(dut, outputs.split(), inputs), f"{name}_rules", mode, depth=depth)
        assert result.status == "PASS", result
