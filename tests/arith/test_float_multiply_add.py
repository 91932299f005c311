"""Fused multiply-add: unit and bit-exact model, all FP8 operands, independent references."""

import ctypes
import ctypes.util
import functools
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from golden.arith.float_multiply_add import float_multiply_add
from golden.arith.formats import DTYPES, from_bits, is_nan, to_bits
from hw.arith.float_format import FORMATS
from hw.arith.float_multiply_add import FloatMultiplyAdd, FloatMultiplyAddParameters
from sim.testbenches.arith.float_multiply_add import testbench
from tests.support.arith.exact import decode, encode
from tests.support.arith.netlist import Netlist
from tests.support.arith.pairs import differences, registers_agree
from tests.support.campaign import suite_takes

SEED = 1
SAME = [(name, "") for name in FORMATS]
MIXED = [
    ("fp16", "fp32"),
    ("fp8_e4m3", "fp16"),
    ("fp16", "fp8_e4m3"),
    # Further ones, whose units are tested in the campaign.
    ("bf16", "fp32"),
    ("fp8_e4m3", "fp32"),
    ("fp8_e5m2", "fp16"),
    ("fp8_e5m2", "bf16"),
]
FLUSHED = [("fp16", ""), ("fp8_e4m3", ""), ("fp16", "fp32")]


def drawn(format, sum_format="", count=100_000, flush=False, seed=SEED):
    """Random operands and the bit-exact model's results."""
    parameters = FloatMultiplyAddParameters(format, flush, sum_format=sum_format)
    operands, _ = testbench.draw(parameters, None, count, seed)
    return operands, testbench._golden(parameters, **operands)


@pytest.fixture(scope="module")
def unit():
    """A function that builds units, each only once."""

    @functools.cache
    def build(format, sum_format="", multiplier="columns", **settings):
        parameters = FloatMultiplyAddParameters(format, sum_format=sum_format, **settings)
        return Netlist(FloatMultiplyAdd(parameters), multiplier=multiplier)

    return build


@pytest.mark.parametrize(
    "format, sum_format, flush",
    [(*formats, False) for formats in SAME + MIXED[:3]]
    + [pytest.param(*formats, False, marks=pytest.mark.campaign) for formats in MIXED[3:]]
    + [(*formats, True) for formats in FLUSHED],
)
def test_unit_is_its_golden_model(format, sum_format, flush, unit):
    net = unit(format, sum_format, flush_subnormals=flush)
    count = 1_000_000 if (format, sum_format, flush) == ("fp16", "", False) else 50_000
    operands, expected = drawn(format, sum_format, count, flush)
    assert len(expected["o"]) == count
    assert differences(net, operands, expected) == 0


@pytest.mark.parametrize(
    "format, sum_format, flush",
    suite_takes(
        [("fp16", "", True), ("fp16", "fp32", False)],
        [(*formats, False) for formats in SAME + MIXED] + [(*formats, True) for formats in FLUSHED],
    ),
)
def test_products_on_multipliers(format, sum_format, flush, unit):
    net = unit(format, sum_format, "dsp", flush_subnormals=flush)
    operands, expected = drawn(format, sum_format, 200_000, flush)
    assert differences(net, operands, expected) == 0


@pytest.mark.parametrize(
    "format, multiplier",
    [("fp8_e4m3", "columns"), ("fp8_e5m2", "columns")]
    + [pytest.param(f, "dsp", marks=pytest.mark.campaign) for f in ("fp8_e4m3", "fp8_e5m2")],
)
def test_all_operands(format, multiplier, unit):
    net = unit(format, "", multiplier, flush_subnormals=False)
    compared = 0
    for part in range(64):
        n = np.arange(part << 18, (part + 1) << 18)
        a, b, c = (from_bits(n >> shift & 255, format) for shift in (16, 8, 0))
        expected = {"o": float_multiply_add(a, b, c)}
        assert differences(net, {"a": a, "b": b, "c": c}, expected) == 0, f"part {part}"
        compared += len(n)
    assert compared == 1 << 24


@pytest.mark.parametrize(
    "format, sum_format, stages",
    [*(("fp16", "", stages) for stages in range(1, 5)), ("fp16", "fp32", 4)],
)
def test_registers(format, sum_format, stages, unit):
    net = unit(format, sum_format, stages=stages)
    assert net.flipflops > 0
    operands, expected = drawn(format, sum_format, 20_000)
    registers_agree(net, operands, expected, stages, seed=SEED)


def test_random_operands_meet_every_case():
    operands, expected = drawn("fp16", count=1_000_000)
    a, b, c = (operands[port].astype(np.float64) for port in "abc")
    o = expected["o"].astype(np.float64)
    with np.errstate(all="ignore"):
        product, exact = a * b, a * b + c
        finite = np.isfinite(exact) & np.isfinite(o)
        ratio = np.abs(c) / np.abs(product)
        place = np.ldexp(1.0, np.maximum(np.frexp(exact)[1] - 1, -14) - 10)
        opposite = (product < 0) != (c < 0)
        cases = {
            "addend far above": finite & (ratio > 2**13) & (product != 0),
            "addend far below": finite & (ratio < 2**-13) & (c != 0),
            "overlapping": finite & (ratio < 2**11) & (ratio > 2**-11),
            "cancelling": opposite & (np.abs(exact) < np.abs(c) * 2**-9) & (exact != 0),
            "cancelled": opposite & (exact == 0) & (c != 0),
            "tie": finite & (np.abs(exact / place % 1) == 0.5),
            "subnormal": finite & (o != 0) & (np.abs(o) < 2**-14),
            "underflow": finite & (o == 0) & (exact != 0),
            "becoming normal": finite & (np.abs(exact) < 2**-14) & (np.abs(o) == 2**-14),
            "overflow": np.isfinite(exact) & np.isinf(o),
            "subnormal factor": finite & (np.abs(a) < 2**-14) & (a != 0) & (o != c),
            "nan": is_nan(expected["o"]),
        }
    counts = {name: int(np.count_nonzero(case)) for name, case in cases.items()}
    print(counts)
    assert min(counts.values()) >= 100, counts


