"""Bit-exact model of LAD's tile: outputs, reports and every word of its memory."""

from dataclasses import dataclass

import numpy as np

from golden.arith.adder_tree import adder_tree
from golden.arith.float_multiply import float_multiply
from golden.attention.decode_core import fits
from golden.lad.ac import Caches, attend, update
from golden.lad.apid import identify
from golden.lad.arithmetic import ARITHMETICS
from golden.lad.centres import centre_scores, find_centre
from golden.lad.codes import code_scores, decode, encode, insert
from golden.lad.counters import counters_in, set_counters
from golden.lad.md import Discrepancies, discrepancies
from golden.lad.tables import line_tables
from golden.lad.tile_sizes import COUNT_BITS, TileSizes


@dataclass(frozen=True, eq=False)
class HeadStep:
    """A head's results of a step.

    o, invalid
        Output float16[d].
    report
        As the tile's, whose ``error`` is 0: a refused job has no heads.
    s, m
        Scores of all positions, float16[n], as EAS has them, and their maximum.
    active
        bool[n].
    discrepancies
        Discrepancies of the active positions.
    large, centres, touched
        Positions, ascending: before the window with an exact score; of the centres, if scores are
        theirs; active or with counters that are halved.
    """

    o: np.ndarray
    invalid: bool
    report: dict[str, int]
    s: np.ndarray
    m: np.ndarray
    active: np.ndarray
    discrepancies: Discrepancies
    large: np.ndarray
    centres: np.ndarray
    touched: np.ndarray


@dataclass(frozen=True)
class _Job:
    """A step: its number of positions, 1 with ``restart``; ``invalid`` before the first one."""

    n: int
    restart: bool
    invalid: bool


def memory_of(shape: tuple[int, int], memory: np.ndarray | None) -> np.ndarray:
    """A copy of `memory`, ``uint16[rows, d]``; zeros without one.

    :raises ValueError: for a memory of another shape or type.
    """
    if memory is None:
        return np.zeros(shape, np.uint16)
    if memory.shape != shape or memory.dtype != np.uint16:
        wrong = f"{memory.dtype}{list(memory.shape)}"
        raise ValueError(f"memory must be uint16{list(shape)}, not {wrong}")
    return memory.copy()


