"""A Llama model whose layers multiply as LAD's tile does, in FP16 (LAD, IV-A)."""

from collections.abc import Callable, Iterator

import numpy as np

from golden.algorithms.vectors import HalfVectors, gains_of, norm_of_model, normalised
from golden.lad.linear import linear
from golden.lm.joint_products import NORMED, STEPS, JointProducts
from golden.lm.model import Llama
from golden.lm.weights import Layer


class TileLlama(HalfVectors):
    """A model with FP16 matrices, multiplied as :func:`golden.lad.linear.linear`.

    A vector longer than the tile takes is multiplied in parts, whose results are added in FP32.
    Embedding, the last norm and the output matrix are in float32, and whatever the special function
    module has no unit for.

    model
        The model in floats.
    d
        Elements of a piece of a vector.
    pieces
        Pieces of a vector that the tile takes, at most.
    normed
        Whether the tile normalises vectors. A norm's gain is then in the rows of the matrices that
        follow.

    ``matrices[layer][step]`` has the parts ``float16[columns, pieces, d]`` of a step's matrices;
    rows that do not fill their last piece are filled up by zeros.
    """

    def __init__(self, model: Llama, d: int, pieces: int, *, normed: bool = False) -> None:
        super().__init__(model.weights)
        self.d, self._pieces = d, pieces
        self.norm = norm_of_model(self) if normed else None
        layers = model.weights.layers
        self.matrices = [self._packed(layers[index]) for index in range(self.config.layers)]
        shapes = {name: getattr(layers[0], name).shape for name in sum(STEPS, ())}
        self.columns = {name: columns for name, (_, columns) in shapes.items()}

    def _packed(self, layer: Layer) -> list[list[np.ndarray]]:
        found, gains = [], gains_of(layer) if self.norm else {}
        for step, names in enumerate(STEPS):
            w = np.concatenate([getattr(layer, name) for name in names], axis=1)
            w = w * gains[step][:, None] if step in gains else w
            found.append(list(self.parts(w.T.astype(np.float16))))
        return found

    def parts(self, x: np.ndarray) -> Iterator[np.ndarray]:
        """``[vectors, pieces, d]`` of ``x [vectors, rows]``, in parts that the tile takes."""
        x = np.pad(x, ((0, 0), (0, -x.shape[1] % self.d))).reshape(len(x), -1, self.d)
        for first in range(0, x.shape[1], self._pieces):
            yield np.ascontiguousarray(x[:, first : first + self._pieces])

    def products(self, index: int, layer: Layer) -> Callable[[str, np.ndarray], np.ndarray]:
        def product(step: int, x: np.ndarray) -> np.ndarray:
            if self.norm and step in NORMED:
                x = normalised(x, self.norm)
            return self.summed(step, x, index, lambda part, vectors, w: linear(vectors, w))

        return JointProducts(self.columns, product).multiply

    def normalise(self, x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        """A layer's norms are in its products if the tile has them, and the last one is not."""
        if self.norm is None or gain is self.weights.norm:
            return super().normalise(x, gain)
        return x

    def summed(
        self,
        step: int,
        x: np.ndarray,
        layer: int,
        product: Callable[[int, np.ndarray, np.ndarray], np.ndarray],
    ) -> np.ndarray:
        """``float32[vectors, columns]``: the sum of the parts of a step.

        product
            ``float32[columns, vectors]`` of a part's number, vectors and matrix.
        """
        pairs = zip(self.parts(x), self.matrices[layer][step], strict=True)
        first, *others = (product(part, *pair) for part, pair in enumerate(pairs))
        for y in others:
            first = first + y
        return first.T


def layer_rows(parts: list[list[np.ndarray]]) -> np.ndarray:
    """``float16[rows, d]``: all parts of a layer's steps, one after the other."""
    return np.concatenate([part.reshape(-1, part.shape[-1]) for step in parts for part in step])
