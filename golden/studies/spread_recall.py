"""UniCAIM's selection under a spread of thresholds: how many of the top rows it still finds."""

from collections.abc import Mapping, Sequence

import numpy as np

from golden.algorithms.attention import attention_scores
from golden.algorithms.unicaim.selection import top_k
from golden.algorithms.unicaim.spread import recall_against_spread, spread_in_levels
from golden.unicaim.cells import KEY_SPAN, key_levels, key_step, query_levels, rotated_key_span
from golden.unicaim.rotation import rotated

PARTS = (1, 5, 9)
"""Tenths of the layers, of which one each is looked at."""
QUERIES = 8
BITS = 3
DEVICES = 4
"""Sets of devices."""


def recall_of_levels(
    windows: Sequence[Sequence[Mapping[str, np.ndarray]]],
    rows: int,
    top: int,
    spreads: Sequence[float],
) -> dict[bool, dict[str, list[float]]]:
    """Recall for each spread, by whether keys are rotated and centred; means over all heads.

    windows
        For each window the layers' ``q`` and ``k`` [head, token, d]. The first `rows` tokens are in
        the array, and the queries that follow select the `top` of them.
    spreads
        Standard deviations of the threshold voltage, in millivolts.

    ``levels`` is against the selection by the same levels without spread, ``exact`` against the one
    by exact scores.
    """
    found: dict[bool, list[tuple[list[float], list[float]]]] = {False: [], True: []}
    for layers in windows:
        for layer in (layers[len(layers) * part // 10] for part in PARTS):
            q, k = layer["q"][:, rows : rows + QUERIES], layer["k"][:, :rows]
            for rotate, curves in found.items():
                curves += _of_layer(q, k, top, spreads, rotate)
    return {
        rotate: {
            name: np.mean([pair[index] for pair in curves], axis=0).tolist()
            for index, name in enumerate(("levels", "exact"))
        }
        for rotate, curves in found.items()
    }


def _of_layer(
    q: np.ndarray, k: np.ndarray, top: int, spreads: Sequence[float], rotate: bool
) -> list[tuple[list[float], list[float]]]:
    """Both recalls of each query head."""
    exact = attention_scores(q.reshape(-1, q.shape[-1]), k, 1.0)
    near = top_k(exact.reshape(*q.shape[:2], -1), top)
    keys, queries, span = k, q, KEY_SPAN
    if rotate:
        keys = rotated(k - k.mean(axis=1, keepdims=True), 0)
        queries, span = rotated(q, 0), rotated_key_span(BITS)
    levels = key_levels(keys, key_step(keys, BITS, span), BITS)
    sigmas = [spread_in_levels(mv / 1000) for mv in spreads]
    found = []
    for head, some in enumerate(query_levels(queries, BITS)):
        of_head = levels[head * len(k) // len(q)]
        by_levels, by_exact = (
            recall_against_spread(of_head, some, BITS, top, sigmas, DEVICES, 0, reference)
            for reference in (None, near[head])
        )
        found.append((list(by_levels), list(by_exact)))
    return found
