"""Run one algorithm on the model or on a trace and measure its error and its traffic."""

import copy
import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy as np
from tqdm import tqdm

from golden.algorithms.attention import ELEMENT_BYTES, DecodeAttention, DenseAttention, Traffic
from golden.algorithms.baselines import rope_of
from golden.evaluation.policies import Policy
from golden.lm.model import Llama
from golden.lm.perplexity import CONTEXT, perplexity
from golden.lm.weights import Layer
from golden.trace import Trace


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Results of one algorithm on one input, counted after the prompt only.

    perplexity
        Perplexity of the tokens after the prompt; None for a trace, which has no text.
    error
        Relative error ||got - exact|| / ||exact|| over the tokens, averaged over the layers. It
        compares the attention's output with dense attention's or, if matrix products are quantised,
        each product with the float one, and the attention's output if that is quantised too. Both
        get the same inputs, so errors of earlier layers do not count.
    traffic
        Reads of K and V, all layers.
    rows
        Tokens held in the cache at the end, averaged over layers and kv heads.
    cache_bytes
        K, V and the algorithm's further state at the end, all layers.
    figures
        Further counts of the algorithm, averaged over the layers.
    seconds
        Wall-clock time.
    idle
        A sentence if the algorithm changed nothing on this input, so that its figures are not the
        algorithm's; else empty.
    """

    policy: str
    perplexity: float | None
    error: float
    traffic: Traffic
    rows: float
    cache_bytes: int
    figures: dict[str, float]
    seconds: float
    idle: str = ""

    @property
    def quality(self) -> float:
        """The perplexity, of a measurement on text."""
        assert self.perplexity is not None, "a trace has no perplexity"
        return self.perplexity

    def as_json(self) -> dict:
        """Plain numbers, with the traffic's ratio."""
        result = dataclasses.asdict(self)
        result["traffic"]["ratio"] = self.traffic.ratio
        return result

    @classmethod
    def from_json(cls, content: dict) -> "Measurement":
        """What :meth:`as_json` gave, whatever else there is; a later field has its default."""
        names = {field.name for field in dataclasses.fields(cls)}
        traffic = {name: value for name, value in content["traffic"].items() if name != "ratio"}
        given = {name: value for name, value in content.items() if name in names}
        return cls(**given | {"traffic": Traffic(**traffic)})


