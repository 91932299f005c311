"""The comparison of all FP16 pairs: a sample of it, a fault that it finds, its own reference."""

import re

import numpy as np
import pytest

from golden.arith.formats import DTYPES, canonical, from_bits
from hw.catalogue import find
from hw.export import export
from sim import exhaustive
from sim.__main__ import main
from sim.benches.arith.operands import corners
from sim.exhaustive import OPERATIONS, Exhaustive
from tests.arith.pairs import bits, pairs

MILLION = 1_000_000


@pytest.fixture(scope="module", params=OPERATIONS)
def compiled(request):
    return Exhaustive(find(request.param))


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


def test_comparison_finds_a_fault():
    """Without its sticky bit the unit is wrong about a few products, which seem to be ties."""
    block = find("arith.float_multiply")
    text = export(block, block.parameters_class()).verilog
    faulty, changed = re.subn(r"assign sticky = [^;]*;", "assign sticky = 1'h0;", text)
    assert changed == 1
    outcome = Exhaustive(block, faulty).run(sample(seed=1), threads=2)
    found = outcome.difference
    a, b = from_bits(np.array([found.a, found.b]), "fp16").astype(np.float64)
    down, up = from_bits(np.array([found.got, found.expected]), "fp16").astype(np.float64)
    assert abs(up - a * b) < abs(down - a * b)
    assert f"0x{found.a:04x}" in str(found)


def test_command(monkeypatch, capsys):
    def play(*arguments):
        monkeypatch.setattr("sys.argv", ["sim", "exhaustive", *arguments])
        return main(), capsys.readouterr()

    compiled = Exhaustive(find("arith.float_multiply"))
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


@pytest.mark.parametrize("portably", [False, True])
def test_reference_of_the_comparison(compiled, portably):
    """With and without the instruction that converts, against NumPy."""
    a, b = pairs("fp16", seed=3, count=MILLION)
    with np.errstate(all="ignore"):
        expected = {"product": a * b, "sum": a + b, "difference": a - b}
    names = ["sum", "difference"] if compiled.name == "arith.float_add" else ["product"]
    for name in names:
        got = compiled.reference(bits(a), bits(b), subtract=name == "difference", portably=portably)
        np.testing.assert_array_equal(got, bits(canonical(expected[name])))
