"""Tables of a sense line's discharge as a circuit (UniCAIM, section III-B3).

A cell is two transistors from the line to ground by the EKV equation; key levels are programmed by
equal steps of current, at V_R = V_DD = 1 V over a window of 1.2 V. The constants have their sources
in the project's model of the circuit, `golden/unicaim/sense_line.py`, with whose times a test
compares these tables. Only the ratio of times matters, so capacitances do not.
"""

import functools
import math

VDD, DETECTOR, READ, LOWEST, HIGHEST = 1.0, 0.5, 1.0, 0.2, 1.4
"""Supply, thresholds of the lines' detectors, gate of a device that is read, window; V."""
SLOPE, CURRENT, MODULATION, THERMAL = 1.63, 1.1e-6, 0.18, 0.025852
VERIFY = (VDD + DETECTOR) / 2
"""Voltage of the line at which levels are programmed, V."""
NODES = (
    (-0.9061798459386640, 0.2369268850561891),
    (-0.5384693101056831, 0.4786286704993665),
    (0.0, 0.5688888888888889),
    (0.5384693101056831, 0.4786286704993665),
    (0.9061798459386640, 0.2369268850561891),
)
"""Gauss-Legendre nodes and weights of the time's integral over the line's voltage."""
SLIGHT = 1e-4
"""V, for a derivative."""


def reach(limit: int, key_bits: int, steps: int, last: int, fraction: int) -> list[int]:
    """The farthest lines that are high in each step of a discharge, from 0 to `last`.

    That is the largest distance of a score below `limit`, in 2^-fraction scores, at which a line
    drops later than the step; a line of score 0 drops at step `steps`.
    """
    top = 1 << key_bits - 1
    cells = limit // top
    middle = _time(key_bits, 0.0)
    found, far = [], 2 * limit << fraction
    for step in range(last + 1):
        low = 0  # the highest score never drops
        while low < far:
            tried = (low + far + 1) // 2
            time = _time(key_bits, top - tried / (cells << fraction))
            low, far = (tried, far) if time / middle * steps > step else (low, tried - 1)
        found.append(far)
    return found


def weights(key_bits: int, fraction: int) -> list[int]:
    """Weight of a device's error by the product that it is read with, from the lowest product on.

    In 2^-fraction levels for an error of a level, which is a part 1 / 2^key_bits of the window.
    """
    cell = _cell_currents(key_bits, VERIFY)
    level = (HIGHEST - LOWEST) / (1 << key_bits)
    step = (cell[0] - cell[-1]) / (1 << key_bits)
    found = []
    for threshold in _thresholds(key_bits):
        ends = [_current(READ - threshold + error, VERIFY) for error in (SLIGHT, -SLIGHT)]
        found.append(round((ends[0] - ends[1]) / (2 * SLIGHT) / step * level * (1 << fraction)))
    return found


def _time(key_bits: int, mean: float) -> float:
    """Time of a line whose cells have a mean product and are as equal as possible."""
    top = 1 << key_bits - 1
    below = min(int(mean + top), 2 * top - 1)
    part = mean + top - below
    return sum(
        weight / ((1 - part) * currents[below] + part * currents[below + 1])
        for weight, currents in _discharge(key_bits)
    )


@functools.cache
def _discharge(key_bits: int) -> list[tuple[float, list[float]]]:
    """Weights of the integral, and a cell's currents by its product, at each node."""
    swing = (VDD - DETECTOR) / 2
    return [(w, _cell_currents(key_bits, DETECTOR + swing * (1 + x))) for x, w in NODES]


def _cell_currents(key_bits: int, v: float) -> list[float]:
    """Current of a cell at a line of `v` by its product: of the device read and the other one."""
    thresholds = _thresholds(key_bits)
    return [
        _current(READ - read, v) + _current(-other, v)
        for read, other in zip(thresholds, reversed(thresholds), strict=True)
    ]


@functools.cache
def _thresholds(key_bits: int) -> list[float]:
    """Thresholds of all levels, rising, by equal steps of the current of a device read."""
    most, least = _current(READ - LOWEST, VERIFY), _current(READ - HIGHEST, VERIFY)
    found = [LOWEST]
    for number in range(1, 1 << key_bits):
        wanted = most + number / (1 << key_bits) * (least - most)
        low, high = LOWEST, HIGHEST
        for _ in range(60):  # halves the window down to the last bits
            middle = (low + high) / 2
            if _current(READ - middle, VERIFY) > wanted:
                low = middle
            else:
                high = middle
        found.append(low)
    return [*found, HIGHEST]


def _current(over: float, v: float) -> float:
    """Drain current in A of a device at a line of `v`; `over` is gate minus threshold."""
    saturated, drain = (
        math.log1p(math.exp(x / (2 * SLOPE * THERMAL))) ** 2 for x in (over, over - SLOPE * v)
    )
    return CURRENT * (saturated - drain) * (1 + MODULATION * v)
