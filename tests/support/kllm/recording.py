"""A quantised model that records its multiplications."""

import numpy as np

from golden.algorithms.kllm.model import QuantizedLlama


class Recording(QuantizedLlama):
    """Keeps every product of one run in ``seen``: (layer, matrix, x, result).

    With ``rounds`` set, results are rounded to FP16.
    """

    rounds = False

    def hidden(self, tokens, *given, **options):
        self.seen = []
        return super().hidden(tokens, *given, **options)

    def products(self, index, layer):
        multiply = super().products(index, layer)

        def keep(name, x):
            result = multiply(name, x)
            result = result.astype(np.float16).astype(np.float32) if self.rounds else result
            self.seen.append((index, name, x, result))
            return result

        return keep
