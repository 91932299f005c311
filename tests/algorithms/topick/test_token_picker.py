"""Token-Picker's attention against plain loops, dense attention and its own steps."""

import math
from functools import partial

import numpy as np
import pytest

from golden.algorithms.attention import ELEMENT_BYTES, DecodeAttention, DenseAttention, Traffic
from golden.algorithms.topick import (
    TokenPickerAttention,
    arrival_order,
    decide,
    leading_bits,
    margins,
    request_order,
)
from tests.support import qkv

random_qkv = partial(qkv.random_qkv, dtype=np.float32, sharpness=3.0)


def codes_of(x, peak, bits):
    """``x`` quantised so that ``peak`` is the largest positive code; codes and the scale."""
    scale = peak / (2 ** (bits - 1) - 1) if peak else 1.0
    codes = [min(max(round(e / scale), -(2 ** (bits - 1))), 2 ** (bits - 1) - 1) for e in x]
    return np.array(codes), scale


def cached(rows, bits, calibration, headroom):
    """Codes of one head's rows after the last of them, and their scale."""
    top = 2 ** (bits - 1) - 1
    first = rows[:calibration]
    peak = headroom * float(np.abs(first).max())
    codes, scale = [codes_of(row.tolist(), peak, bits)[0] for row in first], peak / top
    for row in rows[calibration:]:
        times = 1
        while np.abs(row).max() > (top + 0.25) * scale * times:
            times *= 2
        scale *= times
        codes = [np.rint(code / times).astype(int) for code in codes]
        codes.append(codes_of(row.tolist(), scale * top, bits)[0])
    return codes, scale


