"""A lane's memory port: rules of streams, addresses and tags; unbounded proof."""

import dataclasses

from amaranth.asserts import AnySeq
from amaranth.hdl import Assert, Cover, Elaboratable, Module, Signal

from hw.topick import lane_port
from hw.topick.lane_port import LanePort
from hw.topick.topick_core import TopickCoreParameters
from sim.checks.formal.specs import surround
from tests.support.formal import fault_test, prove_block

SIZE = dataclasses.replace(TopickCoreParameters.preset("small"), d=2, tokens=16, kv_heads=4)


class PortSpec(Elaboratable):
    """A request is that of the key or value accepted last; each response goes to its side."""

    def __init__(self, dut: LanePort):
        self._dut = dut

    def elaborate(self, platform):
        m = Module()
        dut = self._dut
        first, _ = surround(m, dut)
        p = SIZE
        m.d.comb += [
            dut.key_head.eq(AnySeq(len(dut.key_head))),
            dut.value_head.eq(AnySeq(len(dut.value_head))),
        ]
        key, value = dut.key_request, dut.value_request
        expected = Signal(p.memory.read_layout)
        waiting = Signal()
        takes_key, takes_value = key.valid & key.ready & ~first, value.valid & value.ready & ~first
        head = Signal(2)
        with m.If(dut.request.ready):
            m.d.sync += waiting.eq(0)
        for takes, kind, row, chunk, label, kv in (
            (takes_key, 0, key.payload.token, key.payload.chunk, key.payload.slot, dut.key_head),
            (
                takes_value,
                1,
                value.payload.row,
                value.payload.chunk,
                value.payload.p,
                dut.value_head,
            ),
        ):
            with m.If(takes):
                # Planes of `rows` words: kv head, K or V, chunk.
                plane = (kv * 2 + kind) * p.lane.chunks + chunk
                m.d.sync += [
                    waiting.eq(1),
                    head.eq(kv),
                    expected.tag.value.eq(kind),
                    expected.tag.chunk.eq(chunk),
                    expected.tag.row.eq(row),
                    expected.tag.label.eq(label),
                    expected.address.eq(plane * p.rows + row),
                ]
        found = Signal(p.memory.read_layout)
        m.d.comb += found.eq(dut.request.payload)
        with m.If(~expected.tag.value):  # a key's label is a slot and bits without a meaning
            m.d.comb += found.tag.label[len(key.payload.slot) :].eq(0)
        with m.If(~first):
            m.d.comb += [
                Assert(dut.request.valid == waiting, "a request is lost or made up"),
                Assert(~waiting | (found == expected), "another request"),
                Assert(~(takes_key & takes_value), "two at a time"),
                Assert(~(value.ready & key.valid), "a value precedes a key"),
            ]
        response, tag = dut.response, dut.response.payload.tag
        m.d.comb += [
            Assert((dut.key_response.valid | dut.value_response.valid) == response.valid),
            Assert(~dut.value_response.valid | (tag.value == 1), "a key goes to the values"),
            Assert(~dut.key_response.valid | (tag.value == 0), "a value goes to the keys"),
            Assert(dut.key_response.payload.tag.slot == tag.label[: len(key.payload.slot)]),
            Assert(dut.value_response.payload.p == tag.label),
            Cover(waiting & expected.tag.value & (head == 1) & dut.request.valid, "a value"),
        ]
        return m


def test_proof():
    prove_block(PortSpec(LanePort(SIZE)), "lane_port", depth=2)


def test_cover():
    prove_block(PortSpec(LanePort(SIZE)), "lane_port", "cover", depth=6)


FAULTS = {
    "plane": ("(head * 2 + is_value)", "(head + is_value)", "another request"),
    "priority": (
        "self.value_request.ready.eq(room & is_value)",
        "self.value_request.ready.eq(room)",
        "two at a time",
    ),
    "held": ("room.eq(~self.request.valid | self.request.ready)", "room.eq(1)", "changed|another"),
}


test_injected_fault_is_found = fault_test(
    lane_port, FAULTS, lambda m: PortSpec(m.LanePort(SIZE)), suite=FAULTS, depth=6
)
