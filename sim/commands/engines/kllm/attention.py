"""Attention of a language model on KLLM's core, one session a layer (KLLM, III-B2 and IV-A)."""

from functools import partial

import numpy as np

from golden.algorithms.kllm.attention import Codebooks, row_bytes
from golden.kllm.kllm_core import tables_of
from golden.lm.weights import Config
from hw.kllm.core.core_parameters import BEAT
from hw.kllm.kllm_core import KllmCoreParameters
from sim.commands.engines.attention import RtlAttention
from sim.commands.engines.part import LayerRun
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.kllm.core.cached_rows import CachedRows
from sim.testbenches.kllm.core.products import (
    Product,
    packed_inputs,
    results_of_all,
    stimulus_of,
    with_words_late,
)
from sim.testbenches.memory import memory_of


class KllmAttention(RtlAttention[KllmCoreParameters]):
    """One layer's attention on indices, by RTL and by the bit-exact model.

    A token takes two steps of the core. The first clusters its keys and values, a batch of all kv
    heads each, and outputs their indices and scales, which are then stored in memory. The second
    attends to all rows (:class:`CachedRows`).

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
        self._codebooks = c = codebooks
        self._cached = CachedRows(parameters, c, config.d, config.kv_heads, rows)
        self._tables_of_k, self._tables_of_v = tables_of(c.k, c.k), tables_of(c.v, c.v)
        self._rng = np.random.default_rng(run.layer)
        self._tokens = 0

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        self._tokens += 1
        compute = self._modelled if self._check else self._unchecked
        own = [a[:, 0] for a in self._codebooks.prepare(q[:, None], k[:, None])]
        y = compute(self._tokens - 1, *(np.asarray(a).astype(np.float16) for a in (*own, v)))
        rows = len(self._cached)
        self.rows = rows * self._kv_heads
        self.traffic.dense(self.rows, self._d)
        self.traffic.read_codes(self.rows, self.rows, row_bytes(self._d))
        self._record([q, k, v, y], np.arange(rows)[None])  # all tokens, in one cache for all heads
        return y.astype(np.float32)

    def _modelled(self, token: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """A step by the bit-exact model; by the RTL too, but perhaps later."""
        p, stores = self._p, self._stores(k, v)
        found = results_of_all(p, stores)
        store = stimulus_of(p, stores, [0, 0], found, self._rng)
        self._keep([(r.vectors.activation, r.vectors.scale) for r in found])
        products, addresses = self._cached.products(q)
        results = results_of_all(p, products)
        attend = stimulus_of(p, products, addresses, results, self._rng)
        attend = with_words_late(p, attend, products)
        self._submit(partial(self._run, token, store, self._cached.contents(), attend))
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
        self._write(self._cached.contents())
        products, addresses = self._cached.products(q)
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
        k, v = ((index[:, None], scale[:, None]) for index, scale in new)
        self._cached.append(k, v)

    def _write(self, contents: list[tuple[int, np.ndarray]]) -> None:
        memory = self._session.contents["memory"]
        for address, words in contents:
            memory[address : address + len(words)] = words


def words_of_attention(p: KllmCoreParameters, config: Config, rows: int) -> int:
    """Words of a layer's keys and values."""
    if not rows:
        return 1
    return config.kv_heads * (p.words(config.d, rows) + p.words(rows, config.d))
