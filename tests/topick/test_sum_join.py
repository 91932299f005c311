"""The sums over a head's lanes: extreme and random ones, heads at once and far apart."""

import numpy as np
import pytest

from hw.topick.sum_join import SumJoin
from sim.core import payload
from tests.support.topick.streams import run

PLACES = 6


def simulate(lanes: int, d: int, bits: int, sums: np.ndarray, stall: float):
    """Sums ``[heads, lanes, d + 1]``, ``total`` the last, in; those over the lanes out, with the
    cycles of transfers."""
    dut = SumJoin(lanes, d, bits, PLACES)
    inputs = {
        f"i{n}": (port, [{"o": s[:-1], "total": s[-1]} for s in sums[:, n].tolist()])
        for n, port in enumerate(dut.i)
    }
    got, cycles = run(dut, inputs, {"o": dut.o}, stall)
    shape = dut.o.payload.shape()
    fields = payload.unpack(shape, payload.from_ints(got["o"], shape))
    o = np.stack(list(fields.values()), axis=1).astype(np.int64)
    width = shape["o"].shape.elem_shape.as_shape().width
    o[:, :-1] -= o[:, :-1] >> width - 1 << width
    return o, cycles


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize(("lanes", "d", "bits"), [(1, 3, 4), (2, 4, 12), (3, 1, 2), (8, 2, 16)])
def test_sums(lanes, d, bits, stall):
    rng = np.random.default_rng(lanes)
    largest = 1 << PLACES + bits
    low, high = np.array([-largest] * d + [0]), np.array([largest] * d + [2 << PLACES]) - 1
    heads = 12
    sums = rng.integers(low, high + 1, (heads, lanes, d + 1))
    sums[0], sums[1] = low, high
    o, cycles = simulate(lanes, d, bits, sums, stall)
    assert (o == sums.sum(axis=1)).all()
    if not stall:  # a sum every lanes + 1 cycles
        assert cycles["o"] == [(lanes + 1) * (head + 1) - 1 for head in range(heads)]
