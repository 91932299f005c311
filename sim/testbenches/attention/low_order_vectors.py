"""Vectors for the special function unit that make low-order bits observable.

A fault in the lowest bit of a table, of a sum or of an FP32 rounding seldom changes an FP16 result.
In these vectors sums are where a table's index changes, and a rounded value cancels but for its
last bits. Each function makes one vector; `turn` from 0 to 1 walks through the tables.
"""

from typing import NamedTuple

import numpy as np

from golden.arith.formats import from_bits
from golden.attention.binary_exponent import POWER, binary_exponent
from golden.attention.moment_reduction import mean_and_variance
from golden.attention.softmax_reduction import addend, exponential_sum, fraction_bits
from hw.attention.special_function_unit import Operation, SpecialFunctionUnitParameters
from sim.testbenches.strategies import sometimes


class Vector(NamedTuple):
    """A vector and its command.

    x
        ``float16[n]``.
    operation
        Of :class:`Operation`; 3 counts as layer norm.
    inverse, eps
        1 / n, or what a test has in its place, and what is added to the variance.
    """

    x: np.ndarray
    operation: int
    inverse: np.float32
    eps: np.float32


INDEX = 12
"""Bits below the leading one that index the tables of reciprocals and of inverse roots."""

_TAIL = 6  # scores that bring a sum to its exact target
_SCORES = from_bits(np.arange(0x8000, 0xD200), np.float16)[::-1]  # from -48 to 0
_SCORES = np.append(_SCORES, from_bits(np.arange(0x4400), np.float16))  # to 4


def low_order_vector(
    p: SpecialFunctionUnitParameters, turn: float, rng: np.random.Generator
) -> Vector:
    """A vector of one of the KINDS below."""
    with np.errstate(all="ignore"):
        kind = [*KINDS][rng.choice(len(KINDS), p=[*KINDS.values()])]
        return kind(p, turn, rng)


def whole_sum(p: SpecialFunctionUnitParameters, turn: float, rng) -> Vector:
    """Scores whose sum is exactly an index of the reciprocals' table, or one unit below.

    Some begin with a tile of scores octaves below the largest, so that the sum is corrected.
    """
    exponent, log = binary_exponent(_SCORES), fraction_bits(p.length) - 15
    largest = int(rng.integers(np.searchsorted(_SCORES, -2), len(_SCORES)))
    origin = exponent[largest] >> POWER
    x = [_SCORES[largest]]
    if p.length >= 2 * p.tile + 2 and sometimes(rng, 0.4):
        lower = float(x[0]) - np.log(2) * rng.integers(1, 2 * log + 16)
        before = (lower - rng.exponential(0.3, p.tile)).astype(np.float16)
        x = [*before, *x]
    kept = np.array(x)
    _, total = exponential_sum(kept, p.length, p.tile)
    count = int(rng.integers(1, p.length - len(x) + 1))
    terms = addend(exponent[: largest + 1], origin, p.length)
    most = total + count * int(terms[-1])
    index = (1 << INDEX) + int(turn * (1 << INDEX))
    wholes = [index << log + 14 + n - INDEX for n in range(1 + log)]
    wholes = [whole for whole in wholes if total < whole <= most]
    if not wholes:
        wholes = [most]
    # The largest sums are seldom made otherwise.
    whole = wholes[-1] if sometimes(rng, 0.3) else wholes[rng.integers(len(wholes))]
    left = whole - total - int(rng.integers(0, 2))
    added = []
    for number in range(count, 0, -1):
        share = left
        if number > _TAIL:
            share = left / (number - _TAIL) * rng.choice([1.0, rng.uniform(0.3, 1.6)])
        found = max(0, int(np.searchsorted(terms, min(share, left), side="right")) - 1)
        added.append(_SCORES[found])
        left -= int(terms[found])
    added = rng.permutation(np.array(added))
    return Vector(np.append(kept, added), int(Operation.SOFTMAX), np.float32(0), np.float32(0))


