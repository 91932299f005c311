"""Token-Picker's decisions in the hardware's arithmetic, for many heads and queries at once.

Equal, bit for bit, to :class:`golden.topick.pe_lane.PeLane` with a denominator without delay, and
to :func:`golden.topick.topick_core.attend`. Here a chunk of one token is decided at a time, for all
heads and queries ("lanes") together.
"""

from collections.abc import Iterable

import numpy as np

from golden.algorithms.topick.decide import Decisions
from golden.arith.log2_fixed import logarithms
from golden.topick.margin_generator import scaled_margins, threshold_code
from golden.topick.pe_lane import LaneSizes
from golden.topick.pec import limbs, term
from golden.topick.topick_core import probability

SCALE_BITS, SHIFT_BITS, WIDTH = 16, 4, 32
"""Of `hw.topick.pe_lane`'s default preset: mantissa and shift of a scale, binary logarithms."""
TOKENS = 1024
"""Room of `hw.topick.topick_core`'s default preset."""


def sizes_for(d: int, bits: int, chunk_bits: int, tokens: int = 0) -> LaneSizes:
    """The default core's sizes for this operand format; with a narrower logarithm if scores are.

    tokens
        The core has room for this power of two, for the default's 1024 at least.
    """
    room = max(TOKENS, tokens)
    score_bits = 2 * bits + (d - 1).bit_length()
    width = min(WIDTH, score_bits + SCALE_BITS - (bits - chunk_bits))
    return LaneSizes(
        bits=bits,
        chunk_bits=chunk_bits,
        base=score_bits + SCALE_BITS - width,
        fraction=10,
        precision=12,
        limb=16,
        threshold_bits=16,
        entries=64,
        probability_bits=max(bits - 1, (room - 1).bit_length() + 7),
    )


def scale_codes(c: np.ndarray, base: int) -> tuple[np.ndarray, np.ndarray]:
    """``(mantissa, shift)`` as :func:`golden.topick.margin_generator.scale_code`, of each c > 0."""
    most = (1 << SCALE_BITS) - 1
    c = np.asarray(c, np.float64)
    mantissa, shift = np.full(c.shape, most), np.zeros(c.shape, np.int64)
    for s in range(1 << SHIFT_BITS):
        rounded = np.rint(c * 2.0 ** (base + s))
        fits = rounded <= most
        mantissa[fits], shift[fits] = rounded[fits], s
    return mantissa, shift


def decide_bit_exactly(
    order: Iterable[tuple[int, int]],
    partial: np.ndarray,
    q: np.ndarray,
    scale: np.ndarray,
    threshold: float,
    present: np.ndarray,
    sizes: LaneSizes,
) -> Decisions:
    """As :func:`golden.algorithms.topick.decide.decide`, in the arithmetic of the core.

    Each decision knows the denominator of all earlier ones. Token 0 of the order, each lane's
    newest, is never pruned.

    partial
        Integers s^b [chunks, tokens, ...], as ``decide``'s.
    q
        Codes of the queries, integers [..., d].
    scale
        Argument of exp for a score of 1, [...].
    present
        bool[tokens, ...].
    :returns: the probabilities as ``weight``, in units of 2^-probability_bits, and their sum as
        ``denominator``.
    """
    chunks, tokens, *shape = partial.shape
    lanes = int(np.prod(shape))
    z = sizes
    mantissa, shift = scale_codes(np.asarray(scale) * (2.0**z.fraction / np.log(2)), z.base)
    options = {"bits": z.bits, "chunk_bits": z.chunk_bits, "base": z.base}
    most, least = (
        np.concatenate([m.reshape(lanes, -1), np.zeros((lanes, 1), np.int64)], axis=1).T
        for m in scaled_margins(q, mantissa, shift, **options)
    )
    t = partial.astype(np.int64).reshape(chunks, tokens, lanes)
    t = t * mantissa.reshape(lanes) >> z.base + shift.reshape(lanes)
    terms = term(t, least[:, None], fraction=z.fraction, precision=z.precision)
    number, high, low = limbs(*terms, precision=z.precision, limb=z.limb)
    sums = Denominators(lanes, number, (high << z.limb) + low, z)

    code = threshold_code(threshold, fraction=z.fraction, threshold_bits=z.threshold_bits)
    limit = t + (most + code)[:, None]  # pruned if below the denominator's logarithm
    never = np.iinfo(np.int64).max
    limit[:, 0] = never
    if code == (1 << z.threshold_bits) - 1:
        limit[:] = never

    alive = present.reshape(tokens, lanes).copy()
    read = np.zeros((tokens, lanes), np.int8)
    for token, b in order:
        live = np.flatnonzero(alive[token])  # lanes in which the token is not pruned
        if not len(live):
            continue
        pruned = limit[b, token, live] < sums.log2[live]
        sums.replace(token, b, live, pruned)
        alive[token, live] = ~pruned
        read[token, live] = b + 1
    known, log2 = sums.known, sums.log2
    places = z.probability_bits
    p = probability(t[-1], np.where(known, log2, 0), fraction=z.fraction, places=places)
    p = np.where(alive, p, 0)
    return Decisions(
        read.reshape(tokens, *shape),
        alive.reshape(tokens, *shape),
        p.astype(np.float64).reshape(tokens, *shape),
        p.sum(axis=0).astype(np.float64).reshape(shape),
    )


