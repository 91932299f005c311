"""Testbench of the RMS factor: indices and outliers in, scale and factor out.

A transaction is a vector.
"""

import numpy as np

from golden.arith.formats import to_bits
from golden.kllm.inverse_rms import mean_square
from golden.kllm.kllm_core import front_end
from golden.kllm.rms_factor import rms_factor, sums_of_squares
from golden.trace import Trace
from hw.arith.float_format import FP16
from hw.kllm.pe_lane import VectorScale
from hw.kllm.rms_factor import RmsFactorParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.kllm.exact_sums import any_number, numbers, terms_for
from sim.testbenches.kllm.inverse_rms import changes
from sim.testbenches.kllm.layers import layers_of
from sim.testbenches.strategies import sometimes

LANES = 16
OUTLIERS = ("max_value", "min_value", "max_repeated", "min_repeated")


class RmsFactorTestbench:
    def default_vectors(self, parameters: RmsFactorParameters) -> int:
        return 300 if parameters.k <= 64 else 24

    def stimulus(
        self, parameters: RmsFactorParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        p = parameters
        rng = np.random.default_rng(seed)
        if trace is None:
            return build(p, random_vectors(p, vectors, rng), rng, [])
        layers, notes = layers_of(trace, p.k, 4, p.bits, 4, p.outliers)
        rows = []
        for number in range(vectors):
            layer = layers[number % len(layers)]
            x = layer.x[number // len(layers) % len(layer.x)][None]
            v = front_end(x, layer.tables, p.outliers)
            pairs = {name: v.pairs[name][0] for name in ("present", *OUTLIERS)}
            constants = (np.float32(1 / p.k), np.float32(1e-5))
            row = (v.activation[0], v.keep[0], pairs, layer.tables.squares, v.scale[0])
            rows.append((*row, *constants, number % 4 != 3))
        return build(p, rows, rng, notes)


testbench = RmsFactorTestbench()


def random_vectors(p: RmsFactorParameters, vectors: int, rng: np.random.Generator) -> list[tuple]:
    """Indices, mask, pairs, squares, scale, 1 / K, eps and `normalise` of each vector."""
    rows = []
    for _ in range(vectors):
        special = rng.random()
        if special < 0.7:
            exact = special >= 0.5 and p.k >= 3
            rows.append((exact_vector if exact else cancelling_vector)(p, rng))
            continue
        kind = int(rng.choice([0, 0, 1, 2, 3]))
        length = int(rng.integers(p.k // 2 + 1, p.k + 1))
        present = np.arange(p.outliers) < rng.choice([p.outliers, p.outliers, 0])
        pairs = {"present": present} | random_repeats(present, rng)
        for end in ("max_value", "min_value"):
            pairs[end] = np.where(present, to_bits(numbers(kind, p.outliers, rng)), 0)
        index = rng.integers(0, 1 << p.bits, length)
        if sometimes(rng, 0.2):
            index[:] = index[0]
        with np.errstate(all="ignore"):
            squares = np.square(numbers(kind, 1 << p.bits, rng))
            scale = np.abs(numbers(kind, (), rng))
        keep = rng.random(length) < rng.choice([0.0, 0.7, 1.0])
        eps = np.float32(rng.choice([0, 1e-5, 1]))
        constants = (np.float32(1 / length), eps, bool(sometimes(rng, 0.7)))
        rows.append((index, keep, pairs, squares, scale, *constants))
    return rows


def random_repeats(present: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Flags of repeated outliers; most vectors have none."""
    share = rng.choice([0, 0, 0.3])
    return {name: present & (sometimes(rng, share, len(present))) for name in OUTLIERS[2:]}


def cancelling_vector(p: RmsFactorParameters, rng: np.random.Generator) -> tuple:
    """A vector whose sums have any exponent and cancel, so that low-order bits show in r.

    Squares may be negative here, unlike a centroid's.
    """
    length = int(rng.integers(p.k // 2 + 1, p.k + 1))
    index = rng.integers(0, 1 << p.bits, length)
    keep = rng.random(length) < rng.choice([0.1, 0.7, 1.0])
    counts = np.bincount(index[keep], minlength=1 << p.bits)
    present = np.arange(p.outliers) < rng.choice([p.outliers, p.outliers, 0])
    spread, middle = int(rng.integers(1, 40)), int(rng.integers(-24, 10))
    ends = [any_number(middle, min(middle + spread, 16), rng) for _ in range(2 * p.outliers)]
    values = to_bits(np.array(ends).astype(np.float16)).reshape(2, -1)
    pairs = {"present": present} | random_repeats(present, rng)
    for end, bits in zip(("max_value", "min_value"), values, strict=True):
        pairs[end] = np.where(present, bits, 0)
    scale = np.float16(any_number(-6, 6, rng) if sometimes(rng, 0.5) else 1)
    squares = np.array([any_number(-24, 15, rng) for _ in counts]).astype(np.float16)
    bins = rng.permutation(np.flatnonzero(counts))[:3]
    known = np.where(np.isin(np.arange(len(counts)), bins), 0, squares).astype(np.float64) @ counts
    zeros = np.zeros(len(counts), np.float16)
    one = {name: pairs[name][None] for name in OUTLIERS}
    _, o = sums_of_squares(index[None], keep[None], one, zeros)
    goal = any_number(-24, 20, rng)
    if sometimes(rng, 0.4):
        goal = -float(o[0]) / float(scale) ** 2 * (1 + any_number(-26, -6, rng))
    squares[bins] = terms_for(counts[bins], float(goal - known))
    s, o = sums_of_squares(index[None], keep[None], one, squares)
    constant = np.ones(1, np.float32)
    total = mean_square(s, o, np.asarray(scale)[None], constant, 0 * constant)[0]
    kind = rng.integers(0, 4)
    factor = 1.0
    if kind == 0:
        factor = abs(any_number(-12, 1, rng))
    elif kind == 1 and np.isfinite(total) and total:  # brings r into range
        factor = 2.0 ** np.clip(int(rng.integers(-20, 20)) - np.frexp(total)[1], -126, 126)
    inverse_k = np.float32(factor)
    mean = float(total) * float(inverse_k)
    place = 2.0 ** (int(np.frexp(mean)[1]) - int(rng.integers(6, 40)))
    # eps leaves all of the mean, its lowest bits, or nearly 0; or the least mean of some r.
    goal = rng.choice(changes()) * 4.0 ** int(rng.integers(-6, 7))
    left = [0, np.fmod(mean, place) - mean, -mean * (1 + any_number(-30, -6, rng)), goal - mean]
    eps = np.float32(left[int(rng.integers(0, 4))])
    if sometimes(rng, 0.5):
        eps = np.nextafter(eps, np.float32(rng.choice([-np.inf, np.inf])))
    return index, keep, pairs, squares, scale, inverse_k, eps, bool(sometimes(rng, 0.95))


def exact_vector(p: RmsFactorParameters, rng: np.random.Generator) -> tuple:
    """A vector of three indices whose last multiply-add is exact, or a near-tie where r changes.

    The former leaves only the low-order bits of a product, with any exponent.
    """
    length = int(rng.integers(max(3, p.k // 2 + 1), p.k + 1))
    keep = np.arange(length) < 3
    index = np.concatenate([rng.permutation(1 << p.bits)[:3], rng.integers(0, 4, length - 3)])
    if sometimes(rng, 0.5):
        s = int(rng.integers(1 << 23, 1 << 24)) | 1
        rest = int(rng.integers(1, 1 << int(rng.integers(1, 25))))
        inverse_k = rest * pow(s, -1, 1 << 24) % (1 << 24)
        eps = float(rest - s * inverse_k)
    else:
        s, goal = 3, rng.choice(changes())
        twice = 1 + (goal >= 2)
        product = int(goal / twice * 2.0**25) + int(rng.choice([-2, 2]))
        product -= product % 3  # no near-tie if this changes it
        inverse_k, eps = product // 3, product * any_number(-70, -24, rng)
        inverse_k, eps = inverse_k * twice, eps * twice
    power = int(rng.integers(-20, -9))
    squares = np.zeros(1 << p.bits)
    squares[index[:3]] = [s >> 13 << 13, s & 0x1FFC, s & 3]
    squares = (squares * 2.0**power).astype(np.float16)
    size = 2.0 ** int(rng.integers(-34, -14) - power)
    empty = np.zeros(p.outliers, np.int64)
    pairs = {"present": empty.astype(bool)} | dict.fromkeys(OUTLIERS, empty)
    constants = (np.float32(inverse_k * size), np.float32(eps * size * 2.0**power), True)
    return index, keep, pairs, squares, np.float16(1), *constants


def build(p: RmsFactorParameters, rows: list[tuple], rng: np.random.Generator, notes) -> Stimulus:
    """The stimulus of these vectors."""
    beats, scales, commands = [], [], []
    for index, keep, pairs, squares, scale, inverse_k, eps, normalise in rows:
        count = -(-len(index) // LANES)
        padded = rng.integers(0, 1 << p.bits, count * LANES)
        padded[: len(index)] = index
        kept = np.zeros(count * LANES, bool)
        kept[: len(index)] = keep
        mask = kept.reshape(count, LANES) @ (1 << np.arange(LANES))
        last = np.arange(count) == count - 1
        beats.append({"index": padded.reshape(count, LANES), "keep": mask, "last": last})
        r = np.ones((), np.float16)
        if normalise:
            one = {name: pairs[name][None] for name in OUTLIERS}
            inputs = (index[None], keep[None], one, squares, np.asarray(scale)[None])
            r = rms_factor(*inputs, inverse_k, eps)[0]
        scales.append((to_bits(scale), to_bits(r)))
        commands.append((normalise, to_bits(inverse_k), to_bits(eps), to_bits(squares)))
    number = np.arange(p.outliers)
    pairs = [row[2] for row in rows]
    ends = {
        f"{end}.{name}": np.concatenate([pair[f"{end}_{name}"] for pair in pairs])
        for end in ("max", "min")
        for name in ("value", "repeated")
    }
    ends["present"] = np.concatenate([pair["present"] for pair in pairs])
    ends["last"] = np.tile(number == p.outliers - 1, len(rows))
    command = [np.array(field) for field in zip(*commands, strict=True)]
    names = ("normalise", "inverse_k", "eps", "squares")
    s_a, factors = (np.array(field) for field in zip(*scales, strict=True))
    return Stimulus(
        inputs={
            "indices": payload.pack(
                p.indices_layout, {n: np.concatenate([b[n] for b in beats]) for n in beats[0]}
            ),
            "pairs": payload.pack(p.pair_layout, ends),
            "scale": payload.pack(FP16.width, {"payload": s_a}),
            "command": payload.pack(p.command_layout, dict(zip(names, command, strict=True))),
        },
        outputs={"o": payload.pack(VectorScale, {"s_a": s_a, "r": factors})},
        transaction_of={"o": np.arange(len(rows))},
        transactions=len(rows),
        cycles=p.cycles([len(b["last"]) for b in beats], [row[-1] for row in rows]),
        notes=notes,
    )
