"""How far the caches A to F drift from their definition while they are updated step by step."""

from dataclasses import dataclass

import numpy as np

from golden.algorithms.attention import attention_scores, weighted_sum
from golden.algorithms.lad.attention import LocalityAwareAttention
from golden.algorithms.lad.caches import Caches, definition, to_fp16
from golden.algorithms.lad.piecewise_exp import EIGHT_BOUNDS, PiecewiseExp


@dataclass(frozen=True)
class Drift:
    """Relative errors after some of the steps.

    ``steps`` [samples] are tokens taken so far. ``caches[name]`` [samples, query heads] is the
    Euclidean norm of the difference between a cache and its definition, over the definition's norm
    (0 where both are zero). ``output`` [samples, query heads] is the same for the attention's
    output against the one that the caches by definition would have given in that step.
    """

    steps: np.ndarray
    caches: dict[str, np.ndarray]
    output: np.ndarray


def measure_drift(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    every: int = 16,
    bounds: tuple[float, ...] = EIGHT_BOUNDS,
    scale: float | None = None,
    **options,
) -> Drift:
    """Run one layer and compare its caches to a recomputation in float64 after ``every`` steps.

    ``q`` [query heads, tokens, d], ``k``, ``v`` [kv heads, tokens, d], of any float type; the
    attention computes in float32, as it does for the language model. ``options`` are further
    arguments of ``LocalityAwareAttention``, such as ``storage``, ``refresh``, ``terms`` and
    ``arithmetic``. The definition takes the modes that the run has arrived at, and q, K, V and the
    tables a, b as the run has them: rounded to FP16 with ``arithmetic`` "fp16".
    """
    q, k, v = (x.astype(np.float32) for x in (q, k, v))
    rounds = options.get("arithmetic") == "fp16"
    if rounds:
        q = q * np.float32(1 / np.sqrt(q.shape[2]) if scale is None else scale)
        q, k, v, scale = to_fp16(q), to_fp16(k), to_fp16(v), 1.0
    attention = LocalityAwareAttention(bounds, scale=scale, **options)
    exp = PiecewiseExp(bounds, table_type=np.float16 if rounds else None)
    errors: dict[str, list[np.ndarray]] = {name: [] for name in Caches.NAMES}
    steps, outputs = [], []
    for t in range(q.shape[1]):
        sampled = (t + 1) % every == 0
        if sampled:
            # The new position is active, so its mode before the step does not matter.
            before = np.zeros((len(q), t + 1), np.uint8)
            before[:, :t] = attention.modes.mode if t else 0
        o = attention.step(q[:, t], k[:, t], v[:, t])
        if sampled:
            keys, values = (x[:, : t + 1].astype(np.float64) for x in (k, v))
            scores = attention_scores(q[:, t].astype(np.float64), keys, scale)
            x = scores - attention.m[:, None]
            interval = np.where(attention.active, exp.interval(x), before)
            weights = exp.a[interval] * x + exp.b[interval]
            expected = weighted_sum(weights, values) / weights.sum(axis=1, keepdims=True)
            outputs.append(relative_error(o, expected))
            mode = attention.modes.mode
            for name, exact in definition(exp.a[mode], exp.b[mode], keys, values).items():
                errors[name].append(relative_error(getattr(attention.caches, name), exact))
            steps.append(t + 1)
    caches = {name: np.array(error) for name, error in errors.items()}
    return Drift(np.array(steps), caches, np.array(outputs))


def relative_error(value: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Norm of the difference in the norm of ``exact``, for each head (the first axis)."""
    difference, size = (
        np.sqrt(np.square(x.reshape(len(x), -1)).sum(axis=1)) for x in (value - exact, exact)
    )
    return np.divide(difference, size, out=np.where(difference > 0, np.inf, 0), where=size > 0)
