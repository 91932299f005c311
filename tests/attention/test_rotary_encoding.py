"""Rotary encoding: its model against float64 over all positions, both pairings, the RTL's table."""

import numpy as np
import pytest

from golden.attention.rotary_encoding import rotary_encoding, turns_of
from golden.lm.model import rope, rope_angles
from hw.attention.rotary_encoding import RotaryEncodingParameters
from hw.catalogue import find
from sim.core.design import generate
from sim.drivers.harness.session import Session
from sim.testbenches.attention.rotary_encoding import Head, stimulus_of, testbench
from tests.support.kllm.compiled import Compiled

BLOCK = find("attention.rotary_encoding")
SMALL = RotaryEncodingParameters.preset("small")
RNG = np.random.default_rng


def allowed(a: np.ndarray, b: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The stated bound: half a unit of the result, and 2^-11 (|a| + |b|)."""
    unit = np.exp2(np.maximum(np.frexp(exact)[1] - 1, -14) - 10.0)
    return unit / 2 + 2.0**-11 * (np.abs(a) + np.abs(b)).astype(np.float64)


@pytest.mark.parametrize(("base", "d"), [(1e4, 64), (1e5, 64), (1e6, 128)])
def test_errors_at_8192_positions(base, d):
    positions = np.arange(8192)
    frequency = base ** (-np.arange(0, d, 2) / d)
    a, b = (RNG(1).standard_normal((2, 8192, d // 2)) * 2.0 ** RNG(2).integers(-12, 8)).astype(
        np.float16
    )
    angle = positions[:, None] * frequency
    x, y = a.astype(np.float64), b.astype(np.float64)
    wanted = x * np.cos(angle) - y * np.sin(angle), x * np.sin(angle) + y * np.cos(angle)
    found = rotary_encoding(a, b, positions, turns_of(frequency))
    for got, exact in zip(found, wanted, strict=True):
        errors = np.abs(got.astype(np.float64) - exact) / allowed(a, b, exact)
        assert 0.3 < errors.max() <= 1


def test_position_0_turns_nothing():
    a, b = RNG(3).standard_normal((2, 32)).astype(np.float16)
    found = rotary_encoding(a, b, np.array(0), turns_of(RNG(4).random(32)))
    np.testing.assert_array_equal(found, [a, b])


def test_both_pairings():
    """Neighbours as this project's models have them, halves as most checkpoints do."""
    d, position = 64, 777
    x = RNG(5).standard_normal((1, 1, d)).astype(np.float16)
    angles = rope_angles(np.array([position]), d, 1e4)
    turns = turns_of(1e4 ** (-np.arange(0, d, 2) / d))
    neighbours = rope(x.astype(np.float32), angles)[0, 0]
    a, b = rotary_encoding(x[0, 0, ::2], x[0, 0, 1::2], np.array(position), turns)
    np.testing.assert_allclose(np.stack([a, b], axis=1).ravel(), neighbours, atol=4e-3)
    # rotate_half: x cos + (-x2, x1) sin, with cos and sin repeated for both halves.
    first, second = x[0, 0, : d // 2].astype(np.float32), x[0, 0, d // 2 :].astype(np.float32)
    cosine, sine = angles[0].real, angles[0].imag
    halves = np.append(first * cosine - second * sine, second * cosine + first * sine)
    a, b = rotary_encoding(x[0, 0, : d // 2], x[0, 0, d // 2 :], np.array(position), turns)
    np.testing.assert_allclose(np.append(a, b), halves, atol=4e-3)


def test_pairs_wait_for_the_table():
    """None is accepted before the last row; a second table counts from its first row."""
    design = generate(BLOCK, SMALL)
    rng = RNG(6)
    tables = rng.integers(0, 1 << 32, (2, SMALL.pairs))
    heads = [Head(5, *rng.standard_normal((2, 4)).astype(np.float16))]
    session = Session(design)
    first = stimulus_of(SMALL, tables[0], heads, rng, [])
    for rows in (first.inputs["turns"][:-1], first.inputs["turns"][:0]):
        early = session.step({**first.inputs, "turns": rows}, {"o": 1})
        assert early.failure is not None and len(early.outputs["o"]) == 0
        session.close()
        session = Session(design)
    for table in tables:
        stimulus = stimulus_of(SMALL, None, heads, rng, [], model=table)
        loaded = stimulus_of(SMALL, table, heads, rng, []).inputs["turns"]
        session.step({"turns": loaded}, {})
        outcome = session.step(stimulus.inputs, {"o": len(stimulus.outputs["o"])})
        np.testing.assert_array_equal(outcome.outputs["o"], stimulus.outputs["o"])
        assert outcome.cycles == stimulus.cycles
    session.close()


@pytest.mark.campaign
def test_another_size(shipped_trace):
    p = RotaryEncodingParameters(12, 3, 65536)
    compiled = Compiled(BLOCK, p)
    for trace, seed in ((None, 1), (None, 2), (shipped_trace, 1)):
        compiled.check_all(testbench.stimulus(p, trace, 40, seed))
