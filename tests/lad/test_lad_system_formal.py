# amaranth: UnusedElaboratable=no
"""What several tiles add to a tile: each head's output and report once, with its number.

The tiles are any that accept a command when they are idle and then give an output and a report for
each of its heads, with any stalls and any requests.
"""

import dataclasses

import pytest
from amaranth.asserts import AnySeq
from amaranth.hdl import Assert, Assume, Const, Cover, Elaboratable, Module, Mux, Signal

from hw.component import Component
from hw.lad import lad_system
from hw.lad.lad_tile import LadTile
from hw.lad.system_parameters import LadSystemParameters
from hw.lad.tile_parameters import LadTileParameters
from sim.checks.formal.specs import drive, surround
from tests.support.formal import fault_test, prove_block

SMALL = dataclasses.replace(
    LadSystemParameters.preset("small"),
    positions=4,
    bounds="8",
    window=1,
    counter_bits=2,
    depth=4,
    updates=2,
    prefetch=2,
    heads=3,
    kv_heads=3,
)


class AnyTile(Component[LadTileParameters]):
    """A tile's ports; its outputs are what the solver likes."""

    def ports(self):
        return LadTile.ports(self)

    def elaborate(self, platform):
        m = Module()
        first = Signal(init=1, reset_less=True)
        m.d.sync += first.eq(0)
        drive(m, first, self.request)
        command = self.command.payload
        left, idle = [], Signal(init=1)
        for name in ("o", "report"):
            port = getattr(self, name)
            count = Signal(range(self.parameters.heads + 1), name=f"{name}_left")
            drive(m, first, port)
            m.d.comb += Assume(~port.valid | (count != 0))
            with m.If(self.command.valid & self.command.ready):
                m.d.sync += count.eq(Mux(command.prefetch == 0, command.heads, 0))
            with m.Elif(port.valid & port.ready):
                m.d.sync += count.eq(count - 1)
            left.append(count)
        with m.If(self.command.valid & idle):
            m.d.sync += idle.eq(0)
        with m.Elif((left[0] == 0) & (left[1] == 0) & AnySeq(1)):
            m.d.sync += idle.eq(1)
        m.d.comb += [
            self.command.ready.eq(idle),
            Assume(~self.report.payload.error),
            *(getattr(self, name).ready.eq(AnySeq(1)) for name in ("kv", "q", "response")),
        ]
        return m


def system(module=lad_system):
    """The system with such tiles, which it asks its module for when it is elaborated."""

    class AnyTiles(module.LadSystem):
        def elaborate(self, platform):
            tile, module.LadTile = module.LadTile, AnyTile
            try:
                return super().elaborate(platform)
            finally:
                module.LadTile = tile

    return AnyTiles(SMALL)


IDLE, COUNT, REFUSED, ATTEND, DEAL = range(5)  # all tiles are idle but in ATTEND


class Rules(Elaboratable):
    """The rules of streams; outputs that are to come, as an induction's invariant."""

    def __init__(self, dut):
        self.dut = dut

    def elaborate(self, platform):
        m = Module()
        dut, p = self.dut, self.dut.parameters
        first, internals = surround(m, dut)
        for name in ("request", "o", "report"):
            port = getattr(dut, name)
            m.d.comb += Cover(~first & port.valid & ~port.ready, f"{name} stalls")
        job = p.command_layout(internals.signal("job"))
        state = internals.signal("fsm_state")
        resting = state != ATTEND
        step = (state == DEAL) & (job.prefetch == 0)
        outputs, shares = dut.o.valid, 0
        for tile in range(p.tiles):
            left = internals.signal(f"tile_{tile}.o_left")
            reports = internals.signal(f"tile_{tile}.report_left")
            share = internals.signal(f"share_{tile}")
            shares += share
            outputs += left + Mux(step, share, 0)
            idle = internals.signal(f"tile_{tile}.idle")
            working = (left != 0) | (reports != 0)
            m.d.comb += [
                Assert(~resting | idle | first, "a tile refuses its command"),
                Assert(~idle | ~working | first, "a tile works on no command"),
            ]
        remaining = internals.signal("remaining")
        m.d.comb += [
            Assert((outputs == remaining) | first, "outputs to come"),
            Assert((state > REFUSED) | (remaining == 0) | first, "outputs of no command"),
            Assert((state != COUNT) | (shares == internals.signal("covered")) | first, "shares"),
            Assert((state != COUNT) | (shares <= job.heads) | first, "too many heads"),
        ]
        return m


