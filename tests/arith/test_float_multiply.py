"""Multiplication: all pairs of 8-bit numbers, a sample of all FP16 pairs, registers, the twin."""

import re

import ml_dtypes
import numpy as np
import pytest

from golden.arith.float_multiply import float_multiply
from golden.arith.formats import DTYPES, canonical, flush, from_bits
from hw.arith.float_format import FORMATS
from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
from hw.catalogue import find
from hw.export import export
from sim import exhaustive
from sim.__main__ import main
from sim.benches.arith.float_multiply import bench
from sim.benches.arith.operands import corners
from sim.exhaustive import Exhaustive
from tests.arith.exact import decode, encode
from tests.arith.functions import ulp_errors
from tests.arith.netlist import Netlist
from tests.arith.pairs import bits, differences, pairs, registers_agree

MILLION = 1_000_000


@pytest.fixture(scope="module")
def block():
    return find("arith.float_multiply")


@pytest.fixture(scope="module")
def compiled(block):
    return Exhaustive(block)


@pytest.mark.parametrize("format", FORMATS)
def test_unit_is_its_golden_twin(format, tmp_path):
    net = Netlist(FloatMultiply(FloatMultiplyParameters(format)), tmp_path)
    a, b = pairs(format, seed=1, count=MILLION)
    assert net.flipflops == 0
    assert len(a) >= (MILLION if DTYPES[format].itemsize > 1 else 1 << 16)
    assert differences(net, {"a": a, "b": b}, {"o": float_multiply(a, b)}) == 0


@pytest.mark.parametrize("format", FORMATS)
def test_flushing_unit_is_its_golden_twin(format, tmp_path):
    net = Netlist(FloatMultiply(FloatMultiplyParameters(format, True)), tmp_path)
    drawn, _ = bench.draw(FloatMultiplyParameters(format), None, 200_000, seed=2)
    edges = pairs(format, seed=2, count=1)
    a, b = (np.concatenate([drawn[port], x]) for port, x in zip("ab", edges, strict=True))
    result = float_multiply(a, b, flush_subnormals=True)
    # Some products below the smallest normal number round up to it.
    with np.errstate(all="ignore"):
        exact = np.abs(a.astype(np.float64) * b.astype(np.float64))
    smallest = float(ml_dtypes.finfo(a.dtype).smallest_normal)
    assert np.count_nonzero((exact < smallest) & (np.abs(result) == smallest)) > 0
    assert differences(net, {"a": a, "b": b}, {"o": result}) == 0


@pytest.mark.parametrize(
    ("stages", "flushing"), [(1, False), (2, False), (3, False), (4, False), (3, True), (4, True)]
)
def test_registers(stages, flushing, tmp_path):
    parameters = FloatMultiplyParameters("fp16", flushing, stages=stages)
    net = Netlist(FloatMultiply(parameters), tmp_path)
    assert net.flipflops >= 16 * stages
    drawn, _ = bench.draw(parameters, None, 20_000, seed=3)
    expected = {"o": float_multiply(**drawn, flush_subnormals=flushing)}
    registers_agree(net, drawn, expected, stages=stages, seed=stages)


