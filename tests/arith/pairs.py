"""What the tests of comparison, conversion and their kin share: operands, and who differs."""

import numpy as np

from golden.arith.formats import DTYPES, from_bits, to_bits
from sim.benches.arith.operands import corners, random_floats, random_integers


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
    """What a port carries: integers as they are, floats as their bits."""
    return array if array.dtype.kind in "iu" else to_bits(array)


def differences(net, operands: dict, expected: dict) -> int:
    """Operations of a netlist with a result that is not the expected one."""
    carried = [
        {port: bits(array) for port, array in ports.items()} for ports in (operands, expected)
    ]
    return np.count_nonzero(net.wrong(*carried))


def registers_agree(net, operands: dict, expected: dict, stages: int, seed: int) -> None:
    """Every operation enters a lane of its own, then random ones follow, with random pauses; each
    result is checked at the output as long as it is to stay there."""
    rng = np.random.default_rng(seed)
    operands = {port: bits(array) for port, array in operands.items()}
    expected = {port: bits(array) for port, array in expected.items()}
    count = len(next(iter(operands.values())))
    entered = np.full((stages, count), -1)
    chosen, enable = np.arange(count), np.ones(count, int)
    remaining = np.ones(count, bool)
    while remaining.any():
        shown = entered[-1]
        known = shown >= 0
        # Of a lane that is still empty, nothing is expected.
        right = {port: array[np.maximum(shown, 0)] for port, array in expected.items()}
        given = {port: array[chosen] for port, array in operands.items()}
        assert not (net.wrong({"enable": enable, **given}, right) & known).any()
        remaining[shown[known]] = False
        entered = np.where(enable == 1, np.vstack([chosen[None], entered[:-1]]), entered)
        chosen, enable = rng.integers(0, count, count), rng.integers(0, 2, count)
