"""The sum over a head's lanes: extreme and random sums, heads at once and far apart."""

import numpy as np
import pytest

from hw.topick.sum_join import SumJoin
from sim.core import payload
from tests.support.topick.streams import run


def simulate(lanes: int, d: int, bits: int, sums: np.ndarray, stall: float):
    """Sums ``[heads, lanes, d]`` in, those over the lanes out, with the cycles of transfers."""
    dut = SumJoin(lanes, d, bits)
    inputs = {f"i{n}": (port, sums[:, n].tolist()) for n, port in enumerate(dut.i)}
    got, cycles = run(dut, inputs, {"o": dut.o}, stall)
    shape = dut.o.payload.shape()
    fields = payload.unpack(shape, payload.from_ints(got["o"], shape))
    o = np.stack(list(fields.values()), axis=1).astype(np.int64)
    width = shape.elem_shape.as_shape().width
    return o - (o >> width - 1 << width), cycles


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize(("lanes", "d", "bits"), [(1, 3, 4), (2, 4, 12), (3, 1, 2), (8, 2, 16)])
def test_sums(lanes, d, bits, stall):
    rng = np.random.default_rng(lanes)
    low, high = -(1 << 2 * bits - 1), (1 << 2 * bits - 1) - 1
    heads = 12
    sums = rng.integers(low, high + 1, (heads, lanes, d))
    sums[:2] = np.array([low, high])[:, None, None]
    o, cycles = simulate(lanes, d, bits, sums, stall)
    assert (o == sums.sum(axis=1)).all()
    if not stall:  # a sum every lanes + 1 cycles
        assert cycles["o"] == [(lanes + 1) * (head + 1) - 1 for head in range(heads)]
