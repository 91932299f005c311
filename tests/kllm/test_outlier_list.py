"""The outlier list: its model against plain Python; every small vector through the RTL."""

import itertools

import numpy as np
import pytest

from golden.kllm.outlier_list import listing_cycles, outlier_rows
from hw.catalogue import find
from hw.kllm.outlier_list import OutlierList, OutlierListParameters
from sim.core.stalls import PATTERNS
from sim.testbenches.kllm.batches import random_batches
from sim.testbenches.kllm.outlier_list import build, testbench
from tests.support.campaign import suite_takes
from tests.support.formal import prove_stream_rules
from tests.support.kllm.compiled import Compiled

BLOCK = find("kllm.outlier_list")
TINY = OutlierListParameters(k=6, segment=4, lanes=2, entries=2, outliers=3, columns=2, vectors=2)
SIZES = [
    OutlierListParameters(k=1, segment=1, lanes=1, entries=1, outliers=1, columns=1),
    OutlierListParameters(k=9, segment=3, lanes=1, entries=1, outliers=4, columns=3, vectors=3),
    OutlierListParameters(k=20, segment=16, lanes=16, entries=3, outliers=20, columns=2),
    OutlierListParameters(k=64, segment=16, lanes=4, entries=4, outliers=9, columns=7, vectors=8),
]


def rows_by_hand(x, outlier, segment, entries, most):
    """Rows as lists of (position, value), and their segments, one outlier after the other."""
    rows, left = [], most
    for base in range(0, len(x), segment):
        found = []
        for place in range(base, min(base + segment, len(x))):
            if outlier[place] and left:
                left -= 1
                found.append((place - base, x[place].view(np.uint16)))
        pieces = [found[at : at + entries] for at in range(0, len(found), entries)] or [[]]
        rows += [(base // segment, piece, piece is pieces[-1]) for piece in pieces]
    return rows


def test_rows_are_the_definition():
    rng = np.random.default_rng(1)
    rows_seen = overflows = 0
    for _ in range(400):
        segment, entries, most = rng.integers(1, 9, 3)
        x = rng.integers(0, 1 << 16, rng.integers(1, 40)).astype(np.uint16).view(np.float16)
        outlier = rng.random(len(x)) < rng.random()
        rows = outlier_rows(x, outlier, segment, entries, most)
        want = rows_by_hand(x, outlier, segment, entries, most)
        assert len(rows.advance) == len(want)
        for r, (of, found, final) in enumerate(want):
            count = len(found)
            assert rows.valid[r].tolist() == [True] * count + [False] * (entries - count)
            got = zip(rows.position[r, :count], rows.value[r, :count].view(np.uint16), strict=True)
            assert list(got) == found
            assert not rows.position[r, count:].any()
            assert not rows.value[r, count:].view(np.uint16).any()
            assert (rows.segment[r], rows.advance[r]) == (of, final)
        assert rows.overflow == (outlier.sum() > most)
        rows_seen, overflows = rows_seen + len(want), overflows + rows.overflow
    assert rows_seen > 3000 and 50 < overflows < 350


@pytest.mark.parametrize("parameters", [*OutlierListParameters.presets().values(), *SIZES, TINY])
def test_rows_always_suffice(parameters):
    """The stated number of rows is reached and never exceeded."""
    p = parameters
    rng = np.random.default_rng(2)
    most = 0
    one_segment = np.arange(p.k) < p.outliers
    masks = [one_segment, ~one_segment, np.ones(p.k, bool), np.zeros(p.k, bool)]
    masks += [rng.random(p.k) < share for share in rng.random(200)]
    for outlier in masks:
        rows = outlier_rows(np.ones(p.k, np.float16), outlier, p.segment, p.entries, p.outliers)
        assert len(rows.advance) <= p.rows
        most = max(most, len(rows.advance))
    if p.outliers <= min(p.k, p.segment):
        assert most == p.rows


@pytest.mark.parametrize("parameters", suite_takes(SIZES[1:3], SIZES), ids=lambda p: p.slug())
def test_every_size(parameters, shipped_trace):
    compiled = Compiled(BLOCK, parameters)
    for data, vectors in ((None, 400), (shipped_trace, 60)):
        stimulus = testbench.stimulus(parameters, data, vectors, seed=7)
        assert stimulus.transactions == vectors
        compiled.check_all(stimulus)


def test_every_small_vector():
    """All masks, lengths and numbers of columns of a small list, in many orders and batches."""
    p = TINY
    compiled = Compiled(BLOCK, p)
    masks = np.array(list(itertools.product((False, True), repeat=p.k)))
    every = list(itertools.product(range(len(masks)), (2, 4, 6), (0, 1, 2)))
    vectors = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(every))
        which, lengths, columns = np.array(every)[order].T
        columns[-1] = 1
        # Vectors alone, and in batches of one or two.
        ends = random_batches(1 + seed % 2, len(order), rng)
        x = rng.integers(0, 1 << 16, (len(order), p.k)).astype(np.uint16).view(np.float16)
        stimulus = build(p, x, masks[which], lengths, ends, columns[ends], rng, [])
        for stall in PATTERNS:
            compiled.check(stimulus, stall)
            vectors += stimulus.transactions
    assert vectors == 64 * 9 * 6 * len(PATTERNS)


@pytest.mark.parametrize("batch", [1, 3])
def test_latency_and_rate(batch):
    """Two cycles from a batch to its first row, then a row every cycle through all columns."""
    p = OutlierListParameters.preset("small")
    rng = np.random.default_rng(5)
    x = rng.normal(size=(6, p.k)).astype(np.float16)
    outlier = np.zeros((6, p.k), bool)
    outlier[:, [3, 4, 13]] = True
    full, ends = np.full(6, p.k), np.arange(6) % batch == batch - 1
    stimulus = build(p, x, outlier, full, ends, np.full(6 // batch, 5), rng, [])
    outcome = Compiled(BLOCK, p).check(stimulus, "none")
    taken = outcome.cycles_of["o"]
    listing = listing_cycles(outlier[0], p.segment, p.lanes, p.entries, p.outliers)
    assert listing == p.beats  # no beat has two outliers, no segment three
    assert taken[0] == batch * p.beats - 1 + p.latency
    assert np.array_equal(np.diff(taken), np.ones(len(taken) - 1))
    assert len(taken) == 6 * 5 * p.segments


def test_stream_rules():
    """Whatever is offered and whenever it is taken, outputs stand until they are."""
    prove_stream_rules(OutlierList(TINY), "outlier_list", "o", ["i", "columns"])
