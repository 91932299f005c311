# amaranth: UnusedElaboratable=no
"""Equal sub-blocks become one module, and the hardware stays the same."""

import dataclasses
import re

import numpy as np
import pytest
from amaranth.back import rtlil
from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.catalogue import Block, blocks, find
from hw.component import Component
from hw.emit.export import to_rtlil, to_verilog
from hw.parameters import Parameters
from hw.ports import Ports, wire_in, wire_out
from sim.core import payload
from sim.core.design import generate
from sim.core.stalls import PATTERNS
from sim.core.stimulus import Stimulus, compare
from sim.drivers.harness.runner import Harness
from sim.drivers.run import load_testbench


@dataclasses.dataclass(frozen=True)
class UnitParameters(Parameters):
    step: int = 1
    clocked: bool = True


class Unit(Component[UnitParameters]):
    """Adds a constant, at once or a cycle later."""

    def ports(self) -> Ports:
        return {"i": wire_in(8), "enable": wire_in(1), "o": wire_out(8)}

    def elaborate(self, platform):
        m = Module()
        total = self.i + self.parameters.step
        if self.parameters.clocked:
            with m.If(self.enable):
                m.d.sync += self.o.eq(total)
        else:
            m.d.comb += self.o.eq(total)
        return m


class Plain(wiring.Component):
    """Not one of this project's components: never shared."""

    def __init__(self):
        super().__init__({"i": In(8), "o": Out(8)})

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.o.eq(~self.i)
        return m


class Chain(Component[None]):
    """`count` units in a row; a bank of chains is a component of components."""

    def __init__(self, count: int, step: int = 1, clocked: bool = True):
        self._count = count
        self._unit = (step, clocked)
        super().__init__()

    def ports(self) -> Ports:
        return {"i": wire_in(8), "enable": wire_in(1), "o": wire_out(8)}

    def elaborate(self, platform):
        m = Module()
        value = self.i
        for k in range(self._count):
            # A new parameters object each time: equal by its repr, not by identity.
            m.submodules[f"unit{k}"] = unit = Unit(UnitParameters(*self._unit))
            m.d.comb += [unit.i.eq(value), unit.enable.eq(self.enable)]
            value = unit.o
        m.d.comb += self.o.eq(value)
        return m


class Lane(Component[None]):
    """Two equal chains and a unit beside them, of which the chains have some too."""

    def __init__(self, step: int = 1):
        self._step = step
        super().__init__()

    def ports(self) -> Ports:
        return {"i": wire_in(8), "enable": wire_in(1), "o": wire_out(8)}

    def elaborate(self, platform):
        m = Module()
        m.submodules.first = first = Chain(2, self._step)
        m.submodules.second = second = Chain(2, self._step)
        m.submodules.last = last = Unit(UnitParameters(self._step))
        m.d.comb += [
            first.i.eq(self.i),
            second.i.eq(first.o),
            last.i.eq(second.o),
            self.o.eq(last.o),
        ]
        m.d.comb += [part.enable.eq(self.enable) for part in (first, second, last)]
        return m


def modules(component, name: str = "top") -> list[str]:
    return re.findall(r"^module \\?([^\s(]+)", to_verilog(to_rtlil(component, name)), re.M)


def uses(verilog: str, module: str) -> int:
    return len(re.findall(rf"^  \\?{module} +\S+ +\(", verilog, re.M))


def test_128_equal_units_are_one_module():
    verilog = to_verilog(to_rtlil(Chain(128), "top"))
    assert re.findall(r"^module (\S+)\(", verilog, re.M) == ["top", "top__unit"]
    assert uses(verilog, "top__unit") == 128


def test_without_a_library_each_unit_is_its_own_module():
    text = rtlil.convert(Chain(16), name="top")
    assert len(re.findall(r"^module ", text, re.M)) == 17


