"""Formats of rows: what hardware decodes is what the model says, and words hold what they must."""

import numpy as np
import pytest
from amaranth.hdl import Module, Signal, signed
from amaranth.sim import Simulator

from golden.tsuru import row_format as model
from hw.parameters import ParameterError
from hw.tsuru import row_format as hardware
from hw.tsuru.row_format import RowFormat, fine_to_float, scale_to_float, search_to_integer

FINITE = range(model.LARGEST_SCALE + 1)


def decoded(fraction: int, scales: list[int]) -> np.ndarray:
    """Bits [scale, code] of all fine codes, from the combinational function."""
    m, code, scale = Module(), Signal(fraction + 3), Signal(hardware.SCALE_BITS)
    value = fine_to_float(m, code, scale)
    found = np.zeros((len(scales), 1 << len(code)), np.uint16)

    async def drive(ctx):
        for row, number in enumerate(scales):
            ctx.set(scale, number)
            for column in range(found.shape[1]):
                ctx.set(code, column)
                found[row, column] = ctx.get(value)

    simulator = Simulator(m)
    simulator.add_testbench(drive)
    simulator.run()
    return found


def expected(fraction: int, scales: list[int]) -> np.ndarray:
    codes = np.arange(1 << fraction + 3)
    rows = np.broadcast_to(codes, (len(scales), len(codes)))
    return model.fine_values(rows, np.array(scales, np.uint8), fraction).view(np.uint16)


@pytest.mark.parametrize("fraction", [1, 4, 6])
def test_fine_codes_are_decoded_exactly(fraction):
    # Near the least and the largest scale, where numbers are subnormal or nearly too large.
    scales = [0, 7, *range(8, 24, 3), 100, 123, 231, 255]
    np.testing.assert_array_equal(decoded(fraction, scales), expected(fraction, scales))


@pytest.mark.campaign
@pytest.mark.parametrize("fraction", range(1, 7))
def test_all_fine_codes_of_all_scales(fraction):
    scales = [*FINITE, model.NOT_FINITE]
    np.testing.assert_array_equal(decoded(fraction, scales), expected(fraction, scales))


def test_scales_and_search_codes():
    m, scale, code = Module(), Signal(8), Signal(2)
    value, number = Signal(16), Signal(signed(3))
    m.d.comb += [value.eq(scale_to_float(scale)), number.eq(search_to_integer(code))]
    found, numbers = [], []

    async def drive(ctx):
        for bits in FINITE:
            ctx.set(scale, bits)
            found.append(ctx.get(value))
        for bits in range(4):
            ctx.set(code, bits)
            numbers.append(ctx.get(number))

    simulator = Simulator(m)
    simulator.add_testbench(drive)
    simulator.run()
    scales = np.array(FINITE, np.uint8)
    assert found == model.scale_values(scales).view(np.uint16).tolist()
    assert numbers == model.search_values(np.arange(4)).tolist() == [1, 3, -1, -3]


@pytest.mark.parametrize("fraction", range(1, 7))
def test_what_codes_are_worth(fraction):
    """The formulas of docs/tsuru.md, in float64; FP16 has all of their bits."""
    for number in (8, 9, 15, 100, 123, 231):
        s = (1 + number % 8 / 8) * 2.0 ** (number // 8 - 15)
        assert model.scale_values(np.array(number, np.uint8)) == s
        for code in range(1 << fraction + 3):
            f, e = code % (1 << fraction) / 2**fraction, code >> fraction & 3
            value = (1 + f) * 2.0 ** (e - 2) if e else f / 2
            found = model.fine_values(np.array([code]), np.array(number, np.uint8), fraction)[0]
            assert abs(float(found)) == value * s
            assert np.signbit(found) == code >> fraction + 2
    assert model.scale_values(np.array([0, 7], np.uint8)).tolist() == [0, 0]
    assert np.isnan(model.scale_values(np.array(255, np.uint8)))


@pytest.mark.parametrize("d", [8, 64, 128])
def test_words(d):
    form = RowFormat(d=d)
    assert form.word_bits == 16 * d == form.scales_layout.size == form.search_layout.size
    assert form.row_layout.size == 14 * d + 16 <= form.word_bits
    assert form.search_words == 1 + d // 4
    # The rows whose scales fill a word are those whose codes fill the others.
    assert form.search_rows == 2 * d == (form.search_words - 1) * hardware.SEARCH_ROWS


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"d": 12}, "d must be a power of two from 4, not 12"),
        ({"key_fraction": 0}, "key_fraction must be between 1 and 6, not 0"),
        ({"value_fraction": 7}, "value_fraction must be between 1 and 6, not 7"),
        ({"d": 8, "key_fraction": 5}, "K and V must fit 128 bits, not 136"),
    ],
)
def test_refused(settings, message):
    with pytest.raises(ParameterError, match=f"^{message}$"):
        RowFormat(**settings)
