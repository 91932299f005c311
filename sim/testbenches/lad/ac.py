"""Testbench of the attention computation module. A transaction is a head.

Caches of a head are random, those that the head before it left, or clear.
"""

import dataclasses

import numpy as np

from golden.arith.formats import to_bits
from golden.lad.ac import Caches, attend, update
from golden.lad.cycles import ac_cycles
from golden.trace import Trace
from hw.lad.ac import AcParameters, attend_layout, attended_layout
from hw.lad.active_fetch import position_rows_layout
from hw.lad.caches.cache_store import cache_row_layout
from hw.lad.md import correction_layout
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.lad.active_heads import (
    ActiveHead,
    correction_fields,
    owners,
    random_heads,
    real_heads,
    tables_of,
    write_order,
)
from sim.testbenches.strategies import pick, sometimes

CACHES = {"as left": 3, "plain": 2, "clear": 1, "any": 1, "subnormal": 1}
"""Kinds of caches at the beginning of a head."""


@dataclasses.dataclass(eq=False)
class Result:
    """A head's part of the stimulus. `rows`, `after`: its caches before and after, uint16[, d]."""

    clear: bool
    invalid: bool
    rows: np.ndarray
    after: np.ndarray | None
    o: np.ndarray
    is_invalid: bool
    active: int
    terms: int


class AcTestbench:
    def default_vectors(self, parameters: AcParameters) -> int:
        return 5 if parameters.d <= 8 else 2

    def mutant_vectors(self, parameters: AcParameters) -> int:
        return 160 if parameters.d <= 8 else 40

    def stimulus(
        self, parameters: AcParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        rng = np.random.default_rng(seed)
        if trace is None:
            return build(parameters, random_heads(parameters, vectors, rng), rng, [])
        heads, notes = real_heads(parameters, trace, vectors, rng)
        return build(parameters, heads, rng, [*notes, "Caches are random or of the head before."])


testbench = AcTestbench()


def _plain(d: int, rng: np.random.Generator) -> Caches:
    """Caches of some inactive positions: products of numbers about 1; F is positive."""
    a, b, c, e = (rng.standard_normal(shape).astype(np.float32) for shape in ((d, d), d, d, d))
    e_, f = np.float32(rng.normal()), np.float32(10 + 10 * rng.random())
    return Caches(a, b, c, e, np.array(e_), np.array(f))


def results_of(p: AcParameters, heads: list[ActiveHead], rng: np.random.Generator) -> list[Result]:
    """Outputs and caches of heads, one after another."""
    tables = tables_of(p)
    caches, found = _plain(p.d, rng), []
    for head in heads:
        kind = pick(rng, CACHES)
        if kind == "plain":
            caches = _plain(p.d, rng)
        rows = caches.to_rows()
        if kind == "any":
            rows = rng.integers(0, 1 << 16, rows.shape).astype(np.uint16)
        if kind == "subnormal":
            rows[:, 1::2] &= 0x807F  # the upper halves of FP32 numbers, without their exponents
        clear = kind == "clear"
        caches = Caches.zero(p.d) if clear else Caches.from_rows(rows)
        made, active = head.discrepancies, head.active
        k, v = head.k[active], head.v[active]
        o, bad = attend(caches, head.q, head.m, made.cf, v)
        terms = [
            (remove, tables.a[mode[u]], tables.b[mode[u]], k[u], v[u])
            for u in np.flatnonzero(made.changed)
            for remove, mode in ((True, made.minus), (False, made.plus))
            if mode[u]
        ]
        update(caches, terms)
        after = caches.to_rows() if terms or clear else None
        invalid = sometimes(rng, 0.1)
        is_invalid = invalid or bad or made.infinite
        found.append(Result(clear, invalid, rows, after, o, is_invalid, len(v), len(terms)))
    return found


def build(
    p: AcParameters, heads: list[ActiveHead], rng: np.random.Generator, notes: list[str]
) -> Stimulus:
    """The stimulus of these heads."""
    results = results_of(p, heads, rng)
    # Rows of the caches arrive in any order.
    loaded = [result for result in results if not result.clear]
    orders = [rng.permutation(p.cache_rows) for _ in loaded]
    empty = np.zeros((0, p.d), np.uint16)
    cache = {
        "row": np.concatenate([*orders, np.zeros(0, int)]),
        "data": np.concatenate([empty, *(r.rows[o] for r, o in zip(loaded, orders, strict=True))]),
    }
    order = write_order(p.d)
    saved = [result.after[order] for result in results if result.after is not None]
    written = {
        "row": np.tile(order, len(saved)),
        "data": np.concatenate([empty, *saved]),
    }
    commands = {
        "q": to_bits(np.stack([head.q for head in heads])),
        "m": to_bits(np.array([head.m for head in heads], np.float16)),
        "clear": np.array([result.clear for result in results]),
        "invalid": np.array([result.invalid for result in results]),
    }
    rows = {
        name: to_bits(np.concatenate([getattr(head, name)[head.active] for head in heads]))
        for name in ("k", "v")
    }
    o = {
        "o": to_bits(np.stack([result.o for result in results])),
        "invalid": np.array([result.is_invalid for result in results]),
    }
    return Stimulus(
        inputs={
            "command": payload.pack(attend_layout(p), commands),
            "cache": payload.pack(cache_row_layout(p), cache),
            "correction": payload.pack(correction_layout(), correction_fields(heads)),
            "rows": payload.pack(position_rows_layout(p), rows),
        },
        outputs={
            "o": payload.pack(attended_layout(p), o),
            "written": payload.pack(cache_row_layout(p), written),
        },
        transaction_of={
            "o": np.arange(len(heads)),
            "written": owners([0 if r.after is None else p.cache_rows for r in results]),
        },
        transactions=len(heads),
        cycles=ac_cycles(
            [(result.active, result.terms, result.clear) for result in results],
            [order.tolist() for order in orders],
            d=p.d,
            latency=p.vpu.latency,
            dot_latency=p.vpu.dot_latency,
        ),
        notes=notes,
    )
