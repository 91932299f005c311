"""The core's model against its parts, event by event: lanes that share a denominator with delay."""

import dataclasses
import doctest
from collections import deque

import numpy as np
import pytest

from golden.topick import topick_core
from golden.topick.dag import Denominator
from golden.topick.pe_lane import Head, LaneSizes, PeLane, chunk_of
from golden.topick.topick_core import (
    attend,
    must_keep,
    probability,
    read_on,
    replay,
    scores,
    token_order,
)
from hw.topick.pe_lane import PeLaneParameters
from sim.testbenches.topick.pe_lane import random_head, real_head, sizes_of
from tests.support.topick.closed_loop import OTHER, check_guarantee

SMALL = PeLaneParameters.preset("small")


class Events:
    """Lanes of one head in any order of arrival: the parts' own models, one event at a time.

    delay
        Decisions between one and the first that sees its difference.
    prunes_at
        Chunks after which tokens are pruned.
    """

    def __init__(
        self, z: LaneSizes, lanes: int, rng: np.random.Generator, delay: int, prunes_at=None
    ):
        self.z, self.lanes, self.rng, self.delay = z, lanes, rng, delay
        self.prunes_at = range(z.chunks) if prunes_at is None else prunes_at
        self.pe_lanes = [PeLane(z) for _ in range(lanes)]

    def run(self, head: Head, k: np.ndarray):
        """``(chunks read, kept, t, denominator, observed and decisions of each lane)``."""
        n = head.tokens
        parts = [
            dataclasses.replace(
                head,
                tokens=len(range(lane, n, self.lanes)),
                exempt=head.exempt and lane == (n - 1) % self.lanes,
            )
            for lane in range(self.lanes)
        ]
        waiting, flying, observed, decisions = [], [], [], []
        for lane, part in enumerate(parts):
            self.pe_lanes[lane].begin(part)
            newest = part.tokens > 0 and lane == (n - 1) % self.lanes
            waiting.append(token_order(part.tokens, newest, part.tokens > 0 and lane == 0))
            flying.append([])
            observed.append([])
            decisions.append([])
        read, kept, t = np.zeros(n, int), np.zeros(n, bool), np.zeros(n, int)
        denominator = Denominator(limb=self.z.limb, fraction=self.z.fraction)
        late = deque()
        while any(waiting) or any(flying):
            for lane, pe_lane in enumerate(self.pe_lanes):
                while waiting[lane] and pe_lane.scoreboard.free:
                    flying[lane].append((waiting[lane].pop(0), 0, pe_lane.scoreboard.take()))
            lane = int(self.rng.choice([i for i in range(self.lanes) if flying[i]]))
            row, chunk, slot = flying[lane].pop(int(self.rng.integers(len(flying[lane]))))
            token = row * self.lanes + lane
            known, log2 = denominator.log2()
            # As without a denominator, the newest token is never pruned.
            known = known and token != n - 1 and chunk in self.prunes_at
            data = chunk_of(k[token], chunk, self.z)
            d = self.pe_lanes[lane].decide(row, chunk, slot, data, known, log2)
            observed[lane].append((row, chunk, slot, known, log2))
            decisions[lane].append(d)
            late.append(d.difference)
            while len(late) > self.delay:
                if (difference := late.popleft()) is not None:
                    denominator.add(*difference)
            read[token], kept[token], t[token] = chunk + 1, d.kept, d.t
            if d.requests:
                flying[lane].append((row, chunk + 1, slot))
        for difference in late:
            if difference is not None:
                denominator.add(*difference)
        return read, kept, t, denominator, parts, observed, decisions


def found_late(events: Events, head: Head, k: np.ndarray, read, kept, decisions) -> np.ndarray:
    """Tokens that were pruned too late, or not at all, by the decisions alone."""
    rank = np.zeros(head.tokens, int)
    for lane, made in enumerate(decisions):
        tokens = [d.token * events.lanes + lane for d in made if not d.requests]
        rank[tokens] = range(len(tokens))
    options = {"lanes": events.lanes, "delay": events.delay + 1}
    return read_on(head, k, read, kept, rank, events.z, **options)


