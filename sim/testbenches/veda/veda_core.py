"""Testbench of the core: rows of q, k and v in, a memory attached, rows of o and evictions out.

A transaction is a step, one token, or a matrix product.
"""

import functools

import numpy as np

from golden.trace import Trace
from hw.veda.veda_core_parameters import VedaCoreParameters
from sim.core.stimulus import ShownRun, Stimulus
from sim.testbenches.attention.vector_path import joined, of_units
from sim.testbenches.decode import fit, layers_of
from sim.testbenches.veda.core_random import A, B, random_steps
from sim.testbenches.veda.core_steps import Steps
from sim.testbenches.veda.pictures import cache_over_time


class VedaCoreTestbench:
    def default_vectors(self, parameters: VedaCoreParameters) -> int:
        return 48 if parameters.d <= 8 else 12

    def stimulus(
        self, parameters: VedaCoreParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        rng = np.random.default_rng(seed)
        if trace is None:
            stimulus = random_steps(parameters, vectors, rng).stimulus([])
        else:
            steps, notes = real_steps(parameters, trace, vectors)
            stimulus = steps.stimulus(notes)
        units = of_units(parameters.vector_path, trace, vectors, rng)
        return functools.reduce(joined, units, stimulus)

    def shown(self, run: ShownRun, figure) -> str:
        return cache_over_time(run, figure, "command", "report")


testbench = VedaCoreTestbench()


def target_of(p: VedaCoreParameters) -> int:
    """Rows kept in real sequences."""
    return min(p.capacity - 1, 24)


def real_steps(
    p: VedaCoreParameters, trace: Trace, count: int, target: int | None = None
) -> tuple[Steps, list[str]]:
    """`count` steps: sequences of the trace's layers in turn.

    They reserve a quarter of the target, and evict after a prompt shorter or longer than it, which
    a core that has blocks reads in blocks. As many go on at once as there are contexts. Every
    fourth transaction is a product, if the core has them: the first rows of V as a matrix, times
    elements of q.
    """
    q, k, v, notes = layers_of(p, trace)
    target = target or min(target_of(p), max(1, count // 3))
    length = min(2 * target + 4, q.shape[2], 1 << p.position_bits)
    steps = Steps(p)
    steps.weights[:] = np.resize(fit(v.reshape(-1, v.shape[-1]), p.d), steps.weights.shape)
    products, at = 0, [(context, 0) for context in range(p.contexts)]  # sequence, token
    for number in range(count):
        if p.vector and number % 4 == 3:
            add_product(steps, q[products % len(q)].ravel(), norm=products % 2 == 1)
            products += 1
            continue
        context = (number - products) % p.contexts
        sequence, t = at[context]
        layer = sequence % len(q)
        prompt = (target // 2, min(target + 1, p.capacity - 1))[sequence % 2]
        tokens = block_of(p, t, min(prompt, length), target // 4)
        rows = (x[layer, :, t : t + tokens] for x in (q, k, v))
        limits = {"target": target, "prompt": prompt, "reserved": target // 4}
        add_token(
            steps, t, *(x if tokens > 1 else x[:, 0] for x in rows), context=context, **limits
        )
        at[context] = (sequence, t + tokens)
        if t + tokens == length:
            at[context] = (sequence + p.contexts, 0)
    return steps, notes


def block_of(p: VedaCoreParameters, t: int, prompt: int, reserved: int) -> int:
    """Number of tokens from `t` on that a step may have: alike in voting, none of which evicts.

    prompt, reserved
        Tokens before the first that evicts; before the first that votes.
    """
    return max(1, min(p.block, (reserved if t < reserved else prompt) - t, prompt - t))


def add_product(steps: Steps, elements: np.ndarray, norm: bool) -> None:
    """Vectors of the first `elements`."""
    p, norm = steps.parameters, norm and steps.parameters.normed > 0
    rows = min(p.normed if norm else p.vector, p.weights)
    x = np.resize(elements, (p.tokens, rows)).astype(np.float16)
    moments = (np.float32(1 / rows), np.float32(1e-5)) if norm else None
    steps.add_product(x, 0, min(4, p.weights // rows), moments)


def add_sequence(
    steps: Steps,
    q,
    k,
    v,
    tokens: int,
    *,
    target: int,
    prompt: int,
    reserved: int,
    protected: int = 0,
) -> None:
    """The first tokens of a layer's ``q, k, v [heads, token, d]``."""
    for t in range(tokens):
        rows = (x[:, t] for x in (q, k, v))
        limits = {"target": target, "prompt": prompt, "reserved": reserved}
        add_token(steps, t, *rows, protected=protected, **limits)


def add_token(
    steps: Steps,
    t: int,
    q,
    k,
    v,
    *,
    target: int,
    prompt: int,
    reserved: int,
    protected: int = 0,
    context: int = 0,
) -> None:
    """Token `t` of a sequence: ``q, k, v [heads, d]``; or a block of tokens from it on."""
    flags = {"restart": t == 0, "vote": t >= reserved, "evict": t >= prompt}
    weights = {"a": A, "b": B}
    steps.add(q, k, v, target=target, protected=protected, context=context, **flags, **weights)
