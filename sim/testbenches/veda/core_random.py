"""Random steps and products of VEDA's core, in any order."""

import itertools
from collections.abc import Iterator

import numpy as np

from golden.veda.voting_engine import WEIGHT_BITS, weight
from hw.veda.veda_core_parameters import VedaCoreParameters
from sim.testbenches.decode import random_heads, random_refused, random_rows
from sim.testbenches.strategies import sometimes
from sim.testbenches.veda.core_steps import Steps

A, B = weight(1.0), weight(0.2)  # the paper's

KINDS = (
    "fills the cache",  # beyond its capacity, with commands that do not evict
    "ties",  # equal scores
    "special",  # an infinity or NaN in q, k or v
    "large",  # scores beyond FP16
    *("plain", "plain"),
    "long",  # up to 256 tokens, a small target
    *("short", "short", "short"),  # few tokens, a small target
)
"""Kinds of random sequences, each as likely as it is often listed."""


def add_refused(steps: Steps, rng: np.random.Generator) -> None:
    """A command that does not fit, or for a context that does not exist."""
    p = steps.parameters
    flags = dict(zip(("restart", "vote", "evict"), sometimes(rng, 0.5, 3), strict=True))
    every = range(1 << max(1, (p.contexts - 1).bit_length()))
    beyond = every[p.contexts :]
    if p.block > 1 and sometimes(rng, 0.5):
        context = int(rng.integers(p.contexts))
        heads, group = random_heads(p, rng)
        flags["tokens"] = _misfit_tokens(steps, context, flags, rng)
    elif beyond and sometimes(rng, 0.3):
        heads, group = random_heads(p, rng)
        context = int(rng.choice(beyond))
    else:
        heads, group = random_refused(p, rng)
        context = int(rng.choice(every))
    steps.add_refused(heads, group, target=0, protected=0, a=A, b=B, context=context, **flags)


def _misfit_tokens(steps: Steps, context: int, flags: dict, rng: np.random.Generator) -> int:
    """No tokens, more than a step may have, or more than the context has slots free."""
    p = steps.parameters
    free = p.capacity + 1 - steps.length(flags["restart"], context)
    if free < p.block:
        return int(rng.integers(free + 1, p.block + 1))
    return int(rng.choice([0, *range(p.block + 1, 1 << p.block.bit_length())]))


def random_steps(p: VedaCoreParameters, steps: int, rng: np.random.Generator) -> Steps:
    """Sequences of any length and heads; equal rows, so that votes tie; infinities and NaNs.

    The first is one of the short ones that evict. Some fill the cache with commands that do not
    evict, and evict many rows in their last step. Some have many more tokens than rows, some very
    few of both. Between steps are commands that the core refuses.
    """
    done = Steps(p)
    done.weights[:] = rng.standard_normal(done.weights.shape)
    sequences = [random_sequences(done, context, rng) for context in range(p.contexts)]
    turns = 0  # that the same context has
    for _ in range(steps):
        if sometimes(rng, 0.1):
            product = p.vector > 0 and sometimes(rng, 0.5)
            (add_refused_product if product else add_refused)(done, rng)
            continue
        if p.vector and sometimes(rng, 0.4):
            add_random_product(done, rng)
            continue
        if turns == 0:
            context, turns = int(rng.integers(p.contexts)), int(rng.choice([1, 1, 1, 2, 8]))
        next(sequences[context])
        turns -= 1
    return done


