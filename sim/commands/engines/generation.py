"""A language model that speaks through RTL: token after token, every bit checked."""

import dataclasses
import resource
import time
from collections.abc import Iterator, Sequence

from golden.lm.model import Llama
from golden.lm.weights import Weights


@dataclasses.dataclass(frozen=True)
class Step:
    """One token more.

    token
        The likeliest after those before.
    cycles
        Of the accelerator for each token that the model read in this step, over all layers: one
        number for each of the prompt's tokens in the first step, then one.
    rows
        Tokens in the cache of each layer.
    bits
        Output bits compared in this step.
    cpu_s, wall_s
        Seconds of this step, the model's other arithmetic included.
    """

    token: int
    cycles: list[int]
    rows: list[int]
    bits: int
    cpu_s: float
    wall_s: float


def in_memory(model: Llama) -> Llama:
    """The model with all layers' weights in float32, four bytes each, for many steps."""
    w = model.weights
    layers = [w.layers[index] for index in range(w.config.layers)]
    return Llama(Weights(w.config, w.embedding, layers, w.norm, w.output, w.rope_factors))


def generate(
    model: Llama, prompt: Sequence[int], count: int, attentions: Sequence
) -> Iterator[Step]:
    """The ``count`` likeliest tokens after ``prompt``, one by one, each fed back to the model.

    attentions
        An engine's, one for each layer.
    :raises Difference: at the first bit in which RTL and bit-exact model differ.
    """
    new, start = list(prompt), 0
    bits = 0
    for _ in range(count):
        cpu, wall = cpu_seconds(), time.perf_counter()
        hidden = model.hidden(new, attentions, start=start)
        token = int(model.logits(hidden[-1:]).argmax())
        compared = sum(attention.bits for attention in attentions)
        yield Step(
            token,
            [sum(of) for of in zip(*(a.cycles[start:] for a in attentions), strict=True)],
            [attention.rows // model.config.kv_heads for attention in attentions],
            compared - bits,
            cpu_seconds() - cpu,
            time.perf_counter() - wall,
        )
        start, bits, new = start + len(new), compared, [token]


def cpu_seconds() -> float:
    """Of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
