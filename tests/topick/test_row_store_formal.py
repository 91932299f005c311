"""The row store: rules of streams; unbounded proof."""

from hw.topick.row_store import RowStore, RowStoreParameters
from tests.support.formal import prove_stream_rules

SIZE = RowStoreParameters(1, 2, 1, lanes=2, lanes_per_head=2, rows=2, kv_heads=2)


def test_rules_of_streams():
    prove_stream_rules(RowStore(SIZE), "row_store", "write", ["command", "kv"])
