"""Beats by named fields: packed as by hand, cut at a transaction, with owners of each beat."""

import numpy as np
import pytest
from amaranth.lib import data

from sim.core import payload
from sim.core.streams import Streams, last_of

ROW = data.ArrayLayout(16, 2)
COMMAND = data.StructLayout({"restart": 1, "n": 6})


@pytest.fixture
def streams():
    made = Streams({"command": COMMAND, "kv": ROW, "report": COMMAND})
    for number, rows in enumerate((1, 0, 3)):
        made.add("command", number, {"restart": number == 0, "n": 10 + number})
        if rows:
            made.add("kv", number, {"": np.full((rows, 2), number + 0.5, np.float16)})
    return made


def test_beats_are_packed_as_by_hand(streams):
    packed = streams.packed()
    fields = {"restart": np.array([1, 0, 0]), "n": np.array([10, 11, 12])}
    assert np.array_equal(packed["command"], payload.pack(COMMAND, fields))
    rows = np.array([[0.5] * 2, *[[2.5] * 2] * 3], np.float16)
    assert np.array_equal(packed["kv"], payload.pack(ROW, {"": rows.view(np.uint16)}))
    assert packed["report"].shape == (0, 1)
    assert streams.fields("command") == ["restart", "n"]


@pytest.mark.parametrize(("since", "owners"), [(0, [0, 2, 2, 2]), (1, [1, 1, 1]), (3, [])])
def test_a_later_part_counts_its_transactions_from_0(streams, since, owners):
    assert streams.owners(since)["kv"].tolist() == owners
    assert np.array_equal(streams.packed(since)["kv"], streams.packed()["kv"][4 - len(owners) :])
    assert len(streams.packed(since)["command"]) == 3 - since


def test_last_beats():
    assert last_of([2, 0, 1]).tolist() == [False, True, True] and not len(last_of([0, 0]))