class Denominators:
    """Sums of the latest terms of all lanes, as :class:`golden.topick.dag.Denominator`.

    On the grid of a lane, whose upper limb is `number`, a term of a lower limb counts in fewer
    units: its upper limb is in the sum's lower one, or below. So a term is one integer, shifted
    right by the distance, and what a larger `number` leaves of the sum is in its upper limb, which
    is kept apart because no carry reaches it.

    log2
        Logarithm of each lane, rounded down; less than any other number while the sum is 0.
    """

    UNKNOWN = np.iinfo(np.int64).min

    def __init__(self, lanes: int, number: np.ndarray, units: np.ndarray, sizes: LaneSizes):
        self._terms, self._sizes = (number, units), sizes
        self._number = np.full(lanes, np.iinfo(np.int32).min, np.int64)
        self._units = np.zeros(lanes, np.int64)
        self._upper = np.zeros(lanes, np.int64)
        self._fractions = logarithms(sizes.fraction, sizes.fraction, "down", True)
        self.log2 = np.full(lanes, self.UNKNOWN)

    @property
    def known(self) -> np.ndarray:
        return self.log2 != self.UNKNOWN

    def replace(self, token: int, b: int, live: np.ndarray, pruned: np.ndarray) -> None:
        """Put the term of a token's chunk `b` in place of the one before it, or of a pruned one
        none, in the lanes `live`."""
        self._raise(live[~pruned], self._terms[0][b, token, live[~pruned]])
        new = np.where(pruned, 0, self._on_grid(token, b, live))
        old = self._on_grid(token, b - 1, live) if b else np.zeros_like(new)
        limb = self._sizes.limb
        changed = new != old
        if changed.any():
            live, new, old = live[changed], new[changed], old[changed]
            self._units[live] += new - old
            self._upper[live] += (new >> limb) - (old >> limb)
            self._find_log2(live)

    def _on_grid(self, token: int, b: int, live: np.ndarray) -> np.ndarray:
        number, units = (part[b, token, live] for part in self._terms)
        below = np.clip(self._number[live] - number, 0, 2)
        return units >> below * self._sizes.limb

    def _raise(self, live: np.ndarray, number: np.ndarray) -> None:
        """Make `number` the upper limb where it is larger; what is below two limbs goes."""
        larger = number > self._number[live]
        if not larger.any():
            return
        live, number = live[larger], number[larger]
        next_one = number == self._number[live] + 1
        self._units[live] = np.where(next_one, self._upper[live], 0)
        self._upper[live] = 0
        self._number[live] = number
        self._find_log2(live)

    def _find_log2(self, live: np.ndarray) -> None:
        """Logarithms by float64's exponent and mantissa, which hold the sums exactly."""
        z = self._sizes
        units = self._units[live]
        bits = units.astype(np.float64).view(np.int64)
        exponent = (bits >> 52) - 1023 + (self._number[live] - 1) * z.limb
        fraction = self._fractions[(bits >> 52 - z.fraction) & ((1 << z.fraction) - 1)]
        self.log2[live] = np.where(units == 0, self.UNKNOWN, (exponent << z.fraction) + fraction)