@pytest.mark.parametrize("format, sum_format", SAME + MIXED)
def test_golden_model_by_the_definition(format, sum_format):
    f, s = FORMATS[format], FORMATS[sum_format or format]
    operands, expected = drawn(format, sum_format, 4_000)
    worst, compared = Fraction(0), 0
    ports = (to_bits(operands[port]).tolist() for port in "abc")
    for *bits, o in zip(*ports, to_bits(expected["o"]).tolist(), strict=True):
        values = [decode(n, fmt) for n, fmt in zip(bits, (f, f, s), strict=True)]
        if any(isinstance(value, str) for value in values):
            continue
        a, b, c = values
        signs = [n >> fmt.width - 1 for n, fmt in zip(bits, (f, f, s), strict=True)]
        negative_zero = bool((signs[0] ^ signs[1]) & signs[2])
        assert o == encode(a * b + c, negative_zero, s, saturate=False), [hex(n) for n in bits]
        result = decode(o, s)
        if not isinstance(result, str):
            place = max((o >> s.mantissa) % (1 << s.exponent), 1) - s.bias - s.mantissa
            worst = max(worst, abs(result - a * b - c) / Fraction(2) ** place)
        compared += 1
    print(f"{format} {sum_format}: at most {float(worst)} ulp in {compared} operations")
    assert compared > 2_000 and worst <= Fraction(1, 2)


def test_golden_model_by_the_c_library():
    fmaf = ctypes.CDLL(ctypes.util.find_library("m")).fmaf
    fmaf.restype, fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    operands, expected = drawn("fp32", count=50_000)
    reference = [fmaf(*x) for x in zip(*(operands[port].tolist() for port in "abc"), strict=True)]
    with np.errstate(over="ignore"):
        reference = np.array(reference).astype(np.float32)
    nan = np.isnan(reference)
    np.testing.assert_array_equal(nan, is_nan(expected["o"]))
    np.testing.assert_array_equal(to_bits(reference)[~nan], to_bits(expected["o"])[~nan])
    assert np.count_nonzero(~nan) > 30_000


@pytest.mark.parametrize("format, kind", [("fp16", "f16"), ("fp32", "f32")])
def test_golden_model_by_softfloat(format, kind):
    softfloat = pytest.importorskip("softfloatpy")
    number = {"f16": softfloat.Float16, "f32": softfloat.Float32}[kind]
    operands, expected = drawn(format, count=20_000)
    size, compared = DTYPES[format].itemsize, 0
    ports = (to_bits(operands[port]).tolist() for port in "abc")
    for *bits, o in zip(*ports, to_bits(expected["o"]).tolist(), strict=True):
        numbers = (number.from_bytes(n.to_bytes(size, "big")) for n in bits)
        reference = getattr(softfloat, f"{kind}_mul_add")(*numbers)
        reference = int.from_bytes(reference.to_bytes(), "big")
        if decode(reference, FORMATS[format]) == "nan":
            reference = FORMATS[format].quiet_nan
        assert o == reference, [hex(n) for n in bits]
        compared += 1
    assert compared == 20_000


@pytest.mark.parametrize(
    "a, b, c, flush, expected",
    [
        (0x3C00, 0x3C00, 0xBC00, False, 0x0000),  # 1 * 1 - 1 = +0
        (0x8000, 0x3C00, 0x8000, False, 0x8000),  # -0 * 1 + -0 = -0
        (0x8000, 0x3C00, 0x0000, False, 0x0000),  # -0 * 1 + +0 = +0
        (0x8001, 0x0001, 0x0000, False, 0x8000),  # underflows to -0
        (0x7C00, 0x0000, 0x7C00, False, 0x7E00),  # infinity * 0
        (0x7C00, 0x3C00, 0xFC00, False, 0x7E00),  # infinity - infinity
        (0x7BFF, 0x7BFF, 0xFC00, False, 0xFC00),  # a finite product, -infinity
        (0x7BFF, 0x4000, 0xFBFF, False, 0x7BFF),  # no overflow in between
        (0x03FF, 0x6400, 0x0001, True, 0x0000),  # subnormal operands are zeros
        (0x8400, 0x3800, 0x0000, True, 0x8000),  # a subnormal result
        (0x0401, 0x3BFF, 0x0000, True, 0x0400),  # rounds up to the smallest normal number
    ],
)
def test_zeros_specials_and_flushed_numbers(a, b, c, flush, expected, unit):
    operands = {p: from_bits(np.array([n]), "fp16") for p, n in zip("abc", (a, b, c), strict=True)}
    golden = float_multiply_add(**operands, flush_subnormals=flush)
    assert to_bits(golden)[0] == expected
    net = unit("fp16", "", flush_subnormals=flush)
    assert net(a=np.array([a]), b=np.array([b]), c=np.array([c]))["o"][0] == expected


def test_the_sum_has_the_operands_format_unless_given():
    same = FloatMultiplyAddParameters("bf16")
    assert same.float_sum_format == same.float_format == FORMATS["bf16"]
    assert ml_dtypes.finfo(DTYPES["bf16"]).bits == same.float_format.width
