"""All pairs of 16-bit operands: every unit, faults that the comparison finds, its reference."""

import numpy as np
import pytest
from amaranth.hdl import Const

from golden.arith.formats import DTYPES, canonical, flush, from_bits
from hw.arith import float_compare
from hw.arith.float_add import FloatAdd, FloatAddParameters
from hw.arith.float_compare import FloatCompare, FloatCompareParameters
from hw.arith.float_max import FloatMax, FloatMaxParameters
from hw.arith.float_min import FloatMin, FloatMinParameters
from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
from hw.catalogue import find
from sim.checks.exhaustive import bit_slices, exhaustive
from sim.checks.exhaustive.exhaustive import (
    FORMATS,
    OPERATIONS,
    VALUES,
    Exhaustive,
    portable_fp16,
    reference,
)
from sim.drivers.run import load_testbench
from sim.testbenches.arith.operands import corners
from tests.support.arith.pairs import bits, pairs
from tests.support.campaign import suite_takes

UNITS = pytest.mark.parametrize("name", OPERATIONS)
FORMAT = pytest.mark.parametrize("format", FORMATS)
FLUSH = pytest.mark.parametrize("flushing", [False, True], ids=["full", "flush"])


def some(format: str, count: int = 2048) -> np.ndarray:
    """First operands: corners, among them subnormals of every size, and random ones."""
    rng = np.random.default_rng(1)
    edges = rng.permutation(bits(corners(DTYPES[format])))[: count // 2]
    subnormals = 1 << np.arange(10)
    random = rng.integers(0, VALUES, count - len(edges) - len(subnormals))
    return np.concatenate([edges, subnormals, random])


ALL = [(name, format) for name in OPERATIONS for format in FORMATS]
WHOLE = (("arith.float_multiply", "fp16"),)
"""What the suite runs all pairs of; of the others it runs 2048 first operands and every second."""


@pytest.mark.parametrize(("name", "format"), suite_takes(WHOLE, ALL))
def test_all_pairs(name, format):
    outcome = Exhaustive(name, format).run()
    assert outcome.difference is None, outcome.difference
    assert outcome.compared == len(OPERATIONS[name]) << 32


@pytest.mark.parametrize(("name", "format"), [case for case in ALL if case not in WHOLE])
def test_some_pairs(name, format):
    outcome = Exhaustive(name, format).run(some(format))
    assert outcome.difference is None, outcome.difference
    assert outcome.compared == 2048 * len(OPERATIONS[name]) << 16


FLUSHING = ("arith.float_add", "fp16"), ("arith.float_multiply", "bf16")


@pytest.mark.parametrize(("name", "format"), suite_takes(FLUSHING, ALL))
def test_flushing_units(name, format):
    outcome = Exhaustive(name, format, flush=True).run(some(format))
    assert outcome.difference is None, outcome.difference
    assert outcome.compared == 2048 * len(OPERATIONS[name]) << 16


@pytest.mark.campaign
@FORMAT
@UNITS
def test_all_pairs_of_flushing_units(name, format):
    outcome = Exhaustive(name, format, flush=True).run()
    assert outcome.difference is None, outcome.difference
    assert outcome.compared == len(OPERATIONS[name]) << 32


class SumWithoutSticky(FloatAdd):
    def _align(self, *arguments):
        aligned, _ = super()._align(*arguments)
        return aligned, Const(0)


class ProductWithoutSticky(FloatMultiply):
    def _window(self, v, window, sticky, ones):
        return super()._window(v, window, Const(0), ones)


@FORMAT
def test_a_product_without_sticky_bit_is_found(format):
    """It is wrong about a few products, which seem to be ties."""
    unit = ProductWithoutSticky(FloatMultiplyParameters(format))
    found = Exhaustive("arith.float_multiply", format, unit=unit).run(some(format)).difference
    a, b = from_bits(np.array([found.a, found.b]), format).astype(np.float64)
    down, up = from_bits(np.array([found.got, found.expected]), format).astype(np.float64)
    assert abs(up - a * b) < abs(down - a * b)
    assert f"a * b, a 0x{found.a:04x}" in str(found)


def less_or_greater(m, a, b):
    return a > b


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("arith.float_add", lambda: SumWithoutSticky(FloatAddParameters())),
        ("arith.float_compare", lambda: FloatCompare(FloatCompareParameters())),
        ("arith.float_max", lambda: FloatMin(FloatMinParameters())),
        ("arith.float_min", lambda: FloatMax(FloatMaxParameters())),
    ],
)
def test_an_injected_fault_is_found(name, unit, monkeypatch):
    monkeypatch.setattr(float_compare, "less_than", less_or_greater)
    assert Exhaustive(name, "fp16", unit=unit()).run(some("fp16")).difference is not None


