"""Token-Picker in the core's arithmetic against the bit-exact models, event by event."""

import numpy as np
import pytest

from golden.algorithms.topick import (
    TokenPickerAttention,
    arrival_order,
    leading_bits,
    request_order,
)
from golden.algorithms.topick.bit_exact import (
    Denominators,
    decide_bit_exactly,
    scale_codes,
    sizes_for,
)
from golden.topick.dag import Denominator
from golden.topick.margin_generator import scale_code, threshold_code
from golden.topick.pe_lane import Head, LaneSizes, PeLane, chunk_of
from golden.topick.topick_core import attend
from hw.topick.core_parameters import TopickCoreParameters
from sim.testbenches.topick.pe_lane import sizes_of
from tests.algorithms.topick.test_token_picker import codes_of, random_qkv


def by_events(head: Head, k: np.ndarray, latency: int, z: LaneSizes):
    """``(chunks read, kept, denominator)``: a lane that has a slot for each token, and no delay."""
    n = len(k)
    z = LaneSizes(**(vars(z) | {"entries": n}))
    lane = PeLane(z)
    lane.begin(head)
    slots = [lane.scoreboard.take() for _ in range(n)]
    order = request_order(np.array([n - 1]), n)[:, 0]
    denominator = Denominator(limb=z.limb, fraction=z.fraction)
    read, kept = np.zeros(n, int), np.zeros(n, bool)
    done = set()
    for number, chunk in arrival_order(n, z.chunks, latency):
        if number in done:
            continue
        token = int(order[number])
        known, log2 = denominator.log2()
        known = known and number != 0  # as without a denominator, the newest is not pruned
        d = lane.decide(token, chunk, slots[number], chunk_of(k[token], chunk, z), known, log2)
        if d.difference is not None:
            denominator.add(*d.difference)
        if not d.requests:
            done.add(number)
        read[token], kept[token] = chunk + 1, d.kept
    return read, kept, denominator