class Heads(Elaboratable):
    """Heads of a step whose outputs and reports have come. All commands are steps, some refused."""

    def __init__(self, dut):
        self.dut = dut

    def elaborate(self, platform):
        m = Module()
        dut, p = self.dut, self.dut.parameters
        first, _ = surround(m, dut)
        command, job = dut.command, Signal(p.command_layout)
        accepted = command.valid & command.ready & ~first
        m.d.comb += Assume((command.payload.prefetch == 0) & (command.payload.heads != 0))
        with m.If(accepted):
            m.d.sync += job.eq(command.payload)
        answered = Signal()  # the command has had a report of a refusal
        for name in ("o", "report"):
            port, seen = getattr(dut, name), Signal(p.heads, name=f"{name}_seen")
            head, transfer = port.payload.head, port.valid & port.ready & ~first
            error = port.payload.error if name == "report" else Const(0)
            with m.If(accepted):
                m.d.sync += [seen.eq(0), answered.eq(0)]
            with m.Elif(transfer):
                m.d.sync += [seen.bit_select(head, 1).eq(1), answered.eq(answered | error)]
            with m.If(transfer & ~error):
                m.d.comb += [
                    Assert(head < job.heads, f"{name} of a head that there is not"),
                    Assert(~seen.bit_select(head, 1), f"{name} of a head twice"),
                    Assert(~answered, f"{name} of a refused step"),
                ]
                all_seen = (seen | (1 << head)) == (1 << job.heads) - 1
                if name == "o":
                    m.d.comb += Assert(port.payload.last == all_seen, "last")
                m.d.comb += Cover(all_seen & (job.heads == 3), f"all {name}")
            if name == "report":
                with m.If(transfer & error):
                    m.d.comb += Assert(~answered & (seen == 0), "refused after an output")
                    m.d.comb += Cover(job.n != 0, "a refusal")
            done = (seen == (1 << job.heads) - 1) | answered
            begun = Signal(name=f"{name}_begun")
            m.d.sync += begun.eq(begun | accepted)
            # The arbiter may hold a report of the command before; the host waits for it here.
            rule = Assert if name == "o" else Assume
            m.d.comb += rule(~accepted | ~begun | done, f"a command before each {name}")
        return m


def test_rules_of_streams():
    prove_block(Rules(system()), "lad_system_rules", depth=3)
    prove_block(Rules(system()), "lad_system_rules", "cover", depth=16)


@pytest.mark.campaign
def test_each_head_once():
    prove_block(Heads(system()), "lad_system_heads", "cover", depth=20, seconds=300)
    prove_block(Heads(system()), "lad_system_heads", "bmc", depth=18, seconds=600)


FAULTS = {
    "wrong next kv head": (
        "head.eq(head + 1 + (p.tiles - 1) * group)",
        "head.eq(head + 1 + p.tiles * group)",
        "o of|report of",
    ),
    "last too early": (
        "self.o.payload.last.eq(remaining == 1)",
        "self.o.payload.last.eq(remaining == 2)",
        "last",
    ),
    "does not wait": (
        "with m.If((remaining == 0) & Cat(tile.command.ready for tile in tiles).all()):",
        "with m.If(Cat(tile.command.ready for tile in tiles).any()):",
        "a command before each o|last|of a head",
    ),
}

test_injected_fault_is_found = fault_test(
    lad_system, FAULTS, lambda module: Heads(system(module)), depth=18
)
