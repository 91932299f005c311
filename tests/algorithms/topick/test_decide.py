"""Pruning on partial keys against the paper's definition in plain loops."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from golden.algorithms.topick import arrival_order, decide, leading_bits, margins, request_order


def bits_of(code, bits):
    """A two's complement code as a list of bits, the sign first."""
    return [int(bit) for bit in format(code % 2**bits, f"0{bits}b")]


def value_of(sequence):
    """Eq. 4."""
    sign, *rest = sequence
    return -sign * 2 ** len(rest) + sum(
        bit * 2 ** (len(rest) - 1 - at) for at, bit in enumerate(rest)
    )


def extremes(q, code_bits, known):
    """Least and greatest q . k over the unknown bits, each set against or for the sign of q_j."""
    low = high = 0
    for element, sequence in zip(q, code_bits, strict=True):
        unknown = len(sequence) - known
        ends = [element * value_of(sequence[:known] + [fill] * unknown) for fill in (0, 1)]
        low, high = low + min(ends), high + max(ends)
    return low, high


def paper(order, q, keys, bits, chunk_bits, scale, threshold):
    """Section 3 literally: chunks read, tokens kept, smallest distance to the threshold.

    Every p'' is summed anew, from the bits that are known at the time.
    """
    chunks = bits // chunk_bits
    known = [0] * len(keys)
    pruned = [False] * len(keys)
    codes = [[bits_of(int(code), bits) for code in key] for key in keys]
    top = scale * max(int(np.dot(q, key)) for key in keys)
    closest = math.inf
    for token, b in order:
        if pruned[token]:
            continue
        assert known[token] == b
        terms = [
            math.exp(scale * extremes(q, codes[j], known[j] * chunk_bits)[0] - top)
            for j in range(len(keys))
            if known[j] and not pruned[j]
        ]
        known[token] += 1
        s_max = scale * extremes(q, codes[token], known[token] * chunk_bits)[1] - top
        denominator = math.fsum(terms)
        if denominator == 0:
            continue
        bound = s_max - math.log(denominator)
        if threshold:
            closest = min(closest, abs(bound - math.log(threshold)))
            pruned[token] = bound <= math.log(threshold)
    assert all(cut or count == chunks for cut, count in zip(pruned, known, strict=True))
    return known, [not cut for cut in pruned], closest


def by_slots(tokens, chunks, latency):
    """Arrivals slot by slot: each delivers the chunks due in it, oldest request first."""
    order, due, slot = [], [], 0
    while len(order) < tokens * chunks:
        if slot < tokens:
            due.append((slot, slot, 0))
        while any(when == slot for when, _, _ in due):
            event = min(entry for entry in due if entry[0] == slot)
            due.remove(event)
            _, token, b = event
            order.append((token, b))
            if b + 1 < chunks:
                due.append((slot + latency, token, b + 1))
        slot += 1
    return order


def random_order(rng, tokens, chunks):
    """Any order that keeps the chunks of a token in theirs."""
    seen = [0] * tokens
    order = []
    for token in rng.permutation(np.repeat(np.arange(tokens), chunks)):
        order.append((int(token), seen[token]))
        seen[token] += 1
    return order