def sample(seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Corners with random numbers, either way round, in lists that share the work."""
    edges = bits(corners(DTYPES["fp16"]))
    random = np.random.default_rng(seed).integers(0, 1 << 16, 12_000)
    halves = np.array_split(random, 2)
    return [(edges, half) for half in halves] + [(half, edges) for half in halves]


def test_sample_of_all_pairs_against_the_processor(compiled):
    outcome = compiled.run(sample(seed=1), threads=2)
    assert outcome.difference is None, outcome.difference
    assert outcome.compared >= 10 * MILLION
    print(f"{outcome.compared} operations compared, {outcome.seconds:.1f} s")


def test_comparison_finds_a_fault(block):
    """Without its sticky bit the unit is wrong about a few products, which seem to be ties."""
    text = export(block, block.parameters_class()).verilog
    faulty, changed = re.subn(r"assign sticky = [^;]*;", "assign sticky = 1'h0;", text)
    assert changed == 1
    outcome = Exhaustive(block, faulty).run(sample(seed=1), threads=2)
    found = outcome.difference
    a, b = from_bits(np.array([found.a, found.b]), "fp16").astype(np.float64)
    down, up = from_bits(np.array([found.got, found.expected]), "fp16").astype(np.float64)
    assert abs(up - a * b) < abs(down - a * b)
    assert f"0x{found.a:04x}" in str(found)


def test_command(monkeypatch, capsys, compiled):
    def play(*arguments):
        monkeypatch.setattr("sys.argv", ["sim", "exhaustive", *arguments])
        return main(), capsys.readouterr()

    monkeypatch.setattr(exhaustive, "Exhaustive", lambda block: compiled)
    status, printed = play("arith.float_multiply", "--first", "255", "--count", "2")
    assert status == 0 and "131072 operations compared" in printed.out
    wrong = exhaustive.Difference(0x3C00, 0x3C01, 0, 0x3C01, 0x3C02)
    monkeypatch.setattr(compiled, "pairs", lambda a, b: (7, wrong))
    status, printed = play("arith.float_multiply", "--count", "2")
    assert status == 1
    assert "a 0x3c00, b 0x3c01: expected 0x3c01, got 0x3c02" in printed.out
    status, printed = play("arith.float_multiply", "--first", "65000", "--count", "600")
    assert status == 1 and "--count must be between 1 and 536, not 600" in printed.err
    status, printed = play("arith.float_multiply", "--first", "65536")
    assert status == 1 and "--first must be below 65536, not 65536" in printed.err
    status, printed = play("stream.queue")
    assert status == 1 and "block must be" in printed.err


def test_reference_of_the_comparison(compiled):
    """With and without the instruction that converts, against NumPy."""
    a, b = pairs("fp16", seed=3, count=MILLION)
    with np.errstate(all="ignore"):
        expected = bits(canonical(a * b))
    for portably in (False, True):
        got = compiled.reference(bits(a), bits(b), portably=portably)
        np.testing.assert_array_equal(got, expected)


def product(a: int, b: int, float_format) -> int:
    """Bits of the product by the definition, from exact fractions."""
    x, y = decode(a, float_format), decode(b, float_format)
    negative = (a ^ b) >> float_format.width - 1
    if "nan" in (x, y) or (isinstance(x, str) and y == 0) or (isinstance(y, str) and x == 0):
        return float_format.quiet_nan
    if isinstance(x, str) or isinstance(y, str):
        return float_format.infinity | negative << float_format.width - 1
    return encode(x * y, bool(negative), float_format, saturate=False)


@pytest.mark.parametrize("flushing", [False, True], ids=["", "flush"])
@pytest.mark.parametrize("format", FORMATS)
def test_golden_twin_by_the_definition(format, flushing):
    a, b = pairs(format, seed=4, count=10_000)
    if DTYPES[format].itemsize > 1:
        a, b = a[-10_000:], b[-10_000:]
    counted = [bits(flush(x) if flushing else x).tolist() for x in (a, b)]
    exact = [product(x, y, FORMATS[format]) for x, y in zip(*counted, strict=True)]
    expected = from_bits(np.array(exact), format)
    expected = flush(expected) if flushing else expected
    np.testing.assert_array_equal(
        bits(float_multiply(a, b, flush_subnormals=flushing)), bits(expected)
    )


@pytest.mark.parametrize("format", ["fp8_e4m3", "fp8_e5m2", "fp16", "bf16"])
def test_error(format):
    a, b = pairs(format, seed=5)
    with np.errstate(all="ignore"):
        exact = a.astype(np.float64) * b.astype(np.float64)
    error = ulp_errors(float_multiply(a, b), exact).max()
    print(f"{format}: at most {error} ulp")
    assert error == 0.5


@pytest.mark.parametrize(("format", "name"), [("fp16", "f16"), ("fp32", "f32")])
def test_golden_twin_as_softfloat_does(format, name):
    softfloat = pytest.importorskip("softfloatpy")
    a, b = pairs(format, seed=6, count=20_000)
    multiply = getattr(softfloat, f"{name}_mul")
    kind = getattr(softfloat, f"Float{name[1:]}")
    size = DTYPES[format].itemsize
    numbers = [[kind.from_bytes(x.tobytes()[::-1]) for x in bits(operand)] for operand in (a, b)]
    products = [multiply(x, y) for x, y in zip(*numbers, strict=True)]
    exact = np.frombuffer(b"".join(x.to_bytes() for x in products), f">u{size}")
    expected = canonical(from_bits(exact.astype(f"u{size}"), format))
    np.testing.assert_array_equal(bits(float_multiply(a, b)), bits(expected))
