"""Locality aware attention against plain loops, and what must hold on any history."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.algorithms.attention import DenseAttention
from golden.algorithms.lad import (
    EIGHT_BOUNDS,
    PAPER_BOUNDS,
    THIRTEEN_BOUNDS,
    LocalityAwareAttention,
    PiecewiseExp,
    piecewise_softmax_attention,
)
from golden.algorithms.lad.attention import _interval_counts
from golden.algorithms.lad.caches import definition
from tests.support.lad.reference import Head

HEADS, KV_HEADS = 4, 2
SETTINGS = {
    "bounds": st.sampled_from([PAPER_BOUNDS, EIGHT_BOUNDS, THIRTEEN_BOUNDS, (-2.0,)]),
    "window": st.sampled_from([1, 2, 5, 16]),
    "counter_bits": st.sampled_from([3, 12]),
}


def integers(rng, tokens, d):
    """Small integers: scores fall exactly on bounds, keys are often parallel, sums are exact."""
    q = rng.integers(-2, 3, size=(HEADS, tokens, d))
    k = rng.integers(-2, 3, size=(KV_HEADS, tokens, d))
    v = rng.integers(-9, 10, size=(KV_HEADS, tokens, d))
    return [x.astype(np.float64) for x in (q, k, v)]


def normal(rng, tokens, d):
    """Neighbouring queries are alike, so modes have something to remember."""
    q = np.cumsum(rng.normal(size=(HEADS, tokens, d)), axis=1) / 2
    k, v = rng.normal(size=(2, KV_HEADS, tokens, d))
    return q, k, v


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    make=st.sampled_from([integers, normal]),
    identification=st.sampled_from(["centres", "bounds"]),
    collinear=st.sampled_from([0.6, 0.98]),
    near=st.sampled_from([-3.0, -1.0, -20.0]),
    **SETTINGS,
)
def test_every_step_is_the_paper_s(
    seed, make, identification, collinear, near, bounds, window, counter_bits
):
    rng = np.random.default_rng(seed)
    tokens, d = int(rng.integers(1, 50)), int(rng.integers(1, 5))
    q, k, v = make(rng, tokens, d)
    options = {"collinear": collinear, "near": near, "scale": 0.5}
    attention = LocalityAwareAttention(
        bounds, window, identification, counter_bits=counter_bits, **options
    )
    exact = identification == "bounds"
    heads = [
        Head(bounds, window, exact=exact, full=2**counter_bits - 1, **options) for _ in range(HEADS)
    ]
    totals = dict.fromkeys(
        ("active", "hits", "updates", "false_negatives", "above", "centre_rows", "large_rows"), 0
    )
    totals |= dict.fromkeys(("new_rows", "stale_rows", "k_rows", "v_rows"), 0)
    alone = {"k_rows": 0, "v_rows": 0}
    for t in range(tokens):
        o = attention.step(q[:, t], k[:, t], v[:, t])
        for h, head in enumerate(heads):
            kv = h // (HEADS // KV_HEADS)
            expected = head.step(q[h, t], k[kv, t], v[kv, t])
            np.testing.assert_allclose(o[h], expected, rtol=1e-7, atol=1e-9)
            active = set(np.flatnonzero(attention.active[h]).tolist())
            # Bounds may be too wide to tell, never wrong.
            assert active >= head.active if exact else active == head.active, (t, h)
            assert attention.modes.mode[h].tolist() == head.mode
            assert attention.modes.counters[h].tolist() == head.cnt
            assert set(head.updated) <= active
            for name, cache in head.caches().items():
                np.testing.assert_allclose(
                    getattr(attention.caches, name)[h], cache, rtol=1e-9, atol=1e-9
                )
            alone["k_rows"] += len(head.keys_read)
            alone["v_rows"] += len(head.active)
            totals["active"] += len(head.active)
            totals["hits"] += head.hits
            totals["updates"] += len(head.updated)
            totals["false_negatives"] += head.missed
            totals["above"] += head.above
        for kv in range(KV_HEADS):
            group = heads[kv * HEADS // KV_HEADS : (kv + 1) * HEADS // KV_HEADS]
            union = set().union(*(head.active for head in group))
            was = set().union(*(head.active - head.new | head.stale for head in group))
            totals["centre_rows"] += len(group[0].centres)
            totals["large_rows"] += len(set().union(*(head.large for head in group)))
            totals["new_rows"] += len(union - was)
            totals["stale_rows"] += len(was - union)
            totals["k_rows"] += len(set().union(*(head.keys_read for head in group)))
            totals["v_rows"] += len(union)
    statistics, traffic = attention.statistics, attention.traffic
    if exact:
        assert statistics.false_negatives == statistics.above == 0
        totals = {name: totals[name] for name in ("updates",)}
    found = {n: getattr(statistics, n, getattr(traffic, n, None)) for n in totals}
    assert found == totals
    assert statistics.steps == tokens
    assert statistics.rows == traffic.dense_rows == KV_HEADS * tokens * (tokens + 1) // 2
    assert statistics.positions == HEADS * tokens * (tokens + 1) // 2
    assert statistics.active_rows == traffic.v_rows
    if not exact:
        assert traffic.k_bytes == 2 * d * traffic.k_rows
        assert alone == {name: getattr(attention.alone, name) for name in alone}


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), **SETTINGS)
def test_with_exact_identification_it_is_the_piecewise_softmax(seed, bounds, window, counter_bits):
    """On any history: by bounds always, by centres when no key joins another's centre."""
    rng = np.random.default_rng(seed)
    q, k, v = normal(rng, 60, 6)
    exp = PiecewiseExp(bounds)
    for options in ({"identification": "bounds"}, {"collinear": 1.0}):
        attention = LocalityAwareAttention(bounds, window, counter_bits=counter_bits, **options)
        for t in range(q.shape[1]):
            o = attention.step(q[:, t], k[:, t], v[:, t])
            keys = np.repeat(k[:, : t + 1], HEADS // KV_HEADS, axis=0)
            scores = np.einsum("hd,hnd->hn", q[:, t], keys) / np.sqrt(6)
            expected, weights = piecewise_softmax_attention(scores, v[:, : t + 1], exp)
            # Weights of both signs may cancel; then only the scale of the terms bounds rounding.
            size = np.abs(weights).sum(axis=1, keepdims=True) * np.abs(v).max()
            assert (np.abs(o - expected) <= 1e-11 * size * (1 + np.abs(scores).max())).all()


def test_a_window_over_everything_reads_everything():
    rng = np.random.default_rng(1)
    q, k, v = normal(rng, 20, 4)
    attention = LocalityAwareAttention(window=20)
    o = attention.sequence(q, k, v)
    keys = np.repeat(k, HEADS // KV_HEADS, axis=0)
    scores = np.einsum("hd,hnd->hn", q[:, -1], keys) / 2
    expected, _ = piecewise_softmax_attention(scores, v, attention.exp)
    np.testing.assert_allclose(o[:, -1], expected, rtol=1e-12)
    assert attention.traffic.ratio == 1.0
    assert attention.statistics.active_share == 1.0
    assert attention.statistics.updates == HEADS


def test_finer_intervals_approach_dense(shipped_trace):
    layer = shipped_trace
    q, k, v = (x[1, :, :300].astype(np.float32) for x in (layer.q, layer.k, layer.v))
    dense = DenseAttention().sequence(q, k, v)
    errors = []
    sixteen = tuple(4 * np.log(np.linspace(np.exp(-3.5), 1, 16)[:-1]))
    for bounds in (PAPER_BOUNDS, EIGHT_BOUNDS, THIRTEEN_BOUNDS, sixteen):
        o = LocalityAwareAttention(bounds).sequence(q, k, v)
        assert o.dtype == np.float32
        errors.append(np.linalg.norm(o - dense) / np.linalg.norm(dense))
    assert errors == sorted(errors, reverse=True)
    assert errors[0] < 0.1 and errors[-1] < 0.005


@pytest.mark.parametrize("scale", [None, 0.3])
def test_scale(scale):
    rng = np.random.default_rng(2)
    q, k, v = normal(rng, 30, 4)
    factor = 0.5 if scale is None else scale
    scaled = LocalityAwareAttention(scale=1.0).sequence(q * factor, k, v)
    o = LocalityAwareAttention(scale=scale).sequence(q, k, v)
    np.testing.assert_allclose(o, scaled, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("identification", ["centres", "bounds"])
def test_a_key_that_is_missed_is_counted(identification):
    """A key joins a centre, and later their scores lie in different intervals.

    Keys (20, 0) and (20, 4) have cosine 0.981. Queries (0, 1) teach the second that it lies at
    4 - 12, in (-10, -6]. For (0.2, 0.6) its centre gives 4.08 - 12, but it is 6.4 - 12.
    """
    attention = LocalityAwareAttention(
        PAPER_BOUNDS, window=1, identification=identification, near=0.0, scale=1.0
    )
    v = np.ones((1, 2))
    for key in [(20.0, 0.0), (20.0, 4.0)] + 3 * [(0.0, 12.0)]:
        attention.step(np.array([[0.0, 1.0]]), np.array([key]), v)
    assert attention.modes.mode[0, 1] == 1
    assert attention.statistics.false_negatives == 0
    attention.step(np.array([[0.2, 0.6]]), np.array([[0.0, 20.0]]), v)
    by_centres = identification == "centres"
    assert attention.active[0, 1] == (not by_centres)
    assert attention.statistics.false_negatives == (1 if by_centres else 0)
    if by_centres:
        assert attention.identification.centres.cid[0, :2].tolist() == [0, 0]


def test_float16_storage_rounds_the_caches_and_nothing_else():
    rng = np.random.default_rng(3)
    q, k, v = (x.astype(np.float32) for x in normal(rng, 60, 6))
    half, single = LocalityAwareAttention(storage="float16"), LocalityAwareAttention()
    o, expected = half.sequence(q, k, v), single.sequence(q, k, v)
    np.testing.assert_array_equal(half.modes.mode, single.modes.mode)
    for name in "ABCDEF":
        cache, exact = getattr(half.caches, name), getattr(single.caches, name)
        assert (cache != exact).any()
        np.testing.assert_array_equal(cache, cache.astype(np.float16).astype(np.float32))
        np.testing.assert_allclose(cache, exact, atol=0.02 * np.abs(exact).max())
    assert 0 < np.linalg.norm(o - expected) < 0.05 * np.linalg.norm(expected)


def test_refresh_recomputes_the_caches_and_counts_what_it_reads():
    rng = np.random.default_rng(4)
    q, k, v = (x.astype(np.float32) for x in normal(rng, 60, 6))
    options = {"identification": "bounds", "storage": "float16"}
    never = LocalityAwareAttention(**options)
    often = LocalityAwareAttention(**options, refresh=20)
    never.sequence(q, k, v)
    often.sequence(q[:, :59], k[:, :59], v[:, :59])
    before = often.statistics.refresh_rows
    assert before > 0
    often.step(q[:, 59], k[:, 59], v[:, 59])
    for name, exact in definition(often.modes.a, often.modes.b, k, v).items():
        np.testing.assert_array_equal(getattr(often.caches, name), exact.astype(np.float16))
    statistics = often.statistics
    read = often.traffic.k_rows + often.traffic.v_rows - never.traffic.k_rows - never.traffic.v_rows
    assert statistics.refresh_rows == read
    needed = np.count_nonzero((often.modes.mode > 0).reshape(2, 2, 60).any(axis=1))
    assert 0 < statistics.refresh_rows - before <= 2 * needed
    assert never.statistics.refresh_rows == 0


def test_side_traffic_and_state():
    """n = 1, 2, 3 positions of one kv head and two query heads, d = 4, eight intervals."""
    rng = np.random.default_rng(6)
    q, (k, v) = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 1, 3, 4))
    attention = LocalityAwareAttention(storage="float16")
    attention.sequence(q, k, v)
    statistics = attention.statistics
    assert statistics.g_bytes == (1 + 2 + 3) * 2 * (3 + 2)
    assert statistics.counter_bytes == (1 + 2 + 3) * 2 * 8 * 2
    assert statistics.cache_bytes == 3 * 2 * (4 * 4 + 3 * 4 + 2) * 2
    assert statistics.side_bytes == 60 + 192 + 360
    assert attention.state_bytes == 3 * 2 * 5 + 2 * 30 * 2 + 3 * 2 * 8 * 2
    assert attention.rows == 3
    assert attention.evicted == []
    assert statistics.active_share == 1.0
    assert statistics.hit_ratio == pytest.approx(3 / 6)
    assert statistics.false_negative_share == 0
    total = type(statistics)()
    total.add(statistics)
    total.add(statistics)
    assert total.steps == 6 and total.side_bytes == 2 * statistics.side_bytes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window must be at least 1, not 0"),
        ({"identification": "luck"}, "identification must be centres, codes or bounds, not luck"),
        ({"storage": "int8"}, "storage must be float32 or float16, not int8"),
        ({"terms": "three"}, "terms must be differences or pairs, not three"),
        ({"arithmetic": "bf16"}, "arithmetic must be float or fp16, not bf16"),
        ({"code_bits": 9}, "code_bits must lie between 2 and 8, not 9"),
        ({"refresh": -1}, "refresh must be at least 0, not -1"),
        ({"slack": 0.5}, "slack must lie between 0 and 0.00390625, not 0.5"),
        ({"collinear": 2.0}, "collinear must lie between 0 and 1, not 2.0"),
        ({"counter_bits": 1}, "counter_bits must lie between 2 and 16, not 1"),
        ({"bounds": (1.0,)}, "bounds must rise and lie below 0"),
    ],
)
def test_parameters_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        LocalityAwareAttention(**options)


