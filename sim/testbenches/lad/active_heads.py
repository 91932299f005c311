"""Active positions of a head, operands of the blocks of LAD's tile after APID.

Modes and counters are random: what they were in earlier steps does not matter to these blocks.
"""

import dataclasses
import functools

import numpy as np

from golden.arith.adder_tree import adder_tree
from golden.arith.float_multiply import float_multiply
from golden.arith.formats import from_bits, to_bits
from golden.lad.md import Discrepancies, discrepancies
from golden.lad.tables import LineTables, line_tables
from golden.trace import Trace
from hw.lad.tile_parameters import LadTileParameters
from sim.core import payload
from sim.testbenches.decode import layers_of
from sim.testbenches.operands import numbers
from sim.testbenches.strategies import mixture, pick, sometimes

LONGEST = 120
"""Positions of a head at most, so that a stimulus has many heads."""


@dataclasses.dataclass(eq=False)
class ActiveHead:
    """A head's entries, ascending, the last one active; and their rows.

    q, m, n
        Query float16[d], maximum of the scores, number of positions.
    index, mode, count, fresh, halve
        Fields of each entry, as in `entry_layout`; ``halve`` is True for inactive positions.
    k, v
        Rows float16[entries, d].
    table
        uint16[rows, d], the head's rows of counters.
    """

    parameters: LadTileParameters
    q: np.ndarray
    m: np.float16
    n: int
    index: np.ndarray
    mode: np.ndarray
    count: np.ndarray
    fresh: np.ndarray
    halve: np.ndarray
    k: np.ndarray
    v: np.ndarray
    table: np.ndarray

    @property
    def last(self) -> np.ndarray:
        return np.arange(len(self.index)) == len(self.index) - 1

    @property
    def active(self) -> np.ndarray:
        return ~self.halve

    @functools.cached_property
    def counter_row(self) -> np.ndarray:
        """Row of each entry's counters."""
        return self.index // self.parameters.counter_words

    @property
    def changes_row(self) -> np.ndarray:
        """Entries that are the first of their row of counters."""
        return np.diff(self.counter_row, prepend=-1) != 0

    @functools.cached_property
    def s(self) -> np.ndarray:
        """Exact scores of the active positions."""
        return adder_tree(float_multiply(self.q, self.k[self.active]))

    @functools.cached_property
    def discrepancies(self) -> Discrepancies:
        p, active = self.parameters, self.active
        counters = self._digits_of_entries()[active]
        counters = (counters << np.arange(p.counter_bits)).sum(axis=2)
        counters[self.index[active] == self.n - 1] = 0
        return discrepancies(
            self.s,
            self.m,
            self.index[active],
            self.mode[active],
            self.count[active],
            counters,
            n=self.n,
            window=p.window,
            updates=p.updates,
            counter_bits=p.counter_bits,
            tables=tables_of(p),
        )

    def _digits_of_entries(self) -> np.ndarray:
        """Bits of the entries' counters, int64[entries, I, counter_bits]."""
        p = self.parameters
        words = _digits(p, self.table)[self.counter_row, self.index % p.counter_words]
        used = words[:, : p.intervals * p.counter_bits].astype(np.int64)
        return used.reshape(-1, p.intervals, p.counter_bits)

    def rows_written(self) -> np.ndarray:
        """The rows of counters that have an entry, afterwards."""
        p = self.parameters
        counters = np.zeros((len(self.index), p.intervals), np.int64)
        counters[self.active] = self.discrepancies.counters
        before = (self._digits_of_entries() << np.arange(p.counter_bits)).sum(axis=2)
        before[self.index == self.n - 1] = 0
        counters[self.halve] = before[self.halve] >> 1
        digits = _digits(p, self.table)
        words = np.zeros((len(self.index), p.counter_word_bits), np.uint8)
        used = counters[:, :, None] >> np.arange(p.counter_bits) & 1
        words[:, : p.intervals * p.counter_bits] = used.reshape(len(self.index), -1)
        digits[self.counter_row, self.index % p.counter_words] = words
        rows = np.packbits(digits.reshape(len(self.table), -1), axis=1, bitorder="little")
        return rows.view(np.uint16)[self.counter_row[self.changes_row]]

    def entries(self) -> dict[str, np.ndarray]:
        """Fields of `entry_layout`."""
        names = "index", "mode", "count", "fresh", "halve", "last"
        return {name: getattr(self, name) for name in names}


def _digits(p: LadTileParameters, table: np.ndarray) -> np.ndarray:
    """Bits uint8[rows, positions in a row, bits of a position's word] of rows of counters."""
    digits = np.unpackbits(np.ascontiguousarray(table).view(np.uint8), axis=1, bitorder="little")
    return digits.reshape(len(table), p.counter_words, p.counter_word_bits)


def tables_of(p: LadTileParameters) -> LineTables:
    return line_tables(p.apid.bound_values, p.slack)


def correction_fields(heads: list[ActiveHead]) -> dict[str, np.ndarray]:
    """Fields of corrections, of all active positions of these heads."""
    found = [head.discrepancies for head in heads]
    return {
        "cf": to_bits(np.concatenate([one.cf for one in found])),
        "minus": np.concatenate([one.minus for one in found]),
        "plus": np.concatenate([one.plus for one in found]),
        "changed": np.concatenate([one.changed for one in found]),
        "infinite": np.concatenate([~np.isfinite(head.s) for head in heads]),
        "last": np.concatenate([head.last[head.active] for head in heads]),
    }


def pack_entries(p: LadTileParameters, heads: list[ActiveHead]) -> np.ndarray:
    """Beats of entries."""
    return payload.pack(p.entry_layout, entry_fields(heads))


