"""Codes of rows against the published figures of their quantiser and against loops."""

import itertools

import numpy as np
import pytest

from golden.algorithms.tsuru.float_levels import float_levels
from golden.algorithms.tsuru.gaussian_levels import gaussian_levels, lost_share, nearest
from golden.algorithms.tsuru.row_codes import (
    SATURATED,
    KeyConstants,
    channel_rows,
    rotated_bytes,
    rotated_rows,
)

# J. Max, "Quantizing for Minimum Distortion", 1960, table I.
MAX = {
    1: ([0.7980], 0.3634),
    2: ([0.4528, 1.510], 0.1175),
    3: ([0.2451, 0.7560, 1.344, 2.152], 0.03454),
}


@pytest.mark.parametrize("bits", MAX)
def test_levels_are_those_of_max(bits):
    upper, lost = MAX[bits]
    np.testing.assert_allclose(gaussian_levels(bits)[2 ** (bits - 1) :], upper, atol=2e-3)
    np.testing.assert_allclose(gaussian_levels(bits), -gaussian_levels(bits)[::-1])
    assert lost_share(bits) == pytest.approx(lost, rel=2e-3)


@pytest.mark.parametrize("bits", [2, 4, 5, 6, 7, 8])
def test_small_floats_lose_little_more(bits):
    levels = float_levels(bits)
    x = np.linspace(-6, 6, 5001)
    error = np.average(np.square(x - nearest(x, levels)), weights=np.exp(-np.square(x) / 2))
    # What docs/algorithms.md says, in dB.
    lost = 10 * np.log10(error / lost_share(bits))
    assert 0 < lost < (0.1 if bits == 2 else 1.4)
    assert len(levels) == 2**bits - (bits > 2)  # 0 has both signs
    np.testing.assert_array_equal(levels, -levels[::-1])


def test_more_bits_lose_a_quarter_each():
    shares = [lost_share(bits) for bits in range(9)]
    assert shares[0] == pytest.approx(1)
    assert all(0.2 < b / a < 0.4 for a, b in itertools.pairwise(shares))


def test_nearest_is_the_nearest():
    x = np.random.default_rng(1).normal(size=500)
    levels = gaussian_levels(3)
    found = [min(levels, key=lambda level, number=number: abs(level - number)) for number in x]
    np.testing.assert_array_equal(nearest(x, levels), found)


def sylvester(d):
    return np.array([[1 - 2 * ((i & j).bit_count() % 2) for j in range(d)] for i in range(d)])


@pytest.mark.parametrize("bits", [1, 2, 6])
def test_rotated_rows(bits):
    x = np.random.default_rng(2).normal(size=(2, 5, 16)) * [[[1.0]], [[300.0]]]
    x[0, 3] = 0
    x[1, 2, 4:] = 0  # few elements, which the rotation spreads
    matrix = sylvester(16) / 4
    for row, found in zip(x.reshape(-1, 16), rotated_rows(x, bits).reshape(-1, 16), strict=True):
        turned = matrix @ row
        scale = np.sqrt(np.mean(turned**2))
        if scale == 0:
            np.testing.assert_array_equal(found, 0)
            continue
        # Three bits behind the leading one.
        unit = 2.0 ** (np.floor(np.log2(scale)) - 3)
        scale = round(scale / unit) * unit
        codes = [min(gaussian_levels(bits), key=lambda c, t=t: abs(c - t / scale)) for t in turned]
        np.testing.assert_allclose(found, matrix.T @ np.array(codes) * scale, atol=1e-9 * scale)
    assert rotated_bytes(16, bits) == 2 * bits + 1


def test_the_error_of_rotated_rows_is_the_levels():
    x = np.random.default_rng(3).normal(size=(1, 400, 64)).astype(np.float32)
    x[..., 7] *= 20  # an outlying channel
    for bits in (2, 6):
        found = rotated_rows(x, bits)
        assert found.dtype == np.float32
        share = np.square(found - x).sum() / np.square(x).sum()
        assert share == pytest.approx(lost_share(bits), rel=0.25)


def test_bits_of_channels_lose_least():
    rng = np.random.default_rng(4)
    power, deviation = rng.gamma(0.5, size=(2, 2, 4)) + 1e-3
    constants = KeyConstants(np.zeros((2, 4)), deviation, power)
    for bits in (1, 2):
        widths = constants.widths(bits)
        assert (widths.sum(axis=1) == 4 * bits).all()
        for row, weights in zip(widths, power * deviation**2, strict=True):
            loss = {
                some: sum(w * lost_share(n) for w, n in zip(weights, some, strict=True))
                for some in itertools.product(range(7), repeat=4)
                if sum(some) == 4 * bits
            }
            assert loss[tuple(row)] == pytest.approx(min(loss.values()))


def test_rows_by_channel():
    rng = np.random.default_rng(5)
    widths = np.array([[0, 1, 3, 0], [2, 2, 0, 0]])
    deviation = np.array([[1.0, 0.5, 4.0, 2.0], [1.0, 3.0, 1.0, 0.0]])
    x = rng.normal(size=(2, 50, 4)) * deviation[:, None]
    x[0, 7, 2] = 1.01 * SATURATED * 4.0
    x[0, 8, 0] = 90  # a channel without a code
    found, saturated = channel_rows(x, widths, deviation)
    for kv, row, channel in np.ndindex(x.shape):
        levels = gaussian_levels(int(widths[kv, channel])) * deviation[kv, channel]
        expected = min(levels, key=lambda level: abs(level - x[kv, row, channel]))
        assert found[kv, row, channel] == pytest.approx(expected)
    beyond = np.abs(x) > SATURATED * deviation[:, None]
    np.testing.assert_array_equal(saturated, (beyond & (widths > 0)[:, None]).any(axis=-1))
    assert saturated[0, 7] and not saturated[0, 8]