def plain(q, k, v, threshold, bits, chunk_bits, latency, calibration, headroom):
    """One token, head and query at a time, from the definition; decisions by ``decide``.

    Returns the outputs, the chunks read and the tokens kept by (head, query), in token order.
    """
    heads, tokens, d = q.shape
    group = heads // len(k)
    chunks = bits // chunk_bits
    o, read, kept = np.zeros(q.shape), {}, {}
    for h in range(heads):
        for t in range(tokens):
            (keys, k_scale), (values, v_scale) = (
                cached(x[h // group, : t + 1], bits, calibration, headroom) for x in (k, v)
            )
            query, q_scale = codes_of(q[h, t].tolist(), float(np.abs(q[h, t]).max()), bits)
            order = request_order(np.array([t]), t + 1)[:, 0]
            keys = np.array(keys)[order]
            partial = [
                leading_bits(keys, b, bits, chunk_bits) @ query for b in range(1, chunks + 1)
            ]
            made = decide(
                arrival_order(t + 1, chunks, latency),
                np.stack(partial),
                *margins(query, bits, chunk_bits),
                q_scale * k_scale * (1 / np.sqrt(d)),
                threshold,
            )
            read[h, t], kept[h, t] = np.zeros(t + 1, int), np.zeros(t + 1, bool)
            read[h, t][order], kept[h, t][order] = made.read, made.kept
            e = np.exp((keys @ query) * (q_scale * k_scale / np.sqrt(d)))
            p = np.where(made.kept, e, 0) / e[made.kept].sum()
            for n, j in enumerate(order):
                o[h, t] += p[n] * values[j] * v_scale
    return o, read, kept


SETTINGS = {
    "default": {"threshold": 1e-3},
    "latency 0": {"threshold": 1e-2, "latency": 0},
    "calibrating": {"threshold": 1e-2, "latency": 3, "calibration": 1000},
    "doubling": {"threshold": 1e-2, "latency": 3, "calibration": 1, "headroom": 1.0},
    "six bits": {"threshold": 3e-2, "latency": 2, "bits": 6, "chunk_bits": 2, "calibration": 5},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (3, 1), (2, 2)])
def test_plain_loops(heads, kv_heads, settings):
    q, k, v = random_qkv(heads, kv_heads, 25, 6, dtype=np.float64)
    attention = TokenPickerAttention(**settings)
    o = attention.sequence(q, k, v)
    full = {"bits": 12, "chunk_bits": 4, "latency": 512, "calibration": 64, "headroom": 1.25}
    full |= settings
    expected, read, kept = plain(q, k, v, **full)
    np.testing.assert_allclose(o, expected, rtol=1e-11, atol=1e-13)

    chunks, bits, chunk_bits = full["bits"] // full["chunk_bits"], full["bits"], full["chunk_bits"]
    traffic, alone = Traffic(), Traffic()
    for t in range(25):
        for h in range(heads):
            alone.k_rows += t + 1
            alone.k_bytes += sum(read[h, t]) * math.ceil(6 * chunk_bits / 8)
            alone.v_rows += sum(kept[h, t])
            alone.v_bytes += sum(kept[h, t]) * math.ceil(6 * bits / 8)
            alone.dense(t + 1, 6)
            counts = [sum(read[h, t] > b) for b in range(chunks)] + [sum(kept[h, t])]
            assert attention.counts[t, h].tolist() == counts
        for kv in range(kv_heads):
            group = range(kv * heads // kv_heads, (kv + 1) * heads // kv_heads)
            for j in range(t + 1):
                traffic.k_rows += 1
                traffic.k_bytes += max(read[h, t][j] for h in group) * math.ceil(6 * chunk_bits / 8)
                if any(kept[h, t][j] for h in group):
                    traffic.v_rows += 1
                    traffic.v_bytes += math.ceil(6 * bits / 8)
            traffic.dense(t + 1, 6)
    assert attention.traffic == traffic
    assert attention.alone == alone
    assert traffic.v_rows < traffic.k_rows and traffic.k_bytes < chunks * traffic.k_rows * 6
    row_bytes = math.ceil(6 * bits / 8)
    assert attention.k_reduction == traffic.dense_rows * row_bytes / traffic.k_bytes
    assert attention.v_reduction == traffic.dense_rows * row_bytes / traffic.v_bytes
    assert attention.reduction == 2 * traffic.dense_rows * row_bytes / traffic.bytes
    pairs = [(h, t) for h in range(heads) for t in range(25)]
    figures = attention.figures()
    assert figures.pop("tokens stored again") > 0
    assert figures.pop("elements saturated") == 0
    assert figures == {
        "tokens in view": heads * 25 * 26 / 2,
        "chunks requested": sum(map(sum, (read[pair] for pair in pairs))),
        "tokens kept": sum(map(sum, (kept[pair] for pair in pairs))),
    }
    assert attention.rows == 25 * kv_heads
    assert attention.state_bytes == 8 * kv_heads
    assert attention.evicted == []


def test_bytes_alone_give_the_paper_s_reductions():
    """Fig. 8 counts each head by itself: chunks and tokens of the figures, in bytes of 12 bits."""
    q, k, v = random_qkv(6, 2, 60, 64)
    attention = TokenPickerAttention(1e-2)
    attention.sequence(q, k, v)
    figures, alone = attention.figures(), attention.alone
    dense = alone.dense_rows * 64 * 12 / 8
    tokens = figures["tokens in view"]
    chunks, kept = figures["chunks requested"] / 3, figures["tokens kept"]
    assert chunks < tokens and kept < tokens == alone.dense_rows == 6 * 60 * 61 / 2
    assert dense / alone.k_bytes == pytest.approx(tokens / chunks)
    assert dense / alone.v_bytes == pytest.approx(tokens / kept)
    assert 2 * dense / alone.bytes == pytest.approx(2 * tokens / (chunks + kept))
    assert 1 / alone.ratio == pytest.approx(2 * dense / alone.bytes * 16 / 12)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_sequence_equals_stepping_across_blocks(settings):
    """Decisions equal exactly, on more tokens than one block of queries; results to rounding."""
    q, k, v = random_qkv(4, 2, 150, 16)
    whole, stepped = TokenPickerAttention(**settings), TokenPickerAttention(**settings)
    o = whole.sequence(q, k, v)
    expected = DecodeAttention.sequence(stepped, q, k, v)
    np.testing.assert_allclose(o, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(whole.counts, stepped.counts)
    assert (whole.traffic, whole.alone) == (stepped.traffic, stepped.alone)
    assert (whole.rows, whole.state_bytes) == (stepped.rows, stepped.state_bytes)


def test_a_sequence_may_be_continued():
    q, k, v = random_qkv(4, 2, 200, 8)
    cuts = [(0, 5), (5, 6), (6, 100), (100, 200)]
    parts, once = TokenPickerAttention(), TokenPickerAttention()
    o = [parts.sequence(q[:, a:b], k[:, a:b], v[:, a:b]) for a, b in cuts]
    expected = once.sequence(q, k, v)
    np.testing.assert_allclose(np.concatenate(o, axis=1), expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(parts.counts, once.counts)
    assert parts.traffic == once.traffic


@pytest.mark.parametrize("latency", [0, 5, 10**6])
def test_threshold_zero_is_dense_attention_on_the_quantised_operands(latency):
    q, k, v = random_qkv(4, 2, 150, 16, dtype=np.float64)
    attention = TokenPickerAttention(0.0, latency=latency)
    o = attention.sequence(q, k, v)
    # None of these rows doubles a scale later, so the whole sequence has one set of operands.
    late = slice(64, None)
    peaks = {name: 1.25 * np.abs(x[:, :64]).max(axis=(1, 2)) for name, x in (("k", k), ("v", v))}
    rounded = {}
    for name, x in (("k", k), ("v", v)):
        unit = peaks[name][:, None, None] / 2047
        rounded[name] = np.clip(np.rint(x / unit), -2048, 2047) * unit
    unit = np.abs(q).max(axis=-1, keepdims=True) / 2047
    dense = DenseAttention().sequence(np.rint(q / unit) * unit, rounded["k"], rounded["v"])
    np.testing.assert_allclose(o[:, late], dense[:, late], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(o, DenseAttention().sequence(q, k, v), atol=2e-2)
    rows = attention.traffic.dense_rows
    expected = Traffic(rows, rows, rows * 24, rows * 24, rows, 2 * rows * 16 * ELEMENT_BYTES)
    assert attention.traffic == expected
    assert attention.reduction == attention.k_reduction == attention.v_reduction == 1


def test_what_is_pruned_is_at_most_the_threshold_each(shipped_trace):
    """On the shipped trace: the kept tokens hold all but ``threshold`` for each pruned one."""
    threshold, scale = 1e-3, shipped_trace.scale
    tokens = slice(0, 192)
    for q, k, v in zip(shipped_trace.q, shipped_trace.k, shipped_trace.v, strict=True):
        q, k, v = (x[:, tokens].astype(np.float32) for x in (q, k, v))
        attention = TokenPickerAttention(threshold, scale=scale)
        o = attention.sequence(q, k, v)
        full = TokenPickerAttention(0.0, scale=scale).sequence(q, k, v)
        missing = (attention.counts[..., 0] - attention.counts[..., -1]) * threshold
        bound = 2 * missing[..., None].transpose(1, 0, 2) * np.abs(v).max()
        assert (np.abs(o - full) <= bound + 1e-4).all()
        assert attention.v_reduction > 1.3 and 1 < attention.k_reduction < 3


def test_a_lower_threshold_keeps_more(shipped_trace):
    q, k, v = (x[1][:, :192] for x in (shipped_trace.q, shipped_trace.k, shipped_trace.v))
    rows, errors = [], []
    dense = DenseAttention(shipped_trace.scale).sequence(q, k, v)
    for threshold in (0.0, 1e-5, 1e-4, 1e-3, 1e-2):
        attention = TokenPickerAttention(threshold, scale=shipped_trace.scale)
        errors.append(np.square(attention.sequence(q, k, v) - dense).mean())
        rows.append(attention.traffic.v_rows)
    assert rows == sorted(rows, reverse=True) and len(set(rows)) == len(rows)
    assert errors == sorted(errors)


@pytest.mark.parametrize(
    ("given", "result"),
    [(np.float16, np.float32), (np.float32, np.float32), (np.float64, np.float64)],
)
def test_result_dtype(given, result):
    q, k, v = random_qkv(2, 1, 3, 4, dtype=given)
    assert TokenPickerAttention().sequence(q, k, v).dtype == result
    assert TokenPickerAttention().step(q[:, 0], k[:, 0], v[:, 0]).dtype == result


def test_scale():
    q, k, v = random_qkv(2, 1, 30, 4)
    given = TokenPickerAttention(scale=1.5).sequence(q, k, v)
    np.testing.assert_allclose(
        given, TokenPickerAttention().sequence(3 * q, k, v), rtol=1e-3, atol=1e-4
    )


def test_zeros_weigh_all_tokens_alike():
    zeros = np.zeros((2, 10, 4), np.float32)
    v = np.arange(40, dtype=np.float32).reshape(1, 10, 4)
    o = TokenPickerAttention().sequence(zeros, zeros[:1], v)
    mean = np.cumsum(v[0], axis=0) / np.arange(1, 11)[:, None]
    np.testing.assert_allclose(o[0], mean, atol=0.02)


@pytest.mark.parametrize(
    ("latency", "second", "kept"), [(0, 12, [11, 0, 10]), (10**6, 4, [0, 10, 9])]
)
def test_equal_scores_leave_by_the_order_of_arrivals(latency, second, kept):
    """A query of zeros makes every score and margin 0, so p'' = 1/4 is met without rounding.

    With latency 0 the fourth token of the request order finds a sum of 4, its own term in it, at
    its second chunk and goes, as do all after it. With all first chunks first, four get a second
    chunk; the newest finds 4 there and goes, the next ones find 3.
    """
    q, k = np.zeros((1, 12, 1)), np.ones((1, 12, 1))
    v = np.arange(12.0).reshape(1, 12, 1)
    attention = TokenPickerAttention(0.25, latency=latency)
    o = attention.sequence(q, k, v)
    assert attention.counts[11, 0].tolist() == [12, second, 3, 3]
    np.testing.assert_allclose(o[0, 11], np.mean(kept), atol=0.01)


def test_reductions_before_the_first_step():
    attention = TokenPickerAttention()
    assert attention.reduction == attention.k_reduction == attention.v_reduction == 1
    assert attention.traffic == Traffic()


def test_heads_must_share_evenly():
    q, k, v = random_qkv(3, 2, 1, 4)
    with pytest.raises(ValueError, match="3 query heads cannot share 2 kv heads evenly"):
        TokenPickerAttention().sequence(q, k, v)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"threshold": 1.0}, "threshold must be at least 0 and below 1, not 1.0"),
        ({"threshold": -1e-3}, "threshold must be at least 0 and below 1, not -0.001"),
        ({"threshold": math.nan}, "threshold must be at least 0 and below 1, not nan"),
        ({"bits": 17}, "bits must be between 2 and 16, not 17"),
        ({"bits": 1, "chunk_bits": 1}, "bits must be between 2 and 16, not 1"),
        ({"chunk_bits": 5}, "chunk_bits must divide bits, 12, not be 5"),
        ({"chunk_bits": 0}, "chunk_bits must divide bits, 12, not be 0"),
        ({"latency": -1}, "latency must be at least 0, not -1"),
        ({"calibration": 0}, "calibration must be at least 1, not 0"),
        ({"headroom": 0.9}, "headroom must be a finite number of at least 1, not 0.9"),
        ({"headroom": math.inf}, "headroom must be a finite number of at least 1, not inf"),
    ],
)
def test_wrong_parameters_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        TokenPickerAttention(**wrong)