def random_sequences(done: Steps, context: int, rng: np.random.Generator) -> Iterator[None]:
    """Add a step of a context for each item."""
    p, left = done.parameters, 0
    d = p.d
    positions = 1 << p.position_bits
    for number in itertools.count():
        first = not any(done.work)
        restart = left == 0 and (number > 0 or sometimes(rng, 0.5))
        if left == 0:
            kind = "short" if first else KINDS[rng.integers(0, len(KINDS))]
            longest = min(p.capacity, int(rng.choice([6, 32])))
            left = int(rng.integers(1, longest + 1, 2).max())
            if kind == "fills the cache":
                left = p.capacity + int(rng.integers(1, 5))
            target = int(rng.integers(0, min(p.capacity, int(rng.choice([12, p.capacity]))) + 1))
            prompt = int(rng.integers(0, left + 1))
            if kind == "long":
                longest = min(positions, 256)
                left, target = int(rng.integers(min(30, longest), longest + 1)), min(target, 4)
                prompt = 0
            elif kind == "short":
                left, target = int(rng.integers(2, 9)), int(rng.integers(0, min(p.capacity, 4)))
                left, prompt = max(left, target + 2), 0
            left = min(left, positions)  # a longer sequence would repeat positions
            any_token = int(rng.integers(0, min(positions, 1 << int(rng.integers(1, 30)))))
            protected = min(positions - 1, int(rng.choice([0, 2, target, any_token])))
            heads = int(rng.integers(1, p.heads + 1))
            # The last group may be smaller than the others.
            group = int(rng.integers(-(-heads // p.kv_heads), heads + 1))
            kv_heads = -(-heads // group)
            weights = int(rng.choice([A, 2 * A, A // 2])), int(rng.choice([B, 0, A]))
            if sometimes(rng, 0.4):
                any_two = rng.integers(0, 1 << WEIGHT_BITS, 2)
                a, b = (int(n) for n in any_two >> rng.integers(0, WEIGHT_BITS, 2))
                weights = a, b
        length = done.length(restart, context)
        tokens = 1
        if p.block > 1 and sometimes(rng, 0.7):
            tokens = int(rng.integers(1, min(p.block, left, p.capacity + 1 - length) + 1))
        left -= tokens
        length += tokens - 1
        q, k, v = random_rows(kind, heads, kv_heads, d, rng)
        if tokens > 1:
            others = [random_rows(kind, heads, kv_heads, d, rng) for _ in range(tokens - 1)]
            q, k, v = (np.stack(rows, axis=1) for rows in zip((q, k, v), *others, strict=True))
        done.add(
            q,
            k,
            v,
            restart=restart,
            vote=sometimes(rng, 0.9),
            group=group,
            evict=left == 0 if kind == "fills the cache" else length > prompt,
            target=target,
            protected=protected,
            a=weights[0],
            b=weights[1],
            context=context,
        )
        yield


def add_random_product(done: Steps, rng: np.random.Generator) -> None:
    """A product of any size that fits, some of vectors that are normalised."""
    p, norm = done.parameters, done.parameters.normed > 0 and sometimes(rng, 0.5)
    rows = int(rng.integers(1, min(p.normed if norm else p.vector, p.weights) + 1))
    vectors = int(rng.integers(1, p.tokens + 1))
    blocks = int(rng.integers(1, min(8, p.weights // rows) + 1))
    first = int(rng.integers(0, p.weights - rows * blocks + 1))
    x = rng.standard_normal((vectors, rows)) * rng.choice([1e-3, 1, 300])
    if sometimes(rng, 0.1):
        x[rng.integers(vectors), rng.integers(rows)] = rng.choice([np.inf, -np.inf, np.nan])
    moments = (np.float32(1 / rows), np.float32(rng.choice([1e-5, 1.0]))) if norm else None
    done.add_product(x.astype(np.float16), first, blocks, moments)


def add_refused_product(done: Steps, rng: np.random.Generator) -> None:
    """A product of no rows, vectors or blocks, or of more than there may be."""
    p = done.parameters
    most = [(1 << n.bit_length()) - 1 for n in (p.vector, p.tokens)]
    misfits = [(0, 1, 1, False), (1, 0, 1, False), (1, 1, 0, sometimes(rng, 0.5))]
    misfits += [(most[0], 1, 1, False)] if most[0] > p.vector else []
    misfits += [(1, most[1], 1, False)] if most[1] > p.tokens else []
    misfits += [(p.normed + 1, 1, 1, True)] if p.normed < p.vector else []
    done.add_refused_product(*misfits[rng.integers(len(misfits))])