def test_slack_leaves_positions_inactive_and_keeps_the_error_small():
    """tau = 2e-4 accepts scores up to m - 8.52 in mode 0; the weights are off by tau at most."""
    rng = np.random.default_rng(9)
    q, k, v = normal(rng, 200, 8)
    options = {"identification": "bounds", "scale": 1.5}
    paper, slack = (LocalityAwareAttention(**options, slack=tau) for tau in (0.0, 2e-4))
    o, expected = slack.sequence(q, k, v), paper.sequence(q, k, v)
    assert slack.statistics.active < paper.statistics.active
    assert slack.statistics.false_negatives == 0
    # n tau over a denominator of at least about 1, twice: in the numerator and the denominator.
    assert 0 < np.abs(o - expected).max() < 2 * 200 * 2e-4 * np.abs(v).max()


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), make=st.sampled_from([integers, normal]), **SETTINGS)
def test_a_prompt_is_counted_as_exact_steps_are(seed, make, bounds, window, counter_bits):
    """Bounds miss no active position, so that stepping counts every score's own interval too."""
    rng = np.random.default_rng(seed)
    q, k, v = make(rng, int(rng.integers(1, 40)), int(rng.integers(1, 5)))
    options = {"bounds": bounds, "window": window, "identification": "bounds", "scale": 0.5}
    steps, prompt = (LocalityAwareAttention(**options, counter_bits=12) for _ in range(2))
    steps.sequence(q, k, v)
    prompt.prefill(q, k, v)
    counters = steps.modes.counters
    assert (prompt.modes.counters == counters).all()
    settled = max(q.shape[1] - window + 1, 0)
    assert (prompt.modes.mode[:, :settled] == counters[:, :settled].argmax(axis=-1)).all()
    assert (prompt.modes.mode[:, settled:] == 0).all()
    for name, exact in definition(*prompt.modes.lines, k, v).items():
        assert np.allclose(getattr(prompt.caches, name), exact)
    assert prompt.traffic.dense_rows == prompt.statistics.steps == 0
    assert prompt.rows == steps.rows
    exact = 0.5 * np.einsum("hd,hnd->hn", q[:, -1], np.repeat(k, HEADS // KV_HEADS, axis=0))
    x = exact - exact.max(axis=1, keepdims=True)
    active = (x <= prompt.modes.lower) | (x > prompt.modes.upper)
    active[:, max(q.shape[1] - window, 0) :] = True
    assert (prompt.active == active).all()


def test_the_first_step_after_a_prompt_has_hits():
    """Positions that the prompt's last query, or its window, makes active."""
    q, k, v = normal(np.random.default_rng(3), 300, 8)
    attention = LocalityAwareAttention(identification="bounds")
    attention.prefill(*(x[:, :-1] for x in (q, k, v)))
    before = attention.active
    attention.step(q[:, -1], k[:, -1], v[:, -1])
    hits = np.count_nonzero(attention.active[:, :-1] & before)
    assert attention.statistics.hits == hits > attention.statistics.active / 2
    assert attention.figures()["hit ratio"] == hits / attention.statistics.active


def test_intervals_of_a_long_prompt_are_counted():
    """Over several blocks of queries, most scores of a column in one interval."""
    rng = np.random.default_rng(7)
    q, k = rng.normal(size=(2, 600, 3)) / 50, rng.normal(size=(1, 600, 3))
    exp = PiecewiseExp(PAPER_BOUNDS)
    counts = _interval_counts(q, k, exp)
    scores = np.einsum("hid,jd->hij", q, k[0])
    scores[:, np.triu(np.ones((600, 600), bool), 1)] = -np.inf
    interval = exp.interval(scores - scores.max(axis=2, keepdims=True))
    seen = np.tri(600, dtype=bool)
    for number in range(len(exp)):
        assert (counts[..., number] == np.sum((interval == number) & seen, axis=1)).all()
    assert counts.max() > 512


@pytest.mark.parametrize("identification", ["centres", "codes", "bounds"])
def test_steps_after_a_prompt_are_close_to_dense(identification):
    """The prompt's modes serve the next queries, which need far fewer rows than all."""
    q, k, v = normal(np.random.default_rng(3), 300, 8)
    attention, dense = LocalityAwareAttention(identification=identification), DenseAttention()
    for each in (attention, dense):
        each.prefill(*(x[:, :260] for x in (q, k, v)))
    late = [x[:, 260:] for x in (q, k, v)]
    o, exact = attention.sequence(*late), dense.sequence(*late)
    assert np.linalg.norm(o - exact) < 0.05 * np.linalg.norm(exact)
    assert attention.statistics.steps == 40
    assert attention.traffic.v_rows < 0.8 * attention.traffic.dense_rows
