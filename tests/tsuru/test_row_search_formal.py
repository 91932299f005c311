"""Beats of the search keep the rules of streams; unbounded proof, and a fault that it finds."""

from hw.tsuru import row_search
from hw.tsuru.row_search import RowSearch, RowSearchParameters
from sim.checks.formal.specs import StreamRulesSpec
from tests.support.formal import fault_test, prove_block

P = RowSearchParameters(d=8, capacity=16, parallel=1, query_bits=4, sinks=0)
INPUTS = ["batch", "q", "words"]


def test_stream_rules():
    prove_block(StreamRulesSpec(RowSearch(P), ["o"], INPUTS), "tsuru_row_search_rules", depth=2)


test_injected_fault_is_found = fault_test(
    row_search,
    {
        "moves when stalled": (
            "advance.eq(~self.o.valid | self.o.ready)",
            "advance.eq(1)",
            "a stalled",
        )
    },
    lambda m: StreamRulesSpec(m.RowSearch(P), ["o"], INPUTS),
    depth=16,
)
