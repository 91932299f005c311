"""Indices of keys and values in a core's memory, and the products that attend to them."""

import numpy as np

from golden.algorithms.kllm.attention import OUTLIERS, Codebooks, integer_tables
from golden.arith.float_multiply import float_multiply
from golden.kllm.kllm_core import tables_of
from hw.kllm.kllm_core import KllmCoreParameters
from sim.core import payload
from sim.core.memory import Memory
from sim.testbenches.kllm.core.products import Product, words_of
from sim.testbenches.memory import memory_of


class CachedRows:
    """Indices and scales of all kv heads' keys and values.

    A key is a column of a matrix with its scale, a value a row, which adds a position to every
    column. Each head has a region of the memory: words of its keys, then of its values.

    capacity
        Most tokens.
    """

    def __init__(
        self, p: KllmCoreParameters, codebooks: Codebooks, d: int, kv_heads: int, capacity: int
    ):
        self._p, self._codebooks = p, codebooks
        self._d, self._kv_heads = d, kv_heads
        self._keys = p.words(d, capacity)
        self._region = self._keys + p.words(capacity, d)
        self._scores = tables_of(codebooks.q, codebooks.k)
        self._weights = integer_tables(codebooks.v)
        self._rows: list[np.ndarray] = []  # indices [kv head, token, d], scales; of k and of v

    def __len__(self) -> int:
        """Tokens."""
        return self._rows[1].shape[1] if self._rows else 0

    def append(
        self, keys: tuple[np.ndarray, np.ndarray], values: tuple[np.ndarray, np.ndarray]
    ) -> None:
        """Indices ``[kv head, token, d]`` and scales ``[kv head, token]`` of new tokens."""
        (k, k_scale), (v, v_scale) = keys, values
        k_scale = float_multiply(k_scale, np.array(1 / np.sqrt(self._d), np.float16))
        new = [k, k_scale, v, v_scale]
        if self._rows:
            new = [np.concatenate(pair, axis=1) for pair in zip(self._rows, new, strict=True)]
        self._rows = new

    def products(self, q: np.ndarray) -> tuple[list[Product], list[int]]:
        """Scores and weighted sums of all heads, and the addresses of their matrices.

        For each kv head, the queries of its group are a batch. Their scores go to the softmax, and
        its probabilities times the values' scales are the vectors that multiply the values, as
        integers. The scores of a head are computed before the values of the head before are
        multiplied, so that the softmax has its time.

        q
            ``float16[head, d]``.
        """
        scores, sums = [], []
        queries = q.reshape(self._kv_heads, -1, self._d)
        for head, (k, k_scale, v, v_scale) in enumerate(zip(*self._rows, strict=True)):
            x = np.broadcast_to(v_scale, (len(queries[head]), len(v_scale)))
            ones, every = np.ones(self._d, np.float16), np.ones(x.shape, bool)
            keep = np.ones(queries[head].shape, bool)
            address = head * self._region
            outliers = self._codebooks.query_outliers
            score = Product(
                queries[head], keep, self._scores, True, k.T, k_scale, outliers, softmax=True
            )
            weigh = Product(
                x, every, self._weights, True, v, ones, OUTLIERS, integer=True, weighted=True
            )
            scores.append((score, address))
            sums.append((weigh, address + self._keys))
        order = scores[:1]
        for following, before in zip(scores[1:], sums[:-1], strict=True):
            order += [following, before]
        products, addresses = zip(*order, sums[-1], strict=True)
        return list(products), list(addresses)

    def contents(self) -> list[tuple[int, np.ndarray]]:
        """Words of all heads' keys and values, and their addresses."""
        p, ones = self._p, np.ones(self._d, np.float16)
        contents = []
        for head, (k, k_scale, v, _) in enumerate(zip(*self._rows, strict=True)):
            address = head * self._region
            contents.append((address, words_of(p, np.ascontiguousarray(k.T), k_scale)))
            contents.append((address + self._keys, words_of(p, v, ones)))
        return contents

    def memory(self) -> Memory:
        """The core's memory with these rows."""
        words = np.zeros(
            (self._kv_heads * self._region, payload.words(self._p.word_layout)), np.uint32
        )
        for address, of in self.contents():
            words[address : address + len(of)] = of
        return memory_of(words, written=False)

    def are_keys(self, addresses: np.ndarray) -> np.ndarray:
        """Whether the words at these addresses are of keys."""
        return addresses % self._region < self._keys
