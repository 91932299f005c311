"""Attention of a language model on KLLM's core, one session a layer (KLLM, III-B2 and IV-A)."""

from functools import partial

import numpy as np

from golden.algorithms.kllm.attention import OUTLIERS, Codebooks, integer_tables
from golden.arith.float_multiply import float_multiply
from golden.kllm.kllm_core import tables_of
from golden.lm.weights import Config
from hw.kllm.core.core_parameters import BEAT
from hw.kllm.kllm_core import KllmCoreParameters
from sim.commands.engines.attention import RtlAttention
from sim.commands.engines.part import LayerRun
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.kllm.core.products import (
    Product,
    packed_inputs,
    results_of_all,
    stimulus_of,
    with_words_late,
    words_of,
)
from sim.testbenches.memory import memory_of


class KllmAttention(RtlAttention[KllmCoreParameters]):
    """One layer's attention on indices, by RTL and by the bit-exact model.

    A token takes two steps of the core. The first clusters its keys and values, a batch of all kv
    heads each, and outputs their indices and scales. They are then stored in memory: a key as a
    column with its scale, a value as a row, which adds a position to every column. In the second,
    for each kv head, the queries of its group are a batch: their scores go to the softmax, and its
    probabilities times the values' scales are the vectors that multiply the values, as integers.
    The scores of a head are computed before the values of the head before are multiplied, so that
    the softmax has its time.

    The memory's contents are laid out by the host: this is no work of the core.
    """

    block = "kllm.kllm_core"

    def __init__(self, run: LayerRun, config: Config, rows: int, codebooks: Codebooks):
        parameters = run.parameters(KllmCoreParameters)
        words = words_of_attention(parameters, config, rows)
        width = payload.words(parameters.word_layout)
        empty = np.zeros((words, width), np.uint32)
        super().__init__(run, {"memory": memory_of(empty, written=False)})
        self._d, self._kv_heads = config.d, config.kv_heads
        self._region = words // config.kv_heads  # of a head's keys and values
        self._keys = parameters.words(config.d, rows)  # words of the keys
        self._codebooks = c = codebooks
        self._tables_of_k, self._tables_of_v = tables_of(c.k, c.k), tables_of(c.v, c.v)
        self._scores = tables_of(c.q, c.k)
        self._weights = integer_tables(c.v)
        self._rng = np.random.default_rng(run.layer)
        self._cache: list[np.ndarray] = []  # indices [kv head, token, d] and scales of k and of v
        self._tokens = 0

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        self._tokens += 1
        compute = self._modelled if self._check else self._unchecked
        own = [a[:, 0] for a in self._codebooks.prepare(q[:, None], k[:, None])]
        y = compute(self._tokens - 1, *(np.asarray(a).astype(np.float16) for a in (*own, v)))
        rows = self._cache[1].shape[1]
        self.rows = rows * self._kv_heads
        self.traffic.dense(self.rows, self._d)
        self.traffic.read(self.rows, self.rows, self._d)
        self._record([q, k, v, y], np.arange(rows)[None])  # all tokens, in one cache for all heads
        return y.astype(np.float32)

    def _modelled(self, token: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """A step by the bit-exact model; by the RTL too, but perhaps later."""
        p, stores = self._p, self._stores(k, v)
        found = results_of_all(p, stores)
        store = stimulus_of(p, stores, [0, 0], found, self._rng)
        self._keep([(r.vectors.activation, r.vectors.scale) for r in found])
        products, addresses = self._products(q)
        results = results_of_all(p, products)
        attend = stimulus_of(p, products, addresses, results, self._rng)
        attend = with_words_late(p, attend, products)
        self._submit(partial(self._run, token, store, self._contents(), attend))
        y = [r.y for product, r in zip(products, results, strict=True) if product.weighted]
        return np.concatenate(y)

    def _run(
        self, token: int, store: Stimulus, contents: list[tuple[int, np.ndarray]], attend: Stimulus
    ) -> None:
        """A token's two steps on the RTL, compared."""
        self._compared(token, store)
        self._write(contents)
        self._compared(token, attend)
        self.cycles[-2:] = [sum(self.cycles[-2:])]

    def _unchecked(self, token: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """A step by the RTL alone."""
        p, d, heads = self._p, self._d, self._kv_heads
        stores = self._stores(k, v)
        beats = -(-d // BEAT)
        counts = {"outliers": 2 * heads, "indices": 2 * heads * beats, "y": 0}
        outcome = self._rtl(token, packed_inputs(p, stores, [0, 0], self._rng), counts)
        fields = payload.unpack(p.stored_layout, outcome.outputs["indices"])
        index = np.stack([fields[f"index[{n}]"] for n in range(BEAT)], axis=1)
        index = index.reshape(2, heads, -1)[:, :, :d]
        scale = fields["scale"].reshape(2, heads, beats)[:, :, 0].astype(np.uint16)
        self._keep([*zip(index, scale.view(np.float16), strict=True)])
        self._write(self._contents())
        products, addresses = self._products(q)
        sets = -(-d // p.lanes)
        group = len(q) // heads
        pairs = sum(max(1, product.outliers) * len(product.x) for product in products)
        counts = {"outliers": pairs, "indices": 0, "y": heads * sets * group}
        inputs = packed_inputs(p, products, addresses, self._rng)
        outcome = self._rtl(token, inputs, counts)
        self.cycles[-2:] = [sum(self.cycles[-2:])]
        y = self._half(outcome, "y", "y", p.lanes).reshape(heads, sets, group, p.lanes)
        return y.swapaxes(1, 2).reshape(len(q), -1)[:, :d]

    def _stores(self, k: np.ndarray, v: np.ndarray) -> list[Product]:
        """Products that output the indices of a token's keys and values.

        They multiply a column of whatever is in memory; its sum has no use.
        """
        weight, scale = np.zeros((self._d, 1), np.int64), np.ones(1, np.float16)
        return [
            Product(
                *(x, np.ones(x.shape, bool), tables, True, weight, scale, 0),
                store=True,
                partial=True,
            )
            for x, tables in ((k, self._tables_of_k), (v, self._tables_of_v))
        ]

    def _keep(self, new: list[tuple[np.ndarray, np.ndarray]]) -> None:
        """Append indices ``[kv head, d]`` and scales ``[kv head]`` of keys and values."""
        (k, k_scale), (v, v_scale) = new
        k_scale = float_multiply(k_scale, np.array(1 / np.sqrt(self._d), np.float16))
        rows = [array[:, None] for array in (k, k_scale, v, v_scale)]
        if self._cache:
            rows = [np.concatenate(pair, axis=1) for pair in zip(self._cache, rows, strict=True)]
        self._cache = rows

    def _products(self, q: np.ndarray) -> tuple[list[Product], list[int]]:
        """Scores and weighted sums of all heads, and the addresses of their matrices."""
        scores, sums = [], []
        queries = q.reshape(self._kv_heads, -1, self._d)
        for head, (k, k_scale, v, v_scale) in enumerate(zip(*self._cache, strict=True)):
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
        # A head's scores come before the sums of the head before.
        order = scores[:1]
        for following, before in zip(scores[1:], sums[:-1], strict=True):
            order += [following, before]
        products, addresses = zip(*order, sums[-1], strict=True)
        return list(products), list(addresses)

    def _contents(self) -> list[tuple[int, np.ndarray]]:
        """Words of all heads' keys and values, and their addresses."""
        p, ones = self._p, np.ones(self._d, np.float16)
        contents = []
        for head, (k, k_scale, v, _) in enumerate(zip(*self._cache, strict=True)):
            address = head * self._region
            contents.append((address, words_of(p, np.ascontiguousarray(k.T), k_scale)))
            contents.append((address + self._keys, words_of(p, v, ones)))
        return contents

    def _write(self, contents: list[tuple[int, np.ndarray]]) -> None:
        memory = self._session.contents["memory"]
        for address, words in contents:
            memory[address : address + len(words)] = words


def words_of_attention(p: KllmCoreParameters, config: Config, rows: int) -> int:
    """Words of a layer's keys and values."""
    if not rows:
        return 1
    return config.kv_heads * (p.words(config.d, rows) + p.words(rows, config.d))