@pytest.mark.parametrize("latency", [0, 1, 5, 512])
@pytest.mark.parametrize(("bits", "chunk_bits"), [(12, 4), (6, 2), (16, 8)])
def test_decisions(bits, chunk_bits, latency):
    """Scores over few and many limbs, several queries at a time, of unequal lengths."""
    rng = np.random.default_rng(bits + latency)
    low, high = -(1 << bits - 1), 1 << bits - 1
    d, tokens = 8, 30
    z = sizes_for(d, bits, chunk_bits)
    counts = np.zeros(3, int)
    for spread in (1.0, 4.0, 30.0, 300.0):
        lengths = np.array([tokens, 17, 2, 1, tokens])
        k = rng.integers(low, high, (tokens, d)) >> rng.integers(0, bits // 2)
        q = rng.integers(low, high, (len(lengths), d))
        q[-1] >>= bits - 2
        c = spread / np.maximum(1, np.abs(q @ k.T).max(axis=1))
        order = request_order(lengths - 1, tokens)
        partial = np.stack(
            [leading_bits(k, b + 1, bits, chunk_bits) @ q.T for b in range(z.chunks)]
        ).astype(float)
        partial = np.take_along_axis(partial, order[None], axis=1)
        for threshold in (0.0, 1e-3, 0.05):
            events = arrival_order(tokens, z.chunks, latency)
            got = decide_bit_exactly(events, partial, q, c, threshold, order >= 0, z)
            for lane, n in enumerate(lengths):
                codes = scale_code(
                    c[lane] / np.log(2) * 2.0**z.fraction, base=z.base, scale_bits=16, shift_bits=4
                )
                code = threshold_code(threshold, fraction=10, threshold_bits=16)
                head = Head(q[lane], *codes, code, int(n))
                read, kept, denominator = by_events(head, k[:n], latency, z)
                assert got.read[:n, lane].tolist() == read[order[:n, lane]].tolist()
                assert got.kept[:n, lane].tolist() == kept[order[:n, lane]].tolist()
                v = np.eye(n, dtype=int)
                result = attend(head, k[:n], v, read, kept, z)
                assert (result.known, result.log2) == denominator.log2()
                assert got.weight[:n, lane].tolist() == result.p[order[:n, lane]].tolist()
                assert not got.read[n:, lane].any() and not got.weight[n:, lane].any()
                counts += [int(n), int(kept.sum()), int((result.p > 0).sum())]
    assert counts[0] > counts[1] + 50 and counts[1] > counts[2] + 10 and counts[2] > 100
    assert (got.denominator == got.weight.sum(axis=0)).all()


def test_denominators():
    """Terms of any limbs, replaced and dropped: in each lane the sum of golden.topick.dag.

    The lower limbs of many terms add up to more than a unit of the upper limb: it has no carry when
    small terms of larger limbs come.
    """
    rng = np.random.default_rng(3)
    tokens, lanes = 300, 6
    z = sizes_for(8, 12, 4)
    number = rng.integers(-1, 1, (2, tokens, lanes))
    units = rng.integers(1 << z.limb, 3 << z.limb, (2, tokens, lanes))
    number[:, -20:] = rng.integers(0, 4, (2, 20, lanes))
    units[:, -20:] >>= 14
    sums = Denominators(lanes, number, units, z)
    models = [Denominator(limb=z.limb, fraction=z.fraction) for _ in range(lanes)]
    for token in range(tokens):
        live = np.flatnonzero(rng.random(lanes) < 0.9)
        for b in range(2):
            pruned = rng.random(len(live)) < 0.2
            sums.replace(token, b, live, pruned)
            for lane, drop in zip(live, pruned, strict=True):
                old = number[0, token, lane], int(units[0, token, lane])
                if b:
                    add(models[lane], old, -1, z.limb)
                if not drop:
                    new = number[b, token, lane], int(units[b, token, lane])
                    add(models[lane], new, 1, z.limb)
            live = live[~pruned]
            expected = [model.log2() for model in models]
            assert sums.known.tolist() == [known for known, _ in expected]
            known = sums.known
            assert sums.log2[known].tolist() == [log2 for has, log2 in expected if has]


def add(model: Denominator, term: tuple[int, int], sign: int, limb: int) -> None:
    number, units = term
    model.add(int(number), sign * (units >> limb), sign * (units & ((1 << limb) - 1)))


@pytest.mark.parametrize("latency", [0, 512])
def test_attention(latency):
    """Whole outputs: codes, scales, decisions, probabilities and sums; and the traffic's counts."""
    heads, kv_heads, tokens, d = 4, 2, 70, 16
    q, k, v = random_qkv(heads, kv_heads, tokens, d, dtype=np.float64, sharpness=4.0)
    attention = TokenPickerAttention(
        0.01, latency=latency, calibration=1000, headroom=1.0, bit_exact=True
    )
    o = attention.sequence(q, k, v)
    z = sizes_for(d, 12, 4)
    code = threshold_code(0.01, fraction=z.fraction, threshold_bits=16)
    for t in range(0, tokens, 23):
        rows = slice(0, t + 1)
        weighed = np.zeros((kv_heads, t + 1), bool)
        for h in range(heads):
            kv = h // 2
            keys, values = k[kv, rows], v[kv, rows]
            query, q_scale = codes_of(q[h, t].tolist(), np.abs(q[h, t]).max(), 12)
            keys, k_scale = codes_of(keys.ravel().tolist(), np.abs(keys).max(), 12)
            values, v_scale = codes_of(values.ravel().tolist(), np.abs(values).max(), 12)
            keys, values = keys.reshape(-1, d), values.reshape(-1, d)
            c = q_scale * k_scale * (1 / np.sqrt(d)) * (2.0**z.fraction / np.log(2))
            codes = scale_code(c, base=z.base, scale_bits=16, shift_bits=4)
            head = Head(query, *codes, code, t + 1)
            read, kept, _ = by_events(head, keys, latency, z)
            result = attend(head, keys, values, read, kept, z)
            np.testing.assert_allclose(o[h, t], result.o * (v_scale / result.total), rtol=1e-14)
            weighed[kv] |= result.p > 0
            counts = [sum(read > b) for b in range(3)] + [sum(result.p > 0)]
            assert attention.counts[t, h].tolist() == counts
    assert attention.traffic.v_rows < attention.traffic.k_rows
    exact = TokenPickerAttention(0.01, latency=latency, calibration=1000, headroom=1.0)
    expected = exact.sequence(q, k, v)
    assert np.linalg.norm(o - expected) < 0.01 * np.linalg.norm(expected)


def test_sequence_equals_stepping():
    q, k, v = random_qkv(4, 2, 45, 16)
    whole, stepped = (TokenPickerAttention(1e-3, latency=9, bit_exact=True) for _ in range(2))
    o = whole.sequence(q, k, v)
    steps = [stepped.step(q[:, t], k[:, t], v[:, t]) for t in range(45)]
    np.testing.assert_array_equal(o, np.stack(steps, axis=1))
    np.testing.assert_array_equal(whole.counts, stepped.counts)
    assert whole.traffic == stepped.traffic and o.dtype == np.float32


def test_the_trace(shipped_trace):
    """A few more chunks than the float algorithm's at most, and nearly its output."""
    q, k, v = (
        x[1][:, :192].astype(np.float32)
        for x in (shipped_trace.q, shipped_trace.k, shipped_trace.v)
    )
    options = {"threshold": 1e-3, "scale": shipped_trace.scale}
    exact, bits = TokenPickerAttention(**options), TokenPickerAttention(**options, bit_exact=True)
    expected, o = exact.sequence(q, k, v), bits.sequence(q, k, v)
    assert np.linalg.norm(o - expected) < 0.01 * np.linalg.norm(expected)
    read = [a.figures()["chunks requested"] for a in (exact, bits)]
    assert read[0] <= read[1] <= 1.001 * read[0]


def test_all_the_scales():
    c = np.concatenate([2.0 ** np.linspace(-60, 20, 400), 1.5 * 2.0 ** np.arange(-40, 3)])
    mantissa, shift = scale_codes(c, 14)
    expected = [scale_code(x, base=14, scale_bits=16, shift_bits=4) for x in c]
    assert list(zip(mantissa.tolist(), shift.tolist(), strict=True)) == expected


@pytest.mark.parametrize("d", [2, 64, 100])
def test_the_sizes_are_the_default_lanes(d):
    assert sizes_for(d, 12, 4) == sizes_of(TopickCoreParameters(d=d).lane)


def test_one_chunk_is_refused():
    with pytest.raises(ValueError, match="bit_exact: chunk_bits must be less than bits, 12"):
        TokenPickerAttention(chunk_bits=12, bit_exact=True)
