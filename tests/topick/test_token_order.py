"""The order of a lane's rows: any number of rows, one head after another."""

import random

import pytest

from golden.topick.topick_core import token_order
from hw.topick.token_order import TokenOrder
from tests.support.topick.streams import run


def starts_of(row_bits: int, rng: random.Random) -> list[tuple[int, bool, bool]]:
    """Every kind of short head, full ones and random ones, shuffled; some without rows."""
    most = 1 << row_bits
    sizes = [*range(min(most, 5) + 1), most - 1, most, rng.randint(0, most)]
    flags = [(newest, first) for newest in (False, True) for first in (False, True)]
    starts = [(tokens, *pair) for tokens in sizes for pair in flags]
    rng.shuffle(starts)
    return starts


def simulate(row_bits: int, starts: list[tuple[int, bool, bool]], stall: float):
    dut = TokenOrder(row_bits)
    names = ("tokens", "newest", "first")
    beats = [dict(zip(names, start, strict=True)) for start in starts]
    got, cycles = run(dut, {"start": (dut.start, beats)}, {"token": dut.token}, stall)
    return got["token"], cycles


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("row_bits", [1, 2, 3, 5])
def test_rows_come_in_the_models_order(row_bits, stall):
    starts = starts_of(row_bits, random.Random(row_bits))
    rows, cycles = simulate(row_bits, starts, stall)
    assert rows == [row for start in starts for row in token_order(*start)]
    if not stall:  # a row per cycle, the first a cycle after its start
        at = 0
        expected = {"start": [], "token": []}
        for tokens, *_ in starts:
            expected["start"].append(at)
            expected["token"] += range(at + 1, at + 1 + tokens)
            at += max(1, tokens)
        assert cycles == expected


def test_example():
    assert simulate(3, [(5, True, True), (5, False, False), (0, True, True)], 0.0)[0] == [
        *[4, 0, 3, 2, 1],
        *[4, 3, 2, 1, 0],
    ]
