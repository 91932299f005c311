"""Column scale: order of roundings, range, sums of a matrix in parts, any number of columns."""

import numpy as np
import pytest

from golden.arith.formats import to_bits
from golden.kllm.column_scale import column_result, column_scale, column_sum
from hw.catalogue import find
from hw.kllm.column_scale import ColumnScale, ColumnScaleParameters
from sim.checks.formal.specs import StreamRulesSpec
from sim.core import payload
from sim.testbenches.kllm.column_scale import build, chains, draw, runs, testbench
from tests.support.formal import prove_block
from tests.support.kllm.compiled import Compiled

BLOCK = find("kllm.column_scale")


def test_golden_rounds_four_times():
    """NumPy's own float32 arithmetic, one operation after the other."""
    v = draw(20000, seed=1)
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


def test_parts_are_added_one_after_the_other():
    """A matrix in three parts: NumPy's float32 sums in the order of the parts."""
    rng = np.random.default_rng(4)
    s, o = rng.standard_normal((2, 3, 4, 50)).astype(np.float32)
    s_a = rng.uniform(0.5, 2, (3, 4, 1)).astype(np.float16)
    r, s_b = (
        rng.uniform(0.5, 2, (4, 1)).astype(np.float16),
        rng.uniform(1, 2, 50).astype(np.float16),
    )
    kept, expected = None, np.zeros((4, 50), np.float32)
    for part in range(3):
        y = column_scale(s[part], o[part], s_a[part], r, s_b, kept)
        kept = column_sum(s[part], o[part], s_a[part], kept)
        expected = s_a[part].astype(np.float32) * s[part] + o[part] + expected
        np.testing.assert_array_equal(kept, expected)
        np.testing.assert_array_equal(y, column_result(expected, r, s_b))
    other = column_sum(s[1], o[1], s_a[1], column_sum(s[2], o[2], s_a[2]))
    other = column_sum(s[0], o[0], s_a[0], other)
    assert 0.2 < np.mean(other == expected) < 1  # another order may round otherwise


@pytest.mark.parametrize("columns", [1, 2, 5])
def test_a_sum_is_that_of_the_column_before_with_the_same_number(columns):
    """Which sum is added, by the definition: columns are counted from the first one of a run."""
    first, add = runs(columns, 3000, np.random.default_rng(columns))
    before, depth = chains(columns, first, add)
    starts = np.flatnonzero(first)
    number = (np.arange(3000) - starts[np.cumsum(first) - 1]) % columns
    for column in range(3000):
        same = np.flatnonzero(number[:column] == number[column])
        assert before[column] == (same[-1] if add[column] else column)
        assert depth[column] == (depth[before[column]] + 1 if add[column] else 0)
    lengths = np.diff(np.append(starts, 3000))
    assert {1, columns, columns + 3} <= set(lengths)
    # A sum is read in the cycle in which it is written, and later, in chains of several.
    distance = np.arange(3000)[add] - before[add]
    assert (np.count_nonzero(distance == 1) > 50) == (columns <= 5)
    assert depth.max() > 4


@pytest.mark.campaign
@pytest.mark.parametrize("columns", [1, 2, 3, 8])
def test_hardware(columns):
    """Runs of any lengths; runs of one column that all add, each to the sum of the cycle before."""
    parameters = ColumnScaleParameters(columns=columns)
    compiled = Compiled(BLOCK, parameters)
    compiled.check_all(testbench.stimulus(parameters, None, 20000, seed=columns))
    ones = np.ones(2000, bool)
    add = ones & (np.arange(2000) % 40 > 0)
    rng = np.random.default_rng(columns)
    stimulus = build(parameters, draw(2000, seed=columns), ones, add, [], rng)
    outcome = compiled.check_all(stimulus)["none"]
    assert (np.diff(outcome.cycles_of["o"]) == 1).all()
    assert outcome.cycles_of["o"][0] == parameters.latency
    # Zeros in place of the sums kept change most results.
    y = payload.unpack(parameters.output_layout, stimulus.outputs["o"])["y"]
    alone = build(parameters, draw(2000, seed=columns), ones, ones & False, [])
    y_alone = payload.unpack(parameters.output_layout, alone.outputs["o"])["y"]
    assert np.mean(y != y_alone) > 0.5


@pytest.mark.campaign
def test_stream_rules():
    """Whatever columns are offered and whenever results are read, they stay until they are."""
    spec = StreamRulesSpec(ColumnScale(ColumnScaleParameters(columns=2)), ["o"], ["i"])
    prove_block(spec, "column_scale_rules", depth=2)
