"""A layer's step on the cores with the common ports: dense, H2O's, VEDA's, the sixth design's."""

from typing import Any

import numpy as np

from golden.tsuru.row_search import FRACTION
from golden.veda.voting_engine import weight
from hw.attention.decode_core import DecodeParameters
from hw.baseline.dense_core import DenseCoreParameters
from hw.baseline.h2o_core import H2oCoreParameters
from hw.catalogue import find
from hw.tsuru.row_search import PLANES
from hw.tsuru.tsuru_core import TsuruCoreParameters
from hw.veda.core_work import StepWork
from hw.veda.veda_core_parameters import VedaCoreParameters
from sim.commands.engines.decode import power_of_two
from sim.core.design import generate
from sim.studies.compare.begun import begun
from sim.studies.compare.data import LayerData, Shape
from sim.studies.compare.step import OTHER, K, LayerStep, V
from sim.testbenches.baseline.dense_core import DenseSteps
from sim.testbenches.baseline.h2o_core import H2oSteps
from sim.testbenches.decode import offer, offer_rows, output_streams, packed_rows
from sim.testbenches.memory import NAME, memory_of
from sim.testbenches.tsuru.row_search import rotated
from sim.testbenches.tsuru.tsuru_core import TsuruSteps
from sim.testbenches.veda.core_steps import Steps

DEPTH = 64
"""Rows that a core requests ahead."""
A, B = weight(1.0), weight(0.2)
"""VEDA's threshold of votes."""


def kept_tokens(shape: Shape, count: int) -> np.ndarray:
    """Tokens of a cache of that many rows: spread evenly over the context before the new one."""
    return np.linspace(0, shape.n - 2, count).round().astype(int)


def kind_of(p: DecodeParameters):
    """Of rows with the addresses | kv head | K or V | row |."""
    return lambda rows: np.where(rows >> p.row_bits & 1, V, K)


def before_of(p: DecodeParameters, stored: np.ndarray) -> dict:
    """The memory with these rows."""
    return {NAME: memory_of(packed_rows(p, stored.reshape(-1, p.d)))}


def dense_parameters(shape: Shape, knobs: dict[str, Any]) -> DenseCoreParameters:
    capacity = power_of_two(max(32, shape.n))
    return DenseCoreParameters(
        shape.d, capacity, shape.heads, shape.kv_heads, DEPTH, parallel=shape.group
    )


def dense_step(p: DenseCoreParameters, shape: Shape, data: LayerData, knobs: dict) -> LayerStep:
    """The last token's, on a core that has the length of all tokens before it."""
    last = shape.n - 1
    steps = DenseSteps(p)
    k, v = data.rows(np.arange(last))
    steps.model.k[:, :last], steps.model.v[:, :last] = k, v
    steps.model.length = last
    memories = before_of(p, steps.stored())
    steps.add(*data.half(last), restart=False)
    design = begun(generate(find("baseline.dense_core"), p), ["length"])
    stimulus = steps.stimulus([])
    return LayerStep(
        design, stimulus, memories, kind_of(p), "all rows, shared", begin={"length": last}
    )


def h2o_parameters(shape: Shape, knobs: dict[str, Any]) -> H2oCoreParameters:
    capacity = power_of_two(max(32, knobs["kept"] + 1))
    return H2oCoreParameters(shape.d, capacity, shape.heads, shape.kv_heads, DEPTH)


