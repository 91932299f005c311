"""The hardware's formats and the golden models' dtypes are the same, by ml_dtypes' own figures."""

import warnings

import ml_dtypes
import numpy as np
import pytest

from golden.arith import formats
from hw.arith.float_format import FORMATS, FP8_E4M3, FloatFormat, find_format
from hw.parameters import ParameterError


def test_the_same_names():
    assert list(FORMATS) == list(formats.DTYPES)
    for name in FORMATS:
        assert find_format(name) is FORMATS[name]
    with pytest.raises(ParameterError, match="format must be one of fp16, .* not 'fp15'"):
        find_format("fp15")


@pytest.mark.parametrize("name", FORMATS)
def test_widths_limits_and_specials(name):
    own, dtype = FORMATS[name], formats.DTYPES[name]
    info = ml_dtypes.finfo(dtype)
    assert own.width == info.bits == 8 * formats.bits_dtype(dtype).itemsize
    assert (own.mantissa, own.precision) == (info.nmant, info.nmant + 1)
    assert 1 - own.bias == info.minexp
    bits = {
        "largest": np.array(info.max, dtype),
        "overflow": np.array(np.inf if own.infinities else np.nan, dtype),
    }
    for limit, value in bits.items():
        assert getattr(own, limit) == formats.to_bits(value), limit
    assert own.quiet_nan == formats.quiet_nan(dtype)
    assert own.overflow == own.largest + 1
    if own.infinities:
        assert own.infinity == own.overflow


def test_no_infinity_where_there_is_none():
    with pytest.raises(ParameterError, match="format must have infinities"):
        _ = FP8_E4M3.infinity
    assert FloatFormat(4, 3).infinity == 0x78


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "fp32"])
def test_every_bit_pattern(name):
    width = FORMATS[name].width
    bits = np.arange(1 << width)
    values = formats.from_bits(bits, name)
    np.testing.assert_array_equal(formats.to_bits(values), bits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wide = values.astype(np.float64)
    nan = np.isnan(wide)
    assert np.count_nonzero(nan) > 0
    np.testing.assert_array_equal(formats.is_nan(values), nan)
    kept = formats.to_bits(formats.canonical(values))
    np.testing.assert_array_equal(kept, np.where(nan, FORMATS[name].quiet_nan, bits))
    flushed = formats.to_bits(formats.flush(values))
    small = (np.abs(wide) < float(ml_dtypes.finfo(values.dtype).smallest_normal)) & (wide != 0)
    assert np.count_nonzero(small) == 2 * ((1 << FORMATS[name].mantissa) - 1)
    sign = bits & 1 << (width - 1)
    np.testing.assert_array_equal(flushed, np.where(small, sign, bits))
