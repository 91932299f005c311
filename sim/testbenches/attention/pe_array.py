"""Testbench of the PE array: queries and rows in, results out. A transaction is a product."""

import dataclasses

import numpy as np

from golden.arith.formats import to_bits
from golden.attention.pe_array import inner_products, outer_product
from golden.trace import Trace
from hw.attention.product_array import SCORE, PeArrayParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.operands import numbers, to_fp16, vectors_by_name
from sim.testbenches.strategies import sometimes

LONGEST = 24  # rows of a product, at most


@dataclasses.dataclass(frozen=True, eq=False)
class Product:
    """One product.

    vector
        ``float16[d]`` the query, or ``float16[l]`` the factors of an `outer` one.
    rows
        ``float16[l, d]``.
    relative
        Subtract the first result of an inner product from all of them.
    """

    outer: bool
    vector: np.ndarray
    rows: np.ndarray
    relative: bool = False

    def result(self, p: PeArrayParameters) -> np.ndarray:
        if self.outer:
            return outer_product(
                self.vector, self.rows, accumulator=p.accumulator, add_stages=p.add_stages
            )
        return inner_products(
            self.vector, self.rows, accumulator=p.accumulator, relative=self.relative
        )


class PeArrayTestbench:
    def default_vectors(self, parameters: PeArrayParameters) -> int:
        return 480 if parameters.lanes <= 2 else 60 if parameters.lanes <= 8 else 16

    def stimulus(
        self, parameters: PeArrayParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        rng = np.random.default_rng(seed)
        if trace is None:
            return build(parameters, random_products(parameters, vectors, rng), rng, [])
        products, notes = real_products(parameters, trace, vectors, rng)
        return build(parameters, products, rng, notes)


testbench = PeArrayTestbench()


def real_products(
    p: PeArrayParameters, trace: Trace, count: int, rng: np.random.Generator
) -> tuple[list[Product], list[str]]:
    """Scores and results of heads in turn; activations where a trace has no attention."""
    if trace.q is None or trace.k is None or trace.v is None:
        arrays = vectors_by_name(trace)
        cut = f"cut or filled up to {p.lanes} elements and repeated where there are too few"
        products, notes = [], [f"No attention: rows are of {', '.join(arrays)}, {cut}."]
        for number in range(count):
            name = list(arrays)[number // 2 % len(arrays)]
            rows = _fit(arrays[name], p.lanes)[:LONGEST]
            outer = bool(number % 2)
            vector = np.resize(rows[0], len(rows)) if outer else rows[0]
            products.append(Product(outer, vector, rows))
        return products, notes
    layers, heads, tokens, size = trace.q.shape
    group = heads // trace.k.shape[1]
    products = []
    for number in range(-(-count // 2)):
        layer, head = number % layers, number // layers % heads
        token = int(rng.integers(min(4, tokens - 1), min(tokens, 2 * LONGEST)))
        q = trace.q[layer, head, token].astype(np.float64) * trace.scale
        k, v = (a[layer, head // group, : token + 1] for a in (trace.k, trace.v))
        score = k.astype(np.float64) @ q
        e = np.exp(score - score.max())
        p_j = (e / e.sum()).astype(np.float16)
        query, relative = _fit(q[None], p.lanes)[0], bool(number % 2)
        products.append(Product(False, query, _fit(k, p.lanes), relative))
        products.append(Product(True, p_j, _fit(v, p.lanes)))
    note = f"Products of q and k, of probabilities and v, of the first heads, of {size} elements"
    if size != p.lanes:
        note += f", {'cut' if size > p.lanes else 'filled up with zeros'} to {p.lanes}"
    return products[:count], [f"{note}."]


def _fit(array: np.ndarray, lanes: int) -> np.ndarray:
    """FP16 rows, cut or padded to `lanes` elements."""
    half, _ = to_fp16("", array[:, :lanes])
    half = np.nan_to_num(half, posinf=65504, neginf=-65504)
    return np.pad(half, ((0, 0), (0, lanes - half.shape[1])))


def random_products(p: PeArrayParameters, count: int, rng: np.random.Generator) -> list[Product]:
    """Inner and outer products of any length and order, of all KINDS of numbers."""
    products = []
    for _ in range(count):
        outer = bool(sometimes(rng, 0.5))
        length = int(rng.choice([1, 2, 3, 4, 5, 6, int(rng.integers(1, LONGEST + 1))]))
        kinds = rng.choice(KINDS, 2)
        vector = numbers(kinds[0], length if outer else p.lanes, rng)
        rows = numbers(kinds[1], (length, p.lanes), rng)
        kind = rng.random()
        if kind < 0.4:
            if outer and sometimes(rng, 0.7):
                vector, rows = _scaled(vector.shape, -12, 5, rng), _scaled(rows.shape, -3, 8, rng)
            if outer:
                vector, rows = _residual(p, vector, rows, whole=bool(sometimes(rng, 0.5)))
            else:
                vector, rows = _cancelled(p, vector, rows)
        elif kind < 0.6 and outer:
            vector, rows = _tied(p, rng)
        relative = not outer and bool(sometimes(rng, 0.5))
        if relative and sometimes(rng, 0.3):
            vector[0], rows[:, 0] = 16, rng.choice([4, 64, 1024])  # a common offset
        products.append(Product(outer, vector, rows, relative))
    return products


def _cancelled(p: PeArrayParameters, query: np.ndarray, rows: np.ndarray):
    """Half of the products are minus the others rounded to FP16: the sum is the rounding errors."""
    half = p.lanes // 2
    with np.errstate(all="ignore"):
        rows[:, half : 2 * half] = query[:half] * rows[:, :half]
    query[half : 2 * half] = -1
    return query, rows


def _residual(p: PeArrayParameters, factors: np.ndarray, rows: np.ndarray, whole: bool):
    """Append rows that subtract the FP16 result, or each partial sum's: low-order bits remain."""
    for _ in range(2 if whole else 2 * p.add_stages):
        step, number = (1, 0) if whole else (p.add_stages, len(rows) % p.add_stages)
        part = factors[number::step], rows[number::step]
        stages = p.add_stages if whole else 1
        high = np.zeros(p.lanes, np.float16)
        if len(part[0]):
            high = outer_product(*part, accumulator=p.accumulator, add_stages=stages)
        factors, rows = np.append(factors, np.float16(-1)), np.append(rows, high[None], axis=0)
    return factors, rows


def _scaled(shape, low: int, high: int, rng: np.random.Generator) -> np.ndarray:
    """FP16 numbers of any significand and sign, of magnitude 2^low to 2^high."""
    field = rng.integers(low + 15, high + 15, shape)
    return (
        (rng.integers(0, 2, shape) << 15 | field << 10 | rng.integers(0, 1024, shape))
        .astype(np.uint16)
        .view(np.float16)
    )


def _tied(p: PeArrayParameters, rng: np.random.Generator):
    """Outer product whose sums are ties between FP16 numbers, or off by as little as FP32 can."""
    value = rng.integers(0, 0x7000, p.lanes).astype(np.uint16).view(np.float16)
    ulp = np.spacing(value).astype(np.float64)
    less = rng.integers(-1, 2, p.lanes) / 2.0 ** rng.choice([2, 6, 12, 13, 13, 13, 14], p.lanes)
    sign = rng.choice([-1, 1], p.lanes)
    terms = np.stack([value, ulp / 2 * 2**6, ulp * less * 2**12]).astype(np.float16)
    # A sum of 24 ones, FP32's full significand, or one that rounds up from there.
    ones = np.array([[2047 * 16], [2047 / 2], [rng.choice([24, 31])]], np.float16)
    terms = np.where(sometimes(rng, 0.2, p.lanes), ones, terms)
    factors = np.array([1, 2.0**-6, 2.0**-12], np.float16)
    order = rng.permutation(3)
    padded = np.zeros((3, p.add_stages), np.float16)  # the other partial sums are 0
    padded[:, 0] = factors[order]
    rows = np.repeat((terms * sign.astype(np.float16))[order], p.add_stages, axis=0)
    first = int(rng.integers(0, p.add_stages))
    return np.roll(padded.ravel(), first), np.roll(rows, first, axis=0)


KINDS = ("plain", "plain", "any", "small", "one", "special")


def build(
    p: PeArrayParameters, products: list[Product], rng: np.random.Generator, notes: list[str]
) -> Stimulus:
    """The stimulus of these products."""
    names = ("w", "x", "outer", "relative", "last")
    rows: dict[str, list[np.ndarray]] = {name: [] for name in names}
    queries, scores, sums = [], [], []
    of_scores, of_sums = [], []
    for number, product in enumerate(products):
        length = len(product.rows)
        last = np.arange(length) == length - 1
        any_factor = rng.integers(0, 1 << 16, length)
        rows["w"].append(to_bits(product.rows))
        rows["x"].append(to_bits(product.vector) if product.outer else any_factor)
        rows["outer"].append(np.full(length, product.outer))
        # The array ignores it in outer products.
        any_flag = sometimes(rng, 0.5, length)
        rows["relative"].append(any_flag if product.outer else np.full(length, product.relative))
        rows["last"].append(last)
        result = to_bits(product.result(p))
        if product.outer:
            sums.append(result)
            of_sums.append(number)
        else:
            queries.append(to_bits(product.vector))
            scores.append((result, last))
            of_scores += [number] * length
    fields = {name: np.concatenate(parts) for name, parts in rows.items()}
    s, last = (
        np.concatenate(parts) for parts in (zip(*scores, strict=True) if scores else [[[]], [[]]])
    )
    return Stimulus(
        inputs={
            "q": _pack_vectors(p, queries),
            "i": payload.pack(p.input_layout, fields),
        },
        outputs={
            "s": payload.pack(SCORE, {"s": s, "last": last}),
            "o": _pack_vectors(p, sums),
        },
        transaction_of={"s": np.array(of_scores, int), "o": np.array(of_sums, int)},
        transactions=len(products),
        cycles=p.cycles([(product.outer, len(product.rows)) for product in products]),
        notes=notes,
    )


def _pack_vectors(p: PeArrayParameters, vectors: list[np.ndarray]) -> np.ndarray:
    """FP16 vectors as payloads."""
    table = np.array(vectors, np.uint16).reshape(-1, p.lanes)
    return payload.pack(p.query_layout, {f"[{lane}]": table[:, lane] for lane in range(p.lanes)})