@pytest.mark.parametrize("wrong", [(0x0000, 0x0000), (0x3C01, 0xFFFF), (0xFFFF, 0x8421)])
def test_a_single_wrong_operation_is_found(wrong):
    class Wrong(FloatMax):
        def elaborate(self, platform):
            m = super().elaborate(platform)
            with m.If((self.a == wrong[0]) & (self.b == wrong[1])):
                m.d.comb += self.o.eq(0x1234)
            return m

    compiled = Exhaustive("arith.float_max", "fp16", unit=Wrong(FloatMaxParameters()))
    before = np.arange(wrong[0] - 2, wrong[0] + 1) % VALUES
    compared, found = compiled.pairs("max(a, b)", before)
    assert (found.a, found.b, found.got) == (*wrong, 0x1234)
    assert compared == 2 * VALUES + wrong[1] + 1


@FLUSH
@FORMAT
def test_reference_against_numpy(format, flushing):
    """Sums, products and conversions in NumPy's own arithmetic of the format."""
    counted = flush if flushing else np.asarray
    a, b = pairs(format, seed=3, count=100_000)
    x, y = counted(a), counted(b)
    with np.errstate(all="ignore"):
        results = {"arith.float_add": {"a + b": x + y, "a - b": x - y}}
        results["arith.float_multiply"] = {"a * b": x * y}
        single = (bits(a).astype(np.uint32) << 16 | bits(b)).view(np.float32)
        results["arith.float_convert"] = {"a b to": counted(single).astype(DTYPES[format])}
    for name, operations in results.items():
        for operation, expected in operations.items():
            got = reference(name, operation, format, bits(a), bits(b), flushing)
            np.testing.assert_array_equal(got, bits(canonical(counted(expected))), operation)


@FLUSH
@FORMAT
@UNITS
def test_reference_against_the_golden_models(name, format, flushing):
    a, b = pairs(format, seed=4, count=20_000)
    parameters = find(name).parameters_class(format=format, flush_subnormals=flushing)
    for number, operation in enumerate(OPERATIONS[name]):
        operands = {"a": a, "b": b}
        if name == "arith.float_add":
            operands["subtract"] = np.full(len(a), number)
        if name == "arith.float_convert":
            single = bits(a).astype(np.uint32) << 16 | bits(b)
            operands = {"a": single.view(np.float32)}
        results = load_testbench(find(name))._golden(parameters, **operands).values()
        # A comparison's are bits, side by side.
        columns = [bits(result).astype(np.uint16) << n for n, result in enumerate(results)]
        expected = np.bitwise_or.reduce(columns)
        got = reference(name, operation, format, bits(a), bits(b), flushing)
        np.testing.assert_array_equal(got, expected)


def test_rounding_without_the_instruction():
    edges = np.arange(VALUES, dtype=np.uint32)
    whole = np.concatenate([edges << 16, edges << 16 | 0x1000, edges << 13 | 0x38000FFF])
    random = np.random.default_rng(2).integers(0, 1 << 32, 200_000).astype(np.uint32)
    values = np.concatenate([whole.astype(np.uint32), random]).view(np.float32)
    with np.errstate(all="ignore"):
        expected = canonical(values.astype(np.float16))
    np.testing.assert_array_equal(portable_fp16(values), bits(expected))


def test_every_lookup_table_without_the_instruction():
    """The logic that stands for a table, here on the eight combinations of its operands."""
    names = {"zero": 0, "ones": -1, "x": 0b10101010, "y": 0b11001100, "z": 0b11110000}
    tables = [(f"{code:08b}", ["x", "y", "z"], code) for code in range(256)]
    tables += [("0110", ["x", "y"], 0b01100110), ("01", ["x"], 0b01010101)]
    for text, operands, code in tables:
        instruction = bit_slices._table(text, operands)
        head, *_, logic = instruction.removesuffix(")").split(", ", 4)
        assert head == f"LUT({code}"
        assert eval(logic, names) & 255 == code


def test_command(run, monkeypatch):
    command = "exhaustive arith.float_max --format bf16"
    status, out, _ = run(f"{command} --first 255 --count 2")
    assert status == 0 and out.startswith("arith.float_max bf16: 131072 operations compared in ")
    wrong = exhaustive.Difference(0x3C00, 0x3C01, 0x3C01, 0x3C02, "max(a, b)")
    monkeypatch.setattr(Exhaustive, "pairs", lambda *arguments: (7, wrong))
    status, out, _ = run(f"{command} --count 2 --flush")
    assert status == 1
    assert "bf16, subnormals flushed" in out
    assert "max(a, b), a 0x3c00, b 0x3c01: expected 0x3c01, got 0x3c02" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("all --first 65000 --count 600", "--count must be between 1 and 536, not 600"),
        ("all --first 65536", "--first must be below 65536, not 65536"),
        ("stream.queue", "block must be all or one of arith.float_add, "),
    ],
)
def test_wrong_arguments(run, arguments, message):
    status, out, err = run(f"exhaustive {arguments}")
    assert status == 2 and not out
    assert err.startswith(f"error: {message}") and err.count("\n") == 1
