"""Shared by the tests of functions: every operand, errors in ulp, two ways to run a unit."""

import dataclasses
from collections.abc import Callable

import ml_dtypes
import numpy as np
from amaranth.sim import Simulator

from golden.arith.formats import DTYPES, from_bits, is_nan, to_bits
from hw.arith.datapath import DatapathParameters
from hw.arith.tables.multipartite import Function, Multipartite
from hw.catalogue import Block
from sim.drivers.run import load_testbench
from sim.testbenches.arith.datapath_testbench import DatapathTestbench
from tests.support.arith.netlist import Netlist
from tests.support.arith.pairs import differences, registers_agree

SEED = 1


def every(name: str) -> np.ndarray:
    """Every value of a format of at most 16 bits, NaNs included."""
    return from_bits(np.arange(1 << (8 * DTYPES[name].itemsize)), name)


def float64(x: np.ndarray) -> np.ndarray:
    """The same values in float64, without NumPy's warning of signalling NaNs."""
    with np.errstate(invalid="ignore"):
        return x.astype(np.float64)


def follows_largest(dtype) -> float:
    """The number after the largest one, if the format had one more exponent."""
    largest = to_bits(np.array(ml_dtypes.finfo(dtype).max, dtype)).item()
    below, largest = from_bits(np.array([largest - 1, largest]), dtype).astype(np.float64)
    return 2 * largest - below


def ulp_errors(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Units in the last place between results and exact ones; infinite where NaNs do not agree.

    A unit is the format's at the exact result. An infinity counts as the number after the largest
    one, exact results too large as no more than that, and so does NaN where that means overflow.
    """
    info, limit = ml_dtypes.finfo(got.dtype), follows_largest(got.dtype)
    with np.errstate(invalid="ignore"):
        values = got.astype(np.float64)
        if got.dtype == DTYPES["fp8_e4m3"]:
            values = np.where(is_nan(got) & ~np.isnan(exact), np.copysign(limit, exact), values)
        values, near = np.clip(values, -limit, limit), np.clip(exact, -limit, limit)
        exponents = np.maximum(np.frexp(near)[1] - 1, int(info.minexp))
        errors = np.abs(values - near) / np.exp2(exponents.astype(np.float64) - info.nmant)
    errors = np.where(np.isnan(errors), np.inf, errors)
    return np.where(np.isnan(exact) & is_nan(got), 0.0, errors)


def golden_of(block: Block) -> Callable[..., dict[str, np.ndarray]]:
    """The bit-exact model of a datapath: results by port of its parameters and operands."""
    testbench = load_testbench(block)
    assert isinstance(testbench, DatapathTestbench)
    return testbench._golden


def run(block: Block, parameters: DatapathParameters, operands: dict[str, np.ndarray]) -> int:
    """Results of the unit's gates that differ from the golden model's.

    A pipelined unit is asserted to give each of them in its cycle, with random pauses of `enable`.
    """
    expected = golden_of(block)(parameters, **operands)
    net = Netlist(block.create(parameters))
    if not parameters.stages:
        assert net.flipflops == 0
        return differences(net, operands, expected)
    assert net.flipflops > 0
    registers_agree(net, operands, expected, parameters.stages, seed=SEED)
    return 0


def simulate(block: Block, parameters: DatapathParameters, operands: dict[str, np.ndarray]) -> int:
    """The same in Amaranth's simulator: nothing to compile, so better for few operands."""
    unit = block.create(parameters)
    expected = golden_of(block)(parameters, **operands)["o"]
    given = {name: to_bits(values).tolist() for name, values in operands.items()}
    results = []

    async def testbench(ctx):
        for number in range(len(expected) + parameters.stages):
            for name, values in given.items():
                ctx.set(getattr(unit, name), values[number % len(expected)])
            if parameters.stages:
                await ctx.tick()
            results.append(ctx.get(unit.o))

    simulator = Simulator(unit)
    if parameters.stages:
        simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()
    skipped = max(parameters.stages - 1, 0)
    got = np.array(results[skipped : skipped + len(expected)])
    return int(np.count_nonzero(got != to_bits(expected)))


def assert_same_tables(ours: Multipartite, function: Function, golden, golden_function) -> None:
    """The hardware's tables and those of the golden model have the same shape and entries."""
    fields = tuple(dataclasses.astuple(field) for field in ours.fields)
    assert dataclasses.replace(golden, fields=()) == type(golden)(
        **{**dataclasses.asdict(ours), "fields": ()}
    )
    assert fields == golden.fields
    assert ours.middles(function) == golden.middles(golden_function).tolist()
    for field, numbers in zip(ours.fields, fields, strict=True):
        whole = golden.offsets(golden_function, *numbers)
        assert ours.offsets(function, field) == whole[:, whole.shape[1] // 2 :].ravel().tolist()