@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize(("p", "heads"), [(SMALL, 60), (OTHER, 60), (PeLaneParameters(d=8), 60)])
def test_event_by_event(p, heads, lanes):
    z = sizes_of(p)
    rng = np.random.default_rng(heads + lanes)
    counts = np.zeros(3, int)
    events = Events(z, lanes, rng, 0)
    again = [PeLane(z) for _ in range(lanes)]
    for number in range(heads):
        data = random_head(p, 64, rng)
        head, k = data.head, data.k
        v = rng.integers(-(1 << z.bits - 1), 1 << z.bits - 1, (head.tokens, 5))
        events.delay = (0, 3, 17)[number % 3]
        read, kept, t, denominator, parts, observed, decisions = events.run(head, k)
        got = attend(head, k, v, read, kept, z, lanes=lanes)
        assert (got.known, got.log2) == denominator.log2()
        assert got.t.tolist() == t.tolist()
        options = {"fraction": z.fraction, "places": z.probability_bits}
        weights = [
            int(probability(t[i], got.log2, **options)) if kept[i] else 0 for i in range(len(k))
        ]
        assert got.p.tolist() == weights
        expected = [
            sum(w * int(x) for w, x in zip(weights, v[:, j], strict=True)) for j in range(5)
        ]
        assert got.o.tolist() == expected
        # Nothing that must be kept was pruned.
        must = must_keep(head, k, z)
        assert not (must & ~kept).any()
        assert not found_late(events, head, k, read, kept, decisions).any()
        check_guarantee(p, head, k, {int(token): 0 for token in np.flatnonzero(kept)})
        for lane in range(lanes):
            rows, ends = k[lane::lanes], (lane == (head.tokens - 1) % lanes, lane == 0)
            found = replay(
                again[lane], parts[lane], rows, observed[lane], z, newest=ends[0], first=ends[1]
            )
            assert found == decisions[lane]
        counts += [len(k), int(kept.sum()), int(must.sum())]
    assert counts[0] > counts[1] + 100 and counts[1] > counts[2] + 10 and counts[2] > heads


@pytest.mark.parametrize(
    ("prunes_at", "share"), [(range(3), 0), (range(0), 0.6), (range(2, 3), 0.4)]
)
@pytest.mark.parametrize("lanes", [1, 2])
def test_tokens_pruned_late_are_found(shipped_trace, prunes_at, share, lanes):
    """By the decisions alone: a large part of the trace's heads."""
    p = PeLaneParameters(entries=16)
    counts = np.zeros(2, int)
    for number in (1, 30):
        data, _ = real_head(p, shipped_trace, number, 10**6, np.random.default_rng(4), 150)
        head, k = dataclasses.replace(data.head, exempt=True), data.k
        events = Events(sizes_of(p), lanes, np.random.default_rng(4), 9, prunes_at)
        read, kept, *_, decisions = events.run(head, k)
        late = found_late(events, head, k, read, kept, decisions)
        counts += [late.sum(), len(k)]
    assert (counts[0] > 0) == (share > 0) and counts[0] >= share * counts[1]


def test_whole_heads_of_the_trace(shipped_trace):
    """Their probabilities add up to 1 and their outputs are those of exact attention, nearly."""
    p = PeLaneParameters()
    z = sizes_of(p)
    rng = np.random.default_rng(4)
    for number in (1, 5, 30):
        data, _ = real_head(p, shipped_trace, number, 10**6, rng, 300)
        head, k = data.head, data.k
        read, kept, *_ = Events(z, 1, rng, 9).run(head, k)
        v = rng.integers(-2048, 2048, (head.tokens, p.d))
        got = attend(head, k, v, read, kept, z)
        e = np.exp2((k @ head.q) * head.mantissa * 2.0 ** -(z.base + head.shift + z.fraction))
        weight = np.where(kept, e, 0) / e[kept].sum()
        assert np.abs(got.p / got.total - weight).max() < 2.0**-12 + 1.5e-3
        assert got.total == got.p.sum() and abs(got.total / 2**z.probability_bits - 1) < 0.01
        error = np.linalg.norm(got.o / got.total - weight @ v) / np.linalg.norm(weight @ v)
        assert error < 0.02
        assert must_keep(head, k, z).sum() <= kept.sum() < 0.8 * len(k)


@pytest.mark.parametrize(("fraction", "places"), [(10, 16), (4, 5), (3, 5), (12, 3)])
def test_probabilities_are_nearest(fraction, places):
    """Within half a unit of the exact power and the error of 2^-f, never above the largest code."""
    minus = np.arange(-3, (places + 4) << fraction)
    got = probability(-minus, 0, fraction=fraction, places=places)
    most = (1 << places) - 1
    exact = np.minimum(np.exp2(-minus / 2**fraction) * 2**places, most)
    assert (np.abs(got - exact) <= 0.5 + 2.0**-3).all()
    assert (got[minus <= 0] == most).all() and got[-1] == 0
    assert (np.diff(got) <= 0).all()
    assert probability(np.array([-(1 << 30)]), 1 << 30, fraction=fraction, places=places) == 0