def h2o_step(p: H2oCoreParameters, shape: Shape, data: LayerData, knobs: dict) -> LayerStep:
    """The last token's, which takes the row that the step before it evicts.

    The sums of probabilities begin at 0 with that step.
    """
    kept, last = knobs["kept"], shape.n - 1
    steps = H2oSteps(p)
    model, half = steps.model, -(-kept // 2)
    k, v = data.rows(kept_tokens(shape, kept))
    model.k[:, :kept], model.v[:, :kept] = k, v
    model.resume(kept, half, shape.heads, shape.group)
    memories = before_of(p, steps.stored())
    for token in (last - 1, last):
        steps.add(*data.half(token), restart=False, target=kept, recent=half)
    begin = {"length": kept, "position": kept - 1, "target": kept, "recent": half}
    begin |= {"full": 0, "exhausted": 0}
    begin["first"] = shape.heads | shape.group << p.order.step_layout["heads"].width
    design = begun(generate(find("baseline.h2o_core"), p), [*begin])
    whole, stimulus = steps.stimulus([]), steps.stimulus([], since=1)
    stimulus.memories = whole.memories
    fewer = {name: len(beats) - len(stimulus.inputs[name]) for name, beats in whole.inputs.items()}
    first = {name: beats[: fewer[name]] for name, beats in whole.inputs.items()}
    expected = {
        name: len(beats) - len(stimulus.outputs[name]) for name, beats in whole.outputs.items()
    }
    return LayerStep(
        design,
        stimulus,
        memories,
        kind_of(p),
        f"{kept} tokens kept",
        before=[(first, expected)],
        begin=begin,
    )


def veda_parameters(shape: Shape, knobs: dict[str, Any]) -> VedaCoreParameters:
    """A run of K or V is kept for the heads that share it."""
    side = 1 << (shape.d.bit_length() - 1) // 2
    capacity = power_of_two(max(32, knobs["kept"] + 1))
    return VedaCoreParameters(
        side,
        shape.d // side,
        1,
        capacity=capacity,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        depth=max(DEPTH, capacity),
        parallel=max(shape.group, 2),
    )


class FilledSteps(Steps):
    """Steps after a sequence of which the model takes only the cache: no token has cast a vote."""

    def fill(self, k: np.ndarray, v: np.ndarray) -> tuple[dict, dict[str, int]]:
        """``k, v [kv heads, tokens, d]`` become the cache; beats that write it, and of outputs.

        Each token's step is one of a single head, as the core's state does not depend on heads;
        the memory has the other heads' rows already.
        """
        p, tokens = self.parameters, k.shape[1]
        cache = self.core.contexts[0]
        inputs = self.input_streams()
        q = np.zeros((1, p.d), np.float16)
        for token in range(tokens):
            cache.join(k[:, token], v[:, token], token == 0)
            offer(inputs, token, {"restart": token == 0, "heads": 1, "group": 1, "target": tokens})
            offer_rows(inputs, token, q, k[:1, token], v[:1, token])
        cache.engine.tokens = tokens
        cache.engine.positions = np.arange(tokens)
        cache.engine.counts = np.zeros(tokens, np.uint16)
        self._rows[0] = list(range(tokens))
        self._written[0, : len(k), :, :tokens] = np.stack([k, v], axis=1)
        self._filled = StepWork(tokens, 1, 1, False, 0)
        outputs = {name: len(beats) + tokens for name, beats in output_streams(p).packed().items()}
        return inputs.packed(), outputs

    def cycles(self, since: int = 0) -> int:
        """Cycles after the last of the steps that fill the cache."""
        self.work.insert(0, self._filled)
        cycles = super().cycles(1)
        del self.work[0]
        return cycles


def veda_step(p: VedaCoreParameters, shape: Shape, data: LayerData, knobs: dict) -> LayerStep:
    """The last token's, which votes and evicts a row."""
    kept = knobs["kept"]
    steps = FilledSteps(p)
    before = steps.fill(*data.rows(kept_tokens(shape, kept)))
    memories = before_of(p, steps.stored())
    fields = {"target": kept, "protected": min(4, kept), "a": A, "b": B, "context": 0}
    steps.add(*data.half(shape.n - 1), restart=False, vote=True, evict=True, **fields)
    stimulus = steps.stimulus([])
    design = generate(find("veda.veda_core"), p)
    knob = f"{kept} tokens kept"
    return LayerStep(design, stimulus, memories, kind_of(p), knob, before=[before])


def tsuru_parameters(shape: Shape, knobs: dict[str, Any]) -> TsuruCoreParameters:
    capacity = power_of_two(max(32, shape.n))
    return TsuruCoreParameters(
        shape.d,
        capacity,
        shape.heads,
        shape.kv_heads,
        parallel=shape.group,
        depth=DEPTH,
        kept=max(min(TsuruCoreParameters.kept, capacity), capacity // 8),
    )


def tsuru_step(p: TsuruCoreParameters, shape: Shape, data: LayerData, knobs: dict) -> LayerStep:
    """The last token's. Steps before it, of one query head a kv head, write the last rows of the
    search, as the core keeps the words that they share with the new row."""
    last, block = shape.n - 1, p.format.search_rows
    mean = data.k.mean(axis=1, keepdims=True)
    data = LayerData(data.q, data.k - mean, data.v, data.scale, data.about)
    planes = (PLANES - 1) * p.sinks
    first = max(0, (last + planes) // block * block - planes)
    steps = TsuruSteps(p)

    def rows(token: int) -> list[np.ndarray]:
        return [rotated(x) for x in data.half(token)]

    for token in range(first):
        _, k, v = rows(token)
        steps.model.rows.write(token, k, v)
    steps.model.length = first
    memories = before_of(p, steps.stored())
    threshold = min((1 << 14) - 1, round(-np.log2(knobs["threshold"]) * (1 << FRACTION)))
    for token in range(first, last):
        q, k, v = rows(token)
        restart = token == 0
        steps.add(q[:: shape.group], k, v, restart=restart, threshold=0)
    steps.add(*rows(last), restart=False, threshold=threshold)
    design = begun(generate(find("tsuru.tsuru_core"), p), ["length"])
    whole, stimulus = steps.stimulus([]), steps.stimulus([], since=last - first)
    stimulus.memories = whole.memories
    fewer = {name: len(beats) - len(stimulus.inputs[name]) for name, beats in whole.inputs.items()}
    before = {name: beats[: fewer[name]] for name, beats in whole.inputs.items()}
    expected = {
        name: len(beats) - len(stimulus.outputs[name]) for name, beats in whole.outputs.items()
    }
    return LayerStep(
        design,
        stimulus,
        memories,
        # A word of a row has its K and its V.
        lambda words: np.where(words >> p.row_bits & 1, OTHER, K),
        f"threshold {knobs['threshold']:.2g}",
        before=[(before, expected)] if last > first else [],
        begin={"length": first},
    )
