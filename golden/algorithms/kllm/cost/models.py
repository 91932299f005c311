"""Shapes of the language models of section V-A."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Shape:
    """A Llama-family model.

    hidden, inner
        Elements of a token's vector, and of the feed-forward network's inner one.
    heads, kv_heads
        Query heads, and heads of the cache.
    """

    name: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    vocabulary: int = 32000

    @property
    def head(self) -> int:
        """Elements of a head."""
        return self.hidden // self.heads

    @property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """K and N of each product of a layer: Wq, Wk, Wv, Wo, gate, up, down."""
        kv = self.kv_heads * self.head
        h, i = self.hidden, self.inner
        return ((h, h), (h, kv), (h, kv), (h, h), (h, i), (h, i), (i, h))

    @property
    def weights(self) -> int:
        """Number of weights of all layers and the head: each token reads them.

        Not the embedding table.
        """
        layer = sum(k * n for k, n in self.matrices)
        return self.layers * layer + self.hidden * self.vocabulary


MODELS = {
    "llama-7b": Shape("LLaMA-7B", 32, 4096, 11008, 32, 32),
    "llama-13b": Shape("LLaMA-13B", 40, 5120, 13824, 40, 40),
    "llama-30b": Shape("LLaMA-30B", 60, 6656, 17920, 52, 52),
    "llama-2-7b": Shape("LLaMA-2-7B", 32, 4096, 11008, 32, 32),
    "llama-2-13b": Shape("LLaMA-2-13B", 40, 5120, 13824, 40, 40),
    "llama-2-70b": Shape("LLaMA-2-70B", 80, 8192, 28672, 64, 8),
    "mistral-7b": Shape("Mistral-7B", 32, 4096, 14336, 32, 8),
}
"""As the models' authors publish them. Figs. 8 to 12 are of these."""
