"""Static-dynamic pruning against a plain model of the array, one kv head and row at a time."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from golden.algorithms.attention import ELEMENT_BYTES, DecodeAttention, DenseAttention
from golden.algorithms.unicaim import StaticDynamicAttention
from tests.support.unicaim.plain_array import simulate


def random_qkv(group, kv_heads, tokens, d, seed, whole=False):
    rng = np.random.default_rng(seed)
    shapes = ((group * kv_heads, tokens, d), (kv_heads, tokens, d), (kv_heads, tokens, d))
    if whole:  # few different values, so that similarities tie
        return [rng.integers(-1, 2, shape).astype(np.float64) for shape in shapes]
    return [rng.normal(size=shape) for shape in shapes]


DEFAULTS = {
    "heavy": 4,
    "reserved": 2,
    "top_k": 3,
    "prompt": 7,
    "key_bits": 3,
    "query_bits": 2,
    "accumulate": "charge",
    "share": 2,
    "start": "mean",
    "fill": True,
    "observe": 3,
    "rotate": True,
    "centre": True,
    "span": None,
    "exact": "rows",
    "converter_bits": 0,
    "spread_mv": 0.0,
    "calibrate": "none",
    "seed": 0,
    "scale": None,
}
WITHOUT_CELLS = {
    "key_bits": 0,
    "exact": "rows",
    "converter_bits": 0,
    "spread_mv": 0.0,
    "calibrate": "none",
}
OPTIONS = st.fixed_dictionaries(
    {
        "heavy": st.integers(1, 7),
        "reserved": st.integers(1, 4),
        "top_k": st.integers(1, 12),
        "prompt": st.integers(1, 9),
        "key_bits": st.sampled_from([0, 1, 3, 4]),
        "query_bits": st.integers(1, 3),
        "accumulate": st.sampled_from(["charge", "attention"]),
        "share": st.integers(0, 3),
        "start": st.sampled_from(["mean", "zero"]),
        "fill": st.booleans(),
        "observe": st.integers(0, 10),
        "rotate": st.booleans(),
        "centre": st.booleans(),
        "span": st.sampled_from([None, 0.5, 3.0]),
        "exact": st.sampled_from(["rows", "cells"]),
        "converter_bits": st.sampled_from([0, 4, 10]),
        "spread_mv": st.sampled_from([0.0, 54.0]),
        "calibrate": st.sampled_from(["none", "codes", "lines"]),
        "seed": st.integers(0, 9),
        "scale": st.sampled_from([None, 0.7]),
    }
)


def consistent(options):
    """Without cells there are no converters and no devices; exact rows are not converted."""
    if not options["key_bits"]:
        return options | WITHOUT_CELLS
    if options["exact"] == "rows" and options["calibrate"] != "lines":
        return options | {"converter_bits": 0, "calibrate": "none"}
    return options


def compare(options, group, kv_heads, tokens, seed, whole=False):
    q, k, v = random_qkv(group, kv_heads, tokens, 4, seed, whole)
    attention = StaticDynamicAttention(**options)
    o = attention.sequence(q, k, v)
    arrays, expected = simulate(q, k, v, options)
    np.testing.assert_allclose(o, expected, rtol=1e-9, atol=1e-12)
    for kv, array in enumerate(arrays):
        assert attention.positions[kv].tolist() == [row.position for row in array.rows]
        want = [row.accumulation for row in array.rows]
        np.testing.assert_allclose(attention.accumulation[kv], want, rtol=1e-9, atol=1e-12)
    # A position has left when the last kv head dropped it; later drops first, then by position.
    drops = {}
    for array in arrays:
        for t, position in array.dropped:
            drops.setdefault(position, []).append(t)
    gone = [(max(ts), position) for position, ts in drops.items() if len(ts) == kv_heads]
    assert attention.evicted == [position for _, position in sorted(gone)]
    prompt_rows = kv_heads * options["prompt"] * (options["prompt"] + 1) // 2
    read = prompt_rows + sum(array.read for array in arrays)
    assert attention.traffic.k_rows == attention.traffic.v_rows == read
    assert attention.traffic.k_bytes == attention.traffic.v_bytes == read * 4 * ELEMENT_BYTES
    assert attention.traffic.dense_rows == kv_heads * tokens * (tokens + 1) // 2
    assert attention.conversions == sum(array.conversions for array in arrays)
    assert attention.rows == sum(len(array.rows) for array in arrays)
    cells = -(-attention.rows * 4 * options["key_bits"] // 8)
    assert attention.state_bytes == 4 * attention.rows + cells


@settings(max_examples=150)
@given(OPTIONS, st.integers(1, 3), st.integers(1, 3), st.integers(1, 14), st.integers(0, 2**32 - 1))
def test_equals_the_definition(options, group, kv_heads, more, seed):
    compare(consistent(options), group, kv_heads, options["prompt"] + more, seed)


@settings(max_examples=60)
@given(OPTIONS, st.integers(1, 2), st.integers(1, 20), st.integers(0, 2**32 - 1))
@example(DEFAULTS | {"key_bits": 0, "scale": 1.0, "fill": False}, 2, 16, 5)
@example(DEFAULTS | {"key_bits": 0, "scale": 1.0, "top_k": 1, "fill": False}, 1, 16, 2)
def test_equals_the_definition_where_similarities_tie(options, group, more, seed):
    """Small whole numbers and sums of halves, so both sides are exact and ties are real ties."""
    exact = {"accumulate": "charge", "start": "zero", "heavy": 9, "scale": 1.0}
    options = options | exact | WITHOUT_CELLS | {"share": min(options["share"], 1)}
    compare(options, group, 2, options["prompt"] + more, seed, whole=True)


def test_a_discharge_of_all_rows_gives_zeros():
    """All rows tie, so the circuit's discharge ends with no row high."""
    q, k, v = (np.ones((1, 6, 4)) for _ in range(3))
    attention = StaticDynamicAttention(heavy=4, reserved=2, top_k=2, prompt=4, fill=False)
    o = attention.sequence(q, k, v)
    assert (o[:, :4] == 1).all() and not o[:, 4:].any()
    assert attention.conversions == 0
    filled = StaticDynamicAttention(heavy=4, reserved=2, top_k=2, prompt=4)
    assert (filled.sequence(q, k, v) == 1).all()
    assert filled.conversions == 4