def test_other_arguments_make_another_module():
    class Mixed(Component[None]):
        def ports(self) -> Ports:
            return {"i": wire_in(8), "o": wire_out(8)}

        def elaborate(self, platform):
            m = Module()
            value = self.i
            for k, step in enumerate((1, 2, 1, 3, 2)):
                m.submodules[f"u{k}"] = unit = Unit(UnitParameters(step))
                m.d.comb += [unit.i.eq(value), unit.enable.eq(1)]
                value = unit.o
            m.submodules.chain = chain = Chain(1, step=2)
            m.submodules.again = again = Chain(1, clocked=True, step=2)
            m.submodules.other = other = Chain(2, step=2)
            for link in (chain, again, other):
                m.d.comb += [link.i.eq(value), link.enable.eq(1)]
                value = link.o
            m.d.comb += self.o.eq(value)
            return m

    verilog = to_verilog(to_rtlil(Mixed(), "top"))
    counts = {name: uses(verilog, name) for name in re.findall(r"^module (\S+)\(", verilog, re.M)}
    # Three steps of units. The chains share step 2's unit with the top's two: 2 + 1 + 1 + 2.
    # Chains given the same arguments in other words are written twice, which is only longer.
    assert counts.pop("top") == 0
    assert sorted(n for name, n in counts.items() if "__unit" in name) == [1, 2, 6]
    assert sorted(n for name, n in counts.items() if "__chain" in name) == [1, 1, 1]


def test_sharing_is_nested():
    class Lanes(Component[None]):
        def ports(self) -> Ports:
            return {"i": wire_in(8), "enable": wire_in(1), "o": wire_out(8).array(3)}

        def elaborate(self, platform):
            m = Module()
            for k in range(3):
                m.submodules[f"lane{k}"] = lane = Lane()
                m.d.comb += [lane.i.eq(self.i), lane.enable.eq(self.enable)]
                m.d.comb += self.o[k].eq(lane.o)
            return m

    verilog = to_verilog(to_rtlil(Lanes(), "top"))
    names = re.findall(r"^module (\S+)\(", verilog, re.M)
    assert sorted(names) == ["top", "top__chain", "top__lane", "top__unit"] and names[0] == "top"
    assert [uses(verilog, f"top__{kind}") for kind in ("lane", "chain", "unit")] == [3, 2, 3]


def test_one_object_elaborated_for_two_tops():
    """A library belongs to one export: nothing is left over for the next."""
    assert modules(Chain(3), "one") == ["one", "one__unit"]
    assert modules(Chain(3), "two") == ["two", "two__unit"]


def test_combinational_units_have_no_clock():
    verilog = to_verilog(to_rtlil(Chain(4, clocked=False), "top"))
    assert re.findall(r"^module (\S+)\(", verilog, re.M) == ["top", "top__unit"]
    assert "clk" not in verilog and "rst" not in verilog


def test_components_of_others_are_left_alone():
    class Twice(Component[None]):
        def ports(self) -> Ports:
            return {"i": wire_in(8), "o": wire_out(8)}

        def elaborate(self, platform):
            m = Module()
            m.submodules.a, m.submodules.b = a, b = Plain(), Plain()
            m.d.comb += [a.i.eq(self.i), b.i.eq(a.o), self.o.eq(b.o)]
            return m

    assert modules(Twice()) == ["top", "top__a", "top__b"]


def test_locally_made_layouts_of_one_name_are_not_taken_for_each_other():
    """``repr`` of a class does not tell its fields."""

    def layout(bits):
        class Beat(data.Struct):
            value: bits

        return Beat

    class Pass(Component[None]):
        def __init__(self, shape):
            self._shape = shape
            super().__init__()

        def ports(self) -> Ports:
            return {"i": wire_in(self._shape), "o": wire_out(self._shape)}

        def elaborate(self, platform):
            m = Module()
            m.d.comb += self.o.eq(self.i)
            return m

    class Both(Component[None]):
        def ports(self) -> Ports:
            return {"i": wire_in(8), "narrow": wire_out(3), "wide": wire_out(8)}

        def elaborate(self, platform):
            m = Module()
            m.submodules.narrow = narrow = Pass(layout(3))
            m.submodules.wide = wide = Pass(layout(8))
            m.d.comb += [narrow.i.value.eq(self.i), wide.i.value.eq(self.i)]
            m.d.comb += [self.narrow.eq(narrow.o.value), self.wide.eq(wide.o.value)]
            return m

    assert len(modules(Both())) == 3