def test_the_largest_limb_of_a_pruned_token_stays():
    """Token 1 was in the sum with a term far above token 0's, so token 0's low bits are gone."""
    z = dataclasses.replace(sizes_of(SMALL), chunk_bits=2)
    q = np.array([31, 0, 0, 0])
    k = np.array([[-7, 0, 0, 0], [31, 0, 0, 0]])
    head = Head(q, 63, 0, 40, 2)
    v = np.array([[1], [1]])
    t = scores(head, k, z)
    alone = attend(head, k, v, np.array([3, 1]), np.array([True, False]), z)
    beside = attend(head, k, v, np.array([3, 2]), np.array([True, False]), z)
    assert t[0, 1] - t[-1, 0] > 2 * z.limb << z.fraction
    assert alone.known and alone.p[0] > 20
    assert (beside.known, beside.log2) == (False, 0)


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_lanes_sum_wraps_around(lanes):
    """Only with an unknown denominator: here each of six small tokens gets the largest weight."""
    z = sizes_of(SMALL)
    k = np.zeros((7, 4), int)
    k[:, 0] = [1, 1, 1, 1, 1, 1, 31]
    head = Head(np.array([31, 0, 0, 0]), 63, 0, 40, 7)
    kept = np.arange(7) < 6
    v = np.where(kept[:, None], [31, -32, 1], 9)
    got = attend(head, k, v, np.where(kept, 3, 2), kept, z, lanes=lanes)
    assert not got.known and got.t[0] > 0 and got.p.tolist() == [8191] * 6 + [0]
    exact, half = 6 // lanes * 8191 * np.array([31, -32, 1]), 1 << 19
    assert got.o.tolist() == (lanes * ((exact + half) % (2 * half) - half)).tolist()
    assert (np.abs(exact[:2]) > half).all()
    assert got.total == lanes * (6 // lanes * 8191 % 16384)


def test_no_token_kept():
    head = Head(np.array([1, 0, 0, 0]), 40, 0, 2, 3)
    k, v = np.zeros((3, 4), int), np.full((3, 4), 31)
    got = attend(head, k, v, np.array([1, 2, 3]), np.zeros(3, bool), sizes_of(SMALL))
    assert not got.p.any() and not got.o.any() and got.total == 0
    got = attend(head, k, v, np.array([1, 1, 1]), np.zeros(3, bool), sizes_of(SMALL))
    assert (got.known, got.log2) == (False, 0)
    got = attend(head, k[:0], v[:0], np.zeros(0, int), np.zeros(0, bool), sizes_of(SMALL))
    assert got.o.tolist() == [0] * 4


def test_a_token_cannot_be_kept_before_its_last_chunk():
    head = Head(np.ones(4, int), 40, 0, 2, 2)
    with pytest.raises(ValueError, match="token 1 is kept after 2 chunks of its key"):
        attend(
            head,
            np.zeros((2, 4), int),
            np.zeros((2, 4), int),
            [3, 2],
            [True, True],
            sizes_of(SMALL),
        )


def test_what_must_be_kept():
    """Probabilities 1/4 and 1/8 against thresholds on both sides; the newest and 0 keep all."""
    z = sizes_of(SMALL)  # 4 fraction bits
    unit = 1 << z.base + z.fraction - 6  # mantissa 32 makes a score of `unit` a power of 2
    q = np.array([1, 0, 0, 0])
    head = Head(q * 16, 32, 0, 32, 4)
    k = np.zeros((4, 4), int)
    k[:, 0] = [2, 2, 1, 0]
    step = 16 * 32 / 2 ** (z.base + z.fraction)
    p = np.exp2(step * k[:, 0])
    p /= p.sum()
    assert unit and must_keep(head, k, z).tolist() == [*(p[:3] > 0.25), True]
    for threshold in range(1, 90):
        above = p > 2.0 ** (-threshold / 16)
        above[-1] = True
        assert (
            must_keep(dataclasses.replace(head, threshold=threshold), k, z).tolist()
            == above.tolist()
        )
    zero = (1 << z.threshold_bits) - 1
    assert must_keep(dataclasses.replace(head, threshold=zero), k, z).all()
    # Equal to the threshold is not above it, and no rounding says so: four tokens of 1/4.
    even = dataclasses.replace(head, threshold=32)
    assert must_keep(even, np.zeros((4, 4), int), z).tolist() == [False] * 3 + [True]


@pytest.mark.parametrize(
    ("observed", "message"),
    [
        ([(1, 0, 0), (0, 0, 0)], "row 0 is in slot 0 instead of 1"),
        ([(1, 1, 0)], "chunk 1 of row 1 is read instead of 0"),
        ([(1, 0, 0), (1, 1, 0), (1, 2, 0), (1, 0, 0)], "chunk 0 of row 1 is read instead of None"),
        ([(1, 0, 0), (1, 1, 0), (1, 2, 0), (0, 0, 1)], r"rows \[0\] are left undecided"),
    ],
)
def test_impossible_observations_are_refused(observed, message):
    head = Head(np.ones(4, int), 40, 0, 2, 2)
    z = sizes_of(SMALL)
    with pytest.raises(ValueError, match=message):
        replay(PeLane(z), head, np.zeros((2, 4), int), [(*o, False, 0) for o in observed], z)


def test_the_order_of_a_lanes_rows():
    assert token_order(0, False, False) == []
    assert token_order(1, True, True) == token_order(1, False, True) == [0]
    assert token_order(2, True, True) == [1, 0]
    assert token_order(4, False, True) == [0, 3, 2, 1]
    assert token_order(4, True, False) == [3, 2, 1, 0]


def test_examples():
    assert doctest.testmod(topick_core) == (0, 6)