class LadTile:
    """A tile and its memory, ``uint16[rows, d]``, which :meth:`step` changes as the hardware does.

    memory
        What it holds at the beginning; zeros if not given.
    arithmetic
        ``fp16``, the hardware's, or ``float64``: the same steps without rounding, for comparison
        with :mod:`golden.algorithms.lad`. In float64 ``memory`` has only codes, centres' numbers,
        G and counters; :meth:`numbers` and :meth:`caches` have the rest.
    :raises ValueError: for another arithmetic, or a memory of the wrong shape or type.
    """

    def __init__(
        self, sizes: TileSizes, memory: np.ndarray | None = None, *, arithmetic: str = "fp16"
    ):
        if arithmetic not in ARITHMETICS:
            raise ValueError(f"arithmetic must be fp16 or float64, not {arithmetic}")
        shape = sizes.memory_rows, sizes.d
        self.sizes = sizes
        self.memory = memory_of(shape, memory)
        self._arithmetic = ARITHMETICS[arithmetic]
        self._tables = line_tables(sizes.bounds, sizes.slack, exact=self._arithmetic.exact)
        self._begun = False
        self._prefetched: dict[int, np.ndarray] = {}  # positions by head
        if self._arithmetic.exact:
            self._numbers = np.zeros(shape, np.float64)
            self._caches = [Caches.zero(sizes.d, np.float64) for _ in range(sizes.heads)]

    def reset(self) -> None:
        """As the hardware's reset: memory is kept, heads are invalid until a sequence begins."""
        self._begun = False
        self._prefetched = {}

    def rows(self, table: str, part: int) -> np.ndarray:
        """A view of a head's or kv head's part of a table."""
        return self._part(self.memory, table, part)

    def numbers(self, table: str, part: int) -> np.ndarray:
        """The same as numbers [rows, d]: float16, or float64 in that arithmetic."""
        if self._arithmetic.exact:
            return self._part(self._numbers, table, part)
        return self.rows(table, part).view(np.float16)

    def caches(self, head: int) -> Caches:
        """A head's caches A to F."""
        if self._arithmetic.exact:
            return self._caches[head]
        return Caches.from_rows(self.rows("cache", head)[: self.sizes.cache_rows])

    def modes(self, head: int, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Modes of a head's first n positions and the counts of these modes, int[n] each."""
        words = self.rows("g", head).reshape(-1)[:n].astype(np.int64)
        return words >> COUNT_BITS & 15, words & (1 << COUNT_BITS) - 1

    def step(
        self,
        n: int,
        heads: int,
        group: int,
        restart: bool,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
    ) -> list[HeadStep]:
        """A job: queries float16[heads, d] and the new rows float16[kv heads, d] of K and V.

        A job that does not fit is refused: it has no results and changes nothing.
        """
        if not self.fits(1 if restart else n, heads, group):
            return []
        n = 1 if restart else n
        self._begun = self._begun or restart
        if restart:
            self._prefetched = {}
        job = _Job(n, restart, not self._begun)
        results = []
        for head in range(heads):
            kv_head = head // group
            if head % group == 0:
                self._store(kv_head, n - 1, k[kv_head], v[kv_head])
            results.append(self._head(head, kv_head, job, q[head]))
        self._prefetched = {}
        return results

    def prefetch(self, n: int, heads: int, group: int, most: int) -> int:
        """Load rows of at most `most` active positions of each head for the next step; their sum.

        A job that does not fit is refused and changes nothing.

        n
            Positions of the last step.
        """
        if not self.fits(n, heads, group):
            return 0
        left = self.sizes.prefetch
        self._prefetched = {}
        for head in range(heads):
            words = self.rows("g", head).reshape(-1)[:n]
            self._prefetched[head] = np.flatnonzero(words >> 15)[: min(most, left)]
            left -= len(self._prefetched[head])
        return self.sizes.prefetch - left

    def fits(self, n: int, heads: int, group: int) -> bool:
        """Whether a job of `n` positions and these heads is accepted, not refused."""
        size = self.sizes
        return 1 <= n <= size.positions and fits(heads, group, size.heads, size.kv_heads)

    def _part(self, memory: np.ndarray, table: str, part: int) -> np.ndarray:
        base, stride = self.sizes.regions[table]
        return memory[base + part * stride : base + (part + 1) * stride]

    # A new key

    def _store(self, kv_head: int, position: int, k: np.ndarray, v: np.ndarray) -> None:
        """Write the rows of K and V, and the key's code or the words of its centre."""
        self.numbers("k", kv_head)[position] = k
        self.numbers("v", kv_head)[position] = v
        if self.sizes.identification == "codes":
            self._store_code(kv_head, position, k)
        else:
            self._store_centre(kv_head, position, k)

    def _store_code(self, kv_head: int, position: int, k: np.ndarray) -> None:
        bits = self.sizes.code_bits
        codes, unit = encode(k, bits, self._arithmetic)
        first = position * bits // 16
        two = insert(self.rows("code", kv_head)[[first]], codes, position, bits)
        length = -(-(position * bits % 16 + bits) // 16)
        self.rows("code", kv_head)[first : first + length] = two[:length]
        self._append(self.numbers("unit", kv_head), position, unit)

    def _store_centre(self, kv_head: int, position: int, k: np.ndarray) -> None:
        keys = self.numbers("k", kv_head)[:position]
        norm = self.numbers("norm", kv_head).reshape(-1)[:position]
        cid = self.rows("cid", kv_head).reshape(-1)[:position]
        found = find_centre(k, keys, norm, cid, self._arithmetic)
        self._append(self.numbers("norm", kv_head), position, found.norm)
        self._append(self.numbers("dnorm", kv_head), position, found.dnorm)
        self._append(self.rows("cid", kv_head), position, found.cid)

    def _append(self, table: np.ndarray, position: int, word) -> None:
        """A position's word: later elements of its row become 0."""
        row, element = divmod(position, self.sizes.d)
        table[row, element] = word
        table[row, element + 1 :] = 0

    # A head

    def _estimates(self, kv_head: int, q: np.ndarray, n: int) -> tuple[np.ndarray, int, np.ndarray]:
        """Estimated scores [n - window] of positions before the window, rows read, and centres."""
        size = self.sizes
        old = max(n - size.window, 0)
        if size.identification == "codes":
            code_rows = -(-old * size.code_bits // 16)
            codes = decode(self.rows("code", kv_head)[:code_rows], old, size.code_bits)
            units = self.numbers("unit", kv_head).reshape(-1)[:old]
            return code_scores(q, codes, units), code_rows + -(-old // size.d), np.zeros(0, int)
        before = n - 1
        keys = self.numbers("k", kv_head)[:before]
        dnorm = self.numbers("dnorm", kv_head).reshape(-1)[:before]
        cid = self.rows("cid", kv_head).reshape(-1)[:before]
        centres = np.flatnonzero(cid == np.arange(before))
        scores = centre_scores(q, keys, cid, dnorm)[:old]
        return scores, 3 * -(-before // size.d) + len(centres), centres

    def _head(self, head: int, kv_head: int, job: _Job, q: np.ndarray) -> HeadStep:
        size, tables, number = self.sizes, self._tables, self._arithmetic.number
        n, d = job.n, size.d
        old = max(n - size.window, 0)
        keys, values = (self.numbers(name, kv_head)[:n] for name in ("k", "v"))
        g = self.rows("g", head).reshape(-1)[: -(-n // d) * d].astype(np.int64)
        g[n - 1 :] = 0
        words = g[:n]
        # What a step that was left out has left there may be wider than a counter.
        count, mode = words & (1 << size.counter_bits) - 1, words >> COUNT_BITS & 15
        was_active = (words >> 15) & 1

        # EAS: exact scores of M and the window, estimates of the others.
        near = 1 + int(np.sum(np.array(size.bounds) < size.near))
        exact = (mode >= near) & (mode < len(tables))
        exact[old:] = True
        s: np.ndarray = np.empty(n, number)
        s[:old], estimate_rows, centres = self._estimates(kv_head, q, n)
        s[exact] = adder_tree(float_multiply(q, keys[exact]))
        numbers = s[~np.isnan(s)]
        # Adding 0 turns -0 into +0.
        m = number(numbers.max()) + number(0) if len(numbers) else number(np.nan)

        # APID
        found = identify(
            s,
            m,
            mode,
            count,
            bounds=size.bounds,
            slack=size.slack,
            window=size.window,
            counter_bits=size.counter_bits,
        )
        active = found.active
        count, mode = found.count.copy(), found.mode.copy()

        # MD of the active positions; the counters of some inactive ones are halved.
        touched = np.flatnonzero(active | found.halve)
        j = np.flatnonzero(active)
        made = self._change_modes(head, n, m, touched, active[touched], mode[j], count[j], q, keys)
        count[j], mode[j] = made.count, made.mode
        g[:n] = count | mode << COUNT_BITS | active.astype(np.int64) << 15
        self.rows("g", head).reshape(-1)[: len(g)] = g

        # AC
        caches = Caches.zero(d, self._arithmetic.sum) if job.restart else self.caches(head)
        o, bad = attend(caches, q, m, made.cf, values[j], self._arithmetic)
        terms = self._terms(made, keys[j], values[j])
        update(caches, terms, self._arithmetic)
        if terms or job.restart:
            self._set_caches(head, caches)

        counter_rows = 1 + int(np.count_nonzero(np.diff(touched // size.counter_words)))
        rows = -(-(n - 1) // d) + estimate_rows + int(exact.sum())
        hits = int(np.isin(j, self._prefetched.get(head, ())).sum())
        rows += 2 * (len(j) - hits) + counter_rows + (0 if job.restart else size.cache_rows)
        report = {
            "n": n,
            "centres": len(centres),
            "large": int(exact[:old].sum()),
            "active": len(j),
            "fresh": int((was_active[j] == 0).sum()),
            "hits": hits,
            "updated": made.updated,
            "above": made.above,
            "rows": rows,
            "error": 0,
        }
        invalid = job.invalid or bad or made.infinite
        large = np.flatnonzero(exact[:old])
        return HeadStep(o, invalid, report, s, m, active, made, large, centres, touched)

    def _change_modes(
        self,
        head: int,
        n: int,
        m: np.ndarray,
        touched: np.ndarray,
        is_active: np.ndarray,
        mode: np.ndarray,
        count: np.ndarray,
        q: np.ndarray,
        keys: np.ndarray,
    ) -> Discrepancies:
        """MD of the active ones of the `touched` positions, whose counters are changed in memory.

        is_active
            bool[touched]; ``mode`` and ``count`` are those of the active positions, int[J].
        keys
            Rows of all positions, [n, d].
        """
        size = self.sizes
        counters = self._counters(head, touched)
        counters[touched == n - 1] = 0
        j = touched[is_active]
        made = discrepancies(
            adder_tree(float_multiply(q, keys[j])),
            m,
            j,
            mode,
            count,
            counters[is_active],
            n=n,
            window=size.window,
            updates=size.updates,
            counter_bits=size.counter_bits,
            tables=self._tables,
        )
        counters[is_active] = made.counters
        counters[~is_active] >>= 1
        self._set_counters(head, touched, counters)
        return made

    def _terms(self, made: Discrepancies, keys: np.ndarray, values: np.ndarray) -> list:
        """Terms of the caches, as :func:`golden.lad.ac.update` takes them: a mode's out, one in.

        keys, values
            Rows of the active positions, [J, d].
        """
        terms = []
        for u in np.flatnonzero(made.changed):
            for remove, interval in ((True, made.minus[u]), (False, made.plus[u])):
                if interval:  # mode 0 has no line
                    a, b = self._tables.a[interval], self._tables.b[interval]
                    terms.append((remove, a, b, keys[u], values[u]))
        return terms

    def _set_caches(self, head: int, caches: Caches) -> None:
        if self._arithmetic.exact:
            self._caches[head] = caches
        else:
            self.rows("cache", head)[: self.sizes.cache_rows] = caches.to_rows()

    def _counters(self, head: int, positions: np.ndarray) -> np.ndarray:
        """Counters int[positions, I] of a head."""
        size = self.sizes
        shape = size.counter_words, size.counter_word_bits, size.counter_bits, len(self._tables)
        return counters_in(self.rows("counter", head), positions, *shape)

    def _set_counters(self, head: int, positions: np.ndarray, counters: np.ndarray) -> None:
        size = self.sizes
        shape = size.counter_words, size.counter_word_bits, size.counter_bits
        set_counters(self.rows("counter", head), positions, counters, *shape)
