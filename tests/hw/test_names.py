"""Signals have the names of their variables, whatever Python's bytecode looks like."""

import types

import pytest
from amaranth.hdl import Signal

from hw import component, names


def test_signals_are_named_after_their_variables():
    """What follows a store decides which instruction it is: a load, another store, neither."""
    assert component.names is names
    first = Signal(2)
    second = first
    third = Signal(3)
    fourth, fifth = third, Signal(4)
    holder = types.SimpleNamespace()
    holder.sixth = Signal(5)
    assert [x.name for x in (second, fourth, holder.sixth)] == ["first", "third", "sixth"]
    assert fifth.name in ("fifth", "$signal")  # one of several has none in any version
    for seventh in [Signal(6)]:
        assert seventh.name == "$signal"
    assert (Signal(7) if first is second else third).name == "$signal"


@pytest.mark.parametrize("name", names.JOINED)
def test_bytecode_that_joins_a_store(monkeypatch, name):
    """By hand, as no earlier Python has such instructions."""
    opnames = ["CACHE", "CALL", name, "LOAD_FAST", "BINARY_OP"]
    monkeypatch.setattr(names, "opname", opnames)

    class Code:
        co_varnames = tuple("abcdef")
        co_code = bytes([3, 0, 1, 0, 0, 0, 0, 0, 2, 5 << 4 | 1, 4, 0, 2, 0x10, 1, 0])

    assert names.stored_in(Code, 2) == names.stored_in(Code, 6) == "f"
    assert names.stored_in(Code, 10) is None  # no call
    assert names.stored_in(Code, 0) is None and names.stored_in(Code, 14) is None