class Bank(Component[Parameters]):
    """A stream through nested, shared, clocked and combinational parts, all in step."""

    LAYOUT = data.ArrayLayout(8, 3)
    LATENCY = 5  # of a Lane

    def ports(self) -> Ports:
        signature = stream.Signature(self.LAYOUT)
        return {"i": wire_in(signature), "o": wire_out(signature)}

    def elaborate(self, platform):
        m = Module()
        valid = Signal(self.LATENCY)
        moves = ~valid[-1] | self.o.ready
        m.d.comb += [self.i.ready.eq(moves), self.o.valid.eq(valid[-1])]
        with m.If(moves):
            m.d.sync += valid.eq((valid << 1) | self.i.valid)
        for k, step in enumerate((1, 7, 7)):
            m.submodules[f"lane{k}"] = lane = Lane(step)
            m.submodules[f"chain{k}"] = chain = Chain(2, 3 * k % 2, clocked=False)
            m.d.comb += [
                lane.i.eq(self.i.payload[k]),
                lane.enable.eq(moves),
                chain.i.eq(lane.o),
                self.o.payload[k].eq(chain.o),
            ]
        return m


@dataclasses.dataclass(frozen=True)
class BankParameters(Parameters):
    @property
    def latency(self) -> int:
        return Bank.LATENCY


@pytest.fixture(scope="module")
def both_forms():
    shared = generate(Block(Bank), BankParameters())
    alone = to_verilog(rtlil.convert(Bank(BankParameters()), name=shared.module))
    return shared, dataclasses.replace(shared, verilog=alone)


def test_forms_differ_in_modules_only(both_forms):
    shared, alone = both_forms
    # Two kinds each of lane, chain of clocked units, clocked unit; chains 0 and 2 (step 0) and
    # chain 1 (step 1) of combinational units.
    assert len(shared.modules) == 1 + 2 * 3 + 2 * 2
    assert len(alone.modules) == 1 + 3 * (1 + 2 * 3 + 1) + 3 * 3
    assert shared.instances == alone.instances == len(alone.modules) - 1


def bank_job() -> Stimulus:
    values = np.random.default_rng(1).integers(0, 256, (80, 3))
    steps = np.array([5 * 1 + 0, 5 * 7 + 2, 5 * 7 + 0])
    beats = [
        payload.pack(Bank.LAYOUT, {f"[{k}]": v[:, k] for k in range(3)})
        for v in (values, (values + steps) % 256)
    ]
    return Stimulus({"i": beats[0]}, {"o": beats[1]}, {"o": np.arange(80)}, 80, 80 + Bank.LATENCY)


def cycles_of(design, stimulus: Stimulus, stall: str) -> int:
    outcome = Harness(design).run(stimulus, PATTERNS[stall], seed=1)
    assert outcome.failure is None
    assert compare(stimulus, outcome.outputs, design.outputs, outcome.cycles_of) == []
    return outcome.cycles


@pytest.mark.parametrize("stall", PATTERNS)
def test_shared_modules_do_what_the_design_says(both_forms, stall):
    stimulus = bank_job()
    assert (cycles_of(both_forms[0], stimulus, stall) == stimulus.cycles) == (stall == "none")


@pytest.mark.campaign
@pytest.mark.parametrize("stall", PATTERNS)
def test_forms_behave_the_same(both_forms, stall):
    cycles = [cycles_of(design, bank_job(), stall) for design in both_forms]
    assert cycles[0] == cycles[1]


@pytest.mark.campaign
def test_a_real_block_is_the_same_in_both_forms():
    block = find("kllm.orizuru")
    parameters = block.parameters_class.preset("deep")
    shared = generate(block, parameters)
    text = rtlil.convert(block.create(parameters), name=shared.module)
    alone = dataclasses.replace(shared, verilog=to_verilog(text))
    assert len(alone.modules) > len(shared.modules)
    stimulus = load_testbench(block).stimulus(parameters, None, 60, seed=3)
    for design in (shared, alone):
        assert cycles_of(design, stimulus, "none") == stimulus.cycles


@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.name)
def test_no_two_modules_of_a_block_are_the_same(block):
    """What sharing promises: equal hardware is written once."""
    design = generate(block, block.parameters_class.preset("first"))
    modules = re.split(r"^module ([^\s(]+)[^;]*;", design.verilog, flags=re.M)[1:]
    # Queues of unlike payloads may hold equal FIFOs of Amaranth's, which are not shared.
    named = zip(modules[::2], modules[1::2], strict=True)
    bodies = [body for name, body in named if not name.endswith("__fifo")]
    assert len(set(bodies)) == len(bodies)