def whole_variance(p: SpecialFunctionUnitParameters, turn: float, rng) -> Vector:
    """Elements with a variance + eps equal to an index of the roots' table, or a unit off."""
    n = int(rng.integers(min(8, p.length), min(24, p.length) + 1))
    x = _elements(n, int(rng.integers(-8, 13)), rng)
    operation, inverse = _norm(rng), np.float32(1 / n)
    _, variance = mean_and_variance(x, inverse, operation == Operation.RMS_NORM)
    parity, fraction = divmod(int(turn * (2 << INDEX)), 1 << INDEX)
    power = int(np.floor(np.log2(max(float(variance), 2.0**-60)))) + int(rng.integers(-3, 27))
    power += (power + parity) % 2
    wanted = np.float32((1 + fraction / (1 << INDEX)) * 2.0**power)
    eps = np.float32(float(wanted) - float(variance))
    return Vector(x, operation, inverse, _moved(eps, rng.integers(-1, 2)))


def near_mean(p: SpecialFunctionUnitParameters, turn: float, rng) -> Vector:
    """Elements of which one equals the mean but for its last few bits, and a tiny variance.

    The mean is a rounded sum: the elements have its guard bit, and one bit below that.
    """
    n = int(rng.integers(1, min(12, p.length) + 1))
    power = int(rng.integers(-10, 15))
    x = np.abs(_elements(n, power, rng)).astype(np.float64)
    if n > 2 and sometimes(rng, 0.5):
        x[1:-1] = x[0] * rng.choice([1, 1 - 2.0**-10, 2.0**-11], n - 2)
    x[0] = x.max()
    at = np.floor(np.log2(x.sum())) - 24
    x = _with_bits(x, at, 1, p.length, rng).astype(np.float16)
    inverse = _moved(np.float32(float(x[0]) / float(x.sum(dtype=np.float64))), rng.integers(-2, 3))
    operation = int(rng.choice([Operation.LAYER_NORM, 3]))
    eps = np.float32((float(x[0]) * 2.0 ** -rng.integers(9, 24)) ** 2)
    sign = np.float16(rng.choice([-1, 1]))
    return Vector(rng.permutation(x) * sign, operation, inverse, eps)


def near_square(p: SpecialFunctionUnitParameters, turn: float, rng) -> Vector:
    """Elements with an eps that cancels their variance but for its last few bits."""
    n = int(rng.integers(1, min(8, p.length) + 1))
    power = int(rng.integers(-12, 15))
    x = _elements(n, power, rng).astype(np.float64)
    if sometimes(rng, 0.3):
        x[1:] = 0
    at = np.floor(np.log2((x**2).sum())) - 24
    x = _with_bits(x, at, 2, p.length, rng).astype(np.float16)
    operation = int(Operation.RMS_NORM) if sometimes(rng, 0.6) else _norm(rng)
    inverse = np.float32(1 / len(x))
    kind = rng.random()
    if kind < 0.4:
        inverse = np.float32(2.0 ** rng.integers(-3, 1))
    elif kind < 0.8:
        inverse = np.float32(rng.uniform(0.05, 1))
    _, variance = mean_and_variance(x, inverse, operation == Operation.RMS_NORM)
    eps = -_moved(variance, -int(rng.integers(1, 1 << rng.integers(1, 12))))
    return Vector(rng.permutation(x), operation, inverse, np.float32(eps))


