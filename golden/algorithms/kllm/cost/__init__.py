"""Work and time of KLLM's products, and of a decoded token of the paper's models.

``operations``
    Counts of one product: MACs, increments, comparisons.
``cycles``
    Cycles and bytes of a product on the core, by the formulas that the RTL is checked against.
``decode``
    A token of a language model: its products, attention and head.
``models``
    Shapes of the models of section V-A.
``published``
    Table I and the figures that the paper's text states, and measurements of the A100.
"""

from golden.algorithms.kllm.cost.cycles import Core, Product, cycles, memory_words
from golden.algorithms.kllm.cost.decode import Token, a100_bytes, decode
from golden.algorithms.kllm.cost.models import MODELS, Shape
from golden.algorithms.kllm.cost.operations import Cost, cost

__all__ = [
    "MODELS",
    "Core",
    "Cost",
    "Product",
    "Shape",
    "Token",
    "a100_bytes",
    "cost",
    "cycles",
    "decode",
    "memory_words",
]
