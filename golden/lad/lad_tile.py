"""Bit-exact model of LAD's tile: outputs, reports and every word of its memory."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from golden.arith.adder_tree import adder_tree
from golden.arith.float_multiply import float_multiply
from golden.attention.decode_core import fits
from golden.lad.ac import Caches, attend_heads, update
from golden.lad.apid import Identified, identify
from golden.lad.arithmetic import ARITHMETICS
from golden.lad.centres import centre_scores, find_centre
from golden.lad.codes import code_scores, decode, encode, insert
from golden.lad.counters import counters_in, set_counters
from golden.lad.md import Discrepancies, discrepancies_of_heads
from golden.lad.tables import line_tables
from golden.lad.tile_sizes import COUNT_BITS, TileSizes
from golden.lad.tile_tables import TileTables


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


@dataclass(frozen=True, eq=False)
class _Scores:
    """Scores of all positions.

    s, m, exact
        [heads, n], [heads] and bool[heads, n]: which are of whole keys.
    estimates
        For each head, the rows read for its estimates and the positions of the centres.
    """

    s: np.ndarray
    m: np.ndarray
    exact: np.ndarray
    estimates: list[tuple[int, np.ndarray]]

    def large(self, head: int, window: int) -> np.ndarray:
        """Positions before the window with an exact score."""
        return np.flatnonzero(self.exact[head, : max(self.exact.shape[1] - window, 0)])


class LadTile(TileTables):
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
        super().__init__(sizes, memory, ARITHMETICS[arithmetic])
        self._tables = line_tables(sizes.bounds, sizes.slack, exact=self._arithmetic.exact)
        self._begun = False
        self._prefetched: dict[int, np.ndarray] = {}  # positions by head

    def reset(self) -> None:
        """As the hardware's reset: memory is kept, heads are invalid until a sequence begins."""
        self._begun = False
        self._prefetched = {}

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
        kv_head = np.arange(heads) // group
        self._store(n - 1, k[: kv_head[-1] + 1], v[: kv_head[-1] + 1])
        found = self._attend(_Job(n, restart, not self._begun), kv_head, q[:heads])
        self._prefetched = {}
        return found

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

    # New keys

    def _store(self, position: int, k: np.ndarray, v: np.ndarray) -> None:
        """Write rows of K and V, [kv heads, d], and the keys' codes or words of their centres."""
        self.all_numbers("k", len(k))[:, position] = k
        self.all_numbers("v", len(v))[:, position] = v
        if self.sizes.identification == "codes":
            self._store_codes(position, k)
        else:
            for kv_head, key in enumerate(k):
                self._store_centre(kv_head, position, key)

    def _store_codes(self, position: int, k: np.ndarray) -> None:
        bits = self.sizes.code_bits
        codes, units = encode(k, bits, self._arithmetic)
        first = position * bits // 16
        length = -(-(position * bits % 16 + bits) // 16)
        for kv_head in range(len(k)):
            rows = self.rows("code", kv_head)
            new = insert(rows[[first]], codes[kv_head], position, bits)
            rows[first : first + length] = new[:length]
            self._append(self.numbers("unit", kv_head), position, units[kv_head])

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

    # Heads

    def _estimates(self, kv_head: int, q: np.ndarray, n: int) -> tuple[np.ndarray, int, np.ndarray]:
        """Estimated scores [heads, n - window] of positions before the window, rows read, centres.

        q
            Queries of the kv head, [heads, d].
        """
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
        scores = np.stack([centre_scores(of_head, keys, cid, dnorm)[:old] for of_head in q])
        return scores, 3 * -(-before // size.d) + len(centres), centres

    def _scores(self, n: int, kv_head: np.ndarray, q: np.ndarray, mode: np.ndarray) -> _Scores:
        """EAS: exact scores of M and the window, estimates of the others; the maxima."""
        size, number = self.sizes, self._arithmetic.number
        old = max(n - size.window, 0)
        near = 1 + int(np.sum(np.array(size.bounds) < size.near))
        exact = (mode >= near) & (mode < len(self._tables))
        exact[:, old:] = True
        s: np.ndarray = np.empty(exact.shape, number)
        of_kv_heads = []
        for one in range(kv_head[-1] + 1):
            heads = np.flatnonzero(kv_head == one)
            s[heads, :old], rows, centres = self._estimates(one, q[heads], n)
            of_kv_heads.append((rows, centres))
        head, position = np.nonzero(exact)
        keys = self.all_numbers("k", len(of_kv_heads))[kv_head[head], position]
        s[head, position] = adder_tree(float_multiply(q[head], keys))
        with np.errstate(invalid="ignore"):
            m = np.fmax.reduce(s, axis=1)
        # Adding 0 turns -0 into +0.
        m = np.where(np.isnan(m), number(np.nan), m) + number(0)
        return _Scores(s, m, exact, [of_kv_heads[one] for one in kv_head])

    def _attend(self, job: _Job, kv_head: np.ndarray, q: np.ndarray) -> list[HeadStep]:
        """The heads' steps, of each head's kv head."""
        size, n, heads = self.sizes, job.n, len(kv_head)
        table = self.all_rows("g", heads).reshape(heads, -1)[:, : -(-n // size.d) * size.d]
        words = table[:, :n].astype(np.int64)
        words[:, n - 1] = 0
        # What a step that was left out has left there may be wider than a counter.
        count, mode = words & (1 << size.counter_bits) - 1, words >> COUNT_BITS & 15
        scores = self._scores(n, kv_head, q, mode)
        found = identify(
            scores.s,
            scores.m,
            mode,
            count,
            bounds=size.bounds,
            slack=size.slack,
            window=size.window,
            counter_bits=size.counter_bits,
        )
        active, count, mode = found.active, found.count.copy(), found.mode.copy()
        # MD of the active positions; the counters of some inactive ones are halved.
        head, position = np.nonzero(active)
        ends = [0, *np.cumsum(active.sum(axis=1)).tolist()]
        keys, values = (
            self.all_numbers(name, kv_head[-1] + 1)[kv_head[head], position] for name in ("k", "v")
        )
        s = adder_tree(float_multiply(q[head], keys))
        made = self._change_modes(n, found, s, scores.m[head], head, position, ends)
        count[active], mode[active] = (
            np.concatenate([getattr(of_head, name) for of_head in made])
            for name in ("count", "mode")
        )
        table[:, :n] = count | mode << COUNT_BITS | active.astype(np.int64) << 15
        table[:, n:] = 0
        # AC
        empty = partial(Caches.zero, size.d, self._arithmetic.sum, (heads,))
        caches = empty() if job.restart else self.all_caches(heads)
        cf = np.concatenate([of_head.cf for of_head in made])
        o, bad = attend_heads(caches, q, scores.m, cf, values, ends, self._arithmetic)
        steps = []
        for number in range(heads):
            own = slice(*ends[number : number + 2])
            terms = self._terms(made[number], keys[own], values[own])
            of_head = caches[number]
            update(of_head, terms, self._arithmetic)
            if terms or job.restart:
                self.set_caches(number, of_head)
            touched = np.flatnonzero(active[number] | found.halve[number])
            report = self._report(number, job, scores, words[number], position[own], touched)
            report.update(updated=made[number].updated, above=made[number].above)
            step = HeadStep(
                o[number],
                bool(job.invalid or bad[number] or made[number].infinite),
                report,
                scores.s[number],
                scores.m[number],
                active[number],
                made[number],
                scores.large(number, size.window),
                scores.estimates[number][1],
                touched,
            )
            steps.append(step)
        return steps

    def _report(
        self,
        head: int,
        job: _Job,
        scores: _Scores,
        words: np.ndarray,
        j: np.ndarray,
        touched: np.ndarray,
    ) -> dict[str, int]:
        """A head's report, whose numbers of MD are still to come.

        words
            Of G, before the step.
        j
            Active positions.
        """
        size, n = self.sizes, job.n
        estimate_rows, centres = scores.estimates[head]
        hits = int(np.isin(j, self._prefetched.get(head, ())).sum())
        counter_rows = 1 + int(np.count_nonzero(np.diff(touched // size.counter_words)))
        rows = -(-(n - 1) // size.d) + estimate_rows + int(scores.exact[head].sum())
        rows += 2 * (len(j) - hits) + counter_rows + (0 if job.restart else size.cache_rows)
        return {
            "n": n,
            "centres": len(centres),
            "large": len(scores.large(head, size.window)),
            "active": len(j),
            "fresh": int((words[j] >> 15 & 1 == 0).sum()),
            "hits": hits,
            "updated": 0,
            "above": 0,
            "rows": rows,
            "error": 0,
        }

    def _change_modes(
        self,
        n: int,
        found: Identified,
        s: np.ndarray,
        m: np.ndarray,
        head: np.ndarray,
        position: np.ndarray,
        ends: list[int],
    ) -> list[Discrepancies]:
        """MD of each head's active positions; the counters in memory change, of some inactive ones
        too.

        s, m, head, position
            [J] of all active positions, which end at `ends` for each head.
        """
        size, active = self.sizes, found.active
        heads, per_row = len(active), size.counter_words
        rows = self.all_rows("counter", heads)
        shape = per_row, size.counter_word_bits, size.counter_bits
        of_head, touched = np.nonzero(active | found.halve)
        # As if the heads' tables were one.
        places = touched + of_head * rows.shape[1] * per_row
        rows = rows.reshape(-1, size.d)
        counters = counters_in(rows, places, *shape, len(self._tables))
        counters[touched == n - 1] = 0
        is_active = active[of_head, touched]
        made = discrepancies_of_heads(
            s,
            m,
            position,
            found.mode[head, position],
            found.count[head, position],
            counters[is_active],
            ends,
            n=n,
            window=size.window,
            updates=size.updates,
            counter_bits=size.counter_bits,
            tables=self._tables,
        )
        counters[is_active] = np.concatenate([of_head.counters for of_head in made])
        counters[~is_active] >>= 1
        set_counters(rows, places, counters, *shape)
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
