"""Column scale: order of roundings, range, every number of stages."""

import numpy as np
import pytest

from golden.arith.formats import to_bits
from golden.kllm.column_scale import column_scale
from hw.catalogue import find
from hw.kllm.column_scale import ColumnScaleParameters
from sim.testbenches.kllm.column_scale import testbench
from tests.support.arith.functions import run

BLOCK = find("kllm.column_scale")


def drawn(parameters, count, seed=1):
    return testbench.draw(parameters, None, count, seed)[0]


def test_golden_rounds_four_times():
    """NumPy's own float32 arithmetic, one operation after the other."""
    v = drawn(ColumnScaleParameters(), 20000)
    keep = np.ones(20000, bool)
    for array in v.values():
        keep &= np.isfinite(array)
    for name in ("s", "o"):
        keep &= np.abs(v[name]) > 1e-30
    v = {name: array[keep] for name, array in v.items()}
    wide = {name: array.astype(np.float32) for name, array in v.items()}
    with np.errstate(all="ignore"):
        total = wide["s_a"] * wide["s"] + wide["o"]
        expected = (total * (wide["r"] * wide["s_b"])).astype(np.float16)
    usual = np.isfinite(expected) & (np.abs(total) > 1e-30)
    got = column_scale(**v)
    assert np.count_nonzero(usual) > 9000
    np.testing.assert_array_equal(got[usual], expected[usual])
    # Over FP16's range.
    assert len(np.unique(to_bits(got[usual]) >> 10)) > 55


def test_close_to_the_exact_result():
    """Terms that do not cancel: half an FP16 ulp, and the FP32 roundings."""
    rng = np.random.default_rng(2)
    s, o = rng.uniform(1, 1000, (2, 50000)).astype(np.float32)
    s_a, r, s_b = rng.uniform(0.1, 2, (3, 50000)).astype(np.float16)
    wide = [a.astype(np.float64) for a in (s, o, s_a, r, s_b)]
    exact = (wide[2] * wide[0] + wide[1]) * (wide[3] * wide[4])
    got = column_scale(s, o, s_a, r, s_b).astype(np.float64)
    unit = 2.0 ** (np.floor(np.log2(exact)) - 10)
    worst = (np.abs(got - exact) / unit).max()
    print(f"at most {worst:.5f} ulp")
    assert 0.49 < worst < 0.501


def test_tokens_by_columns():
    rng = np.random.default_rng(3)
    s, o = rng.standard_normal((2, 4, 5)).astype(np.float32)
    s_a, r, s_b = (rng.random(n).astype(np.float16) for n in (4, 4, 5))
    together = column_scale(s, o, s_a[:, None], r[:, None], s_b)
    for t in range(4):
        for n in range(5):
            alone = column_scale(s[t, n], o[t, n], s_a[t], r[t], s_b[n])
            assert to_bits(alone) == to_bits(together[t, n])


def test_no_subnormal_is_ever_flushed():
    """The smallest sums and scales give no FP32 subnormals."""
    tiny = np.float16(2.0**-24)
    least = np.float32(2.0**-48)
    y = column_scale(
        np.float32(2.0**-24), np.float32(0), tiny, np.float16(65504), np.float16(65504)
    )
    assert float(y) == np.float16(2.0**-48 * 65504.0**2)
    # The smallest sum times the smallest scales is below FP16, not below FP32.
    assert 2.0**-48 * float(tiny) ** 2 > np.finfo(np.float32).tiny
    assert column_scale(np.float32(0), least, tiny, tiny, tiny) == 0


@pytest.mark.campaign
@pytest.mark.parametrize("stages", range(5))
def test_hardware(stages):
    """Compiling takes a minute each."""
    parameters = ColumnScaleParameters(stages=stages)
    assert run(BLOCK, parameters, drawn(parameters, 40000, seed=stages)) == 0