def tied_product(p: SpecialFunctionUnitParameters, turn: float, rng) -> Vector:
    """As :func:`near_square`; sum of squares times `inverse` is a tie, or a few bits off one."""
    x = _elements(int(rng.integers(1, min(8, p.length) + 1)), int(rng.integers(-8, 13)), rng)
    _, squares = mean_and_variance(x, np.float32(1), rms=True)
    digits = int(squares.view(np.uint32)) & 0x7FFFFF | 1 << 23
    zeros = (digits & -digits).bit_length() - 1
    factor = 0
    for _ in range(32):
        place = int(rng.integers(23, 25))  # bits of the product that are rounded off
        rest = (1 << place - 1) + _little(place - 1, rng)
        size = place - zeros
        factor = (rest >> zeros) * pow(digits >> zeros, -1, 1 << size) % (1 << size)
        factor |= int(rng.integers(0, 1 << 24)) >> size << size
        if factor >> 23 == 1 and (digits * factor).bit_length() == place + 24:
            break
    inverse = np.float32(max(factor, 1) * 2.0 ** -int(rng.integers(23, 28)))
    _, variance = mean_and_variance(x, inverse, rms=True)
    eps = -_moved(variance, -int(rng.integers(1, 8)))
    return Vector(x, int(Operation.RMS_NORM), inverse, eps)


