"""A decoded token of a language model: all products of its layers, attention and the head."""

import dataclasses
from functools import lru_cache

from golden.algorithms.kllm.cost.cycles import Core, Product, cycles, product_bytes
from golden.algorithms.kllm.cost.models import Shape

EXPONENTIALS = 8
"""In the functional unit (section IV-A): a softmax takes as many scores a cycle."""
STEP = 16
"""Between the context lengths that a mean over a sequence is taken over."""
VECTORS = 4
"""Split into outliers and inliers in a layer: the inputs of Wq, Wo, gate and down."""


@dataclasses.dataclass(frozen=True)
class Token:
    """Cycles of one decode step, by parts, and the bytes that it reads.

    layers, head
        Products with the model's matrices.
    keys, values
        Queries times keys (K-Means times K-Means) and scores times values (integer).
    softmax
        What of the softmax the products of other heads do not hide.
    """

    layers: float
    head: float
    keys: float
    values: float
    softmax: float
    weight_bytes: float
    cache_bytes: float

    @property
    def linear(self) -> float:
        """Cycles of all products with matrices of the model."""
        return self.layers + self.head

    @property
    def cycles(self) -> float:
        """All, because one step follows the other."""
        return self.linear + self.keys + self.values + self.softmax

    @property
    def bytes(self) -> float:
        """Weights and cache."""
        return self.weight_bytes + self.cache_bytes


def decode(shape: Shape, core: Core, context: int, batch: int = 1) -> Token:
    """One token of each of `batch` sequences after `context` tokens, its own among them.

    The sequences share the weights' columns, the query heads of a group the columns of their keys
    and values. Left out: latencies of dependent products, norms, and quantising new keys and
    values.
    """
    layers, head, weight_bytes = _linear(shape, core, batch)
    group = shape.heads // shape.kv_heads
    keys = Product(shape.head, context, core.integer_queries, group)
    values = Product(context, shape.head, True, group)
    caches = shape.layers * shape.kv_heads * batch
    of_keys, of_values = (caches * cycles(core, product) for product in (keys, values))
    softmax = shape.layers * shape.heads * batch * -(-context // EXPONENTIALS)
    return Token(
        layers=layers,
        head=head,
        keys=of_keys,
        values=of_values,
        softmax=max(0.0, softmax - of_keys - of_values),
        weight_bytes=weight_bytes,
        cache_bytes=caches * sum(product_bytes(core, product) for product in (keys, values)),
    )


@lru_cache(maxsize=256)
def _linear(shape: Shape, core: Core, batch: int) -> tuple[float, float, int]:
    """Cycles of all layers' products, of the head's, and the bytes of both."""
    layer = [Product(k, n, vectors=batch) for k, n in shape.matrices]
    head = Product(shape.hidden, shape.vocabulary, vectors=batch)
    return (
        shape.layers * sum(cycles(core, product) for product in layer),
        cycles(core, head),
        shape.layers * sum(product_bytes(core, product) for product in layer)
        + product_bytes(core, head),
    )


@lru_cache(maxsize=256)
def mean_token(shape: Shape, core: Core, tokens: int, batch: int = 1) -> Token:
    """Mean over a sequence of `tokens`, of every `STEP`-th context."""
    made = [decode(shape, core, t, batch) for t in range(STEP, max(tokens, STEP) + 1, STEP)]
    return Token(
        **{
            field.name: sum(getattr(token, field.name) for token in made) / len(made)
            for field in dataclasses.fields(Token)
        }
    )


def a100_bytes(shape: Shape, context: float, batch: int = 1) -> float:
    """Bytes that a decode step reads with FP16 weights and cache, each of them once."""
    cache = 2 * shape.layers * shape.kv_heads * shape.head * context
    return 2 * (shape.weights + batch * cache)


def search_cycles(k: int, pops: int) -> int:
    """Cycles of the paper's Orizuru on k values.

    Both trees level by level, then one comparison after another for each pop (section IV-C). The
    trees run side by side.
    """
    levels = (k - 1).bit_length()
    return levels + pops * levels
