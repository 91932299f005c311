"""Jobs of ToPick's core, random or of a trace."""

import dataclasses

import numpy as np

from golden.algorithms.topick.quantise import quantise, scale_for
from golden.topick.pe_lane import Head
from golden.topick.topick_core import scores
from golden.trace import Trace
from hw.topick.core_parameters import TopickCoreParameters
from sim.testbenches.decode import random_heads, random_misfit
from sim.testbenches.operands import vectors_by_name
from sim.testbenches.strategies import sometimes
from sim.testbenches.topick.core_jobs import Jobs
from sim.testbenches.topick.pe_lane import codable, coded_head, sizes_of

LONGEST = 40  # tokens of most random sequences
CACHED = 64  # tokens of sequences that begin in the memories, in runs of many heads


@dataclasses.dataclass
class Sequence:
    """A random sequence in a context: its tokens so far and at most, what its commands have."""

    tokens: int = 0
    longest: int = 0
    heads: int = 0
    group: int = 0
    kind: str = ""

    def begin(self, p: TopickCoreParameters, rng: np.random.Generator, cached: int) -> None:
        """A new one, of another length; some of `cached` tokens may be its first ones. Most of
        these sequences have all query heads on one kv head or two, whose lanes have most to do."""
        self.tokens = 0
        self.longest = min(p.tokens, int(rng.choice([1, 2, 5, 12, LONGEST, p.tokens])))
        self.heads, self.group = random_heads(p, rng)
        if cached and sometimes(rng, 0.8):
            self.tokens = cached - 1 if sometimes(rng, 0.2) else int(rng.integers(cached))
            self.longest = min(p.tokens, self.tokens + int(rng.integers(1, 4)))
            if sometimes(rng, 0.7):
                self.heads = p.heads
                self.group = -(-p.heads // int(rng.integers(1, min(2, p.kv_heads) + 1)))
            if self.group >= self.heads and sometimes(rng, 0.3):  # a group may be larger
                self.group = int(rng.integers(self.heads, 1 << p.heads.bit_length()))
        kinds = "extreme", "any scale", "equal", "any", "any", "any", "largest scale", "falls"
        self.kind = kinds[int(rng.integers(8 if cached else 6))]


def random_jobs(p: TopickCoreParameters, heads: int, rng: np.random.Generator) -> Jobs:
    """Sequences of any length, heads, groups, codes, scales and thresholds; refused jobs between.
    Sequences of several contexts go on in any order.

    If they are few, the first job has tokens that may be pruned, most of them cached. If they are
    many, sequences also begin with any number of cached tokens.
    """
    low, high = -(1 << p.bits - 1), (1 << p.bits - 1) - 1
    spread = (high / 2) ** 2 * p.d**0.5
    jobs, left, cached = Jobs(p), heads, 0
    if p.kv_heads < heads <= LONGEST:
        n = min(LONGEST, p.tokens)
        k, v = rng.integers(low, high + 1, (2, p.kv_heads, n, p.d))
        q = rng.integers(low, high + 1, (p.kv_heads, p.d))
        jobs = Jobs(p, (k[:, :-1], v[:, :-1]))
        jobs.add([coded_head(p.lane, row, 8 / spread, 0.03, n) for row in q], k[:, -1], v[:, -1])
        left -= p.kv_heads
    elif heads > LONGEST:
        cached = min(CACHED, p.tokens)
        rows = rng.integers(low, high + 1, (p.contexts, 2, p.kv_heads, cached, p.d))
        # Half of the keys have the least score that their first chunks allow, if q has these signs.
        signs = rng.choice([-1, 1], p.d)
        unknown = (1 << p.bits - p.chunk_bits) - 1
        rows[:, 0, :, 1::2] = rows[:, 0, :, 1::2] & ~unknown | np.where(signs < 0, unknown, 0)
        jobs = Jobs(p, *((k, v) for k, v in rows))
    sequences = [Sequence() for _ in range(p.contexts)]
    while left > 0:
        if sometimes(rng, 0.1):
            jobs.add_refused(*random_refused(p, rng))
            left -= 1
            continue
        context = random_context(p, rng)
        at = sequences[context]
        if at.tokens == at.longest:
            at.begin(p, rng, cached)
        count, group, kind = at.heads, at.group, at.kind
        new = 1
        most = min(p.block, at.longest - at.tokens, left // count)
        if most > 1 and sometimes(rng, 0.6):
            new = int(rng.integers(2, most + 1))
        at.tokens += new
        kv_heads = -(-count // group)
        k, v = rng.integers(low, high + 1, (2, kv_heads, new, p.d))
        if kind == "extreme":
            k, v = (rng.choice([low, high, 0, -1], k.shape) for _ in range(2))
        elif kind == "equal":
            k[:] = 1
        threshold = float(rng.choice([0.3, 0.1, 0.03, codable(p.lane, 1e-3), 0.0, 0.9]))
        made: list[list[Head]] = [[] for _ in range(new)]
        for number in range(min(count * new, left)):
            q = rng.integers(low, high + 1, p.d) >> rng.integers(0, p.bits)
            if kind == "extreme":
                q = rng.choice([low, high, 0, -1], p.d)
            c = float(rng.choice([0.3, 2.0, 8.0, 64.0])) / spread
            head = coded_head(p.lane, q, c, threshold, at.tokens - new + 1 + number % new)
            if kind == "any scale":
                codes = rng.integers(0, 1 << p.scale_bits), rng.integers(0, 1 << p.shift_bits)
                head = dataclasses.replace(head, mantissa=int(codes[0]), shift=int(codes[1]))
            elif kind == "largest scale":
                q = rng.choice([low, high, int(rng.integers(low, high + 1))], p.d)
                head = dataclasses.replace(head, q=q, mantissa=(1 << p.scale_bits) - 1, shift=0)
            elif kind == "falls":
                head = dataclasses.replace(head, q=np.minimum(abs(q), high) * signs)
                head = falling(p, head, rows[context, 0, 0, : head.tokens], rng)
            made[number % new].append(head)
        kv_heads = -(-len(made[0]) // group)
        k, v = k[:kv_heads], v[:kv_heads]
        if new > 1:
            jobs.add_block(made, k, v, group)
        else:
            jobs.add(made[0], k[:, 0], v[:, 0], group, context)
        left -= count * new
        if sometimes(rng, 0.02):
            at.tokens = at.longest
    return jobs


def falling(p: TopickCoreParameters, head: Head, k: np.ndarray, rng: np.random.Generator) -> Head:
    """With the scale, of some, with which most terms lose a limb with a further chunk of the key: a
    term's bound is rounded with each chunk, and may fall by a unit."""
    sizes, best = sizes_of(p.lane), (-1, head)
    for _ in range(40):
        codes = rng.integers(1, 1 << p.scale_bits), rng.integers(0, 1 << p.shift_bits)
        tried = dataclasses.replace(head, mantissa=int(codes[0]), shift=int(codes[1]))
        bound = scores(tried, k, sizes) - tried.margins(sizes)[1][:, None]
        limb = ~(-bound >> p.fraction) // p.limb
        falls = (limb[1:] < limb[:-1]) & (limb[:-1] >= limb[:-1].max(initial=0) - 1)
        best = max(best, (int(falls.sum()), tried), key=lambda pair: pair[0])
    return best[1]


def random_context(p: TopickCoreParameters, rng: np.random.Generator) -> int:
    """Any context; none is drawn for a core of one."""
    return int(rng.integers(p.contexts)) if p.contexts > 1 else 0


def random_refused(p: TopickCoreParameters, rng: np.random.Generator) -> tuple[int, ...]:
    """Numbers of a job that does not fit, see :meth:`Jobs.add_refused`."""
    beyond = range(p.contexts, 1 << (p.contexts - 1).bit_length())
    if beyond and sometimes(rng, 0.3):  # of a context that does not exist
        tokens = int(rng.integers(1, p.tokens + 1))
        return tokens, *random_heads(p, rng), 1, int(rng.choice(beyond))
    context = random_context(p, rng)
    if sometimes(rng, 0.2):  # too many tokens by a number of one bit
        most = (1 << p.tokens.bit_length()) - 1 - p.tokens
        more = 1 << int(rng.integers(0, most.bit_length()))
        return p.tokens + more, *random_heads(p, rng), 1, context
    if p.block == 1 or sometimes(rng, 0.5):
        return *random_misfit(p, p.tokens, rng), 1, context
    heads, group = random_heads(p, rng)
    if sometimes(rng, 0.3):  # more new tokens than there are
        tokens = int(rng.integers(1, p.block))
        return tokens, heads, group, int(rng.integers(tokens + 1, p.block + 1))
    tokens = int(rng.integers(1, p.tokens + 1))
    others = range(p.block + 1, 1 << p.block.bit_length())
    return tokens, heads, group, int(rng.choice([0, *others]))


class RealRows:
    """The last tokens of a layer of a trace: q [heads, token, d], codes of k and v, in `notes` what
    became of the trace's."""

    def __init__(self, p: TopickCoreParameters, trace: Trace, layer: int, tokens: int | None):
        self._p = p
        rows, self.notes = rows_of(p, trace, layer)
        q, k, v, self._scale = rows
        self.tokens = min(k.shape[1], p.tokens, tokens or (LONGEST if p.d <= 8 else 200))
        begin = k.shape[1] - self.tokens
        self.q, k, v = (x[:, begin:] for x in (q, k, v))
        parts = [scale_for(np.abs(x).max(axis=(1, 2)), p.bits) for x in (k, v)]
        self.k, self.v = (
            quantise(x, part[:, None, None], p.bits).astype(np.int64)
            for x, part in zip((k, v), parts, strict=True)
        )
        self._k_scale = parts[0]
        self.heads, self.group = len(q), len(q) // len(k)

    def head(self, number: int, tokens: int, threshold: float) -> Head:
        """A head's query of the last of as many tokens."""
        row = self.q[number, tokens - 1]
        part = scale_for(np.abs(row).max(), self._p.bits)
        c = float(part * self._k_scale[number // self.group] * self._scale)
        return coded_head(self._p.lane, quantise(row, part, self._p.bits), c, threshold, tokens)


def real_jobs(
    p: TopickCoreParameters,
    trace: Trace,
    heads: int,
    rng: np.random.Generator,
    tokens: int | None = None,
    threshold: float = 1e-3,
    layer: int = 0,
) -> tuple[Jobs, list[str]]:
    """Jobs of `heads` heads in all on a layer of the trace: its last tokens, the others cached.

    Of several contexts each has another layer, and jobs of all of them in turn.
    """
    layers = [RealRows(p, trace, layer + n, tokens) for n in range(p.contexts)]
    real = layers[0]
    last, group, notes = real.tokens, real.group, real.notes
    count = -(-heads // real.heads)
    first = max(1, last - -(-count // p.contexts) + 1)
    jobs = Jobs(p, *((of.k[:, : first - 1], of.v[:, : first - 1]) for of in layers))
    threshold = codable(p.lane, threshold)
    left, done, length = heads, 0, last - first + 1
    while done < count:
        turn, context = divmod(done, p.contexts)
        real = layers[context]
        n, some = first + turn % length, range(min(real.heads, left))
        # Blocks of a prompt and tokens in turn, if the core has blocks.
        new = 1
        if p.block > 1 and len(jobs.work) % 2 == 0:
            new = max(1, min(p.block, length - done % length, left // real.heads))
        made = [
            [real.head(number, n + token, threshold) for number in some] for token in range(new)
        ]
        rows = slice(-(-len(some) // group)), slice(n - 1, n - 1 + new)
        if new > 1:
            jobs.add_block(made, real.k[rows], real.v[rows], group)
        else:
            jobs.add(made[0], real.k[rows][:, 0], real.v[rows][:, 0], group, context)
        done, left = done + new, left - new * len(some)
    again = ", repeated" if count > length * p.contexts else ""
    notes.append(
        f"Heads of {first} to {last} tokens{again}, quantised to {p.bits} bits; threshold"
        f" {threshold:.2g}."
    )
    return jobs, notes


def rows_of(p: TopickCoreParameters, trace: Trace, layer: int):
    """``q, k, v [head, token, d]`` as float64, as many heads as fit, and the scale of scores."""
    if trace.q is None or trace.k is None or trace.v is None or trace.scale is None:
        name, rows = next(iter(vectors_by_name(trace).items()))
        rows = _fit(np.asarray(rows, np.float64), p.d)[None]
        return (rows, rows, rows, 1 / np.sqrt(p.d)), [f"Heads are rows of {name} with each other."]
    layer %= len(trace.q)
    kv_heads = min(p.kv_heads, trace.k.shape[1])
    group = min(trace.group, p.heads // kv_heads)
    heads = (np.arange(kv_heads)[:, None] * trace.group + np.arange(group)).ravel()
    q = _fit(trace.q[layer, heads].astype(np.float64), p.d)
    k, v = (_fit(x[layer, :kv_heads].astype(np.float64), p.d) for x in (trace.k, trace.v))
    note = f"q, k and v of {len(heads)} query heads of {kv_heads} kv heads"
    return (q, k, v, trace.scale), [f"{note}, cut or filled up to {p.d} elements."]


def _fit(x: np.ndarray, d: int) -> np.ndarray:
    x = x[..., :d]
    return np.concatenate([x, np.zeros((*x.shape[:-1], d - x.shape[-1]))], axis=-1)
