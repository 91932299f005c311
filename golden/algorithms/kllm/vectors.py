"""A model's operations on vectors as the accelerator computes them, in FP16.

Residual sums, biases and gated products by its vector unit, positions by its rotary encoding; each
result is the bit-exact model's, and float32 again.
"""

import numpy as np

from golden.attention.rotary_encoding import rotary_encoding, turns_of
from golden.kllm.pair_function import GELU_PRODUCT, SILU_PRODUCT, SUM
from golden.kllm.vector_unit import vector_unit
from golden.lm.model import Llama, rope_frequencies

OPERATIONS = {"sum": SUM, "silu": SILU_PRODUCT, "gelu": GELU_PRODUCT}
"""Numbers of the operations that :meth:`golden.lm.model.Llama.combine` names."""


def combined(op: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``float32``: the sum or gated product of two arrays, made FP16."""
    y, _ = vector_unit(a.astype(np.float16), b.astype(np.float16), OPERATIONS[op])
    return y.astype(np.float32)


def turns_of_model(model: Llama) -> np.ndarray:
    """``int[pair]``: turns from one position to the next, of the elements that are turned."""
    c = model.config
    return turns_of(rope_frequencies(c.rope_dims, c.rope_base, model.weights.rope_factors))


def pairs_in(x: np.ndarray, turns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``float16[..., pair]`` twice: neighbours among the leading elements, which are turned."""
    x = x[..., : 2 * len(turns)].astype(np.float16)
    return x[..., ::2], x[..., 1::2]


def with_pairs(x: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``float32``: `x` with its leading elements in the pairs' places."""
    y = x.astype(np.float32)
    y[..., 0 : 2 * a.shape[-1] : 2], y[..., 1 : 2 * a.shape[-1] : 2] = a, b
    return y


def turned(x: np.ndarray, positions: np.ndarray, turns: np.ndarray) -> np.ndarray:
    """``float32``: heads ``x [head, token, d]``, made FP16, at the tokens' positions."""
    return with_pairs(x, *rotary_encoding(*pairs_in(x, turns), positions, turns))