@pytest.mark.parametrize("key_bits", [0, 3])
@pytest.mark.parametrize(("heavy", "prompt"), [(40, 12), (40, 40), (25, 25)])
def test_is_dense_where_nothing_is_dropped_or_left_out(key_bits, heavy, prompt):
    """More rows and a larger k than tokens; a prompt shorter than heavy is kept whole."""
    q, k, v = random_qkv(3, 2, 40, 8, seed=3)
    attention = StaticDynamicAttention(heavy, 15, 40, prompt, key_bits)
    dense = DenseAttention()
    np.testing.assert_allclose(attention.sequence(q, k, v), dense.sequence(q, k, v), rtol=1e-10)
    assert attention.traffic == dense.traffic
    assert attention.evicted == []
    assert attention.rows == dense.rows
    assert attention.positions.tolist() == [list(range(40))] * 2


def test_the_prompt_is_dense_and_then_pruned():
    q, k, v = random_qkv(2, 2, 300, 8, seed=4)
    attention, dense = StaticDynamicAttention(heavy=5, reserved=1, prompt=300), DenseAttention()
    o = [attention.sequence(q[:, :200], k[:, :200], v[:, :200])]
    assert (attention.rows, attention.state_bytes) == (400, 4 * 400)
    o.append(attention.sequence(q[:, 200:], k[:, 200:], v[:, 200:]))
    expected = dense.sequence(q, k, v)
    np.testing.assert_allclose(np.concatenate(o, axis=1), expected, rtol=1e-10, atol=1e-13)
    assert attention.traffic == dense.traffic
    assert (attention.rows, attention.state_bytes) == (10, 10 * (4 + 8 * 3 // 8))
    held = set(attention.positions.ravel().tolist())
    assert attention.evicted == [t for t in range(300) if t not in held]


@pytest.mark.parametrize("accumulate", ["charge", "attention"])
def test_a_full_array_overwrites_one_row_in_place(accumulate):
    """Each step changes one row of each kv head: the lowest of those that accumulated least."""
    q, k, v = random_qkv(2, 3, 60, 4, seed=6)
    attention = StaticDynamicAttention(8, 4, 5, 16, accumulate=accumulate)
    attention.sequence(q[:, :16], k[:, :16], v[:, :16])
    assert attention.positions.shape == (3, 8)
    for t in range(16, 20):  # the reserved rows come first, in order
        attention.step(q[:, t], k[:, t], v[:, t])
        assert (attention.positions[:, -1] == t).all()
        assert attention.rows == 3 * (t - 16 + 9)
    for t in range(20, 60):
        before, accumulation = attention.positions, attention.accumulation
        attention.step(q[:, t], k[:, t], v[:, t])
        after = attention.positions
        assert after.shape == (3, 12) and attention.rows == 36
        assert ((after != before).sum(axis=1) == 1).all()
        for kv in range(3):
            row = int(np.flatnonzero(after[kv] != before[kv])[0])
            assert after[kv, row] == t
            assert row == accumulation[kv].tolist().index(min(accumulation[kv]))


def test_equal_accumulations_evict_the_lowest_address():
    """Queries of zero leave every accumulation at 0, so row 0 goes each time."""
    _, k, v = random_qkv(1, 2, 12, 4, seed=7)
    q = np.zeros((2, 12, 4))
    attention = StaticDynamicAttention(3, 2, 2, 3)
    attention.sequence(q, k, v)
    assert attention.positions.tolist() == [[11, 1, 2, 3, 4]] * 2
    assert attention.evicted == [0, 5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("key_bits", [0, 3])
def test_sequence_equals_stepping(key_bits):
    """Longer than one block of queries, and continued in the middle of prompt and decoding."""
    q, k, v = random_qkv(2, 2, 400, 8, seed=8)

    def fresh():
        return StaticDynamicAttention(64, 16, 12, 300, key_bits)

    whole, stepped, parts = fresh(), fresh(), fresh()
    o = whole.sequence(q, k, v)
    cuts = [(0, 1), (1, 280), (280, 305), (305, 306), (306, 400)]
    pieces = [parts.sequence(q[:, a:b], k[:, a:b], v[:, a:b]) for a, b in cuts]
    results = [(stepped, DecodeAttention.sequence(stepped, q, k, v))]
    results.append((parts, np.concatenate(pieces, axis=1)))
    for other, result in results:
        np.testing.assert_allclose(result, o, rtol=1e-10, atol=1e-12)
        assert other.traffic == whole.traffic
        assert other.evicted == whole.evicted
        assert other.conversions == whole.conversions
        assert (other.rows, other.state_bytes) == (whole.rows, whole.state_bytes)
        np.testing.assert_array_equal(other.positions, whole.positions)


def test_a_row_out_of_the_selection_has_no_effect():
    """With k of 1 the output is the value of the nearest row, its position known."""
    q, k, v = random_qkv(1, 1, 30, 8, seed=9)
    attention = StaticDynamicAttention(50, 1, 1, 5, key_bits=0)
    o = attention.sequence(q, k, v)
    for t in range(5, 30):
        nearest = max(range(t + 1), key=lambda j: float(q[0, t] @ k[0, j]))
        np.testing.assert_allclose(o[0, t], v[0, nearest], rtol=1e-12)
    assert attention.traffic.k_rows == 15 + 25
    assert attention.conversions == 25


def test_heads_of_a_group_select_alone_and_share_reads():
    """Two heads that want different rows read two; two that want the same read one."""
    k = np.eye(4)[None, [0, 1, 2, 3]]
    q = np.zeros((2, 4, 4))
    q[0, 3], q[1, 3] = 5 * np.eye(4)[0], 5 * np.eye(4)[1]
    attention = StaticDynamicAttention(9, 1, 1, 3, key_bits=0)
    o = attention.sequence(q, k, k)
    np.testing.assert_array_equal(o[:, 3], np.eye(4)[:2])
    assert (attention.traffic.k_rows, attention.conversions) == (6 + 2, 2)
    q[1, 3] = q[0, 3]
    attention = StaticDynamicAttention(9, 1, 1, 3, key_bits=0)
    attention.sequence(q, k, k)
    assert (attention.traffic.k_rows, attention.conversions) == (6 + 1, 2)


@pytest.mark.parametrize(
    ("given", "result"),
    [(np.float16, np.float32), (np.float32, np.float32), (np.float64, np.float64)],
)
def test_result_dtype(given, result):
    q, k, v = (a.astype(given) for a in random_qkv(2, 1, 12, 4, seed=0))
    attention = StaticDynamicAttention(4, 2, 3, 5)
    assert attention.sequence(q, k, v).dtype == result
    assert attention.step(q[:, 0], k[:, 0], v[:, 0]).dtype == result


def test_better_selections_serve_better_on_a_real_model(shipped_trace):
    """The error against dense attention: exact selection, 3-bit queries, 1-bit queries."""
    layer = 1
    q, k, v = (
        a[layer].astype(np.float32) for a in (shipped_trace.q, shipped_trace.k, shipped_trace.v)
    )
    scale = shipped_trace.scale
    dense = DenseAttention(scale).sequence(q, k, v)[:, 384:]

    def error(**options):
        attention = StaticDynamicAttention(
            400, 200, prompt=384, scale=scale, **({"top_k": 32} | options)
        )
        o = attention.sequence(q, k, v)[:, 384:]
        return np.linalg.norm(o - dense) / np.linalg.norm(dense)

    exact, levels, one_bit = error(key_bits=0), error(), error(query_bits=1)
    assert exact < levels < one_bit < 1
    assert error(key_bits=0, top_k=128) < exact


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heavy": 0}, "heavy must be at least 1, not 0"),
        ({"reserved": 0}, "reserved must be at least 1, not 0"),
        ({"top_k": 0}, "top_k must be at least 1, not 0"),
        ({"prompt": 0}, "prompt must be at least 1, not 0"),
        ({"key_bits": -1}, "key_bits must be at least 0, not -1"),
        ({"key_bits": 9}, "key_bits must be at most 8, not 9"),
        ({"query_bits": 0}, "query_bits must be at least 1, not 0"),
        ({"query_bits": 9}, "query_bits must be at most 8, not 9"),
        ({"share": -1}, "share must be at least 0, not -1"),
        ({"observe": -1}, "observe must be at least 0, not -1"),
        ({"converter_bits": -1}, "converter_bits must be at least 0, not -1"),
        ({"converter_bits": 25}, "converter_bits must be at most 24, not 25"),
        ({"converter_bits": 10}, "converter_bits needs exact of cells"),
        ({"calibrate": "rows"}, "calibrate must be one of none, codes, lines, not rows"),
        ({"calibrate": "codes"}, "calibrate of codes needs exact of cells: rows are not converted"),
        ({"exact": "row"}, 'exact must be "rows" or "cells", not "row"'),
        ({"exact": "cells", "key_bits": 0}, "without cells, key_bits of 0, exact must be rows"),
        ({"spread_mv": 54, "key_bits": 0}, "without cells, .* spread_mv 0"),
        ({"spread_mv": -1}, "spread_mv must be at least 0 and finite, not -1"),
        ({"spread_mv": float("nan")}, "spread_mv must be at least 0 and finite, not nan"),
        ({"span": 0}, "span must be above 0 and finite, not 0"),
        ({"span": float("inf")}, "span must be above 0 and finite, not inf"),
        ({"seed": -1}, "seed must be at least 0, not -1"),
        ({"accumulate": "sum"}, 'accumulate must be "charge" or "attention", not "sum"'),
        ({"start": "one"}, 'start must be "mean" or "zero", not "one"'),
    ],
)
def test_parameters_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        StaticDynamicAttention(**options)
