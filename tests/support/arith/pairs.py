"""Shared by the tests of comparisons and conversions: operands, and differences of results."""

import numpy as np

from golden.arith.formats import DTYPES, from_bits, to_bits
from sim.testbenches.arith.operands import corners, random_floats, random_integers
from tests.support.arith.netlist import unpacked


def values(name: str, seed: int, count: int = 200_000) -> np.ndarray:
    """Every number of a format of at most 16 bits; of a wider one corners and random ones."""
    dtype = DTYPES[name]
    if dtype.itemsize <= 2:
        return from_bits(np.arange(1 << 8 * dtype.itemsize), name)
    random = random_floats(name, count, [], np.random.default_rng(seed))
    return np.concatenate([corners(dtype), random])


def pairs(name: str, seed: int, count: int = 100_000) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of 8-bit numbers; of wider ones corners with corners, and random related ones."""
    if DTYPES[name].itemsize == 1:
        every = np.arange(1 << 16)
        return from_bits(every >> 8, name), from_bits(every & 255, name)
    edges = corners(DTYPES[name])
    first, second = np.meshgrid(edges[:: 1 + len(edges) // 60], edges)
    rng = np.random.default_rng(seed)
    a = random_floats(name, count, [], rng)
    b = random_floats(name, count, [a], rng)
    return np.concatenate([first.ravel(), a]), np.concatenate([second.ravel(), b])


def integers(width: int, signed: bool, seed: int, count: int = 200_000) -> np.ndarray:
    """Every integer of at most 16 bits; of wider ones limits and random ones of every magnitude."""
    if width <= 16:
        return np.arange(1 << width) - (1 << width - 1 if signed else 0)
    return random_integers(width, signed, count, np.random.default_rng(seed))


def bits(array: np.ndarray) -> np.ndarray:
    """Values of a port: integers as they are, floats as their bits."""
    return array if array.dtype.kind in "iu" else to_bits(array)


def differences(net, operands: dict, expected: dict) -> int:
    """Operations of a netlist with a result that is not the expected one."""
    given, right = (
        net.slices({port: bits(array) for port, array in ports.items()})
        for ports in (operands, expected)
    )
    got = net.evaluate(given)
    assert got.keys() == right.keys()
    wrong = np.bitwise_or.reduce(np.concatenate([got[port] ^ right[port] for port in got]))
    return int(np.count_nonzero(unpacked(wrong, len(next(iter(operands.values()))))))


def registers_agree(net, operands: dict, expected: dict, stages: int, seed: int) -> None:
    """A pipeline with random pauses of `enable` gives the expected results in the expected cycles.

    A result is checked in every cycle in which it must be at the output.
    """
    rng = np.random.default_rng(seed)
    count = len(next(iter(operands.values())))
    # Each cycle's operations are those of the cycle before, moved by a word of 64 lanes. The other
    # lanes, and all lanes if the operations fill one word only, hold random ones of them.
    lanes = max(1024, -(-count // 64) * 64)
    chosen = np.concatenate([np.arange(count), rng.integers(0, count, lanes - count)])
    given, right = (
        net.slices({port: bits(array)[chosen] for port, array in ports.items()})
        for ports in (operands, expected)
    )
    enables = [1, *rng.integers(0, 2, 2 * stages + 2), 0, *[1] * stages, 0]
    entered: list[int | None] = [None] * stages
    compared: set[int] = set()
    for cycle, enable in enumerate(enables):
        offered = {port: np.roll(words, cycle, axis=1) for port, words in given.items()}
        offered["enable"] = net.slices({"enable": np.full(lanes, enable)})["enable"]
        got, shown = net.evaluate(offered), entered[-1]
        if shown is not None:
            for port, words in right.items():
                np.testing.assert_array_equal(got[port], np.roll(words, shown, axis=1))
            compared.add(shown)
        if enable:
            entered = [cycle, *entered[:-1]]
    assert 0 in compared and len(compared) > 1