class Compared(DecodeAttention):
    """An attention, compared with dense attention on the same inputs.

    Returns the outputs of the first from the first token on, but counts traffic and error only
    after the first `prompt` tokens.
    """

    def __init__(self, attention: DecodeAttention, prompt: int, scale: float | None) -> None:
        super().__init__()
        self.inner = attention
        self.differences = Differences()
        self._dense = DenseAttention(scale)
        self._left = prompt

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        return self.sequence(q[:, None], k[:, None], v[:, None])[:, 0]

    def sequence(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        self.kv_heads, self.d = k.shape[0], k.shape[2]
        outputs = []
        for some in (slice(None, self._left), slice(self._left, None)):
            part = q[:, some], k[:, some], v[:, some]
            if not part[0].shape[1]:
                continue
            before = copy.copy(self.inner.traffic)
            outputs.append(self.inner.sequence(*part))
            exact = self._dense.sequence(*part)
            if some.start is not None:
                self.traffic.add(self.inner.traffic.since(before))
                self.differences.add(outputs[-1], exact)
        self._left = max(0, self._left - q.shape[1])
        return np.concatenate(outputs, axis=1)

    @property
    def cache_bytes(self) -> int:
        """Bytes held: FP16 rows and the algorithm's own state."""
        return 4 * self.inner.rows * self.d + self.inner.state_bytes


class Differences:
    """Sums of the squares of errors and of exact values."""

    def __init__(self) -> None:
        self._error = self._exact = 0.0

    def add(self, got: np.ndarray, exact: np.ndarray) -> None:
        self._error += float(np.sum(np.square(got - exact, dtype=np.float64)))
        self._exact += float(np.sum(np.square(exact, dtype=np.float64)))

    @property
    def relative(self) -> float:
        """||error|| / ||exact||; an error where all exact values are 0 is infinite."""
        if not self._error:
            return 0.0
        return float(np.sqrt(self._error / self._exact)) if self._exact else np.inf

    @property
    def blind(self) -> bool:
        """Whether all exact values are 0, which most algorithms give whatever they leave out."""
        return not self._exact


class ComparedProducts(Llama):
    """A model with quantised products, each compared with the float product of its inputs."""

    def __init__(self, quantised: Llama, exact: Llama) -> None:
        super().__init__(quantised.weights)
        self._quantised, self._exact = quantised, exact
        self.differences: dict[tuple[int, str], Differences] = {}

    def products(self, index: int, layer: Layer) -> Callable[[str, np.ndarray], np.ndarray]:
        quantised = self._quantised.products(index, layer)
        exact = self._exact.products(index, self._exact.weights.layers[index])

        def multiply(name: str, x: np.ndarray) -> np.ndarray:
            result = quantised(name, x)
            self.differences.setdefault((index, name), Differences()).add(result, exact(name, x))
            return result

        return multiply

    def normalise(self, x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return self._quantised.normalise(x, gain)

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        return self._quantised.logits(hidden)

    def attention_of(self, layer: int) -> DecodeAttention:
        return self._quantised.attention_of(layer)


def measure(
    policy: Policy,
    model: Llama,
    tokens: Sequence[int],
    *,
    prompt: int = 1,
    context: int = CONTEXT,
    progress: bool = False,
    **defaults,
) -> Measurement:
    """Measure a policy on the model, which reads `tokens` in windows of `context`.

    The first `prompt` tokens of each window are the prompt, which is not counted. `defaults` are
    parameters for policies that have them. Layers that see a window of tokens have no policy and
    are not counted.
    """
    started = time.perf_counter()
    defaults |= {"prompt": prompt, "rope": rope_of(model)}
    attentions: list[Compared] = []

    def fresh() -> list[DecodeAttention]:
        if products:
            made = products.dense()
        else:
            made = model.attentions(lambda layers: policy.attentions(layers, **defaults))
        for layer, inner in enumerate(made):
            if model.config.window(layer) is None:
                made[layer] = compared = Compared(inner, prompt, None)
                attentions.append(compared)
        return made

    products = None
    if policy.quantises_products:
        quantised = policy.model(model, progress=progress, **defaults)
        exact = getattr(quantised, "exact", model)
        model = products = ComparedProducts(quantised, exact)
    label = policy.text if progress else None
    score = perplexity(model, tokens, fresh, context=context, prompt=prompt, progress=label)
    errors = list(products.differences.values()) if products else []
    errors += [
        a.differences for a in attentions if not (products and isinstance(a.inner, DenseAttention))
    ]
    return _measurement(policy, score.perplexity, errors, attentions, started)


def measure_trace(
    policy: Policy, trace: Trace, *, prompt: int = 1, progress: bool = False
) -> Measurement:
    """Measure a policy on the attention of every layer of a trace that holds q, k and v."""
    started = time.perf_counter()
    q, k, v, scale = trace.attention
    made = policy.attentions(len(q), prompt=prompt, scale=scale)
    attentions = [Compared(inner, prompt, scale) for inner in made]
    layers = tqdm(attentions, desc=policy.text, unit="layer", disable=not progress)
    for attention, *rows in zip(layers, q, k, v, strict=True):
        attention.sequence(*rows)
    errors = [attention.differences for attention in attentions]
    return _measurement(policy, None, errors, attentions, started)


def _measurement(policy, score, errors, attentions, started) -> Measurement:
    traffic = Traffic()
    figures: dict[str, list[float]] = {}
    for attention in attentions:
        traffic.add(attention.traffic)
        for name, value in attention.inner.figures().items():
            figures.setdefault(name, []).append(value)
    error = float(np.mean([difference.relative for difference in errors]))
    return Measurement(
        policy=policy.text,
        perplexity=score,
        error=error,
        traffic=traffic,
        rows=float(np.mean([a.inner.rows / a.kv_heads for a in attentions])),
        cache_bytes=sum(a.cache_bytes for a in attentions),
        figures={name: float(np.mean(values)) for name, values in figures.items()},
        seconds=time.perf_counter() - started,
        idle=_idle(
            policy,
            traffic,
            attentions[0].inner.row_bits,
            error,
            all(difference.blind for difference in errors),
        ),
    )


def _idle(policy: Policy, traffic: Traffic, row_bits: int, error: float, blind: bool) -> str:
    """Why the figures say nothing about the policy; empty if they do."""
    if policy.name == "dense":
        return ""
    if blind:
        return "dense attention gives zeros alone on this input, so that no error can show"
    if policy.quantises_products:
        return "" if error else "it quantised nothing: its figures are the float model's"
    # A cache of fewer bits reads all rows and fewer bytes.
    dense_bytes = traffic.dense_bytes * row_bits // (8 * ELEMENT_BYTES)
    if min(traffic.k_rows, traffic.v_rows) < traffic.dense_rows or traffic.bytes < dense_bytes:
        return ""
    return (
        "it read every row of K and V on this input, and pruned and evicted none: its figures say"
        " nothing about the algorithm; give more tokens, a longer --prompt or other parameters"
    )