def entry_fields(heads: list[ActiveHead]) -> dict[str, np.ndarray]:
    """Fields of the entries of these heads."""
    parts = [head.entries() for head in heads]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def owners(numbers_of: list[int]) -> np.ndarray:
    """The head of each beat, by the number of beats of each head."""
    return np.repeat(np.arange(len(numbers_of)), numbers_of)


def random_heads(p: LadTileParameters, count: int, rng: np.random.Generator) -> list[ActiveHead]:
    """Heads of any length: plain, scores around bounds, special values, scores beyond FP16."""
    kinds = {"plain": 2, "bounds": 3, "special": 1, "large": 1}
    return [_random_head(p, pick(rng, kinds), rng) for _ in range(count)]


def _random_head(p: LadTileParameters, kind: str, rng: np.random.Generator) -> ActiveHead:
    longest = min(p.positions, LONGEST)
    n = int(rng.choice(np.array([1, rng.integers(1, longest + 1), longest])))
    share = rng.choice([0.1, 0.5, 1])
    index = _positions(p, n, share, rng)
    shape = len(index), p.d
    q, k = numbers("plain", p.d, rng), numbers("plain", shape, rng)
    m = np.float16(max(0.0, rng.normal(2, 2)))
    if kind == "bounds":
        # The score is the key's first element, at a bound or next to it. A small m has low-order
        # bits below the lowest of s, so that their difference is rounded.
        q = np.where(np.arange(p.d) == 0, np.float16(1), np.float16(0))
        m = np.float16(rng.normal() * 2.0 ** -rng.integers(0, 12))
        bounds = rng.choice(np.append(tables_of(p).bounds, 0), shape[0]).astype(np.float64)
        s = (bounds + float(m)).astype(np.float16)
        k[:, 0] = from_bits(
            to_bits(s) + rng.integers(-1, 2, shape[0]).astype(np.uint16), np.float16
        )
    elif kind == "special":
        k = numbers("special", shape, rng)
        m = numbers(pick(rng, {"plain": 1, "special": 1}), 1, rng)[0]
    elif kind == "large":
        q = numbers("any", p.d, rng)
    v = numbers("plain", shape, rng)
    if sometimes(rng, 0.3):
        v[:, rng.integers(p.d)] = 0  # what is added to a column of A
    return _with_counters(p, q, m, n, index, k, v, rng)


def real_heads(
    p: LadTileParameters, trace: Trace, count: int, rng: np.random.Generator
) -> tuple[list[ActiveHead], list[str]]:
    """Heads of tokens of the trace, with their own scores."""
    q, k, v, notes = layers_of(p, trace)
    layers, heads, tokens = q.shape[:3]
    group = heads // k.shape[1]
    longest = min(p.positions, LONGEST)
    found = []
    for number in range(count):
        layer, head = number % layers, number // layers % heads
        n = int(rng.integers(1, longest + 1))
        at = np.arange(n) % tokens
        keys, values = k[layer, head // group, at], v[layer, head // group, at]
        query = q[layer, head, at[-1]]
        s = adder_tree(float_multiply(query, keys))
        m = np.float16(s.max())
        index = _positions(p, n, 0.3, rng)
        found.append(_with_counters(p, query, m, n, index, keys[index], values[index], rng))
    return found, [*notes, "Active positions, modes and counters are random."]


def _positions(p: LadTileParameters, n: int, share: float, rng: np.random.Generator) -> np.ndarray:
    """The window's positions, and a share of those before it."""
    return np.flatnonzero(sometimes(rng, share, n) | (np.arange(n) >= n - p.window))


def _with_counters(p: LadTileParameters, q, m, n, index, k, v, rng) -> ActiveHead:
    """A head with random modes and counters, many of them full or equal to the mode's."""
    full = (1 << p.counter_bits) - 1
    number, old = len(index), index < n - p.window

    def counts(shape) -> np.ndarray:
        middle = int(rng.integers(0, full))
        near = np.clip(middle + rng.integers(-1, 2, shape), 0, full - 1)
        kinds = {
            "near": (2, near),
            "full": (1, full - 1),
            "any": (1, rng.integers(0, full, shape)),
        }
        return mixture(rng, shape, kinds)

    rows = p.regions["counter"].rows
    # Bits of a word beyond the last counter are not read, and words of other positions kept.
    digits = rng.integers(0, 2, (rows, p.counter_words, p.counter_word_bits)).astype(np.uint8)
    counters = counts((number, p.intervals))
    used = counters[:, :, None] >> np.arange(p.counter_bits) & 1
    words = digits[index // p.counter_words, index % p.counter_words]
    words[:, : p.intervals * p.counter_bits] = used.reshape(number, -1)
    digits[index // p.counter_words, index % p.counter_words] = words
    table = np.packbits(digits.reshape(rows, -1), axis=1, bitorder="little").view(np.uint16)
    return ActiveHead(
        p,
        q,
        np.float16(m),
        n,
        index,
        np.where(old, rng.integers(0, p.intervals, number), 0),
        np.where(old, counts(number), rng.integers(0, 2, number)),
        sometimes(rng, 0.3, number),
        old & sometimes(rng, rng.choice([0, 0.2, 0.7]), number),
        k,
        v,
        table,
    )


def write_order(d: int) -> np.ndarray:
    """Numbers of the rows of the caches as they are written: E and F, B to D, columns by turns.

    The columns of a lane are neighbours.
    """
    columns = -(-d // 3)
    lanes = [range(lane * columns, min(d, (lane + 1) * columns)) for lane in range(3)]
    order = [lane[i] for i in range(columns) for lane in lanes if i < len(lane)]
    parts = [*range(d, d + 3), *order]
    return np.array([2 * d + 6, *(2 * part + half for part in parts for half in (0, 1))])
