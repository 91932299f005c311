"""A model's operations on vectors as an accelerator computes them, in FP16.

Residual sums, biases and gated products by a vector unit, positions by a rotary encoding, norms by
a special function unit; each result is the bit-exact model's, and float32 again.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from golden import InputError
from golden.attention.pair_function import GELU_PRODUCT, SILU_PRODUCT, SUM
from golden.attention.rotary_encoding import rotary_encoding, turns_of
from golden.attention.special_function_unit import layer_norm
from golden.attention.vector_unit import vector_unit
from golden.lm.joint_products import NORMED
from golden.lm.model import Llama, rope_frequencies

if TYPE_CHECKING:
    from golden.lm.weights import Layer

OPERATIONS = {"sum": SUM, "silu": SILU_PRODUCT, "gelu": GELU_PRODUCT}
"""Numbers of the operations that :meth:`golden.lm.model.Llama.combine` names."""

WORDS = {"sum": "sum", "silu": "gated product", "gelu": "gated product"}
"""What messages call them."""

Norm = tuple[np.float32, np.float32]
"""1 / n of a vector of n elements, and what is added to the mean of its squares."""


class HalfVectors(Llama):
    """A model whose operations on vectors may be an accelerator's.

    ``half_vectors`` and ``half_positions``, False until they are set, say whether sums and gated
    products of vectors, and the rotary encoding, are.
    """

    half_vectors = half_positions = False

    def combine(self, index: int, op: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return combined(op, a, b) if self.half_vectors else super().combine(index, op, a, b)

    def turn(
        self, index: int, positions: np.ndarray, x: np.ndarray, angles: np.ndarray
    ) -> np.ndarray:
        if not self.half_positions:
            return super().turn(index, positions, x, angles)
        return turned(x, positions, turns_of_layer(self, index))


def norm_of_model(model: Llama) -> Norm:
    """The norm before a layer's products."""
    return np.float32(1 / model.config.dim), np.float32(model.config.norm_eps)


def normalised(x: np.ndarray, norm: Norm) -> np.ndarray:
    """``float16``: rows of ``float16 x [token, dim]`` over their root mean square.

    :raises InputError: if an element of a row is infinite or NaN.
    """
    found = [layer_norm(row, *norm, rms=True) for row in x]
    if any(invalid for _, invalid in found):
        raise InputError("a vector of the model to be normalised is beyond FP16, 65504")
    return np.array([y for y, _ in found]).reshape(x.shape)


def gains_of(layer: "Layer") -> Mapping[int, np.ndarray]:
    """Gains of the norms before the products of :data:`NORMED`, by the number of their step."""
    return dict(zip(NORMED, (layer.attn_norm, layer.ffn_norm), strict=True))


def combined(op: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``float32``: the sum or gated product of two arrays, made FP16.

    :raises InputError: if one of them is beyond FP16.
    """
    with np.errstate(over="ignore"):
        operands = a.astype(np.float16), b.astype(np.float16)
    y, _ = vector_unit(*operands, OPERATIONS[op])
    if not np.isfinite(y).all():
        raise InputError(f"the {WORDS[op]} of two vectors of the model is beyond FP16, 65504")
    return y.astype(np.float32)


def turns_of_layer(model: Llama, layer: int) -> np.ndarray:
    """``int[pair]``: turns from one position to the next, of the elements that are turned."""
    c = model.config
    if c.local is not None and c.window(layer) is not None:
        return turns_of(rope_frequencies(c.rope_dims, c.local.rope_base))
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
