"""Each paper's main result, repeated at this project's scale; one module for each paper.

A module says which runs it needs (``runs``), what else to compute (``extras``, plain numbers), and
makes claims, tables and pictures of the outcome (``section``).
"""

from golden.evaluation.experiments import kllm, lad, topick, unicaim, veda

EXPERIMENTS = {"veda": veda, "topick": topick, "lad": lad, "unicaim": unicaim, "kllm": kllm}
