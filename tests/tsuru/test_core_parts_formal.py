"""Parts of the sixth design's core keep the rules of streams; unbounded proofs, faults found."""

import pytest
from amaranth.asserts import AnyConst
from amaranth.hdl import Assert, Elaboratable, Module

from hw.tsuru import row_requests, row_store, row_supply
from hw.tsuru.core_parameters import TsuruCoreParameters
from hw.tsuru.row_requests import RowRequests, RowSupplyParameters
from hw.tsuru.row_store import RowStore
from hw.tsuru.row_supply import RowSupply
from sim.checks.formal.specs import StreamRulesSpec, surround
from tests.support.formal import fault_test, prove_block, prove_stream_rules

SUPPLY = RowSupplyParameters(d=8, capacity=16, head_bits=1, parallel=1, sinks=1, kept=2, depth=4)
CORE = TsuruCoreParameters(8, 16, heads=1, kv_heads=1, parallel=1, depth=4, kept=2)
REQUESTS, FEED = ["batch", "i"], ["batch", "i", "rest", "response"]


def test_stream_rules_of_requests():
    prove_stream_rules(RowRequests(SUPPLY), "tsuru_row_requests", "issue", REQUESTS)


test_injected_fault_in_requests_is_found = fault_test(
    row_requests,
    {
        "reads on when stalled": (
            "read.en.eq((listed != beyond) & (~there | issue.ready)),",
            "read.en.eq(listed != beyond),",
            "a stalled payload changed",
        )
    },
    lambda m: StreamRulesSpec(m.RowRequests(SUPPLY), ["issue"], REQUESTS),
    suite=["reads on when stalled"],
    depth=16,
)


@pytest.mark.campaign
def test_stream_rules_of_supply():
    """Requests are the reorder buffer's."""
    prove_stream_rules(RowSupply(SUPPLY), "tsuru_row_supply", "o", FEED)


test_injected_fault_in_supply_is_found = fault_test(
    row_supply,
    {
        "the register is never full": (
            "advance.eq(~o.valid | o.ready),",
            "advance.eq(1),",
            "a stalled",
        )
    },
    lambda m: StreamRulesSpec(m.RowSupply(SUPPLY), ["o"], FEED),
    depth=14,
)


class StoreSpec(Elaboratable):
    """New rows of an arbitrary number, within a sequence.

    inductive
        Whether it asserts that only a row that is offered is written.
    """

    def __init__(self, dut, inductive: bool = True):
        self._dut, self._inductive = dut, inductive

    def elaborate(self, platform):
        m = Module()
        first, internals = surround(m, self._dut)
        m.d.comb += self._dut.row.eq(AnyConst(len(self._dut.row)))
        if self._inductive:
            with m.If(~first):
                idle = internals.signal("write_state") == 0
                m.d.comb += Assert(idle | self._dut.store.valid)
        return m


def test_stream_rules_of_store():
    prove_block(StoreSpec(RowStore(CORE)), "tsuru_row_store", depth=2)


test_injected_fault_in_store_is_found = fault_test(
    row_store,
    {
        "the tail is written at once": (
            "m.d.comb += [write_en.eq(passed), store.ready.eq(passed)]",
            "m.d.comb += [write_en.eq(1), store.ready.eq(passed)]",
            "a stalled payload changed",
        )
    },
    lambda m: StoreSpec(m.RowStore(CORE), inductive=False),
    depth=12,
)
