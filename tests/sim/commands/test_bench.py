"""Comparison of a simulated response with the expected one."""

import numpy as np
import pytest
from amaranth.lib import data

from sim.core import payload
from sim.core.stimulus import Mismatch, Stimulus, compare

SHAPE = data.StructLayout({"index": 12, "pair": data.StructLayout({"low": 30, "high": 8})})
BEATS = 12


def beats(**changes):
    """Beats that count up; ``field=(beat, value)`` changes one."""
    columns = {
        "index": np.arange(BEATS),
        "pair.low": np.arange(BEATS) * 1000,
        "pair.high": np.arange(BEATS) + 100,
    }
    for name, (beat, value) in changes.items():
        columns[name.replace("__", ".")][beat] = value
    return payload.pack(SHAPE, columns)


@pytest.fixture
def stimulus():
    """Four beats to a transaction; a second stream with a beat for each transaction."""
    totals = payload.from_ints([7, 8, 9], 40)
    return Stimulus(
        inputs={},
        outputs={"o": beats(), "total": totals},
        transaction_of={"o": np.arange(BEATS) // 4, "total": np.arange(3)},
        transactions=3,
        cycles=0,
    )


def mismatches(stimulus, o, total=None):
    got = {"o": o, "total": stimulus.outputs["total"] if total is None else total}
    # The cycles of the two streams differ, so that they cannot be mixed up.
    cycles_of = {"o": np.arange(len(o)) * 2 + 50, "total": np.arange(len(got["total"])) + 900}
    return compare(stimulus, got, {"o": SHAPE, "total": 40}, cycles_of)


def test_equal_streams_have_no_mismatch(stimulus):
    assert mismatches(stimulus, beats()) == []


@pytest.mark.parametrize(
    "field, beat, value",
    [("index", 0, 4095), ("pair__low", 5, 2**30 - 1), ("pair__high", 11, 0)],
)
def test_wrong_beat(stimulus, field, beat, value):
    name = field.replace("__", ".")
    expected = int(payload.unpack(SHAPE, beats())[name][beat])
    (found,) = mismatches(stimulus, beats(**{field: (beat, value)}))
    assert found == Mismatch("o", beat // 4, beat, name, expected, value, 50 + 2 * beat)
    assert str(found) == (
        f"transaction {beat // 4}, stream o, beat {beat}, field {name}, cycle {50 + 2 * beat}: "
        f"expected {expected}, got {value}"
    )


def test_all_wrong_beats_in_order_with_their_lowest_field(stimulus):
    found = mismatches(
        stimulus,
        beats(pair__high=(9, 1), index=(9, 77), pair__low=(2, 1)),
        payload.from_ints([7, 8, 9 + (1 << 39)], 40),
    )
    assert [(m.stream, m.transaction, m.beat, m.field) for m in found] == [
        ("o", 0, 2, "pair.low"),
        ("o", 2, 9, "index"),
        ("total", 2, 2, "payload"),
    ]
    assert [m.cycle for m in found] == [54, 68, 902]
    assert found[-1].got == 9 + (1 << 39)


def test_missing_beats(stimulus):
    (found,) = mismatches(stimulus, beats()[:6])
    assert found == Mismatch("o", 1, 6, "beat", "a beat", "nothing")
    assert str(found) == (
        "transaction 1, stream o, beat 6, field beat: expected a beat, got nothing"
    )
    first, second = mismatches(stimulus, beats()[:0], stimulus.outputs["total"][:0])
    assert (first.stream, first.transaction, first.beat) == ("o", 0, 0)
    assert (second.stream, second.transaction, second.beat) == ("total", 0, 0)


def test_a_lost_beat_shifts_the_rest(stimulus):
    found = mismatches(stimulus, np.delete(beats(), 4, axis=0))
    assert [m.beat for m in found] == list(range(4, BEATS))
    assert (found[0].field, found[0].expected, found[0].got) == ("index", 4, 5)
    assert (found[-1].expected, found[-1].got, found[-1].transaction) == ("a beat", "nothing", 2)


def test_extra_beats(stimulus):
    (found,) = mismatches(stimulus, np.concatenate([beats(), beats()[:2]]))
    assert (found.stream, found.beat, found.field) == ("o", BEATS, "beat")
    assert (found.expected, found.got) == ("nothing", "a beat")
    assert found.transaction == stimulus.transactions
    assert found.cycle == 50 + 2 * BEATS, "it is known when the first extra beat came"


def test_a_stream_that_should_stay_silent():
    shape = 8
    none = payload.from_ints([], shape)
    stimulus = Stimulus({}, {"o": none}, {"o": np.zeros(0, int)}, 1, 0)
    assert compare(stimulus, {"o": none}, {"o": shape}, {"o": []}) == []
    (found,) = compare(stimulus, {"o": payload.from_ints([0], shape)}, {"o": shape}, {"o": [3]})
    assert (found.beat, found.got) == (0, "a beat")
