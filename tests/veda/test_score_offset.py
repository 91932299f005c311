"""A common offset of a head's scores changes no probability, and little in the core's results.

The first finite score is subtracted before scores are rounded to FP16, so errors grow with the
scores' spread, and with their offset only by the roundings of FP32 sums.
"""

import numpy as np
import pytest

from golden.veda.veda_core import VedaCore
from golden.veda.voting_engine import weight

D, ROWS = 64, 96
OFFSETS = {
    0: (0, 0),
    64: (8, 8),
    256: (16, 16),
    512: (16, 32),
    -512: (16, -32),
    4096: (64, 64),
    1 << 15: (256, 128),
    1 << 20: (1024, 1024),  # beyond FP16's range
}
"""The element of q, and that of all rows of k, whose product is the offset."""


def head(offset: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``float16 q [d], k, v [rows, d]``."""
    rng = np.random.default_rng(seed)
    q = (rng.standard_normal(D) * 2 / np.sqrt(D)).astype(np.float16)
    k, v = rng.standard_normal((2, ROWS, D)).astype(np.float16)
    q[0], k[:, 0] = OFFSETS[offset]
    return q, k, v


def attention(q, k, v) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, probabilities and results in float64."""
    s = k.astype(np.float64) @ q.astype(np.float64)
    e = np.exp(s - s.max())
    p = e / e.sum()
    return s, p, p @ v.astype(np.float64)


def core_result(q, k, v) -> np.ndarray:
    """The bit-exact model's, with all rows."""
    core = VedaCore(2 * ROWS)
    command = {"a": weight(1.0), "b": weight(0.2), "vote_cast": False, "evict": False}
    for row in range(ROWS):
        found = core.step(q[None], k[row][None], v[row][None], **command)
    assert not found.invalid.any()
    return found.o[0].astype(np.float64)


def bound(q, k, v) -> np.ndarray:
    """Of the error of each element of o; see "Scores" in docs/veda.md."""
    s, p, o = attention(q, k, v)
    terms = np.abs(k.astype(np.float64)) @ np.abs(q.astype(np.float64))
    sums = np.log2(D) * 2.0**-24 * terms
    score = (sums + sums[0] + (2.0**-11 + 2.0**-23) * np.abs(s - s[0]) + 2.0**-25).max()
    size = np.abs(v.astype(np.float64))
    probabilities = np.expm1(2 * score) + 1.7 * 2.0**-10
    added = 2.0**-24 * (ROWS / 2 + 2) * (p @ size)
    last = 2.0**-11 * np.abs(o) + 2.0**-25
    return probabilities * (p @ size) + 1.7 * 2.0**-24 * size.sum(axis=0) + added + last


@pytest.mark.parametrize("offset", OFFSETS)
def test_error_is_bounded_at_any_offset(offset):
    relative = []
    for seed in range(3):
        operands = head(offset, seed)
        *_, want = attention(*operands)
        error = np.abs(core_result(*operands) - want)
        assert (error <= bound(*operands)).all()
        relative.append(error.mean() / np.abs(want).mean())
    print(f"offset {offset}: mean error {np.mean(relative):.2%} of o")
    # At 2^15 and 2^20 the sums' own roundings are 2^-9 and 2^-4.
    most = {1 << 15: 0.01, 1 << 20: 0.2}.get(offset, 0.002)
    assert np.mean(relative) < most
