"""What an error of a weight costs: the mean of x x^T over calibration's inputs of each product.

Tokens weigh by how much the product's result matters to the loss: by the root mean square of the
gradient that reaches it. GuidedQuant (Kim et al., arXiv:2505.07004) weighs by the mean square and
by groups of columns.
"""

from collections.abc import Sequence

import numpy as np

from golden.lm.gradient import layer_gradients
from golden.lm.model import Llama, in_memory
from golden.lm.progress import Progress
from golden.lm.weights import INPUTS


def layer_hessians(
    model: Llama, samples: Sequence[Sequence[int]], progress: Progress = False
) -> list[dict[str, np.ndarray]]:
    """``float32[K, K]`` of each layer's matrices by name, H = E[w x x^T] / E[w] with w[token].

    Zeros where no result matters, such as a query to a single key.
    """
    model = in_memory(model)
    sums = [
        {name: np.zeros(2 * getattr(layer, name).shape[:1], np.float32) for name in INPUTS}
        for layer in model.weights.layers
    ]
    weights = [dict.fromkeys(INPUTS, 0.0) for _ in sums]
    for index, layer, gradients in layer_gradients(model, samples, progress):
        for name, into in INPUTS.items():
            weight = np.sqrt(np.square(gradients.products[name]).mean(axis=1))
            x = layer.inputs[into] * np.sqrt(weight)[:, None]
            sums[index][name] += x.T @ x
            weights[index][name] += float(weight.sum())
    for own, total in zip(sums, weights, strict=True):
        for name, array in own.items():
            array /= np.float32(total[name] or 1)
    return sums
