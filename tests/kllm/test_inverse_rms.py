"""1 / RMS: its model against float64 and exact fractions, every table entry through the RTL."""

from fractions import Fraction

import numpy as np
import pytest

from golden.kllm.inverse_rms import inverse_rms
from hw.catalogue import find
from hw.kllm.inverse_rms import InverseRmsParameters
from sim.testbenches.kllm.inverse_rms import build, random_sums, real_sums, testbench
from tests.support.arith.functions import ulp_errors
from tests.support.kllm.compiled import Compiled

BLOCK = find("kllm.inverse_rms")


def only(eps: np.ndarray) -> dict[str, np.ndarray]:
    """Operands whose mean square is `eps`."""
    eps = eps.astype(np.float32)
    zeros = np.zeros_like(eps)
    return {"s": zeros, "o": zeros, "s_a": zeros.astype(np.float16), "inverse_k": zeros, "eps": eps}


def table_operands(exponents: range) -> np.ndarray:
    """Both ends of each of the table's cells, at each exponent."""
    fraction = np.arange(1 << 12)[:, None] << 11 | np.array([0, 0x7FF])
    bits = np.array(exponents)[:, None] + 127 << 23 | fraction.ravel()
    return bits.astype(np.uint32).view(np.float32).ravel()


def test_error_of_the_root(capsys):
    """At the ends of every cell the error is largest: the result is constant in between."""
    m = table_operands(range(-32, 33))
    r, invalid, saturated = inverse_rms(**only(m))
    exact = 1 / np.sqrt(m.astype(np.float64))
    inside = exact < 65504
    beyond = exact > 65504 + 0.767 * 32
    assert not saturated[inside].any() and saturated[beyond].all() and beyond.any()
    errors = ulp_errors(r[inside], exact[inside])
    with capsys.disabled():
        print(f"\nat most {errors.max():.4f} ulp over {inside.sum()} operands")
    assert not invalid.any()
    assert errors.max() <= 0.767
    assert len(errors) > 500_000


def test_steps_are_rounded_as_stated():
    """The three steps with fractions, each rounded to 24 bits."""

    def rounded(value: Fraction) -> Fraction:
        if value == 0:
            return value
        exponent = 0
        while abs(value) / Fraction(2) ** exponent >= 1 << 24:
            exponent += 1
        while abs(value) / Fraction(2) ** exponent < 1 << 23:
            exponent -= 1
        return Fraction(round(value / Fraction(2) ** exponent)) * Fraction(2) ** exponent

    rng = np.random.default_rng(3)
    n = 500
    s, o, inverse_k, eps = (
        (rng.random(n) * 2.0 ** rng.integers(-8, 8, n)).astype(np.float32) for _ in range(4)
    )
    s_a = (rng.random(n) * 8).astype(np.float16)
    r, *_ = inverse_rms(s, o, s_a, inverse_k, eps)
    means = []
    for v in zip(s_a, s, o, inverse_k, eps, strict=True):
        a, s_, o_, k, e = (Fraction(float(x)) for x in v)
        means.append(float(rounded(rounded(rounded(a * a) * s_ + o_) * k + e)))
    again, *_ = inverse_rms(**only(np.array(means)))
    assert np.array_equal(r, again)
    assert len(set(r.tolist())) > 300


def test_real_vectors(shipped_trace, capsys):
    sums, _ = real_sums(shipped_trace, 768)
    r, invalid, saturated = inverse_rms(**sums)
    wide = {name: value.astype(np.float64) for name, value in sums.items()}
    square = (wide["s_a"] ** 2 * wide["s"] + wide["o"]) * wide["inverse_k"] + wide["eps"]
    errors = ulp_errors(r, 1 / np.sqrt(square))
    with capsys.disabled():
        print(f"\n{len(r)} real vectors: at most {errors.max():.4f} ulp")
    assert errors.max() < 0.83
    assert not invalid.any() and not saturated.any()


def test_vectors_of_any_size_that_fp16_has():
    """From the smallest operands to the largest, m is in FP32's range."""
    for s_a in (2.0**-24, 65504.0):
        one = np.array([1], np.float32)
        r, invalid, saturated = inverse_rms(
            one * 4096, 0 * one, one.astype(np.float16) * np.float16(s_a), one / 4096, 0 * one
        )
        assert not invalid[0]
        assert saturated[0] == (s_a < 1)
        assert abs(float(r[0]) - min(65504, 1 / s_a)) <= 2.0**-24


def test_errors_are_flagged():
    m = np.array([0, -0.0, -1, np.inf, -np.inf, np.nan, 1e-30, 2.0**-32], np.float32)
    r, invalid, saturated = inverse_rms(**only(m))
    assert invalid.tolist() == [False, False, True, True, True, True, False, False]
    assert saturated.tolist() == [True, True, False, False, False, False, True, True]
    assert (r[saturated] == 65504).all()
    assert (r.view(np.uint16)[invalid] == 0x7E00).all()


@pytest.mark.campaign
@pytest.mark.parametrize("stages", [2, 4])
def test_other_numbers_of_stages(stages):
    """Numbers of stages without a preset; every table entry with one of them."""
    p = InverseRmsParameters(stages)
    compiled = Compiled(BLOCK, p)
    stimuli = [build(p, random_sums(3000, np.random.default_rng(stages)), [])]
    if stages == 2:
        stimuli.append(build(p, only(table_operands(range(-3, 3))), []))
    for stimulus in stimuli:
        compiled.check_all(stimulus)
    random = testbench.stimulus(p, None, 3000, seed=stages)
    flags = random.outputs["o"][:, 0] >> 16
    assert (flags & 1).sum() > 100 and (flags & 2).sum() > 100
