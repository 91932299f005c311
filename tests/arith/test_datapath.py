# amaranth: UnusedElaboratable=no
"""The base of the arithmetic units: stages, cuts, enable, and streams around a unit."""

import contextlib
import dataclasses

import numpy as np
import pytest
from amaranth.hdl import Const, Module, signed
from amaranth.sim import Simulator

from hw.arith.datapath import Datapath, DatapathParameters, Registers
from hw.arith.streamed import Streamed
from hw.catalogue import Block
from hw.emit.export import export
from hw.parameters import ParameterError
from hw.ports import Ports, wire_in, wire_out
from sim.core import payload
from sim.core.design import from_file, generate
from sim.core.stalls import PATTERNS
from sim.core.stimulus import Stimulus, compare
from sim.drivers.harness.runner import Harness
from tests.support.arith.netlist import Netlist
from tests.support.arith.pairs import registers_agree


@dataclasses.dataclass(frozen=True)
class DifferenceParameters(DatapathParameters):
    CUTS = ((), ("result",), ("operands", "result"), ("operands", "halfway", "result"))

    width: int = 8
    faulty: bool = False


class Difference(Datapath[DifferenceParameters]):
    """a - b and which is greater; with `faulty`, b skips the second pipeline stage."""

    def operation(self) -> Ports:
        p = self.parameters
        w = p.width
        outputs = {"o": signed(w + 1), "greater": 1}
        return {
            "a": wire_in(signed(w)),
            "b": wire_in(signed(w)),
            **{name: wire_out(shape) for name, shape in outputs.items()},
        }

    def elaborate(self, platform):
        m = Module()
        cut = self.registers(m)
        a, early = cut("operands", a=self.a, b=self.b)
        a, late = cut("halfway", a=a, b=early)
        b = early if self.parameters.faulty else late
        o, greater = cut("result", o=a - b, greater=a > b)
        m.d.comb += [self.o.eq(o), self.greater.eq(greater)]
        return m


BLOCK = Block(Difference)


def stimulus(parameters, count=500, seed=1):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-128, 128, (2, count))
    unit = Streamed(Difference(parameters))
    expected = {"o": a - b, "greater": a > b}
    return Stimulus(
        inputs={"i": payload.pack(unit.i.payload.shape(), {"a": a, "b": b})},
        outputs={"o": payload.pack(unit.o.payload.shape(), expected)},
        transaction_of={"o": np.arange(count)},
        transactions=count,
        cycles=parameters.cycles(count),
    )


@pytest.mark.parametrize("stages", [0, 3])
def test_streams_around_a_unit(stages):
    parameters = DifferenceParameters(stages=stages)
    assert parameters.latency == stages
    design = generate(BLOCK, parameters)
    assert design.clocked == (stages > 0)
    harness = Harness(design)
    for name, pattern in PATTERNS.items():
        task = stimulus(parameters)
        harness.reset()
        outcome = harness.run(task, pattern, seed=1)
        assert outcome.failure is None
        assert len(outcome.outputs["o"]) == 500
        assert compare(task, outcome.outputs, design.outputs, outcome.cycles_of) == []
        if name == "none":
            assert outcome.cycles == task.cycles == 500 + stages


class WithoutPauses(Difference):
    """Ignores `enable`: its registers are updated in every cycle."""

    def registers(self, m):
        return Registers(m, self.parameters.CUTS[self.parameters.stages], Const(1))


@pytest.mark.parametrize(
    "unit, faulty, passes",
    [(Difference, False, True), (Difference, True, False), (WithoutPauses, False, False)],
)
def test_registers_are_compared_cycle_by_cycle(unit, faulty, passes):
    """In the netlist, a value that skips a pipeline stage, or ignores `enable`, is found."""
    a, b = np.random.default_rng(2).integers(-128, 128, (2, 500))
    net = Netlist(unit(DifferenceParameters(stages=3, faulty=faulty)))
    results = {"o": a - b, "greater": (a > b).astype(int)}
    expectation = contextlib.nullcontext() if passes else pytest.raises(AssertionError)
    with expectation:
        registers_agree(net, {"a": a, "b": b}, results, stages=3, seed=1)


def test_enable_is_high_unless_connected_and_holds_everything_when_low():
    unit = Difference(DifferenceParameters(stages=2))
    seen = []

    async def testbench(ctx):
        ctx.set(unit.a, 5)
        ctx.set(unit.b, 3)
        for enable in (1, 1, 0, 1, 1):
            ctx.set(unit.enable, enable)
            await ctx.tick()
            seen.append(ctx.get(unit.o))
            ctx.set(unit.a, ctx.get(unit.a) + 10)

    simulator = Simulator(unit)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()
    assert unit.enable.init == 1
    assert seen == [0, 2, 2, 12, 32]  # 22, of the cycle without enable, is ignored


def test_ports():
    ports = {p["name"] for p in export(BLOCK, DifferenceParameters()).sidecar["ports"]}
    assert ports == {"a", "b", "o", "greater"}
    ports = {p["name"] for p in export(BLOCK, DifferenceParameters(stages=1)).sidecar["ports"]}
    assert ports == {"clk", "enable", "a", "b", "o", "greater"}


def test_stages_have_limits():
    with pytest.raises(ParameterError, match="^stages must be between 0 and 3, not 4$"):
        DifferenceParameters(stages=4)
    with pytest.raises(ParameterError, match="^stages must be between 0 and 1, not -1$"):
        DatapathParameters(stages=-1)


@pytest.mark.parametrize("fault, passes", [("", True), ("~", False)])
def test_somebody_else_s_verilog_for_a_unit(tmp_path, fault, passes):
    """A plain module with the unit's ports runs between the same streams."""
    parameters = DifferenceParameters(stages=1)
    name = generate(BLOCK, parameters).module.removesuffix("_streamed")
    path = tmp_path / "other.v"
    path.write_text(
        f"module {name}(input clk, input enable, input signed [7:0] a, input signed [7:0] b,\n"
        "  output reg signed [8:0] o, output reg greater);\n"
        f"  always @(posedge clk) if (enable) begin o <= a - b; greater <= {fault}(a > b); end\n"
        "endmodule\n"
    )
    design = from_file(BLOCK, parameters, path)
    task = stimulus(parameters)
    outcome = Harness(design).run(task, PATTERNS["bursts"], seed=2)
    assert outcome.failure is None
    found = compare(task, outcome.outputs, design.outputs, outcome.cycles_of)
    assert (found == []) is passes