def carried_product(p: SpecialFunctionUnitParameters, turn: float, rng) -> Vector:
    """As :func:`tied_product`, but rounded up with a carry through many bits."""
    x = _elements(int(rng.integers(1, min(8, p.length) + 1)), int(rng.integers(-8, 13)), rng)
    _, squares = mean_and_variance(x, np.float32(1), rms=True)
    digits = int(squares.view(np.uint32)) & 0x7FFFFF | 1 << 23
    places = int(rng.integers(1, 24))
    wanted = int(rng.integers(1 << 23, 1 << 24)) | (1 << places) - 1
    for place in (24, 23):  # bits of the product that are rounded off: about three quarters
        factor = ((4 * wanted + 3 << place - 1) // digits + 1) >> 1
        if factor < 1 << 24:
            break
    inverse = np.float32(factor * 2.0 ** -int(rng.integers(23, 28)))
    _, variance = mean_and_variance(x, inverse, rms=True)
    return Vector(x, int(Operation.RMS_NORM), inverse, -_moved(variance, -int(rng.integers(1, 8))))


def tied_sum(p: SpecialFunctionUnitParameters, turn: float, rng) -> Vector:
    """Elements with a variance + eps that is a tie, or a few bits off one, just below an index of
    the roots' table."""
    away = int(rng.integers(0, 25))  # bits of the smaller operand below the result's last one
    negative = sometimes(rng, 0.5)
    little = _little(away, rng)
    smaller = int(rng.integers(0, 1 << max(0, 22 - away))) << away + 1
    smaller += (1 << away) + (-little if negative else little)
    index = (1 << INDEX) + int(turn * 2 % 1 * (1 << INDEX))
    index &= -1 << int(rng.integers(0, INDEX + 1)) * int(rng.integers(0, 2))  # for longer carries
    wanted = index << 23 - INDEX + away + 1
    exact = wanted - (1 << away) + little  # in units of the result's last bit over 2^(away + 1)
    larger = exact + smaller if negative else exact - smaller
    power = int(rng.integers(-20, 21))
    first, second = (n * 2.0 ** (power - 24 - away) for n in (larger, smaller))
    if not negative and sometimes(rng, 0.5):
        first, second = second, first
    # The first element's square alone counts.
    largest = int(np.clip(power // 2 + rng.integers(-3, 8), -23, 15))
    n = int(rng.integers(1, min(8, p.length) + 1))
    x = (_elements(n, 0, rng) * 2.0 ** (largest - 15)).astype(np.float16)
    x[0] = rng.choice([-1, 1]) * 2.0**largest
    inverse = np.float32(first / 4.0**largest)
    eps = np.float32(-second if negative else second)
    return Vector(rng.permutation(x), int(Operation.RMS_NORM), inverse, eps)


def limits(p: SpecialFunctionUnitParameters, turn: float, rng) -> Vector:
    """Means, variances and results near the largest and the smallest number of their format."""
    n = int(rng.integers(1, min(6, p.length) + 1))
    x = _elements(n, int(rng.integers(-20, 14)), rng)
    operation = _norm(rng)
    kind = rng.choice([0, 1, 1, 2, 3, 3, 4])
    if kind == 0:  # no eps: sums of any size
        x = _elements(n, int(rng.choice([-24, -23, rng.integers(-24, 16)])), rng)
        return Vector(x, operation, np.float32(1 / n), np.float32(rng.choice([0, 0, 2.0**-120])))
    wide = x.astype(np.float64)
    if kind == 1:  # the mean of the squares is the smallest number, or the largest
        power = rng.choice([-149, -130, -128, -127, -126, -126, 127.5, 128, 128])
        inverse = np.float32(2.0 ** float(power) / (wide**2).sum())
        inverse = _moved(inverse, rng.integers(-2, 3))
        eps = rng.choice([0, 0, 0, 2.0**-126, -(2.0**-126), 2.0**-130, 2.0**127, 3.4e38])
    elif kind == 2:  # the mean is, or its square
        power = float(rng.choice([-63.5, -63, -62.5, 63.5, 63.9, 64.1, 65, 127.3, 127.9, 128.1]))
        if power > 100:  # but not the mean of squares
            wide = rng.uniform(0.5, 0.99, min(6, p.length))
        x = np.abs(wide).astype(np.float16)
        inverse, eps = 2.0**power / np.abs(wide).sum(), 2.0 ** rng.integers(-126, 127)
    elif kind == 3:  # variance + eps is the smallest number, after many bits cancelled
        power = -126 + rng.random() * rng.choice([8, 30])
        inverse = np.float32(2.0 ** float(power) / (wide**2).sum())
        _, variance = mean_and_variance(x, inverse, operation == Operation.RMS_NORM)
        last_bit = np.log2(max(float(variance), 2.0**-126)) - 23
        eps = -_moved(variance, -int(2.0 ** (-126 - last_bit + rng.uniform(-3.5, 1.5))))
    else:  # a result is
        power = rng.uniform(-59, 59)
        inverse = 2.0**power / np.abs(wide).sum()
        if sometimes(rng, 0.7):
            x = np.abs(x)
        result = rng.choice([-26, -25, -24, -15, -14, 15, 16, 17, -64, 64, 100, -100])
        eps = 2.0 ** np.clip(2 * (power - result) + rng.uniform(-0.6, 0.6), -126, 127)
    return Vector(x, operation, np.float32(inverse), np.float32(eps))


KINDS = {
    whole_sum: 0.15,
    whole_variance: 0.24,
    near_mean: 0.1,
    near_square: 0.1,
    tied_product: 0.08,
    carried_product: 0.08,
    tied_sum: 0.08,
    limits: 0.17,
}
"""Probability of each."""


def _little(places: int, rng) -> int:
    """0, or plus or minus a power of two below 2^places."""
    return int(rng.integers(-1, 2)) * ((1 << places) >> 1 >> int(rng.integers(0, places + 1)))


def _norm(rng) -> int:
    return int(rng.choice([Operation.LAYER_NORM, Operation.RMS_NORM, 3]))


def _elements(n: int, power: int, rng) -> np.ndarray:
    """FP16 numbers of any significand, the largest near 2^power, the others close to it."""
    size = rng.uniform(1, 2, n) * 2.0 ** (power - rng.integers(0, rng.choice([1, 3]), n))
    return (size * rng.choice([-1, 1], n)).astype(np.float16)


def _with_bits(x: np.ndarray, place: float, degree: int, length: int, rng) -> np.ndarray:
    """Add elements whose power `degree` is 2^place, and perhaps one or two equal smaller ones."""
    more = []
    if sometimes(rng, 0.7):
        more.append(2.0 ** (place // degree))
    if sometimes(rng, 0.7):
        below = 2.0 ** rng.integers(-24, max(-23, place // degree))
        more += [below] * int(rng.integers(1, 3))
    more = [element for element in more if element >= 2.0**-24]
    return np.append(x, more[: length - len(x)])


def _moved(value: np.float32, steps) -> np.float32:
    """The float32 number `steps` away in magnitude."""
    bits = int(np.float32(value).view(np.uint32)) + int(steps)
    return np.uint32(bits & 0xFFFFFFFF).view(np.float32)
