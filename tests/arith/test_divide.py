"""Division: every pair of significands in the model, every pair of 8-bit operands in hardware."""

import numpy as np
import pytest

from golden.arith import divide as golden
from golden.arith.divide import divide
from golden.arith.formats import DTYPES, flush, from_bits, to_bits
from hw.arith.divide import TABLES, DivideParameters
from hw.arith.reciprocal import double_reciprocal
from hw.catalogue import find
from sim.testbenches.arith.operands import corners, random_floats
from tests.support.arith.functions import (
    assert_same_tables,
    every,
    float64,
    run,
    simulate,
    ulp_errors,
)

BLOCK = find("arith.divide")
SMALL = ["fp8_e4m3", "fp8_e5m2"]
BOUNDS = {"fp16": 0.931, "bf16": 0.879, "fp8_e4m3": 0.572, "fp8_e5m2": 0.600}


def pairs(values):
    return {"a": np.repeat(values, len(values)), "b": np.tile(values, len(values))}


def random_pairs(name, count, seed):
    rng = np.random.default_rng(seed)
    a = random_floats(name, count, [], rng)
    return {"a": a, "b": random_floats(name, count, [a], rng)}


def operands(name, count=1_000_000):
    """Every pair of small operands; else corners with corners and random ones."""
    if name in SMALL:
        return pairs(every(name))
    edges, drawn = pairs(corners(DTYPES[name])[::7]), random_pairs(name, count, 1)
    return {port: np.concatenate([edges[port], drawn[port]]) for port in edges}


def exact(a, b):
    with np.errstate(all="ignore"):
        return float64(a) / float64(b)


@pytest.mark.parametrize("name", TABLES)
def test_errors_over_all_significands(name):
    """With exponents that make no result subnormal: these are all cases of the significands."""
    kind = DivideParameters(format=name).float_format
    one = kind.bias << kind.mantissa
    given = pairs(from_bits(one + np.arange(1 << kind.mantissa), name))
    errors = ulp_errors(divide(**given), exact(**given))
    print(f"{name}: {errors.max():.4f} ulp, {np.mean(errors > 0.5):.2%} above 1/2")
    assert errors.max() <= BOUNDS[name] < 1


@pytest.mark.parametrize("name", TABLES)
def test_errors_of_all_kinds_of_operands(name):
    given = operands(name)
    quotients = exact(**given)
    got = divide(**given)
    errors = ulp_errors(got, quotients)
    small = np.abs(quotients) < 2.0 ** (1 - DivideParameters(format=name).float_format.bias)
    print(f"{name}: {errors[small].max():.4f} ulp in {small.sum()} subnormal results")
    assert small.sum() > len(errors) // 20
    assert errors.max() < 1
    with np.errstate(over="ignore", invalid="ignore"):
        is_exact = float64(quotients.astype(DTYPES[name])) == quotients
    assert np.count_nonzero(is_exact) > 1000
    assert (errors[is_exact] == 0).all()
    signs = to_bits(got) >> (8 * got.dtype.itemsize - 1)
    number = ~np.isnan(float64(got))
    assert (signs[number] == np.signbit(quotients[number])).all()


def test_flushed():
    given = operands("fp16", 100_000)
    flushed = divide(**given, flush_subnormals=True)
    expected = flush(divide(**{port: flush(values) for port, values in given.items()}))
    assert (to_bits(flushed) == to_bits(expected)).all()
    assert np.count_nonzero(to_bits(flushed) != to_bits(divide(**given))) > 10_000


@pytest.mark.parametrize("name", TABLES)
def test_both_sides_have_the_same_tables(name):
    table = golden.TABLES[DTYPES[name]]
    assert_same_tables(TABLES[name], double_reciprocal, table, golden.double_reciprocal)


@pytest.mark.parametrize(
    "name, stages, flush_subnormals",
    [
        ("fp16", 0, False),
        ("bf16", 4, True),
        ("fp8_e4m3", 0, False),
        ("fp8_e5m2", 0, True),
    ],
)
def test_hardware(name, stages, flush_subnormals):
    parameters = DivideParameters(format=name, stages=stages, flush_subnormals=flush_subnormals)
    assert run(BLOCK, parameters, operands(name)) == 0


@pytest.mark.parametrize("stages", range(1, 5))
@pytest.mark.parametrize("name", ["fp16", "fp8_e4m3"])
def test_stages(name, stages):
    parameters = DivideParameters(format=name, stages=stages, flush_subnormals=stages % 2 == 0)
    assert simulate(BLOCK, parameters, random_pairs(name, 200, stages)) == 0