def case(rng, tokens, d, bits, chunk_bits, spread=1.0):
    """Codes and their partial scores and margins; ``spread`` below 1 makes small codes likely."""
    limit = 2 ** (bits - 1)
    q = np.trunc(rng.integers(-limit, limit, d) * spread).astype(int)
    keys = np.trunc(rng.integers(-limit, limit, (tokens, d)) * spread).astype(int)
    partial = np.stack(
        [leading_bits(keys, b + 1, bits, chunk_bits) @ q for b in range(bits // chunk_bits)]
    )
    return q, keys, partial, *margins(q, bits, chunk_bits)


def exact(scores, scale):
    """Softmax of integer scores."""
    e = np.exp((scores - scores.max()) * scale)
    return e / e.sum()


FORMATS = st.sampled_from([(12, 4), (12, 4), (6, 2), (4, 1), (8, 8), (16, 4)])


@st.composite
def situations(draw):
    """An arrival order, a case and a scale that spreads the scores over 0.1 to 1000."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    bits, chunk_bits = draw(FORMATS)
    tokens, d = draw(st.integers(1, 12)), draw(st.sampled_from([1, 3, 8]))
    made = case(rng, tokens, d, bits, chunk_bits, draw(st.sampled_from([1.0, 0.3, 0.01])))
    chunks = bits // chunk_bits
    if draw(st.booleans()):
        order = random_order(rng, tokens, chunks)
    else:
        order = arrival_order(tokens, chunks, draw(st.sampled_from([0, 1, 2, 5, 1000])))
    reach = max(1, int(np.abs(made[2][-1]).max()))
    scale = 10 ** draw(st.floats(-1, 3)) / reach
    threshold = draw(st.sampled_from([0.0, 1e-6, 1e-3, 1e-2, 0.1, 0.5]))
    return order, (bits, chunk_bits), made, scale, threshold


@given(situations())
def test_decisions_are_the_papers(situation):
    order, (bits, chunk_bits), (q, keys, partial, least, most), scale, threshold = situation
    made = decide(order, partial, least, most, scale, threshold)
    read, kept, closest = paper(order, q, keys, bits, chunk_bits, scale, threshold)
    assume(closest > 1e-9)  # nearer to the threshold, rounding may decide
    assert made.read.tolist() == read
    assert made.kept.tolist() == kept


@given(situations())
def test_no_token_above_the_threshold_is_pruned(situation):
    order, _, (_, _, partial, least, most), scale, threshold = situation
    made = decide(order, partial, least, most, scale, threshold)
    p = exact(partial[-1], scale)
    assert (p[~made.kept] <= threshold * (1 + 1e-12)).all()
    assert made.kept.any()


@given(situations())
def test_the_denominator_ends_as_the_sum_over_kept_tokens(situation):
    order, _, (_, _, partial, least, most), scale, threshold = situation
    made = decide(order, partial, least, most, scale, threshold)
    e = np.exp((partial[-1] - partial[-1].max()) * scale)
    np.testing.assert_allclose(made.weight, np.where(made.kept, e, 0), rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(made.denominator, e[made.kept].sum(), rtol=1e-11)


def test_no_token_above_the_threshold_is_pruned_on_the_shipped_trace(shipped_trace):
    """Every 25th query of all layers, in lanes by head; real scores span far more than random."""
    rng = np.random.default_rng(5)
    pruned = 0
    for q, k in zip(shipped_trace.q, shipped_trace.k, strict=True):
        k = k.astype(float)
        k_scale = np.abs(k).max(axis=(1, 2)) / 2047
        keys = np.rint(k / k_scale[:, None, None]).astype(int)
        for t in range(1, 200, 25):
            query = q[:, t].astype(float)
            q_scale = np.abs(query).max(axis=1) / 2047
            codes = np.rint(query / q_scale[:, None]).astype(int)
            seen = keys[np.arange(9) // 3, request_order(np.array([t]), t + 1)]
            partial = [(leading_bits(seen, b, 12, 4) * codes).sum(axis=-1) for b in (1, 2, 3)]
            scale = q_scale * k_scale[np.arange(9) // 3] * shipped_trace.scale
            e = np.exp((partial[-1] - partial[-1].max(axis=0)) * scale)
            p = e / e.sum(axis=0)
            orders = [arrival_order(t + 1, 3, latency) for latency in (0, 16, 1000)]
            for order in (*orders, random_order(rng, t + 1, 3)):
                made = decide(order, np.stack(partial), *margins(codes, 12, 4), scale, 1e-3)
                assert (p[~made.kept] <= 1e-3 * (1 + 1e-12)).all()
                pruned += np.count_nonzero(~made.kept)
    assert pruned > 10**4


def test_some_of_it_is_pruned_at_every_chunk():
    """The properties above are not about empty sets."""
    rng = np.random.default_rng(1)
    stopped = np.zeros(4, int)
    for _ in range(50):
        _, _, partial, least, most = case(rng, 40, 8, 12, 4)
        scale = 12 / np.abs(partial[-1]).max()
        made = decide(arrival_order(40, 3, 4), partial, least, most, scale, 1e-2)
        stopped[3] += made.kept.sum()
        stopped[:3] += np.bincount(made.read[~made.kept] - 1, minlength=3)
    assert (stopped > 50).all(), stopped


@given(st.integers(0, 2**32 - 1), FORMATS)
def test_margins_bound_the_score_after_every_chunk(seed, form):
    bits, chunk_bits = form
    rng = np.random.default_rng(seed)
    q, keys, partial, least, most = case(rng, 5, 4, bits, chunk_bits)
    for b in range(bits // chunk_bits):
        for token, key in enumerate(keys):
            codes = [bits_of(int(code), bits) for code in key]
            low, high = extremes(q, codes, (b + 1) * chunk_bits)
            assert partial[b, token] + least[b] == low
            assert partial[b, token] + most[b] == high
            assert low <= int(np.dot(q, key)) <= high
    np.testing.assert_array_equal(partial[-1], keys @ q)
    assert least[-1] == most[-1] == 0


def test_margins_by_hand():
    least, most = margins(np.array([[3, -2, 0, 5], [0, 0, 0, -1]]), 12, 4)
    np.testing.assert_array_equal(most, [[8 * 255, 0], [8 * 15, 0], [0, 0]])
    np.testing.assert_array_equal(least, [[-2 * 255, -255], [-2 * 15, -15], [0, 0]])


def test_leading_bits_by_hand():
    k = np.array([0, 1, 15, 16, 255, 256, 2047, -1, -16, -17, -256, -257, -2048])
    first = [0, 0, 0, 0, 0, 256, 1792, -256, -256, -256, -256, -512, -2048]
    second = [0, 0, 0, 16, 240, 256, 2032, -16, -16, -32, -256, -272, -2048]
    np.testing.assert_array_equal(leading_bits(k, 1, 12, 4), first)
    np.testing.assert_array_equal(leading_bits(k, 2, 12, 4), second)
    np.testing.assert_array_equal(leading_bits(k, 3, 12, 4), k)


def test_request_order_is_newest_first_then_newest_to_oldest():
    order = request_order(np.array([0, 1, 2, 5]), 6)
    lists = [[token for token in column if token >= 0] for column in order.T.tolist()]
    assert lists == [[0], [1, 0], [2, 0, 1], [5, 0, 4, 3, 2, 1]]
    assert all((order[newest + 1 :, at] == -1).all() for at, newest in enumerate((0, 1, 2, 5)))


@pytest.mark.parametrize("latency", [0, 1, 2, 3, 7, 100])
def test_arrival_order_plays_the_memorys_time(latency):
    assert arrival_order(7, 3, latency) == by_slots(7, 3, latency)


def test_arrival_order_at_its_ends():
    assert arrival_order(2, 3, 0) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert arrival_order(2, 3, 2) == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    assert arrival_order(3, 2, 1) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert arrival_order(3, 2, 2) == [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (2, 1)]


# With scale ln 4 every score is a power of 4 before the division, and ln 4 = -ln 0.25 exactly, so
# p'' hits the threshold without rounding. One chunk, so partial scores are exact and margins 0.
LN4 = math.log(4)


def one_chunk(scores, threshold, order=None):
    partial = np.array([scores])
    zero = np.zeros(1)
    order = order or [(token, 0) for token in range(len(scores))]
    return decide(order, partial, zero, zero, LN4, threshold)


@pytest.mark.parametrize(("threshold", "kept"), [(0.25, False), (0.24999, True)])
def test_a_probability_equal_to_the_threshold_is_pruned(threshold, kept):
    assert one_chunk([5, 4], threshold).kept.tolist() == [True, kept]


def test_the_denominator_is_the_one_before_the_event():
    """The second token's p'' is 4^-1 over 1; with its own term in the sum it would be 0.2."""
    assert one_chunk([5, 4], 0.22).kept.all()
    assert one_chunk([4, 5], 0.22).kept.all()


def test_equal_tokens_are_decided_by_their_place_in_the_order():
    """The third of four equal tokens finds a sum of 2, so p'' = 1/2, and the sum stays 2."""
    made = one_chunk([3, 3, 3, 3], 0.5)
    assert made.kept.tolist() == [True, True, False, False]
    assert made.denominator == 2
    made = one_chunk([3, 3, 3, 3], 0.5, [(2, 0), (3, 0), (0, 0), (1, 0)])
    assert made.kept.tolist() == [False, False, True, True]


def test_a_pruned_tokens_earlier_term_leaves_the_denominator():
    """Two chunks of two bits, q = 1, so a score is a key; terms relative to token 0's, 4^7."""
    keys = np.array([[7], [4], [5]])
    q = np.array([1])
    partial = np.stack([leading_bits(keys, b, 4, 2) @ q for b in (1, 2)])
    least, most = margins(q, 4, 2)
    order = [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]
    # After its first chunk each key is 4 to 7. Token 1 goes at its second chunk, at p'' = 4^-3 /
    # (1 + 4^-3), and leaves 1. At its second chunk token 2 finds 1 + 4^-3, of which 4^-3 is its
    # own, and p'' = 4^-2 / (1 + 4^-3) = 0.0615; with token 1's term there it would be 0.0606.
    made = decide(order, partial, least, most, LN4, 0.0612)
    assert made.kept.tolist() == [True, False, True]
    assert made.read.tolist() == [2, 2, 2]
    np.testing.assert_allclose(made.denominator, 1 + 4**-2, rtol=1e-15)
    made = decide(order, partial, least, most, LN4, 0.0618)
    assert made.kept.tolist() == [True, False, False]
    np.testing.assert_allclose(made.denominator, 1, rtol=1e-15)


def test_threshold_zero_prunes_nothing_over_any_range():
    scores = np.array([[-(10**6), 0, 10**6, 0]])
    made = decide([(n, 0) for n in range(4)], scores, np.zeros(1), np.zeros(1), 1.0, 0.0)
    assert made.kept.all() and (made.read == 1).all()
    assert made.weight.tolist() == [0, 0, 1, 0]
    assert made.denominator == 1


def test_huge_scores_are_decided_without_overflow():
    scores = np.array([[10**6, -(10**6), 10**6 + 1]])
    made = decide([(n, 0) for n in range(3)], scores, np.zeros(1), np.zeros(1), 1.0, 1e-3)
    assert made.kept.tolist() == [True, False, True]


def test_lanes_do_not_influence_each_other():
    """Many lanes at once, of unequal lengths, are each lane alone, in every bit."""
    rng = np.random.default_rng(7)
    tokens, lanes = 30, (3, 5)
    parts = [case(rng, tokens, 8, 12, 4, 0.5) for _ in range(15)]
    partial = np.stack([part[2] for part in parts], axis=-1).reshape(3, tokens, *lanes)
    least = np.stack([part[3] for part in parts], axis=-1).reshape(3, *lanes)
    most = np.stack([part[4] for part in parts], axis=-1).reshape(3, *lanes)
    scale = 10 / np.abs(partial[-1]).max(axis=0) * rng.uniform(0.5, 2, lanes)
    lengths = rng.integers(1, tokens + 1, lanes)
    present = np.arange(tokens)[:, None, None] < lengths
    for latency in (0, 3, 100):
        order = arrival_order(tokens, 3, latency)
        whole = decide(order, partial, least, most, scale, 1e-2, present)
        for at in np.ndindex(lanes):
            n = lengths[at]
            lane = (slice(None), slice(n), *at)
            alone = decide(
                arrival_order(n, 3, latency),
                partial[lane],
                least[:, *at],
                most[:, *at],
                scale[at],
                1e-2,
            )
            np.testing.assert_array_equal(whole.read[:n, *at], alone.read)
            np.testing.assert_array_equal(whole.kept[:n, *at], alone.kept)
            np.testing.assert_array_equal(whole.weight[:n, *at], alone.weight)
            assert whole.denominator[at] == alone.denominator
            assert not whole.read[n:, *at].any() and not whole.kept[n:, *at].any()


def test_a_trace_without_the_arrivals_that_never_happened_replays_alike():
    rng = np.random.default_rng(3)
    _, _, partial, least, most = case(rng, 20, 8, 12, 4)
    scale = 12 / np.abs(partial[-1]).max()
    order = random_order(rng, 20, 3)
    full = decide(order, partial, least, most, scale, 1e-2)
    real = [(token, b) for token, b in order if b < full.read[token]]
    assert len(real) < len(order)
    again = decide(real, partial, least, most, scale, 1e-2)
    np.testing.assert_array_equal(again.read, full.read)
    np.testing.assert_array_equal(again.kept, full.kept)
    assert again.read.sum() == len(real)
    last = max(at for at, (token, _) in enumerate(real) if full.kept[token])
    token, b = real.pop(last)
    with pytest.raises(ValueError, match=f"the order lacks chunk {b} of token {token}"):
        decide(real, partial, least, most, scale, 1e-2)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([(0, 0), (1, 0)], "names chunk 0 of token 1, but there are 1 tokens of 2 chunks"),
        ([(0, 0), (0, 1), (0, 2)], "names chunk 2 of token 0"),
        ([(0, 1), (0, 0)], "one by one from 0, but chunk 1 comes as number 0"),
        ([(0, 0), (0, 0)], "one by one from 0, but chunk 0 comes as number 1"),
        ([(0, 0)], "the order lacks chunk 1 of token 0"),
        ([], "the order lacks chunk 0 of token 0"),
    ],
)
def test_impossible_orders_are_refused(order, message):
    with pytest.raises(ValueError, match=message):
        decide(order, np.zeros((2, 1)), np.zeros(2), np.zeros(2), 1.0, 0.1)


@pytest.mark.parametrize("threshold", [-0.1, 1.0, math.nan])
def test_impossible_thresholds_are_refused(threshold):
    with pytest.raises(ValueError, match="threshold must be at least 0 and below 1, not"):
        decide([(0, 0)], np.zeros((1, 1)), np.zeros(1), np.zeros(1), 1.0, threshold)
