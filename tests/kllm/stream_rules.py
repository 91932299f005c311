"""A proof that a component's output keeps the rules of streams, for all time."""

from amaranth.hdl import Cover, Elaboratable, Fragment, Module

from sim.formal import prove
from sim.formal_specs import drive, reset_first, watch


class RulesSpec(Elaboratable):
    """Arbitrary beats go into the named inputs, and the named output is stalled arbitrarily."""

    def __init__(self, dut, output: str, inputs: list[str]):
        self._dut = dut
        self._output = getattr(dut, output)
        self._inputs = [getattr(dut, name) for name in inputs]

    def elaborate(self, platform):
        m = Module()
        m.submodules.dut = Fragment.get(self._dut, None)
        first = reset_first(m)
        for port in self._inputs:
            drive(m, first, port)
        watch(m, first, self._output)
        m.d.comb += Cover(~first & self._output.valid & ~self._output.ready, "a stalled beat")
        return m


def check_rules(dut, name: str, output: str, inputs: list[str], cover: int = 12) -> None:
    """Prove it, and that a beat can be stalled at all, within `cover` cycles."""
    for mode, depth in (("prove", 2), ("cover", cover)):
        result = prove(RulesSpec(dut, output, inputs), f"{name}_rules", mode, depth=depth)
        assert result.status == "PASS", result
