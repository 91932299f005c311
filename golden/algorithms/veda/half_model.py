"""A Llama model whose layers' products and norms are VEDA's, in FP16 (VEDA, IV-A and IV-B)."""

from collections.abc import Callable

import numpy as np

from golden.algorithms.vectors import HalfVectors, gains_of, norm_of_model
from golden.lm.joint_products import NORMED, STEPS, JointProducts
from golden.lm.model import Llama
from golden.lm.weights import Layer
from golden.veda.veda_core import VedaCore


class HalfLlama(HalfVectors):
    """A model with FP16 matrices, multiplied as :meth:`golden.veda.veda_core.VedaCore.product`.

    A norm's gain is in the rows of the matrices that follow, and the norm in the product.
    Embedding, the last norm and the output matrix are in float32, and so are positions, sums and
    gated products if the core has no units for them.

    model
        The model in floats.
    d
        Columns of a block.
    accumulator, add_stages
        As in :class:`golden.veda.veda_core.VedaCore`.

    ``matrices[layer][step]`` is ``float16[blocks, rows, d]``; a matrix whose columns do not fill
    its last block is filled up by zeros.
    """

    def __init__(
        self, model: Llama, d: int, accumulator: str = "fp32", add_stages: int = 2
    ) -> None:
        super().__init__(model.weights)
        self.norm = norm_of_model(self)
        self.core = VedaCore(2, accumulator=accumulator, add_stages=add_stages)
        self.matrices = [
            self._folded(model.weights.layers[index], d) for index in range(self.config.layers)
        ]
        shapes = {name: getattr(model.weights.layers[0], name).shape for name in sum(STEPS, ())}
        self.columns = {name: columns for name, (_, columns) in shapes.items()}
        self.d = d

    def _folded(self, layer: Layer, d: int) -> list[np.ndarray]:
        gains, found = gains_of(layer), []
        for step, names in enumerate(STEPS):
            blocks = []
            for name in names:
                w = getattr(layer, name)
                w = w * gains[step][:, None] if step in gains else w
                w = np.pad(w, ((0, 0), (0, -w.shape[1] % d))).astype(np.float16)
                blocks += np.split(w, w.shape[1] // d, axis=1)
            found.append(np.stack(blocks))
        return found

    def normalise(self, x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        """The last norm alone; a layer's norms are in its products."""
        return super().normalise(x, gain) if gain is self.weights.norm else x

    def products(self, index: int, layer: Layer) -> Callable[[str, np.ndarray], np.ndarray]:
        return self.joined(lambda step, x: self.product(index, step, x)).multiply

    def product(self, layer: int, step: int, x: np.ndarray) -> np.ndarray:
        """``float16[blocks vectors, d]`` of ``float16 x [vectors, rows]``."""
        norm = self.norm if step in NORMED else None
        return self.core.product(x, self.matrices[layer][step], norm).o

    def joined(self, product: Callable[[int, np.ndarray], np.ndarray]) -> JointProducts:
        """Products of a layer by name, from :meth:`product` of its steps."""

        def whole(step: int, x: np.ndarray) -> np.ndarray:
            o, first = product(step, x).reshape(-1, len(x), self.d).astype(np.float32), 0
            parts = []
            for columns in (self.columns[name] for name in STEPS[step]):
                blocks = -(-columns // self.d)
                part = o[first : first + blocks].transpose(1, 0, 2).reshape(len(x), -1)
                parts.append(part[:, :columns])
                first += blocks
            return np.concatenate(parts, axis=1)

        return JointProducts(self.columns, whole)
