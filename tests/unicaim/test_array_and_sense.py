"""All arrays, each with the sense, pass the same testbench: they select the model's rows."""

import itertools

import numpy as np
import pytest

from golden.algorithms.unicaim.selection import top_k
from golden.unicaim.cells import key_levels, key_step, query_levels
from hw.unicaim.cell_array import CellArrayParameters
from hw.unicaim.digital_array import DigitalArrayParameters
from tests.support.kllm.compiled import Compiled
from tests.support.unicaim.array_and_sense import ARRAYS, BLOCK, ArrayAndSenseParameters, Queries

ROWS, D = 8, 6


@pytest.fixture(scope="module", params=ARRAYS)
def compiled(request):
    return Compiled(BLOCK, ArrayAndSenseParameters(request.param, ROWS, D))


def selection_cycles(outcome, queries: Queries) -> np.ndarray:
    """Cycles from each search's first step, when scores are offered too, to its first address."""
    sizes = [max(1, len(rows)) for rows in queries.selected]
    first = np.cumsum([0, *sizes[:-1]])
    return outcome.cycles_of["o"][first] - outcome.cycles_of["values"] + 1


@pytest.mark.parametrize("stall", ["none", "random"])
def test_every_score_of_a_few_rows(compiled, stall):
    """Four rows, in use or not, three scores, every k: all ties and orders there are."""
    queries = Queries(compiled.parameters)
    used, query = (0, 3, 5, 7), np.zeros(D, int)
    query[0] = 1
    cases = list(itertools.product((None, -4, 0, 4), repeat=4))
    cases = cases if stall == "none" else cases[::7]
    for scores, k in itertools.product(cases, (0, 1, 2, 3, 4, ROWS)):
        queries.clear()
        for row, score in zip(used, scores, strict=True):
            if score is not None:
                queries.write(row, np.full(D, score))
        queries.query(query, k)
    counts = {len(rows) for rows in queries.selected}
    assert counts == {0, 1, 2, 3, 4} and len(queries.selected) >= 6 * len(cases)
    compiled.check(queries.stimulus(), stall, timed=False)


def real(parameters: ArrayAndSenseParameters, trace, queries: int) -> Queries:
    """Keys of a real head, one more before each query, on the cells' levels."""
    p = parameters
    k = np.concatenate(trace.k[0])[:, : p.d].astype(np.float64)
    q = np.concatenate(trace.q[0, :: trace.group])[:, : p.d].astype(np.float64)
    keys = key_levels(k[None], key_step(k[None], 3), 3)[0].astype(np.int64)
    levels = query_levels(q, p.query_bits).astype(np.int64)
    queried = Queries(p)
    for token in range(p.rows - 4 + queries):
        queried.write(token % p.rows, keys[token])
        if token >= p.rows - 4:
            queried.query(levels[token], (1, p.rows // 8, p.rows)[token % 3])
    return queried


def test_real_keys_and_queries(compiled, shipped_trace):
    queries = real(compiled.parameters, shipped_trace, 60)
    ties = 0
    for scores, rows in zip(queries.values, queries.selected, strict=True):
        ties += len(rows) < ROWS and (np.sort(scores)[-len(rows) - 1] == scores[rows].min())
    assert ties > 5, "ties decide somewhere"
    for stall in ("none", "bursts"):
        compiled.check(queries.stimulus(), stall, timed=False)


def test_cycles_of_a_selection(compiled):
    """Constant for the digital arrays; for a discharge, as far as the next score after the k-th."""
    p = compiled.parameters
    rng = np.random.default_rng(4)
    queries = Queries(p)
    for _ in range(20):
        for row in range(p.rows):  # which also gives the sense time for the addresses before
            queries.write(row, rng.integers(-4, 5, D))
        queries.query(rng.choice([-1, 1], D), 3)
    cycles = selection_cycles(compiled.check(queries.stimulus(), "none", timed=False), queries)
    if p.kind != "cell":
        assert set(cycles) == {p.array.steps + 1} == {p.array.score_limit.bit_length() + 2} == {7}
    else:
        fourth = [np.sort(scores)[-4] for scores in queries.values]
        assert cycles.tolist() == [p.array.score_limit + score + 3 for score in fourth]
        assert max(cycles) <= p.array.steps + 1 == 51


def test_a_search_is_as_long_for_any_number_of_rows():
    """11 cycles for scores of 10 bits, 12 for the paper's 1025; a discharge takes the range."""
    for rows in (2, 64, 576, 4096):
        assert DigitalArrayParameters(rows=rows, d=127).steps + 1 == 11  # -508 to 508
        assert DigitalArrayParameters(rows=rows, d=128).steps + 1 == 12
        assert CellArrayParameters(rows=rows, d=128).steps == 1026


@pytest.mark.campaign
def test_the_papers_scores_within_12_cycles():
    """Exactly k rows from the 12th cycle on, with 576 rows of d = 128."""
    rows = 576
    p = ArrayAndSenseParameters("digital", rows, 128)
    rng = np.random.default_rng(rows)
    queries = Queries(p)
    for k in (1, 64, rows - 1, rows):
        for row in range(rows):
            queries.write(row, rng.integers(-1, 2, 128))
        queries.query(rng.choice([-1, 1], 128), k)
        assert len(queries.selected[-1]) == k
    outcome = Compiled(BLOCK, p).check(queries.stimulus(), "none", timed=False)
    assert set(selection_cycles(outcome, queries)) == {12}


def test_the_golden_model_of_a_query(shipped_trace):
    """What the testbench expects is the algorithm's, on scores as it computes them."""
    queries = real(ArrayAndSenseParameters("digital", ROWS, D), shipped_trace, 12)
    for scores, rows in list(zip(queries.values, queries.selected, strict=True))[4:]:
        k = len(rows)
        assert np.array_equal(np.flatnonzero(top_k(scores, k)), rows)
        assert scores[rows].min() >= np.sort(scores)[-k]
